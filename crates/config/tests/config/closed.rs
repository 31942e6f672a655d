//! After a configuration is closed, requests no longer wait in its queues.

use std::convert::Infallible;
use std::future::ready;

use http::{Request, Response};
use tokio_test::task::spawn;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::RateLimitLayer;
use tower_sluice_config::Config;

type Service = BoxCloneSyncService<Request<()>, u16, Infallible>;

fn service(layer: &RateLimitLayer) -> Service {
    let inner = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    BoxCloneSyncService::new(layer.layer(inner).map_response(|response| response.status().as_u16()))
}

async fn status(service: &Service) -> u16 {
    service.clone().oneshot(Request::new(())).await.unwrap()
}

#[tokio::test]
async fn a_configuration_closes_all_its_queues() {
    let route = |path: &str, limit: u64| {
        format!(
            "[[route]]\npath = \"{path}\"\n[[route.policy]]\nname = \"q\"\nalgorithm = \"leaky-queue\"\nlimit = {limit}\nper = \"1h\"\n\
             max-queue = 9\nmax-wait = \"9h\"\n"
        )
    };
    let file = |limit| route("/a", limit) + &route("/b", limit) + "[[route]]\npath = \"/c\"\n";
    let mut config = Config::parse("f.toml", &file(1)).unwrap();
    let services = [0, 1].map(|route| service(config.routes()[route].layer().unwrap()));
    let mut waiting = Vec::new();
    for service in &services {
        assert_eq!(status(service).await, 200);
        waiting.extend([0; 2].map(|_| spawn(service.clone().oneshot(Request::new(())))));
    }
    waiting.iter_mut().for_each(|request| assert!(request.poll().is_pending()));
    config.close();
    for request in waiting {
        assert_eq!(request.await.unwrap(), 503);
    }
    config.change("f.toml", &file(2)).unwrap();
    assert_eq!([status(&services[0]).await, status(&services[1]).await], [503; 2]);
}
