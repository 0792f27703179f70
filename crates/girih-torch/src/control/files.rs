//! Files, whole or not at all: what is written appears under its name only once it is complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Tells apart the unfinished files of one process.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Writes a file whole or not at all: a full disk or an end of the process leaves what was there
/// before. Several processes may write the same file; one of them wins.
///
/// # Errors
/// What failed, and on which file.
pub(crate) fn write_whole(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), String>,
) -> Result<(), String> {
    let failed = |error: String| format!("cannot write {}: {error}", path.display());
    let (file, unfinished) = create_beside(path).map_err(|error| failed(error.to_string()))?;
    let written = write(file, fill)
        .and_then(|()| fs::rename(&unfinished, path).map_err(|error| error.to_string()));
    written.map_err(|error| {
        let _ = fs::remove_file(&unfinished);
        failed(error)
    })
}

fn write(
    file: File,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), String>,
) -> Result<(), String> {
    let mut output = BufWriter::new(file);
    fill(&mut output)?;
    output.flush().map_err(|error| error.to_string())
}

/// Tries to find a name that is not taken, at most.
const NAMES: u32 = 1000;

/// A new file in the same folder, under a name that no other process and no other call has. Processes of
/// several machines or containers may have the same number, and one that died has left its file behind.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    for _ in 0..NAMES {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}-{number}.unfinished", process::id()));
        let unfinished = path.with_file_name(name);
        match File::create_new(&unfinished) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => return Ok((file?, unfinished)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_fails_midway_leaves_what_was_there_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan");
        write_whole(&path, |output| output.write_all(b"first").map_err(|e| e.to_string())).unwrap();
        let error = write_whole(&path, |output| {
            output.write_all(b"sec").map_err(|e| e.to_string())?;
            Err("no more paper".to_owned())
        });
        assert!(error.unwrap_err().contains("plan: no more paper"));
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn a_name_that_another_process_has_taken_is_left_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan");
        // Of a process of the same number, on another machine with the same home folder.
        let theirs =
            |number| folder.path().join(format!("plan.{}-{number}.unfinished", process::id()));
        let next = COUNT.load(Ordering::Relaxed);
        (next..next + 20).for_each(|number| fs::write(theirs(number), b"theirs").unwrap());
        write_whole(&path, |output| output.write_all(b"ours").map_err(|e| e.to_string())).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        assert_eq!(fs::read(theirs(next + 5)).unwrap(), b"theirs");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 21);
    }

    #[test]
    fn a_folder_that_does_not_exist_is_named() {
        let error = write_whole(Path::new("/nowhere/at/all"), |_| Ok(())).unwrap_err();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }

    #[test]
    fn what_a_dead_process_of_the_same_number_left_behind_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan");
        for number in 0..NAMES / 2 {
            let name = format!("plan.{}-{number}.unfinished", process::id());
            fs::write(folder.path().join(name), "half").unwrap();
        }
        write_whole(&path, |output| output.write_all(b"all").map_err(|e| e.to_string())).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"all");
    }
}
