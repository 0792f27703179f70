//! What tells operators of a step apart.

use std::hash::{BuildHasher, BuildHasherDefault};

use rustc_hash::FxHasher;

/// The key of a save: what tensor it is, by what the program says of it.
pub(super) fn of_save(kind: u64) -> u64 {
    BuildHasherDefault::<FxHasher>::default().hash_one((1_u8, kind))
}

/// The key of a use.
pub(super) fn of_use(kind: u64) -> u64 {
    BuildHasherDefault::<FxHasher>::default().hash_one((2_u8, kind))
}

/// The hash of the keys of a step: those that do the same have the same.
pub(super) fn hash_of(keys: &[u64]) -> u64 {
    BuildHasherDefault::<FxHasher>::default().hash_one(keys)
}
