//! Layer snapshots.

use std::io;

use crate::engine::snapshot::{Restored, Saved, SnapshotError, Snapshots};
use crate::http::layer::RateLimitLayer;

impl Snapshots {
    /// Makes a set without layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer. Its part in a file is found again by the name.
    ///
    /// # Panics
    ///
    /// If a layer with this name is in the set.
    #[track_caller]
    pub fn layer(self, name: impl Into<String>, layer: &RateLimitLayer) -> Self {
        self.with(name.into(), layer.complete())
    }
}

impl RateLimitLayer {
    /// Writes the policies' state, so that a process that is started again can [restore](Self::restore) it.
    /// [`Snapshots`] describes the contents and the cost. It also writes files, and several layers into one.
    ///
    /// ```
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let layer = || RateLimitLayer::new(Policy::new("api", Quota::per_hour(100)));
    /// let mut bytes = Vec::new();
    /// layer().snapshot(&mut bytes)?;
    /// assert_eq!(layer().restore(&bytes[..])?.policies(), ["api"]);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If `to` fails.
    pub fn snapshot(&self, to: impl io::Write) -> io::Result<Saved> {
        Snapshots::new().layer("", self).write(to)
    }

    /// Restores the policies' state from a [snapshot](Self::snapshot). Call it before the first request.
    ///
    /// # Errors
    ///
    /// If `from` fails, or does not have a whole and undamaged snapshot in a version that this crate knows. Nothing has
    /// changed in these cases.
    pub fn restore(&self, from: impl io::Read) -> Result<Restored, SnapshotError> {
        Snapshots::new().layer("", self).read(from)
    }
}
