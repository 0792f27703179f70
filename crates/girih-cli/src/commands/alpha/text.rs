//! What `girih alpha` answers, as people read it.

use std::io::Write;

use super::json::{Json, JsonLayer};
use crate::table::table;
use crate::units::{bytes, count, milliseconds, percent, percent_more};

pub(super) fn print(result: &Json, out: &mut dyn Write) -> anyhow::Result<()> {
    let title = format!("{}, {}", result.name, result.method);
    write!(out, "{}", table(&[&title, ""], &summary(result)))?;
    if result.arithmetic.is_some() {
        write!(out, "\n{}", table(&["of one GPU", ""], &arithmetic(result)))?;
    }
    let header = ["layers", "alpha", "stays", "goes", "again", "time", "limit"];
    write!(out, "\n{}", table(&header, &layer_rows(&result.layers)))?;
    write!(out, "\n{}", kinds(result))?;
    write!(out, "\n{}", compared(result))?;
    if !result.fits {
        writeln!(out, "\n{}", misfit(result))?;
    }
    if result.method == "memo" && !result.memo.feasible {
        let limit = if result.memo.binds == "host" { "the host" } else { "the link" };
        writeln!(out, "\nmemo: not even alpha = 0 is within what {limit} can do")?;
    }
    for said in &result.assumed {
        writeln!(out, "\nassumed: {said}")?;
    }
    Ok(())
}

/// Seconds where they are many.
fn time(us: f64) -> String {
    if us < 1e7 { milliseconds(us) } else { format!("{:.2} s", us / 1e6) }
}

fn tokens(tokens: Option<u64>) -> String {
    tokens.map_or_else(|| "-".to_owned(), count)
}

fn summary(result: &Json) -> Vec<Vec<String>> {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let cost = |us: f64| format!("{} ({})", time(us), percent_more(us, result.step_us_plain));
    let mut rows = vec![row("fits", if result.fits { "yes" } else { "no" }.to_owned())];
    if result.tokens.is_some() {
        rows.push(row("tokens", tokens(result.tokens)));
    }
    if result.longest_tokens.is_some() {
        rows.push(row("the longest that fits", tokens(result.longest_tokens)));
    }
    if let Some(untiled) = &result.untiled {
        rows.push(row("tiles", count(u64::from(result.tiles))));
        if untiled.longest_tokens.is_some() {
            rows.push(row("the longest in one tile", tokens(untiled.longest_tokens)));
        }
        rows.push(row("no less on the GPU, in one tile", bytes(untiled.gpu_least)));
    }
    rows.extend([
        row("no less on the GPU", bytes(result.gpu_least)),
        row("on the GPU at most", bytes(result.gpu_peak)),
        row("on the host at most, of one GPU", bytes(result.host_peak)),
        row("copied out, and in again", bytes(result.bytes_out)),
        row("step if everything could stay", time(result.step_us_plain)),
        row("step", cost(result.step_us)),
        row("nothing is faster than", cost(result.step_us_bound)),
        row("computed again", time(result.recompute_us)),
        row("waited for copies", time(result.stall_us)),
    ]);
    rows
}

fn arithmetic(result: &Json) -> Vec<Vec<String>> {
    let Some(own) = &result.arithmetic else { return Vec::new() };
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let attention = percent(own.attention_us / own.forward_us.max(f64::MIN_POSITIVE));
    let rate = own.flops_per_second / f64::from(result.gpus) / 1e12;
    vec![
        row("weights, gradients, optimizer", bytes(own.static_bytes)),
        row("a layer keeps of each token", bytes(own.layer_bytes_per_token as u64)),
        row("a layer keeps of its tokens", bytes(own.layer_bytes)),
        row("copying that takes", time(own.copy_us)),
        row("a layer's forward pass takes", time(own.forward_us)),
        row("of which attention is", attention),
        row("the logits and their gradient, a tile", bytes(own.head_bytes)),
        row("model flops a second (6sP + 6nhs^2)", format!("{rate:.1} T")),
    ]
}

/// Runs of layers that look the same are one row.
fn layer_rows(layers: &[JsonLayer]) -> Vec<Vec<String>> {
    let cells = |layer: &JsonLayer| {
        let cells = [
            format!("{:.3}", layer.alpha),
            bytes(layer.keep),
            bytes(layer.swap),
            bytes(layer.recompute),
            time(layer.time_us),
            layer.binds.to_owned(),
        ];
        Vec::from(cells)
    };
    let mut runs: Vec<(usize, usize, Vec<String>)> = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let cells = cells(layer);
        match runs.last_mut() {
            Some((_, last, own)) if *own == cells => *last = index,
            _ => runs.push((index, index, cells)),
        }
    }
    let row = |(first, last, cells): (usize, usize, Vec<String>)| {
        let name = if first == last { first.to_string() } else { format!("{first} to {last}") };
        [vec![name], cells].concat()
    };
    runs.into_iter().map(row).collect()
}

fn kinds(result: &Json) -> String {
    let part = |bytes: u64, all: u64| match all {
        0 => "-".to_owned(),
        _ => format!("{:.0} %", 100.0 * bytes as f64 / all as f64),
    };
    let row = |kind: &super::json::JsonKind| {
        vec![
            kind.name.clone(),
            bytes(kind.bytes),
            kind.recompute_us.map_or_else(|| "-".to_owned(), time),
            part(kind.keep, kind.bytes),
            part(kind.swap, kind.bytes),
            part(kind.recompute, kind.bytes),
        ]
    };
    let rows: Vec<Vec<String>> = result.kinds.iter().map(row).collect();
    let header = ["of layer 0", "bytes", "to compute again", "stays", "goes", "again"];
    table(&header, &rows)
}

fn compared(result: &Json) -> String {
    let extra = |us: f64| percent_more(us, result.step_us_plain);
    let row = |name: &str, fits: bool, us: f64, gpu: u64, host: u64, longest: Option<u64>| {
        let fits = if fits { "yes" } else { "no" }.to_owned();
        vec![name.to_owned(), fits, extra(us), bytes(gpu), bytes(host), tokens(longest)]
    };
    let own = row(
        result.method,
        result.fits,
        result.step_us,
        result.gpu_peak,
        result.host_peak,
        result.longest_tokens,
    );
    let others = result.compared.iter().map(|it| {
        row(it.method, it.fits, it.step_us, it.gpu_peak, it.host_peak, it.longest_tokens)
    });
    let rows: Vec<Vec<String>> = std::iter::once(own).chain(others).collect();
    let header = ["method", "fits", "step", "GPU", "host", "longest"];
    table(&header, &rows)
}

/// Why the budgets are not kept, in bytes.
fn misfit(result: &Json) -> String {
    let host = result.host_budget.map(|host| host / u64::from(result.gpus));
    match host.filter(|&host| result.host_peak > host) {
        Some(host) => format!(
            "does not fit: {} must be on the host, {} more than each GPU's part of its budget, {}",
            bytes(result.host_peak),
            bytes(result.host_peak - host),
            bytes(host)
        ),
        None => format!(
            "does not fit: {} leaves {} on the GPU, {} more than the budget; nothing does with \
             less than {}",
            result.method,
            bytes(result.gpu_peak),
            bytes(result.gpu_peak.saturating_sub(result.gpu_budget)),
            bytes(result.gpu_least)
        ),
    }
}
