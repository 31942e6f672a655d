//! A log's report does not depend on the order of its lines.

use std::io::Cursor;

use indicatif::ProgressBar;
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::cases::cases;
use crate::log::{Format, Source};

const MINUTE: u64 = 60_000;

const LIMITS: &str = r#"
    [[route]]
    path = "/"
    policy = [
        { name = "bucket", algorithm = "token-bucket", limit = 1, per = "10s", burst = 3, key = "client-ip" },
        { name = "queue", algorithm = "leaky-queue", limit = 1, per = "1s", max-queue = 3, key = "client-ip" },
    ]
"#;

fn session() -> Session {
    let clock = LogClock::default();
    let replay = Replay::new("limits.toml", LIMITS, &clock).unwrap();
    Session::new(clock, vec![replay]).unwrap()
}

/// A line, by its milliseconds since the start.
fn line(millis: u64) -> String {
    let time = 1_772_438_400_000 + millis;
    let (second, fraction) = (time / 1_000, time % 1_000);
    format!(r#"{{"ts":{second}.{fraction:03},"ip":"203.0.113.{}","method":"GET","path":"/","status":200}}"#, millis % 7)
        + "\n"
}

/// Replays files with these lines. `most_bytes` is the memory for the lines that wait.
fn replayed(files: &[Vec<u64>], window_minutes: u64, most_bytes: usize) -> Session {
    let mut session = session();
    let runtime = session.runtime();
    let _entered = runtime.enter();
    let sources = files.iter().map(|lines| {
        let text: String = lines.iter().copied().map(line).collect();
        Source::new(Cursor::new(text.into_bytes())).unwrap()
    });
    let window = window_minutes * MINUTE * 1_000_000;
    let reading = Reading { format: Format::Auto, has_headers: false, window };
    let files = Files::of_sources(sources.collect(), reading, ProgressBar::hidden());
    replay_files(&mut session, &mut files.with_most_bytes(most_bytes)).unwrap();
    session
}

/// The report without line numbers.
fn report(session: &Session) -> Value {
    let options = Options { suggest: Some(99_000) };
    let mut report = report::to_json(&session.log, &session.replays, options);
    for policy in report["configurations"][0]["policies"].as_array_mut().unwrap() {
        if let Some(first) = policy["first_rejection"].as_object_mut() {
            first.remove("line");
            first.remove("file");
        }
    }
    report["configurations"].take()
}

/// Moves lines behind others by less than the window, by adding a pair's second number to its time.
fn shuffled(lines: &[(u64, u64)]) -> Vec<u64> {
    let mut lines: Vec<_> = lines.iter().map(|(millis, late)| (millis + late, *millis)).collect();
    lines.sort_unstable();
    lines.into_iter().map(|(_, millis)| millis).collect()
}

/// Lines with gaps between them, by how much each is late, and its file.
fn lines() -> impl Strategy<Value = Vec<(u64, u64, usize)>> {
    let gap = prop_oneof![20 => 1_u64..2_000, 2 => 1_u64..2 * MINUTE, 1 => 1_u64..30 * MINUTE];
    let late = prop_oneof![2 => Just(0), 1 => 0_u64..5 * MINUTE];
    let line = (gap, late, 0_usize..3);
    prop::collection::vec(line, 0..250).prop_map(|mut lines| {
        let mut millis = 0;
        for (gap, _, _) in &mut lines {
            millis += *gap;
            *gap = millis;
        }
        lines
    })
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn shuffled_lines_give_the_same_report(lines in lines()) {
        let in_order: Vec<u64> = lines.iter().map(|(millis, _, _)| *millis).collect();
        let expected = replayed(&[in_order], 5, usize::MAX);
        let file = |number| {
            let of_file = lines.iter().filter(|(_, _, file)| *file == number);
            shuffled(&of_file.map(|(millis, late, _)| (*millis, *late)).collect::<Vec<_>>())
        };
        let session = replayed(&[file(0), file(1), file(2)], 5, usize::MAX);
        prop_assert_eq!(session.log.warnings(), Vec::<String>::new());
        prop_assert_eq!(session.log.requests, lines.len() as u64);
        prop_assert_eq!(session.log.span, expected.log.span);
        prop_assert_eq!(report(&session), report(&expected));
    }

    /// No line is lost, and time never goes back.
    #[test]
    fn no_order_loses_a_line(
        lines in prop::collection::vec(prop_oneof![0_u64..10_000, 0_u64..1 << 40], 0..200),
        window in 0_u64..10,
        most_bytes in prop_oneof![Just(0), 0_usize..100_000],
    ) {
        let session = replayed(&[lines.clone(), lines.clone()], window, most_bytes);
        prop_assert_eq!(session.log.requests, 2 * lines.len() as u64);
        let (first, last) = session.log.span.unwrap_or_default();
        prop_assert!(first <= last);
    }
}

/// If memory has no room for a window, we shorten it, and the report says so.
#[test]
fn memory_bounds_the_window() {
    let lines: Vec<u64> = (0..20_000).map(|number| number * 10).collect();
    let bounded = replayed(std::slice::from_ref(&lines), 5, 1 << 20);
    let shortest = bounded.log.shortest_window.unwrap();
    assert!((1_000_000_000..100_000_000_000).contains(&shortest), "{shortest}");
    assert_eq!(bounded.log.disorder.late.lines, 0);
    assert!(bounded.log.warnings()[0].contains("since more requests than memory is set aside for"));
    assert_eq!(report(&bounded), report(&replayed(&[lines], 5, usize::MAX)));
}

/// One server, whose clock is ahead, writes many lines among others.
#[test]
fn a_clock_ahead_counts_with_its_neighbours() {
    let hour = 60 * MINUTE;
    let lines: Vec<u64> =
        (0..10_001).map(|number| number * 1_000 + if number % 4 == 3 { 2 * hour } else { 0 }).collect();
    let session = replayed(&[lines], 5, usize::MAX);
    let (ahead, late) = (session.log.disorder.ahead, session.log.disorder.late);
    assert_eq!((ahead.lines, late.lines), (2_500, 0));
    assert!(ahead.furthest / 1_000_000 <= 2 * hour + 4_000, "{ahead:?}");
    // The log lasts for 10,000 seconds, and not for two hours more.
    let (first, last) = session.log.span.unwrap();
    assert_eq!((last - first) / 1_000_000_000, 10_000);
}

#[test]
fn percentages_are_read_exactly() {
    assert_eq!(per_100_000("99.9"), Ok(99_900));
    assert_eq!(per_100_000("100"), Ok(100_000));
    assert_eq!(per_100_000("0.001"), Ok(1));
    for text in ["", ".", "0", "100.001", "1e2", "-1", "99.9999", "99,9", "+5"] {
        assert!(per_100_000(text).is_err(), "{text}");
    }
}
