//! The lifetimes of keys, states from the future, and how many scripts the server caches.

use std::time::Duration;

use ::redis::{Connection, Pipeline, Value, cmd};
use tower_sluice::Quota;
use tower_sluice::algorithm::{CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::internal::remote::testing::ReadCalendar as _;
use tower_sluice::internal::remote::testing::window_receipt;
use tower_sluice::time::{Clock, Monotonic, Timestamp};

use super::{ALL, NOW, decide_all, refund, run, start};
use crate::connection::evalsha;
use crate::script::manual_server::{ManualServer, START, at, key};
use crate::script::variant::hash_of;
use crate::script::{Key, ScriptCharge, ScriptReply, Scripted, decide, reset};

fn expires_at(connection: &mut Connection, key: &Key) -> i64 {
    cmd("PEXPIRETIME").arg(key.as_str()).query(connection).unwrap()
}

/// Every key lives until it owes nothing, and less than two milliseconds longer.
fn check_life<A: Scripted>(connection: &mut Connection, algorithm: &A, name: &str, cost: u64) {
    let key = key(name);
    let check = |answer: &ScriptReply, expires: Timestamp, connection: &mut Connection| {
        let found = expires_at(connection, &key) * 1_000_000;
        let over = u64::try_from(found).unwrap().checked_sub(expires.as_nanos());
        assert!(over.is_some_and(|over| over < 2_000_000), "{name}: {over:?} {answer:?}");
    };
    let mut state = None;
    for _ in 0..2 {
        let answer = run(connection, &decide(algorithm, key.clone(), cost, 1, Monotonic.now()));
        state = algorithm.decide(state, answer.now, cost).1.or(state);
        check(&answer, algorithm.expires_at(&state.unwrap()), connection);
    }
    // A rejection, a cost of zero, and a cost that is too great leave everything as it is.
    let value = |connection: &mut Connection| -> (Vec<u8>, i64) {
        (cmd("GET").arg(key.as_str()).query(connection).unwrap(), expires_at(connection, &key))
    };
    let before = value(connection);
    for cost in [algorithm.max_cost(), 0, u64::from(u32::MAX)] {
        let answer = run(connection, &decide(algorithm, key.clone(), cost, 1, Monotonic.now()));
        assert_eq!(answer.admitted, 0);
        answer.replay(algorithm, cost, 1).unwrap();
        assert_eq!(value(connection), before, "{name}");
    }
}

#[test]
pub(super) fn keys_live_while_they_owe() {
    let (_server, mut connection) = start();
    // These windows are too long to end during the test.
    let quota = Quota::per(10, Duration::from_secs(10_000_000));
    check_life(&mut connection, &TokenBucket::new(quota), "bucket", 3);
    check_life(&mut connection, &TokenBucket::new(Quota::per_hour(70_000).burst(999)), "thirds", 3);
    check_life(&mut connection, &FixedWindow::new(quota), "fixed", 3);
    check_life(&mut connection, &SlidingWindow::new(quota), "sliding", 3);
    check_life(&mut connection, &CalendarWindow::monthly(10), "calendar", 3);
}

fn check_returned<A: Scripted>(connection: &mut Connection, algorithm: &A) {
    let key = key("returned");
    let answer = run(connection, &decide(algorithm, key.clone(), 3, 1, Monotonic.now()));
    let receipt = answer.replay(algorithm, 3, 1).unwrap().0[0].receipt();
    let refund = refund(algorithm, algorithm, key.clone(), 3, receipt, Monotonic.now()).unwrap();
    assert_eq!(run(connection, &refund).admitted, 1);
    assert!(!cmd("EXISTS").arg(key.as_str()).query::<bool>(connection).unwrap());
    assert_eq!(run(connection, &refund).admitted, 0);
}

#[test]
pub(super) fn a_fully_refunded_key_is_deleted() {
    let (_server, mut connection) = start();
    // Time has paid off a little of the bucket's debt, so it owes less than the price, and the refund covers it all.
    let quota = Quota::per(10, Duration::from_secs(10_000_000));
    check_returned(&mut connection, &FixedWindow::new(quota));
    check_returned(&mut connection, &SlidingWindow::new(quota));
    check_returned(&mut connection, &CalendarWindow::monthly(10));
    check_returned(&mut connection, &TokenBucket::new(quota));
}

#[test]
pub(super) fn a_reset_key_leaves_no_trace() {
    let mut server = ManualServer::new(&ALL);
    let window = FixedWindow::new(Quota::per_day(5));
    let charge = decide(&window, key("a"), 5, 1, NOW);
    for _ in 0..2 {
        let answer = server.run(START + 7, &charge);
        assert!(answer.replay(&window, 5, 1).unwrap().0[0].is_allowed());
        let answer = server.run(START + 7, &reset([key("a")]));
        assert_eq!((answer.now, answer.admitted, answer.old(0).unwrap()), (at(START + 7), 0, None));
        assert_eq!(server.expiry(&key("a")), -2);
    }
}

/// If one of several keys cannot be read, the call is an error and charges no key, before or behind it.
#[test]
pub(super) fn one_unreadable_key_stops_the_call() {
    let (_server, mut connection) = start();
    let window = FixedWindow::new(Quota::per_day(5));
    let keys = ["a", "b", "c"].map(key);
    for foreign in &keys {
        cmd("SET").arg(foreign.as_str()).arg("hello").exec(&mut connection).unwrap();
        let call = decide_all(keys.iter().map(|key| ScriptCharge::new(&window, key.clone(), 1, NOW)));
        let error = evalsha(&call, &hash_of(call.script)).query::<Value>(&mut connection).unwrap_err();
        assert_eq!(error.code(), Some("SLUICE"));
        assert_eq!(cmd("DBSIZE").query::<u32>(&mut connection).unwrap(), 1, "it holds {}", foreign.as_str());
        cmd("DEL").arg(foreign.as_str()).exec(&mut connection).unwrap();
    }
}

#[test]
pub(super) fn a_future_state_locks_no_client_out() {
    let mut server = ManualServer::new(&ALL);
    let bucket = TokenBucket::new(Quota::per_second(1).burst(5));
    let fixed = FixedWindow::new(Quota::per_minute(5));
    let sliding = SlidingWindow::new(Quota::per_minute(5));
    let hour = 3_600_000_000;
    let later = START + 6_000_000;
    // A window from the future counts as the next, so three windows pass: the present one, the next one, and one in
    // which the next still counts.
    let three_windows = Duration::from_secs(180);
    let keys = ["bucket", "fixed", "sliding"].map(key);

    let mut run = |micros, cost| {
        let [a, b, c] = keys.clone();
        let bucket =
            server.run(micros, &decide(&bucket, a, cost, 1, at(micros))).replay(&bucket, cost, 1).unwrap().0[0];
        let fixed = server.run(micros, &decide(&fixed, b, cost, 1, at(micros))).replay(&fixed, cost, 1).unwrap().0[0];
        let sliding =
            server.run(micros, &decide(&sliding, c, cost, 1, at(micros))).replay(&sliding, cost, 1).unwrap().0[0];
        [bucket, fixed, sliding]
    };
    assert!(run(START + hour, 5).iter().all(|it| it.is_allowed()));
    // The clock is set back by an hour: all are rejected once ...
    let rejected = run(START, 5);
    assert!(rejected.iter().all(|it| !it.is_allowed()));
    assert_eq!(rejected[0].retry_after(), Some(Duration::from_secs(5)));
    assert!(rejected.iter().all(|it| it.retry_after().unwrap() <= three_windows));
    // ... and after that, they count as owing exactly this debt.
    assert!(run(later, 5)[0].is_allowed());
    assert!(run(START + three_windows.as_micros() as u64, 5).iter().all(|it| it.is_allowed()));
}

#[test]
pub(super) fn the_server_caches_one_script_per_source() {
    let (_server, mut connection) = start();
    let mut pipeline = Pipeline::new();
    let mut keys = Vec::new();
    for number in 1..=10_000_u64 {
        let quota = Quota::per_second(number);
        let bucket = TokenBucket::new(quota);
        let fixed = FixedWindow::new(quota);
        let sliding = SlidingWindow::new(quota);
        let call = match number % 5 {
            0 => decide(&bucket, key(number), 1, 1, NOW),
            1 => decide(&fixed, key(number), 1, 1, NOW),
            2 => decide(&sliding, key(number), 1, 1, NOW),
            3 => decide_all([
                ScriptCharge::new(&bucket, key(number), 1, NOW),
                ScriptCharge::new(&fixed, key("other"), 1, NOW),
            ]),
            _ => refund(&sliding, &sliding, key(number), 1, window_receipt(6), NOW).unwrap(),
        };
        keys.push(call.keys.len());
        pipeline.add_command(evalsha(&call, &hash_of(call.script)));
    }
    let replies: Vec<Value> = pipeline.query(&mut connection).unwrap();
    assert!(replies.into_iter().zip(keys).all(|(reply, keys)| ScriptReply::read(reply, keys).is_ok()));
    let memory: String = cmd("INFO").arg("memory").query(&mut connection).unwrap();
    assert!(memory.contains(&format!("number_of_cached_scripts:{}\r\n", ALL.len())), "{memory}");
}

/// The bounds in a call follow the caller's clock. If it is wrong by more than half a window, a window that has begun
/// continues, and no window begins.
#[test]
pub(super) fn no_calendar_window_begins_by_callers_clocks() {
    let mut server = ManualServer::new(&ALL);
    let daily = CalendarWindow::daily(5).zone("Europe/Berlin").unwrap();
    let day = 86_400_000_000;
    let hour = 3_600_000_000;
    // A minute before midnight, and a minute after.
    let midnight = daily.end_of_window(at(START)).as_nanos() / 1_000;
    let evening = midnight - 60_000_000;
    let morning = midnight + 60_000_000;
    let charge = |server: &mut ManualServer, now, asked| {
        let answer = server.run(now, &decide(&daily, key("a"), 5, 1, at(asked)));
        if answer.is_uncovered(&daily, at(asked)) {
            assert!(answer.replay(&daily, 5, 1).is_err());
            return None;
        }
        Some(answer.replay(&daily, 5, 1).unwrap().0[0])
    };
    for asked in [evening - 2 * day, evening + 2 * day] {
        assert_eq!(charge(&mut server, evening, asked), None);
    }
    // On the caller's clock, it is the next day.
    let admitted = charge(&mut server, evening, evening + 10 * hour).unwrap();
    assert!(admitted.is_allowed());
    for asked in [evening, evening - 10 * hour, evening + 10 * hour] {
        let rejected = charge(&mut server, evening, asked).unwrap();
        assert_eq!(rejected.retry_after(), Some(Duration::from_secs(60)), "asked at {asked}");
    }
    // It is the next day, and the caller's clock shows the day before.
    assert_eq!(charge(&mut server, morning, morning - 2 * day), None);
    let admitted = charge(&mut server, morning, morning - 10 * hour).unwrap();
    assert!(admitted.is_allowed());
    assert_eq!(admitted.reset_after(), Duration::from_secs(86_400 - 60));
    assert!(!charge(&mut server, morning, morning).unwrap().is_allowed());
}

#[test]
pub(super) fn a_begun_window_continues_with_any_clock() {
    let mut server = ManualServer::new(&ALL);
    let daily = CalendarWindow::daily(5).zone("Europe/Berlin").unwrap();
    let year = 366 * 86_400_000_000;
    for (cost, asked, remaining) in [(2, START, 3), (1, START + year, 2), (2, START - year, 0)] {
        let answer = server.run(START, &decide(&daily, key("a"), cost, 1, at(asked)));
        let decision = answer.replay(&daily, cost, 1).unwrap().0[0];
        assert!(decision.is_allowed() && decision.remaining() == remaining, "{decision:?}");
    }
    let rejected = server.run(START, &decide(&daily, key("a"), 1, 1, at(START + year)));
    assert!(rejected.is_uncovered(&daily, at(START + year)));
}

/// A key from the future, or from another calendar, counts in the present window, from the first rejection on.
#[test]
pub(super) fn another_calendars_state_counts_at_present() {
    let mut server = ManualServer::new(&ALL);
    let berlin = |window: CalendarWindow| window.zone("Europe/Berlin").unwrap();
    let daily = berlin(CalendarWindow::daily(5));
    let monthly = berlin(CalendarWindow::monthly(5));
    let mut ask = |window: &CalendarWindow, now, cost| {
        let answer = server.run(now, &decide(window, key("a"), cost, 1, at(now)));
        answer.replay(window, cost, 1).unwrap().0[0]
    };
    // A day in the middle of its month.
    let month = monthly.end_of_window(at(START)).as_nanos() / 1_000;
    let noon = month + 10 * 86_400_000_000 + 43_200_000_000;
    assert!(ask(&monthly, noon, 4).is_allowed());
    for (window, cost) in [(&daily, 3), (&monthly, 3), (&daily, 3)] {
        let rejected = ask(window, noon, cost);
        assert_eq!(rejected.remaining(), 1);
        let end = window.end_of_window(at(noon));
        assert_eq!(rejected.retry_after(), Some(end.saturating_since(at(noon))));
        // A cost of 0 charges nothing and corrects nothing.
        assert_eq!(ask(window, noon, 0).remaining(), 1);
    }
    // The daily limit was the last to reject, so the count ends with the day.
    let end = daily.end_of_window(at(noon)).as_nanos() / 1_000;
    assert_eq!((ask(&daily, end - 1, 0).remaining(), ask(&daily, end, 0).remaining()), (1, 5));
    assert_eq!(ask(&monthly, end, 0).remaining(), 5);
    // The server's clock is set back by a month.
    assert!(ask(&daily, end, 5).is_allowed());
    let before = end - 30 * 86_400_000_000;
    let wait = daily.end_of_window(at(before)).saturating_since(at(before));
    assert_eq!(ask(&daily, before, 1).retry_after(), Some(wait));
    assert!(ask(&daily, before + u64::try_from(wait.as_micros()).unwrap(), 5).is_allowed());
}
