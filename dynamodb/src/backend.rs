//! [`DynamoBackend`]: the transitions of one limiter, as requests to DynamoDB.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_sluice::LimiterError;
use tower_sluice::limiter::Receipt;
use tower_sluice::store::remote::{Applied, Attempts, Backend, CallLimits, GaveUp, Standing, Target, Transition};
use tower_sluice::store::{NodeHealth, SharingStats};
use tower_sluice::time::Timestamp;

use crate::dynamo::Dynamo;
use crate::fault::{DynamoFault, FaultKind, failed};
use crate::hints::Hints;
use crate::items::{BadItem, Charge, Kept, Moment, Plan, quota_name, standing};
use crate::table::{Item, Table, Write, Written};

/// The keys of one limiter on DynamoDB.
#[derive(Debug)]
pub struct DynamoBackend {
    dynamo: Dynamo,
    name: Box<str>,
    hints: Arc<Hints>,
    counts: Arc<Counts>,
}

/// What it has counted since it was made.
#[derive(Debug, Default)]
struct Counts {
    conversions: AtomicU64,
    lost: AtomicU64,
}

/// One key of a limiter, with all that a request needs to outlive its caller.
struct KeyItem<A> {
    table: Table,
    hints: Arc<Hints>,
    counts: Arc<Counts>,
    algorithm: A,
    /// What the key of the item begins with: the limiter and the tag.
    prefix: String,
}

impl DynamoBackend {
    pub(crate) fn new(dynamo: &Dynamo, name: &str) -> Self {
        Self { dynamo: dynamo.clone(), name: name.into(), hints: Arc::new(Hints::new()), counts: Arc::default() }
    }

    fn item<A: Kept>(&self, target: &Target<'_, A>) -> KeyItem<A> {
        KeyItem {
            table: self.dynamo.table().clone(),
            hints: Arc::clone(&self.hints),
            counts: Arc::clone(&self.counts),
            algorithm: target.algorithm().clone(),
            prefix: format!("{}:{}:", self.name, target.name()),
        }
    }
}

impl<A: Kept> KeyItem<A> {
    fn moment(&self) -> Moment {
        Moment { now: self.table.now(), error: self.table.clock_error }
    }

    /// The key of the item at that time.
    fn key(&self, now: Timestamp) -> String {
        format!("{}{}", self.prefix, self.algorithm.suffix(now))
    }

    /// Charges or refunds, unless the item has a standing.
    async fn write(&self, key: &str, write: Write) -> Result<Written, DynamoFault> {
        self.table.write(key, standing::unless_any(write)).await
    }

    /// The outcome of a transition on an item whose standing is in force: it changes nothing.
    fn in_force(&self, key: &str, item: Option<&Item>, at: Moment) -> Result<Option<Applied<A::State>>, DynamoFault> {
        let Some(standing) = item.and_then(standing::read).filter(|standing| standing.is_in_force(at.now)) else {
            return Ok(None);
        };
        let end = Moment { now: standing.until(), ..at };
        let old = self.algorithm.read(item, end).map_err(|bad| bad_item(key, bad))?;
        Ok(Some(Applied { now: at.now, old, standing, kept: None, charged: 0 }))
    }

    /// As [`in_force`](Self::in_force). Takes a standing that is over off the item, and off `item`.
    async fn in_force_or_over(
        &self,
        key: &str,
        item: &mut Option<Item>,
        at: Moment,
    ) -> Result<Option<Applied<A::State>>, DynamoFault> {
        if let Some(applied) = self.in_force(key, item.as_ref(), at)? {
            return Ok(Some(applied));
        }
        let Some((held, standing)) = item.as_mut().and_then(|item| standing::read(item).map(|it| (item, it))) else {
            return Ok(None);
        };
        match self.table.write(key, standing::over(standing)).await? {
            Written::Applied(_) => {
                held.remove("b");
                held.remove("d");
            }
            Written::Unmet(other) => *item = other,
        }
        Ok(None)
    }

    async fn apply(self, transition: Transition, limits: CallLimits) -> Result<Applied<A::State>, DynamoFault> {
        let attempts = Attempts::new(limits.deadline);
        match transition {
            Transition::Charge { cost, count } => self.charge(cost, count, attempts).await,
            Transition::Refund { cost, receipt } => self.refund(cost, receipt, attempts).await,
            Transition::Reset => self.reset().await,
            Transition::Ban { span } => {
                self.change(|standing, state, now| (standing.ban(now, span), state), attempts).await
            }
            Transition::Owe { units } => {
                let owe = |standing: Standing, state, now| standing.charge(&self.algorithm, state, now, units);
                self.change(owe, attempts).await
            }
            _ => self.read().await,
        }
    }

    async fn charge(&self, cost: u64, count: u32, mut attempts: Attempts) -> Result<Applied<A::State>, DynamoFault> {
        let charge = Charge { at: self.moment(), cost, count };
        let key = self.key(charge.at.now);
        let hint = self.hints.get(&key);
        // A clock that may be wrong writes nothing: the answer to a read shows whether it is right.
        let mut plan = if self.table.clock_check.is_right() { self.algorithm.guess(hint, charge) } else { Plan::Read };
        let mut item = None;
        // Whether the item was seen as it was a moment ago. If a write does not apply then, another process has written
        // meanwhile, and so made progress.
        let mut is_seen = false;
        let charged = loop {
            item = match plan {
                Plan::Reject => break 0,
                Plan::Read => self.table.read(&key).await?,
                Plan::Charge(write, count) => match self.write(&key, write).await? {
                    Written::Applied(old) => {
                        let another = old.as_ref().and_then(|old| quota_name::another(old, &self.algorithm.quota()));
                        self.counts.conversions.fetch_add(another.is_some().into(), Ordering::Relaxed);
                        item = old;
                        break count;
                    }
                    Written::Unmet(old) => {
                        if is_seen {
                            self.lost(&mut attempts).await?;
                        }
                        old
                    }
                },
            };
            if let Some(applied) = self.in_force_or_over(&key, &mut item, charge.at).await? {
                return Ok(applied);
            }
            is_seen = true;
            plan = self.algorithm.plan(item.as_ref(), charge).map_err(|bad| bad_item(&key, bad))?;
        };
        let old = self.algorithm.read(item.as_ref(), charge.at).map_err(|bad| bad_item(&key, bad))?;
        let mut new = old;
        for _ in 0..charged {
            new = self.algorithm.decide(new, charge.at.now, cost).1.or(new);
        }
        self.hints.set(&key, self.algorithm.hint(hint, old.as_ref(), new.as_ref(), charge.at));
        Ok(Applied { now: charge.at.now, old, standing: Standing::default(), kept: None, charged })
    }

    /// Reads the state as it counts under the quota by which it was written.
    async fn read(&self) -> Result<Applied<A::State>, DynamoFault> {
        let at = self.moment();
        let key = self.key(at.now);
        let item = self.table.read(&key).await?;
        if let Some(applied) = self.in_force(&key, item.as_ref(), at)? {
            return Ok(applied);
        }
        let another = item.as_ref().and_then(|item| quota_name::another(item, &self.algorithm.quota()));
        let (kept, algorithm) = match another.and_then(|quota| Some((quota, self.algorithm.under(quota)?))) {
            Some((quota, algorithm)) => (Some(quota), algorithm),
            None => (None, self.algorithm.clone()),
        };
        let old = algorithm.read(item.as_ref(), at).map_err(|bad| bad_item(&key, bad))?;
        if kept.is_none() {
            self.hints.set(&key, algorithm.hint(self.hints.get(&key), old.as_ref(), old.as_ref(), at));
        }
        Ok(Applied { now: at.now, old, standing: Standing::default(), kept, charged: 0 })
    }

    async fn reset(&self) -> Result<Applied<A::State>, DynamoFault> {
        let at = self.moment();
        let key = self.key(at.now);
        let standing = self.table.delete(&key).await?.as_ref().and_then(standing::read);
        for key in self.later_items(at.now, standing.unwrap_or_default().until()) {
            self.table.delete(&key).await?;
        }
        Ok(Applied { now: at.now, old: None, standing: Standing::default(), kept: None, charged: 0 })
    }

    /// The keys of the items in which a key goes on after the present one until a standing is over, with that of the
    /// window that begins then.
    fn later_items(&self, now: Timestamp, until: Timestamp) -> Vec<String> {
        let next = |at: &Timestamp| self.algorithm.item_ends(*at).filter(|end| *end <= until);
        let begins = std::iter::successors(next(&now), next).take(MOST_ITEMS - 1);
        begins.map(|begin| self.key(begin)).collect()
    }

    /// Changes the standing of a key, and its state with it: of a window, in the item of each window until it is over,
    /// the present one first.
    async fn change(
        &self,
        change: impl Fn(Standing, Option<A::State>, Timestamp) -> (Standing, Option<A::State>),
        mut attempts: Attempts,
    ) -> Result<Applied<A::State>, DynamoFault> {
        loop {
            let at = self.moment();
            let key = self.key(at.now);
            let item = self.table.read(&key).await?;
            let before = item.as_ref().and_then(standing::read).unwrap_or_default();
            let before = if before.is_in_force(at.now) { before } else { Standing::default() };
            let end = Moment { now: at.now.max(before.until()), ..at };
            let old = self.algorithm.read(item.as_ref(), end).map_err(|bad| bad_item(&key, bad))?;
            let (standing, old) = change(before, old, at.now);
            let end = Moment { now: at.now.max(standing.until()), ..at };
            let applied = Applied { now: at.now, old, standing, kept: None, charged: 0 };
            let put = self.algorithm.put(old.as_ref(), end);
            let put = if standing.is_in_force(at.now) { standing::with(put, standing) } else { put };
            if let Written::Unmet(_) = self.table.write(&key, standing::replacing(put.clone(), item.as_ref())).await? {
                self.lost(&mut attempts).await?;
                continue;
            }
            self.hints.set(&key, None);
            for key in self.later_items(at.now, standing.until()) {
                self.table.write(&key, standing::extending(put.clone())).await?;
            }
            return Ok(applied);
        }
    }

    async fn refund(
        &self,
        cost: u64,
        receipt: Receipt,
        mut attempts: Attempts,
    ) -> Result<Applied<A::State>, DynamoFault> {
        let at = self.moment();
        let key = self.key(at.now);
        if !self.table.clock_check.is_right() {
            // Fails if it is wrong: how much of the charge time has paid is not known then.
            self.table.read(&key).await?;
        }
        let mut write = self.algorithm.guess_refund(cost, receipt, at);
        let mut is_seen = false;
        while let Some(refund) = write {
            write = match self.write(&key, refund).await? {
                Written::Applied(item) => {
                    // Otherwise the next charge would be predicted by the debt from before the refund.
                    let old = self.algorithm.read(item.as_ref(), at).unwrap_or_default();
                    let new = old.map(|old| self.algorithm.refund(old, at.now, cost, receipt));
                    self.hints.set(&key, self.algorithm.hint(self.hints.get(&key), old.as_ref(), new.as_ref(), at));
                    None
                }
                Written::Unmet(mut item) => {
                    if let Some(applied) = self.in_force_or_over(&key, &mut item, at).await? {
                        return Ok(applied);
                    }
                    if is_seen {
                        self.lost(&mut attempts).await?;
                    }
                    is_seen = true;
                    let planned = self.algorithm.plan_refund(item.as_ref(), cost, receipt, at);
                    planned.map_err(|bad| bad_item(&key, bad))?
                }
            };
        }
        Ok(Applied { now: at.now, old: None, standing: Standing::default(), kept: None, charged: 0 })
    }

    /// Waits for the next attempt: another process has changed the item since it was seen.
    async fn lost(&self, attempts: &mut Attempts) -> Result<(), DynamoFault> {
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
        Ok(attempts.lost().await?)
    }
}

/// Of a key with an item for each window, a standing is written into so many.
const MOST_ITEMS: usize = 64;

fn bad_item(key: &str, bad: BadItem) -> DynamoFault {
    DynamoFault::new(FaultKind::ForeignItem, format!("item {key:?}: {bad}"))
}

/// Whether a failure says something of DynamoDB, and not only of one item.
fn is_failure(fault: &DynamoFault) -> bool {
    !matches!(fault.kind(), FaultKind::ForeignItem | FaultKind::Contention)
}

impl<A: Kept> Backend<A> for DynamoBackend {
    async fn apply(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        let call = self.item(target).apply(transition, limits);
        self.dynamo.calls().run(limits, call, is_failure).await.map_err(failed)?.map_err(failed)
    }

    fn timeout(&self) -> Duration {
        self.dynamo.calls().timeout()
    }

    fn shares_keys_with(&self, other: &Self) -> bool {
        self.dynamo.is_same(&other.dynamo) && self.name == other.name
    }

    fn check_fit(&self, algorithm: &A) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(algorithm.fits()?)
    }

    fn keeps_standing(&self, _: &A) -> bool {
        true
    }

    fn is_failing(&self, _: &Target<'_, A>) -> bool {
        self.dynamo.calls().is_failing()
    }

    /// A read takes a fifth of the price of a write that does nothing.
    fn reads_are_cheaper(&self) -> bool {
        true
    }

    fn stats(&self) -> SharingStats {
        let Counts { conversions, lost } = &*self.counts;
        let mut stats = SharingStats::default();
        (stats.conversions, stats.lost_swaps) = (conversions.load(Ordering::Relaxed), lost.load(Ordering::Relaxed));
        stats
    }

    fn health(&self) -> Vec<NodeHealth> {
        vec![self.dynamo.health()]
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        failed(reason)
    }
}
