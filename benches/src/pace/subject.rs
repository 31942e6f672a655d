//! The subjects that pace requests within this process, each through its own public API.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use governor::DefaultDirectRateLimiter;
use tokio::time::{Instant, sleep_until};
use tower_sluice::{LeakyQueue, PartitionKey, Quota};

use super::Plan;
use crate::ours;

pub trait Pacer: Sized + Send + Sync + 'static {
    /// State that a waiter brings along.
    type Waiter: Send + 'static;

    fn new(plan: &Plan<'_>) -> Result<Self, String>;
    fn waiter(&self) -> impl Future<Output = Result<Self::Waiter, String>> + Send;
    /// Arrives when first polled, and is done when it may leave.
    fn turn(&self, waiter: &mut Self::Waiter) -> impl Future<Output = Result<(), String>> + Send;
}

pub struct Ours<const PRECISE: bool>(LeakyQueue);

impl<const PRECISE: bool> Pacer for Ours<PRECISE> {
    type Waiter = PartitionKey;

    fn new(plan: &Plan<'_>) -> Result<Self, String> {
        let queue = LeakyQueue::new(Quota::per_second(plan.rate.into())).max_queue(plan.requests);
        let queue = queue.max_wait(Duration::from_secs(3_600));
        Ok(Self(if PRECISE { queue.precise() } else { queue }))
    }

    async fn waiter(&self) -> Result<PartitionKey, String> {
        Ok(PartitionKey::from("all"))
    }

    async fn turn(&self, key: &mut PartitionKey) -> Result<(), String> {
        let decision = ours::decide(&self.0, key).await?;
        if decision.is_allowed() { Ok(()) } else { Err("rejects".to_owned()) }
    }
}

pub struct LeakyBucket(leaky_bucket::RateLimiter);

impl Pacer for LeakyBucket {
    type Waiter = ();

    fn new(plan: &Plan<'_>) -> Result<Self, String> {
        let mut builder = leaky_bucket::RateLimiter::builder();
        builder.initial(1).max(1).refill(1).interval(plan.interval()).fair(true);
        Ok(Self(builder.build()))
    }

    async fn waiter(&self) -> Result<(), String> {
        Ok(())
    }

    async fn turn(&self, (): &mut ()) -> Result<(), String> {
        self.0.acquire_one().await;
        Ok(())
    }
}

pub struct Governor(DefaultDirectRateLimiter);

impl Pacer for Governor {
    type Waiter = ();

    fn new(plan: &Plan<'_>) -> Result<Self, String> {
        let quota = governor::Quota::with_period(plan.interval()).ok_or("no interval")?;
        Ok(Self(DefaultDirectRateLimiter::direct(quota.allow_burst(NonZeroU32::MIN))))
    }

    async fn waiter(&self) -> Result<(), String> {
        Ok(())
    }

    async fn turn(&self, (): &mut ()) -> Result<(), String> {
        self.0.until_ready().await;
        Ok(())
    }
}

/// Takes a number, and sleeps until it is due.
pub struct Sleeps {
    first: OnceLock<Instant>,
    number: AtomicU32,
    interval: Duration,
}

impl Pacer for Sleeps {
    type Waiter = ();

    fn new(plan: &Plan<'_>) -> Result<Self, String> {
        Ok(Self { first: OnceLock::new(), number: AtomicU32::new(0), interval: plan.interval() })
    }

    async fn waiter(&self) -> Result<(), String> {
        Ok(())
    }

    async fn turn(&self, (): &mut ()) -> Result<(), String> {
        let first = *self.first.get_or_init(Instant::now);
        let due = first + self.interval * self.number.fetch_add(1, Ordering::Relaxed);
        if due > first {
            sleep_until(due).await;
        }
        Ok(())
    }
}
