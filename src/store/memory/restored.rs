//! A table in a snapshot: an heir reads it like a predecessor's table.
//!
//! A page's bytes are decoded each time it is read. So the table takes only the memory for its part of the file,
//! however many keys the file announces.

use std::ops::Range;
use std::sync::Arc;

use super::debt_copies::PastDebts;
use super::occupancy::Occupancy;
use super::quota_state::{QuotaState, StateType};
use super::read_states::{ActOnAny, AnyTable, TablePart};
use super::table::{Geometry, SETS_PER_PAGE, Tag};
use super::tables::HeirTerms;
use crate::algorithm::SavedState;
use crate::util::keyed_hash::Secret;
use crate::values::Quota;
use crate::values::snapshot::{Gap, Input, put_number, put_quota};
use crate::values::time::Timestamp;

/// Stands for overflow parts, as a page number.
pub(super) const OVERFLOW: u8 = b'o';
pub(super) const PAGE: u8 = b'p';

/// A row with its key's own quota has this bit beside the number of its set.
const HAS_QUOTA: u8 = 0x40;
const _: () = assert!(SETS_PER_PAGE <= HAS_QUOTA as usize);

/// The format in which a table's rows are written.
#[derive(Clone, Copy)]
pub(super) struct RowFormat {
    /// See [`letter_of`](crate::algorithm::letter_of).
    pub(super) letter: u8,
    /// The quota for rows without their own.
    pub(super) quota: Quota,
    /// The instant from which times are counted, without a key's phase.
    pub(super) then: Timestamp,
}

/// A key in a snapshot.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// In its page.
    pub(super) set: usize,
    pub(super) tag: Tag,
    pub(super) quota: Quota,
    pub(super) state: SavedState,
}

impl RowFormat {
    pub(super) fn write(&self, row: &Row, phase: u64, bytes: &mut Vec<u8>) {
        let has_quota = row.quota != self.quota;
        let set = u8::try_from(row.set).expect("a page has 64 sets");
        bytes.push(set | if has_quota { HAS_QUOTA } else { 0 });
        put_number(bytes, row.tag.value());
        if has_quota {
            put_quota(bytes, &row.quota);
        }
        row.state.write(&row.quota, self.local(phase), bytes);
    }

    /// Reads the next row. `phase_of` returns a key's phase.
    pub(super) fn read(&self, bytes: &mut Input<'_>, phase_of: impl Fn(Tag) -> u64) -> Option<Row> {
        let set = bytes.byte()?;
        let tag = Tag::with_value(bytes.u64()?)?;
        let quota = if set & HAS_QUOTA == 0 { self.quota } else { bytes.quota()? };
        let state = SavedState::read(self.letter, &quota, self.local(phase_of(tag)), bytes)?;
        Some(Row { set: usize::from(set & !HAS_QUOTA), tag, quota, state })
    }

    fn local(&self, phase: u64) -> Timestamp {
        Timestamp::from_nanos(self.then.as_nanos().saturating_add(phase))
    }
}

/// Returns by how much a key's clock is ahead.
pub(super) type PhaseOf = Box<dyn Fn(Tag) -> u64 + Send + Sync>;

/// A table's content, decoded once to check it.
pub(super) struct RestoredTable {
    pub(super) format: RowFormat,
    pub(super) gap: Gap,
    pub(super) terms: HeirTerms,
    pub(super) secret: Secret,
    pub(super) phase_of: PhaseOf,
    pub(super) occupancy: Arc<Occupancy>,
    /// Begins with the geometry of the table that inherits.
    pub(super) geometries: Vec<Geometry>,
    pub(super) parts: SavedParts,
}

/// A table's parts, each with its place.
pub(super) struct SavedParts {
    /// Sorted by geometry and page.
    pub(super) pages: Vec<(Geometry, usize, SavedRows)>,
    pub(super) overflow: Vec<SavedRows>,
}

/// A part of a file, from the first row on.
pub(super) struct SavedRows {
    pub(super) bytes: Box<[u8]>,
    pub(super) rows: Range<usize>,
}

impl SavedRows {
    pub(super) fn input(&self) -> Input<'_> {
        Input::new(&self.bytes[self.rows.clone()])
    }
}

impl RestoredTable {
    pub(super) const fn terms(&self) -> &HeirTerms {
        &self.terms
    }

    pub(super) const fn secret(&self) -> Secret {
        self.secret
    }

    /// The instant at which it is restored.
    pub(super) const fn now(&self) -> Timestamp {
        self.gap.now
    }

    fn each_row(&self, rows: &SavedRows, act: &mut dyn FnMut(Row)) {
        let mut input = rows.input();
        while let Some(row) = self.format.read(&mut input, &self.phase_of) {
            let gap = self.gap.ahead_by((self.phase_of)(row.tag));
            if let Some(state) = row.state.moved(&row.quota, gap) {
                act(Row { state, ..row });
            }
        }
    }
}

impl AnyTable for RestoredTable {
    fn geometry(&self) -> Geometry {
        self.geometries[0]
    }

    fn occupancy(&self) -> &Arc<Occupancy> {
        &self.occupancy
    }

    fn size_in_bytes(&self) -> usize {
        self.parts.pages.iter().map(|(.., rows)| rows.bytes.len()).sum()
    }

    fn inherited(&self) -> Option<Arc<dyn PastDebts>> {
        None
    }

    fn has_past(&self, _: Timestamp) -> bool {
        false
    }

    fn most_owed(&self, _: Timestamp) -> Option<u64> {
        None
    }

    /// No key is reset before the table is restored.
    fn reset(&self, _: u64, _: Timestamp) {}

    fn geometries(&self, _: Timestamp) -> Vec<Geometry> {
        self.geometries.clone()
    }

    fn has_states(&self, wanted: StateType) -> bool {
        SavedState::is_read_as(wanted.alone, self.format.letter)
    }

    fn each_any(&self, part: TablePart, _: StateType, _: &Quota, _: Timestamp, act: &mut ActOnAny<'_>) {
        let mut act = |Row { set, tag, quota, state }: Row| match state {
            SavedState::Bucket(state) => act(set, tag, &QuotaState { state, quota }),
            SavedState::Fixed(state) => act(set, tag, &QuotaState { state, quota }),
            SavedState::Sliding(state) => act(set, tag, &QuotaState { state, quota }),
            #[cfg(feature = "calendar")]
            SavedState::Calendar(state) => act(set, tag, &QuotaState { state, quota }),
        };
        let Some((geometry, page)) = part.copies() else {
            return self.parts.overflow.iter().for_each(|rows| self.each_row(rows, &mut act));
        };
        let place = |part: &(Geometry, usize, SavedRows)| (part.0.sets(), part.1);
        let wanted = (geometry.sets(), page);
        let first = self.parts.pages.partition_point(|part| place(part) < wanted);
        let found = self.parts.pages[first..].iter().take_while(|part| place(part) == wanted);
        found.for_each(|(.., rows)| self.each_row(rows, &mut act));
    }
}
