//! Hot reload: change limits while the server runs.
//!
//! **You want** to raise a limit now, without a restart, and without giving every client a fresh budget. Keep the
//! [handle](crate::RateLimitLayer::handle) of the layer in the code that reads your configuration:
//!
//! ```
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::policy::PolicyError;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let clients = |quota| Policy::new("clients", quota).key(PeerIp::new());
//! let layer = RateLimitLayer::new(clients(Quota::per_second(10)));
//! let limits = layer.handle();
//!
//! # let peek = |limits: &tower_sluice::LimitsHandle, address| {
//! #     let status = futures_util::FutureExt::now_or_never(limits.peek("clients", address)).unwrap().unwrap();
//! #     (status.decision().limit(), status.decision().remaining())
//! # };
//! # let _ = futures_util::FutureExt::now_or_never(limits.charge("clients", "192.0.2.1", 1_000_000)).unwrap().unwrap();
//! # assert_eq!(peek(&limits, "192.0.2.1"), (10, 0));
//! // Later, from any thread:
//! limits.replace(clients(Quota::per_second(50)))?;
//! # assert_eq!([peek(&limits, "192.0.2.1"), peek(&limits, "192.0.2.2")], [(50, 0), (50, 50)], "used units stay used");
//! # Ok::<_, PolicyError>(())
//! ```
//!
//! Build the new policies as at the start. Each inherits the state of the policy with its name. If
//! [`try_new`](crate::RateLimitLayer::try_new) would reject the set, nothing changes.
//!
//! # What a change keeps
//!
//! | you change | then |
//! |---|---|
//! | limit, period or burst of a bucket | the debt of a key stays, in tokens, and is paid at the new rate |
//! | the limit of a window | the counts stay |
//! | the period of a window | the count of the present window counts in the present window of the new period. Back to a longer one, it is [gone](crate::LimitsHandle#the-period-of-a-window): from 1,000 per day to 10 per second and back, 1,000 more pass |
//! | rate, `max_queue` or `max_wait` of a queue | waiters keep their order; a waiter that would not be accepted now is rejected, with the exact time after which to retry |
//! | cost, condition, exemptions, key, shadow, status | applies to requests from now on |
//! | penalty | a ban ends at its original time, whatever the new length is; while there is no penalty, none is enforced, but for those that [a server keeps](crate::Penalty#on-several-machines) |
//! | the algorithm (bucket to window, say), or the store | all keys lose their state: [`Replaced::not_inherited`](crate::layer::Replaced::not_inherited) names the policy, and a warning is logged |
//! | the name | a new policy; all keys lose their state |
//!
//! On Redis, debts are kept [in time](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisStore.html#another-quota), and waiters of a queue depart at
//! the times that they got. Try a stricter limit first as a shadow, and then enforce it under the same name: its counts
//! are kept.
//!
//! # From a file
//!
//! With a configuration file: [`Config::change`](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/struct.Config.html#method.change). The example server calls it whenever
//! its `--config` is edited. It logs that the limits were changed, or file, line and field of the mistake, which
//! changes nothing. Policies and fields that the new text lacks are logged by name, as warnings.
//!
//! Next: [shut down](super::shutdown).
