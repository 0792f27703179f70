use super::*;

const MIB: u64 = 1 << 20;
const LEAST: u64 = 64 * MIB;

/// Copies of 32 MiB one after another from a time on, each of so many microseconds.
fn lane(way: Way, from: f64, each: &[f64]) -> Vec<Span> {
    let mut now = from;
    let spans = each.iter().map(|us| {
        let span = Span { way, bytes: 32 * MIB, from: now, to: now + us };
        now += us;
        span
    });
    spans.collect()
}

fn seen(spans: &[Span]) -> Rates {
    rates_of(spans, false, LEAST)
}

fn measured(rates: Rates) -> Measured {
    Measured { rates, ..Measured::new(&Tuning::default()) }
}

#[test]
fn a_copy_is_alone_or_beside_others_or_says_neither() {
    let rate = |us: f64| Some(32.0 * MIB as f64 / us);
    let alone = [lane(Way::Out, 0.0, &[1000.0; 4]), lane(Way::In, 9000.0, &[500.0; 4])].concat();
    assert_eq!(seen(&alone), [[rate(1000.0), rate(500.0)], [None, None]]);
    // Twenty in begin when six out are left of ten, and go on alone.
    let half = [lane(Way::Out, 0.0, &[1000.0; 10]), lane(Way::In, 4000.0, &[2000.0; 20])].concat();
    let one = rate(1000.0);
    assert_eq!(seen(&half), [[one, rate(2000.0)], [one, rate(2000.0)]]);
    // A tenth of each is beside another.
    let some = [lane(Way::Out, 0.0, &[1000.0; 1]), lane(Way::In, 900.0, &[1000.0; 1])].concat();
    assert_eq!(rates_of(&some, false, 0), Rates::default());
}

#[test]
fn too_little_and_too_small_says_nothing() {
    let mut spans = lane(Way::Out, 0.0, &[1000.0; 2]);
    assert!(seen(&spans)[0][0].is_some(), "64 MiB are enough");
    spans.pop();
    assert_eq!(seen(&spans), Rates::default());
    let mut small = lane(Way::Out, 0.0, &[100.0; 64]);
    small.iter_mut().for_each(|span| span.bytes = BYTES_LEAST - 1);
    assert_eq!(seen(&small), Rates::default());
    // But they are seen beside others.
    small.extend(lane(Way::In, 0.0, &[1000.0; 6]));
    let rates = seen(&small);
    assert!(rates[1][1].is_some() && rates[0][1].is_none(), "{rates:?}");
}

#[test]
fn one_copy_that_was_held_up_says_nothing_and_a_half_of_them_says_its_half() {
    let mut us = vec![1000.0; 40];
    us[7] = 1e6;
    us[8] = 1.0;
    let rate = |us: f64| 32.0 * MIB as f64 / us;
    let near = |found: Option<f64>, due: f64| found.is_some_and(|it| (it / due - 1.0).abs() < 1e-9);
    assert!(near(seen(&lane(Way::Out, 0.0, &us))[0][0], rate(1000.0)));
    let halves: Vec<f64> = (0..40).map(|at| if at % 2 == 0 { 1000.0 } else { 3000.0 }).collect();
    assert!(near(seen(&lane(Way::Out, 0.0, &halves))[0][0], rate(2000.0)));
}

#[test]
fn times_that_cannot_be_say_nothing() {
    let of = |from: f64, to: f64| Span { way: Way::Out, bytes: 256 * MIB, from, to };
    let (nan, endless) = (f64::NAN, f64::INFINITY);
    let hostile = [(5.0, 5.0), (9.0, 2.0), (nan, 1.0), (0.0, nan), (0.0, endless), (-endless, 0.0)];
    for (from, to) in hostile {
        assert_eq!(seen(&[of(from, to)]), Rates::default(), "{from} {to}");
        // Nor do they make others say something else.
        let mut spans = lane(Way::In, 0.0, &[1000.0; 4]);
        let due = seen(&spans);
        spans.push(of(from, to));
        assert_eq!(seen(&spans), due, "{from} {to}");
    }
    assert_eq!(seen(&[]), Rates::default());
    assert_eq!(rates_of(&[], true, 0), Rates::default());
    // Copies that overlap on one lane, which no lane does.
    let twice = [lane(Way::Out, 0.0, &[1000.0; 4]), lane(Way::Out, 0.0, &[1000.0; 4])].concat();
    let beside = [twice, lane(Way::In, 0.0, &[1000.0; 4])].concat();
    let links = measured(seen(&beside)).links();
    for rate in [links.outward, links.inward, links.both] {
        assert!(rate.is_finite() && rate > 0.0, "{links:?}");
    }
}

/// What runs after the last copy that was timed may run beside the others.
#[test]
fn of_more_copies_than_are_timed_those_count_that_were_surely_alone() {
    let out = lane(Way::Out, 0.0, &[1000.0; 10]);
    assert_eq!(rates_of(&out, true, LEAST), Rates::default(), "others may come in all the while");
    let both = [out, lane(Way::In, 0.0, &[1000.0; 4])].concat();
    let rates = rates_of(&both, true, LEAST);
    assert!(rates[1][0].is_some() && rates[1][1].is_some(), "{rates:?}");
    assert_eq!(rates[0], [None, None], "after the fourth nobody knows");
    assert!(rates_of(&both, false, LEAST)[0][0].is_some());
}

#[test]
fn what_was_not_seen_is_usual_times_what_was() {
    let usual = Links::default();
    assert_eq!(measured(Rates::default()).links(), usual);
    assert_eq!(measured(Rates::default()).gigabytes(), [None; 3]);
    let near = |one: &Links, other: &Links| difference(one, other) < 1e-9;
    let fifth = Links::of_gigabytes(11.0, 11.0, 20.2);
    for rates in [
        [[Some(11e3), None], [None, None]],
        [[None, Some(11e3)], [None, None]],
        [[None, None], [Some(10.1e3), Some(10.1e3)]],
        [[None, None], [Some(10.1e3), None]],
    ] {
        let own = measured(rates);
        assert!(near(&own.links(), &fifth), "{rates:?}: {:?}", own.links());
    }
    let all = measured([[Some(20e3), Some(10e3)], [Some(14e3), Some(7e3)]]);
    assert!(near(&all.links(), &Links::of_gigabytes(20.0, 10.0, 21.0)));
    assert_eq!(all.gigabytes(), [Some(20.0), Some(10.0), Some(21.0)]);
    // Both together carry no more than each alone.
    let odd = measured([[Some(10e3), Some(10e3)], [Some(30e3), Some(30e3)]]);
    assert!(near(&odd.links(), &Links::of_gigabytes(10.0, 10.0, 20.0)));
}

#[test]
fn a_step_counts_half_and_one_that_says_nothing_not_at_all() {
    let mut own = measured(Rates::default());
    let rate = |us: f64| 32.0 * MIB as f64 / us;
    own.see(&lane(Way::Out, 0.0, &[1000.0; 4]), false);
    assert!((own.links().outward / rate(1000.0) - 1.0).abs() < 1e-9);
    own.see(&[], false);
    own.see(&lane(Way::Out, 0.0, &[500.0; 4]), false);
    let due = 0.5 * (rate(1000.0) + rate(500.0));
    assert!((own.links().outward / due - 1.0).abs() < 1e-9);
}
