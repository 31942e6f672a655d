//! The resident memory that waiters take: a million with all rounds. It runs in its own process, since the whole
//! process is measured.

#[path = "support/effort.rs"]
mod effort;
#[path = "support/process.rs"]
mod process;

use std::time::Duration;

use tower_sluice::limiter::{Answer, Ask, Pending};
use tower_sluice::{LeakyQueue, Limiter, Quota};

use crate::effort::rounds;
use crate::process::resident_kib;

const PER_KEY: usize = 10;

/// Waiters that leave free all their memory.
#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn waiters_take_less_than_300_bytes() {
    let waiters = rounds(200_000, 1_000_000);
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_queue(PER_KEY).max_wait(Duration::MAX).max_waiters(waiters);
    let queue = queue.max_keys(waiters);
    // The caller stores the futures, so their table is allocated before the measurement.
    let mut futures: Vec<Option<Pending>> = std::iter::repeat_with(|| None).take(waiters).collect();
    let mut free = futures.iter_mut();
    let before = resident_kib();
    for key in 0..(waiters / PER_KEY) as u64 {
        assert!(matches!(queue.decide(&Ask::charge(&key.into(), 1)), Answer::Ready(Ok(now)) if now.is_allowed()));
        for future in free.by_ref().take(PER_KEY) {
            let Answer::Pending(pending) = queue.decide(&Ask::charge(&key.into(), 1)) else {
                panic!("the queue has room")
            };
            *future = Some(pending);
        }
    }
    assert_eq!(queue.waiting(), waiters);
    let bytes = (resident_kib() - before) * 1_024 / u64::try_from(waiters).unwrap();
    println!("{bytes} bytes per waiter");
    assert!(bytes <= 300, "{bytes} bytes per waiter");

    // All but one leave, out of order. New waiters in equal number reuse their memory.
    for step in 1..waiters {
        futures[step * (waiters / 2 + 1) % waiters] = None;
    }
    assert_eq!(queue.waiting(), 1);
    let before = resident_kib();
    for (number, future) in (0..).zip(&mut futures).filter(|(_, future)| future.is_none()) {
        if let Answer::Pending(pending) = queue.decide(&Ask::charge(&(number / PER_KEY as u64).into(), 1)) {
            *future = Some(pending);
        }
    }
    assert_eq!(queue.waiting(), waiters);
    let grown = resident_kib().saturating_sub(before);
    println!("{grown} KiB more for as many again");
    assert!(grown < 16 * waiters as u64 / 1_024, "{grown} KiB more for as many again");
    drop(futures);
    assert_eq!(queue.waiting(), 0);
}
