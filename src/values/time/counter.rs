//! The processor's counter, held to the system's clock: each thread asks the system again once ten
//! milliseconds have passed on the counter. In between, a counter that was calibrated to within 20 parts
//! in a million is off by 0.2 µs, and the two readings that an anchor is made of are less than a
//! microsecond apart.

use std::cell::Cell;
use std::sync::OnceLock;

use super::{Timestamp, system_now};

const HELD_FOR_NANOS: u64 = 10_000_000;

/// Longer than two readings take.
const TORN_NANOS: u64 = 1_000;

/// Nanoseconds are told of counts in units of 1/2^32: enough for a part in 10^9, and ten milliseconds of
/// any counter up to 400 GHz still multiply within 64 bits.
const SCALE_BITS: u32 = 32;

// A cell each: only `latest` is written at every reading.
struct Anchor {
    counter: Cell<u64>,
    system: Cell<u64>,
    /// For so many counts it holds.
    counts: Cell<u64>,
    /// Nanoseconds per 2^32 counts.
    scale: Cell<u64>,
    /// What this thread was last told: it is not told less, also where the counter ran fast.
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
        // A counter that starts anew, as after a migration, is caught by its being far off.
        let passed = clock().raw().wrapping_sub(anchor.counter.get());
        let now = if passed < anchor.counts.get() {
            anchor.system.get() + ((passed * anchor.scale.get()) >> SCALE_BITS)
        } else {
            anchor.renew()
        };
        let latest = anchor.latest.get();
        // A branch, which is foreseen and not waited for; `max` would be.
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
        // If the thread was held up between the two readings, they do not belong together, and hold for no time.
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
    // Calibrates for up to a fifth of a second, the first time: when the first store is made.
    CLOCK.get_or_init(quanta::Clock::new)
}
