//! The server's clock was set back, so rows are from the future. Each key recovers at once.
//!
//! The tests do the opposite, which has the same effect: they move a row into the future.

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};

use super::server::PostgresServer;
use super::*;

/// Makes a key that was used by a clock which was ahead by 1,000 days. Returns another process's limiter.
async fn moved<A: Kept>(algorithm: A, uses: u64, moves: &str) -> (PostgresServer, Over<A>) {
    let server = PostgresServer::start();
    let postgres = process(&pool(&server.url(), 1));
    postgres.migrate().await.unwrap();
    let before = limiter(&postgres, algorithm.clone());
    for _ in 0..uses {
        assert!(ask(&before, "key").await.unwrap().is_allowed());
    }
    let moved = format!("UPDATE sluice_state SET changed = changed + interval '1000 days', {moves} RETURNING 1");
    assert_eq!(server.run(&moved), "1");
    (server, limiter(&postgres, algorithm))
}

async fn peek<A: Kept>(limiter: &Over<A>, cost: u64) -> Decision {
    limiter.peek(&"key".into(), cost).await.unwrap()
}

/// `changed` is in the present again.
fn assert_present(server: &PostgresServer) {
    assert_eq!(server.run("SELECT changed <= clock_timestamp() FROM sluice_state"), "t");
}

#[tokio::test]
async fn a_bucket_keeps_its_debt() {
    // A unit in ten days.
    let bucket = TokenBucket::new(quota(10));
    let moves = "number = number + 1000 * 86400::numeric * 1000000000 * 10";
    for uses in [3, 10] {
        let (server, limiter) = moved(bucket, uses, moves).await;
        assert_eq!(peek(&limiter, 0).await.remaining(), 10 - uses);
        let decision = ask(&limiter, "key").await.unwrap();
        assert_eq!(decision.is_allowed(), uses < 10);
        assert_eq!(peek(&limiter, 0).await.remaining(), (10 - uses).saturating_sub(1));
        if let Some(wait) = decision.retry_after() {
            assert!(wait > 9 * DAY && wait <= 10 * DAY, "{wait:?}");
        }
        assert_present(&server);
    }
}

#[tokio::test]
async fn a_future_fixed_window_becomes_the_next() {
    for uses in [3, 10] {
        let (server, limiter) = moved(FixedWindow::new(quota(10)), uses, "number = number + 10").await;
        assert_eq!(peek(&limiter, 0).await.remaining(), 10 - uses);
        let decision = ask(&limiter, "key").await.unwrap();
        assert_eq!(decision.is_allowed(), uses < 10);
        let wait = decision.retry_after().unwrap_or(decision.reset_after());
        assert!(wait > 100 * DAY && wait <= 200 * DAY, "to the end of the next window: {wait:?}");
        let number = "SELECT number - floor(extract(epoch FROM clock_timestamp()) / 8640000) FROM sluice_state";
        assert_eq!(server.run(number), "1");
        assert_present(&server);
    }
}

#[tokio::test]
async fn a_future_sliding_window_becomes_the_next() {
    for uses in [3, 10] {
        let (server, limiter) = moved(SlidingWindow::new(quota(10)), uses, "number = number + 10").await;
        assert_eq!(peek(&limiter, 0).await.remaining(), 10 - uses);
        let decision = ask(&limiter, "key").await.unwrap();
        assert_eq!(decision.is_allowed(), uses < 10);
        let reset = decision.reset_after();
        assert!(reset > 200 * DAY && reset <= 300 * DAY, "to the end of the window behind it: {reset:?}");
        let number = "SELECT number - floor(extract(epoch FROM clock_timestamp()) / 8640000) FROM sluice_state";
        assert_eq!(server.run(number), "1");
        assert_present(&server);
    }
}

#[cfg(feature = "calendar")]
#[tokio::test]
async fn a_future_calendar_window_becomes_the_present() {
    let month = tower_sluice::algorithm::CalendarWindow::monthly(10);
    for uses in [3, 10] {
        let (server, limiter) =
            moved(month.clone(), uses, "number = number + 1000 * 86400::numeric * 1000000000").await;
        assert_eq!(peek(&limiter, 0).await.remaining(), 10 - uses);
        let decision = ask(&limiter, "key").await.unwrap();
        assert_eq!(decision.is_allowed(), uses < 10);
        assert!(decision.reset_after() <= 31 * DAY, "{:?}", decision.reset_after());
        let ends = "SELECT to_timestamp(number / 1000000000) = date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC') \
                    AT TIME ZONE 'UTC' + interval '1 month' FROM sluice_state";
        assert_eq!(server.run(&format!("SET timezone = 'UTC'; {ends}")), "t");
        assert_present(&server);
    }
}

/// If the clock changes, a ban keeps its remaining length.
#[tokio::test]
async fn a_ban_keeps_its_remaining_length() {
    async fn check<A: Kept>(algorithm: A) {
        // It was to end a day later.
        let moves = "banned_until = round((extract(epoch FROM changed) + 1001 * 86400) * 1000000000)";
        let (server, limiter) = moved(algorithm, 1, moves).await;
        let wait = ask(&limiter, "key").await.unwrap().retry_after().unwrap();
        assert!(wait <= DAY, "{wait:?}");
        assert_present(&server);
        server.run("UPDATE sluice_state SET banned_until = banned_until - 86400::numeric * 1000000000");
        let other = super::limiter(&process(&pool(&server.url(), 1)), limiter.algorithm().clone());
        assert!(ask(&other, "key").await.unwrap().is_allowed());
    }
    check(TokenBucket::new(quota(10))).await;
    check(FixedWindow::new(quota(10))).await;
    check(SlidingWindow::new(quota(10))).await;
}
