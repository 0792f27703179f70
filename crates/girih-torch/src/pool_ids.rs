//! The small ids of private pools.
//!
//! PyTorch numbers pools for ever, and a program may make a new one in each step. An id is taken up again
//! once its pool is gone, so there may be any number of pools, but no more than 65,535 at once. Where a
//! recording is made ids are taken up only when there are no others: the recording tells its pools apart
//! by them.

use std::collections::{BTreeMap, VecDeque};

use crate::error::{Outcome, unsupported};

/// PyTorch's id of a pool.
type Pair = (u64, u64);

/// The id of no pool.
const NONE: u16 = u16::MAX;

/// The ids of pools by PyTorch's. The default pool has the first.
pub(crate) struct PoolIds {
    ids: BTreeMap<Pair, u16>,
    /// The pool that has each id, or had it last.
    pools: Vec<Pair>,
    /// Ids whose pools are gone, the first that went first.
    vacant: VecDeque<u16>,
    /// The one that was asked for last.
    recent: (Pair, u16),
    /// Vacant ids are left alone as long as there are others.
    keeps_apart: bool,
}

impl PoolIds {
    /// The default pool alone. With `keeps_apart` an id is another pool's only if there are no more.
    pub(crate) fn new(keeps_apart: bool) -> PoolIds {
        PoolIds {
            ids: BTreeMap::from([((0, 0), 0)]),
            pools: vec![(0, 0)],
            vacant: VecDeque::new(),
            recent: ((0, 0), 0),
            keeps_apart,
        }
    }

    /// The id of a pool that has one.
    #[inline]
    pub(crate) fn find(&self, pool: Pair) -> Option<u16> {
        if self.recent.0 == pool && self.recent.1 != NONE {
            return Some(self.recent.1);
        }
        self.ids.get(&pool).copied()
    }

    /// The id of a pool that has one, which is asked for again and again.
    #[inline]
    pub(crate) fn known(&mut self, pool: Pair) -> Option<u16> {
        let id = self.find(pool)?;
        self.recent = (pool, id);
        Some(id)
    }

    /// True if a new pool would get no id.
    pub(crate) fn is_full(&self) -> bool {
        self.vacant.is_empty() && self.pools.len() >= usize::from(NONE)
    }

    /// Gives a new pool an id.
    ///
    /// # Errors
    /// If there are too many pools.
    pub(crate) fn add(&mut self, pool: Pair) -> Outcome<u16> {
        if self.is_full() {
            return Err(unsupported(format!(
                "let go of some memory pools and call torch.cuda.empty_cache(): this process has {} \
                 memory pools at once, which is the most that Girih can tell apart",
                self.pools.len()
            )));
        }
        let is_fresh = self.pools.len() < usize::from(NONE);
        let id = match self.vacant.pop_front_if(|_| !(self.keeps_apart && is_fresh)) {
            Some(id) => {
                self.pools[usize::from(id)] = pool;
                id
            }
            None => {
                self.pools.push(pool);
                (self.pools.len() - 1) as u16
            }
        };
        self.ids.insert(pool, id);
        self.recent = (pool, id);
        Ok(id)
    }

    /// A pool is gone: its id may be another one's. The default pool stays.
    pub(crate) fn remove(&mut self, id: u16) {
        let Some(pool) = self.pool(id).filter(|_| id != 0) else { return };
        if self.ids.get(&pool) == Some(&id) {
            self.ids.remove(&pool);
            self.vacant.push_back(id);
        }
        if self.recent.1 == id {
            self.recent.1 = NONE;
        }
    }

    /// The pool of an id that was given.
    pub(crate) fn pool(&self, id: u16) -> Option<Pair> {
        self.pools.get(usize::from(id)).copied()
    }

    /// The pool that has each id, or had it last.
    pub(crate) fn all(&self) -> &[Pair] {
        &self.pools
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_up_again_once_its_pool_is_gone() {
        let mut pools = PoolIds::new(false);
        assert_eq!((pools.known((0, 0)), pools.known((0, 7))), (Some(0), None));
        assert_eq!((pools.add((0, 7)).unwrap(), pools.add((0, 8)).unwrap()), (1, 2));
        pools.remove(1);
        pools.remove(1);
        assert_eq!((pools.find((0, 7)), pools.find((0, 8))), (None, Some(2)));
        assert_eq!((pools.add((0, 9)).unwrap(), pools.add((1, 0)).unwrap()), (1, 3));
        assert_eq!((pools.pool(1), pools.pool(4)), (Some((0, 9)), None));
        pools.remove(0);
        assert_eq!(pools.find((0, 0)), Some(0), "the default pool stays");
    }

    #[test]
    fn a_recording_keeps_ids_apart_as_long_as_there_are_others() {
        let mut pools = PoolIds::new(true);
        for pool in 1..=200_000 {
            let id = pools.add((0, pool)).unwrap();
            assert_eq!(u64::from(id), (pool - 1) % 65_534 + 1);
            pools.remove(id);
        }
        assert_eq!(pools.all().len(), 65_535);
    }

    #[test]
    fn too_many_at_once_are_refused_with_their_number() {
        let mut pools = PoolIds::new(false);
        (1..65_535).for_each(|pool| assert_eq!(u64::from(pools.add((0, pool)).unwrap()), pool));
        assert!(pools.is_full());
        let error = pools.add((9, 9)).unwrap_err().to_string();
        assert!(error.contains("65535 memory pools at once"), "{error}");
        assert_eq!(pools.known((0, 3)), Some(3), "those that are known still are");
        pools.remove(3);
        assert_eq!(pools.add((9, 9)).unwrap(), 3);
    }
}
