//! `girih fit`: the largest microbatch, or the fewest GPUs, at which a job fits, for each allocator.

mod growing;
mod json;
mod source;
mod text;
mod worlds;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use girih_fit::Subject;
use girih_runtime::caching::Config;
use girih_runtime::simulate::{Allocator, Setup, SimulateError, recorded_conf};

use self::json::{Json, JsonRequired, JsonRow};
use self::source::{At, Recording};
use super::in_order::in_order;
use super::row::{allocator_names, tie_order};
use super::write_json;
use crate::Answer;
use crate::load::timed;
use crate::progress::Progress;
use crate::units;

/// The allocators that are tried without being asked for.
const TRIED: [Allocator; 6] = [
    Allocator::Native,
    Allocator::Expandable,
    Allocator::Stitch,
    Allocator::Planned,
    Allocator::Auto,
    Allocator::Again,
];

/// The parameter of which there are recordings at several values and nothing between them.
const GPUS: &str = "gpus";

#[derive(Args)]
pub(crate) struct FitArgs {
    /// Recordings of one rank of a job. One alone is taken as it is; of several, the one number in which their
    /// names differ is the value of the parameter.
    #[arg(value_name = "RUN", required_unless_present = "at")]
    files: Vec<PathBuf>,
    /// A recording and the value of the parameter at which it was made: --at 4=mb4.pickle. With --of gpus several
    /// ranks may have the same value, and a folder stands for the recordings in it.
    #[arg(long, value_name = "VALUE=RUN", value_parser = source::parse_at, conflicts_with = "files")]
    at: Vec<At>,
    /// What grows from recording to recording: microbatch, tokens, or any other word. `gpus` is what a job is
    /// spread over: nothing is built between its values, and the worst rank decides.
    #[arg(long, value_name = "NAME", default_value = "microbatch", value_parser = source::parse_name)]
    of: String,
    /// Bytes of each GPU, such as 80GiB.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_capacity)]
    capacity: u64,
    /// Exits with status 1 if the job does not fit at this value under any of the allocators.
    #[arg(long, value_name = "VALUE", value_parser = clap::value_parser!(u64).range(1..=source::VALUE_MAX))]
    require: Option<u64>,
    /// Only multiples of this are tried: tokens are often those of a power of two.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=source::VALUE_MAX))]
    step: u64,
    /// The allocators that are tried, with commas between: native, expandable, stitch, planned, auto and again
    /// without this.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = allocator_names(),
          hide_possible_values = true)]
    allocators: Option<Vec<Allocator>>,
    /// The device, if the recordings have several. Without this, the one with the most events.
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Settings of the allocators, as in PYTORCH_CUDA_ALLOC_CONF. Without this, those that the recordings were
    /// made with.
    #[arg(long, value_name = "STRING")]
    conf: Option<String>,
    /// The torch release whose order among equal free blocks is taken.
    #[arg(long, value_name = "VERSION", default_value = "2.11")]
    torch: String,
}

impl FitArgs {
    fn allocators(&self) -> Vec<Allocator> {
        self.allocators.clone().unwrap_or_else(|| TRIED.to_vec())
    }

    /// What a recording is replayed with.
    fn setup(&self, recording: &Recording) -> anyhow::Result<Setup> {
        let tie_order = tie_order(&self.torch)?;
        if let Some(conf) = &self.conf {
            Config::parse(conf).context("--conf")?;
        }
        let conf = self.conf.clone().unwrap_or_else(|| recorded_conf(&recording.loaded.trace));
        Ok(Setup { conf, tie_order, capacity: Some(self.capacity), ..Setup::default() })
    }

    /// Does some work for each allocator, as many at once as there are processors, and gives what came of each in
    /// the order of the allocators.
    fn for_each<T: Send>(
        &self,
        progress: &Progress,
        work: impl Fn(Allocator) -> Result<T, SimulateError> + Sync,
    ) -> anyhow::Result<Vec<T>> {
        let allocators = self.allocators();
        let at_once = std::thread::available_parallelism().map_or(1, usize::from);
        let mut all = Vec::with_capacity(allocators.len());
        let say = |done: usize| {
            progress.part(done, allocators.len());
            progress.show(format!("{done} of {} allocators tried", allocators.len()));
        };
        say(0);
        in_order(
            &allocators,
            at_once,
            |&allocator| work(allocator),
            |index, result| {
                say(index + 1);
                all.push(result?);
                Ok(())
            },
        )?;
        Ok(all)
    }
}

pub(crate) fn run(args: &FitArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let progress = Progress::new();
    let (answer, seconds) = timed(|| answer(args, &progress));
    drop(progress);
    let answer = Json { seconds, ..answer? };
    if json {
        write_json(out, &answer)?;
    } else {
        text::print(&answer, out)?;
    }
    let fits = answer.required.as_ref().is_none_or(|required| !required.fits.is_empty());
    Ok(if fits { Answer::Yes } else { Answer::No })
}

fn answer(args: &FitArgs, progress: &Progress) -> anyhow::Result<Json> {
    let recordings = source::recordings(args, progress)?;
    if args.of == GPUS {
        return worlds::answer(args, recordings, progress);
    }
    match <[Recording; 1]>::try_from(recordings) {
        Ok([alone]) => one(args, alone, progress),
        Err(several) => growing::answer(args, &several, progress),
    }
}

/// One recording: whether it fits, and how much is left. What would grow, it does not say.
fn one(args: &FitArgs, alone: Recording, progress: &Progress) -> anyhow::Result<Json> {
    let Recording { value, loaded, .. } = &alone;
    if let Some(required) = args.require.filter(|required| *value != Some(*required)) {
        bail!(
            "give recordings at two values with --at VALUE=RUN: {} alone does not say what would be at {required}",
            loaded.name
        );
    }
    let mut answer = Json::new(args, "alone", &loaded.name);
    answer.recordings.push(alone.described());
    let setup = args.setup(&alone)?;
    let loaded = alone.loaded;
    let subject = Subject::recorded(loaded.trace, loaded.lives, loaded.iterations, setup);
    let outcomes = args.for_each(progress, |allocator| subject.under(allocator))?;
    for (allocator, outcome) in args.allocators().into_iter().zip(&outcomes) {
        answer.rows.push(JsonRow::of(allocator, outcome, subject.lives()));
    }
    answer.notes.push(format!(
        "record the job at another {} too, and give both with --at VALUE=RUN: one recording alone does not say what \
         grows",
        args.of
    ));
    answer.required = args.require.map(|value| JsonRequired {
        value,
        fits: answer.rows.iter().filter(|row| row.fits).map(|row| row.allocator).collect(),
    });
    Ok(answer)
}
