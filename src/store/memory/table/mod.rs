//! The set-associative table: one word per key, decided and charged by one compare-and-swap. A [`Rule`] gives the words
//! their meaning: a bucket, a fixed window or a sliding window.
//!
//! | file | concern |
//! |---|---|
//! | `search` | candidate sets, and the search for a key |
//! | `charge` | judge, swap, validate: the hot path |
//! | `insert` | a key that is not found: its inherited debt, an eviction |
//! | `placement`, `overflow` | the slot that it gets, or shares if the table is full |
//! | `peek`, `refund` | reading debts, and lowering them |
//! | `epoch`, `sweep` | the epochs of a page, and its sweeps |
//! | `slots`, `word` | the memory, and the bits of a word (the striped lock is `util/stripes`) |
//! | `rule`, `codec`, `ticks`, `windows` | the traits, and their implementations |
//! | `invariants` | checks for tests |
//!
//! # Layout
//!
//! A **set** is eight words, one cache line. A key has two **candidate sets**, and is in at most one of them. A new key
//! is inserted into the candidate set with more free slots; a slot whose debt is paid counts as free. 64 sets are a
//! **page** of 4 KiB, with its own epoch in a small array beside the slots.
//!
//! # Invariants
//!
//! 1. *A key is in at most one slot.* A thread inserts a key only while it holds the key's striped lock, after it has
//!    searched both candidate sets under it. Without the lock, two threads that meet a new key could insert it into two
//!    slots, and admit it twice. A thread that finds the key doesn't need the lock.
//! 2. *A write replaces the word that it was decided on.* All writes to a word are compare-and-swaps from the value
//!    that was judged, tag and state together. A thread that loses starts over.
//! 3. *A rejection writes nothing.* Only page sweeps write, and inserts of an inherited debt. Both come before the
//!    decision.
//!
//! # Epochs and sweeps
//!
//! A word has 36 bits of state: the time at which a bucket's debt is paid, or a window's index and counts. Both repeat
//! every sixteen **epochs**. An epoch is 2^32 ticks for a bucket, and 2^n windows for windows (`windows/mod.rs`). A
//! debt is owed for four epochs at most, so it can be distinguished from a debt that was paid up to nine epochs ago. A
//! debt that was paid earlier could look owed again. Therefore the first thread that touches a page in an epoch
//! **sweeps** it: it clears the words that were paid before the epoch began. That is 512 words, about a microsecond,
//! once in an epoch (at ten per second and a burst of 20, in 1.6 seconds). If a page was not touched for five epochs,
//! every word in it is paid, even if it looks owed. A page that no request touches costs nothing, and no thread ever
//! walks the whole table.
//!
//! With staggered windows, a page's keys have times of their own, all later than the clock's. Epochs are counted by the
//! clock, so a debt that was paid when an epoch began is paid by every key's time.
//!
//! A thread may be descheduled anywhere, for longer than an epoch, and go on with an old clock reading. So:
//!
//! - A word is read between two equal readings of its page's epoch (seqlock-style **validation**), and judged no
//!   earlier than at the beginning of the epoch before ([`Rule::clamp`]): some thread has read a later time, so that
//!   time has come.
//! - A sweeper marks the page before it scans it, like a seqlock's writer. A thread that writes a word reads the page's
//!   epoch again after its compare-and-swap. Either the sweeper sees the word, or its writer takes it back if it was
//!   paid by then ([`validate`](charge::validate)).
//! - A key that is not found owes nothing when the table is searched. At an earlier clock reading it may still have
//!   owed something, which was paid and cleared since. So the clock is read again before the key is inserted.
//!
//! # A clock that is set back
//!
//! Keys are judged by the clock's time, but no earlier than the epoch before the latest of their pages; waits are
//! counted from the clock's own time. So a key is admitted at most its burst and the units that it earns while the
//! clock goes forward, and waits are true. The price is availability: one reading far ahead, by a single thread, stops
//! the keys in the pages that it touched (512 slots each; at most two pages per request, and the page with the overflow
//! slots) until the clock catches up. Such keys cannot be distinguished from keys that were charged at that time.
//!
//! A sweep clears the words that were paid when its epoch began. If the clock is then set back to before that instant,
//! the cleared counts do not come back, so a window that had ended begins again with nothing used. Each such loss takes
//! a sweep, so there is at most one for each new epoch that the clock enters.
//!
//! # Inherited debts
//!
//! After a live change a key may have a debt from before it, which is kept beside the table ([`InheritedDebts`]). A key
//! that is not found is looked up there, under its striped lock, and its debt is inserted before anything is decided.
//! So keys that are found, the common case, pay nothing for it.
//!
//! # What remains
//!
//! *A key may be rejected that should pass.* If a thread is descheduled for nine epochs between judging a slot and
//! writing to it, the key that it writes may look indebted to other threads until it takes the word back. If one of
//! them is admitted and charges on top of that in these instants, the false debt stays until it is paid, four epochs at
//! most.
//!
//! *A charge or a refund may be counted at the wrong time.* This takes a coincidence: a multiple of sixteen epochs (17
//! seconds at least) after a word was judged, the slot holds the same word again when the thread compares it. For a
//! bucket, that is one word in 2^36. For a window, its counts must be the same again, which small counts easily are,
//! and its index, one in 16 at worst (the greatest limits that fit) and one in 2^22 for a sliding window with 100 per
//! minute. Then the thread's charge or refund counts in the present window, or the key's counts are cleared.

mod charge;
mod codec;
mod epoch;
mod insert;
#[cfg(feature = "test-util")]
mod invariants;
mod overflow;
mod peek;
mod placement;
mod refund;
mod rule;
mod search;
mod slots;
mod sweep;
#[cfg(all(test, not(sluice_loom)))]
mod tests;
mod ticks;
mod windows;
mod word;

pub(super) use self::codec::Codec;
#[cfg(feature = "test-util")]
pub(super) use self::invariants::{Bounded, Meetings};
pub(super) use self::rule::{Rule, stamp_of_nothing};
pub(super) use self::search::Geometry;
pub(super) use self::slots::{SETS_PER_PAGE, SLOTS_PER_SET};
pub(super) use self::ticks::{TickBucket, Ticks};
pub(super) use self::windows::{FixedRule, SlidingRule, WindowRule, WindowState};
pub(super) use self::word::{GROUPS, PAYLOAD_BITS, Tag};

use std::sync::Arc;

use self::epoch::Page;
use self::slots::Slots;
#[cfg(test)]
pub(super) use self::ticks::{PaidAt, Tick};
use super::occupancy::Occupancy;
use super::when_full::WhenFull;
use crate::util::stripes::Stripes;

/// The debts that a table's keys have from before a live change. The table asks for keys that it does not have, under
/// their striped lock.
pub(super) trait InheritedDebts: Send + Sync {
    /// Returns the [stamp](Rule::stamp) for the key's debt, in the table's own units; zero if it owes nothing.
    /// `present` is the debt-free stamp ([`stamp_of_nothing`]).
    fn stamp_of(&self, hash: u64, present: u64) -> u64;

    /// Replaces that stamp; zero clears it.
    fn set_stamp_of(&self, hash: u64, stamp: u64);

    /// Clears that stamp after the key was inserted with it.
    fn clear_inserted(&self, hash: u64);
}

pub(super) struct SetAssociativeTable {
    slots: Slots,
    pub(super) geometry: Geometry,
    pages: Box<[Page]>,
    stripes: Stripes,
    when_full: WhenFull,
    /// Shared with the copies of its keys' inherited debts.
    pub(super) occupancy: Arc<Occupancy>,
    /// The debts that its keys have from before a live change. Set before the table is used.
    pub(super) inherited: Option<Arc<dyn InheritedDebts>>,
}

impl SetAssociativeTable {
    /// Makes a table with slots for `keys` keys at half load.
    pub(super) fn new(keys: usize, when_full: WhenFull) -> Self {
        let geometry = Geometry::of(keys);
        // One more page holds the slots that new keys share when the table is full.
        let pages = geometry.pages() + usize::from(when_full == WhenFull::Overflow);
        Self {
            slots: Slots::new(pages, keys),
            geometry,
            pages: (0..pages).map(|_| Page::default()).collect(),
            stripes: Stripes::new(geometry.sets()),
            when_full,
            occupancy: Arc::new(Occupancy::new()),
            inherited: None,
        }
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        self.slots.size_in_bytes() + size_of_val(&*self.pages) + self.stripes.size_in_bytes()
    }

    #[inline(always)]
    fn page(&self, set: usize) -> &Page {
        &self.pages[set / SETS_PER_PAGE]
    }
}
