//! Sentences: the verdict, what shows it, and what to do.
//!
//! Whatever has a number has it from the recording or from a replay.

use girih_runtime::simulate::Allocator;

use crate::capacity::Source;
use crate::category::Category;
use crate::diagnosis::{Diagnosis, Told};
use crate::moment::Holding;
use crate::refusal::Refusal;
use crate::replays::Fit;
use crate::units::{bytes, count};
use crate::verdict::{Idle, Verdict};

/// Shares of the activations that are tried, the largest first.
pub const SHARES: [f64; 9] = [0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0625, 0.03125];

/// What the first step of the optimizer will have needed, given the bytes of weights, gradients and
/// states that are there: of Adam two states for each weight, and once more as much on the way. 0
/// if it has its states.
pub fn still_for_the_optimizer(&[weights, gradients, states]: &[u64; 3]) -> u64 {
    if states > 0 { 0 } else { 4 * weights + gradients.max(weights) }
}

/// The verdict in one sentence.
pub fn sentence(diagnosis: &Diagnosis) -> String {
    let Some(told) = &diagnosis.told else {
        return match diagnosis.fits {
            None => "No request was refused: this run did not run out of memory.".to_owned(),
            Some(room) => format!(
                "No request was refused, and none would be on a device of {}: the run fits there, with {} to \
                 spare.",
                bytes(room.capacity),
                bytes(room.spare)
            ),
        };
    };
    let asked = bytes(told.refusal.size);
    let by = told.line.as_ref().map_or_else(String::new, |line| format!(" by {line}"));
    let (live, all) = (bytes(told.moment.live), there_was(told));
    match diagnosis.verdict {
        Verdict::None => String::new(),
        Verdict::TooMuch => format!(
            "The tensors of this run need more than there is: {live} are alive, {asked} more were \
             asked for{by}, and {all}."
        ),
        Verdict::Fragmented => format!(
            "The memory is there, but in pieces: only {live} are alive, {} lie idle and {} are \
             free {}, and yet {} the {asked} that were asked for{by}.",
            bytes(told.idle.own),
            bytes(free(told)),
            if told.capacity.source == Source::Limit {
                "below the limit of this process"
            } else {
                "on the device"
            },
            if own(told).largest < told.refusal.size {
                "no piece was large enough for"
            } else {
                "nothing could be had of it for"
            }
        ),
        Verdict::OtherStream => format!(
            "The memory is there, but another stream has it: {} lie idle that only requests of \
             other streams may use, while {asked} were asked for{by}.",
            bytes(told.idle.streams)
        ),
        Verdict::OtherPool => format!(
            "The memory is there, but another pool keeps it: {} lie idle in the pools of CUDA \
             graphs or MemPools, while {asked} were asked for{by}.",
            bytes(told.idle.pools)
        ),
        Verdict::OtherProcess => format!(
            "Something else has the card: {} of it belong to other processes or libraries, and \
             the {} that are left do not hold the {live} of this run and the {asked} that were \
             asked for{by}.",
            bytes(told.others),
            bytes(told.capacity.bytes)
        ),
        Verdict::Leak => leak(told),
        Verdict::Spike => spike(told),
    }
}

/// Bytes that this process could still have taken of the device.
fn free(told: &Told) -> u64 {
    told.capacity.bytes.saturating_sub(told.moment.reserved)
}

/// What the stream and the pool of the request hold.
fn own(told: &Told) -> Holding {
    let Refusal { stream, pool, .. } = told.refusal;
    told.moment.sum(|owner| (owner.stream, owner.pool) == (stream, pool))
}

fn leak(told: &Told) -> String {
    let Some(growth) = &told.growth else { return String::new() };
    let by = told.growth_line.as_ref().map_or_else(String::new, |line| format!(", most by {line}"));
    format!(
        "Memory leaks: each step leaves {} behind that is never freed{by}; {} had piled up when \
         {} more were refused.",
        bytes(growth.each_step),
        bytes(growth.bytes),
        bytes(told.refusal.size)
    )
}

fn spike(told: &Told) -> String {
    let Some(spike) = &told.spike else { return String::new() };
    let all = there_was(told);
    if spike.is_optimizer {
        return format!(
            "The first step of the optimizer does not fit: its states come on top of weights and \
             gradients, {} until it was refused, at {}; {all}.",
            bytes(spike.bytes),
            spike.line
        );
    }
    format!(
        "One line makes a spike: {} asks for {} more than in any step before; {all}.",
        spike.line,
        bytes(spike.bytes)
    )
}

fn there_was(told: &Told) -> String {
    let capacity = &told.capacity;
    match capacity.source {
        Source::Device => format!("the device has {} for it", bytes(capacity.bytes)),
        Source::Given => format!("it may have {}", bytes(capacity.bytes)),
        Source::Limit if capacity.bytes == capacity.most => {
            format!("a limit of this process lets it have {}", bytes(capacity.bytes))
        }
        Source::Limit => format!(
            "a limit of between {} and {} stops it",
            bytes(capacity.bytes),
            bytes(capacity.most)
        ),
    }
}

/// What shows the verdict.
pub fn evidence(diagnosis: &Diagnosis) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(told) = &diagnosis.told {
        say_told(told, &mut said);
        let steps = diagnosis.steps.len();
        if steps > 1 {
            let others = match diagnosis.iterations {
                iterations if iterations == steps => String::new(),
                // A step is what a line of the program begins, an iteration what repeats in the requests.
                iterations => format!(
                    "; girih stats, which goes by the requests alone, finds {iterations} iterations"
                ),
            };
            said.push(format!(
                "It was refused in step {} of this recording, counted from 0{others}.",
                steps - 1
            ));
        }
    }
    if diagnosis.refused > 1 {
        said.push(format!(
            "{} requests were refused in all; this is about {}.",
            diagnosis.refused, "the last, unless --error names another"
        ));
    }
    if let Some(contradiction) = &diagnosis.contradiction {
        said.push(format!(
            "What was held before the recording began cannot be told: {contradiction}."
        ));
    } else if diagnosis.is_cut {
        let how = if diagnosis.is_inferred {
            "what was held then is at least what was touched later, and there may have been more"
        } else {
            "what was held then is told by its final segments"
        };
        said.push(format!("The recording lacks its beginning: {how}."));
    }
    if !diagnosis.has_stacks {
        said.push("No call stacks were recorded, so no lines can be named.".to_owned());
    }
    said
}

fn say_told(told: &Told, said: &mut Vec<String>) {
    let Told { moment, capacity, idle, .. } = told;
    let device_free = bytes(told.refusal.device_free.unwrap_or(0));
    let left = match capacity.source {
        Source::Limit => {
            format!(
                "{} free below the limit of this process, {device_free} on the device",
                bytes(free(told))
            )
        }
        _ => format!("the device had {device_free} free"),
    };
    said.push(format!(
        "Reserved {}: {} alive, {} idle; {left}.",
        bytes(moment.reserved),
        bytes(moment.live),
        bytes(moment.idle()),
    ));
    let own = own(told);
    if own.idle > 0 {
        said.push(format!(
            "Idle for this request: {} in {} pieces, the largest {}.",
            bytes(own.idle),
            count(own.pieces),
            bytes(own.largest)
        ));
    }
    if idle.streams + idle.pools > 0 {
        said.push(format!(
            "Idle for others: {} of other streams, {} of other pools.",
            bytes(idle.streams),
            bytes(idle.pools)
        ));
    }
    if capacity.source == Source::Limit && capacity.bytes < capacity.most {
        said.push(format!(
            "The device had enough; a limit of this process refused \
             (set_per_process_memory_fraction), between {} and {}.",
            bytes(capacity.bytes),
            bytes(capacity.most)
        ));
    }
    if let (Some(card), true) = (capacity.card, told.others > 0) {
        said.push(format!("Of the card's {} others have {}.", bytes(card), bytes(told.others)));
    }
    let categories: Vec<String> = (told.categories.iter())
        .map(|group| format!("{} {}", group.place, bytes(group.bytes)))
        .collect();
    if !categories.is_empty() {
        said.push(format!("Alive by what it is for: {}.", categories.join(", ")));
    }
}

/// What to do, the best first.
pub fn advice(diagnosis: &Diagnosis) -> Vec<String> {
    let Some(told) = &diagnosis.told else { return Vec::new() };
    let mut said = Vec::new();
    match diagnosis.verdict {
        Verdict::None => {}
        Verdict::Fragmented => say_settings(told, &mut said),
        Verdict::OtherStream => {
            say_settings(told, &mut said);
            said.push(
                "Or allocate on one stream: make the tensors on the stream that frees them, and let \
                 the other stream use them (Tensor.record_stream)."
                    .to_owned(),
            );
        }
        Verdict::OtherPool => {
            said.push(format!(
                "Give the pool back, {}: drop graphs that are not needed and call \
                 torch.cuda.empty_cache(), or let graphs share one pool \
                 (torch.cuda.graph_pool_handle).",
                bytes(told.idle.pools)
            ));
            say_settings(told, &mut said);
        }
        Verdict::OtherProcess => {
            said.push(format!(
                "End what else uses the card (nvidia-smi lists it), or take another card: {} of \
                 it would be this run's.",
                bytes(told.others)
            ));
            say_smaller(told, &mut said);
            say_settings(told, &mut said);
        }
        Verdict::Leak => say_leak(told, &mut said),
        Verdict::Spike => {
            say_spike(told, &mut said);
            say_settings(told, &mut said);
        }
        Verdict::TooMuch => {
            say_smaller(told, &mut said);
            say_activations(told, &mut said);
            say_settings(told, &mut said);
        }
    }
    said
}

fn lacking(told: &Told) -> u64 {
    (told.moment.granted + told.refusal.size).saturating_sub(told.capacity.bytes)
}

/// Of Girih's modes and PyTorch's settings those that fit, the one with the most to spare of each.
fn say_settings(told: &Told, said: &mut Vec<String>) {
    let mut fitting: Vec<&Fit> = told.would_fit.iter().filter(|fit| fit.fits).collect();
    fitting.sort_by_key(|fit| std::cmp::Reverse(fit.spare));
    let is_girihs = |fit: &&&Fit| fit.setting.allocator == Allocator::Stitch;
    let best = [
        fitting.iter().find(|fit| !is_girihs(fit) && fit.setting.how().is_some()).copied(),
        fitting.iter().find(is_girihs).copied(),
    ];
    for fit in best.into_iter().flatten() {
        let Some(how) = fit.setting.how() else { continue };
        let spare = bytes(fit.spare.unwrap_or(0));
        said.push(format!("{how}: it would have served this request, with {spare} to spare."));
    }
    // The optimizer had not made all its states, and no earlier step tells what was still to come.
    if !fitting.is_empty() && told.spike.as_ref().is_some_and(|spike| spike.is_optimizer) {
        said.push(
            "Do not rely on a setting alone here: the optimizer's first step was not over, and what \
             it would have asked for next is not in the recording."
                .to_owned(),
        );
    }
    if fitting.is_empty() {
        let needed = told.moment.granted + told.refusal.size;
        let (shown, there_are) = (bytes(needed), bytes(told.capacity.bytes));
        said.push(if needed > told.capacity.bytes {
            format!(
                "No setting of the allocator would have served this request: {shown} are needed and \
                 there are {there_are}."
            )
        } else {
            let Idle { own, streams, pools } = told.idle;
            format!(
                "No setting of the allocator would have served this request: {shown} of {there_are} are \
                 needed, but what lies idle stays where it is: {} in pieces, {} of other streams, {} of \
                 other pools.",
                bytes(own),
                bytes(streams),
                bytes(pools)
            )
        });
    }
}

fn say_leak(told: &Told, said: &mut Vec<String>) {
    let Some(growth) = &told.growth else { return };
    let line = told.growth_line.as_deref().unwrap_or("what is kept (no stacks were recorded)");
    said.push(format!(
        "Let go of what a step keeps: tensors made by {line}. A sum of losses needs loss.item() \
         or loss.detach(); a list of outputs needs .detach().cpu(); without training, \
         torch.no_grad()."
    ));
    let idle = told.capacity.bytes.saturating_sub(told.moment.granted);
    said.push(format!(
        "No setting helps for long: without one wasted byte there would be room for {} steps more.",
        count(idle / growth.each_step.max(1))
    ));
}

fn say_spike(told: &Told, said: &mut Vec<String>) {
    let Some(spike) = &told.spike else { return };
    if spike.is_optimizer {
        said.push(format!(
            "Have states that are smaller (8-bit, or sharded over ranks), or without their \
             temporaries: foreach=False. They were {} when one was refused.",
            bytes(spike.bytes.saturating_sub(told.refusal.size))
        ));
    } else {
        said.push(format!(
            "Do the work of {} in parts, each of less than {}.",
            spike.line,
            bytes(spike.bytes.saturating_sub(lacking(told)))
        ));
    }
}

fn say_smaller(told: &Told, said: &mut Vec<String>) {
    if let Some(share) = told.smaller {
        said.push(format!(
            "Take a batch of {} % of this one: with activations so much smaller the run gets past \
             this request by replay, and leaves room for the layers that were still to come.",
            share * 100.0
        ));
        return;
    }
    let of = |category| bytes_of(told, category);
    let all = [Category::Weights, Category::Gradients, Category::Optimizer].map(of);
    let needed = still_for_the_optimizer(&all);
    if needed > told.capacity.bytes {
        said.push(format!(
            "A smaller batch alone will not do if the optimizer is Adam: weights, gradients, its \
             states and its step will need {}; shard them over ranks, or take another optimizer.",
            bytes(needed)
        ));
    }
}

/// Bytes alive of a category.
fn bytes_of(told: &Told, category: Category) -> u64 {
    let group = told.categories.iter().find(|group| group.category == category);
    group.map_or(0, |group| group.bytes)
}

fn say_activations(told: &Told, said: &mut Vec<String>) {
    let activations = bytes_of(told, Category::Activations);
    if activations > 0 {
        said.push(format!(
            "Recompute activations (torch.utils.checkpoint), or have them on the host \
             (torch.autograd.graph.save_on_cpu): {} are alive, {} are lacking.",
            bytes(activations),
            bytes(lacking(told))
        ));
    }
    let states = bytes_of(told, Category::Optimizer);
    if states > activations {
        said.push(format!("Shard or shrink the states of the optimizer: {}.", bytes(states)));
    }
}
