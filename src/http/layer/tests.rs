//! Tests of a layer with a bucket per client, whose rarer operations are missing until something needs them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio_test::block_on;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;

use super::RateLimitLayer;
use crate::engine::policy::Policy;
use crate::engine::snapshot::Snapshots;
use crate::http::key::PeerIp;
use crate::values::Quota;

const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

fn quota(units: u64) -> Quota {
    Quota::per_hour(units)
}

/// Sends a request from the peer, and returns the response's status.
fn send(layer: &RateLimitLayer) -> StatusCode {
    let service = layer.layer(service_fn(|_| async { Ok::<_, ()>(Response::new(())) }));
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::from((PEER, 1)));
    block_on(service.oneshot(request)).expect("the service does not fail").status()
}

/// The next requests' statuses.
fn send_all<const N: usize>(layer: &RateLimitLayer) -> [u16; N] {
    [(); N].map(|()| send(layer).as_u16())
}

#[test]
fn a_bucket_per_client_charges_and_rejects() {
    assert_eq!(send_all(&RateLimitLayer::per_client(quota(2))), [200, 200, 429]);
}

#[test]
fn a_change_keeps_what_clients_used() {
    let layer = RateLimitLayer::per_client(quota(5));
    assert_eq!(send_all(&layer), [200]);
    let replaced = layer.handle().replace(Policy::new("per-client", quota(3)).key(PeerIp::new())).unwrap();
    assert!(replaced.not_inherited().is_empty());
    assert_eq!(send_all(&layer), [200, 200, 429]);
}

#[test]
fn a_handle_reaches_each_client() {
    let layer = RateLimitLayer::per_client(quota(2));
    assert_eq!(send_all(&layer), [200, 200, 429]);
    let limits = layer.handle();
    let peer = PEER.to_string();
    assert_eq!(block_on(limits.peek("per-client", &*peer)).unwrap().decision().remaining(), 0);
    let _ = block_on(limits.reset("per-client", &*peer)).unwrap();
    assert_eq!(send_all(&layer), [200]);
    let _ = block_on(limits.ban("per-client", &*peer, Duration::from_secs(60), "a test")).unwrap();
    assert_eq!(send_all(&layer), [429]);
    let _ = block_on(limits.unban("per-client", &*peer)).unwrap();
    assert_eq!(send_all(&layer), [200, 429]);
}

#[test]
fn a_snapshot_has_the_clients() {
    let snapshots = |layer| Snapshots::new().layer("", layer);
    let before = RateLimitLayer::per_client(quota(3));
    assert_eq!(send_all(&before), [200, 200]);
    let mut bytes = Vec::new();
    snapshots(&before).write(&mut bytes).unwrap();
    let after = RateLimitLayer::per_client(quota(3));
    snapshots(&after).read(&*bytes).unwrap();
    assert_eq!(send_all(&after), [200, 429]);
}

#[test]
fn a_bucket_per_client_has_figures() {
    let layer = RateLimitLayer::per_client(quota(3));
    assert_eq!(send_all(&layer), [200]);
    assert_eq!(layer.backlog("per-client"), None);
    assert_eq!(layer.limiter_failures("per-client"), Some(0));
    #[cfg(feature = "metrics")]
    layer.observe();
    let stats = layer.complete().load().policies[0].stats();
    assert!(stats.table.is_some_and(|table| table.capacity > 0 && table.evicted_live == 0));
}

/// The quota does not fit into words.
#[test]
fn a_huge_bucket_per_client_decides() {
    let layer = RateLimitLayer::per_client(quota(1).burst(u64::from(u32::MAX) + 1));
    assert_eq!(send_all(&layer), [200, 200]);
    layer.handle().replace(Policy::new("per-client", quota(1)).key(PeerIp::new())).unwrap();
    assert_eq!(send_all(&layer), [429]);
}

#[test]
fn limiters_of_any_kind_work_per_client() {
    use crate::limiter::IntoLimiter;
    use crate::{Concurrency, LeakyQueue};

    let run = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = run.enter();
    for limiter in [Concurrency::new(1).into_limiter(), LeakyQueue::new(quota(60)).into_limiter()] {
        assert_eq!(send_all(&RateLimitLayer::per_client(limiter)), [200]);
    }
}
