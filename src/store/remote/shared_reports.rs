//! [`SharedReports`]: each process's reports on a limiter, in its own records, and an index over them.

#[cfg(all(test, not(sluice_loom)))]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::any_records::AnyRecords;
use super::backend::{CallLimits, deadline_in};
use super::records::{LimiterRecords, Records, Step};
use super::server::{Server, deadline_of};
use crate::util::lock::Lock;
use crate::values::time::Timestamp;
use crate::values::{Description, LimiterError, PartitionKey, Report, SharesReports};

/// The reports from the processes that share a limiter: a record for each process and hour, which no other process
/// writes, and one that lists them, which a process writes once per hour.
pub(crate) struct SharedReports {
    records: Arc<LimiterRecords<AnyRecords>>,
    /// This process's reports that the index has, only the latest.
    listed: Arc<Lock<Vec<Place>>>,
}

/// A report's hour and process.
type Place = (u64, u64);

/// One hour in nanoseconds.
const HOUR: u64 = 3_600_000_000_000;

/// A report is read in its hour and in the next. The processes' clocks may differ.
const LIFETIME: Duration = Duration::from_secs(3 * 3_600);

/// The most places in the index. If there are more, those that were listed first are left out.
const MOST_PLACES: usize = 1_024;

const INDEX: &str = "-:r";

const LISTING: u32 = 50;

/// Adds shared reports to the description of the limiter that is called `limiter`, if there are records for these.
pub(crate) fn sharing_reports(description: Description, records: Option<AnyRecords>, limiter: &str) -> Description {
    match records {
        Some(records) => {
            description.sharing_reports(SharedReports::new(Arc::new(LimiterRecords::new(records, limiter))))
        }
        None => description,
    }
}

impl SharedReports {
    pub(super) fn new(records: Arc<LimiterRecords<AnyRecords>>) -> Self {
        Self { records, listed: Arc::default() }
    }
}

/// Writes the report within the server's timeout. All processes change the index when their hour begins, and one at a
/// time succeeds. No request waits for it, so it has [`LISTING`] times as long.
async fn put(
    records: &LimiterRecords<AnyRecords>,
    listed: &Lock<Vec<Place>>,
    report: Report,
) -> Result<(), LimiterError> {
    let place = (report.hour, report.process);
    let text = report.text.into_bytes();
    let replace = |old: Option<&[u8]>, _| {
        let is_same = old == Some(&text[..]);
        Ok(if is_same { Step::Leave(()) } else { Step::Write((), Some(text.clone()), LIFETIME) })
    };
    records.change_named(records.item(&item(place)), deadline_of(records.records()), replace).await?;
    if listed.lock().contains(&place) {
        return Ok(());
    }
    let list = |old: Option<&[u8]>, now: Timestamp| {
        let mut places = old.map(read_places).unwrap_or_default();
        if places.contains(&place) {
            return Ok(Step::Leave(()));
        }
        // By the server's clock, because a process whose own clock is wrong would leave out all others' reports.
        let present = now.as_nanos() / HOUR;
        places.retain(|(hour, _)| hour.abs_diff(present) <= 1);
        let beyond = (places.len() + 1).saturating_sub(MOST_PLACES);
        places.drain(..beyond);
        places.push(place);
        Ok(Step::Write((), Some(write_places(&places)), LIFETIME))
    };
    let longest = records.records().timeout().saturating_mul(LISTING);
    records.change_named(records.item(INDEX), deadline_in(longest), list).await?;
    let mut listed = listed.lock();
    listed.retain(|(hour, _)| hour.saturating_add(1) >= place.0);
    listed.push(place);
    Ok(())
}

fn item((hour, process): Place) -> String {
    format!("-:r:{hour}:{process}")
}

fn write_places(places: &[Place]) -> Vec<u8> {
    places.iter().flat_map(|(hour, process)| [hour.to_be_bytes(), process.to_be_bytes()]).flatten().collect()
}

/// Bytes that are not a place are left out, because another version may have written it.
fn read_places(bytes: &[u8]) -> Vec<Place> {
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    bytes.chunks_exact(16).map(|place| (number(&place[..8]), number(&place[8..]))).collect()
}

impl SharesReports for SharedReports {
    fn tag(&self, key: &PartitionKey) -> u128 {
        self.records.tag(key).to_bits()
    }

    /// Runs on the caller's runtime. Without a runtime, nothing is written.
    fn publish_after(&self, pause: Duration, make: Box<dyn FnOnce() -> Vec<Report> + Send>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let (records, listed) = (Arc::clone(&self.records), Arc::clone(&self.listed));
        runtime.spawn(async move {
            sleep(pause).await;
            for report in make() {
                // If it fails, the next report replaces it.
                let _ = put(&records, &listed, report).await;
            }
        });
    }

    /// Takes a call for the index, and one for each report.
    fn collect(&self) -> Pin<Box<dyn Future<Output = Result<Vec<Report>, LimiterError>> + Send>> {
        let records = Arc::clone(&self.records);
        Box::pin(async move {
            let read = async |item: &str| {
                let limits = CallLimits::until(deadline_of(records.records()));
                Ok::<_, LimiterError>(records.records().read(&records.item(item), limits).await?.value)
            };
            let index = read(INDEX).await?;
            let mut reports = Vec::new();
            for (hour, process) in index.as_deref().map(read_places).unwrap_or_default() {
                let text = read(&item((hour, process))).await?.and_then(|bytes| String::from_utf8(bytes).ok());
                reports.extend(text.map(|text| Report { hour, process, text }));
            }
            Ok(reports)
        })
    }

    fn claim(
        &self,
        key: &PartitionKey,
        crossing: u32,
        span: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<bool, LimiterError>> + Send>> {
        let records = Arc::clone(&self.records);
        let name = records.name_of_part(records.tag(key), 'x', crossing);
        Box::pin(async move {
            let limits = CallLimits::until(deadline_of(records.records()));
            records.records().swap(&name, None, Some(b"1"), span, limits).await
        })
    }
}
