//! Which bytes are free from when until when, and parts of them for a request.

use std::cmp::Reverse;

use super::super::views::Part;
use crate::device::Address;

/// Where a view begins or ends within a page it is at a multiple of these bytes, if its size is one: what is left
/// of the page is then of use to others like it.
const GRANULE: u64 = 2 << 20;

/// What of a page is free.
#[derive(Clone, Copy, Debug)]
pub(in crate::lake) struct Run {
    pub(in crate::lake) page: Part,
    pub(in crate::lake) part: Part,
}

/// Parts for so many bytes, in the order of a view: the end of a page, whole pages, those first that are named first,
/// and the beginning of one. Or of one run alone, where one is large enough. None if there are too few bytes.
pub(super) fn assemble(
    size: u64,
    wholes: impl Iterator<Item = Part>,
    runs: &[Run],
) -> Option<Vec<Part>> {
    let fitting = runs.iter().map(|run| run.part).filter(|part| part.size >= size);
    if let Some(part) = fitting.min_by_key(|part| part.size) {
        return Some(vec![part.first(size)]);
    }
    let odd = size % GRANULE;
    let is_even = |part: &Part| matches!(part.size % GRANULE, rest if rest == 0 || rest == odd);
    let tails = runs.iter().filter(|run| run.part.end() == run.page.end());
    let tails = tails.map(|run| run.part).filter(|part| is_even(part));
    let tail = tails.max_by_key(|part| part.size);
    let mut missing = size - tail.map_or(0, |part| part.size);
    let (mut taken, mut left) = (Vec::new(), Vec::new());
    for page in wholes {
        if page.size <= missing {
            missing -= page.size;
            taken.push(page);
        } else {
            left.push(page);
        }
        if missing == 0 {
            break;
        }
    }
    let mut head = None;
    if missing > 0 {
        let heads = runs.iter().filter(|run| run.part.address == run.page.address);
        let heads = heads.map(|run| run.part).filter(|part| part.size >= missing);
        let best = heads.min_by_key(|part| part.size);
        let best = best.or_else(|| left.into_iter().min_by_key(|page: &Part| page.size));
        head = Some(best?.first(missing));
    }
    taken.sort_unstable_by_key(|page| page.address);
    let mut parts: Vec<Part> = Vec::with_capacity(taken.len() + 2);
    for part in tail.into_iter().chain(taken).chain(head) {
        match parts.last_mut() {
            Some(last) if last.end() == part.address => last.size += part.size,
            _ => parts.push(part),
        }
    }
    Some(parts)
}

/// Bytes that are given away together.
#[derive(Clone, Debug)]
struct Cell {
    part: Part,
    /// From which request on somebody has them until which, in order.
    taken: Vec<(u32, u32)>,
}

impl Cell {
    /// When they are wanted after one request, and since when they are free before another, if they are free in between.
    fn window(&self, birth: u32, until: u32) -> Option<(u32, u32)> {
        let next = self.taken.partition_point(|&(_, end)| end <= birth);
        let wanted = self.taken.get(next).map_or(u32::MAX, |&(start, _)| start);
        let free = next.checked_sub(1).map_or(0, |before| self.taken[before].1);
        (until <= wanted).then_some((wanted, free))
    }

    fn give(&mut self, birth: u32, until: u32) {
        let at = self.taken.partition_point(|&(start, _)| start < birth);
        self.taken.insert(at, (birth, until));
    }
}

/// A page, and what of it can be had: cells in order of address.
#[derive(Debug)]
struct Leaf {
    page: Part,
    cells: Vec<Cell>,
}

impl Leaf {
    /// When the first of its bytes is wanted, and since when all are free, if all of it can be had.
    fn whole(&self, birth: u32, until: u32) -> Option<(u32, u32)> {
        let (mut wanted, mut free, mut at) = (u32::MAX, 0, self.page.address);
        for cell in &self.cells {
            if cell.part.address != at {
                return None;
            }
            let (sooner, later) = cell.window(birth, until)?;
            (wanted, free) = (wanted.min(sooner), free.max(later));
            at = cell.part.end();
        }
        (at == self.page.end()).then_some((wanted, free))
    }

    /// What can be had side by side.
    fn runs(&self, birth: u32, until: u32, runs: &mut Vec<Run>) {
        let before = runs.len();
        for cell in self.cells.iter().filter(|cell| cell.window(birth, until).is_some()) {
            match runs[before..].last_mut() {
                Some(run) if run.part.end() == cell.part.address => run.part.size += cell.part.size,
                _ => runs.push(Run { page: self.page, part: cell.part }),
            }
        }
    }

    /// The first and the last request that wants some of a part, if all of it can be had.
    fn wanted(&self, part: &Part, birth: u32, until: u32) -> Option<(u32, u32)> {
        let (mut left, mut first, mut last) = (part.size, u32::MAX, 0);
        for cell in &self.cells {
            let common = cell.part.common(part);
            if common > 0 {
                let (wanted, _) = cell.window(birth, until)?;
                left -= common;
                (first, last) = (first.min(wanted), last.max(wanted));
            }
        }
        (left == 0).then_some((first, last))
    }

    /// Cuts a cell in two at an address.
    fn cut(&mut self, at: Address) {
        let is_over = |cell: &Cell| cell.part.address < at && at < cell.part.end();
        if let Some(index) = self.cells.iter().position(is_over) {
            let mut rest = self.cells[index].clone();
            rest.part = Part::between(at, rest.part.end());
            let cell = &mut self.cells[index];
            cell.part = Part::between(cell.part.address, at);
            self.cells.insert(index + 1, rest);
        }
    }
}

/// All pages of which something can be had, in order of address.
#[derive(Debug)]
pub(super) struct Sheet {
    leaves: Vec<Leaf>,
}

impl Sheet {
    /// All of it is free, from the first request on.
    pub(super) fn new(mut runs: Vec<Run>) -> Sheet {
        runs.sort_unstable_by_key(|run| run.part.address);
        let mut leaves: Vec<Leaf> = Vec::new();
        for Run { page, part } in runs {
            let cell = Cell { part, taken: Vec::new() };
            match leaves.last_mut() {
                Some(leaf) if leaf.page == page => leaf.cells.push(cell),
                _ => leaves.push(Leaf { page, cells: vec![cell] }),
            }
        }
        Sheet { leaves }
    }

    /// The places of the leaves over a part, with what of it each has.
    fn over(&self, part: Part) -> impl Iterator<Item = (usize, Part)> {
        let first = self.leaves.partition_point(|leaf| leaf.page.end() <= part.address);
        let over = self.leaves[first..].iter().zip(first..);
        let over = over.take_while(move |(leaf, _)| leaf.page.address < part.end());
        over.map(move |(leaf, at)| (at, leaf.page.both(&part)))
    }

    /// The first and the last request that wants some of some parts, if all of them can be had.
    pub(super) fn wanted(&self, parts: &[Part], birth: u32, until: u32) -> Option<(u32, u32)> {
        let (mut first, mut last) = (u32::MAX, 0);
        for part in parts {
            let mut left = part.size;
            for (at, of) in self.over(*part) {
                let (sooner, later) = self.leaves[at].wanted(&of, birth, until)?;
                (first, last) = (first.min(sooner), last.max(later));
                left -= of.size;
            }
            if left > 0 {
                return None;
            }
        }
        Some((first, last))
    }

    /// Gives parts away from one request on until another.
    pub(super) fn give(&mut self, parts: &[Part], birth: u32, until: u32) {
        for part in parts {
            let over: Vec<(usize, Part)> = self.over(*part).collect();
            for (at, of) in over {
                let leaf = &mut self.leaves[at];
                leaf.cut(of.address);
                leaf.cut(of.end());
                for cell in leaf.cells.iter_mut().filter(|cell| cell.part.overlaps(&of)) {
                    cell.give(birth, until);
                }
            }
        }
    }

    /// Parts for so many bytes from one request until another: those that are wanted soonest after it, for the others
    /// serve those that live longer. None if there are too few.
    pub(super) fn find(&self, size: u64, birth: u32, until: u32) -> Option<Vec<Part>> {
        let (mut wholes, mut runs) = (Vec::new(), Vec::new());
        for leaf in &self.leaves {
            match leaf.whole(birth, until) {
                Some((wanted, free)) => wholes.push((wanted, Reverse(free), leaf.page)),
                None => leaf.runs(birth, until, &mut runs),
            }
        }
        // No more than these are needed, be all of them the smallest that there are.
        let enough = (size / GRANULE + 2) as usize;
        let order =
            |&(wanted, free, page): &(u32, Reverse<u32>, Part)| (wanted, free, page.address);
        if enough * 4 < wholes.len() {
            wholes.select_nth_unstable_by_key(enough, order);
            wholes.truncate(enough);
        }
        wholes.sort_unstable_by_key(order);
        assemble(size, wholes.into_iter().map(|(_, _, page)| page), &runs)
    }
}
