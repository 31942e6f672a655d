//! What a million waiters take from the system. In a process of its own, since it is the process that is
//! measured.

use std::time::Duration;

use tower_sluice::{Ask, Check, LeakyQueue, Limiter, Pending, Quota};

const KEYS: u64 = 100_000;
const PER_KEY: usize = 10;
const WAITERS: usize = 1_000_000;

#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn a_million_waiters_take_less_than_300_bytes_each_and_leave_nothing() {
    let queue = LeakyQueue::new(Quota::per_hour(1)).capacity(PER_KEY).max_wait(Duration::MAX).max_waiters(WAITERS);
    let queue = queue.max_keys(WAITERS);
    // Where the promises are kept is the caller's affair, and stays out of the sum.
    let mut promises: Vec<Option<Pending>> = std::iter::repeat_with(|| None).take(WAITERS).collect();
    let mut places = promises.iter_mut();
    let before = resident_kib();
    for key in 0..KEYS {
        assert!(matches!(queue.decide(&Ask::charge(&key.into(), 1)), Check::Ready(Ok(now)) if now.is_allowed()));
        for place in places.by_ref().take(PER_KEY) {
            let Check::Pending(pending) = queue.decide(&Ask::charge(&key.into(), 1)) else {
                panic!("there is a place")
            };
            *place = Some(pending);
        }
    }
    assert_eq!(queue.waiting(), WAITERS);
    let bytes = (resident_kib() - before) * 1_024 / u64::try_from(WAITERS).unwrap();
    println!("{bytes} bytes per waiter");
    assert!(bytes <= 300, "{bytes} bytes per waiter");

    // All but one leave, out of order; what was taken is taken again, and not more.
    for step in 1..WAITERS {
        promises[step * (WAITERS / 2 + 1) % WAITERS] = None;
    }
    assert_eq!(queue.waiting(), 1);
    let before = resident_kib();
    for (number, place) in (0..).zip(&mut promises).filter(|(_, place)| place.is_none()) {
        if let Check::Pending(pending) = queue.decide(&Ask::charge(&(number / PER_KEY as u64).into(), 1)) {
            *place = Some(pending);
        }
    }
    assert_eq!(queue.waiting(), WAITERS);
    let grown = resident_kib().saturating_sub(before);
    println!("{grown} KiB more for the second million");
    assert!(grown < 16_384, "{grown} KiB more for the second million");
    drop(promises);
    assert_eq!(queue.waiting(), 0);
}

/// What the process takes.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a system that tells what a process takes");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}
