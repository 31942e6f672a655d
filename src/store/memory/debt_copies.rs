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
//! A **table copy** is what was copied from tables of one geometry, by which its keys are found. A predecessor that has
//! inherited itself hands on what is left of its own copies: that of its own geometry is merged with its table, the
//! others stay apart.
//!
//! A debt that is inserted into the heir's table is cleared here. So it is not inherited twice, and does not come back
//! after a refund, a reset or an eviction; and each heir of a limiter has its own copy.
//!
//! # While an heir of an heir copies
//!
//! A debt moves from a copy into the table while an heir of that table copies both, page by page, in any order. It must
//! be found at least once. So it is cleared only after it was inserted, and after each heir that has begun to copy
//! ([`Copying`]) has copied the pages that the key may be in. An heir that begins later finds it in the table.
//!
//! It may be found twice: in the copy, because it was not cleared yet, and in the table, where it may have grown since.
//! Then the greatest debt counts ([`DebtCopies::get`]). The order of the copies does not say which one that is: they may
//! be of different geometries, and each heir has its own order. A refund that is made between the insert and the clear
//! may be lost.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, Weak};

use super::locked;
use super::published::Published;
use super::table::{PAYLOAD_BITS, SETS_PER_PAGE, Tag, candidate_sets};
use crate::util::sync::{AtomicU64, Mutex, Ordering, before_a_step, yield_now};

/// How the keys of a table are spread over its sets. The secret of their hashes is handed on with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Geometry {
    SetAssociative { sets: usize },
    Locked { sets: usize },
}

/// With this many table copies, a live change to yet another capacity keeps the predecessor's, until all that was
/// inherited is paid.
///
/// There may still be up to twice as many: a change between words and states adds a copy without adding a capacity, so
/// each capacity may have one copy of either kind.
pub(super) const MOST_COPIES: usize = 4;

impl Geometry {
    pub(super) const fn pages(self) -> usize {
        match self {
            Self::SetAssociative { sets } | Self::Locked { sets } => sets.div_ceil(SETS_PER_PAGE),
        }
    }

    fn candidate_sets(self, hash: u64) -> [usize; 2] {
        match self {
            Self::SetAssociative { sets } => candidate_sets(sets, hash),
            Self::Locked { sets } => locked::candidate_sets(sets, hash).into(),
        }
    }
}

/// A key and what it owes, until that is cleared. One thread at a time writes, under a lock of the key in the heir's
/// table, while an heir of that heir may read.
pub(super) trait CopiedDebt: Send + Sync + 'static {
    type Debt: Copy;

    fn new(tag: Tag, debt: Self::Debt) -> Self;

    fn tag(&self) -> Tag;

    fn debt(&self) -> Option<Self::Debt>;

    fn set(&self, debt: Option<Self::Debt>);
}

/// A tag, and a debt, in eight bytes like those of a word: the debt's stamp, counted from that of nothing at the
/// instant of the change.
pub(super) struct PackedDebt(AtomicU64);

const DEBT_MASK: u64 = (1 << PAYLOAD_BITS) - 1;

impl PackedDebt {
    /// Acquire, with the release in `set`: a thread that reads the debt as cleared finds the key in the table.
    fn load(&self) -> u64 {
        before_a_step();
        self.0.load(Ordering::Acquire)
    }
}

impl CopiedDebt for PackedDebt {
    type Debt = u64;

    fn new(tag: Tag, debt: u64) -> Self {
        Self(AtomicU64::new(tag.value() << PAYLOAD_BITS | debt.min(DEBT_MASK)))
    }

    fn tag(&self) -> Tag {
        Tag::from_hash(self.load() >> PAYLOAD_BITS)
    }

    fn debt(&self) -> Option<u64> {
        Some(self.load() & DEBT_MASK).filter(|debt| *debt > 0)
    }

    fn set(&self, debt: Option<u64>) {
        let packed = self.tag().value() << PAYLOAD_BITS | debt.unwrap_or(0).min(DEBT_MASK);
        before_a_step();
        // Release: the key was inserted before, and a thread that reads this must find it. One store, and no
        // compare-and-swap: the key's lock excludes other writers.
        self.0.store(packed, Ordering::Release);
    }
}

/// A tag, and the state of an algorithm.
pub(super) struct KeptState<S> {
    tag: Tag,
    /// Locked for as long as it takes to copy a state.
    state: Mutex<Option<S>>,
}

impl<S: Copy + Send + 'static> CopiedDebt for KeptState<S> {
    type Debt = S;

    fn new(tag: Tag, state: S) -> Self {
        Self { tag, state: Mutex::new(Some(state)) }
    }

    fn tag(&self) -> Tag {
        self.tag
    }

    fn debt(&self) -> Option<S> {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: Option<S>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// An heir that copies from its predecessor.
pub(super) trait Copying: Send + Sync {
    /// Returns whether the pages are copied that a key may be in.
    fn has_copied(&self, hash: u64) -> bool;

    /// Copies the pages that a key may be in, unless they are copied.
    fn copy_pages_of(&self, hash: u64);
}

/// Copies debts from a predecessor.
pub(super) trait Source<E>: Send + Sync {
    /// Adds the heir to those [`Copying`] from the copies that the predecessor itself has, if any. Called before each
    /// page.
    fn announce(&self, heir: &Weak<dyn Copying>);

    /// Passes each key of a page that owes something to `put`, with its set in the page, and until when it owes by the
    /// heir's clock.
    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(usize, E, u64));
}

/// Copies of what an heir's keys owed in its predecessor's tables.
pub(super) struct DebtCopies<E> {
    this: Weak<Self>,
    /// The number of the predecessor's table: identifies a second change to the same heir of the same limiter.
    predecessor: u64,
    copies: Box<[TableCopy<E>]>,
    /// Empty once all is copied.
    source: Published<Box<dyn Source<E>>>,
    /// When the last debt is paid, of those copied so far.
    latest: AtomicU64,
    /// The same once all is copied; `u64::MAX` before.
    ends: AtomicU64,
    /// Takes the place of pages that were dropped after that.
    empty: Arc<PageCopy<E>>,
    /// How many pages were dropped, counted through all copies.
    dropped: AtomicUsize,
    /// The heirs of this heir that have begun to copy. Locked for as long as it takes to copy the list.
    heirs: Mutex<Vec<Weak<dyn Copying>>>,
}

struct TableCopy<E> {
    geometry: Geometry,
    /// Pages that are still to be copied have nothing published.
    pages: Box<[Published<PageCopy<E>>]>,
}

/// The debts of a page, set by set.
struct PageCopy<E> {
    /// Where the debts of a set end.
    ends: [u16; SETS_PER_PAGE],
    debts: Box<[E]>,
}

/// Each request that finds all inherited debts paid drops so many pages. A large table has thousands: no request must
/// free them all.
const DROPPED_AT_ONCE: usize = 8;

impl<E: CopiedDebt> DebtCopies<E> {
    /// Prepares copies of tables of these geometries.
    ///
    /// # Panics
    ///
    /// If there are too many geometries, or no memory.
    pub(super) fn new(predecessor: u64, geometries: &[Geometry], source: Box<dyn Source<E>>) -> Arc<Self> {
        assert!(geometries.len() <= 2 * MOST_COPIES, "each limiter leaves room for the copies of its heir");
        let copy = |geometry: &Geometry| TableCopy {
            geometry: *geometry,
            pages: (0..geometry.pages()).map(|_| Published::nothing()).collect(),
        };
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            predecessor,
            copies: geometries.iter().map(copy).collect(),
            source: Published::new(Arc::new(source)),
            latest: AtomicU64::new(0),
            ends: AtomicU64::new(u64::MAX),
            empty: Arc::new(PageCopy { ends: [0; SETS_PER_PAGE], debts: Box::default() }),
            dropped: AtomicUsize::new(0),
            heirs: Mutex::default(),
        })
    }

    pub(super) const fn predecessor(&self) -> u64 {
        self.predecessor
    }

    /// Returns whether all that was inherited is paid at `now`.
    pub(super) fn has_ended(&self, now: u64) -> bool {
        // Relaxed: a thread that reads an old value only looks at the copies once more.
        now >= self.ends.load(Ordering::Relaxed)
    }

    /// Returns what a key owed at the instant of the change, unless that was cleared. `size` compares debts.
    pub(super) fn get(&self, hash: u64, now: u64, size: impl Fn(&E::Debt) -> u64) -> Option<E::Debt> {
        if self.has_ended(now) {
            self.drop_some();
            return None;
        }
        let mut found = None;
        // A key that was inserted into its table while that was copied may be there twice. Not simply the last one: the
        // table may be copied to pages that are visited before those with the old debt.
        self.visit(hash, |inherited| found = found.into_iter().chain(inherited.debt()).max_by_key(&size));
        found
    }

    /// Replaces what a key owed at the instant of the change. For a key that is there.
    pub(super) fn set(&self, hash: u64, debt: Option<E::Debt>) {
        let mut left = debt;
        self.visit(hash, |inherited| {
            if inherited.debt().is_some() {
                inherited.set(left.take());
            }
        });
    }

    fn visit(&self, hash: u64, mut act: impl FnMut(&E)) {
        let tag = Tag::from_hash(hash);
        for copy in &self.copies {
            for set in copy.geometry.candidate_sets(hash) {
                let page = self.page(copy, set / SETS_PER_PAGE);
                page.set(set % SETS_PER_PAGE).iter().filter(|inherited| inherited.tag() == tag).for_each(&mut act);
            }
        }
    }

    /// Adds an heir of this heir. To be called before that copies a page: then a thread that does not find it in
    /// [`missing`](Self::missing) has inserted its key before, and the heir finds the key in the table.
    pub(super) fn announce(&self, heir: &Weak<dyn Copying>) {
        let mut heirs = self.heirs.lock().unwrap_or_else(PoisonError::into_inner);
        if !heirs.iter().any(|known| known.ptr_eq(heir)) {
            heirs.retain(|known| known.strong_count() > 0);
            heirs.push(Weak::clone(heir));
        }
    }

    /// Returns the heirs of this heir that have begun to copy, and not copied the pages yet that a key may be in.
    pub(super) fn missing(&self, hash: u64) -> Vec<Arc<dyn Copying>> {
        let heirs = self.heirs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        heirs.iter().filter_map(Weak::upgrade).filter(|heir| !heir.has_copied(hash)).collect()
    }

    /// Calls `act` with the set in the page, the tag and the debt of all that is left in a page, for an heir of this
    /// heir.
    pub(super) fn each_left(&self, geometry: Geometry, page: usize, mut act: impl FnMut(usize, Tag, E::Debt)) {
        let Some(copy) = self.copies.iter().find(|copy| copy.geometry == geometry) else { return };
        let page = self.page(copy, page);
        for set in 0..SETS_PER_PAGE {
            for inherited in page.set(set) {
                inherited.debt().into_iter().for_each(|debt| act(set, inherited.tag(), debt));
            }
        }
    }

    /// Copies the pages that no request has needed yet, and drops the predecessor.
    pub(super) fn copy_all(&self) {
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

    /// Returns a page, copied if it was not yet.
    fn page(&self, copy: &TableCopy<E>, index: usize) -> Arc<PageCopy<E>> {
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
            return page.publish(self.copy_page(&**source, copy.geometry, index));
        }
    }

    #[cold]
    fn copy_page(&self, source: &dyn Source<E>, geometry: Geometry, index: usize) -> Arc<PageCopy<E>> {
        let this: Weak<dyn Copying> = Weak::<Self>::clone(&self.this);
        source.announce(&this);
        let mut debts = Vec::new();
        source.copy(geometry, index, &mut |set, debt, ends| {
            self.latest.fetch_max(ends, Ordering::Relaxed);
            debts.push((set, debt));
        });
        if debts.is_empty() {
            return Arc::clone(&self.empty);
        }
        debts.sort_by_key(|(set, _)| *set);
        let mut ends = [0; SETS_PER_PAGE];
        for (set, end) in ends.iter_mut().enumerate() {
            // A table's page has 512 slots. Only a chain of more than a hundred changes, each between floods of other
            // keys, can copy more debts than this counts. The rest is forgiven.
            *end = u16::try_from(debts.partition_point(|(other, _)| *other <= set)).unwrap_or(u16::MAX);
        }
        Arc::new(PageCopy { ends, debts: debts.into_iter().map(|(_, debt)| debt).collect() })
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

impl<E: CopiedDebt> Copying for DebtCopies<E> {
    fn has_copied(&self, hash: u64) -> bool {
        let is_copied = |copy: &TableCopy<E>| {
            let sets = copy.geometry.candidate_sets(hash);
            sets.into_iter().all(|set| copy.pages[set / SETS_PER_PAGE].get().is_some())
        };
        self.copies.iter().all(is_copied)
    }

    fn copy_pages_of(&self, hash: u64) {
        self.visit(hash, |_| {});
    }
}

impl<E> PageCopy<E> {
    fn set(&self, set: usize) -> &[E] {
        let begin = if set == 0 { 0 } else { self.ends[set - 1] };
        &self.debts[begin.into()..self.ends[set].into()]
    }
}

/// Returns a table's own geometry, and those of what it inherits.
pub(super) fn geometries<E: CopiedDebt>(own: Geometry, past: Option<&Arc<DebtCopies<E>>>) -> Vec<Geometry> {
    let before = past.into_iter().flat_map(|past| past.copies.iter().map(|copy| copy.geometry));
    std::iter::once(own).chain(before.filter(|geometry| *geometry != own)).collect()
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    /// One debt in the first set of each page, paid at this instant.
    struct OneEach {
        paid_at: u64,
    }

    impl Source<PackedDebt> for OneEach {
        fn announce(&self, _: &Weak<dyn Copying>) {}

        fn copy(&self, _: Geometry, page: usize, put: &mut dyn FnMut(usize, PackedDebt, u64)) {
            put(0, PackedDebt::new(Tag::from_hash(page as u64), 1), self.paid_at);
        }
    }

    #[test]
    fn requests_drop_all_copies_once_they_are_paid_a_few_pages_at_a_time() {
        let pages = 3 * DROPPED_AT_ONCE + 1;
        let geometries = [Geometry::SetAssociative { sets: pages * SETS_PER_PAGE }, Geometry::Locked { sets: 1 }];
        let debts = DebtCopies::new(1, &geometries, Box::new(OneEach { paid_at: 100 }));
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
}
