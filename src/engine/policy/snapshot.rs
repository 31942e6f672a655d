//! A policy in a snapshot: the limiter's table, and the tables beside it.

use std::io;
use std::sync::Arc;

use crate::engine::domain::Domain;
use crate::engine::policy::bans::PenaltyRecord;
use crate::engine::policy::debts::Debts;
use crate::engine::policy::definition::Policy;
use crate::engine::policy::expiring::{ExpiringTable, SavedEntries, SavedValue};
use crate::engine::policy::overrides::SavedOverrides;
use crate::limiter::Limiter;
use crate::values::snapshot::{Commit, SavedTable, TableSink, Unfit, WallClock};

/// The part that a table plays in its policy, by its number in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Limiter = 0,
    /// The premature retries that count towards a ban.
    Misconduct = 1,
    /// The budget for free retries.
    RetryBudget = 2,
    Bans = 3,
    AdvisedWaits = 4,
    Debts = 5,
    RetryRecords = 6,
    /// Bans and allowances by hand.
    Overrides = 7,
    /// Each key's number of bans, if bans grow.
    RepeatedBans = 8,
}

impl Role {
    fn numbered(number: u8) -> Option<Self> {
        let all = [
            Self::Limiter,
            Self::Misconduct,
            Self::RetryBudget,
            Self::Bans,
            Self::AdvisedWaits,
            Self::Debts,
            Self::RetryRecords,
            Self::Overrides,
            Self::RepeatedBans,
        ];
        all.into_iter().find(|role| *role as u8 == number)
    }

    /// As in "its bans: ...".
    const fn name(self) -> &'static str {
        match self {
            Self::Limiter => "budgets",
            Self::Misconduct => "premature retries",
            Self::RetryBudget => "budgets of free retries",
            Self::Bans => "bans",
            Self::AdvisedWaits => "advertised waits",
            Self::Debts => "debts",
            Self::RetryRecords => "records of retries",
            Self::Overrides => "bans and allowances by hand",
            Self::RepeatedBans => "numbers of bans",
        }
    }
}

/// Takes a policy's tables.
pub(crate) trait PolicySink {
    fn wall(&self) -> u64;

    /// Begins a table. `role` is a different number for each table in a policy.
    fn begin(&mut self, role: u8, head: &[u8]) -> io::Result<()>;

    fn part(&mut self, bytes: &[u8], keys: u64) -> io::Result<()>;
}

/// A sink for the table with this role.
struct RoleSink<'a>(&'a mut dyn PolicySink, Role);

impl TableSink for RoleSink<'_> {
    fn wall(&self) -> u64 {
        self.0.wall()
    }

    fn begin(&mut self, head: &[u8]) -> io::Result<()> {
        self.0.begin(self.1 as u8, head)
    }

    fn part(&mut self, bytes: &[u8], keys: u64) -> io::Result<()> {
        self.0.part(bytes, keys)
    }
}

/// A policy's tables in a snapshot, by role number.
pub(crate) type SavedPolicy = Vec<(u8, SavedTable)>;

/// A policy's tables that are decoded and checked, and not in use yet.
#[derive(Default)]
pub(crate) struct PreparedPolicy {
    commits: Vec<(Role, Commit)>,
    /// The tables that begin without a state, and why.
    skipped: Vec<(Role, String)>,
}

impl PreparedPolicy {
    /// Puts the tables into use. Returns the number of keys, and the tables that begin without a state, each with the
    /// reason.
    pub(crate) fn commit(self) -> (u64, Vec<String>) {
        let mut keys = 0;
        let mut skipped = self.skipped;
        for (role, commit) in self.commits {
            match commit() {
                Ok(restored) => keys += restored,
                Err(reason) => skipped.push((role, reason.to_string())),
            }
        }
        (keys, skipped.into_iter().map(|(role, reason)| format!("its {}: {reason}", role.name())).collect())
    }

    /// Adds a table. Damage makes the whole snapshot unfit.
    fn add(&mut self, role: Role, prepared: Result<Commit, Unfit>) -> Result<(), Unfit> {
        match prepared {
            Ok(commit) => self.commits.push((role, commit)),
            Err(Unfit::Skipped(reason)) => self.skipped.push((role, reason)),
            Err(damage @ Unfit::Damaged(_)) => return Err(damage),
        }
        Ok(())
    }
}

impl<D: Domain> Policy<D> {
    /// Writes the policy's state. If the limiter's table is not in it, returns the reason.
    pub(crate) fn save(&self, sink: &mut dyn PolicySink) -> io::Result<Option<String>> {
        let reason = save_limiter(&self.limiter, &mut RoleSink(sink, Role::Limiter))?;
        if let Some(penalty) = &self.lineage.penalty {
            save_limiter(penalty.misconduct(), &mut RoleSink(sink, Role::Misconduct))?;
        }
        if let Some(record) = self.bans() {
            record.bans.save(&mut RoleSink(sink, Role::Bans))?;
            record.advised.save(&mut RoleSink(sink, Role::AdvisedWaits))?;
            record.repeated.save(&mut RoleSink(sink, Role::RepeatedBans))?;
        }
        // If a server keeps overrides, we do not need a copy.
        let is_here = self.description.keeps_standing().is_none();
        if let Some(overrides) = self.lineage.record.overrides().filter(|_| is_here) {
            overrides.save(&mut RoleSink(sink, Role::Overrides))?;
        }
        if let Some(debts) = self.lineage.record.debts() {
            debts.save(&mut RoleSink(sink, Role::Debts))?;
        }
        if let Some((records, budget)) = self.billing.retries.as_ref().and_then(|retries| retries.in_process()) {
            if let Some(budget) = budget {
                save_limiter(budget, &mut RoleSink(sink, Role::RetryBudget))?;
            }
            records.save(&mut RoleSink(sink, Role::RetryRecords))?;
        }
        Ok(reason)
    }

    /// The bans of the policy's penalty, or the bans that are kept while it has no penalty.
    fn bans(&self) -> Option<&Arc<PenaltyRecord>> {
        let penalty = self.lineage.penalty.as_ref();
        penalty.map(|penalty| penalty.record()).or(self.lineage.former_bans.as_ref())
    }

    /// Decodes and checks the policy's state, without changing anything. Returns an error if a table cannot be read.
    ///
    /// `limiters` has the limiters that were prepared before, so that a limiter that policies share is restored once.
    pub(crate) fn prepare(
        &self,
        saved: SavedPolicy,
        wall: &WallClock,
        limiters: &mut Vec<Arc<dyn Limiter>>,
    ) -> Result<PreparedPolicy, Unfit> {
        let mut prepared = PreparedPolicy::default();
        let is_shared = limiters.iter().any(|other| Arc::ptr_eq(other, &self.limiter));
        limiters.push(Arc::clone(&self.limiter));
        for (number, table) in saved {
            let role = Role::numbered(number).ok_or(Unfit::Damaged("the kind of a table"))?;
            if role == Role::Limiter && is_shared {
                continue;
            }
            let commit = self.prepare_table(role, table, wall);
            prepared.add(role, commit)?;
        }
        Ok(prepared)
    }

    fn prepare_table(&self, role: Role, saved: SavedTable, wall: &WallClock) -> Result<Commit, Unfit> {
        let penalty = self.lineage.penalty.as_ref();
        let retries = self.billing.retries.as_ref().and_then(|retries| retries.in_process());
        let absent = || Unfit::skipped("the policy has no such option now");
        match role {
            Role::Limiter => prepare_limiter(&self.limiter, saved, wall),
            Role::Misconduct => prepare_limiter(penalty.ok_or_else(absent)?.misconduct(), saved, wall),
            Role::RetryBudget => {
                prepare_limiter(retries.and_then(|(_, budget)| budget).ok_or_else(absent)?, saved, wall)
            }
            Role::Bans => entries(penalty.ok_or_else(absent)?.record(), |record| &record.bans, &saved, wall),
            Role::AdvisedWaits => entries(penalty.ok_or_else(absent)?.record(), |record| &record.advised, &saved, wall),
            Role::RepeatedBans => {
                entries(penalty.ok_or_else(absent)?.record(), |record| &record.repeated, &saved, wall)
            }
            Role::RetryRecords => entries(retries.ok_or_else(absent)?.0, |records| records, &saved, wall),
            Role::Debts => {
                let saved = SavedEntries::read(&saved)?;
                let (record, clock, wall) = (Arc::clone(&self.lineage.record), self.clock(), Arc::clone(wall));
                Ok(Box::new(move || {
                    let debts: &Debts = record.debts_by(|| clock);
                    debts.restore(saved, &wall)
                }))
            }
            Role::Overrides => {
                let saved = SavedOverrides::read(&saved)?;
                let (record, clock, wall) = (Arc::clone(&self.lineage.record), self.clock(), Arc::clone(wall));
                Ok(Box::new(move || Ok(record.overrides_by(|| clock).restore(saved, &wall))))
            }
        }
    }
}

/// Saves a limiter's table. If it is not in the snapshot, returns the reason.
fn save_limiter(limiter: &Arc<dyn Limiter>, sink: &mut dyn TableSink) -> io::Result<Option<String>> {
    match limiter.describe().keeps_states() {
        Some(states) => Ok(states.save(sink)?.err().map(|reason| reason.to_string())),
        None => Ok(Some(NO_TABLE.to_owned())),
    }
}

const NO_TABLE: &str = "its limiter keeps no table of budgets in memory";

fn prepare_limiter(limiter: &Arc<dyn Limiter>, saved: SavedTable, wall: &WallClock) -> Result<Commit, Unfit> {
    let states = limiter.describe();
    let states = states.keeps_states().ok_or_else(|| Unfit::skipped(NO_TABLE))?;
    states.prepare(saved, Arc::clone(wall))
}

/// Prepares the values for one of `owner`'s tables.
fn entries<T: Send + Sync + 'static, V: SavedValue + Send + 'static>(
    owner: &Arc<T>,
    table: fn(&T) -> &ExpiringTable<V>,
    saved: &SavedTable,
    wall: &WallClock,
) -> Result<Commit, Unfit> {
    let saved = SavedEntries::read(saved)?;
    let (owner, wall) = (Arc::clone(owner), Arc::clone(wall));
    Ok(Box::new(move || table(&owner).restore(saved, &wall)))
}
