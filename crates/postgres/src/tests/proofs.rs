//! Carries out the statements with the proofs' counterexamples.

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::time::{ManualClock, Timestamp};

use super::counterexamples::{Counterexample, each};
use super::*;
use crate::kept::terms;

/// A table with one row, and the clock by which statements decide on it.
struct OneRow {
    runtime: tokio::runtime::Runtime,
    pool: Pool,
    postgres: Postgres,
    clock: ManualClock,
}

/// The row's numbers, and for how many requests the statement charged.
type Results = [(&'static str, u128); 5];

impl OneRow {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (pool, clock) = (pool(1), ManualClock::starting_at(Timestamp::ZERO));
        let postgres = runtime.block_on(process(pool.clone())).with_clock(clock.clone());
        Self { runtime, pool, postgres, clock }
    }

    /// Decides on a counterexample's row, which is stored under a quota with this limit and this period: by a plain
    /// charge, if the row is plain, and by the statement that decides on any row.
    fn decided<A: Kept>(&self, case: &Counterexample, algorithm: &A, limit: u64, period: u64) -> Results {
        let [plainly, wholly] = [self.postgres.clone(), self.postgres.clone().with_whole_statements()]
            .map(|postgres| self.decided_by(&postgres, case, algorithm, limit, period));
        assert_eq!(plainly, wholly);
        wholly
    }

    fn decided_by<A: Kept>(
        &self,
        postgres: &Postgres,
        case: &Counterexample,
        algorithm: &A,
        limit: u64,
        period: u64,
    ) -> Results {
        let now: u64 = case.number_or("now", 0);
        let changed = (now + case.number_or::<u64>("ahead", 0)) / 1_000;
        let number = |input: &str| case.number_or::<u128>(input, 0);
        let (previous, used, forgotten) = (number("previous"), number("used"), number("ends"));
        let ([_, burst, _], number, table) = (terms(&algorithm.quota()), number("number"), self.postgres.table_name());
        let row = format!(
            "DELETE FROM {table};
            INSERT INTO {table} (key, limiter, quota_limit, quota_burst, quota_period, number, previous, used,
                changed, charged, expires, bans_until)
            VALUES ('{:032x}', 'test', {limit}, {burst}, {period}, {number}, {previous}, {used},
                timestamptz 'epoch' + {changed} * interval '1 microsecond', 0, 'epoch', {forgotten})",
            1
        );
        let found =
            format!("SELECT number::text, previous, used, (extract(epoch FROM expires) * 1000000)::int8 FROM {table}");
        self.clock.set(Timestamp::from_nanos(now));
        self.runtime.block_on(async {
            self.pool.get().await.unwrap().batch_execute(&row).await.unwrap();
            let charge = Transition::Charge { cost: case.number_or("cost", 1), count: case.number_or("count", 1) };
            let applied = apply(postgres, algorithm, 1, charge).await.unwrap();
            let found = self.pool.get().await.unwrap().query_one(&found, &[]).await.unwrap();
            let whole = |column: usize| u128::try_from(found.get::<_, i64>(column)).unwrap();
            [
                ("charged", applied.charged.into()),
                ("number", found.get::<_, String>(0).parse().unwrap()),
                ("previous", whole(1)),
                ("used", whole(2)),
                ("expires", whole(3)),
            ]
        })
    }
}

fn asked(case: &Counterexample) -> Quota {
    Quota::per(case.number("limit"), Duration::from_nanos(case.number("period")))
}

#[test]
fn buckets_withstand_the_counterexamples() {
    let row = OneRow::new();
    each("crates/postgres/src/sql/mod.rs: BUCKET", |case| {
        let bucket = TokenBucket::new(asked(case).burst(case.number("burst")));
        row.decided(case, &bucket, case.number("from_limit"), case.number("from_period"))
    });
}

#[test]
fn fixed_windows_withstand_the_counterexamples() {
    let row = OneRow::new();
    each("crates/postgres/src/sql/mod.rs: FIXED_WINDOW", |case| {
        row.decided(case, &FixedWindow::new(asked(case)), case.number("limit"), case.number("from_period"))
    });
}

#[test]
fn sliding_windows_withstand_the_counterexamples() {
    let row = OneRow::new();
    each("crates/postgres/src/sql/mod.rs: SLIDING_WINDOW", |case| {
        row.decided(case, &SlidingWindow::new(asked(case)), case.number("limit"), case.number("from_period"))
    });
}

#[cfg(feature = "calendar")]
#[test]
fn calendar_windows_withstand_the_counterexamples() {
    let row = OneRow::new();
    each("crates/postgres/src/sql/mod.rs: CALENDAR_WINDOW", |case| {
        let window = tower_sluice::algorithm::CalendarWindow::daily(case.number("limit"));
        row.decided(case, &window, case.number("limit"), 1)
    });
}

/// The row remembers for this long how often its key was banned.
#[test]
fn instants_withstand_the_counterexamples() {
    let row = OneRow::new();
    each("crates/postgres/src/sql/mod.rs: instant", |case| {
        let results = row.decided(case, &FixedWindow::new(quota()), 7, 60_000_000_000);
        results.map(|(name, result)| (if name == "expires" { "micros" } else { name }, result))
    });
}
