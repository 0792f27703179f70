//! What no schedule can beat.
//!
//! During operator `i` some bytes must be away: `X(i)`, the least sum of tensors' sizes that is no less than what is
//! above the budget (`whole`). Of the tensors that lie idle then, those whose last use is later than the beginning of a
//! window must go out within it:
//!
//! ```text
//!             l ........................ i ............................ r
//!  out        |--- X(i) less what was idle before l ---|
//!  in                                    |--- X(i) less what is used after r ---|
//! ```
//!
//! So a window has bytes that must go out in it and bytes that must come in, and takes at least as long as the links
//! need for them. What is neither idle before `l` nor used after `r` must go out before `i` or come in after it: the
//! two do not run at once, and the window takes at least as long as one link needs for both: of windows of any width,
//! all of them (`reach`). Of narrow windows, and of those between some of the operators, more is known: how much goes
//! out and how much comes in at least. Both directions at once are slower than each alone, so a byte that comes in takes
//! from those that go out (`slows`). Windows side by side need their times one after the other: the best chain of them is the
//! bound.
//!
//! A window from operator `l` to operator `r` begins where `l` has ended, with what is waited for before the next, and ends
//! where `r` begins:
//!
//! ```text
//!  compute   |  l  |..wait..| l+1 | . . . |..wait..|  r  |
//!  window          |-------------------------------|
//! ```
//!
//! What is used by `l` for the last time cannot go earlier, and what is away during `l` cannot come earlier: so the time of
//! `l` is none in which the bytes of the window could be copied.
//!
//! While an operator runs, what is copied lies idle during it and holds its bytes on the GPU, since bytes are let go of and taken
//! between operators. So no more is copied meanwhile than what lies idle then and need not be away (`spare`). That may be
//! much less than what the links could do in a long operator: the pause of a pipeline.
//!
//! # Why no schedule is shorter
//!
//! Take any schedule within the budget, and a chain of windows. No two of these share a moment, so the waits in them add up, and
//! the step takes its operators' times and at least those. In one window let `O` and `I` be the bytes that the schedule copies out
//! and in, each of which may be more than the least that is known of it. At any moment the link out has a rate `o` and the link in
//! a rate `i`, of which holds:
//!
//! - `o + slows * i <= outward`: with equality at most when both are busy, by the choice of `slows`, which is no more than `outward /
//!   inward` either, for the moments in which only the link in is. Likewise the other way round.
//! - `o + i <= both`, or no more than the faster link alone.
//! - Of the bytes that must go out before an operator or come in after it, at most `one`: the former are over when the latter begin,
//!   so only one of the links moves any of them at a time.
//!
//! During an operator each gap's tensor is copied in one direction at most (to come back it must have been let go of, and that is
//! between operators), so `O + I`, and with it each of those sums, is at most what is spare: no weight is above 1. What is left when
//! the operators of the window have copied the most they can is copied while operators wait, at no more than the rate. All weights are
//! at least 0, so the least bytes may stand for `O` and `I`. That needs links that are together no faster than the sum of both
//! alone, as [`Links`] has it.
//!
//! Within a wide window tensors may be cut into bytes (`flow`), in a narrow one those that go out by its end, or are away
//! at its beginning, go whole.

use crate::coarse::Coarse;
use crate::flow::Flow;
use crate::links::Links;
use crate::reach::Reach;
use crate::step::Step;
use crate::whole::{Sums, away_at_least};

/// Operators between which wide windows begin and end, at most. Any choice of them gives a bound; more give a
/// better one.
const WIDE_MAX: usize = 600;
/// Tensors of less than this part of the peak are small.
const SMALL_PART: u64 = 4096;
/// Windows of up to so many operators are narrow.
const NARROW: usize = 64;
/// Steps of up to so many operators have as many narrow and wide windows as there may be. Longer ones have fewer, so that they
/// take no more time.
const FULL_MAX: usize = 8_000;
/// Units in which sums of tensors are counted in a narrow window, at most.
const NARROW_UNITS_MAX: u64 = 1 << 12;

/// The least microseconds that the step can take with so many bytes on the GPU; of steps that cannot be run within
/// them, those of the least budget that can. O(n x (600 log n + 64^2) + 600^2), where n are the operators at which a
/// tensor begins or ends to lie idle.
pub fn bound(fine: &Step, links: &Links, budget: u64) -> f64 {
    let budget = budget.max(fine.least_budget().0);
    if fine.peak() <= budget {
        return fine.us();
    }
    let of_all = chain(fine, links, budget, 0);
    of_all.max(chain(fine, links, budget, fine.peak() / SMALL_PART))
}

/// The bound by the best chain of windows. Tensors of less than `least` bytes are taken to be away whenever they are
/// idle, at no cost: there are fewer operators then at which anything happens, and so windows reach further.
fn chain(fine: &Step, links: &Links, budget: u64, least: u64) -> f64 {
    let small = fine.idle_of_gaps(|gap| fine.bytes(gap) < least);
    let mut large = fine.clone();
    large.load.iter_mut().zip(small).for_each(|(load, small)| *load -= small.min(*load));
    let coarse = Coarse::relaxed(&large, |gap| fine.bytes(gap) >= least);
    let step = &coarse.step;
    let needs = away_at_least(step, budget);
    let spare = spare(&large, &coarse, &needs, budget);
    let of_rate = |rate: f64| Copied::of(&large, &coarse, &spare, rate);
    let (outward, inward, both) = (links.outward, links.inward, links.both);
    let one = outward.max(inward);
    // Copies one after another may be faster than both directions at once.
    let [outward, inward, both, one] = [outward, inward, both.max(one), one].map(of_rate);
    let [slows_out, slows_in] = slows(links);
    let lag = |from: u32, to: u32, must: Must| {
        let Must { out: out_bytes, inward: in_bytes } = must;
        let out = outward.wait_us(from, to, out_bytes + slows_out * in_bytes);
        let own = inward.wait_us(from, to, in_bytes + slows_in * out_bytes);
        out.max(own).max(both.wait_us(from, to, out_bytes + in_bytes))
    };
    let narrow = narrow(step, &needs, narrow_max(step.ops.len()));
    let ends = ends(step, links, &needs, wide_max(step.ops.len()));
    let wide = wide(step, &needs, &ends);
    let count = step.ops.len();
    let mut wide_at: Vec<Option<usize>> = vec![None; count + 1];
    ends.iter().enumerate().for_each(|(at, &end)| wide_at[end as usize] = Some(at));
    let mut best = vec![0.0f64; count + 1];
    let mut reach = Reach::new(step, &needs, &one.until, one.rate);
    for to in 0..=count {
        best[to] = reach.until(to as u32).max(best[to.saturating_sub(1)]);
        for (width, &must) in (1..).zip(&narrow[to]) {
            let from = to - width;
            best[to] = best[to].max(best[from] + lag(from as u32, to as u32, must));
        }
        let wide_end = wide_at[to].map_or(&[][..], |end| &ends[..end]);
        for (at, &from) in wide_end.iter().enumerate() {
            let lag = lag(from, to as u32, wide[at][wide_end.len()]);
            best[to] = best[to].max(best[from as usize] + lag);
        }
        if to < count {
            reach.begin(to as u32, best[to]);
        }
    }
    fine.us() + best[count]
}

/// What a byte that comes in takes from those that go out meanwhile, in bytes, and the other way round: while both links are
/// busy each has a share of its bandwidth alone. No more than it would take by itself, or as one of the others.
fn slows(links: &Links) -> [f64; 2] {
    let (outward, inward) = links.rates(true, true);
    let of = |alone: f64, shared: f64, other: f64, other_alone: f64| {
        ((alone - shared) / other).min(alone / other_alone).min(1.0)
    };
    [
        of(links.outward, outward, inward, links.inward),
        of(links.inward, inward, outward, links.outward),
    ]
}

/// For each operator, the bytes that can be copied while it runs: those that lie idle during it and need not be away.
fn spare(fine: &Step, coarse: &Coarse, needs: &[u64], budget: u64) -> Vec<u64> {
    let idle = coarse.step.idle();
    let of_slot = |(slot, ops): (usize, std::ops::Range<usize>)| {
        let need = if ops.len() == 1 { needs[slot] } else { 0 };
        let idle = idle[slot];
        let load = &fine.load[ops];
        load.iter().map(move |load| idle.saturating_sub(need.max(load.saturating_sub(budget))))
    };
    coarse.slots().enumerate().flat_map(of_slot).collect()
}

/// What can be copied at most while operators run.
struct Copied {
    /// Bytes a microsecond, of one direction or of both.
    rate: f64,
    /// Bytes until each slot begins.
    until: Vec<f64>,
}

impl Copied {
    fn of(fine: &Step, coarse: &Coarse, spare: &[u64], rate: f64) -> Copied {
        let bytes = |op: usize| (fine.ops[op].us * rate).min(spare[op] as f64);
        let slots = coarse.slots().scan(0.0, |sum, ops| {
            *sum += ops.map(bytes).sum::<f64>();
            Some(*sum)
        });
        Copied { rate, until: std::iter::once(0.0).chain(slots).collect() }
    }

    /// How long operators wait in a window in which so many bytes must be copied, less than 0 if more could be.
    fn wait_us(&self, from: u32, to: u32, bytes: f64) -> f64 {
        let copied = self.until[to as usize] - self.until[from as usize + 1];
        (bytes - copied) / self.rate
    }
}

/// Bytes that must be copied in a window.
#[derive(Clone, Copy, Default)]
struct Must {
    /// Out.
    out: f64,
    /// In.
    inward: f64,
}

/// The most operators of a narrow window. What they take grows with its square.
fn narrow_max(count: usize) -> usize {
    let part = (FULL_MAX as f64 / count.max(FULL_MAX) as f64).sqrt();
    (NARROW as f64 * part) as usize
}

/// The most operators between which wide windows begin and end.
fn wide_max(count: usize) -> usize {
    WIDE_MAX * FULL_MAX / count.max(FULL_MAX)
}

/// For each operator `to`, of the windows of 1, 2, ... operators before it, up to `widest`: what must be copied.
fn narrow(step: &Step, needs: &[u64], widest: usize) -> Vec<Vec<Must>> {
    let count = step.ops.len();
    let idle = step.idle();
    let need = |op: usize| needs[op] as i64;
    let (mut begins, mut ends) = (vec![Vec::new(); count + 1], vec![Vec::new(); count + 1]);
    for (index, gap) in (0u32..).zip(&step.gaps) {
        begins[gap.after as usize + 1].push((gap.before, step.bytes(index) as i64));
        ends[gap.before as usize].push((gap.after, step.bytes(index) as i64));
    }
    // By the first operator and the width less one.
    let mut sums = Sums::default();
    let mut out = vec![vec![0i64; widest]; count];
    let mut inward = vec![vec![0i64; widest]; count];
    for from in (0..count).rev() {
        let (mut early, mut back) = (idle[from] as i64, 0);
        let (mut late, mut soon): (Vec<(u32, i64)>, Vec<i64>) = Default::default();
        for width in 1..=widest.min(count - from) {
            let to = from + width;
            for &(_, bytes) in ends[to].iter().filter(|end| (end.0 as usize) < from) {
                early -= bytes;
                back += bytes;
                soon.push(bytes);
            }
            let before = if width > 1 { out[from][width - 2] } else { 0 };
            let mut own = 0;
            if to < count {
                late.extend(&begins[to]);
                late.retain(|&(before, _)| before as usize > to);
                own = whole(&mut sums, need(to) - early, || late.iter().map(|it| it.1).collect());
            }
            out[from][width - 1] = own.max(before);
            let own = whole(&mut sums, need(from) - idle[from] as i64 + back, || soon.clone());
            let later = if width > 1 { inward[from + 1][width - 2] } else { 0 };
            inward[from][width - 1] = own.max(later);
        }
    }
    add_up_narrow(&mut out, widest);
    add_up_narrow(&mut inward, widest);
    let of = |to: usize| {
        let widths = 1..=widest.min(to);
        let bytes = |width: usize| {
            let of = |bytes: &[Vec<i64>]| bytes[to - width][width - 1] as f64;
            Must { out: of(&out), inward: of(&inward) }
        };
        widths.map(bytes).collect()
    };
    (0..=count).map(of).collect()
}

/// The least that goes if `bytes` must, of tensors that go whole.
fn whole(sums: &mut Sums, bytes: i64, tensors: impl FnOnce() -> Vec<i64>) -> i64 {
    if bytes <= 0 {
        return 0;
    }
    let mut tensors = tensors();
    tensors.sort_unstable();
    let sizes = tensors.iter().map(|&own| (own as u64, 1));
    sums.least(sizes, bytes as u64, NARROW_UNITS_MAX) as i64
}

/// Bytes of windows side by side add up.
fn add_up_narrow(bytes: &mut [Vec<i64>], widest: usize) {
    let count = bytes.len();
    for width in 2..=widest.min(count) {
        for from in 0..=count - width {
            let own = bytes[from][width - 1];
            let parts = (1..width)
                .map(|first| bytes[from][first - 1] + bytes[from + first][width - first - 1]);
            bytes[from][width - 1] = parts.fold(own, i64::max);
        }
    }
}

/// What must be copied between two of `ends`, `[from][to]`.
fn wide(step: &Step, needs: &[u64], ends: &[u32]) -> Vec<Vec<Must>> {
    let (count, ops) = (ends.len(), step.ops.len() as u32);
    // What is away during the operator at the end of the window has gone by then.
    let flow = Flow::outward(step, needs);
    let until: Vec<u32> = ends.iter().map(|&end| end + 1).collect();
    let out: Vec<Vec<u64>> = ends.iter().map(|&from| flow.least(from + 1, &until)).collect();
    let flow = Flow::inward(step, needs);
    let until: Vec<u32> = ends.iter().rev().map(|&end| ops - end).collect();
    // By the end, and by the beginning from the last on.
    let inward: Vec<Vec<u64>> = ends.iter().map(|&to| flow.least(ops - to, &until)).collect();
    let must = |from: usize, to: usize| Must {
        out: out[from][to] as f64,
        inward: inward[to][count - 1 - from] as f64,
    };
    (0..count).map(|from| (0..count).map(|to| must(from, to)).collect()).collect()
}

/// Where wide windows begin and end: around the operators for which most must be waited, and else evenly.
fn ends(step: &Step, links: &Links, needs: &[u64], ends_max: usize) -> Vec<u32> {
    let count = step.ops.len() as u32;
    if count as usize <= ends_max {
        return (0..=count).collect();
    }
    let starts = step.starts();
    let highest: Vec<u32> = (1..count - 1)
        .filter(|&op| needs[op as usize] > 0)
        .filter(|&op| step.load[op as usize] >= step.load[op as usize - 1])
        .filter(|&op| step.load[op as usize] >= step.load[op as usize + 1])
        .collect();
    // Of many neighbours the one that needs the most.
    let neighbours = highest.chunks(highest.len().div_ceil(4 * ends_max.max(1)).max(1));
    let mut lags: Vec<(f64, [u32; 3])> = neighbours
        .filter_map(|ops| ops.iter().copied().max_by_key(|&op| (needs[op as usize], op)))
        .map(|op| {
            let (out, from) = longest(step, links.outward, needs, &starts, op, true);
            let (inward, to) = longest(step, links.inward, needs, &starts, op, false);
            (out + inward, [from, op, to])
        })
        .collect();
    lags.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut ends: Vec<u32> = lags.iter().take(ends_max / 4).flat_map(|(_, ends)| *ends).collect();
    let even = (ends_max / 4).max(1) as u32;
    ends.extend(
        (0..=even).map(|part| (u64::from(count) * u64::from(part) / u64::from(even)) as u32),
    );
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// How long must be waited for what an operator needs away, out before it or in after it, and where that window
/// begins or ends.
fn longest(
    step: &Step,
    rate: f64,
    needs: &[u64],
    starts: &[f64],
    op: u32,
    is_out: bool,
) -> (f64, u32) {
    let covers = (0..step.gaps.len() as u32).filter(|&gap| step.gaps[gap as usize].covers(op));
    let far = |gap: u32| {
        let gap = step.gaps[gap as usize];
        if is_out { gap.after } else { gap.before }
    };
    let mut gaps: Vec<(u32, u64)> = covers.map(|gap| (far(gap), step.bytes(gap))).collect();
    gaps.sort_unstable();
    if !is_out {
        gaps.reverse();
    }
    // From the farthest on: what lies beyond the window could have gone before it, or come after it.
    let mut need = needs[op as usize] as f64;
    let mut best = (0.0, op);
    for (end, bytes) in gaps {
        let us = (starts[op as usize] - starts[end as usize]).abs();
        if need / rate - us > best.0 {
            best = (need / rate - us, end);
        }
        need -= bytes as f64;
    }
    best
}
