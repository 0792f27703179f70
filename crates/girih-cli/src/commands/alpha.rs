//! `girih alpha`: which tokens of which layer stay on the GPU, go to the host, or are computed again.

mod json;
mod source;
mod text;

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use girih_swap::Links;
use girih_tokens::problem::MAX_LAYERS;
use girih_tokens::{Budgets, Method};

use self::json::Json;
use self::source::{BlockName, Subject};
use super::swap::links_of;
use super::write_json;
use crate::Answer;
use crate::load::timed;
use crate::progress::Progress;
use crate::units::{count, parse_bytes, parse_microseconds, parse_name, parse_rate};

#[derive(Args)]
pub(crate) struct AlphaArgs {
    /// A recording of a step of layers; without it, --model says what the step is.
    file: Option<PathBuf>,
    /// The marks of the run. Without this, NAME.marks.json or NAME.marks.json.gz beside the file.
    #[arg(long, value_name = "FILE", requires = "file")]
    marks: Option<PathBuf>,
    /// The device, if the recording has several. Without this, the one with the most events.
    #[arg(long, value_name = "N", requires = "file")]
    device: Option<u32>,
    /// The most bytes on each GPU: 130GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    gpu_budget: u64,
    /// The most bytes on the host, which the GPUs share. Without this, no limit.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    host_budget: Option<u64>,
    /// Tokens of a sequence: 1M, 128K, 4096. K and M are binary.
    #[arg(long, value_name = "N", value_parser = parse_tokens)]
    tokens: Option<u64>,
    /// How it is decided.
    #[arg(long, value_name = "NAME", value_parser = parse_name(Method::ALL, Method::name), default_value = "girih")]
    method: Method,
    /// The shape of a model. With a recording it says what part of a layer's time is attention's.
    #[arg(long, value_name = "HIDDEN,FFN,LAYERS,HEADS[,KV]", value_parser = parse_count,
          value_delimiter = ',')]
    model: Option<Vec<u64>>,
    /// Which block the model is made of.
    #[arg(long, value_name = "NAME", value_enum, default_value = "llama", requires = "model")]
    block: BlockName,
    /// Words that the model tells apart: 128,256 of a llama and 50,257 of a gpt without this.
    #[arg(long, value_name = "N", value_parser = parse_count, requires = "model")]
    vocabulary: Option<u64>,
    /// 10^12 flops a second that products reach on one GPU.
    #[arg(long, value_name = "T", value_parser = parse_rate("TFLOP/s"))]
    flops: Option<f64>,
    /// Likewise attention; as products without this.
    #[arg(long, value_name = "T", value_parser = parse_rate("TFLOP/s"), requires = "flops")]
    attention_flops: Option<f64>,
    /// Gigabytes (10^9 bytes) a second that the GPU's memory moves.
    #[arg(long, value_name = "GB/S", value_parser = parse_rate("GB/s"), default_value = "4200")]
    memory_rate: f64,
    /// Gigabytes (10^9 bytes) a second of the link to the host, of the link back, and of both together.
    #[arg(long, value_name = "OUT[,IN[,BOTH]]", value_delimiter = ',', value_parser = parse_rate("GB/s"),
          default_value = "55,55,101")]
    link: Vec<f64>,
    /// GPUs that share each sequence, the model and the host.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    gpus: u32,
    /// Bytes of each weight with its gradient and the states of its optimizer.
    #[arg(long, value_name = "BYTES", default_value = "16", value_parser = parse_rate("bytes"), requires = "model")]
    weights_bytes_per_parameter: f64,
    /// Into how many tiles of tokens the loss and the multilayer perceptrons are cut. Without this, of a model as many
    /// as leave a tile as many tokens as it is wide, and 1 of a recording.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    tiles: Option<u32>,
    /// How many layers there are; those of a recording without this.
    #[arg(long, value_name = "L", value_parser = clap::value_parser!(u32).range(1..=MAX_LAYERS as i64))]
    layers: Option<u32>,
    /// Tokens of the recording. Without this, --tokens, and nothing is scaled.
    #[arg(long, value_name = "N", requires = "file", value_parser = parse_tokens)]
    recorded_tokens: Option<u64>,
    /// Another recording of the same program, with another number of tokens: sizes and times are drawn through both.
    #[arg(long, value_name = "FILE", requires_all = ["second_tokens", "recorded_tokens"])]
    second: Option<PathBuf>,
    /// Tokens of the other recording.
    #[arg(long, value_name = "N", requires = "second", value_parser = parse_tokens)]
    second_tokens: Option<u64>,
    /// How long a recorded step takes without swapping: 800ms, 1.2s. Without this, as its events say.
    #[arg(long, value_name = "TIME", requires = "file", value_parser = parse_microseconds)]
    step_time: Option<f64>,
    /// Ends with exit status 1 if the budgets are not kept.
    #[arg(long)]
    require_fit: bool,
}

/// A number of the shape of a model.
fn parse_count(text: &str) -> Result<u64, String> {
    match text.trim().parse() {
        Ok(number) if (1..=1 << 24).contains(&number) => Ok(number),
        _ => Err(format!("give a whole number between 1 and {}, not `{text}`", count(1 << 24))),
    }
}

/// Tokens: `1M`, `128K`, `4096`.
fn parse_tokens(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, shift) = match text.to_ascii_lowercase().chars().last() {
        Some('k') => (&text[..text.len() - 1], 10),
        Some('m') => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    let number: f64 =
        number.parse().map_err(|_| format!("try 1M or 4096: `{text}` is no number of tokens"))?;
    let tokens = number * f64::from(1 << shift);
    match (1.0..=(1u64 << 33) as f64).contains(&tokens) {
        true => Ok(tokens as u64),
        false => Err(format!("give between 1 and 8,192M tokens, not `{text}`")),
    }
}

impl AlphaArgs {
    /// The links of one GPU.
    fn links(&self) -> anyhow::Result<Links> {
        Ok(match self.link[..] {
            [both_ways] => Links::of_gigabytes(both_ways, both_ways, 2.0 * both_ways),
            [outward, inward] => Links::of_gigabytes(outward, inward, outward + inward),
            [outward, inward, both] => links_of("--link", outward, inward, both)?,
            _ => bail!("give --link one rate, or two, or three, with commas between"),
        })
    }

    /// What one GPU may hold, and its part of the host.
    fn budgets(&self) -> Budgets {
        let host = self.host_budget.map(|host| host / u64::from(self.gpus));
        Budgets { gpu: self.gpu_budget, host }
    }
}

pub(crate) fn run(args: &AlphaArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let progress = Progress::new();
    let subject = Subject::of(args, &progress)?;
    progress.say(format!("deciding by {}", args.method.name()));
    let (result, seconds) = timed(|| Json::of(args, &subject));
    let result = Json { seconds, ..result? };
    drop(progress);
    let answer = if args.require_fit && !result.fits { Answer::No } else { Answer::Yes };
    match json {
        true => write_json(out, &result)?,
        false => text::print(&result, out)?,
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_in_binary_thousands() {
        assert_eq!(parse_tokens("1M"), Ok(1 << 20));
        assert_eq!(parse_tokens("1.5k"), Ok(1536));
        assert_eq!(parse_tokens(" 4096 "), Ok(4096));
        for text in ["", "K", "0", "-1", "99999M", "1G", "1 M M"] {
            assert!(parse_tokens(text).is_err(), "{text:?}");
        }
    }
}
