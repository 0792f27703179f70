//! The number of GPUs that share a job: recorded worlds as they are, of which the worst rank decides.

use std::collections::BTreeMap;

use anyhow::bail;
use girih_fit::Subject;
use girih_fit::worlds::{World, fewest};

use super::json::{Json, JsonRequired, JsonRow};
use super::source::Recording;
use super::{FitArgs, GPUS};
use crate::progress::Progress;

pub(super) fn answer(
    args: &FitArgs,
    recordings: Vec<Recording>,
    progress: &Progress,
) -> anyhow::Result<Json> {
    let mut answer = Json::new(args, "worlds", GPUS);
    answer.recordings = recordings.iter().map(Recording::described).collect();
    let mut worlds: BTreeMap<u64, Vec<(String, Subject)>> = BTreeMap::new();
    for recording in recordings {
        let Some(gpus) = recording.value else {
            bail!(
                "give {} the GPUs of its job: --at 8={}",
                recording.loaded.name,
                recording.loaded.name
            );
        };
        let setup = args.setup(&recording)?;
        let loaded = recording.loaded;
        let subject = Subject::recorded(loaded.trace, loaded.lives, loaded.iterations, setup);
        worlds.entry(gpus).or_default().push((loaded.name, subject));
    }
    if let Some(required) = args.require.filter(|required| !worlds.contains_key(required)) {
        bail!("give --at {required}=RUN: there is no recording of a job on {required} GPUs");
    }
    let tried = args.for_each(progress, |allocator| {
        let mut all = Vec::new();
        for (&gpus, ranks) in &worlds {
            let outcomes = ranks.iter().map(|(_, subject)| subject.under(allocator));
            all.extend(World::of(gpus, outcomes.collect::<Result<_, _>>()?));
        }
        Ok((allocator, all))
    })?;
    answer.required = args.require.map(|value| JsonRequired {
        value,
        fits: (tried.iter())
            .filter(|(_, all)| all.iter().any(|it| it.gpus == value && it.outcome.fits()))
            .map(|(allocator, _)| allocator.name())
            .collect(),
    });
    for (allocator, all) in &tried {
        // Where none fits, the largest world says why.
        let Some(world) = fewest(all).or(all.last()) else { continue };
        let (name, subject) = &worlds[&world.gpus][world.worst];
        let row = JsonRow::of(*allocator, &world.outcome, subject.lives());
        let gaps = all.iter().filter(|it| it.gpus > world.gpus && !it.outcome.fits());
        answer.rows.push(JsonRow {
            value: row.fits.then_some(world.gpus),
            worst: Some(name.clone()),
            gaps: gaps.map(|it| it.gpus).collect(),
            ..row
        });
    }
    answer.notes.push(
        "between the worlds that were recorded nothing is known, nor of ranks that were not recorded".to_owned(),
    );
    Ok(answer)
}
