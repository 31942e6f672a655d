//! Shared by all measurements: how much is measured, a common start for threads, the median.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Scale {
    /// By how much counts are divided.
    pub divisor: u64,
    pub most_keys: u64,
}

impl Scale {
    pub const FULL: Self = Self { divisor: 1, most_keys: u64::MAX };
    /// Everything once, on a small scale.
    pub const QUICK: Self = Self { divisor: 50, most_keys: 20_000 };
}

/// Where threads wait for each other without sleeping, so that they start together.
pub struct StartingLine {
    arrived: AtomicUsize,
    threads: usize,
}

impl StartingLine {
    pub const fn new(threads: usize) -> Self {
        Self { arrived: AtomicUsize::new(0), threads }
    }

    pub fn wait(&self) {
        let arrived = self.arrived.fetch_add(1, Ordering::SeqCst);
        let round = (arrived / self.threads + 1) * self.threads;
        for spins in 1_u64.. {
            if self.arrived.load(Ordering::SeqCst) >= round {
                return;
            }
            // On one processor, spinning alone would wait until a time slice ends.
            if spins % 10_000 == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}
