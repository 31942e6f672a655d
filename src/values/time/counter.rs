//! A clock on the processor's cycle counter, anchored to the system clock (feature `fast-clock`).
//!
//! Each thread reads the system clock again once ten milliseconds have passed on the counter. So an error in the
//! counter's rate adds up for no longer than that: 100 parts per million, from the calibration or from slewing since,
//! make 1 µs. An anchor's two readings are at most 1 µs apart.

use std::cell::Cell;
use std::sync::OnceLock;

use super::{Timestamp, system_now};

/// How long an anchor is valid: ten milliseconds.
const HELD_FOR_NANOS: u64 = 10_000_000;

/// If an anchor's two readings are further apart, they do not belong together. Two readings usually take less time.
const TORN_NANOS: u64 = 1_000;

/// Nanoseconds per count are scaled by 2^32. That is precise to one part in 10^9 for a counter up to 4 GHz. Counts
/// times scale stays below 2^56, because an anchor is valid for 10^7 nanoseconds.
const SCALE_BITS: u32 = 32;

// One cell per field, since only `latest` is written at every reading.
struct Anchor {
    counter: Cell<u64>,
    system: Cell<u64>,
    /// The number of counts for which the anchor is valid.
    counts: Cell<u64>,
    /// Nanoseconds per 2^32 counts.
    scale: Cell<u64>,
    /// This thread's latest reading. No later one is less, even if the counter ran fast until it was anchored again.
    latest: Cell<u64>,
}

thread_local! {
    static ANCHOR: Anchor = const {
        Anchor {
            counter: Cell::new(0),
            system: Cell::new(0),
            counts: Cell::new(0),
            scale: Cell::new(0),
            latest: Cell::new(0),
        }
    };
}

#[inline(always)]
pub(super) fn now() -> Timestamp {
    ANCHOR.with(|anchor| {
        // A counter that restarts, as after a virtual machine migrates, gives a huge difference and so a new anchor.
        let passed = clock().raw().wrapping_sub(anchor.counter.get());
        let now = if passed < anchor.counts.get() {
            anchor.system.get() + ((passed * anchor.scale.get()) >> SCALE_BITS)
        } else {
            anchor.renew()
        };
        let latest = anchor.latest.get();
        // A branch, which is predicted: `max` would put the previous reading on the critical path.
        if now < latest {
            return held_back(latest);
        }
        anchor.latest.set(now);
        Timestamp(now)
    })
}

#[cold]
const fn held_back(latest: u64) -> Timestamp {
    Timestamp(latest)
}

impl Anchor {
    #[cold]
    #[inline(never)]
    fn renew(&self) -> u64 {
        let clock = clock();
        let counter = clock.raw();
        let system = system_now().as_nanos();
        // If the thread was descheduled between the two readings, they do not belong together, so the anchor is valid
        // for no time.
        let is_torn = clock.delta_as_nanos(counter, clock.raw()) > TORN_NANOS;
        let scale = clock.delta_as_nanos(0, 1 << SCALE_BITS).max(1);
        self.counter.set(counter);
        self.system.set(system);
        self.counts.set(if is_torn { 0 } else { (HELD_FOR_NANOS << SCALE_BITS) / scale });
        self.scale.set(scale);
        system
    }
}

#[inline(always)]
fn clock() -> &'static quanta::Clock {
    static CLOCK: OnceLock<quanta::Clock> = OnceLock::new();
    // The process's first reading calibrates, for 200 ms at most (`quanta`'s bound): when the first bucket in memory is
    // made, and without one at the first decision.
    CLOCK.get_or_init(quanta::Clock::new)
}
