//! What the settings become on a device that cannot map memory.
//!
//! Nearly every mode reserves addresses and maps physical memory there. Some drivers of virtual
//! GPUs, and some devices, have whole allocations alone:
//!
//! | mode | without virtual memory |
//! |:--|:--|
//! | `auto`, `plan`, `stitch`, `expandable`, `gmlake` | `native` |
//! | `native` | `native`, without expandable segments if they were asked for |
//! | `profile` | `profile`: it maps nothing |
//! | `phantom` | `profile`: it records too, and fails where the card is full |
//!
//! So a run goes on as it would under PyTorch's own allocator, and its user is told why it is no
//! better.

use std::borrow::Cow;

use girih_runtime::caching::Config;

use crate::settings::{Mode, Settings};

/// The settings for a device, and what a user should be told if they are not those that were asked
/// for. The sentence names no device, so that the same one serves all.
pub(crate) fn for_device(
    settings: &Settings,
    has_virtual_memory: bool,
) -> (Cow<'_, Settings>, Option<String>) {
    if has_virtual_memory {
        return (Cow::Borrowed(settings), None);
    }
    let mode = match settings.mode {
        Mode::Profile | Mode::Phantom => Mode::Profile,
        Mode::Native | Mode::Expandable | Mode::Stitch | Mode::Gmlake | Mode::Plan | Mode::Auto => {
            Mode::Native
        }
    };
    let asks_for_segments = settings.mode == Mode::Native && settings.config.expandable_segments;
    let lost = match (settings.mode, mode) {
        (Mode::Native, _) if asks_for_segments => {
            "expandable_segments:True has no effect on it".to_owned()
        }
        (asked, mode) if asked != mode => {
            format!("the mode `{}` is not possible, and `{}` serves", asked.name(), mode.name())
        }
        _ => String::new(),
    };
    let warning = (!lost.is_empty()).then(|| {
        format!(
            "A GPU of this process has no virtual memory (its driver does not support \
             cuMemAddressReserve and cuMemMap for it): {lost}. `python -m girih doctor` says which \
             GPUs have it."
        )
    });
    let config = Config { expandable_segments: false, ..settings.config.clone() };
    (Cow::Owned(Settings { mode, config, ..settings.clone() }), warning)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn degraded(json: &str) -> (Mode, Option<String>) {
        let asked = Settings::parse(json).expect("right settings");
        let (kept, none) = for_device(&asked, true);
        assert_eq!((kept.mode, none), (asked.mode, None), "{json}");
        let (settings, warning) = for_device(&asked, false);
        assert!(!settings.config.expandable_segments, "{json}");
        assert_eq!(settings.record, asked.record, "{json}");
        (settings.mode, warning)
    }

    #[test]
    fn every_mode_becomes_the_best_that_needs_no_virtual_memory() {
        for mode in ["auto", "plan", "stitch", "expandable", "gmlake"] {
            let json = format!(r#"{{"mode": "{mode}", "plan": "run.plan"}}"#);
            let (mode_there, warning) = degraded(&json);
            assert_eq!(mode_there, Mode::Native, "{mode}");
            let warning = warning.expect(mode);
            assert!(warning.contains(&format!("the mode `{mode}` is not possible")), "{warning}");
            assert!(warning.contains("`native` serves"), "{warning}");
        }
        let (mode, warning) = degraded(r#"{"mode": "phantom"}"#);
        assert_eq!(mode, Mode::Profile);
        assert!(warning.expect("phantom").contains("`profile` serves"));
    }

    #[test]
    fn who_loses_nothing_is_told_nothing() {
        assert_eq!(degraded(r#"{"mode": "native"}"#), (Mode::Native, None));
        assert_eq!(degraded(r#"{"mode": "profile"}"#), (Mode::Profile, None));
        let (mode, warning) = degraded(r#"{"mode": "native", "conf": "expandable_segments:True"}"#);
        assert_eq!(mode, Mode::Native);
        assert!(warning.expect("they were asked for").contains("expandable_segments"));
    }
}
