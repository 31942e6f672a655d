use std::thread;

use super::*;
use crate::util::effort::rounds;

const HOUR: Hour = Hour(490_000);

/// An instant in an hour after [`HOUR`].
fn at(hours: u64, seconds: u64) -> Timestamp {
    Timestamp::from_nanos(Hour(HOUR.0 + hours).start().as_nanos() + seconds * 1_000_000_000)
}

fn counts(record: &OffenderRecord, now: Timestamp) -> Vec<(String, u64)> {
    let text = |key: &PartitionKey| String::from_utf8(key.as_bytes().to_vec()).unwrap();
    record.in_both_hours(now).entries.iter().map(|entry| (text(&entry.key), entry.count)).collect()
}

#[test]
fn rejections_count_for_two_hours() {
    let record = OffenderRecord::new();
    let [alice, bob] = ["alice", "bob"].map(PartitionKey::from);
    (0..3).for_each(|second| record.note_at(&alice, at(0, second)));
    record.note_at(&bob, at(1, 0));
    let both = [("alice".to_owned(), 3), ("bob".to_owned(), 1)];
    assert_eq!(counts(&record, at(1, 3_599)), both);
    let summary = record.in_both_hours(at(1, 0));
    assert_eq!((summary.entries[0].first, summary.entries[0].last), (at(0, 0), at(0, 2)));
    assert_eq!(counts(&record, at(2, 0)), both[1..], "without a rejection in that hour");
    assert_eq!(counts(&record, at(3, 0)), []);
}

#[test]
fn keys_in_both_hours_are_listed_once() {
    let record = OffenderRecord::new();
    let alice = PartitionKey::from("alice");
    for hour in 0..2 {
        (0..5).for_each(|second| record.note_at(&alice, at(hour, second)));
    }
    assert_eq!(counts(&record, at(1, 9)), [("alice".to_owned(), 10)]);
    assert_eq!(record.in_hour(HOUR, at(1, 9)).total, 5);
}

/// Threads read the clock before they lock, so one may be late.
#[test]
fn a_late_rejection_loses_nothing() {
    let record = OffenderRecord::new();
    let alice = PartitionKey::from("alice");
    for now in [at(0, 3_599), at(1, 0), at(0, 3_599), at(1, 1)] {
        record.note_at(&alice, now);
    }
    assert_eq!(counts(&record, at(1, 2)), [("alice".to_owned(), 4)]);
}

#[test]
fn a_clock_set_back_begins_anew() {
    let record = OffenderRecord::new();
    let [alice, bob] = ["alice", "bob"].map(PartitionKey::from);
    record.note_at(&alice, at(50, 0));
    record.note_at(&bob, at(0, 0));
    assert_eq!(counts(&record, at(0, 1)), [("bob".to_owned(), 1)]);
}

#[test]
fn no_thread_loses_a_rejection() {
    let record = OffenderRecord::new();
    let each = rounds(2_000, 100_000) as u64;
    thread::scope(|scope| {
        for thread in 0..4 {
            let record = &record;
            scope.spawn(move || {
                for number in 0..each {
                    record.note_at(&PartitionKey::from(number % 20 + thread), at(0, 0));
                    if number % 500 == 0 {
                        record.in_both_hours(at(0, 0));
                    }
                }
            });
        }
    });
    let summary = record.in_both_hours(at(0, 0));
    assert_eq!(summary.total, 4 * each);
    let counted = summary.entries.iter().map(|entry| entry.count - entry.error).sum::<u64>();
    assert_eq!(counted + summary.absent, 4 * each, "all are counted by key, or unknown");
}

/// All sketches are locked.
#[test]
fn missed_rejections_widen_the_error() {
    let record = OffenderRecord::new();
    let alice = PartitionKey::from("alice");
    record.note_at(&alice, at(0, 0));
    let locked: Vec<_> = record.stripes.iter().map(|stripe| stripe.0.lock()).collect();
    (0..2).for_each(|_| record.note_at(&alice, at(0, 1)));
    drop(locked);
    let summary = record.in_both_hours(at(0, 2));
    assert_eq!((summary.total, summary.absent), (3, 2));
    assert_eq!((summary.entries[0].count, summary.entries[0].error), (3, 2));
    assert_eq!(record.in_both_hours(at(1, 0)).total, 3);
    assert_eq!(record.in_both_hours(at(2, 0)), Summary::empty());
}

#[test]
fn one_publication_is_scheduled_at_once() {
    let record = Arc::new(OffenderRecord::new());
    let scheduled = record.schedule();
    assert!(scheduled.is_some());
    assert!(record.schedule().is_none());
    drop(scheduled);
    assert!(record.schedule().is_some());
}

#[test]
fn the_previous_hour_is_published_once() {
    let record = OffenderRecord::new();
    let hours = |now| record.hours_to_publish(now).map(|hour| hour.0 - HOUR.0).collect::<Vec<_>>();
    record.hours_to_publish(at(1, 0)).for_each(drop);
    assert_eq!(hours(at(1, 1)), [1]);
    assert_eq!(hours(at(2, 0)), [1, 2]);
    assert_eq!(hours(at(2, 1)), [2]);
}
