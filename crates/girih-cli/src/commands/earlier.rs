//! What was held before a recording began: in a sentence, and in JSON.

use girih_runtime::replay::{Beginning, Rebuilt};
use girih_trace::{Evidence, Lifetimes};
use serde::Serialize;

use crate::units::{bytes, count};

/// What was held when a replay began, as `--json` gives it. Bytes.
#[derive(Serialize)]
pub(crate) struct JsonEarlier {
    /// `known` from the final segments, or `inferred` from the events.
    evidence: &'static str,
    segments: usize,
    reserved: u64,
    live: u64,
    untouched: u64,
    assumed_blocks: u64,
}

impl JsonEarlier {
    /// None if nothing was rebuilt.
    pub(crate) fn new(beginning: &Beginning) -> Option<JsonEarlier> {
        let Beginning::Rebuilt(rebuilt) = beginning else { return None };
        let Rebuilt { evidence, segments, reserved, live, untouched, assumed } = *rebuilt;
        let evidence = match evidence {
            Evidence::Known => "known",
            Evidence::Inferred => "inferred",
        };
        Some(JsonEarlier { evidence, segments, reserved, live, untouched, assumed_blocks: assumed })
    }
}

/// A sentence on what was held before the recording began, if anything was. `beginnings` are those
/// of the allocators that are shown.
pub(crate) fn earlier_sentence<'a>(
    beginnings: impl IntoIterator<Item = &'a Beginning>,
    lives: &Lifetimes,
) -> Option<String> {
    let beginnings: Vec<&Beginning> = beginnings.into_iter().collect();
    let others = match beginnings.contains(&&Beginning::Requested) {
        true if beginnings.len() > 1 => "; the other allocators are given what was in use alone",
        _ => "",
    };
    let told = beginnings.iter().find_map(|beginning| match beginning {
        Beginning::Rebuilt(rebuilt) => Some(format!("{}{others}", rebuilt_sentence(rebuilt))),
        Beginning::Contradicted(contradiction) => Some(format!(
            "what was held before the recording began cannot be rebuilt: {contradiction}"
        )),
        Beginning::Requested => None,
    });
    told.or_else(|| requested_sentence(lives))
}

fn rebuilt_sentence(rebuilt: &Rebuilt) -> String {
    let Rebuilt { evidence, segments, reserved, live, untouched, assumed } = *rebuilt;
    let held = format!(
        "{} were held before the recording began, {} of them in use",
        bytes(reserved),
        bytes(live)
    );
    match (evidence, assumed) {
        (Evidence::Known, 0) => format!(
            "{held}: rebuilt to the byte, in {} segments, from the final segments and the events",
            count(segments as u64)
        ),
        (Evidence::Known, _) => format!(
            "{held}: rebuilt in {} segments from the final segments and the events; of {} blocks \
             that were freed later it is assumed that they kept no remainder",
            count(segments as u64),
            count(assumed)
        ),
        (Evidence::Inferred, _) if untouched > 0 => format!(
            "{held}, as far as can be inferred: {} from what the events touched, {} from the peaks \
             that the run reported, which are the most that there can have been",
            bytes(reserved - untouched),
            bytes(untouched)
        ),
        (Evidence::Inferred, _) => format!(
            "{held}, as far as can be inferred from what the events touched; what else was held is \
             not known"
        ),
    }
}

/// Of allocators that are given the older blocks alone.
fn requested_sentence(lives: &Lifetimes) -> Option<String> {
    let older = &lives.requests[..lives.older];
    let held = older.iter().fold(0u64, |sum, request| sum.saturating_add(request.size));
    (held > 0).then(|| {
        format!(
            "{} were in use before the recording began: the allocator is given them first, in \
             blocks of their own",
            bytes(held)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rebuilt(evidence: Evidence, untouched: u64, assumed: u64) -> Beginning {
        let (reserved, live) = (3 << 30, 1 << 30);
        Beginning::Rebuilt(Rebuilt { evidence, segments: 7, reserved, live, untouched, assumed })
    }

    #[test]
    fn a_sentence_says_what_is_known_what_is_assumed_and_what_is_inferred() {
        let say = |beginning| earlier_sentence([&beginning], &Lifetimes::default()).unwrap();
        let known = say(rebuilt(Evidence::Known, 0, 0));
        assert!(known.starts_with("3.00 GiB were held before the recording began, 1.00 GiB"));
        assert!(known.contains("to the byte, in 7 segments"), "{known}");
        let assumed = say(rebuilt(Evidence::Known, 0, 2));
        assert!(assumed.contains("of 2 blocks"), "{assumed}");
        assert!(!assumed.contains("to the byte"), "{assumed}");
        let inferred = say(rebuilt(Evidence::Inferred, 2 << 30, 0));
        assert!(inferred.contains("1.00 GiB from what the events touched"), "{inferred}");
        assert!(inferred.contains("2.00 GiB from the peaks"), "{inferred}");
        let refused = say(Beginning::Contradicted("event 3 is odd".to_owned()));
        assert!(refused.ends_with("cannot be rebuilt: event 3 is odd"), "{refused}");
    }

    #[test]
    fn of_several_allocators_the_one_that_rebuilt_speaks_and_the_others_are_named() {
        let beginnings = [Beginning::Requested, rebuilt(Evidence::Known, 0, 0)];
        let said = earlier_sentence(&beginnings, &Lifetimes::default()).unwrap();
        assert!(said.ends_with("the other allocators are given what was in use alone"), "{said}");
        assert_eq!(earlier_sentence(&beginnings[..1], &Lifetimes::default()), None);
    }
}
