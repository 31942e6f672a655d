//! Limits on a store of your own.
//!
//! **You want** one limit for several machines, and you have neither Redis nor [PostgreSQL](super::postgres) nor
//! [DynamoDB](super::dynamodb), but a key-value store: etcd, Consul, FoundationDB, a table of another database, a
//! service of your own. Two methods carry every algorithm of this crate: one reads a key, and one writes it unless
//! another process has.
//!
//! ```
//! use std::collections::HashMap;
//! use std::convert::Infallible;
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//!
//! use tower_sluice::store::remote::{KeyValue, KeyValueBackend, RemoteStore};
//! use tower_sluice::{LimiterExt, PartitionKey, Quota, RateLimiter, TokenBucket};
//!
//! /// In place of a client of your store.
//! #[derive(Default)]
//! struct Client(Mutex<HashMap<String, Vec<u8>>>);
//!
//! impl KeyValue for Client {
//!     type Error = Infallible;
//!
//!     async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Infallible> {
//!         Ok(self.0.lock().unwrap().get(key).cloned())
//!     }
//!
//!     async fn compare_and_swap(
//!         &self,
//!         key: &str,
//!         old: Option<&[u8]>,
//!         new: Option<&[u8]>,
//!         _lifetime: Duration,
//!     ) -> Result<bool, Infallible> {
//!         let mut map = self.0.lock().unwrap();
//!         let is_unchanged = map.get(key).map(Vec::as_slice) == old;
//!         match new.filter(|_| is_unchanged) {
//!             Some(new) => drop(map.insert(key.to_owned(), new.to_vec())),
//!             None if is_unchanged => drop(map.remove(key)),
//!             None => {}
//!         }
//!         Ok(is_unchanged)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Arc::new(Client::default());
//! let store = RemoteStore::new(KeyValueBackend::new(Arc::clone(&client), "per-client"));
//! let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(2)), store);
//! let alice = PartitionKey::from("alice");
//! assert!(limiter.acquire(&alice, 1).await?.is_allowed());
//! assert_eq!(limiter.acquire(&alice, 1).await?.remaining(), 0);
//! assert!(!limiter.acquire(&alice, 1).await?.is_allowed());
//! # Ok(())
//! # }
//! ```
//!
//! A policy takes such a limiter as any other. The same with a network in between, and two processes:
//! `examples/own_key_value_store.rs`.
//!
//! # What you get
//!
//! | a request | calls of your store |
//! |---|---|
//! | that is admitted | two: it reads, and swaps. If another process was faster, it reads and swaps again |
//! | that is rejected | one |
//! | of a key that is known here to be used up | none, and its wait is exact |
//! | of a key with a call in flight | a share in the next call |
//! | of a key in demand, with a [lease](crate::store::remote::RemoteStore::leasing) | none, but for the one that takes the lease |
//!
//! If the store fails, the policy's [failure mode](super::failure) decides, with a local fallback that has counted
//! along. It is not called while it keeps failing or panics, and no request waits for it longer than its
//! [timeout](crate::store::remote::KeyValueBackend::bounded). The gauge [`store_breaker`](super::monitoring#metrics)
//! shows whether it is called, as for any store, and the log has a line when calls stop and one when they begin again.
//!
//! # A hot key
//!
//! Processes that charge one key at once are in each other's way: the swap of one makes the swaps of all others fail.
//! They read and swap again, and a decision whose swaps are all lost [fails](crate::store::remote::GaveUp::Contention).
//! Lease units for such a key: [`leasing(1_000, one second)`](crate::store::remote::RemoteStore::leasing). The share of
//! decisions that fail with calls of 4 ms and a timeout of 100 ms, where each process charges the key all the time:
//!
//! | processes | 2 | 4 | 8 | 16 | 32 |
//! |---|---|---|---|---|---|
//! | without leases | 1 % | 4 % | 15 % | 34 % | 57 % |
//! | with leases, in the first five seconds | 0 | 0 | 0.1 % | 0.4 % | 1 % |
//!
//! So lease from two processes on with calls of 4 ms, and from four on with calls of 2 ms. `store_lost_swaps_total`
//! among the [metrics](super::monitoring#metrics) shows how often a swap is lost.
//!
//! # What your store must do
//!
//! - A read returns the last write (linearizable; not from a replica that lags behind). Otherwise swaps fail more often
//!   than necessary, and a rejection may be late.
//! - A swap is one atomic step. This makes the limit exact.
//! - A value may be forgotten after its lifetime, and not before: units that are forgotten early are admitted twice.
//!
//! # Time
//!
//! Machines decide by their own [wall clocks](crate::time::Wall), so these must be synchronised. With clocks within ε
//! of the true time, up to rate × 2ε more is admitted, once. If your store shows its own time, set a
//! [clock](crate::store::remote::KeyValueBackend::with_clock) that follows it.
//!
//! A clock that is wrong by more than a minute locks no key: the units that it has used count when a process with a
//! right clock reads them. But keys that both serve are not limited.
//!
//! # A server that can do more
//!
//! A store that applies a whole transition in one call (a script, a conditional update) implements
//! [`Backend`](crate::store::remote::Backend) in place of [`KeyValue`](crate::store::remote::KeyValue): one method,
//! which gets the algorithm and the charge, and returns the state before and the charge. The numbers of the decision
//! are computed here, and a backend that contradicts them is an error. Make its calls through
//! [`Calls`](crate::store::remote::Calls), which bounds them and stops calling a server that keeps failing; then its
//! [health](crate::store::remote::Backend::health), for metrics, is `vec![self.calls.health()]`. The bytes of states
//! are [documented](crate::algorithm::Portable) and stable, so other programs can read them. `testing::check_backend`
//! (feature `test-util`) compares your backend with the algorithm over a plain map, and has eight tasks contend for one
//! key.
//!
//! # Several policies in one call
//!
//! A layer of several policies makes a call for each, and takes earlier charges back if a later one is rejected. A
//! server that can decide on several keys in one step saves the calls: its store implements
//! [`JointBackend`](crate::store::remote::JointBackend) and [`JointCharge`](crate::store::remote::JointCharge), and
//! names it in [`Backend::parts`](crate::store::remote::Backend::parts). `testing::check_joint_backend` tests it.
//!
//! # Charges by hand
//!
//! A [charge by hand](crate::LimitsHandle::charge) has a reference, by which it is entered once. A server that can
//! replace the state of a key and write a reference in one step, as in a transaction, implements
//! [`ChargeByHand`](crate::store::remote::ChargeByHand): a read, and a replacement of what was read. It names
//! [`Parts::by_hand`](crate::store::remote::Parts::by_hand) there; the arithmetic of debts and the repetitions are
//! here. Then all processes know the reference, and one that is killed leaves both or neither. Otherwise each process
//! knows its own. `testing::check_charges_by_hand` tests it.
//!
//! # Free retries in one call
//!
//! A request whose [retries are free](crate::ChargeOnce) has a record. Over [records](#what-processes-share-besides), a
//! request with an idempotency key takes one call more, and a free retry six. A server that can look at the record, the
//! key and its budget of free retries in the step that charges saves them: its store implements
//! [`ChargeRetries`](crate::store::remote::ChargeRetries), and names
//! [`Parts::free_retries`](crate::store::remote::Parts::free_retries) there. `testing::check_free_retries` tests it.
//!
//! # What processes share besides
//!
//! Free retries, the list of who is rejected most, and that a share of a limit was reported are no algorithm's. A store
//! has them over [`Records`](crate::store::remote::Records): values that are read and swapped, as of a key-value store
//! ([`KeyValueRecords`](crate::store::remote::KeyValueRecords)), or of a table beside that of the limits.
//! [`RemoteStore::records`](crate::store::remote::RemoteStore::records) says where they are, as in
//! `RemoteStore::new(backend).records(KeyValueRecords::new(map, "limits"), "api")`, where `"api"` is the limiter;
//! `testing::check_records` tests yours.
//!
//! Units that customers [buy](super::top_ups) are a [`SharedBalance`](crate::SharedBalance) over any records, a
//! [`SharedConcurrency`](crate::SharedConcurrency) counts requests in flight over them, and a
//! [`SharedQueue`](crate::SharedQueue) is one queue for all processes. Over the client from above:
//!
//! ```
//! # use std::collections::HashMap;
//! # use std::convert::Infallible;
//! # use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//!
//! use tower_sluice::limiter::Credit;
//! use tower_sluice::store::remote::{KeyValue, KeyValueRecords};
//! use tower_sluice::{LimiterExt, PartitionKey, Quota, SharedBalance, SharedConcurrency, SharedQueue};
//! #
//! # #[derive(Default)]
//! # struct Client(Mutex<HashMap<String, Vec<u8>>>);
//! #
//! # impl KeyValue for Client {
//! #     type Error = Infallible;
//! #
//! #     async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Infallible> {
//! #         Ok(self.0.lock().unwrap().get(key).cloned())
//! #     }
//! #
//! #     async fn compare_and_swap(
//! #         &self,
//! #         key: &str,
//! #         old: Option<&[u8]>,
//! #         new: Option<&[u8]>,
//! #         _lifetime: Duration,
//! #     ) -> Result<bool, Infallible> {
//! #         let mut map = self.0.lock().unwrap();
//! #         let is_unchanged = map.get(key).map(Vec::as_slice) == old;
//! #         match new.filter(|_| is_unchanged) {
//! #             Some(new) => drop(map.insert(key.to_owned(), new.to_vec())),
//! #             None if is_unchanged => drop(map.remove(key)),
//! #             None => {}
//! #         }
//! #         Ok(is_unchanged)
//! #     }
//! # }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let client = Arc::new(Client::default());
//! // Its second argument is for log lines and metrics. Two limiters on one client need different names.
//! let records = KeyValueRecords::new(client, "limits");
//! let bought = SharedBalance::new(records.clone(), "bought");
//! let in_flight = SharedConcurrency::new(records.clone(), "in-flight", 1);
//! let pace = SharedQueue::new(records, "pace", Quota::per_second(10)).max_wait(Duration::from_secs(2)).max_queue(20);
//!
//! let alice = PartitionKey::from("alice");
//! bought.credit(&alice, Credit::units(500).reference("invoice-17")).await?;
//! assert_eq!(bought.acquire(&alice, 20).await?.remaining(), 480);
//! let request = in_flight.acquire(&alice, 1).await?;
//! assert!(!in_flight.acquire(&alice, 1).await?.is_allowed());
//! drop(request); // its units are released in the background
//! assert!(pace.acquire(&alice, 1).await?.is_allowed());
//! # Ok(())
//! # }
//! ```
//!
//! A server that can do more in one call than compare and swap, as by a script, implements
//! [`Accounts`](crate::store::remote::Accounts), [`InFlight`](crate::store::remote::InFlight) and
//! [`Departures`](crate::store::remote::Departures) in place of that: each is one to three steps on a
//! [key](crate::store::remote::RemoteKey), and what they have in common with records, such as the timeout, is a
//! [`Server`](crate::store::remote::Server). `testing::check_accounts`,
//! `testing::check_in_flight` and `testing::check_departures` test it.
//!
//! The file [`whole_face.rs`](https://github.com/tower-sluice/tower-sluice/blob/main/tests/store/whole_face.rs)
//! implements a backend with decisions on several keys, charges by hand and records over a map behind a mutex, in less
//! than 300 lines, and passes the suites.
//!
//! Next: [choose an algorithm](super::choosing).
