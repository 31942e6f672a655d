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

#[derive(Clone, Copy)]
struct Anchor {
    counter: u64,
    system: u64,
    /// What this thread was last told: it is not told less, also where the counter ran fast.
    latest: u64,
}

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor { counter: 0, system: 0, latest: 0 }) };
}

#[inline(always)]
pub(super) fn now() -> Timestamp {
    static CLOCK: OnceLock<quanta::Clock> = OnceLock::new();
    // Calibrates for up to a fifth of a second, the first time: when the first store is made.
    let clock = CLOCK.get_or_init(quanta::Clock::new);
    ANCHOR.with(|cell| {
        let (anchor, counter) = (cell.get(), clock.raw());
        let passed = clock.delta_as_nanos(anchor.counter, counter);
        // A counter that starts anew, as after a migration, is caught by its being behind.
        let holds = anchor.system > 0 && counter >= anchor.counter && passed < HELD_FOR_NANOS;
        let anchor = if holds {
            Anchor { latest: anchor.latest.max(anchor.system + passed), ..anchor }
        } else {
            let system = system_now().as_nanos();
            // If the thread was held up between the two readings, they do not belong together.
            let is_torn = clock.delta_as_nanos(counter, clock.raw()) > TORN_NANOS;
            let latest = anchor.latest.max(system);
            Anchor { counter, system: if is_torn { 0 } else { system }, latest }
        };
        cell.set(anchor);
        Timestamp(anchor.latest)
    })
}
