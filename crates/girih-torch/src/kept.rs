//! Where the plan of a device is kept between launches, and which one a launch begins with.
//!
//! ```text
//!  plan_dir/KEY-DEVICE.plan          the launcher has numbered the processes: the key tells them apart
//!  plan_dir/KEY-DEVICE-GPU.plan      it has not: processes that share out the GPUs by themselves
//!                                    (CUDA_VISIBLE_DEVICES) have the same key and the same DEVICE
//! ```
//!
//! DEVICE is the number that the process knows the device by, GPU its UUID, of a MIG slice that of the
//! slice. A run on a GPU that has no plan of its own begins with the latest of another GPU: a scheduler
//! gives the same program another one each time. What it keeps is its own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::kept_plans::plan_file;
use crate::settings::{Mode, Settings};

/// A device: the number by which the process knows it, and its UUID if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Gpu {
    pub(crate) ordinal: u32,
    pub(crate) uuid: Option<[u8; 16]>,
}

/// Where `auto` keeps the plan of a device, if it keeps plans. The mode `plan` leaves all files as
/// they are: what it learns when its plan does not fit is for this run.
pub(crate) fn to_write(settings: &Settings, gpu: Gpu) -> Option<PathBuf> {
    if settings.mode != Mode::Auto {
        return None;
    }
    let shared = shared(settings, gpu)?;
    let uuid = gpu.uuid.filter(|_| settings.plans_by_gpu);
    Some(uuid.map_or_else(|| shared.clone(), |uuid| of_gpu(&shared, uuid)))
}

/// The kept plan that a run on a device begins with: its own, else the latest of another GPU.
pub(crate) fn to_read(settings: &Settings, gpu: Gpu) -> Option<PathBuf> {
    let shared = shared(settings, gpu)?;
    if !settings.plans_by_gpu {
        return Some(shared).filter(|path| path.exists());
    }
    let own = gpu.uuid.map(|uuid| of_gpu(&shared, uuid));
    own.filter(|path| path.exists()).or_else(|| latest(&shared))
}

/// True if `path` is the name of the kept plan of a device, whatever the GPU.
pub(crate) fn is_named(settings: &Settings, gpu: Gpu, path: &Path) -> bool {
    shared(settings, gpu).is_some_and(|shared| shared == path)
}

/// The name without a GPU.
fn shared(settings: &Settings, gpu: Gpu) -> Option<PathBuf> {
    settings.plan_dir.as_deref().map(|folder| plan_file(folder, &settings.key, gpu.ordinal))
}

/// The name for one GPU.
fn of_gpu(shared: &Path, uuid: [u8; 16]) -> PathBuf {
    let stem = shared.file_stem().unwrap_or_default().to_string_lossy();
    shared.with_file_name(format!("{stem}-{:032x}.plan", u128::from_be_bytes(uuid)))
}

/// The file of any GPU that was written last; of those of one moment the first by name.
fn latest(shared: &Path) -> Option<PathBuf> {
    let prefix = format!("{}-", shared.file_stem()?.to_str()?);
    let of_any = |path: &PathBuf| {
        path.extension() == Some(OsStr::new("plan"))
            && path
                .file_name()
                .and_then(OsStr::to_str)
                .is_some_and(|name| name.starts_with(&prefix))
    };
    let entries = shared.parent()?.read_dir().ok()?;
    let found = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(of_any);
    let written = |path: &PathBuf| path.metadata().and_then(|known| known.modified()).ok();
    found.min_by(|a, b| written(b).cmp(&written(a)).then_with(|| a.cmp(b)))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::{Duration, SystemTime};

    use super::*;

    const FIRST: Gpu = Gpu { ordinal: 0, uuid: Some([0x11; 16]) };
    const SECOND: Gpu = Gpu { ordinal: 0, uuid: Some([0x22; 16]) };
    const NAMELESS: Gpu = Gpu { ordinal: 0, uuid: None };

    fn settings(folder: &Path, more: &str) -> Settings {
        let folder = folder.display();
        let json = format!(r#"{{"plan_dir": "{folder}", "key": "llama" {more}}}"#);
        Settings::parse(&json).expect("right settings")
    }

    /// Writes a file, `seconds` after the beginning of time.
    fn write(path: &Path, seconds: u64) {
        fs::write(path, "a plan").unwrap();
        let moment = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        File::options().write(true).open(path).unwrap().set_modified(moment).unwrap();
    }

    #[test]
    fn numbered_processes_find_their_plan_on_any_gpu() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), "");
        let file = to_write(&settings, FIRST).unwrap();
        assert_eq!(to_write(&settings, SECOND).unwrap(), file);
        assert_eq!(file.file_name().unwrap(), "60e336d390896756-0.plan");
        assert_eq!(to_read(&settings, SECOND), None);
        write(&file, 1);
        assert_eq!(to_read(&settings, SECOND), Some(file));
        assert_eq!(to_read(&settings, Gpu { ordinal: 1, ..FIRST }), None, "another device");
    }

    #[test]
    fn processes_without_numbers_write_a_file_for_each_gpu_and_read_the_nearest() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), r#", "plans_by_gpu": true"#);
        let (first, second) =
            (to_write(&settings, FIRST).unwrap(), to_write(&settings, SECOND).unwrap());
        assert_ne!(first, second);
        assert_eq!(to_read(&settings, FIRST), None);
        write(&second, 20);
        assert_eq!(to_read(&settings, FIRST), Some(second.clone()), "better than none");
        write(&first, 10);
        assert_eq!(to_read(&settings, FIRST), Some(first.clone()), "its own, though it is older");
        assert_eq!(to_read(&settings, SECOND), Some(second.clone()));
        let third = Gpu { ordinal: 0, uuid: Some([0x33; 16]) };
        assert_eq!(to_read(&settings, third), Some(second.clone()), "the latest");
        assert_eq!(to_read(&settings, NAMELESS), Some(second));
        let other_device = Gpu { ordinal: 1, ..FIRST };
        assert_eq!(to_read(&settings, other_device), None, "its tensors are others");
    }

    #[test]
    fn what_is_not_finished_is_no_plan() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), r#", "plans_by_gpu": true"#);
        let file = to_write(&settings, SECOND).unwrap();
        let mut name = file.file_name().unwrap().to_owned();
        name.push(".1-0.unfinished");
        write(&file.with_file_name(name), 1);
        assert_eq!(to_read(&settings, FIRST), None);
    }

    #[test]
    fn only_auto_keeps_plans() {
        let folder = tempfile::tempdir().unwrap();
        for mode in ["native", "stitch"] {
            let settings = settings(folder.path(), &format!(r#", "mode": "{mode}""#));
            assert_eq!(to_write(&settings, FIRST), None);
        }
        let settings = settings(folder.path(), r#", "mode": "plan", "plan": "run.plan""#);
        assert_eq!(to_write(&settings, FIRST), None);
    }
}
