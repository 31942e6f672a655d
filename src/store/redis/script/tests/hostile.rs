//! Keys that hold something else, and replies that cannot be read.

use ::redis::ErrorKind;
use proptest::prelude::*;

use super::*;
use crate::store::redis::script::{BadReply, Scripted, UnfitQuota, decide, refund};
use crate::values::Quota;

const FOREIGN: [&str; 32] = [
    "",
    "-",
    "0",
    "5",
    "1763682765000000",
    "hello",
    "-nan",
    "nan",
    "-inf",
    "-1e400",
    "-0x10",
    "-1e15",
    "-1.0",
    "- 1",
    "-1.5",
    "-9007199254740992",
    "-99999999999999999999999999",
    "-1:",
    "-1:4294967296",
    "-9007199254740992:1",
    "-1:1:1:1",
    "-1:1:",
    "-1:-1",
    "-1:1:4294967296",
    "-1+",
    "-1+-1",
    "-1+9007199254740992",
    "--1",
    "-1 ",
    " -1:1",
    "+1",
    "\0",
];

/// What a script can read, Rust can read; anything else is an error with a reason.
fn check_foreign<A: Scripted>(connection: &mut Connection, algorithm: &A) {
    for value in FOREIGN {
        let name = key("foreign");
        cmd("SET").arg(name.as_str()).arg(value).exec(connection).unwrap();
        let receipt = crate::values::Receipt::new(1 << 62);
        for call in [decide(algorithm, name.clone(), 1, 1), refund(algorithm, name, 1, receipt).unwrap()] {
            match evalsha(&call, call.script.hash()).query::<Value>(connection) {
                Ok(reply) => {
                    let answer = ScriptReply::read(reply).unwrap();
                    let result = answer.replay(algorithm, 1, 1);
                    assert_eq!(result.err(), Some(BadReply::State), "{value:?} is a state: {answer:?}");
                }
                Err(error) => {
                    assert_eq!(
                        (error.kind(), error.code()),
                        (ErrorKind::Extension, Some("SLUICE")),
                        "{value:?}: {error}"
                    )
                }
            }
            cmd("SET").arg(key("foreign").as_str()).arg(value).exec(connection).unwrap();
        }
    }
    let name = key("list");
    cmd("RPUSH").arg(name.as_str()).arg(1).exec(connection).unwrap();
    let call = decide(algorithm, name, 1, 1);
    let error = evalsha(&call, call.script.hash()).query::<Value>(connection).unwrap_err();
    assert_eq!(error.code(), Some("WRONGTYPE"), "{error}");
    cmd("DEL").arg(key("list").as_str()).exec(connection).unwrap();
}

#[test]
fn a_foreign_value_is_an_error() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    load(&mut connection);
    check_foreign(&mut connection, &TokenBucket::new(Quota::per_second(10)));
    check_foreign(&mut connection, &TokenBucket::new(Quota::per_second(3)));
    check_foreign(&mut connection, &FixedWindow::new(Quota::per_second(10)));
    check_foreign(&mut connection, &SlidingWindow::new(Quota::per_second(10)));
}

#[test]
fn errors_of_unfit_quotas_say_what_to_do() {
    let odd = Quota::new(1, std::time::Duration::from_nanos(1_500)).unwrap();
    let long = Quota::new(1, std::time::Duration::from_secs(1 << 31)).unwrap();
    let text = |error: Option<UnfitQuota>| error.unwrap().to_string();
    assert!(text(FixedWindow::new(odd).check_fit().err()).contains("round the period, or use a bucket"));
    assert!(text(SlidingWindow::new(long).check_fit().err()).contains("check its unit"));
    assert!(text(TokenBucket::new(long.burst(2)).check_fit().err()).contains("raise the limit"));
    assert!(TokenBucket::new(odd).check_fit().is_ok());
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<i64>().prop_map(Value::Int),
        (0..2_000_000_i64).prop_map(Value::Int),
        any::<Vec<u8>>().prop_map(Value::BulkString),
        "-[0-9]{1,18}([:+][0-9]{1,11}){0,3}".prop_map(|text| Value::BulkString(text.into_bytes())),
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
    "[0-9]{0,11} [0-9]{1,7} [0-9]{1,11}( -[0-9]{1,18}([:+][0-9]{1,11}){0,3}| .*)?"
        .prop_map(|text| Value::BulkString(text.into_bytes()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_reply_makes_rust_panic(reply in prop_oneof![values(), items(), text()], cost in any::<u32>(), count in 0..4_u32) {
        if let Ok(answer) = ScriptReply::read(reply) {
            let quota = Quota::per_second(7);
            let _ = answer.replay(&TokenBucket::new(quota), cost, count);
            let _ = answer.replay(&FixedWindow::new(quota), cost, count);
            let _ = answer.replay(&SlidingWindow::new(quota), cost, count);
            let _ = answer.decision(&SlidingWindow::new(quota), 1, cost);
        }
    }
}
