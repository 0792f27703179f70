//! Which tensors: the live blocks of a moment, by line, function, module, stream or category.

use rustc_hash::FxHashMap;

use girih_trace::{Lifetimes, MarkKind, Tick, Trace};

use crate::category::{Categories, Category};
use crate::frames::Stacks;

/// What blocks are put together by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum By {
    /// The first line of the program's own.
    #[default]
    Line,
    /// The function of that line.
    Function,
    /// The module whose forward was running, by the marks; without marks, the file.
    Module,
    /// The stream.
    Stream,
    /// What the blocks are for.
    Category,
}

impl By {
    /// Every way.
    pub const ALL: [By; 5] = [By::Line, By::Function, By::Module, By::Stream, By::Category];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            By::Line => "line",
            By::Function => "function",
            By::Module => "module",
            By::Stream => "stream",
            By::Category => "category",
        }
    }

    /// What it is, in a sentence without a full stop.
    pub fn about(self) -> &'static str {
        match self {
            By::Line => "the first line of the program's own",
            By::Function => "the function of that line",
            By::Module => "the module whose forward ran, by the marks; without marks, the file",
            By::Stream => "the stream that the memory belongs to",
            By::Category => "weights, gradients, optimizer, activations, workspaces",
        }
    }
}

/// Blocks that one place asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// The line, the function, or whatever blocks are put together by.
    pub place: String,
    /// What most of its bytes are for.
    pub category: Category,
    /// Bytes requested.
    pub bytes: u64,
    /// Blocks.
    pub count: u64,
    /// Bytes of the largest.
    pub largest: u64,
}

/// What is asked of blocks.
pub struct Grouping<'a> {
    /// The recording.
    pub trace: &'a Trace,
    /// Its lifetimes.
    pub lives: &'a Lifetimes,
    /// Its stacks.
    pub stacks: &'a Stacks,
    /// What the blocks are for.
    pub categories: &'a Categories<'a>,
}

/// Where there is no stack.
const NO_STACK: &str = "no stack recorded";
/// Where there are stacks, and this one has no Python in it.
const BACKWARD: &str = "backward (no Python frame)";
/// Of blocks that are older than the recording.
const OLDER: &str = "before the recording began";

impl Grouping<'_> {
    /// The groups of these requests, those with the most bytes first.
    pub fn of(&self, requests: &[u32], by: By) -> Vec<Group> {
        let mut sorted = requests.to_vec();
        sorted.sort_unstable();
        let categories = self.categories.of(&sorted);
        let modules = Modules::of(self.trace, by);
        let mut places: FxHashMap<String, usize> = FxHashMap::default();
        let mut found: Vec<(Group, FxHashMap<Category, u64>)> = Vec::new();
        for (&index, category) in sorted.iter().zip(categories) {
            let life = &self.lives.requests[index as usize];
            let place = self.place(index, by, category, &modules);
            let at = *places.entry(place.clone()).or_insert_with(|| {
                let group = Group { place, category, bytes: 0, count: 0, largest: 0 };
                found.push((group, FxHashMap::default()));
                found.len() - 1
            });
            let (group, by_category) = &mut found[at];
            group.bytes += life.size;
            group.count += 1;
            group.largest = group.largest.max(life.size);
            *by_category.entry(category).or_default() += life.size;
        }
        let mut groups: Vec<Group> = (found.into_iter())
            .map(|(group, by_category)| {
                let most =
                    by_category.into_iter().max_by_key(|&(category, bytes)| (bytes, category));
                Group { category: most.map_or(group.category, |(category, _)| category), ..group }
            })
            .collect();
        groups.sort_by(|a, b| (b.bytes, &a.place).cmp(&(a.bytes, &b.place)));
        groups
    }

    fn place(&self, index: u32, by: By, category: Category, modules: &Modules<'_>) -> String {
        let life = &self.lives.requests[index as usize];
        let told = self.stacks.get(life.stack);
        let is_older = (index as usize) < self.lives.older;
        let without = || {
            let place = if self.stacks.is_empty() { NO_STACK } else { BACKWARD };
            if is_older { OLDER } else { place }.to_owned()
        };
        match by {
            By::Line => told.map_or_else(without, |told| told.line.clone()),
            By::Function => told.map_or_else(without, |told| told.function.clone()),
            By::Module => match modules.at(life.birth) {
                Some(module) if !is_older => module.to_owned(),
                _ => told.map_or_else(without, |told| told.file.clone()),
            },
            By::Stream => format!("stream {}", self.trace.streams[usize::from(life.stream.0)]),
            By::Category => category.name().to_owned(),
        }
    }
}

/// Which module's forward runs when, by the marks.
struct Modules<'a> {
    /// From which tick on which module; None between.
    changes: Vec<(u32, Option<&'a str>)>,
}

impl<'a> Modules<'a> {
    fn of(trace: &'a Trace, by: By) -> Modules<'a> {
        let mut changes = Vec::new();
        let mut open: Vec<&str> = Vec::new();
        let marks = if by == By::Module { &trace.marks[..] } else { &[] };
        for mark in marks {
            match mark.kind {
                MarkKind::ForwardIn => open.push(&mark.name),
                MarkKind::ForwardOut => {
                    open.pop();
                }
                MarkKind::Step => open.clear(),
                _ => continue,
            }
            changes.push((mark.before, open.last().copied()));
        }
        Modules { changes }
    }

    fn at(&self, tick: Tick) -> Option<&'a str> {
        let after = self.changes.partition_point(|&(before, _)| before <= tick.0);
        after.checked_sub(1).and_then(|at| self.changes[at].1)
    }
}

/// What one place had in one run and in another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The place.
    pub place: String,
    /// What most of its bytes are for.
    pub category: Category,
    /// Bytes and blocks in the first.
    pub before: (u64, u64),
    /// In the second.
    pub after: (u64, u64),
}

impl Difference {
    /// How many bytes more there are in the second.
    pub fn change(&self) -> i128 {
        i128::from(self.after.0) - i128::from(self.before.0)
    }
}

/// What changed from one list of groups to another, the largest change first. What is equal is left
/// out.
pub fn differences(before: &[Group], after: &[Group]) -> Vec<Difference> {
    let mut found: FxHashMap<&str, Difference> = FxHashMap::default();
    for (groups, is_after) in [(before, false), (after, true)] {
        for group in groups {
            let Group { place, category, .. } = group;
            let of = found.entry(place).or_insert_with(|| Difference {
                place: place.clone(),
                category: *category,
                before: (0, 0),
                after: (0, 0),
            });
            let side = if is_after { &mut of.after } else { &mut of.before };
            *side = (group.bytes, group.count);
        }
    }
    let mut all: Vec<Difference> = found.into_values().filter(|of| of.before != of.after).collect();
    all.sort_by(|a, b| {
        let by_size = b.change().unsigned_abs().cmp(&a.change().unsigned_abs());
        by_size.then_with(|| a.place.cmp(&b.place))
    });
    all
}
