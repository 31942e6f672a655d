//! Rate limits in your own key-value store: here a map behind a simulated network, shared by two processes. Any of the
//! crate's algorithms works. The store needs to read a key, and to write it if it has not changed meanwhile.
//!
//! ```sh
//! cargo run -p examples --bin own_key_value_store
//! ```

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tower_sluice::algorithm::TokenBucket;
use tower_sluice::store::remote::{KeyValue, KeyValueBackend, RemoteStore};
use tower_sluice::{LimiterExt, PartitionKey, Quota, RateLimiter};

/// A map whose answers take a millisecond each way.
#[derive(Default)]
struct DistantMap(Mutex<HashMap<String, Vec<u8>>>);

const ONE_WAY: Duration = Duration::from_millis(1);

impl KeyValue for DistantMap {
    type Error = Infallible;

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Infallible> {
        tokio::time::sleep(ONE_WAY).await;
        let value = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        tokio::time::sleep(ONE_WAY).await;
        Ok(value)
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        _lifetime: Duration,
    ) -> Result<bool, Infallible> {
        tokio::time::sleep(ONE_WAY).await;
        let swapped = {
            let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let is_unchanged = map.get(key).map(Vec::as_slice) == old;
            match new.filter(|_| is_unchanged) {
                Some(new) => drop(map.insert(key.to_owned(), new.to_vec())),
                None if is_unchanged => drop(map.remove(key)),
                None => {}
            }
            is_unchanged
        };
        tokio::time::sleep(ONE_WAY).await;
        Ok(swapped)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let map = Arc::new(DistantMap::default());
    // Each of these would be in its own process.
    let process = || {
        let store = RemoteStore::new(KeyValueBackend::new(Arc::clone(&map), "per-client"));
        RateLimiter::new(TokenBucket::new(Quota::per_minute(5)), store)
    };
    let (first, second) = (process(), process());
    let alice = PartitionKey::from("alice");
    for number in 1..=4 {
        let (one, two) = tokio::join!(first.acquire(&alice, 1), second.acquire(&alice, 1));
        println!("round {number}: {} {}", one?.is_allowed(), two?.is_allowed());
    }
    Ok(())
}
