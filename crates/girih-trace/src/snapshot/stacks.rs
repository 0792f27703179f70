//! Call stacks: each list of frames becomes one [`StackId`], and equal stacks one.

use std::cell::RefCell;
use std::collections::HashMap;

use super::entry::FrameList;
use super::error::ReadError;
use super::view::View;
use super::words;
use crate::event::StackId;
use crate::pickle::{Items, Value};

/// The stacks and frames of one trace.
///
/// PyTorch shares one dict among all stacks with that frame, and at best one list among all entries of
/// one stack; lists of the same frames share their items when they are read. Items and dicts are
/// numbered, so that tables find them; where they are not shared, maps do, which are std's with its random keys: what is looked up comes from the file.
pub(super) struct Stacks {
    /// The device: the tables are those of all.
    owner: u32,
    pub(super) stacks: Vec<Vec<u32>>,
    pub(super) frames: Vec<String>,
    last: Option<(Items, StackId)>,
    by_content: HashMap<Vec<u32>, StackId>,
    /// The frames of the list that is read, for as long as that takes.
    reading: Vec<u32>,
    frame_by_text: HashMap<String, u32>,
}

impl Stacks {
    pub(super) fn new(owner: u32) -> Stacks {
        Stacks {
            owner,
            stacks: Vec::new(),
            frames: Vec::new(),
            last: None,
            by_content: HashMap::new(),
            reading: Vec::new(),
            frame_by_text: HashMap::new(),
        }
    }

    /// The stack of a list of frames. None for an empty list: PyTorch writes it where it recorded
    /// no stack.
    pub(super) fn intern(
        &mut self,
        view: &View<'_>,
        list: FrameList,
    ) -> Result<StackId, ReadError> {
        let items = view.items_of(list.get());
        if let Some((known, stack)) = self.last
            && known == items
        {
            return Ok(stack);
        }
        let stack = match view.lists_seen.get(items.get(), self.owner) {
            Some(stack) => StackId(stack),
            None => self.intern_list(view, list.get())?,
        };
        self.last = Some((items, stack));
        Ok(stack)
    }

    fn intern_list(&mut self, view: &View<'_>, list: u32) -> Result<StackId, ReadError> {
        let items = view.list(list)?;
        if items.is_empty() {
            return Ok(StackId::NONE);
        }
        let mut frames = std::mem::take(&mut self.reading);
        frames.clear();
        for &frame in items {
            frames.push(self.frame(view, frame)?);
        }
        let stack = match self.by_content.get(&frames[..]) {
            Some(&stack) => stack,
            None => {
                let stack = StackId(self.stacks.len() as u32);
                self.stacks.push(frames.clone());
                self.by_content.insert(frames.clone(), stack);
                stack
            }
        };
        self.reading = frames;
        view.lists_seen.set(view.items_of(list).get(), self.owner, stack.0);
        Ok(stack)
    }

    fn frame(&mut self, view: &View<'_>, frame: Value) -> Result<u32, ReadError> {
        let Some(dict) = frame.as_dict() else {
            return self.frame_of_text(view, unreadable(frame));
        };
        if let Some(known) = view.frames_seen.get(dict, self.owner) {
            return Ok(known);
        }
        let text = match view.dict(frame)? {
            Some(fields) => {
                let file = view.as_text(fields.get(words::FILENAME)).unwrap_or("??");
                let name = view.as_text(fields.get(words::NAME)).unwrap_or("??");
                let line = fields.get(words::LINE).and_then(Value::as_u64).unwrap_or(0);
                view.spend_text(file.len() + name.len())?;
                format!("{file}:{line} {name}")
            }
            None => unreadable(frame),
        };
        let id = self.frame_of_text(view, text)?;
        view.frames_seen.set(dict, self.owner, id);
        Ok(id)
    }

    fn frame_of_text(&mut self, view: &View<'_>, text: String) -> Result<u32, ReadError> {
        if let Some(&known) = self.frame_by_text.get(&text) {
            return Ok(known);
        }
        view.spend_text(text.len())?;
        let id = self.frames.len() as u32;
        self.frames.push(text.clone());
        self.frame_by_text.insert(text, id);
        Ok(id)
    }
}

/// What was made of each object that the pickle numbers, and for which device. One table serves all
/// devices, so that it is never larger than what the pickle has of such objects; a device that finds
/// another's number there looks in its maps.
pub(super) struct Seen(RefCell<Vec<u64>>);

impl Seen {
    /// For objects of 0 to `count`.
    pub(super) fn new(count: usize) -> Seen {
        Seen(RefCell::new(vec![0; count]))
    }

    #[inline]
    fn get(&self, of: u32, owner: u32) -> Option<u32> {
        let seen = *self.0.borrow().get(of as usize)?;
        (seen >> 32 == u64::from(owner) + 1).then_some(seen as u32)
    }

    fn set(&self, of: u32, owner: u32, to: u32) {
        if let Some(seen) = self.0.borrow_mut().get_mut(of as usize) {
            *seen = (u64::from(owner) + 1) << 32 | u64::from(to);
        }
    }
}

/// A frame that is no dict of a frame: a stack is a help to the reader, not worth an error.
fn unreadable(frame: Value) -> String {
    format!("??:0 ({})", frame.type_name())
}
