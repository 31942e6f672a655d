//! Times each decision by itself while another thread replaces a layer's limiter, and without.
//!
//! Machines deschedule threads for milliseconds, with a change and without. So, where the system counts this (Linux),
//! the longest decision is also recorded among those in which this thread was not descheduled against its will: they
//! show the decision's own time, including its waits.

use std::future::Future;
use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use axum::extract::ConnectInfo;
use http::{Request, Response};
use tower::{Layer, Service, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::PeerIp;
use tower_sluice::store::MemoryStore;
use tower_sluice::{Policy, Quota, RateLimiter};

use crate::Figures;
use crate::cell::Of;
use crate::keys::Key;
use crate::machine;
use crate::ours::{self, Adds};

const ROUNDS: u32 = 3;

/// Slower decisions are looked into.
const SLOW: u64 = 100_000;

/// The phases: first the table is filled. Then each round runs without a change and with one. Every phase has the
/// duration of the first change.
const CALM: u64 = 1;
const OVER: u64 = u64::MAX;

pub fn measure(of: Of, keys: u64) -> Figures {
    match of {
        Of::Fixed => run(keys, FixedWindow::new),
        Of::Sliding => run(keys, SlidingWindow::new),
        _ => run(keys, TokenBucket::new),
    }
}

/// The longest decisions in one kind of phase, in nanoseconds.
#[derive(Default)]
struct Longest {
    of_all: u64,
    on_processor: u64,
    slow: u32,
    decisions: u64,
}

fn run<A: Algorithm>(keys: u64, make: impl Fn(Quota) -> A) -> Figures {
    let policy = |limit| {
        let store = MemoryStore::with_capacity(keys as usize);
        vec![Policy::new("p", RateLimiter::new(make(Quota::per_day(limit)), store)).key(PeerIp::new())]
    };
    let layer = ours::layer(policy(1_000), Adds::Nothing);
    let (phase, mut figures) = (AtomicU64::new(0), Figures::default());
    let mut changes = Duration::ZERO;
    std::thread::scope(|scope| {
        let (layer, phase) = (&layer, &phase);
        let decider = scope.spawn(move || decide(layer, keys, phase));
        while phase.load(Ordering::SeqCst) != CALM {
            std::thread::sleep(Duration::from_millis(1));
        }
        machine::pin(1);
        let pause = Duration::from_millis(keys / 2_000).max(Duration::from_millis(50));
        for round in 0..ROUNDS {
            std::thread::sleep(pause);
            phase.fetch_add(1, Ordering::SeqCst);
            let begin = Instant::now();
            layer.handle().replace(policy(1_001 + u64::from(round))).expect("it is as sensible as the first");
            changes = changes.max(begin.elapsed());
            // Keys that had no request yet are still inserted.
            std::thread::sleep(pause.saturating_sub(begin.elapsed()));
            phase.fetch_add(1, Ordering::SeqCst);
        }
        phase.store(OVER, Ordering::SeqCst);
        for (name, longest) in ["calm", "change"].iter().zip(decider.join().expect("it does not panic")) {
            figures.set(&format!("{name}: max"), longest.of_all as f64);
            figures.set(&format!("{name}: max on the processor"), longest.on_processor as f64);
            figures.set(&format!("{name}: above 100 µs"), f64::from(longest.slow));
            figures.set(&format!("{name}: decisions"), longest.decisions as f64);
        }
    });
    figures.set("a change, ms", changes.as_secs_f64() * 1e3);
    figures
}

/// Asks for all keys, and then for random ones. Returns the longest decisions without a change, and with one.
fn decide(layer: &tower_sluice::RateLimitLayer, keys: u64, phase: &AtomicU64) -> [Longest; 2] {
    machine::pin(0);
    let hello = service_fn(|_: Request<()>| std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(()))));
    let (mut service, mut context) = (layer.layer(hello), Context::from_waker(Waker::noop()));
    let (mut key, mut order) = (IpAddr::first(), crate::keys::Uniform::new(keys, 2));
    let mut ask = |index| {
        key.set(index);
        let mut request = Request::new(());
        request.extensions_mut().insert(ConnectInfo(SocketAddr::new(key, 1)));
        let begin = Instant::now();
        let answer = pin!(service.call(request)).as_mut().poll(&mut context);
        let took = begin.elapsed();
        assert!(black_box(answer).is_ready(), "memory answers at once");
        u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
    };
    (0..keys).for_each(|index| _ = ask(index));
    let (mut longest, mut before) = (<[Longest; 2]>::default(), machine::interruptions());
    phase.store(CALM, Ordering::SeqCst);
    loop {
        let present = phase.load(Ordering::Relaxed);
        if present == OVER {
            return longest;
        }
        let took = ask(crate::keys::Order::next(&mut order));
        let of = &mut longest[usize::from(present % 2 == 0)];
        (of.of_all, of.decisions) = (of.of_all.max(took), of.decisions + 1);
        if took < SLOW {
            of.on_processor = of.on_processor.max(took);
            continue;
        }
        of.slow += 1;
        let after = machine::interruptions();
        if before == after {
            of.on_processor = of.on_processor.max(took);
        }
        before = after;
    }
}
