//! The reports of processes on one limiter: a hash on the server, with a field for each process and hour.
//!
//! A field has the hour in its name. So a process writes one field per report, a field is known to be stale without
//! reading it, and the counts of a process that has ended stay as long as those of the others. The first report of a
//! process in an hour deletes stale fields, and lets the hash expire after those of this hour.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use ::redis::Value;
use tokio::runtime::Handle;
use tokio::time::sleep;
use tower_sluice::internal::redis::{Report, SharesReports};
use tower_sluice::{LimiterError, PartitionKey};

use super::backend::failed;
use crate::connection::{Fault, Redis};
use crate::script::{BadReply, KeyNames, Script, ScriptCall};

static PUBLISH: Script = Script::new(include_str!("lua/publish.lua"));

static CLAIM: Script = Script::new(include_str!("lua/claim.lua"));

static COLLECT: Script = Script::new(include_str!("lua/collect.lua"));

/// In milliseconds, 35 years.
const LONGEST_CLAIM: u64 = 1 << 40;

/// Writes and reads the reports on one limiter.
pub(crate) struct RedisReports {
    redis: Redis,
    names: KeyNames,
}

impl RedisReports {
    pub(crate) fn new(redis: &Redis, names: &KeyNames) -> Self {
        Self { redis: redis.clone(), names: names.clone() }
    }

    fn publish(&self, report: Report) -> ScriptCall {
        let mut call = ScriptCall::new(&PUBLISH, [self.names.reports()], [report.hour, report.process]);
        call.texts.push(report.text);
        call
    }
}

impl SharesReports for RedisReports {
    fn tag(&self, key: &PartitionKey) -> u128 {
        self.names.tag(key).to_bits()
    }

    /// On the runtime of the caller; without one, nothing is written.
    fn publish_after(&self, pause: Duration, make: Box<dyn FnOnce() -> Vec<Report> + Send>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let reports = Self::new(&self.redis, &self.names);
        runtime.spawn(async move {
            sleep(pause).await;
            for report in make() {
                let _ = reports.redis.call(&reports.publish(report)).await;
            }
        });
    }

    fn collect(&self) -> Pin<Box<dyn Future<Output = Result<Vec<Report>, LimiterError>> + Send>> {
        let redis = self.redis.clone();
        let call = ScriptCall::new(&COLLECT, [self.names.reports()], []);
        Box::pin(async move { redis.call(&call).await.and_then(read).map_err(failed) })
    }

    fn claim(
        &self,
        key: &PartitionKey,
        crossing: u32,
        span: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<bool, LimiterError>> + Send>> {
        let redis = self.redis.clone();
        let millis = u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(LONGEST_CLAIM);
        let name = self.names.crossing(self.names.tag(key), crossing);
        let call = ScriptCall::new(&CLAIM, [name], [millis.clamp(1, LONGEST_CLAIM)]);
        Box::pin(async move {
            match redis.call(&call).await.map_err(failed)? {
                Value::Int(claimed) => Ok(claimed == 1),
                _ => Err(failed(BadReply::Shape)),
            }
        })
    }
}

/// Reads names and texts of fields in turn. A field that is no report is left out: another version may have written it.
fn read(reply: Value) -> Result<Vec<Report>, Fault> {
    let Value::Array(items) = reply else { return Err(BadReply::Shape.into()) };
    let mut texts = items.into_iter().map(|item| match item {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    });
    let mut reports = Vec::new();
    while let (Some(name), Some(text)) = (texts.next(), texts.next()) {
        let of = |name: String| {
            name.split_once(':').and_then(|(hour, process)| Some((hour.parse().ok()?, process.parse().ok()?)))
        };
        if let (Some((hour, process)), Some(text)) = (name.and_then(of), text) {
            reports.push(Report { hour, process, text });
        }
    }
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use tower_sluice::time::{Clock, Wall};

    use super::*;
    use crate::support::servers::{RedisCluster, RedisServer};
    use crate::support::timing::eventually;

    fn hour() -> u64 {
        Wall.now().as_nanos() / 3_600_000_000_000
    }

    fn report(hour: u64, process: u64, text: &str) -> Report {
        Report { hour, process, text: text.into() }
    }

    fn open(server: &RedisServer, name: &str) -> RedisReports {
        let redis = Redis::single(server.url()).timeout(Duration::from_secs(5)).open().unwrap();
        RedisReports::new(&redis, &KeyNames::new("sluice", name, b""))
    }

    async fn put(reports: &RedisReports, report: Report) {
        reports.redis.call(&reports.publish(report)).await.unwrap();
    }

    async fn all(reports: &RedisReports) -> Vec<Report> {
        let mut all = reports.collect().await.unwrap();
        all.sort_by_key(|report| (report.hour, report.process));
        all
    }

    #[tokio::test]
    async fn a_report_replaces_the_one_of_its_process_and_hour() {
        let server = RedisServer::start();
        let [one, other] = ["api", "api"].map(|name| open(&server, name));
        let hour = hour();
        assert_eq!(all(&one).await, []);
        put(&one, report(hour, 1, "a")).await;
        put(&one, report(hour, 1, "b\nc d")).await;
        put(&other, report(hour, 2, "")).await;
        put(&one, report(hour - 1, 1, "d")).await;
        let expected = [report(hour - 1, 1, "d"), report(hour, 1, "b\nc d"), report(hour, 2, "")];
        assert_eq!(all(&other).await, expected);
        assert_eq!(all(&open(&server, "web")).await, [], "another limiter's");
        assert_eq!(one.tag(&PartitionKey::from("alice")), other.tag(&PartitionKey::from("alice")));
    }

    #[tokio::test]
    async fn stale_reports_and_those_of_wrong_clocks_are_deleted_and_the_hash_expires() {
        let server = RedisServer::start();
        let reports = open(&server, "api");
        let hour = hour();
        // Each is deleted by itself, or by the next one.
        for hour in [hour - 100, hour - 2, hour + 2, hour + 1_000_000] {
            put(&reports, report(hour, 1, "a")).await;
        }
        put(&reports, report(hour, 2, "b")).await;
        assert_eq!(all(&reports).await, [report(hour, 2, "b")]);
        let left: u64 = server.run(&["PTTL", reports.names.reports().as_str()]);
        assert!((2 * 3_600_000 - 60_000..=3 * 3_600_000).contains(&left), "{left}");
    }

    #[tokio::test]
    async fn a_field_of_another_program_is_ignored() {
        let server = RedisServer::start();
        let reports = open(&server, "api");
        put(&reports, report(hour(), 1, "a")).await;
        let name = reports.names.reports();
        for field in ["x", "1:y", ":", "1:2:3"] {
            server.run::<()>(&["HSET", name.as_str(), field, "b"]);
        }
        assert_eq!(all(&reports).await, [report(hour(), 1, "a")]);
        server.run::<()>(&["SET", name.as_str(), "b"]);
        assert!(reports.collect().await.is_err());
    }

    #[tokio::test]
    async fn a_cluster_keeps_the_reports_of_a_limiter_on_one_node() {
        let cluster = RedisCluster::start(3, 0);
        let redis = Redis::cluster(cluster.urls()).timeout(Duration::from_secs(5)).open().unwrap();
        let reports = RedisReports::new(&redis, &KeyNames::new("sluice", "api", b""));
        for process in 0..3 {
            put(&reports, report(hour(), process, "a")).await;
        }
        assert_eq!(all(&reports).await.len(), 3);
    }

    /// In the background, by one call, after the pause.
    #[tokio::test]
    async fn reports_are_made_after_the_pause() {
        let server = RedisServer::start();
        let reports = open(&server, "api");
        let hour = hour();
        reports.publish_after(Duration::from_millis(1), Box::new(move || vec![report(hour, 1, "a")]));
        eventually("it is published", async || all(&reports).await == [report(hour, 1, "a")]).await;
    }

    #[test]
    fn without_a_runtime_nothing_is_published() {
        let redis = Redis::open("redis://127.0.0.1:1").unwrap();
        let reports = RedisReports::new(&redis, &KeyNames::new("sluice", "api", b""));
        reports.publish_after(Duration::ZERO, Box::new(|| unreachable!("it is dropped")));
    }
}
