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

/// Two descriptors for one rule, with different hits, and one for another rule.
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
async fn services_charge_all_descriptors_or_none_together() {
    // Bob has room for 38 messages with two hits each.
    let left = [("user", "ada", 77 - 38), ("user", "bob", 1), ("address", "192.0.2.1", 1_000 - 38)];
    assert_eq!(admitted(&FILE.replace("domain: shop", "domain: shop\nall_or_none: true"), left).await, 38);
}

#[tokio::test]
async fn services_charge_each_descriptor_together() {
    let left = [("user", "ada", 0), ("user", "bob", 0), ("address", "192.0.2.1", 1_000 - 320)];
    assert_eq!(admitted(FILE, left).await, 38);
}

/// Sends 320 messages to two services with this file. Checks the units that are `left`, and returns how many messages
/// were admitted.
async fn admitted(file_text: &str, left: [(&str, &str, u32); 3]) -> u64 {
    let redis = RedisServer::start();
    let limits = file("limits.yaml", file_text);
    // Longer than a busy machine pauses. Otherwise, each service would decide by itself.
    let (url, limits) = (redis.url(), limits.to_str().unwrap());
    let arguments = ["--redis", &url, "--redis-timeout", "60000", "--envoy-config", limits];
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
    let admitted = clients.join_all().await.iter().sum();
    let mut client = services[0].connect().await;
    for (key, value, left) in left {
        let look = client.ask(looking(&[(key, value)])).await.unwrap();
        // The bucket has refilled a little.
        assert!((left..=left + 1).contains(&look.statuses[0].limit_remaining), "{key}={value}: {look:?}");
    }
    admitted
}

/// While Redis is down, each service decides by itself: looks, costs that do not fit, and quotas, too.
#[tokio::test]
async fn limits_hold_while_redis_is_down() {
    let limits = file(
        "outage.yaml",
        "
domain: shop
descriptors:
  - {key: window, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 2, algorithm: token-bucket}}
  - {key: quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
",
    );
    let redis = RedisServer::start();
    let service = Service::start_alone(&["--redis", &redis.url(), "--envoy-config", limits.to_str().unwrap()]);
    let mut client = service.connect().await;
    drop(redis);
    for key in ["window", "bucket", "quota"] {
        let mut ask = async |hits| {
            let mut request = request("shop", &[&[(key, "x")]]);
            request.descriptors[0].hits_addend = Some(hits);
            client.ask(request).await.unwrap().overall_code()
        };
        assert_eq!([ask(0).await, ask(1).await], [Code::Ok; 2], "{key}");
        // A cost above the remaining units uses them up.
        assert_eq!([ask(9).await, ask(0).await, ask(1).await], [Code::OverLimit; 3], "{key}");
    }
    // A shadow continues to count, too.
    let mut look = async |hits| {
        let mut request = request("shop", &[&[("shadow", "x")]]);
        request.descriptors[0].hits_addend = Some(hits);
        let status = client.ask(request).await.unwrap().statuses.remove(0);
        (status.code(), status.limit_remaining)
    };
    assert_eq!([look(1).await, look(1).await, look(1).await], [(Code::Ok, 1), (Code::Ok, 0), (Code::Ok, 0)]);
}
