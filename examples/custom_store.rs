//! A store of your own: any algorithm over a plain map. It never forgets a key, so it is for a few keys that you
//! choose.
//!
//! ```sh
//! cargo run -p examples --bin custom_store
//! ```

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tower_sluice::algorithm::{Algorithm, SlidingWindow};
use tower_sluice::store::Store;
use tower_sluice::time::Monotonic;
use tower_sluice::{Ask, Check, LimiterExt, PartitionKey, Quota, RateLimiter};

struct Map<S>(Mutex<HashMap<PartitionKey, S>>);

impl<A: Algorithm> Store<A> for Map<A::State> {
    fn decide(&self, algorithm: &A, ask: &Ask<'_>) -> Check {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = states.get(ask.key()).copied();
        let (decision, next) = algorithm.decide(state, ask.now(&Monotonic), ask.cost());
        if let Some(next) = next {
            states.insert(ask.key().clone(), next);
        }
        decision.into()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let partners = RateLimiter::new(SlidingWindow::new(Quota::per_minute(2)), Map(Mutex::default()));
    let key = PartitionKey::from("partner");
    for _ in 0..3 {
        let decision = partners.acquire(&key, 1).await?;
        println!("admitted: {}, {} left", decision.is_allowed(), decision.remaining());
    }
    Ok(())
}
