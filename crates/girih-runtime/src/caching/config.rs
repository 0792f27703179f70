//! The settings of PyTorch's allocator, and the reader of `PYTORCH_CUDA_ALLOC_CONF`.
//!
//! Source: `AllocatorConfig.cpp` and `CUDAAllocatorConfig.cpp`. The text is `key:value,key:value`;
//! a value is a number, `True` or `False`, or for `roundup_power2_divisions` a list in brackets.

use thiserror::Error;

use super::rounding::{LARGE_SEGMENT, ROUNDUP_BUCKETS, RoundupDivisions};

const MIB: u64 = 1 << 20;

/// Which of several free blocks of one size is taken: it changed with the releases of PyTorch, and
/// two smaller rules changed with it ([`TieOrder::rounds_limit`], [`TieOrder::pool_scope_captures`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TieOrder {
    /// Up to 2.11: the lowest address.
    #[default]
    Address,
    /// 2.12: the lowest registration number, which every new block gets, split heads included.
    Registration,
    /// From 2.13 on: the oldest segment, then the lowest address. Parts of a segment have its
    /// number.
    Segment,
}

impl TieOrder {
    /// The order of a release, from its version (`2.11.0+cu130`); none if that is no version.
    pub fn of_torch(version: &str) -> Option<TieOrder> {
        let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
        match (numbers.next()??, numbers.next()??) {
            (..=1, _) | (2, ..=11) => Some(TieOrder::Address),
            (2, 12) => Some(TieOrder::Registration),
            _ => Some(TieOrder::Segment),
        }
    }

    /// True if the memory limit is rounded to the nearest byte, not truncated.
    pub fn rounds_limit(self) -> bool {
        self == TieOrder::Segment
    }

    /// True if an open pool scope counts as a graph capture: events are not polled, and an
    /// allocation that fails does not release cached memory.
    pub fn pool_scope_captures(self) -> bool {
        self != TieOrder::Segment
    }
}

/// The settings that move a block.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Segments grow page by page in a reservation (`expandable_segments`).
    pub expandable_segments: bool,
    /// Blocks of this size and more are never split (`max_split_size_mb`). Bytes; [`u64::MAX`] is
    /// no limit.
    pub max_split_size: u64,
    /// How much larger than the request an unsplittable block may be, exclusive
    /// (`max_non_split_rounding_mb`). Bytes.
    pub max_non_split_rounding: u64,
    /// Segment size of large requests below 10 MiB (`large_segment_size_mb`). Bytes.
    pub large_segment_size: u64,
    /// `roundup_power2_divisions`, by bucket.
    pub roundup_power2_divisions: RoundupDivisions,
    /// Share of the limit above which old blocks are given back before new ones are taken
    /// (`garbage_collection_threshold`). 0 is off.
    pub garbage_collection_threshold: f64,
    /// Share of the device that may be held (`per_process_memory_fraction`). 1 is no limit.
    pub memory_fraction: f64,
    /// A request that would pass the limit fails at once, without trying to release anything
    /// (`throw_on_cudamalloc_oom`).
    pub throw_on_cudamalloc_oom: bool,
    /// Which release's order of equal blocks to follow. Not part of the text.
    pub tie_order: TieOrder,
    /// Bytes that go to another stream or back to the device wait for every stream that may still use
    /// them, and an open pool scope counts as no capture where it is none: Girih's order of streams in
    /// place of PyTorch's, which trusts that a stream's memory stays its own. Implied by `stitches`. Not part
    /// of the text.
    pub own_order: bool,
    /// Free memory of expandable segments that no request fits is stitched before much more is held
    /// than was ever in use. PyTorch has nothing like it; not part of the text.
    pub stitches: bool,
    /// Pages that views of stitched memory may map together, before the least recently used is given
    /// up. Not part of the text.
    pub view_pages_max: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            expandable_segments: false,
            max_split_size: u64::MAX,
            max_non_split_rounding: LARGE_SEGMENT,
            large_segment_size: LARGE_SEGMENT,
            roundup_power2_divisions: [0; ROUNDUP_BUCKETS],
            garbage_collection_threshold: 0.0,
            memory_fraction: 1.0,
            throw_on_cudamalloc_oom: false,
            tie_order: TieOrder::default(),
            own_order: false,
            stitches: false,
            view_pages_max: 1 << 16,
        }
    }
}

impl Config {
    /// True if the order of streams is Girih's ([`Config::own_order`]).
    pub fn orders_all_streams(&self) -> bool {
        self.own_order || self.stitches
    }
}

/// What is wrong with an allocator configuration.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    /// A part without a colon.
    #[error("allocator settings: `{entry}` (byte {byte}) is not of the form key:value")]
    Form {
        /// The part.
        entry: String,
        /// Where it begins.
        byte: usize,
    },
    /// A key that PyTorch does not have.
    #[error("allocator settings: unknown key `{key}` (byte {byte}); known are {}", KEYS.join(", "))]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it begins.
        byte: usize,
    },
    /// A value that the key does not take.
    #[error("allocator settings: {key} is `{value}` (byte {byte}), must be {allowed}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Where the key begins.
        byte: usize,
        /// What is allowed.
        allowed: String,
    },
}

/// Every key that is accepted.
const KEYS: [&str; 18] = [
    "backend",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "large_segment_size_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "per_process_memory_fraction",
    "expandable_segments",
    "throw_on_cudamalloc_oom",
    "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
];

impl Config {
    /// Reads the text of `PYTORCH_CUDA_ALLOC_CONF`. Empty text gives the defaults.
    ///
    /// # Errors
    /// What is wrong, the key, where it stands, and what is allowed there.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        config.apply(text)?;
        Ok(config)
    }

    /// Applies a further text, as `torch._C._accelerator_setAllocatorSettings` does: splitting,
    /// rounding and garbage collection return to their defaults first, the rest stays. On an error
    /// nothing changes.
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn apply(&mut self, text: &str) -> Result<(), ConfigError> {
        let fresh = Config::default();
        let mut config = Config {
            max_split_size: fresh.max_split_size,
            roundup_power2_divisions: fresh.roundup_power2_divisions,
            garbage_collection_threshold: fresh.garbage_collection_threshold,
            ..self.clone()
        };
        let mut split_limits = Vec::new();
        for setting in (Settings { text, at: 0 }) {
            let setting = setting?;
            if matches!(setting.key, "max_split_size_mb" | "max_non_split_rounding_mb") {
                split_limits.push(setting);
            } else {
                config.set(&setting)?;
            }
        }
        // These two are compared with the segment size, which may stand anywhere in the text.
        for setting in &split_limits {
            config.set(setting)?;
        }
        *self = config;
        Ok(())
    }

    fn set(&mut self, setting: &Setting<'_>) -> Result<(), ConfigError> {
        let segment_mib = self.large_segment_size / MIB;
        match setting.key {
            "backend" if setting.value == "native" => {}
            "backend" => return setting.refuse("native; cudaMallocAsync leaves placement to CUDA"),
            "max_split_size_mb" => self.max_split_size = setting.mebibytes(segment_mib)?,
            "max_non_split_rounding_mb" => {
                self.max_non_split_rounding = setting.mebibytes(segment_mib)?;
            }
            "large_segment_size_mb" => {
                self.large_segment_size = setting.mebibytes(10)?;
                if !self.large_segment_size.is_multiple_of(2 * MIB) {
                    return setting.refuse("an even number of MiB above 10");
                }
            }
            "roundup_power2_divisions" => self.roundup_power2_divisions = setting.divisions()?,
            "garbage_collection_threshold" => {
                let inside = |share: &f64| *share > 0.0 && *share < 1.0;
                let allowed = "a number between 0 and 1, both excluded";
                self.garbage_collection_threshold = setting.number(inside, allowed)?;
            }
            "per_process_memory_fraction" => {
                let inside = |share: &f64| (0.0..=1.0).contains(share);
                self.memory_fraction = setting.number(inside, "a number from 0 to 1")?;
            }
            "expandable_segments" => self.expandable_segments = setting.boolean()?,
            "throw_on_cudamalloc_oom" => self.throw_on_cudamalloc_oom = setting.boolean()?,
            "release_lock_on_cudamalloc"
            | "graph_capture_record_stream_reuse"
            | "pinned_use_cuda_host_register"
            | "pinned_use_background_threads"
            | "pinned_free_catch_all" => drop(setting.boolean()?),
            "pinned_num_register_threads" => {
                let inside = |count: &u64| count.is_power_of_two() && *count <= 128;
                setting.number(inside, "a power of two of at most 128")?;
            }
            "pinned_reserve_segment_size_mb"
            | "pinned_max_round_threshold_mb"
            | "pinned_max_cached_size_mb" => {
                setting.number(|_: &u64| true, "a number of MiB")?;
            }
            _ => {
                let (key, byte) = (setting.key.to_owned(), setting.byte);
                return Err(ConfigError::UnknownKey { key, byte });
            }
        }
        Ok(())
    }
}

/// One `key:value`.
struct Setting<'a> {
    key: &'a str,
    value: &'a str,
    byte: usize,
}

impl Setting<'_> {
    fn refuse<T>(&self, allowed: &str) -> Result<T, ConfigError> {
        Err(ConfigError::Value {
            key: self.key.to_owned(),
            value: self.value.to_owned(),
            byte: self.byte,
            allowed: allowed.to_owned(),
        })
    }

    fn boolean(&self) -> Result<bool, ConfigError> {
        match self.value {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => self.refuse("True or False"),
        }
    }

    fn number<T: std::str::FromStr>(
        &self,
        inside: impl Fn(&T) -> bool,
        allowed: &str,
    ) -> Result<T, ConfigError> {
        match self.value.parse() {
            Ok(number) if inside(&number) => Ok(number),
            _ => self.refuse(allowed),
        }
    }

    /// A number of MiB above `least`, in bytes; what does not fit 64 bits becomes the most that
    /// does.
    fn mebibytes(&self, least: u64) -> Result<u64, ConfigError> {
        let mebibytes = self.number(|n: &u64| *n > least, &format!("more than {least} (MiB)"))?;
        Ok(mebibytes.min(u64::MAX / MIB) * MIB)
    }

    /// A power of two for all buckets, or `[size:divisions,...,>:divisions]`, sizes in MiB.
    fn divisions(&self) -> Result<RoundupDivisions, ConfigError> {
        const ALLOWED: &str =
            "a power of two, or a list [256:1,512:2,>:4] of powers of two in MiB and divisions";
        let Some(list) = self.value.strip_prefix('[').and_then(|list| list.strip_suffix(']'))
        else {
            let all = self.number(|n: &u32| n.is_power_of_two(), ALLOWED)?;
            return Ok([all; ROUNDUP_BUCKETS]);
        };
        let mut buckets = [0; ROUNDUP_BUCKETS];
        let mut last = None;
        for pair in list.split(',') {
            let parsed = pair.split_once(':').and_then(|(size, divisions)| {
                let divisions = divisions.trim().parse::<u32>().ok()?;
                (divisions == 0 || divisions.is_power_of_two()).then_some((size.trim(), divisions))
            });
            let Some((size, divisions)) = parsed else {
                return self.refuse(ALLOWED);
            };
            if size == ">" {
                let from = last.map_or(0, |last: usize| last + 1);
                buckets[from..].fill(divisions);
                continue;
            }
            let Some(size) = size.parse::<u64>().ok().filter(|size| size.is_power_of_two()) else {
                return self.refuse(ALLOWED);
            };
            let bucket = (size.ilog2() as usize).min(ROUNDUP_BUCKETS - 1);
            if last.is_none() {
                buckets[..bucket].fill(divisions);
            }
            buckets[bucket] = divisions;
            last = Some(bucket);
        }
        Ok(buckets)
    }
}

/// Cuts the text into settings.
struct Settings<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Iterator for Settings<'a> {
    type Item = Result<Setting<'a>, ConfigError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.text.get(self.at..).filter(|rest| !rest.is_empty())?;
            let mut depth = 0;
            let end = rest.find(|c| {
                depth += i32::from(c == '[') - i32::from(c == ']');
                c == ',' && depth <= 0
            });
            let entry = &rest[..end.unwrap_or(rest.len())];
            let byte = self.at + (entry.len() - entry.trim_start().len());
            self.at += entry.len() + 1;
            let entry = entry.trim();
            if entry.is_empty() {
                continue;
            }
            let Some((key, value)) = entry.split_once(':') else {
                return Some(Err(ConfigError::Form { entry: entry.to_owned(), byte }));
            };
            return Some(Ok(Setting { key: key.trim(), value: value.trim(), byte }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Config::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn empty_text_gives_the_defaults() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        assert_eq!(Config::parse(" , ").unwrap(), Config::default());
    }

    #[test]
    fn every_setting_that_moves_a_block_is_read() {
        let config = Config::parse(
            "max_split_size_mb:64, max_non_split_rounding_mb:48,large_segment_size_mb:30,\
             garbage_collection_threshold:0.6,per_process_memory_fraction:0.25,\
             expandable_segments:True,throw_on_cudamalloc_oom:True,roundup_power2_divisions:4",
        )
        .unwrap();
        assert_eq!(config.max_split_size, 64 * MIB);
        assert_eq!(config.max_non_split_rounding, 48 * MIB);
        assert_eq!(config.large_segment_size, 30 * MIB);
        assert_eq!(config.garbage_collection_threshold, 0.6);
        assert_eq!(config.memory_fraction, 0.25);
        assert!(config.expandable_segments && config.throw_on_cudamalloc_oom);
        assert_eq!(config.roundup_power2_divisions, [4; ROUNDUP_BUCKETS]);
    }

    #[test]
    fn a_list_of_divisions_fills_below_its_first_size_and_above_its_last() {
        let parse = |text| Config::parse(text).unwrap().roundup_power2_divisions;
        let buckets = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
        assert_eq!(buckets, [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8]);
        let gaps = parse("roundup_power2_divisions:[2:2,64:8]");
        assert_eq!(gaps, [2, 2, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let far = parse("roundup_power2_divisions:[65536:2]");
        assert_eq!(far, [2; ROUNDUP_BUCKETS]);
    }

    #[test]
    fn settings_that_move_no_block_are_accepted_and_checked() {
        let text =
            "backend:native,pinned_use_cuda_host_register:True,pinned_num_register_threads:8";
        assert_eq!(Config::parse(text).unwrap(), Config::default());
        assert!(refused("pinned_num_register_threads:3").contains("power of two"));
    }

    #[test]
    fn errors_name_the_key_the_place_and_what_is_allowed() {
        assert!(refused("expandable_segments:true").contains("must be True or False"));
        assert!(refused("max_split_size_mb:20").contains("more than 20"));
        assert!(refused("max_split_size_mb:25,large_segment_size_mb:30").contains("more than 30"));
        assert!(refused("garbage_collection_threshold:1").contains("between 0 and 1"));
        assert!(refused("backend:native,max_spilt:3").contains("`max_spilt` (byte 15)"));
        assert!(refused("roundup_power2_divisions:3").contains("power of two"));
        assert!(refused("roundup_power2_divisions:[3:1]").contains("powers of two"));
        assert!(refused("backend:cudaMallocAsync").contains("native"));
        assert!(refused("expandable_segments").contains("key:value"));
    }

    #[test]
    fn a_further_text_resets_splitting_rounding_and_collection_only() {
        let mut config = Config::parse("max_split_size_mb:64,expandable_segments:True").unwrap();
        config.apply("garbage_collection_threshold:0.5").unwrap();
        assert_eq!(config.max_split_size, u64::MAX);
        assert!(config.expandable_segments);
        let before = config.clone();
        assert!(config.apply("expandable_segments:False,what:1").is_err());
        assert_eq!(config, before);
    }

    #[test]
    fn the_version_tells_the_order_of_equal_blocks() {
        assert_eq!(TieOrder::of_torch("2.11.0+cu130"), Some(TieOrder::Address));
        assert_eq!(TieOrder::of_torch("2.12.1"), Some(TieOrder::Registration));
        assert_eq!(TieOrder::of_torch("2.15.0a0"), Some(TieOrder::Segment));
        assert_eq!(TieOrder::of_torch("nightly"), None);
    }

    #[test]
    fn any_text_is_read_or_refused_without_a_panic() {
        arbtest::arbtest(|u| {
            let text: String = u.arbitrary()?;
            let _ = Config::parse(&text);
            let _ = Config::parse(&format!("roundup_power2_divisions:{text}"));
            Ok(())
        });
    }
}
