//! The settings, with the defaults of the published code.

/// What the fragmentation limit is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LimitOf {
    /// Blocks, as the paper says: a primitive block that is smaller is neither split nor stitched.
    /// It is given whole or not at all. What a request itself brings about may be smaller: the
    /// half of a split, the bytes by which memory grows.
    #[default]
    Blocks,
    /// Requests, as the published code does: one that is smaller is never served by stitching. One
    /// that is not may be stitched of blocks of any size, and any block may be split.
    Requests,
}

/// How GMLake behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Bytes below which nothing is split or stitched (`fragLimit`); 512 MiB.
    pub fragmentation_limit: u64,
    /// What the limit is compared with.
    pub limit_of: LimitOf,
    /// True to take only what is missing from the device and to stitch it to what is free, as in
    /// the paper's S4. False to take the whole request anew, as the published code does unless
    /// `reAlloc=1` is set.
    pub grows_by_deficit: bool,
    /// Bytes of stitched blocks, all together, above which the least recently used of those that are
    /// inactive are given up (`autoGC`); 1000 GiB. What keeps two halves of a split together counts
    /// too, though it needs no addresses of its own.
    pub stitched_limit: u64,
}

/// Bytes of stitched blocks, all together, beyond which nothing is stitched any more whatever the setting,
/// and the halves of a split are not kept together: what is free serves as it is, or memory grows. Each
/// costs a word or two for each of its handles here, and page tables on a GPU. No run comes near it.
pub(super) const STITCHED_MAX: u64 = 4 << 40;

impl Config {
    /// The paper's rule with its own example of a limit (section 3.3): blocks below 128 MiB are neither split nor
    /// stitched.
    pub fn paper_limit() -> Config {
        Config { fragmentation_limit: 128 << 20, ..Config::default() }
    }

    /// The published code with its defaults: the limit of 512 MiB is of requests, and what is missing is taken whole.
    pub fn released() -> Config {
        Config { limit_of: LimitOf::Requests, grows_by_deficit: false, ..Config::default() }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            fragmentation_limit: 512 << 20,
            limit_of: LimitOf::Blocks,
            grows_by_deficit: true,
            stitched_limit: 1000 << 30,
        }
    }
}
