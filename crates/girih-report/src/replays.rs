//! What other allocators would have made of the run: their curves, their waste, and where one of them
//! would have put every block.

use girih_runtime::caching::Config;
use girih_runtime::record::record;
use girih_runtime::replay::Beginning;
use girih_runtime::sim::SimDevice;
use girih_runtime::simulate::{
    Allocator as Name, Setup, SimulateError, Simulation, simulate, waste_at_peak,
};
use girih_trace::bounds::HELD_MAX;
use girih_trace::{Action, Lifetimes, Tick, Trace};

use crate::beside::{Allocator, Layout, Waste};
use crate::held;

impl Allocator {
    /// Replays the run under an allocator, twice: for what it holds, and for its waste.
    ///
    /// # Errors
    /// If it cannot be replayed; see [`SimulateError`].
    pub fn replay(
        trace: &Trace,
        lives: &Lifetimes,
        name: Name,
        setup: &Setup,
    ) -> Result<Allocator, SimulateError> {
        let simulation = simulate(trace, lives, name, setup)?;
        let waste = waste_at_peak(trace, lives, &simulation, setup)?;
        let stats = &simulation.stats;
        Ok(Allocator {
            name: name.name(),
            about: name.about(),
            allocated_peak: stats.allocated_bytes.all().peak,
            reserved_peak: stats.reserved_bytes.all().peak,
            refused: simulation.replayed.failed,
            efficiency: simulation.replayed.stop.is_none().then(|| simulation.efficiency()),
            waste: waste.causes().map(|(cause, bytes)| Waste { cause, bytes }).to_vec(),
            reserved: reserved(&simulation, lives),
        })
    }
}

/// What a policy held from which event on: what it took for a request, from that request on.
fn reserved(simulation: &Simulation, lives: &Lifetimes) -> Vec<(Tick, u64)> {
    let mut now = match &simulation.beginning {
        Beginning::Rebuilt(rebuilt) => rebuilt.reserved,
        _ => 0,
    };
    let born = lives.born();
    let mut curve = vec![(Tick(0), now)];
    for event in &simulation.replayed.segment_events {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => now = now.saturating_add(event.size),
            _ => now = now.saturating_sub(event.size),
        }
        let at =
            born.get(event.requests as usize).or(born.last()).map_or(Tick(0), |life| life.birth);
        match curve.last_mut() {
            // Taken and given back for one request: what it had at the end, unless it was more before.
            Some((last, bytes)) if *last == at && now >= *bytes => *bytes = now,
            _ => curve.push((at, now)),
        }
    }
    curve
}

impl Layout {
    /// Runs the recorded requests under an allocator, and notes where it puts them. Frees are done
    /// when they are asked for. What is older than the recording is not there, nor what comes after
    /// a request that is refused.
    ///
    /// # Errors
    /// If the allocator lacks something, or its device refuses a call.
    pub fn of(
        trace: &Trace,
        lives: &Lifetimes,
        name: Name,
        setup: &Setup,
    ) -> Result<Layout, SimulateError> {
        let config = Config { tie_order: setup.tie_order, ..Config::parse(&setup.conf)? };
        let mut policy = name.policy(&config, setup)?;
        let mut device = SimDevice::new(setup.capacity.unwrap_or(2 * HELD_MAX));
        let mut placed = record(trace, &mut *policy, &mut device, &|_| false)?;
        let mut addresses = vec![None; lives.requests.len()];
        // The event of this recording that each event of the other came with.
        let mut ticks = Vec::with_capacity(placed.events.len());
        let (mut index, mut tick) = (lives.older, Tick(0));
        for event in &placed.events {
            if let Some(life) = lives.requests.get(index) {
                tick = life.birth;
            }
            ticks.push(tick);
            if event.action == Action::Alloc {
                addresses[index] = Some(event.address);
                index += 1;
            }
        }
        placed.segments.clear();
        let nothing = girih_trace::Earlier {
            segments: Vec::new(),
            evidence: girih_trace::Evidence::Inferred,
            untouched: 0,
        };
        let mut runs = held::runs(&placed, &Ok(nothing));
        for run in &mut runs {
            run.birth = ticks[run.birth.index()];
            if run.death != Tick::NEVER {
                run.death = ticks[run.death.index()];
            }
        }
        Ok(Layout { name: name.name(), addresses, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use girih_trace::generate::{Training, training};

    #[test]
    fn the_curve_of_every_allocator_reaches_its_peak() {
        let trace = training(&Training::default(), 7);
        let lives = Lifetimes::of(&trace);
        let setup = Setup::default();
        for name in [Name::Native, Name::Expandable, Name::Stitch, Name::Auto] {
            let allocator = Allocator::replay(&trace, &lives, name, &setup).expect("it runs");
            let most = allocator.reserved.iter().map(|&(_, bytes)| bytes).max();
            assert_eq!(most, Some(allocator.reserved_peak), "{}", allocator.name);
            assert!(allocator.reserved.is_sorted_by_key(|&(tick, _)| tick));
        }
    }

    #[test]
    fn no_two_blocks_of_a_layout_have_the_same_bytes_at_once() {
        let trace = training(&Training::default(), 7);
        let lives = Lifetimes::of(&trace);
        let layout = Layout::of(&trace, &lives, Name::Stitch, &Setup::default()).expect("it runs");
        assert!(layout.addresses[lives.older..].iter().all(Option::is_some));
        for at in (0..trace.events.len() as u32).step_by(97).map(Tick) {
            let mut alive: Vec<(u64, u64)> = (lives.requests.iter().zip(&layout.addresses))
                // A freed block that waits is given back at once here.
                .filter(|(life, _)| life.birth <= at && life.free_requested.min(life.death) > at)
                .filter_map(|(life, at)| at.map(|at| (at, life.size)))
                .collect();
            alive.sort_unstable();
            assert!(alive.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "after {at:?}");
        }
    }
}
