//! A layer around a service that always succeeds, and checks on its responses.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::RateLimitLayer;

pub type Answer = Response<tower_sluice::layer::ResponseBody<Full<Bytes>>>;

/// Returns the response, unless the request waits.
pub fn send(layer: &RateLimitLayer, request: Request<()>) -> Option<Answer> {
    let yes = service_fn(|_| std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
    layer.layer(yes).oneshot(request).now_or_never().map(Result::unwrap)
}

/// Returns a field's only value.
pub fn field<'a>(fields: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut lines = fields.get_all(name).iter();
    let value = lines.next()?.to_str().expect("visible ASCII");
    assert!(lines.next().is_none(), "{name} twice");
    Some(value)
}

/// Returns a rejection's advertised wait, in whole seconds and in microseconds, unless no wait helps.
pub fn wait(fields: &HeaderMap) -> Option<(u64, u64)> {
    let (Some(seconds), Some(exact)) = (field(fields, "retry-after"), field(fields, "x-rate-limited-for")) else {
        assert!(!fields.contains_key("retry-after") && !fields.contains_key("x-rate-limited-for"));
        return None;
    };
    let (whole, part) = exact.split_once('.').expect("a decimal point");
    assert!(part.len() == 6 && (whole == "0" || !whole.starts_with('0')), "{exact}");
    let micros = whole.parse::<u64>().unwrap() * 1_000_000 + part.parse::<u64>().unwrap();
    let seconds: u64 = seconds.parse().unwrap();
    // 0 < `X-Rate-Limited-For` <= `Retry-After` < `X-Rate-Limited-For` + 1, except at the cap of 2,147,483 s.
    let is_between = micros <= seconds * 1_000_000 && seconds * 1_000_000 < micros + 1_000_000;
    assert!(micros > 0 && (is_between || seconds == 2_147_483), "{seconds} {exact}");
    Some((seconds, micros))
}

/// Checks that the `RateLimit` fields parse, and are in canonical form.
pub fn check_rate_limit_fields(fields: &HeaderMap) {
    for name in ["ratelimit", "ratelimit-policy"] {
        let lines: Vec<_> = fields.get_all(name).iter().map(|value| value.to_str().expect("visible ASCII")).collect();
        if !lines.is_empty() {
            let value = lines.join(", ");
            let list: sfv::List = sfv::Parser::new(&value).parse().unwrap_or_else(|error| panic!("{error}: {value}"));
            use sfv::FieldType;
            assert_eq!(list.serialize().as_deref(), Some(value.as_str()));
        }
    }
}
