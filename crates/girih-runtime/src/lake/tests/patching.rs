//! Views that nobody used for a while are given other pages.

use girih_trace::{Mark, MarkKind};

use super::*;

/// A machine with holes of 40 MiB and a view of 800 MiB over twenty of them, in pages of 2 MiB, that is idle; and the
/// blocks between them.
struct Scene {
    machine: Machine,
    kept: Vec<Granted>,
    address: u64,
}

impl Scene {
    fn new(options: Options) -> Scene {
        let mut machine = Machine::of(options, config(), 64 * GIB);
        let kept = holes(&mut machine, 30);
        let view = machine.used(800 * MIB, MAIN);
        machine.free_used(view, MAIN);
        assert_eq!((machine.stats().num_stitches, machine.reserved()), (1, 2400 * MIB));
        Scene { machine, kept, address: view.address }
    }

    fn step(&mut self) {
        let name = String::new();
        let mark = Mark { before: 0, time_us: 0, kind: MarkKind::Step, name };
        self.machine.with(|lake, env| lake.mark(env, &mark)).unwrap();
    }

    /// A view of so many MiB, which is let go of again, with the pages that were mapped and unmapped for it.
    fn view(&mut self, size: u64) -> (Granted, u64, u64) {
        let calls = |machine: &Machine| (machine.calls(Call::Map), machine.live_pages());
        let before = calls(&self.machine);
        let view = self.machine.used(size * MIB, MAIN);
        let (maps, pages) = calls(&self.machine);
        let mapped = maps - before.0;
        self.machine.free_used(view, MAIN);
        (view, mapped, before.1 + mapped - pages)
    }
}

impl Machine {
    /// Pages that all views have mapped.
    fn live_pages(&self) -> u64 {
        self.lake.views.pages()
    }
}

#[test]
fn a_stale_view_keeps_the_pages_that_are_free_and_is_given_others_for_the_rest() {
    let mut scene = Scene::new(Options::default());
    scene.step();
    // Two of its holes are in use now, and two of the blocks between them are free.
    let inside = [scene.machine.used(40 * MIB, MAIN), scene.machine.used(40 * MIB, MAIN)];
    let (view, mapped, unmapped) = scene.view(801);
    assert_eq!(view.address, scene.address, "it is where it was");
    assert_eq!((mapped, unmapped), (41, 40), "of 401 pages");
    assert_eq!(scene.machine.reserved(), 2400 * MIB);
    scene.machine.free_all(inside);
    // What it has behind its bytes stays, for a longer request.
    scene.step();
    assert_eq!(scene.view(600).1, 0);
    scene.step();
    assert_eq!(scene.view(790).1, 0, "nothing is mapped for what it had before");
}

#[test]
fn a_view_of_this_step_or_one_that_a_kernel_may_still_use_is_not_patched() {
    let mut scene = Scene::new(Options::default());
    let (other, mapped, _) = scene.view(802);
    assert!(other.address != scene.address && mapped == 401, "{mapped} pages of a view of its own");
    scene.step();
    let (again, mapped, _) = scene.view(800);
    assert_eq!((again.address, mapped), (scene.address, 0));
    // The other one alone was not used since.
    scene.machine.device.hold(MAIN);
    let (third, mapped, _) = scene.view(804);
    assert!(mapped == 402 && ![scene.address, other.address].contains(&third.address));
    scene.machine.device.resume(MAIN);
    let (fourth, mapped, _) = scene.view(806);
    assert!(mapped < 10 && fourth.address == other.address, "{mapped} pages");
}

#[test]
fn a_few_pages_are_mapped_for_a_view_of_their_own() {
    let mut scene = Scene::new(Options { patched: 402, ..Options::default() });
    scene.step();
    assert_eq!(scene.view(802).1, 401);
    scene.step();
    assert!(scene.view(804).1 < 10);
}

#[test]
fn what_a_view_in_use_has_behind_its_bytes_goes_with_its_pages() {
    let mut scene = Scene::new(Options::default());
    scene.step();
    let view = scene.machine.used(600 * MIB, MAIN);
    assert_eq!(view.address, scene.address);
    assert_eq!(scene.machine.live_pages(), 400);
    scene.machine.empty_cache();
    assert_eq!(scene.machine.live_pages(), 300, "the pages of the last holes went back");
    assert_eq!(scene.machine.reserved(), 1800 * MIB);
    scene.machine.free_used(view, MAIN);
    scene.kept.drain(..).for_each(|block| scene.machine.free_used(block, MAIN));
    scene.machine.empty_cache();
    assert_eq!(scene.machine.device.live(), LiveObjects::default());
}

#[test]
fn a_patch_whose_calls_fail_costs_the_view_and_neither_the_request_nor_anything_later() {
    let prepared = || {
        let mut scene = Scene::new(Options::default());
        scene.step();
        let inside = [scene.machine.used(40 * MIB, MAIN), scene.machine.used(40 * MIB, MAIN)];
        (scene, inside)
    };
    let (mut scene, _) = prepared();
    let before = scene.machine.device.calls();
    assert_eq!(scene.view(812).0.address, scene.address);
    let calls = scene.machine.device.calls() - before;
    assert!(calls > 40, "{calls} calls");
    for call in 1..=calls {
        for out_of_memory in [false, true] {
            let (mut scene, inside) = prepared();
            scene
                .machine
                .device
                .inject(Fault { kind: FaultKind::Nth(before + call), out_of_memory });
            let what = format!("call {call} of {calls}, out of memory: {out_of_memory}");
            scene.view(812);
            let held = scene.machine.reserved();
            assert!((2400 * MIB..=3220 * MIB).contains(&held), "{what}: {held} bytes held");
            scene.step();
            scene.view(810);
            assert_eq!(scene.machine.reserved(), held, "{what}");
            let kept = scene.kept.drain(..).chain(inside);
            kept.for_each(|block| scene.machine.free_used(block, MAIN));
            scene.machine.empty_cache();
            assert_eq!(scene.machine.device.live(), LiveObjects::default(), "{what}");
        }
    }
}

#[test]
fn a_patch_keeps_to_the_budget_of_all_views() {
    let options = || Options { view_pages_max: 400, ..Options::default() };
    let mut scene = Scene::new(options());
    scene.step();
    assert_ne!(scene.view(802).0.address, scene.address, "it would have 401 pages of 400");
    let mut scene = Scene::new(options());
    scene.step();
    assert_eq!(scene.view(798).0.address, scene.address);
}
