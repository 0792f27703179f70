//! Memo as its paper describes it (section 4.1), to be measured beside ours.
//!
//! One fraction alpha for all layers, by the paper's program:
//!
//! ```text
//!  max alpha   with   (S_input + S_attn + alpha S_others) / B <= T_layer
//!                     (n - 2) (S_input + S_attn + alpha S_others) <= M_CPU
//! ```
//!
//! The layer's input and attention's output go whole, of the others that part of the tokens; the rest is computed
//! again. Two buffers, each as large as what a layer keeps, are there all along. The last two layers stay. Where
//! everything fits without any of it, the paper falls back to plain training, and so does this.

use girih_swap::Budgets;

use crate::decision::{Decision, Pattern, Share};
use crate::problem::{Kind, Layer, Problem, Role};
use crate::timeline::peaks;

/// Layers at the end that are not swapped: their backward passes come next.
const LAST: usize = 2;

/// What limits alpha.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Limit {
    /// A layer's copy out takes as long as its forward pass.
    Link,
    /// The memory of the host is full.
    Host,
    /// The GPU does not hold what cannot leave it. Never of the paper's program, which asks for no such budget.
    Gpu,
    /// Nothing: all of it goes.
    None,
}

/// The optimum of the paper's program.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Alpha {
    /// The fraction, 0 to 1.
    pub alpha: f64,
    /// What limits it.
    pub limit: Limit,
    /// False if not even alpha = 0 keeps the constraint that limits it: the GPU waits for copies, or the host is too
    /// small.
    pub is_feasible: bool,
}

/// Solves the paper's program. Of layers that differ, the one with the least alpha counts for the link, and all of
/// them for the host.
pub fn alpha(problem: &Problem, host: Option<u64>) -> Alpha {
    let swapped = &problem.layers[..problem.layers.len().saturating_sub(LAST)];
    let sizes = |layer: &Layer| {
        let of = |is_whole: bool| {
            let own = layer.kinds.iter().filter(move |kind| goes_whole(kind) == is_whole);
            own.map(|kind| kind.bytes as f64).sum::<f64>()
        };
        (of(true), of(false))
    };
    let at_most = |room: f64, whole: f64, others: f64| match others > 0.0 {
        true => (room - whole) / others,
        false if whole <= room => f64::INFINITY,
        false => f64::NEG_INFINITY,
    };
    let by_link = swapped.iter().map(|layer| {
        let (whole, others) = sizes(layer);
        at_most(layer.forward.us * problem.links.outward, whole, others)
    });
    let by_link = by_link.fold(f64::INFINITY, f64::min);
    let all = swapped.iter().map(sizes).fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    let by_host = host.map_or(f64::INFINITY, |host| at_most(host as f64, all.0, all.1));
    let least = by_link.min(by_host);
    let limit = match () {
        () if least >= 1.0 => Limit::None,
        () if by_host <= by_link => Limit::Host,
        () => Limit::Link,
    };
    Alpha { alpha: least.clamp(0.0, 1.0), limit, is_feasible: least >= 0.0 }
}

/// Whether a kind goes whole. What cannot be computed again has to.
fn goes_whole(kind: &Kind) -> bool {
    kind.role != Role::Other || kind.remake_us.is_none()
}

/// The decision at an alpha: what the paper does, whether it fits or not.
pub fn at(problem: &Problem, alpha: f64) -> Decision {
    let layers = problem.layers.len();
    let share = |index: usize, kind: &Kind| {
        if index + LAST >= layers {
            return Share { keep: kind.bytes, ..Share::default() };
        }
        let swap = match goes_whole(kind) {
            true => kind.bytes,
            false => ((kind.bytes as f64 * alpha).floor() as u64).min(kind.bytes),
        };
        Share { keep: 0, swap, remake: kind.bytes - swap }
    };
    let shares = problem.layers.iter().enumerate();
    let shares = shares
        .map(|(index, layer)| layer.kinds.iter().map(|kind| share(index, kind)).collect())
        .collect();
    let buffer = problem.layers.iter().map(Layer::bytes).max().unwrap_or(0);
    Decision { buffers: Some(2 * buffer), ..Decision::of(problem, Pattern::MEMO, shares) }
}

/// What the paper does under these budgets.
pub fn plan(problem: &Problem, budgets: &Budgets) -> Decision {
    let plain = Decision::plain(problem);
    match peaks(problem, &plain).0 <= budgets.gpu {
        true => plain,
        false => at(problem, alpha(problem, budgets.host).alpha),
    }
}
