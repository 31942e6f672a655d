//! `Expect: 100-continue` on a request that waits in a queue. hyper sends 100 when the body is first polled, which does
//! not happen before the inner service is called. So a client that waits for it uploads nothing before its turn, and
//! nothing at all if it is rejected. (RFC 9110, section 10.1.1, asks for an immediate response.)

use std::sync::Arc;
use std::time::Duration;

use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::{Decision, LeakyQueue, Limiter, PartitionKey, Policy, Quota, RateLimitLayer};

use super::http1_client::Connection;
use super::{Server, until};

const UPLOAD: &str = "PUT /upload HTTP/1.1\r\nhost: test\r\ncontent-length: 2000000\r\nexpect: 100-continue\r\n\r\n";
const KEY: PartitionKey = PartitionKey::SHARED;

/// A server whose next turn comes in an hour, or when the current one is refunded.
struct Busy {
    queue: Arc<LeakyQueue>,
    turn: Decision,
    server: Server,
    client: Connection,
}

impl Busy {
    async fn new(capacity: usize) -> Self {
        let queue = LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::MAX).max_queue(capacity);
        let queue = Arc::new(queue);
        let Answer::Ready(Ok(turn)) = queue.decide(&Ask::charge(&KEY, 1)) else { panic!("the first need not wait") };
        let server = Server::http1(RateLimitLayer::new(Policy::new("queue", Arc::clone(&queue)))).await;
        let client = Connection::open(server.address).await;
        Self { queue, turn, server, client }
    }

    /// Sends an upload's head, which waits in the queue.
    async fn announce(&mut self) {
        self.client.send(UPLOAD).await;
        until(|| self.queue.waiting() == 1).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(self.client.is_silent(), "something was said before the turn");
        assert_eq!((self.server.called(), self.server.polled()), (0, 0));
    }

    fn let_in(&self) {
        self.queue.refund(&Ask::charge(&KEY, 1), self.turn.receipt(), 1);
    }
}

#[tokio::test]
async fn continue_is_sent_at_the_turn() {
    let mut busy = Busy::new(1).await;
    busy.announce().await;
    busy.let_in();
    assert_eq!(busy.client.answer("PUT").await.status, 100);
    assert_eq!(busy.server.called(), 1);
    busy.client.send(vec![b'x'; 2_000_000]).await;
    let served = busy.client.answer("PUT").await;
    assert_eq!((served.status, served.content.as_str()), (200, "2000000"));
}

/// Most clients send the body after about a second without 100. It stays in the system's buffers until the turn comes.
#[tokio::test]
async fn an_early_body_waits_for_the_turn() {
    let mut busy = Busy::new(1).await;
    busy.announce().await;
    busy.client.send(vec![b'x'; 10_000]).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(busy.client.is_silent());
    assert_eq!((busy.server.called(), busy.server.polled()), (0, 0));
    busy.let_in();
    // hyper sends 100 even now, which is superfluous but allowed.
    assert_eq!(busy.client.answer("PUT").await.status, 100);
    busy.client.send(vec![b'x'; 1_990_000]).await;
    let served = busy.client.answer("PUT").await;
    assert_eq!((served.status, served.content.as_str()), (200, "2000000"));
}

#[tokio::test]
async fn a_rejection_after_waiting_replaces_continue() {
    for case in ["no place", "closed"] {
        let capacity = usize::from(case != "no place");
        let mut busy = Busy::new(capacity).await;
        if case == "no place" {
            busy.client.send(UPLOAD).await;
        } else {
            busy.announce().await;
            busy.queue.close();
        }
        assert_eq!(busy.client.answer("PUT").await.status, 503, "{case}");
        // The client may still send the body, so hyper closes the connection.
        busy.client.ends().await;
        assert_eq!((busy.server.called(), busy.server.polled()), (0, 0), "{case}");
    }
}
