//! What the service enforces: the layers of the configuration, by path and by domain.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use axum::body::Body;
use axum::extract::MatchedPath;
use http::{Request, Response};
use tower::{Layer, ServiceExt};
use tower_sluice::config::{Changed, Config, ConfigError, ConfigReader};
use tower_sluice::layer::RateLimit;
use tower_sluice::{LimitsHandle, RateLimitLayer};

use super::pass::Pass;
use super::rls::{self, Asked, CurrentLimits};
use crate::replay::Routes;

/// One route or domain: its limits around a service that admits everything.
pub(crate) struct Limited {
    service: RateLimit<Pass>,
    handle: LimitsHandle,
    current_limits: ArcSwap<CurrentLimits>,
}

impl Limited {
    fn new(layer: &RateLimitLayer) -> Self {
        let limited = Self { service: layer.layer(Pass), handle: layer.handle(), current_limits: ArcSwap::default() };
        limited.note_change();
        limited
    }

    /// Decides on the descriptors of a request.
    pub(crate) async fn decide(&self, asked: Arc<Asked>) -> rls::Decided<Body> {
        let response = self.service.clone().oneshot(rls::request_of(asked)).await?;
        Ok(response.map(Body::new))
    }

    /// The limits of the policies, as responses report them.
    pub(crate) fn current_limits(&self) -> Arc<CurrentLimits> {
        self.current_limits.load_full()
    }

    /// Looks the limits up again, after they were changed.
    fn note_change(&self) {
        self.current_limits.store(Arc::new(CurrentLimits::new(&self.handle.policies())));
    }
}

/// The layers of a configuration in TOML. They are made once; a changed file changes their policies.
pub(crate) struct Limits {
    /// Locked to change the policies, and to observe them, but not for requests.
    config: Mutex<Config>,
    paths: Routes,
    /// `None` for a route without a policy.
    routes: Vec<Option<Limited>>,
    /// The index of each route with this path.
    by_path: HashMap<String, usize>,
}

impl Limits {
    /// Reads a configuration; `file` is its name in messages.
    ///
    /// # Errors
    ///
    /// If it has a mistake.
    pub(crate) fn parse(reader: ConfigReader, file: &str, text: &str) -> Result<Self, ConfigError> {
        let config = reader.layers(|layer| layer.verdict()).keys(rls::read_key).parse(file, text)?;
        let paths = Routes::new(file, &config)?;
        let mut routes = Vec::new();
        let mut by_path = HashMap::new();
        for (index, route) in config.routes().iter().enumerate() {
            routes.push(route.layer().map(Limited::new));
            by_path.extend(route.paths().iter().map(|path| (path.clone(), index)));
        }
        Ok(Self { config: Mutex::new(config), paths, routes, by_path })
    }

    /// Decides on a request by the route of its path. A request to no route, or to one without a policy, passes.
    pub(crate) async fn decide(&self, mut request: Request<Body>) -> Response<Body> {
        let Some((index, matched)) = self.paths.find(request.uri().path()) else { return Response::default() };
        let Some(limited) = &self.routes[index] else { return Response::default() };
        request.extensions_mut().insert(MatchedPath::clone(matched));
        let Ok(response) = limited.service.clone().oneshot(request).await;
        response.map(Body::new)
    }

    /// The limits of a domain: those of the route whose path is the domain's name after a slash.
    pub(crate) fn domain(&self, name: &str) -> Option<&Limited> {
        let index = *self.by_path.get(&format!("/{name}"))?;
        self.routes[index].as_ref()
    }

    /// Puts a changed text in force.
    ///
    /// # Errors
    ///
    /// If it has a mistake. Then nothing has changed.
    pub(crate) fn change(&self, file: &str, text: &str) -> Result<Changed, ConfigError> {
        let changed = self.with_config(|config| config.change(file, text))?;
        self.routes.iter().flatten().for_each(Limited::note_change);
        Ok(changed)
    }

    /// Calls `act` with the configuration. After a panic, some routes may have changed and others not; each is
    /// consistent.
    pub(crate) fn with_config<T>(&self, act: impl FnOnce(&mut Config) -> T) -> T {
        act(&mut self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The layers, each under the path of its route, for operators.
    pub(crate) fn handles(&self) -> Vec<(String, LimitsHandle)> {
        self.with_config(|config| {
            let limited = config.routes().iter().filter_map(|route| route.layer().map(|layer| (route, layer)));
            limited.map(|(route, layer)| (route.paths()[0].clone(), layer.handle())).collect()
        })
    }
}
