//! The space that a table takes, when its keys are new and after many decisions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::keys::{Order as _, Uniform};
use crate::load::{self, Outcome, on_a_worker};
use crate::rows::Row;
use crate::server::Server;
use crate::subject::Subject;

const CONNECTIONS: usize = 16;

/// On a slow machine, there are only the updates that fit into this time.
const TIME: Duration = Duration::from_secs(150);

#[derive(Clone, Copy)]
pub struct Size {
    pub keys: u64,
    pub updates: u64,
    /// Bytes per key, with the indexes.
    pub fresh: f64,
    /// Bytes per key after the updates.
    pub updated: f64,
    /// The part of the updates that stayed within their pages.
    pub hot: f64,
    /// Write-ahead log bytes per update.
    pub wal: f64,
    /// Write-ahead log bytes per new key.
    pub wal_fresh: f64,
}

pub fn measure(server: &Arc<Server>, row: Row, keys: u64, updates: u64) -> Outcome<Size> {
    let server = Arc::clone(server);
    on_a_worker(async move {
        server.empty(row.kept).await?;
        let names = load::keys(keys);
        let size = format!("pg_total_relation_size('{}')::float8", row.table());

        let before = server.usage().await?;
        let subject = Arc::new(Subject::new(&server, row.make, row.terms, CONNECTIONS).await?);
        load::fill(&subject, &names, CONNECTIONS).await?;
        let wal_fresh = server.usage().await?.since(before).wal;
        let fresh: f64 = server.ask(&size).await?;
        let [all_before, hot_before] = updates_of(&server, row, subject).await?;

        let before = server.usage().await?;
        let subject = Arc::new(Subject::new(&server, row.make, row.terms, CONNECTIONS).await?);
        let mut order = Uniform::new(keys, 3);
        let (mut left, end) = (0..updates, Instant::now() + TIME);
        let next = move |now| left.next().filter(|_| now < end).map(|_| order.next());
        let updates = load::ask(&subject, &names, CONNECTIONS, true, next).await?.len() as u64;
        let wal = server.usage().await?.since(before).wal;
        let updated: f64 = server.ask(&size).await?;
        let [all, hot] = updates_of(&server, row, subject).await?;
        Ok(Size {
            keys,
            updates,
            fresh: fresh / keys as f64,
            updated: updated / keys as f64,
            hot: (hot - hot_before) / (all - all_before),
            wal: wal / updates as f64,
            wal_fresh: wal_fresh / keys as f64,
        })
    })
}

/// All updates to the table so far, and those that stayed within their pages. Counts are complete once the connections'
/// processes have ended.
async fn updates_of(server: &Server, row: Row, subject: Arc<Subject>) -> Outcome<[f64; 2]> {
    drop(subject);
    while server.ask::<i64>("count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'").await? > 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut counts = [0.0; 2];
    for (count, column) in counts.iter_mut().zip(["n_tup_upd", "n_tup_hot_upd"]) {
        let what = format!("{column}::float8 FROM pg_stat_user_tables WHERE relid = '{}'::regclass", row.table());
        *count = server.ask(&what).await?;
    }
    Ok(counts)
}
