//! A client that obeys its partner: order, rejections, bounds, and the reports that a partner may send.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use http::{HeaderMap, Request, Response, StatusCode};
use tokio::time::{Instant, sleep, timeout};
use tower::util::BoxCloneService;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::testing::{Random, seeds};
use tower_sluice::{PartitionKey, Quota};
use tower_sluice_client::{Pacer, PacerError, PacerFuture, PacerLayer, WaitStatuses};

const SECOND: Duration = Duration::from_secs(1);

/// The longest time from a partner's answer to the arrival of a call that was sent before its client had that answer:
/// the timer rounds each way up by a millisecond.
const ROUND_TRIP: Duration = Duration::from_millis(22);

/// The calls as a partner sees them, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Arrived(u32),
    Rejected(u32),
}

/// A partner with a fixed window, which begins with the first call. A call takes 20 ms.
#[derive(Clone)]
struct Partner {
    limit: u64,
    window: Duration,
    /// Whether it reports its remaining units.
    has_fields: bool,
    /// Its `Retry-After` for a call beyond the limit, in place of the true wait.
    retry_after: Option<&'static str>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    begun: Option<Instant>,
    window: u128,
    used: u64,
    seen: Vec<(Seen, Instant)>,
}

impl Partner {
    fn new(limit: u64, window: Duration) -> Self {
        Self { limit, window, has_fields: true, retry_after: None, state: Arc::default() }
    }

    fn without_fields(self) -> Self {
        Self { has_fields: false, ..self }
    }

    fn retry_after(self, value: &'static str) -> Self {
        Self { retry_after: Some(value), ..self }
    }

    /// Other clients use up a part of the window.
    fn take(&self, units: u64) {
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

/// Makes this many calls at once, and returns how many were served.
async fn served(client: &mut Client, calls: u32) -> usize {
    let calls: Vec<_> = (0..calls).map(|number| call(client, number)).collect();
    let statuses = join_all(calls.into_iter().map(status)).await;
    statuses.iter().filter(|status| **status == 200).count()
}

/// No call arrives while an earlier one waits: rejected calls arrive again before all that have not arrived yet.
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
async fn rejections_keep_the_order() {
    let partner = Partner::new(10, 10 * SECOND);
    let mut client = partner.client(&PacerLayer::new());
    // The client cannot know that everything is used up before its first call, and again in the second window.
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

/// Calls come at random times, some leave, and others use up the quota, too.
#[tokio::test(start_paused = true)]
async fn order_holds_under_random_schedules() {
    for seed in seeds(40) {
        let mut random = Random::new(seed);
        let mut below = move |end: u64| random.below(end);
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
        let (seen, mut last, mut rejected) = (partner.state.lock().unwrap().seen.clone(), None, BTreeMap::new());
        for (index, (event, at)) in seen.iter().enumerate() {
            match *event {
                Seen::Rejected(number) => assert_eq!(rejected.insert(number, *at), None),
                Seen::Arrived(number) if Some(number) > last => {
                    // A call that was rejected before, and has not come again, has left, unless this call was in flight
                    // when the rejection came, because the window may have ended between the two.
                    let may_come = |number: u32| rejected.get(&number).is_none_or(|since| *at - *since <= ROUND_TRIP);
                    let is_late = |(seen, _): &(Seen, _)| matches!(*seen, Seen::Arrived(number) if !may_come(number));
                    assert!(!seen[index..].iter().any(is_late), "seed {seed}: {number} overtook {rejected:?}");
                    last = Some(number);
                }
                Seen::Arrived(number) => assert!(rejected.remove(&number).is_some(), "seed {seed}: {number} came late"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nearly_all_is_used_without_rejections() {
    let partner = Partner::new(100, 10 * SECOND);
    let mut client = partner.client(&PacerLayer::new().max_wait(100 * SECOND));
    assert_eq!(served(&mut client, 500).await, 500);
    let (arrivals, rejected) = (partner.arrivals(), partner.rejected());
    assert_eq!(rejected, 0);
    // Five windows, and hardly any time in a sixth.
    assert!(arrivals[499] < 50 * SECOND + SECOND / 2, "{:?}", arrivals[499]);
    // The calls are a tenth of a second apart, except where a window ends.
    let gaps = arrivals.windows(2).map(|pair| pair[1] - pair[0]);
    let even = gaps.filter(|gap| *gap > SECOND / 20 && *gap < SECOND / 5).count();
    assert!(even > 470, "{even} of 499 are even");
}

/// A stored response has an `Age`, and reports the units that were left when it was stored. It did not count as an
/// answer, so each call was the first, and only one was in flight at a time.
#[tokio::test(start_paused = true)]
async fn cached_answers_hold_up_no_calls() {
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
    // The slow start takes ten round trips.
    assert!(begun.elapsed() <= SECOND, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_the_whole_line() {
    let partner = Partner::new(1, 30 * SECOND).without_fields();
    partner.take(1);
    let mut client = partner.client(&PacerLayer::new().max_wait(100 * SECOND));
    assert_eq!(served(&mut client, 2).await, 2);
    // The first one is rejected, and comes again after 30 seconds. Then the second is rejected, and comes after 30
    // more.
    assert_eq!(partner.seen()[..2], [Seen::Arrived(0), Seen::Rejected(0)]);
    assert_order(&partner.seen());
    assert!(partner.arrivals().iter().skip(1).all(|at| *at >= 30 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn silent_partners_follow_our_quota_only() {
    let partner = Partner::new(1_000, 1_000 * SECOND).without_fields();
    let start = Instant::now();
    assert_eq!(served(&mut partner.client(&PacerLayer::new()), 100).await, 100);
    // The first call goes alone, then two, four, and so on.
    assert!(start.elapsed() < SECOND / 5, "{:?}", start.elapsed());
    let layer = PacerLayer::new().quota(Quota::per_second(10).burst(3));
    let (mut client, start) = (partner.client(&layer), Instant::now());
    assert_eq!(served(&mut client, 23).await, 23);
    assert!((2 * SECOND..2 * SECOND + SECOND / 10).contains(&start.elapsed()), "{:?}", start.elapsed());
}

/// A caller that gives up does not take a departure with it.
#[tokio::test(start_paused = true)]
async fn callers_that_leave_use_no_quota() {
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
async fn each_host_has_its_own_line() {
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

/// A client with the port and one without it had two lines, and each used the partner's whole quota.
#[tokio::test(start_paused = true)]
async fn implied_ports_share_the_hosts_line() {
    let request = |uri: &str, host: Option<&str>| {
        let mut request = Request::get(uri).body(()).unwrap();
        if let Some(host) = host {
            request.headers_mut().insert("host", host.parse().unwrap());
        }
        request
    };
    for (first, same, others) in [
        ("https://a.example/0", ["https://A.example:443/1", "https://a.example:/1"], ["https://a.example:80/2"]),
        ("http://a.example:80/0", ["http://a.example/1", "http://u:p@a.example:0080/1"], ["http://a.example:443/2"]),
        ("https://[2001:db8::1]/0", ["https://[2001:DB8::1]:443/1", "https://[2001:db8::1]:/1"], ["https://[::1]/2"]),
    ] {
        let partner = Partner::new(1, 50 * SECOND);
        let mut client = partner.client(&PacerLayer::new());
        assert_eq!(status(client.call(request(first, None))).await, 200);
        let calls: Vec<_> = same.iter().chain(&others).map(|uri| client.call(request(uri, None))).collect();
        assert!(timeout(SECOND, join_all(calls.into_iter().map(status))).await.is_err());
        let arrived = partner.seen().into_iter().filter(|seen| matches!(seen, Seen::Arrived(_))).collect::<Vec<_>>();
        assert_eq!(arrived, [0, 2].map(Seen::Arrived), "{first}");
    }
    // Without a scheme, the port is unknown, so the host matches either port.
    let partner = Partner::new(1, 50 * SECOND);
    let mut client = partner.client(&PacerLayer::new());
    assert_eq!(status(client.call(request("/0", Some("a.example")))).await, 200);
    let hosts = ["A.example:80", "a.example:443", "a.example:8080"];
    let calls: Vec<_> =
        (1..).zip(hosts).map(|(path, host)| client.call(request(&format!("/{path}"), Some(host)))).collect();
    assert!(timeout(SECOND, join_all(calls.into_iter().map(status))).await.is_err());
    let arrived = partner.seen().into_iter().filter(|seen| matches!(seen, Seen::Arrived(_))).collect::<Vec<_>>();
    assert_eq!(arrived, [0, 3].map(Seen::Arrived));
}

/// A tonic client does not name a host, because its channel adds it. Two channels are two partners.
#[tokio::test(start_paused = true)]
async fn services_without_hosts_have_own_lines() {
    let layer = PacerLayer::new();
    let [paused, other] = [0; 2].map(|_| Partner::new(1, 50 * SECOND));
    let request = |number: u32| Request::get(format!("/{number}")).body(()).unwrap();
    let (mut to_paused, mut to_other) = (paused.client(&layer), other.client(&layer));
    assert_eq!(status(to_paused.call(request(0))).await, 200);
    let begun = Instant::now();
    assert_eq!(status(to_other.call(request(0))).await, 200);
    assert!(begun.elapsed() < SECOND / 10, "{:?}", begun.elapsed());
    // Clones of a service share its line.
    let sent = timeout(SECOND, status(to_paused.clone().call(request(1)))).await;
    assert!(sent.is_err(), "the first partner takes no more for now");
    assert_eq!(paused.arrivals().len(), 1);
}

/// A paused partner with a full line does not fill other lines.
#[tokio::test(start_paused = true)]
async fn partners_have_their_own_bounds() {
    let partner = Partner::new(1, 50 * SECOND);
    let mut client = partner.client(&PacerLayer::new().max_waiters(10));
    assert_eq!(status(call_to(&mut client, "a.example", 0)).await, 200);
    let waiting: Vec<_> = (1..=10).map(|number| call_to(&mut client, "a.example", number)).collect();
    let full = call_to(&mut client, "a.example", 11).await.unwrap_err();
    assert!(matches!(full, PacerError::LineFull { max_waiters: 10, .. }), "{full}");
    let mut others: Vec<_> = (0..10).map(|number| call_to(&mut client, "b.example", number)).collect();
    assert!(others.iter_mut().all(|call| call.now_or_never().is_none()), "none is refused");
    drop((waiting, others));
    assert_eq!(client.waiting(), 0);
}

/// A forge answers 403 for its burst limit, and your own partner may use any status.
#[tokio::test(start_paused = true)]
async fn statuses_that_mean_wait_pause_the_line() {
    for (code, is_set) in [(403, false), (418, false), (400, true)] {
        let calls = Arc::new(Mutex::new(0));
        let partner = {
            let calls = Arc::clone(&calls);
            service_fn(move |_: Request<()>| {
                let mut calls = calls.lock().unwrap();
                *calls += 1;
                let response = Response::builder().status(code).header("retry-after", "60.0");
                std::future::ready(Ok::<_, Infallible>(response.body(()).unwrap()))
            })
        };
        let mut layer = PacerLayer::new().max_wait(50 * SECOND);
        if is_set {
            layer = layer.wait_statuses(WaitStatuses::new().always(StatusCode::from_u16(code).unwrap()));
        }
        let mut client: Client = layer.layer(BoxCloneService::new(partner));
        assert_eq!(status(call(&mut client, 0)).await, code);
        for number in 1..100 {
            let refused = call(&mut client, number).await.unwrap_err();
            assert!(matches!(refused, PacerError::WaitTooLong { .. }), "{refused}");
        }
        assert_eq!(*calls.lock().unwrap(), 1, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn unrepeatable_calls_return_their_rejection() {
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
async fn waits_are_bounded_in_number_and_time() {
    let partner = Partner::new(1, 30 * SECOND);
    let mut client = partner.client(&PacerLayer::new().max_waiters(2).max_wait(20 * SECOND));
    assert_eq!(status(call(&mut client, 0)).await, 200);
    // The layer knows that nothing departs for 30 seconds.
    let Err(PacerError::WaitTooLong { retry_after: Some(wait), .. }) = call(&mut client, 1).await else {
        panic!("it waits")
    };
    assert!((29 * SECOND..=30 * SECOND).contains(&wait), "{wait:?}");
    sleep(15 * SECOND).await;
    let _waiting = [2, 3].map(|number| call(&mut client, number));
    let full = call(&mut client, 4).await.unwrap_err();
    assert!(matches!(full, PacerError::LineFull { max_waiters: 2, .. }), "{full}");

    // At first, the layer does not know: the call is rejected, and would have to wait for longer than it may.
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
    // A call is dropped while it is alone under way. The next need not wait for its answer.
    sleep(20 * SECOND).await;
    let lost = tokio::spawn(call(&mut client, 101));
    sleep(Duration::from_millis(5)).await;
    lost.abort();
    let start = Instant::now();
    assert_eq!(status(call(&mut client, 102)).await, 200);
    assert!(start.elapsed() < SECOND / 10, "{:?}", start.elapsed());
    assert_eq!(client.waiting(), 0);
}

/// When calls were served, and how many were rejected.
type Answered = (Vec<Instant>, usize);

/// A partner that rejects calls above 12 in any second, and reports nothing. Returns a client that sends it 10 per
/// second, and counts the calls and the rejections.
fn strict_partner() -> (Client, Arc<Mutex<Answered>>) {
    let seen = Arc::new(Mutex::new(Answered::default()));
    let partner = {
        let seen = Arc::clone(&seen);
        service_fn(move |_: Request<()>| {
            let (served, rejected) = &mut *seen.lock().unwrap();
            let now = Instant::now();
            let is_served = served.iter().filter(|at| now - **at < SECOND).count() < 12;
            if is_served {
                served.push(now)
            } else {
                *rejected += 1
            }
            let response = Response::builder().status(if is_served { 200 } else { 429 });
            std::future::ready(Ok(response.body(()).unwrap()))
        })
    };
    let layer = PacerLayer::new().quota(Quota::per_second(10)).max_wait(1_000 * SECOND).attempts(1);
    (layer.layer(BoxCloneService::new(partner)), seen)
}

/// A turn was a message to the call, which the call found when it was polled. After a pause in the program, all calls
/// whose turns had come meanwhile left at once: 37 of 111 calls whose futures were not polled for five seconds were
/// rejected, and 86 of 111 that were made meanwhile.
#[tokio::test(start_paused = true)]
async fn late_polls_keep_the_pace() {
    let mut outcomes = Vec::new();
    for (is_polled_before, is_made_late) in [(false, false), (true, false), (false, true)] {
        let (mut client, seen) = strict_partner();
        // The first call's answer says that only our quota limits calls.
        assert_eq!(status(call(&mut client, 0)).await, 200);
        let mut calls = Vec::new();
        for number in 1..111 {
            let mut call = call(&mut client, number);
            if is_polled_before {
                assert!((&mut call).now_or_never().is_none());
            }
            calls.push(call);
            if is_made_late && number < 50 {
                sleep(SECOND / 10).await;
            }
        }
        // The program does something else, and the runtime drives other tasks.
        sleep(5 * SECOND).await;
        let begun = Instant::now();
        join_all(calls.into_iter().map(status)).await;
        let (served, rejected) = &*seen.lock().unwrap();
        // No turn is lost.
        outcomes.push((served.len(), *rejected, begun.elapsed().as_secs()));
    }
    assert!(outcomes.iter().all(|outcome| matches!(outcome, (111, 0, 10 | 11))), "{outcomes:?}");
}

/// Each call whose future is never polled kept the line waiting for a turn that it did not take: a second, if its
/// answer was to say how to go on.
#[tokio::test(start_paused = true)]
async fn calls_that_nobody_polls_delay_no_others() {
    let partner = Partner::new(100, 10 * SECOND);
    let mut client = partner.client(&PacerLayer::new());
    let _unpolled: Vec<_> = (0..20).map(|number| call(&mut client, number)).collect();
    sleep(SECOND).await;
    let begun = Instant::now();
    assert_eq!(status(call(&mut client, 20)).await, 200);
    assert!(begun.elapsed() < SECOND / 10, "{:?}", begun.elapsed());
    assert_eq!(partner.seen(), [Seen::Arrived(20)]);
}

/// A stuck task holds many calls in line, before another task's call.
#[tokio::test(start_paused = true)]
async fn stuck_tasks_delay_others_little() {
    for is_polled in [false, true] {
        let partner = Partner::new(1_000, 10 * SECOND);
        let mut client = partner.client(&PacerLayer::new());
        assert_eq!(status(call(&mut client, 0)).await, 200);
        let mut stuck: Vec<_> = (1..=100).map(|number| call(&mut client, number)).collect();
        if is_polled {
            assert!(stuck.iter_mut().all(|call| call.now_or_never().is_none()));
        }
        let begun = Instant::now();
        assert_eq!(status(call(&mut client, 101)).await, 200);
        assert!(begun.elapsed() < SECOND / 4, "{:?}", begun.elapsed());
        // The stuck calls have lost nothing but their order.
        assert_eq!(join_all(stuck.into_iter().map(status)).await, [200; 100]);
        assert_eq!(partner.rejected(), 0);
    }
}

/// A service that needs time to become ready again after each call.
#[derive(Clone)]
struct Recovering<S> {
    inner: S,
    time: Duration,
    recovered: Option<Arc<Mutex<std::pin::Pin<Box<tokio::time::Sleep>>>>>,
}

impl<S: Service<Request<()>>> Service<Request<()>> for Recovering<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        match &self.recovered {
            Some(recovered) if recovered.lock().unwrap().as_mut().poll(cx).is_pending() => Poll::Pending,
            _ => self.inner.poll_ready(cx),
        }
    }

    fn call(&mut self, request: Request<()>) -> S::Future {
        self.recovered = Some(Arc::new(Mutex::new(Box::pin(sleep(self.time)))));
        self.inner.call(request)
    }
}

/// A rejected call took its turn while its service was not ready yet, and the line waited a second for its answer.
#[tokio::test(start_paused = true)]
async fn unready_services_delay_no_others() {
    for (recovery, order, last) in [(1_500, [0, 1, 2], 2_050), (3_500, [1, 2, 0], 3_550)] {
        let (log, begun) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let partner = {
            let log = Arc::clone(&log);
            service_fn(move |request: Request<()>| {
                let mut log = log.lock().unwrap();
                let number: u32 = request.uri().path()[1..].parse().unwrap();
                log.push((number, begun.elapsed()));
                let response = Response::builder();
                let response = if log.len() == 1 { response.status(429).header("retry-after", 2) } else { response };
                std::future::ready(Ok::<_, Infallible>(response.body(()).unwrap()))
            })
        };
        let partner = Recovering { inner: partner, time: Duration::from_millis(recovery), recovered: None };
        let mut client: Client = PacerLayer::new().layer(BoxCloneService::new(partner));
        let calls: Vec<_> = (0..3).map(|number| call(&mut client, number)).collect();
        assert!(join_all(calls.into_iter().map(status)).await.iter().all(|status| *status == 200));
        let log = log.lock().unwrap();
        let (numbers, times): (Vec<_>, Vec<_>) = log[1..].iter().copied().unzip();
        assert_eq!(numbers, order, "{log:?}");
        // The pause is over after two seconds.
        assert!(times[0] <= Duration::from_millis(2_050) && times[2] <= Duration::from_millis(last), "{log:?}");
    }
}

/// Beyond 4,096 partners, all lines without calls were forgotten if most were needed, and so were their pauses.
#[tokio::test(start_paused = true)]
async fn a_pause_outlives_thousands_of_partners() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let partner = {
        let log = Arc::clone(&log);
        service_fn(move |request: Request<()>| {
            let host = request.uri().host().unwrap().to_owned();
            let response = match &*host {
                "partner.example" => Response::builder().status(429).header("retry-after", 60),
                _ => Response::builder().header("ratelimit", r#""a";r=9;t=3600"#),
            };
            log.lock().unwrap().push(host);
            std::future::ready(Ok::<_, Infallible>(response.body(()).unwrap()))
        })
    };
    let mut client: Client = PacerLayer::new().attempts(1).layer(BoxCloneService::new(partner));
    assert_eq!(status(call(&mut client, 0)).await, 429);
    for host in 0..20_000 {
        assert_eq!(status(call_to(&mut client, &format!("{host}.example"), 0)).await, 200);
    }
    let sent = timeout(59 * SECOND, status(call(&mut client, 1))).await;
    assert!(sent.is_err(), "{sent:?} within the pause");
    assert_eq!(log.lock().unwrap().iter().filter(|host| *host == "partner.example").count(), 1);
}

/// A gRPC server rejects with 200 and a status in its response head, which has no message then.
#[tokio::test(start_paused = true)]
async fn a_rejection_in_grpc_pauses_the_line() {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let partner = {
        let arrivals = Arc::clone(&arrivals);
        service_fn(move |_: Request<()>| {
            let mut arrivals = arrivals.lock().unwrap();
            arrivals.push(Instant::now());
            let response = Response::builder().header("content-type", "application/grpc");
            let response = match arrivals.len() {
                1 => response.header("grpc-status", 8).header("grpc-retry-pushback-ms", 2_500),
                _ => response,
            };
            std::future::ready(Ok::<_, Infallible>(response.body(()).unwrap()))
        })
    };
    let mut client: Client = PacerLayer::new().layer(BoxCloneService::new(partner));
    let calls: Vec<_> = (0..3).map(|number| call(&mut client, number)).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().headers(), &HeaderMap::from_iter([content_type()]), "it was sent again");
    }
    let arrivals = arrivals.lock().unwrap();
    assert_eq!(arrivals.len(), 4);
    assert!(arrivals[1..].iter().all(|at| *at - arrivals[0] >= 5 * SECOND / 2), "{arrivals:?}");
}

fn content_type() -> (http::HeaderName, http::HeaderValue) {
    (http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"))
}

/// No honest partner sends such values. The line goes on after the longest pause.
#[tokio::test(start_paused = true)]
async fn hostile_partners_pause_a_bounded_time() {
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
fn calls_outside_a_runtime_fail() {
    let service = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let mut client: Client = PacerLayer::new().layer(BoxCloneService::new(service));
    assert!(matches!(call(&mut client, 0).now_or_never(), Some(Err(PacerError::NoRuntime))));
}

/// Calls on two runtimes are in one line, and the runtime that joined it first is blocked.
#[test]
fn blocked_runtimes_delay_no_other() {
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
