//! A client that obeys its partner, in several processes that share its pace on Redis.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::{Request, Response};
use tower::util::BoxCloneService;
use tower::{Layer, Service, service_fn};
use tower_sluice_client::{Pacer, PacerLayer};
use tower_sluice_redis::Redis;

use crate::redis::RedisServer;
use crate::timing::{eventually, some_attempt_async};

/// A timeout that every call meets, however busy the machine is.
const PLENTY: Duration = Duration::from_secs(10);

type Client = Pacer<BoxCloneService<Request<()>, Response<()>, Infallible>, ()>;

/// A partner with a fixed window of a second or more, which begins with the first call.
struct Partner {
    limit: u64,
    window: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    begun: Option<Instant>,
    /// When each call came, and whether it was served.
    calls: Vec<(Instant, bool)>,
}

impl Partner {
    fn new(limit: u64, window: Duration) -> Arc<Self> {
        Arc::new(Self { limit, window, state: Mutex::default() })
    }

    fn answer(&self) -> Response<()> {
        let mut state = self.state.lock().unwrap();
        let now = Instant::now();
        let begun = *state.begun.get_or_insert(now);
        let window = |at: Instant| (at - begun).as_nanos() / self.window.as_nanos();
        let used = state.calls.iter().filter(|(at, is_served)| *is_served && window(*at) == window(now)).count();
        let used = used as u64;
        let is_served = used < self.limit;
        state.calls.push((now, is_served));
        let left = self.window * u32::try_from(window(now) + 1).unwrap() - (now - begun);
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        let remaining = self.limit - used - u64::from(is_served);
        let response = Response::builder().header("ratelimit", format!("\"p\";r={remaining};t={seconds}"));
        let response = if is_served { response } else { response.status(429).header("retry-after", seconds) };
        response.body(()).unwrap()
    }

    fn rejected(&self) -> usize {
        self.state.lock().unwrap().calls.iter().filter(|(_, is_served)| !is_served).count()
    }

    /// A process with its own connections.
    fn client(self: &Arc<Self>, server: &RedisServer) -> Client {
        let partner = Arc::clone(self);
        let service = service_fn(move |_: Request<()>| std::future::ready(Ok::<_, Infallible>(partner.answer())));
        let redis = Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
        PacerLayer::new().shared(&redis, "test").layer(BoxCloneService::new(service))
    }
}

async fn call(client: &mut Client) -> u16 {
    let request = Request::get("http://partner.example/").body(()).unwrap();
    client.call(request).await.unwrap().status().as_u16()
}

/// Alone, each process would send all its calls at first. A busy machine delays calls into the next window.
#[tokio::test]
async fn processes_share_what_is_left() {
    some_attempt_async("at most 20 calls are rejected", async || {
        let rejected = rejected_in_three_windows().await;
        if rejected <= 20 { Ok(()) } else { Err(format!("{rejected} were rejected")) }
    })
    .await;
}

async fn rejected_in_three_windows() -> usize {
    let (server, partner) = (RedisServer::start(), Partner::new(40, Duration::from_secs(1)));
    let start = Instant::now();
    let processes = (0..8).map(|_| {
        let client = partner.client(&server);
        async move {
            let calls = (0..15).map(|_| {
                let mut client = client.clone();
                async move { call(&mut client).await }
            });
            join_all(calls).await
        }
    });
    let statuses: Vec<u16> = join_all(processes).await.into_iter().flatten().collect();
    assert_eq!(statuses, [200; 120]);
    println!("{} were rejected in {:?}", partner.rejected(), start.elapsed());
    assert!(start.elapsed() > Duration::from_secs(2), "{:?}", start.elapsed());
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    assert_eq!(keys.len(), 1, "{keys:?}");
    let expires: i64 = server.run(&["PTTL", &keys[0]]);
    assert!((1..120_000).contains(&expires), "{expires}");
    partner.rejected()
}

#[tokio::test]
async fn a_pause_holds_for_all_processes() {
    let (server, partner) = (RedisServer::start(), Partner::new(1, Duration::from_secs(1)));
    let [mut here, mut there] = [partner.client(&server), partner.client(&server)];
    assert_eq!(call(&mut here).await, 200);
    // Its answer is reported in the background.
    eventually("it is reported", async || server.runs() == 2).await;
    assert_eq!(call(&mut there).await, 200);
    assert_eq!(partner.rejected(), 0);
}

#[tokio::test]
async fn without_redis_processes_pace_alone() {
    let (mut server, partner) = (RedisServer::start(), Partner::new(2, Duration::from_secs(1)));
    let mut client = partner.client(&server);
    let start = Instant::now();
    assert_eq!(call(&mut client).await, 200);
    server.kill();
    for _ in 0..3 {
        assert_eq!(call(&mut client).await, 200);
    }
    assert_eq!(partner.rejected(), 0);
    assert!(start.elapsed() > Duration::from_secs(1), "{:?}", start.elapsed());
}
