//! Puts an edited configuration in force, on SIGHUP and when its text has changed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::interval;

use super::limits::Limits;
use super::read_file;

/// How often the file is read. It is small, and its text shows an edit more reliably than its time: also if it is a
/// link that now points to another file, as in a mounted ConfigMap, or was copied with its time.
const PERIOD: Duration = Duration::from_secs(1);

/// Applies each edit of `file` after `text`, for as long as the service runs, and logs the result. A text that is
/// rejected changes nothing.
///
/// An edit that is found by polling is applied once the text is unchanged for a period, so that no half-written file is.
/// On a SIGHUP, the file is applied as it is, also if its text is the same.
pub(crate) async fn apply_edits(file: PathBuf, text: String, limits: Arc<Limits>) {
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => Some(hangups),
        Err(error) => {
            tracing::error!("SIGHUP does not reload the limits: {error}");
            None
        }
    };
    let name = file.display().to_string();
    let mut applied = Ok(text.clone());
    let mut last = Ok(text);
    let mut ticks = interval(PERIOD);
    loop {
        let is_demanded = tokio::select! {
            _ = ticks.tick() => false,
            Some(()) = async { hangups.as_mut()?.recv().await } => true,
        };
        let path = file.clone();
        let found = spawn_blocking(move || read_file(&path)).await.unwrap_or_else(|error| Err(error.to_string()));
        let is_settled = found == last;
        last.clone_from(&found);
        if !is_demanded && (!is_settled || found == applied) {
            continue;
        }
        applied.clone_from(&found);
        match found.map(|text| limits.change(&name, &text)) {
            Ok(Ok(changed)) => tracing::info!("{name}: the limits were read again: {changed}"),
            Ok(Err(error)) => tracing::error!("{error} (the limits stay as they were)"),
            Err(error) => tracing::error!("{name}: {error}; the limits stay as they were"),
        }
    }
}
