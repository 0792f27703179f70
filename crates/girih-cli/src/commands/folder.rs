//! The recordings of a folder.
//!
//! A folder is what others left there: links that lead round in a circle or to the whole disk, pipes that
//! nobody writes to, files that may not be read. None of it is followed, waited for, or passed over in
//! silence.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// How the names of recordings end.
pub(crate) const ENDINGS: [&str; 7] =
    [".pickle", ".pkl", ".pickle.gz", ".pkl.gz", ".pickle.zst", ".pkl.zst", ".girih"];

/// True for a name that ends as those of recordings do.
pub(crate) fn is_recording(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// What a folder holds, by name.
#[derive(Default)]
pub(crate) struct Found {
    /// The recordings, each file once.
    pub(crate) files: Vec<PathBuf>,
    /// What could not be looked at, and why.
    pub(crate) unread: Vec<(PathBuf, String)>,
}

/// The recordings of a folder and of the folders in it. Links to files count, unless the file is there by
/// itself; links to folders are not followed.
pub(crate) fn recordings(folder: &Path) -> Found {
    let mut found = Found::default();
    let (mut folders, mut links) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        match entries(&folder) {
            Ok(paths) => {
                for path in paths {
                    found.sort_out(path, &mut folders, &mut links);
                }
            }
            Err(error) => {
                let error = format!("cannot read the folder {}: {error}", folder.display());
                found.unread.push((folder, error));
            }
        }
    }
    links.sort();
    found.add_links(links);
    found.files.sort();
    found.unread.sort();
    found
}

fn entries(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

impl Found {
    fn sort_out(&mut self, path: PathBuf, folders: &mut Vec<PathBuf>, links: &mut Vec<PathBuf>) {
        match fs::symlink_metadata(&path) {
            Ok(it) if it.is_dir() => folders.push(path),
            _ if !is_recording(&path) => {}
            Ok(it) if it.is_file() => self.files.push(path),
            Ok(it) if it.is_symlink() => links.push(path),
            Ok(_) => self.refuse(path, "it is a pipe or a device, and no file"),
            Err(error) => self.refuse(path, &error.to_string()),
        }
    }

    fn add_links(&mut self, links: Vec<PathBuf>) {
        let same = |path: &Path| fs::canonicalize(path).ok();
        let mut seen: HashSet<PathBuf> = if links.is_empty() {
            HashSet::new()
        } else {
            self.files.iter().filter_map(|file| same(file)).collect()
        };
        for link in links {
            match fs::metadata(&link) {
                Ok(it) if it.is_file() => {
                    if same(&link).is_none_or(|target| seen.insert(target)) {
                        self.files.push(link);
                    }
                }
                Ok(it) if it.is_dir() => self.refuse(link, "name the folder that it is a link to"),
                Ok(_) => self.refuse(link, "it is a pipe or a device, and no file"),
                Err(error) => self.refuse(link, &error.to_string()),
            }
        }
    }

    fn refuse(&mut self, path: PathBuf, why: &str) {
        let error = format!("cannot read {}: {why}", path.display());
        self.unread.push((path, error));
    }
}
