//! The fast way through a dict that becomes a record: all of its opcodes in one go.
//!
//! In a snapshot nearly every dict is a trace entry, its keys fetched from the memo and its values
//! small. Python writes it as
//!
//! ```text
//!  EMPTY_DICT MEMOIZE MARK  BINGET action  BINGET alloc  BINGET addr  LONG1 ..  ..  SETITEMS
//!                     │     └──────── pair ────────┘     └──── pair ───┘
//! ```
//!
//! Here such a dict is read from the buffer straight into its record, without the stack. Where stacks
//! were recorded most bytes are lists of frames, each frame fetched from the memo:
//!
//! ```text
//!  EMPTY_LIST MEMOIZE MARK  LONG_BINGET frame  LONG_BINGET frame  BINGET frame  ..  APPENDS
//! ```
//!
//! These are read in one go too, also where they stand in a dict as the value of a key. Whatever is out of the ordinary, be it an opcode, a key or the end of
//! the buffer, makes the attempt give up before anything has changed, and the machine reads the same
//! bytes one opcode at a time. So this file can make a pickle faster to read, and nothing else.
//!
//! The bytes of a dict are looked at through a window of fixed size, so that the compiler can see that no
//! index leaves it.

use super::opcode as op;
use super::value::{Text, Value};
use super::{Heap, Record};

/// Bytes in which a dict must end. Those of snapshots take 50 to 120.
const WINDOW: usize = 256;
/// The last place in the window at which a pair may begin.
const LAST_PAIR: usize = WINDOW - 3 * CELL;
/// At least the bytes of a key, of a value, or of what memoizes it.
const CELL: usize = 16;

/// Tries to read a dict from `bytes`, which begin behind its EMPTY_DICT. If it succeeds, the record
/// is on the heap as the next dict, and in the memo if the pickle says so. Returns the bytes that
/// it took. `items` is used
/// for the items of a list.
#[inline]
pub(super) fn read_record<F: Record>(
    bytes: &[u8],
    memo: &mut Vec<Value>,
    items: &mut Vec<Value>,
    heap: &mut Heap<F>,
) -> Option<usize> {
    let mut window: &[u8; WINDOW] = bytes.first_chunk()?;
    // Where the window begins, and where in it the next opcode is.
    let mut base = 0;
    let own_slots = takes_memoize(cell(window, 0), memo.len())?;
    let mut at = own_slots;
    if window[at] != op::MARK {
        return None;
    }
    at += 1;
    // PyTorch writes the key that makes a record first. A dict without it is not read twice.
    if text_from_memo(cell(window, at), memo)?.0 != F::KEY {
        return None;
    }
    let mut record = F::default();
    let mut memoized = Memoized::from(memo.len() + own_slots.min(1));
    let mut has_list = false;
    loop {
        if at > LAST_PAIR {
            return None;
        }
        if window[at] == op::SETITEMS {
            break;
        }
        let (key, length) = text_from_memo(cell(window, at), memo)?;
        at += length;
        if window[at] == op::EMPTY_LIST {
            let value = heap.next_list()?;
            if has_list {
                return None;
            }
            has_list = true;
            items.clear();
            base += at + 1;
            let (length, is_memoized) =
                read_list(&bytes[base..], memo, memoized.next_slot(), items)?;
            if is_memoized {
                memoized.add(value)?;
            }
            // A list may be longer than the window, which moves behind it.
            base += length;
            window = bytes[base..].first_chunk()?;
            at = 0;
            record.set(key, value);
            continue;
        }
        let bytes = cell(window, at);
        let (value, length) = match bytes[0] {
            op::BINGET => (known(memo.get(usize::from(bytes[1])))?, 2),
            op::LONG1 => (long(bytes)?, 2 + usize::from(bytes[1])),
            op::BININT1 if bytes[2] == op::BININT1 && bytes[4] == op::TUPLE2 => {
                let pair = Value::pair(heap.pairs.id((bytes[1].into(), bytes[3].into())));
                (pair, 5 + memoized.take(cell(window, at + 5), pair)?)
            }
            op::SHORT_BINUNICODE => {
                let length = usize::from(bytes[1]);
                let text = Value::text(heap.known_text(bytes.get(2..2 + length)?)?);
                (text, 2 + length + memoized.take(cell(window, at + 2 + length), text)?)
            }
            op::BININT1 => (Value::unsigned(u64::from(bytes[1])), 2),
            op::BININT2 => (Value::unsigned(u64::from(low_u32(bytes) & 0xffff)), 3),
            // The highest bit is the sign.
            op::BININT if bytes[4] < 0x80 => (Value::unsigned(u64::from(low_u32(bytes))), 5),
            op::LONG_BINGET => (known(memo.get(long_slot(bytes)))?, 5),
            _ => return None,
        };
        at += length;
        record.set(key, value);
    }
    if own_slots > 0 {
        memo.push(Value::dict(heap.dicts.len() as u32));
    }
    memo.extend_from_slice(memoized.values());
    if has_list {
        heap.lists.add(items);
    }
    heap.add_record(record);
    Some(base + at + 1)
}

/// Tries to read a list from `bytes`, which begin behind its EMPTY_LIST, into `items`, which is empty.
/// If it succeeds, returns the bytes that it took, and whether the pickle puts the list into the memo,
/// of which `next_slot` is the next slot.
#[inline]
pub(super) fn read_list(
    bytes: &[u8],
    memo: &[Value],
    next_slot: usize,
    items: &mut Vec<Value>,
) -> Option<(usize, bool)> {
    let own_slots = takes_memoize(bytes.first_chunk()?, next_slot)?;
    if *bytes.get(own_slots)? != op::MARK {
        return Some((own_slots, own_slots > 0));
    }
    let mut rest = &bytes[own_slots + 1..];
    loop {
        match *rest {
            [op::LONG_BINGET, a, b, c, d, ref tail @ ..] => {
                let slot = u32::from_le_bytes([a, b, c, d]) as usize;
                items.push(known(memo.get(slot))?);
                rest = tail;
            }
            [op::BINGET, slot, ref tail @ ..] => {
                items.push(known(memo.get(usize::from(slot)))?);
                rest = tail;
            }
            [op::APPENDS, ref tail @ ..] => {
                return Some((bytes.len() - tail.len(), own_slots > 0));
            }
            _ => return None,
        }
    }
}

/// The values of one dict that the pickle puts into the memo, in their order.
struct Memoized {
    values: [Value; Memoized::MAX],
    count: usize,
    /// The slot of the first.
    first: usize,
}

impl Memoized {
    /// A pool id, a string and a list are what entries have of such values.
    const MAX: usize = 3;

    #[inline(always)]
    fn from(first: usize) -> Memoized {
        Memoized { values: [Value::UNSET; Memoized::MAX], count: 0, first }
    }

    /// Takes `value` if `bytes` put it into the next slot. The length of the opcode, or 0 if it is
    /// another one. None if it writes another slot, or there are too many.
    #[inline(always)]
    fn take(&mut self, bytes: &[u8; CELL], value: Value) -> Option<usize> {
        let length = takes_memoize(bytes, self.next_slot())?;
        if length > 0 {
            self.add(value)?;
        }
        Some(length)
    }

    /// Takes `value` for the next slot. None if there are too many.
    #[inline(always)]
    fn add(&mut self, value: Value) -> Option<()> {
        *self.values.get_mut(self.count)? = value;
        self.count += 1;
        Some(())
    }

    #[inline(always)]
    fn next_slot(&self) -> usize {
        self.first + self.count
    }

    #[inline(always)]
    fn values(&self) -> &[Value] {
        &self.values[..self.count]
    }
}

/// A part of the window: at least the bytes of a key or a value.
#[inline(always)]
fn cell(window: &[u8; WINDOW], at: usize) -> &[u8; CELL] {
    window[at..].first_chunk().expect("a pair begins two cells or more before the end")
}

/// The length of the opcode that writes memo slot `next`, or 0 if `bytes` begin with another
/// opcode. None if it writes another slot.
#[inline]
fn takes_memoize(bytes: &[u8; CELL], next: usize) -> Option<usize> {
    let (slot, length) = match bytes[0] {
        op::MEMOIZE => return Some(1),
        op::BINPUT => (usize::from(bytes[1]), 2),
        op::LONG_BINPUT => (long_slot(bytes), 5),
        _ => return Some(0),
    };
    (slot == next).then_some(length)
}

/// The 32 bits behind the opcode.
#[inline]
fn low_u32(bytes: &[u8; CELL]) -> u32 {
    u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]])
}

#[inline]
fn long_slot(bytes: &[u8; CELL]) -> usize {
    low_u32(bytes) as usize
}

/// A string that is fetched from the memo, and the length of the opcode.
#[inline(always)]
fn text_from_memo(bytes: &[u8; CELL], memo: &[Value]) -> Option<(Text, usize)> {
    let (slot, length) = match bytes[0] {
        op::BINGET => (usize::from(bytes[1]), 2),
        op::LONG_BINGET => (long_slot(bytes), 5),
        _ => return None,
    };
    Some((memo.get(slot)?.as_text()?, length))
}

/// A memo slot that was written.
#[inline(always)]
fn known(slot: Option<&Value>) -> Option<Value> {
    slot.copied().filter(|&value| value != Value::UNSET)
}

/// LONG1 of 1 to 8 bytes, not negative: eight are loaded, and the surplus is shifted out.
#[inline(always)]
fn long(bytes: &[u8; CELL]) -> Option<Value> {
    let [_, count, a, b, c, d, e, f, g, h, ..] = *bytes;
    if count == 0 || count > 8 {
        return None;
    }
    let surplus = 64 - 8 * u32::from(count);
    let value = u64::from_le_bytes([a, b, c, d, e, f, g, h]) << surplus;
    (value >> 63 == 0).then_some(Value::unsigned(value >> surplus))
}
