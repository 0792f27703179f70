//! Streams and events of a [`CudaDevice`]: marks in the work of one stream, and of all.
//!
//! A fence is one event of the whole context (`cuCtxRecordEvent`): it covers streams that nobody has told of and
//! those that were destroyed while their work runs, it names none, and it costs as much as an event of one
//! stream (0.2 us on an H200, 0.7 us with 64 busy streams).
//!
//! While a graph is captured from any stream of the context the driver refuses it, and that spoils the
//! capture. So the streams that are sure to be there are asked first. A capture from a stream that nobody has
//! told of is found out once, at its cost; then, and with drivers older than CUDA 12.5, a fence is an event
//! on each known stream. A transient stream cannot be named there: where there are any, the host waits for
//! the context.

use girih_runtime::{CapturedEnds, DeviceError, GraphNode, StreamEvent};
use girih_trace::StreamId;

use crate::books::misuse;
use crate::context::Scope;
use crate::device::CudaDevice;
use crate::driver::Failure;
use crate::driver::types::{CuContext, CuEvent, CuNode, CuResult, CuStream};
use crate::streams::StreamHandle;

impl CudaDevice {
    /// The id of a stream of this device that is never destroyed: the id that it has, or the next.
    ///
    /// # Panics
    /// If there were 65,536 streams already.
    #[inline]
    pub fn add_stream(&mut self, handle: u64) -> StreamId {
        let device = self.ordinal();
        self.streams.add(StreamHandle { device, handle, is_transient: false })
    }

    /// From now on `id` is this stream, of this device or of another.
    pub fn set_stream(&mut self, id: StreamId, stream: StreamHandle) {
        self.streams.set(id, stream);
    }

    /// A number that no other stream of this process has or will have, of a stream that is there now; its
    /// handle may be another's tomorrow (`cuStreamGetId`). None if the driver does not tell.
    pub fn stream_identity(&self, handle: u64) -> Option<u64> {
        let _scope = self.enter().ok()?;
        self.driver.stream_id(CuStream(handle as usize))?.ok()
    }

    /// The handle of a stream; nothing if the id was never given.
    pub fn stream_handle(&self, stream: StreamId) -> Option<u64> {
        self.streams.get(stream).map(|stream| stream.handle)
    }

    /// Events that were recorded and not given back.
    pub fn events_in_use(&self) -> usize {
        self.events.given()
    }

    /// A stream, and the context of its device.
    pub(crate) fn stream(
        &mut self,
        call: &'static str,
        id: StreamId,
    ) -> Result<(CuStream, CuContext), DeviceError> {
        let Some(StreamHandle { device, handle, .. }) = self.streams.get(id) else {
            return misuse(call, format!("there is no stream {}", id.0));
        };
        Ok((CuStream(handle as usize), self.context_of(device)?))
    }

    /// The primary context of a device, retained once if it is another.
    fn context_of(&mut self, ordinal: u32) -> Result<CuContext, DeviceError> {
        if ordinal == self.ordinal() {
            return Ok(self.context);
        }
        if let Some(other) = self.others.iter().find(|other| other.ordinal == ordinal) {
            return Ok(other.context);
        }
        let device = self.checked(self.driver.device(ordinal))?;
        let context = self.checked(self.driver.retain_primary(device))?;
        self.others.push(Other { ordinal, device, context });
        Ok(context)
    }

    pub(crate) fn event(
        &self,
        call: &'static str,
        id: StreamEvent,
    ) -> Result<CuEvent, DeviceError> {
        match self.events.get(id) {
            Some(event) => Ok(event),
            None => misuse(call, format!("event {:#x} is not in use", id.0)),
        }
    }

    /// Records an event of a context, made anew if all are in use.
    fn record_with(
        &mut self,
        context: CuContext,
        record: impl FnOnce(&CudaDevice, CuEvent) -> Result<(), Failure>,
    ) -> Result<Result<StreamEvent, Failure>, DeviceError> {
        let (slot, event) = match self.events.vacant(context) {
            Some(vacant) => vacant,
            None => {
                let _scope = self.checked(Scope::relaxed(self.driver, context))?;
                self.calls.event_create += 1;
                let event = self.checked(self.driver.create_event())?;
                (self.events.add(context, event), event)
            }
        };
        let _scope = self.checked(Scope::enter(self.driver, context))?;
        self.calls.event_record += 1;
        Ok(record(self, event).map(|()| self.events.give(slot)))
    }

    /// [`record_event`](girih_runtime::Device::record_event).
    pub(crate) fn mark_stream(&mut self, id: StreamId) -> Result<StreamEvent, DeviceError> {
        let (stream, context) = self.stream("record_event", id)?;
        let record = |own: &CudaDevice, event| own.driver.record_event(event, stream);
        let recorded = self.record_with(context, record)?;
        self.checked(recorded)
    }

    /// [`record_fence`](girih_runtime::Device::record_fence).
    pub(crate) fn mark_all(&mut self, users: &[StreamId]) -> Result<StreamEvent, DeviceError> {
        let mut others: Vec<u32> = Vec::new();
        for user in users.iter().filter_map(|&user| self.streams.get(user)) {
            if user.device != self.ordinal() && !others.contains(&user.device) {
                others.push(user.device);
            }
        }
        let fence = self.mark_device(self.ordinal())?;
        for other in others {
            let mark = self.mark_device(other);
            self.join(fence, mark)?;
        }
        Ok(fence)
    }

    /// A fence over the streams of one device.
    fn mark_device(&mut self, ordinal: u32) -> Result<StreamEvent, DeviceError> {
        const CAPTURING: DeviceError = DeviceError::Capturing { call: "record_fence" };
        let context = self.context_of(ordinal)?;
        let streams: Vec<(StreamId, StreamHandle)> =
            self.streams.all().filter(|(_, stream)| stream.device == ordinal).collect();
        let lasting: Vec<StreamId> =
            streams.iter().filter(|(_, stream)| !stream.is_transient).map(|&(id, _)| id).collect();
        for &id in &lasting {
            if self.asks_capturing(id)? {
                return Err(CAPTURING);
            }
        }
        if !self.fences_by_stream {
            let mut is_known = true;
            let recorded = self.record_with(context, |own, event| {
                let answer = own.driver.record_context(context, event);
                is_known = answer.is_some();
                let call = "cuCtxRecordEvent";
                answer.unwrap_or(Err(Failure { call, code: CuResult::NOT_SUPPORTED }))
            })?;
            match recorded {
                Ok(event) => return Ok(event),
                Err(Failure { code: CuResult::STREAM_CAPTURE_UNSUPPORTED, .. }) => {
                    self.fences_by_stream = true;
                    return Err(CAPTURING);
                }
                Err(Failure { code: CuResult::NOT_SUPPORTED, .. }) => self.fences_by_stream = true,
                Err(failure) => return Err(self.driver.error(failure)),
            }
        }
        if lasting.len() < streams.len() {
            self.synchronize_context(context)?;
        }
        let Some((&first, others)) = lasting.split_first() else {
            // No stream is known: the one that all of the old kind wait for.
            let default = StreamHandle { device: ordinal, handle: 0, is_transient: false };
            let default = self.streams.add(default);
            return self.mark_stream(default);
        };
        let fence = self.mark_stream(first)?;
        for &stream in others {
            let mark = self.mark_stream(stream);
            self.join(fence, mark)?;
        }
        Ok(fence)
    }

    /// Makes a mark one with `fence`. If there is none, for an error, the fence is no more.
    fn join(
        &mut self,
        fence: StreamEvent,
        mark: Result<StreamEvent, DeviceError>,
    ) -> Result<(), DeviceError> {
        let mark = match mark {
            Ok(mark) => mark,
            Err(error) => {
                self.unmark(fence);
                return Err(error);
            }
        };
        let others = self.fences.remove(&mark).unwrap_or_default();
        self.fences.entry(fence).or_default().extend(std::iter::once(mark).chain(others));
        Ok(())
    }

    /// An event, with those that are one with it.
    pub(crate) fn marks(
        &self,
        call: &'static str,
        id: StreamEvent,
    ) -> Result<Vec<CuEvent>, DeviceError> {
        let others = self.fences.get(&id).map(Vec::as_slice).unwrap_or_default();
        std::iter::once(id).chain(others.iter().copied()).map(|id| self.event(call, id)).collect()
    }

    /// [`is_capturing`](girih_runtime::Device::is_capturing).
    pub(crate) fn asks_capturing(&mut self, id: StreamId) -> Result<bool, DeviceError> {
        let (stream, context) = self.stream("is_capturing", id)?;
        let _scope = self.checked(Scope::enter(self.driver, context))?;
        self.checked(self.driver.is_capturing(stream))
    }

    /// [`captured_ends`](girih_runtime::Device::captured_ends).
    pub(crate) fn asks_ends(&mut self, id: StreamId) -> Result<Option<CapturedEnds>, DeviceError> {
        if !self.tells_of_captures() {
            return Ok(None);
        }
        let (stream, context) = self.stream("captured_ends", id)?;
        let _scope = self.checked(Scope::enter(self.driver, context))?;
        let ends = self.checked(self.driver.captured_ends(stream))?;
        Ok(ends.map(|(capture, nodes)| CapturedEnds { capture, nodes: of_runtime(nodes) }))
    }

    /// [`graph_dependencies`](girih_runtime::Device::graph_dependencies).
    pub(crate) fn asks_dependencies(&self, node: GraphNode) -> Result<Vec<GraphNode>, DeviceError> {
        let nodes = self.checked(self.driver.node_dependencies(CuNode(node.0 as usize)))?;
        Ok(of_runtime(nodes))
    }

    /// True if the driver tells of the graphs that are being captured: what comes after what. CUDA 12.3 and
    /// later do.
    pub fn tells_of_captures(&self) -> bool {
        self.driver.tells_of_captures()
    }

    /// [`destroy_event`](girih_runtime::Device::destroy_event): the event is kept and used again. False if
    /// it is not in use.
    pub(crate) fn unmark(&mut self, id: StreamEvent) -> bool {
        for mark in self.fences.remove(&id).unwrap_or_default() {
            self.events.take_back(mark);
        }
        self.events.take_back(id)
    }
}

fn of_runtime(nodes: Vec<CuNode>) -> Vec<GraphNode> {
    nodes.into_iter().map(|node| GraphNode(node.0 as u64)).collect()
}

/// Another device, of which streams use our memory. Its primary context is retained.
#[derive(Debug)]
pub(crate) struct Other {
    ordinal: u32,
    pub(crate) device: crate::driver::types::CuDevice,
    context: CuContext,
}
