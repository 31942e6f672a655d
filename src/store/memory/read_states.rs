//! How an heir reads a table: as states, each with the quota that it counts under, although the table may keep them in
//! another form.
//!
//! The heir asks for a state type, and the table passes each state as [`Any`], so a table is compiled once, and not for
//! each type that heirs ask for.

use std::any::Any;
use std::sync::Arc;

use super::debt_copies::PastDebts;
use super::occupancy::Occupancy;
use super::quota_state::{QuotaState, StateType};
use super::table::{Geometry, Tag};
use crate::values::Quota;
use crate::values::time::Timestamp;

/// A table of either kind, with the debts that its keys inherit.
pub(super) trait AnyTable {
    fn geometry(&self) -> Geometry;

    fn occupancy(&self) -> &Arc<Occupancy>;

    fn size_in_bytes(&self) -> usize;

    fn inherited(&self) -> Option<Arc<dyn PastDebts>>;

    /// Returns whether debts that were inherited key by key may still count at `now`. Overflow slots, which inherit at
    /// once, are not included.
    fn has_past(&self, now: Timestamp) -> bool;

    /// Returns the most units that any key may owe at `now`, if that is known without reading each key. Overflow slots
    /// may have greater inherited debts.
    fn most_owed(&self, now: Timestamp) -> Option<u64>;

    /// Clears a key's debt, in its overflow slot as well.
    fn reset(&self, hash: u64, now: Timestamp);

    /// Returns whether its states can be read as this type.
    fn has_states(&self, wanted: StateType) -> bool;

    /// Calls `act` for each key in a part that may owe something at `at`, with the set in the page, a tag and the
    /// state. The state is a `T` or a `QuotaState<T>`, if `T` is the type that is wanted and its states can be read as
    /// that. `own` is the limiter's quota.
    fn each_any(&self, part: TablePart, wanted: StateType, own: &Quota, at: Timestamp, act: &mut ActOnAny<'_>);

    /// Returns the geometries by which keys with a debt at `now` are found: the table's own, and its inherited copies'
    /// geometries if these may still count.
    fn geometries(&self, now: Timestamp) -> Vec<Geometry> {
        let before = self.inherited().filter(|_| self.has_past(now)).map_or_else(Vec::new, |past| past.geometries());
        let own = self.geometry();
        std::iter::once(own).chain(before.into_iter().filter(|geometry| *geometry != own)).collect()
    }
}

/// A part of a table.
#[derive(Clone, Copy)]
pub(super) enum TablePart {
    /// The keys in a page, both in the table and in copies with that geometry.
    Page(Geometry, usize),
    /// The keys in a page of the copies with that geometry.
    Copies(Geometry, usize),
    /// The keys in a page of the table.
    Table(usize),
    /// The states that keys share.
    Overflow,
}

impl TablePart {
    /// Returns its page in copies, with their geometry.
    pub(super) const fn copies(self) -> Option<(Geometry, usize)> {
        match self {
            Self::Page(geometry, page) | Self::Copies(geometry, page) => Some((geometry, page)),
            Self::Table(_) | Self::Overflow => None,
        }
    }

    /// Returns its page in a table with this geometry.
    pub(super) fn of_table(self, own: Geometry) -> Option<usize> {
        match self {
            Self::Page(geometry, page) => (geometry == own).then_some(page),
            Self::Table(page) => Some(page),
            Self::Copies(..) | Self::Overflow => None,
        }
    }
}

/// Acts on a key's state, with the set in the page and the tag.
pub(super) type ActOnAny<'a> = dyn FnMut(usize, Tag, &dyn Any) + 'a;

/// Reads a table as states with one type.
pub(super) trait ReadStates: AnyTable {
    /// Returns whether the states have the type `T`.
    fn is_read<T: 'static>(&self) -> bool {
        self.has_states(StateType::of::<T>())
    }

    /// Calls `act` for each key in a part that may owe something at `at`, with the set in the page, a tag and the
    /// state; and with the limiter's `own` quota, if keys have no others.
    fn each<T: Copy + 'static>(
        &self,
        part: TablePart,
        own: &Quota,
        at: Timestamp,
        act: &mut dyn FnMut(usize, Tag, QuotaState<T>),
    ) {
        self.each_any(part, StateType::of::<T>(), own, at, &mut |set, tag, state| {
            if let Some(entry) = QuotaState::from_any(state, own) {
                act(set, tag, entry);
            }
        });
    }
}

impl<A: AnyTable + ?Sized> ReadStates for A {}
