//! Out of memory, as a user reads it: what was asked for, who holds the memory, what is free and
//! why it did not serve, and what would help. One screen.
//!
//! The first sentence is PyTorch's own: programs search it, to try again with a smaller batch or to
//! read its numbers. Girih's reasons follow.

mod sentence;

use std::fmt::Write as _;

use girih_runtime::caching::Config;
use girih_runtime::caching::rounding::{MAX_REQUEST, SMALL_SIZE, round_size};
use girih_runtime::waste::{Viewpoint, Waste, waste};
use girih_runtime::{AllocError, MemoryInfo, Policy, Request};
use girih_trace::{BlockState, PoolId};

use self::sentence::Sentence;
use crate::settings::{Mode, Release};
use crate::units::{exact, short};

/// PyTorch's sentence for a size of 1 EiB and more, which the shim throws itself.
const MORE_THAN_AN_EXBIBYTE: &str = "CUDA out of memory. Tried to allocate more than 1EB memory.";

/// A request that got nothing, in numbers and as a text.
#[derive(Clone, PartialEq, Debug)]
pub struct OutOfMemory {
    /// The device.
    pub device: i32,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes that the heap would have had to take from the device.
    pub needed: u64,
    /// Bytes that the heap may hold: its share of the device, or all of it.
    pub limit: u64,
    /// True if only the memory fraction was in the way: the device had room.
    pub is_by_limit: bool,
    /// True if it was refused before anything was given back for it (`throw_on_cudamalloc_oom`).
    pub is_rejection: bool,
    /// Bytes that the program has in use.
    pub allocated: u64,
    /// Bytes that the heap holds of the device.
    pub reserved: u64,
    /// Bytes that the device has free.
    pub device_free: u64,
    /// Bytes of the device.
    pub device_total: u64,
    /// All that a user should know.
    pub text: String,
}

/// What the text is made from, besides the policy.
pub(crate) struct Scene<'a> {
    pub(crate) device: i32,
    pub(crate) mode: Mode,
    pub(crate) config: &'a Config,
    /// The release of torch whose text it is.
    pub(crate) release: Release,
    pub(crate) info: MemoryInfo,
    /// The driver's handle of the request's stream.
    pub(crate) stream: u64,
}

/// Explains why `request` got nothing.
pub(crate) fn explain(
    policy: &dyn Policy,
    request: Request,
    error: &AllocError,
    scene: &Scene<'_>,
) -> OutOfMemory {
    let stats = policy.stats();
    let (needed, limit, is_rejection) = match *error {
        AllocError::OutOfMemory { segment, limit, is_rejection, .. } => {
            (segment, limit, is_rejection)
        }
        _ => (request.size, u64::MAX, false),
    };
    let mut story = Story {
        request,
        needed,
        limit,
        allocated: stats.allocated_bytes.all().current,
        in_private_pools: in_private_pools(policy),
        reserved: stats.reserved_bytes.all().current,
        waste: look(policy, request, scene.config),
        largest: largest_free(policy),
        scene,
        text: String::new(),
    };
    story.tell();
    OutOfMemory {
        device: scene.device,
        requested: request.size,
        needed,
        limit: limit.min(scene.info.total),
        is_by_limit: story.is_by_limit(),
        is_rejection,
        allocated: story.allocated,
        reserved: story.reserved,
        device_free: scene.info.free,
        device_total: scene.info.total,
        text: story.text,
    }
}

/// The largest free block of all, with the pool and stream whose it is.
pub(crate) fn largest_free(policy: &dyn Policy) -> u64 {
    let mut largest = 0;
    policy.visit(&mut |_, blocks| {
        let free = blocks.iter().filter(|block| block.state == BlockState::Inactive);
        largest = free.map(|block| block.size).fold(largest, u64::max);
    });
    largest
}

/// Bytes that the program has in use in private pools.
fn in_private_pools(policy: &dyn Policy) -> u64 {
    let mut bytes = 0;
    policy.visit(&mut |segment, blocks| {
        if segment.pool != PoolId::DEFAULT {
            let in_use = blocks.iter().filter(|block| block.state == BlockState::Allocated);
            bytes += in_use.map(|block| block.size).sum::<u64>();
        }
    });
    bytes
}

/// The waste with the eyes of the request.
fn look(policy: &dyn Policy, request: Request, config: &Config) -> Waste {
    let rounded = |size| round_size(size, &config.roundup_power2_divisions);
    let from = Viewpoint {
        stream: request.stream,
        pool: request.pool,
        is_small: request.size <= SMALL_SIZE,
        rounded: &rounded,
    };
    waste(policy, from)
}

struct Story<'a> {
    request: Request,
    /// Bytes that the policy would have had to take from the device.
    needed: u64,
    limit: u64,
    allocated: u64,
    in_private_pools: u64,
    reserved: u64,
    waste: Waste,
    largest: u64,
    scene: &'a Scene<'a>,
    text: String,
}

impl Story<'_> {
    /// True if the device had room, but the memory fraction left none.
    fn is_by_limit(&self) -> bool {
        self.limit < u64::MAX && self.needed <= self.scene.info.free
    }

    fn tell(&mut self) {
        if self.request.size >= MAX_REQUEST {
            // A size that has overflowed: there is nothing to explain.
            self.text.push_str(MORE_THAN_AN_EXBIBYTE);
            return;
        }
        let Scene { device, mode, config, release, info, stream } = *self.scene;
        let is_plain = mode == Mode::Native && !config.expandable_segments;
        let sentence = Sentence {
            needed: self.needed,
            device,
            total: info.total,
            free: info.free,
            allowed: (self.limit < u64::MAX).then_some(self.limit),
            allocated: self.allocated,
            in_private_pools: self.in_private_pools,
            reserved: self.reserved,
            advice: is_plain.then_some(release),
        };
        self.line(format_args!("{sentence}"));
        self.line(format_args!(
            "Girih was asked for {} on stream {stream:#x}. The device has {}:",
            exact(self.request.size),
            exact(info.total)
        ));
        let elsewhere = info.total.saturating_sub(info.free).saturating_sub(self.reserved);
        self.row(info.free, "free");
        self.row(elsewhere, "held outside Girih: other processes, the CUDA context, NCCL, cuBLAS");
        self.row(self.reserved, "held by Girih's heap, and of this");
        self.row(self.allocated, "  in use by the program");
        self.row(self.reserved.saturating_sub(self.allocated), "  not in use");
        if self.limit < u64::MAX {
            self.line(format_args!(
                "The memory fraction lets the heap hold {} at most.",
                exact(self.limit)
            ));
        }
        self.reasons();
        self.advice();
    }

    /// Why what is not in use did not serve.
    fn reasons(&mut self) {
        if self.reserved == self.allocated && self.waste.total() == 0 {
            return;
        }
        self.line(format_args!(
            "Why what is not in use did not serve (the largest free block has {}):",
            exact(self.largest)
        ));
        for (cause, bytes) in self.waste.causes() {
            self.row(bytes, reason(cause));
        }
    }

    fn advice(&mut self) {
        let mut advice: Vec<String> = Vec::new();
        let Scene { info, mode, config, .. } = *self.scene;
        if self.is_by_limit() {
            advice.push(
                "the device has room: allow more with torch.cuda.set_per_process_memory_fraction"
                    .to_owned(),
            );
        } else if self.needed <= info.free {
            advice.push(
                "the device has room, but refused; another process may have taken it for a \
                 moment: try again"
                    .to_owned(),
            );
        }
        let waste = &self.waste;
        let stranded = waste.split_pinned + waste.page_granularity + waste.remainder;
        if stranded >= self.request.size {
            advice.push(match (mode, config.expandable_segments) {
                (Mode::Native, false) => "the memory is there in pieces: the mode `auto` or \
                                          `expandable` would use them"
                    .to_owned(),
                (Mode::Native | Mode::Expandable | Mode::Gmlake, _) => {
                    "the memory is there in pieces: the mode `auto` would plan them away".to_owned()
                }
                _ => "the memory is there in pieces: record a run with the mode `profile`, and \
                      follow its plan from the first request with the mode `plan`"
                    .to_owned(),
            });
        }
        if waste.other_stream >= self.request.size {
            advice.push(
                "memory of other streams would do: allocate on one stream, or give theirs back \
                 with torch.cuda.empty_cache() when they are done"
                    .to_owned(),
            );
        }
        if waste.pending_free >= self.request.size {
            advice.push(
                "freed blocks wait for other streams (record_stream): synchronize these earlier"
                    .to_owned(),
            );
        }
        if waste.other_pool >= self.request.size {
            advice.push(
                "private pools (CUDA graphs, MemPool) or small requests hold enough: release what \
                 is done"
                    .to_owned(),
            );
        }
        if advice.is_empty() {
            advice.push(
                "the program needs more than there is: a smaller batch, recomputation of \
                 activations, or sharding"
                    .to_owned(),
            );
        }
        self.line(format_args!("What helps:"));
        for line in advice {
            self.line(format_args!("  - {line}"));
        }
        self.text.truncate(self.text.trim_end().len());
    }

    /// A number of bytes and what they are; nothing if there are none.
    fn row(&mut self, bytes: u64, what: &str) {
        if bytes == 0 {
            return;
        }
        self.line(format_args!("  {:>14}  {what}", short(bytes)));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes all");
    }
}

/// A cause of waste in the words of this text.
fn reason(cause: &str) -> &'static str {
    match cause {
        "pending_free" => "freed, but another stream may still use it",
        "rounding" => "inside blocks: sizes are rounded up",
        "remainder" => "inside blocks: too little to be split off",
        "other_pool" => "free in another pool (small requests, a private pool)",
        "other_stream" => "free, but of another stream",
        "split_pinned" => "free, beside live blocks of the same segment",
        "page_granularity" => "free, in pages that live blocks share",
        "cached_whole" => "free and whole, but too small, or not given back",
        _ => "for a cause that has no words here",
    }
}

#[cfg(test)]
mod tests {
    use girih_runtime::caching::Caching;
    use girih_runtime::sim::SimDevice;
    use girih_runtime::{Device, Env};
    use girih_trace::{PoolId, StreamId};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Makes requests of MiB on streams, frees some, and asks for what cannot be had.
    fn story(
        mode: Mode,
        settings: &str,
        given: &[(u64, u16)],
        freed: &[usize],
        asked: u64,
    ) -> String {
        let mut device = SimDevice::new(256 * MIB);
        let config = Config::parse(settings).unwrap();
        let mut policy = Caching::new(config.clone());
        let mut env = Env { device: &mut device, log: &mut (), listens: false, may_wait: true };
        let request = |mib: u64, stream: u16| Request {
            size: mib * MIB,
            stream: StreamId(stream),
            pool: PoolId::DEFAULT,
        };
        let mut allocate = |request| policy.allocate(&mut env, request);
        let blocks: Vec<_> =
            given.iter().map(|&(mib, stream)| allocate(request(mib, stream)).unwrap()).collect();
        for &index in freed {
            policy.free(&mut env, blocks[index].block).unwrap();
        }
        let request = request(asked, 0);
        let error = policy.allocate(&mut env, request).unwrap_err();
        let info = device.memory_info();
        let release = Release(2, 11);
        let scene = Scene { device: 1, mode, config: &config, release, info, stream: 0 };
        explain(&policy, request, &error, &scene).text
    }

    #[test]
    fn memory_that_is_there_in_pieces_is_told_from_memory_that_is_not_there() {
        // Two to a segment of 20 MiB, of which one is freed.
        let pairs = [(9, 0); 24];
        let freed: Vec<usize> = (0..24).step_by(2).collect();
        insta::assert_snapshot!("in_pieces", story(Mode::Native, "", &pairs, &freed, 50));
        insta::assert_snapshot!("too_much", story(Mode::Auto, "", &[(200, 0)], &[], 100));
    }

    #[test]
    fn memory_of_other_streams_and_a_limit_are_named() {
        let two = [(9, 1), (9, 1), (100, 0)];
        let text = story(Mode::Native, "per_process_memory_fraction:0.75", &two, &[0], 100);
        insta::assert_snapshot!("a_limit", text);
    }
}
