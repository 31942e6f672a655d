//! The conformance suite for servers that keep accounts.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Random;
use super::ledger::Ledger;
use crate::store::NodeHealth;
use crate::store::remote::accounts::{
    AccountDone, AccountReply, AccountStep, CreditExpiry, Expiry, Paid, Reference, Shortfall, Unfit,
};
use crate::store::remote::limiter_keys::LimiterKeys;
use crate::store::remote::tag::KeyTag;
use crate::store::remote::{Accounts, CallLimits};
use crate::values::account::MOST_LOTS;
use crate::values::{PartitionKey, Quota};

/// Checks a server that keeps accounts: random steps match a list of single units; if steps with one reference begin at
/// once, one is done; eight tasks that charge one key use each unit once, and give back unused ones; and lots and units
/// are bounded. The nodes whose [health](crate::store::remote::Server::health) it reports, if any, have distinct names.
///
/// The accounts of `accounts` are all new. Takes some 4,000 steps.
///
/// # Panics
///
/// At the first step that breaks the contract, or if a call fails. The message says how.
pub async fn check_accounts<A: Accounts>(accounts: A, seed: u64) {
    let accounts = Arc::new(accounts);
    check_trace(&accounts, &mut Random::new(seed)).await;
    check_bounds(&accounts).await;
    check_references_at_once(&accounts).await;
    check_units_at_once(&accounts).await;
    let health = accounts.health();
    let names: HashSet<_> = health.iter().map(NodeHealth::name).collect();
    assert_eq!(names.len(), health.len(), "two nodes have one name");
}

const HOUR: u64 = 3_600_000;

/// A process that asks for steps on one key.
struct Process<A> {
    accounts: Arc<A>,
    keys: LimiterKeys,
    tag: KeyTag,
}

impl<A: Accounts> Process<A> {
    fn new(accounts: &Arc<A>, limiter: &str, key: &str) -> Self {
        let keys = LimiterKeys::new(accounts.secret(), limiter);
        let tag = keys.tag(&PartitionKey::from(key));
        Self { accounts: Arc::clone(accounts), keys, tag }
    }

    async fn apply(&self, step: AccountStep) -> AccountReply {
        // Long enough for a machine that is busy.
        let limits = CallLimits::until(Instant::now() + Duration::from_secs(60));
        self.accounts.apply(&self.keys.key(self.tag), step, limits).await.expect("no step fails")
    }

    async fn take(&self, units: u64) -> AccountReply {
        self.apply(AccountStep::Take { units, shortfall: Shortfall::Rejected, reference: None }).await
    }

    async fn credit(&self, units: u64, expiry: CreditExpiry, reference: Option<&str>) -> AccountReply {
        let reference = reference.map(|reference| self.keys.credited(reference));
        self.apply(AccountStep::Credit { units, expiry, reference }).await
    }

    async fn owe(&self, units: u64, reference: Option<&str>) -> AccountReply {
        let reference = reference.map(|reference| self.keys.charged(reference));
        self.apply(AccountStep::Take { units, shortfall: Shortfall::Owed, reference }).await
    }
}

fn at(millis: u64) -> CreditExpiry {
    CreditExpiry::At(UNIX_EPOCH + Duration::from_millis(millis))
}

/// Lots expire hours apart, and not during the test.
async fn check_trace<A: Accounts>(accounts: &Arc<A>, random: &mut Random) {
    let processes = ["a", "b"].map(|key| [0, 1].map(|_| Process::new(accounts, "trace", key)));
    let mut ledgers = [(); 2].map(|()| Ledger::default());
    let mut charges: [Vec<(Vec<u64>, Paid)>; 2] = Default::default();
    let mut done: HashSet<(usize, Reference)> = HashSet::new();
    let begin = processes[0][0].take(0).await.now;
    let now = begin.as_nanos() / 1_000_000;
    let mut last = begin;
    for step in 0..600 {
        let key = usize::from(random.below(4) == 0);
        let process = &processes[key][usize::from(random.below(2) == 0)];
        let ledger = &mut ledgers[key];
        let units = 1 + random.below(9);
        let name = format!("reference-{}", random.below(60));
        let reference = (random.below(2) == 0).then_some(&*name);
        let context = format!("step {step}: {units} units of key {key}, {reference:?}");
        let mut enters = |reference: Option<Reference>| reference.is_none_or(|reference| done.insert((key, reference)));
        let reply = match random.below(8) {
            0 | 1 => {
                let expires = now + HOUR * (1 + random.below(5));
                let is_new = enters(reference.map(|reference| process.keys.credited(reference)));
                (0..if is_new { units } else { 0 }).for_each(|_| ledger.add(expires, now));
                let reply = process.credit(units, at(expires), reference).await;
                assert_eq!(reply.done == AccountDone::Repeated, !is_new, "{context}");
                reply
            }
            2..=4 => {
                let taken = ledger.charge(units);
                let reply = process.take(units).await;
                assert_eq!(reply.taken, taken.as_ref().map_or(0, |taken| taken.len() as u64), "{context}");
                assert_eq!(reply.done == AccountDone::Step, taken.is_some(), "{context}");
                charges[key].extend(taken.zip(reply.paid));
                reply
            }
            5 if !charges[key].is_empty() => {
                let index = random.below(charges[key].len() as u64);
                let (taken, paid) = charges[key].swap_remove(usize::try_from(index).expect("few"));
                let units = random.below(taken.len() as u64 + 1);
                ledger.refund(&taken, units, now);
                process.apply(AccountStep::GiveBack { units, paid }).await
            }
            6 if random.below(3) == 0 => {
                let is_new = enters(reference.map(|reference| process.keys.charged(reference)));
                ledger.debit(if is_new { units } else { 0 });
                let reply = process.owe(units, reference).await;
                assert_eq!(reply.done == AccountDone::Repeated, !is_new, "{context}");
                reply
            }
            6 if random.below(3) == 0 => {
                let taken = units.min(ledger.left());
                ledger.charge(taken);
                let step = AccountStep::Take { units, shortfall: Shortfall::Forgiven, reference: None };
                let reply = process.apply(step).await;
                assert_eq!(reply.taken, taken, "{context}");
                reply
            }
            6 => {
                ledger.forgive();
                process.apply(AccountStep::Forgive).await
            }
            _ => {
                let reply = process.take(0).await;
                let last =
                    ledger.state().0.last_key_value().map_or(Expiry::NEVER, |(end, _)| Expiry::from_millis(*end));
                assert_eq!(reply.suffices_until, last, "{context}");
                reply
            }
        };
        assert_eq!(reply.left, ledger.left(), "{context}");
        assert!(reply.now >= last, "{context}: the time has gone back from {last:?} to {:?}", reply.now);
        last = reply.now;
    }
    assert!(last.as_nanos() / 1_000_000 < now + HOUR, "the test took an hour");
}

async fn check_bounds<A: Accounts>(accounts: &Arc<A>) {
    let process = Process::new(accounts, "bounds", "a");
    let now = process.take(0).await.now.as_nanos() / 1_000_000;
    for number in 1..=MOST_LOTS as u64 {
        assert_eq!(process.credit(1, at(now + HOUR * number), None).await.done, AccountDone::Step);
    }
    let beyond = at(now + HOUR * 65);
    let reply = process.credit(1, beyond, Some("x")).await;
    assert_eq!((reply.done, reply.left), (AccountDone::Unfit(Unfit::TooManyLots), 64));
    let reply = process.credit(Quota::MAX_UNITS, at(now + HOUR), None).await;
    assert_eq!(reply.done, AccountDone::Unfit(Unfit::TooManyUnits));
    assert_eq!(process.credit(1, at(now - 1), Some("x")).await.done, AccountDone::Unfit(Unfit::Expired));
    let reply = process.take(2).await;
    let [first, last] = [1, 2].map(|number| Expiry::from_millis(now + HOUR * number));
    assert_eq!(reply.paid, Some(Paid { first, last, by_last: 1 }));
    let last = Expiry::from_millis(now + HOUR * 64);
    assert_eq!(reply.suffices_until, Expiry::from_millis(now + HOUR * 63), "{last:?} pays for one alone");
    assert_eq!(process.credit(1, beyond, Some("x")).await.done, AccountDone::Step, "it was not entered before");
    assert_eq!(process.owe(Quota::MAX_UNITS, None).await.left, 0);
    assert_eq!(process.owe(63 + 1, Some("x")).await.done, AccountDone::Unfit(Unfit::TooManyUnits));
    assert_eq!(process.apply(AccountStep::Forgive).await.left, 0);
    let reply = process.credit(3, CreditExpiry::In(Duration::from_secs(3_600)), None).await;
    assert_eq!((reply.done, reply.left), (AccountDone::Step, 3));
    assert_eq!(process.credit(3, CreditExpiry::Never, None).await.left, 6);
    assert_eq!(process.take(6).await.paid.map(|paid| paid.last), Some(Expiry::NEVER));
    let reply = process.owe(5, Some("x")).await;
    assert_eq!((reply.done, reply.taken), (AccountDone::Step, 0), "a step that was not done leaves no reference");
    let reply = process.credit(7, CreditExpiry::Never, None).await;
    assert_eq!(reply.left, 2, "what it owes is paid first");
}

const TASKS: usize = 8;

async fn check_references_at_once<A: Accounts>(accounts: &Arc<A>) {
    let processes: [_; TASKS] = std::array::from_fn(|_| Arc::new(Process::new(accounts, "references", "a")));
    for round in 0..20_u64 {
        for is_credit in [true, false] {
            let mut tasks = JoinSet::new();
            for process in processes.each_ref().map(Arc::clone) {
                let reference = format!("invoice-{round}");
                tasks.spawn(async move {
                    let reference = Some(&*reference);
                    let credit = async || process.credit(3, CreditExpiry::Never, reference).await;
                    if is_credit { credit().await } else { process.owe(2, reference).await }
                });
            }
            let done = tasks.join_all().await.into_iter().filter(|reply| reply.done == AccountDone::Step).count();
            assert_eq!(done, 1, "of steps with one reference, one is done");
        }
        assert_eq!(processes[0].take(0).await.left, round + 1);
    }
}

async fn check_units_at_once<A: Accounts>(accounts: &Arc<A>) {
    let process = Process::new(accounts, "units", "a");
    process.credit(200, CreditExpiry::In(Duration::from_secs(3_600)), None).await;
    process.credit(200, CreditExpiry::Never, None).await;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let process = Process::new(accounts, "units", "a");
            tokio::spawn(async move {
                let mut used = 0;
                for number in 0..40 {
                    let reply = process.take(3).await;
                    match reply.paid {
                        Some(paid) if (number + task) % 3 == 0 => {
                            process.apply(AccountStep::GiveBack { units: 3, paid }).await;
                        }
                        _ => used += reply.taken,
                    }
                }
                used
            })
        })
        .collect();
    let mut used = 0;
    for task in tasks {
        used += task.await.expect("no task panics");
    }
    assert_eq!(used + process.take(0).await.left, 400, "a unit is lost, or was used twice");
}
