//! The cases: the examples of "When does fragmentation occur in the CUDA caching allocator?"
//! (PyTorch developer blog), as data; and what it says of graphs and of the size of pages, as
//! programs.
//!
//! Expected bytes are those of the article, which torch 2.11 gives too. Where the article gives no
//! number, none is expected. The explanations are ours.

use super::{Case, MIB, Operation, Step};

const SEGMENTS: &str = "expandable_segments:False";
const EXPANDABLE: &str = "expandable_segments:True";

/// Every case, in the order in which the article builds up its point.
pub const CASES: &[Case<'static>] = &[
    SPLIT_AND_MERGE,
    SMALL_THEN_LARGE,
    LARGE_THEN_SMALL,
    EXPANDABLE_GROWTH,
    EXPANDABLE_SMALL_THEN_LARGE,
    PINNED_SPLITS,
    ONE_MIB_LOOPHOLE,
    NO_LOOPHOLE,
    EXPANDABLE_PAGE_SIZE,
    GRAPHS_SMALL_FIRST,
    GRAPHS_LARGE_FIRST,
    GRAPHS_EXPANDABLE,
    GRAPHS_OUTPUTS_KEPT,
];

/// The case of that name, if there is one.
pub fn find(name: &str) -> Option<&'static Case<'static>> {
    CASES.iter().find(|case| case.name == name)
}

impl<'a> Step<'a> {
    const fn new(operation: Operation<'a>, explanation: &'a str) -> Step<'a> {
        Step { operation, explanation, expected: None }
    }

    /// Expects this many MiB to be reserved after the step.
    const fn reserves(self, mebibytes: u64) -> Step<'a> {
        Step { expected: Some(mebibytes * MIB), ..self }
    }
}

const fn allocate(count: u32, size: u64, explanation: &'static str) -> Step<'static> {
    Step::new(Operation::Allocate { count, size }, explanation)
}

const fn free(blocks: &'static [usize], explanation: &'static str) -> Step<'static> {
    Step::new(Operation::Free(blocks), explanation)
}

const fn free_all(explanation: &'static str) -> Step<'static> {
    Step::new(Operation::FreeAll, explanation)
}

const fn capture(explanation: &'static str) -> Step<'static> {
    Step::new(Operation::Capture, explanation)
}

const fn end_capture(explanation: &'static str) -> Step<'static> {
    Step::new(Operation::EndCapture, explanation)
}

const SPLIT_AND_MERGE: Case<'static> = Case {
    name: "split-and-merge",
    title: "A block is split for smaller requests, and becomes whole when both parts are free",
    settings: SEGMENTS,
    steps: &[
        allocate(
            1,
            32 * MIB,
            "Nothing is cached, so the device is asked for a segment. From 10 MiB on a segment is \
             as large as the request, rounded up to 2 MiB: the block fills it.",
        )
        .reserves(32),
        free_all("The block becomes free and stays cached. The device gets nothing back."),
        allocate(
            2,
            16 * MIB,
            "The first request takes the front half of the cached block, and a split leaves the \
             back half free. The second request takes that half.",
        )
        .reserves(32),
        free(
            &[1],
            "Block #1, the front half, is free, but its only neighbour is in use. Two blocks merge \
             only if both are free.",
        )
        .reserves(32),
        free_all("Now the neighbours are both free, and they merge back into one block of 32 MiB.")
            .reserves(32),
    ],
};

const SMALL_THEN_LARGE: Case<'static> = Case {
    name: "small-then-large",
    title: "Without expandable segments, small blocks first cost twice the memory",
    settings: SEGMENTS,
    steps: &[
        allocate(
            8,
            16 * MIB,
            "Each request takes a segment of its own from the device: eight segments, each filled \
             by one block.",
        )
        .reserves(128),
        free_all(
            "All blocks are free, and each is the whole of its segment. Blocks of different \
             segments never merge, even if their addresses touch.",
        )
        .reserves(128),
        allocate(
            4,
            32 * MIB,
            "128 MiB lie free, but in pieces of 16 MiB, too small for each of these requests. The \
             device must give four more segments.",
        )
        .reserves(256),
    ],
};

const LARGE_THEN_SMALL: Case<'static> = Case {
    name: "large-then-small",
    title: "Without expandable segments, large blocks first leave room for the small ones",
    settings: SEGMENTS,
    steps: &[
        allocate(4, 32 * MIB, "Each request takes a segment of its own: four segments.")
            .reserves(128),
        free_all("The four segments stay cached, each with one free block of 32 MiB.")
            .reserves(128),
        allocate(
            8,
            16 * MIB,
            "Each cached block is split and serves two requests. The device is not asked: the \
             same requests as before, in the other order, at half the memory.",
        )
        .reserves(128),
    ],
};

const EXPANDABLE_GROWTH: Case<'static> = Case {
    name: "expandable-growth",
    title: "An expandable segment grows by pages of 20 MiB, and what a page has left over is used",
    settings: EXPANDABLE,
    steps: &[
        allocate(
            1,
            16 * MIB,
            "Addresses for more than the whole device are reserved, which costs no memory, and \
             one page is mapped at their start. 4 MiB of it are left free.",
        )
        .reserves(20),
        allocate(
            1,
            16 * MIB,
            "The 4 MiB are too few, so a second page is mapped right behind them. Both merge to \
             24 MiB; 8 MiB are left.",
        )
        .reserves(40),
        allocate(1, 16 * MIB, "A third page brings the free tail to 28 MiB; 12 MiB are left.")
            .reserves(60),
        allocate(1, 16 * MIB, "A fourth page brings it to 32 MiB; 16 MiB are left.").reserves(80),
        allocate(
            1,
            16 * MIB,
            "What is left is exactly what is asked for. No page is mapped, and no call is made.",
        )
        .reserves(80),
        allocate(
            1,
            16 * MIB,
            "Nothing is left over, so the pattern starts again: a page, 4 MiB left.",
        )
        .reserves(100),
        allocate(1, 16 * MIB, "A page, 8 MiB left.").reserves(120),
        allocate(
            1,
            16 * MIB,
            "A page, 12 MiB left. Seven pages hold eight blocks, and the free tail serves whatever \
             comes next.",
        )
        .reserves(140),
    ],
};

const EXPANDABLE_SMALL_THEN_LARGE: Case<'static> = Case {
    name: "expandable-small-then-large",
    title: "With expandable segments, small blocks first are no worse",
    settings: EXPANDABLE,
    steps: &[
        allocate(
            8,
            16 * MIB,
            "Seven pages in one range of addresses hold the eight blocks, with 12 MiB to spare.",
        )
        .reserves(140),
        free_all(
            "Every block has its neighbours in the same range, so all of them merge into one free \
             block over all pages.",
        )
        .reserves(140),
        allocate(
            4,
            32 * MIB,
            "The four blocks are cut from that one. Without expandable segments this order took \
             256 MiB.",
        )
        .reserves(140),
    ],
};

const PINNED_SPLITS: Case<'static> = Case {
    name: "pinned-splits",
    title: "With expandable segments, blocks that stay alive still keep free space apart",
    settings: EXPANDABLE,
    steps: &[
        allocate(4, 16 * MIB, "Four pages: the four blocks, and 16 MiB free behind them.")
            .reserves(80),
        free(
            &[0, 2],
            "48 MiB are free, in three pieces of 16 MiB. The blocks that live stand between them.",
        ),
        allocate(
            1,
            32 * MIB,
            "No piece is large enough. Only the tail can grow: one more page makes it 36 MiB, and \
             the two pieces in front stay as they are.",
        )
        .reserves(100),
        free_all("With nothing alive in between, all pieces merge into one free block."),
        allocate(1, 32 * MIB, "Now the request fits, and no page is mapped.").reserves(100),
    ],
};

const ONE_MIB_LOOPHOLE: Case<'static> = Case {
    name: "one-mib-loophole",
    title: "A request that shrinks to 1 MiB or less changes its pool, and memory grows",
    settings: EXPANDABLE,
    steps: &[
        allocate(1, 2 * MIB, "More than 1 MiB: the pool of large blocks maps a page of 20 MiB."),
        free_all("The whole page is free, for requests of more than 1 MiB."),
        allocate(
            1,
            MIB / 2,
            "At most 1 MiB: this is for the pool of small blocks, which cannot use the free page. \
             It maps one of its own, of 2 MiB.",
        )
        .reserves(22),
    ],
};

const NO_LOOPHOLE: Case<'static> = Case {
    name: "no-loophole",
    title: "A request that stays above 1 MiB finds the memory of the one before it",
    settings: EXPANDABLE,
    steps: &[
        allocate(1, 2 * MIB, "The pool of large blocks maps a page of 20 MiB."),
        free_all("The whole page is free, for requests of more than 1 MiB."),
        allocate(1, 2 * MIB, "The same pool serves it, from the page that it has.").reserves(20),
    ],
};

const EXPANDABLE_PAGE_SIZE: Case<'static> = Case {
    name: "expandable-page-size",
    title: "With pages as large as the requests, an expandable segment has nothing left over",
    settings: "expandable_segments:True,expandable_segments_page_size:16777216",
    steps: &[
        allocate(
            8,
            16 * MIB,
            "A page of 16 MiB for each: 128 MiB, where pages of 20 MiB make it 140.",
        ),
        free_all("All of it merges into one free block, as with pages of any size."),
        allocate(
            1,
            8 * MIB,
            "Half a page is cut from it. Larger pages take fewer calls to map; what a request does \
             not fill of its last page waits for others.",
        ),
    ],
};

const GRAPHS_SMALL_FIRST: Case<'static> = Case {
    name: "graphs-small-first",
    title: "Graphs of growing batches share a pool, and each takes memory of its own",
    settings: SEGMENTS,
    steps: &[
        capture("The graph of batch 1. It takes its memory from the pool of all graphs."),
        allocate(4, 16 * MIB, "Its activations: four segments."),
        free_all("What the graph is done with is free in the pool, at once and on its stream."),
        end_capture(
            "No two graphs of the pool run at the same time, so the next one may have this memory.",
        ),
        capture("The graph of batch 2."),
        allocate(4, 32 * MIB, "Twice as large, and no segment holds one: four more."),
        free_all("Six times 32 MiB are free in the pool, a third of it in pieces of 16."),
        end_capture("The pool keeps all of it: the first graph will be replayed in its part."),
        capture("The graph of batch 4."),
        allocate(
            4,
            64 * MIB,
            "Again none is large enough. The largest graph needs 256 MiB, the pool holds 448.",
        ),
        free_all("All 448 MiB are free, in segments of three sizes."),
        end_capture("As long as one of the graphs lives, nothing of it goes back to the device."),
    ],
};

const GRAPHS_LARGE_FIRST: Case<'static> = Case {
    name: "graphs-large-first",
    title: "Graphs of shrinking batches share a pool, and the first one's memory is enough",
    settings: SEGMENTS,
    steps: &[
        capture("The graph of batch 4."),
        allocate(4, 64 * MIB, "Four segments."),
        free_all("256 MiB are free in the pool."),
        end_capture("The memory stays the pool's."),
        capture("The graph of batch 2."),
        allocate(4, 32 * MIB, "Two segments are split in halves. The device is not asked."),
        free_all("The halves merge again."),
        end_capture("Nothing was added."),
        capture("The graph of batch 1."),
        allocate(4, 16 * MIB, "One segment is split in four."),
        free_all("The quarters merge again."),
        end_capture("Three graphs in what the largest needs: this is why one captures it first."),
    ],
};

const GRAPHS_EXPANDABLE: Case<'static> = Case {
    name: "graphs-expandable",
    title: "With expandable segments, graphs of growing batches share what they have",
    settings: EXPANDABLE,
    steps: &[
        capture("The graph of batch 1."),
        allocate(4, 16 * MIB, "Four pages of 20 MiB."),
        free_all("They are one free block."),
        end_capture("The memory stays the pool's."),
        capture("The graph of batch 2."),
        allocate(4, 32 * MIB, "The 80 MiB serve two, and three more pages the others."),
        free_all("They are one free block again."),
        end_capture("Nothing of it is apart."),
        capture("The graph of batch 4."),
        allocate(
            4,
            64 * MIB,
            "The segment grows by what is missing: 260 MiB for a graph of 256, where segments that \
             are apart took 448 in this order.",
        ),
        free_all("All pages are one free block."),
        end_capture("The order of captures does not matter."),
    ],
};

const GRAPHS_OUTPUTS_KEPT: Case<'static> = Case {
    name: "graphs-outputs-kept",
    title: "Outputs of graphs that stay alive keep the pool's free space apart",
    settings: EXPANDABLE,
    steps: &[
        capture("The graph of batch 1."),
        allocate(2, 16 * MIB, "Its activations."),
        allocate(1, 2 * MIB, "Its output, which the program reads after each replay."),
        free(&[0, 1], "The activations are done with. The output stays, behind 32 MiB."),
        end_capture("The hole in front of it is for the next graph."),
        capture("The graph of batch 2."),
        allocate(
            2,
            32 * MIB,
            "One fits into the hole. The other does not fit before the output, and not into the \
             6 MiB behind it: the segment grows there.",
        ),
        allocate(1, 4 * MIB, "Its output."),
        free(&[3, 4], "Two holes of 32 MiB, with an output behind each."),
        end_capture("64 MiB are free in the holes, in pieces that a batch of 4 cannot use."),
        capture("The graph of batch 4."),
        allocate(2, 64 * MIB, "No hole is large enough for either, so both are put behind."),
        allocate(1, 8 * MIB, "Its output finds room in a hole."),
        free(&[6, 7], "The graph needed 136 MiB, and the pool holds 200."),
        end_capture("Copying outputs to memory outside of the pool avoids it."),
    ],
};
