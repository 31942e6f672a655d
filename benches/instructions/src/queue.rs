//! Counts the instructions for a request that passes a queue at once, and for a request that joins the line and leaves
//! it.

use std::hint::black_box;

use tokio::runtime::Builder;
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::{LeakyQueue, Limiter, PartitionKey, Quota};

use crate::{Call, Row};

pub fn rows() -> Vec<Row> {
    let queue = |name, set_up| Row { name, set_up, warm_up: 100, counted: 10_000, beside: None };
    vec![
        queue("queue: departs at once", || {
            let queue = LeakyQueue::new(Quota::per_second(1).burst(u32::MAX as u64));
            repeat(move |key| match queue.decide(&Ask::charge(key, 1)) {
                Answer::Ready(Ok(decision)) => decision.is_allowed(),
                _ => false,
            })
        }),
        queue("queue: joins the line and leaves it", || {
            let queue = LeakyQueue::new(Quota::per_second(1)).max_queue(100);
            let _ = queue.decide(&Ask::charge(&key(), 1));
            repeat(move |key| matches!(queue.decide(&Ask::charge(key, 1)), Answer::Pending(_)))
        }),
    ]
}

fn key() -> PartitionKey {
    PartitionKey::from(black_box("partner"))
}

/// Within a runtime whose clock stands still.
fn repeat(mut goes_as_expected: impl FnMut(&PartitionKey) -> bool + 'static) -> Call {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    Box::new(move |times| {
        let _within = runtime.enter();
        for _ in 0..times {
            assert!(goes_as_expected(&key()));
        }
    })
}
