//! A step from the shape of a model: the tensors that a block keeps, what its operators compute, and how long that
//! takes.
//!
//! Sizes are those of bf16 with flash attention, as PyTorch keeps them in eager mode with fused norms. Statistics of
//! norms (8 bytes a token) are left out. Per token, `h` the width, `k` the width of keys, `f` that of the multilayer
//! perceptron:
//!
//! ```text
//!  gpt    x  norm  q  k  v  attention  residual  norm    up    gelu              8 h + 2 f     (Memo, figure 4)
//!  llama  x  norm  q  k  v  attention  residual  norm    gate  up  silu  product  6 h + 2 k + 4 f
//! ```
//!
//! Tokens or heads are divided evenly among GPUs; what they tell each other takes no time here.

use girih_plan::problem::Buffer;
use girih_swap::Links;

use crate::problem::{Kind, Layer, Problem, Role, Slot};
use crate::transients::height;

/// Bytes of a number of bf16.
const HALF: f64 = 2.0;
/// Bytes of the log-sum-exp of a head for a token.
const LSE: f64 = 4.0;
/// Bytes of an entry of the logits at the loss: bf16, fp32, and its log-softmax in fp32. Backward has the gradient in
/// fp32 instead of the second.
const LOGIT: f64 = 10.0;
/// The backward pass of flash attention multiplies five times where the forward pass does twice (Dao, 2022).
const ATTENTION_BACKWARD: f64 = 2.5;

/// Which kind of block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Block {
    /// Norm, attention, norm, and a multilayer perceptron with GELU.
    Gpt,
    /// The same with a gated perceptron (SwiGLU), and no biases.
    Llama,
}

/// The shape of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Width.
    pub hidden: u64,
    /// Width of the multilayer perceptron.
    pub ffn: u64,
    /// Layers.
    pub layers: u32,
    /// Heads of attention.
    pub heads: u64,
    /// Heads of keys and values.
    pub kv_heads: u64,
    /// Words that are told apart.
    pub vocabulary: u64,
    /// Which block.
    pub block: Block,
}

impl Shape {
    /// Width of keys, and of values.
    pub fn kv_hidden(&self) -> u64 {
        self.hidden / self.heads.max(1) * self.kv_heads
    }

    /// Weights. GPT's embedding is its head too.
    pub fn parameters(&self) -> u64 {
        let attention = 2 * self.hidden * (self.hidden + self.kv_hidden());
        let (products, heads) = match self.block {
            Block::Gpt => (2, 1),
            Block::Llama => (3, 2),
        };
        let layer = attention + products * self.hidden * self.ffn;
        u64::from(self.layers) * layer + heads * self.vocabulary * self.hidden
    }

    /// The flops of a training step by which MFU is counted: `6 s P + 6 n h s^2` for a sequence of s tokens (Memo,
    /// section 5.1).
    pub fn model_flops(&self, tokens: u64) -> f64 {
        let (tokens, hidden) = (tokens as f64, self.hidden as f64);
        6.0 * tokens * self.parameters() as f64
            + 6.0 * f64::from(self.layers) * hidden * tokens * tokens
    }

    /// Bytes that one layer keeps of each token.
    pub fn skeletal_bytes_per_token(&self) -> f64 {
        tensors(self).iter().map(|tensor| tensor.bytes).sum()
    }

    /// The tiles that are taken where nobody says otherwise: as many as leave `hidden` tokens in each. A product
    /// with as many rows as columns reads its weights no more often than its inputs, so that it is no slower for
    /// being cut.
    pub fn default_tiles(&self, tokens: u64, gpus: u32) -> u32 {
        let own = tokens.div_ceil(u64::from(gpus.max(1)));
        u32::try_from(own.div_ceil(self.hidden.max(1)).max(1)).unwrap_or(u32::MAX)
    }
}

/// What it runs on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// Flops a microsecond that products reach, on one GPU.
    pub flops: f64,
    /// Flops a microsecond that attention reaches, on one GPU.
    pub attention_flops: f64,
    /// Bytes a microsecond that the GPU's memory moves.
    pub memory: f64,
    /// GPUs that share a sequence.
    pub gpus: u32,
    /// The link of one GPU.
    pub links: Links,
    /// Bytes of each weight with its gradient and the states of its optimizer, divided among the GPUs.
    pub bytes_per_parameter: f64,
}

/// Weights and gradients in bf16, and master weights and both moments of AdamW in fp32.
pub const ADAMW_BYTES: f64 = 16.0;
/// What one H200 was measured to move, read and written, in bytes a microsecond.
pub const H200_MEMORY: f64 = 4.2e6;

/// A tensor that a block keeps, per token.
struct Kept {
    name: &'static str,
    bytes: f64,
    /// To compute it again: flops of products, and bytes moved.
    flops: f64,
    moved: f64,
    role: Role,
    is_tiled: bool,
}

/// The tensors of a block, per token. Attention's flops are not among them.
fn tensors(shape: &Shape) -> Vec<Kept> {
    let (h, f, k) = (shape.hidden as f64, shape.ffn as f64, shape.kv_hidden() as f64);
    let kept = |name, width: f64, flops: f64, moved: f64| Kept {
        name,
        bytes: HALF * width,
        flops,
        moved: HALF * moved,
        role: Role::Other,
        is_tiled: false,
    };
    let tiled = |kept: Kept| Kept { is_tiled: true, ..kept };
    let mut attention = kept("attention", h, 0.0, 0.0);
    attention.bytes += LSE * shape.heads as f64;
    let mut all = vec![
        Kept { role: Role::Input, ..kept("input", h, 0.0, 0.0) },
        kept("norm", h, 0.0, 2.0 * h),
        kept("query", h, 2.0 * h * h, 2.0 * h),
        kept("key", k, 2.0 * h * k, 2.0 * k),
        kept("value", k, 2.0 * h * k, 0.0),
        Kept { role: Role::Attention, ..attention },
        kept("residual", h, 2.0 * h * h, 3.0 * h),
        kept("second norm", h, 0.0, 2.0 * h),
    ];
    let product = 2.0 * h * f;
    all.extend(match shape.block {
        Block::Gpt => {
            vec![tiled(kept("up", f, product, 0.0)), tiled(kept("gelu", f, 0.0, 2.0 * f))]
        }
        Block::Llama => vec![
            tiled(kept("gate", f, product, 0.0)),
            tiled(kept("up", f, product, 0.0)),
            tiled(kept("silu", f, 0.0, 2.0 * f)),
            tiled(kept("product", f, 0.0, 3.0 * f)),
        ],
    });
    all
}

/// The step of a model on so many tokens of context, as one of the GPUs has it.
pub fn problem(shape: &Shape, machine: &Machine, tokens: u64, tiles: u32) -> Problem {
    let gpus = f64::from(machine.gpus.max(1));
    let (all, own) = (tokens as f64, tokens as f64 / gpus);
    let (h, f) = (shape.hidden as f64, shape.ffn as f64);
    let us = |flops: f64, moved: f64| own * (flops / machine.flops + moved / machine.memory);
    // Each token looks at half of all tokens: two products with as many rows.
    let attention_us = own * 2.0 * all * h / machine.attention_flops;
    let kept = tensors(shape);
    let kind = |kept: &Kept| Kind {
        name: kept.name.to_owned(),
        bytes: (own * kept.bytes).ceil() as u64,
        remake_us: match kept.role {
            Role::Input => None,
            Role::Attention => Some(attention_us),
            Role::Other => Some(us(kept.flops, kept.moved)),
        },
        role: kept.role,
        is_tiled: kept.is_tiled,
    };
    let kinds: Vec<Kind> = kept.iter().map(kind).collect();
    let last = us(2.0 * h * f, HALF * 3.0 * h);
    let token_wise: f64 =
        kinds.iter().filter(|it| it.role == Role::Other).filter_map(|it| it.remake_us).sum();
    let forward_us = token_wise + attention_us + last;
    let backward_us = 2.0 * (token_wise + last) + ATTENTION_BACKWARD * attention_us;
    let (forward, backward) = transients(shape, tiles);
    let slot = |us: f64, per_token: f64| Slot { us, bytes: (own * per_token).ceil() as u64 };
    let layer = Layer {
        kinds,
        forward: slot(forward_us, forward),
        backward: slot(backward_us, backward),
        copied: 0,
    };
    let vocabulary = shape.vocabulary as f64;
    let logits = LOGIT * vocabulary / f64::from(tiles.max(1));
    // The last layer's output, its norm, and the gradient of that.
    let head = slot(us(6.0 * h * vocabulary, LOGIT * vocabulary), logits + 3.0 * HALF * h);
    let weights = shape.parameters() as f64 / gpus * machine.bytes_per_parameter;
    // The optimizer reads and writes all of its states.
    let end = Slot { us: 2.0 * weights / machine.memory, bytes: 0 };
    Problem {
        layers: vec![layer; shape.layers as usize],
        begin: slot(us(0.0, 2.0 * HALF * h), HALF * h),
        head,
        end,
        static_bytes: weights.ceil() as u64,
        tiles: tiles.max(1),
        links: machine.links,
    }
}

/// Bytes per token of the plan of what is transient in the forward and in the backward pass of a layer.
///
/// Lives are in operators of the pass. What belongs to the perceptron is there a tile at a time.
fn transients(shape: &Shape, tiles: u32) -> (f64, f64) {
    let (h, k) = (shape.hidden, shape.kv_hidden());
    // Planned for as many tokens as there are tiles, so that a tile is one token's.
    let tiles = u64::from(tiles.clamp(1, 1 << 20));
    let buffer = |lower: u32, upper: u32, size: u64| Buffer { lower, upper, size };
    let whole = |lower: u32, upper: u32, width: u64| buffer(lower, upper, 2 * width * tiles);
    let tile = |lower: u32, upper: u32, width: u64| buffer(lower, upper, 2 * width);
    // 0 norm, 1 products, 2 rotary, 3 attention, 4 its product, 5 residual, 6 norm, 7 perceptron, 8 residual.
    let forward = vec![
        whole(1, 3, h),
        whole(1, 3, k),
        whole(4, 6, h),
        whole(7, 9, h),
        // The layer's output: what the next one keeps as its input.
        whole(8, 10, h),
    ];
    // The gradient of the output comes in, and goes on past the perceptron with the residual.
    let mut backward = vec![whole(0, 5, h)];
    match shape.block {
        // 0 gradient of GELU, 1 of up.
        Block::Gpt => backward.extend([tile(0, 2, shape.ffn), tile(1, 3, shape.ffn)]),
        // 0 gradient of the product, 1 of up and of SiLU, 2 of the gate.
        Block::Llama => backward.extend([
            tile(0, 2, shape.ffn),
            tile(1, 4, shape.ffn),
            tile(1, 3, shape.ffn),
            tile(2, 4, shape.ffn),
        ]),
    }
    backward.extend([
        // 3 gradient of the second norm and 4 of what it norms, 5 their sum.
        whole(3, 5, h),
        whole(4, 6, h),
        whole(5, 12, h),
        // 6 gradient of attention's output, 7 of q (summed in fp32), k and v.
        whole(6, 8, h),
        buffer(7, 9, 4 * h * tiles),
        whole(8, 10, h),
        whole(7, 10, k),
        whole(7, 10, k),
        // 9 gradient of the norm, 10 of what it norms, 11 their sum: the gradient that goes out.
        whole(9, 11, h),
        whole(10, 12, h),
        whole(11, 13, h),
    ]);
    let per_token = |bytes: u64| bytes as f64 / tiles as f64;
    (per_token(height(forward)), per_token(height(backward)))
}
