//! What the keys of a limiter owe from before a live change.
//!
//! An heir has a table of its own. What its keys owed in its predecessor's table at the instant of the change is copied page by
//! page, and converted into the heir's units once: by the first request that needs a page, or else by the thread that replaces,
//! right after the change is in force. So no request copies more than two pages of each layer. The predecessor's table is only
//! read, and the thread that replaces lets go of it as soon as all is copied.
//!
//! Nobody waits for a page that another thread copies: that thread may be descheduled, for milliseconds. Both copy it then, and
//! the copy that is published first counts ([`Published`]).
//!
//! A **layer** is what was copied from tables of one geometry, by which its keys are found. A predecessor that inherits itself
//! hands on what is left of its own layers: those of its own geometry are merged into its page, the others stay layers.
//!
//! A debt that is moved into the heir's table is cleared here. So it is neither inherited twice, nor back after a refund, a
//! reset or an eviction; and each heir of a limiter has its own copy.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError};

use super::compact::homes_among;
use super::published::Published;
use super::slots::{LINES_PER_PAGE, before_a_step};
use super::wide;
use super::word::Tag;
use crate::util::sync::{AtomicU64, Mutex, Ordering, yield_now};

/// How the keys of a table are spread over its lines. The secret of their hashes is handed on with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Geometry {
    Compact { lines: usize },
    Wide { lines: usize },
}

/// From so many layers on, a change to another capacity is not honoured until the past of one has ended. So there are tables of
/// no more capacities, and of each capacity up to two: one of words and one of states.
pub(super) const MOST_LAYERS: usize = 4;

impl Geometry {
    const fn pages(self) -> usize {
        match self {
            Self::Compact { lines } | Self::Wide { lines } => lines.div_ceil(LINES_PER_PAGE),
        }
    }

    fn homes(self, hash: u64) -> [usize; 2] {
        match self {
            Self::Compact { lines } => homes_among(lines, hash),
            Self::Wide { lines } => wide::homes_among(lines, hash).into(),
        }
    }
}

/// A key and what it owes, until that is cleared: by one thread at a time, which holds a lock of the key in the heir's table,
/// while an heir of that may read.
pub(super) trait Entry: Send + Sync {
    type Debt: Copy;

    fn new(tag: Tag, debt: Self::Debt) -> Self;

    fn tag(&self) -> Tag;

    fn debt(&self) -> Option<Self::Debt>;

    fn set(&self, debt: Option<Self::Debt>);
}

/// A tag, and a debt in ticks, in eight bytes.
pub(super) struct PackedDebt(AtomicU64);

const DEBT_MASK: u64 = (1 << 36) - 1;

impl PackedDebt {
    /// Acquire: a thread that finds the debt cleared finds the key in the table.
    fn load(&self) -> u64 {
        before_a_step();
        self.0.load(Ordering::Acquire)
    }
}

impl Entry for PackedDebt {
    type Debt = u64;

    fn new(tag: Tag, debt: u64) -> Self {
        Self(AtomicU64::new(tag.value() << 36 | debt.min(DEBT_MASK)))
    }

    fn tag(&self) -> Tag {
        Tag::from_hash(self.load() >> 36)
    }

    fn debt(&self) -> Option<u64> {
        Some(self.load() & DEBT_MASK).filter(|debt| *debt > 0)
    }

    fn set(&self, debt: Option<u64>) {
        let packed = self.tag().value() << 36 | debt.unwrap_or(0).min(DEBT_MASK);
        before_a_step();
        // Release: what was put into the table is there for those who read this.
        self.0.store(packed, Ordering::Release);
    }
}

/// A tag, and the state of an algorithm.
pub(super) struct KeptState<S> {
    tag: Tag,
    /// Locked for as long as it takes to copy a state.
    state: Mutex<Option<S>>,
}

impl<S: Copy + Send> Entry for KeptState<S> {
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

/// Where debts are copied from.
pub(super) trait Source<E>: Send + Sync {
    /// Puts each key of a page that owes something, by its line in the page, and until when it does by the heir's clock.
    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(usize, E, u64));
}

pub(super) struct Inherited<E> {
    /// Of the predecessor's table, to tell whether another change is to the same heir of the same limiter.
    predecessor: u64,
    layers: Box<[Layer<E>]>,
    /// Nothing once all is copied.
    source: Published<Box<dyn Source<E>>>,
    /// When the last debt is paid, of those copied so far.
    latest: AtomicU64,
    /// The same once all is copied, and never before.
    ends: AtomicU64,
    /// In place of what was let go of, after that.
    empty: Arc<Copied<E>>,
    dropped: AtomicUsize,
}

struct Layer<E> {
    geometry: Geometry,
    /// Those that are still to be copied have nothing published.
    pages: Box<[Published<Copied<E>>]>,
}

/// The entries of a page, line by line.
struct Copied<E> {
    /// Where those of a line end.
    ends: [u16; LINES_PER_PAGE],
    entries: Box<[E]>,
}

/// So many pages are let go of by each request that meets a past that has ended.
const DROPPED_AT_ONCE: usize = 8;

impl<E: Entry> Inherited<E> {
    /// # Panics
    ///
    /// If there are more geometries than layers may be, or no memory.
    pub(super) fn new(predecessor: u64, geometries: &[Geometry], source: Box<dyn Source<E>>) -> Self {
        assert!(geometries.len() <= 2 * MOST_LAYERS, "each limiter sees to it that its heir has room");
        let layer = |geometry: &Geometry| Layer {
            geometry: *geometry,
            pages: (0..geometry.pages()).map(|_| Published::nothing()).collect(),
        };
        Self {
            predecessor,
            layers: geometries.iter().map(layer).collect(),
            source: Published::new(Arc::new(source)),
            latest: AtomicU64::new(0),
            ends: AtomicU64::new(u64::MAX),
            empty: Arc::new(Copied { ends: [0; LINES_PER_PAGE], entries: Box::default() }),
            dropped: AtomicUsize::new(0),
        }
    }

    pub(super) const fn predecessor(&self) -> u64 {
        self.predecessor
    }

    /// Whether all that was owed is paid at `now`.
    pub(super) fn has_ended(&self, now: u64) -> bool {
        now >= self.ends.load(Ordering::Relaxed)
    }

    /// What a key owed at the instant of the change, as far as that was not cleared.
    pub(super) fn get(&self, hash: u64, now: u64) -> Option<E::Debt> {
        if self.has_ended(now) {
            self.drop_some();
            return None;
        }
        let mut found = None;
        // A key that was moved into its table while that was copied may be there twice; the last one is from the table.
        self.visit(hash, |entry| found = entry.debt().or(found));
        found
    }

    /// Sets what a key owed at the instant of the change. For a key that is there.
    pub(super) fn set(&self, hash: u64, debt: Option<E::Debt>) {
        let mut left = debt;
        self.visit(hash, |entry| {
            if entry.debt().is_some() {
                entry.set(left.take());
            }
        });
    }

    fn visit(&self, hash: u64, mut act: impl FnMut(&E)) {
        let tag = Tag::from_hash(hash);
        for layer in &self.layers {
            for line in layer.geometry.homes(hash) {
                let page = self.page(layer, line / LINES_PER_PAGE);
                page.line(line % LINES_PER_PAGE).iter().filter(|entry| entry.tag() == tag).for_each(&mut act);
            }
        }
    }

    /// All that is left in a page of a layer, for an heir of this heir.
    pub(super) fn each_left(&self, geometry: Geometry, page: usize, mut act: impl FnMut(usize, Tag, E::Debt)) {
        let Some(layer) = self.layers.iter().find(|layer| layer.geometry == geometry) else { return };
        let page = self.page(layer, page);
        for line in 0..LINES_PER_PAGE {
            for entry in page.line(line) {
                entry.debt().into_iter().for_each(|debt| act(line, entry.tag(), debt));
            }
        }
    }

    /// Copies what nobody has asked for yet, and lets go of the predecessor.
    pub(super) fn copy_all(&self) {
        for layer in &self.layers {
            for index in 0..layer.pages.len() {
                drop(self.page(layer, index));
            }
        }
        self.ends.store(self.latest.load(Ordering::Relaxed), Ordering::Relaxed);
        let Some(mut source) = self.source.take() else { return };
        // Freeing a large table takes milliseconds. A request that copies a page which was published meanwhile still has it:
        // it must not be the one that lets go of it last.
        while Arc::get_mut(&mut source).is_none() {
            yield_now();
        }
    }

    /// A page, copied if it was not yet.
    fn page(&self, layer: &Layer<E>, index: usize) -> Arc<Copied<E>> {
        let page = &layer.pages[index];
        loop {
            if let Some(copied) = page.get() {
                return copied;
            }
            // Taken away after the last page was published, so there is one now.
            let Some(source) = self.source.get() else { continue };
            return page.publish(self.copy(&**source, layer.geometry, index));
        }
    }

    #[cold]
    fn copy(&self, source: &dyn Source<E>, geometry: Geometry, index: usize) -> Arc<Copied<E>> {
        let mut entries = Vec::new();
        source.copy(geometry, index, &mut |line, entry, ends| {
            self.latest.fetch_max(ends, Ordering::Relaxed);
            entries.push((line, entry));
        });
        if entries.is_empty() {
            return Arc::clone(&self.empty);
        }
        // Stable: what comes from the table stays behind what comes from its past.
        entries.sort_by_key(|(line, _)| *line);
        let mut ends = [0; LINES_PER_PAGE];
        for (line, end) in ends.iter_mut().enumerate() {
            *end = u16::try_from(entries.partition_point(|(other, _)| *other <= line)).unwrap_or(u16::MAX);
        }
        Arc::new(Copied { ends, entries: entries.into_iter().map(|(_, entry)| entry).collect() })
    }

    /// Lets go of some pages of a past that has ended. Not of all: a request must not wait for that.
    #[cold]
    fn drop_some(&self) {
        let pages = || self.layers.iter().flat_map(|layer| &layer.pages);
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

impl<E> Copied<E> {
    fn line(&self, line: usize) -> &[E] {
        let begin = if line == 0 { 0 } else { self.ends[line - 1] };
        &self.entries[begin.into()..self.ends[line].into()]
    }
}

/// A table's own geometry, and those of what it inherits.
pub(super) fn geometries<E: Entry>(own: Geometry, past: Option<&Arc<Inherited<E>>>) -> Vec<Geometry> {
    let before = past.into_iter().flat_map(|past| past.layers.iter().map(|layer| layer.geometry));
    std::iter::once(own).chain(before.filter(|geometry| *geometry != own)).collect()
}
