//! The numbers of Girih's planner. What each is worth: `examples/ablation.rs`, bench/results/swap.md.

/// What the search for a schedule goes by.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// A step within so much of the bound is not searched further.
    pub close: f64,
    /// Choices that are tried one after another at most, after the first ones.
    pub tries_max: u64,
    /// How often that is begun anew at most, from the best of the first ones.
    pub searches_max: u64,
    /// Operators and gaps of all of them together, at most.
    pub work_max: u64,
    /// The first choices are no more than this part of `work_max`: where all would be more, every so many of `headrooms` is
    /// tried. With 1 they may take as much as one search.
    pub firsts_part: u64,
    /// At the end so many times fewer tensors are tried to stay, the largest first.
    pub prune_part: u64,
    /// Steps within so much of each other are as long, and the one that copies less is better.
    pub level: f64,
    /// How often a choice is made a schedule of at most, by the times of the one before.
    pub rounds: usize,
    /// Room that is kept free by covers, in eighths of what could be free.
    pub headrooms: Vec<u64>,
    /// What a preference between two tensors is disturbed by at most, in parts of the step's time: one of these in each choice.
    pub noises: Vec<f64>,
    /// Room for what comes back is looked for as if what goes went so many times as fast. Where it does not, operators wait
    /// for it; with 1 nothing comes back that makes another wait for a copy out.
    pub hastes: Vec<f64>,
    /// Copies out are put off in so many parts at most, each where that makes the step shorter. None with 0.
    pub put_off_parts: usize,
    /// And in so many times fewer parts than choices are tried, each part being two runs. Only steps of which few are tried feel it.
    pub put_off_part: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            close: 1.001,
            tries_max: 1500,
            searches_max: 6,
            work_max: 12_000_000,
            firsts_part: 4,
            prune_part: 4,
            level: 1.0001,
            rounds: 2,
            headrooms: vec![0, 1, 2, 3, 4, 6, 8],
            noises: vec![0.0, 0.02, 0.1, 0.4],
            hastes: vec![1.0, 1.5, 2.5, 5.0],
            put_off_parts: 64,
            put_off_part: 4,
        }
    }
}
