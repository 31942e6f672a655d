//! Changes the running server's limits when its file is edited.

use std::fs;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tower_sluice_config::ConfigError;

use crate::limits::Limits;

/// How often the file is read. It is small, and its text shows an edit more reliably than its time, even if it is a
/// link that now points to another file, or was copied with its time.
const PERIOD: Duration = Duration::from_millis(500);

/// Applies each edit to `file` after `text`, while the server runs, and logs the result. An edit is applied once the
/// text is unchanged for a period, so that no half-written file is applied. A text that is rejected changes nothing.
pub(crate) async fn apply_edits(file: String, text: String, limits: Arc<RwLock<Limits>>) {
    let (mut applied, mut last) = (Ok(text.clone()), Ok(text));
    loop {
        sleep(PERIOD).await;
        let path = file.clone();
        let found = spawn_blocking(move || read(&path)).await.unwrap_or_else(|error| Err(error.to_string()));
        let is_settled = found == last;
        last.clone_from(&found);
        if !is_settled || found == applied {
            continue;
        }
        applied.clone_from(&found);
        match found {
            Ok(text) => report(&file, change(&file, &text, &limits)),
            Err(error) => tracing::error!("{file}: {error}; the limits stay as they were"),
        }
    }
}

/// Reads a regular file; reading a pipe might block for ever.
pub(crate) fn read(file: &str) -> Result<String, String> {
    if !fs::metadata(file).map_err(|error| error.to_string())?.is_file() {
        return Err("it is no regular file; write the configuration into one".to_owned());
    }
    fs::read_to_string(file).map_err(|error| error.to_string())
}

fn change(file: &str, text: &str, limits: &RwLock<Limits>) -> Result<Vec<(String, String)>, ConfigError> {
    // After a panic, some routes have changed and others have not; each is consistent.
    let mut limits = limits.write().unwrap_or_else(PoisonError::into_inner);
    limits.change(file, text).map(|changed| changed.not_inherited().to_vec())
}

fn report(file: &str, changed: Result<Vec<(String, String)>, ConfigError>) {
    match changed {
        Ok(not_inherited) => {
            tracing::info!("{file}: the limits were changed");
            for (path, policy) in not_inherited {
                tracing::warn!("{file}: all keys of policy `{policy}` of {path} have lost their state");
            }
        }
        Err(error) => tracing::error!("{error} (the limits stay as they were)"),
    }
}
