//! Settings that few programs use, and settings that change while blocks are held.

use super::*;

/// Changes the settings of a machine as a program does at run time.
fn set(machine: &mut Machine, text: &str) {
    let mut config = machine.policy.config().clone();
    config.apply(text).unwrap();
    machine.with(|policy, env| policy.configure(env, &config)).unwrap();
}

/// Bytes of each mapping of pages, in order.
fn mapped(machine: &Machine) -> Vec<u64> {
    let maps = machine.log.iter().filter(|event| event.action == Action::SegmentMap);
    maps.map(|event| event.size).collect()
}

#[test]
fn pages_of_large_requests_have_the_size_that_was_chosen() {
    let mut machine = Machine::new("expandable_segments:True", GIB);
    machine.alloc(3 * MIB);
    assert_eq!(mapped(&machine), [20 * MIB]);
    let text = "expandable_segments:True,expandable_segments_page_size:4194304";
    let mut machine = Machine::new(text, GIB);
    let (large, small) = (machine.alloc(5 * MIB), machine.alloc(MIB));
    assert_eq!(mapped(&machine), [8 * MIB, 2 * MIB]);
    machine.free_all([large, small]);
    machine.with(Policy::empty_cache).unwrap();
    assert_eq!(machine.device.memory_info().free, GIB);
}

#[test]
fn a_segment_reserves_no_more_than_it_is_let() {
    for (reserve, most) in [("0.25", 260 * MIB), ("0.0625G", 80 * MIB), ("3.0", GIB)] {
        let text = format!("expandable_segments:True,expandable_segments_reserve:{reserve}");
        let mut machine = Machine::new(&text, GIB);
        assert!(machine.ask(most + 1, MAIN, 0).is_err(), "{reserve}");
        let block = machine.alloc(most / 2);
        // What does not fit beside it has a segment of its own.
        let other = machine.alloc(most * 3 / 8);
        assert!(!(most..2 * most).contains(&block.address.abs_diff(other.address)), "{reserve}");
        machine.free_all([block, other]);
    }
}

#[test]
fn a_program_changes_rounding_and_splitting_while_it_holds_blocks() {
    let mut machine = Machine::new("", GIB);
    let plain = machine.alloc(5_000_000);
    set(&mut machine, "roundup_power2_divisions:4,max_split_size_mb:64");
    let rounded = machine.alloc(5_000_000);
    assert_eq!((plain.size, rounded.size), (5_000_192, 5_242_880));
    let whole = machine.alloc(100 * MIB);
    assert_eq!(machine.policy.max_split_size(), 64 * MIB);
    machine.free_all([plain, rounded, whole]);
    assert_ne!(machine.alloc(50 * MIB).address, whole.address, "it is not split");
    set(&mut machine, "");
    assert_eq!(machine.alloc(50 * MIB).address, whole.address, "it is split again");
}

#[test]
fn blocks_are_oversize_by_the_limit_of_the_moment() {
    let mut machine = Machine::new("", GIB);
    let blocks = [machine.alloc(100 * MIB), machine.alloc(50 * MIB), machine.alloc(MIB)];
    let oversize = |machine: &Machine| {
        let stats = machine.policy.stats();
        (stats.oversize_allocations.current, stats.oversize_segments.current)
    };
    for (text, counted) in [
        ("max_split_size_mb:64", (1, 1)),
        ("max_split_size_mb:40", (2, 2)),
        ("max_split_size_mb:200", (0, 0)),
        ("max_split_size_mb:64", (1, 1)),
    ] {
        set(&mut machine, text);
        assert_eq!(oversize(&machine), counted, "{text}");
    }
    machine.free_all(blocks);
    machine.with(Policy::empty_cache).unwrap();
    assert_eq!(oversize(&machine), (0, 0));
}

#[test]
fn expandable_segments_can_be_turned_on_and_off() {
    let mut machine = Machine::new("", GIB);
    let plain = machine.alloc(30 * MIB);
    set(&mut machine, "expandable_segments:True");
    let paged = machine.alloc(30 * MIB);
    machine.free(paged);
    assert_eq!(mapped(&machine), [40 * MIB]);
    // What a text does not name stays.
    set(&mut machine, "garbage_collection_threshold:0.5");
    assert_eq!(machine.alloc(30 * MIB).address, paged.address);
    set(&mut machine, "expandable_segments:False");
    machine.free(plain);
    assert_eq!(machine.alloc(30 * MIB).address, plain.address);
}

#[test]
fn the_limit_and_what_pytorch_has_no_setting_for_stay() {
    let mut machine = Machine::of(
        Config { own_order: true, tie_order: TieOrder::Segment, ..Config::default() },
        GIB,
    );
    machine.policy.set_limit(Some(GIB / 2));
    machine.with(|policy, env| policy.configure(env, &Config::default())).unwrap();
    let config = machine.policy.config();
    assert!(config.own_order && config.tie_order == TieOrder::Segment);
    assert_eq!(machine.policy.limit(GIB), Some(GIB / 2));
}
