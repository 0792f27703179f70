//! What views and waits take of the time, whatever the program and its plan: the time at the beginning that is free,
//! their share of what has passed, and what one request is beyond that.

use arbtest::arbitrary::{Result, Unstructured};
use girih_plan::Place;
use girih_trace::MarkKind;

use super::*;
use crate::device::Device;
use crate::suite::reckless_plan;

/// Nanoseconds that a page of a view takes at least, of whatever size it is: it is mapped and made accessible.
fn page_ns() -> u64 {
    let at = |mib: u64| Call::Map.microseconds(mib * MIB) + Call::SetAccess.microseconds(mib * MIB);
    (at(20) * 1e3) as u64
}

/// A plan of places of up to 128 MiB, wrong in every way.
fn plan(u: &mut Unstructured<'_>) -> Result<Plan> {
    let mut plan = reckless_plan(u.arbitrary()?);
    for entry in &mut plan.sequences[0].entries {
        entry.size_max *= 16;
        if let Place::Arena(offset) | Place::Persistent(offset) = &mut entry.place {
            *offset *= 16;
        }
    }
    plan.rooms
        .iter_mut()
        .for_each(|room| (room.offset, room.bytes) = (16 * room.offset, 16 * room.bytes));
    (plan.arena_bytes, plan.persistent_bytes) = (GIB, GIB);
    plan.in_use = u.int_in_range(0..=2 * GIB)?;
    Ok(plan)
}

/// A program of two streams whose sizes never come again.
struct Run {
    machine: Machine,
    options: Options,
    live: Vec<(Granted, StreamId)>,
    time_us: i64,
    /// Nanoseconds: what views took at least and waits at most, and the most that one request did.
    taken: u64,
    most: u64,
    /// Waits that are not told yet: they are with the next mark.
    untold: u64,
    /// More could not be bought.
    is_out: bool,
    views: u64,
}

impl Run {
    fn new(u: &mut Unstructured<'_>) -> Result<Run> {
        // A little debt buys as much as is in use.
        let options = Options {
            bought: 1,
            bought_in_ms: 2,
            time_free_ms: u.int_in_range(0..=20)?,
            time_share: u.int_in_range(50..=1000)?,
            stall_max_us: u.int_in_range(0..=300)?,
            ..Options::default()
        };
        let mut machine = Machine::of(options, config(), 512 * GIB);
        if u.arbitrary()? {
            machine.lake.first_plan = Some(Arc::new(plan(u)?));
        }
        let (taken, most, untold, views) = (0, 0, 0, 0);
        let mut run = Run {
            machine,
            options,
            live: Vec::new(),
            time_us: 0,
            taken,
            most,
            untold,
            is_out: false,
            views,
        };
        // Time is known from the second mark on.
        [0, 1].into_iter().for_each(|passed| run.mark(passed));
        Ok(run)
    }

    fn mark(&mut self, passed_us: i64) {
        self.time_us += passed_us;
        let mark =
            Mark { before: 0, time_us: self.time_us, kind: MarkKind::Step, name: String::new() };
        self.machine.with(|lake, env| lake.mark(env, &mark)).unwrap();
        self.untold = 0;
    }

    fn waits(&self) -> u64 {
        self.machine.calls(Call::WaitEvent)
    }

    fn ask(&mut self, size: u64, stream: StreamId) {
        let machine = &mut self.machine;
        let search = Search { size, home: machine.lake.heap.home(stream, false) };
        let mut env = Env::new(&mut machine.device, &mut machine.log);
        let may_hold = machine.lake.may_hold_in_debt(&mut env, &search);
        let lacking = size.next_multiple_of(machine.lake.granule());
        let whole = machine.lake.allowed(&search) + machine.lake.most_in_use;
        self.is_out |= machine.reserved() + lacking > whole;
        let (held, waits, views) =
            (machine.reserved(), self.waits(), self.machine.stats().num_stitches);
        let hits = self.machine.lake.following().hits;
        let pages = |run: &Run| run.machine.calls(Call::Map) - run.machine.calls(Call::Create);
        let (mapped, spent) = (pages(self), self.machine.device.prices().spent_ns);
        let granted = self.machine.used(size, stream);
        self.live.push((granted, stream));
        let is_new = self.machine.stats().num_stitches > views;
        self.views += u64::from(is_new);
        let waited = self.waits() - waits;
        // A place of a plan is taken after a wait, in debt too.
        let is_planned = self.machine.lake.following().hits > hits;
        if let Some(may_hold) = may_hold.filter(|_| is_new || (waited > 0 && !is_planned)) {
            assert!(held + lacking > may_hold, "{held} + {lacking} of {may_hold}");
        }
        self.untold += waited;
        let stalls = waited * self.options.stall_max_us * 1000;
        self.taken += (pages(self) - mapped) * page_ns() + stalls;
        self.most = self.most.max(self.machine.device.prices().spent_ns - spent);
        self.check();
    }

    fn check(&self) {
        let Options { time_free_ms, time_share, bought_in_ms, stall_max_us, .. } = self.options;
        let share = self.time_us as u64 * 1000 / time_share;
        let allowed = (time_free_ms + bought_in_ms) * 1_000_000 + share;
        let beyond = self.most + self.untold * stall_max_us * 1000;
        let places = self.machine.lake.following().hits > 0;
        assert!(
            self.is_out || (places && self.waits() > 0) || self.taken <= allowed + beyond,
            "{} taken of {allowed}, and {beyond}: {:?}",
            self.taken,
            self.machine.lake.pace
        );
    }
}

#[test]
fn views_and_waits_take_their_share_of_the_time_as_long_as_memory_lasts() {
    let (mut views, mut in_debt) = (0, 0);
    // As often as it takes, however slow the machine is.
    for _ in 0..16 {
        if views > 50 && in_debt > 5 {
            break;
        }
        arbtest::arbtest(|u| {
            let mut run = Run::new(u)?;
            for _ in 0..u.int_in_range(1..=12)? {
                for _ in 0..u.int_in_range(1..=30)? {
                    if run.live.len() > 24 || (!run.live.is_empty() && u.ratio(2, 5)?) {
                        let (block, stream) = run.live.swap_remove(u.choose_index(run.live.len())?);
                        run.machine.free_used(block, stream);
                    } else {
                        let stream = if u.ratio(1, 4)? { SIDE } else { MAIN };
                        run.ask(u.int_in_range(2 * MIB..=128 * MIB)?, stream);
                    }
                }
                in_debt += u64::from(run.machine.lake.pace.is_in_debt());
                run.mark(u.int_in_range(0..=400_000)?);
            }
            views += run.views;
            Ok(())
        })
        .size_min(2000)
        .size_max(8000)
        .budget_ms(4_000);
    }
    assert!(views > 50 && in_debt > 5, "{views} views, {in_debt} steps in debt");
}
