//! The limits on routes, from a configuration in TOML.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::MatchedPath;
use tower_sluice::policy::Operate;
use tower_sluice_config::{Config, ConfigError, ConfigReader};

use crate::descriptors::{Patterns, read_key};
use crate::path::Target;
use crate::routes::Routes;
use crate::serve::domains::Domain;
use crate::words::{FileWords, keys, tables};

/// The limits on all routes. Their layers are created once, and a changed file changes the layers' policies.
pub(super) struct RouteLimits {
    /// Locked to change the policies, and to observe them, but not for requests.
    config: Mutex<Config>,
    paths: Routes,
    /// Each route's limits. `None` for a route without a policy.
    limits: Vec<Option<Arc<Domain>>>,
    /// The index of the route that is the domain with a name.
    by_domain: HashMap<String, usize>,
}

impl RouteLimits {
    /// Reads a configuration.
    ///
    /// # Errors
    ///
    /// If the file has a mistake.
    pub(super) fn read(reader: ConfigReader, file: &str, text: &str) -> Result<Self, ConfigError> {
        let config = reader.layers(|layer| layer.verdict()).keys(read_key).parse(file, text)?;
        let words = FileWords::parse(file, text);
        let paths = Routes::new(file, &words.routes(), &config)?;
        let mut limits = Vec::new();
        let mut by_domain = HashMap::new();
        for (index, (route, patterns)) in config.routes().iter().zip(patterns(&words)).enumerate() {
            limits.push(route.layer().map(|layer| Arc::new(Domain::of_route(layer.handle(), patterns))));
            by_domain.extend(route.paths().iter().map(|path| (path.trim_start_matches('/').to_owned(), index)));
        }
        Ok(Self { config: Mutex::new(config), paths, limits, by_domain })
    }

    /// Changes the routes' policies. Returns a summary for the log.
    ///
    /// # Errors
    ///
    /// If the file has a mistake. In that case nothing has changed.
    pub(super) fn change(&self, file: &str, text: &str, words: Option<&FileWords<'_>>) -> Result<String, ConfigError> {
        let after = words.map(patterns).unwrap_or_default();
        let routes = self.limits.iter().zip(after);
        let changing: Vec<_> = routes.filter_map(|(limits, after)| Some((limits.as_ref()?, after))).collect();
        let before: Vec<_> = changing.iter().map(|(route, _)| route.patterns()).collect();
        changing.iter().for_each(|(route, after)| route.begin_change(after));
        let changed = self.with_config(|config| config.change(file, text));
        for ((route, after), before) in changing.into_iter().zip(before) {
            route.end_change(if changed.is_ok() { after } else { before });
        }
        changed.map(|changed| changed.to_string())
    }

    /// Returns the limits on a target's route, if that has a policy, and the path that matches. Returns `None` if there
    /// is no route.
    pub(super) fn find(&self, target: &Target<'_>) -> Option<(Option<&Arc<Domain>>, &MatchedPath)> {
        let (route, path) = self.paths.find(target)?;
        Some((self.limits[route].as_ref(), path))
    }

    /// Returns the limits on the route whose path is a slash and this name.
    pub(super) fn domain(&self, name: &str) -> Option<&Arc<Domain>> {
        self.limits[*self.by_domain.get(name)?].as_ref()
    }

    /// The limits for operators, each with its route's first path.
    pub(super) fn operated(&self) -> Vec<(String, Arc<dyn Operate>)> {
        self.with_config(|config| {
            let layers = config.routes().iter().filter_map(|route| Some((&route.paths()[0], route.layer()?)));
            layers.map(|(path, layer)| (path.clone(), layer.handle().into())).collect()
        })
    }

    /// After a panic, some routes may have changed and others not, but each is consistent.
    pub(super) fn with_config<T>(&self, act: impl FnOnce(&mut Config) -> T) -> T {
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
