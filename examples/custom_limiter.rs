//! A custom limiter in a layer: a feature that is switched on for one request in ten.
//!
//! ```sh
//! cargo run -p examples --bin custom_limiter
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Request, Response};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::limiter::{Answer, Ask, Mode};
use tower_sluice::{Decision, Limiter, LimiterError, Policy, RateLimitLayer};

/// Admits every tenth request.
#[derive(Default)]
struct OneInTen(AtomicU64);

impl Limiter for OneInTen {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        if ask.mode() != Mode::Charge {
            return LimiterError::unsupported(ask.mode()).into();
        }
        let number = self.0.fetch_add(ask.cost(), Ordering::Relaxed);
        // The next admission depends on other requests, so no wait can be advertised.
        if number % 10 == 0 { Decision::allow(1, 0).into() } else { Decision::reject(1, 0, None).into() }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Infallible> {
    let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new("hello".to_owned())) });
    let layer = RateLimitLayer::new(Policy::new("one-in-ten", Arc::new(OneInTen::default())));
    let mut service = ServiceBuilder::new().layer(layer).service(hello);
    for number in 1..=20 {
        let response = service.ready().await?.call(Request::new(())).await?;
        println!("{number:2}: {}", response.status());
    }
    Ok(())
}
