//! The inside of a cell: fill, warm up, time.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};

use crate::Figures;
use crate::cell::{Cell, KeyType, MILLION, Of, Work};
use crate::keys::{Key, Order, Uniform, Zipf};
use crate::machine;
use crate::raw;
use crate::scale::{Scale, StartingLine, median};
use crate::subject::{
    AxumGcra, Governor, Ideal, LeakyBucket, Moka, Nothing, Ours, OursDyn, OursSystemClock, QuickCache, Ratelimit,
    Subject, Terms,
};

const CHUNKS: usize = 7;

/// Calls a function for a limiter and a key type, with the types behind these names.
macro_rules! with_types {
    ($of:expr, $key:expr, $function:ident($($argument:expr),*)) => {
        match $key {
            KeyType::U64 => with_types!(@limiter $of, u64, $function($($argument),*)),
            KeyType::Ip => with_types!(@limiter $of, IpAddr, $function($($argument),*)),
            KeyType::Text => with_types!(@limiter $of, String, $function($($argument),*)),
        }
    };
    (@limiter $of:expr, $key:ty, $function:ident($($argument:expr),*)) => {
        match $of {
            Of::Nothing => $function::<$key, Nothing>($($argument),*),
            Of::Governor => $function::<$key, Governor<$key>>($($argument),*),
            Of::Ours => $function::<$key, Ours<TokenBucket>>($($argument),*),
            Of::Ideal => $function::<$key, Ideal>($($argument),*),
            Of::OursDyn => $function::<$key, OursDyn>($($argument),*),
            Of::OursSystemClock => $function::<$key, OursSystemClock>($($argument),*),
            Of::Sliding => $function::<$key, Ours<SlidingWindow>>($($argument),*),
            Of::Fixed => $function::<$key, Ours<FixedWindow>>($($argument),*),
            Of::AxumGcra => $function::<$key, AxumGcra<$key>>($($argument),*),
            Of::Ratelimit => $function::<$key, Ratelimit>($($argument),*),
            Of::LeakyBucket => $function::<$key, LeakyBucket>($($argument),*),
            Of::QuickCache => $function::<$key, QuickCache<$key>>($($argument),*),
            Of::Moka => $function::<$key, Moka<$key>>($($argument),*),
        }
    };
}

pub fn measure(cell: Cell, scale: Scale) -> Figures {
    match cell {
        Cell::Exact(of, key) => with_types!(of, key, exact()),
        Cell::Decide(of, work) => with_types!(of, work.key, decide(work, scale)),
        Cell::Tail(of) => with_types!(@limiter of, IpAddr, tail(4 * MILLION / scale.divisor)),
        Cell::Change(of, keys) => crate::change::measure(of, keys.min(scale.most_keys)),
        #[cfg(feature = "servers")]
        Cell::InFlight(by, keys) => crate::in_flight::measure(by, keys, scale),
        Cell::Lost => crate::proof::lost(MILLION / scale.divisor),
        Cell::FirstTouch => crate::proof::first_touch(10 * MILLION / scale.divisor),
        Cell::Layer => crate::layer::measure(scale),
        Cell::Instructions => crate::count::measure(scale),
        Cell::App => crate::app::measure(scale),
    }
}

/// Two threads ask for twice the available units.
fn exact<K: Key, S: Subject<K>>() -> Figures {
    const BURST: u32 = 20_000;
    let limiter = S::new(Terms::exactly(BURST), 1);
    let admitted: usize = std::thread::scope(|scope| {
        let ask = || (0..BURST).filter(|_| limiter.admits(&K::first())).count();
        let threads = [scope.spawn(ask), scope.spawn(ask)];
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    });
    assert_eq!(admitted, BURST as usize, "of a burst of {BURST}");
    Figures::default()
}

fn decide<K: Key, S: Subject<K>>(work: Work, scale: Scale) -> Figures {
    let keys = work.keys.min(scale.most_keys);
    let decisions = if work.keys < MILLION { 200_000 } else { 500_000 } / scale.divisor;
    let mut figures = Figures::default();
    if work.zipf {
        let draws = (decisions * (CHUNKS as u64 + 1)) as usize;
        let threads = (0..work.threads).map(|thread| Zipf::new(keys, 2 + thread, draws)).collect();
        run::<K, S, _>(work, keys, decisions, threads, &mut figures);
    } else {
        let threads = (0..work.threads).map(|thread| Uniform::new(keys, 2 + thread)).collect();
        run::<K, S, _>(work, keys, decisions, threads, &mut figures);
    }
    figures
}

fn run<K: Key, S: Subject<K>, O: Order>(
    work: Work,
    keys: u64,
    decisions: u64,
    mut orders: Vec<O>,
    figures: &mut Figures,
) {
    // Fill.
    let before = machine::resident();
    let limiter = S::new(if work.rejected { Terms::REJECTED } else { Terms::ADMITTED }, keys as usize);
    let mut key = K::first();
    for index in 0..keys {
        key.set(index);
        assert!(limiter.admits(&key), "key {index} is rejected at its first decision");
    }
    if let (Some(before), Some(after)) = (before, machine::resident()) {
        figures.set("bytes", after.saturating_sub(before) as f64 / keys as f64);
    }
    figures.set("forgotten", limiter.forgotten() as f64);

    let rejected = work.rejected && S::LIMITS;
    let check = |admitted: u64| {
        // Where a window begins within the measurement, a hot key is admitted once more.
        assert!(if rejected { admitted <= 1 } else { admitted == decisions }, "{admitted} of {decisions} admitted");
    };
    if let [order] = &mut orders[..] {
        figures.set("pinned", f64::from(machine::pin(0)));
        check(in_a_loop(&limiter, &mut key, order, decisions));
        figures.set(
            "loop",
            median((0..CHUNKS).map(|_| {
                let start = Instant::now();
                check(in_a_loop(&limiter, &mut key, order, decisions));
                start.elapsed().as_nanos() as f64 / decisions as f64
            })),
        );
        if work.isolated() {
            let decisions = decisions / 4;
            figures.set(
                "isolated",
                median((0..CHUNKS).map(|_| {
                    let start = Instant::now();
                    let admitted = one_by_one(&limiter, &mut key, order, decisions);
                    let elapsed = start.elapsed().as_nanos() as f64;
                    assert_eq!(admitted, decisions);
                    elapsed / decisions as f64
                })),
            );
        }
        return;
    }

    // All threads begin each chunk together; the slowest counts. A thread's mutable data (its place in the order, its
    // key) is on its own stack, or it would share a cache line with the other's.
    let threads = orders.len();
    let line = StartingLine::new(threads);
    let times: Vec<(bool, Vec<f64>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = orders
            .into_iter()
            .enumerate()
            .map(|(number, mut order)| {
                let (line, limiter, mut key) = (&line, &limiter, key.clone());
                scope.spawn(move || {
                    let pinned = machine::pin(number);
                    let times = (0..=CHUNKS).map(|_| {
                        line.wait();
                        let start = Instant::now();
                        check(in_a_loop(limiter, &mut key, &mut order, decisions));
                        start.elapsed().as_nanos() as f64 / decisions as f64
                    });
                    (pinned, times.collect())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    figures.set("pinned", f64::from(times.iter().all(|(pinned, _)| *pinned)));
    // The first chunk was for warming up.
    figures
        .set("loop", median((1..=CHUNKS).map(|chunk| times.iter().map(|(_, times)| times[chunk]).fold(0.0, f64::max))));
}

/// Lets the processor overlap decisions as it can.
#[inline(never)]
fn in_a_loop<K: Key, S: Subject<K>, O: Order>(limiter: &S, key: &mut K, order: &mut O, decisions: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..decisions {
        key.set(order.next());
        admitted += u64::from(limiter.admits(black_box(key)));
    }
    admitted
}

/// Each decision begins when all before it has ended, as in a server that does other things between.
#[inline(never)]
fn one_by_one<K: Key, S: Subject<K>, O: Order>(limiter: &S, key: &mut K, order: &mut O, decisions: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..decisions {
        key.set(order.next());
        raw::wait_for_all_before();
        admitted += u64::from(limiter.admits(black_box(key)));
        raw::wait_for_all_before();
    }
    admitted
}

/// Times each decision on a new key.
fn tail<K: Key, S: Subject<K>>(keys: u64) -> Figures {
    let mut figures = Figures::default();
    figures.set("pinned", f64::from(machine::pin(0)));
    let nanos = raw::nanos_per_tick();
    let limiter = S::new(Terms::ADMITTED, keys as usize);
    // Written to once, so that recording meets no fresh memory.
    let mut times = vec![1_u32; keys as usize];
    let mut key = K::first();
    for (index, time) in (0..).zip(&mut times) {
        key.set(index);
        let start = raw::ticks();
        let admitted = limiter.admits(black_box(&key));
        let elapsed = raw::ticks() - start;
        assert!(admitted, "key {index} is rejected at its first decision");
        *time = u32::try_from(elapsed).unwrap_or(u32::MAX);
    }
    times.sort_unstable();
    let at = |part: f64| f64::from(times[(part * (keys - 1) as f64) as usize]) * nanos;
    for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)] {
        figures.set(name, at(part));
    }
    figures
}
