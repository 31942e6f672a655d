//! Puts edited files in force, on SIGHUP and when a text has changed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::interval;

use super::limits::Limits;
use super::sources::{Sources, Texts};

/// How often the files are read. They are small, and their texts show an edit more reliably than their times, even if a
/// file is a link that now points to another file, as in a mounted ConfigMap, or was copied with its time.
const PERIOD: Duration = Duration::from_secs(1);

/// Catches SIGHUP. An error is the message to print.
pub(crate) fn hangups() -> Result<Signal, String> {
    signal(SignalKind::hangup()).map_err(|error| format!("the service cannot wait for SIGHUP: {error}"))
}

/// Applies each edit after `texts` while the service runs, and logs the result. A text that is rejected changes
/// nothing.
///
/// An edit that is found by polling is applied only once the texts have been unchanged for a period, so a half-written
/// file is not. On SIGHUP, we apply the files at once, even if they are unchanged.
pub(crate) async fn apply_edits(mut hangups: Signal, sources: Sources, texts: Texts, limits: Arc<Limits>) {
    let mut applied = Ok(texts.clone());
    let mut last = Ok(texts);
    let mut ticks = interval(PERIOD);
    loop {
        let is_demanded = tokio::select! {
            _ = ticks.tick() => false,
            Some(()) = hangups.recv() => true,
        };
        let files = sources.clone();
        let found = spawn_blocking(move || files.read()).await.unwrap_or_else(|error| Err(error.to_string()));
        let is_settled = found == last;
        last.clone_from(&found);
        if !is_demanded && (!is_settled || found == applied) {
            continue;
        }
        applied.clone_from(&found);
        let changed = found.and_then(|texts| {
            // The panic message is printed already. A defect in one edit must not end the task, and all later edits
            // with it.
            let changed = catch_unwind(AssertUnwindSafe(|| limits.change(&texts)));
            let changed = changed.map_err(|_| "the files cannot be applied: a defect of this program".to_owned())?;
            changed.map_err(|error| error.to_string())
        });
        note_success(changed.is_ok());
        match changed {
            Ok(changed) => tracing::info!("the limits were read again: {changed}"),
            Err(error) => {
                tracing::error!("{error} (the limits stay as they were; `sluice check` lists all mistakes of a file)");
            }
        }
    }
}

/// Records in the metrics whether the files, as they were last read, are in force.
pub(crate) fn note_success(is_applied: bool) {
    metrics::gauge!("sluice.config.applied").set(f64::from(u8::from(is_applied)));
    let result = if is_applied { "applied" } else { "refused" };
    metrics::counter!("sluice.config.reads", "result" => result).increment(1);
}
