//! The modes of all limiters in this process, and which value holds the units that a limiter hands out.

use std::sync::Arc;

use tower_sluice::limiter::{Ask, IntoLimiter, Mode};
use tower_sluice::testing::check_modes;
use tower_sluice::{
    CalendarWindow, Concurrency, Decision, FixedWindow, LeakyQueue, Limiter, LimiterError, LimiterExt, PartitionKey,
    Quota, SlidingWindow, TokenBucket,
};

const TWENTY: Quota = Quota::per_day(20).burst(20);

fn limiters() -> [Arc<dyn Limiter>; 7] {
    [
        TokenBucket::new(TWENTY).into_limiter(),
        FixedWindow::new(Quota::per_day(20)).into_limiter(),
        SlidingWindow::new(Quota::per_day(20)).into_limiter(),
        CalendarWindow::monthly(20).into_limiter(),
        LeakyQueue::new(TWENTY).into_limiter(),
        Concurrency::new(20).into_limiter(),
        Concurrency::new(20).max_queue(20).into_limiter(),
    ]
}

/// It is an error.
#[tokio::test]
async fn an_undescribed_mode_changes_nothing() {
    for limiter in limiters() {
        check_modes(&*limiter).await;
    }
}

/// A limiter that ignores the mode, and so charges on every question.
struct Careless(Arc<dyn Limiter>);

impl Limiter for Careless {
    fn decide(&self, ask: &Ask<'_>) -> tower_sluice::limiter::Answer {
        self.0.decide(&ask.to(Mode::Charge))
    }
}

#[tokio::test]
async fn peek_and_reset_need_a_description() {
    let careless = Careless(TokenBucket::new(TWENTY).into_limiter());
    let key = PartitionKey::from("key");
    let messages = [careless.peek(&key, 1).await, careless.reset(&key).await]
        .map(|answer: Result<Decision, LimiterError>| answer.unwrap_err().to_string());
    assert_eq!(
        messages,
        [
            "the limiter cannot be peeked at: it does not answer `Mode::Peek`",
            "the limiter cannot be reset: it does not answer `Mode::Reset`",
        ]
    );
    assert_eq!(careless.acquire(&key, 1).await.unwrap().remaining(), 19, "nothing was charged before");

    let bucket = TokenBucket::new(TWENTY).into_limiter();
    let _ = bucket.acquire(&key, 5).await.unwrap();
    assert_eq!(bucket.peek(&key, 1).await.unwrap().remaining(), 14);
    assert_eq!(bucket.reset(&key).await.unwrap().remaining(), 20);
}

/// By its own type, and as any limiter; borrowed, and owned.
#[tokio::test]
async fn the_permit_holds_units_in_flight() {
    let key = PartitionKey::from("key");
    let own = Arc::new(Concurrency::new(2));
    let any: Arc<dyn Limiter> = Arc::<Concurrency>::clone(&own);
    let in_flight = || own.stats().in_flight;
    {
        let _first = own.acquire(&key, 1).await.unwrap();
        let second = any.acquire(&key, 1).await.unwrap();
        assert_eq!((second.is_allowed(), second.units(), in_flight()), (true, 1, Some(2)));
        let third = any.acquire(&key, 1).await.unwrap();
        assert_eq!((third.units(), third.admitted().is_none()), (0, true));
    }
    assert_eq!(in_flight(), Some(0));
    let permit = own.acquire_owned(&key, 2).await.unwrap();
    assert_eq!((permit.units(), in_flight()), (2, Some(2)));
    drop(permit);
    let permit = any.acquire_owned(&key, 2).await.unwrap();
    drop(any);
    std::thread::spawn(move || drop(permit)).join().unwrap();
    assert_eq!(in_flight(), Some(0));
    drop(own.try_acquire(&key, 2).unwrap());
    assert!(own.try_acquire(&key, 3).is_none());
    assert_eq!(in_flight(), Some(0));
}

/// A bucket's tokens are spent, unless the caller takes the charge back.
#[tokio::test]
async fn a_buckets_permit_refunds_only_on_request() {
    let (bucket, key) = (TokenBucket::new(TWENTY).into_limiter(), PartitionKey::from("key"));
    drop(bucket.acquire(&key, 5).await.unwrap());
    bucket.acquire(&key, 5).await.unwrap().refund();
    assert_eq!(bucket.peek(&key, 0).await.unwrap().remaining(), 15);
    let rejected = bucket.acquire(&key, 16).await.unwrap();
    rejected.refund();
    assert_eq!(bucket.peek(&key, 0).await.unwrap().remaining(), 15);
}
