//! Events: one per decision at `debug`, transitions at `warn`, and never a key.
//!
//! One test, since `tracing` caches the interest in a callsite per process.

#![cfg(all(feature = "http", feature = "tracing"))]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::{Answer, Ask, Description, Mode};
use tower_sluice::{Decision, Limiter, LimiterError, Policy, Quota, RateLimitLayer};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

type Fields = BTreeMap<String, String>;

/// Records all events, and counts the calls to `enabled`.
#[derive(Clone)]
struct Recorder {
    most: Level,
    recorded: Arc<Mutex<Recorded>>,
}

#[derive(Default)]
struct Recorded {
    events: Vec<(Level, Fields)>,
    enabled_calls: usize,
}

impl Subscriber for Recorder {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if *metadata.level() <= self.most { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.recorded.lock().unwrap().enabled_calls += 1;
        *metadata.level() <= self.most
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Text::default();
        event.record(&mut fields);
        self.recorded.lock().unwrap().events.push((*event.metadata().level(), fields.0));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        panic!("there are no spans")
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Text(Fields);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

/// Sends a flood of requests, and records its events up to a level.
fn recorded(most: Level, layer: &RateLimitLayer, requests: usize) -> Recorded {
    let recorder = Recorder { most, recorded: Arc::default() };
    let ok = service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let service = layer.layer(ok);
    tracing::subscriber::with_default(recorder.clone(), || {
        for number in 0..requests {
            let request = Request::builder().header("x-api-key", KEYS[number % KEYS.len()]).body(()).unwrap();
            service.clone().oneshot(request).now_or_never().expect("answered at once").unwrap();
        }
    });
    let mut recorded = recorder.recorded.lock().unwrap();
    std::mem::take(&mut *recorded)
}

const KEYS: [&str; 4] = ["alice@example.com", "203.0.113.9", "sk-4711-secret", "bob"];

fn layer(limit: u64) -> RateLimitLayer {
    let bucket = TokenBucket::new(Quota::per_hour(limit));
    RateLimitLayer::builder(Policy::new("per-key", bucket).key(HeaderKey::from_static("x-api-key")))
        .route("/api")
        .build()
}

/// A limiter that fails. Its fallback, if it has one, admits all.
struct Broken {
    has_fallback: bool,
}

impl Limiter for Broken {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        let is_decided = self.has_fallback && ask.mode() == Mode::Fallback;
        Answer::Ready(if is_decided { Ok(Decision::allow(9, 8)) } else { Err(LimiterError::new("out of reach")) })
    }

    fn describe(&self) -> Description {
        if self.has_fallback { Description::new().answering(Mode::Fallback) } else { Description::new() }
    }
}

/// The rejections are logged at `debug` only.
#[test]
fn a_flood_is_logged_without_keys() {
    // Once `tracing` has cached that no subscriber is interested in a callsite, it does not call `enabled`.
    for most in [Level::ERROR, Level::WARN, Level::INFO] {
        let recorded = recorded(most, &layer(1), 10_000);
        assert_eq!((recorded.events.len(), recorded.enabled_calls), (0, 0), "at {most}");
    }

    let flood = recorded(Level::TRACE, &layer(2), 10_000).events;
    assert_eq!(flood.len(), 10_000);
    assert!(flood.iter().all(|(level, _)| *level == Level::DEBUG));
    let results = |result: &str| flood.iter().filter(|(_, fields)| fields["result"] == result).count();
    assert_eq!([results("allowed"), results("rejected")], [8, 9_992]);
    for (number, (_, fields)) in flood.iter().enumerate() {
        assert_eq!([&fields["policy"], &fields["http.route"], &fields["limit"]], ["per-key", "/api", "2"]);
        let hash = &fields["key.hash"];
        assert!(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
        assert_eq!(*hash, flood[number % KEYS.len()].1["key.hash"], "one key, one hash");
        for value in fields.values() {
            assert!(KEYS.iter().all(|key| !value.contains(key)), "{fields:?}");
        }
        assert!(!fields.keys().any(|name| name.starts_with("client")), "{fields:?}");
    }
    let hashes: std::collections::BTreeSet<_> = flood.iter().map(|(_, fields)| &fields["key.hash"]).collect();
    assert_eq!(hashes.len(), KEYS.len());
    assert_eq!(flood[4].1["remaining"], "0");
    assert!(!flood[4].1.contains_key("retry_after") && flood[8].1.contains_key("retry_after"));

    // A limiter's failure is logged once, for any number of requests, and with or without a fallback.
    for has_fallback in [false, true] {
        let broken = Policy::new("broken", Arc::new(Broken { has_fallback }));
        let broken = RateLimitLayer::new(broken.key(HeaderKey::from_static("x-api-key")));
        let outage = recorded(Level::TRACE, &broken, 1_000).events;
        let at = |level: Level| outage.iter().filter(|(of, _)| *of == level).count();
        assert_eq!([at(Level::ERROR), at(Level::WARN), at(Level::INFO), at(Level::DEBUG)], [0, 1, 0, 1_000]);
        let names_a_key =
            |(_, fields): &(Level, Fields)| fields.values().any(|it| KEYS.iter().any(|key| it.contains(key)));
        assert!(!outage.iter().any(names_a_key));
    }
}
