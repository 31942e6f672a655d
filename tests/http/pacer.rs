//! A client that obeys its partner: order, rejections, bounds, and what a partner may report.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use http::{Request, Response};
use tokio::time::{Instant, sleep, timeout};
use tower::util::BoxCloneService;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::{Pacer, PacerError, PacerFuture, PacerLayer, PartitionKey, Quota};

const SECOND: Duration = Duration::from_secs(1);

/// What a partner sees of the calls, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Arrived(u32),
    Rejected(u32),
}

/// A partner with a fixed window, which begins with the first call. A call takes 20 ms.
#[derive(Clone)]
struct Partner {
    limit: u32,
    window: Duration,
    /// Whether it reports what is left.
    has_fields: bool,
    /// What it answers to a call beyond the limit, in place of the true wait.
    retry_after: Option<&'static str>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    begun: Option<Instant>,
    window: u128,
    used: u32,
    seen: Vec<(Seen, Instant)>,
}

impl Partner {
    fn new(limit: u32, window: Duration) -> Self {
        Self { limit, window, has_fields: true, retry_after: None, state: Arc::default() }
    }

    fn without_fields(self) -> Self {
        Self { has_fields: false, ..self }
    }

    fn retry_after(self, value: &'static str) -> Self {
        Self { retry_after: Some(value), ..self }
    }

    /// Other clients take a part of the window.
    fn take(&self, units: u32) {
        self.state.lock().unwrap().used += units;
    }

    fn answer(&self, number: u32) -> Response<()> {
        let mut state = self.state.lock().unwrap();
        let now = Instant::now();
        let elapsed = now - *state.begun.get_or_insert(now);
        let window = elapsed.as_nanos() / self.window.as_nanos();
        if window != state.window {
            (state.window, state.used) = (window, 0);
        }
        state.seen.push((Seen::Arrived(number), now));
        let left = self.window * u32::try_from(window + 1).unwrap() - elapsed;
        let seconds = (left.as_secs() + u64::from(left.subsec_nanos() > 0)).to_string();
        let mut response = Response::builder();
        if state.used < self.limit {
            state.used += 1;
        } else {
            state.seen.push((Seen::Rejected(number), now));
            response = response.status(429).header("retry-after", self.retry_after.unwrap_or(&seconds));
        }
        if self.has_fields {
            let remaining = self.limit.saturating_sub(state.used);
            response = response.header("ratelimit", format!("\"p\";r={remaining};t={seconds}"));
        }
        response.body(()).unwrap()
    }

    fn client(&self, layer: &PacerLayer<()>) -> Client {
        let partner = self.clone();
        let service = service_fn(move |request: Request<()>| {
            let partner = partner.clone();
            async move {
                sleep(Duration::from_millis(10)).await;
                let response = partner.answer(request.uri().path()[1..].parse().unwrap());
                sleep(Duration::from_millis(10)).await;
                Ok(response)
            }
        });
        layer.layer(BoxCloneService::new(service))
    }

    fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.iter().map(|(seen, _)| *seen).collect()
    }

    /// The times of all arrivals, since the first.
    fn arrivals(&self) -> Vec<Duration> {
        let state = self.state.lock().unwrap();
        let arrivals = state.seen.iter().filter(|(seen, _)| matches!(seen, Seen::Arrived(_)));
        arrivals.map(|(_, at)| *at - state.begun.unwrap()).collect()
    }

    fn rejected(&self) -> usize {
        self.seen().iter().filter(|seen| matches!(seen, Seen::Rejected(_))).count()
    }
}

type Client = Pacer<BoxCloneService<Request<()>, Response<()>, Infallible>, ()>;
type Call = PacerFuture<(), Infallible>;

fn call_to(client: &mut Client, host: &str, number: u32) -> Call {
    client.call(Request::get(format!("https://{host}/{number}")).body(()).unwrap())
}

fn call(client: &mut Client, number: u32) -> Call {
    call_to(client, "partner.example", number)
}

async fn status(call: Call) -> u16 {
    call.await.unwrap().status().as_u16()
}

/// Makes so many calls at once, and returns how many were served.
async fn served(client: &mut Client, calls: u32) -> usize {
    let calls: Vec<_> = (0..calls).map(|number| call(client, number)).collect();
    let statuses = join_all(calls.into_iter().map(status)).await;
    statuses.iter().filter(|status| **status == 200).count()
}

/// No call arrives while one that came earlier waits: what was rejected arrives again before all that have not arrived
/// yet.
fn assert_order(seen: &[Seen]) {
    let (mut next, mut rejected) = (0, BTreeSet::new());
    for event in seen {
        match *event {
            Seen::Rejected(number) => assert!(rejected.insert(number)),
            Seen::Arrived(number) if rejected.is_empty() => {
                assert_eq!(number, next, "{seen:?}");
                next += 1;
            }
            Seen::Arrived(number) => assert_eq!(rejected.pop_first(), Some(number), "{seen:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_depart_in_order_also_around_a_rejected_one() {
    let partner = Partner::new(10, 10 * SECOND);
    let mut client = partner.client(&PacerLayer::new());
    // What the client cannot know: all is used up before its first call, and again in the second window.
    partner.take(10);
    let calls: Vec<_> = (0..25).map(|number| call(&mut client, number)).collect();
    let others = async {
        sleep(Duration::from_millis(12_500)).await;
        partner.take(10);
    };
    let (statuses, ()) = tokio::join!(join_all(calls.into_iter().map(status)), others);
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert_eq!(partner.rejected(), 2);
    assert_order(&partner.seen());
}

/// Calls come at random times, some leave, and others draw on the same quota: the order holds.
#[tokio::test(start_paused = true)]
async fn order_holds_under_random_schedules() {
    for seed in 1..40_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = move |end: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % end
        };
        let partner = Partner::new(5, 3 * SECOND);
        let mut client = partner.client(&PacerLayer::new().attempts(20));
        let mut calls = Vec::new();
        for number in 0..40 {
            let call = call(&mut client, number);
            let patience = if below(5) == 0 { Duration::from_millis(below(5_000)) } else { 1_000 * SECOND };
            calls.push(tokio::spawn(async move { timeout(patience, call).await.is_ok() }));
            if below(3) == 0 {
                sleep(Duration::from_millis(below(2_000))).await;
            }
            if below(6) == 0 {
                partner.take(5);
            }
        }
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(client.waiting(), 0);
        let (seen, mut last, mut rejected) = (partner.seen(), None, BTreeSet::new());
        for (index, event) in seen.iter().enumerate() {
            match *event {
                Seen::Rejected(number) => assert!(rejected.insert(number)),
                Seen::Arrived(number) if Some(number) > last => {
                    // What was rejected before, and has not come again, has left.
                    let is_late = |seen: &Seen| matches!(seen, Seen::Arrived(number) if rejected.contains(number));
                    assert!(!seen[index..].iter().any(is_late), "seed {seed}: {number} overtook {rejected:?}");
                    last = Some(number);
                }
                Seen::Arrived(number) => assert!(rejected.remove(&number), "seed {seed}: {number} came late"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_rejected_and_nearly_all_is_used() {
    let partner = Partner::new(100, 10 * SECOND);
    let mut client = partner.client(&PacerLayer::new().max_wait(100 * SECOND));
    assert_eq!(served(&mut client, 500).await, 500);
    let (arrivals, rejected) = (partner.arrivals(), partner.rejected());
    assert_eq!(rejected, 0);
    // Five windows, and hardly anything of a sixth.
    assert!(arrivals[499] < 50 * SECOND + SECOND / 2, "{:?}", arrivals[499]);
    // Spread: a tenth of a second apart, but for where a window ends.
    let gaps = arrivals.windows(2).map(|pair| pair[1] - pair[0]);
    let even = gaps.filter(|gap| *gap > SECOND / 20 && *gap < SECOND / 5).count();
    assert!(even > 470, "{even} of 499 are even");
}

/// A stored response has an `Age`, and reports what was left when it was stored. It was no answer at all, so each call was
/// the first, and only one was in flight at a time.
#[tokio::test(start_paused = true)]
async fn a_partner_behind_a_cache_is_called_without_a_line() {
    let partner = service_fn(|_: Request<()>| async {
        sleep(SECOND / 20).await;
        let response = Response::builder().header("age", "17").header("ratelimit", r#""a";r=0;t=5"#);
        Ok::<_, Infallible>(response.body(()).unwrap())
    });
    let client = PacerLayer::new().layer(partner);
    let begun = Instant::now();
    let calls = (0..1_000).map(|_| client.clone().oneshot(Request::get("http://partner/").body(()).unwrap()));
    let refused = join_all(calls).await.into_iter().find_map(Result::err);
    assert!(refused.is_none(), "{refused:?}");
    assert!(begun.elapsed() <= SECOND / 5, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_the_whole_line() {
    let partner = Partner::new(1, 30 * SECOND).without_fields();
    partner.take(1);
    let mut client = partner.client(&PacerLayer::new().max_wait(100 * SECOND));
    assert_eq!(served(&mut client, 2).await, 2);
    // The first one is rejected, and comes again after 30 seconds; then the second is, and comes after 30 more.
    assert_eq!(partner.seen()[..2], [Seen::Arrived(0), Seen::Rejected(0)]);
    assert_order(&partner.seen());
    assert!(partner.arrivals().iter().skip(1).all(|at| *at >= 30 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_partner_that_reports_nothing_is_limited_by_our_quota_only() {
    let partner = Partner::new(1_000, 1_000 * SECOND).without_fields();
    let start = Instant::now();
    assert_eq!(served(&mut partner.client(&PacerLayer::new()), 100).await, 100);
    // The first call goes alone, and the others all at once.
    assert!(start.elapsed() < SECOND / 20, "{:?}", start.elapsed());
    let layer = PacerLayer::new().quota(Quota::per_second(10).burst(3));
    let (mut client, start) = (partner.client(&layer), Instant::now());
    assert_eq!(served(&mut client, 23).await, 23);
    assert!((2 * SECOND..2 * SECOND + SECOND / 10).contains(&start.elapsed()), "{:?}", start.elapsed());
}

/// What a caller gives up, it does not take with it.
#[tokio::test(start_paused = true)]
async fn callers_that_give_up_use_nothing_of_our_quota() {
    let partner = Partner::new(1_000, 1_000 * SECOND).without_fields();
    let layer = PacerLayer::new().quota(Quota::per_minute(2)).max_wait(100 * SECOND);
    let mut client = partner.client(&layer);
    assert_eq!(status(call(&mut client, 0)).await, 200);
    for number in 1..10 {
        let given_up = timeout(SECOND, status(call(&mut client, number))).await;
        assert!(given_up.is_err(), "{number}");
    }
    assert_eq!(status(call(&mut client, 10)).await, 200);
    let departed = partner.arrivals()[1];
    assert!((30 * SECOND..31 * SECOND).contains(&departed), "{departed:?}");
}

#[tokio::test(start_paused = true)]
async fn each_host_has_a_line_of_its_own() {
    let partner = Partner::new(1, 50 * SECOND);
    let mut client = partner.client(&PacerLayer::new());
    assert_eq!(status(call_to(&mut client, "a.example", 0)).await, 200);
    let hosts = ["a.example", "user:secret@A.EXAMPLE", "b.example", "a.example:8443"];
    let calls: Vec<_> = (1..).zip(hosts).map(|(number, host)| call_to(&mut client, host, number)).collect();
    let sent = timeout(SECOND / 10, join_all(calls.into_iter().map(status))).await;
    assert!(sent.is_err(), "the first host takes no more for now");
    let arrived = [0, 3, 4].map(Seen::Arrived);
    assert_eq!(partner.seen().into_iter().filter(|seen| matches!(seen, Seen::Arrived(_))).collect::<Vec<_>>(), arrived);
}

#[tokio::test(start_paused = true)]
async fn the_caller_gets_the_rejection_of_a_call_that_cannot_be_sent_again() {
    let partner = Partner::new(1, 30 * SECOND);
    partner.take(1);
    let mut client = partner.client(&PacerLayer::with_clone(|_| None));
    assert_eq!(status(call(&mut client, 0)).await, 429);
    // The line is paused nevertheless.
    assert_eq!(status(call(&mut client, 1)).await, 200);
    assert!(partner.arrivals()[1] >= 30 * SECOND);

    let partner = Partner::new(0, 30 * SECOND);
    let mut client = partner.client(&PacerLayer::new().attempts(2).max_wait(1_000 * SECOND));
    assert_eq!(status(call(&mut client, 0)).await, 429);
    assert_eq!(partner.arrivals().len(), 2, "as many attempts");
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded_in_number_and_in_time() {
    let partner = Partner::new(1, 30 * SECOND);
    let mut client = partner.client(&PacerLayer::new().max_waiters(2).max_wait(20 * SECOND));
    assert_eq!(status(call(&mut client, 0)).await, 200);
    // It is known that nothing departs for 30 seconds.
    let Err(PacerError::WaitTooLong { retry_after: Some(wait), .. }) = call(&mut client, 1).await else {
        panic!("it waits")
    };
    assert!((29 * SECOND..=30 * SECOND).contains(&wait), "{wait:?}");
    sleep(15 * SECOND).await;
    let _waiting = [2, 3].map(|number| call(&mut client, number));
    let full = call(&mut client, 4).await.unwrap_err();
    assert!(matches!(full, PacerError::LineFull { max_waiters: 2, .. }), "{full}");

    // It is not known at first: the call is rejected, and would have to wait for longer than it may.
    let partner = Partner::new(1, 30 * SECOND);
    partner.take(1);
    let mut client = partner.client(&PacerLayer::new().max_wait(20 * SECOND));
    let [first, second] = [0, 1].map(|number| call(&mut client, number));
    assert_eq!(status(first).await, 429);
    let Err(PacerError::WaitTooLong { retry_after: Some(_), .. }) = second.await else { panic!("it waits") };
    assert_eq!(client.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_leaves_the_line() {
    let partner = Partner::new(1, 10 * SECOND);
    let mut client = partner.client(&PacerLayer::new());
    assert_eq!(status(call(&mut client, 0)).await, 200);
    let waiting: Vec<_> = (1..100).map(|number| call(&mut client, number)).collect();
    let last = call(&mut client, 100);
    assert_eq!(client.waiting(), 100);
    drop(waiting);
    assert_eq!(client.waiting(), 1);
    assert_eq!(status(last).await, 200);
    assert_eq!(partner.seen(), [Seen::Arrived(0), Seen::Arrived(100)]);
    // One that is dropped while it is alone under way: the next need not wait for its answer.
    sleep(20 * SECOND).await;
    let lost = tokio::spawn(call(&mut client, 101));
    sleep(Duration::from_millis(5)).await;
    lost.abort();
    let start = Instant::now();
    assert_eq!(status(call(&mut client, 102)).await, 200);
    assert!(start.elapsed() < SECOND / 10, "{:?}", start.elapsed());
    assert_eq!(client.waiting(), 0);
}

/// Values that no honest partner sends: the line goes on after the longest pause.
#[tokio::test(start_paused = true)]
async fn a_hostile_partner_stops_the_line_for_the_longest_pause_at_most() {
    for value in ["1000000000", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"] {
        let partner = Partner::new(1, 30 * SECOND).without_fields().retry_after(value);
        partner.take(1);
        let layer = PacerLayer::new().max_pause(40 * SECOND).max_wait(1_000 * SECOND);
        assert_eq!(status(call(&mut partner.client(&layer), 0)).await, 200);
        assert!(partner.arrivals()[1] < 41 * SECOND, "{value}");
    }
    for field in [
        r#""a";r=0;t=999999999999999"#,
        r#""a";r=1;t=999999999999999"#,
        r#""a";r=-5;t=-5"#,
        "limit=0, remaining=999999999999999, reset=999999999999999",
    ] {
        let service = service_fn(move |_: Request<()>| async move {
            Ok::<_, Infallible>(Response::builder().header("ratelimit", field).body(()).unwrap())
        });
        let layer = PacerLayer::new().max_pause(40 * SECOND);
        let mut client: Client = layer.layer(BoxCloneService::new(service));
        let start = Instant::now();
        for number in 0..3 {
            assert_eq!(status(call(&mut client, number)).await, 200);
        }
        assert!(start.elapsed() < 81 * SECOND, "{field}: {:?}", start.elapsed());
    }
}

#[test]
fn outside_of_a_runtime_a_call_fails_with_an_error() {
    let service = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let mut client: Client = PacerLayer::new().layer(BoxCloneService::new(service));
    assert!(matches!(call(&mut client, 0).now_or_never(), Some(Err(PacerError::NoRuntime))));
}

/// Calls of two runtimes are in one line; the one that joined it first is blocked.
#[test]
fn a_runtime_that_is_blocked_delays_no_other() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (blocked, other) = (runtime(), runtime());
    let service = service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::builder().header("ratelimit", r#""a";r=99;t=1"#).body(()).unwrap())
    });
    let layer = PacerLayer::new().key(|_: &Request<()>| PartitionKey::SHARED);
    let mut client: Client = layer.layer(BoxCloneService::new(service));
    assert_eq!(blocked.block_on(async { status(call(&mut client, 0)).await }), 200);
    let _joined = {
        let _guard = blocked.enter();
        [1, 2, 3].map(|number| call(&mut client, number))
    };
    // From here on, nobody drives the first runtime.
    let mine = {
        let _guard = other.enter();
        call(&mut client, 4)
    };
    let turn = other.block_on(async { timeout(10 * SECOND, mine).await });
    assert_eq!(turn.expect("its turn comes").unwrap().status(), 200);
}
