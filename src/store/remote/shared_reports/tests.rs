use std::collections::HashMap;
use std::convert::Infallible;

use super::*;
use crate::store::remote::{KeyValue, KeyValueRecords};
use crate::values::time::{ManualClock, Timestamp};

/// A key-value store that forgets nothing.
#[derive(Default)]
struct Map {
    values: Lock<HashMap<String, Vec<u8>>>,
    /// How long a call takes.
    latency: Duration,
}

impl Map {
    /// A call changes the map halfway through its time.
    async fn answer<T>(&self, change: impl FnOnce(&mut HashMap<String, Vec<u8>>) -> T) -> Result<T, Infallible> {
        if !self.latency.is_zero() {
            sleep(self.latency / 2).await;
        }
        let answer = change(&mut self.values.lock());
        if !self.latency.is_zero() {
            sleep(self.latency / 2).await;
        }
        Ok(answer)
    }
}

impl KeyValue for Map {
    type Error = Infallible;

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Infallible> {
        self.answer(|values| values.get(key).cloned()).await
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        _: Duration,
    ) -> Result<bool, Infallible> {
        self.answer(|values| {
            let is_as_it_was = values.get(key).map(Vec::as_slice) == old;
            match new.filter(|_| is_as_it_was) {
                Some(new) => drop(values.insert(key.to_owned(), new.to_vec())),
                None if is_as_it_was => drop(values.remove(key)),
                None => {}
            }
            is_as_it_was
        })
        .await
    }
}

/// The server's hour.
const PRESENT: u64 = 500_000;

/// A limiter's reports, as one process sees them.
fn process(map: &Arc<Map>, limiter: &str) -> SharedReports {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(PRESENT * HOUR + 1_234_567_890));
    let records = KeyValueRecords::new(Arc::clone(map), "map").with_clock(clock);
    SharedReports::new(Arc::new(LimiterRecords::new(AnyRecords::new(records), limiter)))
}

fn report(hour: u64, process: u64, text: &str) -> Report {
    Report { hour, process, text: text.into() }
}

async fn put(reports: &SharedReports, report: Report) {
    super::put(&reports.records, &reports.listed, report).await.unwrap();
}

async fn all(reports: &SharedReports) -> Vec<Report> {
    let mut all = reports.collect().await.unwrap();
    all.sort_by_key(|report| (report.hour, report.process));
    all
}

#[tokio::test]
async fn a_process_has_one_report_per_hour() {
    let map = Arc::default();
    let [one, other] = [(); 2].map(|()| process(&map, "api"));
    assert_eq!(all(&one).await, []);
    put(&one, report(PRESENT, 1, "a")).await;
    put(&one, report(PRESENT, 1, "b\nc d")).await;
    put(&other, report(PRESENT, 2, "")).await;
    put(&one, report(PRESENT - 1, 1, "d")).await;
    let expected = [report(PRESENT - 1, 1, "d"), report(PRESENT, 1, "b\nc d"), report(PRESENT, 2, "")];
    assert_eq!(all(&other).await, expected);
    assert_eq!(all(&process(&map, "web")).await, [], "another limiter's");
    assert_eq!(one.tag(&PartitionKey::from("alice")), other.tag(&PartitionKey::from("alice")));
}

/// The next process that lists its own report leaves them out, and keeps all others.
#[tokio::test]
async fn stale_and_misdated_reports_are_left_out() {
    let map = Arc::default();
    let reports = process(&map, "api");
    put(&reports, report(PRESENT, 1, "right")).await;
    for hour in [PRESENT - 100, PRESENT - 2, PRESENT + 2, PRESENT + 1_000_000, u64::MAX] {
        put(&reports, report(hour, 2, "wrong")).await;
    }
    assert!(all(&reports).await.contains(&report(PRESENT, 1, "right")), "a wrong clock leaves out no other process");
    put(&reports, report(PRESENT, 3, "right")).await;
    assert_eq!(all(&reports).await, [report(PRESENT, 1, "right"), report(PRESENT, 3, "right")]);
}

#[tokio::test]
async fn foreign_bytes_are_ignored() {
    let map = Arc::<Map>::default();
    let reports = process(&map, "api");
    for process in [1, 2] {
        put(&reports, report(PRESENT, process, "a")).await;
    }
    let change = |name: &str, change: &dyn Fn(&mut Vec<u8>)| change(map.values.lock().get_mut(name).unwrap());
    change("api:-:r", &|index| index.extend(b"12345"));
    change(&format!("api:-:r:{PRESENT}:2"), &|text| text.push(0xff));
    assert_eq!(all(&reports).await, [report(PRESENT, 1, "a")]);
    // It is listed behind the bytes that are not a place.
    put(&reports, report(PRESENT, 3, "a")).await;
    assert_eq!(all(&reports).await, [report(PRESENT, 1, "a"), report(PRESENT, 3, "a")]);
}

#[tokio::test(start_paused = true)]
async fn reports_are_made_after_the_pause() {
    let reports = process(&Arc::default(), "api");
    reports.publish_after(Duration::from_secs(1), Box::new(|| vec![report(PRESENT, 1, "a")]));
    sleep(Duration::from_millis(999)).await;
    assert_eq!(all(&reports).await, []);
    sleep(Duration::from_millis(2)).await;
    assert_eq!(all(&reports).await, [report(PRESENT, 1, "a")]);
}

#[test]
fn without_a_runtime_nothing_is_published() {
    let reports = process(&Arc::default(), "api");
    reports.publish_after(Duration::ZERO, Box::new(|| unreachable!("it is dropped")));
}

/// At the beginning of an hour, all processes change the index.
#[tokio::test(start_paused = true)]
async fn many_processes_list_their_reports_at_once() {
    let map = Arc::new(Map { latency: Duration::from_millis(4), ..Map::default() });
    let processes: Vec<_> = (0..100).map(|_| process(&map, "api")).collect();
    for (number, reports) in (0..).zip(&processes) {
        reports.publish_after(Duration::from_secs(1), Box::new(move || vec![report(PRESENT, number, "a")]));
    }
    sleep(Duration::from_secs(10)).await;
    assert_eq!(all(&processes[0]).await.len(), 100);
}

#[tokio::test]
async fn a_crossing_is_claimed_once() {
    let map = Arc::default();
    let [one, other] = [(); 2].map(|()| process(&map, "api"));
    let claim = async |reports: &SharedReports, key: &str, crossing| {
        reports.claim(&PartitionKey::from(key), crossing, Duration::from_secs(1)).await.unwrap()
    };
    assert!(claim(&one, "alice", 800_000).await);
    assert!(!claim(&other, "alice", 800_000).await);
    assert!(claim(&other, "alice", 1_000_000).await);
    assert!(claim(&other, "bob", 800_000).await);
}
