//! Transactions over policies with alternatives: a [formula](Formula) says which policies have to admit the request.
//!
//! Before each charge, the formula chooses the first alternatives that may have room: a policy that has rejected the
//! request has no room, and every other may have. After a rejection it chooses again, and charges it no longer needs
//! are refunded (for example, if a member's partner has no room). This terminates, because each answer charges or
//! rejects a member, and a choice only ever moves on to a later alternative, so a discarded member cannot be chosen
//! again.

use std::cmp::Reverse;

use super::decide::Decide;
use super::entry::{PolicyEntry, Progress};
use super::scope::Scope;
use super::transaction::{Cause, PendingMembers, Transaction};
use crate::engine::policy::Policy;
use crate::values::{Formula, MemberAnswers, MemberDecision, Rest, Room};

/// The policies to charge, given their answers so far. A transaction keeps this between its steps, so that no step
/// searches the entries for each policy, and only a rejection makes the formula choose again.
pub(super) struct Choice {
    /// Whether each policy has room, by its index.
    rooms: Vec<Room>,
    /// The chosen policies, sorted by index. Empty if the formula has no choice left.
    chosen: Vec<usize>,
    /// Whether `chosen` is up to date. Only a rejection makes it stale.
    is_current: bool,
}

impl Choice {
    fn of<D: Decide>(policies: &[Policy<D>], entries: &[PolicyEntry]) -> Self {
        let mut rooms = vec![Room::NoSay; policies.len()];
        for entry in entries.iter().filter(|entry| !entry.policy_of(policies).shadow) {
            let lacks_room = entry.progress == Progress::Rejected;
            rooms[entry.policy as usize] = if lacks_room { Room::Lacking } else { Room::Enough };
        }
        Self { rooms, chosen: Vec::new(), is_current: false }
    }

    /// Makes the formula choose. Returns whether there is a choice.
    fn update(&mut self, formula: &Formula) -> bool {
        self.chosen.clear();
        self.is_current = formula.choose(&|policy| self.rooms[policy], &mut self.chosen) != Room::Lacking;
        self.chosen.sort_unstable();
        self.is_current
    }

    fn has_chosen(&self, policy: usize) -> bool {
        self.chosen.binary_search(&policy).is_ok()
    }

    /// Records that a policy has no room.
    fn reject(&mut self, policy: usize) {
        if self.rooms[policy] == Room::Enough {
            self.rooms[policy] = Room::Lacking;
        }
        self.is_current = false;
    }
}

/// The index of a policy's entry. With alternatives, each policy has one entry at most, and the entries are sorted by
/// policy.
fn position_of(entries: &[PolicyEntry], policy: usize) -> Option<usize> {
    entries.binary_search_by_key(&policy, |entry| entry.policy as usize).ok()
}

/// Whether a policy has room for a request, where an entry that `lacks_room` has none. Shadows and policies that do not
/// apply have no say.
fn room_unless<D: Decide>(
    policies: &[Policy<D>],
    entries: &[PolicyEntry],
    policy: usize,
    lacks_room: impl Fn(&PolicyEntry) -> bool,
) -> Room {
    match position_of(entries, policy).map(|index| &entries[index]) {
        Some(_) if policies[policy].shadow => Room::NoSay,
        Some(entry) if lacks_room(entry) => Room::Lacking,
        Some(_) => Room::Enough,
        None => Room::NoSay,
    }
}

impl Transaction {
    /// [Prechecks](Self::precheck) the entries that the formula chooses, until its choice stays the same. Returns
    /// `false` if it has no choice left.
    pub(super) fn precheck_members<D: Decide>(&mut self, scope: Scope<'_, D>, formula: &Formula) -> bool {
        let policies = &*scope.in_force.policies;
        for entry in &mut self.entries {
            let policy = entry.policy_of(policies);
            if !policy.shadow && (entry.ban.is_some() || entry.debt_wait().is_some()) {
                entry.peek(policy, &self.context);
                entry.progress = Progress::Rejected;
            }
        }
        let mut choice = Box::new(Choice::of(policies, &self.entries));
        let mut is_peeked_at = vec![false; self.entries.len()];
        while choice.update(formula) {
            // If the first charge is rejected, nothing has to be refunded, so the first entry is not peeked at.
            let mut without_room = None;
            for policy in choice.chosen.iter().skip(1) {
                let Some(index) = position_of(&self.entries, *policy) else { continue };
                let entry = &mut self.entries[index];
                let is_new = entry.progress == Progress::Uncharged && !is_peeked_at[index];
                is_peeked_at[index] = true;
                if is_new && !entry.passes_precheck(entry.policy_of(policies), &self.context) {
                    without_room = Some(index);
                    break;
                }
            }
            let Some(index) = without_room else {
                self.choice = Some(choice);
                return true;
            };
            self.entries[index].progress = Progress::Rejected;
            choice.reject(self.entries[index].policy as usize);
        }
        false
    }

    /// Makes `next` the entry to charge next: first the entries that the formula chooses, then shadows. After the last
    /// one, entries that have not decided are removed.
    ///
    /// # Errors
    ///
    /// If the formula has no choice left.
    pub(super) fn choose_next<D: Decide>(&mut self, scope: Scope<'_, D>, formula: &Formula) -> Result<(), Cause> {
        let policies = &*scope.in_force.policies;
        let mut choice = self.choice.take().unwrap_or_else(|| Box::new(Choice::of(policies, &self.entries)));
        let is_new = !choice.is_current;
        if is_new && !choice.update(formula) {
            return Err(self.cause(scope, formula));
        }
        let is_chosen = |entry: &PolicyEntry| choice.has_chosen(entry.policy as usize);
        let is_given_up = |entry: &PolicyEntry| {
            entry.progress == Progress::Charged && !entry.policy_of(policies).shadow && !is_chosen(entry)
        };
        for entry in self.entries.iter_mut().rev().filter(|entry| is_new && is_given_up(entry)) {
            scope.take_back(entry);
            entry.decision = None;
            entry.progress = Progress::Uncharged;
        }
        let is_left = |entry: &PolicyEntry| entry.progress == Progress::Uncharged;
        // All entries before `next` are decided, unless the formula has made a new choice.
        let from = if is_new { 0 } else { self.next.min(self.entries.len()) };
        let next = self.entries[from..].iter().position(|entry| is_left(entry) && is_chosen(entry));
        let next = next.map(|index| from + index);
        self.choice = Some(choice);
        // Shadows come last.
        let shadow = || self.entries.iter().position(|entry| is_left(entry) && entry.policy_of(policies).shadow);
        self.next = match next.or_else(shadow) {
            Some(next) => next,
            None => {
                self.entries.retain(|entry| entry.progress != Progress::Uncharged);
                for entry in self.entries.iter_mut().filter(|entry| entry.progress == Progress::Rejected) {
                    entry.progress = Progress::PassedOver;
                    // Drops its idempotency key, and its charge to a debt.
                    entry.stake = None;
                }
                self.entries.len()
            }
        };
        Ok(())
    }

    /// The reason why no choice is left. If the request might have passed had no limiter failed, that is the failure.
    fn cause<D: Decide>(&mut self, scope: Scope<'_, D>, formula: &Formula) -> Cause {
        let Some((index, error)) = self.failure.take() else { return Cause::Rejected };
        // A failed member has not made a decision.
        let rejects = |entry: &PolicyEntry| entry.progress == Progress::Rejected && entry.decision.is_some();
        let with_luck = |policy| room_unless(&scope.in_force.policies, &self.entries, policy, rejects);
        if formula.room(&with_luck) == Room::Lacking {
            return Cause::Rejected;
        }
        self.next = index;
        Cause::Failed(error)
    }

    /// Records that the next entry has no room.
    pub(super) fn pass_over(&mut self, cause: Cause) {
        let entry = &mut self.entries[self.next];
        entry.progress = Progress::Rejected;
        if let Some(choice) = &mut self.choice {
            choice.reject(entry.policy as usize);
        }
        if let Cause::Failed(error) = cause {
            entry.decision = None;
            self.failure.get_or_insert((self.next, error));
        }
    }

    /// Charges the next entry in one call with others in the same store, if the store can choose between them, or if
    /// all are charged. Returns their indices.
    pub(super) fn charge_members<D: Decide>(&self, scope: Scope<'_, D>) -> Option<(Vec<usize>, PendingMembers)> {
        let formula = scope.in_force.formula.as_ref()?;
        let choice = self.choice.as_ref()?;
        let first = self.entries[self.next].claim(scope, &self.context)?;
        let mut claims = vec![(self.next, first)];
        for (index, entry) in self.entries.iter().enumerate() {
            if index != self.next && entry.progress == Progress::Uncharged {
                let claim = entry.claim(scope, &self.context).filter(|claim| claim.store() == claims[0].1.store());
                claims.extend(claim.map(|claim| (index, claim)));
            }
        }
        // Entries outside the call are known if they were chosen, or reject the request. All others might have room,
        // and would go before later alternatives.
        let mut is_member = vec![false; choice.rooms.len()];
        claims.iter().for_each(|(index, _)| is_member[self.entries[*index].policy as usize] = true);
        let rest = formula.rest(&|policy| match choice.rooms[policy] {
            Room::Enough if is_member[policy] => Rest::member(policy),
            Room::Enough if !choice.has_chosen(policy) => Rest::Unknown,
            room => Rest::Known(room),
        });
        let Rest::Formula { formula: rest, .. } = rest else { return None };
        claims.retain(|(index, _)| rest.has(self.entries[*index].policy as usize));
        if claims.len() < 2 || claims[0].0 != self.next {
            return None;
        }
        let (members, mut claims): (Vec<usize>, Vec<_>) = claims.into_iter().unzip();
        let number = |policy| members.iter().position(|index| self.entries[*index].policy as usize == policy);
        let rest = rest.renumbered(&|policy| number(policy).expect("it was retained"));
        let first = claims.remove(0);
        Some((members, first.decide_by(claims, rest)))
    }

    /// Records the answers from one call to the entries with the indices `members`.
    pub(super) fn set_member_answers<D: Decide>(
        &mut self,
        scope: Scope<'_, D>,
        members: &[usize],
        answers: MemberAnswers,
    ) {
        for (index, answer) in members.iter().zip(answers) {
            let Some(answer) = answer else { continue };
            let entry = &mut self.entries[*index];
            let policy = scope.policy(entry);
            match answer {
                Ok(MemberDecision { decision, is_charged: true }) => {
                    policy.report_health(None);
                    entry.admit(policy, decision, scope.in_force.is_open_ended());
                }
                Ok(MemberDecision { decision, .. }) if decision.is_allowed() => policy.report_health(None),
                answer => {
                    self.next = *index;
                    self.reject_next(scope, answer.map(|answer| answer.decision));
                }
            }
        }
    }
}

impl<D: Decide> Scope<'_, D> {
    /// Combines a measure of the entries that reject a request, such as their waits: the longest of policies that all
    /// have to admit it, the shortest of alternatives. Ties: first entry.
    pub(super) fn combine<M: Ord>(
        self,
        entries: &[PolicyEntry],
        measure: impl Fn(&PolicyEntry) -> M,
    ) -> Option<(M, &PolicyEntry)> {
        let policies = &*self.in_force.policies;
        let measured = |index: usize| {
            let entry = &entries[index];
            let rejects = entry.is_rejected() && !entry.policy_of(policies).shadow;
            rejects.then(|| (measure(entry), Reverse(index)))
        };
        let combined = match &self.in_force.formula {
            None => (0..entries.len()).filter_map(measured).max(),
            Some(formula) => formula.combine(&|policy| {
                let index = position_of(entries, policy)?;
                (!policies[policy].shadow).then(|| measured(index))
            })?,
        };
        combined.map(|(measure, Reverse(index))| (measure, &entries[index]))
    }

    /// Marks the entries that reject a request, but have an alternative with room.
    pub(super) fn mark_passed_over(self, entries: &mut [PolicyEntry]) {
        let Some(formula) = &self.in_force.formula else { return };
        let policies = &*self.in_force.policies;
        for entry in entries.iter_mut().filter(|entry| entry.progress == Progress::PassedOver) {
            // When the wait is over, its alternative may have turned out to have no room.
            entry.progress = Progress::Rejected;
        }
        let mut lacking: Vec<usize> = Vec::new();
        let room = |policy| room_unless(policies, entries, policy, PolicyEntry::is_rejected);
        formula.lacking(&room, &mut lacking);
        lacking.sort_unstable();
        for entry in entries.iter_mut().filter(|entry| entry.is_rejected()) {
            let policy = entry.policy as usize;
            if !policies[policy].shadow && lacking.binary_search(&policy).is_err() {
                entry.progress = Progress::PassedOver;
            }
        }
    }
}
