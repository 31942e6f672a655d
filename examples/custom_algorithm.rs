//! A custom algorithm: a limit on failures, as for logins. Every try counts as a failure until a success refunds it;
//! after three failures, the key is closed for a minute from the last one.
//!
//! ```sh
//! cargo run -p examples --bin custom_algorithm
//! ```

use std::time::Duration;

use tower_sluice::algorithm::Algorithm;
use tower_sluice::limiter::{Ask, Receipt};
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

struct ThreeStrikes;

const TRIES: u64 = 3;
const CLOSED_FOR: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
struct Strikes {
    count: u64,
    forgotten_at: Timestamp,
}

impl Algorithm for ThreeStrikes {
    type State = Strikes;

    fn quota(&self) -> Quota {
        Quota::per_minute(TRIES)
    }

    fn decide(&self, state: Option<Strikes>, now: Timestamp, cost: u64) -> (Decision, Option<Strikes>) {
        let state = state.filter(|state| now < state.forgotten_at);
        let count = state.map_or(0, |state| state.count);
        match count.checked_add(cost).filter(|total| *total <= TRIES) {
            Some(_) if cost == 0 => (Decision::allow(TRIES, TRIES - count), None),
            Some(count) => {
                let forgotten_at = now.saturating_add(CLOSED_FOR);
                // The charge's receipt, which `refund` receives again.
                let receipt = Receipt::new(forgotten_at.as_nanos().into());
                let decision = Decision::allow(TRIES, TRIES - count).with_receipt(receipt);
                (decision.with_reset_after(CLOSED_FOR), Some(Strikes { count, forgotten_at }))
            }
            None => {
                let wait = state.map(|state| state.forgotten_at.saturating_since(now));
                (Decision::reject(TRIES, TRIES - count, wait.filter(|_| cost <= TRIES)), None)
            }
        }
    }

    fn expires_at(&self, state: &Strikes) -> Timestamp {
        state.forgotten_at
    }

    /// Takes the strike back, unless it has been forgotten meanwhile.
    fn refund(&self, state: Strikes, now: Timestamp, cost: u64, receipt: Receipt) -> Strikes {
        let is_owed = receipt.value().is_some_and(|forgotten_at| forgotten_at > now.as_nanos().into());
        Strikes { count: state.count.saturating_sub(if is_owed { cost } else { 0 }), ..state }
    }
}

fn main() {
    let logins = RateLimiter::in_memory(ThreeStrikes);
    let alice = PartitionKey::from("alice");
    for success in [false, true, false, false, false, false] {
        let decision = logins.check(&alice);
        match (decision.retry_after(), success) {
            (Some(wait), _) => println!("closed for another {:.0} s", wait.as_secs_f64()),
            (None, true) => {
                logins.refund(&Ask::charge(&alice, 1), decision.receipt(), 1);
                println!("right; it no longer counts");
            }
            (None, false) => println!("wrong; {} more to go", decision.remaining()),
        }
    }
}
