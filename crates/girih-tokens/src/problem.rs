//! What a step is, as far as long contexts are concerned.
//!
//! ```text
//!  begin | F0 | F1 | ... | FL | head | BL | ... | B1 | B0 | end
//! ```
//!
//! `F` and `B` are the passes through layers, `head` all that comes between them (the last norm, the logits, the
//! loss and its gradient), `begin` and `end` the rest (embedding, optimizer). A layer keeps *skeletal* tensors from
//! its forward to its backward pass (Memo, section 3.1). They come in [`Kind`]s, which differ in what it costs to
//! compute them again. All other bytes belong to the slot in which they are.

use girih_swap::Links;

pub use girih_swap::Budgets;

/// One kind of skeletal tensor of a layer.
#[derive(Clone, PartialEq, Debug)]
pub struct Kind {
    /// What it is.
    pub name: String,
    /// Bytes of all its tokens.
    pub bytes: u64,
    /// Microseconds to compute all of it again when all other kinds are there; in proportion for a part of its
    /// tokens. None if it cannot be computed again within its layer, as the layer's input.
    pub remake_us: Option<f64>,
    /// What it is to Memo, which has the same answer for every layer.
    pub role: Role,
    /// True if it is made and used token by token outside attention, so that what is computed again need not be
    /// there whole: the tiles of a multilayer perceptron.
    pub is_tiled: bool,
}

/// The three cases of Memo, section 4.1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// The layer's input: copied whole.
    Input,
    /// Attention's output, with its log-sum-exp: copied whole, never computed again.
    Attention,
    /// Everything else: split by token.
    Other,
}

/// Something that runs between the passes through layers.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Slot {
    /// Microseconds.
    pub us: f64,
    /// The most bytes that are there then besides [`Problem::static_bytes`] and what layers keep.
    pub bytes: u64,
}

/// One layer.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Layer {
    /// What it keeps for its backward pass.
    pub kinds: Vec<Kind>,
    /// Its forward pass, with what is transient in it.
    pub forward: Slot,
    /// Its backward pass.
    pub backward: Slot,
    /// Bytes of its input, where it keeps a copy of that and not the input itself: who computes it again has both.
    pub copied: u64,
}

impl Layer {
    /// Bytes of all that it keeps.
    pub fn bytes(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.bytes).sum()
    }

    /// Microseconds to compute again all that can be.
    pub fn remake_us(&self) -> f64 {
        self.kinds.iter().filter_map(|kind| kind.remake_us).sum()
    }

    /// The bytes that are there in its own passes when so many of each kind are computed again: of what is tiled
    /// only a tile at a time.
    pub fn present(&self, remade: impl Fn(usize) -> u64, tiles: u32) -> u64 {
        let part = |(index, kind): (usize, &Kind)| match kind.is_tiled {
            true => kind.bytes - remade(index) + remade(index).div_ceil(u64::from(tiles.max(1))),
            false => kind.bytes,
        };
        self.kinds.iter().enumerate().map(part).sum()
    }
}

/// A step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Problem {
    /// The layers, in the order of the forward pass.
    pub layers: Vec<Layer>,
    /// Before the first layer's forward pass.
    pub begin: Slot,
    /// Between the last forward and the first backward pass.
    pub head: Slot,
    /// After the first layer's backward pass.
    pub end: Slot,
    /// Bytes that are there all along: weights, gradients, states of the optimizer.
    pub static_bytes: u64,
    /// Into how many tiles that which is tiled is cut; at least 1.
    pub tiles: u32,
    /// The link to the host.
    pub links: Links,
}

impl Problem {
    /// Microseconds of the step when everything stays.
    pub fn plain_us(&self) -> f64 {
        let layers = self.layers.iter().map(|layer| layer.forward.us + layer.backward.us);
        self.begin.us + self.head.us + self.end.us + layers.sum::<f64>()
    }

    /// Bytes that the layers keep in all.
    pub fn skeletal_bytes(&self) -> u64 {
        self.layers.iter().map(Layer::bytes).sum()
    }

    /// True if all numbers are finite, no time is negative, and no sum of bytes comes near the limit of 64 bits.
    pub fn is_sound(&self) -> bool {
        let is_time = |us: f64| (0.0..1e15).contains(&us);
        let is_size = |bytes: u64| bytes < 1 << 50;
        let is_slot = |slot: &Slot| is_time(slot.us) && is_size(slot.bytes);
        let is_kind = |kind: &Kind| is_size(kind.bytes) && kind.remake_us.is_none_or(is_time);
        let is_layer = |layer: &Layer| {
            is_slot(&layer.forward)
                && is_slot(&layer.backward)
                && is_size(layer.copied)
                && layer.kinds.iter().all(is_kind)
        };
        let rates = [self.links.outward, self.links.inward, self.links.both];
        [&self.begin, &self.head, &self.end].into_iter().all(is_slot)
            && self.layers.iter().all(is_layer)
            && self.layers.len() <= MAX_LAYERS
            && self.layers.iter().all(|layer| layer.kinds.len() <= MAX_KINDS)
            && is_size(self.static_bytes)
            && rates.iter().all(|&rate| rate > 0.0 && rate.is_finite())
    }
}

/// More layers than any model has. The programs grow with their square: of 512 they take some hundred megabytes.
pub const MAX_LAYERS: usize = 512;
/// More kinds than any layer keeps.
pub const MAX_KINDS: usize = 1024;
