//! The streams that a device has met, by the small ids that policies know them by.

use girih_trace::StreamId;
use rustc_hash::FxHashMap;

/// Handles by id and ids by handle.
#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    handles: Vec<u64>,
    ids: FxHashMap<u64, StreamId>,
    /// The stream that was asked for last: nearly always the one that is asked for next.
    last: Option<(u64, StreamId)>,
}

impl StreamTable {
    /// The id of a stream, a new one if it was never seen.
    ///
    /// # Panics
    /// If there were 65,536 streams already.
    #[inline]
    pub(crate) fn add(&mut self, handle: u64) -> StreamId {
        match self.last {
            Some((last, id)) if last == handle => id,
            _ => self.find_or_add(handle),
        }
    }

    #[cold]
    fn find_or_add(&mut self, handle: u64) -> StreamId {
        let next = self.handles.len();
        let id = *self.ids.entry(handle).or_insert_with(|| {
            let id = u16::try_from(next);
            StreamId(id.expect("a program uses at most 65,536 streams of a device"))
        });
        if usize::from(id.0) == next {
            self.handles.push(handle);
        }
        self.last = Some((handle, id));
        id
    }

    /// The handle of a stream.
    pub(crate) fn handle(&self, id: StreamId) -> Option<u64> {
        self.handles.get(usize::from(id.0)).copied()
    }

    /// All handles, by id.
    pub(crate) fn handles(&self) -> &[u64] {
        &self.handles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_keeps_its_id() {
        let mut streams = StreamTable::default();
        let handles = [0, 0x7f00_1000, 0, 0x7f00_2000, 0x7f00_1000, 0x7f00_2000, 0];
        let ids = handles.map(|handle| streams.add(handle).0);
        assert_eq!(ids, [0, 1, 0, 2, 1, 2, 0]);
        assert_eq!(streams.handle(StreamId(1)), Some(0x7f00_1000));
        assert_eq!(streams.handle(StreamId(3)), None);
        assert_eq!(streams.handles(), [0, 0x7f00_1000, 0x7f00_2000]);
    }
}
