//! How the heaps of this process behave: what a user, or the Python package for him, chose.
//!
//! Settings come as one JSON object and are checked as a whole, before the first request. A key that
//! is not known is an error: a typing mistake must not be ignored in silence. What was written for
//! PyTorch, in its own variable, is PyTorch's to refuse; what Girih does not know of it is left out,
//! and the user is told.
//!
//! Later a program may change the settings of the caching allocator alone, as it may PyTorch's
//! ([`Settings::changed`]).

use std::path::PathBuf;

use girih_runtime::caching::{Config, ConfigError, TieOrder};
use girih_runtime::gmlake;
use serde::Deserialize;

use crate::swap::SwapSettings;

/// What decides where blocks go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// PyTorch's caching allocator.
    Native,
    /// The same with expandable segments.
    Expandable,
    /// The same, whose holes are stitched.
    Stitch,
    /// GMLake as published: a baseline to measure against.
    Gmlake,
    /// Each request straight to the device, recorded.
    Profile,
    /// As `profile`, on a device that is larger than the card and whose memory holds garbage.
    Phantom,
    /// Follows a plan file from the first request.
    Plan,
    /// Learns while it caches, then follows a plan of its own.
    #[default]
    Auto,
}

impl Mode {
    /// The name in the settings and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Expandable => "expandable",
            Mode::Stitch => "stitch",
            Mode::Gmlake => "gmlake",
            Mode::Profile => "profile",
            Mode::Phantom => "phantom",
            Mode::Plan => "plan",
            Mode::Auto => "auto",
        }
    }

    /// True for the modes in which a program decides whether segments are expandable.
    pub(crate) fn leaves_segments_to_the_program(self) -> bool {
        matches!(self, Mode::Native | Mode::Expandable)
    }

    /// True if segments are taken from the device without the lock of a heap: if the program wants it, in the
    /// modes that are PyTorch's own allocators.
    pub(crate) fn takes_segments_unlocked(self, config: &Config) -> bool {
        config.release_lock_on_cudamalloc && self.leaves_segments_to_the_program()
    }

    /// True for the modes in which the lake serves the program: holes are stitched.
    pub(crate) fn stitches(self) -> bool {
        matches!(self, Mode::Stitch | Mode::Plan | Mode::Auto)
    }

    /// True for the modes whose purpose is the recording.
    fn records(self) -> bool {
        matches!(self, Mode::Profile | Mode::Phantom)
    }
}

/// Bytes of the host that the recording of a device may take, if nobody chooses: 50 million events.
const RECORD_BYTES: u64 = 2_000_000_000;

/// A release of torch: major and minor number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Release(pub u32, pub u32);

impl Release {
    /// The newest release that is known, taken where none is named.
    pub const NEWEST: Release = Release(2, 15);

    /// Of a version (`2.11.0+cu130`); none if that is no version.
    pub fn of(version: &str) -> Option<Release> {
        let mut numbers = version.split('.').map(|number| number.parse().ok());
        Some(Release(numbers.next()??, numbers.next()??))
    }
}

/// A simulated device in the place of a GPU, for tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Simulated {
    /// Bytes of each device.
    pub capacity: u64,
    /// Addresses can be reserved and memory mapped at them, as on most GPUs.
    #[serde(default = "yes")]
    pub virtual_memory: bool,
}

fn yes() -> bool {
    true
}

/// The settings of the process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What decides where blocks go.
    pub mode: Mode,
    /// The settings of the caching allocator, for the modes that have one inside.
    pub config: Config,
    /// The text that `config` was read from last.
    pub conf: String,
    /// The release of torch that the heaps serve.
    pub release: Release,
    /// The plan file of the mode `plan`. `{device}` in it stands for the device's number.
    pub plan: Option<PathBuf>,
    /// Where `auto` keeps its plans; none are kept without it.
    pub plan_dir: Option<PathBuf>,
    /// What the run is, for `auto`: runs with the same key share their plans.
    pub key: String,
    /// True if each GPU keeps a plan of its own: processes may have the same key at the same time.
    pub plans_by_gpu: bool,
    /// True if what happens is kept, for [`save_trace`](crate::control::save_trace).
    pub record: bool,
    /// Bytes of the host that the recording of a device may take.
    pub record_bytes: u64,
    /// Bytes of the phantom device; None for as many as it can have.
    pub phantom_capacity: Option<u64>,
    /// Bytes of the GPU that it gives as they are; None for three quarters of what is free.
    pub phantom_solid: Option<u64>,
    /// How the mode `gmlake` behaves.
    pub gmlake: gmlake::Config,
    /// A device without a GPU.
    pub sim: Option<Simulated>,
    /// What may be where, if what does not fit is swapped.
    pub swap: SwapSettings,
    /// What a user should be told of the text.
    pub warnings: Vec<String>,
}

/// What goes to the host where nobody has given a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Swapping {
    /// What would end in out of memory, in the modes that can.
    #[default]
    Edge,
    /// Nothing.
    Off,
}

/// The settings as they are written.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Written {
    mode: Mode,
    conf: Option<String>,
    torch_conf: Option<String>,
    torch: Option<String>,
    plan: Option<PathBuf>,
    plan_dir: Option<PathBuf>,
    key: String,
    plans_by_gpu: bool,
    record: Option<bool>,
    record_bytes: Option<u64>,
    phantom_capacity: Option<u64>,
    phantom_solid: Option<u64>,
    gmlake_limit: Option<u64>,
    gpu_budget: Option<u64>,
    host_budget: Option<u64>,
    swap: Swapping,
    local_ranks: Option<u64>,
    sim: Option<Simulated>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::from_written(Written::default()).expect("no settings are right settings")
    }
}

impl Settings {
    /// Reads the settings from a JSON object. Every key may be left out:
    ///
    /// | key | means |
    /// |:--|:--|
    /// | `mode` | `native`, `expandable`, `stitch`, `gmlake`, `profile`, `phantom`, `plan`, `auto` (the default) |
    /// | `conf` | settings as in `PYTORCH_CUDA_ALLOC_CONF` |
    /// | `torch_conf` | what was written there for PyTorch: if there is no `conf`, it holds as far as it is known |
    /// | `torch` | the version of torch, whose order of equal blocks and whose texts are followed |
    /// | `plan` | the plan file of the mode `plan` |
    /// | `plan_dir` | where `auto` keeps its plans |
    /// | `key` | what the run is, for `auto` |
    /// | `record` | whether to keep what happens; `profile` and `phantom` do without asking |
    /// | `record_bytes` | bytes of the host that the recording of a device may take, 2 GB without it; what comes after is counted and not kept |
    /// | `phantom_capacity` | bytes of the phantom device |
    /// | `phantom_solid` | bytes of the GPU that the phantom gives as they are; three quarters of what is free without it |
    /// | `gmlake_limit` | bytes below which the mode `gmlake` neither splits nor stitches; 512 MiB without it |
    /// | `plans_by_gpu` | true if processes may have the same key at the same time, each with its GPUs; false without it |
    /// | `gpu_budget` | bytes that the heap of a device may hold: what does not fit goes to the host, if `auto`, `plan` or `stitch` is the mode |
    /// | `host_budget` | bytes of the host for that, pinned; a half of what is available without it |
    /// | `swap` | `edge` (the default): without a budget, saved tensors go to the host where a request would be refused; `off`: nothing goes |
    /// | `local_ranks` | processes of the job on this machine, which share what is available; 1 without it |
    /// | `sim` | `{"capacity": bytes}`: a simulated device in the place of each GPU; with `"virtual_memory": false` one that cannot map memory |
    ///
    /// # Errors
    /// What is wrong, where, and what is allowed there.
    pub fn parse(json: &str) -> Result<Settings, String> {
        let written: Written = serde_json::from_str(json)
            .map_err(|error| format!("the settings of Girih: {error}"))?;
        Settings::from_written(written)
    }

    fn from_written(written: Written) -> Result<Settings, String> {
        let Written { mode, conf, torch_conf, torch, plan, plan_dir, key, record, .. } = written;
        let Written { record_bytes, phantom_capacity, phantom_solid, gmlake_limit, .. } = written;
        let Written { sim, plans_by_gpu, gpu_budget, host_budget, swap, local_ranks, .. } = written;
        let budgets = SwapSettings {
            gpu_budget,
            host_budget,
            is_off: swap == Swapping::Off,
            local_ranks: local_ranks.unwrap_or(1),
        };
        let (conf, is_for_girih) =
            conf.map_or_else(|| (torch_conf.unwrap_or_default(), false), |conf| (conf, true));
        let mut config = Config::default();
        let said = config.apply_known(&conf);
        // Who names another backend does not want to be served by this one.
        let is_wrong = |said: &&ConfigError| match said {
            ConfigError::Value { key, .. } if key == "backend" => true,
            said => is_for_girih && !said.is_remark(),
        };
        if let Some(error) = said.iter().find(is_wrong) {
            return Err(error.to_string());
        }
        let mut release = Release::NEWEST;
        if let Some(torch) = torch {
            let known = Release::of(&torch).zip(TieOrder::of_torch(&torch));
            (release, config.tie_order) = known.ok_or_else(|| {
                format!(
                    "give torch as a version like 2.11.0 in the settings of Girih: it is `{torch}`"
                )
            })?;
        }
        match mode {
            Mode::Native => {}
            // Beside GMLake's blocks are PyTorch's segments, as in the published code; and without
            // mapped memory the modes that record work on every device.
            Mode::Gmlake | Mode::Profile | Mode::Phantom => config.expandable_segments = false,
            Mode::Expandable | Mode::Stitch | Mode::Plan | Mode::Auto => {
                config.expandable_segments = true;
            }
        }
        config.own_order = !matches!(mode, Mode::Native | Mode::Gmlake);
        let gmlake = gmlake_settings(mode, gmlake_limit)?;
        if mode == Mode::Plan && plan.is_none() {
            return Err(
                "make a plan with the mode `profile` and `girih plan`, and name it under `plan`: \
                        the mode `plan` needs one"
                    .to_owned(),
            );
        }
        let record = record.unwrap_or(false) || mode.records();
        let record_bytes = record_bytes.unwrap_or(RECORD_BYTES);
        let warnings = warnings(mode, &Config::default(), &config, &said);
        Ok(Settings {
            mode,
            config,
            conf,
            release,
            plan,
            plan_dir,
            key,
            plans_by_gpu,
            record,
            record_bytes,
            phantom_capacity,
            phantom_solid,
            gmlake,
            sim,
            swap: checked(mode, budgets)?,
            warnings,
        })
    }

    /// The settings after a program has set `text` at run time, in the words of
    /// `PYTORCH_CUDA_ALLOC_CONF`, with warnings for this text alone. Splitting, rounding and garbage
    /// collection return to their defaults first, as in PyTorch; the memory fraction is of the
    /// beginning alone. Expandable segments stay as they are where Girih decides on them.
    pub fn changed(&self, text: &str) -> Settings {
        let mut config = self.config.clone();
        let said = config.apply_known(text);
        config.memory_fraction = self.config.memory_fraction;
        let is_expandable = self.config.expandable_segments;
        let is_kept = config.expandable_segments != is_expandable
            && !self.mode.leaves_segments_to_the_program();
        if is_kept {
            config.expandable_segments = is_expandable;
        }
        let mut warnings = warnings(self.mode, &self.config, &config, &said);
        if is_kept {
            let (mode, word) = (self.mode.name(), if is_expandable { "True" } else { "False" });
            warnings.push(format!(
                "allocator settings: expandable_segments stays {word}, which Girih decides in the mode \
                 `{mode}`; in the modes `native` and `expandable` the program does."
            ));
        }
        Settings { config, conf: text.to_owned(), warnings, ..self.clone() }
    }
}

/// What a user should be told of settings that were read over those `before`, with what was said when they
/// were.
fn warnings(mode: Mode, before: &Config, config: &Config, said: &[ConfigError]) -> Vec<String> {
    let mut warnings: Vec<String> = said.iter().map(|said| format!("{said}.")).collect();
    let own_pages = config.expandable_page_size.is_some() || config.expandable_reserve.is_some();
    if mode.stitches() && own_pages {
        warnings.push(format!(
            "allocator settings: expandable_segments_page_size and expandable_segments_reserve have \
             no effect in the mode `{}`: where holes are stitched, Girih chooses pages and addresses.",
            mode.name()
        ));
    }
    let is_new = config.release_lock_on_cudamalloc && !before.release_lock_on_cudamalloc;
    if is_new && !mode.takes_segments_unlocked(config) {
        warnings.push(format!(
            "allocator settings: release_lock_on_cudamalloc has no effect in the mode `{}`: a heap keeps \
             its lock while it calls the driver, but for the modes `native` and `expandable`.",
            mode.name()
        ));
    }
    warnings
}

/// The settings of GMLake: those of the paper, but for the limit that a user may choose.
fn gmlake_settings(mode: Mode, limit: Option<u64>) -> Result<gmlake::Config, String> {
    let published = gmlake::Config::default();
    match limit {
        Some(_) if mode != Mode::Gmlake => {
            Err("use the mode `gmlake` or leave out `gmlake_limit`, which is of that mode alone"
                .to_owned())
        }
        Some(bytes) => Ok(gmlake::Config { fragmentation_limit: bytes, ..published }),
        None => Ok(published),
    }
}

/// What is swapped, if it makes sense.
fn checked(mode: Mode, budgets: SwapSettings) -> Result<SwapSettings, String> {
    let named = match budgets {
        SwapSettings { gpu_budget: Some(_), .. } => "gpu_budget",
        SwapSettings { host_budget: Some(_), .. } => "host_budget",
        _ => return Ok(budgets),
    };
    if budgets.is_off {
        return Err(format!(
            "leave out `{named}` or `swap=off`: the one swaps, the other does not"
        ));
    }
    if !mode.stitches() {
        return Err(format!(
            "use the mode `auto`, `plan` or `stitch` with `{named}`: in `{}` bytes that are let go of \
             come back in pieces",
            mode.name()
        ));
    }
    Ok(budgets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_settings_are_auto() {
        let settings = Settings::parse("{}").unwrap();
        assert_eq!(settings.mode, Mode::Auto);
        assert!(!settings.record && settings.config.expandable_segments);
    }

    #[test]
    fn the_modes_that_profile_record_without_being_asked() {
        assert!(Settings::parse(r#"{"mode": "profile"}"#).unwrap().record);
        assert!(Settings::parse(r#"{"mode": "native", "record": true}"#).unwrap().record);
        assert!(!Settings::parse(r#"{"mode": "native"}"#).unwrap().record);
    }

    #[test]
    fn native_takes_expandable_segments_only_if_the_user_wants_them() {
        let expandable = |json: &str| Settings::parse(json).unwrap().config.expandable_segments;
        assert!(!expandable(r#"{"mode": "native"}"#));
        assert!(expandable(r#"{"mode": "native", "conf": "expandable_segments:True"}"#));
        assert!(expandable(r#"{"mode": "expandable"}"#));
    }

    #[test]
    fn gmlake_is_as_published_unless_the_user_chooses_another_limit() {
        let of = |json: &str| Settings::parse(json).unwrap();
        let published = of(r#"{"mode": "gmlake"}"#);
        assert_eq!(published.gmlake, gmlake::Config::default());
        assert_eq!(published.gmlake.fragmentation_limit, 512 << 20);
        let chosen = of(r#"{"mode": "gmlake", "gmlake_limit": 2097152}"#);
        assert_eq!(chosen.gmlake.fragmentation_limit, 2 << 20);
        let expandable = of(r#"{"mode": "gmlake", "conf": "expandable_segments:True"}"#);
        assert!(!expandable.config.expandable_segments);
    }

    #[test]
    fn what_was_written_for_pytorch_holds_as_far_as_it_is_known() {
        let text = "later_key:1,max_split_size_mb:64,expandable_segments_reserve_by_class:[a:1]";
        let of = |json: String| Settings::parse(&json);
        let settings = of(format!(r#"{{"mode": "native", "torch_conf": "{text}"}}"#)).unwrap();
        assert_eq!(settings.config.max_split_size, 64 << 20);
        assert_eq!((settings.warnings.len(), settings.conf.as_str()), (2, text));
        assert!(settings.warnings[0].contains("unknown key `later_key`"));
        assert!(settings.warnings[1].contains("by_class has no effect"));
        // For Girih it is a mistake, and it goes first.
        let refused = of(format!(r#"{{"conf": "{text}"}}"#)).unwrap_err();
        assert!(refused.contains("later_key"), "{refused}");
        let both = of(format!(r#"{{"conf": "", "torch_conf": "{text}"}}"#)).unwrap();
        assert_eq!(both.config.max_split_size, u64::MAX);
        let other = of(r#"{"torch_conf": "backend:cudaMallocAsync"}"#.to_owned()).unwrap_err();
        assert!(other.contains("leaves placement to CUDA"), "{other}");
    }

    #[test]
    fn pages_of_a_chosen_size_are_of_the_modes_that_do_not_stitch() {
        let conf = r#""conf": "expandable_segments_page_size:4194304"}"#;
        let of = |mode: &str| Settings::parse(&format!(r#"{{"mode": "{mode}", {conf}"#)).unwrap();
        assert_eq!(of("expandable").config.expandable_page_size, Some(4 << 20));
        assert!(of("expandable").warnings.is_empty());
        assert!(of("stitch").warnings[0].contains("Girih chooses pages"), "it is not fatal");
    }

    #[test]
    fn the_lock_is_let_go_in_pytorchs_own_modes_and_elsewhere_the_user_is_told_once() {
        let text = "release_lock_on_cudamalloc:True";
        let of = |mode: &str| {
            Settings::parse(&format!(r#"{{"mode": "{mode}", "conf": "{text}"}}"#)).unwrap()
        };
        for mode in ["native", "expandable"] {
            assert!(of(mode).config.release_lock_on_cudamalloc && of(mode).warnings.is_empty());
        }
        for mode in ["auto", "stitch", "gmlake", "profile"] {
            let settings = of(mode);
            let says = format!("release_lock_on_cudamalloc has no effect in the mode `{mode}`");
            assert!(settings.warnings[0].contains(&says), "{:?}", settings.warnings);
            assert!(settings.changed("").warnings.is_empty(), "it was said already");
        }
        assert!(
            !of("native").changed(&text.replace("True", "False")).config.release_lock_on_cudamalloc
        );
    }

    #[test]
    fn a_program_changes_what_its_mode_leaves_to_it() {
        let of = |mode: &str| Settings::parse(&format!(r#"{{"mode": "{mode}"}}"#)).unwrap();
        let on = of("native").changed("expandable_segments:True");
        assert!(on.config.expandable_segments && on.conf == "expandable_segments:True");
        assert!(on.warnings.is_empty());
        assert!(on.changed("").config.expandable_segments, "what is not named stays");
        assert!(!of("expandable").changed("expandable_segments:False").config.expandable_segments);
        let share = of("native").changed("per_process_memory_fraction:0.5,later:1");
        assert_eq!(share.config.memory_fraction, 1.0);
        assert_eq!(share.warnings.len(), 1);
    }

    #[test]
    fn what_girih_decides_stays_and_a_program_that_sets_it_goes_on() {
        for (mode, word, other) in [
            ("auto", "True", "False"),
            ("stitch", "True", "False"),
            ("profile", "False", "True"),
            ("gmlake", "False", "True"),
        ] {
            let now = Settings::parse(&format!(r#"{{"mode": "{mode}"}}"#)).unwrap();
            assert!(now.changed(&format!("expandable_segments:{word}")).warnings.is_empty());
            let text = format!("expandable_segments:{other},max_split_size_mb:64");
            let kept = now.changed(&text);
            assert_eq!(kept.config.expandable_segments, now.config.expandable_segments, "{mode}");
            let says = format!(
                "expandable_segments stays {word}, which Girih decides in the mode `{mode}`"
            );
            assert!(kept.warnings.len() == 1 && kept.warnings[0].contains(&says), "{kept:?}");
            assert_eq!((kept.config.max_split_size, kept.conf), (64 << 20, text), "{mode}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let refused = |json: &str| Settings::parse(json).expect_err(json);
        assert!(refused(r#"{"mod": "native"}"#).contains("`mod`"));
        assert!(refused(r#"{"mode": "fast"}"#).contains("`native`"));
        assert!(refused(r#"{"mode": "plan"}"#).contains("the mode `plan` needs one"));
        assert!(refused(r#"{"conf": "max_spilt:3"}"#).contains("max_spilt"));
        assert!(refused(r#"{"torch": "nightly"}"#).contains("2.11.0"));
        assert!(refused(r#"{"gmlake_limit": 4}"#).contains("use the mode `gmlake` or leave out"));
        assert!(refused("[").contains("line 1"));
    }
}
