//! What is tried last, when nothing more can be had.

use super::*;

/// A full device of five blocks of 40 MiB, of which the second and the fourth are free again.
fn full() -> (Machine, Vec<Granted>) {
    let mut machine = stitching(200 * MIB);
    let blocks: Vec<Granted> = (0..5).map(|_| machine.used(40 * MIB, MAIN)).collect();
    machine.free_used(blocks[1], MAIN);
    machine.free_used(blocks[3], MAIN);
    (machine, blocks)
}

fn ask_at_once(machine: &mut Machine, size: u64) -> Result<Granted, AllocError> {
    let request = Request { size, stream: MAIN, pool: PoolId::DEFAULT };
    machine.with(|lake, env| {
        env.may_wait = false;
        lake.allocate(env, request)
    })
}

#[test]
fn one_who_can_make_room_is_refused_before_anything_is_given_back() {
    let (mut machine, blocks) = full();
    let calls = [Call::Unmap, Call::Release, Call::Create];
    let before = calls.map(|call| machine.calls(call));
    assert!(ask_at_once(&mut machine, 100 * MIB).is_err_and(|error| error.is_out_of_memory()));
    assert_eq!(calls.map(|call| machine.calls(call)), before);
    assert_eq!((machine.reserved(), machine.stats().num_alloc_retries), (200 * MIB, 0));
    // What is free is stitched at once all the same, and serves once there is enough.
    machine.free_used(blocks[2], MAIN);
    ask_at_once(&mut machine, 100 * MIB).unwrap();
    // One who cannot: all that is free goes back first.
    let refused = machine.ask(100 * MIB, MAIN, 0);
    assert!(refused.is_err_and(|error| error.is_out_of_memory()));
    assert_eq!((machine.reserved(), machine.stats().num_alloc_retries), (180 * MIB, 1));
}

#[test]
fn pools_beside_give_back_what_they_have_free_even_so() {
    let mut machine = stitching(200 * MIB);
    Policy::create_pool(&mut machine.lake, PoolId(1));
    let pooled = machine.ask(80 * MIB, MAIN, 1).unwrap();
    machine.free(pooled);
    machine.with(|lake, env| lake.release_pool(env, PoolId(1))).unwrap();
    assert_eq!(machine.reserved(), 80 * MIB);
    ask_at_once(&mut machine, 180 * MIB).unwrap();
}

#[test]
fn the_last_small_request_is_served_by_a_hole_among_large_ones() {
    let (mut machine, _) = full();
    let small = machine.used(1 << 10, MAIN);
    assert_eq!((machine.calls(Call::Release), machine.stats().num_alloc_retries), (0, 0));
    machine.free_used(small, MAIN);
    machine.used(40 * MIB, MAIN);
    machine.used(40 * MIB, MAIN);
    assert_eq!(machine.reserved(), 200 * MIB, "both holes are whole again");
}
