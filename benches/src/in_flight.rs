//! Takes a unit in flight and releases it: ours, and a handwritten map of semaphores; and our protection from overload,
//! while no request waits.

use std::collections::HashMap;
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::{Arc, RwLock};
use std::time::Instant;

use tokio::sync::Semaphore;
use tower_sluice::limiter::{Answer, Ask, RequestEnd};
use tower_sluice::{Concurrency, Limiter, Overload};

use crate::Figures;
use crate::keys::{Key, Order, Uniform};
use crate::machine;
use crate::scale::{Scale, median};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum By {
    Ours,
    /// Ours, with one limit for all keys.
    Overload,
    /// `RwLock<HashMap<IpAddr, Arc<Semaphore>>>`, with all keys in it.
    Semaphores,
}

impl By {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Overload => "ours, protection from overload",
            Self::Semaphores => "map of tokio's semaphores",
        }
    }
}

const LIMIT: u32 = 8;
const CHUNKS: usize = 7;

pub fn measure(by: By, keys: u64, scale: Scale) -> Figures {
    let keys = keys.min(scale.most_keys);
    let times = 500_000 / scale.divisor;
    match by {
        By::Ours => {
            let before = machine::resident();
            let limiter = Concurrency::new(LIMIT.into()).max_keys(keys as usize);
            let mut key = IpAddr::first();
            let held: Vec<_> = (0..keys)
                .map(|index| {
                    key.set(index);
                    limiter.try_acquire(&key.partition(), 1).expect("there is room")
                })
                .collect();
            let bytes = used(before).map(|bytes| bytes - (held.len() * size_of_val(&held[0])) as f64);
            drop(held);
            run(keys, times, bytes, |key| limiter.try_acquire(&key.partition(), 1).is_some())
        }
        By::Overload => {
            let overload: Arc<dyn Limiter> = Arc::new(Overload::new());
            run(keys, times, None, |key| {
                let key = key.partition();
                let ask = Ask::charge(&key, 1);
                let Answer::Ready(Ok(decision)) = overload.decide(&ask) else { return false };
                overload.release(&ask, decision.receipt(), 1, RequestEnd::Served);
                decision.is_allowed()
            })
        }
        By::Semaphores => {
            let before = machine::resident();
            let mut map = HashMap::new();
            let mut key = IpAddr::first();
            for index in 0..keys {
                key.set(index);
                map.insert(key, Arc::new(Semaphore::new(LIMIT as usize)));
            }
            let bytes = used(before);
            let map = RwLock::new(map);
            run(keys, times, bytes, |key| {
                let semaphore = map.read().expect("nobody panics").get(key).map(Arc::clone);
                semaphore.is_some_and(|semaphore| semaphore.try_acquire().is_ok())
            })
        }
    }
}

fn used(before: Option<u64>) -> Option<f64> {
    Some(machine::resident()?.saturating_sub(before?) as f64)
}

fn run(keys: u64, times: u64, bytes: Option<f64>, take_and_release: impl Fn(&IpAddr) -> bool) -> Figures {
    let mut figures = Figures::default();
    figures.set("pinned", f64::from(machine::pin(0)));
    if let Some(bytes) = bytes {
        figures.set("bytes", bytes / keys as f64);
    }
    let (mut key, mut order) = (IpAddr::first(), Uniform::new(keys, 2));
    let mut chunk = || {
        let start = Instant::now();
        for _ in 0..times {
            key.set(order.next());
            assert!(take_and_release(black_box(&key)), "nothing else is in flight");
        }
        start.elapsed().as_nanos() as f64 / times as f64
    };
    chunk();
    figures.set("loop", median((0..CHUNKS).map(|_| chunk())));
    figures
}
