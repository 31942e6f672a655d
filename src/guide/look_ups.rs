//! A database look-up per key: plans from a table, behind a cache that a flood of invented keys cannot break.
//!
//! **You want** each request to have the limits of its customer's plan, and the plan is in a database. A cache saves
//! the look-up for customers. An attacker invents a new key for each request, so two more bounds are needed: on the
//! entries of the cache, and on the look-ups per second.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::collections::HashMap;
//! use std::net::SocketAddr;
//! use std::sync::{Arc, Mutex};
//! use std::time::{Duration, Instant};
//!
//! use axum::extract::{Request, State};
//! use axum::http::{StatusCode, header::RETRY_AFTER};
//! use axum::middleware::{Next, from_fn_with_state};
//! use axum::response::Response;
//! use axum::{Router, routing::get};
//! use tower_sluice::key::User;
//! use tower_sluice::store::MemoryStore;
//! use tower_sluice::{PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, TokenBucket};
//!
//! #[derive(Clone, Copy)]
//! struct Plan(Quota);
//!
//! type Customer = (User, Plan);
//!
//! /// At most `2 * half` entries, each for at most `max_age`. When `young` is full, it replaces `old`. So entries that
//! /// are in use stay.
//! struct Cache<V> {
//!     young: HashMap<String, (Instant, V)>,
//!     old: HashMap<String, (Instant, V)>,
//!     half: usize,
//!     max_age: Duration,
//! }
//!
//! impl<V: Clone> Cache<V> {
//!     fn new(half: usize, max_age: Duration) -> Mutex<Self> {
//!         Mutex::new(Self { young: HashMap::new(), old: HashMap::new(), half, max_age })
//!     }
//!
//!     fn get(&mut self, key: &str) -> Option<V> {
//!         if let Some(entry) = self.old.remove(key) {
//!             self.insert(key, entry);
//!         }
//!         let (since, value) = self.young.get(key)?;
//!         (since.elapsed() < self.max_age).then(|| value.clone())
//!     }
//!
//!     fn insert(&mut self, key: &str, entry: (Instant, V)) {
//!         if self.young.len() >= self.half && !self.young.contains_key(key) {
//!             self.old = std::mem::take(&mut self.young);
//!         }
//!         self.young.insert(key.to_owned(), entry);
//!     }
//! }
//!
//! struct Accounts {
//!     customers: Mutex<Cache<Customer>>,
//!     /// Keys that are not in the database. Apart, so that invented keys do not evict customers.
//!     unknown: Mutex<Cache<()>>,
//!     /// Look-ups of this process, for all clients together.
//!     look_ups: RateLimiter<TokenBucket>,
//! #   calls: std::sync::atomic::AtomicU64,
//! }
//!
//! impl Accounts {
//!     fn new() -> Self {
//!         let look_ups = TokenBucket::new(Quota::per_second(200).burst(500)); // the capacity of the database
//!         Self {
//!             customers: Cache::new(50_000, Duration::from_secs(60)),
//!             unknown: Cache::new(50_000, Duration::from_secs(10)),
//!             look_ups: RateLimiter::new(look_ups, MemoryStore::with_capacity(64)),
//! #           calls: std::sync::atomic::AtomicU64::new(0),
//!         }
//!     }
//!
//!     async fn find(&self, api_key: &str) -> axum::response::Result<Option<Customer>> {
//!         // Your keys have a length. Nothing else is looked up, or kept.
//!         if api_key.len() > 64 || self.unknown.lock().unwrap().get(api_key).is_some() {
//!             return Ok(None);
//!         }
//!         if let Some(customer) = self.customers.lock().unwrap().get(api_key) {
//!             return Ok(Some(customer));
//!         }
//!         // Only for keys that both caches lack. Not 429: a customer may have done nothing wrong.
//!         if !self.look_ups.check(&PartitionKey::SHARED).is_allowed() {
//!             return Err((StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")]).into());
//!         }
//!         let customer = self.query(api_key).await;
//!         match &customer {
//!             Some(customer) => self.customers.lock().unwrap().insert(api_key, (Instant::now(), customer.clone())),
//!             None => self.unknown.lock().unwrap().insert(api_key, (Instant::now(), ())),
//!         }
//!         Ok(customer)
//!     }
//!
//!     /// Stands for your database.
//!     async fn query(&self, api_key: &str) -> Option<Customer> {
//! #       self.calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
//!         match api_key {
//!             "key-of-ada" => Some((User::new("ada"), Plan(Quota::per_minute(6_000)))),
//!             "key-of-bob" => Some((User::new("bob"), Plan(Quota::per_minute(60)))),
//!             _ => None,
//!         }
//!     }
//! }
//!
//! async fn authenticate(
//!     State(accounts): State<Arc<Accounts>>,
//!     mut request: Request,
//!     next: Next,
//! ) -> axum::response::Result<Response> {
//!     let api_key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
//!     let api_key = api_key.ok_or(StatusCode::UNAUTHORIZED)?;
//!     let (user, plan) = accounts.find(api_key).await?.ok_or(StatusCode::UNAUTHORIZED)?;
//!     request.extensions_mut().insert(user);
//!     request.extensions_mut().insert(plan);
//!     Ok(next.run(request).await)
//! }
//!
//! fn app(accounts: Arc<Accounts>) -> Router {
//!     // By account, and not by API key: a customer with two keys has one budget.
//!     let pace = Policy::new("pace", Quota::per_minute(60))
//!         .key(User::key())
//!         .quota_fn(|request| request.extensions().get::<Plan>().map(|plan| plan.0));
//!     // By address, outermost: one client cannot use up the look-ups of all.
//!     let per_client = RateLimitLayer::per_client(Quota::per_second(50).burst(100));
//!     Router::new()
//!         .route("/v1/orders", get(|| async { "[]" }))
//!         .layer(RateLimitLayer::new(pace))
//!         .layer(from_fn_with_state(accounts, authenticate))
//!         .layer(per_client)
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     # return Ok(check().await);
//!     # #[allow(unreachable_code)] {
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     let app = app(Arc::new(Accounts::new()));
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//!     # }
//! }
//! #
//! # async fn check() {
//! #     use std::sync::atomic::Ordering::Relaxed;
//! #     use axum::{body::Body, extract::ConnectInfo};
//! #     use tower::ServiceExt;
//! #     let accounts = Arc::new(Accounts::new());
//! #     let app = app(accounts.clone());
//! #     let send = async |key: &str, address: u32| {
//! #         let mut request = Request::get("/v1/orders").header("x-api-key", key).body(Body::empty()).unwrap();
//! #         request.extensions_mut().insert(ConnectInfo(SocketAddr::from((std::net::Ipv4Addr::from(address), 4711))));
//! #         let response = app.clone().oneshot(request).await.unwrap();
//! #         let policies = response.headers().get_all("ratelimit-policy").iter();
//! #         let policies: Vec<_> = policies.map(|field| field.to_str().unwrap().to_owned()).collect();
//! #         (response.status().as_u16(), policies.join(", "))
//! #     };
//! #     let (status, policies) = send("key-of-ada", 1).await;
//! #     assert!(status == 200 && policies.contains(r#""pace";q=6000"#), "{policies}");
//! #     for _ in 0..5 {
//! #         assert_eq!(send("key-of-ada", 1).await.0, 200);
//! #         assert_eq!(send("invented", 1).await.0, 401);
//! #     }
//! #     assert_eq!(accounts.calls.load(Relaxed), 2);
//! #     // A flood from many addresses.
//! #     let start = Instant::now();
//! #     let mut statuses = HashMap::<u16, u64>::new();
//! #     for key in 0..5_000_u32 {
//! #         *statuses.entry(send(&format!("invented {key}"), key + 100).await.0).or_default() += 1;
//! #     }
//! #     // Without the two from before, whose units are back.
//! #     let calls = (accounts.calls.load(Relaxed) - 2) as f64;
//! #     assert!(calls <= 500.0 + 200.0 * start.elapsed().as_secs_f64() + 1.0, "{calls}");
//! #     assert!(statuses[&401] >= 498 && statuses.keys().all(|status| [401, 503].contains(status)), "{statuses:?}");
//! #     assert_eq!(send("key-of-ada", 1).await.0, 200);
//! #     // The caches are bounded, and an entry in use stays.
//! #     let cache = Cache::new(10, Duration::from_secs(60));
//! #     let mut cache = cache.lock().unwrap();
//! #     cache.insert("ada", (Instant::now(), 7));
//! #     for key in 0..1_000 {
//! #         cache.insert(&key.to_string(), (Instant::now(), 0));
//! #         assert_eq!(cache.get("ada"), Some(7));
//! #         assert!(cache.young.len() <= 10 && cache.old.len() <= 10);
//! #     }
//! #     cache.max_age = Duration::ZERO;
//! #     assert_eq!(cache.get("ada"), None);
//! # }
//! ```
//!
//! # During a flood of invented keys
//!
//! | | without the bound | with it |
//! |---|---|---|
//! | the database | gets a query per request | gets 200 queries per second at most, from each process |
//! | the memory of the caches | grows by an entry per request | has 100,000 customers and 100,000 unknown keys at most |
//! | customers in the cache | are evicted by unknown keys | stay: unknown keys have a cache of their own |
//! | a customer who is not in the cache | waits for a busy database | may get 503, with `Retry-After: 1` |
//! | the table of the limiter | has a slot per account | the same: an invented key never becomes a key of the policy |
//!
//! - **A negative entry** saves the look-up of a wrong key that comes again, such as a revoked key in a loop. Against
//!   invented keys, which never come again, it does not help: the bound on look-ups does.
//! - **The ages** decide how late a change shows: here, a customer who upgrades has the new plan after a minute, and a
//!   key that was tried before it was created works ten seconds later at most. If your service makes the change, remove
//!   the entry.
//! - **The limit by address** is outermost, so a flood from one address ends before the look-up. To count wrong keys
//!   only, and ban addresses that keep guessing, charge [around the look-up](super::plans#what-happens).
//! - **Requests for one key at the same time** each look it up until the first answer is in the cache. The crate `moka`
//!   makes one call of them (`get_with`), and has the bounds (`max_capacity`, `time_to_live`).
//! - **If the database fails**, answer 503, and store nothing: a negative entry would lock a customer out.
//! - **Compare hashes.** The caches and the database can keep a hash of each key, so that a memory dump has no keys.
//!
//! Next: [test your limits](super::testing).
