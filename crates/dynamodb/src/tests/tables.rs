//! Tables that exist, that do not, and that are not ours.

use serde_json::json;
use tower_sluice::algorithm::TokenBucket;

use super::*;

/// Its items expire.
#[tokio::test(start_paused = true)]
async fn a_table_is_created_once() {
    let clock = ManualClock::starting_at(NOW);
    let service = Service::new(clock.clone());
    let dynamo = dynamo(&service, &clock);
    for _ in 0..2 {
        dynamo.create_table().await.unwrap();
        let table = service.call("DescribeTable", &json!({ "TableName": TABLE }));
        assert_eq!(table["Table"]["KeySchema"], json!([{ "AttributeName": "k", "KeyType": "HASH" }]));
        assert_eq!(table["Table"]["BillingModeSummary"]["BillingMode"], "PAY_PER_REQUEST");
        let expiry = service.call("DescribeTimeToLive", &json!({ "TableName": TABLE }));
        assert_eq!(expiry["TimeToLiveDescription"]["AttributeName"], "x");
        assert_eq!(expiry["TimeToLiveDescription"]["TimeToLiveStatus"], "ENABLED");
    }
}

#[tokio::test(start_paused = true)]
async fn a_table_with_another_key_is_reported() {
    let clock = ManualClock::starting_at(NOW);
    let service = Service::new(clock.clone());
    let theirs = json!({
        "TableName": TABLE, "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{ "AttributeName": "id", "KeyType": "HASH" }],
        "AttributeDefinitions": [{ "AttributeName": "id", "AttributeType": "S" }],
    });
    service.call("CreateTable", &theirs);
    let dynamo = dynamo(&service, &clock);
    let fault = dynamo.create_table().await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Misconfigured);
    assert!(fault.to_string().contains("the table limits has another key"), "{fault}");
    let error = ask(&limiter(&dynamo, TokenBucket::new(per_day(1)))).await.unwrap_err();
    assert_eq!(kind(&error), FaultKind::Misconfigured, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_missing_table_has_a_cure() {
    let clock = ManualClock::starting_at(NOW);
    let dynamo = dynamo(&Service::new(clock.clone()), &clock);
    let error = ask(&limiter(&dynamo, TokenBucket::new(per_day(1)))).await.unwrap_err();
    assert_eq!(kind(&error), FaultKind::NoTable);
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("`Dynamo::create_table`"), "{source}");
}
