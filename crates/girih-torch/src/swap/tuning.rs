//! The numbers that the executor was given, with their reasons.
//!
//! What each is worth is measured on steps of recordings, on a device whose streams have clocks: `tests/ablation.rs`,
//! whose table is in `bench/results/swap.md`.

/// How the executor behaves where nobody has planned, and when it has a step planned.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Tuning {
    /// The part of the room that is kept free by copies that go before they are needed, in a forward pass that nobody
    /// has planned: the request that needs the bytes would wait for all of the copy. On a host that is ahead of its GPU
    /// all the time none would be best by two percent; one that is not has nothing queued when the bytes are needed.
    pub(crate) ahead_part: u64,
    /// The part of the room that may be on its way back at a time, where nobody has planned: what comes too early has
    /// to go again, and what comes too late is waited for. Recordings disagree by a third in both directions.
    pub(crate) coming_part: u64,
    /// The part of the room that such fetches leave to the requests of the program.
    pub(crate) free_part: u64,
    /// The part of the room that a plan leaves free where steps are held up by views: requests of all sizes come and go,
    /// and where memory is full all the time hardly one finds its bytes side by side.
    pub(crate) spare_part: u64,
    /// Records that are looked at together for one that may go: they are put in order, and asked for their owners.
    pub(crate) looked_at: usize,
    /// Points of a step at which the time is taken while it is planned. Each is an event of the device; few steps have more
    /// operators. Where an operator has the mean of its neighbours' times, copies are planned to be over before they are.
    pub(crate) stamps: usize,
    /// And once it is planned no more, or has room for everything.
    pub(crate) stamps_settled: usize,
    /// How often a sequence is planned at most. A plan takes a core for some seconds, and steps to be judged.
    pub(crate) plans_max: u32,
    /// Plans that are tried where views hold steps up, until one is kept for the lake to come to rest under it: what one more
    /// would save is mostly less than what the views cost that it brings.
    pub(crate) plans_held_up: u32,
    /// Plans in a row that make its step no shorter: then it is planned no more. Every other plan takes waits for work,
    /// so that both kinds have been tried.
    pub(crate) in_vain_max: u32,
    /// By what part of itself a step must get shorter not to be of them.
    pub(crate) better: f64,
    /// Steps of a policy before it is judged. The first does not count: what it finds is what another policy has left.
    pub(crate) steps_judged: u32,
    /// Steps of the policy that has stayed, in which the lake comes to rest if it does, until it is compared with the others
    /// by all that they took.
    pub(crate) steps_proven: u32,
    /// By what part of itself a step must take longer than it may, once its plan has stayed for these steps, to be held up.
    pub(crate) held_up: f64,
    /// Steps of a plan may take more than those of the one before it did, in all, until it would be made good in so many steps
    /// if it kept what it promised. Then it is compared with the others by what its steps took.
    pub(crate) made_good: u32,
    /// Where no more plans were tried because of views: by what part of itself a step that is at rest must be longer than any
    /// plan could make it for one more to be made, and a plan be said to make it shorter to be tried.
    pub(crate) rested_gain: f64,
    /// The part of what a step adds up to that must be there before another like it is told to need less.
    pub(crate) told_by: u64,
    /// The part of the room that must be left over in a step that is smaller than what was planned for nothing to go.
    pub(crate) surely: u64,
    /// Steps whose needs are remembered: once so many in a row had room for everything nothing goes any more. That one
    /// larger step in three goes without its plan costs less than that the two others follow it.
    pub(crate) remembered: u32,
    /// Bytes of copies of a kind in a step (out or in, alone or beside others) from which on they say what a link
    /// carries. Fewer are one or two tensors, and say what happened to these.
    pub(crate) links_least: u64,
    /// By what part of themselves links must differ from those that the last plan was made with for a step to be planned
    /// once more on their account.
    pub(crate) links_differ: f64,
    /// And by what part operators must take less time than they took then: while plans are tried a host that has fallen
    /// behind is taken for work.
    pub(crate) times_differ: f64,
    /// One step in so many has its copies timed once it is settled what is copied. While schedules are tried copies run
    /// beside the views that are made, and are slower for it.
    pub(crate) links_again: u64,
    /// By what part less or more, of operators or of what a link carries, what a step is said to take is reckoned again,
    /// without another plan.
    pub(crate) times_told: f64,
    /// How often a step is planned once more at most, on either account.
    pub(crate) again_max: u32,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            ahead_part: 32,
            coming_part: 8,
            free_part: 8,
            spare_part: 16,
            looked_at: 256,
            stamps: 4096,
            stamps_settled: 128,
            plans_max: 16,
            plans_held_up: 2,
            in_vain_max: 2,
            better: 0.01,
            steps_judged: 3,
            steps_proven: 20,
            held_up: 0.02,
            made_good: 64,
            rested_gain: 0.03,
            told_by: 8,
            surely: 16,
            remembered: 2,
            links_least: 64 << 20,
            links_differ: 0.05,
            links_again: 4,
            times_differ: 0.05,
            times_told: 0.01,
            again_max: 2,
        }
    }
}
