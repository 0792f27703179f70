//! A recorded step with other numbers of tokens and layers.

use crate::problem::{Kind, Layer, Problem, Role, Slot};
use crate::recording::{Fixed, Recorded};

/// How a step depends on the tokens.
#[derive(Clone, PartialEq, Debug)]
pub struct Scaled {
    first: Recorded,
    tokens: u64,
    law: Law,
}

#[derive(Clone, PartialEq, Debug)]
enum Law {
    /// Bytes of layers and of what is transient in proportion; so the times, but for the part of a layer's that is
    /// attention's, which goes by the square.
    One { attention: f64 },
    /// Through two recordings: bytes on a line, times on a parabola through nothing.
    Two { second: Box<Problem>, tokens: u64 },
}

/// Why two recordings are not of one program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unlike {
    /// They have different layers.
    #[error("record the same program twice: one recording has {0} layers, the other {1}")]
    Layers(usize, usize),
    /// Layers keep different tensors.
    #[error("record the same program twice: layer {0} does not keep as many tensors in both")]
    Kinds(usize),
    /// They have as many tokens.
    #[error("record another length: both recordings have {0} tokens")]
    Tokens(u64),
}

impl Scaled {
    /// From one recording with so many tokens. `attention` is the part of a layer's time that goes by the square of
    /// the tokens; 0 if it is not known.
    pub fn one(first: Recorded, tokens: u64, attention: f64) -> Scaled {
        let law = Law::One { attention: attention.clamp(0.0, 1.0) };
        Scaled { first, tokens: tokens.max(1), law }
    }

    /// From two recordings of one program with different numbers of tokens.
    ///
    /// # Errors
    /// If they are not of one program, or have as many tokens.
    pub fn two(
        first: Recorded,
        tokens: u64,
        second: Recorded,
        more: u64,
    ) -> Result<Scaled, Unlike> {
        let (a, b) = (&first.problem.layers, &second.problem.layers);
        if a.len() != b.len() {
            return Err(Unlike::Layers(a.len(), b.len()));
        }
        let is_other = |pair: (&Layer, &Layer)| pair.0.kinds.len() != pair.1.kinds.len();
        if let Some(layer) = a.iter().zip(b).position(is_other) {
            return Err(Unlike::Kinds(layer));
        }
        if tokens == more {
            return Err(Unlike::Tokens(tokens));
        }
        let law = Law::Two { second: Box::new(second.problem), tokens: more.max(1) };
        Ok(Scaled { first, tokens: tokens.max(1), law })
    }

    /// The step with so many layers: the one in the middle again and again. Static bytes grow with them by the part
    /// that is the layers', which is their part of the gradients; as if all were, where no gradients are known.
    /// Gradients of the layers behind it are there in a layer's backward pass, and those of all at the end.
    pub fn with_layers(mut self, count: usize) -> Scaled {
        let recorded = self.first.problem.layers.len();
        let (middle, fixed) = ((recorded - 1) / 2, &self.first.fixed);
        let own: u64 = fixed.gradients.iter().sum();
        let all = own + fixed.other_gradients;
        let gradient = fixed.gradients.get(middle).copied().unwrap_or(0);
        let static_bytes = |bytes: u64| {
            let (layers, of) = if own > 0 { (own, all) } else { (1, 1) };
            let layers = u128::from(bytes) * u128::from(layers) / u128::from(of);
            let more = layers * count as u128 / recorded as u128;
            u64::try_from(u128::from(bytes) - layers + more).unwrap_or(u64::MAX)
        };
        // By so many layers' gradients, more of them or fewer.
        let by = |bytes: u64, layers: i128| {
            let more = i128::from(bytes) + layers * i128::from(gradient);
            u64::try_from(more.max(0)).unwrap_or(u64::MAX)
        };
        // A layer has that many behind it, and the one in the middle had others.
        let behind = |layer: usize| (count - 1 - layer) as i128 - (recorded - 1 - middle) as i128;
        let more = count as i128 - recorded as i128;
        let repeat = |problem: &mut Problem| {
            let one = problem.layers[middle].clone();
            let layer = |index: usize| {
                let backward = one.backward;
                let backward = Slot { bytes: by(backward.bytes, behind(index)), ..backward };
                Layer { backward, ..one.clone() }
            };
            problem.layers = (0..count).map(layer).collect();
            let before = problem.static_bytes;
            problem.static_bytes = static_bytes(before);
            problem.end.bytes = by(problem.end.bytes, more);
            // The optimizer goes through all weights and states.
            problem.end.us *= problem.static_bytes as f64 / before.max(1) as f64;
        };
        repeat(&mut self.first.problem);
        if let Law::Two { second, .. } = &mut self.law {
            repeat(second);
        }
        let fixed = &mut self.first.fixed;
        let (forward, backward) = fixed.layers[middle];
        fixed.layers = (0..count).map(|index| (forward, by(backward, behind(index)))).collect();
        fixed.end = by(fixed.end, more);
        fixed.gradients = vec![gradient; count];
        self
    }

    /// The step with so many tokens.
    pub fn at(&self, tokens: u64) -> Problem {
        match &self.law {
            Law::One { attention } => self.in_proportion(tokens, *attention),
            Law::Two { second, tokens: more } => {
                let line = Line { from: self.tokens as f64, to: *more as f64, at: tokens as f64 };
                line.problem(&self.first.problem, second)
            }
        }
    }

    fn in_proportion(&self, tokens: u64, attention: f64) -> Problem {
        let part = tokens as f64 / self.tokens as f64;
        let Recorded { problem, fixed, .. } = &self.first;
        let bytes = |bytes: u64| (bytes as f64 * part).ceil() as u64;
        let slot = |slot: &Slot, fixed: u64, us: f64| Slot {
            us: slot.us * us,
            bytes: fixed + bytes(slot.bytes - fixed),
        };
        let layer_us = (1.0 - attention) * part + attention * part * part;
        let layer = |(layer, fixed): (&Layer, &(u64, u64))| {
            let mut own = layer.clone();
            own.forward = slot(&layer.forward, fixed.0, layer_us);
            own.backward = slot(&layer.backward, fixed.1, layer_us);
            own.copied = bytes(layer.copied);
            for kind in &mut own.kinds {
                kind.bytes = bytes(kind.bytes);
                kind.remake_us = kind.remake_us.map(|us| us * part);
            }
            if attention > 0.0 && self.first.assumed.costs {
                costs(&mut own, attention * layer.forward.us * part * part, 1.0 - attention);
            }
            own
        };
        let Fixed { begin, head, end, layers, .. } = fixed;
        Problem {
            layers: problem.layers.iter().zip(layers).map(layer).collect(),
            begin: slot(&problem.begin, *begin, part),
            head: slot(&problem.head, *head, part),
            // The optimizer does not look at tokens.
            end: slot(&problem.end, *end, 1.0),
            ..problem.clone()
        }
    }
}

/// Of a layer whose costs are its bytes' parts of the time: attention's output costs what attention takes, and the others
/// only their part of the rest.
fn costs(layer: &mut Layer, attention_us: f64, rest: f64) {
    let is_attention = |kind: &&mut Kind| kind.role == Role::Attention;
    let all: u64 = layer.kinds.iter_mut().filter(is_attention).map(|kind| kind.bytes).sum();
    for kind in &mut layer.kinds {
        kind.remake_us = match kind.role {
            Role::Attention => Some(attention_us * kind.bytes as f64 / all.max(1) as f64),
            Role::Input | Role::Other => kind.remake_us.map(|us| us * rest),
        };
    }
}

/// Two lengths, and the one that is asked about.
struct Line {
    from: f64,
    to: f64,
    at: f64,
}

impl Line {
    fn bytes(&self, from: u64, to: u64) -> u64 {
        let slope = (to as f64 - from as f64) / (self.to - self.from);
        (from as f64 + slope * (self.at - self.from)).max(0.0).ceil() as u64
    }

    /// `a n + b n^2` through both, neither negative.
    fn us(&self, from: f64, to: f64) -> f64 {
        let (low, high) = (from / self.from, to / self.to);
        let square = (high - low) / (self.to - self.from);
        let linear = low - square * self.from;
        match () {
            () if square < 0.0 => low.midpoint(high) * self.at,
            () if linear < 0.0 => (low / self.from).max(high / self.to) * self.at * self.at,
            () => linear * self.at + square * self.at * self.at,
        }
    }

    fn slot(&self, from: Slot, to: Slot) -> Slot {
        Slot { us: self.us(from.us, to.us), bytes: self.bytes(from.bytes, to.bytes) }
    }

    fn problem(&self, from: &Problem, to: &Problem) -> Problem {
        let layer = |(a, b): (&Layer, &Layer)| {
            let mut own = a.clone();
            own.forward = self.slot(a.forward, b.forward);
            own.backward = self.slot(a.backward, b.backward);
            own.copied = self.bytes(a.copied, b.copied);
            for (kind, (a, b)) in own.kinds.iter_mut().zip(a.kinds.iter().zip(&b.kinds)) {
                kind.bytes = self.bytes(a.bytes, b.bytes);
                kind.remake_us = a.remake_us.zip(b.remake_us).map(|(a, b)| self.us(a, b));
            }
            own
        };
        Problem {
            layers: from.layers.iter().zip(&to.layers).map(layer).collect(),
            begin: self.slot(from.begin, to.begin),
            head: self.slot(from.head, to.head),
            // The optimizer does not look at tokens.
            end: Slot { us: from.end.us, bytes: self.bytes(from.end.bytes, to.end.bytes) },
            static_bytes: self.bytes(from.static_bytes, to.static_bytes),
            ..from.clone()
        }
    }
}
