//! What `girih fit` answers, as people read it.

use std::io::Write;

use super::json::{Json, JsonGrowth, JsonHeldOut, JsonRow};
use crate::table::{WIDTH, broken, table};
use crate::units::{bytes, count, percent};

pub(super) fn print(answer: &Json, out: &mut dyn Write) -> anyhow::Result<()> {
    write_broken(out, &title(answer))?;
    let (header, rows) = cells(answer);
    write!(out, "{}", table(&header, &rows))?;
    for sentence in sentences(answer) {
        writeln!(out)?;
        write_broken(out, &sentence)?;
    }
    Ok(())
}

fn write_broken(out: &mut dyn Write, sentence: &str) -> anyhow::Result<()> {
    for line in broken(sentence, WIDTH) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn title(answer: &Json) -> String {
    let values: Vec<String> =
        answer.recordings.iter().filter_map(|it| it.value).map(count).collect();
    let of = match answer.kind {
        "alone" => answer.name.clone(),
        "worlds" => "fewest GPUs of those recorded".to_owned(),
        _ => format!("{}, {} recorded at {}", answer.name, answer.of, values.join(", ")),
    };
    format!("{of}, on a device of {}", bytes(answer.capacity))
}

fn cells(answer: &Json) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let or_none =
        |value: Option<u64>, say: fn(u64) -> String| value.map_or_else(|| "-".to_owned(), say);
    let last = |row: &JsonRow| {
        [
            or_none(row.reserved_peak, bytes),
            or_none(row.spare, bytes),
            or_none(row.num_alloc_retries, count),
        ]
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for row in &answer.rows {
        let mut cells = vec![row.allocator.to_owned()];
        match answer.kind {
            "alone" => cells.push(if row.fits { "yes" } else { "no" }.to_owned()),
            "worlds" => {
                cells.push(row.value.map_or_else(|| "none".to_owned(), count));
                cells.push(row.worst.clone().unwrap_or_default());
            }
            _ => cells.push(row.value.map_or_else(|| "none".to_owned(), count)),
        }
        cells.extend(last(row));
        rows.push(cells);
    }
    if let Some(bound) = answer.bound.as_ref() {
        let spare = answer.capacity.checked_sub(bound.bytes);
        let value = if bound.value == 0 { "none".to_owned() } else { count(bound.value) };
        rows.push(vec![
            "lower bound".to_owned(),
            value,
            bytes(bound.bytes),
            or_none(spare, bytes),
            "-".to_owned(),
        ]);
    }
    let header = match answer.kind {
        "alone" => vec!["allocator", "fits", "reserved", "spare", "retries"],
        "worlds" => vec!["allocator", "fewest", "worst rank", "reserved", "spare", "retries"],
        _ => vec!["allocator", "largest", "reserved", "spare", "retries"],
    };
    (header, rows)
}

fn sentences(answer: &Json) -> Vec<String> {
    let mut said = Vec::new();
    said.extend(best(answer));
    for row in &answer.rows {
        if let Some(stopped) = &row.stopped {
            let at = row.worst.as_ref().map_or_else(String::new, |worst| format!(" {worst}"));
            said.push(format!("{}{at} {stopped}", row.allocator));
        }
        if !row.gaps.is_empty()
            && let Some(value) = row.value
        {
            let gaps: Vec<String> = row.gaps.iter().copied().map(count).collect();
            let (gaps, value) = (gaps.join(", "), count(value));
            said.push(format!("{} fits at {value}, and not at {gaps}", row.allocator));
        }
    }
    if let Some(required) = &answer.required {
        let under = match required.fits.is_empty() {
            true => "no allocator".to_owned(),
            false => required.fits.join(", "),
        };
        said.push(format!("{} {} fits under {under}", answer.of, count(required.value)));
    }
    said.extend(answer.growth.as_ref().map(|growth| grown(growth, &answer.of)));
    said.extend(answer.held_out.iter().map(held_out));
    said.extend(answer.notes.iter().cloned());
    said
}

/// The best allocator beside PyTorch's own.
fn best(answer: &Json) -> Option<String> {
    let native = answer.rows.iter().find(|row| row.allocator == "native")?;
    let is_worlds = answer.kind == "worlds";
    let rank = |row: &&JsonRow| {
        let value = row.value.unwrap_or(if is_worlds { u64::MAX } else { 0 });
        (if is_worlds { u64::MAX - value } else { value }, row.spare)
    };
    // Of several that are as good, the first.
    let best = answer.rows.iter().rev().max_by_key(rank)?;
    let (own, best_value) = (native.value, best.value?);
    let name = best.allocator;
    Some(match own {
        Some(own) if own == best_value => return None,
        Some(own) if is_worlds => {
            format!("{name} fits on {} GPUs, native on {}", count(best_value), count(own))
        }
        Some(own) => {
            let more = percent(best_value as f64 / own as f64 - 1.0);
            let (own, best_value) = (count(own), count(best_value));
            format!("{name} has room for {} {best_value}, native for {own}: {more} more", answer.of)
        }
        None if is_worlds => {
            format!("{name} fits on {} GPUs, native on none of them", count(best_value))
        }
        None => format!("{name} has room for {} {}, native for none", answer.of, count(best_value)),
    })
}

fn grown(growth: &JsonGrowth, of: &str) -> String {
    let (from, to) = growth.drawn;
    let laws: Vec<String> = (growth.laws.iter())
        .filter(|law| law.requests > 0)
        .map(|law| format!("{} {}", count(law.requests), explain(law.law)))
        .collect();
    let left_out = match growth.left_out {
        0 => String::new(),
        some => format!("; {} of {} are left out", count(some as u64), count(from)),
    };
    format!(
        "of {} requests {}{left_out}; of {} alive at the peak of {}, {} do not grow, and each {of} more takes {}",
        count(growth.requests as u64),
        laws.join(", "),
        bytes(growth.peak_bytes),
        count(to),
        bytes(growth.peak_bytes_fixed),
        bytes(growth.bytes_each)
    )
}

/// What a law means, after a number of requests.
fn explain(law: &str) -> &str {
    match law {
        "same" => "are as large everywhere",
        "line" => "grow by whole bytes",
        "uneven" => "by parts of a byte",
        "curve" => "faster than in proportion",
        "falling" => "fall",
        "alone" => "are in one recording only",
        other => other,
    }
}

fn held_out(held_out: &JsonHeldOut) -> String {
    let worst = held_out.worst.as_ref().map_or_else(String::new, |worst| {
        let request = count(worst.request as u64 + 1);
        let (said, recorded) = (bytes(worst.said), bytes(worst.recorded));
        format!("; the worst is request {request}: {said} said, {recorded} recorded")
    });
    format!(
        "held out, {} at {}: {} of {} requests are as was said{worst}; native reserves {} of what was said, {} of \
         what was recorded",
        held_out.name,
        count(held_out.value),
        count(held_out.equal as u64),
        count(held_out.requests as u64),
        bytes(held_out.native_said),
        bytes(held_out.native_recorded)
    )
}
