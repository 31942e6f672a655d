//! A configuration's layers, for the admin service.

use super::{Config, Route};
use tower_sluice_admin::Admin;

/// The layers on all routes that have one. Each is named after its route's first path.
///
/// A [change](Config::change) to the configuration changes the data that the service shows.
impl From<&Config> for Admin {
    fn from(config: &Config) -> Self {
        let named = |route: &Route| Some((route.paths()[0].clone(), route.layer()?.handle()));
        Self::new(config.routes().iter().filter_map(named))
    }
}
