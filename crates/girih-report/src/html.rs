//! The page: one file of HTML with its style, its script and its data, which opens nothing else.
//!
//! Whatever a recording says (names, lines, files) stands in the data alone, in base64, and the
//! script puts it on the page as text, never as markup. The policy in the page's head forbids it to
//! load or to send anything.

use std::io::{self, Write};

use girih_plan::granted;
use girih_trace::{PhaseKind, Tick};
use girih_why::Category;
use serde::Serialize;
use serde_json::json;

use crate::beside::{Beside, Layout};
use crate::blocks::Blocks;
use crate::column::{Column, base64, deflated};
use crate::figures::Figures;
use crate::held;
use crate::lanes::Lanes;
use crate::picture::Picture;
use crate::stacks::PageStacks;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
/// The parts of the script, in order.
const SCRIPT: &[&str] = &[
    include_str!("page/data.js"),
    include_str!("page/query.js"),
    include_str!("page/words.js"),
    include_str!("page/timeline.js"),
    include_str!("page/map.js"),
    include_str!("page/instant.js"),
    include_str!("page/flame.js"),
    include_str!("page/panels.js"),
    include_str!("page/search.js"),
    include_str!("page/selftest.js"),
    include_str!("page/app.js"),
];

/// Bytes that a page aims to stay below.
pub const PAGE_BYTES: usize = 19_000_000;
/// Of these, what the blocks have at least, deflated, whatever else is in the page.
const BLOCKS_LEAST: usize = 1_000_000;
/// Phases and refused requests that a page shows at most.
const PHASES_MAX: usize = 200_000;
const REFUSED_MAX: usize = 1_000;

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Written {
    /// Bytes of the page.
    pub bytes: u64,
    /// Blocks that are in it.
    pub blocks: usize,
    /// Blocks that are left out.
    pub left_out: usize,
    /// Bytes of those that are alive at once at the most.
    pub left_out_most: u64,
    /// Events in the narrowest column of the sums.
    pub events_per_column: usize,
}

/// Writes the page. `version` is that of the command.
///
/// # Errors
/// Those of the writer.
pub fn write(
    picture: &Picture<'_>,
    beside: &Beside,
    version: &str,
    out: &mut dyn Write,
) -> io::Result<Written> {
    let mut sections = vec![
        ("series", packed(&picture.series.column())),
        ("marks", packed(&marks(picture))),
        ("curves", packed(&curves(beside))),
    ];
    if let Some(copies) = &beside.copies {
        sections.push(("copies", packed_json(copies)));
    }
    let subject = picture.subject;
    let stacks = subject.lives.requests.iter().map(|life| life.stack.0);
    let stacks = PageStacks::of(subject.trace, &picture.stacks, stacks);
    sections.push(("stacks", packed_json(&stacks)));
    let so_far: usize = sections.iter().map(|(_, text)| text.len()).sum();
    // Base64 has four letters for three bytes.
    let budget = (PAGE_BYTES.saturating_sub(so_far) * 3 / 4).max(BLOCKS_LEAST);
    let peaks = [picture.series.requested.peak.1, picture.series.reserved.peak.1];
    let events = picture.series.events;
    let blocks = Blocks::of(subject.lives, &picture.categories, events, &peaks, budget);
    let held = picture.runs.iter().map(|run| (run.address, run.size));
    let lanes = Lanes::of(blocks.ranges().chain(held).collect());
    let mut column = Column::default();
    lanes.write(&mut column);
    column.append(&held::column(&picture.runs, &lanes));
    sections.push(("held", packed(&column)));
    sections.push(("blocks", packed(&blocks.column(&lanes, |stack| stacks.number(stack)))));
    // Another layout is worth less than the blocks: where there is no room for both, it goes.
    let layout = beside.layout.as_ref().map(|layout| packed(&layout_of(picture, layout, &blocks)));
    let so_far: usize = sections.iter().map(|(_, text)| text.len()).sum();
    let layout = layout.filter(|layout| so_far + layout.len() <= PAGE_BYTES);
    let has_layout = layout.is_some();
    sections.extend(layout.map(|layout| ("layout", layout)));
    let head = json!({
        "version": version,
        "figures": Figures::of(picture, beside),
        "categories": CATEGORIES.map(Category::name),
        "phases": PHASES.map(PhaseKind::name),
        "streams": subject.trace.streams.iter().map(u64::to_string).collect::<Vec<_>>(),
        "pools": subject.trace.pools.iter().map(|pool| format!("({}, {})", pool.0, pool.1))
            .collect::<Vec<_>>(),
        "layout": beside.layout.as_ref().map(|layout| layout.name),
        "layout_shown": has_layout,
        "has_times": picture.series.times_us.last().is_some_and(|&last| last > 0),
        "left_out": blocks.left_out,
        "left_out_most": blocks.left_out_most,
        "phases_shown": picture.phases.list.len() <= PHASES_MAX,
        "conf": subject.trace.settings.conf,
    });
    sections.insert(0, ("head", packed_json(&head)));
    let bytes = put_together(&sections, out)?;
    Ok(Written {
        bytes,
        blocks: blocks.kept.len(),
        left_out: blocks.left_out,
        left_out_most: blocks.left_out_most,
        events_per_column: picture.series.width,
    })
}

/// Where another allocator has the blocks, on lanes of its own.
fn layout_of(picture: &Picture<'_>, layout: &Layout, blocks: &Blocks) -> Column {
    let given = picture.subject.lives.requests.iter().zip(&layout.addresses);
    let given = given.filter_map(|(life, address)| address.map(|at| (at, granted(life.size))));
    let held = layout.runs.iter().map(|run| (run.address, run.size));
    let lanes = Lanes::of(given.chain(held).collect());
    let mut column = Column::default();
    lanes.write(&mut column);
    column.append(&held::column(&layout.runs, &lanes));
    column.append(&blocks.layout_column(&lanes, &layout.addresses));
    column
}

/// The categories, in the order of their numbers.
const CATEGORIES: [Category; 6] = [
    Category::Weights,
    Category::Gradients,
    Category::Optimizer,
    Category::Activations,
    Category::Workspaces,
    Category::Other,
];

/// The phases, in the order of their numbers.
const PHASES: [PhaseKind; 6] = [
    PhaseKind::Setup,
    PhaseKind::Forward,
    PhaseKind::Backward,
    PhaseKind::Optimizer,
    PhaseKind::Evaluation,
    PhaseKind::Other,
];

/// Steps, phases, and refused requests.
fn marks(picture: &Picture<'_>) -> Column {
    let mut column = Column::default();
    let mut last = 0;
    let mut push_tick = |column: &mut Column, tick: u32| {
        column.push(u64::from(tick.saturating_sub(last)));
        last = last.max(tick);
    };
    column.push(picture.steps.len() as u64);
    picture.steps.iter().for_each(|step| push_tick(&mut column, step.0));
    let mut last = 0;
    let phases = &picture.phases.list;
    let shown = if phases.len() <= PHASES_MAX { &phases[..] } else { &[] };
    column.push(shown.len() as u64);
    for phase in shown {
        column.push(u64::from(phase.ticks.start.saturating_sub(last)));
        last = last.max(phase.ticks.start);
        column.push(phase.kind as u64);
        column.push(phase.microbatch.map_or(0, |microbatch| u64::from(microbatch) + 1));
    }
    let refused = &picture.refused[..picture.refused.len().min(REFUSED_MAX)];
    column.push(refused.len() as u64);
    for (Tick(tick), bytes) in refused {
        column.push(u64::from(*tick));
        column.push(*bytes);
    }
    column
}

/// What the allocators reserved over time.
fn curves(beside: &Beside) -> Column {
    let mut column = Column::default();
    column.push(beside.allocators.len() as u64);
    for allocator in &beside.allocators {
        column.push(allocator.reserved.len() as u64);
        let (mut at, mut bytes) = (0, 0);
        for &(tick, reserved) in &allocator.reserved {
            column.push(u64::from(tick.0.saturating_sub(at)));
            column.push_change(bytes, reserved);
            (at, bytes) = (at.max(tick.0), reserved);
        }
    }
    column
}

fn packed(column: &Column) -> String {
    base64(&deflated(column.bytes()))
}

fn packed_json(value: &impl Serialize) -> String {
    // What is written has strings as keys and no number that is none.
    base64(&deflated(&serde_json::to_vec(value).unwrap_or_default()))
}

/// Fills the page in.
fn put_together(sections: &[(&str, String)], out: &mut dyn Write) -> io::Result<u64> {
    let mut bytes = 0;
    let mut put = |text: &str| {
        bytes += text.len() as u64;
        out.write_all(text.as_bytes())
    };
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        put(before)?;
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        match name {
            "style" => put(STYLE)?,
            "script" => SCRIPT.iter().try_for_each(|part| put(part))?,
            "data" => {
                for (name, text) in sections {
                    put("<script type=\"text/plain\" id=\"data-")?;
                    put(name)?;
                    put("\">")?;
                    put(text)?;
                    put("</script>\n")?;
                }
            }
            _ => {}
        }
        rest = after;
    }
    put(rest)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_and_phases_stand_at_their_numbers() {
        assert!(CATEGORIES.iter().enumerate().all(|(at, &it)| it as usize == at));
        assert!(PHASES.iter().enumerate().all(|(at, &it)| it as usize == at));
    }

    #[test]
    fn the_page_loads_nothing_and_makes_no_markup_of_text() {
        let script = SCRIPT.concat();
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "fetch(",
            "import(",
        ] {
            assert!(!script.contains(word), "{word}");
        }
        for text in [PAGE, STYLE, &script] {
            for word in ["https://", "url(", "src=", "href=\"http", "@import"] {
                assert!(!text.contains(word), "{word}");
            }
        }
        assert!(!script.contains("</script"));
    }
}
