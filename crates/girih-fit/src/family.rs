//! A family: recordings of one program at several values of a parameter, and what they say of any other value.
//!
//! Laws are drawn through the two recordings at the largest values, which are the nearest to where a job stops
//! fitting. The largest one is the *base*: the order of everything is its own. Every other recording is held out: what
//! the laws say of its value is held against it, and nothing is learnt from it.

use girih_plan::granted;
use girih_trace::{Action, Iterations, Lifetime, Lifetimes, StackId, Tick, Trace, Uses, parts};
use thiserror::Error;

use crate::law::{Kind, Law};
use crate::matching::{Matching, Signs, Stacks, gives_back};

/// Of the requests of the longer recording, the part that must agree with one of the other. What does not agree does
/// not grow, so little of it may be there. Recordings of different models have 0.18 in common at most, and two runs of
/// one program with other options 0.84; see `tests/real.rs`.
pub const AGREEMENT_MIN: f64 = 0.8;

/// A recording, with the value of the parameter at which it was made.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The value, at least 1: 0 is taken for 1.
    pub value: u64,
    /// Its name, for sentences.
    pub name: &'a str,
    /// The trace.
    pub trace: &'a Trace,
    /// Its lifetimes.
    pub lives: &'a Lifetimes,
    /// Its iterations.
    pub iterations: &'a Iterations,
}

/// Why recordings make no family.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum Unlike {
    /// Two of them have the same value.
    #[error("give each recording a value of its own: {0} and {1} are both at {2}")]
    SameValue(String, String, u64),
    /// There are fewer than two.
    #[error("give recordings at two values at least: one alone does not say what grows")]
    TooFew,
    /// Their requests cannot be matched.
    #[error(
        "record the same program at both values: of {of} requests {agreeing} agree; {base} and {other} part at \
         request {at}, {base_has} in the first and {other_has} in the second"
    )]
    Parted {
        /// The recording at the larger value.
        base: String,
        /// The other one.
        other: String,
        /// Requests of the longer one.
        of: usize,
        /// Requests that have a like.
        agreeing: usize,
        /// The first request that has none, from 1.
        at: usize,
        /// What it is.
        base_has: String,
        /// What is in its place.
        other_has: String,
    },
}

/// How many requests follow a law, and how many bytes they have in the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Requests.
    pub requests: u64,
    /// Bytes of them at the base's peak.
    pub peak_bytes: u64,
}

/// What the laws say of a recording that they were not drawn through.
#[derive(Clone, PartialEq, Debug)]
pub struct HeldOut {
    /// Its value.
    pub value: u64,
    /// Its name.
    pub name: String,
    /// Requests that it has.
    pub requests: usize,
    /// Of those, the ones that have as many bytes as was said.
    pub equal: usize,
    /// The ones with other bytes.
    pub different: usize,
    /// Bytes that all differences come to.
    pub bytes_off: u64,
    /// The largest difference: the request among those born, from 0, the bytes said, and the bytes recorded.
    pub worst: Option<(usize, u64, u64)>,
    /// The most alive at once, in blocks of 512 bytes: as said, and as recorded.
    pub peak: (u64, u64),
}

/// Recordings of one program.
pub struct Family {
    /// The base, cut to the iterations that all have.
    trace: Trace,
    lives: Lifetimes,
    /// A law for each request of the base.
    laws: Vec<Law>,
    /// The values that the laws go through.
    drawn: (u64, u64),
    /// Iterations that were compared, if some recordings have more.
    cut_to: Option<usize>,
    /// Requests of the second recording that the base has not.
    left_out: usize,
    /// Where the base's first iteration begins; none without iterations.
    first_step: Option<Tick>,
    held_out: Vec<HeldOut>,
}

impl Family {
    /// Matches recordings of one program at two or more values.
    ///
    /// # Errors
    /// If there are fewer than two values, if two are at the same value, or if they are not of one program.
    pub fn new(runs: &[Run<'_>]) -> Result<Family, Unlike> {
        let mut runs = runs.to_vec();
        runs.iter_mut().for_each(|run| run.value = run.value.max(1));
        runs.sort_by_key(|run| std::cmp::Reverse(run.value));
        if let Some(pair) = runs.windows(2).find(|pair| pair[0].value == pair[1].value) {
            let [first, second] = [pair[0].name, pair[1].name].map(str::to_owned);
            return Err(Unlike::SameValue(first, second, pair[0].value));
        }
        if runs.len() < 2 {
            return Err(Unlike::TooFew);
        }
        let (cut_to, cut) = cut(&runs);
        let mut stacks = Stacks::default();
        let signs: Vec<Signs> =
            cut.iter().map(|(trace, lives)| Signs::of(trace, lives, &mut stacks)).collect();
        let matchings = (1..runs.len())
            .map(|index| {
                let matching = Matching::of(&signs[0], &signs[index]);
                check(&matching, (&runs[0], &cut[0]), (&runs[index], &cut[index]))?;
                Ok(matching)
            })
            .collect::<Result<Vec<Matching>, Unlike>>()?;
        let drawn = (runs[1].value, runs[0].value);
        let laws = laws(drawn, &cut[0].1, &cut[1].1, &matchings[0]);
        let left_out = signs[1].len() - matchings[0].likes.iter().flatten().count();
        let (mut trace, lives) = cut[0].clone();
        quieten(&mut trace, &lives, &matchings[0].given_back);
        let first = runs[0].iterations.list.first();
        let first_step = first.map(|iteration| Tick(iteration.ticks.start));
        let held_out = Vec::new();
        let mut family =
            Family { trace, lives, laws, drawn, cut_to, left_out, first_step, held_out };
        for index in 2..runs.len() {
            let held_out = family.judge(&runs[index], &cut[index].1, &matchings[index - 1]);
            family.held_out.push(held_out);
        }
        Ok(family)
    }

    /// The recording as it would be at a value. What the recorded allocator did is not in it, but for the moments at
    /// which the program emptied the cache.
    pub fn at(&self, value: u64) -> (Trace, Lifetimes) {
        let (mut trace, lives) = (self.trace.clone(), self.lives_at(value));
        for (event, &request) in trace.events.iter_mut().zip(&lives.request_of) {
            if request != Lifetimes::NONE {
                event.size = lives.requests[request as usize].size;
            }
        }
        (trace, lives)
    }

    fn lives_at(&self, value: u64) -> Lifetimes {
        let mut lives = self.lives.clone();
        for (life, law) in lives.requests.iter_mut().zip(&self.laws) {
            // As every reader has it: 2^48 bytes are more than any event has.
            life.size = law.at(value).min(1 << 48);
        }
        lives
    }

    /// The most alive at once at a value, in blocks of 512 bytes. No allocator does with less. It does not fall as the
    /// value rises, for no law does.
    pub fn bound(&self, value: u64) -> u64 {
        self.lives_at(value).peak(granted).0
    }

    /// The largest multiple of `step`, up to `most`, whose bound is within a capacity; 0 if that of `step` itself is
    /// not.
    pub fn most(&self, capacity: u64, step: u64, most: u64) -> u64 {
        let (mut low, mut high) = (0, most / step.max(1) + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match self.bound(middle * step) <= capacity {
                true => low = middle,
                false => high = middle,
            }
        }
        low * step
    }

    /// How many requests follow laws of each kind, in the order of [`Kind::ALL`].
    pub fn tally(&self) -> [(Kind, Tally); 6] {
        let (_, at) = self.lives.peak(granted);
        Kind::ALL.map(|kind| {
            let mut tally = Tally::default();
            for (life, law) in self.lives.requests.iter().zip(&self.laws) {
                if law.kind() == kind {
                    tally.requests += 1;
                    let is_there = life.birth <= at && life.death > at;
                    tally.peak_bytes += if is_there { life.size } else { 0 };
                }
            }
            (kind, tally)
        })
    }

    /// Bytes of what is there before the first iteration, is never freed, and yet grows, in the base: weights do not
    /// grow with a batch. 0 where there are no iterations.
    pub fn growing_for_ever(&self) -> u64 {
        let is_model = |life: &Lifetime| {
            let end = life.free_requested.min(life.death);
            end == Tick::NEVER && self.first_step.is_some_and(|start| life.birth < start)
        };
        let all = self.lives.requests.iter().zip(&self.laws);
        let grows = all.filter(|(life, law)| {
            is_model(life) && !matches!(law.kind(), Kind::Same | Kind::Alone)
        });
        grows.map(|(life, _)| life.size).sum()
    }

    /// Requests of the base.
    pub fn requests(&self) -> usize {
        self.laws.len()
    }

    /// Requests of the second recording that have no like in the base and are left out.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The two values that the laws go through.
    pub fn drawn(&self) -> (u64, u64) {
        self.drawn
    }

    /// How many iterations were compared, if some of the recordings have more.
    pub fn cut_to(&self) -> Option<usize> {
        self.cut_to
    }

    /// What the laws say of the other recordings, from the largest value down.
    pub fn held_out(&self) -> &[HeldOut] {
        &self.held_out
    }

    /// Holds the laws against a recording.
    fn judge(&self, run: &Run<'_>, lives: &Lifetimes, matching: &Matching) -> HeldOut {
        let said = self.lives_at(run.value);
        let mut held_out = HeldOut {
            value: run.value,
            name: run.name.to_owned(),
            requests: lives.born().len(),
            equal: 0,
            different: 0,
            bytes_off: 0,
            worst: None,
            peak: (said.peak(granted).0, lives.peak(granted).0),
        };
        for (own, like) in said.born().iter().zip(&matching.likes) {
            let Some(like) = *like else { continue };
            // A request for nothing is none.
            let recorded = lives.born()[like as usize].size.max(1);
            let off = own.size.abs_diff(recorded);
            held_out.equal += usize::from(off == 0);
            held_out.different += usize::from(off > 0);
            held_out.bytes_off = held_out.bytes_off.saturating_add(off);
            let worst = held_out.worst.map_or(0, |(_, said, recorded)| said.abs_diff(recorded));
            if off > worst {
                held_out.worst = Some((like as usize, own.size, recorded));
            }
        }
        held_out
    }
}

/// The recordings with as many iterations as all of them have; how many, if that leaves any out.
fn cut(runs: &[Run<'_>]) -> (Option<usize>, Vec<(Trace, Lifetimes)>) {
    let counts = || runs.iter().map(|run| run.iterations.list.len());
    let least = counts().min().unwrap_or(0);
    let is_cut = least > 0 && counts().any(|count| count > least);
    let part = |run: &Run<'_>| match run.iterations.list.get(least).filter(|_| is_cut) {
        Some(next) => parts::first_part(run.trace, run.lives, Tick(next.ticks.start)),
        None => (run.trace.clone(), run.lives.clone()),
    };
    (is_cut.then_some(least), runs.iter().map(part).collect())
}

/// Refuses recordings of which too few requests agree.
fn check(
    matching: &Matching,
    (base, cut): (&Run<'_>, &(Trace, Lifetimes)),
    (other, other_cut): (&Run<'_>, &(Trace, Lifetimes)),
) -> Result<(), Unlike> {
    let of = cut.1.born().len().max(other_cut.1.born().len());
    if matching.agreeing as f64 >= of as f64 * AGREEMENT_MIN {
        return Ok(());
    }
    let (at, other_at) = matching.parts_at.unwrap_or_default();
    Err(Unlike::Parted {
        base: base.name.to_owned(),
        other: other.name.to_owned(),
        of,
        agreeing: matching.agreeing,
        at: at + 1,
        base_has: described(cut, at),
        other_has: described(other_cut, other_at),
    })
}

/// A request in words: its bytes and the innermost frame of its stack.
fn described((trace, lives): &(Trace, Lifetimes), at: usize) -> String {
    let Some(life) = lives.born().get(at) else { return "nothing".to_owned() };
    let stack = trace.stacks.get(life.stack.0 as usize).filter(|_| life.stack != StackId::NONE);
    let frame = stack.and_then(|stack| trace.frames.get(*stack.first()? as usize));
    match frame {
        Some(frame) => format!("{} bytes at {frame}", life.size),
        None => format!("{} bytes", life.size),
    }
}

/// The laws of the base's requests. What is older than a recording is taken to be as it is: it is known by its address
/// alone, and mostly the model.
fn laws(
    (from, to): (u64, u64),
    base: &Lifetimes,
    second: &Lifetimes,
    matching: &Matching,
) -> Vec<Law> {
    let older = base.requests[..base.older].iter().map(|life| Law::Same(life.size.max(1)));
    let born = base.born().iter().zip(&matching.likes).map(|(life, like)| match like {
        // A request for nothing is none.
        Some(like) => {
            let low = second.born()[*like as usize].size;
            Law::through((from, low.max(1)), (to, life.size.max(1)))
        }
        None => Law::Alone(life.size.max(1)),
    });
    older.chain(born).collect()
}

/// Leaves in a trace what the program did, and puts an event that says nothing where the allocator did something, so
/// that ticks stay what they are. Of the cache it stays known before which requests it was emptied in both recordings:
/// at other sizes, the allocator would have emptied it elsewhere.
fn quieten(trace: &mut Trace, lives: &Lifetimes, given_back: &[u32]) {
    let births = girih_trace::align::births_before(lives);
    let kept: Vec<usize> = gives_back(trace)
        .filter(|&tick| given_back.binary_search(&(births[tick] - lives.older as u32)).is_ok())
        .collect();
    for (tick, event) in trace.events.iter_mut().enumerate() {
        if event.action.is_segment() {
            let is_kept = kept.binary_search(&tick).is_ok();
            event.action = if is_kept { Action::SegmentFree } else { Action::Snapshot };
            event.size = 0;
        }
    }
    trace.segments.clear();
    trace.recorded = girih_trace::Recorded::default();
    trace.uses = Uses::default();
}
