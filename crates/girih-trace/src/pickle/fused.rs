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
//! Here such a dict is read from the buffer straight into its record, without the stack. Whatever
//! is out of the ordinary, be it an opcode, a key or the end of the buffer, makes the attempt give
//! up before anything has changed, and the machine reads the same bytes one opcode at a time. So
//! this file can make a pickle faster to read, and nothing else.
//!
//! The bytes are looked at through a window of fixed size, so that the compiler can see that no
//! index leaves it.

use super::opcode as op;
use super::value::Value;
use super::{Heap, Record};

/// Bytes in which a dict must end. Those of snapshots take 50 to 120.
const WINDOW: usize = 256;
/// The last place in the window at which a pair may begin.
const LAST_PAIR: usize = WINDOW - 2 * CELL;
/// At least the bytes of a key, and those of a value.
const CELL: usize = 16;

/// Tries to read a dict from `bytes`, which begin behind its EMPTY_DICT. If it succeeds, the record
/// is on the heap as the next dict, and in the memo if the pickle says so. Returns the bytes that
/// it took.
#[inline]
pub(super) fn read_record<F: Record>(
    bytes: &[u8],
    memo: &mut Vec<Value>,
    heap: &mut Heap<F>,
) -> Option<usize> {
    let window: &[u8; WINDOW] = bytes.first_chunk()?;
    let is_memoized = takes_memoize(window.first_chunk()?, memo.len())?;
    let mut at = is_memoized;
    if window[at] != op::MARK {
        return None;
    }
    at += 1;
    let mut record = F::default();
    let mut is_record = false;
    let mut tuple = None;
    while window[at] != op::SETITEMS {
        if at > LAST_PAIR {
            return None;
        }
        let (key, length) = from_memo(window[at..].first_chunk()?, memo)?;
        at += length;
        is_record |= key == Value::text(F::KEY);
        if !is_record {
            return None;
        }
        let cell: &[u8; CELL] = window[at..].first_chunk()?;
        let (value, length) = match cell[0] {
            op::BININT1 if cell[2] == op::BININT1 && cell[4] == op::TUPLE2 => {
                let pair = heap.pairs.id((cell[1].into(), cell[3].into()));
                let next = memo.len() + usize::from(is_memoized > 0);
                let taken = takes_memoize(cell[5..].first_chunk()?, next)?;
                if taken > 0 && tuple.replace(Value::pair(pair)).is_some() {
                    return None;
                }
                (Value::pair(pair), 5 + taken)
            }
            op::BINGET | op::LONG_BINGET => from_memo(cell.first_chunk()?, memo)?,
            _ => integer(cell)?,
        };
        at += length;
        record.set(key, value);
    }
    if is_memoized > 0 {
        memo.push(Value::dict(heap.dicts.len() as u32));
    }
    memo.extend(tuple);
    heap.add_record(record);
    Some(at + 1)
}

/// The length of the opcode that writes memo slot `next`, or 0 if `bytes` begin with another
/// opcode. None if it writes another slot.
#[inline]
fn takes_memoize(bytes: &[u8; 5], next: usize) -> Option<usize> {
    let [code, low, b, c, d] = *bytes;
    let (slot, length) = match code {
        op::MEMOIZE => return Some(1),
        op::BINPUT => (usize::from(low), 2),
        op::LONG_BINPUT => (u32::from_le_bytes([low, b, c, d]) as usize, 5),
        _ => return Some(0),
    };
    (slot == next).then_some(length)
}

/// A value that is fetched from the memo, and the length of the opcode that does so.
#[inline]
fn from_memo(bytes: &[u8; 5], memo: &[Value]) -> Option<(Value, usize)> {
    let [code, low, b, c, d] = *bytes;
    let (slot, length) = match code {
        op::BINGET => (usize::from(low), 2),
        op::LONG_BINGET => (u32::from_le_bytes([low, b, c, d]) as usize, 5),
        _ => return None,
    };
    let value = *memo.get(slot)?;
    (value != Value::UNSET).then_some((value, length))
}

/// An integer that is not negative, and the length of its opcode.
#[inline]
fn integer(cell: &[u8; CELL]) -> Option<(Value, usize)> {
    let wide = u64::from_le_bytes(*cell[1..].first_chunk()?);
    let bits = match cell[0] {
        op::BININT1 => 8,
        op::BININT2 => 16,
        op::BININT => 32,
        op::LONG1 if (1..=8).contains(&cell[1]) => return long(cell),
        _ => return None,
    };
    let value = wide & ((1 << bits) - 1);
    // The highest bit is BININT's sign. Negative integers are left to the machine.
    (value >> 31 == 0).then_some((Value::unsigned(value), 1 + bits / 8))
}

/// An integer of 1 to 8 bytes: eight are loaded, and the surplus is shifted out.
#[inline]
fn long(cell: &[u8; CELL]) -> Option<(Value, usize)> {
    let count = usize::from(cell[1]);
    let wide = u64::from_le_bytes(*cell[2..].first_chunk()?);
    let surplus = 64 - 8 * count;
    let value = wide << surplus;
    (value >> 63 == 0).then_some((Value::unsigned(value >> surplus), 2 + count))
}
