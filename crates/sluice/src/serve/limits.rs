//! The limits in the service's files, by path and by domain.

mod routes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

use self::routes::RouteLimits;
use super::check::{check_domains, without_effect};
use super::domains::{self, Domain, Selector, Store};
use super::sources::Texts;
use crate::descriptors::Asked;
use crate::path::Target;
use crate::rules;
use crate::words::FileWords;

/// All limits.
pub(crate) struct Limits {
    /// The limits in a configuration in TOML, if there is one.
    routes: Option<RouteLimits>,
    /// The limits in other services' files.
    domains: ArcSwap<Domains>,
    /// Where the budgets of `domains` are.
    store: Store,
    /// Whether the service stops, so that queues reject.
    is_closed: AtomicBool,
}

/// Domains by name.
type Domains = HashMap<String, Arc<Domain>>;

/// A valid domain in another service's file that is not in force yet.
struct PreparedDomain {
    name: String,
    limits: PreparedLimits,
    selector: Selector,
}

enum PreparedLimits {
    /// The limits for a new domain.
    New(direct::Limits<Asked>),
    /// The limits in force, and their next policies.
    Changed(direct::Limits<Asked>, Vec<Policy<On<Asked>>>),
}

impl Limits {
    /// Reads the files' texts. Domains from other services' files have their budgets in `store`.
    ///
    /// # Errors
    ///
    /// If a file has a mistake.
    pub(crate) fn read(reader: ConfigReader, texts: &Texts, store: Store) -> Result<Self, ConfigError> {
        let routes = texts.config.as_ref().map(|(file, text)| RouteLimits::read(reader, file, text)).transpose()?;
        let limits = Self { routes, domains: ArcSwap::default(), store, is_closed: AtomicBool::new(false) };
        let words = texts.words();
        limits.put_in_force(limits.prepare(texts, words.as_ref())?);
        warn_of_policies_without_effect(words.as_ref());
        Ok(limits)
    }

    /// Puts changed texts in force. Returns a summary for the log.
    ///
    /// # Errors
    ///
    /// If a file has a mistake. In that case nothing has changed, because every step that can fail comes before the
    /// first change.
    pub(crate) fn change(&self, texts: &Texts) -> Result<String, ConfigError> {
        let words = texts.words();
        let prepared = self.prepare(texts, words.as_ref())?;
        let mut changes = Vec::new();
        if let (Some(routes), Some((file, text))) = (&self.routes, &texts.config) {
            let changed = routes.change(file, text, words.as_ref())?;
            changes.push(format!("{file}: {changed}"));
        }
        let before = self.domains.load_full();
        self.put_in_force(prepared);
        let after = self.domains.load_full();
        if !after.is_empty() {
            changes.push(format!("domains: {}", sorted_names(&after).join(", ")));
        } else if !before.is_empty() {
            changes.push("domains: none".to_owned());
        }
        warn_of_removals(&before, &after);
        warn_of_policies_without_effect(words.as_ref());
        Ok(changes.join("; "))
    }

    /// Reads the domains in other services' files, and makes their policies. Changes nothing.
    fn prepare(&self, texts: &Texts, words: Option<&FileWords<'_>>) -> Result<Vec<PreparedDomain>, ConfigError> {
        if let Some(words) = words {
            check_domains(words)?;
        }
        let in_force = self.domains.load();
        let domains = texts.domains(words)?.into_iter();
        domains.map(|domain| self.prepare_domain(in_force.get(&domain.name), domain)).collect()
    }

    /// Makes a domain's policies. `before` is the domain in force with its name.
    fn prepare_domain(
        &self,
        before: Option<&Arc<Domain>>,
        domain: rules::Domain,
    ) -> Result<PreparedDomain, ConfigError> {
        let (name, line) = (domain.name.clone(), domain.line);
        let selector = Selector::new(domain, &self.store, before.and_then(|before| before.selector()))?;
        // Done for a known domain, too, because only this shows whether the policies can be in force together.
        let limits = domains::enforce(&name, selector.policies())
            .map_err(|error| ConfigError::new(format!("domain {name}"), line, error))?;
        let limits = match before.and_then(|before| before.rules()) {
            None => PreparedLimits::New(limits),
            Some(in_force) => PreparedLimits::Changed(in_force.clone(), selector.policies()),
        };
        Ok(PreparedDomain { name, limits, selector })
    }

    /// Puts domains in force in place of all earlier ones. A domain that existed before keeps its limits' counts.
    fn put_in_force(&self, prepared: Vec<PreparedDomain>) {
        let mut domains = Domains::new();
        for PreparedDomain { name, limits, selector } in prepared {
            let limits = match limits {
                PreparedLimits::New(limits) => limits,
                PreparedLimits::Changed(limits, policies) => {
                    limits.replace(policies).expect("`prepare` has put these policies in force together");
                    limits
                }
            };
            domains.insert(name, Arc::new(Domain::of_rules(limits, selector)));
        }
        self.domains.store(Arc::new(domains));
    }

    /// Decides on a request by its path's route. A request passes if it has no route, or if the route has no policy.
    pub(crate) async fn decide(&self, mut request: Request<Body>, target: &[u8]) -> Response<Body> {
        let Some(routes) = &self.routes else {
            let problem = "there are no routes; start the service with --config and a file that has them\n";
            return (StatusCode::NOT_FOUND, problem).into_response();
        };
        let Some(target) = Target::read(if target == b"*" { b"/" } else { target }) else {
            let problem = "X-Forwarded-Uri is no path with a query, such as /search?q=tea\n";
            return (StatusCode::BAD_REQUEST, problem).into_response();
        };
        let Some((route, path)) = routes.find(&target) else {
            metrics::counter!("sluice.requests.without_route").increment(1);
            return Response::default();
        };
        let Some(layer) = route.and_then(|route| route.layer()) else { return Response::default() };
        set_target(&mut request, &target, path);
        domains::answer(layer, &(&request).into()).await
    }

    /// Returns a domain's limits. They are in another service's file, or on the route whose path is a slash and the
    /// domain's name.
    pub(crate) fn domain(&self, name: &str) -> Option<Arc<Domain>> {
        let of_rules = self.domains.load().get(name).cloned();
        of_rules.or_else(|| self.routes.as_ref()?.domain(name).cloned())
    }

    /// Returns the domain's name if a file has it, otherwise an empty text, because callers choose the name.
    pub(crate) fn known_domain<'a>(&self, name: &'a str) -> &'a str {
        if self.domain(name).is_some() { name } else { "" }
    }

    /// The limits for operators, each with its route or domain.
    pub(crate) fn operated(&self) -> Vec<(String, Arc<dyn Operate>)> {
        let mut all = self.routes.as_ref().map_or_else(Vec::new, RouteLimits::operated);
        let domains = self.domains.load();
        let operated = |name: &String| (format!("domain {name}"), domains[name].operated());
        all.extend(sorted_names(&domains).iter().map(operated));
        all
    }

    /// Calls `act` with the configuration in TOML, if there is one.
    pub(crate) fn with_config<T>(&self, act: impl FnOnce(&mut Config) -> T) -> Option<T> {
        self.routes.as_ref().map(|routes| routes.with_config(act))
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
}

/// Gives a request the target and the matched path that it has at the proxy.
fn set_target(request: &mut Request<Body>, target: &Target<'_>, path: &MatchedPath) {
    *request.uri_mut() = target.uri();
    if let Some(query) = target.long_query() {
        request.extensions_mut().insert(WholeQuery(Bytes::copy_from_slice(query)));
    }
    request.extensions_mut().insert(path.clone());
}

fn sorted_names(domains: &Domains) -> Vec<String> {
    let mut names: Vec<_> = domains.keys().cloned().collect();
    names.sort_unstable();
    names
}

/// The domains' rules, each behind its domain's name.
fn rule_names(domains: &Domains) -> BTreeSet<(&str, &str)> {
    let selectors = domains.iter().filter_map(|(domain, limits)| Some((domain, limits.selector()?)));
    selectors.flat_map(|(domain, selector)| selector.rule_names().map(|rule| (domain.as_str(), rule))).collect()
}

/// Warns of removed domains and rules, because a truncated file may still be valid.
fn warn_of_removals(before: &Domains, after: &Domains) {
    for domain in sorted_names(before).iter().filter(|domain| !after.contains_key(*domain)) {
        tracing::warn!("the domain {domain} is in no file any more: its requests are not limited");
    }
    let (rules_before, rules_after) = (rule_names(before), rule_names(after));
    let removed: Vec<_> =
        rules_before.difference(&rules_after).filter(|(domain, _)| after.contains_key(*domain)).collect();
    if let Some((domain, rule)) = removed.first() {
        tracing::warn!(rules = removed.len(), "rules are in no file any more, such as {rule} of the domain {domain}");
    }
}

fn warn_of_policies_without_effect(words: Option<&FileWords<'_>>) {
    if let Some(words) = words {
        without_effect(words).iter().for_each(|problem| tracing::warn!("{problem}"));
    }
}
