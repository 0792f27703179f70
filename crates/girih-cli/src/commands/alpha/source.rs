//! The step that is asked about: from a recording, or from the shape of a model; for any number of tokens.

use std::path::Path;

use anyhow::{Context, bail};
use clap::ValueEnum;
use girih_tokens::Problem;
use girih_tokens::problem::{MAX_LAYERS, Role};
use girih_tokens::recording::{self, Assumed, Recorded};
use girih_tokens::scale::Scaled;
use girih_tokens::shape::{self, Block, Machine, Shape};

use super::AlphaArgs;
use crate::files::shown_input;
use crate::load::Source;
use crate::progress::Progress;
use crate::units::{count, milliseconds};

/// `--block`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BlockName {
    /// Norm, attention, norm, and a perceptron with GELU.
    Gpt,
    /// The same with a gated perceptron (SwiGLU).
    Llama,
}

/// A step that is known for every number of tokens, or for one that is not known.
pub(super) struct Subject {
    pub(super) name: String,
    /// The tokens that are asked about.
    pub(super) tokens: Option<u64>,
    pub(super) assumed: Vec<String>,
    pub(super) shape: Option<(Shape, Machine)>,
    kind: Kind,
    tiles: Option<u32>,
    links: girih_swap::Links,
}

enum Kind {
    Model(Shape, Machine),
    Recording(Scaled),
    /// Of which nobody says how many tokens it has.
    Unscaled(Box<Problem>),
}

impl Subject {
    pub(super) fn of(args: &AlphaArgs, progress: &Progress) -> anyhow::Result<Subject> {
        let model = args.model.as_ref().map(|model| shape_of(args, model)).transpose()?;
        let machine = args.flops.map(|flops| machine(args, flops)).transpose()?;
        match (&args.file, model) {
            (None, Some(_)) if args.layers.is_some() => {
                bail!("say how many layers a model has in --model, as its third number");
            }
            (None, Some(shape)) => {
                let machine = machine.context("say what the GPU reaches, with --flops 500")?;
                let Some(tokens) = args.tokens else {
                    bail!("say how many tokens a sequence has, with --tokens 1M");
                };
                Ok(Subject {
                    name: name_of(&shape),
                    tokens: Some(tokens),
                    assumed: assumed_of_model(&shape, args, tokens),
                    shape: Some((shape, machine)),
                    kind: Kind::Model(shape, machine),
                    tiles: args.tiles,
                    links: args.links()?,
                })
            }
            (Some(_), Some(_)) if machine.is_none() => {
                bail!("say what the GPU reaches, with --flops 500: without it no shape is used");
            }
            (Some(_), None) if machine.is_some() => {
                bail!(
                    "give the shape of what was recorded with --model: without it --flops is not used"
                );
            }
            (Some(_), Some(_)) if args.recorded_tokens.or(args.tokens).is_none() => {
                bail!(
                    "say how many tokens the recording has, with --recorded-tokens 8K: without them \
                     no shape is used"
                );
            }
            (Some(file), model) => recorded(args, file, model.zip(machine), progress),
            (None, None) => {
                bail!(
                    "name a recording, or the shape of a model: --model 4096,14336,32,32,8 --flops 500"
                )
            }
        }
    }

    /// The step with so many tokens.
    pub(super) fn at(&self, tokens: u64) -> Problem {
        self.with_tiles(tokens, self.tiles)
    }

    /// The step that is asked about.
    pub(super) fn problem(&self) -> Problem {
        self.at(self.tokens.unwrap_or(0))
    }

    /// Likewise, in so many tiles.
    pub(super) fn with_tiles(&self, tokens: u64, tiles: Option<u32>) -> Problem {
        let recorded = |problem: Problem| {
            let tiles = tiles.unwrap_or(1);
            let mut problem = Problem { links: self.links, tiles, ..problem };
            // A recording does not say what is a perceptron; what comes between the passes is cut, whatever it is.
            problem.head.bytes = problem.head.bytes.div_ceil(u64::from(tiles));
            problem
        };
        match &self.kind {
            Kind::Model(shape, machine) => {
                let tiles = tiles.unwrap_or_else(|| shape.default_tiles(tokens, machine.gpus));
                shape::problem(shape, machine, tokens, tiles)
            }
            Kind::Recording(scaled) => recorded(scaled.at(tokens)),
            Kind::Unscaled(problem) => recorded(Problem::clone(problem)),
        }
    }

    /// Whether it is known for any number of tokens.
    pub(super) fn is_scaled(&self) -> bool {
        !matches!(self.kind, Kind::Unscaled(_))
    }
}

fn shape_of(args: &AlphaArgs, model: &[u64]) -> anyhow::Result<Shape> {
    let (hidden, ffn, layers, heads, kv_heads) = match *model {
        [hidden, ffn, layers, heads] => (hidden, ffn, layers, heads, heads),
        [hidden, ffn, layers, heads, kv_heads] => (hidden, ffn, layers, heads, kv_heads),
        _ => bail!(
            "give --model four numbers or five: width, width of the perceptron, layers, heads, \
             and heads of keys and values if they are fewer; 4096,14336,32,32,8"
        ),
    };
    if hidden % heads != 0 || heads % kv_heads != 0 {
        bail!(
            "give a width that its heads divide, and heads that those of keys and values divide: \
             {hidden}, {heads} and {kv_heads} are not so"
        );
    }
    let layers = u32::try_from(layers).ok().filter(|&layers| layers as usize <= MAX_LAYERS);
    let layers = layers.with_context(|| format!("give at most {MAX_LAYERS} layers"))?;
    let (block, vocabulary) = match args.block {
        BlockName::Gpt => (Block::Gpt, 50_257),
        BlockName::Llama => (Block::Llama, 128_256),
    };
    let vocabulary = args.vocabulary.unwrap_or(vocabulary);
    Ok(Shape { hidden, ffn, layers, heads, kv_heads, vocabulary, block })
}

fn machine(args: &AlphaArgs, flops: f64) -> anyhow::Result<Machine> {
    Ok(Machine {
        // 10^12 a second are 10^6 a microsecond, and 10^9 a second 10^3.
        flops: flops * 1e6,
        attention_flops: args.attention_flops.unwrap_or(flops) * 1e6,
        memory: args.memory_rate * 1e3,
        gpus: args.gpus,
        links: args.links()?,
        bytes_per_parameter: args.weights_bytes_per_parameter,
    })
}

fn name_of(shape: &Shape) -> String {
    let block = match shape.block {
        Block::Gpt => "gpt",
        Block::Llama => "llama",
    };
    format!("{block} of {:.1} billion weights", shape.parameters() as f64 / 1e9)
}

fn assumed_of_model(shape: &Shape, args: &AlphaArgs, tokens: u64) -> Vec<String> {
    let mut said = vec![
        "tensors are bf16, attention is flash attention over half of all pairs, norms are fused \
         and their statistics are left out"
            .to_owned(),
    ];
    if args.gpus > 1 {
        said.push(format!(
            "{} GPUs divide tokens, weights and the host evenly; what they tell each other takes \
             no time",
            args.gpus
        ));
    }
    if args.tiles.is_none() {
        let tiles = shape.default_tiles(tokens, args.gpus);
        said.push(match tiles {
            1 => "the loss and the perceptrons run in one tile".to_owned(),
            _ => format!(
                "the loss and the perceptrons run in {} tiles of at most {} tokens: as many as the \
                 model is wide, so that products are no slower for it",
                count(u64::from(tiles)),
                count(shape.hidden)
            ),
        });
    }
    said
}

fn recorded(
    args: &AlphaArgs,
    file: &Path,
    model: Option<(Shape, Machine)>,
    progress: &Progress,
) -> anyhow::Result<Subject> {
    let (name, first) = read(args, file, args.marks.clone(), progress)?;
    let mut assumed = assumptions(&first.assumed, args.step_time);
    let tokens = args.recorded_tokens.or(args.tokens);
    if let (None, Some(tokens)) = (args.recorded_tokens, tokens) {
        assumed.push(format!(
            "the recording itself has {} tokens, as --tokens says, and nothing is scaled for it: if it \
             has others, say how many with --recorded-tokens",
            count(tokens)
        ));
    }
    if args.gpus > 1 {
        assumed
            .push(format!("the recording is of one of {} GPUs, which share the host", args.gpus));
    }
    let (kind, asked) = match (tokens, &args.second) {
        (Some(tokens), Some(second)) => {
            let more = args.second_tokens.context("--second-tokens is missing")?;
            let (_, second) = read(args, second, None, progress)?;
            assumed.push(
                "sizes are on a line through both recordings, times of layers on a parabola"
                    .to_owned(),
            );
            let scaled = Scaled::two(first, tokens, second, more)?;
            (Kind::Recording(scaled), Some(args.tokens.unwrap_or(tokens)))
        }
        (Some(tokens), None) => {
            let part = model.map(|(shape, machine)| attention_part(&shape, &machine, tokens));
            assumed.push(scaling(part));
            let scaled = Scaled::one(first, tokens, part.unwrap_or(0.0));
            (Kind::Recording(scaled), Some(args.tokens.unwrap_or(tokens)))
        }
        (None, _) => {
            // Scaled by one to one: the number of tokens does not matter.
            let scaled = Scaled::one(first, 1, 0.0);
            let scaled = match args.layers {
                Some(layers) => scaled.with_layers(layers as usize),
                None => scaled,
            };
            (Kind::Unscaled(Box::new(scaled.at(1))), None)
        }
    };
    let kind = match (kind, args.layers) {
        (Kind::Recording(scaled), Some(layers)) => {
            Kind::Recording(scaled.with_layers(layers as usize))
        }
        (kind, _) => kind,
    };
    if let Some(layers) = args.layers {
        assumed.push(format!(
            "there are {layers} layers, each as the one in the middle of the recording; weights \
             and states grow by the layers' part of the gradients, or all of them where a step \
             leaves none"
        ));
    }
    let links = args.links()?;
    Ok(Subject { name, tokens: asked, assumed, shape: model, kind, tiles: args.tiles, links })
}

fn read(
    args: &AlphaArgs,
    file: &Path,
    marks: Option<std::path::PathBuf>,
    progress: &Progress,
) -> anyhow::Result<(String, Recorded)> {
    let shown = shown_input(file);
    progress.say(format!("reading {shown}"));
    let source = Source { file: file.to_path_buf(), marks, device: args.device };
    let loaded = source.load()?;
    progress.say(format!("looking for the layers of {shown}"));
    let recorded =
        recording::read(&loaded.trace, &loaded.lives, &loaded.iterations, args.step_time)
            .with_context(|| shown.clone())?;
    Ok((loaded.name, recorded))
}

/// The part of a layer's forward time that is attention's, by the shape.
fn attention_part(shape: &Shape, machine: &Machine, tokens: u64) -> f64 {
    let problem = shape::problem(shape, machine, tokens, 1);
    let Some(layer) = problem.layers.first() else { return 0.0 };
    let own = layer.kinds.iter().filter(|kind| kind.role == Role::Attention);
    let us: f64 = own.filter_map(|kind| kind.remake_us).sum();
    us / layer.forward.us.max(f64::MIN_POSITIVE)
}

fn scaling(attention: Option<f64>) -> String {
    let times = match attention {
        Some(part) => format!(
            "{:.0} % of a layer's time is attention's by the shape, and goes by the square of the \
             tokens",
            100.0 * part
        ),
        None => "times too, though attention's goes by the square: say the shape with --model and \
                 --flops, or give a --second recording"
            .to_owned(),
    };
    format!(
        "what layers keep, and what lives and dies within the step, is in proportion to the tokens, \
         and nothing else; {times}"
    )
}

fn assumptions(assumed: &Assumed, step_time: Option<f64>) -> Vec<String> {
    let mut said = Vec::new();
    if assumed.layers {
        said.push("no modules are marked: layers are what repeats in the forward pass".to_owned());
    }
    if assumed.microbatches > 1 {
        said.push(format!(
            "one microbatch of {} is looked at; the others and the optimizer are left out",
            assumed.microbatches
        ));
    }
    match step_time {
        Some(us) => said.push(format!("a step takes {}, as was given", milliseconds(us))),
        None if assumed.times => said.push(
            "passes take what the events' clock says, which is the host's: with --step-time the \
             whole is right"
                .to_owned(),
        ),
        None => {}
    }
    if assumed.costs {
        said.push(
            "the recording has no times of operators: to compute a tensor again takes the part of \
             its layer's forward pass that it has of the bytes, which is too much for what is \
             cheap and too little for what is dear"
                .to_owned(),
        );
    }
    if assumed.attention {
        said.push(
            "no log-sum-exp tells which tensor is attention's output: it is taken for one like \
             the others"
                .to_owned(),
        );
    }
    if assumed.lifted {
        said.push(
            "the program computes its layers again in the backward pass: what that makes is what \
             they would keep, and the method recompute is the run as it was recorded"
                .to_owned(),
        );
    } else if assumed.recomputes {
        said.push(
            "the program computes its layers again in the backward pass: what that makes counts as \
             transient, and its time as the backward pass's"
                .to_owned(),
        );
    }
    said
}
