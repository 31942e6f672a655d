//! The measured limiters: ours and its peers, each through its own public API.

use std::hint::black_box;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::store::{MemoryStore, MemoryTable};
use tower_sluice::time::{Clock, Timestamp};
use tower_sluice::{Quota, RateLimiter};

use crate::keys::Key;
use crate::ours;

/// `burst` at once, and then one per `period`; for windows, `burst` per hour, or the part that a word counts.
#[derive(Clone, Copy)]
pub struct Terms {
    pub period: Duration,
    pub burst: u32,
}

const HOUR: Duration = Duration::from_secs(3_600);

impl Terms {
    /// All pass, and all keys stay in debt for ever.
    pub const ADMITTED: Self = Self { period: Duration::from_secs(1), burst: u32::MAX };
    /// Each key is admitted once.
    pub const REJECTED: Self = Self::exactly(1);

    pub const fn exactly(burst: u32) -> Self {
        Self { period: HOUR, burst }
    }
}

pub trait Subject<K>: Send + Sync {
    /// Whether it ever rejects.
    const LIMITS: bool = true;

    fn new(terms: Terms, keys: usize) -> Self;
    fn admits(&self, key: &K) -> bool;
    /// How many live keys it reports as forgotten.
    fn forgotten(&self) -> u64 {
        0
    }
}

/// Makes the key and admits it, and so shows the cost of the rest of the loop.
pub struct Nothing;

impl<K> Subject<K> for Nothing {
    const LIMITS: bool = false;

    fn new(_: Terms, _: usize) -> Self {
        Self
    }

    #[inline]
    fn admits(&self, key: &K) -> bool {
        black_box(key);
        true
    }
}

pub struct Ours<A: Algorithm>(RateLimiter<A>);

/// An algorithm that can be made to fit the terms.
pub trait Ruled: Algorithm {
    fn of_terms(terms: Terms, keys: usize) -> Self;
}

/// The windows' limit. With many keys, none is asked more often than a table word can count, so all pass. A hot key is
/// asked more often, and its sliding window is in the table for wider states.
fn window(terms: Terms, keys: usize) -> Quota {
    Quota::per_hour((if keys < 1_000_000 { terms.burst } else { terms.burst.min(65_535) }).into())
}

impl Ruled for TokenBucket {
    fn of_terms(Terms { period, burst }: Terms, _: usize) -> Self {
        Self::new(Quota::per(1, period).burst(burst.into()))
    }
}

impl Ruled for SlidingWindow {
    fn of_terms(terms: Terms, keys: usize) -> Self {
        Self::new(window(terms, keys))
    }
}

impl Ruled for FixedWindow {
    fn of_terms(terms: Terms, keys: usize) -> Self {
        Self::new(window(terms, keys))
    }
}

impl<A: Ruled, K: Key> Subject<K> for Ours<A> {
    fn new(terms: Terms, keys: usize) -> Self {
        Self(RateLimiter::new(A::of_terms(terms, keys), MemoryStore::with_capacity(keys)))
    }

    #[inline]
    fn admits(&self, key: &K) -> bool {
        ours::admits(&self.0, &key.partition())
    }

    fn forgotten(&self) -> u64 {
        self.0.evicted_live()
    }
}

/// With the system's clock, which it reads without its feature `fast-clock`.
pub struct OursSystemClock(RateLimiter<TokenBucket, MemoryTable<<TokenBucket as Algorithm>::State, SystemClock>>);

#[derive(Clone, Copy)]
pub struct SystemClock(Instant);

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

impl<K: Key> Subject<K> for OursSystemClock {
    fn new(terms: Terms, keys: usize) -> Self {
        let store = MemoryStore::with_capacity(keys).with_clock(SystemClock(Instant::now()));
        Self(RateLimiter::new(TokenBucket::of_terms(terms, keys), store))
    }

    #[inline]
    fn admits(&self, key: &K) -> bool {
        ours::admits(&self.0, &key.partition())
    }
}

/// Shows how much is left to gain: see [`crate::ideal`].
pub struct Ideal(crate::ideal::Ideal);

impl<K: Key> Subject<K> for Ideal {
    fn new(terms: Terms, keys: usize) -> Self {
        Self(crate::ideal::Ideal::new(terms, keys))
    }

    #[inline]
    fn admits(&self, key: &K) -> bool {
        self.0.admits(key.partition().as_bytes())
    }
}

/// As policies hold it. Nothing can be inlined, and the whole decision is made.
pub struct OursDyn(Arc<dyn tower_sluice::Limiter>);

impl<K: Key> Subject<K> for OursDyn {
    fn new(terms: Terms, keys: usize) -> Self {
        let limiter = RateLimiter::new(TokenBucket::of_terms(terms, keys), MemoryStore::with_capacity(keys));
        Self(black_box(Arc::new(limiter)))
    }

    #[inline]
    fn admits(&self, key: &K) -> bool {
        ours::admits(&*self.0, &key.partition())
    }
}

/// The reference: its default map, hasher and clock.
pub struct Governor<K: Key>(governor::DefaultKeyedRateLimiter<K::Value>);

impl<K: Key> Subject<K> for Governor<K> {
    fn new(Terms { period, burst }: Terms, _: usize) -> Self {
        let burst = NonZeroU32::new(burst).expect("a burst of at least 1");
        let quota = governor::Quota::with_period(period).expect("a sensible period").allow_burst(burst);
        Self(governor::RateLimiter::keyed(quota))
    }

    #[inline]
    fn admits(&self, key: &K) -> bool {
        self.0.check_key(key.value()).is_ok()
    }
}

/// The engine under its layer, with the map's default hasher. It takes keys by value, so a string is cloned. Its
/// clean-up, a pass over the whole map once in 8,192 insertions, is off.
pub struct AxumGcra<K: Key> {
    limiter: axum_gcra::gcra::RateLimiter<K::Value>,
    quota: axum_gcra::gcra::Quota,
}

impl<K: Key> Subject<K> for AxumGcra<K> {
    fn new(Terms { period, burst }: Terms, _: usize) -> Self {
        let burst = NonZeroU64::new(burst.into()).expect("a burst of at least 1");
        Self {
            limiter: axum_gcra::gcra::RateLimiter::new(u64::MAX, Default::default()),
            quota: axum_gcra::gcra::Quota::new(period, burst),
        }
    }

    #[inline]
    fn admits(&self, key: &K) -> bool {
        self.limiter.req_sync(key.value().clone(), self.quota, Instant::now()).is_ok()
    }
}

/// One bucket for all: no hash and no table.
pub struct Ratelimit(ratelimit::Ratelimiter);

impl<K> Subject<K> for Ratelimit {
    fn new(Terms { period, burst }: Terms, _: usize) -> Self {
        let builder = ratelimit::Ratelimiter::builder(1).period(period);
        let limiter = builder.max_tokens(burst.into()).initial_available(burst.into()).build();
        Self(limiter.expect("a sensible quota"))
    }

    #[inline]
    fn admits(&self, key: &K) -> bool {
        black_box(key);
        self.0.try_wait().is_ok()
    }
}

/// One bucket for all.
pub struct LeakyBucket(leaky_bucket::RateLimiter);

impl<K> Subject<K> for LeakyBucket {
    fn new(Terms { period, burst }: Terms, _: usize) -> Self {
        let burst = burst as usize;
        Self(leaky_bucket::RateLimiter::builder().interval(period).refill(1).max(burst).initial(burst).build())
    }

    #[inline]
    fn admits(&self, key: &K) -> bool {
        black_box(key);
        self.0.try_acquire(1)
    }
}

/// A counter per key, as a fixed window would have; without a clock.
pub struct QuickCache<K: Key> {
    counters: quick_cache::sync::Cache<K::Value, Arc<AtomicU32>>,
    limit: u32,
}

impl<K: Key> Subject<K> for QuickCache<K> {
    fn new(terms: Terms, keys: usize) -> Self {
        Self { counters: quick_cache::sync::Cache::new(2 * keys.max(1_000)), limit: terms.burst }
    }

    #[inline]
    fn admits(&self, key: &K) -> bool {
        let counter =
            self.counters.get_or_insert_with(key.value(), || Ok::<_, std::convert::Infallible>(Arc::default()));
        counter.is_ok_and(|counter| count(&counter, self.limit))
    }
}

/// A counter per key, forgotten after an hour.
pub struct Moka<K: Key> {
    counters: moka::sync::Cache<K::Value, Arc<AtomicU32>>,
    limit: u32,
}

impl<K: Key> Subject<K> for Moka<K> {
    fn new(terms: Terms, keys: usize) -> Self {
        let counters = moka::sync::Cache::builder().max_capacity(2 * keys.max(1_000) as u64).time_to_live(HOUR);
        Self { counters: counters.build(), limit: terms.burst }
    }

    #[inline]
    fn admits(&self, key: &K) -> bool {
        count(&self.counters.get_with_by_ref(key.value(), Arc::default), self.limit)
    }
}

fn count(counter: &AtomicU32, limit: u32) -> bool {
    counter.load(Ordering::Relaxed) < limit && counter.fetch_add(1, Ordering::Relaxed) < limit
}
