//! `Config::router`: a file's limits around an axum app's handlers.

use std::collections::HashMap;

use axum::Router;
use axum::routing::MethodRouter;

use super::{Config, ConfigError, Route, without_parameter_names};

impl Config {
    /// Makes a router from these handlers, each with the file's limits for its path, if any. Parameter names may
    /// differ: `/users/{id}` is `/users/{name}` in the file.
    ///
    /// ```no_run
    /// use std::net::SocketAddr;
    ///
    /// use axum::routing::{get, post};
    /// use tower_sluice_config::Config;
    ///
    /// #[tokio::main]
    /// async fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let config = Config::parse("limits.toml", &std::fs::read_to_string("limits.toml")?)?;
    ///     let app = config.router([
    ///         ("/search", get(|| async { "results" })),
    ///         ("/login", post(|| async { "welcome" })),
    ///         ("/healthz", get(|| async { "ok" })), // not in the file: no limit
    ///     ])?;
    ///
    ///     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    ///     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// Keep the [`Config`] to [change](Self::change) the limits while the router runs, and to [close](Self::close) its
    /// queues. For routes with other handler types (nested services, say), mount their [layers](Route::layer).
    ///
    /// # Errors
    ///
    /// If a path in the file has no handler, so that a misspelled path does not leave its handler unlimited. The error
    /// has the line, and the handlers' paths.
    ///
    /// # Panics
    ///
    /// As `axum::Router::route`, if a path is not valid or is there twice.
    #[track_caller]
    pub fn router<'p, S>(
        &self,
        handlers: impl IntoIterator<Item = (&'p str, MethodRouter<S>)>,
    ) -> Result<Router<S>, ConfigError>
    where
        S: Clone + Send + Sync + 'static,
    {
        let paths = |route| Route::paths(route).iter().map(move |path| (without_parameter_names(path), (path, route)));
        let mut unserved: HashMap<_, (&String, &Route)> = self.routes.iter().flat_map(paths).collect();
        let (mut router, mut served) = (Router::new(), Vec::new());
        for (path, handler) in handlers {
            let route = unserved.remove(&without_parameter_names(path)).map(|(_, route)| route);
            let handler = match route.and_then(Route::layer) {
                Some(layer) => handler.layer(layer.clone()),
                None => handler,
            };
            router = router.route(path, handler);
            served.push(path);
        }
        match unserved.into_values().min_by_key(|(path, route)| (route.line, *path)) {
            None => Ok(router),
            Some((path, route)) => {
                let served = served.join(", ");
                let problem =
                    format!("path `{path}` has no handler; write one that has ({served}), or remove the path");
                Err(ConfigError::new(&self.file, route.line, problem))
            }
        }
    }
}
