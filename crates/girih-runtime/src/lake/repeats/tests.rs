//! The stages alone, told what steps took.

use super::super::block::Home;
use super::super::layout::Ground;
use super::*;

/// What is laid out, of nothing.
fn laid_out() -> Layout {
    let ring = Ring { items: Vec::new(), stream: StreamId(0), count: 0, cut: 0 };
    let ground = Ground { runs: Vec::new(), lies: Vec::new(), views: FxHashMap::default() };
    Layout::new(&ring, Alike::default(), ground, 0, |_| Vec::new()).expect("nothing has room")
}

/// So many nanoseconds and pages.
fn taken(both: u64) -> Taken {
    Taken { nanoseconds: both, pages: both }
}

/// A request of so many MiB.
fn asks(repeats: &mut Repeats, mib: u64) {
    let home = Home { shelf: 0, stream: StreamId(0), is_small: false };
    repeats.note(&Search { size: mib << 20, home }, 0, None, &[]);
}

/// Views took 100 before a step was laid out, and 60 in the last of the steps since that are tried.
#[test]
fn a_layout_that_was_in_vain_is_not_tried_next_unless_it_was_good_once_or_something_else_is_asked_for()
 {
    let options = Options::default();
    for (least, skips) in [(60, true), (40, false)] {
        let mut repeats = Repeats::new(&options);
        repeats.layout = Some(laid_out());
        // Two steps with one request, the same.
        asks(&mut repeats, 1);
        repeats.before = std::mem::take(&mut repeats.now);
        asks(&mut repeats, 1);
        repeats.stage =
            Stage::On { before: taken(100), least, in_vain: options.in_vain - 1, unlike: 0 };
        repeats.turn(&options, taken(60), 1, true);
        assert!(matches!(repeats.stage, Stage::Off(_)), "{:?}", repeats.stage);
        assert_eq!(repeats.skips_layout, skips, "{least}");
        repeats.expect(&options, Asked { is_trying: true, is_other: false });
        assert_eq!(repeats.skips_layout, skips, "it is still being tried what is asked for");
        repeats.expect(&options, Asked::default());
        assert!(!repeats.skips_layout);
    }
}

/// Views took 100 before, and 200 in each step that differs; in the others 10 or 200.
#[test]
fn where_steps_that_differ_come_before_their_costs_are_made_good_nothing_is_had_again() {
    let options = Options { lost: 0, ..Options::default() };
    for (each, is_off) in [(200, [false, true]), (10, [false, false])] {
        let mut repeats = Repeats::new(&options);
        repeats.is_wanted = true;
        asks(&mut repeats, 1);
        repeats.before = std::mem::take(&mut repeats.now);
        repeats.stage = Stage::On { before: taken(100), least: u64::MAX, in_vain: 0, unlike: 0 };
        let mut spent = 0;
        let mut step = |mib, more| {
            asks(&mut repeats, mib);
            spent += more;
            repeats.turn(&options, taken(spent), 100, true);
            !repeats.is_watching()
        };
        // The one after one that differs is unlike it.
        let seen = [(); 2].map(|()| {
            (0..3).for_each(|_| _ = step(1, each));
            let is_off = step(2, 200);
            step(1, each);
            is_off
        });
        assert_eq!(seen, is_off, "{each}");
    }
}

#[test]
fn nothing_is_had_again_from_a_step_with_other_copies() {
    let options = Options { lost: 0, ..Options::default() };
    let on = Stage::On { before: taken(100), least: u64::MAX, in_vain: 0, unlike: 0 };
    for (stage, is_other) in [(on, true), (on, false), (Stage::Watching(0), true)] {
        let mut repeats = Repeats::new(&options);
        // Two steps with one request, the same.
        asks(&mut repeats, 1);
        repeats.before = std::mem::take(&mut repeats.now);
        asks(&mut repeats, 1);
        (repeats.stage, repeats.rest) = (stage, 64);
        repeats.expect(&options, Asked { is_trying: false, is_other });
        // Views took three quarters of what they did, so that it is not given up, and is no rest.
        repeats.turn(&options, taken(75), 1, true);
        assert_eq!(repeats.is_watching(), !is_other);
        assert_eq!(repeats.rest == options.rest, is_other, "what was in vain before is no measure");
        // The step after it is as any.
        repeats.turn(&options, taken(150), 1, true);
        assert!(repeats.is_watching(), "{:?}", repeats.stage);
    }
}
