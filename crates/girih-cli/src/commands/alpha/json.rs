//! What `girih alpha` answers, as scripts read it.

use girih_tokens::longest::longest;
use girih_tokens::memo::{self, Limit};
use girih_tokens::problem::{Layer, Role};
use girih_tokens::timeline::peaks;
use girih_tokens::{Answer, Budgets, Method, Problem, baselines};
use serde::Serialize;

use super::AlphaArgs;
use super::source::Subject;

#[derive(Serialize)]
pub(super) struct Json {
    pub(super) name: String,
    pub(super) method: &'static str,
    pub(super) fits: bool,
    pub(super) tokens: Option<u64>,
    pub(super) gpus: u32,
    pub(super) tiles: u32,
    pub(super) gpu_budget: u64,
    pub(super) host_budget: Option<u64>,
    /// Bytes on the GPU that no decision can do with fewer than.
    pub(super) gpu_least: u64,
    pub(super) gpu_peak: u64,
    pub(super) gpu_peak_plain: u64,
    /// Of one GPU.
    pub(super) host_peak: u64,
    pub(super) bytes_out: u64,
    pub(super) bytes_in: u64,
    pub(super) step_us: f64,
    pub(super) step_us_plain: f64,
    pub(super) step_us_bound: f64,
    pub(super) stall_us: f64,
    pub(super) recompute_us: f64,
    /// The most tokens with which the method keeps the budgets; null where tokens are not known.
    pub(super) longest_tokens: Option<u64>,
    pub(super) layers: Vec<JsonLayer>,
    /// What a layer keeps, of the first one.
    pub(super) kinds: Vec<JsonKind>,
    pub(super) compared: Vec<JsonCompared>,
    pub(super) untiled: Option<JsonUntiled>,
    pub(super) memo: JsonMemo,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) arithmetic: Option<JsonArithmetic>,
    pub(super) assumed: Vec<String>,
    pub(super) seconds: f64,
}

#[derive(Serialize)]
pub(super) struct JsonLayer {
    /// Of what is neither the layer's input nor attention's output, the part that goes to the host.
    pub(super) alpha: f64,
    pub(super) keep: u64,
    pub(super) swap: u64,
    pub(super) recompute: u64,
    /// Both passes, what is computed again, and waits.
    pub(super) time_us: f64,
    pub(super) binds: &'static str,
}

#[derive(Serialize)]
pub(super) struct JsonKind {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Null for what cannot be computed again within the layer.
    pub(super) recompute_us: Option<f64>,
    pub(super) keep: u64,
    pub(super) swap: u64,
    pub(super) recompute: u64,
}

#[derive(Serialize)]
pub(super) struct JsonCompared {
    pub(super) method: &'static str,
    pub(super) fits: bool,
    pub(super) step_us: f64,
    pub(super) gpu_peak: u64,
    pub(super) host_peak: u64,
    pub(super) longest_tokens: Option<u64>,
}

/// The same in one tile.
#[derive(Serialize)]
pub(super) struct JsonUntiled {
    pub(super) gpu_least: u64,
    pub(super) longest_tokens: Option<u64>,
}

/// Memo's program.
#[derive(Serialize)]
pub(super) struct JsonMemo {
    pub(super) alpha: f64,
    pub(super) binds: &'static str,
    pub(super) feasible: bool,
}

/// The numbers of one layer in the middle, by which the answer can be followed.
#[derive(Serialize)]
pub(super) struct JsonArithmetic {
    pub(super) parameters: u64,
    pub(super) static_bytes: u64,
    pub(super) layer_bytes: u64,
    pub(super) layer_bytes_per_token: f64,
    pub(super) forward_us: f64,
    pub(super) attention_us: f64,
    pub(super) copy_us: f64,
    pub(super) head_bytes: u64,
    pub(super) model_flops: f64,
    /// Of all GPUs, with the step as decided.
    pub(super) flops_per_second: f64,
}

/// What stands beside the answer. Everything else is a point of the same space.
const COMPARED: [Method; 5] =
    [Method::Plain, Method::Recompute, Method::Swap, Method::WholeTensors, Method::Memo];

impl Json {
    pub(super) fn of(args: &AlphaArgs, subject: &Subject) -> anyhow::Result<Json> {
        let (problem, budgets) = (subject.problem(), args.budgets());
        let answer = args.method.answer(&problem, &budgets)?;
        let reach = |method: Method| match subject.is_scaled() && method != Method::Exact {
            true => longest(method, &budgets, |tokens| subject.at(tokens)).map(Some),
            false => Ok(None),
        };
        let compared = COMPARED.iter().filter(|&&method| method != args.method);
        let compared: Result<Vec<JsonCompared>, girih_tokens::Refusal> = compared
            .map(|&method| {
                let other = method.answer(&problem, &budgets)?;
                Ok(JsonCompared {
                    method: method.name(),
                    fits: other.fits,
                    step_us: other.outcome.step_us,
                    gpu_peak: other.outcome.gpu_peak,
                    host_peak: other.outcome.host_peak,
                    longest_tokens: reach(method)?,
                })
            })
            .collect();
        let least = |problem: &Problem| peaks(problem, &baselines::least(problem, budgets.host)).0;
        let plain = args.method == Method::Plain || problem.tiles == 1;
        let untiled = match plain {
            true => None,
            false => {
                let one = |tokens: u64| subject.with_tiles(tokens, Some(1));
                let longest_tokens = match subject.is_scaled() && args.method != Method::Exact {
                    true => Some(longest(args.method, &budgets, one)?),
                    false => None,
                };
                let gpu_least = least(&one(subject.tokens.unwrap_or(0)));
                Some(JsonUntiled { gpu_least, longest_tokens })
            }
        };
        let own = memo::alpha(&problem, budgets.host);
        let outcome = &answer.outcome;
        Ok(Json {
            name: subject.name.clone(),
            method: args.method.name(),
            fits: answer.fits,
            tokens: subject.tokens,
            gpus: args.gpus,
            tiles: problem.tiles,
            gpu_budget: args.gpu_budget,
            host_budget: args.host_budget,
            gpu_least: least(&problem),
            gpu_peak: outcome.gpu_peak,
            gpu_peak_plain: peaks(&problem, &girih_tokens::Decision::plain(&problem)).0,
            host_peak: outcome.host_peak,
            bytes_out: outcome.bytes,
            bytes_in: outcome.bytes,
            step_us: outcome.step_us,
            step_us_plain: problem.plain_us(),
            step_us_bound: answer.bound_us,
            stall_us: outcome.stall_us,
            recompute_us: outcome.remake_us,
            longest_tokens: reach(args.method)?,
            layers: layers(&problem, &answer, &budgets),
            kinds: kinds(&problem.layers[0], &answer),
            compared: compared?,
            untiled,
            memo: JsonMemo { alpha: own.alpha, binds: limit(own.limit), feasible: own.is_feasible },
            arithmetic: arithmetic(subject, &problem, &answer),
            assumed: subject.assumed.clone(),
            seconds: 0.0,
        })
    }
}

fn layers(problem: &Problem, answer: &Answer, budgets: &Budgets) -> Vec<JsonLayer> {
    let times = answer.outcome.layers_us(problem.layers.len());
    let layer = |(index, time_us): (usize, f64)| {
        let sums = answer.decision.sums(index);
        JsonLayer {
            alpha: answer.decision.alpha(problem, index),
            keep: sums.keep,
            swap: sums.swap,
            recompute: sums.remake,
            time_us,
            binds: limit(answer.limit(index, budgets)),
        }
    };
    times.into_iter().enumerate().map(layer).collect()
}

fn kinds(layer: &Layer, answer: &Answer) -> Vec<JsonKind> {
    let kinds = layer.kinds.iter().zip(&answer.decision.shares[0]);
    let kinds = kinds.map(|(kind, share)| JsonKind {
        name: kind.name.clone(),
        bytes: kind.bytes,
        recompute_us: kind.remake_us,
        keep: share.keep,
        swap: share.swap,
        recompute: share.remake,
    });
    kinds.collect()
}

fn limit(limit: Limit) -> &'static str {
    match limit {
        Limit::Link => "link",
        Limit::Host => "host",
        Limit::Gpu => "gpu",
        Limit::None => "none",
    }
}

fn arithmetic(subject: &Subject, problem: &Problem, answer: &Answer) -> Option<JsonArithmetic> {
    let (shape, machine) = subject.shape?;
    let tokens = subject.tokens?;
    let layer = &problem.layers[problem.layers.len() / 2];
    let attention = layer.kinds.iter().filter(|kind| kind.role == Role::Attention);
    let model_flops = shape.model_flops(tokens);
    Some(JsonArithmetic {
        parameters: shape.parameters(),
        static_bytes: problem.static_bytes,
        layer_bytes: layer.bytes(),
        layer_bytes_per_token: layer.bytes() as f64 * f64::from(machine.gpus) / tokens as f64,
        forward_us: layer.forward.us,
        attention_us: attention.filter_map(|kind| kind.remake_us).sum(),
        copy_us: layer.bytes() as f64 / problem.links.outward,
        head_bytes: problem.head.bytes,
        model_flops,
        flops_per_second: model_flops / (answer.outcome.step_us / 1e6),
    })
}
