//! The resident memory of a million waiters. In a process of its own, since the whole process is measured.

#[path = "support/process.rs"]
mod process;

use std::time::Duration;

use tower_sluice::{Ask, Check, LeakyQueue, Limiter, Pending, Quota};

use crate::process::resident_kib;

const KEYS: u64 = 100_000;
const PER_KEY: usize = 10;
const WAITERS: usize = 1_000_000;

#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn a_million_waiters_take_less_than_300_bytes_each_and_leave_nothing() {
    let queue = LeakyQueue::new(Quota::per_hour(1)).capacity(PER_KEY).max_wait(Duration::MAX).max_waiters(WAITERS);
    let queue = queue.max_keys(WAITERS);
    // The futures are stored by the caller, so their table is allocated before the measurement.
    let mut futures: Vec<Option<Pending>> = std::iter::repeat_with(|| None).take(WAITERS).collect();
    let mut free = futures.iter_mut();
    let before = resident_kib();
    for key in 0..KEYS {
        assert!(matches!(queue.decide(&Ask::charge(&key.into(), 1)), Check::Ready(Ok(now)) if now.is_allowed()));
        for future in free.by_ref().take(PER_KEY) {
            let Check::Pending(pending) = queue.decide(&Ask::charge(&key.into(), 1)) else {
                panic!("the queue has room")
            };
            *future = Some(pending);
        }
    }
    assert_eq!(queue.waiting(), WAITERS);
    let bytes = (resident_kib() - before) * 1_024 / u64::try_from(WAITERS).unwrap();
    println!("{bytes} bytes per waiter");
    assert!(bytes <= 300, "{bytes} bytes per waiter");

    // All but one leave, out of order. A second million reuses the memory of the first.
    for step in 1..WAITERS {
        futures[step * (WAITERS / 2 + 1) % WAITERS] = None;
    }
    assert_eq!(queue.waiting(), 1);
    let before = resident_kib();
    for (number, future) in (0..).zip(&mut futures).filter(|(_, future)| future.is_none()) {
        if let Check::Pending(pending) = queue.decide(&Ask::charge(&(number / PER_KEY as u64).into(), 1)) {
            *future = Some(pending);
        }
    }
    assert_eq!(queue.waiting(), WAITERS);
    let grown = resident_kib().saturating_sub(before);
    println!("{grown} KiB more for the second million");
    assert!(grown < 16_384, "{grown} KiB more for the second million");
    drop(futures);
    assert_eq!(queue.waiting(), 0);
}
