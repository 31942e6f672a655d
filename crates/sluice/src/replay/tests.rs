//! A replay decides as the layers do, when an axum app with them gets the same requests at the same times.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::any_service;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use tower::{ServiceExt, service_fn};
use tower_sluice::key::User;
use tower_sluice::testing::{Random, seed_of};
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice_config::Config;

use self::trace::Trace;
use super::{LogClock, Replay, Session};
use crate::log::{Format, Lines, Parser, Place};
use crate::report::Options;

#[path = "../../../../tests/support/trace.rs"]
mod trace;

/// All algorithms, keys and options that can affect a replay.
const LIMITS: &str = r#"
    [client-ip]
    source = "x-forwarded-for"
    hops = 1

    [redis]
    url = "redis://127.0.0.1:1"

    [[route]]
    path = "/token"
    policy = [
        { name = "bucket", algorithm = "token-bucket", limit = 3, per = "20s", burst = 4, key = "client-ip" },
        { name = "all", algorithm = "leaky-bucket", limit = 40, per = "1s", cost = 2 },
    ]
    [[route]]
    path = "/fixed"
    policy = [{ name = "window", algorithm = "fixed-window", limit = 8, per = "1m", key = "client-ip" }]
    [[route]]
    path = ["/sliding", "/sliding/{id}"]
    policy = [
        { name = "window", algorithm = "sliding-window", limit = 6, per = "1m", key = ["client-ip", "path"], penalty = { rejections = 3, per = "1m", ban = "5m" } },
    ]
    [[route]]
    path = "/calendar"
    policy = [{ name = "daily", algorithm = "fixed-window", limit = 40, per = "day", zone = "Europe/Berlin", key = "client-ip" }]
    [[route]]
    path = "/queue/{id}"
    policy = [
        { name = "queue", algorithm = "leaky-queue", limit = 1, per = "3s", burst = 2, max-queue = 3, max-wait = "8s", key = "client-ip" },
        { name = "shadow", algorithm = "fixed-window", limit = 1, per = "5s", key = "client-ip", shadow = true },
    ]
    [[route]]
    path = "/slow"
    policy = [{ name = "slow", algorithm = "slow-down", limit = 1, per = "6s", burst = 5, free = 2, step = "100ms", max-delay = "2s", key = "client-ip" }]
    [[route]]
    path = "/flight"
    policy = [{ name = "flight", algorithm = "concurrency", limit = 2, key = "client-ip" }]
    [[route]]
    path = "/user"
    policy = [
        { name = "user", algorithm = "token-bucket", limit = 1, per = "2s", key = "user" },
        { name = "failures", algorithm = "fixed-window", limit = 2, per = "1m", key = "client-ip", charge-when = [401] },
    ]
    [[route]]
    path = "/bytes"
    policy = [{ name = "bytes", algorithm = "token-bucket", limit = 900, per = "20s", key = "client-ip", cost = 10, settle-by = "content-bytes" }]
    [[route]]
    path = "/balance"
    policy = [{ name = "balance", algorithm = "balance", key = "user", on-missing-key = "skip" }]
    [[route]]
    path = "/overload"
    policy = [{ name = "overload", algorithm = "overload", limits = [4, 64] }]
    [[route]]
    path = "/once"
    policy = [
        { name = "once", algorithm = "fixed-window", limit = 2, per = "2m", key = "user", on-missing-key = "skip", charge-once = { header = "idempotency-key", within = "1m", free-retries = 2 } },
    ]
    [[route]]
    path = "/plan"
    alternatives = ["included", "overage"]
    policy = [
        { name = "included", algorithm = "fixed-window", limit = 3, per = "2m", key = "client-ip" },
        { name = "overage", algorithm = "token-bucket", limit = 1, per = "15s", key = "client-ip" },
        { name = "pace", algorithm = "token-bucket", limit = 1, per = "1s", burst = 2 },
    ]
    [[route]]
    path = "/exempt/{id}"
    exempt = { networks = ["203.0.113.3", "2001:db8:1::/48"], headers = { x-probe = "swordfish" } }
    policy = [{ name = "others", algorithm = "sliding-window", limit = 2, per = "1m", key = "client-ip", exempt = { paths = ["/exempt/1"] } }]
    [[route]]
    path = "/preflight"
    exempt-preflights = { limit = 20, per = "1m" }
    policy = [{ name = "calls", algorithm = "fixed-window", limit = 30, per = "1m" }]
    [[route]]
    path = "/free"
"#;

/// Policies that reject nothing in a replay: two because each request is over at once, and one because the policy
/// before it rejects first.
const REJECT_NOTHING: [&str; 3] = ["flight", "all", "overload"];

const PATHS: [&str; 19] = [
    "/token",
    "/fixed",
    "/sliding",
    "/sliding/7",
    "/calendar",
    "/queue/a",
    "/queue/b?c",
    "/slow",
    "/flight",
    "/user",
    "/bytes",
    "/balance",
    "/overload",
    "/once",
    "/plan",
    "/exempt/1",
    "/exempt/2",
    "/preflight",
    "/free",
];

/// A log of `lines` lines, at some forty per second, whose times sometimes go back.
fn log(lines: u64, seed: u64) -> Vec<String> {
    let mut random = Random::new(seed);
    let mut random = |end: u64| random.below(end);
    let mut nanos: u64 = 1_700_000_000_000_000_000;
    let mut log = Vec::new();
    for _ in 0..lines {
        nanos += random(50) * 1_000_000;
        if random(20_000) == 0 {
            nanos += 90_000_000_000;
        }
        let shown = if random(100) == 0 { nanos - random(3_000) * 1_000_000 } else { nanos };
        let path = PATHS[usize::try_from(random(PATHS.len() as u64)).unwrap()];
        let client = match random(6) {
            0 => format!("2001:db8:{}::{}", random(4), random(9)),
            _ => format!("203.0.113.{}", random(12)),
        };
        let user = ["", "alice", "bob"][usize::try_from(random(3)).unwrap()];
        let order = random(50);
        let probe = if random(20) == 0 { "swordfish" } else { "no" };
        let method = if path == "/preflight" && random(2) == 0 { "OPTIONS" } else { "GET" };
        let (status, length) = ([200, 200, 401, 500][usize::try_from(random(4)).unwrap()], random(900));
        log.push(format!(
            r#"{{"ts":{}.{:03},"ip":"{client}","user":"{user}","method":"{method}","path":"{path}","status":{status},"bytes":{length},"request_Origin":"https://a.example","request_Access-Control-Request-Method":"PUT","request_Idempotency-Key":"{order}","request_X-Probe":"{probe}"}}"#,
            shown / 1_000_000_000,
            shown / 1_000_000 % 1_000,
        ));
    }
    log
}

/// An app with the configuration. Its handlers answer as the request says.
fn app(clock: &ManualClock) -> Router {
    let config = Config::reader().replay(clock.clone()).parse("limits.toml", LIMITS).unwrap();
    let handler = || {
        any_service(service_fn(|request: Request<Body>| async move {
            let (status, length) = *request.extensions().get::<(u16, usize)>().unwrap();
            let mut response = Response::new(Body::from(vec![b'x'; length]));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            Ok::<_, std::convert::Infallible>(response)
        }))
    };
    let paths = config.routes().iter().flat_map(|route| route.paths()).map(String::as_str);
    config.router(paths.map(|path| (path, handler()))).unwrap()
}

/// Answers by line: the status, and when it came, in milliseconds after the first line.
type Answers = BTreeMap<u64, (u16, u64)>;

/// Drives the app. Unlike a replay, it lets the clock pass millisecond by millisecond while a request waits, and a task
/// wait for each answer.
async fn drive_app(log: &[String]) -> Answers {
    let clock = ManualClock::new();
    let app = app(&clock);
    let answers = Rc::new(RefCell::new(Answers::new()));
    let local = tokio::task::LocalSet::new();
    let (mut now, mut start) = (0, None);
    let mut parser = Parser::new(Format::Auto);
    local
        .run_until(async {
            for (number, line) in (1_u64..).zip(log) {
                let entry = parser.parse(line.as_bytes()).unwrap().unwrap();
                let millis = entry.nanos / 1_000_000;
                let first = *start.get_or_insert_with(|| {
                    now = millis;
                    clock.set(Timestamp::from_nanos(entry.nanos));
                    millis
                });
                while now < millis {
                    let all_are_answered = answers.borrow().len() as u64 == number - 1;
                    let step = if all_are_answered { millis - now } else { 1 };
                    now += step;
                    clock.set(Timestamp::from_nanos(now * 1_000_000));
                    tokio::time::advance(Duration::from_millis(step)).await;
                    let_tasks_run().await;
                }
                let mut request =
                    Request::builder().method(&*entry.method).uri(&*entry.target).body(Body::empty()).unwrap();
                let length = usize::try_from(entry.length).unwrap();
                let peer = SocketAddr::new(entry.client.unwrap(), 4711);
                for (name, value) in &entry.headers {
                    let (name, value) = (HeaderName::try_from(&**name), HeaderValue::from_bytes(value));
                    request.headers_mut().append(name.unwrap(), value.unwrap());
                }
                request.extensions_mut().insert((entry.status, length));
                request.extensions_mut().insert(ConnectInfo(peer));
                if let Some(user) = &entry.user {
                    request.extensions_mut().insert(User::new(&**user));
                }
                let answer = app.clone().oneshot(request);
                let (answers, clock) = (Rc::clone(&answers), clock.clone());
                let task = tokio::task::spawn_local(async move {
                    let response = answer.await.unwrap();
                    let status = response.status().as_u16();
                    // Charges by body bytes count once the body has ended.
                    axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
                    let millis = tower_sluice::time::Clock::now(&clock).as_nanos() / 1_000_000;
                    answers.borrow_mut().insert(number, (status, millis - first));
                });
                // The request arrives before the next one.
                tokio::task::yield_now().await;
                drop(task);
            }
            for _ in 0..10_000 {
                now += 1;
                clock.set(Timestamp::from_nanos(now * 1_000_000));
                tokio::time::advance(Duration::from_millis(1)).await;
                let_tasks_run().await;
            }
        })
        .await;
    Rc::try_unwrap(answers).unwrap().into_inner()
}

/// When a request is due, the queue's task wakes the request's task, which notes its answer.
async fn let_tasks_run() {
    for _ in 0..6 {
        tokio::task::yield_now().await;
    }
}

/// Replays the log. The session notes the answers, since the test asks it to.
fn drive_replay(log: &[String]) -> (Answers, Session) {
    let clock = LogClock::default();
    let replay = Replay::new("limits.toml", LIMITS, &clock).unwrap();
    let mut session = Session::new(clock, vec![replay]).unwrap();
    session.answers = Some(Vec::new());
    replay_all(&mut session, log);
    let first = session.log.span.unwrap().0 / 1_000_000;
    let answers = session.answers.take().unwrap();
    // The app's clock shows the next whole millisecond.
    let answers = answers.into_iter().map(|(line, status, nanos)| (line, (status, nanos.div_ceil(1_000_000) - first)));
    (answers.collect(), session)
}

fn replay_all(session: &mut Session, log: &[String]) {
    let runtime = session.runtime();
    let _entered = runtime.enter();
    let mut parser = Parser::new(Format::Auto);
    for (number, line) in (1..).zip(log) {
        let place = Place { file: 0, line: number };
        session.log.note_line();
        let replayed = parser.parse(line.as_bytes()).and_then(|entry| session.replay(&entry.unwrap(), place));
        if let Err(problem) = replayed {
            session.log.note_unreadable(place, &problem, line.as_bytes());
        }
    }
    session.finish();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

#[test]
fn a_replay_equals_an_app() {
    // `scripts/slow` runs all lines, because the test is optimised there.
    let lines = if std::env::var_os("FULL_TESTS").is_some() { 100_000 } else { 20_000 };
    // The policies that have rejected nothing yet, and how many requests have waited.
    let (mut silent, mut waited) = (None, 0);
    let mut trace = Trace::of(1);
    while trace.goes_on([
        ("policies that reject", silent.as_ref().is_some_and(BTreeSet::is_empty)),
        ("requests that wait", waited > lines / 50),
    ]) {
        let session = replay_equals_the_app(&log(lines, trace.seed()));
        let policies = session.replays[0].limited.iter().flat_map(|route| &route.policies);
        let policies: Vec<_> = policies.filter(|policy| !REJECT_NOTHING.contains(&policy.name())).collect();
        let all = || policies.iter().map(|policy| policy.name().to_owned()).collect();
        let silent: &mut BTreeSet<String> = silent.get_or_insert_with(all);
        for policy in policies {
            if policy.rejected + policy.without_key.rejected > 0 {
                silent.remove(policy.name());
            }
            waited += policy.waits.len();
        }
    }
}

/// Compares each answer, and returns the replay's session.
fn replay_equals_the_app(log: &[String]) -> Session {
    let expected = runtime().block_on(drive_app(log));
    let (answers, session) = drive_replay(log);
    assert_eq!(expected.len(), log.len());
    // Routes without a policy are answered by no layer.
    let unlimited = session.replays[0].unlimited;
    assert_eq!(answers.len() as u64 + unlimited, log.len() as u64);
    for (line, answer) in &answers {
        assert_eq!(Some(answer), expected.get(line), "line {line}: {}", log[usize::try_from(*line).unwrap() - 1]);
    }
    session
}

/// The promised share of clients is never rejected when the log is replayed under the suggestion.
#[test]
fn suggested_limits_keep_their_promise() {
    let log = log(6_000, seed_of(7));
    let limits = |options: &str| {
        format!(
            "[[route]]\npath = \"/token\"\npolicy = [{{ name = \"it\", key = \"client-ip\", per = \"10s\", {options} }}]"
        )
    };
    let replayed = |options: &str| {
        let clock = LogClock::default();
        let replay = Replay::new("limits.toml", &limits(options), &clock).unwrap();
        let mut session = Session::new(clock, vec![replay]).unwrap();
        replay_all(&mut session, &log);
        session.replays.pop().unwrap()
    };
    for algorithm in ["token-bucket", "fixed-window", "sliding-window"] {
        for per_100_000 in [50_000, 80_000, 100_000] {
            let replay = replayed(&format!("algorithm = \"{algorithm}\", limit = 2"));
            let policy = &replay.limited[0].policies[0];
            let (clients, _) = policy.clients();
            let suggestion = policy.suggest(per_100_000).unwrap();
            let mut ways = vec![format!("algorithm = \"{algorithm}\", limit = {}", suggestion.limit)];
            ways.extend(
                suggestion.burst.map(|burst| format!("algorithm = \"{algorithm}\", limit = 2, burst = {burst}")),
            );
            for way in ways {
                let replay = replayed(&way);
                let (same, rejected) = replay.limited[0].policies[0].clients();
                assert_eq!(same, clients);
                assert!((clients - rejected) * 100_000 >= clients * per_100_000, "{way}: {rejected} of {clients}");
            }
            // A window's suggestion is its least limit, so one less rejects more.
            if algorithm != "token-bucket" && per_100_000 == 100_000 {
                let replay = replayed(&format!("algorithm = \"{algorithm}\", limit = {}", suggestion.limit - 1));
                assert!(replay.limited[0].policies[0].rejected > 0);
            }
        }
    }
}

#[test]
fn hostile_logs_are_replayed_to_their_end() {
    let clock = LogClock::default();
    let replay = Replay::new("limits.toml", LIMITS, &clock).unwrap();
    let begin = r#"203.0.113.7 - - [10/Oct/2000:13:55:36 +0000]"#;
    let lines = [
        format!("{begin} \"GET /queue/a HTTP/1.1\" 200 1"),
        format!("{begin} \"GET /queue/%ff%00 HTTP/1.1\" 200 1"),
        format!("{begin} \"GET http://x.example/slow HTTP/1.1\" 200 1"),
        format!("{begin} \"CONNECT x.example:443 HTTP/1.1\" 200 1"),
        format!("{begin} \"OPTIONS * HTTP/1.1\" 200 1"),
        format!("{begin} \"G(T /slow HTTP/1.1\" 200 1"),
        format!("{begin} \"GET /bytes HTTP/1.1\" 200 9999999999999999999"),
        format!("{begin} \"GET /slow HTTP/1.1\" 200 1 \"\\x00\\x0a\" \"\\xff\""),
        "- - - [10/Oct/2000:13:55:36 +0000] \"GET /token HTTP/1.1\" 200 1".to_owned(),
        "203.0.113.7 - - [31/Dec/2499:13:55:36 +0000] \"GET /queue/a HTTP/1.1\" 200 1".to_owned(),
        "203.0.113.7 - - [01/Jan/1970:00:00:00 +0000] \"GET /slow HTTP/1.1\" 200 1".to_owned(),
        "203.0.113.7 - - [01/Jan/9999:00:00:00 +0000] \"GET /slow HTTP/1.1\" 200 1".to_owned(),
        "203.0.113.7 - - [01/Jan/0000:00:00:00 +0000] \"GET /slow HTTP/1.1\" 200 1".to_owned(),
        "\u{1b}[31m".to_owned(),
    ];
    let mut session = Session::new(clock, vec![replay]).unwrap();
    replay_all(&mut session, &lines);
    assert_eq!(session.log.lines, 14);
    assert_eq!(session.log.unreadable, 4);
    assert_eq!(session.log.disorder.late.lines, 1);
    let options = Options { suggest: Some(99_000) };
    let text = crate::report::print(&session.log, &session.replays, options);
    assert!(!text.contains('\u{1b}'));
    assert!(crate::report::to_svg(&session.replays).starts_with("<svg"));
    assert!(crate::report::to_json(&session.log, &session.replays, options).is_object());
}
