//! The statements sent for a decision, by a server's log, with its clock and ours as in production.

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};

use super::server::PostgresServer;
use super::*;

/// The first words of the statements executed since the last call.
struct Log<'a> {
    server: &'a PostgresServer,
    read: usize,
}

impl Log<'_> {
    async fn take(&mut self, count: usize) -> Vec<String> {
        let mut words = Vec::new();
        timing::eventually("the statements are logged", async || {
            let log = self.server.log();
            let executed =
                log.lines().filter_map(|line| line.split_once(" execute ")?.1.split_once(": ").map(|(_, text)| text));
            words = executed.skip(self.read).map(|text| text.split(' ').next().unwrap_or(text).to_owned()).collect();
            words.len() >= count
        })
        .await;
        self.read += words.len();
        words
    }
}

/// A new row takes a second statement.
#[tokio::test]
async fn a_known_row_takes_one_statement() {
    let server = PostgresServer::with(&["log_statement = 'mod'"]);
    let postgres = process(&pool(&server.url(), 1));
    postgres.migrate().await.unwrap();
    let mut log = Log { server: &server, read: 0 };
    async fn check<A: Kept>(postgres: &Postgres, log: &mut Log<'_>, algorithm: A) {
        let limiter = limiter_without_coalescing(postgres, algorithm);
        for expected in [&["UPDATE", "INSERT"][..], &["UPDATE"], &["UPDATE"]] {
            assert!(ask(&limiter, "a").await.unwrap().is_allowed());
            assert_eq!(log.take(expected.len()).await, expected);
        }
    }
    check(&postgres, &mut log, TokenBucket::new(quota(5))).await;
    check(&postgres, &mut log, FixedWindow::new(quota(5))).await;
    check(&postgres, &mut log, SlidingWindow::new(quota(5))).await;
}
