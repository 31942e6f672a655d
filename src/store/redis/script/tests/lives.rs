//! How long keys live, what states from the future do, and how many scripts the server caches.

use std::time::Duration;

use ::redis::{Connection, Pipeline, Value, cmd};

use super::{ALL, run, start};
use crate::algorithm::{ChargedIn, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use crate::store::redis::connection::evalsha;
use crate::store::redis::key::Key;
use crate::store::redis::script::manual_server::{ManualServer, START, key};
use crate::store::redis::script::{Charge, ScriptReply, Scripted, decide, decide_all, refund};
use crate::values::time::Timestamp;
use crate::values::{Quota, Receipt};

fn expires_at(connection: &mut Connection, key: &Key) -> i64 {
    cmd("PEXPIRETIME").arg(key.as_str()).query(connection).unwrap()
}

/// Every key lives until nothing is owed, and less than two milliseconds longer.
fn check_life<A: Scripted>(connection: &mut Connection, algorithm: &A, name: &str, cost: u32) {
    let key = key(name);
    let check = |answer: &ScriptReply, expires: Timestamp, connection: &mut Connection| {
        let found = expires_at(connection, &key) * 1_000_000;
        let over = u64::try_from(found).unwrap().checked_sub(expires.as_nanos());
        assert!(over.is_some_and(|over| over < 2_000_000), "{name}: {over:?} {answer:?}");
    };
    let mut state = None;
    for _ in 0..2 {
        let answer = run(connection, &decide(algorithm, key.clone(), cost, 1));
        state = algorithm.decide(state, answer.now, cost).1.or(state);
        check(&answer, algorithm.expires_at(&state.unwrap()), connection);
    }
    // A rejection, a cost of zero, and a cost that is too great leave everything as it is.
    let value = |connection: &mut Connection| -> (Vec<u8>, i64) {
        (cmd("GET").arg(key.as_str()).query(connection).unwrap(), expires_at(connection, &key))
    };
    let before = value(connection);
    for cost in [algorithm.max_cost(), 0, u32::MAX] {
        let answer = run(connection, &decide(algorithm, key.clone(), cost, 1));
        assert_eq!(answer.admitted, 0);
        answer.replay(algorithm, cost, 1).unwrap();
        assert_eq!(value(connection), before, "{name}");
    }
}

#[test]
fn keys_live_for_as_long_as_they_owe() {
    let (_server, mut connection) = start();
    // Windows so long that none ends during the test.
    let quota = Quota::new(10, Duration::from_secs(10_000_000)).unwrap();
    check_life(&mut connection, &TokenBucket::new(quota), "bucket", 3);
    check_life(&mut connection, &TokenBucket::new(Quota::per_hour(70_000).burst(999)), "thirds", 3);
    check_life(&mut connection, &LeakyBucket::new(quota), "leaky", 3);
    check_life(&mut connection, &FixedWindow::new(quota), "fixed", 3);
    check_life(&mut connection, &SlidingWindow::new(quota), "sliding", 3);
}

fn check_returned<A: Scripted>(connection: &mut Connection, algorithm: &A) {
    let key = key("returned");
    let answer = run(connection, &decide(algorithm, key.clone(), 3, 1));
    let receipt = answer.replay(algorithm, 3, 1).unwrap().0[0].receipt();
    let refund = refund(algorithm, key.clone(), 3, receipt).unwrap();
    assert_eq!(run(connection, &refund).admitted, 1);
    assert!(!cmd("EXISTS").arg(key.as_str()).query::<bool>(connection).unwrap());
    assert_eq!(run(connection, &refund).admitted, 0);
}

#[test]
fn a_key_that_owes_nothing_after_a_refund_is_deleted() {
    let (_server, mut connection) = start();
    // A bucket has been paid a little since, so that less than the price is owed: all of that is refunded.
    let quota = Quota::new(10, Duration::from_secs(10_000_000)).unwrap();
    check_returned(&mut connection, &FixedWindow::new(quota));
    check_returned(&mut connection, &SlidingWindow::new(quota));
    check_returned(&mut connection, &TokenBucket::new(quota));
}

#[test]
fn a_state_from_the_future_locks_no_client_out() {
    let mut server = ManualServer::new(&ALL);
    let bucket = TokenBucket::new(Quota::per_second(1).burst(5));
    let fixed = FixedWindow::new(Quota::per_minute(5));
    let sliding = SlidingWindow::new(Quota::per_minute(5));
    let (hour, later) = (3_600_000_000, START + 6_000_000);
    // A window from the future counts as the next: so this one passes, that one, and the one in which that still weighs.
    let three_windows = Duration::from_secs(180);
    let keys = ["bucket", "fixed", "sliding"].map(key);

    let mut run = |micros, cost| {
        let [a, b, c] = keys.clone();
        let bucket = server.run(micros, &decide(&bucket, a, cost, 1)).replay(&bucket, cost, 1).unwrap().0[0];
        let fixed = server.run(micros, &decide(&fixed, b, cost, 1)).replay(&fixed, cost, 1).unwrap().0[0];
        let sliding = server.run(micros, &decide(&sliding, c, cost, 1)).replay(&sliding, cost, 1).unwrap().0[0];
        [bucket, fixed, sliding]
    };
    assert!(run(START + hour, 5).iter().all(|it| it.is_allowed()));
    // The clock is set back by an hour: all are rejected once ...
    let rejected = run(START, 5);
    assert!(rejected.iter().all(|it| !it.is_allowed()));
    assert_eq!(rejected[0].retry_after(), Some(Duration::from_secs(5)));
    assert!(rejected.iter().all(|it| it.retry_after().unwrap() <= three_windows));
    // ... and it was as if they owed that much and no more.
    assert!(run(later, 5)[0].is_allowed());
    assert!(run(START + three_windows.as_micros() as u64, 5).iter().all(|it| it.is_allowed()));
}

#[test]
fn the_server_caches_one_script_per_source() {
    let (_server, mut connection) = start();
    let mut pipeline = Pipeline::new();
    for number in 1..=10_000_u32 {
        let quota = Quota::per_second(number);
        let (bucket, fixed, sliding) = (TokenBucket::new(quota), FixedWindow::new(quota), SlidingWindow::new(quota));
        let call = match number % 5 {
            0 => decide(&bucket, key(number), 1, 1),
            1 => decide(&fixed, key(number), 1, 1),
            2 => decide(&sliding, key(number), 1, 1),
            3 => decide_all([Charge::new(&bucket, key(number), 1), Charge::new(&fixed, key("other"), 1)]),
            _ => refund(&sliding, key(number), 1, Receipt::of(ChargedIn(6))).unwrap(),
        };
        pipeline.add_command(evalsha(&call, call.script.hash()));
    }
    let replies: Vec<Value> = pipeline.query(&mut connection).unwrap();
    assert!(replies.into_iter().all(|reply| ScriptReply::read(reply).is_ok()));
    let memory: String = cmd("INFO").arg("memory").query(&mut connection).unwrap();
    assert!(memory.contains(&format!("number_of_cached_scripts:{}\r\n", ALL.len())), "{memory}");
}
