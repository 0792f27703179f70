//! The bytes that describe memory to another process.
//!
//! ```text
//!  0      4         5      6     8     12              16       24      32            96
//!  "GIRI" version   kind   0     pid   descriptor      serial   bytes   driver's handle
//!                                      (mapped)                         (allocation)
//! ```
//!
//! Numbers are little-endian. Both processes must have the same version. The serial number tells
//! memory from other memory that the exporter described in the same words before.

use super::IpcError;
use crate::driver::types::CuIpcHandle;

/// The room that a caller has for a description.
pub(super) const BYTES_MAX: usize = 128;

const MAGIC: [u8; 4] = *b"GIRI";
const VERSION: u8 = 1;
const KIND_ALLOCATION: u8 = 0;
const KIND_MAPPED: u8 = 1;
/// Bytes before the driver's handle.
const HEADER_BYTES: usize = 32;

/// A description of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Message {
    /// The process that owns it.
    pub(super) pid: u32,
    /// Counts what the process described.
    pub(super) serial: u64,
    /// Bytes of the memory.
    pub(super) size: u64,
    pub(super) kind: Kind,
}

/// What the memory is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Of `cuMemAlloc`.
    Allocation {
        /// The driver's handle of it.
        handle: [u8; CuIpcHandle::BYTES],
    },
    /// Physical memory, mapped.
    Mapped {
        /// The owner's descriptor of the list of handles.
        list: i32,
    },
}

/// The driver's handle as the driver takes it.
pub(super) fn driver_handle(bytes: &[u8; CuIpcHandle::BYTES]) -> CuIpcHandle {
    CuIpcHandle { reserved: *bytes }
}

impl Message {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (kind, list) = match &self.kind {
            Kind::Allocation { .. } => (KIND_ALLOCATION, 0),
            Kind::Mapped { list } => (KIND_MAPPED, *list),
        };
        let mut bytes = Vec::with_capacity(BYTES_MAX);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, kind, 0, 0]);
        bytes.extend(self.pid.to_le_bytes());
        bytes.extend(list.to_le_bytes());
        bytes.extend(self.serial.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        if let Kind::Allocation { handle } = &self.kind {
            bytes.extend(handle);
        }
        bytes
    }

    /// Reads a description. Bytes after it are ignored: a caller may hand over all of its room.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Message, IpcError> {
        let malformed = |what: String| Err(IpcError::Malformed(what));
        let (Some(header), true) = (bytes.get(..HEADER_BYTES), bytes.starts_with(&MAGIC)) else {
            return malformed(format!("{} bytes that do not begin like one", bytes.len()));
        };
        if header[4] != VERSION {
            let theirs = header[4];
            return malformed(format!(
                "it has version {theirs}, this library reads version {VERSION}; let both processes \
                 use the same version of Girih"
            ));
        }
        let pid = u32::from_le_bytes(part(header, 8));
        let list = i32::from_le_bytes(part(header, 12));
        let serial = u64::from_le_bytes(part(header, 16));
        let size = u64::from_le_bytes(part(header, 24));
        let kind = match header[5] {
            KIND_ALLOCATION if bytes.len() >= HEADER_BYTES + CuIpcHandle::BYTES => {
                Kind::Allocation { handle: part(bytes, HEADER_BYTES) }
            }
            KIND_ALLOCATION => return malformed("the driver's handle is cut off".to_owned()),
            KIND_MAPPED => Kind::Mapped { list },
            other => return malformed(format!("its kind is {other}")),
        };
        if pid == 0 || size == 0 {
            return malformed(format!("it speaks of {size} bytes of process {pid}"));
        }
        Ok(Message { pid, serial, size, kind })
    }
}

/// `N` bytes from `at` on, which are there.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> [Message; 2] {
        let handle = std::array::from_fn(|index| index as u8);
        let size = 3 << 30;
        [
            Message { pid: 7, serial: 1 << 40, size, kind: Kind::Allocation { handle } },
            Message { pid: u32::MAX, serial: 0, size, kind: Kind::Mapped { list: 1023 } },
        ]
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        for message in messages() {
            let mut bytes = message.to_bytes();
            assert!(bytes.len() <= BYTES_MAX);
            assert_eq!(Message::from_bytes(&bytes), Ok(message.clone()));
            bytes.resize(BYTES_MAX, 0);
            assert_eq!(Message::from_bytes(&bytes), Ok(message), "with the room after it");
        }
    }

    #[test]
    fn a_message_that_is_cut_off_is_an_error() {
        for message in messages() {
            let bytes = message.to_bytes();
            for length in 0..bytes.len() {
                assert!(Message::from_bytes(&bytes[..length]).is_err(), "{length} bytes");
            }
        }
    }

    #[test]
    fn a_message_of_another_version_says_so() {
        let mut bytes = messages()[0].to_bytes();
        bytes[4] = 2;
        let error = Message::from_bytes(&bytes).expect_err("it is of version 2");
        assert!(error.to_string().contains("version 2"), "{error}");
    }

    #[test]
    fn damage_is_found_or_harmless() {
        for message in messages() {
            let bytes = message.to_bytes();
            for place in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[place] ^= 0x80;
                if let Ok(read) = Message::from_bytes(&damaged) {
                    assert!(read.size > 0 && read.pid > 0, "byte {place}");
                }
            }
        }
    }
}
