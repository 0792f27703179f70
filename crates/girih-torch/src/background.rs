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

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use girih_plan::Plan;
use girih_runtime::auto::Job;

use crate::control::{save_plan, timed};

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

    /// Begins a job on a thread of its own.
    pub(crate) fn start(&mut self, job: Job) {
        let slot = Arc::clone(&self.slot);
        self.is_busy = true;
        self.spawn("plan", move || run(job, &slot), "the run goes on without a plan");
    }

    /// Keeps the plan for the next launch, on a thread of its own.
    pub(crate) fn keep(&self, plan: Arc<Plan>) {
        let Some(file) = self.file.clone() else { return };
        let slot = Arc::clone(&self.slot);
        let work = move || {
            if let Err(error) = keep(&plan, &file) {
                let warning = format!("the plan is not kept for the next run: {error}");
                lock(&slot).warnings.push(warning);
            }
        };
        self.spawn("keep", work, "the plan is not kept for the next run");
    }

    /// Throws away the plan that is kept: it was given up.
    pub(crate) fn throw_away(&self) {
        if let Some(file) = &self.file {
            // If it cannot be removed, the next launch gives it up as well.
            let _ = std::fs::remove_file(file);
        }
    }

    fn spawn(&self, what: &str, work: impl FnOnce() + Send + 'static, otherwise: &str) {
        let thread = thread::Builder::new().name(format!("girih-{what}-{}", self.device));
        if let Err(error) = thread.spawn(work) {
            let warning = format!("no thread could be started ({error}); {otherwise}");
            lock(&self.slot).warnings.push(warning);
        }
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

/// The file of a key and a device in a folder of plans.
pub(crate) fn plan_file(folder: &Path, key: &str, device: impl Display) -> PathBuf {
    // FNV-1a: the same on every machine and in every release.
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    folder.join(format!("{hash:016x}-{device}.plan"))
}

/// What the thread does.
fn run(job: Job, slot: &Mutex<Slot>) {
    // A refusal costs nothing but the priority.
    let _ = rustix::process::setpriority_process(None, NICE);
    let (planned, seconds) = timed(|| catch_unwind(AssertUnwindSafe(|| job.run())));
    let mut left = lock(slot);
    left.seconds += seconds;
    let Ok(plan) = planned else {
        left.warnings.push(
            "planning failed, which is a bug of Girih; the run goes on without a plan".to_owned(),
        );
        return;
    };
    left.plan = Some(Arc::new(plan));
}

fn keep(plan: &Plan, file: &Path) -> Result<(), String> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    }
    save_plan(plan, file)
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    // What it holds is written whole: a panic of another holder leaves it right.
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_the_same_key_share_a_file_and_devices_do_not() {
        let file = |key, device| plan_file(Path::new("plans"), key, device);
        assert_eq!(file("llama", 0), Path::new("plans/60e336d390896756-0.plan"));
        assert_ne!(file("llama", 0), file("llama", 1));
        assert_ne!(file("llama", 0), file("lama", 0));
    }
}
