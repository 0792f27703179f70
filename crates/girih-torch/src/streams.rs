//! The streams of a heap: small ids for the driver's handles.
//!
//! A stream is a handle of a device: the default streams of two devices have the same handle. PyTorch's own
//! streams live as long as the process. One that the program made itself may be destroyed, and the next may
//! have its handle: then what was done on the first is unknown to the second. So the number that the driver gives
//! each stream is compared for those, and where it is another the stream that has come waits, once, for
//! all that was there before it (`State::see_stream`).
//!
//! An id is given for good: handles come back, and there are never more of them than streams were there at
//! one time.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::{Outcome, unsupported};

/// A stream, as torch names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StreamKey {
    /// The number of its device.
    pub(crate) device: u32,
    /// The driver's handle; 0 is the default stream.
    pub(crate) handle: u64,
}

/// All streams that a heap has met. See the [module](self).
pub(crate) struct Streams {
    /// The device of the heap, whose streams are nearly all.
    device: u32,
    ids: FxHashMap<StreamKey, u16>,
    /// The handles by id.
    handles: Vec<u64>,
    /// Those that may be destroyed, and the number that the driver gave each of them.
    transient: FxHashSet<u16>,
    identities: FxHashMap<u16, u64>,
    /// The stream of the heap's device that was asked for last, and its id.
    recent: (u64, u16),
}

/// No stream: an id that is never given.
const NONE: u16 = u16::MAX;

impl Streams {
    /// No streams yet, of the heap of a device.
    pub(crate) fn new(device: u32) -> Streams {
        Streams {
            device,
            ids: FxHashMap::default(),
            handles: Vec::new(),
            transient: FxHashSet::default(),
            identities: FxHashMap::default(),
            recent: (0, NONE),
        }
    }

    /// The id of a stream of the heap's device, if it is the one that was asked for last.
    #[inline]
    pub(crate) fn recent(&self, handle: u64) -> Option<u16> {
        (self.recent.0 == handle && self.recent.1 != NONE).then_some(self.recent.1)
    }

    /// The id of a stream of the heap's device, if it has one.
    pub(crate) fn find(&self, handle: u64) -> Option<u16> {
        self.ids.get(&StreamKey { device: self.device, handle }).copied()
    }

    /// The id of a stream; true if it is new.
    ///
    /// # Errors
    /// With 65,535 different handles.
    pub(crate) fn id(&mut self, stream: StreamKey) -> Outcome<(u16, bool)> {
        let next = self.handles.len() as u16;
        let id = match self.ids.get(&stream) {
            Some(&id) => id,
            None if next == NONE => {
                return Err(unsupported(format!(
                    "use fewer streams again and again: this process has {next} at the same time, \
                     which is the most that Girih can tell apart"
                )));
            }
            None => {
                self.ids.insert(stream, next);
                self.handles.push(stream.handle);
                next
            }
        };
        if stream.device == self.device {
            self.recent = (stream.handle, id);
        }
        Ok((id, id == next && usize::from(id) + 1 == self.handles.len()))
    }

    /// Notes that the program may destroy a stream. False if that is known.
    pub(crate) fn note_transient(&mut self, id: u16) -> bool {
        self.transient.insert(id)
    }

    /// True if the program may destroy a stream.
    pub(crate) fn is_transient(&self, id: u16) -> bool {
        self.transient.contains(&id)
    }

    /// Notes the driver's number of a stream that may be destroyed. True if it is another than before: the
    /// stream has gone, and one of the same handle has come.
    pub(crate) fn note_identity(&mut self, id: u16, identity: u64) -> bool {
        self.identities.insert(id, identity).is_some_and(|before| before != identity)
    }

    /// The handles of all, by id.
    pub(crate) fn handles(&self) -> &[u64] {
        &self.handles
    }

    /// The handle of an id that was given; 0 of another.
    pub(crate) fn handle(&self, id: u16) -> u64 {
        self.handles.get(usize::from(id)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(device: u32, handle: u64) -> StreamKey {
        StreamKey { device, handle }
    }

    #[test]
    fn a_stream_is_a_handle_of_a_device_and_keeps_its_id() {
        let mut streams = Streams::new(1);
        assert_eq!(streams.id(of(1, 7)).unwrap(), (0, true));
        assert_eq!(streams.id(of(0, 7)).unwrap(), (1, true));
        assert_eq!(streams.recent(7), Some(0), "that of the heap's own device");
        assert_eq!(streams.id(of(1, 0)).unwrap(), (2, true));
        assert_eq!(streams.id(of(1, 7)).unwrap(), (0, false));
        assert_eq!((streams.recent(0), streams.recent(7)), (None, Some(0)));
        assert_eq!(streams.handles(), [7, 7, 0]);
    }

    #[test]
    fn a_stream_that_has_come_with_the_handle_of_another_is_told() {
        let mut streams = Streams::new(0);
        let (id, _) = streams.id(of(0, 7)).unwrap();
        let told = [14, 14, 15, 15].map(|identity| streams.note_identity(id, identity));
        assert_eq!(told, [false, false, true, false]);
    }

    #[test]
    fn too_many_at_the_same_time_are_refused_with_their_number() {
        let mut streams = Streams::new(0);
        for handle in 0..u64::from(u16::MAX) {
            streams.id(of(0, handle)).unwrap();
        }
        let error = streams.id(of(0, 70_000)).unwrap_err().to_string();
        assert!(error.contains("has 65535 at the same time"), "{error}");
        assert_eq!(streams.id(of(0, 3)).unwrap(), (3, false), "those that are known still are");
    }
}
