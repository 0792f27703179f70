//! Streams that the program makes itself and destroys: they are not named once they may be gone.

use std::sync::atomic::Ordering;

use girih_runtime::Address;

use super::adversary::{Adversary, World};
use super::program::{NEXT, Program, with};
use super::{MIB, settings};
use crate::heap::{Heap, Saved};
use crate::swap::Shape;
use crate::swap::states::OtherStates;
use crate::swap::storages::StorageId;

/// A stream of PyTorch's, and one of the program's.
const OWN: u64 = 1;
const MADE: u64 = 7;
const SIZE: u64 = 8 * MIB;

/// A program that has room for three tensors, and their storages.
struct Run {
    heap: Heap,
    world: World,
    storages: Vec<u64>,
}

impl Run {
    fn new() -> Run {
        Program::prepare();
        let (device, world) = Adversary::new(64 * MIB, 1);
        let heap = Heap::over(Box::new(device), 0, &settings(256 * MIB));
        Run { heap, world, storages: Vec::new() }
    }

    /// As the shim does before it names the stream.
    fn see(&self, stream: u64) {
        if stream == MADE {
            self.heap.see_stream(stream).expect("it is there");
        }
    }

    /// A tensor that was made on a stream, and that nobody has any more.
    fn tensor(&mut self, stream: u64) -> Saved {
        self.see(stream);
        let address = self.heap.allocate(SIZE, stream, (0, 0)).expect("there is room");
        self.world.write(stream, address, SIZE, 1);
        let storage = NEXT.fetch_add(1, Ordering::Relaxed);
        with(|all| all.insert(storage, (0, address)));
        self.storages.push(storage);
        let shape = Shape::default();
        Saved { storage: StorageId(storage), address, size: SIZE, kind: 1, shape }
    }

    fn save(&self, saved: Saved, stream: u64) -> u64 {
        self.see(stream);
        with(|all| all.get_mut(&saved.storage.0).expect("it lives").0 += 1);
        self.heap.save(saved, stream).expect("nothing is refused")
    }

    fn address(&self, saved: Saved) -> Address {
        with(|all| all[&saved.storage.0].1)
    }

    /// What was saved goes as far as it may: there is room for nothing besides.
    fn press(&self) {
        let address = self.heap.allocate(22 * MIB, OWN, (0, 0));
        assert!(address.is_err() || self.heap.free(address.expect("it is none")).is_ok());
    }

    /// How many saved tensors had no record.
    fn unseen(&self) -> u64 {
        let report = self.heap.with(|state| Ok(state.swap_report())).expect("it works");
        serde_json::to_value(report.expect("it swaps")).expect("numbers")["unseen"]
            .as_u64()
            .expect("a number")
    }

    fn drop(&self, saved: Saved, ids: &[u64]) {
        for &id in ids.iter().filter(|id| **id != 0) {
            self.heap.drop_saved(id).expect("nothing is refused");
        }
        let (_, address) = with(|all| all.remove(&saved.storage.0).expect("it lives"));
        assert!(address == 0 || self.heap.free(address).ok() == Some(true));
    }

    fn end(self) {
        self.world.finish();
        assert_eq!(self.world.wrong(), Vec::<String>::new());
        self.heap.check().expect("all is right");
    }
}

#[test]
fn what_is_saved_on_a_stream_that_may_go_or_is_of_one_stays() {
    for (home, user) in [(OWN, MADE), (MADE, OWN), (MADE, MADE)] {
        let mut run = Run::new();
        let saved = run.tensor(home);
        let id = run.save(saved, user);
        assert_eq!((id, run.unseen()), (0, 1));
        run.world.finish();
        run.world.destroy(MADE);
        run.press();
        assert_ne!(run.address(saved), 0);
        run.drop(saved, &[]);
        run.end();
    }
}

#[test]
fn what_was_saved_or_used_on_a_stream_that_may_go_too_stays_from_then_on() {
    for is_saved in [true, false] {
        let mut run = Run::new();
        let saved = run.tensor(OWN);
        let mut ids = vec![run.save(saved, OWN)];
        run.press();
        assert_eq!(run.address(saved), 0, "it may go before");
        run.world.finish();
        run.see(MADE);
        run.heap.use_saved(ids[0], MADE).expect("there is room");
        if is_saved {
            let again = Saved { address: run.address(saved), ..saved };
            ids.push(run.save(again, MADE));
            assert_eq!(ids[1], 0);
            with(|all| all.get_mut(&saved.storage.0).expect("it lives").0 -= 1);
        }
        run.world.look(MADE, run.address(saved), SIZE, 1, "a saved tensor");
        run.world.finish();
        run.world.destroy(MADE);
        // Another is given to this thread, so that the first is in nobody's hands.
        let other = run.tensor(OWN);
        let id = run.save(other, OWN);
        run.press();
        assert_ne!(run.address(saved), 0, "nobody can tell what that stream does with it");
        assert_eq!(run.address(other), 0);
        run.drop(saved, &ids);
        run.drop(other, &[id]);
        run.end();
    }
}

#[test]
fn states_of_a_stream_that_may_go_stay() {
    for (home, user) in [(OWN, MADE), (MADE, OWN)] {
        let mut run = Run::new();
        let state = run.tensor(home);
        with(|all| all.get_mut(&state.storage.0).expect("it lives").0 = 1);
        run.see(user);
        let others = OtherStates::default();
        let ids = run.heap.offer_states(&[state], others, user).expect("nothing is refused");
        assert_eq!(ids, [0]);
        run.world.finish();
        run.world.destroy(MADE);
        run.press();
        assert_ne!(run.address(state), 0);
        run.drop(state, &[]);
        run.end();
    }
}

#[test]
fn a_stream_of_which_it_is_said_late_that_it_may_go_is_named_no_more() {
    let mut run = Run::new();
    let first = run.tensor(OWN);
    with(|all| all.get_mut(&first.storage.0).expect("it lives").0 += 1);
    // Whoever names it first does not say so.
    let given = run.heap.allocate(MIB, MADE, (0, 0)).expect("there is room");
    assert_eq!(run.heap.free(given).ok(), Some(true));
    assert_eq!(run.save(first, MADE), 0);
    run.drop(first, &[]);
    run.end();
}
