//! What is right and then damaged in any way is refused, unless it happens to be still right.
//!
//! Right is what the definitions here say: every pair, every tick, with nothing of the library in
//! them. A damage is drawn by chance, and each test counts how often it made something wrong.

use std::cell::Cell;
use std::sync::OnceLock;

use crate::common::{AnyProblem, planners};
use arbitrary::{Arbitrary, Result, Unstructured};
use girih_plan::check::{check, check_pairs};
use girih_plan::{
    Budget, Buffer, Entry, Place, Plan, Problem, Role, Room, Sequence, Solution, file, profile,
    solve, verify,
};
use girih_trace::generate::{Rng, Training, recording, training};
use girih_trace::{Iterations, Lifetimes, StreamId, Trace};
use serde_json::Value;

/// Whether a buffer alive in `[lower, upper)` is alive at `tick` of a ring, or of a line (0).
fn lives(lower: u32, upper: u32, period: u32, tick: u32) -> bool {
    (lower <= tick && tick < upper)
        || (period > 0 && u64::from(tick) + u64::from(period) < u64::from(upper))
}

/// Whether a solution solves a problem, by definition.
fn is_right(problem: &Problem, solution: &Solution) -> bool {
    let Problem { buffers, period, alignment } = problem;
    let has_meaning = |b: &Buffer| {
        b.lower < b.upper && (*period == 0 || (b.lower < *period && b.upper - b.lower <= *period))
    };
    if *alignment == 0 || !buffers.iter().all(has_meaning) {
        return false;
    }
    let rounded =
        |b: &Buffer| u128::from(b.size).div_ceil((*alignment).into()) * u128::from(*alignment);
    if buffers.iter().map(rounded).sum::<u128>() > u64::MAX.into()
        || buffers.len() != solution.offsets.len()
    {
        return false;
    }
    let ends = |k: usize| {
        (
            u128::from(solution.offsets[k]),
            u128::from(solution.offsets[k]) + u128::from(buffers[k].size),
        )
    };
    let ticks = buffers.iter().map(|b| b.upper).max().unwrap_or(0);
    (0..buffers.len()).filter(|&k| buffers[k].size > 0).all(|k| {
        let (start, end) = ends(k);
        let others = (0..k).filter(|&other| buffers[other].size > 0);
        let mut clashes = others.filter(|&other| ends(other).0 < end && start < ends(other).1);
        let meets = |other: usize| {
            (0..ticks).any(|tick| {
                [k, other].iter().all(|&b| lives(buffers[b].lower, buffers[b].upper, *period, tick))
            })
        };
        start % u128::from(*alignment) == 0 && end <= solution.height.into() && !clashes.any(meets)
    })
}

/// Damages a problem or its solution in one way.
fn damage(u: &mut Unstructured<'_>, problem: &mut Problem, solution: &mut Solution) -> Result<()> {
    let buffers = problem.buffers.len();
    if buffers == 0 {
        return Ok(());
    }
    let (one, other) = (u.choose_index(buffers)?, u.choose_index(buffers)?);
    let few = u.int_in_range(1..=4u64)?;
    let at = solution.offsets.get(one).copied();
    match u.int_in_range(0..=13)? {
        0 => set(&mut solution.offsets, one, few * problem.alignment),
        1 => set(&mut solution.offsets, one, at.unwrap_or(0).wrapping_sub(few)),
        2 => set(&mut solution.offsets, one, at.unwrap_or(0).wrapping_add(few * problem.alignment)),
        3 => set(&mut solution.offsets, one, u64::MAX - few),
        4 if solution.offsets.len() == buffers => solution.offsets.swap(one, other),
        5 => drop(solution.offsets.pop()),
        6 => solution.offsets.push(at.unwrap_or(0)),
        7 => solution.height = solution.height.wrapping_sub(few),
        8 => problem.buffers[one].size = problem.buffers[one].size.wrapping_add(few),
        9 => problem.buffers[one].upper = problem.buffers[one].upper.wrapping_add(few as u32),
        10 => problem.buffers[one].lower = problem.buffers[one].lower.wrapping_sub(few as u32),
        11 => problem.period = u.int_in_range(0..=12)?,
        12 => problem.alignment = u.int_in_range(0..=4)?,
        _ => {
            let double = problem.buffers[one];
            problem.buffers.push(double);
            solution.offsets.extend(at);
        }
    }
    Ok(())
}

fn set(offsets: &mut [u64], at: usize, value: u64) {
    if let Some(offset) = offsets.get_mut(at) {
        *offset = value;
    }
}

#[test]
fn a_damaged_solution_is_refused_unless_it_is_still_right() {
    let (right, wrong) = (Cell::new(0u32), Cell::new(0u32));
    arbtest::arbtest(|u| {
        let AnyProblem(mut problem) = AnyProblem::arbitrary(u)?;
        let mut solution = u.choose(&planners())?.plan(&problem).expect("valid");
        assert!(is_right(&problem, &solution), "the definition refuses what is right");
        for _ in 0..u.int_in_range(1..=2)? {
            damage(u, &mut problem, &mut solution)?;
        }
        // A lifetime of billions of ticks is refused or not like one of a few; only slower here.
        if problem.buffers.iter().any(|buffer| buffer.upper > 100 && buffer.upper > buffer.lower) {
            return Ok(());
        }
        let expected = is_right(&problem, &solution);
        let count = if expected { &right } else { &wrong };
        count.set(count.get() + 1);
        for verdict in [check(&problem, &solution), check_pairs(&problem, &solution)] {
            assert_eq!(verdict.is_ok(), expected, "{verdict:?} {problem:?} {solution:?}");
        }
        Ok(())
    })
    .budget_ms(1500);
    assert!(right.get() > 10 && wrong.get() > 50, "{right:?} right, {wrong:?} wrong");
}

/// Whether a plan is right, by definition.
fn is_right_plan(plan: &Plan) -> bool {
    without_rooms(plan).is_some_and(|plan| is_right_without_rooms(&plan))
}

/// The plan with each room as one block, in the place of its first entry, that lives as long as the
/// last one. None if a room or what is in it is wrong.
fn without_rooms(plan: &Plan) -> Option<Plan> {
    let is_right_room = |room: &Room| {
        let end = u128::from(room.offset) + u128::from(room.bytes);
        let is_aligned = room.offset.is_multiple_of(512) && room.bytes.is_multiple_of(512);
        is_aligned && room.bytes > 0 && end <= plan.arena_bytes.into()
    };
    if !plan.rooms.iter().all(is_right_room) {
        return None;
    }
    let mut flat = Plan { rooms: Vec::new(), ..plan.clone() };
    for sequence in &mut flat.sequences {
        let count = sequence.entries.len();
        let period = if sequence.role == Role::Steady { count } else { 0 };
        for index in 0..count {
            let Place::Room(number) = sequence.entries[index].place else { continue };
            let room = plan.rooms.get(number as usize)?;
            let mut until = 0;
            for member in index..count {
                let entry = &mut sequence.entries[member];
                if entry.place != Place::Room(number) {
                    continue;
                }
                let last = if period > 0 { member + count } else { count };
                let fits = size(entry) <= room.bytes.into()
                    && 0 < entry.size_max
                    && entry.size_min <= entry.size_max;
                if !fits || entry.until as usize <= member || entry.until as usize > last {
                    return None;
                }
                until = entry.until.max(until);
                entry.place = Place::Outside;
            }
            let first = &mut sequence.entries[index];
            (first.place, first.until) = (Place::Arena(room.offset), until);
            (first.size_min, first.size_max) = (1, room.bytes);
        }
    }
    Some(flat)
}

fn is_right_without_rooms(plan: &Plan) -> bool {
    let steady: Vec<&Sequence> = plan.sequences.iter().filter(|s| s.role == Role::Steady).collect();
    let ring = steady.first().map_or(&[][..], |sequence| &sequence.entries);
    let sequences = plan.sequences.iter().enumerate();
    steady.len() <= 1
        && sequences.clone().all(|(index, sequence)| is_right_sequence(plan, ring, index, sequence))
        && is_right_around_interludes(plan, ring)
        && are_persistent_places_apart(plan)
        && are_claims_right(plan, ring)
        && are_regions_used(plan)
}

/// No region is longer than what is placed in it, and both together are no more than a device holds.
fn are_regions_used(plan: &Plan) -> bool {
    let ends = |is_arena: bool| {
        let end = move |entry: &Entry| match entry.place {
            Place::Arena(offset) if is_arena => Some(u128::from(offset) + size(entry)),
            Place::Persistent(offset) if !is_arena => Some(u128::from(offset) + size(entry)),
            _ => None,
        };
        let entries = plan.sequences.iter().flat_map(|sequence| &sequence.entries);
        entries.filter_map(end).max().unwrap_or(0)
    };
    let (arena, persistent) = (u128::from(plan.arena_bytes), u128::from(plan.persistent_bytes));
    arena <= ends(true) && persistent <= ends(false) && arena + persistent <= 1 << 42
}

/// The bytes `[start, end)` of the arena that an entry holds; none elsewhere.
fn held(entry: &Entry) -> Option<(u128, u128)> {
    let Place::Arena(offset) = entry.place else { return None };
    Some((offset.into(), u128::from(offset) + size(entry)))
}

fn size(entry: &Entry) -> u128 {
    u128::from(entry.size_max).div_ceil(512) * 512
}

fn is_right_sequence(plan: &Plan, ring: &[Entry], index: usize, sequence: &Sequence) -> bool {
    let Sequence { role, entries, boundaries } = sequence;
    let count = entries.len();
    let stands = match *role {
        Role::Opening => index == 0,
        Role::Steady => count > 0,
        Role::Interlude(at) => !ring.is_empty() && at as usize <= ring.len(),
        Role::Variant(round) => !ring.is_empty() && round < plan.rounds && count > 0,
    };
    let in_order = boundaries.windows(2).all(|pair| pair[0].0 <= pair[1].0);
    let in_range = boundaries.iter().all(|(entry, _)| *entry as usize <= count);
    let period = if *role == Role::Steady { count } else { 0 };
    let alone = entries.iter().enumerate().all(|(index, entry)| {
        let sized =
            0 < entry.size_max && entry.size_min <= entry.size_max && entry.size_max <= 1 << 60;
        let last = if period > 0 { index + count } else { count };
        sized
            && match entry.place {
                Place::Room(_) => unreachable!("there are none any more"),
                Place::Outside => true,
                Place::Persistent(offset) => {
                    offset % 512 == 0
                        && u128::from(offset) + size(entry) <= plan.persistent_bytes.into()
                }
                Place::Arena(offset) => {
                    let until = entry.until as usize;
                    let fits = u128::from(offset) + size(entry) <= plan.arena_bytes.into();
                    offset % 512 == 0 && fits && index < until && until <= last
                }
            }
    });
    let alive = |index: usize, tick: usize| {
        lives(index as u32, entries[index].until, period as u32, tick as u32)
    };
    let clash = |a: usize, b: usize| {
        share(&entries[a], &entries[b]) && (0..count).any(|tick| alive(a, tick) && alive(b, tick))
    };
    stands && in_order && in_range && alone && !(0..count).any(|b| (0..b).any(|a| clash(a, b)))
}

fn share(a: &Entry, b: &Entry) -> bool {
    matches!((held(a), held(b)), (Some(a), Some(b)) if a.0 < b.1 && b.0 < a.1)
}

/// Entries of the ring that are alive before and after the place `at`.
fn alive_around(ring: &[Entry], at: u32) -> impl Iterator<Item = &Entry> {
    let count = ring.len() as u32;
    let alive = move |(index, entry): &(u32, &Entry)| {
        (*index < at && at < entry.until) || (count < entry.until && at < entry.until - count)
    };
    (0..).zip(ring).filter(alive).map(|(_, entry)| entry)
}

fn is_right_around_interludes(plan: &Plan, ring: &[Entry]) -> bool {
    plan.sequences.iter().all(|sequence| match sequence.role {
        Role::Interlude(at) => {
            alive_around(ring, at).all(|a| sequence.entries.iter().all(|b| !share(a, b)))
        }
        Role::Opening | Role::Steady | Role::Variant(_) => true,
    })
}

/// Any two places of the persistent region are apart; or they are the same, and of two sequences, of two rounds, or
/// in the opening one after the other.
fn are_persistent_places_apart(plan: &Plan) -> bool {
    let mut places: Vec<(usize, usize, Entry, (u128, u128))> = Vec::new();
    for (number, sequence) in plan.sequences.iter().enumerate() {
        for (index, entry) in sequence.entries.iter().enumerate() {
            if let Place::Persistent(offset) = entry.place {
                let bytes = (offset.into(), u128::from(offset) + size(entry));
                places.push((number, index, *entry, bytes));
            }
        }
    }
    let again = |a: &(usize, usize, Entry, _), b: &(usize, usize, Entry, _)| {
        let sequence = &plan.sequences[a.0];
        let round = sequence.entries.len().div_ceil(plan.rounds.max(1) as usize).max(1);
        a.0 != b.0
            || match sequence.role {
                Role::Opening => a.2.until as usize <= b.1,
                Role::Steady => a.1 / round != b.1 / round,
                Role::Interlude(_) | Role::Variant(_) => false,
            }
    };
    (0..places.len()).all(|b| {
        (0..b).all(|a| {
            let (a, b) = (&places[a], &places[b]);
            b.3.1 <= a.3.0 || a.3.1 <= b.3.0 || (a.3 == b.3 && again(a, b))
        })
    })
}

/// The peak and the bound, by trial of every tick of the sequences that they speak of.
fn are_claims_right(plan: &Plan, ring: &[Entry]) -> bool {
    let count = ring.len() as u32;
    let (mut top, mut least, mut most) = (0, 0, 0);
    for Sequence { role, entries, .. } in &plan.sequences {
        let period = if *role == Role::Steady { count } else { 0 };
        if matches!(role, Role::Opening | Role::Variant(_)) && count > 0 {
            continue;
        }
        let around: [u128; 2] = match *role {
            Role::Interlude(at) => {
                let bytes = |entry: &Entry| held(entry).map_or(0, |(start, end)| end - start);
                let ends_here = |entry: &&Entry| entry.until == at || entry.until == at + count;
                let sure: u128 = alive_around(ring, at).map(bytes).sum();
                [sure, sure + ring.iter().filter(ends_here).map(bytes).sum::<u128>()]
            }
            Role::Opening | Role::Steady | Role::Variant(_) => [0, 0],
        };
        for tick in 0..entries.len() as u32 {
            let alive = (0..).zip(entries).filter(|&(k, e)| lives(k, e.until, period, tick));
            let load: u128 =
                alive.filter_map(|(_, e)| held(e)).map(|(start, end)| end - start).sum();
            (least, most) = (least.max(load + around[0]), most.max(load + around[1]));
        }
        top = entries.iter().filter_map(held).map(|(_, end)| end).max().unwrap_or(0).max(top);
    }
    let bound = u128::from(plan.lower_bound);
    let rounds = u32::max(plan.rounds, 1);
    u128::from(plan.peak) == top
        && least <= bound
        && bound <= most
        && (plan.proven || plan.peak != plan.lower_bound)
        && plan.rounds == rounds
        && count.is_multiple_of(rounds)
}

fn plan_of(trace: &Trace) -> Plan {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    profile::plan(trace, &lives, &iterations, |problem| solve(problem, Budget::attempts(3)))
        .unwrap()
}

/// Plans of small runs: with evaluations, with lengths that vary, of two rounds, of nothing that
/// repeats.
fn plans() -> &'static [Plan] {
    static PLANS: OnceLock<Vec<Plan>> = OnceLock::new();
    PLANS.get_or_init(|| {
        let small = Training {
            layers: 1,
            microbatches: 2,
            hidden: 64,
            sequence: 64,
            ..Training::default()
        };
        let runs = [
            Training { evaluate_every: 2, ..small.clone() },
            Training { jitter: 32, steps: 6, recompute: true, ..small.clone() },
            Training { steps: 1, ..small.clone() },
            Training { stages: 4, microbatches: 5, evaluate_every: 3, steps: 6, ..small.clone() },
            Training { hidden: 256, sequence: 4096, experts: 3, steps: 5, ..small },
        ];
        let mut plans: Vec<Plan> = runs.iter().map(|run| plan_of(&training(run, 1))).collect();
        for seed in 0..4 {
            plans.extend(recording(&mut Rng::new(seed), 120).traces.iter().map(plan_of));
        }
        plans
    })
}

/// Damages a plan in one way.
fn damage_plan(u: &mut Unstructured<'_>, plan: &mut Plan) -> Result<()> {
    if plan.sequences.is_empty() {
        return Ok(());
    }
    let few = u.int_in_range(1..=3u32)?;
    let number = u.choose_index(plan.sequences.len())?;
    if !plan.rooms.is_empty() && u.ratio(1, 3)? {
        let number = u.choose_index(plan.rooms.len())?;
        let room = &mut plan.rooms[number];
        match u.int_in_range(0..=3)? {
            0 => room.offset = room.offset.wrapping_add(512 * u64::from(few)),
            1 => room.bytes = room.bytes.wrapping_add(512 * u64::from(few)),
            2 => room.bytes = room.bytes.wrapping_sub(u64::from(few) << 20),
            _ => drop(plan.rooms.remove(number)),
        }
        return Ok(());
    }
    match u.int_in_range(0..=9)? {
        0 => plan.arena_bytes = plan.arena_bytes.wrapping_sub(512 * u64::from(few)),
        1 => plan.persistent_bytes = plan.persistent_bytes.wrapping_sub(1),
        2 => plan.lower_bound = plan.lower_bound.wrapping_add_signed(512 * (i64::from(few) - 2)),
        3 => plan.peak = plan.peak.wrapping_add_signed(512 * (i64::from(few) - 2)),
        4 => plan.proven = !plan.proven,
        5 => plan.rounds = few - 1,
        6 => {
            plan.sequences[number].role =
                *u.choose(&[Role::Opening, Role::Steady, Role::Interlude(few * 7)])?;
        }
        7 => {
            let double = plan.sequences[number].clone();
            plan.sequences.push(double);
        }
        8 => drop(plan.sequences.remove(number)),
        _ => {
            let mark = plan.sequences[number].boundaries.last().map(|boundary| boundary.1);
            plan.sequences[number].boundaries.extend(mark.map(|mark| (few * 20, mark)));
        }
    }
    Ok(())
}

/// Damages the entries of a plan in one way.
fn damage_entry(u: &mut Unstructured<'_>, plan: &mut Plan) -> Result<()> {
    if plan.sequences.is_empty() {
        return Ok(());
    }
    let number = u.choose_index(plan.sequences.len())?;
    let entries = &mut plan.sequences[number].entries;
    if entries.is_empty() {
        return Ok(());
    }
    let (one, other) = (u.choose_index(entries.len())?, u.choose_index(entries.len())?);
    let few = u.int_in_range(1..=3u32)?;
    let place = match entries[one].place {
        Place::Arena(offset) | Place::Persistent(offset) => offset,
        Place::Outside | Place::Room(_) => 0,
    };
    match u.int_in_range(0..=12)? {
        0 => entries[one].place = entries[other].place,
        1 => entries[one].place = Place::Arena(place.wrapping_add(512 * u64::from(few))),
        2 => entries[one].place = Place::Arena(place.wrapping_sub(512 * u64::from(few))),
        3 => entries[one].place = Place::Arena(place + u64::from(few)),
        4 => entries[one].place = Place::Persistent(place),
        5 => {
            entries[one].place =
                if few == 1 { Place::Outside } else { Place::Room(few.wrapping_sub(2)) }
        }
        6 => entries[one].size_max = entries[one].size_max.wrapping_mul(u64::from(few)),
        7 => entries[one].size_min = entries[one].size_min.wrapping_add(u64::from(few)),
        8 => entries[one].until = entries[one].until.wrapping_add(few),
        9 => entries[one].until = entries[one].until.wrapping_sub(few),
        10 => entries.swap(one, other),
        11 => drop(entries.remove(one)),
        _ => {
            let double = entries[one];
            entries.insert(other, double);
        }
    }
    Ok(())
}

#[test]
fn a_damaged_plan_is_refused_unless_it_is_still_right() {
    for (number, plan) in plans().iter().enumerate() {
        assert!(is_right_plan(plan), "the definition refuses plan {number}: {:?}", verify(plan));
    }
    let (right, wrong) = (Cell::new(0u32), Cell::new(0u32));
    arbtest::arbtest(|u| {
        let mut plan = u.choose(plans())?.clone();
        for _ in 0..u.int_in_range(1..=2)? {
            if u.arbitrary()? { damage_plan(u, &mut plan)? } else { damage_entry(u, &mut plan)? }
        }
        let (verdict, expected) = (verify(&plan), is_right_plan(&plan));
        assert_eq!(verdict.is_ok(), expected, "{verdict:?} {plan:?}");
        assert_eq!(file::write(&plan, Vec::new()).is_ok(), expected);
        let count = if expected { &right } else { &wrong };
        count.set(count.get() + 1);
        Ok(())
    })
    .budget_ms(1500);
    assert!(right.get() > 10 && wrong.get() > 50, "{right:?} right, {wrong:?} wrong");
}

/// Changes one number, word or flag of a plan file, or drops or doubles one element of an array.
fn damage_value(u: &mut Unstructured<'_>, value: &mut Value) -> Result<()> {
    match value {
        Value::Object(fields) => {
            let field = u.choose_index(fields.len())?;
            let field = fields.values_mut().nth(field).expect("chosen");
            damage_value(u, field)
        }
        Value::Array(elements) if !elements.is_empty() => {
            let at = u.choose_index(elements.len())?;
            match u.int_in_range(0..=9)? {
                0 => drop(elements.remove(at)),
                1 => {
                    let double = elements[at].clone();
                    elements.push(double);
                }
                2 => {
                    let last = elements.len() - 1;
                    elements.swap(at, last);
                }
                _ => damage_value(u, &mut elements[at])?,
            }
            Ok(())
        }
        Value::Number(number) => {
            let step = *u.choose(&[1, 2, 511, 512, 1 << 20, u64::MAX])?;
            *value = number.as_u64().unwrap_or(0).wrapping_add(step).into();
            Ok(())
        }
        Value::Bool(flag) => {
            *flag = !*flag;
            Ok(())
        }
        Value::String(text) => {
            let at = u.choose_index(text.len() + 1)?;
            let letter = *u.choose(&['a', 'p', '-', '7'])?;
            if u.arbitrary()? && text.is_char_boundary(at) && at < text.len() {
                text.replace_range(at..=at, &letter.to_string());
            } else {
                text.push(letter);
            }
            Ok(())
        }
        Value::Array(_) | Value::Null => Ok(()),
    }
}

#[test]
fn a_damaged_plan_file_is_refused_unless_what_it_says_is_still_right() {
    let (read, refused) = (Cell::new(0u32), Cell::new(0u32));
    arbtest::arbtest(|u| {
        let plan = u.choose(plans())?;
        let mut bytes = Vec::new();
        file::write(plan, &mut bytes).expect("right");
        let mut value: Value = serde_json::from_slice(&bytes).expect("JSON");
        damage_value(u, &mut value)?;
        match file::read(value.to_string().as_bytes()) {
            Ok(plan) => {
                assert!(is_right_plan(&plan), "{plan:?}");
                read.set(read.get() + 1);
            }
            Err(_) => refused.set(refused.get() + 1),
        }
        Ok(())
    })
    .budget_ms(1500);
    assert!(refused.get() > 20 && read.get() > 5, "{refused:?} refused, {read:?} read");
}

#[test]
fn a_stream_or_a_life_of_the_ring_that_was_edited_in_the_file_is_noticed() {
    for plan in plans() {
        let Some(number) = plan.sequences.iter().position(|s| s.role == Role::Steady) else {
            continue;
        };
        let mut bytes = Vec::new();
        file::write(plan, &mut bytes).expect("right");
        for column in ["stream", "until", "size_max"] {
            let mut value: Value = serde_json::from_slice(&bytes).expect("JSON");
            let cell = &mut value["sequences"][number][column][0];
            *cell = (cell.as_u64().expect("a number") + 1).into();
            assert!(file::read(value.to_string().as_bytes()).is_err(), "{column}");
        }
        let other = StreamId(plan.sequences[number].entries[0].stream.0 + 1);
        let mut changed = plan.clone();
        changed.sequences[number].entries[0].stream = other;
        assert_ne!(changed.fingerprint(), plan.fingerprint());
    }
}
