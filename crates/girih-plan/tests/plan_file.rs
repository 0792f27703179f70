//! The plan file and the verification of plans: what is written comes back, and what is damaged is
//! refused.

use girih_plan::{
    Budget, Entry, Place, Plan, PlanError, ProblemError, Role, Sequence, file, granted, profile,
    solve, verify,
};
use girih_trace::{
    Action, Event, Iterations, Lifetimes, Mark, MarkKind, PoolId, StackId, StreamId, Trace,
};

/// A run of `steps` steps with model building before, an evaluation after the second step, and a
/// block that each step hands to the next.
fn run(steps: u32) -> Trace {
    let mut run = Run::default();
    for k in 0..8 {
        run.alloc(1 << 20 | k, k + 1000);
    }
    for step in 0..steps {
        run.mark(MarkKind::Step);
        for layer in 0..40 {
            run.alloc(layer, 3000 + layer * 700);
        }
        if step == 0 {
            run.alloc(2 << 20, 5_000_000);
        }
        for layer in (0..40).rev() {
            run.alloc(100 + layer, 900 + layer * 350);
            run.free(layer);
            run.free(100 + layer);
        }
        if step == 1 {
            run.mark(MarkKind::Eval);
            for k in 0..20 {
                run.alloc(500 + k, 100_000 + k);
                if k > 0 {
                    run.free(500 + k - 1);
                }
            }
            run.free(519);
        }
    }
    run.trace
}

#[derive(Default)]
struct Run {
    trace: Trace,
    sizes: std::collections::HashMap<u64, u64>,
}

impl Run {
    fn push(&mut self, action: Action, id: u64, size: u64) {
        self.trace.events.push(Event {
            address: (id + 1) << 30,
            size,
            time_us: 0,
            stack: StackId::NONE,
            stream: StreamId(0),
            pool: PoolId::DEFAULT,
            action,
        });
    }

    fn alloc(&mut self, id: u64, size: u64) {
        self.sizes.insert(id, size);
        self.push(Action::Alloc, id, size);
    }

    fn free(&mut self, id: u64) {
        let size = self.sizes[&id];
        self.push(Action::FreeRequested, id, size);
        self.push(Action::FreeCompleted, id, size);
    }

    fn mark(&mut self, kind: MarkKind) {
        let before = self.trace.events.len() as u32;
        self.trace.marks.push(Mark { before, time_us: 0, kind, name: String::new() });
    }
}

fn plan() -> Plan {
    plan_of(&run(5))
}

fn plan_of(trace: &Trace) -> Plan {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    profile::plan(trace, &lives, &iterations, |problem| {
        solve(problem, Budget::interactive(problem.buffers.len()))
    })
    .unwrap()
}

fn written(plan: &Plan) -> String {
    let mut bytes = Vec::new();
    file::write(plan, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_plan_has_an_opening_a_ring_and_the_evaluation_in_between() {
    let plan = plan();
    let roles: Vec<Role> = plan.sequences.iter().map(|sequence| sequence.role).collect();
    assert_eq!(roles, [Role::Opening, Role::Steady, Role::Interlude(80)]);
    assert_eq!(plan.iteration_requests(), 80);
    assert_eq!(plan.sequences[2].entries.len(), 20);
    assert!(plan.proven, "a gap of {}", plan.gap());
    let persistent: u64 = (0..8).map(|k| granted(k + 1000)).sum::<u64>() + granted(5_000_000);
    assert_eq!(plan.persistent_bytes, persistent);
    // Everything has a place, and the opening's layers have those of the ring.
    let entries = plan.sequences.iter().flat_map(|sequence| &sequence.entries);
    assert!(entries.clone().all(|entry| entry.place != Place::Outside));
    assert_eq!(plan.sequences[0].entries[8].place, plan.sequences[1].entries[0].place);
}

#[test]
fn what_a_step_frees_at_its_end_is_not_in_the_way_of_an_evaluation_after_another_step() {
    let mut run = Run::default();
    for step in 0..3 {
        run.mark(MarkKind::Step);
        for layer in 0..80 {
            run.alloc(layer, 1_000_000 + layer);
        }
        for layer in 0..80 {
            run.free(layer);
        }
        if step == 1 {
            for k in 100..120 {
                run.alloc(k, 3_000_000);
            }
            (100..120).for_each(|k| run.free(k));
        }
    }
    let plan = plan_of(&run.trace);
    // The evaluation is a part of the ring, since that step is the model of the others.
    assert_eq!(plan.iteration_requests(), 100);
    let step: u64 = (0..80).map(|layer| granted(1_000_000 + layer)).sum();
    assert_eq!(plan.arena_bytes, step, "the evaluation needs less than a step");
}

#[test]
fn what_is_written_comes_back() {
    let plan = plan();
    assert_eq!(file::read(written(&plan).as_bytes()).unwrap(), plan);
}

#[test]
fn the_fingerprint_changes_with_a_size_and_not_with_what_comes_before_the_ring() {
    let plan = plan();
    let mut other = plan.clone();
    other.sequences[0].entries[0].size_min -= 1;
    assert_eq!(other.fingerprint(), plan.fingerprint());
    other.sequences[1].entries[0].size_min -= 1;
    assert_ne!(other.fingerprint(), plan.fingerprint());
}

#[test]
fn a_truncated_file_is_refused_wherever_it_ends() {
    let text = written(&plan());
    for end in (0..text.len() - 2).step_by(37) {
        assert!(file::read(&text.as_bytes()[..end]).is_err(), "cut after {end} bytes");
    }
}

#[test]
fn a_file_of_another_version_is_told_from_a_damaged_one() {
    let text = written(&plan()).replace("\"version\":1", "\"version\":9");
    let error = file::read(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("version 9"), "{error}");
}

#[test]
fn a_size_that_was_edited_is_noticed() {
    let plan = plan();
    let size = plan.sequences[1].entries[0].size_min;
    let text = written(&plan).replace(&format!("[{size},"), &format!("[{},", size - 1));
    assert!(matches!(
        file::read(text.as_bytes()).unwrap_err(),
        file::PlanFileError::Fingerprint { .. }
    ));
}

/// Damages the plan and expects it to be found out.
fn assert_refused(what: &str, damage: impl FnOnce(&mut Plan)) {
    let mut plan = plan();
    damage(&mut plan);
    assert!(verify(&plan).is_err(), "{what} was not noticed");
    assert!(file::write(&plan, Vec::new()).is_err(), "{what} was written");
}

#[test]
fn every_damage_to_a_plan_is_noticed() {
    let arena = |entry: &Entry| match entry.place {
        Place::Arena(offset) => Some(offset),
        _ => None,
    };
    let plan = plan();
    for (index, sequence) in plan.sequences.iter().enumerate() {
        for (number, entry) in sequence.entries.iter().enumerate() {
            let Some(offset) = arena(entry) else { continue };
            // Some live neighbour in time has other bytes: moving onto them must be refused.
            let end = entry.until as usize;
            let mate = (number + 1..end.min(sequence.entries.len()))
                .find_map(|k| arena(&sequence.entries[k]).filter(|&other| other != offset));
            if let Some(other) = mate {
                assert_refused("an overlap", |plan| {
                    plan.sequences[index].entries[number].place = Place::Arena(other);
                });
            }
        }
    }
    assert_refused("an offset off its alignment", |plan| {
        let offset = arena(&plan.sequences[1].entries[0]).unwrap();
        plan.sequences[1].entries[0].place = Place::Arena(offset + 1);
    });
    assert_refused("an arena that is too small", |plan| plan.arena_bytes -= 512);
    assert_refused("a persistent region that is too small", |plan| plan.persistent_bytes -= 512);
    assert_refused("an arena that is longer than its places", |plan| plan.arena_bytes += 512);
    assert_refused("a persistent region likewise", |plan| plan.persistent_bytes += 512);
    assert_refused("an arena that no device has", |plan| plan.arena_bytes = 1 << 60);
    assert_refused("a life that ends before it begins", |plan| {
        plan.sequences[1].entries[5].until = 5;
    });
    assert_refused("two persistent blocks in one place", |plan| {
        plan.sequences[0].entries[1].place = plan.sequences[0].entries[0].place;
    });
    assert_refused("sizes upside down", |plan| plan.sequences[1].entries[0].size_min = 1 << 50);
    assert_refused("an interlude before nothing", |plan| {
        plan.sequences[2].role = Role::Interlude(81);
    });
    assert_refused("an opening at the end", |plan| plan.sequences.reverse());
    let steady = plan.sequences[1].clone();
    assert_refused("two rings", |plan| plan.sequences.push(steady));
}

#[test]
fn overlap_errors_name_the_buffers() {
    let mut plan = plan();
    let place = plan.sequences[1].entries[1].place;
    plan.sequences[1].entries[0].place = place;
    let error = verify(&plan).unwrap_err();
    assert!(matches!(error, PlanError::Overlap { sequence: 1, .. }), "{error}");
}

#[test]
fn a_plan_of_one_place_larger_than_any_device_is_refused_however_right_it_is() {
    let of = |bytes: u64| Plan {
        arena_bytes: bytes,
        persistent_bytes: 0,
        lower_bound: bytes,
        in_use: 0,
        peak: bytes,
        proven: true,
        planner: "skyline".to_owned(),
        requests: 1,
        iterations: 2,
        rounds: 1,
        trial: None,
        rooms: Vec::new(),
        sequences: vec![Sequence {
            role: Role::Steady,
            entries: vec![Entry {
                size_min: bytes,
                size_max: bytes,
                stream: StreamId(0),
                place: Place::Arena(0),
                until: 1,
            }],
            boundaries: Vec::new(),
        }],
    };
    assert_eq!(verify(&of(1 << 42)), Ok(()));
    for bits in [43, 45, 60] {
        let error = verify(&of(1 << bits)).unwrap_err().to_string();
        assert!(error.contains("more than the 4398046511104"), "{error}");
    }
}

#[test]
fn a_full_disk_is_no_damaged_plan() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    impl std::io::Read for Full {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StaleNetworkFileHandle.into())
        }
    }
    let error = file::write(&plan(), Full).unwrap_err();
    assert!(matches!(error, file::PlanFileError::Io(_)), "{error}");
    let error = file::read(Full).unwrap_err();
    assert!(matches!(error, file::PlanFileError::Io(_)), "{error}");
}

#[test]
fn requests_that_add_up_to_more_than_can_be_counted_are_an_error() {
    let mut run = Run::default();
    for k in 0..80 {
        run.alloc(k, u64::MAX / 300);
    }
    let lives = Lifetimes::of(&run.trace);
    let iterations = Iterations::of(&run.trace, &lives);
    let refused = profile::plan(&run.trace, &lives, &iterations, |problem| {
        solve(problem, Budget::attempts(1))
    });
    assert!(matches!(refused, Err(ProblemError::TooLarge { .. })), "{refused:?}");
}
