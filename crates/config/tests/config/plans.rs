//! Plans in a file: separate limits for some keys.

use std::convert::Infallible;
use std::future::ready;

use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::RateLimitLayer;
use tower_sluice_config::Config;

use crate::{error, reader};

const PLANS: &str = "plans = { by = \"header:x-plan\", limits = { gold = { limit = 3 }, free = { limit = 2 } } }";

/// A route with one policy on an algorithm: one unit per key, and these lines from the file's 8th on.
fn with(algorithm: &str, lines: &str) -> String {
    format!(
        "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"{algorithm}\"\nlimit = 1\n\
         key = \"header:x-api-key\"\n{lines}\n"
    )
}

fn layer(config: &Config) -> &RateLimitLayer {
    config.routes()[0].layer().unwrap()
}

/// Sends a request. Without a plan, it has no field for it.
fn respond(layer: &RateLimitLayer, key: &str, plan: &str) -> Response<impl Sized + use<>> {
    let answer =
        service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::default()))));
    let mut request = Request::get("/a").header("x-api-key", key);
    if !plan.is_empty() {
        request = request.header("x-plan", plan);
    }
    let request = request.body(()).unwrap();
    layer.layer(answer).oneshot(request).now_or_never().expect("no request waits").unwrap()
}

/// How many out of ten requests are admitted, and the limit that the responses show.
fn admitted(layer: &RateLimitLayer, key: &str, plan: &str) -> (usize, String) {
    let responses: Vec<_> = (0..10).map(|_| respond(layer, key, plan)).collect();
    let policy = responses[0].headers()["ratelimit-policy"].to_str().unwrap();
    let limit = policy.split(';').nth(1).unwrap().to_owned();
    (responses.iter().filter(|response| response.status() == 200).count(), limit)
}

#[test]
fn each_plan_has_its_own_limit() {
    for (algorithm, period) in [
        ("token-bucket", "1day"),
        ("leaky-bucket", "1day"),
        ("fixed-window", "30days"),
        ("sliding-window", "1day"),
        ("fixed-window", "month"),
    ] {
        let text = with(algorithm, &format!("per = \"{period}\"\n{PLANS}"));
        let config = reader().parse("f.toml", &text).unwrap_or_else(|error| panic!("{error}"));
        // Names are compared exactly. An unknown or missing name has the policy's limit.
        for (key, plan, expected) in [("a", "gold", 3), ("b", "free", 2), ("c", "", 1), ("d", "Gold", 1)] {
            let (count, limit) = admitted(layer(&config), key, plan);
            assert_eq!((count, limit), (expected, format!("q={expected}")), "{algorithm} {period} {plan}");
        }
    }
}

/// A plan's burst is its limit, unless it has one, and not the policy's burst.
#[test]
fn a_plan_has_its_own_burst() {
    let plans =
        "plans = { by = \"header:x-plan\", limits = { gold = { limit = 9, burst = 4 }, free = { limit = 3 } } }";
    let config =
        reader().parse("f.toml", &with("token-bucket", &format!("per = \"1day\"\nburst = 2\n{plans}"))).unwrap();
    for (key, plan, expected) in [("a", "gold", 4), ("b", "free", 3), ("c", "", 2)] {
        assert_eq!(admitted(layer(&config), key, plan).0, expected, "{plan}");
    }
}

/// Requests depart at their plan's pace: a burst at once, and the others wait in a queue.
#[tokio::test(start_paused = true)]
async fn queues_have_the_plans_pace() {
    let plans = "plans = { by = \"header:x-plan\", limits = { gold = { limit = 10, burst = 4 } } }";
    let config =
        reader().parse("f.toml", &with("leaky-queue", &format!("per = \"1s\"\nmax-queue = 9\n{plans}"))).unwrap();
    let send = |key: &'static str, plan: &'static str| {
        let answer = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
        let request = Request::get("/a").header("x-api-key", key).header("x-plan", plan).body(()).unwrap();
        tokio_test::task::spawn(layer(&config).layer(answer).oneshot(request))
    };
    for (key, plan, at_once) in [("a", "gold", 4), ("b", "free", 1)] {
        let mut sent: Vec<_> = (0..5).map(|_| send(key, plan)).collect();
        let ready = sent.iter_mut().map(|task| task.poll()).filter(std::task::Poll::is_ready).count();
        assert_eq!(ready, at_once, "{plan}");
    }
}

#[test]
fn requests_in_flight_have_the_plans_limit() {
    let config = reader().parse("f.toml", &with("concurrency", PLANS)).unwrap();
    for (key, plan, expected) in [("a", "gold", 3), ("b", "free", 2), ("c", "", 1)] {
        let held: Vec<_> = (0..10).map(|_| respond(layer(&config), key, plan)).collect();
        assert_eq!(held.iter().filter(|response| response.status() == 200).count(), expected, "{plan}");
    }
    assert_eq!(respond(layer(&config), "c", "").status(), 200, "the others are over");
}

/// An upgrade helps at once, and used units stay used. So it is with plans that are added and removed.
#[test]
fn changing_plans_keeps_the_usage() {
    for algorithm in ["token-bucket", "fixed-window"] {
        let text = |plans: &str| with(algorithm, &format!("per = \"30days\"\n{plans}"));
        let mut config = reader().parse("f.toml", &text(PLANS)).unwrap();
        let running = layer(&config).clone();
        assert_eq!(admitted(&running, "a", "gold").0, 3);
        config.change("f.toml", &text(&PLANS.replace("limit = 3", "limit = 5"))).unwrap();
        assert_eq!(admitted(&running, "a", "gold"), (2, "q=5".to_owned()), "{algorithm}");
        let changed = config.change("f.toml", &text("")).unwrap();
        assert!(changed.not_inherited().is_empty());
        assert_eq!(admitted(&running, "a", "gold"), (0, "q=1".to_owned()), "{algorithm}");
        let changed = config.change("f.toml", &text(&PLANS.replace("limit = 3", "limit = 7"))).unwrap();
        assert!(changed.not_inherited().is_empty());
        assert_eq!(admitted(&running, "a", "gold").1, "q=7", "{algorithm}");
        assert_eq!(admitted(&running, "b", "free"), (2, "q=2".to_owned()), "{algorithm}");
    }
}

#[test]
fn suspended_wins_over_plans() {
    for period in ["1day", "month"] {
        let text = |suspended| with("fixed-window", &format!("per = \"{period}\"\n{PLANS}\nsuspended = {suspended}"));
        let mut config = reader().parse("f.toml", &text(true)).unwrap();
        let running = layer(&config).clone();
        assert_eq!(["gold", ""].map(|plan| respond(&running, "a", plan).status().as_u16()), [403, 403]);
        config.change("f.toml", &text(false)).unwrap();
        assert_eq!(admitted(&running, "a", "gold").0, 3);
    }
}

#[test]
fn mistakes_have_their_line_and_cure() {
    let by = "by = \"header:x-plan\"";
    let bucket = |limits: &str| with("token-bucket", &format!("per = \"1s\"\nplans = {{ {by}, limits = {limits} }}"));
    for (text, expected) in [
        (
            bucket("{ gold = 3 }"),
            "9: limits: write a table of limits, such as { gold = { limit = 1000, burst = 50 }, free = { limit = 10 } }",
        ),
        (bucket("3"), "9: limits = 3: write a table of limits, such as { gold"),
        (bucket("{}"), "9: limits = {} has no entry; write one, or leave the option out"),
        (bucket("{ gold = {} }"), "9: missing field `limit`; add limit = 1000"),
        (bucket("{ gold = { limit = \"3\" } }"), "9: limit = \"3\": write a whole number, such as 1000"),
        (bucket("{ gold = { limit = 0 } }"), "9: limit = 0 is out of range; write a number from 1 to 999999999999999"),
        (bucket("{ gold = { limit = 1, burst = 0 } }"), "9: burst = 0 is out of range; write a number from 1"),
        (bucket("{ gold = { limit = 1, brust = 2 } }"), "9: unknown field `brust` (did you mean `burst`?)"),
        (
            with("token-bucket", &format!("per = \"1s\"\nplans = {{ {by} }}")),
            "9: missing field `limits`; add limits = {",
        ),
        (with("token-bucket", "per = \"1s\"\nplans = 3"), "9: plans needs a table; write { by = \"header:x-plan\""),
        (bucket("{ gold = { limit = 3 } }").replace(by, "by = \"plan\""), "9: unknown key `plan`; write global"),
        (
            bucket("{ gold = { limit = 3 } }").replace(by, "by = \"global\""),
            "9: by = \"global\" is the same for all requests; write header:NAME",
        ),
        (
            bucket("{ gold = { limit = 3 } }").replace("key = \"header:x-api-key\"", "key = \"global\""),
            "9: plans: without a key, requests of all plans share one budget; add a key, such as key = \"header:x-api-key\"",
        ),
        (
            bucket("{ \"/a\" = { limit = 3 } }").replace(by, "by = [\"path\"]"),
            "9: plans: a key would have another limit with each path, and the generous one would forgive what the strict one \
             has counted; add path to key, or write a policy for each path",
        ),
        (
            with(
                "fixed-window",
                "per = \"1s\"\nplans = { by = \"user\", limits = { ada = { limit = 3, burst = 4 } } }",
            ),
            "9: burst is for token-bucket, leaky-bucket and leaky-queue; remove it or choose that algorithm",
        ),
        (
            with("concurrency", "plans = { by = \"user\", limits = { ada = { limit = 3, burst = 4 } } }"),
            "8: burst is for token-bucket, leaky-bucket and leaky-queue; remove it",
        ),
        (
            with("concurrency", "plans = { by = \"user\", limits = { ada = { limit = 3000000000 } } }"),
            "8: limit = 3000000000 is out of range; write a number from 1 to 2147483647",
        ),
        (
            with("slow-down", &format!("per = \"1s\"\n{PLANS}")),
            "9: plans: slow-down delays all keys alike; choose a bucket, a window or leaky-queue",
        ),
        (
            with("overload", PLANS).replace("limit = 1\n", "\n"),
            "8: plans: overload finds its limit itself; write priority or weight in its place",
        ),
        (
            with("balance", PLANS).replace("limit = 1\n", "\n"),
            "8: plans: keys have what is credited to them; remove it, and credit more to some keys",
        ),
    ] {
        let message = error(&text);
        assert!(
            message.starts_with(&format!("f.toml:{expected}")),
            "{text}\n  reported: {message}\n  expected: {expected}"
        );
    }
}

/// Requests on such a plan would never pass.
#[test]
fn a_cost_fits_each_plan() {
    for (algorithm, lines, most) in [
        ("token-bucket", "limit = 9\nburst = 9\nper = \"1s\"", 2),
        ("leaky-bucket", "limit = 9\nburst = 9\nper = \"1s\"", 2),
        ("sliding-window", "limit = 9\nper = \"1s\"", 2),
        ("fixed-window", "limit = 9\nper = \"month\"", 2),
        ("leaky-queue", "limit = 9\nper = \"1s\"\nmax-wait = \"1s\"", 3),
        ("concurrency", "limit = 9", 2),
    ] {
        let text = |cost: u64| {
            let text = with(algorithm, "").replace("limit = 1\n", "");
            format!("{text}cost = {cost}\n{PLANS}\n{lines}\n")
        };
        reader().parse("f.toml", &text(most)).unwrap_or_else(|error| panic!("{algorithm}: {error}"));
        let cost = most + 1;
        let expected = format!(
            "f.toml:9: limits: a cost of {cost} never fits \"free\", since {most} is the most that is ever admitted at once; \
             lower the cost, or raise the limit or its burst"
        );
        assert_eq!(error(&text(cost)), expected, "{algorithm}");
    }
}

/// Mistakes in parts of an entry's text are found with the others.
#[test]
fn all_mistakes_of_plans_are_found() {
    let text = with(
        "token-bucket",
        "per = \"x\"\nburst = \"y\"\n[route.policy.plans]\nby = 3\n[route.policy.plans.limits.gold]\nlimit = 0\n\
         [route.policy.plans.limits.free]\nlimit = \"z\"\nburst = 0",
    );
    let found = reader().problems("f.toml", &text);
    let lines: Vec<_> = found.iter().map(tower_sluice_config::ConfigError::line).collect();
    assert_eq!(lines, [8, 9, 11, 13, 15, 16], "{found:#?}");
}

#[test]
fn redis_has_limits_for_plans() {
    let on_redis =
        |algorithm: &str, lines: &str| format!("{}[redis]\nurl = \"redis://127.0.0.1:1\"\n", with(algorithm, lines));
    for (algorithm, period) in [("token-bucket", "1s"), ("sliding-window", "1s"), ("fixed-window", "month")] {
        reader().parse("f.toml", &on_redis(algorithm, &format!("per = \"{period}\"\n{PLANS}"))).unwrap();
    }
    reader().parse("f.toml", &on_redis("concurrency", PLANS)).unwrap();
    assert_eq!(
        error(&on_redis("leaky-queue", &format!("per = \"1s\"\n{PLANS}"))),
        "f.toml:9: policy `p`: `plans` cannot be combined with a limiter that has one quota for all keys: use a bucket or a \
         window, in memory or on a server, or a `leaky-queue` in memory, or remove `plans`"
    );
    // The quota fits without plans, and with another limit.
    let quota =
        |limit: u64| on_redis("token-bucket", &format!("per = \"1s 1ns\"\n{}", PLANS.replace('3', &limit.to_string())));
    reader().parse("f.toml", &quota(3)).unwrap();
    let message = error(&quota(999_999_999_999_999));
    assert!(
        message.starts_with("f.toml:9: Redis has the time in microseconds, and this quota is exact only"),
        "{message}"
    );
}
