use std::time::UNIX_EPOCH;

use super::*;
use crate::engine::policy::offender_record::ShowKey;
use crate::http::key::HeaderKey;
use crate::util::effort::rounds;
use crate::values::Quota;
use crate::values::time::{Clock, Wall};

fn policy(show: ShowKey) -> Policy {
    Policy::new("api", Quota::per_second(1)).key(HeaderKey::from_static("x-client")).track_offenders(show)
}

fn note(policy: &Policy, key: &str, times: u64) {
    (0..times).for_each(|_| drop(policy.note_offender(&PartitionKey::from(key))));
}

fn list(policy: &Policy, reports: &[Report]) -> (Offenders, Vec<(String, u64, u64)>) {
    let (own, now) = policy.own_offenders().unwrap();
    let (all, processes) = policy.all_offenders(own, reports, now);
    let offenders =
        Offenders::new(all, usize::MAX, now, processes, policy.shadow, None, |shown, of| policy.is_whole(shown, of));
    let rows = offenders.list().iter().map(|offender| (offender.key().to_owned(), offender.count(), offender.error()));
    let rows = rows.collect();
    (offenders, rows)
}

#[test]
fn keys_that_are_shown_alike_stay_apart() {
    let policy = policy(ShowKey::prefix(2));
    for (key, times) in [("alice", 3), ("alex", 2), ("bob", 1)] {
        note(&policy, key, times);
    }
    let rows = list(&policy, &[]).1;
    let expected = [("al…", 3), ("al…", 2), ("bo…", 1)].map(|(key, count)| (key.to_owned(), count, 0));
    assert_eq!(rows, expected);
}

#[test]
fn reports_are_read_as_written() {
    let odd = policy(ShowKey::by(|key| format!(" {key} with\nlines and spaces ")));
    for (key, times) in [("alice", 3), ("", 2), ("a b", 1)] {
        note(&odd, key, times);
    }
    let millis = |instant: Timestamp| Timestamp::from_nanos(instant.as_nanos() / 1_000_000 * 1_000_000);
    let (mut part, now) = odd.own_offenders().unwrap();
    for entry in &mut part.summary.entries {
        entry.first = millis(entry.first);
        entry.last = millis(entry.last);
        let banned_until = millis(now);
        part.keys.get_mut(&entry.key).unwrap().banned_until = banned_until;
    }
    let report = part.to_report("api", false);
    assert_eq!(OffendersPart::from_report(&report, "api", false), Some(part));
    assert_eq!(OffendersPart::from_report(&report, "web", false), None);
    assert_eq!(OffendersPart::from_report(&report, "api", true), None, "a shadow's");
}

/// Another version, or another program, may have put anything there.
#[test]
fn nonsense_is_no_report() {
    let reports = [
        "",
        "1",
        "2 api 0 1 0",
        "1 api 0 x 0",
        "1 api 0 1",
        "1 api 0 3 0\nzz 1 0 0 0 0 a",
        "1 api 0 3 0\n1 1 0 0 0 0",
        "1 api 0 3 0\n1 1 2 0 0 0 a",
        "1 api 0 3 0\n1 1 0 0 0 0 a\n1 1 0 0 0 0 a",
        "1 api 0 3 0\n",
        "1 api 0 99999999999999999999 0",
    ];
    for report in reports {
        assert_eq!(OffendersPart::from_report(report, "api", false), None, "{report:?}");
    }
    assert!(OffendersPart::from_report("1 api 0 3 0\n1 1 1 0 0 0 ", "api", false).is_some());
}

/// Three processes' reports are read back. Counts cover all processes, within their common bound.
#[test]
fn merged_reports_keep_the_bound() {
    let processes = [(); 3].map(|()| policy(ShowKey::whole()));
    let mut exact = HashMap::<String, u64>::new();
    let mut total = 0;
    for (process, policy) in processes.iter().enumerate() {
        // Many keys with few rejections each, which differ, and a few with more, which do not.
        for number in 0..rounds(600, 10_000) {
            for key in [format!("{process}-{number}"), format!("heavy-{}", number % 5)] {
                note(policy, &key, 1);
                *exact.entry(key).or_default() += 1;
                total += 1;
            }
        }
    }
    let reports: Vec<_> = processes.iter().flat_map(|policy| policy.offender_reports()).collect();
    let (offenders, rows) = list(&processes[0], &reports);
    assert_eq!((offenders.processes(), offenders.total()), (3, total), "its own report does not count twice");
    assert!(offenders.max_error() <= total / CAPACITY as u64, "{}", offenders.max_error());
    for (key, count, error) in &rows {
        let truth = exact[key];
        assert!(
            *count >= truth && count - error <= truth && *error <= offenders.max_error(),
            "{key}: {count} for {truth}"
        );
    }
    let listed: Vec<_> = rows.iter().map(|(key, ..)| key).collect();
    assert!(exact.iter().all(|(key, count)| listed.contains(&key) || *count <= offenders.max_error()));
    assert!(listed[..5].iter().all(|key| key.starts_with("heavy-")), "{listed:?}");
}

/// While a program is replaced, some processes show hashes and others whole keys. Regression: a hash was offered as a
/// key to ban.
#[test]
fn only_the_keys_text_is_whole() {
    let mine = policy(ShowKey::whole());
    let theirs = policy(ShowKey::hash());
    let prefix = policy(ShowKey::prefix(5));
    for (policy, key, times) in [
        (&mine, "alice", 5),
        (&theirs, "alicia", 4),
        // A client whose name is another key's hash: printf %s alicia | sha256sum | cut -c1-16
        (&mine, "4d1e58c90b3b94bc", 3),
        (&prefix, "bob", 2),
        (&prefix, "robert", 1),
    ] {
        note(policy, key, times);
    }
    let reports: Vec<_> = [&theirs, &prefix].into_iter().flat_map(Policy::offender_reports).collect();
    let (offenders, _) = list(&mine, &reports);
    let shown: Vec<_> = offenders.list().iter().map(|offender| (offender.count(), offender.is_whole())).collect();
    assert_eq!(shown, [(5, true), (4, false), (3, true), (2, true), (1, false)]);
}

#[test]
fn other_hours_do_not_count() {
    let other = policy(ShowKey::whole());
    note(&other, "alice", 1);
    let hour = Hour::of(Wall.now()).0;
    let report = |hour| Report { hour, ..other.offender_reports().pop().unwrap() };
    let mine = policy(ShowKey::whole());
    for (hour, total) in [(hour - 2, 0), (hour - 1, 1), (hour, 1), (hour + 1, 1), (hour + 2, 0)] {
        assert_eq!(list(&mine, &[report(hour)]).0.total(), total, "{hour}");
    }
}

/// One process has banned the key, and another one has only rejected it.
#[test]
fn bans_are_merged_from_all_processes() {
    let now = Timestamp::from_nanos(1_790_000_000_000_000_000);
    let key = |banned_until| HashMap::from([(1, ShownKey { text: "a".into(), banned_until })]);
    let entries = vec![crate::util::space_saving::Counted { key: 1, count: 2, error: 0, first: now, last: now }];
    let part =
        |until| OffendersPart { summary: Summary { entries: entries.clone(), total: 2, absent: 0 }, keys: key(until) };
    let until = now.saturating_add(Duration::from_secs(60));
    for (one, other) in [(until, Timestamp::ZERO), (Timestamp::ZERO, until)] {
        let offenders = Offenders::new(part(one).merge(part(other)), 9, now, 2, false, None, |_, _| true);
        let offender = &offenders.list()[0];
        assert_eq!((offender.count(), offender.banned_for()), (4, Some(Duration::from_secs(60))));
        assert_eq!(offender.first().duration_since(UNIX_EPOCH).unwrap().as_secs(), 1_790_000_000);
    }
    let offenders = Offenders::new(part(now), 9, now, 1, false, None, |_, _| true);
    assert_eq!(offenders.list()[0].banned_for(), None, "it is over");
}
