//! What the keys of a limiter owe from before a live change.
//!
//! An heir has a table of its own. What its keys owed in its predecessor's table at the instant of the change is copied
//! page by page, and converted into the heir's units once: by the first request that needs a page, or else by the
//! thread that calls `replace`, right after the change is in force. So no request copies more than two pages of each
//! geometry. The predecessor's table is only read, and the thread that calls `replace` drops it as soon as all is
//! copied.
//!
//! No thread waits for a page that another one copies: that thread may be descheduled, for milliseconds. Both copy it
//! then, and the copy that is published first counts ([`Published`]).
//!
//! A **table copy** is what was copied from tables of one [`Geometry`], by which its keys are found: of words or of states
//! behind locks alike. A predecessor that has inherited itself hands on what is left of its own copies: that of its own
//! geometry is merged with its table, the others stay apart. A page of a copy has no more debts than a page of the table
//! has slots. If there are more, the keys that owe least are forgotten, and counted as evicted: so a chain of changes takes
//! no more memory than one change.
//!
//! A debt that is inserted into the heir's table is cleared here. So it is not inherited twice, and does not come back
//! after a refund, a reset or an eviction; and each heir of a limiter has its own copy.
//!
//! # While an heir of an heir copies
//!
//! A debt moves from a copy into the table while an heir of that table copies both, page by page, in any order. It must
//! be found at least once. So it is cleared only after it was inserted, and after each heir that has begun to copy
//! ([`PastDebts`]) has copied the pages that the key may be in. An heir that begins later finds it in the table.
//!
//! It may be found twice: in the copy, because it was not cleared yet, and in the table, where it may have grown since.
//! Then the greatest debt counts ([`DebtCopies::get`]). The order of the copies does not say which one that is: they may
//! be of different geometries, and each heir has its own order. A refund that is made between the insert and the clear
//! may be lost.

use std::cmp::Reverse;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, Weak};

#[cfg(not(sluice_loom))]
use arc_swap::ArcSwapOption;

use super::occupancy::Occupancy;
use super::table::{Geometry, PAYLOAD_BITS, SETS_PER_PAGE, SLOTS_PER_SET, Tag};
use crate::util::sync::{AtomicU64, Mutex, Ordering, before_a_step, yield_now};

/// With this many table copies, a live change to yet another capacity keeps the predecessor's, until all that was
/// inherited is paid.
pub(super) const MOST_COPIES: usize = 4;

/// What the keys of a page owe, until that is cleared. One thread at a time writes the debt of a key, under a lock of the
/// key in the heir's table, while an heir of that heir may read.
pub(super) trait PageDebts: Send + Sync + 'static {
    type Debt: Copy;

    fn new(debts: impl Iterator<Item = (Tag, Self::Debt)>) -> Self;

    /// Returns a debt, and the tag of its key, unless it was cleared.
    fn get(&self, index: usize) -> Option<(Tag, Self::Debt)>;

    /// Replaces a debt.
    fn set(&self, index: usize, debt: Option<Self::Debt>);
}

/// Tags and debts, in eight bytes each like those of a word: a debt's stamp, counted from that of nothing at the instant of
/// the change.
pub(super) struct CopiedStamps(Box<[AtomicU64]>);

const DEBT_MASK: u64 = (1 << PAYLOAD_BITS) - 1;

impl CopiedStamps {
    fn packed(tag: u64, debt: u64) -> u64 {
        tag << PAYLOAD_BITS | debt.min(DEBT_MASK)
    }

    /// Acquire, with the release in `set`: a thread that reads the debt as cleared finds the key in the table.
    fn load(&self, index: usize) -> u64 {
        before_a_step();
        self.0[index].load(Ordering::Acquire)
    }
}

impl PageDebts for CopiedStamps {
    type Debt = u64;

    fn new(debts: impl Iterator<Item = (Tag, u64)>) -> Self {
        Self(debts.map(|(tag, debt)| AtomicU64::new(Self::packed(tag.value(), debt))).collect())
    }

    fn get(&self, index: usize) -> Option<(Tag, u64)> {
        let packed = self.load(index);
        let debt = packed & DEBT_MASK;
        (debt > 0).then(|| (Tag::from_hash(packed >> PAYLOAD_BITS), debt))
    }

    fn set(&self, index: usize, debt: Option<u64>) {
        let packed = Self::packed(self.load(index) >> PAYLOAD_BITS, debt.unwrap_or(0));
        before_a_step();
        // Release: the key was inserted before, and a thread that reads this must find it. One store, and no
        // compare-and-swap: the key's lock excludes other writers.
        self.0[index].store(packed, Ordering::Release);
    }
}

/// Tags, and the states of an algorithm: no more bytes per key than a slot of the locked table. The lock is held for as
/// long as it takes to copy a state.
pub(super) struct CopiedStates<S>(Mutex<Box<[CopiedState<S>]>>);

/// `None` once it is cleared, which takes no room of its own: a tag is never zero.
type CopiedState<S> = Option<(NonZeroU64, S)>;

impl<S: Copy + Send + 'static> PageDebts for CopiedStates<S> {
    type Debt = S;

    fn new(debts: impl Iterator<Item = (Tag, S)>) -> Self {
        let states = debts.map(|(tag, state)| NonZeroU64::new(tag.value()).map(|tag| (tag, state)));
        Self(Mutex::new(states.collect()))
    }

    fn get(&self, index: usize) -> Option<(Tag, S)> {
        let copied = self.0.lock().unwrap_or_else(PoisonError::into_inner)[index];
        copied.map(|(tag, state)| (Tag::from_hash(tag.get()), state))
    }

    fn set(&self, index: usize, state: Option<S>) {
        let copied = &mut self.0.lock().unwrap_or_else(PoisonError::into_inner)[index];
        *copied = copied.zip(state).map(|((tag, _), state)| (tag, state));
    }
}

/// Copies debts from a predecessor.
pub(super) trait DebtSource<T>: Send + Sync {
    /// Adds the heir to those that copy from the copies that the predecessor itself has, if any. Called before each
    /// page.
    fn announce(&self, heir: &Weak<dyn PastDebts>);

    /// Passes each key of a page that owes something to `put`.
    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<T>));

    /// Returns how much would be forgiven if a debt were forgotten: compared among the keys of a page, with those of the
    /// same table.
    fn size(&self, tag: Tag, debt: &T) -> u64;
}

/// A key of a page that owes something.
pub(super) struct Debtor<T> {
    /// Its set in the page.
    pub(super) set: usize,
    pub(super) tag: Tag,
    pub(super) debt: T,
    /// Until when it owes, by the heir's clock.
    pub(super) ends: u64,
}

/// What an heir's keys owed in its predecessor's tables, whichever form that has.
pub(super) trait PastDebts: Send + Sync {
    /// Returns those of the copies.
    fn geometries(&self) -> Vec<Geometry>;

    /// Adds an heir of this heir. To be called before that copies a page: then a thread that does not find it in
    /// [`missing`](DebtCopies::missing) has inserted its key before, and the heir finds the key in the table.
    fn announce(&self, heir: &Weak<dyn PastDebts>);

    /// Copies the pages that no request has needed yet, and drops the predecessor.
    fn copy_all(&self);

    /// Returns whether the pages are copied that a key may be in.
    fn has_copied(&self, hash: u64) -> bool;

    /// Copies the pages that a key may be in, unless they are copied.
    fn copy_pages_of(&self, hash: u64);
}

/// Copies of what an heir's keys owed in its predecessor's tables.
pub(super) struct DebtCopies<T, D> {
    this: Weak<Self>,
    copies: Box<[TableCopy<D>]>,
    /// Empty once all is copied.
    source: Published<Box<dyn DebtSource<T>>>,
    /// When the last debt is paid, of those copied so far.
    latest: AtomicU64,
    /// The same once all is copied; `u64::MAX` before.
    ends: AtomicU64,
    /// Takes the place of pages that were dropped after that.
    empty: Arc<PageCopy<D>>,
    /// How many pages were dropped, counted through all copies.
    dropped: AtomicUsize,
    /// The heirs of this heir that have begun to copy. Locked for as long as it takes to copy the list.
    heirs: Mutex<Vec<Weak<dyn PastDebts>>>,
    /// The occupancy of the heir's table, which counts the keys that are forgotten.
    occupancy: Arc<Occupancy>,
}

struct TableCopy<D> {
    geometry: Geometry,
    /// Pages that are still to be copied have nothing published.
    pages: Box<[Published<PageCopy<D>>]>,
}

/// The debts of a page, set by set.
struct PageCopy<D> {
    /// Where the debts of a set end.
    ends: [u16; SETS_PER_PAGE],
    debts: D,
}

/// Each request that finds all inherited debts paid drops so many pages. A large table has thousands: no request must
/// free them all.
const DROPPED_AT_ONCE: usize = 8;

impl<T: Copy + 'static, D: PageDebts<Debt = T>> DebtCopies<T, D> {
    /// Prepares copies of tables of these geometries.
    ///
    /// # Panics
    ///
    /// If there are too many geometries, or no memory.
    pub(super) fn new(
        geometries: &[Geometry],
        occupancy: &Arc<Occupancy>,
        source: Box<dyn DebtSource<T>>,
    ) -> Arc<Self> {
        assert!(geometries.len() <= MOST_COPIES, "each limiter leaves room for the copies of its heir");
        let copy = |geometry: &Geometry| TableCopy {
            geometry: *geometry,
            pages: (0..geometry.pages()).map(|_| Published::nothing()).collect(),
        };
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            copies: geometries.iter().map(copy).collect(),
            source: Published::new(Arc::new(source)),
            latest: AtomicU64::new(0),
            ends: AtomicU64::new(u64::MAX),
            empty: Arc::new(PageCopy::new(std::iter::empty())),
            dropped: AtomicUsize::new(0),
            heirs: Mutex::default(),
            occupancy: Arc::clone(occupancy),
        })
    }

    /// Returns whether all that was inherited is paid at `now`.
    pub(super) fn has_ended(&self, now: u64) -> bool {
        // Relaxed: a thread that reads an old value only looks at the copies once more.
        now >= self.ends.load(Ordering::Relaxed)
    }

    /// Returns what a key owed at the instant of the change, unless that was cleared. `size` compares debts.
    pub(super) fn get(&self, hash: u64, now: u64, size: impl Fn(&T) -> u64) -> Option<T> {
        if self.has_ended(now) {
            self.drop_some();
            return None;
        }
        let mut found = None;
        // A key that was inserted into its table while that was copied may be there twice. Not simply the last one: the
        // table may be copied to pages that are visited before those with the old debt.
        self.visit(hash, |page, index| {
            let inherited = page.debts.get(index).map(|(_, debt)| debt);
            found = found.into_iter().chain(inherited).max_by_key(&size);
        });
        found
    }

    /// Replaces what a key owed at the instant of the change. For a key that is there.
    pub(super) fn set(&self, hash: u64, debt: Option<T>) {
        let mut left = debt;
        self.visit(hash, |page, index| page.debts.set(index, left.take()));
    }

    /// Calls `act` with the pages in which a key is, and its index there.
    fn visit(&self, hash: u64, mut act: impl FnMut(&PageCopy<D>, usize)) {
        for copy in &self.copies {
            let tag = Tag::from_hash(hash);
            for set in copy.geometry.candidate_sets(hash) {
                let page = self.page(copy, set / SETS_PER_PAGE);
                for index in page.set(set % SETS_PER_PAGE) {
                    if page.debts.get(index).is_some_and(|(of, _)| of == tag) {
                        act(&page, index);
                    }
                }
            }
        }
    }

    /// Returns the heirs of this heir that have begun to copy, and not copied the pages yet that a key may be in.
    pub(super) fn missing(&self, hash: u64) -> Vec<Arc<dyn PastDebts>> {
        let heirs = self.heirs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        heirs.iter().filter_map(Weak::upgrade).filter(|heir| !heir.has_copied(hash)).collect()
    }

    /// Calls `act` with the set in the page, the tag and the debt of all that is left in a page, for an heir of this
    /// heir.
    pub(super) fn each_left(&self, geometry: Geometry, page: usize, mut act: impl FnMut(usize, Tag, T)) {
        let Some(copy) = self.copies.iter().find(|copy| copy.geometry == geometry) else { return };
        let page = self.page(copy, page);
        for set in 0..SETS_PER_PAGE {
            let left = page.set(set).filter_map(|index| page.debts.get(index));
            left.for_each(|(tag, debt)| act(set, tag, debt));
        }
    }

    /// Returns a page, copied if it was not yet.
    fn page(&self, copy: &TableCopy<D>, index: usize) -> Arc<PageCopy<D>> {
        let page = &copy.pages[index];
        loop {
            if let Some(copied) = page.get() {
                return copied;
            }
            // The source is taken away after the last page was published. So if it is gone, this page has been
            // published since it was looked for: look again.
            let Some(source) = self.source.get() else { continue };
            // Another thread may have published its copy meanwhile. Then that one counts, since a debt may have been
            // cleared in it already; this thread's copy is dropped.
            let (own, forgotten) = self.copy_page(&**source, copy.geometry, index);
            let published = page.publish(Arc::clone(&own));
            if Arc::ptr_eq(&published, &own) {
                self.occupancy.note_forgotten(forgotten);
            }
            return published;
        }
    }

    /// Copies a page, and returns how many keys are forgotten: those that owe least, of more than its table has slots.
    ///
    /// There may be twice as many: those in the predecessor's table, and those that it has inherited itself, which no request
    /// has moved there. Were all of them kept, each change between two floods of other keys would add a table.
    #[cold]
    fn copy_page(&self, source: &dyn DebtSource<T>, geometry: Geometry, index: usize) -> (Arc<PageCopy<D>>, u64) {
        let this: Weak<dyn PastDebts> = Weak::<Self>::clone(&self.this);
        source.announce(&this);
        let mut debtors = Vec::new();
        source.copy(geometry, index, &mut |debtor| debtors.push(debtor));
        if debtors.is_empty() {
            return (Arc::clone(&self.empty), 0);
        }
        let (room, found) = (SLOTS_PER_SET * geometry.sets_of(index), debtors.len());
        if found > room {
            let size = |debtor: &Debtor<T>| Reverse(source.size(debtor.tag, &debtor.debt));
            debtors.sort_by_cached_key(size);
            debtors.truncate(room);
        }
        let latest = debtors.iter().map(|debtor| debtor.ends).max().unwrap_or(0);
        self.latest.fetch_max(latest, Ordering::Relaxed);
        (Arc::new(PageCopy::new(debtors.into_iter())), (found - found.min(room)) as u64)
    }

    /// Drops some pages, once all that was inherited is paid.
    #[cold]
    fn drop_some(&self) {
        let pages = || self.copies.iter().flat_map(|copy| &copy.pages);
        // Two threads may drop the same pages: the second replaces empty ones by empty ones.
        let begin = self.dropped.load(Ordering::Relaxed);
        let mut count = 0;
        for page in pages().skip(begin).take(DROPPED_AT_ONCE) {
            page.replace(Arc::clone(&self.empty));
            count += 1;
        }
        if count > 0 {
            self.dropped.fetch_max(begin + count, Ordering::Relaxed);
        }
    }
}

impl<T: Copy + 'static, D: PageDebts<Debt = T>> PastDebts for DebtCopies<T, D> {
    fn geometries(&self) -> Vec<Geometry> {
        self.copies.iter().map(|copy| copy.geometry).collect()
    }

    fn announce(&self, heir: &Weak<dyn PastDebts>) {
        let mut heirs = self.heirs.lock().unwrap_or_else(PoisonError::into_inner);
        if !heirs.iter().any(|known| known.ptr_eq(heir)) {
            heirs.retain(|known| known.strong_count() > 0);
            heirs.push(Weak::clone(heir));
        }
    }

    fn copy_all(&self) {
        for copy in &self.copies {
            for index in 0..copy.pages.len() {
                drop(self.page(copy, index));
            }
        }
        // After the last page: were it stored earlier, debts of pages that are not copied yet would count as paid.
        self.ends.store(self.latest.load(Ordering::Relaxed), Ordering::Relaxed);
        let Some(mut source) = self.source.take() else { return };
        // Freeing a large table takes milliseconds. A request that is still copying a page, which another thread has
        // published meanwhile, holds the source too: it must not be the last one to drop it.
        while Arc::get_mut(&mut source).is_none() {
            yield_now();
        }
    }

    fn has_copied(&self, hash: u64) -> bool {
        let is_copied = |copy: &TableCopy<D>| {
            let sets = copy.geometry.candidate_sets(hash);
            sets.into_iter().all(|set| copy.pages[set / SETS_PER_PAGE].get().is_some())
        };
        self.copies.iter().all(is_copied)
    }

    fn copy_pages_of(&self, hash: u64) {
        self.visit(hash, |_, _| {});
    }
}

impl<D: PageDebts> PageCopy<D> {
    fn new(debtors: impl Iterator<Item = Debtor<D::Debt>>) -> Self {
        let mut debtors: Vec<_> = debtors.collect();
        debtors.sort_by_key(|debtor| debtor.set);
        let mut ends = [0; SETS_PER_PAGE];
        for (set, end) in ends.iter_mut().enumerate() {
            let debts = debtors.partition_point(|debtor| debtor.set <= set);
            *end = u16::try_from(debts).expect("no more than the slots of a page");
        }
        Self { ends, debts: D::new(debtors.into_iter().map(|debtor| (debtor.tag, debtor.debt))) }
    }

    /// Returns the indices of a set's debts.
    fn set(&self, set: usize) -> Range<usize> {
        let begin = if set == 0 { 0 } else { self.ends[set - 1] };
        begin.into()..self.ends[set].into()
    }
}

/// A shared value, or none: the first thread that publishes one wins.
///
/// No thread waits for another one, wherever that was descheduled. (In models, a lock takes the place of this: it is
/// held for one step.)
struct Published<T>(#[cfg(not(sluice_loom))] ArcSwapOption<T>, #[cfg(sluice_loom)] Mutex<Option<Arc<T>>>);

#[cfg(not(sluice_loom))]
impl<T> Published<T> {
    fn nothing() -> Self {
        Self(ArcSwapOption::empty())
    }

    fn new(value: Arc<T>) -> Self {
        Self(ArcSwapOption::new(Some(value)))
    }

    fn get(&self) -> Option<Arc<T>> {
        self.0.load_full()
    }

    /// Publishes a value if there is none; returns the published one, which may be another thread's.
    fn publish(&self, value: Arc<T>) -> Arc<T> {
        let before = self.0.compare_and_swap(&None::<Arc<T>>, Some(Arc::clone(&value)));
        before.as_ref().map_or(value, Arc::clone)
    }

    fn replace(&self, value: Arc<T>) {
        self.0.store(Some(value));
    }

    fn take(&self) -> Option<Arc<T>> {
        self.0.swap(None)
    }
}

#[cfg(sluice_loom)]
impl<T> Published<T> {
    fn nothing() -> Self {
        Self(Mutex::new(None))
    }

    fn new(value: Arc<T>) -> Self {
        Self(Mutex::new(Some(value)))
    }

    fn get(&self) -> Option<Arc<T>> {
        self.0.lock().unwrap().clone()
    }

    fn publish(&self, value: Arc<T>) -> Arc<T> {
        Arc::clone(self.0.lock().unwrap().get_or_insert(value))
    }

    fn replace(&self, value: Arc<T>) {
        *self.0.lock().unwrap() = Some(value);
    }

    fn take(&self) -> Option<Arc<T>> {
        self.0.lock().unwrap().take()
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    /// One debt in the first set of each page, paid at this instant.
    struct OneEach {
        paid_at: u64,
    }

    impl DebtSource<u64> for OneEach {
        fn announce(&self, _: &Weak<dyn PastDebts>) {}

        fn copy(&self, _: Geometry, page: usize, put: &mut dyn FnMut(Debtor<u64>)) {
            put(Debtor { set: 0, tag: Tag::from_hash(page as u64), debt: 1, ends: self.paid_at });
        }

        fn size(&self, _: Tag, debt: &u64) -> u64 {
            *debt
        }
    }

    fn copies(geometries: &[Geometry], source: impl DebtSource<u64> + 'static) -> Arc<DebtCopies<u64, CopiedStamps>> {
        DebtCopies::new(geometries, &Arc::new(Occupancy::new()), Box::new(source))
    }

    #[test]
    fn requests_drop_all_copies_once_they_are_paid_a_few_pages_at_a_time() {
        let pages = 3 * DROPPED_AT_ONCE + 1;
        let geometries = [Geometry::with_sets(pages * SETS_PER_PAGE), Geometry::with_sets(1)];
        let debts = copies(&geometries, OneEach { paid_at: 100 });
        debts.copy_all();
        let left = || {
            let copied = debts.copies.iter().flat_map(|copy| &copy.pages).map(|page| page.get().unwrap());
            copied.filter(|page| !Arc::ptr_eq(page, &debts.empty)).count()
        };
        assert!(debts.get(7, 99, |debt| *debt).is_none(), "no page has a debt of this key");
        assert_eq!(left(), pages + 1, "not all is paid");
        for left_after in [2 * DROPPED_AT_ONCE + 2, DROPPED_AT_ONCE + 2, 2, 0, 0] {
            assert!(debts.get(7, 100, |debt| *debt).is_none());
            assert_eq!(left(), left_after);
        }
        assert_eq!(debts.dropped.load(Ordering::Relaxed), pages + 1);
    }

    /// A page of a table of eight sets owes as many debts as that has slots, twice: of one to 128.
    struct Twice;

    impl DebtSource<u64> for Twice {
        fn announce(&self, _: &Weak<dyn PastDebts>) {}

        fn copy(&self, _: Geometry, _: usize, put: &mut dyn FnMut(Debtor<u64>)) {
            for debt in 1..=128 {
                put(Debtor { set: usize::try_from(debt % 8).unwrap(), tag: Tag::from_hash(debt), debt, ends: debt });
            }
        }

        fn size(&self, _: Tag, debt: &u64) -> u64 {
            *debt
        }
    }

    #[test]
    fn a_page_keeps_as_many_debts_as_it_has_slots_and_counts_those_that_it_forgets() {
        let geometry = Geometry::with_sets(8);
        let debts = copies(&[geometry], Twice);
        for _ in 0..2 {
            let mut left = Vec::new();
            debts.each_left(geometry, 0, |set, tag, debt| left.push((debt, tag.value(), set)));
            left.sort_unstable();
            let greatest: Vec<_> = (65..=128).map(|debt| (debt, debt, usize::try_from(debt % 8).unwrap())).collect();
            assert_eq!(left, greatest);
            assert_eq!(debts.occupancy.evicted(), 64, "counted once");
        }
    }

    /// Two layers may change at once: a debt is cleared only after both heirs have copied it.
    #[test]
    fn every_heir_that_has_begun_to_copy_is_missing_until_it_is_dropped() {
        let debts = copies(&[Geometry::with_sets(1)], OneEach { paid_at: 100 });
        // They have copied no page.
        let heir = || copies(&[Geometry::with_sets(1)], OneEach { paid_at: 100 }) as Arc<dyn PastDebts>;
        let announce =
            |heirs: &[Arc<dyn PastDebts>]| heirs.iter().for_each(|heir| debts.announce(&Arc::downgrade(heir)));
        let mut heirs = vec![heir(), heir(), heir()];
        announce(&heirs);
        announce(&heirs);
        assert_eq!(debts.missing(7).len(), 3);
        heirs.truncate(1);
        heirs.push(heir());
        announce(&heirs);
        assert_eq!(debts.missing(7).len(), 2);
        assert_eq!(debts.heirs.lock().unwrap().len(), 2, "those that are dropped take no room");
    }

    /// A copy of a table that is full takes no more than the table.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn a_copied_state_takes_no_more_than_a_slot() {
        use crate::algorithm::{FixedWindowState, GcraState, SlidingWindowState};
        use crate::store::memory::quota_state::QuotaState;

        fn of<S: Copy + Send + 'static>(bytes_of_a_key: usize) {
            assert!(size_of::<CopiedState<S>>() <= bytes_of_a_key / 2);
        }
        // See `keys_take_as_many_bytes_as_documented`: two slots for each key.
        of::<FixedWindowState>(50);
        of::<SlidingWindowState>(66);
        of::<GcraState>(50);
        of::<QuotaState<GcraState>>(98);
        of::<QuotaState<FixedWindowState>>(98);
        of::<QuotaState<SlidingWindowState>>(114);
    }
}
