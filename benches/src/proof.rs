//! Mistakes that a fast table must not make: losing keys, or admitting one twice.

use std::net::IpAddr;

use tower_sluice::algorithm::TokenBucket;

use crate::Figures;
use crate::keys::Key;
use crate::machine;
use crate::scale::StartingLine;
use crate::subject::{Ours, Subject, Terms};

/// Fills a store up to its capacity, and asks for all again. Each key admitted then was lost.
pub fn lost(keys: u64) -> Figures {
    const STORES: u64 = 5;
    let mut lost = 0;
    let mut forgotten = 0;
    for _ in 0..STORES {
        let limiter = ours(keys);
        let mut key = IpAddr::first();
        let mut admitted = || {
            let admits = |index| {
                key.set(index);
                limiter.admits(&key)
            };
            (0..keys).map(admits).filter(|admitted| *admitted).count() as u64
        };
        // Two keys share a budget with a probability of some 10^-8; that is not a loss.
        let held = admitted();
        lost += admitted();
        assert!(keys - held <= 2, "of {keys} new keys, {held} were admitted");
        forgotten += Subject::<IpAddr>::forgotten(&limiter);
    }
    let mut figures = Figures::default();
    figures.set("keys", (STORES * keys) as f64);
    figures.set("lost", lost as f64);
    figures.set("forgotten", forgotten as f64);
    figures
}

/// Two threads ask for each fresh key at the same moment. One request may be admitted.
pub fn first_touch(keys: u64) -> Figures {
    let limiter = ours(keys);
    let line = StartingLine::new(2);
    let ask = |number| {
        machine::pin(number);
        let mut key = IpAddr::first();
        let admits = |index| {
            key.set(index);
            line.wait();
            limiter.admits(&key)
        };
        (0..keys).map(admits).filter(|admitted| *admitted).count() as u64
    };
    let admitted: u64 = std::thread::scope(|scope| {
        let threads = [0, 1].map(|number| scope.spawn(move || ask(number)));
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    });
    let mut figures = Figures::default();
    figures.set("keys", keys as f64);
    // Keys that share a budget (some 3 in 10^8) are admitted once together, so they may hide an equal number.
    figures.set("twice", admitted.saturating_sub(keys) as f64);
    figures.set("never", keys.saturating_sub(admitted) as f64);
    figures.set("forgotten", Subject::<IpAddr>::forgotten(&limiter) as f64);
    figures
}

fn ours(keys: u64) -> Ours<TokenBucket> {
    Subject::<IpAddr>::new(Terms::REJECTED, keys as usize)
}
