//! `external_annotations`: what `record_function` ranges were open, as PyTorch keeps them when it
//! records with `global_record_annotations`.

use super::error::ReadError;
use super::view::{Place, View};
use super::words;
use crate::mark::MarkKind;
use crate::pickle::Value;

/// The start of a range, or the end of a profiler step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Annotation<'a> {
    /// The device, or none for all of them.
    device: Option<u64>,
    pub(super) time_us: i64,
    pub(super) kind: MarkKind,
    pub(super) name: &'a str,
}

impl Annotation<'_> {
    pub(super) fn is_for(&self, device: usize) -> bool {
        self.device.is_none_or(|wanted| wanted == device as u64)
    }
}

/// Reads the annotations that make marks.
pub(super) fn read_annotations<'a>(
    view: &View<'a>,
    list: Option<Value>,
) -> Result<Vec<Annotation<'a>>, ReadError> {
    let mut annotations = Vec::new();
    for (index, &item) in view.items(list)?.unwrap_or_default().iter().enumerate() {
        let place = || format!("external annotation {index}");
        let Some(fields) = view.dict(item)? else {
            return Err(place.error(format!("is {}, wanted a dict", item.type_name())));
        };
        let stage = view.as_text(fields.get(words::STAGE)).unwrap_or_default();
        let Some(name) = view.as_text(fields.get(words::NAME)) else {
            return Err(place.error("has no `name`".to_owned()));
        };
        let Some((kind, name)) = classify(stage, name) else { continue };
        let time_us = fields.get(words::TIME_US).and_then(Value::as_i64);
        let time_us = time_us.ok_or_else(|| place.error("has no `time_us`".to_owned()))?;
        // A negative device is PyTorch's word for none.
        let device = fields.get(words::DEVICE).and_then(Value::as_u64);
        annotations.push(Annotation { device, time_us, kind, name });
    }
    Ok(annotations)
}

/// What a range means: `ProfilerStep#3` is step 3, `Optimizer.step#AdamW.step` the optimizer.
fn classify<'a>(stage: &str, name: &'a str) -> Option<(MarkKind, &'a str)> {
    let step = name.strip_prefix("ProfilerStep#");
    match stage {
        "START" => Some(match step {
            Some(step) => (MarkKind::Step, step),
            None => match name.strip_prefix("Optimizer.step#") {
                Some(optimizer) => (MarkKind::Optimizer, optimizer),
                None => (MarkKind::Other, name),
            },
        }),
        "END" => step.map(|step| (MarkKind::StepEnd, step)),
        _ => None,
    }
}
