//! [`DynamoBackend`]: one limiter's transitions, as requests to DynamoDB.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_sluice::LimiterError;
use tower_sluice::limiter::Override;
use tower_sluice::limiter::Receipt;
use tower_sluice::store::remote::{Applied, Attempts, Backend, CallLimits, GaveUp, Standing, Target, Transition};
use tower_sluice::store::{NodeHealth, SharingStats};
use tower_sluice::time::Timestamp;

use crate::dynamo::Dynamo;
use crate::fault::{DynamoFault, FaultKind, failed};
use crate::hints::Hints;
use crate::items::standing::{self, Stamped};
use crate::items::{BadItem, Charge, Kept, Moment, Plan, quota_name};
use crate::table::{Item, Table, Write, Written};

/// One limiter's keys on DynamoDB.
#[derive(Debug)]
pub struct DynamoBackend {
    dynamo: Dynamo,
    name: Box<str>,
    hints: Arc<Hints>,
    counts: Arc<Counts>,
}

/// Counters since the backend was made.
#[derive(Debug, Default)]
struct Counts {
    conversions: AtomicU64,
    lost: AtomicU64,
}

/// One key of a limiter, owning everything that a request needs to outlive its caller.
struct KeyItem<A> {
    table: Table,
    hints: Arc<Hints>,
    counts: Arc<Counts>,
    algorithm: A,
    /// The beginning of the item's key: the limiter and the tag.
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

    /// The item's key at that time.
    fn key(&self, now: Timestamp) -> String {
        format!("{}{}", self.prefix, self.algorithm.suffix(now))
    }

    /// Charges or refunds, unless the item has a standing.
    async fn write(&self, key: &str, write: Write) -> Result<Written, DynamoFault> {
        self.table.write(key, standing::unless_any(write)).await
    }

    /// An item's standing, in force or not.
    fn stamped(&self, key: &str, item: Option<&Item>) -> Result<Option<Stamped>, DynamoFault> {
        Ok(item.map(standing::read).transpose().map_err(|bad| bad_item(key, bad))?.flatten())
    }

    /// The outcome of a transition on an item whose standing is in force: it changes nothing.
    fn in_force(&self, key: &str, item: Option<&Item>, at: Moment) -> Result<Option<Applied<A::State>>, DynamoFault> {
        let standing = self.stamped(key, item)?.unwrap_or_default().standing;
        if !standing.is_in_force(at.now) {
            return Ok(None);
        }
        let old = self.algorithm.read(item, at.with_debt(standing)).map_err(|bad| bad_item(key, bad))?;
        Ok(Some(Applied { now: at.now, old, standing, kept: None, charged: 0 }))
    }

    /// Like [`in_force`](Self::in_force), but if the standing is over, removes it from the table's item and from
    /// `item`.
    async fn in_force_or_over(
        &self,
        key: &str,
        item: &mut Option<Item>,
        at: Moment,
    ) -> Result<Option<Applied<A::State>>, DynamoFault> {
        if let Some(applied) = self.in_force(key, item.as_ref(), at)? {
            return Ok(Some(applied));
        }
        let Some(stamped) = self.stamped(key, item.as_ref())? else { return Ok(None) };
        match self.table.write(key, standing::over(stamped)).await? {
            Written::Applied(_) => {
                item.iter_mut().for_each(|item| item.retain(|name, _| !standing::ATTRIBUTES.contains(&name.as_str())));
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
            Transition::Ban { span, .. } => {
                self.change(|standing, state, now| (standing.ban(now, span), state), attempts).await
            }
            Transition::Override(by_hand) => {
                let change = |standing: Standing, state, now| (standing.overridden(now, by_hand), state);
                let applied = self.change(change, attempts).await?;
                if by_hand == Override::Lift && !applied.standing.is_in_force(applied.now) {
                    self.clear_later(applied.now, applied.now, Timestamp::ZERO).await?;
                }
                Ok(applied)
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
        // A clock that may be wrong writes nothing, because the answer to a read shows whether it is right.
        let mut plan = if self.table.clock_check.is_right() { self.algorithm.guess(hint, charge) } else { Plan::Read };
        let mut item = None;
        // Whether we have just read the item. If a write does not apply then, another process has written meanwhile,
        // and so made progress.
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

    /// Reads the state, converted from the quota by which it was written.
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
        let item = self.table.delete(&self.key(at.now)).await?;
        // An item that cannot be read is reset, too.
        let before = item.as_ref().and_then(|item| standing::read(item).ok().flatten()).unwrap_or_default();
        let since = before.next_since(at.now);
        self.clear_later(at.now, since, before.standing.expires()).await?;
        Ok(Applied { now: at.now, old: None, standing: Standing::default(), kept: None, charged: 0 })
    }

    /// Deletes the items of later windows whose standing is from before `since`. A standing lasts `until` then or, if
    /// the next window's item says so, for longer, because a call that lifted it from the present item may have failed
    /// before it reached the later ones.
    async fn clear_later(&self, now: Timestamp, since: Timestamp, until: Timestamp) -> Result<(), DynamoFault> {
        let Some(next) = self.algorithm.item_ends(now).map(|end| self.key(end)) else { return Ok(()) };
        let item = self.table.read(&next).await?;
        let found = item.as_ref().and_then(|item| standing::read(item).ok().flatten()).unwrap_or_default();
        let later = self.later_windows(now, until.max(found.standing.expires()));
        self.table.delete_each(self.keys(&later), &standing::is_from_before(since)).await
    }

    /// Returns the beginnings of the later windows, for a key with an item per window, up to the window in which a
    /// standing is over. At most [`MOST_ITEMS`] with the present window.
    fn later_windows(&self, now: Timestamp, until: Timestamp) -> Vec<Timestamp> {
        let next = |at: &Timestamp| self.algorithm.item_ends(*at).filter(|end| *end <= until);
        std::iter::successors(next(&now), next).take(MOST_ITEMS - 1).collect()
    }

    /// Lets a ban and an allowance end with the last item that they are written into, so that all processes and all
    /// answers agree on the end.
    fn cut(&self, standing: Standing, now: Timestamp) -> Standing {
        let ends = std::iter::successors(self.algorithm.item_ends(now), |at| self.algorithm.item_ends(*at));
        let last = ends.take(MOST_ITEMS).last().unwrap_or(Timestamp::MAX);
        let (banned_until, allowed_until) = (standing.banned_until.min(last), standing.allowed_until.min(last));
        Standing { banned_until, allowed_until, ..standing }
    }

    /// Writes a standing and a state into the key's item at that time.
    fn put(&self, state: Option<A::State>, at: Moment, stamped: Option<Stamped>) -> Write {
        let standing = stamped.unwrap_or_default().standing;
        let put = self.algorithm.put(state.as_ref(), at.with_debt(standing));
        let needed = self.algorithm.item_ends(at.now).map_or(standing.expires(), |end| end.min(standing.expires()));
        standing::with(put, stamped, at.expiry(needed))
    }

    /// Changes a key's standing together with its state: first in the present item, then in the items of later windows.
    async fn change(
        &self,
        change: impl Fn(Standing, Option<A::State>, Timestamp) -> (Standing, Option<A::State>),
        mut attempts: Attempts,
    ) -> Result<Applied<A::State>, DynamoFault> {
        // When the window began in which the key has gone on meanwhile.
        let mut begun = Timestamp::ZERO;
        loop {
            let at = self.moment();
            let at = Moment { now: at.now.max(begun), ..at };
            let key = self.key(at.now);
            let item = self.table.read(&key).await?;
            let before = self.stamped(&key, item.as_ref())?.unwrap_or_default();
            let is_in_force = before.standing.is_in_force(at.now);
            let standing = if is_in_force { before.standing } else { Standing::default() };
            let old = self.algorithm.read(item.as_ref(), at.with_debt(standing)).map_err(|bad| bad_item(&key, bad))?;
            let (standing, old) = change(standing, old, at.now);
            let standing = self.cut(standing, at.now);
            let next = Stamped { standing, since: before.next_since(at.now) };
            let applied = Applied { now: at.now, old, standing, kept: None, charged: 0 };
            let stamped = next.in_force(at.now);
            if item.is_none() && old.is_none() && stamped.is_none() {
                return Ok(applied);
            }
            let put = self.put(old, at, stamped);
            if let Written::Unmet(_) = self.table.write(&key, standing::replacing(put, item.as_ref())).await? {
                self.lost(&mut attempts).await?;
                continue;
            }
            self.hints.set(&key, None);
            let later = self.later_windows(at.now, before.standing.expires().max(standing.expires()));
            if let [window, ..] = later[..]
                && !self.copy(at, next, old, &later).await?
            {
                begun = window;
                self.lost(&mut attempts).await?;
                continue;
            }
            return Ok(applied);
        }
    }

    /// Copies a standing and a state into the items of later windows. Returns `false` if the caller must change the
    /// standing again, in the next window, because another process, whose clock is a little ahead, has changed it there
    /// meanwhile.
    async fn copy(
        &self,
        at: Moment,
        next: Stamped,
        state: Option<A::State>,
        later: &[Timestamp],
    ) -> Result<bool, DynamoFault> {
        let Stamped { standing, since } = next;
        let (copied, cleared): (Vec<Timestamp>, _) =
            later.iter().partition(|begin| standing.is_in_force(**begin) || standing.owing_until == **begin);
        let write = |begin: &Timestamp| {
            let put = self.put(state, Moment { now: *begin, ..at }, Some(next));
            (self.key(*begin), standing::replacing_earlier(put))
        };
        let mut writes: Vec<_> = copied.iter().rev().map(write).collect();
        self.table.delete_each(self.keys(&cleared), &standing::is_from_before(since)).await?;
        // The next window's item is written last, so that a process for which it has begun finds all or nothing.
        let Some((first, write)) = writes.pop() else { return Ok(true) };
        self.table.write_each(writes.into_iter()).await?;
        let is_written = matches!(self.table.write(&first, write).await?, Written::Applied(_));
        let key = self.key(at.now);
        let present = self.stamped(&key, self.table.read(&key).await?.as_ref())?;
        let is_present = present.is_some_and(|present| present.since == since);
        if !is_present {
            // Another process has changed it meanwhile. A standing that it has removed from the later items must not
            // come back.
            self.table.delete_each(self.keys(&copied), &standing::is_from(since)).await?;
        }
        Ok(is_written || !is_present)
    }

    fn keys(&self, windows: &[Timestamp]) -> impl Iterator<Item = String> {
        windows.iter().map(|begin| self.key(*begin))
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
            // Fails if the clock is wrong, because we cannot know then how much of the charge time has paid.
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

    /// Waits for the next attempt after another process has changed the item that we had seen.
    async fn lost(&self, attempts: &mut Attempts) -> Result<(), DynamoFault> {
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
        Ok(attempts.lost().await?)
    }
}

/// A standing is written into at most this many items of a key, because they are written before the answer, by requests
/// that are in flight together.
const MOST_ITEMS: usize = 64;

fn bad_item(key: &str, bad: BadItem) -> DynamoFault {
    DynamoFault::new(FaultKind::ForeignItem, format!("item {key:?}: {bad}"))
}

impl<A: Kept> Backend<A> for DynamoBackend {
    async fn apply(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        let call = self.item(target).apply(transition, limits);
        self.dynamo.calls().run(limits, call, DynamoFault::blames_server).await.map_err(failed)?.map_err(failed)
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

    /// A read costs a fifth of a write that does nothing.
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
