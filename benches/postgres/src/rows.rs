//! The measured rows.

use std::sync::Arc;
use std::time::Duration;

use tower_sluice::algorithm::TokenBucket;
use tower_sluice::{Limiter, Quota, RateLimiter};
use tower_sluice_postgres::{Postgres, PostgresStore};

/// Requests that are under way at a time, and connections.
pub const CONCURRENCY: [usize; 3] = [1, 8, 64];
const MANY: &[usize] = &[64];

/// A prime, as in other projects' tables.
const KEYS: u64 = 10_007;

/// More than our rejection cache holds.
const MANY_KEYS: u64 = 20_011;

#[derive(Clone, Copy)]
pub struct Row {
    pub name: &'static str,
    pub make: Make,
    pub keys: u64,
    pub terms: Terms,
    pub kept: Kept,
    /// The row that it is compared to.
    pub peer: &'static str,
    pub concurrency: &'static [usize],
}

/// How to make one.
#[derive(Clone, Copy)]
pub enum Make {
    Select,
    Count,
    /// Ours, one after the other.
    Limiters(Driver, fn(&Postgres, Terms) -> Vec<Arc<dyn Limiter>>),
    /// Ours as a layer, with this many policies.
    Layer(usize),
    Peer {
        /// How many policies it asks, one after the other.
        policies: usize,
        /// Whether its pool sends a ping before each statement, as it does by default.
        pings: bool,
    },
}

/// The client through which ours calls PostgreSQL.
#[derive(Clone, Copy)]
pub enum Driver {
    Deadpool,
    Bb8,
    Sqlx,
}

/// Whether the tables are in the write-ahead log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Unlogged,
    Logged,
}

/// `rate` per `period`, and `burst` at once.
#[derive(Clone, Copy)]
pub struct Terms {
    pub rate: u32,
    pub period: Duration,
    pub burst: u32,
}

impl Terms {
    /// All pass.
    const ADMITTED: Self = Self { rate: 100, period: Duration::from_secs(1), burst: 100_000 };
    /// All pass, even if one key has all requests.
    const ADMITTED_HOT: Self = Self { rate: 1_000, period: Duration::from_secs(1), burst: 10_000_000 };

    pub const fn exactly(burst: u32) -> Self {
        Self { rate: 1, period: Duration::from_secs(3_600), burst }
    }

    fn bucket(self) -> TokenBucket {
        TokenBucket::new(Quota::per(self.rate.into(), self.period).burst(self.burst.into()))
    }
}

pub const SELECT: &str = "`SELECT 1`";
pub const OURS: &str = "ours, single call";
pub const OURS_LOGGED: &str = "ours, single call, logged";
pub const PEER: &str = "`tower-rate-limiter`";
pub const PEER_LOGGED: &str = "`tower-rate-limiter`, logged";
const PEER_HOT: &str = "`tower-rate-limiter`, 1 key";
const PEER_REJECTED: &str = "`tower-rate-limiter`, all rejected";
const PEER_REJECTED_MANY: &str = "`tower-rate-limiter`, all rejected, 20,011 keys";
const PEER_REJECTED_HOT: &str = "`tower-rate-limiter`, all rejected, 1 key";
const PEER_TWICE: &str = "`tower-rate-limiter`, two calls";

const PEER_ALONE: Make = Make::Peer { policies: 1, pings: false };

const SINGLE_CALL: Make = single_call(Driver::Deadpool);

const fn single_call(driver: Driver) -> Make {
    Make::Limiters(driver, |postgres, terms| vec![single(postgres, "single", terms)])
}

const COALESCED: Make = Make::Limiters(Driver::Deadpool, |postgres, terms| {
    vec![Arc::new(RateLimiter::new(terms.bucket(), PostgresStore::new(postgres, "coalesced")))]
});

const LEASING: Make = Make::Limiters(Driver::Deadpool, |postgres, terms| {
    let store = PostgresStore::new(postgres, "leased").leasing(50, Duration::from_secs(1));
    vec![Arc::new(RateLimiter::new(terms.bucket(), store))]
});

const TWO_CALLS: Make =
    Make::Limiters(Driver::Deadpool, |postgres, terms| ["one", "two"].map(|name| single(postgres, name, terms)).into());

/// A token bucket that makes a call for each request.
pub fn single(postgres: &Postgres, name: &str, terms: Terms) -> Arc<dyn Limiter> {
    Arc::new(RateLimiter::new(terms.bucket(), PostgresStore::new(postgres, name).without_coalescing()))
}

fn all() -> Vec<Row> {
    let admitted = |name, make| Row {
        name,
        make,
        keys: KEYS,
        terms: Terms::ADMITTED,
        kept: Kept::Unlogged,
        peer: PEER,
        concurrency: &CONCURRENCY,
    };
    let logged = |name, make| Row { kept: Kept::Logged, peer: PEER_LOGGED, ..admitted(name, make) };
    let hot = |name, make| Row {
        keys: 1,
        terms: Terms::ADMITTED_HOT,
        peer: PEER_HOT,
        concurrency: MANY,
        ..admitted(name, make)
    };
    let rejected = |name, make, keys, peer| Row {
        keys,
        peer,
        terms: Terms::exactly(1),
        concurrency: MANY,
        ..admitted(name, make)
    };
    let two = |name, make| Row { peer: PEER_TWICE, concurrency: &[8, 64], ..admitted(name, make) };
    vec![
        admitted(SELECT, Make::Select),
        admitted("upsert of a counter", Make::Count),
        admitted(OURS, SINGLE_CALL),
        admitted("ours, single call, by `sqlx`", single_call(Driver::Sqlx)),
        admitted("ours, single call, by `bb8`", single_call(Driver::Bb8)),
        admitted(PEER, PEER_ALONE),
        logged("upsert of a counter, logged", Make::Count),
        logged(OURS_LOGGED, SINGLE_CALL),
        logged(PEER_LOGGED, PEER_ALONE),
        logged("`tower-rate-limiter`, logged, pool by default", Make::Peer { policies: 1, pings: true }),
        two("ours, layer, one policy", Make::Layer(1)),
        two("ours, layer, two policies in one call", Make::Layer(2)),
        two("ours, two calls", TWO_CALLS),
        two(PEER_TWICE, Make::Peer { policies: 2, pings: false }),
        hot("upsert of a counter, 1 key", Make::Count),
        hot("ours, single call, 1 key", SINGLE_CALL),
        hot("ours, coalesced, 1 key", COALESCED),
        hot("ours, leases of 50, 1 key", LEASING),
        hot(PEER_HOT, PEER_ALONE),
        rejected("ours, single call, all rejected", SINGLE_CALL, KEYS, PEER_REJECTED),
        rejected(PEER_REJECTED, PEER_ALONE, KEYS, PEER_REJECTED),
        rejected("ours, single call, all rejected, 20,011 keys", SINGLE_CALL, MANY_KEYS, PEER_REJECTED_MANY),
        rejected(PEER_REJECTED_MANY, PEER_ALONE, MANY_KEYS, PEER_REJECTED_MANY),
        rejected("ours, single call, all rejected, 1 key", SINGLE_CALL, 1, PEER_REJECTED_HOT),
        rejected(PEER_REJECTED_HOT, PEER_ALONE, 1, PEER_REJECTED_HOT),
    ]
}

/// The rows whose names contain one of `only`, and their peers.
pub fn chosen(only: &[String]) -> Vec<Row> {
    let is_asked_for = |row: &Row| only.is_empty() || only.iter().any(|text| row.name.contains(text));
    let peers: Vec<_> = all().iter().filter(|row| is_asked_for(row)).map(|row| row.peer).collect();
    let is_chosen = |row: &Row| is_asked_for(row) || row.name == SELECT || peers.contains(&row.name);
    all().into_iter().filter(is_chosen).collect()
}

/// The rows whose tables are measured.
pub fn sized(only: &[String]) -> impl Iterator<Item = Row> {
    chosen(only).into_iter().filter(|row| [OURS_LOGGED, PEER_LOGGED].contains(&row.name))
}

impl Row {
    pub fn is_ours(&self) -> bool {
        matches!(self.make, Make::Limiters(..) | Make::Layer(_))
    }

    /// Whether just a key's first requests pass. If two limiters are asked one after the other, each may admit a
    /// request that the other rejects.
    pub fn limits(&self) -> bool {
        let is_one = match self.make {
            Make::Select | Make::Count => false,
            Make::Limiters(..) | Make::Peer { .. } => self.peer != PEER_TWICE,
            Make::Layer(_) => true,
        };
        is_one && self.admits()
    }

    /// Whether all requests pass, or none.
    pub fn admits(&self) -> bool {
        self.terms.burst > 1
    }

    /// The table with its keys.
    pub fn table(&self) -> &'static str {
        match self.make {
            Make::Select | Make::Count => "counts",
            Make::Limiters(..) | Make::Layer(_) => "sluice_state",
            Make::Peer { .. } => "tower_rate_limiter_gcra_v1.state",
        }
    }
}
