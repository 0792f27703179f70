//! Fusion: two groups of which one begins in the phase in which the other ends share one rectangle,
//! if less of it is lost than of the two apart.
//!
//! What is used of a rectangle is its *time-memory product* (section 5.1, equation 1): the sum of
//! size times life over its requests, divided by its size times its life. Two plans are fused by
//! putting the requests of the smaller one, the *guests*, into the bubbles of the larger one, the
//! *host*. An address goes up from the bottom of the host; at each, the guest that starts earliest
//! of those that fit is placed, and the address goes on above it; if none fits, the address goes on
//! to where the next request of the host begins.
//!
//! ```text
//!  address                                  address
//!     |   d d . . . .                          |   d d . . 2 2      Nothing fits beside a and b.
//!     |   c c c . . .     . . . . 2 2          |   c c c 1 1 1      Beside c both would; 1 starts
//!     |   b b b b b .  +  . . . 1 1 1    =     |   b b b b b .      earlier. Above it, beside d,
//!     |   a a a a a a                          |   a a a a a a      there is room for 2.
//!     +-------------- time                     +-------------- time
//! ```
//!
//! The fusion is accepted if the product is better than "the weighted average of the originals". The
//! paper does not say what the weights are. Here they are the areas of the rectangles; the
//! condition is then that the new rectangle is smaller than the two old ones together. Guests that
//! find no place up to the last request of the host are stacked above it.
//!
//! The paper does not say in which order pairs are tried either. Here each group, by phases, is
//! tried with all that begin where it ends, and is fused with the one with which the most is saved.
//! A fused plan is not fused again.

use super::Steps;
use super::homophase::{LocalPlan, Member};
use super::phases::PhaseSpan;

/// How much of its rectangle a plan uses: the time-memory product as a fraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share {
    /// The sum of size times life of the requests, in bytes times ticks.
    pub(super) used: u128,
    /// Size times life of the rectangle, in bytes times ticks.
    pub(super) reserved: u128,
}

impl LocalPlan {
    /// The time-memory product of the plan (equation 1 of the paper).
    pub(super) fn share(&self) -> Share {
        let area = |size: u64, life: u32| u128::from(size) * u128::from(life);
        let used = self.members.iter().map(|m| area(m.size, m.upper - m.lower)).sum();
        Share { used, reserved: area(self.size, self.upper - self.lower) }
    }
}

/// Fuses groups, which are sorted by phases, with groups next to them in time.
pub(super) fn fuse_adjacent(groups: Vec<LocalPlan>, steps: &mut Steps) -> Vec<LocalPlan> {
    let births: Vec<u32> = groups.iter().map(|group| group.phases.birth).collect();
    let mut groups: Vec<Option<LocalPlan>> = groups.into_iter().map(Some).collect();
    let mut plans = Vec::with_capacity(groups.len());
    for at in 0..groups.len() {
        let Some(group) = groups[at].take() else { continue };
        let meets = group.phases.death;
        let from = births.partition_point(|&birth| birth < meets);
        let to = births.partition_point(|&birth| birth <= meets);
        let mut best: Option<(u128, usize, LocalPlan)> = None;
        for (other, next) in groups.iter().enumerate().take(to).skip(from) {
            let Some(next) = next else { continue };
            steps.tried += 1;
            let (saved, fused) = fuse_if_better(&group, next);
            if saved > best.as_ref().map_or(0, |best| best.0) {
                best = Some((saved, other, fused));
            }
        }
        plans.push(match best {
            Some((_, other, fused)) => {
                steps.fused += 1;
                groups[other] = None;
                fused
            }
            None => group,
        });
    }
    plans
}

/// The two plans fused, and the area that this saves: 0 if the time-memory product is not better
/// than that of the two by the weight of their areas,
///
/// ```text
///  used / new  >  (old1 x used1 / old1  +  old2 x used2 / old2) / (old1 + old2)
///              =  used / (old1 + old2)
/// ```
fn fuse_if_better(first: &LocalPlan, second: &LocalPlan) -> (u128, LocalPlan) {
    let fused = fuse(first, second);
    let apart = first.share().reserved + second.share().reserved;
    (apart.saturating_sub(fused.share().reserved), fused)
}

/// The plan of `first` and `second` in one rectangle: the requests of the smaller one in the
/// bubbles of the larger one, whose requests keep their offsets. Of two as large, the first is the
/// host. The host must be a stack, and not a fused plan.
fn fuse(first: &LocalPlan, second: &LocalPlan) -> LocalPlan {
    let (host, guests) = if first.size >= second.size { (first, second) } else { (second, first) };
    let mut waiting = Waiting::new(&guests.members);
    let mut members = host.members.clone();
    let (mut address, mut above) = (0, 0);
    while members.len() < host.members.len() + guests.members.len() {
        // The request of the host at the address, and those above it.
        let rest = &host.members[above..];
        above += rest.iter().take_while(|m| m.offset + m.size <= address).count();
        let rest = &host.members[above..];
        match waiting.earliest_that_fits(rest, address) {
            Some(guest) => {
                members.push(Member { offset: address, ..guest });
                address += guest.size;
            }
            // No request of the host begins above the last: what is left goes above all of it.
            None => address = rest.get(1).map_or(host.size, |member| member.offset),
        }
    }
    members.sort_by_key(|member| member.offset);
    let phases = PhaseSpan { birth: first.phases.birth, death: second.phases.death };
    LocalPlan::of(phases, members)
}

/// Guests that have no place yet, by birth, with the earliest death of each range of them.
///
/// ```text
///              4               Who has to be gone at tick 5 is found by going down to the first
///        4           7         death of 5 or less; who has to come at tick 5 or later, as the
///     9     4     8     7      first who is left from there on.
/// ```
struct Waiting {
    guests: Vec<Member>,
    leaves: usize,
    /// The earliest death of the guests below a node; node 1 is the root, `leaves + i` guest `i`.
    deaths: Vec<u64>,
}

impl Waiting {
    /// Later than any death: that of a guest who has a place.
    const PLACED: u64 = u64::MAX;

    fn new(guests: &[Member]) -> Waiting {
        let mut guests = guests.to_vec();
        guests.sort_unstable_by_key(|m| (m.lower, m.upper, m.buffer));
        let leaves = guests.len().next_power_of_two();
        let mut deaths = vec![Waiting::PLACED; 2 * leaves];
        for (death, guest) in deaths[leaves..].iter_mut().zip(&guests) {
            *death = u64::from(guest.upper);
        }
        for node in (1..leaves).rev() {
            deaths[node] = deaths[2 * node].min(deaths[2 * node + 1]);
        }
        Waiting { guests, leaves, deaths }
    }

    /// Takes the guest born first of those that meet no request of the host at `address`. `host`
    /// are its requests from that address on, by offset.
    fn earliest_that_fits(&mut self, host: &[Member], address: u64) -> Option<Member> {
        let fits = |guest: &Member| {
            let end = address + guest.size;
            let mut beside = host.iter().take_while(|m| m.offset < end);
            beside.all(|m| m.upper <= guest.lower || guest.upper <= m.lower)
        };
        // Whoever comes before the request at the address was born before whoever comes after it.
        let (before, after) = host.first().map_or((0, 0), |m| (m.lower, m.upper));
        let latter = self.guests.partition_point(|guest| guest.lower < after);
        for (mut from, death) in [(0, u64::from(before)), (latter, Waiting::PLACED - 1)] {
            while let Some(index) = self.first_gone_by(death, from) {
                if fits(&self.guests[index]) {
                    self.take(index);
                    return Some(self.guests[index]);
                }
                from = index + 1;
            }
        }
        None
    }

    /// The first waiting guest from index `from` on who is gone at tick `death`.
    fn first_gone_by(&self, death: u64, from: usize) -> Option<usize> {
        if from >= self.leaves {
            return None;
        }
        let mut node = self.leaves + from;
        // Up, to the right of what was passed, until there is one below; then down to it.
        while self.deaths[node] > death {
            while node & 1 == 1 {
                node /= 2;
            }
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < self.leaves {
            node *= 2;
            node += usize::from(self.deaths[node] > death);
        }
        Some(node - self.leaves)
    }

    fn take(&mut self, index: usize) {
        let mut node = self.leaves + index;
        self.deaths[node] = Waiting::PLACED;
        while node > 1 {
            node /= 2;
            self.deaths[node] = self.deaths[2 * node].min(self.deaths[2 * node + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(buffer: u32, (lower, upper): (u32, u32), size: u64) -> Member {
        Member { buffer, lower, upper, size, offset: 0 }
    }

    fn stack(phases: (u32, u32), members: Vec<Member>) -> LocalPlan {
        LocalPlan::stack(PhaseSpan { birth: phases.0, death: phases.1 }, members)
    }

    /// The staircase and the guests of the drawing above.
    fn drawn() -> (LocalPlan, LocalPlan) {
        let host = [((0, 6), 1), ((0, 5), 1), ((0, 3), 1), ((0, 2), 1)];
        let host = host.into_iter().zip(0..).map(|((life, size), i)| member(i, life, size));
        let guests = vec![member(11, (3, 6), 1), member(12, (4, 6), 1)];
        (stack((0, 1), host.collect()), stack((1, 2), guests))
    }

    fn offsets(plan: &LocalPlan) -> Vec<(u32, u64)> {
        plan.members.iter().map(|m| (m.buffer, m.offset)).collect()
    }

    #[test]
    fn the_time_memory_product_is_what_is_used_of_what_is_reserved() {
        let (host, guests) = drawn();
        assert_eq!(host.share(), Share { used: 6 + 5 + 3 + 2, reserved: 4 * 6 });
        assert_eq!(guests.share(), Share { used: 3 + 2, reserved: 2 * 3 });
    }

    #[test]
    fn guests_go_to_the_lowest_bubbles_and_the_earliest_goes_first() {
        let (host, guests) = drawn();
        let (saved, fused) = fuse_if_better(&host, &guests);
        assert_eq!(offsets(&fused), [(0, 0), (1, 1), (2, 2), (11, 2), (3, 3), (12, 3)]);
        assert_eq!((fused.size, fused.lower, fused.upper), (4, 0, 6));
        assert_eq!(fused.phases, PhaseSpan { birth: 0, death: 2 });
        assert_eq!(saved, 4 * 6 + 2 * 3 - 4 * 6);
    }

    #[test]
    fn the_earlier_group_is_the_guest_if_it_is_smaller() {
        let first = stack((0, 1), vec![member(0, (0, 3), 1)]);
        let second = vec![member(1, (2, 6), 1), member(2, (3, 5), 2), member(3, (4, 9), 1)];
        let fused = fuse(&first, &stack((1, 2), second));
        // The request that lives until 9 lies at the bottom, and comes after the guest has gone.
        assert_eq!(offsets(&fused), [(3, 0), (0, 0), (1, 1), (2, 2)]);
        assert_eq!(fused.size, 4);
    }

    #[test]
    fn what_finds_no_bubble_goes_above_and_the_fusion_is_refused_if_nothing_is_saved() {
        let first = stack((0, 1), vec![member(0, (0, 8), 4)]);
        let second = stack((1, 2), vec![member(1, (5, 8), 2), member(2, (6, 9), 1)]);
        let (saved, fused) = fuse_if_better(&first, &second);
        assert_eq!(offsets(&fused), [(0, 0), (1, 4), (2, 6)]);
        assert_eq!(saved, 0);
        let mut steps = Steps::default();
        let plans = fuse_adjacent(vec![first.clone(), second.clone()], &mut steps);
        assert_eq!(plans, [first, second]);
        assert_eq!((steps.tried, steps.fused), (1, 0));
    }

    #[test]
    fn only_a_group_that_begins_in_the_phase_in_which_another_ends_is_tried() {
        let (host, guests) = drawn();
        let apart = LocalPlan { phases: PhaseSpan { birth: 3, death: 4 }, ..guests.clone() };
        let mut steps = Steps::default();
        let plans = fuse_adjacent(vec![host.clone(), guests, apart.clone()], &mut steps);
        assert_eq!((steps.tried, steps.fused), (1, 1));
        assert_eq!(plans.len(), 2);
        assert_eq!(plans[1], apart);
    }

    #[test]
    fn the_search_for_a_guest_finds_what_trying_all_of_them_finds() {
        arbtest::arbtest(|u| {
            let mut any = |first: u32, most: u32| {
                let mut members = Vec::new();
                for buffer in first..=first + u.int_in_range(0..=most)? {
                    let lower = u.int_in_range(0..=12)?;
                    let life = (lower, lower + u.int_in_range(1..=8)?);
                    members.push(member(buffer, life, u.int_in_range(1..=4)?));
                }
                Ok(stack((0, 1), members))
            };
            let (host, guests) = (any(0, 6)?, any(100, 6)?);
            let mut waiting = Waiting::new(&guests.members);
            let mut left = waiting.guests.clone();
            for address in 0..=host.size {
                let above = host.members.partition_point(|m| m.offset + m.size <= address);
                let rest = &host.members[above..];
                let meets = |guest: &Member, m: &Member| {
                    let apart = m.upper <= guest.lower || guest.upper <= m.lower;
                    !apart && m.offset < address + guest.size
                };
                let fitting = |guest: &Member| !rest.iter().any(|m| meets(guest, m));
                let expected = left.iter().position(fitting).map(|at| left.remove(at));
                assert_eq!(waiting.earliest_that_fits(rest, address), expected);
            }
            Ok(())
        });
    }

    #[test]
    fn nothing_meets_in_a_fused_plan() {
        arbtest::arbtest(|u| {
            let mut any = |first: u32| {
                let mut members = Vec::new();
                for buffer in first..=first + u.int_in_range(0..=12)? {
                    let lower = u.int_in_range(0..=12)?;
                    let life = (lower, lower + u.int_in_range(1..=8)?);
                    members.push(member(buffer, life, u.int_in_range(1..=4)?));
                }
                Ok(stack((0, 1), members))
            };
            let (first, second) = (any(0)?, any(100)?);
            let fused = fuse(&first, &second);
            assert_eq!(fused.members.len(), first.members.len() + second.members.len());
            assert!(fused.size <= first.size + second.size);
            for (at, a) in fused.members.iter().enumerate() {
                for b in &fused.members[..at] {
                    let apart = a.offset + a.size <= b.offset || b.offset + b.size <= a.offset;
                    assert!(apart || a.upper <= b.lower || b.upper <= a.lower, "{a:?} {b:?}");
                }
            }
            Ok(())
        });
    }
}
