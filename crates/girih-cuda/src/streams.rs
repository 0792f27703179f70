//! The streams that a device has met, by the small ids that policies know them by.
//!
//! A handle of a stream that the program has destroyed must not reach the driver again, which crashes on it.
//! PyTorch's own streams live as long as the process; of others, which are *transient*, nobody says when they
//! go. So these are named only in calls that are about them, while somebody uses them.

use girih_trace::StreamId;

/// A stream, as the driver knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StreamHandle {
    /// The number of its device.
    pub device: u32,
    /// `CUstream` or `cudaStream_t` as a number; 0 is the default stream of the device.
    pub handle: u64,
    /// The program may destroy it.
    pub is_transient: bool,
}

/// Streams by id.
#[derive(Debug, Default)]
pub(crate) struct StreamTable(Vec<Option<StreamHandle>>);

impl StreamTable {
    /// The id of a stream, the next if it was never seen.
    ///
    /// # Panics
    /// If there were 65,536 streams already.
    pub(crate) fn add(&mut self, stream: StreamHandle) -> StreamId {
        let found = self.0.iter().position(|known| *known == Some(stream));
        let id = u16::try_from(found.unwrap_or(self.0.len()));
        let id = StreamId(id.expect("a program uses at most 65,536 streams of a device"));
        self.set(id, stream);
        id
    }

    /// From now on `id` is this stream.
    pub(crate) fn set(&mut self, id: StreamId, stream: StreamHandle) {
        let place = usize::from(id.0);
        if place >= self.0.len() {
            self.0.resize(place + 1, None);
        }
        self.0[place] = Some(stream);
    }

    /// The stream of an id.
    pub(crate) fn get(&self, id: StreamId) -> Option<StreamHandle> {
        self.0.get(usize::from(id.0)).copied().flatten()
    }

    /// All streams, with their ids.
    pub(crate) fn all(&self) -> impl Iterator<Item = (StreamId, StreamHandle)> {
        let ids = (0..=u16::MAX).map(StreamId);
        ids.zip(&self.0).filter_map(|(id, stream)| Some((id, (*stream)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_keeps_its_id() {
        let mut streams = StreamTable::default();
        let of = |device, handle| StreamHandle { device, handle, is_transient: false };
        let handles = [of(0, 0), of(0, 0x7f00), of(0, 0), of(1, 0), of(0, 0x7f00), of(1, 0)];
        let ids = handles.map(|handle| streams.add(handle).0);
        assert_eq!(ids, [0, 1, 0, 2, 1, 2], "the default streams of two devices are two");
        assert_eq!(streams.get(StreamId(1)), Some(of(0, 0x7f00)));
        assert_eq!(streams.get(StreamId(3)), None);
        assert_eq!(streams.all().count(), 3);
    }

    #[test]
    fn an_id_may_become_another_stream() {
        let mut streams = StreamTable::default();
        let of = |handle| StreamHandle { device: 0, handle, is_transient: true };
        streams.set(StreamId(2), of(7));
        streams.set(StreamId(2), of(8));
        assert_eq!(streams.all().collect::<Vec<_>>(), [(StreamId(2), of(8))]);
    }
}
