//! The limits in the service's files, by path and by domain.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tower_sluice::Policy;
use tower_sluice::direct::{self, On};
use tower_sluice::internal::WholeQuery;
use tower_sluice::policy::Operate;
use tower_sluice_config::{Config, ConfigError, ConfigReader};

use super::check::{check_domains, without_effect};
use super::domains::{self, Domain, Selector, Store};
use super::sources::Texts;
use crate::descriptors::{Asked, Patterns, read_key};
use crate::path::Target;
use crate::routes::Routes;
use crate::words::{FileWords, keys, tables};

/// All limits.
pub(crate) struct Limits {
    toml: Option<Toml>,
    /// The domains in other services' files.
    domains: ArcSwap<HashMap<String, Arc<Domain>>>,
    /// Where these domains' budgets are.
    store: Store,
    /// Whether the service stops, so that queues reject.
    is_closed: AtomicBool,
}

/// The layers for a configuration in TOML. They are created once, and a changed file changes their policies.
struct Toml {
    /// Locked to change the policies, and to observe them, but not for requests.
    config: Mutex<Config>,
    paths: Routes,
    /// `None` for a route without a policy.
    routes: Vec<Option<Arc<Domain>>>,
    /// The route for each path.
    by_path: HashMap<String, usize>,
}

/// A valid domain in another service's file that is not in force yet.
struct Prepared {
    name: String,
    limits: PreparedLimits,
    selector: Selector,
}

enum PreparedLimits {
    New(direct::Limits<Asked>),
    /// Policies for the limits that the domain has.
    Changed(direct::Limits<Asked>, Vec<Policy<On<Asked>>>),
}

impl Limits {
    /// Reads the files' texts. Domains from other services' files have their budgets in `store`.
    ///
    /// # Errors
    ///
    /// If a file has a mistake.
    pub(crate) fn read(reader: ConfigReader, texts: &Texts, store: Store) -> Result<Self, ConfigError> {
        let toml = match &texts.config {
            None => None,
            Some((file, text)) => Some(Toml::parse(reader, file, text)?),
        };
        let limits = Self { toml, domains: ArcSwap::default(), store, is_closed: AtomicBool::new(false) };
        let words = texts.words();
        limits.apply(limits.prepare(texts, words.as_ref())?);
        warn_of_policies_without_effect(words.as_ref());
        Ok(limits)
    }

    /// Decides on a request by its path's route. A request passes if it has no route, or if the route has no policy.
    pub(crate) async fn decide(&self, mut request: Request<Body>, target: &[u8]) -> Response<Body> {
        let Some(toml) = &self.toml else {
            let problem = "there are no routes; start the service with --config and a file that has them\n";
            return (StatusCode::NOT_FOUND, problem).into_response();
        };
        let Some(target) = Target::read(if target == b"*" { b"/" } else { target }) else {
            let problem = "X-Forwarded-Uri is no path with a query, such as /search?q=tea\n";
            return (StatusCode::BAD_REQUEST, problem).into_response();
        };
        let Some((index, matched)) = toml.paths.find(&target) else {
            metrics::counter!("sluice.requests.without_route").increment(1);
            return Response::default();
        };
        let Some(domain) = &toml.routes[index] else { return Response::default() };
        *request.uri_mut() = target.uri();
        if let Some(query) = target.long_query() {
            request.extensions_mut().insert(WholeQuery(Bytes::copy_from_slice(query)));
        }
        request.extensions_mut().insert(MatchedPath::clone(matched));
        let Some(layer) = domain.layer() else { return Response::default() };
        domains::answer(layer, &(&request).into()).await
    }

    /// Returns a domain's limits: those in another service's file, or those on the route whose path is a slash and the
    /// domain's name.
    pub(crate) fn domain(&self, name: &str) -> Option<Arc<Domain>> {
        if let Some(domain) = self.domains.load().get(name) {
            return Some(Arc::clone(domain));
        }
        let toml = self.toml.as_ref()?;
        toml.routes[*toml.by_path.get(name)?].clone()
    }

    /// Returns the domain's name if a file has it, otherwise an empty text, since callers choose the name.
    pub(crate) fn known_domain<'a>(&self, name: &'a str) -> &'a str {
        if self.domain(name).is_some() { name } else { "" }
    }

    /// Puts changed texts in force. Returns the events for the log.
    ///
    /// # Errors
    ///
    /// If a file has a mistake. Then nothing has changed, because every step that can fail comes before the first
    /// change.
    pub(crate) fn change(&self, texts: &Texts) -> Result<String, ConfigError> {
        let words = texts.words();
        let prepared = self.prepare(texts, words.as_ref())?;
        let mut changes = Vec::new();
        if let (Some(toml), Some((file, text))) = (&self.toml, &texts.config) {
            let changed = toml.change(file, text, words.as_ref())?;
            changes.push(format!("{file}: {changed}"));
        }
        let (before, rules_before) = (self.domain_names(), self.rule_names());
        self.apply(prepared);
        let (after, rules_after) = (self.domain_names(), self.rule_names());
        if !after.is_empty() || !before.is_empty() {
            changes.push(format!("domains: {}", if after.is_empty() { "none".to_owned() } else { after.join(", ") }));
        }
        for removed in before.iter().filter(|name| !after.contains(name)) {
            // A truncated file may still be valid.
            tracing::warn!("the domain {removed} is in no file any more: its requests are not limited");
        }
        let gone: Vec<_> = rules_before.difference(&rules_after).filter(|(domain, _)| after.contains(domain)).collect();
        if let Some((domain, rule)) = gone.first() {
            tracing::warn!(rules = gone.len(), "rules are in no file any more, such as {rule} of the domain {domain}");
        }
        warn_of_policies_without_effect(words.as_ref());
        Ok(changes.join("; "))
    }

    /// The rules in other services' files, each behind its domain.
    fn rule_names(&self) -> BTreeSet<(String, String)> {
        let domains = self.domains.load();
        let selectors = domains.iter().filter_map(|(name, domain)| Some((name, domain.selector()?)));
        selectors
            .flat_map(|(name, selector)| selector.rule_names().map(|rule| (name.clone(), rule.to_owned())))
            .collect()
    }

    /// The domains in other services' files, in order.
    fn domain_names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.domains.load().keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Reads the domains in other services' files, and makes their policies.
    fn prepare(&self, texts: &Texts, words: Option<&FileWords<'_>>) -> Result<Vec<Prepared>, ConfigError> {
        if let Some(words) = words {
            check_domains(words)?;
        }
        let before = self.domains.load();
        let mut prepared = Vec::new();
        for domain in texts.domains(words)? {
            let (name, line) = (domain.name.clone(), domain.line);
            let before = before.get(&name);
            let selector = Selector::new(domain, &self.store, before.and_then(|domain| domain.selector()))?;
            // Done for a known domain, too, because only this shows whether the policies can be in force together.
            let limits = domains::enforce(&name, selector.policies());
            let limits = limits.map_err(|error| ConfigError::new(format!("domain {name}"), line, error))?;
            let limits = match before.and_then(|domain| domain.rules()) {
                None => PreparedLimits::New(limits),
                Some(limits) => PreparedLimits::Changed(limits.clone(), selector.policies()),
            };
            prepared.push(Prepared { name, limits, selector });
        }
        Ok(prepared)
    }

    /// Domains that existed before keep the counts for their limits.
    fn apply(&self, prepared: Vec<Prepared>) {
        let mut after = HashMap::new();
        for Prepared { name, limits, selector } in prepared {
            let limits = match limits {
                PreparedLimits::New(limits) => limits,
                PreparedLimits::Changed(limits, policies) => {
                    limits.replace(policies).expect("these policies were in force together before");
                    limits
                }
            };
            after.insert(name, Arc::new(Domain::of_rules(limits, selector)));
        }
        self.domains.store(Arc::new(after));
    }

    /// Calls `act` with the configuration in TOML, if there is one.
    pub(crate) fn with_config<T>(&self, act: impl FnOnce(&mut Config) -> T) -> Option<T> {
        self.toml.as_ref().map(|toml| toml.with_config(act))
    }

    /// Updates the metrics that are not counted per request.
    pub(crate) fn observe(&self) {
        self.with_config(|config| config.observe());
        self.domains.load().values().filter_map(|domain| domain.rules()).for_each(|limits| limits.observe());
    }

    /// Rejects all requests that wait in queues.
    pub(crate) fn close(&self) {
        // Before the first waiter is rejected.
        self.is_closed.store(true, Ordering::Release);
        self.with_config(|config| config.close());
    }

    /// Whether the service stops.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The limits, each with its route or domain, for operators.
    pub(crate) fn operated(&self) -> Vec<(String, Arc<dyn Operate>)> {
        let of_toml = self.with_config(|config| {
            let layers = config.routes().iter().filter_map(|route| Some((&route.paths()[0], route.layer()?)));
            layers.map(|(path, layer)| (path.clone(), layer.handle().into())).collect()
        });
        let mut all: Vec<_> = of_toml.unwrap_or_default();
        let mut domains: Vec<_> =
            self.domains.load().iter().map(|(name, domain)| (name.clone(), domain.operated())).collect();
        domains.sort_by(|(one, _), (other, _)| one.cmp(other));
        all.extend(domains.into_iter().map(|(name, limits)| (format!("domain {name}"), limits)));
        all
    }
}

fn warn_of_policies_without_effect(words: Option<&FileWords<'_>>) {
    if let Some(words) = words {
        without_effect(words).iter().for_each(|problem| tracing::warn!("{problem}"));
    }
}

impl Toml {
    fn parse(reader: ConfigReader, file: &str, text: &str) -> Result<Self, ConfigError> {
        let config = reader.layers(|layer| layer.verdict()).keys(read_key).parse(file, text)?;
        let words = FileWords::parse(file, text);
        let paths = Routes::new(file, &words.routes(), &config)?;
        let mut routes = Vec::new();
        let mut by_path = HashMap::new();
        for (index, (route, patterns)) in config.routes().iter().zip(patterns(&words)).enumerate() {
            routes.push(route.layer().map(|layer| Arc::new(Domain::of_route(layer.handle(), patterns))));
            by_path.extend(route.paths().iter().map(|path| (path.trim_start_matches('/').to_owned(), index)));
        }
        Ok(Self { config: Mutex::new(config), paths, routes, by_path })
    }

    /// Changes the routes' policies.
    ///
    /// # Errors
    ///
    /// If the file has a mistake. Then nothing has changed.
    fn change(&self, file: &str, text: &str, words: Option<&FileWords<'_>>) -> Result<String, ConfigError> {
        let after = words.map(patterns).unwrap_or_default();
        let changing: Vec<_> =
            self.routes.iter().zip(after).filter_map(|(it, after)| Some((it.as_ref()?, after))).collect();
        let before: Vec<_> = changing.iter().map(|(domain, _)| domain.patterns()).collect();
        changing.iter().for_each(|(domain, after)| domain.begin_change(after));
        let changed = self.with_config(|config| config.change(file, text));
        for ((domain, after), before) in changing.into_iter().zip(before) {
            domain.end_change(if changed.is_ok() { after } else { before });
        }
        changed.map(|changed| changed.to_string())
    }

    /// After a panic, some routes may have changed and others not; each is consistent.
    fn with_config<T>(&self, act: impl FnOnce(&mut Config) -> T) -> T {
        act(&mut self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reads each route's patterns for descriptors.
fn patterns(words: &FileWords<'_>) -> Vec<Patterns> {
    let of_route = |route| {
        let policies = tables(route, "policy").into_iter();
        Patterns::new(policies.filter_map(|policy| Some((policy.get("name")?.as_str()?, keys(policy)))))
    };
    words.route_tables().into_iter().map(of_route).collect()
}
