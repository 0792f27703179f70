//! The segments of a snapshot: what the allocator held when it was taken.

use super::device::DeviceBuilder;
use super::error::ReadError;
use super::view::{Fields, Place, View};
use super::words;
use crate::event::StackId;
use crate::pickle::Value;
use crate::trace::{Block, BlockState, Segment};

/// Reads one segment. `fields` is its dict; `place` names it in errors.
pub(super) fn read_segment(
    view: &View<'_>,
    device: &mut DeviceBuilder,
    fields: Fields<'_>,
    place: &dyn Place,
) -> Result<Segment, ReadError> {
    let address = fields.number(words::ADDRESS, place)?;
    let size = fields.number(words::TOTAL_SIZE, place)?;
    if address.checked_add(size).is_none() {
        return Err(place.error(format!("`total_size` {size} reaches beyond the last address")));
    }
    Ok(Segment {
        address,
        size,
        stream: device.stream(fields.number_or(words::STREAM, Some(0), place)?)?,
        pool: device.pool(fields.pool(words::SEGMENT_POOL_ID, place)?)?,
        is_small: view.as_text(fields.get(words::SEGMENT_TYPE)) == Some("small"),
        is_expandable: fields.get(words::IS_EXPANDABLE) == Some(Value::TRUE),
        blocks: read_blocks(view, device, fields, address..address + size, place)?,
    })
}

/// Reads the blocks of the segment that spans `span`, and makes sure that they tile it.
fn read_blocks(
    view: &View<'_>,
    device: &mut DeviceBuilder,
    segment: Fields<'_>,
    span: std::ops::Range<u64>,
    place: &dyn Place,
) -> Result<Vec<Block>, ReadError> {
    let items = view.items(segment.get(words::BLOCKS))?.unwrap_or_default();
    let mut blocks = Vec::with_capacity(items.len());
    let mut next = span.start;
    for (index, &item) in items.iter().enumerate() {
        let place = || format!("{}, block {index}", place.describe());
        let fields =
            view.dict(item)?.ok_or_else(|| place.error(format!("is {}", item.type_name())))?;
        let block = read_block(view, device, fields, next, &place)?;
        let end = block.address.checked_add(block.size).filter(|&end| end <= span.end);
        match end {
            Some(end) if block.address == next => next = end,
            _ => {
                return Err(place.error(format!(
                    "`address` {} and `size` {} do not continue the blocks before it at {next} \
                     within the segment's end {}",
                    block.address, block.size, span.end
                )));
            }
        }
        blocks.push(block);
    }
    if !blocks.is_empty() && next != span.end {
        let end = span.end;
        return Err(place.error(format!("its blocks end at {next}, not at its own end {end}")));
    }
    Ok(blocks)
}

fn read_block(
    view: &View<'_>,
    device: &mut DeviceBuilder,
    fields: Fields<'_>,
    next: u64,
    place: &dyn Place,
) -> Result<Block, ReadError> {
    let size = fields.number(words::SIZE, place)?;
    let state = match view.as_text(fields.get(words::STATE)) {
        Some("active_allocated") => BlockState::Allocated,
        // The documentation has the second name, the code writes the first.
        Some("active_pending_free" | "active_awaiting_free") => BlockState::PendingFree,
        Some("inactive") => BlockState::Inactive,
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            return Err(place.error(format!("`state` {shown:?} is not known")));
        }
        None => return Err(place.error("has no `state`".to_owned())),
    };
    let stack = match fields.get(words::FRAMES).and_then(Value::as_list) {
        Some(list) => device.stack(view, list)?,
        None => StackId::NONE,
    };
    Ok(Block {
        address: fields.number_or(words::ADDRESS, Some(next), place)?,
        size,
        requested: fields.number_or(words::REQUESTED_SIZE, Some(size), place)?,
        state,
        stack,
    })
}
