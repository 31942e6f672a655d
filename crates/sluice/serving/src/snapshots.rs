//! Snapshots of the limits: restored before the server serves, and written while it does.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tower_sluice::snapshot::Snapshots;
use tower_sluice_config::{Config, SnapshotFile};

/// Writes snapshots of the limits.
#[derive(Clone, Debug)]
pub struct Saving {
    snapshots: Arc<Snapshots>,
    file: SnapshotFile,
}

impl Saving {
    /// Restores the limits from the snapshot file in the configuration, if there is one. A refused snapshot is kept
    /// beside it, and the limits begin with full budgets, because a server that does not start would be worse.
    pub fn restore(config: &Config) -> Option<Self> {
        let file = config.snapshot()?.clone();
        let snapshots = Arc::new(config.snapshots());
        match snapshots.load(file.path()) {
            Ok(restored) => tracing::info!("{}: {restored}", file.path().display()),
            Err(error) => tracing::error!("{}: {error}; all budgets begin full", file.path().display()),
        }
        Some(Self { snapshots, file })
    }

    /// Writes a snapshot again and again while the server runs.
    pub async fn run(self) {
        let every: Duration = self.file.every();
        loop {
            sleep(every).await;
            let saving = self.clone();
            if let Ok(Err(problem)) = spawn_blocking(move || saving.save()).await {
                tracing::error!("{problem}");
            }
        }
    }

    /// Writes a snapshot now.
    ///
    /// # Errors
    ///
    /// If the file cannot be written: the message to print.
    pub fn save(&self) -> Result<(), String> {
        self.snapshots.save(self.file.path()).map(drop).map_err(|error| format!("no snapshot was written: {error}"))
    }
}
