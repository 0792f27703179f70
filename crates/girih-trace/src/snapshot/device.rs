//! The trace of one device, while it is read.

use super::annotations::Annotation;
use super::entry::{Entry, FrameList};
use super::error::ReadError;
use super::gaps;
use super::ids::Ids;
use super::stacks::Stacks;
use super::view::{Place, View};
use super::words;
use crate::event::{Action, Event, PoolId, StackId, StreamId};
use crate::mark::{Mark, MarkKind};
use crate::marks::place_by_time;
use crate::pickle::{Text, Value};
use crate::trace::{Origin, Segment, Settings, Trace};

/// The longest name of a mark that comes from the file, in bytes.
const MAX_NAME: usize = 256;

/// Gathers what a snapshot says of one device.
pub(super) struct DeviceBuilder {
    device: usize,
    events: Vec<Event>,
    segments: Vec<Segment>,
    streams: Ids<u64>,
    pools: Ids<(u64, u64)>,
    stacks: Stacks,
    /// Marks of `annotate` entries and of changed user metadata, by position.
    marks: Vec<Mark>,
    metadata: Text,
    /// Entries whose action is not known, and the name of the first.
    unknown_actions: (usize, String),
    entries_with_unknown_keys: usize,
}

impl DeviceBuilder {
    pub(super) fn new(device: usize) -> Self {
        DeviceBuilder {
            device,
            events: Vec::new(),
            segments: Vec::new(),
            streams: Ids::new(0),
            pools: Ids::new((0, 0)),
            stacks: Stacks::default(),
            marks: Vec::new(),
            metadata: words::EMPTY,
            unknown_actions: (0, String::new()),
            entries_with_unknown_keys: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.segments.is_empty()
    }

    pub(super) fn stream(&mut self, handle: u64) -> Result<StreamId, ReadError> {
        let device = self.device;
        let too_many = || ReadError::TooMany { device, what: "streams" };
        self.streams.id(handle).map(StreamId).ok_or_else(too_many)
    }

    pub(super) fn pool(&mut self, pool: (u64, u64)) -> Result<PoolId, ReadError> {
        let device = self.device;
        let too_many = || ReadError::TooMany { device, what: "pools" };
        self.pools.id(pool).map(PoolId).ok_or_else(too_many)
    }

    pub(super) fn stack(&mut self, view: &View<'_>, list: u32) -> Result<StackId, ReadError> {
        match FrameList::new(list) {
            Some(list) => self.stacks.intern(view, list),
            None => Ok(StackId::NONE),
        }
    }

    pub(super) fn add_segment(&mut self, segment: Segment) {
        self.segments.push(segment);
    }

    /// Reads the entries of the device, in order.
    pub(super) fn add_entries(
        &mut self,
        view: &View<'_>,
        items: &[Value],
    ) -> Result<(), ReadError> {
        if u32::try_from(self.events.len() + items.len()).is_err() {
            return Err(ReadError::TooMany { device: self.device, what: "times 65536 entries" });
        }
        self.events.reserve(items.len());
        for (index, &item) in items.iter().enumerate() {
            let device = self.device;
            let place = || format!("device {device}, entry {index}");
            let Some(entry) = view.entry(item) else {
                let found = item.type_name();
                return Err(place.error(format!("is {found}, wanted a dict with `action`")));
            };
            if let Some(bad) = entry.bad {
                let (key, wanted) = bad.wanted();
                return Err(place.error(format!("`{key}` is not {wanted}")));
            }
            self.entries_with_unknown_keys += usize::from(entry.has_unknown_key);
            match entry.known_action() {
                Some(action) => self.add_entry(view, entry, action, &place)?,
                None => self.count_unknown(view, entry),
            }
        }
        Ok(())
    }

    #[inline]
    fn add_entry(
        &mut self,
        view: &View<'_>,
        entry: &Entry,
        action: Action,
        place: &dyn Place,
    ) -> Result<(), ReadError> {
        let needs_address = !matches!(action, Action::Oom | Action::Snapshot);
        if !entry.has_size {
            return Err(place.error("has no `size`".to_owned()));
        }
        if needs_address && !entry.has_address {
            return Err(place.error("has no `addr`".to_owned()));
        }
        if needs_address && entry.address.checked_add(entry.size).is_none() {
            let size = entry.size;
            return Err(place.error(format!("`size` {size} reaches beyond the last address")));
        }
        if entry.metadata != self.metadata || action == Action::Annotate {
            self.add_metadata_mark(view, entry, action)?;
        }
        let stack = match entry.frames {
            Some(list) => self.stacks.intern(view, list)?,
            None => StackId::NONE,
        };
        let stream = self.stream(entry.stream)?;
        let pool = match entry.pool {
            Some(pair) => self.pool(view.pair(pair))?,
            None => PoolId::DEFAULT,
        };
        let Entry { address, size, time_us, .. } = *entry;
        self.events.push(Event { address, size, time_us, stack, stream, pool, action });
        Ok(())
    }

    /// A mark for an annotated block, and for the first entry under new user metadata
    /// (`torch.cuda.memory._set_memory_metadata`).
    fn add_metadata_mark(
        &mut self,
        view: &View<'_>,
        entry: &Entry,
        action: Action,
    ) -> Result<(), ReadError> {
        let text = view.text(entry.metadata);
        let is_new = action == Action::Annotate || text != view.text(self.metadata);
        if action != Action::Annotate {
            self.metadata = entry.metadata;
        }
        if text.is_empty() || !is_new {
            return Ok(());
        }
        let name = cut(text);
        view.spend_text(name.len())?;
        self.marks.push(Mark {
            before: self.events.len() as u32,
            time_us: entry.time_us,
            kind: MarkKind::Other,
            name: name.to_owned(),
        });
        Ok(())
    }

    fn count_unknown(&mut self, view: &View<'_>, entry: &Entry) {
        if self.unknown_actions.0 == 0 {
            self.unknown_actions.1 = cut(view.text(entry.action)).to_owned();
        }
        self.unknown_actions.0 += 1;
    }

    /// The trace, with the marks of `annotations` that are meant for this device.
    pub(super) fn finish(
        mut self,
        view: &View<'_>,
        annotations: &[Annotation<'_>],
        settings: Settings,
    ) -> Result<Trace, ReadError> {
        let mut warnings = self.warnings();
        let findings = gaps::find(&self.events);
        warnings.extend(findings.sentences());
        let mut marks = Vec::new();
        for annotation in annotations.iter().filter(|it| it.is_for(self.device)) {
            view.spend(1)?;
            let name = cut(annotation.name);
            view.spend_text(name.len())?;
            let (kind, time_us) = (annotation.kind, annotation.time_us);
            marks.push(Mark { before: 0, time_us, kind, name: name.to_owned() });
        }
        place_by_time(&mut marks, &self.events);
        self.marks.extend(marks);
        self.marks.sort_by_key(|mark| mark.before);
        self.segments.sort_by_key(|segment| segment.address);
        Ok(Trace {
            device: self.device as u32,
            events: self.events,
            streams: self.streams.into_values(),
            pools: self.pools.into_values(),
            marks: self.marks,
            segments: self.segments,
            stacks: self.stacks.stacks,
            frames: self.stacks.frames,
            settings,
            origin: Origin {
                kind: "snapshot".to_owned(),
                warnings,
                truncated: findings.is_truncated(),
            },
            recorded: Default::default(),
        })
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let (count, first) = &self.unknown_actions;
        if *count > 0 {
            warnings.push(format!(
                "{count} entries were left out: their action is not known (the first is {first:?})"
            ));
        }
        if self.entries_with_unknown_keys > 0 {
            warnings.push(format!(
                "{} entries have keys that are not known; the keys were ignored",
                self.entries_with_unknown_keys
            ));
        }
        warnings
    }
}

/// At most [`MAX_NAME`] bytes of a text, whole characters.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME)]
}
