//! A limiter that keeps its keys' states itself: any algorithm over a plain map. It never forgets a key, so use it for
//! a few keys that you choose.
//!
//! ```sh
//! cargo run -p examples --bin custom_states
//! ```

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tower_sluice::algorithm::{Algorithm, SlidingWindow};
use tower_sluice::limiter::{Answer, Ask, Description, Mode};
use tower_sluice::time::Monotonic;
use tower_sluice::{Limiter, LimiterError, LimiterExt, PartitionKey, Quota};

struct Map<A: Algorithm> {
    algorithm: A,
    states: Mutex<HashMap<PartitionKey, A::State>>,
}

impl<A: Algorithm> Limiter for Map<A> {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        let charges = match ask.mode() {
            Mode::Charge => true,
            Mode::Peek => false,
            mode => return LimiterError::unsupported(mode).into(),
        };
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let state = states.get(ask.key()).copied();
        let (decision, next) = self.algorithm.decide(state, ask.now(&Monotonic), ask.cost());
        if let Some(next) = next.filter(|_| charges) {
            states.insert(ask.key().clone(), next);
        }
        decision.into()
    }

    fn describe(&self) -> Description {
        Description::new().advertising(self.algorithm.terms()).answering(Mode::Peek)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let partners = Map { algorithm: SlidingWindow::new(Quota::per_minute(2)), states: Mutex::default() };
    let key = PartitionKey::from("partner");
    for _ in 0..3 {
        let decision = partners.acquire(&key, 1).await?;
        println!("admitted: {}, {} left", decision.is_allowed(), decision.remaining());
    }
    Ok(())
}
