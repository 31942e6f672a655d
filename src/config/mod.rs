//! Routes and policies from a TOML file (crate feature `config`).
//!
//! ```
//! use tower_sluice::config::Config;
//!
//! let config = Config::parse("limits.toml", r#"
//!     [[route]]
//!     path = "/api"
//!       [[route.policy]]
//!       name = "per-client"
//!       algorithm = "token-bucket"
//!       limit = 10
//!       per = "1s"
//!       burst = 20
//!       key = "client-ip"
//! "#)?;
//! assert_eq!(config.routes()[0].paths(), ["/api"]);
//!
//! let error = Config::parse("limits.toml", "[[route]]\npath = \"/api\"\nlimit = 10").unwrap_err();
//! assert!(error.to_string().starts_with("limits.toml:3: unknown field `limit`"));
//! # Ok::<_, tower_sluice::config::ConfigError>(())
//! ```
//!
//! # Format
//!
//! All clients of a policy have one quota. [Quotas of their own](crate::Policy::quota_fn) need code.
//!
//! These are all tables and keys. A line that begins with `#` and no space has a key that does not go with the others
//! here.
//!
#![doc = "```toml"]
#![doc = include_str!("format.toml")]
#![doc = "```"]
//!
//! See [`RateLimitFields`](crate::headers::RateLimitFields), [`Advertise`](crate::headers::Advertise),
//! [`RejectionFormat`](crate::rejection::RejectionFormat) and [`GrpcStatus`](crate::grpc::GrpcStatus) for the meaning
//! of the words of `[response]`. With any of them, a rejected client gets `Retry-After` and `X-Rate-Limited-For`.
//!
//! [`ChargeOnce`](crate::ChargeOnce) states how much `charge-once` admits in the worst case. [`Exemptions`] explains
//! the keys of `exempt`, and why no client can forge them.
//!
//! Paths match exactly, except that a segment `{name}` matches any segment. A route without a policy is not limited.
//! Each route has its own budgets, even if its policies have the names of others. On Redis, processes share the budgets
//! of a policy if the prefix, the secret, the first path of its route, its name and the kind of its algorithm are the
//! same. Of the keys, `user` is the extension [`User`](crate::key::User), which an authenticating layer must insert;
//! `path` is the route that axum matched ([`PathKey::matched`](crate::key::PathKey)), or without the feature `axum` the
//! path as sent.
//!
//! `Config::router` puts the limits around the handlers of an axum app (feature `axum`); with any other
//! router, mount the [layer](Route::layer) of each route on its [paths](Route::paths).
//! [`Config::change`] applies an edited file while its layers run. [`Config::close`] closes its queues when the server
//! stops.
//!
//! # Errors
//!
//! An error names the file, the line, the field and the cure. It repeats the value, unless that may be a secret (`url`,
//! `master`, `secret`, `headers`). Parsing takes time in proportion to the number of routes and policies.

mod calendar;
mod change;
mod error;
mod exempt;
mod format;
#[cfg(test)]
mod generated;
mod key;
mod parser_errors;
mod policy;
mod reader;
mod response;
#[cfg(feature = "axum")]
mod router;
mod source;
mod store;
#[cfg(test)]
mod tests;
mod value;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

pub use self::change::Changed;
pub use self::error::ConfigError;
pub use self::reader::ConfigReader;

use self::change::{Fixed, optional_fields};
use self::format::{RawBudget, RawClientIp, RawConfig, RawResponse, RawRoute};
use self::response::ResponseSettings;
use self::source::SourceText;
use self::store::{Redis, StoreSpec};
use self::value::{number, set, size};
use crate::http::key::{ClientIp, IpSource, TrustedProxies};
use crate::http::{Enforceable, Exemptions, PolicyError, RateLimitLayer, RateLimitLayerBuilder};
use crate::values::Quota;

/// The format as a JSON Schema (draft 2020-12), for editors that check TOML while it is typed: write it to a file, and
/// `#:schema ./limits.schema.json` into the first line of yours. It has the tables, their keys, the type of each value
/// and the ranges of numbers; times, paths, addresses and combinations are checked by [`Config::parse`] only.
pub const SCHEMA: &str = include_str!("schema.json");

/// A parsed configuration, with a layer for each limited route.
#[derive(Debug)]
#[doc(alias = "toml")]
pub struct Config {
    /// The name of the file, for messages.
    #[cfg(feature = "axum")]
    file: String,
    client_ip: ClientIp,
    redis: Option<Redis>,
    fixed: Fixed,
    routes: Vec<Route>,
}

/// One `[[route]]`.
#[derive(Debug)]
pub struct Route {
    paths: Vec<String>,
    line: usize,
    /// As in the file, to find the differences of a change.
    response: Option<RawResponse>,
    /// As in the file, too.
    exempt_preflights: Option<RawBudget>,
    layer: Option<RateLimitLayer>,
    /// The name of each policy, with its optional fields that are set.
    optional: Vec<(String, Vec<&'static str>)>,
}

/// A `[[route]]` that is parsed and checked, but not in force.
struct Draft {
    paths: Vec<String>,
    /// Where its paths are in the file.
    at: Range<usize>,
    response: Option<RawResponse>,
    /// `response`, completed from the general one.
    responses: ResponseSettings,
    exempt_preflights: Option<RawBudget>,
    /// `exempt_preflights`, checked.
    preflights: Option<Quota>,
    /// `None` if the route has no policy.
    policies: Option<Enforceable>,
    /// As in [`Route`].
    optional: Vec<(String, Vec<&'static str>)>,
}

/// The settings that the routes of a file share.
struct SharedSettings<'a> {
    client_ip: &'a ClientIp,
    response: ResponseSettings,
    redis: Option<&'a Redis>,
}

impl Config {
    /// Parses a configuration; `file` is the name in messages.
    ///
    /// # Errors
    ///
    /// If anything is unknown, missing or invalid, or if there is no route: the message has the line and the cure.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        Self::reader().parse(file, text)
    }

    /// Makes a reader with settings that a file cannot have, such as a rejection response in code.
    pub fn reader() -> ConfigReader {
        ConfigReader::new()
    }

    fn read(file: &str, text: &str, ConfigReader { redis, set_up }: ConfigReader) -> Result<Self, ConfigError> {
        let source = SourceText::new(file, text);
        let raw: RawConfig = source.parse_toml()?;
        let fixed = Fixed::read(&raw);
        let client_ip = match raw.client_ip {
            Some(raw) => client_ip(&source, raw.into_inner())?,
            None => ClientIp::peer(),
        };
        let response = match raw.response {
            Some(raw) => ResponseSettings::parse(&source, raw.get_ref())?,
            None => ResponseSettings::default(),
        };
        let named = raw.redis.map(|raw| store::redis(&source, raw.into_inner())).transpose()?;
        let redis = redis.or(named);
        if raw.route.is_empty() {
            let problem = "the file has no route, so that nothing is limited; add [[route]] with path = \"/api\", and below it a [[route.policy]] for each limit";
            return Err(source.error(&source.end(), problem));
        }
        let common = SharedSettings { client_ip: &client_ip, response, redis: redis.as_ref() };
        let routes = common.read(&source, raw.route)?;
        let routes = routes.into_iter().map(|draft| Route::from_draft(&source, draft, &*set_up)).collect();
        Ok(Self {
            #[cfg(feature = "axum")]
            file: file.to_owned(),
            client_ip,
            redis,
            fixed,
            routes,
        })
    }

    /// Returns the extractor of the key `client-ip`.
    pub const fn client_ip(&self) -> &ClientIp {
        &self.client_ip
    }

    /// Closes the queues of all routes, and those that a later [`change`](Self::change) adds: see
    /// [`LimitsHandle::close`](crate::LimitsHandle::close). Call it when the server shuts down, before it waits for the
    /// requests in flight.
    pub fn close(&self) {
        self.routes.iter().filter_map(Route::layer).for_each(RateLimitLayer::close);
    }

    /// Updates the metrics of all routes that are not counted per request: see
    /// [`RateLimitLayer::observe`].
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn observe(&self) {
        self.routes.iter().filter_map(Route::layer).for_each(RateLimitLayer::observe);
    }

    /// Returns the routes, in the order of the file.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }
}

impl Route {
    /// Returns the paths, which share the route's budgets.
    #[must_use]
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// Returns the line of the paths in the file, counted from 1.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.line
    }

    /// Returns the layer that enforces the route's policies; `None` if it has none.
    #[must_use]
    pub const fn layer(&self) -> Option<&RateLimitLayer> {
        self.layer.as_ref()
    }

    fn from_draft(source: &SourceText<'_>, draft: Draft, set_up: &reader::SetUp) -> Self {
        let Draft { paths, at, response, responses, exempt_preflights, preflights, policies, optional } = draft;
        let enforce = |policies| {
            let builder = responses.apply_to(RateLimitLayer::builder(policies)).route(paths[0].as_str());
            set_up(set(builder, preflights, RateLimitLayerBuilder::exempt_preflights)).build()
        };
        let layer = policies.map(enforce);
        Self { paths, line: source.line(&at), response, exempt_preflights, layer, optional }
    }
}

impl SharedSettings<'_> {
    fn read(&self, source: &SourceText<'_>, routes: Vec<RawRoute>) -> Result<Vec<Draft>, ConfigError> {
        let mut seen = HashMap::new();
        routes.into_iter().map(|raw| self.read_route(source, raw, &mut seen)).collect()
    }

    fn read_route(
        &self,
        source: &SourceText<'_>,
        raw: RawRoute,
        seen: &mut HashMap<String, usize>,
    ) -> Result<Draft, ConfigError> {
        let at = raw.path.span();
        let line = source.line(&at);
        let paths = raw.path.into_inner().into_vec();
        if paths.is_empty() {
            return Err(source.error(&at, "the route has no path; write path = \"/...\""));
        }
        for path in &paths {
            check_path(path).map_err(|problem| source.error(&at, problem))?;
            if let Some(first) = seen.insert(skeleton(path), line) {
                let problem =
                    format!("path `{path}` is already served by the route on line {first}; remove one of them");
                return Err(source.error(&at, problem));
            }
        }

        for (at, effect, key) in [
            (policy::span_of(&raw.response), "its [response] has no effect", "it"),
            (policy::span_of(&raw.exempt_preflights), "all requests pass uncounted", "exempt-preflights"),
            (policy::span_of(&raw.exempt), "all requests pass uncounted", "exempt"),
        ] {
            if let Some(at) = at.filter(|_| raw.policy.is_empty()) {
                let cure = format!("remove {key}, or give the route a [[route.policy]]");
                return Err(source.error(&at, format_args!("the route has no policy, so that {effect}; {cure}")));
            }
        }
        let responses = match &raw.response {
            Some(raw) => ResponseSettings::parse(source, raw.get_ref())?.or(self.response),
            None => self.response,
        };
        let preflights = &raw.exempt_preflights;
        let preflights = preflights.as_ref().map(|raw| policy::budget(source, raw.get_ref())).transpose()?;
        let exempt = |raw| exempt::add(source, Exemptions::new(), raw, self.client_ip);
        let exemptions = raw.exempt.as_ref().map(exempt).transpose()?;
        let exempt_preflights = raw.exempt_preflights.map(toml::Spanned::into_inner);
        let mut policies = Vec::new();
        let mut optional = Vec::new();
        let mut names = HashSet::new();
        for raw in raw.policy {
            let (name, name_at) = (raw.name.get_ref().clone(), raw.name.span());
            let store = StoreSpec::read(source, &raw, &paths[0], self.redis)?;
            let fields = optional_fields(&raw, exemptions.is_some());
            let policy = policy::build(source, &raw, self.client_ip, store, exemptions.clone())?;
            if !names.insert(name.clone()) {
                return Err(source.error(&name_at, PolicyError::DuplicateName { name }));
            }
            policies.push(policy);
            optional.push((name, fields));
        }
        let policies = if policies.is_empty() {
            None
        } else {
            // Each policy and the names were checked above, where their lines are known.
            Some(Enforceable::new(policies).map_err(|error| source.error(&at, error))?)
        };
        let response = raw.response.map(toml::Spanned::into_inner);
        Ok(Draft { paths, at, response, responses, exempt_preflights, preflights, policies, optional })
    }
}

/// Checks that a router accepts a path: literal, except for whole segments of the form `{name}`.
fn check_path(path: &str) -> Result<(), String> {
    let Some(rest) = path.strip_prefix('/') else {
        return Err(format!("path `{path}` must begin with a slash; write \"/{path}\""));
    };
    for segment in rest.split('/') {
        let inner = segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}')).unwrap_or(segment);
        let named = inner.len() < segment.len();
        if !inner.split('%').skip(1).all(begins_with_two_hex_digits) {
            return Err(format!(
                "segment `{segment}` of path `{path}` cannot be matched; write % as %25, or two hexadecimal digits behind it"
            ));
        }
        // The characters that a URI may contain literally (RFC 3986, section 3.3), less those that routers take for
        // patterns.
        let fits = |char: char| char.is_ascii_alphanumeric() || "-._~%!$&'()+,;=:@".contains(char);
        if !inner.chars().all(fits) || inner.starts_with(':') || (named && inner.is_empty()) {
            return Err(format!(
                "segment `{segment}` of path `{path}` cannot be matched; write it literally, or {{name}} for any segment"
            ));
        }
    }
    Ok(())
}

fn begins_with_two_hex_digits(text: &str) -> bool {
    text.as_bytes().first_chunk().is_some_and(|digits: &[u8; 2]| digits.iter().all(u8::is_ascii_hexdigit))
}

/// Returns a path without its parameters' names: a router accepts no two paths that differ only in these. The path of a
/// handler may also have `{*rest}`, which is more than a segment, and `{{`, which is a brace: these are no parameters.
fn skeleton(path: &str) -> String {
    let is_parameter =
        |segment: &str| segment.starts_with('{') && !segment.starts_with("{*") && !segment.starts_with("{{");
    let segments = path.split('/').map(|segment| if is_parameter(segment) { "{}" } else { segment });
    segments.collect::<Vec<_>>().join("/")
}

fn client_ip(source: &SourceText<'_>, raw: RawClientIp) -> Result<ClientIp, ConfigError> {
    // An error is at the line of the first of the three which is set: a mistake in one is mostly a lack of another.
    let at = raw.source.as_ref().map(toml::Spanned::span);
    let at = at.or_else(|| raw.trusted.as_ref().map(toml::Spanned::span));
    let at = at.or_else(|| raw.hops.as_ref().map(toml::Spanned::span)).unwrap_or(0..0);
    let hops = raw.hops.map(|hops| match *hops.get_ref() {
        0 => Err(source.error(&hops.span(), "hops = 0 trusts no proxy; write how many there are, or leave it out")),
        _ => size(source, "client-ip.hops", &hops),
    });
    let hops = hops.transpose()?;
    let ip_source = match raw.source.as_ref().map(toml::Spanned::get_ref) {
        None => IpSource::Peer,
        Some(name) => name.parse::<IpSource>().map_err(|_| {
            let problem = format!(
                "source `{name}` is not a header's name; write peer, x-forwarded-for, forwarded or a single-value header such as x-real-ip"
            );
            source.error(&at, problem)
        })?,
    };
    let trusted = match (raw.trusted, hops) {
        (Some(ranges), hops) => {
            let at = ranges.span();
            let ranges = TrustedProxies::networks(ranges.into_inner());
            let ranges = ranges.map_err(|error| source.error(&at, format_args!("trusted: {error}")))?;
            Some(set(ranges, hops, TrustedProxies::and_hops))
        }
        (None, Some(hops)) => Some(TrustedProxies::hops(hops)),
        (None, None) => None,
    };
    let client_ip = match (ip_source, trusted) {
        (IpSource::Peer, None) => ClientIp::peer(),
        (IpSource::Peer, Some(_)) => {
            let problem = "the socket's peer needs no trusted proxies; name the header that they set as the source, or leave trusted and hops out";
            return Err(source.error(&at, problem));
        }
        (_, None) => {
            let problem = "any client can forge a header; write which proxies to trust: trusted = [\"10.0.0.0/8\"] (the proxies' addresses) and / or hops = 1 (how many there are)";
            return Err(source.error(&at, problem));
        }
        (ip_source, Some(trusted)) => ClientIp::new(ip_source, trusted),
    };
    let prefix = raw.ipv6_prefix.map(|prefix| number(source, "client-ip.ipv6-prefix", &prefix)).transpose()?;
    Ok(set(client_ip, prefix.and_then(|prefix| u8::try_from(prefix).ok()), ClientIp::ipv6_prefix))
}
