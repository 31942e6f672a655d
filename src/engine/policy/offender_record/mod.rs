//! The keys that a policy rejects most: how rejections are noted, and how an operator's look reads them.

mod show;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

pub use self::show::ShowKey;
use crate::util::keyed_hash::Secret;
use crate::util::lock::Lock;
use crate::util::random::identity;
use crate::util::space_saving::{SpaceSaving, Summary};
use crate::values::PartitionKey;
use crate::values::time::{Clock, Monotonic, Timestamp, Wall};

/// A policy's offenders: how their keys are shown, and the record, which the next policy with the name continues.
pub(crate) struct TrackedOffenders {
    pub(crate) show: ShowKey,
    pub(crate) record: Arc<OffenderRecord>,
}

/// The rejections in the present hour, and in the hour before it.
///
/// Old offenders fade by the hour, because a sketch cannot forget gradually, and halved counts would lose their error
/// bound and their meaning. Two generations show rejections from one to two hours, exactly attributed to their hours.
/// Hours begin by the wall clock, in UTC, so that all processes have the same hours and their sketches can be merged.
///
/// # Threads
///
/// A rejection must be cheap when a flood comes on all threads, so no thread ever waits. Each thread has a preferred
/// [sketch](Sketches) among [`STRIPES`], mostly for itself. If its lock is taken, by another thread or by a look, the
/// next sketch does as well, because sketches are merged when they are read. If all are locked, the rejection is only
/// [counted](Self::note_missed), and widens the error.
pub(crate) struct OffenderRecord {
    /// Distinguishes this record from other processes' records.
    id: u64,
    secret: Secret,
    clock: WallClock,
    /// A sketch is made when it is first needed.
    stripes: [Stripe; STRIPES],
    missed: [AtomicU64; 2],
    /// Whether the record is about to be published.
    is_scheduled: AtomicBool,
    /// The last publication's hour.
    published: AtomicU64,
}

/// Each stripe has its own cache lines, so that threads with different stripes do not slow each other down.
#[derive(Default)]
#[repr(align(128))]
struct Stripe(Lock<Option<Box<Sketches>>>);

/// Each stripe has a 14 KiB sketch for each of two hours, once it is used.
const STRIPES: usize = 8;

const NANOS_PER_HOUR: u64 = 3_600_000_000_000;

/// The whole hours since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hour(pub(crate) u64);

impl Hour {
    pub(crate) const fn of(instant: Timestamp) -> Self {
        Self(instant.as_nanos() / NANOS_PER_HOUR)
    }

    pub(crate) const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    pub(crate) const fn start(self) -> Timestamp {
        Timestamp::from_nanos(self.0.saturating_mul(NANOS_PER_HOUR))
    }
}

/// The wall clock, read once per look and per publication. In between, the monotonic clock goes on from there, because
/// with the feature `fast-clock`, reading it takes a third of the time. If the wall clock is set, rejections have times
/// by the old setting until the next look or publication.
struct WallClock {
    /// The offset from the monotonic clock to this one, modulo 2^64.
    offset: AtomicU64,
}

impl WallClock {
    fn new() -> Self {
        let clock = Self { offset: AtomicU64::new(0) };
        clock.now();
        clock
    }

    fn now(&self) -> Timestamp {
        let now = Wall.now();
        self.offset.store(now.as_nanos().wrapping_sub(Monotonic.now().as_nanos()), Ordering::Relaxed);
        now
    }

    #[inline(always)]
    fn estimated(&self) -> Timestamp {
        Timestamp::from_nanos(Monotonic.now().as_nanos().wrapping_add(self.offset.load(Ordering::Relaxed)))
    }
}

/// A sketch for each of two hours.
struct Sketches {
    hour: Hour,
    present: SpaceSaving<PartitionKey>,
    before: Option<Box<SpaceSaving<PartitionKey>>>,
}

impl OffenderRecord {
    pub(crate) fn new() -> Self {
        let secret = Secret::random();
        Self {
            id: identity(),
            secret,
            clock: WallClock::new(),
            stripes: Default::default(),
            missed: Default::default(),
            is_scheduled: AtomicBool::new(false),
            published: AtomicU64::new(0),
        }
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// Counts a key's rejection. Never waits.
    pub(crate) fn note(&self, key: &PartitionKey) {
        self.note_at(key, self.clock.estimated());
    }

    /// The time by the wall clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    #[inline(always)]
    fn note_at(&self, key: &PartitionKey, now: Timestamp) {
        let hash = self.secret.hash(key.as_bytes());
        let preferred = stripe_of_this_thread();
        for number in 0..STRIPES {
            if let Some(mut stripe) = self.stripes[(preferred + number) % STRIPES].0.try_lock() {
                return stripe.get_or_insert_with(|| Box::new(Sketches::new(Hour::of(now)))).note(hash, key, now);
            }
        }
        self.note_missed(Hour::of(now));
    }

    /// Counts a rejection whose key is not noted.
    #[cold]
    fn note_missed(&self, hour: Hour) {
        // Relaxed, because a look does not read anything else that depends on it.
        let more = |missed| {
            Some(Missed::of(missed).in_hour(hour).saturating_add(1)).map(|count| Missed { hour, count }.bits())
        };
        let _ = self.missed[parity(hour)].fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// The rejections noted in `hour`, if it is one of the two hours kept at `now`.
    pub(crate) fn in_hour(&self, hour: Hour, now: Timestamp) -> Summary<PartitionKey> {
        let mut summary = Summary::empty();
        for stripe in &self.stripes {
            // Copy under the lock, and merge without it. Rejections on other threads use other stripes meanwhile.
            let part = stripe.0.lock().as_mut().map(|sketches| sketches.in_hour(hour, now));
            summary = part.into_iter().fold(summary, Summary::merge);
        }
        summary.add_unknown(Missed::of(self.missed[parity(hour)].load(Ordering::Relaxed)).in_hour(hour));
        summary
    }

    /// The rejections in both hours.
    pub(crate) fn in_both_hours(&self, now: Timestamp) -> Summary<PartitionKey> {
        let hour = Hour::of(now);
        self.in_hour(hour, now).merge(self.in_hour(hour.before(), now))
    }

    /// Schedules a publication. `None` if one is scheduled already. The next one can be scheduled once this one is
    /// dropped.
    #[inline]
    pub(crate) fn schedule(self: &Arc<Self>) -> Option<Scheduled> {
        // Try a plain load first, so that threads share the cache line in a flood.
        if self.is_scheduled.load(Ordering::Relaxed) || self.is_scheduled.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(Scheduled(Arc::clone(self)))
    }

    /// The hours to publish at `now`: the present one, and the one before it if it is not known to be complete.
    pub(crate) fn hours_to_publish(&self, now: Timestamp) -> impl Iterator<Item = Hour> {
        let hour = Hour::of(now);
        let has_ended = self.published.swap(hour.0, Ordering::Relaxed) != hour.0;
        has_ended.then(|| hour.before()).into_iter().chain([hour])
    }
}

/// A scheduled publication. It is dropped before the counts are read, so that a later rejection schedules another. If
/// the runtime ends, it is dropped with its task.
pub(crate) struct Scheduled(Arc<OffenderRecord>);

impl Drop for Scheduled {
    fn drop(&mut self) {
        // Relaxed, because the sketch locks order it. A rejection takes a sketch's lock, and then reads the flag. The
        // publication clears the flag, and then takes the lock. So if the publication had the lock first, the rejection
        // finds the flag cleared, and otherwise the publication has its count.
        self.0.is_scheduled.store(false, Ordering::Relaxed);
    }
}

impl Sketches {
    fn new(hour: Hour) -> Self {
        Self { hour, present: SpaceSaving::new(), before: None }
    }

    #[inline(always)]
    fn note(&mut self, hash: u64, key: &PartitionKey, now: Timestamp) {
        let hour = Hour::of(now);
        if hour != self.hour {
            self.turn_to(hour);
        }
        self.present.note(hash, key, now);
    }

    /// Begins an hour, unless it has begun.
    #[cold]
    fn turn_to(&mut self, hour: Hour) {
        // The clock is back by less than two hours, because the thread read it before the hour began, or because it was
        // set back. Such rejections count for the present hour.
        if hour == self.hour || (hour < self.hour && self.hour.0 - hour.0 < 2) {
            return;
        }
        if hour.before() == self.hour {
            let mut before = self.before.take().unwrap_or_else(|| Box::new(SpaceSaving::new()));
            std::mem::swap(&mut *before, &mut self.present);
            self.before = Some(before);
        } else {
            self.before = None;
        }
        self.present.clear();
        self.hour = hour;
    }

    fn in_hour(&mut self, hour: Hour, now: Timestamp) -> Summary<PartitionKey> {
        self.turn_to(Hour::of(now));
        match &self.before {
            _ if hour == self.hour => self.present.summary(),
            Some(before) if hour == self.hour.before() => before.summary(),
            _ => Summary::empty(),
        }
    }
}

/// The number of rejections that were missed in an hour. An atomic has the number in its lower 40 bits, and the hour
/// above.
struct Missed {
    hour: Hour,
    count: u64,
}

impl Missed {
    const COUNT_BITS: u32 = 40;
    const MOST: u64 = (1 << Self::COUNT_BITS) - 1;

    const fn of(bits: u64) -> Self {
        Self { hour: Hour(bits >> Self::COUNT_BITS), count: bits & Self::MOST }
    }

    fn bits(&self) -> u64 {
        self.hour.0 << Self::COUNT_BITS | self.count.min(Self::MOST)
    }

    fn in_hour(&self, hour: Hour) -> u64 {
        if self.hour == hour { self.count } else { 0 }
    }
}

/// Two consecutive hours have different parities.
const fn parity(hour: Hour) -> usize {
    (hour.0 % 2) as usize
}

/// The stripe that this thread tries first. New threads get the stripes in turn.
#[inline]
fn stripe_of_this_thread() -> usize {
    const UNKNOWN: usize = usize::MAX;
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: Cell<usize> = const { Cell::new(UNKNOWN) };
    }
    let known = STRIPE.get();
    if known != UNKNOWN {
        return known;
    }
    let stripe = THREADS.fetch_add(1, Ordering::Relaxed) % STRIPES;
    STRIPE.set(stripe);
    stripe
}
