//! Envoy's rate limit service.

use std::time::Duration;

use crate::proto::{Code, RateLimitResponse};
use crate::service::{Service, descriptor, request};

/// The unit's number in the protocol.
const HOUR: i32 = 3;

const CONFIG: &str = r#"
    [[route]]
    path = "/shop"
      [[route.policy]]
      name = "per-address"
      algorithm = "token-bucket"
      limit = 3
      per = "1h"
      key = "descriptor:remote_address"
      [[route.policy]]
      name = "gold-users"
      algorithm = "fixed-window"
      limit = 2
      per = "1day"
      key = ["descriptor:plan=gold", "descriptor:user"]
"#;

fn codes(response: &RateLimitResponse) -> Vec<Code> {
    response.statuses.iter().map(|status| Code::try_from(status.code).unwrap()).collect()
}

fn field<'a>(response: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let field = response.response_headers_to_add.iter().find(|field| field.key == name)?;
    Some(&field.value)
}

#[tokio::test]
async fn a_policys_entries_select_descriptors() {
    let service = Service::start(CONFIG);
    let mut client = service.connect().await;
    for left in [2, 1, 0] {
        let response = client.ask(request("shop", &[&[("remote_address", "192.0.2.1")]])).await.unwrap();
        assert_eq!(response.overall_code(), Code::Ok);
        let [status] = &response.statuses[..] else { panic!("{response:?}") };
        assert_eq!((status.code(), status.limit_remaining), (Code::Ok, left));
        let limit = status.current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit, &*limit.name), (3, HOUR, "per-address"));
        assert!(field(&response, "ratelimit").unwrap().starts_with(&format!("\"per-address\";r={left};")));
    }
    let response = client.ask(request("shop", &[&[("remote_address", "192.0.2.1")]])).await.unwrap();
    assert_eq!((response.overall_code(), codes(&response)), (Code::OverLimit, vec![Code::OverLimit]));
    // A token takes twenty minutes, and the test may have spent some of them.
    let wait = Duration::try_from(response.statuses[0].duration_until_reset.unwrap()).unwrap();
    assert!((Duration::from_secs(600)..=Duration::from_secs(1_200)).contains(&wait), "{wait:?}");
    let seconds: u64 = field(&response, "retry-after").unwrap().parse().unwrap();
    assert_eq!(seconds, wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
    assert!(String::from_utf8(response.raw_body.clone()).unwrap().contains("quota-exceeded"));

    let other = client.ask(request("shop", &[&[("remote_address", "192.0.2.2")]])).await.unwrap();
    assert_eq!(other.overall_code(), Code::Ok);
    // Entries that no policy has, another order, another depth, and a domain without limits.
    for (domain, entries) in [
        ("shop", &[("user", "ada")][..]),
        ("shop", &[("user", "ada"), ("plan", "gold")]),
        ("shop", &[("plan", "gold")]),
        ("shop", &[("plan", "silver"), ("user", "ada")]),
        ("else", &[("remote_address", "192.0.2.1")]),
    ] {
        let response = client.ask(request(domain, &[entries])).await.unwrap();
        assert_eq!((response.overall_code(), codes(&response)), (Code::Ok, vec![Code::Ok]));
        assert_eq!(response.statuses[0].current_limit, None);
    }
}

#[tokio::test]
async fn all_descriptors_are_charged_or_none() {
    let service = Service::start(CONFIG);
    let mut client = service.connect().await;
    let address = &[("remote_address", "192.0.2.1")][..];
    let ada = &[("plan", "gold"), ("user", "ada")][..];
    let bob = &[("plan", "gold"), ("user", "bob")][..];
    let both = request("shop", &[address, ada, bob]);
    for _ in 0..2 {
        let response = client.ask(both.clone()).await.unwrap();
        assert_eq!(codes(&response), [Code::Ok; 3]);
    }
    for _ in 0..5 {
        let response = client.ask(both.clone()).await.unwrap();
        assert_eq!(codes(&response), [Code::Ok, Code::OverLimit, Code::OverLimit]);
        // The last unit was not charged.
        assert_eq!(response.statuses[0].limit_remaining, 1);
    }
    let response = client.ask(request("shop", &[address])).await.unwrap();
    assert_eq!((response.overall_code(), response.statuses[0].limit_remaining), (Code::Ok, 0));
}

#[tokio::test]
async fn hits_charge_and_zero_hits_look() {
    let service = Service::start(CONFIG);
    let mut client = service.connect().await;
    let address = |hits| {
        let mut request = request("shop", &[]);
        request.descriptors = vec![descriptor(&[("remote_address", "192.0.2.1")])];
        request.descriptors[0].hits_addend = hits;
        request
    };
    for _ in 0..9 {
        let response = client.ask(address(Some(0))).await.unwrap();
        assert_eq!((response.overall_code(), response.statuses[0].limit_remaining), (Code::Ok, 3));
    }
    // The cost exceeds the limit, so no wait helps.
    let response = client.ask(address(Some(4))).await.unwrap();
    assert_eq!((response.overall_code(), response.statuses[0].duration_until_reset), (Code::OverLimit, None));
    // The request's number is for descriptors without one.
    let two = client.ask(with_hits(address(None), 2)).await.unwrap();
    assert_eq!(two.statuses[0].limit_remaining, 1);
    let one = client.ask(with_hits(address(Some(1)), 2)).await.unwrap();
    assert_eq!(one.statuses[0].limit_remaining, 0);
    let look = client.ask(address(Some(0))).await.unwrap();
    assert_eq!((look.overall_code(), codes(&look)), (Code::OverLimit, vec![Code::OverLimit]));
    assert!(look.statuses[0].duration_until_reset.is_some());
}

fn with_hits(mut request: crate::proto::RateLimitRequest, hits: u32) -> crate::proto::RateLimitRequest {
    request.hits_addend = hits;
    request
}

/// A request without a domain, or with too many descriptors, is an error with a cure.
#[tokio::test]
async fn unusable_requests_are_errors() {
    let service = Service::start(CONFIG);
    let address = &[("remote_address", "192.0.2.1")][..];
    for (request, cure) in [(request("", &[]), "rate limit filter"), (request("shop", &[address; 257]), "send fewer")] {
        let error = service.connect().await.ask(request).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.message().contains(cure), "{error}");
    }
    assert!(service.connect().await.ask(request("shop", &[address; 256])).await.is_ok());
}
