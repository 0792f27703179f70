//! Descriptors of another process, and the lists in which it names them.
//!
//! Linux lets a process take over a descriptor of another by its number (`pidfd_getfd`, Linux 5.6),
//! if it may inspect that process: same user and, where Yama restricts it, an ancestor.
//!
//! A list is a file in memory (`memfd_create`): 16 bytes for each handle, its descriptor and its
//! bytes.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, getrlimit, pidfd_getfd, pidfd_open,
    setrlimit,
};

use super::IpcError;

const ENTRY_BYTES: usize = 16;
/// More handles than any device has.
const ENTRIES_MAX: u64 = 1 << 20;

/// A handle of the process that exports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// The number of its descriptor.
    pub(super) number: i32,
    /// Bytes.
    pub(super) size: u64,
}

/// Writes a list.
pub(super) fn write_list(entries: &[Entry]) -> io::Result<File> {
    let file = File::from(memfd_create("girih-shared-memory", MemfdFlags::CLOEXEC)?);
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    for entry in entries {
        bytes.extend(u64::from(entry.number.unsigned_abs()).to_le_bytes());
        bytes.extend(entry.size.to_le_bytes());
    }
    file.write_all_at(&bytes, 0)?;
    Ok(file)
}

/// Lets this process open as many descriptors as the system allows it, where it has a lower limit of its own so far.
/// How many those are.
pub(super) fn open_most() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current.unwrap_or(u64::MAX);
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).is_ok();
    let allowed = if raised { limit.maximum } else { limit.current };
    allowed.unwrap_or(u64::MAX)
}

/// Keeps a descriptor from programs that this process starts: they would hold the memory. What can
/// be done without is no error.
pub(super) fn close_in_programs(descriptor: &OwnedFd) {
    let _ = rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC);
}

/// Lets processes of the same user take descriptors of this one over, where Yama would let only
/// ancestors do so. A process may also be inspected by them then, as on a system without Yama. Where
/// nobody may (`ptrace_scope` 2 and 3) it changes nothing, and the importer is told.
pub(super) fn let_others_take() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if scope.is_ok_and(|scope| scope.trim() == "1") {
        let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
    }
}

/// A process that shares memory.
pub(super) struct Remote {
    pid: u32,
    process: OwnedFd,
}

impl Remote {
    /// Finds a process of this machine, or of this container.
    pub(super) fn open(pid: u32) -> Result<Remote, IpcError> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let Some(number) = number else {
            return Err(IpcError::Malformed(format!("{pid} is no process")));
        };
        match pidfd_open(number, PidfdFlags::empty()) {
            Ok(process) => Ok(Remote { pid, process }),
            Err(error) => Err(refused(pid, error)),
        }
    }

    /// A descriptor of that process, as one of ours.
    pub(super) fn descriptor(&self, number: i32) -> Result<OwnedFd, IpcError> {
        pidfd_getfd(&self.process, number, PidfdGetfdFlags::empty())
            .map_err(|error| refused(self.pid, error))
    }

    /// Reads the list that a descriptor of that process stands for: handles of `size` bytes in all,
    /// each a multiple of `granularity`.
    pub(super) fn read_list(
        &self,
        number: i32,
        size: u64,
        granularity: u64,
    ) -> Result<Vec<Entry>, IpcError> {
        let file = File::from(self.descriptor(number)?);
        let malformed = |what: String| IpcError::Malformed(what);
        let unreadable = |error: io::Error| malformed(format!("its list of handles: {error}"));
        let length = file.metadata().map_err(unreadable)?.len();
        if !length.is_multiple_of(ENTRY_BYTES as u64) || length / 16 > ENTRIES_MAX || length == 0 {
            return Err(malformed(format!("its list of handles has {length} bytes")));
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, 0).map_err(unreadable)?;
        let (chunks, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
        let mut entries = Vec::with_capacity(words.len() / 2);
        let mut total = 0_u64;
        for pair in words.chunks_exact(2) {
            let (number, bytes) = (i32::try_from(pair[0]), pair[1]);
            let (Ok(number), true) = (number, bytes > 0 && bytes.is_multiple_of(granularity))
            else {
                return Err(malformed(format!("a handle of {bytes} bytes")));
            };
            total = total.saturating_add(bytes);
            entries.push(Entry { number, size: bytes });
        }
        if total != size {
            return Err(malformed(format!("{size} bytes, in handles of {total} bytes")));
        }
        Ok(entries)
    }
}

/// What a refusal of the operating system means here.
fn refused(pid: u32, error: Errno) -> IpcError {
    let advice = match error {
        Errno::PERM => {
            "the system lets no process take descriptors of another over (kernel.yama.ptrace_scope \
             is 2 or 3, or a container's seccomp profile), or the other process is of another user; \
             use a mode without virtual memory (`native`)"
        }
        Errno::SRCH | Errno::INVAL => {
            "the process has ended, or it is in another container, where it has another number"
        }
        Errno::BADF => "it has given the memory back",
        Errno::NOSYS => {
            "Linux 5.6 or later is needed, with pidfd_getfd allowed; use a mode without virtual \
             memory (`native`)"
        }
        _ => "use a mode without virtual memory (`native`)",
    };
    IpcError::Process { pid, reason: format!("{error}; {advice}") }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    const UNIT: u64 = 2 << 20;

    #[test]
    fn as_many_descriptors_may_be_opened_as_the_system_allows() {
        let limit = getrlimit(Resource::Nofile);
        let low = Rlimit {
            current: limit.maximum.map_or(Some(1024), |most| Some(most.min(1024))),
            ..limit
        };
        setrlimit(Resource::Nofile, low).expect("it may be lowered");
        assert_eq!(open_most(), limit.maximum.unwrap_or(u64::MAX));
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
        assert_eq!(open_most(), limit.maximum.unwrap_or(u64::MAX));
    }

    #[test]
    fn a_process_that_ended_is_an_error_that_says_so() {
        let Err(error) = Remote::open(i32::MAX as u32 - 1) else { panic!("it was found") };
        let text = error.to_string();
        assert!(text.contains("has ended") || text.contains("Linux 5.6"), "{text}");
        assert!(matches!(Remote::open(u32::MAX), Err(IpcError::Malformed(_))));
    }

    /// Our own process as the other one; nothing where the system has no such calls.
    fn remote() -> Option<Remote> {
        let file = write_list(&[]).expect("a file in memory");
        let remote = Remote::open(std::process::id())
            .and_then(|remote| remote.descriptor(file.as_raw_fd()).map(|_| remote));
        match remote {
            Ok(remote) => Some(remote),
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "SKIPPED: {error}");
                None
            }
        }
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let Some(remote) = remote() else { return };
        let entries: Vec<Entry> = (1..=300)
            .map(|number| Entry { number, size: u64::from(number.unsigned_abs()) * UNIT })
            .collect();
        let file = write_list(&entries).expect("a file in memory");
        let total = entries.iter().map(|entry| entry.size).sum();
        assert_eq!(remote.read_list(file.as_raw_fd(), total, UNIT), Ok(entries));
    }

    #[test]
    fn a_list_that_does_not_add_up_is_malformed() {
        let Some(remote) = remote() else { return };
        let list = |size| write_list(&[Entry { number: 5, size }]).expect("a file in memory");
        for (written, said) in [(UNIT, 2 * UNIT), (UNIT / 2, UNIT / 2), (0, 0)] {
            let file = list(written);
            let read = remote.read_list(file.as_raw_fd(), said, UNIT);
            assert!(matches!(read, Err(IpcError::Malformed(_))), "{written}: {read:?}");
        }
        let file = list(UNIT);
        file.set_len(15).expect("a file in memory");
        let read = remote.read_list(file.as_raw_fd(), UNIT, UNIT);
        assert!(matches!(read, Err(IpcError::Malformed(_))), "{read:?}");
    }
}
