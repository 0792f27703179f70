//! When bytes are wanted in a step that is laid out, for requests that cannot have what was meant for them.

use rustc_hash::FxHashMap;

use super::super::views::Part;
use super::sheet::{Run, assemble};
use crate::device::Address;

/// A request has bytes of a page.
#[derive(Clone, Copy, Debug)]
struct Use {
    number: u32,
    part: Part,
    /// It lives on in the next step: whoever keeps it from its bytes keeps it from them there, too.
    lasts: bool,
}

/// Which request has which bytes, page by page.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// Requests of a step.
    count: u32,
    pages: FxHashMap<Address, Vec<Use>>,
}

impl Uses {
    pub(super) fn new(count: u32) -> Uses {
        Uses { count, pages: FxHashMap::default() }
    }

    /// The request of this number has these bytes.
    pub(super) fn add(&mut self, number: u32, lasts: bool, runs: &[Run]) {
        for &Run { page, part } in runs {
            self.pages.entry(page.address).or_default().push(Use { number, part, lasts });
        }
    }

    /// It does not have what it has of these pages.
    pub(super) fn remove(&mut self, number: u32, runs: &[Run]) {
        for run in runs {
            if let Some(uses) = self.pages.get_mut(&run.page.address) {
                uses.retain(|other| other.number != number);
            }
        }
    }

    /// How much a run is wanted by others while a request lives, the less the better: not, if it is its own; nor if
    /// nobody wants it meanwhile, the sooner after that the better; by none that lasts, the later the better; by one that
    /// does.
    fn order(&self, run: &Run, number: u32, life: u32) -> (u32, u32) {
        let uses = self.pages.get(&run.page.address).map(Vec::as_slice).unwrap_or_default();
        let (mut soonest, mut lasts) = (self.count + 1, false);
        for other in uses.iter().filter(|other| other.part.overlaps(&run.part)) {
            let ahead = (other.number + self.count - number) % self.count;
            if ahead == 0 {
                return (0, 0);
            }
            soonest = soonest.min(ahead);
            lasts |= other.lasts && ahead < life;
        }
        match soonest >= life {
            true => (1, soonest),
            false => (2 + u32::from(lasts), self.count - soonest),
        }
    }

    /// Parts for a request of this number that lives so long: its own before others, and those before others that are
    /// wanted less. None if too few bytes are free.
    pub(super) fn find(
        &self,
        size: u64,
        number: u32,
        life: u32,
        free: &[Run],
    ) -> Option<Vec<Part>> {
        let (mut wholes, mut runs) = (Vec::new(), Vec::new());
        for run in free {
            let order = self.order(run, number, life);
            if run.part == run.page {
                wholes.push((order, run.page));
            } else {
                runs.push((order.0, *run));
            }
        }
        wholes.sort_unstable_by_key(|&(order, page)| (order, page.address));
        (1..=3).find_map(|worst| {
            let runs = runs.iter().filter(|(class, _)| *class <= worst).map(|(_, run)| *run);
            assemble(size, wholes.iter().map(|(_, page)| *page), &runs.collect::<Vec<Run>>())
        })
    }
}
