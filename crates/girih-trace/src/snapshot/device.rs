//! The trace of one device, while it is read.

use super::annotations::Annotation;
use super::entry::{Entry, FrameList};
use super::error::ReadError;
use super::gaps;
use super::ids::Ids;
use super::pools;
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
            stacks: Stacks::new(device as u32),
            marks: Vec::new(),
            metadata: words::EMPTY,
            unknown_actions: (0, String::new()),
            entries_with_unknown_keys: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.segments.is_empty()
    }

    /// An error if it has entries and none of their actions is known.
    pub(super) fn refuse_unknown(&self) -> Result<(), ReadError> {
        match &self.unknown_actions {
            (0, _) => Ok(()),
            (_, first) => Err(ReadError::NoKnownAction { action: first.clone() }),
        }
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
        records: &[Entry],
        items: &[Value],
    ) -> Result<(), ReadError> {
        self.check_count(items.len())?;
        self.events.reserve_exact(items.len());
        for (index, &item) in items.iter().enumerate() {
            let place = EntryPlace { device: self.device, index };
            let Some(record) = view.record(item) else {
                let found = item.type_name();
                return Err(place.error(format!("is {found}, wanted a dict with `action`")));
            };
            let before = self.events.len();
            let event = self.event(view, &records[record], place, before)?;
            self.events.extend(event);
        }
        Ok(())
    }

    /// Reads the entries of the device, which are all the records that there are, in their order.
    /// Their memory becomes that of the events: `collect` works in place.
    pub(super) fn take_records(
        &mut self,
        view: &View<'_>,
        records: Vec<Entry>,
    ) -> Result<(), ReadError> {
        self.check_count(records.len())?;
        let mut before = 0;
        let event = |(index, entry): (usize, Entry)| {
            let place = EntryPlace { device: self.device, index };
            let event = self.event(view, &entry, place, before);
            before += usize::from(matches!(event, Ok(Some(_))));
            event.transpose()
        };
        self.events =
            records.into_iter().enumerate().filter_map(event).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn check_count(&self, count: usize) -> Result<(), ReadError> {
        match u32::try_from(count) {
            Ok(count) if count < u32::MAX => Ok(()),
            _ => Err(ReadError::TooMany { device: self.device, what: "x 65536 entries" }),
        }
    }

    /// The event of an entry; none if its action is not known. `before` events precede it.
    #[inline]
    fn event(
        &mut self,
        view: &View<'_>,
        entry: &Entry,
        place: EntryPlace,
        before: usize,
    ) -> Result<Option<Event>, ReadError> {
        if let Some(problem) = entry.problem() {
            return Err(place.error(problem));
        }
        self.entries_with_unknown_keys += usize::from(entry.has_unknown_key());
        let Some(action) = entry.action else {
            self.count_unknown(view, entry);
            return Ok(None);
        };
        if entry.text != self.metadata || action == Action::Annotate {
            self.add_metadata_mark(view, entry, action, before)?;
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
        Ok(Some(Event { address, size, time_us, stack, stream, pool, action }))
    }

    /// A mark for an annotated block, and for the first entry under new user metadata
    /// (`torch.cuda.memory._set_memory_metadata`).
    fn add_metadata_mark(
        &mut self,
        view: &View<'_>,
        entry: &Entry,
        action: Action,
        before: usize,
    ) -> Result<(), ReadError> {
        let text = view.text(entry.text);
        let is_new = action == Action::Annotate || text != view.text(self.metadata);
        if action != Action::Annotate {
            self.metadata = entry.text;
        }
        if text.is_empty() || !is_new {
            return Ok(());
        }
        let name = cut(text);
        view.spend_text(name.len())?;
        self.marks.push(Mark {
            before: before as u32,
            time_us: entry.time_us,
            kind: MarkKind::Other,
            name: name.to_owned(),
        });
        Ok(())
    }

    fn count_unknown(&mut self, view: &View<'_>, entry: &Entry) {
        if self.unknown_actions.0 == 0 {
            self.unknown_actions.1 = cut(view.text(entry.text)).to_owned();
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
        pools::infer(&mut self.events, &self.segments);
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
            uses: Default::default(),
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

/// An entry, for errors.
#[derive(Clone, Copy)]
struct EntryPlace {
    device: usize,
    index: usize,
}

impl Place for EntryPlace {
    fn describe(&self) -> String {
        format!("device {}, entry {}", self.device, self.index)
    }
}

/// At most [`MAX_NAME`] bytes of a text, whole characters.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME)]
}
