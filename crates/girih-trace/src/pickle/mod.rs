//! A reader of Python pickles that never executes one.
//!
//! A pickle is a program for a small stack machine. Most of its opcodes build dicts, lists, tuples,
//! strings and numbers; a few import Python names and call them, which is how a pickle from an
//! untrusted place runs code. This machine knows the former, of protocols 0 to 5, and refuses the
//! latter with the name and the byte offset of the opcode.
//!
//! ```text
//!  bytes ──► Source ──► Machine: stack, marks, memo ──► Heap: lists, dicts, records, texts
//!                                                         root ──► Value
//! ```
//!
//! Values are 8 bytes and refer to lists and dicts by index, so that shared and even cyclic
//! structures are harmless: nothing here recurses. Memory is bounded by a small multiple of the
//! bytes read, for a length is never trusted before its bytes have arrived; and by a larger one of the
//! compressed bytes (`compress`), for two bytes
//! that fetch an entry once more compress to nothing.
//!
//! What makes it fast is the `Record`: a snapshot is a million small dicts with the same keys.
//! A dict that gets the key `Record::KEY` becomes a fixed-size record at once, and its key and
//! value pairs are never stored. Known strings have fixed ids (`Record::WORDS`), so that finding
//! the field for a key is one `match` on a number. Lists that are filled alike share their items.

mod fused;
mod heap;
mod lists;
mod literal;
mod machine;
mod opcode;
mod source;
mod value;

pub(crate) use heap::{DictKind, Heap, Pairs};
pub(crate) use lists::{ENTRY_BYTES, Items};
pub(crate) use machine::{Loaded, load};
pub use source::{PickleError, PickleErrorKind};
pub(crate) use value::{Text, Value};

/// What a dict with a certain key is reduced to.
pub(crate) trait Record: Copy + Default {
    /// The strings that have fixed ids: `WORDS[i]` is always `Text(i)`.
    const WORDS: &'static [&'static str];

    /// The key that makes a dict a record.
    const KEY: Text;

    /// Sets one field. Called for every pair of the dict, in order, so that a key that is set
    /// twice has its last value, as in Python. Must not fail: whether the dict stands where a
    /// record is wanted is not known yet.
    fn set(&mut self, key: Text, value: Value);
}
