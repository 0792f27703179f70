//! `auto`: learns a plan while the program runs, for the next launch, and follows the one that it began with.
//!
//! ```text
//!  opening   step 0   step 1   step 2  | step 3   step 4   step 5  |                 step 90
//!  [ recording .......................]| a shadow goes along the   |                 [ recording
//!                            job: plan ┘ plan, and it fits: kept ──┘                   again if steps do not fit
//! ```
//!
//! It is the lake, and records what it is asked for. When two iterations are alike it wants a plan:
//! [`Auto::take_job`] hands the recording out, the owner runs it on a thread of its choice and hands the
//! plan back to [`Auto::offer`]. From then on a shadow goes along it, and only iterations that do not fit are
//! recorded: they join the recording, and the next plan has room for them too. When that is so, and when a plan
//! goes, decides the judge (`judge`).
//!
//! A plan is followed from the first request on or not at all: what stays is made in the first steps, and in the middle of
//! a run the lake leaves next to nothing to be won.
//!
//! Where the program marks no steps, recordings are tried for repetition at growing intervals.

mod job;
mod judge;
mod recorder;
mod recording;

use std::sync::Arc;

use girih_plan::Plan;
use girih_trace::{Mark, PoolId};

pub use self::job::{Job, learn};
pub use self::judge::Options;
use self::judge::{Judge, Seen, Verdict};
use self::recorder::{Recorder, WINDOW_BYTES};
use self::recording::Kind;
use crate::lake::{Asked, Lake, Rehearsal};
use crate::policy::{AllocError, BlockId, Env, Granted, Policy, Request};
use crate::wrapper::Wrapper;

/// Who makes the plans, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Planning {
    /// The owner, with [`Auto::take_job`] and [`Auto::offer`].
    #[default]
    ByOwner,
    /// The policy itself, as soon as one is wanted: for simulations.
    AtOnce,
    /// The policy itself, an iteration after one is wanted: for simulations of a slow owner.
    NextIteration,
}

/// The policy that learns its plan. See the [module](self).
pub struct Auto {
    lake: Lake,
    recorder: Recorder,
    planning: Planning,
    judge: Judge,
    /// A plan is wanted.
    is_wanted: bool,
    /// A job is out.
    is_out: bool,
    /// Its plan is not wanted any more.
    is_stale: bool,
    /// The plan for the next launch, and what goes along it.
    next: Option<(Arc<Plan>, Rehearsal)>,
    /// The plan that has shown that it fits.
    proven: Option<Arc<Plan>>,
    /// Plans that were dropped.
    given_up: u64,
}

impl Auto {
    /// A policy that begins with `lake`, which holds nothing. If that has a plan it is followed from the first
    /// request on, and another one is learnt if it does not fit.
    pub fn new(lake: Lake) -> Auto {
        let mut recorder = Recorder::with_window(WINDOW_BYTES);
        recorder.restart(false);
        Auto {
            judge: Judge::new(Options::default(), lake.plan().map(|plan| &**plan)),
            lake,
            recorder,
            planning: Planning::ByOwner,
            is_wanted: false,
            is_out: false,
            is_stale: false,
            next: None,
            proven: None,
            given_up: 0,
        }
    }

    /// Says who makes the plans.
    pub fn set_planning(&mut self, planning: Planning) {
        self.planning = planning;
    }

    /// Says how plans are judged, before the first request.
    pub fn set_options(&mut self, options: Options) {
        self.judge = Judge::new(options, self.lake.plan().map(|plan| &**plan));
    }

    /// The recording to be planned, if a plan is wanted; its plan goes to [`Auto::offer`]. Worth
    /// asking after each mark, and now and then if there are none. Costs nothing if no plan is
    /// wanted, and little otherwise: the recording is shared, not copied.
    pub fn take_job(&mut self) -> Option<Job> {
        if !self.is_wanted || self.is_out {
            return None;
        }
        (self.is_wanted, self.is_out) = (false, true);
        Some(Job { recording: self.recorder.recording() })
    }

    /// Takes the plan of a job, which is gone along from now on. A plan in which nothing repeats is left alone, and
    /// recording goes on.
    pub fn offer(&mut self, plan: Arc<Plan>) {
        self.is_out = false;
        if !std::mem::take(&mut self.is_stale) && self.judge.trusts(&plan, self.lake.plan()) {
            let shadow = Rehearsal::new(&plan, self.lake.granule());
            self.next = Some((plan, shadow));
        }
    }

    /// The plan that the run was found to fit, once for each: it is worth keeping for the next launch.
    pub fn take_proven(&mut self) -> Option<Arc<Plan>> {
        self.proven.take()
    }

    /// How often a plan was dropped because it did not fit, or because more was held with it.
    pub fn given_up(&self) -> u64 {
        self.given_up + self.lake.given_up()
    }

    /// See [`Lake::expect`].
    pub fn expect(&mut self, asked: Asked) {
        self.lake.expect(asked);
    }

    /// What follows the plans.
    pub fn lake(&self) -> &Lake {
        &self.lake
    }

    /// An iteration has ended, and another one begins.
    fn begin_iteration(&mut self) {
        if self.planning == Planning::NextIteration {
            self.plan_now();
        }
        let seen = self.seen();
        let verdict = self.judge.end_iteration(&self.lake, seen, &mut self.recorder, !self.is_out);
        self.carry_out(verdict);
        if self.planning == Planning::AtOnce {
            self.plan_now();
        }
        if self.judge.records(self.next.is_some() || self.lake.plan().is_some()) {
            self.recorder.resume(self.lake.live());
        }
        self.judge.begin_iteration(&self.lake);
    }

    /// What the plan that the shadow goes along would have given in the iteration that has ended.
    fn seen(&mut self) -> Seen {
        self.next.as_mut().map(|(_, shadow)| shadow.end_iteration())
    }

    /// What was judged is of the plan for the next launch, or of the one that is followed.
    fn carry_out(&mut self, verdict: Verdict) {
        self.is_wanted |= verdict.wants_plan;
        if verdict.is_proven {
            let next = self.next.as_ref().map(|(plan, _)| plan);
            self.proven = next.or(self.lake.plan()).cloned();
        }
        if verdict.drops_plan && self.next.take().is_none() && self.lake.plan().is_some() {
            self.lake.unfollow();
            self.given_up += 1;
        }
    }

    /// Makes the plan that is wanted.
    fn plan_now(&mut self) {
        if let Some(job) = self.take_job() {
            self.offer(Arc::new(job.run()));
        }
    }

    /// What a request tells where the program marks nothing.
    #[cold]
    fn find_way(&mut self) {
        if self.recorder.has_overflowed() {
            self.recorder.restart(true);
            self.judge.record_anew();
            return;
        }
        let seen = self.seen();
        let verdict = self.judge.look(&self.lake, seen, &mut self.recorder, !self.is_out);
        self.carry_out(verdict);
        if verdict.wants_plan {
            self.recorder.keep(Kind::Opening);
            if self.planning != Planning::ByOwner {
                self.plan_now();
            }
        }
    }
}

impl Wrapper for Auto {
    type Inner = Lake;

    fn inner(&self) -> &Lake {
        &self.lake
    }

    fn inner_mut(&mut self) -> &mut Lake {
        &mut self.lake
    }

    #[inline]
    fn run<T>(
        &mut self,
        env: &mut Env<'_>,
        operation: impl FnOnce(&mut Lake, &mut Env<'_>) -> T,
    ) -> T {
        if !self.recorder.is_on() {
            return operation(&mut self.lake, env);
        }
        let mut tee = self.recorder.tee(env.log);
        let mut env = Env { may_wait: env.may_wait, ..Env::new(env.device, &mut tee) };
        operation(&mut self.lake, &mut env)
    }

    fn name(&self) -> &'static str {
        "auto"
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        if request.pool == PoolId::DEFAULT && self.judge.note() {
            self.find_way();
        }
        let granted = if self.recorder.is_on() {
            self.run(env, |lake, env| Policy::allocate(lake, env, request))
        } else {
            // The same without a recorder. `Policy::allocate` would be a call.
            Wrapper::allocate(&mut self.lake, env, request)
        };
        if let (Some((_, shadow)), Ok(granted)) = (&mut self.next, &granted)
            && request.pool == PoolId::DEFAULT
        {
            shadow.allocate(&request, granted.block);
        }
        granted
    }

    fn free(&mut self, env: &mut Env<'_>, block: BlockId) -> Result<(), AllocError> {
        if let Some((_, shadow)) = &mut self.next {
            shadow.free(block);
        }
        if self.recorder.is_on() {
            return self.run(env, |lake, env| Policy::free(lake, env, block));
        }
        Wrapper::free(&mut self.lake, env, block)
    }

    fn mark(&mut self, env: &mut Env<'_>, mark: &Mark) -> Result<(), AllocError> {
        let was_marked = self.judge.boundary();
        if self.judge.is_boundary(mark.kind) {
            if self.judge.boundary() != was_marked {
                // What was found without the marks may have been microbatches.
                self.next = None;
                self.is_stale = self.is_out;
                self.recorder.begin_iterations();
            }
            self.begin_iteration();
        }
        if let Some((_, shadow)) = &mut self.next {
            shadow.mark(mark.kind);
        }
        self.recorder.mark(mark.kind);
        Policy::mark(&mut self.lake, env, mark)
    }
}
