//! Reports the decisions on a subject: the domain's fields, made from readings, and the verdict.

use std::time::Duration;

use super::decide::Decide;
use super::entry::{PolicyEntry, Progress};
use super::scope::Scope;
use crate::engine::outcome::{Admitted, Evaluation, Rare};
use crate::engine::policy::Policy;
use crate::engine::translate::Reading;
use crate::engine::verdict::{PolicyVerdict, Verdict};

impl<D: Decide> Scope<'_, D> {
    /// Reports the decisions in a [plain](crate::engine::reload::InForce::is_plain) layer.
    #[inline]
    pub(super) fn plain_fields<'a>(self, decided: impl Iterator<Item = Reading<'a>> + Clone) -> D::Fields {
        D::fields(&self.in_force.prepared, decided)
    }

    #[inline]
    pub(super) fn plain_verdict<'a>(self, decided: impl Iterator<Item = Reading<'a>>) -> Verdict {
        let policies = &self.in_force.policies;
        Verdict::new(decided.map(|it| PolicyVerdict::new(&policies[it.policy], *it.decision, false)))
    }

    /// The annotations for a request that a plain layer's policies have admitted at once.
    #[inline]
    pub(super) fn annotate_plain<'a>(self, decided: impl Iterator<Item = Reading<'a>> + Clone) -> Admitted<D> {
        let rare = if self.layer.settings.adds_verdict { self.plain_rare(decided.clone()) } else { None };
        Admitted::Known { fields: self.plain_fields(decided), rare }
    }

    #[inline]
    pub(super) fn admit_plain<'a>(self, decided: impl Iterator<Item = Reading<'a>> + Clone) -> Evaluation<D> {
        let admitted = self.annotate_plain(decided);
        if admitted.is_clear() { Evaluation::Clear } else { Evaluation::Admitted(admitted) }
    }

    // Not inlined, so that a layer without the verdict does not pay for moving it.
    #[cold]
    #[inline(never)]
    fn plain_rare<'a>(self, decided: impl Iterator<Item = Reading<'a>>) -> Option<Box<Rare>> {
        Rare::new(None, Some(self.plain_verdict(decided)))
    }

    /// The annotations for a request that no policy has decided on.
    #[cold]
    pub(super) fn annotate_undecided(self) -> Admitted<D> {
        Admitted::Known { fields: D::Fields::default(), rare: Rare::new(None, self.verdict(&[])) }
    }

    /// The verdict on a request with these entries, if the layer adds one.
    pub(super) fn verdict(self, entries: &[PolicyEntry]) -> Option<Verdict> {
        self.layer.settings.adds_verdict.then(|| verdict_of(&self.in_force.policies, entries))
    }

    /// The annotations for a request with these entries.
    pub(super) fn annotate(self, entries: &[PolicyEntry], verdict: Option<Verdict>) -> Admitted<D> {
        Admitted::Known { fields: self.fields(entries), rare: Rare::new(self.waited(entries), verdict) }
    }

    pub(super) fn fields(self, entries: &[PolicyEntry]) -> D::Fields {
        D::fields(&self.in_force.prepared, entries.iter().filter_map(reading_of))
    }

    /// The time that the request waited, if its response reports it.
    pub(super) fn waited(self, entries: &[PolicyEntry]) -> Option<Duration> {
        if self.layer.settings.adds_timing { total_wait(&self.in_force.policies, entries) } else { None }
    }
}

fn reading_of(entry: &PolicyEntry) -> Option<Reading<'_>> {
    let decision = entry.decision.as_ref().filter(|_| entry.progress != Progress::PassedOver)?;
    Some(Reading { policy: entry.policy as usize, key: &entry.key, quota: entry.quota, decision })
}

/// The total time in all queues, if the request has waited. A request that waited in one queue may have been rejected
/// by the next.
fn total_wait<D: Decide>(policies: &[Policy<D>], entries: &[PolicyEntry]) -> Option<Duration> {
    // Shadows do not delay requests, and a preview has the time that a request would wait.
    let has_waited = |entry: &&PolicyEntry| !entry.is_preview() && !entry.policy_of(policies).shadow;
    let admissions = entries.iter().filter(has_waited).filter_map(PolicyEntry::admission);
    let total = admissions.fold(Duration::ZERO, |sum, decision| sum.saturating_add(decision.delay()));
    Some(total).filter(|total| !total.is_zero())
}

pub(super) fn verdict_of<D: Decide>(policies: &[Policy<D>], entries: &[PolicyEntry]) -> Verdict {
    Verdict::new(entries.iter().filter_map(|entry| {
        let policy = entry.policy_of(policies);
        let decided = PolicyVerdict::new(policy, entry.decision?, entry.fell_back).crossing(entry.crossed);
        let decided = if policy.selector.has_several_keys { decided.of_key(&entry.key) } else { decided };
        Some(if entry.progress == Progress::PassedOver { decided.passed_over() } else { decided })
    }))
}
