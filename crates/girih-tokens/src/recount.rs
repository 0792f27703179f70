//! A checker that counts anew: whether the run of a decision is one that a GPU, a host and two links allow.
//!
//! It goes by the times of the run and the shares of the decision. It shares no code with the timeline, the
//! methods or the simulator, and every answer has passed it, and the checker of `girih-swap` too.

use girih_swap::simulate::{Direction, Piece};
use thiserror::Error;

use crate::decision::{Decision, Share};
use crate::problem::Problem;
use crate::timeline::Outcome;

/// Times are compared with so many microseconds of tolerance, and a millionth of the time itself.
const TOLERANCE_US: f64 = 1e-3;

/// What is wrong with an answer: a mistake of this crate.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum Fault {
    /// The shares are not those of the problem's kinds.
    #[error("layer {layer}, kind {kind}: {problem}")]
    Share {
        /// The layer.
        layer: usize,
        /// The kind within the layer.
        kind: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// Something runs before it may.
    #[error("layer {layer}: {problem}")]
    Order {
        /// The layer.
        layer: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// A link does two copies at once, or copies faster than it can.
    #[error("a link is overbooked at {us} us")]
    Link {
        /// When.
        us: f64,
    },
    /// More is on the GPU, or on the host, than is said.
    #[error("{counted} bytes are {place}, {said} are said")]
    Bytes {
        /// Where.
        place: &'static str,
        /// Bytes counted.
        counted: u64,
        /// Bytes said.
        said: u64,
    },
}

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count {
    /// The most bytes on the GPU during any operator.
    pub gpu: u64,
    /// The same if an operator that takes no time has what is taken at that moment: times do not say which comes first.
    pub gpu_at_once: u64,
    /// The most bytes on the host.
    pub host: u64,
}

/// Counts anew, and checks. O(layers^2).
///
/// # Errors
/// The first fault that is found.
pub fn recount(problem: &Problem, decision: &Decision, ran: &Outcome) -> Result<Count, Fault> {
    shares(problem, decision)?;
    let copies = copies(problem, decision, ran)?;
    order(problem, decision, ran, &copies)?;
    links(problem, ran)?;
    let [gpu, gpu_at_once] = [false, true].map(|it| gpu(problem, decision, ran, &copies, it));
    let count = Count { gpu: gpu?, gpu_at_once: gpu_at_once?, host: host(&copies) };
    for (place, counted, said) in
        [("on the GPU", count.gpu, ran.gpu_peak), ("on the host", count.host, ran.host_peak)]
    {
        if counted > said {
            return Err(Fault::Bytes { place, counted, said });
        }
    }
    Ok(count)
}

fn shares(problem: &Problem, decision: &Decision) -> Result<(), Fault> {
    for (layer, (own, shares)) in problem.layers.iter().zip(&decision.shares).enumerate() {
        for (kind, (of, share)) in own.kinds.iter().zip(shares).enumerate() {
            let fail = |problem| Err(Fault::Share { layer, kind, problem });
            let Share { keep, swap, remake } = *share;
            if keep.checked_add(swap).and_then(|sum| sum.checked_add(remake)) != Some(of.bytes) {
                return fail("its parts are not all of it");
            }
            if remake > 0 && of.remake_us.is_none() {
                return fail("it cannot be computed again");
            }
        }
        if shares.len() != own.kinds.len() {
            let problem = "there are not as many shares as kinds";
            return Err(Fault::Share { layer, kind: shares.len(), problem });
        }
    }
    Ok(())
}

/// The copies of one layer: when each begins and ends, when its bytes are let go of and taken again.
#[derive(Clone, Copy, Default)]
struct Copied {
    bytes: u64,
    out: (f64, f64),
    inward: (f64, f64),
    released: f64,
    taken: f64,
}

fn copies(problem: &Problem, decision: &Decision, ran: &Outcome) -> Result<Vec<Copied>, Fault> {
    let mut copies = vec![Copied::default(); problem.layers.len()];
    for (layer, copied) in copies.iter_mut().enumerate() {
        copied.bytes = decision.shares[layer].iter().map(|share| share.swap).sum();
        if copied.bytes == 0 {
            continue;
        }
        let fail = |problem| Fault::Order { layer, problem };
        let away = ran.layer_of.iter().position(|&own| own == layer);
        let away = away.ok_or(fail("its bytes do not go"))?;
        let span = |direction: Direction| {
            let own = |piece: &&Piece| piece.away as usize == away && piece.direction == direction;
            let pieces = ran.run.pieces.iter().filter(own);
            pieces.fold((f64::INFINITY, f64::NEG_INFINITY, 0.0), |(from, to, bytes), piece| {
                (piece.from_us.min(from), piece.to_us.max(to), bytes + piece.bytes)
            })
        };
        let (out, inward) = (span(Direction::Out), span(Direction::In));
        let is_all = |bytes: f64| (bytes - copied.bytes as f64).abs() < 1.0 + bytes * 1e-9;
        if !is_all(out.2) || !is_all(inward.2) {
            return Err(fail("not all of its bytes are copied"));
        }
        (copied.out, copied.inward) = ((out.0, out.1), (inward.0, inward.1));
        let times = ran.run.times[away];
        (copied.released, copied.taken) = (times.released_us, times.taken_us);
    }
    Ok(copies)
}

fn is_before(first: f64, then: f64) -> bool {
    first <= then + TOLERANCE_US + then.abs() * 1e-9
}

/// When an operator begins and ends.
fn span(ran: &Outcome, op: usize) -> (f64, f64) {
    let start = ran.run.starts_us[op];
    (start, start + ran.step.ops[op].us)
}

fn order(
    problem: &Problem,
    decision: &Decision,
    ran: &Outcome,
    copies: &[Copied],
) -> Result<(), Fault> {
    let layers = problem.layers.len();
    let ops = ran.step.ops.len();
    let times = (0..ops).map(|op| span(ran, op)).collect::<Vec<_>>();
    if ops != 3 * layers + 3 || times.windows(2).any(|pair| !is_before(pair[0].1, pair[1].0)) {
        return Err(Fault::Order { layer: 0, problem: "its passes are not one after another" });
    }
    for (layer, copied) in copies.iter().enumerate() {
        let fail = |problem| Err(Fault::Order { layer, problem });
        let own = &problem.layers[layer];
        let back = 2 + layers + 2 * (layers - 1 - layer);
        let parts = own.kinds.iter().zip(&decision.shares[layer]);
        let again: f64 = parts
            .filter(|(kind, _)| kind.bytes > 0)
            .map(|(kind, share)| {
                kind.remake_us.unwrap_or(0.0) / kind.bytes as f64 * share.remake as f64
            })
            .sum();
        let takes = |op: usize| times[op].1 - times[op].0;
        let is = |op: usize, us: f64| (takes(op) - us).abs() <= TOLERANCE_US + us * 1e-6;
        if !is(1 + layer, own.forward.us) || !is(back + 1, own.backward.us) || !is(back, again) {
            return fail("its passes do not take what they take");
        }
        if copied.bytes == 0 {
            continue;
        }
        if !is_before(times[1 + layer].1, copied.out.0) {
            return fail("it is copied out before its forward pass has ended");
        }
        if !is_before(copied.out.1, copied.released) || !is_before(copied.released, copied.taken) {
            return fail("its bytes are let go of before they are on the host");
        }
        if !is_before(copied.out.1.max(copied.taken), copied.inward.0) {
            return fail("it is copied in before it is on the host and has bytes on the GPU");
        }
        if !is_before(copied.inward.1, times[back].0) {
            return fail("its backward pass begins before it is back");
        }
    }
    Ok(())
}

fn links(problem: &Problem, ran: &Outcome) -> Result<(), Fault> {
    let rates = [(Direction::Out, problem.links.outward), (Direction::In, problem.links.inward)];
    for (direction, rate) in rates {
        let mut end = f64::NEG_INFINITY;
        for piece in ran.run.pieces.iter().filter(|piece| piece.direction == direction) {
            let can = rate * (piece.to_us - piece.from_us) * (1.0 + 1e-9) + 1.0;
            if !is_before(end, piece.from_us) || piece.bytes > can {
                return Err(Fault::Link { us: piece.from_us });
            }
            end = piece.to_us;
        }
    }
    Ok(())
}

/// The most bytes on the GPU: operator by operator, layer by layer. What takes no time has what is taken at that
/// moment, if `is_at_once`.
fn gpu(
    problem: &Problem,
    decision: &Decision,
    ran: &Outcome,
    copies: &[Copied],
    is_at_once: bool,
) -> Result<u64, Fault> {
    let layers = problem.layers.len();
    let mut most = 0;
    for op in 0..ran.step.ops.len() {
        let time = span(ran, op);
        let mut held = 0;
        for (layer, own) in problem.layers.iter().enumerate() {
            let back = 2 + layers + 2 * (layers - 1 - layer);
            let copied = copies[layer];
            if op < 1 + layer || op > back + 1 {
                continue;
            }
            let is_own_pass = op == 1 + layer || op >= back;
            let is_taken = is_at_once && is_before(copied.taken, time.0);
            let is_away =
                is_before(copied.released, time.0) && is_before(time.1, copied.taken) && !is_taken;
            for (kind, share) in own.kinds.iter().zip(&decision.shares[layer]) {
                let tiles = if kind.is_tiled { u64::from(problem.tiles.max(1)) } else { 1 };
                held += match is_own_pass {
                    true => share.keep + share.swap + share.remake.div_ceil(tiles),
                    false if is_away => share.keep,
                    false => share.keep + share.swap,
                };
            }
        }
        if let Some(buffers) = decision.buffers {
            if held > buffers {
                let place = "in the buffers";
                return Err(Fault::Bytes { place, counted: held, said: buffers });
            }
            held = buffers;
        }
        let slot = match op {
            0 => problem.begin,
            _ if op <= layers => problem.layers[op - 1].forward,
            _ if op == layers + 1 => problem.head,
            _ if op == 3 * layers + 2 => problem.end,
            _ => {
                let layer = &problem.layers[layers - 1 - (op - layers - 2) / 2];
                if (op - layers).is_multiple_of(2) { layer.forward } else { layer.backward }
            }
        };
        most = most.max(problem.static_bytes + slot.bytes + held);
    }
    Ok(most)
}

/// The most bytes on the host: each layer's from the beginning of its copy out to the end of its copy in.
fn host(copies: &[Copied]) -> u64 {
    let at = |us: f64| {
        let held = copies.iter().filter(|copied| copied.bytes > 0);
        let held = held.filter(|copied| copied.out.0 <= us && us < copied.inward.1);
        held.map(|copied| copied.bytes).sum::<u64>()
    };
    copies
        .iter()
        .filter(|copied| copied.bytes > 0)
        .map(|copied| at(copied.out.0))
        .max()
        .unwrap_or(0)
}
