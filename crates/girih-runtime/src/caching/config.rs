//! The settings of PyTorch's allocator, and the reader of `PYTORCH_CUDA_ALLOC_CONF`.
//!
//! Source: `AllocatorConfig.cpp` and `CUDAAllocatorConfig.cpp`. The text is `key:value,key:value`;
//! a value is a number, `True` or `False`, or for some keys a list in brackets. The keys are those of
//! all releases from 2.6 to 2.15 together, and `expandable_segments_page_size` of later ones.

use thiserror::Error;

use super::rounding::{LARGE_SEGMENT, ROUNDUP_BUCKETS, RoundupDivisions};
pub use super::tie_order::TieOrder;

const MIB: u64 = 1 << 20;

/// How many addresses an expandable segment reserves (`expandable_segments_reserve`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reserve {
    /// A share of the device.
    Share(f64),
    /// So many bytes.
    Bytes(u64),
}

impl Reserve {
    /// Bytes on a device of `total` bytes. What does not fit 64 bits becomes the most that does.
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            Reserve::Share(share) => (share * total as f64) as u64,
            Reserve::Bytes(bytes) => bytes,
        }
    }
}

/// The settings that move a block.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Segments grow page by page in a reservation (`expandable_segments`).
    pub expandable_segments: bool,
    /// Bytes of a page of expandable segments for requests of more than 1 MiB
    /// (`expandable_segments_page_size`); none is [`Config::large_segment_size`]. Stitched segments
    /// have pages of their own choice.
    pub expandable_page_size: Option<u64>,
    /// Addresses that an expandable segment reserves, if fewer than 9/8 of the device; a request for
    /// more gets nothing (`expandable_segments_reserve`). Not for stitched segments.
    pub expandable_reserve: Option<Reserve>,
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
    /// Share of the device that may be held (`per_process_memory_fraction`), unless the limit is set
    /// ([`Policy::set_limit`](crate::Policy::set_limit)). 1 is no limit.
    pub memory_fraction: f64,
    /// A request that would pass the limit fails at once, without trying to release anything
    /// (`throw_on_cudamalloc_oom`).
    pub throw_on_cudamalloc_oom: bool,
    /// Whoever holds the policy under a lock lets it go while a segment is taken from the device
    /// (`release_lock_on_cudamalloc`); see [`Caching::leave_segments`](super::Caching::leave_segments). By
    /// itself it changes nothing.
    pub release_lock_on_cudamalloc: bool,
    /// A block that other streams used within a capture serves again within it, once the graph orders that
    /// (`graph_capture_record_stream_reuse`).
    pub graph_capture_record_stream_reuse: bool,
    /// Which release's order of equal blocks to follow. Not part of the text.
    pub tie_order: TieOrder,
    /// Bytes that go to another stream or back to the device wait for every stream that may still use
    /// them, and an open pool scope counts as no capture where it is none: Girih's order of streams in
    /// place of PyTorch's, which trusts that a stream's memory stays its own. Not part of the text.
    pub own_order: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            expandable_segments: false,
            expandable_page_size: None,
            expandable_reserve: None,
            max_split_size: u64::MAX,
            max_non_split_rounding: LARGE_SEGMENT,
            large_segment_size: LARGE_SEGMENT,
            roundup_power2_divisions: [0; ROUNDUP_BUCKETS],
            garbage_collection_threshold: 0.0,
            memory_fraction: 1.0,
            throw_on_cudamalloc_oom: false,
            release_lock_on_cudamalloc: false,
            graph_capture_record_stream_reuse: false,
            tie_order: TieOrder::default(),
            own_order: false,
        }
    }
}

/// What is wrong with an allocator configuration.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    /// A part without a colon.
    #[error("write `{entry}` as key:value: byte {byte} of the allocator settings")]
    Form {
        /// The part.
        entry: String,
        /// Where it begins.
        byte: usize,
    },
    /// A key that PyTorch does not have.
    #[error(
        "leave out or correct the unknown key `{key}`: byte {byte} of the allocator settings; known \
         are {}",
        KEYS.join(", ")
    )]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it begins.
        byte: usize,
    },
    /// A value that the key does not take.
    #[error("{key} must be {allowed}: it is `{value}` at byte {byte} of the allocator settings")]
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
    /// A key that is right, and asks for something that is not done. Reading goes on.
    #[error("{key} has no effect: {reason} (byte {byte} of the allocator settings)")]
    NoEffect {
        /// The key.
        key: String,
        /// Where it begins.
        byte: usize,
        /// Why not.
        reason: &'static str,
    },
}

impl ConfigError {
    /// True if nothing is wrong with the text.
    pub fn is_remark(&self) -> bool {
        matches!(self, ConfigError::NoEffect { .. })
    }
}

/// Every key that is accepted.
const KEYS: [&str; 23] = [
    "backend",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "large_segment_size_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "per_process_memory_fraction",
    "expandable_segments",
    "expandable_segments_page_size",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "throw_on_cudamalloc_oom",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
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
        let mut config = self.clone();
        let said = config.apply_known(text);
        if let Some(error) = said.into_iter().find(|said| !said.is_remark()) {
            return Err(error);
        }
        *self = config;
        Ok(())
    }

    /// As [`Config::apply`], for a text that PyTorch has read, or will: what cannot be read here is
    /// left out. Gives what was left out and what has no effect, to be told to the user.
    pub fn apply_known(&mut self, text: &str) -> Vec<ConfigError> {
        let fresh = Config::default();
        self.max_split_size = fresh.max_split_size;
        self.roundup_power2_divisions = fresh.roundup_power2_divisions;
        self.garbage_collection_threshold = fresh.garbage_collection_threshold;
        let (mut said, mut split_limits) = (Vec::new(), Vec::new());
        for setting in (Settings { text, at: 0 }) {
            match setting {
                Ok(setting) if setting.is_split_limit() => split_limits.push(setting),
                setting => said.extend(setting.and_then(|setting| self.set(&setting)).err()),
            }
        }
        // These two are compared with the segment size, which may stand anywhere in the text.
        said.extend(split_limits.iter().filter_map(|setting| self.set(setting).err()));
        said
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
            "expandable_segments_page_size" => {
                let inside = |bytes: &u64| *bytes > 0 && bytes.is_multiple_of(2 * MIB);
                let allowed = "a multiple of 2 MiB, in bytes";
                self.expandable_page_size = Some(setting.number(inside, allowed)?);
            }
            "expandable_segments_reserve" => self.expandable_reserve = Some(setting.reserve()?),
            "expandable_segments_reserve_by_class" => {
                return setting.no_effect("classes of streams are known to PyTorch alone");
            }
            "release_lock_on_cudamalloc" | "release_lock_on_hipmalloc" => {
                self.release_lock_on_cudamalloc = setting.boolean()?;
            }
            "graph_capture_record_stream_reuse" => {
                self.graph_capture_record_stream_reuse = setting.boolean()?;
            }
            "pinned_use_cuda_host_register"
            | "pinned_use_hip_host_register"
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
    /// True if the value must be above the segment size.
    fn is_split_limit(&self) -> bool {
        matches!(self.key, "max_split_size_mb" | "max_non_split_rounding_mb")
    }

    fn no_effect<T>(&self, reason: &'static str) -> Result<T, ConfigError> {
        Err(ConfigError::NoEffect { key: self.key.to_owned(), byte: self.byte, reason })
    }

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

    /// A share of the device, or GiB with a `G` behind the number.
    fn reserve(&self) -> Result<Reserve, ConfigError> {
        let (number, is_bytes) = match self.value.strip_suffix('G') {
            Some(number) => (number, true),
            None => (self.value, false),
        };
        match number.parse::<f64>() {
            Ok(number) if number > 0.0 && number.is_finite() => Ok(if is_bytes {
                Reserve::Bytes((number * (1u64 << 30) as f64) as u64)
            } else {
                Reserve::Share(number)
            }),
            _ => self.refuse("a share of the device above 0, or a number of GiB like 40G"),
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
    fn the_keys_of_every_release_are_read() {
        let config = Config::parse(
            "expandable_segments_page_size:4194304,expandable_segments_reserve:40G,\
             pinned_use_hip_host_register:False,release_lock_on_hipmalloc:False",
        )
        .unwrap();
        assert_eq!(config.expandable_page_size, Some(4 * MIB));
        assert_eq!(config.expandable_reserve, Some(Reserve::Bytes(40 << 30)));
        let share = Config::parse("expandable_segments_reserve:0.5").unwrap().expandable_reserve;
        assert_eq!(share.unwrap().bytes(80 << 30), 40 << 30);
        for wrong in ["0", "-1G", "all", "inf", "nanG"] {
            let text = format!("expandable_segments_reserve:{wrong}");
            assert!(refused(&text).contains("a number of GiB like 40G"), "{wrong}");
        }
        assert!(refused("expandable_segments_page_size:3000000").contains("a multiple of 2 MiB"));
    }

    #[test]
    fn what_pytorch_was_told_is_read_as_far_as_it_is_known() {
        let mut config = Config::default();
        let said = config.apply_known(
            "from_a_later_release:3,max_split_size_mb:2,garbage_collection_threshold:0.5,x,\
             release_lock_on_cudamalloc:True,expandable_segments_reserve_by_class:[a:0.5,b:40G]",
        );
        let text: Vec<String> = said.iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), 4, "{text:?}");
        assert!(text[0].contains("unknown key `from_a_later_release`"), "{text:?}");
        assert!(text[1].contains("write `x` as key:value: byte 76"), "{text:?}");
        assert!(
            text[2].contains("by_class has no effect") && text[2].contains("byte 110"),
            "{text:?}"
        );
        assert!(
            text[3].starts_with("max_split_size_mb must be ") && text[3].contains("`2`"),
            "{text:?}"
        );
        assert_eq!(said.iter().filter(|said| said.is_remark()).count(), 1);
        let expected = Config {
            garbage_collection_threshold: 0.5,
            release_lock_on_cudamalloc: true,
            ..Config::default()
        };
        assert_eq!(config, expected);
        // To ask for what is done anyway has nothing to be said of.
        let same = "release_lock_on_cudamalloc:False,graph_capture_record_stream_reuse:False";
        assert_eq!(config.apply_known(same), []);
        let on = Config::parse("graph_capture_record_stream_reuse:True").unwrap();
        assert!(on.graph_capture_record_stream_reuse);
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
        assert!(refused("backend:native,max_spilt:3").contains("`max_spilt`: byte 15"));
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
