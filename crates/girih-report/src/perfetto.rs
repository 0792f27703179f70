//! A trace for Perfetto (ui.perfetto.dev): what was requested, active and reserved as counters; steps,
//! phases and modules as slices; refused requests as instants.
//!
//! The format is protocol buffers, of which this needs little: a message is a row of fields, and a
//! field its number, its kind, and a variable-length integer or bytes with their length. The numbers
//! are those of Perfetto's `trace_packet.proto`, `track_descriptor.proto` and `track_event.proto`.
//!
//! Perfetto counts nanoseconds and a recording microseconds. Events of one microsecond are set a
//! nanosecond apart, in their order, so that no value is lost.

use std::io::{self, Write};

use girih_plan::granted;
use girih_trace::{Action, MarkKind, PhaseKind, Tick};

use crate::beside::Beside;
use crate::picture::Picture;

/// The one sequence of packets.
const SEQUENCE: u64 = 1;
/// The tracks.
const PROCESS: u64 = 1;
const REQUESTED: u64 = 2;
const ACTIVE: u64 = 3;
const RESERVED: u64 = 4;
const STEPS: u64 = 5;
const PHASES: u64 = 6;
const MODULES: u64 = 7;
const REFUSED: u64 = 8;
/// From here on, allocators.
const ALLOCATORS: u64 = 16;

/// A message while it is written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn int(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }
}

/// What an event of a track is (`TrackEvent.Type`).
#[derive(Clone, Copy)]
enum Kind {
    Begin = 1,
    End = 2,
    Instant = 3,
    Counter = 4,
}

struct Packets<'a> {
    out: &'a mut dyn Write,
}

impl Packets<'_> {
    fn packet(&mut self, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        let mut trace = Message::default();
        trace.message(1, |packet| {
            packet.int(10, SEQUENCE);
            fill(packet);
        });
        self.out.write_all(&trace.0)
    }

    fn track(&mut self, uuid: u64, name: &str, is_counter: bool) -> io::Result<()> {
        self.packet(|packet| {
            packet.message(60, |track| {
                track.int(1, uuid);
                track.bytes(2, name.as_bytes());
                track.int(5, PROCESS);
                if is_counter {
                    // Of bytes.
                    track.message(8, |counter| counter.int(3, 3));
                }
            });
        })
    }

    fn event(
        &mut self,
        at_ns: u64,
        track: u64,
        kind: Kind,
        fill: impl FnOnce(&mut Message),
    ) -> io::Result<()> {
        self.packet(|packet| {
            packet.int(8, at_ns);
            packet.message(11, |event| {
                event.int(9, kind as u64);
                event.int(11, track);
                fill(event);
            });
        })
    }

    fn count(&mut self, at_ns: u64, track: u64, value: u64) -> io::Result<()> {
        self.event(at_ns, track, Kind::Counter, |event| event.int(30, value))
    }

    fn begin(&mut self, at_ns: u64, track: u64, name: &str) -> io::Result<()> {
        self.event(at_ns, track, Kind::Begin, |event| event.bytes(23, name.as_bytes()))
    }

    fn end(&mut self, at_ns: u64, track: u64) -> io::Result<()> {
        self.event(at_ns, track, Kind::End, |_| ())
    }
}

/// Writes the trace. What is `beside` the recording adds the curves of its allocators.
///
/// # Errors
/// Those of the writer.
pub fn write(picture: &Picture<'_>, beside: &Beside, out: &mut dyn Write) -> io::Result<()> {
    let mut packets = Packets { out };
    let name = picture.subject.name;
    packets.packet(|packet| {
        // Whoever reads may begin here.
        packet.int(13, 1);
        packet.message(60, |track| {
            track.int(1, PROCESS);
            track.message(3, |process| {
                process.int(1, 1);
                process.bytes(6, name.as_bytes());
            });
        });
    })?;
    for (track, name, is_counter) in [
        (REQUESTED, "requested", true),
        (ACTIVE, "active", true),
        (RESERVED, "reserved", true),
        (STEPS, "steps", false),
        (PHASES, "phases", false),
        (MODULES, "modules", false),
        (REFUSED, "refused", false),
    ] {
        packets.track(track, name, is_counter)?;
    }
    for (track, allocator) in (ALLOCATORS..).zip(&beside.allocators) {
        packets.track(track, &format!("reserved by {}", allocator.name), true)?;
    }
    Walk::new(picture, beside, packets).go()
}

/// One walk over the events, with all that begins and ends before each.
struct Walk<'a, 'w> {
    picture: &'a Picture<'a>,
    beside: &'a Beside,
    packets: Packets<'w>,
    now_ns: u64,
    /// The next step, phase, mark, and point of each allocator's curve.
    step: usize,
    phase: usize,
    mark: usize,
    points: Vec<usize>,
    open_modules: usize,
    open_phase: bool,
}

impl<'a, 'w> Walk<'a, 'w> {
    fn new(picture: &'a Picture<'a>, beside: &'a Beside, packets: Packets<'w>) -> Walk<'a, 'w> {
        Walk {
            picture,
            beside,
            packets,
            now_ns: 0,
            step: 0,
            phase: 0,
            mark: 0,
            points: vec![0; beside.allocators.len()],
            open_modules: 0,
            open_phase: false,
        }
    }

    fn go(mut self) -> io::Result<()> {
        let subject = self.picture.subject;
        let (trace, lives) = (subject.trace, subject.lives);
        let mut change = vec![(0_i64, 0_i64); trace.events.len() + 1];
        for life in &lives.requests {
            let sizes =
                [life.size, granted(life.size)].map(|it| i64::try_from(it).unwrap_or(i64::MAX));
            let birth = &mut change[life.birth.index()];
            *birth = (birth.0.saturating_add(sizes[0]), birth.1.saturating_add(sizes[1]));
            if life.death != Tick::NEVER {
                let death = &mut change[life.death.index()];
                *death = (death.0.saturating_sub(sizes[0]), death.1.saturating_sub(sizes[1]));
            }
        }
        let older = self.picture.runs.iter().filter(|run| run.is_older);
        let mut reserved: u64 = older.fold(0, |sum, run| sum.saturating_add(run.size));
        let (mut requested, mut active) = (0_i64, 0_i64);
        let mut said = [None; 3];
        let start = trace.events.iter().map(|event| event.time_us).min().unwrap_or(0);
        for (index, event) in trace.events.iter().enumerate() {
            let time = u64::try_from(event.time_us.saturating_sub(start)).unwrap_or(0);
            self.now_ns = (self.now_ns + 1).max(time.saturating_mul(1000));
            self.before(index as u32)?;
            requested = requested.saturating_add(change[index].0);
            active = active.saturating_add(change[index].1);
            match event.action {
                Action::SegmentAlloc | Action::SegmentMap => {
                    reserved = reserved.saturating_add(event.size);
                }
                Action::SegmentFree | Action::SegmentUnmap => {
                    reserved = reserved.saturating_sub(event.size);
                }
                Action::Oom => {
                    let name = format!("out of memory: {}", girih_why::units::bytes(event.size));
                    self.packets.event(self.now_ns, REFUSED, Kind::Instant, |event| {
                        event.bytes(23, name.as_bytes());
                    })?;
                }
                _ => {}
            }
            let in_use = active.max(0) as u64;
            let values = [requested.max(0) as u64, in_use, reserved.max(in_use)];
            for ((track, value), said) in (REQUESTED..).zip(values).zip(&mut said) {
                if said.replace(value) != Some(value) {
                    self.packets.count(self.now_ns, track, value)?;
                }
            }
        }
        self.now_ns += 1;
        self.before(u32::MAX)?;
        self.close()
    }

    /// What begins or ends before an event.
    fn before(&mut self, index: u32) -> io::Result<()> {
        let now = self.now_ns;
        while self.picture.steps.get(self.step).is_some_and(|step| step.0 <= index) {
            if self.step > 0 {
                self.packets.end(now, STEPS)?;
            }
            self.packets.begin(now, STEPS, &format!("step {}", self.step))?;
            self.step += 1;
        }
        while let Some(phase) = self.picture.phases.list.get(self.phase) {
            if phase.ticks.start > index {
                break;
            }
            if std::mem::take(&mut self.open_phase) {
                self.packets.end(now, PHASES)?;
            }
            if phase.kind != PhaseKind::Other {
                let name = phase.kind.name();
                let name = phase.microbatch.map_or(name.to_owned(), |at| format!("{name} {at}"));
                self.packets.begin(now, PHASES, &name)?;
                self.open_phase = true;
            }
            self.phase += 1;
        }
        while let Some(mark) = self.picture.subject.trace.marks.get(self.mark) {
            if mark.before > index {
                break;
            }
            self.mark += 1;
            match mark.kind {
                MarkKind::ForwardIn => {
                    self.packets.begin(now, MODULES, &mark.name)?;
                    self.open_modules += 1;
                }
                MarkKind::ForwardOut if self.open_modules > 0 => {
                    self.packets.end(now, MODULES)?;
                    self.open_modules -= 1;
                }
                MarkKind::Other => self.packets.event(now, MODULES, Kind::Instant, |event| {
                    event.bytes(23, mark.name.as_bytes());
                })?,
                _ => {}
            }
        }
        for (at, allocator) in self.beside.allocators.iter().enumerate() {
            while let Some(&(tick, bytes)) = allocator.reserved.get(self.points[at]) {
                if tick.0 > index {
                    break;
                }
                self.packets.count(now, ALLOCATORS + at as u64, bytes)?;
                self.points[at] += 1;
            }
        }
        Ok(())
    }

    /// Ends what is open.
    fn close(mut self) -> io::Result<()> {
        let now = self.now_ns;
        if self.step > 0 {
            self.packets.end(now, STEPS)?;
        }
        if self.open_phase {
            self.packets.end(now, PHASES)?;
        }
        for _ in 0..self.open_modules {
            self.packets.end(now, MODULES)?;
        }
        Ok(())
    }
}
