//! The plans that `auto` keeps between runs: files in one folder, bounded in age and size.
//!
//! Any number of processes may share the folder. A file appears whole, under its name; of two that write
//! the same one wins. Whoever keeps a plan lets others go: those that no run has used for [`AGE_MAX`], and
//! then those that were not used for longest, until all together have [`BYTES_MAX`]. A plan that goes
//! costs its program a few steps of learning. Files of other names are left alone.

use std::fmt::Display;
use std::fs::{self, DirEntry, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use girih_plan::Plan;

use crate::control::save_plan;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// A plan goes that no run has used for so long.
const AGE_MAX: Duration = Duration::from_secs(90 * DAY.as_secs());
/// Bytes of all plans together.
const BYTES_MAX: u64 = 1 << 30;
/// What a process left behind that died while it wrote goes after so long.
const UNFINISHED_AGE_MAX: Duration = DAY;

/// The file of a key and a device in a folder of plans.
pub(crate) fn plan_file(folder: &Path, key: &str, device: impl Display) -> PathBuf {
    // FNV-1a: the same on every machine and in every release.
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    folder.join(format!("{hash:016x}-{device}.plan"))
}

/// Keeps a plan, and lets others go.
///
/// # Errors
/// What failed, and on which file. That others do not go is no error.
pub(crate) fn keep(plan: &Plan, file: &Path) -> Result<(), String> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    }
    save_plan(plan, file)?;
    evict(file, now(), BYTES_MAX);
    Ok(())
}

/// A kept plan is used: it is as good as new.
pub(crate) fn touch(file: &Path) {
    // A folder that cannot be written to keeps its plans for as long as it lets others.
    let _ = File::options().append(true).open(file).and_then(|file| file.set_modified(now()));
}

#[expect(clippy::disallowed_methods, reason = "how old a file is shows by the clock alone")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Removes the plans beside `kept` that are too old or too many. What cannot be seen or removed stays:
/// another process may have been faster.
fn evict(kept: &Path, now: SystemTime, bytes_max: u64) {
    let Some(entries) = kept.parent().and_then(|folder| fs::read_dir(folder).ok()) else { return };
    let mut plans: Vec<(Duration, u64, PathBuf)> = Vec::new();
    for entry in entries.flatten() {
        let Some((age, bytes)) = look(&entry, now) else { continue };
        let (name, path) = (entry.file_name(), entry.path());
        match Name::of(&name.to_string_lossy()) {
            Some(Name::Plan) => plans.push((age, bytes, path)),
            Some(Name::Unfinished) if age > UNFINISHED_AGE_MAX => _ = fs::remove_file(path),
            Some(Name::Unfinished) | None => {}
        }
    }
    plans.sort_unstable();
    let mut total = 0;
    for (age, bytes, path) in plans {
        total += bytes;
        if path != kept && (age > AGE_MAX || total > bytes_max) {
            let _ = fs::remove_file(path);
        }
    }
}

/// How long ago a file was written or used, and its bytes. None if it is no file.
fn look(entry: &DirEntry, now: SystemTime) -> Option<(Duration, u64)> {
    let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
    let age = now.duration_since(metadata.modified().ok()?).unwrap_or_default();
    Some((age, metadata.len()))
}

/// What a file is by its name.
enum Name {
    Plan,
    /// What [`save_plan`] writes before it has its name.
    Unfinished,
}

impl Name {
    /// None for a file that is not ours.
    fn of(name: &str) -> Option<Name> {
        let (stem, rest) = name.split_once(".plan")?;
        let (hash, device) = stem.split_once('-')?;
        // A GPU that keeps plans of its own has its UUID behind the device (`kept`).
        let (device, gpu) = device.split_once('-').unwrap_or((device, ""));
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_ours = hash.len() == 16
            && is_hex(hash)
            && device.parse::<u32>().is_ok()
            && matches!(gpu.len(), 0 | 32)
            && is_hex(gpu);
        match rest {
            "" if is_ours => Some(Name::Plan),
            rest if is_ours && rest.ends_with(".unfinished") => Some(Name::Unfinished),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_the_same_key_share_a_file_and_devices_do_not() {
        let file = |key, device| plan_file(Path::new("plans"), key, device);
        assert_eq!(file("llama", 0), Path::new("plans/60e336d390896756-0.plan"));
        assert_ne!(file("llama", 0), file("llama", 1));
        assert_ne!(file("llama", 0), file("lama", 0));
    }

    /// Writes a file of so many bytes that was used so many days ago.
    fn write(path: &Path, bytes: usize, days: u32) {
        fs::write(path, vec![0; bytes]).unwrap();
        let file = File::options().append(true).open(path).unwrap();
        file.set_modified(now() - DAY * days).unwrap();
    }

    #[test]
    fn what_is_old_goes_then_what_was_not_used_for_longest_and_never_what_is_kept_now() {
        let folder = tempfile::tempdir().unwrap();
        let plan = |key: &str| plan_file(folder.path(), key, 0);
        for (key, bytes, days) in [
            ("now", 500, 200),
            ("week", 400, 7),
            ("month", 200, 30),
            ("day", 300, 1),
            ("year", 1, 365),
        ] {
            write(&plan(key), bytes, days);
        }
        let unfinished =
            |days: u32| folder.path().join(format!("{:016x}-0.plan.7-{days}.unfinished", 5));
        write(&unfinished(0), 10_000, 0);
        write(&unfinished(2), 10_000, 2);
        // A user's own, however old and large.
        let own = ["model.plan", "60e336d390896756-0.plan.bak", "notes"];
        own.iter().for_each(|name| write(&folder.path().join(name), 10_000, 1000));
        touch(&plan("now"));
        evict(&plan("now"), now(), 1_000);
        let is_left = |key: &str| plan(key).exists();
        assert!(is_left("now") && is_left("day"), "800 bytes, the latest");
        assert!(!is_left("week") && !is_left("month"), "beyond 1,000 bytes");
        assert!(!is_left("year"), "too old");
        assert!(unfinished(0).exists() && !unfinished(2).exists());
        assert!(own.iter().all(|name| folder.path().join(name).exists()));
        // The one that was written now stays, however large.
        evict(&plan("now"), now(), 10);
        assert!(is_left("now") && !is_left("day"));
    }

    #[test]
    fn many_who_keep_the_same_plan_at_once_leave_one_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = plan_file(folder.path(), "shared", 0);
        let planner = "none".to_owned();
        let plan = girih_plan::Plan { planner, rounds: 1, proven: true, ..Plan::default() };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..20).for_each(|_| keep(&plan, &file).unwrap()));
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        girih_plan::file::read(File::open(&file).unwrap()).unwrap();
    }
}
