//! Keys with foreign values, and replies that cannot be read.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ::redis::{Connection, ErrorKind, Value, cmd};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use tower_sluice::Quota;
use tower_sluice::algorithm::{CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::Receipt;

use super::{NOW, refund, start};
use crate::connection::evalsha;
use crate::script::manual_server::{START, at, key};
use crate::script::sealed::Steps;
use crate::script::variant::hash_of;
use crate::script::{ScriptReply, Scripted, decide};
use crate::support::cases::cases;
use crate::support::trace::Trace;

/// Texts that are not a state of any algorithm. All states begin with a minus and a number below 2^53. A bucket's state
/// may end with a plus and a fraction, and windows' states have counts below 10^15 behind colons.
pub(super) const FOREIGN: [&str; 48] = [
    // Other types.
    "",
    "hello",
    "\0",
    // No minus, or more than one.
    "1:1",
    "1:1:1",
    "0",
    "5",
    "1763682765000000",
    "+1",
    "--1",
    // Texts that `tonumber` reads in Lua, but a parser of integers does not.
    "-nan",
    "nan",
    "-inf",
    "-1e400",
    "-0x10",
    "-1e15",
    "-1.0",
    "-1.5",
    // White space.
    "- 1",
    "-1 ",
    " -1:1",
    // Too great.
    "-9007199254740992",
    "-99999999999999999999999999",
    "-1:1000000000000000",
    "-1:1000000000000000:1",
    "-9007199254740992:1",
    "-1:1:1000000000000000",
    "-1+9007199254740992",
    // A part is missing, negative, or superfluous.
    "-",
    "-1:",
    "-1:1:",
    "-1:1:1:1",
    "-1:-1",
    "-1+",
    "-1+-1",
    "-1+1-",
    // Invalid standings, and a standing that is over, before text that is not a state.
    "!",
    "!5",
    "!5:6!-1",
    "!5:6:7",
    "!5:6:7!-1",
    "!5:6:7:",
    "!5:6:7:8:9!-1",
    "!5:6:-7:!-1",
    "!9007199254740992:0:0:!",
    "!0:9007199254740992:0:!",
    "!0:0:9007199254740992:!",
    "!5:6:7:!hello",
];

/// The scripts that decide on one key, or refund, reply to a value that they cannot read with an error that has a code,
/// and leave the value as it is. Rust cannot read it either: the script on several keys returns states unchecked that
/// it does not change.
fn check_foreign<A: Scripted>(connection: &mut Connection, algorithm: &A) {
    let receipt = Receipt::new(1 << 62);
    let calls = |name: &str| {
        [decide(algorithm, key(name), 1, 1, NOW), refund(algorithm, algorithm, key(name), 1, receipt, NOW).unwrap()]
    };
    let name = key("foreign");
    for value in FOREIGN {
        assert!(algorithm.read(value.as_bytes(), at(START)).is_none(), "Rust reads {value:?}");
        cmd("SET").arg(name.as_str()).arg(value).exec(connection).unwrap();
        for call in calls("foreign") {
            let error = evalsha(&call, &hash_of(call.script)).query::<Value>(connection).expect_err(value);
            assert_eq!((error.kind(), error.code()), (ErrorKind::Extension, Some("SLUICE")), "{value:?}: {error}");
            assert_eq!(cmd("GET").arg(name.as_str()).query::<String>(connection).unwrap(), value);
        }
    }
    let list = key("list");
    cmd("RPUSH").arg(list.as_str()).arg(1).exec(connection).unwrap();
    for call in calls("list") {
        let error = evalsha(&call, &hash_of(call.script)).query::<Value>(connection).unwrap_err();
        assert_eq!(error.code(), Some("WRONGTYPE"), "{error}");
        assert_eq!(cmd("LLEN").arg(list.as_str()).query::<u32>(connection).unwrap(), 1);
    }
    cmd("DEL").arg(list.as_str()).exec(connection).unwrap();
}

#[test]
pub(super) fn a_foreign_value_is_an_error() {
    let (_server, mut connection) = start();
    // Buckets in whole microseconds, and in fractions of a microsecond.
    check_foreign(&mut connection, &TokenBucket::new(Quota::per_second(10)));
    check_foreign(&mut connection, &TokenBucket::new(Quota::per_second(3)));
    check_foreign(&mut connection, &FixedWindow::new(Quota::per_second(10)));
    check_foreign(&mut connection, &SlidingWindow::new(Quota::per_second(10)));
    check_foreign(&mut connection, &CalendarWindow::monthly(10));
}

/// Later ends of windows, in microseconds, are above the numbers that a double represents exactly. A fixed window may
/// have such a number.
#[test]
pub(super) fn a_late_end_is_an_error() {
    let (_server, mut connection) = start();
    let window = CalendarWindow::monthly(10);
    let name = key("late");
    for (end, is_state) in [(9_007_199_254_u64, true), (9_007_199_255, false), (9_007_199_254_740_991, false)] {
        let value = format!("-{end}:1");
        assert_eq!(window.read(value.as_bytes(), at(START)).is_some(), is_state);
        cmd("SET").arg(name.as_str()).arg(&value).exec(&mut connection).unwrap();
        let call = decide(&window, name.clone(), 0, 1, NOW);
        let found = evalsha(&call, &hash_of(call.script)).query::<Value>(&mut connection);
        assert_eq!(found.is_ok(), is_state, "{value}: {found:?}");
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<i64>().prop_map(Value::Int),
        (0..2_000_000_i64).prop_map(Value::Int),
        any::<Vec<u8>>().prop_map(Value::BulkString),
        "(![0-9]{1,17}:[0-9]:[0-9]{0,9}:[a-z%0-9]{0,4}!)?-[0-9]{1,18}([:+][0-9]{1,11}){0,3}"
            .prop_map(|text| Value::BulkString(text.into_bytes())),
        "[0-9]{1,11}".prop_map(|text| Value::BulkString(text.into_bytes())),
        any::<String>().prop_map(Value::SimpleString),
        any::<bool>().prop_map(Value::Boolean),
        Just(Value::Okay),
        Just(Value::Double(f64::NAN)),
    ];
    leaf.prop_recursive(3, 16, 6, |inner| {
        prop_oneof![
            4 => prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Set),
            1 => prop::collection::vec((inner.clone(), inner), 0..3).prop_map(Value::Map),
        ]
    })
}

fn items() -> impl Strategy<Value = Value> {
    prop::collection::vec(values(), 0..6).prop_map(Value::Array)
}

fn text() -> impl Strategy<Value = Value> {
    "[0-9]{0,11},[0-9]{1,7},[0-9]{1,11}(,(![0-9]{1,17}:[0-9]:[0-9]{0,9}:[a-z%0-9]{0,4}!)?-[0-9]{1,18}([:+][0-9]{1,11}){0,3}|,.*)?"
        .prop_map(|text| Value::BulkString(text.into_bytes()))
}

#[test]
pub(super) fn no_reply_makes_rust_panic() {
    let config = ProptestConfig { failure_persistence: None, ..cases(0) };
    let replies = (prop_oneof![values(), items(), text()], any::<u64>(), 0..4_u32);
    let replay = |(reply, cost, count)| {
        let _ = ScriptReply::read_each(&reply, 2, 1);
        let Ok(answer) = ScriptReply::read(reply, 1 + count as usize % 2) else { return false };
        let quota = Quota::per_second(7);
        let _ = answer.replay(&TokenBucket::new(quota), cost, count);
        let _ = answer.replay(&FixedWindow::new(quota), cost, count);
        let _ = answer.replay(&CalendarWindow::monthly(7), cost, count);
        let _ = answer.replay(&SlidingWindow::new(quota), cost, count);
        let _ = answer.decision(&SlidingWindow::new(quota), 1, cost);
        true
    };
    let mut runner = TestRunner::new(config);
    let mut readable = 0;
    let mut trace = Trace::of(4_000);
    while trace.goes_on([("replies that can be read", readable >= 100)]) {
        let case = replies.new_tree(&mut runner).unwrap().current();
        let shown = format!("{case:?}");
        let is_read = catch_unwind(AssertUnwindSafe(|| replay(case)));
        readable += u32::from(is_read.unwrap_or_else(|_| panic!("{shown}")));
    }
}
