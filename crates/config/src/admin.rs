//! The layers of a configuration, for the admin service.

use super::{Config, Route};
use tower_sluice_admin::Admin;

/// The layers of all routes that have one, each with the first path of its route as its name.
///
/// A [change](Config::change) of the configuration changes what the service shows.
impl From<&Config> for Admin {
    fn from(config: &Config) -> Self {
        let named = |route: &Route| Some((route.paths()[0].clone(), route.layer()?.handle()));
        Self::new(config.routes().iter().filter_map(named))
    }
}
