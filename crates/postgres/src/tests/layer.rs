//! A request's whole path, and the statements that it takes.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Mutex;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::{Penalty, Policy, RateLimitLayer};

use tower_sluice::limiter::Override;

use super::*;
use crate::pool::{Connect, Connecting, Running, Session, Value};
use crate::sql::SET_UP;

/// Remembers the first words of all statements.
#[derive(Clone, Debug)]
struct Watched {
    pool: Pool,
    statements: Arc<Mutex<Vec<String>>>,
}

impl Watched {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.statements.lock().unwrap())
    }
}

impl Connect for Watched {
    fn max_connections(&self) -> usize {
        self.pool.max_connections()
    }

    fn connect(&self) -> Connecting<'_> {
        Box::pin(async move {
            let session = self.pool.connect().await?;
            Ok(Box::new(WatchedSession { session, statements: Arc::clone(&self.statements) }) as Box<dyn Session>)
        })
    }
}

struct WatchedSession {
    session: Box<dyn Session>,
    statements: Arc<Mutex<Vec<String>>>,
}

impl Session for WatchedSession {
    fn query<'a>(&'a mut self, text: &'a str, parameters: &'a [Value], is_prepared: bool) -> Running<'a> {
        if text != SET_UP {
            let words: Vec<_> = text.split_whitespace().take(2).collect();
            self.statements.lock().unwrap().push(words.join(" "));
        }
        self.session.query(text, parameters, is_prepared)
    }

    fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    fn abandon(self: Box<Self>, has_backend: bool) {
        self.session.abandon(has_backend);
    }
}

async fn status(layer: &RateLimitLayer) -> u16 {
    let hello = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(()))));
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("alice"));
    layer.clone().layer(hello).oneshot(request).await.unwrap().status().as_u16()
}

fn of_store<A: Kept>(postgres: &Postgres, name: &str, algorithm: A) -> Over<A> {
    RateLimiter::new(algorithm, PostgresStore::new(postgres, name))
}

/// They charge both keys or none.
#[tokio::test]
async fn two_policies_take_one_statement() {
    let pool = Watched { pool: pool(1), statements: Arc::default() };
    let postgres = process(pool.clone()).await;
    let day = Policy::new("day", of_store(&postgres, "day", TokenBucket::new(Quota::per_day(3)))).key(User::key());
    let year =
        Policy::new("year", of_store(&postgres, "year", FixedWindow::new(Quota::per(100, YEAR)))).key(User::key());
    let layer = RateLimitLayer::new([day, year]);
    pool.take();
    for new in [true, false, false] {
        assert_eq!(status(&layer).await, 200);
        assert_eq!(pool.take(), if new { vec!["WITH found", "WITH asked"] } else { vec!["WITH found"] });
    }
    assert_eq!(status(&layer).await, 429);
    pool.take();
    assert_eq!(status(&layer).await, 429);
    let writes = |statement: &String| ["INSERT", "UPDATE", "WITH asked"].iter().any(|word| statement.starts_with(word));
    let taken = pool.take();
    assert!(!taken.iter().any(writes), "a rejection that is known here: {taken:?}");
    let year = of_store(&postgres, "year", FixedWindow::new(Quota::per(100, YEAR)));
    let left = year.acquire(&"alice".into(), 97).await;
    assert_eq!(left.map(|permit| permit.is_allowed()).ok(), Some(true), "three were charged");
}

/// A row that is new, is under another quota, or has a ban or an allowance takes a second statement.
#[tokio::test]
async fn a_plain_charge_takes_one_statement() {
    let pool = Watched { pool: pool(1), statements: Arc::default() };
    let postgres = process(pool.clone()).await;
    let update = format!("UPDATE \"{}\"", postgres.table_name());
    let (one, two) = (vec![update.clone()], vec![update, "INSERT INTO".to_owned()]);
    let [own, other] = [quota(), Quota::per_day(5)];
    let sent = async |quota: Quota, transition: Transition| {
        pool.take();
        apply(&postgres, &TokenBucket::new(quota), 1, transition).await.unwrap();
        let of_bucket = pool.take();
        apply(&postgres, &SlidingWindow::new(quota), 2, transition).await.unwrap();
        assert_eq!(pool.take(), of_bucket);
        of_bucket
    };
    let charge = Transition::Charge { cost: 1, count: 1 };
    assert_eq!(sent(own, charge).await, two, "a new row");
    for _ in 0..2 * own.limit() {
        assert_eq!(sent(own, charge).await, one, "also if it is rejected");
    }
    assert_eq!(sent(other, charge).await, two, "another quota");
    assert_eq!(sent(other, charge).await, one);
    sent(other, Transition::Ban { span: MINUTE, growth: None }).await;
    assert_eq!(sent(other, charge).await, two, "it is banned");
    sent(other, Transition::Override(Override::Lift)).await;
    assert_eq!(sent(other, charge).await, one, "it is no more");
}

/// From a policy's first rejections to the row, and to another process.
#[tokio::test]
async fn one_process_bans_for_all() {
    let first = process(pool(1)).await;
    let new = |postgres: &Postgres| {
        let limiter = of_store(postgres, "login", TokenBucket::new(Quota::per_day(1)));
        let penalty = Penalty::new(Quota::per_day(1), MINUTE).growing(2, 10 * MINUTE);
        RateLimitLayer::new(Policy::new("login", limiter).key(User::key()).penalty(penalty))
    };
    let layer = new(&first);
    assert_eq!(status(&layer).await, 200);
    for _ in 0..3 {
        assert_eq!(status(&layer).await, 429);
    }
    let other = new(&first.clone().with_pool(pool(1)));
    timing::eventually("the ban is in force", async || {
        other.handle().peek("login", "alice").await.unwrap().ban().is_some()
    })
    .await;
    let bans = first.query(&format!("SELECT bans::int8, bans_until::text FROM {}", first.table_name())).await.unwrap();
    assert_eq!(bans[0][0], Value::Int(Some(1)));
}
