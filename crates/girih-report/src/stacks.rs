//! The call stacks of a page: those that its blocks have, with the frames that they are made of.

use girih_trace::Trace;
use girih_why::frames::Stacks;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// Frames of a stack that a page has at most; of a deeper one the innermost.
const DEPTH_MAX: usize = 256;
/// Characters of a frame at most: a name of C++ can be a page long.
const FRAME_MAX: usize = 400;

/// The stacks of a page, numbered from 1; 0 is none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PageStacks {
    /// The distinct frames, as `file:line name`.
    frames: Vec<String>,
    /// Of each stack, the first line of the program's own, or what stands for it.
    lines: Vec<String>,
    /// Of each stack its frames, the innermost first.
    stacks: Vec<Vec<u32>>,
    /// The number of each stack of the trace.
    #[serde(skip)]
    numbers: FxHashMap<u32, u32>,
}

impl PageStacks {
    /// Those of `used`, indices of [`Trace::stacks`], in their order.
    pub fn of(trace: &Trace, told: &Stacks, used: impl Iterator<Item = u32>) -> PageStacks {
        let mut page = PageStacks::default();
        let mut frames: FxHashMap<u32, u32> = FxHashMap::default();
        for stack in used {
            let Some(indices) = trace.stacks.get(stack as usize) else { continue };
            if page.numbers.contains_key(&stack) {
                continue;
            }
            page.numbers.insert(stack, page.stacks.len() as u32 + 1);
            let mut own = Vec::with_capacity(indices.len().min(DEPTH_MAX));
            for &index in indices.iter().take(DEPTH_MAX) {
                let Some(text) = trace.frames.get(index as usize) else { continue };
                let fresh = page.frames.len() as u32;
                own.push(*frames.entry(index).or_insert_with(|| {
                    page.frames.push(shortened(text));
                    fresh
                }));
            }
            page.stacks.push(own);
            let line = told.get(girih_trace::StackId(stack)).map_or("", |told| &told.line);
            page.lines.push(shortened(line));
        }
        page
    }

    /// The number of a stack of the trace; 0 for none.
    pub fn number(&self, stack: u32) -> u32 {
        self.numbers.get(&stack).copied().unwrap_or(0)
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(FRAME_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
