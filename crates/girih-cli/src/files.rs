//! Files as the command reads and writes them: `-` for the standard streams, outputs that are written
//! whole or not at all, and that are never the input.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail};
use girih_why::units::printable;

/// The name of standard input and of standard output.
pub(crate) const STANDARD: &str = "-";

/// True for the name of a standard stream.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == STANDARD
}

/// A file as messages call it.
pub(crate) fn shown_input(path: &Path) -> String {
    if is_standard(path) { "standard input".to_owned() } else { shown(path) }
}

/// A path, fit for a terminal.
pub(crate) fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

/// Standard output, of which an error says that it is one.
pub(crate) struct Standard<W>(pub(crate) W);

impl<W: Write> Write for Standard<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(|error| of_standard(&error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(|error| of_standard(&error))
    }
}

fn of_standard(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write standard output: {error}"))
}

/// Opens a file to be read; `-` is standard input.
pub(crate) fn open(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    if is_standard(path) {
        return Ok(Box::new(io::stdin().lock()));
    }
    let shown = shown(path);
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    if file.metadata().is_ok_and(|it| it.is_dir()) {
        bail!("cannot read {shown}: name a file, it is a folder");
    }
    Ok(Box::new(file))
}

/// Bytes of a file that is read whole: more is no marks file.
const WHOLE_MAX: u64 = 1 << 30;

/// The bytes of a file, of which there may be a gibibyte at most: a device has no end.
pub(crate) fn read_whole(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open(path)?.take(WHOLE_MAX + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("cannot read {}", shown_input(path)))?;
    if bytes.len() as u64 > WHOLE_MAX {
        bail!(
            "cannot read {}: give a smaller file, it has more than {WHOLE_MAX} bytes",
            shown_input(path)
        );
    }
    Ok(bytes)
}

/// Where a result goes.
#[derive(Debug)]
pub(crate) struct Output {
    /// As the user named it.
    named: PathBuf,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// Standard output.
    Standard,
    /// A pipe or a device, which is written to as it is.
    Stream(PathBuf),
    /// A file, behind the links that lead to it, with its permissions if it is there.
    File(PathBuf, Option<fs::Permissions>),
}

impl Output {
    /// Looks at where a result is to go before any work is done. `inputs` are the files that it is made
    /// from.
    ///
    /// # Errors
    /// If it is a folder, or one of the inputs, by whatever name; if no file can be made where it is to be.
    pub(crate) fn new(named: &Path, inputs: &[&Path]) -> anyhow::Result<Output> {
        let target = Target::of(named).with_context(|| format!("cannot write {}", shown(named)))?;
        if let Target::File(path, _) = &target
            && let Some(input) = inputs.iter().find(|input| is_same_file(path, input))
        {
            bail!("give the output another name: {} is the input {}", shown(named), shown(input));
        }
        if let Target::File(path, _) = &target {
            let folder = folder_of(path);
            let tried = Unfinished::new(folder).map(drop);
            tried.with_context(|| {
                format!("cannot write {}: no file can be made in {}", shown(named), shown(folder))
            })?;
        }
        Ok(Output { named: named.to_owned(), target })
    }

    /// True if the result goes to standard output: what else there is to say goes elsewhere.
    pub(crate) fn is_standard(&self) -> bool {
        matches!(self.target, Target::Standard)
    }

    /// As messages call it.
    pub(crate) fn shown(&self) -> String {
        if self.is_standard() { "standard output".to_owned() } else { shown(&self.named) }
    }

    /// Writes what `fill` writes, and returns its bytes. A file appears whole or not at all, so that a
    /// full disk or an interrupt leaves what was there before.
    pub(crate) fn write(
        &self,
        fill: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
    ) -> anyhow::Result<u64> {
        let write = || match &self.target {
            Target::Standard => filled(io::stdout().lock(), fill),
            Target::Stream(path) => filled(File::options().write(true).open(path)?, fill),
            Target::File(path, permissions) => {
                let mut unfinished = Unfinished::new(folder_of(path))?;
                let count = filled(unfinished.file.as_file_mut(), fill)?;
                if let Some(permissions) = permissions {
                    fs::set_permissions(unfinished.file.path(), permissions.clone())?;
                }
                unfinished.persist(path)?;
                Ok(count)
            }
        };
        write().with_context(|| format!("cannot write {}", self.shown()))
    }
}

impl Target {
    fn of(named: &Path) -> io::Result<Target> {
        if is_standard(named) {
            return Ok(Target::Standard);
        }
        match fs::metadata(named) {
            Ok(it) if it.is_dir() => Err(io::Error::other("name a file, it is a folder")),
            Ok(it) if it.is_file() => {
                Ok(Target::File(fs::canonicalize(named)?, Some(it.permissions())))
            }
            Ok(_) => Ok(Target::Stream(named.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Target::File(behind_links(named)?, None))
            }
            Err(error) => Err(error),
        }
    }
}

/// Links that are followed to a file that is not there yet.
const LINKS_MAX: usize = 40;

/// Where a path leads whose last part may be a link to nothing.
fn behind_links(named: &Path) -> io::Result<PathBuf> {
    let mut path = named.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(next) => path = folder_of(&path).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("name another file, its links lead nowhere"))
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Writes what `fill` writes, and counts it.
fn filled(
    inner: impl Write,
    fill: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let mut counted = Counted { inner: io::BufWriter::new(inner), count: 0 };
    fill(&mut counted)?;
    counted.flush()?;
    Ok(counted.count)
}

/// A writer that counts its bytes.
struct Counted<W> {
    inner: W,
    count: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The files that have no name of their own yet. Who makes, renames or removes one holds the lock.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn all_unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that is being written. It goes when it is dropped.
struct Unfinished {
    file: tempfile::NamedTempFile,
}

impl Unfinished {
    fn new(folder: &Path) -> io::Result<Unfinished> {
        let mut all = all_unfinished();
        let file = new_file(folder)?;
        all.push(file.path().to_owned());
        Ok(Unfinished { file })
    }

    /// Gives the file its name, over what has it.
    fn persist(self, path: &Path) -> io::Result<()> {
        let mut all = all_unfinished();
        all.retain(|unfinished| unfinished != self.file.path());
        self.file.persist(path)?;
        Ok(())
    }
}

/// Removes every file that is being written, and lets nobody begin or end one after it: the process
/// is about to end, and what it does until then must not be seen.
pub(crate) fn discard_unfinished() {
    let mut all = all_unfinished();
    for path in all.drain(..) {
        let _ = fs::remove_file(path);
    }
    mem::forget(all);
}

/// True if both names lead to one file that is there.
fn is_same_file(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(first), Ok(second)) => is_same(&first, &second, one, other),
        _ => false,
    }
}

#[cfg(unix)]
fn is_same(one: &Metadata, other: &Metadata, _: &Path, _: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_same(_: &Metadata, _: &Metadata, one: &Path, other: &Path) -> bool {
    matches!((fs::canonicalize(one), fs::canonicalize(other)), (Ok(one), Ok(other)) if one == other)
}

/// A new file in `folder` that gets a name of its own once it is complete. Others may read it, as
/// far as the user's mask allows: temporary files are private otherwise. An error is the system's alone: the
/// name of a file that is not there yet says nothing to a person.
fn new_file(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    tempfile::Builder::new().make_in(folder, |path| File::create_new(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_being_written_is_known_until_it_has_its_name_or_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let is_known = |path: &Path| all_unfinished().iter().any(|unfinished| unfinished == path);
        let path = folder.path().join("result");
        let unfinished = Unfinished::new(folder.path()).expect("a file");
        let own = unfinished.file.path().to_owned();
        assert!(is_known(&own) && own.exists());
        unfinished.persist(&path).expect("it has a name now");
        assert!(!is_known(&own) && !own.exists() && path.exists());
        let dropped = Unfinished::new(folder.path()).expect("a file");
        let own = dropped.file.path().to_owned();
        drop(dropped);
        assert!(!own.exists());
    }
}
