//! What the links of this machine carry, measured from the copies that are made anyway.
//!
//! ```text
//!  lane out    ──wait──┤ copy ├──┤ copy ├─────────wait──┤ copy ├──
//!  lane in     ───────────wait──┤   copy   ├────────────────────────
//!                      alone     ^^^^^^^^ both              alone
//! ```
//!
//! The time is taken on the lane behind what a copy waits for and behind the copy, so that a copy which is late, or a
//! lane that has nothing to do, is not taken for a slow link. It is read a step later; nobody waits for it. A copy counts as
//! alone if hardly any of its time was one of copies the other way, and as one of both if nearly all of it was; what is
//! in between says neither.
//!
//! **Sums, of the middle.** A schedule reckons with how long all the bytes take, which is what the sum of bytes over the sum
//! of times is: where another card takes its share for half of the copies, a median would be the rate of one of the
//! halves. One copy that was held up for long would weigh in such a sum as much as a hundred others, so the slowest
//! and the fastest tenth of the bytes are left out.

use girih_runtime::{Copies, DeviceError, TimeStamp};
use girih_swap::Links;
use girih_trace::StreamId;

use super::tuning::Tuning;
use super::waits::Way;
use crate::device::HeapDevice;

/// Copies of a step whose time is taken, at most: two events for each, and of further ones it is as of these.
pub(super) const COPIES_MAX: usize = 1024;
/// Bytes from which on a copy counts: what the driver needs to begin one, some microseconds, is less than a tenth of
/// its time on any link. Smaller ones are timed too, since others may run beside them.
const BYTES_LEAST: u64 = 4 << 20;
/// The part of a copy's time beside copies the other way up to which it is alone; and the same from the other end.
const ALONE: f64 = 0.05;
/// The part of the bytes that is left out at each end.
const TRIMMED: f64 = 0.1;
/// How much a step counts against those before it: programs differ less from step to step than other users of the links.
const NEWEST: f64 = 0.5;

/// A copy whose time was taken.
#[derive(Clone, Copy, Debug)]
struct Copy {
    way: Way,
    bytes: u64,
    from: TimeStamp,
    to: TimeStamp,
}

/// The copies of a step.
#[derive(Debug, Default)]
struct Batch {
    copies: Vec<Copy>,
    /// There were more of them.
    is_cut: bool,
    /// The time of one was refused: which others ran beside it is not known.
    is_lost: bool,
}

/// A copy with its times, in microseconds from a point of the step.
#[derive(Clone, Copy, Debug)]
struct Span {
    way: Way,
    bytes: u64,
    from: f64,
    to: f64,
}

impl Span {
    fn us(&self) -> f64 {
        self.to - self.from
    }

    /// False of what no clock that goes forward says.
    fn is_sound(&self) -> bool {
        self.from.is_finite() && self.to.is_finite() && self.us() > 0.0
    }
}

/// Rates, in bytes a microsecond: alone and beside copies the other way, each by its way. None where too little was seen.
type Rates = [[Option<f64>; 2]; 2];

/// What the links carry, as far as it is known.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Known {
    /// As it was measured while it was tried what is best copied. Plans are made with these.
    pub(super) planned: Links,
    /// As it was measured last. What a step is said to take is by these.
    pub(super) now: Links,
}

/// The copies whose time is taken, and what they have shown.
#[derive(Debug)]
pub(super) struct Measured {
    is_on: bool,
    now: Batch,
    /// Those of an earlier step, whose times are not read yet.
    before: Option<Batch>,
    rates: Rates,
    /// Bytes of a class in a step before it says anything.
    least: u64,
}

impl Measured {
    pub(super) fn new(tuning: &Tuning) -> Measured {
        let (now, before) = (Batch::default(), None);
        Measured { is_on: true, now, before, rates: Rates::default(), least: tuning.links_least }
    }

    /// Other numbers than the usual ones.
    #[cfg(test)]
    pub(super) fn tune(&mut self, tuning: &Tuning) {
        self.least = tuning.links_least;
    }

    /// Copies of this step whose time was taken.
    #[cfg(test)]
    pub(super) fn timed(&self) -> usize {
        self.now.copies.len()
    }

    /// Whether times are taken, from now on: to be said between steps.
    pub(super) fn watch(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// A copy is about to be queued, and what it waits for is. A point in time, if it is to be timed.
    pub(super) fn begin(
        &mut self,
        device: &mut dyn HeapDevice,
        lane: StreamId,
    ) -> Option<TimeStamp> {
        if !self.is_on {
            return None;
        }
        if self.now.copies.len() >= COPIES_MAX {
            self.now.is_cut = true;
            return None;
        }
        // A device that does not tell the time costs the time.
        let taken = device.copies().and_then(|copies| copies.take_time(lane).ok());
        self.now.is_lost |= taken.is_none();
        taken
    }

    /// The copy is queued: so many bytes; none if it was refused.
    pub(super) fn end(
        &mut self,
        device: &mut dyn HeapDevice,
        (lane, way): (StreamId, Way),
        bytes: Option<u64>,
        begun: Option<TimeStamp>,
    ) {
        let Some((from, copies)) = begun.zip(device.copies()) else { return };
        match bytes.and_then(|bytes| Some((bytes, copies.take_time(lane).ok()?))) {
            Some((bytes, to)) => self.now.copies.push(Copy { way, bytes, from, to }),
            None => {
                self.now.is_lost = true;
                copies.forget_time(from);
            }
        }
    }

    /// A step is over. Reads the copies of the one before; if they are not over, those of this one are given up for
    /// them, so that there are never more than those of two steps.
    pub(super) fn end_step(&mut self, copies: &mut dyn Copies) {
        let now = std::mem::take(&mut self.now);
        let before = self.before.take().unwrap_or_default();
        let kept = match before.spans(copies) {
            Ok(None) => {
                now.forget(copies);
                before
            }
            told => {
                // What the device does not tell is not measured.
                let spans = told.ok().flatten().filter(|_| !before.is_lost);
                spans.into_iter().for_each(|spans| self.see(&spans, before.is_cut));
                before.forget(copies);
                now
            }
        };
        self.before = Some(kept).filter(|kept| !kept.copies.is_empty());
    }

    fn see(&mut self, spans: &[Span], is_cut: bool) {
        let seen = rates_of(spans, is_cut, self.least);
        for (old, new) in self.rates.iter_mut().flatten().zip(seen.into_iter().flatten()) {
            *old = match (*old, new) {
                (Some(old), Some(new)) => Some(old + NEWEST * (new - old)),
                (old, new) => new.or(old),
            };
        }
    }

    /// The links. What was not seen is taken to be as much faster or slower than usual as what was, in the mean.
    pub(super) fn links(&self) -> Links {
        let usual = Links::default();
        let (both_out, both_in) = usual.rates(true, true);
        let usuals = [usual.outward, usual.inward, both_out, both_in];
        let seen = self.rates.iter().flatten().zip(usuals);
        let parts: Vec<f64> = seen.filter_map(|(rate, usual)| Some((*rate)? / usual)).collect();
        let part = match parts.len() {
            0 => 1.0,
            count => parts.iter().sum::<f64>() / count as f64,
        };
        let [alone, _] = self.rates;
        let outward = alone[0].unwrap_or(usual.outward * part);
        let inward = alone[1].unwrap_or(usual.inward * part);
        let both = self.together(outward, inward).unwrap_or(usual.both * part);
        Links { outward, inward, both: both.min(outward + inward) }
    }

    /// Both ways at once, in bytes a microsecond. Of one way alone it is what links say that share in proportion.
    fn together(&self, outward: f64, inward: f64) -> Option<f64> {
        match self.rates[1] {
            [Some(out), Some(back)] => Some(out + back),
            [Some(out), None] => Some(out * (outward + inward) / outward),
            [None, Some(back)] => Some(back * (outward + inward) / inward),
            [None, None] => None,
        }
    }

    /// What was measured, in GB/s (10^9 bytes a second): out, in, and both together.
    pub(super) fn gigabytes(&self) -> [Option<f64>; 3] {
        let Links { outward, inward, both } = self.links();
        let [alone, together] = self.rates;
        let is_seen = [alone[0], alone[1], together[0].or(together[1])];
        let mut all = [outward, inward, both].into_iter().zip(is_seen);
        [(); 3].map(|()| all.next().and_then(|(rate, seen)| seen.map(|_| rate / 1e3)))
    }
}

impl Batch {
    /// The times of all; none while some are not over.
    fn spans(&self, copies: &mut dyn Copies) -> Result<Option<Vec<Span>>, DeviceError> {
        let Some(first) = self.copies.first().map(|copy| copy.from) else {
            return Ok(Some(Vec::new()));
        };
        let mut spans = Vec::with_capacity(self.copies.len());
        for &Copy { way, bytes, from, to } in &self.copies {
            let (from, to) = (copies.time_between(first, from)?, copies.time_between(first, to)?);
            let Some((from, to)) = from.zip(to) else { return Ok(None) };
            spans.push(Span { way, bytes, from, to });
        }
        Ok(Some(spans))
    }

    fn forget(&self, copies: &mut dyn Copies) {
        for copy in &self.copies {
            copies.forget_time(copy.from);
            copies.forget_time(copy.to);
        }
    }
}

/// The rates that the copies of a step show.
fn rates_of(spans: &[Span], is_cut: bool, least: u64) -> Rates {
    let of = |way: Way| spans.iter().filter(move |span| span.way == way && span.is_sound());
    let ends = [Way::Out, Way::In].map(|way| of(way).map(|span| span.to).fold(0.0, f64::max));
    // A lane goes on with what was not timed after the last that was.
    let known_until = if is_cut { ends[0].min(ends[1]) } else { f64::INFINITY };
    let mut rates = Rates::default();
    for (index, way) in [Way::Out, Way::In].into_iter().enumerate() {
        let other = if way == Way::Out { Way::In } else { Way::Out };
        let (mut alone, mut both) = (Vec::new(), Vec::new());
        for span in of(way).filter(|it| it.bytes >= BYTES_LEAST && it.to <= known_until) {
            let beside = of(other).map(|it| (it.to.min(span.to) - it.from.max(span.from)).max(0.0));
            let part = beside.sum::<f64>() / span.us();
            match part {
                part if part < ALONE => alone.push(*span),
                part if part > 1.0 - ALONE => both.push(*span),
                _ => {}
            }
        }
        rates[0][index] = rate_of(alone, least);
        rates[1][index] = rate_of(both, least);
    }
    rates
}

/// The rate of copies of a class, if they are enough: see the head of this file.
fn rate_of(mut spans: Vec<Span>, least: u64) -> Option<f64> {
    let rate = |span: &Span| span.bytes as f64 / span.us();
    let all: u64 = spans.iter().map(|span| span.bytes).sum();
    if spans.is_empty() || all < least {
        return None;
    }
    spans.sort_by(|one, other| rate(one).total_cmp(&rate(other)));
    let most = (all as f64 * TRIMMED) as u64;
    let outer = |spans: &mut dyn Iterator<Item = &Span>| {
        let bytes = spans.scan(0, |sum, span| {
            *sum += span.bytes;
            Some(*sum)
        });
        bytes.take_while(|sum| *sum <= most).count()
    };
    let (slow, fast) = (outer(&mut spans.iter()), outer(&mut spans.iter().rev()));
    let middle = &spans[slow..spans.len() - fast];
    let bytes: u64 = middle.iter().map(|span| span.bytes).sum();
    let us: f64 = middle.iter().map(Span::us).sum();
    Some(bytes as f64 / us).filter(|rate| rate.is_finite() && *rate > 0.0)
}

/// By what part of themselves two links differ at most.
pub(super) fn difference(one: &Links, other: &Links) -> f64 {
    let pairs = [(one.outward, other.outward), (one.inward, other.inward), (one.both, other.both)];
    pairs.into_iter().map(|(one, other)| (one / other - 1.0).abs()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests;
