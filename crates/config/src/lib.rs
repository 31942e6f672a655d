//! Rate limits of [`tower-sluice`](tower_sluice) from a TOML file: routes and their policies.
//!
//! ```
//! use tower_sluice_config::Config;
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
//! # Ok::<_, tower_sluice_config::ConfigError>(())
//! ```
//!
//! # Format
//!
//! All clients of a policy have the policy's quota, or their plan's (`plans`). [A quota per
//! client](tower_sluice::Policy::quota_fn) needs code.
//!
//! This example has all tables and keys. A line that begins with `#` without a space has a key that cannot be combined
//! with the example's other keys.
//!
#![doc = "```toml"]
#![doc = include_str!("format.toml")]
#![doc = "```"]
//!
//! See [`RateLimitFields`](tower_sluice::headers::RateLimitFields), [`Advertise`](tower_sluice::headers::Advertise),
//! [`RejectionFormat`](tower_sluice::rejection::RejectionFormat) and [`GrpcStatus`](tower_sluice::grpc::GrpcStatus) for
//! the meaning of the values in `[response]`. With any of them, rejected clients get `Retry-After` and
//! `X-Rate-Limited-For`.
//!
//! `plans` gives keys the limits that [`quota_fn`](tower_sluice::Policy::quota_fn),
//! [`window_fn`](tower_sluice::Policy::window_fn) or [`limit_fn`](tower_sluice::Policy::limit_fn) would, and their
//! documentation on keys, changes and memory applies. A plan has the policy's other settings, such as its `max-queue`.
//!
//! [`ChargeOnce`](tower_sluice::ChargeOnce) states how much `charge-once` admits in the worst case. [`Exemptions`]
//! explains the keys in `exempt`, and why clients cannot forge them.
//!
//! Paths match exactly, except that a segment `{name}` matches any segment, and `{*name}` at the end any number of
//! segments: `["/", "/{*rest}"]` is every path. A route with a more exact path goes before. A route without a policy is
//! not limited. Each route has its own budgets, even if policies on several routes have one name. On Redis, processes
//! share a policy's budgets if the prefix, the secret, its route's first path, its name and its kind of algorithm are
//! the same.
//!
//! If `key` is `user`, it is the extension [`User`](tower_sluice::key::User), which an authenticating layer must
//! insert. If it is `path`, it is the route that axum matched ([`PathKey::matched`](tower_sluice::key::PathKey)), or
//! without the feature `axum` the path as sent.
//!
//! # Use
//!
//! `Config::router` puts the limits around an axum app's handlers (feature `axum`). With any other router, mount each
//! route's [layer](Route::layer) on its [paths](Route::paths). [`Config::change`] applies an edited file while the
//! layers run. [`Config::close`] closes the queues when the server stops, and [`Config::snapshots`] saves the budgets
//! for the next one.
//!
//! # Errors
//!
//! An error names the file, the line, the field and the cure. It repeats the value, unless that may be a secret (`url`,
//! `master`, `secret`, `headers`, everything in `[store.NAME]`).
//!
//! # Cost
//!
//! Parsing time is proportional to the number of routes and policies.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "admin")]
mod admin;
mod alternatives;
mod calendar;
mod change;
mod error;
mod exempt;
mod format;
#[cfg(test)]
mod generated;
mod key;
mod log;
mod parser_errors;
mod plans;
mod policy;
mod precedence;
mod problems;
mod reader;
mod response;
#[cfg(feature = "axum")]
mod router;
mod snapshot;
mod source;
pub mod store;
#[cfg(test)]
mod tests;
mod value;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;

pub use self::change::Changed;
pub use self::error::ConfigError;
pub use self::reader::ConfigReader;
pub use self::snapshot::SnapshotFile;

use self::change::FixedTables;
use self::format::{RawBudget, RawClientIp, RawConfig, RawPolicy, RawResponse, RawRoute};
use self::key::CustomKeys;
use self::response::ResponseSettings;
use self::source::SourceText;
use self::store::{NamedStores, StoreMode, StoreSpec, StoreTable, Stores};
use self::value::{number, set_if_some, size};
use tower_sluice::Quota;
use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
use tower_sluice::layer::{IntoPolicies, RateLimitLayerBuilder};
use tower_sluice::policy::Policies;
use tower_sluice::{Exemptions, Policy, RateLimitLayer};

/// The format as a JSON Schema (draft 2020-12), for editors that check TOML while you type it. Write it to a file such
/// as `limits.schema.json`, and begin the configuration with the line `#:schema ./limits.schema.json`. The schema has
/// the tables, their keys, each value's type and the numbers' ranges. Only [`Config::parse`] checks times, paths,
/// addresses and combinations.
pub const SCHEMA: &str = include_str!("schema.json");

const NO_ROUTE: &str = "the file has no route, so that nothing is limited; add [[route]] with path = \"/api\", and below it a \
                        [[route.policy]] for each limit (a file of one store alone is for ConfigReader::open_store)";

/// A parsed configuration, with a layer for each limited route.
#[doc(alias = "toml")]
pub struct Config {
    /// The file's name, for messages.
    #[cfg(feature = "axum")]
    file: String,
    client_ip: ClientIp,
    /// The reader's custom keys, because a [change](Self::change) may name them.
    custom_keys: Option<Arc<CustomKeys>>,
    stores: Stores,
    snapshot: Option<SnapshotFile>,
    /// The tables that a [change](Self::change) must not alter, as in the file.
    fixed_tables: FixedTables,
    routes: Vec<Route>,
}

/// One `[[route]]`.
#[derive(Debug)]
pub struct Route {
    paths: Vec<String>,
    line: usize,
    /// Its `response` as in the file, because a [change](Config::change) must not alter it.
    raw_response: Option<RawResponse>,
    /// Its `exempt-preflights` as in the file, because a change must not alter it.
    raw_preflights: Option<RawBudget>,
    /// Its `path-ignores` as in the file, because a change must not alter it.
    raw_ignores: Option<Vec<String>>,
    /// The whole route as in the file. A change does nothing if this is unchanged.
    written: toml::Value,
    /// Not set if the route has no policy.
    layer: Option<RateLimitLayer>,
    optional_fields: OptionalFields,
}

/// The names of a route's policies, with the optional fields that the file sets. A change logs the optional fields that
/// it removes.
type OptionalFields = Vec<(String, Vec<&'static str>)>;

/// A `[[route]]` that is parsed and checked, but not in force.
struct Draft {
    paths: Vec<String>,
    /// Where the paths are in the file.
    span: Range<usize>,
    /// As in [`Route`].
    raw_response: Option<RawResponse>,
    /// The parsed `raw_response`, with the shared `[response]` for settings that are absent.
    response: ResponseSettings,
    /// As in [`Route`].
    raw_preflights: Option<RawBudget>,
    /// The parsed `raw_preflights`.
    preflight_budget: Option<Quota>,
    /// As in [`Route`].
    raw_ignores: Option<Vec<String>>,
    /// As in [`Route`].
    written: toml::Value,
    policies: DraftPolicies,
    optional_fields: OptionalFields,
}

/// A draft's policies.
enum DraftPolicies {
    None,
    New(Policies),
    /// The route is unchanged, so its limiters don't need tables beside those in force.
    InForce,
}

/// The settings that a file's routes share.
struct SharedSettings<'a> {
    client_ip: &'a ClientIp,
    custom_keys: Option<&'a CustomKeys>,
    response: ResponseSettings,
    stores: &'a Stores,
}

impl Config {
    /// Parses a configuration; `file` is the name in messages.
    ///
    /// # Errors
    ///
    /// If a table, key or value is unknown, missing or invalid, or if there is no route. The message has the line and
    /// the cure.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        Self::reader().parse(file, text)
    }

    /// Makes a reader with settings that a file cannot have, such as a rejection response in code.
    pub fn reader() -> ConfigReader {
        ConfigReader::new()
    }

    /// Parses a configuration with the settings of `reader`.
    fn read(file: &str, text: &str, reader: ConfigReader) -> Result<Self, ConfigError> {
        let source = SourceText::new(file, text);
        let raw: RawConfig = source.parse_toml()?;
        let fixed_tables = FixedTables::read(&raw);
        let client_ip = match raw.client_ip {
            Some(raw) => {
                let ipv6_prefix = raw.get_ref().ipv6_prefix.clone();
                let client_ip = client_ip(&source, raw.into_inner())?;
                // A log has the client's address, and not the proxies'.
                if reader.replay.is_some() { of_prefix(&source, ClientIp::peer(), ipv6_prefix)? } else { client_ip }
            }
            None => ClientIp::peer(),
        };
        let response = match raw.response {
            Some(raw) => ResponseSettings::parse(&source, raw.get_ref())?,
            None => ResponseSettings::default(),
        };
        let mode = reader.replay.map_or(StoreMode::InForce, StoreMode::Replay);
        let has_redis = raw.redis.is_some();
        let table = if raw.store.is_some() || has_redis { Some(source.parse_table()?) } else { None };
        let tables = table.as_ref().and_then(|table| table.get_ref().get("store"));
        let redis = table.as_ref().and_then(|table| StoreTable::redis(&source, table.get_ref()));
        let named = NamedStores { has_redis, redis, tables };
        let mut problems = Vec::new();
        let stores = Stores::open(&source, named, reader.redis, mode, &reader.kinds, &mut problems);
        if let Some(problem) = problems.into_iter().next() {
            return Err(problem);
        }
        let snapshot = raw.snapshot.map(|raw| SnapshotFile::parse(&source, raw.into_inner())).transpose()?;
        if raw.route.is_empty() {
            return Err(source.error(&source.end(), NO_ROUTE));
        }
        let custom_keys = reader.custom_keys;
        let shared =
            SharedSettings { client_ip: &client_ip, custom_keys: custom_keys.as_deref(), response, stores: &stores };
        let drafts = shared.read_routes(&source, raw.route, |_, _| false)?;
        let routes = drafts.into_iter().map(|draft| Route::from_draft(&source, draft, &*reader.set_up)).collect();
        Ok(Self {
            #[cfg(feature = "axum")]
            file: file.to_owned(),
            client_ip,
            custom_keys,
            stores,
            snapshot,
            fixed_tables,
            routes,
        })
    }

    /// Returns the extractor for the key `client-ip`.
    pub const fn client_ip(&self) -> &ClientIp {
        &self.client_ip
    }

    /// Returns the statements that prepare the file's servers, each after its store's name: see
    /// [`Store::migration`](store::Store::migration).
    #[must_use]
    pub fn migrations(&self) -> Vec<(&str, String)> {
        self.stores.migrations()
    }

    /// Closes the queues on all routes, and those that a later [`change`](Self::change) adds: see
    /// [`LimitsHandle::close`](tower_sluice::LimitsHandle::close). Call it when the server shuts down, before it waits
    /// for the requests in flight.
    pub fn close(&self) {
        self.routes.iter().filter_map(Route::layer).for_each(RateLimitLayer::close);
    }

    /// Updates the metrics on all routes that are not counted per request: see [`RateLimitLayer::observe`].
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn observe(&self) {
        self.routes.iter().filter_map(Route::layer).for_each(RateLimitLayer::observe);
    }

    /// Returns the routes, in the file's order.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }
}

/// By hand, since a closure has no `Debug`.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("client_ip", &self.client_ip)
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}

impl Route {
    /// Returns the paths, which share the route's budgets.
    #[must_use]
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// Returns the line that has the paths in the file, counted from 1.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.line
    }

    /// Returns the layer that enforces the route's policies, if it has any.
    #[must_use]
    pub const fn layer(&self) -> Option<&RateLimitLayer> {
        self.layer.as_ref()
    }

    /// Puts a draft in force. `set_up` applies the settings in code: see [`ConfigReader::layers`].
    fn from_draft(source: &SourceText<'_>, draft: Draft, set_up: &reader::SetUp) -> Self {
        let policies = match draft.policies {
            DraftPolicies::New(policies) => Some(policies),
            DraftPolicies::None | DraftPolicies::InForce => None,
        };
        let layer = policies.map(|policies| {
            let builder = RateLimitLayer::builder(policies).route(draft.paths[0].as_str());
            let builder = draft.response.apply_to(builder);
            let builder = set_if_some(builder, draft.preflight_budget, RateLimitLayerBuilder::exempt_preflights);
            set_up(builder).build()
        });
        Self {
            line: source.line(&draft.span),
            paths: draft.paths,
            raw_response: draft.raw_response,
            raw_preflights: draft.raw_preflights,
            raw_ignores: draft.raw_ignores,
            written: draft.written,
            layer,
            optional_fields: draft.optional_fields,
        }
    }
}

impl SharedSettings<'_> {
    /// `is_in_force` says whether a route with these paths and this text is in force.
    fn read_routes(
        &self,
        source: &SourceText<'_>,
        routes: Vec<RawRoute>,
        is_in_force: impl Fn(&[String], &toml::Value) -> bool,
    ) -> Result<Vec<Draft>, ConfigError> {
        let mut lines = HashMap::new();
        let written = source.parse_toml::<toml::Table>()?.remove("route");
        let Some(toml::Value::Array(written)) = written else { return Ok(Vec::new()) };
        let routes = routes.into_iter().zip(written);
        routes.map(|(raw, written)| self.read_route(source, (raw, written), &is_in_force, &mut lines)).collect()
    }

    /// Parses and checks a route. `lines` maps earlier routes' paths to their lines, and gets this route's.
    fn read_route(
        &self,
        source: &SourceText<'_>,
        (raw, written): (RawRoute, toml::Value),
        is_in_force: &impl Fn(&[String], &toml::Value) -> bool,
        lines: &mut HashMap<String, usize>,
    ) -> Result<Draft, ConfigError> {
        let span = raw.path.span();
        let paths = raw.path.get_ref().as_slice().to_vec();
        check_paths(source, &paths, &span, lines)?;
        check_ignored(source, &raw)?;
        if raw.policy.is_empty() {
            check_without_policy(source, &raw)?;
        }
        let response = self.read_response(source, &raw)?;
        let preflight_budget = read_preflights(source, &raw)?;
        let exemptions = self.read_exemptions(source, &raw)?;
        let policies = if is_in_force(&paths, &written) {
            DraftPolicies::InForce
        } else if raw.policy.is_empty() {
            DraftPolicies::None
        } else {
            let policies = self.read_policies(source, &raw, exemptions.as_ref())?;
            DraftPolicies::New(combine(source, &raw, policies)?)
        };
        let mut optional_fields = Vec::new();
        for raw in &raw.policy {
            optional_fields.push((raw.name.get_ref().clone(), change::optional_fields(raw, exemptions.is_some())));
        }
        Ok(Draft {
            paths,
            span,
            raw_response: raw.response.map(Spanned::into_inner),
            response,
            raw_preflights: raw.exempt_preflights.map(Spanned::into_inner),
            preflight_budget,
            raw_ignores: raw.path_ignores.map(Spanned::into_inner),
            written,
            policies,
            optional_fields,
        })
    }

    fn read_response(&self, source: &SourceText<'_>, route: &RawRoute) -> Result<ResponseSettings, ConfigError> {
        match &route.response {
            Some(raw) => Ok(ResponseSettings::parse(source, raw.get_ref())?.or(self.response)),
            None => Ok(self.response),
        }
    }

    fn read_exemptions(&self, source: &SourceText<'_>, route: &RawRoute) -> Result<Option<Exemptions>, ConfigError> {
        let exempt = route.exempt.as_ref();
        exempt.map(|raw| exempt::add(source, Exemptions::new(), raw, self.client_ip)).transpose()
    }

    /// Builds a route's policies, with the route's `exemptions`.
    fn read_policies(
        &self,
        source: &SourceText<'_>,
        route: &RawRoute,
        exemptions: Option<&Exemptions>,
    ) -> Result<Vec<Policy>, ConfigError> {
        let first_path = &route.path.get_ref().as_slice()[0];
        let mut names = HashSet::new();
        route.policy.iter().map(|raw| self.read_policy(source, raw, first_path, exemptions, &mut names)).collect()
    }

    /// Builds a policy on the route whose first path is `first_path`, and adds its name to the route's names.
    fn read_policy(
        &self,
        source: &SourceText<'_>,
        raw: &RawPolicy,
        first_path: &str,
        exemptions: Option<&Exemptions>,
        names: &mut HashSet<String>,
    ) -> Result<Policy, ConfigError> {
        let store = StoreSpec::read(source, raw, first_path, self.stores)?;
        let policy = policy::build(source, raw, self.client_ip, self.custom_keys, store, exemptions.cloned())?;
        let name = raw.name.get_ref();
        if !names.insert(name.clone()) {
            let problem = format!("two policies are named `{name}`; give each a name of its own");
            return Err(source.error(&raw.name.span(), problem));
        }
        Ok(policy)
    }
}

fn read_preflights(source: &SourceText<'_>, route: &RawRoute) -> Result<Option<Quota>, ConfigError> {
    route.exempt_preflights.as_ref().map(|raw| policy::budget(source, raw.get_ref())).transpose()
}

/// Combines a route's policies.
fn combine(source: &SourceText<'_>, route: &RawRoute, policies: Vec<Policy>) -> Result<Policies, ConfigError> {
    let policies = match &route.alternatives {
        Some(alternatives) => alternatives::combine(source, policies, alternatives)?,
        None => policies.into_policies(),
    };
    // Cannot fail, because each policy and the names were checked before, where their lines are known.
    policies.validate().map_err(|error| source.error(&route.path.span(), error))?;
    Ok(policies)
}

/// Checks a route's paths, which are at `span`, and adds them to `lines`, which maps earlier routes' paths to their
/// lines.
fn check_paths(
    source: &SourceText<'_>,
    paths: &[String],
    span: &Range<usize>,
    lines: &mut HashMap<String, usize>,
) -> Result<(), ConfigError> {
    if paths.is_empty() {
        return Err(source.error(span, "the route has no path; write path = \"/...\""));
    }
    for path in paths {
        check_path(path).map_err(|problem| source.error(span, problem))?;
        if let Some(first) = lines.insert(without_parameter_names(path), source.line(span)) {
            let problem = format!("path `{path}` is already served by the route on line {first}; remove one of them");
            return Err(source.error(span, problem));
        }
    }
    Ok(())
}

/// Checks that a route without a policy does not set anything for policies, because that would have no effect.
fn check_without_policy(source: &SourceText<'_>, route: &RawRoute) -> Result<(), ConfigError> {
    for (span, effect, key) in [
        (policy::span_of(&route.response), "its [response] has no effect", "it"),
        (policy::span_of(&route.exempt_preflights), "all requests pass uncounted", "exempt-preflights"),
        (policy::span_of(&route.exempt), "all requests pass uncounted", "exempt"),
        (policy::span_of(&route.alternatives), "there is nothing to choose from", "alternatives"),
    ] {
        if let Some(span) = span {
            let cure = format!("remove {key}, or give the route a [[route.policy]]");
            return Err(source.error(&span, format_args!("the route has no policy, so that {effect}; {cure}")));
        }
    }
    Ok(())
}

/// Checks which differences between paths a route's app ignores.
fn check_ignored(source: &SourceText<'_>, route: &RawRoute) -> Result<(), ConfigError> {
    let Some(ignored) = &route.path_ignores else { return Ok(()) };
    let known = ["case", "trailing-slash", "parameters"];
    match ignored.get_ref().iter().find(|part| !known.contains(&part.as_str())) {
        None => Ok(()),
        Some(part) => {
            let cure = "write some of \"case\", \"trailing-slash\" and \"parameters\"";
            Err(source.error(&ignored.span(), format_args!("path-ignores has `{part}`; {cure}")))
        }
    }
}

/// Checks that a router accepts a path, and matches it literally, except for whole segments `{name}`, and `{*name}` at
/// the end.
fn check_path(path: &str) -> Result<(), String> {
    let Some(rest) = path.strip_prefix('/') else {
        return Err(format!("path `{path}` must begin with a slash; write \"/{path}\""));
    };
    let mut segments = rest.split('/').peekable();
    while let Some(segment) = segments.next() {
        let mut parameter = segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}'));
        if segments.peek().is_none() {
            parameter = parameter.map(|name| name.strip_prefix('*').unwrap_or(name));
        }
        let inner = parameter.unwrap_or(segment);
        if !inner.split('%').skip(1).all(begins_with_two_hex_digits) {
            return Err(format!(
                "segment `{segment}` of path `{path}` cannot be matched; write % as %25, or two hexadecimal digits behind it"
            ));
        }
        // The characters that a path may contain literally (RFC 3986, section 3.3), without those that are patterns for
        // some routers.
        let fits = |char: char| char.is_ascii_alphanumeric() || "-._~%!$&'()+,;=:@".contains(char);
        if !inner.chars().all(fits) || inner.starts_with(':') || parameter == Some("") {
            return Err(format!(
                "segment `{segment}` of path `{path}` cannot be matched; write it literally, {{name}} for any one \
                 segment, or at the end {{*name}} for any number of them"
            ));
        }
    }
    Ok(())
}

fn begins_with_two_hex_digits(text: &str) -> bool {
    text.as_bytes().first_chunk().is_some_and(|digits: &[u8; 2]| digits.iter().all(u8::is_ascii_hexdigit))
}

/// Returns a path with `{}` for each parameter, and `{*}` for a parameter that spans several segments, because a router
/// does not accept two paths that differ only in parameter names. A handler's path may also have `{{`, which is a
/// brace.
fn without_parameter_names(path: &str) -> String {
    let nameless = |segment| match segment {
        brace if str::starts_with(brace, "{{") => brace,
        several if several.starts_with("{*") => "{*}",
        one if one.starts_with('{') => "{}",
        literal => literal,
    };
    path.split('/').map(nameless).collect::<Vec<_>>().join("/")
}

/// Parses `[client-ip]`.
fn client_ip(source: &SourceText<'_>, raw: RawClientIp) -> Result<ClientIp, ConfigError> {
    // An error about combining the three fields is reported at the first that is set.
    let span = policy::span_of(&raw.source).or(policy::span_of(&raw.trusted)).or(policy::span_of(&raw.hops));
    let span = span.unwrap_or(0..0);
    let hops = raw.hops.as_ref().map(|hops| proxy_hops(source, hops)).transpose()?;
    let ip_source = match &raw.source {
        Some(name) => ip_source(source, name)?,
        None => IpSource::Peer,
    };
    let trusted = trusted_proxies(source, raw.trusted, hops)?;
    let client_ip = match (ip_source, trusted) {
        (IpSource::Peer, None) => ClientIp::peer(),
        (IpSource::Peer, Some(_)) => {
            let problem = "the socket's peer needs no trusted proxies; name the header that they set as the source, or leave trusted and hops out";
            return Err(source.error(&span, problem));
        }
        (_, None) => {
            let problem = "any client can forge a header; write which proxies to trust: trusted = [\"10.0.0.0/8\"] (the proxies' addresses) and / or hops = 1 (how many there are)";
            return Err(source.error(&span, problem));
        }
        (ip_source, Some(trusted)) => ClientIp::new(ip_source, trusted),
    };
    of_prefix(source, client_ip, raw.ipv6_prefix)
}

/// Sets the length of the prefix that one client's IPv6 addresses share.
fn of_prefix(
    source: &SourceText<'_>,
    client_ip: ClientIp,
    prefix: Option<Spanned<i64>>,
) -> Result<ClientIp, ConfigError> {
    let prefix = prefix.map(|prefix| number(source, "client-ip.ipv6-prefix", &prefix)).transpose()?;
    Ok(set_if_some(client_ip, prefix.and_then(|prefix| u8::try_from(prefix).ok()), ClientIp::ipv6_prefix))
}

/// Parses `hops`, the number of proxies.
fn proxy_hops(source: &SourceText<'_>, hops: &Spanned<i64>) -> Result<usize, ConfigError> {
    if *hops.get_ref() == 0 {
        let problem = "hops = 0 trusts no proxy; write how many there are, or leave it out";
        return Err(source.error(&hops.span(), problem));
    }
    size(source, "client-ip.hops", hops)
}

/// Parses `source`.
fn ip_source(source: &SourceText<'_>, name: &Spanned<String>) -> Result<IpSource, ConfigError> {
    name.get_ref().parse().map_err(|_| {
        let problem = format!(
            "source `{}` is not a header's name; write peer, x-forwarded-for, forwarded or a single-value header such as x-real-ip",
            name.get_ref()
        );
        source.error(&name.span(), problem)
    })
}

/// Returns the trusted proxies, by their networks, by their number, or by both, if the file has either.
fn trusted_proxies(
    source: &SourceText<'_>,
    networks: Option<Spanned<Vec<String>>>,
    hops: Option<usize>,
) -> Result<Option<TrustedProxies>, ConfigError> {
    let Some(networks) = networks else {
        return Ok(hops.map(TrustedProxies::hops));
    };
    let span = networks.span();
    let proxies = TrustedProxies::networks(networks.into_inner())
        .map_err(|error| source.error(&span, format_args!("trusted: {error}")))?;
    Ok(Some(set_if_some(proxies, hops, TrustedProxies::and_hops)))
}
