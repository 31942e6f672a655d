//! Copies of the debts that keys have from before a live change.
//!
//! An heir has its own table. Its keys' debts in its predecessor's table, at the instant of the change, are copied page
//! by page and converted into the heir's units once: by the first request that needs a page, or otherwise by the thread
//! that calls `replace`, right after the change is in force. So no request copies more than two pages per geometry. The
//! predecessor's table is only read, and the thread that calls `replace` drops it as soon as all pages are copied.
//!
//! No thread waits for a page that another one copies, because that thread may be descheduled for milliseconds. Then
//! both copy it, and the copy that is published first counts ([`Published`]).
//!
//! A **table copy** holds the debts copied from tables with one [`Geometry`], by which its keys are found. The tables
//! may hold words, or states behind locks. A predecessor that has inherited itself hands on the debts that remain in
//! its own copies: the copy with its own geometry is merged with its table, and the other copies stay apart. A copy's
//! page has at most one debt for each slot in the table's page. If there are more debts, the keys that owe least are
//! forgotten, and counted as evicted. So a chain of changes takes at most one change's memory per geometry.
//!
//! A debt that is inserted into the heir's table is cleared in the copy. So it is not inherited twice, and does not
//! come back after a refund, a reset or an eviction. A limiter's heirs have a copy each.
//!
//! # While an heir of an heir copies
//!
//! A debt moves from a copy into the table while that table's heir copies both, page by page, in any order. It must be
//! found at least once. So it is cleared only after it was inserted, and after each heir that has begun to copy
//! ([`PastDebts`]) has copied the pages that the key may be in. An heir that begins later finds it in the table.
//!
//! It may be found twice: in the copy, because it was not cleared yet, and in the table, where it may have grown since.
//! Then the greatest debt counts ([`DebtCopies::get`]). The order of the copies does not show which debt is the
//! greatest: the copies may have different geometries, and each heir has its own order. A refund that is made between
//! the insert and the clear may be lost.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, Weak};

#[cfg(not(sluice_loom))]
use arc_swap::ArcSwapOption;

use super::occupancy::Occupancy;
use super::table::{Geometry, PAYLOAD_BITS, SETS_PER_PAGE, SLOTS_PER_SET, Tag};
use crate::util::order::order_of;
use crate::util::sync::{AtomicU64, Mutex, Ordering, before_a_step, yield_now};

/// The most table copies that an heir has. With this many, a live change to yet another capacity keeps the
/// predecessor's capacity, until all inherited debts are paid.
pub(super) const MOST_COPIES: usize = 4;

/// The debts of a page's keys, until they are cleared. One thread at a time writes a key's debt, under the key's lock
/// in the heir's table, while an heir of that heir may read.
pub(super) trait PageDebts: Send + Sync + 'static {
    type Debt: Copy;

    fn new(debts: impl Iterator<Item = (Tag, Self::Debt)>) -> Self;

    /// Returns a debt and its key's tag, unless the debt was cleared.
    fn get(&self, index: usize) -> Option<(Tag, Self::Debt)>;

    /// Replaces a debt.
    fn set(&self, index: usize, debt: Option<Self::Debt>);
}

/// Tags and debts, packed into eight bytes each as in a word table. A debt is its stamp minus a debt-free key's stamp
/// at the instant of the change.
pub(super) struct CopiedStamps(Box<[AtomicU64]>);

const DEBT_MASK: u64 = (1 << PAYLOAD_BITS) - 1;

impl CopiedStamps {
    fn packed(tag: u64, debt: u64) -> u64 {
        tag << PAYLOAD_BITS | debt.min(DEBT_MASK)
    }

    /// Acquire, with the release in `set`, so that a thread that reads the debt as cleared finds the key in the table.
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
        // Release, because the key was inserted before, and a thread that reads this must find it. A store is enough in
        // place of a compare-and-swap, because the key's lock excludes other writers.
        self.0[index].store(packed, Ordering::Release);
    }
}

/// Tags, and an algorithm's states. A key takes at most as many bytes as a slot in the locked table. The lock is held
/// only while one state is copied.
pub(super) struct CopiedStates<S>(Mutex<Box<[CopiedState<S>]>>);

/// Empty once it is cleared. That takes no extra bytes, because a tag is never zero.
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
    /// Adds the heir to the heirs that read the predecessor's own copies, if it has any. Called before each page.
    fn announce(&self, heir: &Weak<dyn PastDebts>);

    /// Passes each key of a page that owes something to `put`.
    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<T>));

    /// Returns how much would be forgiven if a debt were forgotten. Compared among the keys that are in one page of one
    /// table.
    fn size(&self, tag: Tag, debt: &T) -> u64;
}

/// A key in a page that owes something.
#[derive(Clone, Copy)]
pub(super) struct Debtor<T> {
    /// Its set in the page.
    pub(super) set: usize,
    pub(super) tag: Tag,
    pub(super) debt: T,
    /// When its debt is paid, by the heir's clock.
    pub(super) ends: u64,
}

/// The debts of an heir's keys in its predecessor's tables, in any form.
pub(super) trait PastDebts: Send + Sync {
    /// Returns the geometries of the copies.
    fn geometries(&self) -> Vec<Geometry>;

    /// Adds an heir that inherits from this one. Call this before the new heir copies a page. Then a thread that does
    /// not find it in [`missing`](DebtCopies::missing) has inserted its key before, and the new heir finds the key in
    /// the table.
    fn announce(&self, heir: &Weak<dyn PastDebts>);

    /// Copies the pages that no request has needed yet, and drops the predecessor.
    fn copy_all(&self);

    /// Returns whether all pages that a key may be in are copied.
    fn has_copied(&self, hash: u64) -> bool;

    /// Copies the pages that a key may be in, unless they are copied already.
    fn copy_pages_of(&self, hash: u64);
}

/// An heir's own view of the copies: it knows the form of its debts (`T`). A trait, so that a program without live
/// changes does not link the copies.
pub(super) trait CopiedDebts<T>: PastDebts {
    /// Returns whether all inherited debts are paid at `now`.
    fn has_ended(&self, now: u64) -> bool;

    /// Returns a key's debt at the instant of the change, unless it was cleared. `size` compares debts.
    fn get(&self, hash: u64, now: u64, size: &dyn Fn(&T) -> u64) -> Option<T>;

    /// Replaces a key's debt at the instant of the change. The key must have one.
    fn set(&self, hash: u64, debt: Option<T>);

    /// Returns this heir's own heirs that have begun to copy, but have not copied all pages that a key may be in.
    fn missing(&self, hash: u64) -> Vec<Arc<dyn PastDebts>>;

    /// Calls `act` with the set in the page, the tag and the debt for each key that is left in a page, on behalf of an
    /// heir of this heir.
    fn each_left(&self, geometry: Geometry, page: usize, act: &mut dyn FnMut(usize, Tag, T));

    /// Returns the copies, as this heir's own heirs see them.
    fn as_past(self: Arc<Self>) -> Arc<dyn PastDebts>;
}

/// Copies of an heir's debts in its predecessor's tables.
pub(super) struct DebtCopies<T, D> {
    this: Weak<Self>,
    copies: Box<[TableCopy<D>]>,
    /// Empty once all is copied.
    source: Published<Box<dyn DebtSource<T>>>,
    /// When the last debt copied so far is paid.
    latest: AtomicU64,
    /// When the last debt is paid; `u64::MAX` until all pages are copied.
    ends: AtomicU64,
    /// Shared by all pages without debts, and by pages that were dropped once all debts were paid.
    empty: Arc<PageCopy<D>>,
    /// How many pages were dropped, counted through all copies.
    dropped: AtomicUsize,
    /// This heir's own heirs that have begun to copy. Locked only while the list is copied or extended.
    heirs: Mutex<Vec<Weak<dyn PastDebts>>>,
    /// The occupancy of the heir's table, which counts the keys that are forgotten.
    occupancy: Arc<Occupancy>,
}

struct TableCopy<D> {
    geometry: Geometry,
    /// Pages without a published value are not copied yet.
    pages: Box<[Published<PageCopy<D>>]>,
}

impl<D> TableCopy<D> {
    fn new(geometry: Geometry) -> Self {
        Self { geometry, pages: (0..geometry.pages()).map(|_| Published::nothing()).collect() }
    }

    fn has_copied(&self, hash: u64) -> bool {
        let sets = self.geometry.candidate_sets(hash);
        sets.into_iter().all(|set| self.pages[set / SETS_PER_PAGE].get().is_some())
    }
}

/// The debts of a page, set by set.
struct PageCopy<D> {
    /// Where the debts of a set end.
    ends: [u16; SETS_PER_PAGE],
    debts: D,
}

/// The number of pages that a request drops if it finds all inherited debts paid. A large table has thousands, so no
/// request must free them all.
const DROPPED_AT_ONCE: usize = 8;

impl<T: Copy + 'static, D: PageDebts<Debt = T>> DebtCopies<T, D> {
    /// Prepares an empty copy for each of these geometries.
    ///
    /// # Panics
    ///
    /// If there are more than [`MOST_COPIES`] geometries, or if the memory cannot be allocated.
    pub(super) fn new(
        geometries: &[Geometry],
        occupancy: &Arc<Occupancy>,
        source: Box<dyn DebtSource<T>>,
    ) -> Arc<Self> {
        assert!(geometries.len() <= MOST_COPIES, "each limiter leaves room for the copies of its heir");
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            copies: geometries.iter().map(|geometry| TableCopy::new(*geometry)).collect(),
            source: Published::new(Arc::new(source)),
            latest: AtomicU64::new(0),
            ends: AtomicU64::new(u64::MAX),
            empty: Arc::new(PageCopy::new(&[])),
            dropped: AtomicUsize::new(0),
            heirs: Mutex::default(),
            occupancy: Arc::clone(occupancy),
        })
    }

    /// Calls `act` with the pages in which a key is, and its index there.
    fn visit(&self, hash: u64, act: &mut dyn FnMut(&PageCopy<D>, usize)) {
        for copy in &self.copies {
            let tag = Tag::from_hash(hash);
            for set in copy.geometry.candidate_sets(hash) {
                let page = self.page(copy, set / SETS_PER_PAGE);
                for index in page.set(set % SETS_PER_PAGE) {
                    if page.debts.get(index).is_some_and(|(found, _)| found == tag) {
                        act(&page, index);
                    }
                }
            }
        }
    }

    /// Returns a page, and copies it if that was not done yet.
    fn page(&self, copy: &TableCopy<D>, index: usize) -> Arc<PageCopy<D>> {
        let page = &copy.pages[index];
        loop {
            if let Some(copied) = page.get() {
                return copied;
            }
            // The source is taken away after the last page was published, so if it is gone, this page has been
            // published in the meantime. Read it again.
            let Some(source) = self.source.get() else { continue };
            // Another thread may have published its copy meanwhile. Then its copy counts, since a debt may have been
            // cleared in it already; this thread's copy is dropped.
            let (own, forgotten) = self.copy_page(&**source, copy.geometry, index);
            let published = page.publish(Arc::clone(&own));
            if Arc::ptr_eq(&published, &own) {
                self.occupancy.note_forgotten(forgotten);
            }
            return published;
        }
    }

    /// Copies a page, and returns how many keys are forgotten. If the keys outnumber the table's slots, the keys that
    /// owe least are forgotten.
    ///
    /// There may be two keys for each slot: the key in the predecessor's table, and a key that the predecessor has
    /// inherited itself and that no request has moved there. If all were kept, each change between two floods with
    /// other keys would add a table.
    #[cold]
    fn copy_page(&self, source: &dyn DebtSource<T>, geometry: Geometry, index: usize) -> (Arc<PageCopy<D>>, u64) {
        let this: Weak<dyn PastDebts> = Weak::<Self>::clone(&self.this);
        source.announce(&this);
        let mut debtors = Vec::new();
        source.copy(geometry, index, &mut |debtor| debtors.push(debtor));
        if debtors.is_empty() {
            return (Arc::clone(&self.empty), 0);
        }
        let room = SLOTS_PER_SET * geometry.sets_of(index);
        let forgotten = debtors.len().saturating_sub(room);
        if debtors.len() > room {
            // The greatest first.
            let keys = debtors.iter().map(|debtor| [0, 0, !source.size(debtor.tag, &debtor.debt)]);
            debtors = order_of(keys).into_iter().take(room).map(|index| debtors[index]).collect();
        }
        let latest = debtors.iter().map(|debtor| debtor.ends).max().unwrap_or(0);
        self.latest.fetch_max(latest, Ordering::Relaxed);
        (Arc::new(PageCopy::new(&debtors)), forgotten as u64)
    }

    /// Drops some pages, once all inherited debts are paid.
    #[cold]
    fn drop_some(&self) {
        // Two threads may drop the same pages: the second replaces empty pages by empty pages.
        let begin = self.dropped.load(Ordering::Relaxed);
        let mut count = 0;
        let pages = self.copies.iter().flat_map(|copy| &copy.pages);
        for page in pages.skip(begin).take(DROPPED_AT_ONCE) {
            page.replace(Arc::clone(&self.empty));
            count += 1;
        }
        if count > 0 {
            self.dropped.fetch_max(begin + count, Ordering::Relaxed);
        }
    }
}

impl<T: Copy + 'static, D: PageDebts<Debt = T>> CopiedDebts<T> for DebtCopies<T, D> {
    fn has_ended(&self, now: u64) -> bool {
        // Relaxed: a thread that reads an old value only searches the copies once more.
        now >= self.ends.load(Ordering::Relaxed)
    }

    fn get(&self, hash: u64, now: u64, size: &dyn Fn(&T) -> u64) -> Option<T> {
        if self.has_ended(now) {
            self.drop_some();
            return None;
        }
        let mut found = None;
        // A key may have two debts here if it was inserted into the predecessor's table during the copy. The last one
        // found is not always the greatest: the table may be copied to pages that are visited before the pages with the
        // old debt.
        self.visit(hash, &mut |page, index| {
            if let Some((_, inherited)) = page.debts.get(index) {
                let is_greatest = found.as_ref().is_none_or(|found| size(found) <= size(&inherited));
                found = if is_greatest { Some(inherited) } else { found };
            }
        });
        found
    }

    fn set(&self, hash: u64, debt: Option<T>) {
        let mut left = debt;
        self.visit(hash, &mut |page, index| page.debts.set(index, left.take()));
    }

    fn missing(&self, hash: u64) -> Vec<Arc<dyn PastDebts>> {
        let heirs = self.heirs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        heirs.iter().filter_map(Weak::upgrade).filter(|heir| !heir.has_copied(hash)).collect()
    }

    fn each_left(&self, geometry: Geometry, page: usize, act: &mut dyn FnMut(usize, Tag, T)) {
        let Some(copy) = self.copies.iter().find(|copy| copy.geometry == geometry) else { return };
        let page = self.page(copy, page);
        for set in 0..SETS_PER_PAGE {
            let left = page.set(set).filter_map(|index| page.debts.get(index));
            left.for_each(|(tag, debt)| act(set, tag, debt));
        }
    }

    fn as_past(self: Arc<Self>) -> Arc<dyn PastDebts> {
        self
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
        // After the last page: if it were stored earlier, debts of pages that are not copied yet would count as paid.
        self.ends.store(self.latest.load(Ordering::Relaxed), Ordering::Relaxed);
        let Some(mut source) = self.source.take() else { return };
        // Freeing a large table takes milliseconds. A request that is still copying a page, which another thread has
        // published meanwhile, holds the source too. So we wait here until that request cannot be the last to drop it.
        while Arc::get_mut(&mut source).is_none() {
            yield_now();
        }
    }

    fn has_copied(&self, hash: u64) -> bool {
        self.copies.iter().all(|copy| copy.has_copied(hash))
    }

    fn copy_pages_of(&self, hash: u64) {
        self.visit(hash, &mut |_, _| {});
    }
}

impl<D: PageDebts> PageCopy<D> {
    fn new(debtors: &[Debtor<D::Debt>]) -> Self {
        let (order, ends) = by_set(&mut debtors.iter().map(|debtor| debtor.set));
        let in_order = order.into_iter().map(|index| &debtors[index]);
        Self { ends, debts: D::new(in_order.map(|debtor| (debtor.tag, debtor.debt))) }
    }

    /// Returns the indices of a set's debts.
    fn set(&self, set: usize) -> Range<usize> {
        let begin = if set == 0 { 0 } else { self.ends[set - 1] };
        begin.into()..self.ends[set].into()
    }
}

/// Returns the indices of debtors by their sets, and where each set ends.
fn by_set(sets: &mut dyn Iterator<Item = usize>) -> (Vec<usize>, [u16; SETS_PER_PAGE]) {
    let sets: Vec<usize> = sets.collect();
    let mut next = [0; SETS_PER_PAGE];
    for set in sets.iter().filter(|set| **set + 1 < SETS_PER_PAGE) {
        next[set + 1] += 1;
    }
    (1..SETS_PER_PAGE).for_each(|set| next[set] += next[set - 1]);
    let mut order = vec![0; sets.len()];
    for (index, set) in sets.into_iter().enumerate() {
        order[next[set]] = index;
        next[set] += 1;
    }
    (order, next.map(|end| u16::try_from(end).expect("at most the slots of a page")))
}

/// A shared value that may be absent: the first thread that publishes one wins.
///
/// No thread waits for another one, even if that one is descheduled. (In models, a lock held for one step takes its
/// place.)
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

    /// Publishes a value, unless one is published already. Returns the published value, which may be another thread's.
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

    /// One debt in each page's first set, paid at the instant `paid_at`.
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
    fn paid_copies_are_dropped_in_steps() {
        let pages = 3 * DROPPED_AT_ONCE + 1;
        let geometries = [Geometry::with_sets(pages * SETS_PER_PAGE), Geometry::with_sets(1)];
        let debts = copies(&geometries, OneEach { paid_at: 100 });
        debts.copy_all();
        let left = || {
            let copied = debts.copies.iter().flat_map(|copy| &copy.pages).map(|page| page.get().unwrap());
            copied.filter(|page| !Arc::ptr_eq(page, &debts.empty)).count()
        };
        assert!(debts.get(7, 99, &|debt| *debt).is_none(), "no page has a debt of this key");
        assert_eq!(left(), pages + 1, "not all debts are paid");
        for left_after in [2 * DROPPED_AT_ONCE + 2, DROPPED_AT_ONCE + 2, 2, 0, 0] {
            assert!(debts.get(7, 100, &|debt| *debt).is_none());
            assert_eq!(left(), left_after);
        }
        assert_eq!(debts.dropped.load(Ordering::Relaxed), pages + 1);
    }

    /// A page in a table with eight sets, with two debts for each of its 64 slots: debts of 1 to 128.
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
    fn a_page_keeps_one_debt_per_slot() {
        let geometry = Geometry::with_sets(8);
        let debts = copies(&[geometry], Twice);
        for _ in 0..2 {
            let mut left = Vec::new();
            debts.each_left(geometry, 0, &mut |set, tag, debt| left.push((debt, tag.value(), set)));
            left.sort_unstable();
            let greatest: Vec<_> = (65..=128).map(|debt| (debt, debt, usize::try_from(debt % 8).unwrap())).collect();
            assert_eq!(left, greatest);
            assert_eq!(debts.occupancy.evicted(), 64, "counted once");
        }
    }

    /// Two layers may change at once, so a debt is cleared only after both heirs have copied it.
    #[test]
    fn heirs_that_copy_are_missing_until_dropped() {
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
        assert_eq!(debts.heirs.lock().unwrap().len(), 2, "dropped heirs take no room");
    }

    /// A full table's copy takes at most the table's memory.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn a_copied_state_fits_into_a_slot() {
        use crate::algorithm::{FixedWindowState, GcraState, SlidingWindowState};
        use crate::store::memory::quota_state::QuotaState;

        fn assert_fits<S: Copy + Send + 'static>(bytes_of_a_key: usize) {
            assert!(size_of::<CopiedState<S>>() <= bytes_of_a_key / 2);
        }
        // See `bytes_per_key_are_as_documented`: two slots for each key.
        assert_fits::<FixedWindowState>(50);
        assert_fits::<SlidingWindowState>(66);
        assert_fits::<GcraState>(50);
        assert_fits::<QuotaState<GcraState>>(98);
        assert_fits::<QuotaState<FixedWindowState>>(98);
        assert_fits::<QuotaState<SlidingWindowState>>(114);
    }
}
