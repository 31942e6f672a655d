//! Snapshots of a table in memory: written page by page while requests are decided, and read by an heir.
//!
//! # What is written
//!
//! The states of keys that owe something, with their tags and sets, and the hash's secret; keys themselves are not in a
//! table. A page is read as a live change reads it, word by word, or with one set locked at a time.
//!
//! The debt copies from before a live change are read first, and then the table, so that a debt that a request moves
//! meanwhile is found in at least one of them, and the greater one counts. A charge that is made after its page was
//! read is not in the snapshot.

use std::any::Any;
use std::io;
use std::sync::Arc;

use super::debt_copies::MOST_COPIES;
use super::ledger::Ledger;
use super::occupancy::Occupancy;
use super::quota_state::{QuotaState, StateType};
use super::read_states::{ReadStates, TablePart};
use super::restored::{OVERFLOW, PAGE, PhaseOf, RestoredTable, Row, RowFormat, SavedParts, SavedRows};
use super::start::SharedTable;
use super::table::{Geometry, Tag, Ticks};
use super::tables::{AnyTables, HeirTerms};
use crate::algorithm::{Algorithm, SavedState, letter_of};
use crate::util::keyed_hash::Secret;
use crate::util::order::sort_by_key;
use crate::values::Quota;
use crate::values::snapshot::{
    Commit, Gap, Input, Moment, SavedTable, TableSink, Unfit, WallClock, put_number, put_quota,
};
use crate::values::time::Timestamp;

/// A part is written once it has this many bytes.
const PART: usize = 1 << 15;

/// A snapshot's table may have up to this many times the sets of the present one. Then the directory for the copies
/// takes at most the table's memory, so that a file's announcement alone cannot allocate more.
const MOST_TIMES: usize = 256;

/// A table with this many sets is small.
const SMALL: usize = 1 << 16;

fn custom() -> Unfit {
    Unfit::skipped("its algorithm is not one of this crate")
}

const DAMAGED: Unfit = Unfit::Damaged("a table");

/// A table's head in a snapshot.
struct Head {
    format: RowFormat,
    schedule: u64,
    is_staggered: bool,
    secret: Secret,
    moment: Moment,
    evicted: u64,
    turned_away: u64,
    geometries: Vec<Geometry>,
}

impl Head {
    fn write(&self) -> Vec<u8> {
        let mut bytes = vec![self.format.letter, u8::from(self.is_staggered)];
        put_quota(&mut bytes, &self.format.quota);
        put_number(&mut bytes, self.schedule);
        bytes.extend(self.secret.to_bytes());
        put_number(&mut bytes, self.moment.clock.as_nanos());
        put_number(&mut bytes, self.moment.wall);
        put_number(&mut bytes, self.evicted);
        put_number(&mut bytes, self.turned_away);
        put_number(&mut bytes, self.geometries.len() as u64);
        self.geometries.iter().for_each(|geometry| put_number(&mut bytes, geometry.sets() as u64));
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Input::new(bytes);
        let letter = bytes.byte()?;
        let is_staggered = bytes.byte()? == 1;
        let quota = bytes.quota()?;
        let schedule = bytes.u64()?;
        let secret = Secret::from_bytes(bytes.array()?);
        let moment = Moment { clock: Timestamp::from_nanos(bytes.u64()?), wall: bytes.u64()? };
        let (evicted, turned_away) = (bytes.u64()?, bytes.u64()?);
        let count = bytes.usize().filter(|count| *count <= MOST_COPIES + 1)?;
        let sets = |bytes: &mut Input<'_>| bytes.usize().filter(|sets| *sets >= 2).map(Geometry::with_sets);
        let geometries = (0..count).map(|_| sets(&mut bytes)).collect::<Option<_>>()?;
        let format = RowFormat { letter, quota, then: moment.clock };
        let head = Self { format, schedule, is_staggered, secret, moment, evicted, turned_away, geometries };
        bytes.is_empty().then_some(head)
    }
}

/// The rows in a table's part, cut into pieces.
struct Rows {
    bytes: Vec<u8>,
    /// Where each piece ends, with the number of its keys.
    cuts: Vec<(usize, u64)>,
    keys: u64,
}

impl Rows {
    fn end_piece(&mut self) {
        if self.keys > 0 {
            self.cuts.push((self.bytes.len(), std::mem::take(&mut self.keys)));
        }
    }
}

impl<S: Copy + Send + 'static> SharedTable<S> {
    pub(crate) fn save<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        sink: &mut dyn TableSink,
    ) -> io::Result<Result<(), Unfit>> {
        let Some(letter) = letter_of(algorithm) else { return Ok(Err(custom())) };
        let Some(tables) = self.whole_in_use(algorithm) else { return Ok(Ok(())) };
        let phase_of = |tag: Tag| crate::values::time::nanos_of(algorithm.phase(tag.phase_draw()));
        save(&**tables, &|| self.settings.time(algorithm), letter, StateType::of::<S>(), &phase_of, sink)
    }

    /// Decodes and checks a snapshot's table, and changes nothing. The wall clock is read when it is put into use.
    pub(crate) fn prepare<A: Algorithm<State = S>>(
        self: &Arc<Self>,
        algorithm: &Arc<A>,
        saved: SavedTable,
        wall: WallClock,
    ) -> Result<Commit, Unfit> {
        let phase = Arc::clone(algorithm);
        let phase_of = Box::new(move |tag: Tag| crate::values::time::nanos_of(phase.phase(tag.phase_draw())));
        let own = Geometry::of(self.settings.capacity);
        let prepared = Prepared::read(saved, letter_of(&**algorithm), own, phase_of)?;
        let (table, algorithm) = (Arc::clone(self), Arc::clone(algorithm));
        Ok(Box::new(move || {
            let terms = HeirTerms::new(&*algorithm, table.settings.clock_type);
            let keys = prepared.keys;
            // The wall clock is read first, so that the time between the two readings is not forgiven.
            let wall = wall();
            let now = Moment { clock: table.settings.time(&*algorithm), wall };
            table.restore(&algorithm, prepared.restored(terms, now)).map(|()| keys)
        }))
    }
}

/// Writes the tables for an algorithm with this letter, whose states have this type.
fn save(
    tables: &dyn AnyTables,
    now: &dyn Fn() -> Timestamp,
    letter: u8,
    states: StateType,
    phase_of: &dyn Fn(Tag) -> u64,
    sink: &mut dyn TableSink,
) -> io::Result<Result<(), Unfit>> {
    let (table, terms) = (tables.current(), tables.terms());
    // The clock is read first, so that the time between the two readings is not forgiven.
    let clock = now();
    let head = Head {
        format: RowFormat { letter, quota: terms.quota, then: clock },
        schedule: terms.schedule,
        is_staggered: terms.staggered,
        secret: tables.secret(),
        moment: Moment { clock, wall: sink.wall() },
        evicted: table.occupancy().evicted(),
        turned_away: table.occupancy().turned_away(),
        geometries: table.geometries(clock),
    };
    let quota = terms.quota;
    let bucket = tables.bucket().filter(|_| !tables.has_quotas()).map(Ledger::rule);
    if bucket.is_none() && !table.has_states(states) {
        return Ok(Err(custom()));
    }
    sink.begin(&head.write())?;
    let each = |part, at, act: &mut dyn FnMut(usize, Tag, QuotaState<SavedState>)| match bucket {
        Some(rule) => table.each(part, &quota, at, &mut |set, tag, entry: QuotaState<Ticks>| {
            let state = SavedState::Bucket(rule.exact_state(entry.state, &quota, at));
            act(set, tag, QuotaState { state, quota });
        }),
        None => table.each_any(part, states, &quota, at, &mut |set, tag, state| {
            if let Some(entry) = saved(state, &quota) {
                act(set, tag, entry);
            }
        }),
    };
    let mut rows = Rows { bytes: Vec::with_capacity(PART), cuts: Vec::new(), keys: 0 };
    let mut write = |part: TablePart, place: &[u8]| {
        rows.bytes.clear();
        rows.cuts.clear();
        let at = now();
        each(part, at, &mut |set, tag, QuotaState { state, quota }| {
            let phase = phase_of(tag);
            let unpaid = Gap::nothing(at).ahead_by(phase);
            if state.moved(&quota, unpaid).is_none() {
                return;
            }
            if rows.keys == 0 {
                rows.bytes.extend(place);
            }
            head.format.write(&Row { set, tag, quota, state }, phase, &mut rows.bytes);
            rows.keys += 1;
            if rows.bytes.len() - rows.cuts.last().map_or(0, |(end, _)| *end) > PART {
                rows.end_piece();
            }
        });
        rows.end_piece();
        // Written only now, while no lock of the table is held.
        let mut start = 0;
        for (end, keys) in &rows.cuts {
            sink.part(&rows.bytes[start..*end], *keys)?;
            start = *end;
        }
        io::Result::Ok(())
    };
    let place = |geometry: usize, page: usize| {
        let mut bytes = vec![PAGE];
        put_number(&mut bytes, geometry as u64);
        put_number(&mut bytes, page as u64);
        bytes
    };
    if table.has_past(clock) {
        for (index, geometry) in head.geometries.iter().enumerate() {
            for page in 0..geometry.pages() {
                write(TablePart::Copies(*geometry, page), &place(index, page))?;
            }
        }
    }
    // Its own geometry is the first.
    for page in 0..table.geometry().pages() {
        write(TablePart::Table(page), &place(0, page))?;
    }
    write(TablePart::Overflow, &[OVERFLOW])?;
    Ok(Ok(()))
}

/// Returns the state if its algorithm is from this crate, with its quota or the limiter's `own`.
fn saved(state: &dyn Any, own: &Quota) -> Option<QuotaState<SavedState>> {
    fn of<S: Copy + 'static>(
        state: &dyn Any,
        own: &Quota,
        wrap: fn(S) -> SavedState,
    ) -> Option<QuotaState<SavedState>> {
        let QuotaState { state, quota } = QuotaState::from_any(state, own)?;
        Some(QuotaState { state: wrap(state), quota })
    }
    let saved = of(state, own, SavedState::Bucket).or_else(|| of(state, own, SavedState::Fixed));
    let saved = saved.or_else(|| of(state, own, SavedState::Sliding));
    #[cfg(feature = "calendar")]
    let saved = saved.or_else(|| of(state, own, SavedState::Calendar));
    saved
}

/// A snapshot's table, decoded and checked.
struct Prepared {
    head: Head,
    parts: SavedParts,
    keys: u64,
    geometries: Vec<Geometry>,
    phase_of: PhaseOf,
}

impl Prepared {
    fn read(saved: SavedTable, letter: Option<u8>, own: Geometry, phase_of: PhaseOf) -> Result<Self, Unfit> {
        let head = Head::read(&saved.head).ok_or(DAMAGED)?;
        if letter != Some(head.format.letter) {
            return Err(Unfit::skipped("its algorithm is another one than in the snapshot"));
        }
        let most = own.sets().saturating_mul(MOST_TIMES).max(SMALL);
        if let Some(geometry) = head.geometries.iter().find(|geometry| geometry.sets() > most) {
            let sets = geometry.sets();
            return Err(Unfit::skipped(format!(
                "the snapshot is of a table of {sets} sets, and this one has {}",
                own.sets()
            )));
        }
        let (parts, keys) = check_parts(&head, saved.parts, &*phase_of).ok_or(DAMAGED)?;
        let mut geometries = vec![own];
        for (geometry, ..) in &parts.pages {
            if !geometries.contains(geometry) {
                geometries.push(*geometry);
            }
        }
        if geometries.len() > MOST_COPIES {
            return Err(Unfit::skipped("its capacity was changed too often while debts were unpaid"));
        }
        Ok(Self { head, parts, keys, geometries, phase_of })
    }

    /// Returns the table as it counts `now`, for an heir with these terms.
    fn restored(self, heir: HeirTerms, now: Moment) -> RestoredTable {
        let Self { head, parts, geometries, phase_of, .. } = self;
        RestoredTable {
            gap: Gap::new(head.moment, now),
            terms: heir.restored(head.format.quota, head.schedule, head.is_staggered),
            secret: head.secret,
            phase_of,
            occupancy: Arc::new(Occupancy::continuing(head.evicted, head.turned_away)),
            geometries,
            parts,
            format: head.format,
        }
    }
}

/// Checks all rows, and sorts the parts by their places. Returns them with the number of their keys.
fn check_parts(head: &Head, parts: Vec<Box<[u8]>>, phase_of: &dyn Fn(Tag) -> u64) -> Option<(SavedParts, u64)> {
    let mut sorted = SavedParts { pages: Vec::new(), overflow: Vec::new() };
    let mut keys = 0;
    for bytes in parts {
        let mut input = Input::new(&bytes);
        let (place, sets) = match input.byte()? {
            OVERFLOW => (None, 1),
            PAGE => {
                let geometry = *head.geometries.get(input.usize()?)?;
                let page = input.usize().filter(|page| *page < geometry.pages())?;
                (Some((geometry, page)), geometry.sets_of(page))
            }
            _ => return None,
        };
        let first = bytes.len() - input.len();
        while !input.is_empty() {
            head.format.read(&mut input, phase_of).filter(|row| row.set < sets)?;
            keys += 1;
        }
        let rows = SavedRows { rows: first..bytes.len(), bytes };
        match place {
            Some((geometry, page)) => sorted.pages.push((geometry, page, rows)),
            None => sorted.overflow.push(rows),
        }
    }
    sorted.pages = sort_by_key(sorted.pages, |(geometry, page, _)| [0, geometry.sets() as u64, *page as u64]);
    Some((sorted, keys))
}
