//! The verdict: which of the things that could have been otherwise would have made the most
//! difference.
//!
//! Each cause has an amount in bytes: what the leak kept, what the spike made, what lay idle, and
//! whose, what others had of the card. A cause *suffices* if the request would have been served
//! without it. Of those that suffice the one with the most bytes is the verdict; if none does, the
//! live tensors need more than there is.
//!
//! Idle memory nearly always suffices for one request more, for the refused one is mostly small
//! beside what lies in pieces. It is to blame only if the run would have gone on: if it has needed
//! as much before and got it, or if so much lies idle that it cannot be what every run has
//! ([`USUAL_IDLE`]). Where it needs a little more than ever before, idle memory is weighed against
//! what made it so.

use girih_plan::granted;

use crate::capacity::{Capacity, Source};
use crate::growth::Growth;
use crate::moment::Moment;
use crate::refusal::Refusal;
use crate::spike::Spike;

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// What is alive, with the request, is more than there is.
    TooMuch,
    /// The memory is there, in pieces.
    Fragmented,
    /// Memory lies idle that another stream has.
    OtherStream,
    /// Memory lies idle that another pool has.
    OtherPool,
    /// Others have so much of the card.
    OtherProcess,
    /// Each step leaves something behind.
    Leak,
    /// One line makes far more than all that went well before.
    Spike,
    /// No request was refused.
    None,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Verdict; 8] = [
        Verdict::TooMuch,
        Verdict::Fragmented,
        Verdict::OtherStream,
        Verdict::OtherPool,
        Verdict::OtherProcess,
        Verdict::Leak,
        Verdict::Spike,
        Verdict::None,
    ];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::TooMuch => "too_much",
            Verdict::Fragmented => "fragmented",
            Verdict::OtherStream => "other_stream",
            Verdict::OtherPool => "other_pool",
            Verdict::OtherProcess => "other_process",
            Verdict::Leak => "leak",
            Verdict::Spike => "spike",
            Verdict::None => "none",
        }
    }
}

/// Up to one part in so many of the capacity lies idle in runs in which nothing is wrong.
pub const USUAL_IDLE: u64 = 8;

/// Up to one part in so many of the card is what a process may have beside PyTorch's allocator: its
/// context, NCCL.
const USUAL_BESIDE: u64 = 20;

/// Whether idle memory is to blame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Blame {
    /// No: what is alive needs more, or soon would.
    Not,
    /// If nothing else made more difference.
    Perhaps,
    /// The run has got through with as much before, or more lies idle than ever should.
    Surely,
}

/// What is known of a refusal.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The request.
    pub refusal: &'a Refusal,
    /// What was alive and held.
    pub moment: &'a Moment,
    /// How much there was to have.
    pub capacity: &'a Capacity,
    /// The most that was alive in earlier steps, in blocks; None if there were none.
    pub earlier_peak: Option<u64>,
    /// The most that was held before, in this run.
    pub most_held: u64,
    /// What stayed behind.
    pub growth: Option<&'a Growth>,
    /// What one line made.
    pub spike: Option<&'a Spike>,
}

/// Idle bytes by whose they are, as the refused request sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Idle {
    /// Its own stream's and pool's.
    pub own: u64,
    /// Other streams'.
    pub streams: u64,
    /// Other pools'.
    pub pools: u64,
}

impl Idle {
    /// As the request sees what is held.
    pub fn of(refusal: &Refusal, moment: &Moment) -> Idle {
        let mut idle = Idle::default();
        for (owner, holding) in &moment.owners {
            let whose = match (owner.pool == refusal.pool, owner.stream == refusal.stream) {
                (true, true) => &mut idle.own,
                (true, false) => &mut idle.streams,
                (false, _) => &mut idle.pools,
            };
            *whose += holding.idle;
        }
        idle
    }

    /// In all.
    pub fn all(&self) -> u64 {
        self.own + self.streams + self.pools
    }
}

impl Facts<'_> {
    /// What is alive and the request, in blocks.
    pub fn needed(&self) -> u64 {
        self.moment.granted + granted(self.refusal.size)
    }

    /// Which cause it was.
    pub fn verdict(&self) -> Verdict {
        let causes = self.causes();
        let most = causes.into_iter().max_by_key(|&(_, bytes)| bytes);
        most.filter(|&(_, bytes)| bytes > 0).map_or(Verdict::TooMuch, |(verdict, _)| verdict)
    }

    /// The causes that suffice, with their bytes; 0 of those that do not.
    fn causes(&self) -> [(Verdict, u64); 6] {
        let lacking = self.needed().saturating_sub(self.capacity.bytes);
        let suffices = |bytes: u64| if bytes > 0 && bytes >= lacking { bytes } else { 0 };
        let growth = self.growth.map_or(0, |growth| growth.bytes);
        let blame = self.blame();
        let lies = Idle::of(self.refusal, self.moment);
        let usual = self.capacity.bytes / USUAL_IDLE;
        let unusual = lies.own.saturating_sub(usual) + lies.streams + lies.pools;
        let idle = match blame {
            Blame::Not => Idle::default(),
            _ => lies,
        };
        // A leak outweighs what lies idle in any run.
        let serves = growth >= granted(self.refusal.size).max(lacking);
        let idle = if serves && growth > unusual { Idle::default() } else { idle };
        // What lies idle and should not counts twice against a spike: no line need change for it.
        let is_spike = |spike: &&Spike| blame != Blame::Surely || spike.bytes > 2 * unusual;
        let spike = self.spike.filter(is_spike).map_or(0, |spike| spike.bytes);
        let idle = if spike > 0 && blame == Blame::Surely { Idle::default() } else { idle };
        [
            (Verdict::Spike, suffices(spike)),
            (Verdict::Fragmented, idle.own),
            (Verdict::OtherStream, idle.streams),
            (Verdict::OtherPool, idle.pools),
            (Verdict::OtherProcess, suffices(self.taken_by_others())),
            (Verdict::Leak, suffices(growth)),
        ]
    }

    /// Whether what lies idle is to blame.
    fn blame(&self) -> Blame {
        let (needed, all) = (self.needed(), self.capacity.bytes);
        let idle = Idle::of(self.refusal, self.moment).all();
        let was_enough = |peak: u64| needed <= peak;
        if needed > all {
            Blame::Not
        } else if idle > all / USUAL_IDLE || self.earlier_peak.is_some_and(was_enough) {
            Blame::Surely
        } else if self.earlier_peak.is_some_and(|peak| was_enough(peak + peak / USUAL_IDLE)) {
            Blame::Perhaps
        } else {
            Blame::Not
        }
    }

    /// Bytes that others have of the card, if they are more than a process has beside its tensors.
    pub fn taken_by_others(&self) -> u64 {
        // Held before and not to be had now: somebody has taken it since.
        let since = match self.capacity.source {
            Source::Device => self.most_held.saturating_sub(self.capacity.bytes),
            _ => 0,
        };
        let card = self.capacity.card.unwrap_or(0);
        let others = self.capacity.others.filter(|&others| others > card / USUAL_BESIDE);
        others.unwrap_or(0).max(since)
    }
}
