//! Several services share their limits on Redis.

use tokio::task::JoinSet;

use crate::proto::{Code, RateLimitRequest};
use crate::redis::RedisServer;
use crate::service::{Service, descriptor, file, request};

const FILE: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 77}}
  - {key: address, rate_limit: {unit: day, requests_per_unit: 1000, algorithm: token-bucket}}
";

/// Two descriptors of one rule, with other hits, and one of another rule.
fn message() -> RateLimitRequest {
    let mut message = request("shop", &[&[("user", "ada")], &[("address", "192.0.2.1")]]);
    message.descriptors.push(descriptor(&[("user", "bob")]));
    message.descriptors[2].hits_addend = Some(2);
    message
}

fn looking(entries: &[(&str, &str)]) -> RateLimitRequest {
    let mut look = request("shop", &[entries]);
    look.descriptors[0].hits_addend = Some(0);
    look
}

#[tokio::test]
async fn services_admit_as_many_as_the_limit_together_and_charge_all_descriptors_or_none() {
    let redis = RedisServer::start();
    let limits = file("limits.yaml", FILE);
    let arguments = ["--redis", &redis.url(), "--envoy-config", limits.to_str().unwrap()];
    let services = [Service::start_alone(&arguments), Service::start_alone(&arguments)];
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let mut client = services[number % 2].connect().await;
        clients.spawn(async move {
            let mut admitted = 0;
            for _ in 0..40 {
                admitted += u64::from(client.ask(message()).await.unwrap().overall_code() == Code::Ok);
            }
            admitted
        });
    }
    let admitted: u64 = clients.join_all().await.iter().sum();
    // Bob has room for 38 messages of two hits.
    assert_eq!(admitted, 38);
    let mut client = services[0].connect().await;
    for (entries, left) in [(("user", "ada"), 77 - 38), (("user", "bob"), 1), (("address", "192.0.2.1"), 1_000 - 38)] {
        let look = client.ask(looking(&[entries])).await.unwrap();
        // The bucket has refilled a little.
        assert!((left..=left + 1).contains(&look.statuses[0].limit_remaining), "{entries:?}: {look:?}");
    }
}
