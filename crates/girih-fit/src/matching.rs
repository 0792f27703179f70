//! Matching: which request of one recording is which of another one of the same program.
//!
//! The recordings differ in the bytes of their requests, so bytes say nothing. What stays is the order, the stream, the
//! pool, the call stack where it was recorded, and the life, counted in requests. A life ends where the program lets go
//! of the block: when its streams are done with it, chance has a part in.

use rustc_hash::FxHashMap;

use girih_trace::align::{Key, align_where, births_before};
use girih_trace::{Action, Lifetime, Lifetimes, PoolId, StreamId, Tick, Trace};

/// Lives that differ by no more than one part in so many agree: something that came in between in one of the
/// recordings makes them longer. As in the alignment of iterations.
const LIFE_PART: u32 = 32;

/// What is compared of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sign {
    life: u32,
    stream: StreamId,
    pool: PoolId,
    /// A number for each call stack that is the same in all recordings; none where it was not recorded.
    stack: Option<u32>,
}

impl Sign {
    fn agrees(self, other: Sign) -> bool {
        self.may_stand(other) && self.life_agrees(other) && self.stack_agrees(other)
    }

    fn life_agrees(self, other: Sign) -> bool {
        let longer = self.life.max(other.life);
        self.life == other.life
            || (longer != Key::FOREVER && self.life.abs_diff(other.life) <= longer / LIFE_PART)
    }

    fn stack_agrees(self, other: Sign) -> bool {
        self.stack.is_none() || other.stack.is_none() || self.stack == other.stack
    }

    /// The least that two requests must have in common.
    fn may_stand(self, other: Sign) -> bool {
        self.stream == other.stream && self.pool == other.pool
    }
}

/// The call stacks of several recordings, each with one number.
#[derive(Default)]
pub(crate) struct Stacks<'a> {
    frames: FxHashMap<&'a str, u32>,
    stacks: FxHashMap<Vec<u32>, u32>,
}

impl<'a> Stacks<'a> {
    /// The numbers of a recording's stacks.
    fn of(&mut self, trace: &'a Trace) -> Vec<u32> {
        let Stacks { frames, stacks } = self;
        let mut number = |frame: &u32| {
            let text = trace.frames.get(*frame as usize).map_or("", String::as_str);
            let next = frames.len() as u32;
            *frames.entry(text).or_insert(next)
        };
        let own = trace.stacks.iter().map(|stack| stack.iter().map(&mut number).collect());
        own.map(|stack: Vec<u32>| {
            let next = stacks.len() as u32;
            *stacks.entry(stack).or_insert(next)
        })
        .collect()
    }
}

/// What is compared of the requests that a recording saw born.
pub(crate) struct Signs {
    signs: Vec<Sign>,
    /// The requests, as positions among those born, before which the recording gave memory back.
    given_back: Vec<u32>,
}

impl Signs {
    pub(crate) fn of<'a>(trace: &'a Trace, lives: &Lifetimes, stacks: &mut Stacks<'a>) -> Signs {
        let numbers = stacks.of(trace);
        let births = births_before(lives);
        let older = lives.older as u32;
        let sign = |(index, life): (usize, &Lifetime)| {
            let end = life.free_requested.min(life.death);
            let lasts = match births.get(end.index()) {
                Some(&next) if end != Tick::NEVER => next.saturating_sub(older + index as u32),
                _ => Key::FOREVER,
            };
            Sign {
                life: lasts,
                stream: life.stream,
                pool: life.pool,
                stack: numbers.get(life.stack.0 as usize).copied().filter(|_| life.stack.is_some()),
            }
        };
        let signs = lives.born().iter().enumerate().map(sign).collect();
        let given_back = gives_back(trace).map(|tick| births[tick] - older).collect();
        Signs { signs, given_back }
    }

    pub(crate) fn len(&self) -> usize {
        self.signs.len()
    }
}

/// The ticks at which runs of segments that go back begin.
pub(crate) fn gives_back(trace: &Trace) -> impl Iterator<Item = usize> + '_ {
    let gives = |index: usize| {
        matches!(trace.events[index].action, Action::SegmentFree | Action::SegmentUnmap)
    };
    (0..trace.events.len()).filter(move |&index| gives(index) && (index == 0 || !gives(index - 1)))
}

/// Which request of one recording is which of another: positions among those born.
pub(crate) struct Matching {
    /// For each request of the base, its like.
    pub(crate) likes: Vec<Option<u32>>,
    /// Pairs that agree in all that is compared. The others stand between such pairs, as many of both.
    pub(crate) agreeing: usize,
    /// The first position of the base, and of the other, at which they part; none if they never do.
    pub(crate) parts_at: Option<(usize, usize)>,
    /// The requests of the base before which memory was given back in both, rising.
    pub(crate) given_back: Vec<u32>,
}

impl Matching {
    pub(crate) fn of(base: &Signs, other: &Signs) -> Matching {
        let agree = |at: usize, index: usize| base.signs[at].agrees(other.signs[index]);
        let may_stand = |at: usize, index: usize| base.signs[at].may_stand(other.signs[index]);
        let places = align_where((base.len(), other.len()), agree, may_stand);
        let mut likes = vec![None; base.len()];
        let mut agreeing = 0;
        for (index, place) in places.iter().enumerate() {
            if let Some(place) = place {
                likes[*place as usize] = Some(index as u32);
                agreeing += usize::from(agree(*place as usize, index));
            }
        }
        let common = base.len().min(other.len());
        let parts = |at: &usize| likes[*at] != Some(*at as u32) || !agree(*at, *at);
        let parts_at = (0..common).find(parts).map(|at| (at, at));
        let ended = (base.len() != other.len()).then_some((common, common));
        // A place before which nothing of the other is matched is that of the next request that is.
        let mut next = base.len() as u32;
        let mut place_from = vec![next; places.len() + 1];
        for (index, place) in places.iter().enumerate().rev() {
            next = place.unwrap_or(next);
            place_from[index] = next;
        }
        let theirs: Vec<u32> =
            other.given_back.iter().map(|&before| place_from[before as usize]).collect();
        let own = base.given_back.iter().copied();
        let given_back = own.filter(|before| theirs.binary_search(before).is_ok()).collect();
        Matching { likes, agreeing, parts_at: parts_at.or(ended), given_back }
    }
}
