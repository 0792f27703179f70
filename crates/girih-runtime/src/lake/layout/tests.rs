use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;

use super::*;

const MIB: u64 = 1 << 20;
const BASE: u64 = 1 << 40;

/// Pages of these MiB, side by side.
fn pages(sizes: &[u64]) -> Vec<Run> {
    let mut at = BASE;
    let next = |size: &u64| {
        let page = Part { address: at, size: size * MIB };
        at = page.end();
        Run { page, part: page }
    };
    sizes.iter().map(next).collect()
}

/// A ring of so many requests, of some of which number, MiB and life are given.
fn ring(count: u32, items: &[(u32, u64, u32)]) -> Ring {
    let items = items.iter().map(|&(number, mib, life)| Item { number, size: mib * MIB, life });
    Ring { items: items.collect(), stream: StreamId(0), count, cut: 0 }
}

fn ground(runs: &[Run], lies: Places) -> Ground {
    Ground { runs: runs.to_vec(), lies, views: FxHashMap::default() }
}

fn part(at: u64, mib: u64) -> Part {
    Part { address: BASE + at * MIB, size: mib * MIB }
}

/// Fails if a place is none that a view could show, or if two items have the same bytes at the same time, in a step that
/// comes again and again.
fn check(ring: &Ring, runs: &[Run], places: &Places) {
    let bytes = |parts: &[Part]| parts.iter().map(|part| part.size).sum::<u64>();
    let starts = |at: u64| runs.iter().any(|run| run.page.address == at);
    let ends = |at: u64| runs.iter().any(|run| run.page.end() == at);
    for (item, parts) in ring.items.iter().zip(places).filter(|(_, parts)| !parts.is_empty()) {
        assert_eq!(bytes(parts), item.size);
        assert!(parts[1..].iter().all(|part| starts(part.address)), "{parts:?}");
        assert!(parts[..parts.len() - 1].iter().all(|part| ends(part.end())), "{parts:?}");
    }
    let alive =
        |item: &Item, number: u32| (number + ring.count - item.number) % ring.count < item.life;
    for number in 0..ring.count {
        let alive = ring.items.iter().zip(places).filter(|(item, _)| alive(item, number));
        let mut parts: Vec<Part> = alive.flat_map(|(_, parts)| parts).copied().collect();
        parts.sort_unstable_by_key(|part| part.address);
        assert!(
            parts.windows(2).all(|two| two[0].end() <= two[1].address),
            "at {number}: {parts:?}"
        );
    }
}

fn drawn(u: &mut Unstructured<'_>) -> Result<(Ring, Vec<Run>)> {
    let count = u.int_in_range(4..=40)?;
    let mut items = Vec::new();
    for number in 0..count {
        if u.ratio(7, 8)? {
            let size = if u.ratio(1, 4)? { u.int_in_range(1..=40)? } else { 4 };
            items.push((number, size, u.int_in_range(1..=count)?));
        }
    }
    let sizes: Result<Vec<u64>> =
        (0..u.int_in_range(1..=60)?).map(|_| Ok(2 * u.int_in_range(1..=4)?)).collect();
    Ok((ring(count, &items), pages(&sizes?)))
}

#[test]
fn no_two_have_the_same_bytes_at_once_whatever_the_step() {
    let mut whole = 0;
    arbtest(|u| {
        let (mut ring, runs) = drawn(u)?;
        let bytes = runs.iter().map(|run| run.part.size).sum();
        ring.cut_for(bytes);
        // Nothing lies anywhere yet: what lasts begins to in the first step.
        let lies = vec![Vec::new(); ring.items.len()];
        let most = if u.ratio(1, 2)? { 0 } else { u64::MAX };
        if let Ok((_, Laid { places: then, .. })) = ground(&runs, lies).lay_out(&ring, most) {
            check(&ring, &runs, &then);
            let without = then.iter().any(Vec::is_empty);
            assert!(most > 0 || !without, "more is without a place than may be");
            whole += u32::from(!without && ring.items.len() > 8);
        }
        Ok(())
    });
    assert!(whole > 10, "{whole} steps of more than 8 items had room");
}

#[test]
fn what_lasts_keeps_its_place_where_the_others_have_room() {
    // The first lasts, the others pass by.
    let mut ring = ring(4, &[(0, 4, 1), (1, 8, 2), (3, 4, 3)]);
    let runs = pages(&[4, 4, 4]);
    assert_eq!(ring.cut_for(12 * MIB), 0);
    let lies = vec![Vec::new(), Vec::new(), vec![part(4, 4)]];
    let (first, Laid { places: then, .. }) =
        ground(&runs, lies).lay_out(&ring, 0).expect("there is room");
    assert!(first.is_none(), "nothing has to move");
    assert_eq!(then[2], [part(4, 4)]);
    assert_eq!(then[1], [part(0, 4), part(8, 4)], "around it");
    check(&ring, &runs, &then);
}

#[test]
fn what_lasts_moves_where_it_leaves_no_whole_pages() {
    // Two that last lie on halves of two pages; a third needs a whole page while they are there.
    let ring = ring(4, &[(0, 2, 4), (1, 2, 4), (2, 4, 1)]);
    let runs = pages(&[4, 4]);
    let lies = vec![vec![part(0, 2)], vec![part(4, 2)], Vec::new()];
    let ring = Ring { cut: 2, ..ring };
    let at_once = ground(&runs, lies.clone()).place_all(&ring, &lies, Some(&lies), None, 1);
    assert_eq!(at_once.without, 4 * MIB);
    let (first, Laid { places: then, .. }) =
        ground(&runs, lies).lay_out(&ring, 4 * MIB).expect("there is room");
    assert!(first.is_some());
    assert!(then.iter().all(|parts| !parts.is_empty()), "{then:?}");
    check(&ring, &runs, &then);
}

#[test]
fn a_step_is_cut_where_what_lasts_leaves_most_room() {
    // Cut at 0, two of them last: the one that leaves early comes back early, and the one in between needs both.
    let mut ring = ring(8, &[(0, 4, 3), (3, 8, 2), (5, 4, 2), (7, 4, 4)]);
    let without = ring.cut_for(8 * MIB);
    assert_eq!(without, 0, "{ring:?}");
    let lies = vec![Vec::new(); 4];
    let runs = pages(&[4, 4]);
    let (_, Laid { places: then, .. }) =
        ground(&runs, lies).lay_out(&ring, 0).expect("there is room");
    check(&ring, &runs, &then);
}

#[test]
fn what_has_no_place_is_tried_before_all_others() {
    // In order of time the small ones have cut all pages before the large one comes.
    let ring = ring(6, &[(0, 2, 5), (1, 2, 5), (2, 12, 1)]);
    let runs = pages(&[4, 4, 8]);
    let laid = ground(&runs, vec![Vec::new(); 3]).place_all(
        &ring,
        &vec![Vec::new(); 3],
        None,
        None,
        ROUNDS,
    );
    assert_eq!(laid.without, 0, "{laid:?}");
}

#[test]
fn who_cannot_have_its_own_is_given_what_is_wanted_least() {
    let runs = pages(&[4, 4, 4, 4]);
    let mut uses = Uses::new(10);
    uses.add(3, false, &runs[0..1]);
    uses.add(5, true, &runs[1..2]);
    uses.add(9, false, &runs[2..3]);
    let found = |uses: &Uses, mib: u64, life: u32| uses.find(mib * MIB, 2, life, &runs);
    let find = |mib: u64, life: u32| found(&uses, mib, life);
    assert_eq!(
        find(4, 3),
        Some(vec![part(4, 4)]),
        "wanted soonest of those that are not meanwhile"
    );
    assert_eq!(find(4, 4), Some(vec![part(8, 4)]), "not that of one that comes while it lives");
    assert_eq!(find(8, 8), Some(vec![part(8, 8)]), "nobody wants the last page");
    assert_eq!(find(12, 8), Some(vec![part(0, 4), part(8, 8)]), "before that of what lasts");
    assert_eq!(find(20, 8), None);
    uses.remove(3, &runs[0..1]);
    uses.add(2, false, &runs[0..1]);
    assert_eq!(found(&uses, 4, 8), Some(vec![part(0, 4)]), "its own before others");
}

#[test]
fn what_is_remembered_of_a_layout_is_bounded() {
    let runs = pages(&[2; 500]);
    let all = |parts: &[Part]| -> Vec<Run> {
        let over = |run: &&Run| parts.iter().any(|part| part.overlaps(&run.part));
        runs.iter().filter(over).copied().collect()
    };
    let of = |count: u32| {
        let items: Vec<(u32, u64, u32)> = (0..count).map(|number| (number, 1000, 1)).collect();
        let ring = ring(count, &items);
        let ground = ground(&runs, vec![Vec::new(); items.len()]);
        Layout::new(&ring, Alike::default(), ground, 0, all)
    };
    let most = (RUNS_MAX / 500) as u32;
    assert!(of(most).is_ok());
    assert_eq!(of(most + 1).err(), Some(0), "500 pages of each");
    let mut layout = of(most).expect("it is not too much");
    // The first has a page more than its parts say that it had: that is one too many, here.
    layout.runs = RUNS_MAX;
    let before = layout.place(0).to_vec();
    layout.settle(0, vec![part(0, 500), part(502, 500)], |parts| match parts.len() {
        1 => runs[..1].to_vec(),
        _ => runs[..2].to_vec(),
    });
    assert_eq!(layout.place(0), before);
}
