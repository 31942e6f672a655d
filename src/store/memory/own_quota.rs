//! Keys with their own quotas: the algorithm that judges them.

use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::store::memory::quota_state::QuotaState;
use crate::store::quota_change;
use crate::values::time::Timestamp;
use crate::values::{Ask, Decision, Quota, Receipt};

/// Judges keys under the quota that a question has. A state from under another quota is converted first, as a live
/// change converts all keys.
pub(super) struct UnderQuota<A> {
    /// The algorithm with the question's quota.
    algorithm: A,
    /// The limiter's own quota, by whose period windows are staggered, because a key's windows begin at an instant that
    /// does not depend on its quota.
    own: Quota,
    /// Whether a state from under another quota is converted. Otherwise it is judged under that quota, and keeps it.
    converts: bool,
}

impl<A: Algorithm> UnderQuota<A> {
    /// Judges under the question's quota. Without one, or with a suspended quota, under which nothing is judged, judges
    /// under the limiter's. Returns `None` if the algorithm takes no quotas.
    #[inline]
    pub(super) fn for_ask(algorithm: &A, ask: &Ask<'_>) -> Option<Self> {
        let own = algorithm.quota();
        let quota = ask.quota().filter(|quota| !quota.is_suspended());
        let algorithm = algorithm.under(quota.unwrap_or(own))?;
        Some(Self { algorithm, own, converts: !ask.keeps_quota() })
    }

    /// Judges each key under the quota that it has.
    pub(super) fn without_conversion(algorithm: &A) -> Option<Self> {
        let own = algorithm.quota();
        Some(Self { algorithm: algorithm.under(own)?, own, converts: false })
    }

    /// Returns a state as it counts by this algorithm's schedule, under the quota that it is kept under. A key with its
    /// own calendar keeps its window.
    pub(super) fn rescheduled(&self, entry: QuotaState<A::State>, now: Timestamp) -> QuotaState<A::State> {
        if entry.quota.has_calendar() {
            return entry;
        }
        let state = self.with(&entry, |algorithm| algorithm.inherit(entry.state, &entry.quota, now));
        QuotaState { state, ..entry }
    }

    /// Returns a state as it counts, and is kept from now on, under this algorithm's quota, if the algorithm can
    /// inherit it.
    pub(super) fn taken_over(&self, entry: &QuotaState<A::State>, now: Timestamp) -> Option<QuotaState<A::State>> {
        self.converted(entry, now).map(|state| self.entry(state))
    }

    /// Returns a state as it counts under the question's quota.
    fn converted(&self, from: &QuotaState<A::State>, now: Timestamp) -> Option<A::State> {
        quota_change::converted(&self.algorithm, from.state, &from.quota, now)
    }

    /// Decides on a state that is kept under another quota. Its conversion is kept even if nothing is charged, because
    /// otherwise the debt would be paid at the old rate until the next charge, and every advertised wait would be
    /// wrong.
    #[cold]
    fn decide_under_another(
        &self,
        entry: &QuotaState<A::State>,
        now: Timestamp,
        cost: u64,
    ) -> (Decision, Option<QuotaState<A::State>>) {
        if !self.converts {
            if let Some(algorithm) = self.algorithm.under(entry.quota) {
                let (decision, next) = algorithm.decide(Some(entry.state), now, cost);
                return (decision, next.map(|state| QuotaState { state, quota: entry.quota }));
            }
        }
        let converted = self.converted(entry, now);
        let (decision, next) = self.algorithm.decide(converted, now, cost);
        (decision, next.or(converted).map(|state| self.entry(state)))
    }

    fn entry(&self, state: A::State) -> QuotaState<A::State> {
        QuotaState { state, quota: self.algorithm.quota() }
    }

    /// Calls `act` with the algorithm under which a state is kept.
    fn with<R>(&self, entry: &QuotaState<A::State>, act: impl FnOnce(&A) -> R) -> R {
        if entry.quota == self.algorithm.quota() {
            return act(&self.algorithm);
        }
        match self.algorithm.under(entry.quota) {
            Some(algorithm) => act(&algorithm),
            None => act(&self.algorithm),
        }
    }

    /// Like [`quota_change::has_units_of`], for this algorithm.
    pub(super) fn has_units_of(&self, quota: &Quota) -> bool {
        quota_change::has_units_of(&self.algorithm, quota)
    }
}

/// Ranks keys with different quotas by their use, so that a key at its limit is not forgotten in favour of a key that
/// has sent a single request.
///
/// Three simpler ranks fail. If keys rank by the time until a debt is paid, a fast plan is always forgotten first. By
/// units alone, a strict limit is always forgotten first. By used share alone, a customer with a large budget in part
/// use is forgotten for any key whose whole budget is one unit. So the rank orders by the units times the root of the
/// share, which is the same order as units³ ÷ limit. Among equals `owed` itself decides, in steps of a millisecond for
/// times.
fn rank(peek: &Decision, owed: u64) -> u64 {
    let owed = (owed >> 20).min((1 << 30) - 1);
    let limit = peek.limit().max(1);
    let used = peek.limit().saturating_sub(peek.remaining());
    if used == 0 {
        return owed;
    }
    // Keeps only the highest 32 bits, so that the third power has at most 96 bits.
    let cut = (u64::BITS - used.leading_zeros()).saturating_sub(32);
    let cube = u128::from(used >> cut).pow(3);
    // As far to the left as possible, so that the quotient has 77 bits at least.
    let shift = cube.leading_zeros();
    let score = (cube << shift) / u128::from(limit);
    let bits = u128::BITS - score.leading_zeros();
    // The rank keeps the number of bits in the score, and the first 26 bits. The number is at least 78 - 127, and at
    // most 128 - 32 + 54.
    let first = u64::try_from(score >> (bits - 26)).unwrap_or(u64::MAX);
    u64::from(bits + 3 * cut + 64 - shift) << 56 | first << 30 | owed
}

impl<A: Algorithm> Algorithm for UnderQuota<A> {
    type State = QuotaState<A::State>;

    fn quota(&self) -> Quota {
        self.algorithm.quota()
    }

    #[inline]
    fn decide(
        &self,
        state: Option<QuotaState<A::State>>,
        now: Timestamp,
        cost: u64,
    ) -> (Decision, Option<QuotaState<A::State>>) {
        match state {
            Some(entry) if entry.quota != self.algorithm.quota() => self.decide_under_another(&entry, now, cost),
            state => {
                let (decision, next) = self.algorithm.decide(state.map(|entry| entry.state), now, cost);
                (decision, next.map(|state| self.entry(state)))
            }
        }
    }

    fn expires_at(&self, entry: &QuotaState<A::State>) -> Timestamp {
        self.with(entry, |algorithm| algorithm.expires_at(&entry.state))
    }

    /// A charge under another rate, or another window period, is not refunded, because its unpaid part is not known any
    /// more.
    fn refund(&self, entry: QuotaState<A::State>, now: Timestamp, cost: u64, receipt: Receipt) -> QuotaState<A::State> {
        if !self.has_units_of(&entry.quota) {
            return entry;
        }
        let state = self.with(&entry, |algorithm| algorithm.refund(entry.state, now, cost, receipt));
        QuotaState { state, ..entry }
    }

    fn owed(&self, entry: &QuotaState<A::State>, now: Timestamp) -> u64 {
        self.with(entry, |algorithm| {
            let owed = algorithm.owed(&entry.state, now);
            if owed == 0 { 0 } else { rank(&algorithm.decide(Some(entry.state), now, 0).0, owed).max(1) }
        })
    }

    fn follows_wall_clock(&self) -> bool {
        self.algorithm.follows_wall_clock()
    }

    #[inline]
    fn after_step_back(&self, entry: QuotaState<A::State>, now: Timestamp) -> QuotaState<A::State> {
        let state = self.with(&entry, |algorithm| algorithm.after_step_back(entry.state, now));
        QuotaState { state, ..entry }
    }

    fn phase(&self, draw: u64) -> Duration {
        // Nearly always there is no phase. Then this costs one comparison.
        if self.algorithm.phase(u64::MAX).is_zero() {
            return Duration::ZERO;
        }
        self.algorithm.under(self.own).map_or(Duration::ZERO, |own| own.phase(draw))
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_by_cubed_units_over_limit() {
        let rank_of = |limit: u64, used: u64| rank(&Decision::allow(limit, limit - used), 1 << 29);
        let most = Quota::MAX_UNITS;
        let limits = [1, 2, 3, 10, 1_000, u32::MAX.into(), 1 << 32, 1 << 40, most];
        let mut ranked: Vec<(f64, u64, String)> = Vec::new();
        for limit in limits {
            let parts = [1, 2, limit / 1_000, limit / 3, limit / 2, limit - limit / 7, limit - 1, limit];
            for used in parts.into_iter().filter(|used| (1..=limit).contains(used)) {
                #[allow(clippy::cast_precision_loss, reason = "all that a rank distinguishes")]
                let score = (used as f64).powi(3) / limit as f64;
                ranked.push((score, rank_of(limit, used), format!("{used} of {limit}")));
            }
        }
        ranked.sort_by(|one, other| one.0.total_cmp(&other.0));
        for pair in ranked.windows(2) {
            let is_nearly_equal = pair[1].0 < pair[0].0 * (1.0 + 1e-6);
            assert!(pair[0].1 <= pair[1].1 || is_nearly_equal, "{} and {}", pair[0].2, pair[1].2);
            assert!(pair[0].1 < pair[1].1 || is_nearly_equal, "{} and {}", pair[0].2, pair[1].2);
        }
        // The time that a debt lasts decides only among equals.
        for (limit, used) in limits.into_iter().flat_map(|limit| [(limit, 0), (limit, 1), (limit, limit)]) {
            let decision = Decision::allow(limit, limit - used);
            assert_eq!(rank(&decision, u64::MAX) >> 30, rank(&decision, 0) >> 30, "{used} of {limit}");
        }
        // A key that has used nothing ranks lowest. Among equals, the debt that lasts longer ranks higher.
        assert!(
            rank_of(most, 0) < rank_of(most, 1) && rank_of(most, 1) < rank(&Decision::allow(most, most - 1), 1 << 40)
        );
    }
}
