//! What comes before it is asked for, where nobody has planned it.
//!
//! Backward uses what was saved in the reverse order, so those that were saved just before the one that is used now
//! are wanted next. As many come as there is room for, up to a part of it: what came too early would have to go again.

use super::Swap;
use super::table::RecordId;
use crate::error::Outcome;
use crate::heap::State;

impl Swap {
    /// Fetches what backward will want after the record of that number.
    pub(super) fn fetch_ahead(&mut self, state: &mut State, number: u64) -> Outcome<()> {
        if self.steps.is_as_planned() || self.table.bytes_saved().away == 0 {
            return Ok(());
        }
        let (most, free) = (self.room / self.tuning.coming_part, self.room / self.tuning.free_part);
        loop {
            let next: Option<(RecordId, u64)> = {
                let mut away = self.table.away_before(number);
                away.find_map(|id| Some((id, self.table.get(id)?.size)))
            };
            let Some((id, size)) = next else { return Ok(()) };
            let coming = self.table.bytes_saved().coming.saturating_add(size);
            let in_use = state.bytes_in_use().saturating_add(size).saturating_add(free);
            if coming > most.max(size) || in_use > self.room || !self.fetch(state, id)? {
                return Ok(());
            }
        }
    }
}
