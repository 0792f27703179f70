//! Records: every order of wishes, with every call failing in turn, against a model that knows where the data is.

use std::collections::BTreeSet;

use girih_swap::record::{Call, Record, Refusal, State, Wish};

/// What a GPU and a host hold of one tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct World {
    gpu: Bytes,
    host: Bytes,
    /// The end of a copy that nobody on the compute stream has waited for.
    out_open: bool,
    in_open: bool,
}

/// What lies in a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Bytes {
    None,
    Rubbish,
    Data,
}

impl World {
    fn new() -> World {
        World { gpu: Bytes::Data, host: Bytes::None, out_open: false, in_open: false }
    }

    /// Does a call, and says if it was wrong.
    fn call(&mut self, call: Call) {
        match call {
            Call::TakeHost => {
                assert_eq!(self.host, Bytes::None, "a second place on the host");
                self.host = Bytes::Rubbish;
            }
            Call::CopyOut => {
                assert_eq!((self.gpu, self.host != Bytes::None), (Bytes::Data, true));
                (self.host, self.out_open) = (Bytes::Data, true);
            }
            Call::AwaitOut => self.out_open = false,
            Call::FreeGpu => {
                assert_ne!(self.gpu, Bytes::None, "freed twice");
                assert!(!self.out_open && !self.in_open, "freed under a copy");
                self.gpu = Bytes::None;
            }
            Call::TakeGpu => {
                assert_eq!(self.gpu, Bytes::None, "bytes taken twice");
                self.gpu = Bytes::Rubbish;
            }
            Call::CopyIn => {
                assert_eq!((self.host, self.gpu), (Bytes::Data, Bytes::Rubbish));
                (self.gpu, self.in_open) = (Bytes::Data, true);
            }
            Call::AwaitIn => (self.in_open, self.out_open) = (false, false),
            Call::FreeHost => {
                // The place is given back behind the copies that use it, so an open one is no fault.
                assert_ne!(self.host, Bytes::None, "given back twice");
                self.host = Bytes::None;
            }
        }
    }

    fn agrees(&self, record: &Record) {
        assert_eq!(record.has_gpu(), self.gpu != Bytes::None, "{record:?} {self:?}");
        assert_eq!(record.has_host(), self.host != Bytes::None, "{record:?} {self:?}");
        let has_data = self.gpu == Bytes::Data || self.host == Bytes::Data;
        match record.state() {
            State::OnGpu => assert!(self.gpu == Bytes::Data && !self.in_open),
            State::Going => assert!(self.gpu == Bytes::Data && self.host == Bytes::Data),
            State::OnHost => assert!(self.host == Bytes::Data && self.gpu == Bytes::None),
            State::Coming => assert!(self.gpu == Bytes::Data && self.host == Bytes::Data),
            State::Dropped => {
                assert!((self.gpu, self.host) == (Bytes::None, Bytes::None), "leaked: {self:?}");
                return;
            }
        }
        assert!(has_data, "the tensor is lost: {record:?} {self:?}");
    }
}

/// Meets a wish; the call of number `fails` fails.
fn meet(record: &mut Record, world: &mut World, wish: Wish, fails: usize) {
    for number in 0.. {
        match record.next(wish) {
            Ok(Some(_)) if number == fails => {
                return record.failed().iter().for_each(|&call| world.call(call));
            }
            Ok(Some(call)) => {
                world.call(call);
                record.made();
            }
            Ok(None) => return,
            Err(refusal) => {
                return assert_eq!((refusal, record.state()), (Refusal::Dropped, State::Dropped));
            }
        }
    }
}

#[test]
fn every_order_of_wishes_and_every_failure_keeps_the_tensor() {
    let mut seen = BTreeSet::new();
    let mut open = vec![(Record::default(), World::new())];
    let mut failures = 0;
    while let Some((record, world)) = open.pop() {
        world.agrees(&record);
        if !seen.insert((record.state(), world)) {
            continue;
        }
        for wish in Wish::ALL {
            let calls = record.calls(wish).map_or(0, <[Call]>::len);
            for fails in 0..=calls {
                let (mut record, mut world) = (record, world);
                let before = record.state();
                failures += u32::from(fails < calls);
                meet(&mut record, &mut world, wish, fails);
                world.agrees(&record);
                if fails == 0 && calls > 0 {
                    assert_eq!(record.state(), before, "the first call failed: nothing changed");
                }
                open.push((record, world));
            }
        }
    }
    let states: BTreeSet<State> = seen.iter().map(|(state, _)| *state).collect();
    assert_eq!(states.len(), 5, "{states:?}");
    assert!(failures > 40, "{failures}");
}

#[test]
fn a_wish_that_failed_can_be_made_again_until_it_is_met() {
    for first in Wish::ALL {
        for second in Wish::ALL {
            let (mut record, mut world) = (Record::default(), World::new());
            meet(&mut record, &mut world, first, usize::MAX);
            for fails in 0..8 {
                meet(&mut record, &mut world, second, fails);
                world.agrees(&record);
            }
            meet(&mut record, &mut world, Wish::Drop, usize::MAX);
            assert_eq!(record.state(), State::Dropped);
            world.agrees(&record);
        }
    }
}
