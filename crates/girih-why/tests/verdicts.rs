//! The verdict on runs whose cause is known.

mod common;

use std::collections::BTreeMap;

use common::{advice_helps, ask, die, right, without_beginning, without_stacks};
use girih_trace::generate::Death;
use girih_why::Verdict;

/// Of these seeds, the runs that died and those with the right verdict, by reason; what was wrong.
fn judge(seeds: std::ops::Range<u64>) -> (BTreeMap<String, (u32, u32)>, Vec<String>) {
    let (mut counts, mut wrong) = (BTreeMap::new(), Vec::new());
    for death in Death::ALL {
        let count: &mut (u32, u32) = counts.entry(format!("{death:?}")).or_default();
        for seed in seeds.clone() {
            let Some(dead) = die(death, seed) else { continue };
            let said = ask(&dead.trace, dead.known);
            count.0 += 1;
            if said.verdict == right(death) {
                count.1 += 1;
            } else {
                let told = said.told.as_ref().expect("it died");
                wrong.push(format!(
                    "{death:?} {seed}: {:?}; capacity {} MiB, live {}, idle {:?}, asked {}, leak \
                     {:?}, spike {:?}, steps {}",
                    said.verdict,
                    told.capacity.bytes >> 20,
                    told.moment.live >> 20,
                    told.idle,
                    told.refusal.size >> 20,
                    told.growth.as_ref().map(|it| (it.bytes >> 20, it.each_step >> 20, it.steps)),
                    told.spike,
                    said.steps.len(),
                ));
            }
        }
    }
    (counts, wrong)
}

#[test]
fn the_verdict_on_runs_of_every_reason_is_right() {
    let (counts, wrong) = judge(1..9);
    assert!(wrong.is_empty(), "{counts:?}\n{}", wrong.join("\n"));
    assert!(counts.values().all(|&(died, _)| died >= 4), "{counts:?}");
}

#[test]
fn the_capacity_and_what_is_alive_are_to_the_byte() {
    for death in Death::ALL {
        let Some(dead) = (1..9).find_map(|seed| die(death, seed)) else { continue };
        let told = ask(&dead.trace, dead.known).told.expect("it died");
        // The device keeps what is less than a page.
        let lost = dead.capacity - told.capacity.bytes;
        assert!(lost < 2 << 20, "{death:?}: {lost} bytes");
        assert_eq!(told.moment.idle(), told.idle.all(), "{death:?}");
        let native = told.would_fit.iter().find(|fit| fit.setting.name == "native");
        assert!(!native.expect("it is tried").fits, "{death:?}: it was refused");
    }
}

#[test]
fn what_fits_does_not_do_so_on_less_than_it_took() {
    let dead = die(Death::Fragmented, 3).expect("it dies");
    let said = ask(&dead.trace, dead.known);
    let told = said.told.expect("it died");
    let best = told.would_fit.iter().filter(|fit| fit.fits).max_by_key(|fit| fit.spare);
    let best = best.expect("a whole allocator fits: what is alive is less than there is");
    let spare = best.spare.expect("it fits");
    assert!(spare < dead.capacity - told.moment.live, "it holds what is alive");
}

#[test]
fn a_recording_without_its_beginning_has_the_same_verdict() {
    for death in [Death::Fragmented, Death::LeakByList, Death::OtherStream, Death::OtherPool] {
        let dead = (1..9).find_map(|seed| die(death, seed)).expect("it dies");
        let whole = ask(&dead.trace, dead.known).told.expect("it died");
        let cut = without_beginning(&dead.trace, 30, true);
        let said = ask(&cut, dead.known);
        let told = said.told.as_ref().expect("it died");
        assert_eq!(told.moment.reserved, whole.moment.reserved, "{death:?}");
        assert_eq!(told.moment.live, whole.moment.live, "{death:?}");
        assert_eq!(said.verdict, right(death), "{death:?}: {:?}", told.idle);
        let native = told.would_fit.iter().find(|fit| fit.setting.name == "native");
        assert!(!native.expect("it is tried").fits, "{death:?}: the run has lost it");
    }
}

#[test]
fn a_run_that_was_refused_nothing_has_no_verdict() {
    let dead = die(Death::Fragmented, 1).expect("it dies");
    let mut trace = dead.trace;
    let refused = trace.events.iter().position(|event| event.action == girih_trace::Action::Oom);
    trace.events.truncate(refused.expect("it died"));
    trace.segments.clear();
    let said = ask(&trace, girih_why::Known::default());
    assert_eq!((said.verdict, said.told.is_none()), (Verdict::None, true));
    // Asked about the same device, it finds the same request by itself.
    let known = girih_why::Known { capacity: Some(dead.capacity), ..girih_why::Known::default() };
    assert_eq!(ask(&trace, known).verdict, Verdict::None, "it had not come to that request");
}

#[test]
fn without_stacks_what_is_idle_is_told_all_the_same() {
    for death in [Death::Fragmented, Death::OtherStream, Death::OtherPool, Death::OtherProcess] {
        let dead = (1..9).find_map(|seed| die(death, seed)).expect("it dies");
        let said = ask(&without_stacks(&dead.trace), dead.known);
        assert_eq!(said.verdict, right(death), "{death:?}");
        assert!(!said.has_stacks);
    }
}

#[test]
fn what_is_advised_gets_the_whole_program_to_its_end() {
    let (mut tried, mut helped) = (0, 0);
    for death in [Death::TooMuch, Death::Fragmented, Death::OtherStream, Death::OtherPool] {
        for dead in (1..9).filter_map(|seed| die(death, seed)) {
            let said = ask(&dead.trace, dead.known);
            if let Some(helps) = advice_helps(&dead, &said) {
                tried += 1;
                helped += u32::from(helps);
            }
        }
    }
    assert!(tried >= 20, "{tried}");
    // What the rest of a run needs, no recording of its beginning can say for sure.
    assert!(10 * helped >= 9 * tried, "{helped} of {tried}");
}

#[test]
fn a_request_for_more_than_any_device_has_is_answered_too() {
    let mut trace = die(Death::Fragmented, 3).expect("it dies").trace;
    let refused = trace.events.iter_mut().find(|event| event.action == girih_trace::Action::Oom);
    refused.expect("it died").size = u64::MAX - 1000;
    let said = ask(&trace, girih_why::Known::default());
    assert_eq!(said.verdict, Verdict::Spike, "one line has asked for it");
    assert!(said.told.expect("it died").would_fit.iter().all(|fit| !fit.fits));
}
