//! Carries out the conditional writes with the proofs' counterexamples.

use aws_sdk_dynamodb::types::AttributeValue;
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};

use super::counterexamples::{Counterexample, each};
use super::*;
use crate::hints::{ALWAYS_BUSY, Hint};
use crate::items::sealed::Items;
use crate::items::{Charge, Moment, Plan};
use crate::table::{Item, Write, Written};

fn moment(case: &Counterexample) -> Moment {
    let error = Duration::from_nanos(case.number_or("error", 0));
    Moment { now: Timestamp::from_nanos(case.number_or("now", NOW.as_nanos())), error }
}

fn charge(case: &Counterexample, count: &str) -> Charge {
    Charge { at: moment(case), cost: case.number("cost"), count: case.number(count) }
}

/// Returns the write that an algorithm plans for `count` requests.
fn planned<A: Items>(algorithm: &A, hint: Option<Hint>, charge: Charge, count: u32) -> Write {
    match algorithm.guess(hint, charge) {
        Plan::Charge(write, charged) if charged == count => write,
        other => panic!("no write of {count} requests: {other:?}"),
    }
}

/// Carries out a write on an item with these attributes. If it applies, returns the attribute `of` afterwards.
fn carried_out(write: Write, item: &[(&str, String)], quota: Quota, of: &str) -> Option<u128> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (service, clock) = service().await;
        let name = format!("{}/{}/{}", quota.limit(), quota.max_burst(), quota.period().as_nanos());
        let mut stored = serde_json::json!({ "k": { "S": "key" }, "q": { "S": name }, "x": { "N": "9999999999" } });
        for (name, number) in item {
            stored[name] = serde_json::json!({ "N": number });
        }
        service.call("PutItem", &serde_json::json!({ "TableName": TABLE, "Item": stored }));
        let dynamo = dynamo(&service, &clock);
        let applies = matches!(dynamo.table().write("key", write).await.unwrap(), Written::Applied(_));
        let item: Item = dynamo.table().read("key").await.unwrap().unwrap();
        applies.then(|| crate::table::number(&item, of).unwrap())
    })
}

fn bucket(case: &Counterexample) -> TokenBucket {
    let quota = Quota::per(case.number("limit"), Duration::from_nanos(case.number("period")));
    TokenBucket::new(quota.burst(case.number("burst")))
}

fn on_bucket(case: &Counterexample, bucket: &TokenBucket, write: Write) -> [(&'static str, u128); 2] {
    let item = [("t", case.number::<u128>("t").to_string()), ("u", case.number::<u64>("written").to_string())];
    let t = carried_out(write, &item, bucket.quota(), "t");
    [("applies", t.is_some().into()), ("t", t.unwrap_or(0))]
}

#[test]
fn idle_writes_withstand_the_counterexamples() {
    each("crates/dynamodb/src/items/bucket.rs: Bucket::idle", |case| {
        let bucket = bucket(case);
        let write = planned(&bucket, None, charge(case, "waiting"), case.number("count"));
        on_bucket(case, &bucket, write)
    });
}

#[test]
fn busy_writes_withstand_the_counterexamples() {
    each("crates/dynamodb/src/items/bucket.rs: Bucket::busy", |case| {
        let (bucket, asked, count) = (bucket(case), charge(case, "waiting"), case.number("count"));
        // As far as the writer knows, there is room for exactly `count` requests.
        let [burst, cost] = ["burst", "cost"].map(|input| case.number::<u128>(input));
        let room = (burst - u128::from(count) * cost) * case.number::<u128>("period");
        let at = case.number::<u128>("now") * case.number::<u128>("limit");
        let hint = Hint::Bucket { tat: at + room, busy: 0 };
        let write = planned(&bucket, Some(hint), asked, count);
        on_bucket(case, &bucket, write)
    });
}

/// Requests wait for a key that, as far as this process knows, others have kept in debt.
#[test]
fn batches_withstand_the_counterexamples() {
    each("crates/dynamodb/src/items/bucket.rs: Items::guess", |case| {
        let hint = Hint::Bucket { tat: 0, busy: ALWAYS_BUSY };
        let plan = bucket(case).guess(Some(hint), charge(case, "waiting"));
        let Plan::Charge(write, count) = plan else { panic!("no write: {plan:?}") };
        [("busy", write.update.starts_with("SET t = t + :c").into()), ("count", count.into())]
    });
}

#[test]
fn items_withstand_the_counterexamples() {
    each("crates/dynamodb/src/items/bucket.rs: Stored::read", |case| {
        let bucket = TokenBucket::new(per_day(1));
        let number = |number: u128| AttributeValue::N(number.to_string());
        let item = [
            ("k", AttributeValue::S("key".to_owned())),
            ("q", AttributeValue::S("1/1/86400000000000".to_owned())),
            ("t", number(case.number("t"))),
            ("u", number(NOW.as_nanos().into())),
        ];
        let item = item.map(|(name, value)| (name.to_owned(), value)).into();
        [("read", bucket.read(Some(&item), Moment { now: NOW, error: Duration::ZERO }).is_ok().into())]
    });
}

#[test]
fn clocks_withstand_the_counterexamples() {
    each("crates/dynamodb/src/items/mod.rs: Moment::latest", |case| {
        [("latest", moment(case).latest().as_nanos().into())]
    });
}

#[test]
fn windows_withstand_the_counterexamples() {
    each("crates/dynamodb/src/items/window.rs: Window::charge", |case| {
        let ([limit, cost], count) = (["limit", "cost"].map(|input| case.number(input)), case.number::<u32>("count"));
        let window = FixedWindow::new(per_day(limit));
        let day: u64 = 86_400_000_000_000;
        let hint = Hint::Window {
            window: (NOW.as_nanos() / day + 1) * day,
            previous: 0,
            used: limit - u64::from(count) * cost,
        };
        let write = planned(&window, Some(hint), charge(case, "waiting"), count);
        let n = carried_out(write, &[("n", case.number::<u64>("n").to_string())], window.quota(), "n");
        [("applies", n.is_some().into()), ("n", n.unwrap_or(0))]
    });
}

#[test]
fn sliding_windows_withstand_the_counterexamples() {
    each("crates/dynamodb/src/items/sliding_window.rs: room", |case| {
        let quota = Quota::per(case.number("limit"), Duration::from_nanos(case.number("period")));
        let hint = Hint::Window { window: case.number("window"), previous: case.number("previous"), used: 0 };
        let asked = Charge { at: moment(case), cost: 1, count: 1 };
        let write = planned(&SlidingWindow::new(quota), Some(hint), asked, 1);
        // The units that may be used beside the one request.
        let (_, most) = write.values.iter().find(|(place, _)| place == ":most").unwrap();
        [("room", most.as_n().unwrap().parse::<u128>().unwrap() + 1)]
    });
}
