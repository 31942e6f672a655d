//! What the keys of a limiter owe from before a live change.
//!
//! An heir has a table of its own. What its keys owed in its predecessor's table at the instant of the change is copied page by
//! page, and converted into the heir's units once: by the first request that needs a page, or else by the thread that replaces,
//! right after the change is in force. So no request waits for more than two pages of each layer. The predecessor's table is only read, and let go of
//! as soon as all is copied.
//!
//! A **layer** is what was copied from tables of one geometry, by which its keys are found. A predecessor that inherits itself
//! hands on what is left of its own layers: those of its own geometry are merged into its page, the others stay layers.
//!
//! A debt that is moved into the heir's table is cleared here. So it is neither inherited twice, nor back after a refund, a
//! reset or an eviction; and each heir of a limiter has its own copy.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::compact::homes_among;
use super::slots::LINES_PER_PAGE;
use super::wide;
use super::word::Tag;

/// How the keys of a table are spread over its lines. The secret of their hashes is handed on with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Geometry {
    Compact { lines: usize },
    Wide { lines: usize },
}

/// So many layers are kept. A change of the capacity beyond is not honoured until the past of one has ended.
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

/// A key and what it owes, until that is cleared.
pub(super) trait Entry: Copy + Send {
    type Debt: Copy;

    fn new(tag: Tag, debt: Self::Debt) -> Self;

    fn is(&self, tag: Tag) -> bool;

    fn tag(&self) -> Tag;

    fn debt(&self) -> Option<Self::Debt>;

    fn set(&mut self, debt: Option<Self::Debt>);
}

/// A tag, and a debt in ticks, in eight bytes.
#[derive(Clone, Copy)]
pub(super) struct PackedDebt(u64);

const DEBT_MASK: u64 = (1 << 36) - 1;

impl Entry for PackedDebt {
    type Debt = u64;

    fn new(tag: Tag, debt: u64) -> Self {
        Self(tag.value() << 36 | debt.min(DEBT_MASK))
    }

    fn is(&self, tag: Tag) -> bool {
        self.0 >> 36 == tag.value()
    }

    fn tag(&self) -> Tag {
        Tag::from_hash(self.0 >> 36)
    }

    fn debt(&self) -> Option<u64> {
        Some(self.0 & DEBT_MASK).filter(|debt| *debt > 0)
    }

    fn set(&mut self, debt: Option<u64>) {
        *self = Self::new(self.tag(), debt.unwrap_or(0));
    }
}

/// A tag, and the state of an algorithm.
#[derive(Clone, Copy)]
pub(super) struct KeptState<S> {
    tag: Tag,
    state: Option<S>,
}

impl<S: Copy + Send> Entry for KeptState<S> {
    type Debt = S;

    fn new(tag: Tag, state: S) -> Self {
        Self { tag, state: Some(state) }
    }

    fn is(&self, tag: Tag) -> bool {
        self.tag == tag
    }

    fn tag(&self) -> Tag {
        self.tag
    }

    fn debt(&self) -> Option<S> {
        self.state
    }

    fn set(&mut self, state: Option<S>) {
        self.state = state;
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
    /// `None` once all is copied.
    source: Mutex<Option<Arc<dyn Source<E>>>>,
    is_copied: AtomicBool,
    /// When the last debt is paid, of those copied so far.
    ends: AtomicU64,
    /// Pages that were let go of, after that.
    dropped: AtomicUsize,
}

struct Layer<E> {
    geometry: Geometry,
    pages: Box<[Mutex<Page<E>>]>,
}

enum Page<E> {
    /// Still to be copied.
    Live,
    Empty,
    Copied(Box<Copied<E>>),
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
    pub(super) fn new(predecessor: u64, geometries: &[Geometry], source: Arc<dyn Source<E>>) -> Self {
        assert!(geometries.len() <= MOST_LAYERS, "each limiter sees to it that its heir has room");
        let layer = |geometry: &Geometry| Layer {
            geometry: *geometry,
            pages: (0..geometry.pages()).map(|_| Mutex::new(Page::Live)).collect(),
        };
        Self {
            predecessor,
            layers: geometries.iter().map(layer).collect(),
            source: Mutex::new(Some(source)),
            is_copied: AtomicBool::new(false),
            ends: AtomicU64::new(0),
            dropped: AtomicUsize::new(0),
        }
    }

    pub(super) const fn predecessor(&self) -> u64 {
        self.predecessor
    }

    /// Whether all that was owed is paid at `now`.
    pub(super) fn has_ended(&self, now: u64) -> bool {
        // Acquire: `ends` is final then.
        self.is_copied.load(Ordering::Acquire) && now >= self.ends.load(Ordering::Relaxed)
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

    fn visit(&self, hash: u64, mut act: impl FnMut(&mut E)) {
        let tag = Tag::from_hash(hash);
        for layer in &self.layers {
            for line in layer.geometry.homes(hash) {
                let mut page = self.page(layer, line / LINES_PER_PAGE);
                page.line(line % LINES_PER_PAGE).iter_mut().filter(|entry| entry.is(tag)).for_each(&mut act);
            }
        }
    }

    /// All that is left in a page of a layer, for an heir of this heir.
    pub(super) fn each_left(&self, geometry: Geometry, page: usize, mut act: impl FnMut(usize, &E)) {
        let Some(layer) = self.layers.iter().find(|layer| layer.geometry == geometry) else { return };
        let mut page = self.page(layer, page);
        for line in 0..LINES_PER_PAGE {
            page.line(line).iter().filter(|entry| entry.debt().is_some()).for_each(|entry| act(line, entry));
        }
    }

    /// Copies what nobody has asked for yet, and lets go of the predecessor.
    pub(super) fn copy_all(&self) {
        for layer in &self.layers {
            for index in 0..layer.pages.len() {
                drop(self.page(layer, index));
            }
        }
        self.is_copied.store(true, Ordering::Release);
        let source = lock(&self.source).take();
        drop(source);
    }

    /// A page, copied if it was not yet.
    fn page<'a>(&self, layer: &'a Layer<E>, index: usize) -> MutexGuard<'a, Page<E>> {
        let mut page = lock(&layer.pages[index]);
        if matches!(*page, Page::Live) {
            // Nobody takes the source away before the last page is copied, and that is done under the page's lock.
            let source = lock(&self.source).clone().expect("kept until all is copied");
            *page = self.copy(&*source, layer.geometry, index);
        }
        page
    }

    #[cold]
    fn copy(&self, source: &dyn Source<E>, geometry: Geometry, index: usize) -> Page<E> {
        let mut entries = Vec::new();
        source.copy(geometry, index, &mut |line, entry, ends| {
            self.ends.fetch_max(ends, Ordering::Relaxed);
            entries.push((line, entry));
        });
        if entries.is_empty() {
            return Page::Empty;
        }
        // Stable: what comes from the table stays behind what comes from its past.
        entries.sort_by_key(|(line, _)| *line);
        let mut ends = [0; LINES_PER_PAGE];
        for (line, end) in ends.iter_mut().enumerate() {
            *end = u16::try_from(entries.partition_point(|(other, _)| *other <= line)).unwrap_or(u16::MAX);
        }
        Page::Copied(Box::new(Copied { ends, entries: entries.into_iter().map(|(_, entry)| entry).collect() }))
    }

    /// Lets go of some pages of a past that has ended. Not of all: a request must not wait for that.
    #[cold]
    fn drop_some(&self) {
        let pages = || self.layers.iter().flat_map(|layer| &layer.pages);
        let begin = self.dropped.load(Ordering::Relaxed);
        let mut count = 0;
        for page in pages().skip(begin).take(DROPPED_AT_ONCE) {
            *lock(page) = Page::Empty;
            count += 1;
        }
        if count > 0 {
            self.dropped.fetch_max(begin + count, Ordering::Relaxed);
        }
    }
}

impl<E> Page<E> {
    fn line(&mut self, line: usize) -> &mut [E] {
        match self {
            Self::Copied(copied) => {
                let begin = if line == 0 { 0 } else { copied.ends[line - 1] };
                &mut copied.entries[begin.into()..copied.ends[line].into()]
            }
            Self::Live | Self::Empty => &mut [],
        }
    }
}

/// A table's own geometry, and those of what it inherits.
pub(super) fn geometries<E: Entry>(own: Geometry, past: Option<&Arc<Inherited<E>>>) -> Vec<Geometry> {
    let before = past.into_iter().flat_map(|past| past.layers.iter().map(|layer| layer.geometry));
    std::iter::once(own).chain(before.filter(|geometry| *geometry != own)).collect()
}

/// All that is written under these locks is written at once.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
