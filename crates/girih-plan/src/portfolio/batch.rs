//! A batch of attempts, shared by threads.
//!
//! ```text
//!  limit: the best so far, the same for all
//!  thread 0   attempt 1 ──────► attempt 3 ──► attempt 4 ──────►
//!  thread 1   attempt 2 ─────────────────────► attempt 5 ──►        then: the lowest, first of equals
//! ```
//!
//! Threads take the next attempt as they get free, each keeps its own best layout, and nothing that
//! one finds is seen by another before the batch is over. Only a proof ends the others' work: what
//! comes after it in the order would not count.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::instance::Instance;
use crate::planner::{Limit, Planner, Scratch};
use crate::problem::Solution;

/// Attempts of a batch.
pub(super) const BATCH: u32 = 8;
/// Fewer items are not worth a thread.
const ITEMS_MIN: usize = 500;

/// What is known after an attempt. Bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heights {
    /// The height that it reached; none if it gave up.
    pub(super) tried: Option<u64>,
    /// The lowest so far.
    pub(super) best: u64,
}

/// The best layout so far, and what the threads work with.
pub(super) struct Bench<'a> {
    instance: &'a Instance,
    workers: Vec<Worker>,
    best: Option<Best>,
    /// A layout that reaches this is as low as can be. Bytes.
    bound: u64,
}

struct Best {
    top: u64,
    planner: Planner,
    layout: Vec<u64>,
}

/// One thread's own.
#[derive(Default)]
struct Worker {
    scratch: Scratch,
    layout: Vec<u64>,
    best: Vec<u64>,
    /// Of each attempt that this worker made in the batch: its index, and the top that it reached.
    made: Vec<(usize, Option<u64>)>,
    /// The top and the index of the best of them.
    lowest: Option<(u64, usize)>,
}

impl Worker {
    /// Forgets the attempts of the batch before.
    fn forget(&mut self) {
        self.lowest = None;
        self.made.clear();
    }

    /// Makes attempts until none is left.
    fn work(&mut self, instance: &Instance, batch: &Batch<'_>) {
        self.layout.resize(instance.items.len(), 0);
        loop {
            let index = batch.next.fetch_add(1, Ordering::Relaxed);
            if index >= batch.planners.len() || index > batch.proven.load(Ordering::Relaxed) {
                return;
            }
            let planner = batch.planners[index];
            let limit = Limit::of_attempt(batch.limit, index, &batch.proven);
            let top = planner.run(instance, limit, &mut self.scratch, &mut self.layout);
            self.made.push((index, top));
            let Some(top) = top else { continue };
            if instance.height(top) == batch.bound {
                batch.proven.fetch_min(index, Ordering::Relaxed);
            }
            if self.lowest.is_none_or(|(lowest, _)| top < lowest) {
                self.lowest = Some((top, index));
                std::mem::swap(&mut self.layout, &mut self.best);
                self.layout.resize(instance.items.len(), 0);
            }
        }
    }
}

/// What the threads share.
struct Batch<'a> {
    planners: &'a [Planner],
    limit: u64,
    bound: u64,
    next: AtomicUsize,
    /// The first attempt that is as low as can be.
    proven: AtomicUsize,
}

impl<'a> Bench<'a> {
    /// A bench for so many threads. `bound` is what no layout can be lower than, in bytes.
    pub(super) fn new(instance: &'a Instance, threads: u32, bound: u64) -> Bench<'a> {
        let threads = if instance.items.len() < ITEMS_MIN { 1 } else { threads.max(1) };
        let workers = (0..threads.min(BATCH)).map(|_| Worker::default()).collect();
        Bench { instance, workers, best: None, bound }
    }

    /// Makes these attempts. What came of each, in order, up to the first that is proven best.
    pub(super) fn run(&mut self, planners: &[Planner]) -> Vec<Heights> {
        let batch = Batch {
            planners,
            limit: self.best.as_ref().map_or(u64::MAX, |best| best.top),
            bound: self.bound,
            next: AtomicUsize::new(0),
            proven: AtomicUsize::new(usize::MAX),
        };
        let instance = self.instance;
        // Some may have nothing to do in this batch.
        self.workers.iter_mut().for_each(Worker::forget);
        let (own, others) = self.workers.split_first_mut().expect("at least one thread");
        thread::scope(|scope| {
            for worker in others.iter_mut().take(planners.len() - 1) {
                scope.spawn(|| worker.work(instance, &batch));
            }
            own.work(instance, &batch);
        });
        let proven = batch.proven.into_inner();
        self.take_lowest(planners, proven);
        let mut made: Vec<_> = self.workers.iter().flat_map(|worker| &worker.made).collect();
        made.sort_unstable();
        let mut best =
            if batch.limit == u64::MAX { u64::MAX } else { instance.height(batch.limit) };
        let made = made.into_iter().take_while(|(index, _)| *index <= proven);
        made.map(|&(_, top)| {
            let tried = top.map(|top| instance.height(top));
            best = best.min(tried.unwrap_or(u64::MAX));
            Heights { tried, best }
        })
        .collect()
    }

    /// Keeps the lowest layout of the batch, the first of equals, of those up to `proven`.
    fn take_lowest(&mut self, planners: &[Planner], proven: usize) {
        let counts = |worker: &&mut Worker| worker.lowest.is_some_and(|(_, at)| at <= proven);
        let workers = self.workers.iter_mut().filter(counts);
        let Some(worker) = workers.min_by_key(|worker| worker.lowest) else { return };
        let Some((top, index)) = worker.lowest.take() else { return };
        let best = self.best.get_or_insert_with(|| Best {
            top,
            planner: planners[index],
            layout: Vec::new(),
        });
        (best.top, best.planner) = (top, planners[index]);
        std::mem::swap(&mut best.layout, &mut worker.best);
    }

    /// True if the best is as low as can be.
    pub(super) fn is_proven(&self) -> bool {
        self.best.as_ref().is_some_and(|best| self.instance.height(best.top) == self.bound)
    }

    /// The best, as a solution of a problem of so many buffers.
    pub(super) fn solution(&self, buffers: usize) -> Solution {
        let best = self.best.as_ref().expect("the first attempt has nothing to beat");
        self.instance.solution(buffers, &best.layout, best.top, best.planner.name())
    }
}
