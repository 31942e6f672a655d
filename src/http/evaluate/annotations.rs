//! Makes the annotations of a request: the response fields and extensions that report the decisions on it.

use std::time::Duration;

use super::entry::{PolicyEntry, Progress};
use super::scope::Scope;
use crate::http::headers::{PolicyReading, ResponseFields, Writer};
use crate::http::outcome::{Annotations, Rare};
use crate::http::policy::Policy;
use crate::http::verdict::{PolicyVerdict, Verdict};
use crate::values::{Decision, PartitionKey, Quota};

/// The decision of a plain policy on a request.
#[derive(Clone, Copy)]
pub(super) struct PlainDecision<'a> {
    /// The policy's index.
    pub(super) policy: usize,
    pub(super) key: &'a PartitionKey,
    pub(super) quota: Option<Quota>,
    pub(super) decision: &'a Decision,
}

impl Scope<'_> {
    /// The fields after the decisions of the policies of a [plain](crate::http::reload::InForce::is_plain) layer.
    #[inline]
    pub(super) fn plain_fields<'a>(
        self,
        decided: impl Iterator<Item = PlainDecision<'a>> + Clone,
    ) -> Option<ResponseFields> {
        let writer = self.in_force.writer.as_ref()?;
        let to_reading = |it: PlainDecision<'a>| reading(writer, it.policy, it.key, it.quota, it.decision);
        let mut readings = decided.clone().map(to_reading);
        let first = readings.next()?;
        if readings.next().is_none() { writer.fields_of_one(first) } else { writer.fields(decided.map(to_reading)) }
    }

    #[inline]
    pub(super) fn plain_verdict<'a>(self, decided: impl Iterator<Item = PlainDecision<'a>>) -> Verdict {
        let policies = &self.in_force.policies;
        Verdict::new(decided.map(|it| PolicyVerdict::new(&policies[it.policy], *it.decision, false)))
    }

    /// The annotations of a request that the policies of a plain layer have admitted at once.
    #[inline]
    pub(super) fn annotate_plain<'a>(self, decided: impl Iterator<Item = PlainDecision<'a>> + Clone) -> Annotations {
        let rare = if self.layer.settings.adds_verdict { self.plain_rare(decided.clone()) } else { None };
        Annotations::Known { fields: self.plain_fields(decided), rare }
    }

    // Not inlined, so that a layer without the verdict does not pay for moving it.
    #[cold]
    #[inline(never)]
    fn plain_rare<'a>(self, decided: impl Iterator<Item = PlainDecision<'a>>) -> Option<Box<Rare>> {
        Rare::new(None, Some(self.plain_verdict(decided)))
    }

    /// The annotations of a request that no policy has decided on.
    #[cold]
    pub(super) fn annotate_undecided(self) -> Annotations {
        Annotations::Known { fields: None, rare: Rare::new(None, self.verdict(&[])) }
    }

    /// The verdict on a request with these entries, if the layer adds one.
    pub(super) fn verdict(self, entries: &[PolicyEntry]) -> Option<Verdict> {
        self.layer.settings.adds_verdict.then(|| verdict_of(&self.in_force.policies, entries))
    }

    /// The annotations of a request with these entries.
    pub(super) fn annotate(self, entries: &[PolicyEntry], verdict: Option<Verdict>) -> Annotations {
        Annotations::Known { fields: self.fields(entries), rare: Rare::new(self.waited(entries), verdict) }
    }

    pub(super) fn fields(self, entries: &[PolicyEntry]) -> Option<ResponseFields> {
        let writer = self.in_force.writer.as_ref()?;
        let to_reading = |entry| reading_of(writer, entry);
        match entries {
            [entry] => writer.fields_of_one(to_reading(entry)?),
            _ => writer.fields(entries.iter().filter_map(to_reading)),
        }
    }

    /// The time that the request waited, if its response reports it.
    pub(super) fn waited(self, entries: &[PolicyEntry]) -> Option<Duration> {
        if self.layer.settings.adds_timing { total_wait(&self.in_force.policies, entries) } else { None }
    }
}

fn reading_of<'a>(writer: &Writer, entry: &'a PolicyEntry) -> Option<PolicyReading<'a>> {
    let decision = entry.decision.as_ref().filter(|_| entry.progress != Progress::PassedOver)?;
    Some(reading(writer, entry.policy as usize, &entry.key, entry.quota, decision))
}

#[inline]
fn reading<'a>(
    writer: &Writer,
    policy: usize,
    key: &PartitionKey,
    quota: Option<Quota>,
    decision: &'a Decision,
) -> PolicyReading<'a> {
    PolicyReading { policy, decision, quota, mark: writer.mark(key) }
}

/// The sum of the times in all queues, if the request has waited. A request that waited in one queue may have been
/// rejected by the next.
fn total_wait(policies: &[Policy], entries: &[PolicyEntry]) -> Option<Duration> {
    // Shadows delay no request, and a preview has the time that a request would wait.
    let has_waited = |entry: &&PolicyEntry| !entry.is_preview && !entry.policy_of(policies).shadow;
    let admissions = entries.iter().filter(has_waited).filter_map(PolicyEntry::admission);
    let total = admissions.fold(Duration::ZERO, |sum, decision| sum.saturating_add(decision.delay()));
    Some(total).filter(|total| !total.is_zero())
}

pub(super) fn verdict_of(policies: &[Policy], entries: &[PolicyEntry]) -> Verdict {
    Verdict::new(entries.iter().filter_map(|entry| {
        let policy = entry.policy_of(policies);
        let decided = PolicyVerdict::new(policy, entry.decision?, entry.fell_back).crossing(entry.crossed);
        let decided = if policy.selector.has_several_keys { decided.of_key(&entry.key) } else { decided };
        Some(if entry.progress == Progress::PassedOver { decided.passed_over() } else { decided })
    }))
}
