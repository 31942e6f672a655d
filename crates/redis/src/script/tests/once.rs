//! Requests whose retries are free: the script against a plain map, the lifetimes of records, and keys with foreign
//! values.

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Duration;

use ::redis::{Connection, Value, cmd};
use tower_sluice::Quota;
use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::time::{Clock, Monotonic, Timestamp};

use super::traces::lives_as_long;
use super::{ALL, Once, run, start};
use crate::connection::evalsha;
use crate::script::manual_server::{ManualServer, START, at, key};
use crate::script::random::Xorshift;
use crate::script::sealed::Steps;
use crate::script::variant::hash_of;
use crate::script::{
    BadReply, ScriptCall, ScriptCharge, ScriptReply, Scripted, begin_record, decide_once, raise_record, refund_budget,
};
use crate::support::trace::Trace;

const DAY: Duration = Duration::from_secs(86_400);

/// One policy key with three requests, whose retries are sometimes free.
struct Model<A: Scripted> {
    limit: A,
    budget: A::Budget,
    state: Option<A::State>,
    budget_state: Option<<A::Budget as Algorithm>::State>,
    records: HashMap<u64, u32>,
}

impl<A: Scripted> Model<A> {
    fn decide(&mut self, request: u64, cost: u64, now: Timestamp) -> Once<A::State> {
        if let Some(free) = self.records.get_mut(&request).filter(|free| **free > 0) {
            if let (decision, Some(next)) = self.budget.decide(self.budget_state, now, cost) {
                *free -= 1;
                self.budget_state = Some(next);
                return Once::Free(self.limit.decide(self.state, now, 0).0, decision.receipt(), self.state);
            }
        }
        let (decision, next) = self.limit.decide(self.state, now, cost);
        self.state = next.or(self.state);
        Once::Ordinary(decision, self.state)
    }
}

fn check<A: Scripted<State: PartialEq + Debug> + Debug>(make: impl Fn(Quota) -> A) {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&ALL);
    let mut seen = [0_u64; 3];
    let mut trace = Trace::of(60);
    while trace.goes_on([("free", seen[0] > 300), ("rejected", seen[1] > 300), ("charged", seen[2] > 300)]) {
        let batch = trace.step();
        let scale = random.pick(&[1, 30_000_000_000_000]);
        let quota = Quota::per(scale * (1 + random.below(8)), DAY);
        let free_retries = 1 + random.below(3) as u32;
        let budget = A::budget(Quota::per(quota.limit() * u64::from(free_retries), DAY));
        let limit = make(quota);
        let mut model = Model { limit, budget, state: None, budget_state: None, records: HashMap::new() };
        let [state, budget_key] = ["state", "budget"].map(|name| key(format!("{name} {batch}")));
        let record = |request: u64| key(format!("record {request} {batch}"));
        let mut now = START + random.below(1 << 50);
        let mut expected = Vec::new();
        let mut free = Vec::new();
        for _ in 0..200 {
            now += random.below(DAY.as_micros() as u64 / 4);
            let request = random.below(3);
            match random.below(8) {
                0..5 => {
                    let cost = scale * (1 + random.below(3));
                    // The caller's clock is wrong by up to five hours.
                    let asked = at(now + random.below(36_000_000_000) - 18_000_000_000);
                    let state_charge = ScriptCharge::new(&model.limit, state.clone(), cost, asked);
                    let budget_charge = ScriptCharge::new(&model.budget, budget_key.clone(), cost, asked);
                    server.add(now, &decide_once(state_charge, budget_charge, record(request)));
                    let once = model.decide(request, cost, at(now));
                    if let Once::Free(_, receipt, _) = once {
                        free.push((request, cost, receipt));
                    }
                    seen[match &once {
                        Once::Free(..) => 0,
                        Once::Ordinary(decision, _) => 1 + usize::from(decision.is_allowed()),
                    }] += 1;
                    expected.push((cost, Some(once)));
                }
                5 | 6 => {
                    server.add_silent(&begin_record(record(request), free_retries, 300 * DAY));
                    model.records.entry(request).or_insert(free_retries);
                }
                _ => {
                    let Some((request, cost, receipt)) = free.pop() else { continue };
                    let asked = at(now);
                    server.add(now, &refund_budget(&model.budget, budget_key.clone(), cost, receipt, asked).unwrap());
                    server.add_silent(&raise_record(record(request), free_retries));
                    expected.push((cost, None));
                    model.budget_state =
                        model.budget_state.map(|state| model.budget.refund(state, at(now), cost, receipt));
                    let left = model.records.get_mut(&request).unwrap();
                    *left = (*left + 1).min(free_retries);
                }
            }
        }
        for (step, (answer, (cost, expected))) in server.answers().iter().zip(expected).enumerate() {
            let Some(expected) = expected else { continue };
            let found = answer.once(&model.limit, &model.budget, cost);
            match answer.record_left() {
                Some(left) => assert!(matches!(expected, Once::Free(..)) && left <= 300 * DAY && left > 299 * DAY),
                None => assert!(matches!(expected, Once::Ordinary(..))),
            }
            let limit = &model.limit;
            let budget = model.budget.quota();
            assert_eq!(found, Ok(expected), "batch {batch}, step {step}: {cost} of {limit:?}, {budget:?}, {answer:?}");
        }
    }
    println!("free, rejected, charged: {seen:?}");
}

#[test]
pub(super) fn free_retries_agree_with_a_plain_map() {
    check(TokenBucket::new);
    check(FixedWindow::new);
    check(SlidingWindow::new);
    check(|quota| CalendarWindow::weekly(quota.limit()).zone("Europe/Berlin").unwrap());
}

fn silently(connection: &mut Connection, call: &ScriptCall) {
    let _: Value = evalsha(call, &hash_of(call.script)).query(connection).unwrap();
}

/// Makes a request to a window with `limit` units per day, by the keys `state`, `budget` and `record`.
fn request(limit: u64, cost: u64) -> (ScriptCall, FixedWindow, FixedWindow) {
    let [limit, budget] = [limit, 3 * limit].map(|limit| FixedWindow::new(Quota::per_day(limit)));
    let charge = |algorithm, name| ScriptCharge::new(algorithm, key(name), cost, Monotonic.now());
    (decide_once(charge(&limit, "state"), charge(&budget, "budget"), key("record")), limit, budget)
}

/// A cost that the limit can never admit may be a free retry, if the budget can admit it, such as after a quota was
/// lowered.
#[test]
pub(super) fn an_impossible_cost_charges_only_the_budget() {
    let (_server, mut connection) = start();
    let ask = |connection: &mut Connection, cost| {
        let (call, limit, budget) = request(2, cost);
        match run(connection, &call).once(&limit, &budget, cost).unwrap() {
            Once::Free(..) => "free",
            Once::Ordinary(decision, _) if decision.is_allowed() => "charged",
            Once::Ordinary(decision, _) => decision.retry_after().map_or("never", |_| "later"),
        }
    };
    assert_eq!(ask(&mut connection, 3), "never");
    silently(&mut connection, &begin_record(key("record"), 9, DAY));
    let found = [3, 3, 3, 7, 2, 1].map(|cost| ask(&mut connection, cost));
    assert_eq!(found, ["free", "free", "never", "never", "charged", "later"]);
}

/// Later uses do not prolong them.
#[test]
pub(super) fn records_live_after_the_first_response() {
    let (_server, mut connection) = start();
    let name = key("record");
    let mut steps = |call: &ScriptCall| -> (Option<String>, i64) {
        silently(&mut connection, call);
        let value = cmd("GET").arg(name.as_str()).query(&mut connection).unwrap();
        (value, cmd("PEXPIRETIME").arg(name.as_str()).query(&mut connection).unwrap())
    };
    let stored = |text: &str| Some(text.to_owned());
    assert_eq!(steps(&raise_record(key("record"), 2)), (None, -2), "nothing is there");
    let (value, ends) = steps(&begin_record(key("record"), 2, DAY + Duration::from_nanos(1)));
    let left =
        Duration::from_millis(ends.unsigned_abs()).saturating_sub(Duration::from_nanos(Monotonic.now().as_nanos()));
    // Rounded up to a millisecond.
    assert!(
        value == stored("-2") && left > DAY - Duration::from_secs(60) && left <= DAY + Duration::from_millis(2),
        "{left:?}"
    );
    let free = request(9, 1).0;
    assert_eq!([(); 3].map(|()| steps(&free)), [(stored("-1"), ends), (stored("-0"), ends), (stored("-0"), ends)]);
    assert_eq!(steps(&begin_record(key("record"), 2, 2 * DAY)), (stored("-0"), ends), "it has a record");
    let raised = [(); 3].map(|()| steps(&raise_record(key("record"), 2)));
    assert_eq!(raised, [(stored("-1"), ends), (stored("-2"), ends), (stored("-2"), ends)]);
}

#[test]
pub(super) fn states_and_budgets_live_while_they_owe() {
    fn check<A: Scripted<Budget = A>>(make: impl Fn(Quota) -> A) {
        let mut server = ManualServer::new(&ALL);
        // The periods are not whole milliseconds.
        let limit = make(Quota::per(7, Duration::from_micros(3_600_000_123)));
        let budget = make(Quota::per(9, DAY));
        let now = at(START);
        let state_charge = ScriptCharge::new(&limit, key("state"), 2, now);
        let budget_charge = ScriptCharge::new(&budget, key("budget"), 2, now);
        let call = decide_once(state_charge, budget_charge, key("record"));
        for (name, owed) in [("state", &limit), ("budget", &budget)] {
            assert!(server.run(START, &call).admitted > 0);
            let state = owed.decide(None, now, 2).1;
            assert!(lives_as_long(owed, state.as_ref(), server.expiry(&key(name))), "{name}");
            server.add_silent(&begin_record(key("record"), 1, DAY));
            server.replies();
        }
    }
    check(TokenBucket::new);
    check(FixedWindow::new);
    check(SlidingWindow::new);
}

/// With any text in the keys, no request passes for free, and foreign values stay as they are.
#[test]
pub(super) fn foreign_texts_are_errors() {
    let (_server, mut connection) = start();
    let (call, limit, budget) = request(5, 1);
    let set = |connection: &mut Connection, name: &str, value: &str| {
        cmd("SET").arg(key(name).as_str()).arg(value).exec(connection).unwrap();
    };
    let get = |connection: &mut Connection, name: &str| -> Option<String> {
        cmd("GET").arg(key(name).as_str()).query(connection).unwrap()
    };
    let code = |connection: &mut Connection| {
        let error = evalsha(&call, &hash_of(call.script)).query::<Value>(connection).unwrap_err();
        error.code().unwrap().to_owned()
    };
    for record in
        ["", "1", "-", "--1", "-1 ", "-1.0", "-0x1", "-1:1", "-nan", "-4294967296", "-99999999999999999999", "free"]
    {
        set(&mut connection, "record", record);
        assert_eq!(code(&mut connection), "SLUICE", "{record:?}");
        silently(&mut connection, &begin_record(key("record"), 2, DAY));
        assert_eq!(get(&mut connection, "record").as_deref(), Some(record));
    }
    set(&mut connection, "record", "free");
    silently(&mut connection, &raise_record(key("record"), 2));
    assert_eq!(get(&mut connection, "record").as_deref(), Some("free"));
    // A budget that cannot be read admits nothing.
    set(&mut connection, "record", "-2");
    set(&mut connection, "budget", "hello");
    assert_eq!(code(&mut connection), "SLUICE");
    assert_eq!(
        ["record", "budget", "state"].map(|name| get(&mut connection, name)),
        [Some("-2".into()), Some("hello".into()), None]
    );
    // If the state cannot be read, a retry that charged the budget is an error, and the state's key keeps its value.
    cmd("DEL").arg(key("budget").as_str()).exec(&mut connection).unwrap();
    set(&mut connection, "state", "hello");
    assert_eq!(run(&mut connection, &call).once(&limit, &budget, 1), Err(BadReply::State));
    assert_eq!(get(&mut connection, "state").as_deref(), Some("hello"));
    // Other types stop the script before it writes.
    for other in ["state", "budget", "record"] {
        for (name, value) in [("state", None), ("budget", None), ("record", Some("-2"))] {
            cmd("DEL").arg(key(name).as_str()).exec(&mut connection).unwrap();
            if let (Some(value), true) = (value, name != other) {
                set(&mut connection, name, value);
            }
        }
        cmd("RPUSH").arg(key(other).as_str()).arg(1).exec(&mut connection).unwrap();
        assert_eq!(code(&mut connection), "WRONGTYPE", "{other}");
        let ours = ["state", "budget", "record"].into_iter().filter(|name| *name != other);
        let found: Vec<_> = ours.map(|name| get(&mut connection, name)).collect();
        let record = Some("-2".to_owned());
        assert!(found == [None, record] || found == [None, None], "{other}: {found:?}");
    }
}

/// A reply that contradicts its own states is an error, and in particular does not pass for free.
#[test]
pub(super) fn a_reply_must_match_its_states() {
    let (_, limit, budget) = request(1, 1);
    let window = START / 1_000_000 / 86_400;
    let used_up = |limit: u64| Value::BulkString(format!("-{window}:{limit}").into_bytes());
    let free = |free: &str| Value::BulkString(free.into());
    let reply = |charged, state, budget, record| {
        let seconds = i64::try_from(START / 1_000_000).unwrap();
        let items = vec![Value::Int(seconds), Value::Int(0), Value::Int(charged), state, budget, record];
        ScriptReply::read(Value::Array(items), 3).unwrap()
    };
    let found = |charged, state, budget_state, record| match reply(charged, state, budget_state, record)
        .once(&limit, &budget, 1)
    {
        Ok(Once::Free(..)) => Ok("free"),
        Ok(Once::Ordinary(decision, _)) => Ok(if decision.is_allowed() { "charged" } else { "rejected" }),
        Err(reply) => Err(reply),
    };
    let wrong = Err(BadReply::Disagreement);
    for (state, budget, record, right) in [
        (Value::Nil, Value::Nil, Value::Nil, (1, "charged")),
        (Value::Nil, Value::Nil, free("-0"), (1, "charged")),
        (used_up(1), Value::Nil, free("-0"), (0, "rejected")),
        (used_up(1), Value::Nil, free("-1"), (2, "free")),
        (used_up(1), used_up(3), free("-1"), (0, "rejected")),
        (Value::Nil, used_up(3), free("-1"), (1, "charged")),
    ] {
        for charged in 0..4 {
            let expected = if charged == i64::from(right.0) { Ok(right.1) } else { wrong };
            assert_eq!(
                found(charged, state.clone(), budget.clone(), record.clone()),
                expected,
                "{state:?} {budget:?} {record:?}"
            );
        }
    }
    assert_eq!(found(2, Value::Nil, Value::Nil, free("1")), Err(BadReply::State));
    assert_eq!(found(2, Value::Nil, free("-1"), free("-1")), Err(BadReply::State));
    let short =
        ScriptReply::read(Value::Array(vec![Value::Int(0), Value::Int(0), Value::Int(1), Value::Nil]), 3).unwrap();
    assert_eq!(short.once(&limit, &budget, 1), Err(BadReply::Shape));
}

/// A call without the calendar window at the server's time can only charge a free retry.
#[test]
pub(super) fn an_unknown_window_admits_only_free_retries() {
    let mut server = ManualServer::new(&ALL);
    let daily = CalendarWindow::daily(5).zone("Europe/Berlin").unwrap();
    let budget = CalendarWindow::budget(Quota::per_day(5));
    let year = 366 * 86_400_000_000;
    let ask = |server: &mut ManualServer, asked| {
        let state_charge = ScriptCharge::new(&daily, key("state"), 1, at(asked));
        let budget_charge = ScriptCharge::new(&budget, key("budget"), 1, at(asked));
        let answer = server.run(START, &decide_once(state_charge, budget_charge, key("record")));
        if answer.is_uncovered(&daily, at(asked)) {
            assert_eq!(answer.once(&daily, &budget, 1), Err(BadReply::Disagreement));
            return "uncovered";
        }
        match answer.once(&daily, &budget, 1).unwrap() {
            Once::Free(..) => "free",
            Once::Ordinary(..) => "charged",
        }
    };
    assert_eq!([START + year, START].map(|asked| ask(&mut server, asked)), ["uncovered", "charged"]);
    server.add_silent(&begin_record(key("record"), 1, 300 * DAY));
    assert_eq!(
        [START + year, START + year, START].map(|asked| ask(&mut server, asked)),
        ["free", "charged", "charged"]
    );
}
