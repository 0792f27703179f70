//! Files, whole or not at all: what is written appears under its name only once it is complete.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
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
    let unfinished = beside(path);
    let written = write(&unfinished, fill)
        .and_then(|()| fs::rename(&unfinished, path).map_err(|error| error.to_string()));
    written.map_err(|error| {
        let _ = fs::remove_file(&unfinished);
        format!("cannot write {}: {error}", path.display())
    })
}

fn write(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), String>,
) -> Result<(), String> {
    let file = File::create_new(path).map_err(|error| error.to_string())?;
    let mut output = BufWriter::new(file);
    fill(&mut output)?;
    output.flush().map_err(|error| error.to_string())
}

/// A name in the same folder that no other process and no other call has.
fn beside(path: &Path) -> PathBuf {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{number}.unfinished", process::id()));
    path.with_file_name(name)
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
    fn a_folder_that_does_not_exist_is_named() {
        let error = write_whole(Path::new("/nowhere/at/all"), |_| Ok(())).unwrap_err();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }
}
