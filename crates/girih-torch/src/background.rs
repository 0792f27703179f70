//! Planning beside the run: a job of `auto` on a thread of its own, and its plan on disk.
//!
//! ```text
//!  heap, under its lock    take_job ─► start            collect ─► offer
//!                                        │                 ▲
//!  thread, low priority                  └─► run ─► slot ──┘
//!  thread                                                  └─► plan_dir/KEY-DEVICE.plan
//! ```
//!
//! A plan is kept on disk once it has shown that it fits, and thrown away if the heap gives it up:
//! what was not worth following is no use to the next launch either.
//!
//! The thread never takes the lock of a heap: it leaves the plan in a slot, where the heap looks at
//! marks and now and then. So planning cannot hold up an allocation, and a plan is switched to by a
//! thread of the program, at a point that the policy chooses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use girih_plan::Plan;
use girih_runtime::auto::Job;

use crate::control::timed;
use crate::heap::add_warning;
use crate::kept_plans;

/// How much less than others the planning thread wants the processor: the loader of the data and
/// the launching of kernels come first.
const NICE: i32 = 10;

/// The planning of one heap.
pub(crate) struct Background {
    slot: Arc<Mutex<Slot>>,
    /// A job is running, or its plan was not collected yet.
    is_busy: bool,
    /// Where plans are kept.
    file: Option<PathBuf>,
    device: u32,
}

/// What the thread leaves.
#[derive(Default)]
struct Slot {
    plan: Option<Arc<Plan>>,
    /// Seconds that planning took, all jobs together.
    seconds: f64,
    warnings: Vec<String>,
    /// The plan that is to be kept next.
    to_keep: Option<Arc<Plan>>,
    /// A thread keeps plans.
    is_keeping: bool,
}

impl Background {
    /// Planning for `device`, whose plans are kept in `file`.
    pub(crate) fn new(device: u32, file: Option<PathBuf>) -> Background {
        Background { slot: Arc::default(), is_busy: false, file, device }
    }

    /// True while a job is out.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// True if plans are kept. Else none need be made.
    pub(crate) fn keeps(&self) -> bool {
        self.file.is_some()
    }

    /// True while a thread plans, or keeps a plan.
    pub(crate) fn is_working(&self) -> bool {
        let left = lock(&self.slot);
        (self.is_busy && left.plan.is_none()) || left.is_keeping
    }

    /// Begins a job on a thread of its own.
    pub(crate) fn start(&mut self, job: Job) {
        let slot = Arc::clone(&self.slot);
        self.is_busy = true;
        self.spawn("plan", move || run(job, &slot), "the run goes on without a plan");
    }

    /// Keeps the plan for the next launch, on a thread of its own. One that was to be kept and was not yet
    /// is forgotten: there is one thread at most, however slow the disk is.
    pub(crate) fn keep(&self, plan: Arc<Plan>) {
        let Some(file) = self.file.clone() else { return };
        {
            let mut left = lock(&self.slot);
            left.to_keep = Some(plan);
            if std::mem::replace(&mut left.is_keeping, true) {
                return;
            }
        }
        let slot = Arc::clone(&self.slot);
        let work = move || {
            while let Some(plan) = next_to_keep(&slot) {
                if let Err(error) = kept_plans::keep(&plan, &file) {
                    let warning = format!("the plan is not kept for the next run: {error}");
                    add_warning(&mut lock(&slot).warnings, warning);
                }
            }
        };
        if !self.spawn("keep", work, "the plan is not kept for the next run") {
            lock(&self.slot).is_keeping = false;
        }
    }

    /// Throws away the plan that is kept: it was given up.
    pub(crate) fn throw_away(&self) {
        if let Some(file) = &self.file {
            lock(&self.slot).to_keep = None;
            // If it cannot be removed, the next launch gives it up as well.
            let _ = std::fs::remove_file(file);
        }
    }

    /// Runs `work` on a thread. False if there is none to be had; then a user is told what goes on
    /// `otherwise`.
    fn spawn(&self, what: &str, work: impl FnOnce() + Send + 'static, otherwise: &str) -> bool {
        let thread = thread::Builder::new().name(format!("girih-{what}-{}", self.device));
        let started = thread.spawn(work);
        if let Err(error) = &started {
            let warning = format!("no thread could be started ({error}); {otherwise}");
            add_warning(&mut lock(&self.slot).warnings, warning);
        }
        started.is_ok()
    }

    /// The plan of the job that is done, once.
    pub(crate) fn collect(&mut self) -> Option<Arc<Plan>> {
        let plan = lock(&self.slot).plan.take()?;
        self.is_busy = false;
        Some(plan)
    }

    /// Seconds that planning took so far.
    pub(crate) fn seconds(&self) -> f64 {
        lock(&self.slot).seconds
    }

    /// What users should be told and were not yet.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.slot).warnings)
    }
}

/// What the thread does.
fn run(job: Job, slot: &Mutex<Slot>) {
    // A refusal costs nothing but the priority.
    let _ = rustix::process::setpriority_process(None, NICE);
    let (planned, seconds) = timed(|| catch_unwind(AssertUnwindSafe(|| job.run())));
    let mut left = lock(slot);
    left.seconds += seconds;
    let Ok(plan) = planned else {
        add_warning(
            &mut left.warnings,
            "planning failed, which is a bug of Girih; the run goes on without a plan".to_owned(),
        );
        return;
    };
    left.plan = Some(Arc::new(plan));
}

/// The plan that is to be kept next; if there is none, the thread is over.
fn next_to_keep(slot: &Mutex<Slot>) -> Option<Arc<Plan>> {
    let mut left = lock(slot);
    let plan = left.to_keep.take();
    left.is_keeping = plan.is_some();
    plan
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    // What it holds is written whole: a panic of another holder leaves it right.
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}
