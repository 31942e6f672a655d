//! [`AccountRecord`]: an account as a record's value.

use std::time::Duration;

use super::{AccountDone, AccountReply, AccountStep, Reference};
use crate::store::remote::tag::KeyTag;
use crate::values::account::{Account, Lot};
use crate::values::time::Timestamp;
use crate::values::{Expiry, Paid, REFERENCE_KEPT, Shortfall};

/// A key's account, and the references that were entered with it and may not have their own record yet.
///
/// Its bytes, with numbers in big-endian order:
///
/// | bytes | |
/// |--:|---|
/// | 1 | [`VERSION`] |
/// | 8 | the number of the write |
/// | 8 | the units that the key owes |
/// | 2 | how many lots follow |
/// | 16 each | the millisecond at which a lot expires, and its units; those that expire first are first |
/// | 1 | how many references follow |
/// | 24 each | 128 bits of a reference, and the nanosecond until which it is known; the oldest first |
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccountRecord {
    /// Grows with each write, and begins with the time. So a value never comes back, and a swap that has read a value
    /// fails if anything was written since.
    number: u64,
    account: Account,
    open: Vec<Open>,
}

/// A reference that was entered, and that may not have its own record yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) reference: Reference,
    pub(super) until: Timestamp,
}

const VERSION: u8 = 1;

/// If this many references are open, an entry finishes two of them first, so there are never more, and each entry is
/// bounded.
pub(super) const MOST_OPEN: usize = 4;

/// How long an empty account is kept: far longer than any request takes. If a record were deleted while a request is
/// between its read and its swap, it would come back looking unchanged.
const KEPT_EMPTY: Duration = Duration::from_secs(3_600);

impl AccountRecord {
    /// Reads a record's value, without the parts that have expired. `None` if it isn't an account.
    pub(super) fn read(value: Option<&[u8]>, now: Timestamp) -> Option<Self> {
        let mut record = match value {
            Some(bytes) => Self::from_bytes(bytes)?,
            None => Self { number: now.as_nanos() / 1_000, account: Account::default(), open: Vec::new() },
        };
        record.account.expire(now);
        record.open.retain(|open| open.until > now);
        Some(record)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [VERSION] = reader.next()? else { return None };
        let [number, owed] = [reader.number()?, reader.number()?];
        let lots = (0..u16::from_be_bytes(reader.next()?)).map(|_| {
            let millis = reader.number().filter(|millis| *millis <= Expiry::NEVER.millis())?;
            Some(Lot { expiry: Expiry::from_millis(millis), units: reader.number()? })
        });
        let account = Account::from_parts(lots.collect::<Option<_>>()?, owed)?;
        let [count] = reader.next()?;
        let open = (0..count).map(|_| {
            let reference = Reference(KeyTag::from_bits(u128::from_be_bytes(reader.next()?)));
            Some(Open { reference, until: Timestamp::from_nanos(reader.number()?) })
        });
        let open = open.collect::<Option<_>>()?;
        reader.0.is_empty().then_some(Self { number, account, open })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let lots = self.account.lots();
        let mut bytes = Vec::with_capacity(20 + 16 * lots.len() + 24 * self.open.len());
        bytes.push(VERSION);
        bytes.extend(self.number.to_be_bytes());
        bytes.extend(self.account.owed().to_be_bytes());
        // A key has 64 lots after a credit, and refunds add some.
        bytes.extend(u16::try_from(lots.len()).unwrap_or(u16::MAX).to_be_bytes());
        for lot in lots.iter().take(usize::from(u16::MAX)) {
            bytes.extend(lot.expiry.millis().to_be_bytes());
            bytes.extend(lot.units.to_be_bytes());
        }
        bytes.extend(u8::try_from(self.open.len()).unwrap_or(u8::MAX).to_be_bytes());
        for Open { reference, until } in self.open.iter().take(usize::from(u8::MAX)) {
            bytes.extend(reference.0.to_bits().to_be_bytes());
            bytes.extend(until.as_nanos().to_be_bytes());
        }
        bytes
    }

    /// The record's next value, and how long it is kept: until [`KEPT_EMPTY`] after its units expire and its references
    /// are forgotten, and forever while it owes units.
    pub(super) fn next(&mut self, now: Timestamp) -> (Vec<u8>, Duration) {
        self.number = self.number.saturating_add(1);
        let last = self.account.lots().last().map_or(now, |lot| lot.expiry.instant());
        let last = self.open.iter().map(|open| open.until).fold(last, Timestamp::max);
        let is_kept = self.account.owed() > 0 || last == Expiry::NEVER.instant();
        let lifetime = if is_kept { Duration::MAX } else { last.saturating_since(now).saturating_add(KEPT_EMPTY) };
        (self.to_bytes(), lifetime)
    }

    /// The units that are left.
    pub(super) fn left(&self) -> u64 {
        self.account.left()
    }

    pub(super) fn open(&self) -> &[Open] {
        &self.open
    }

    /// The entry for this reference, if it is open.
    pub(super) fn find(&self, reference: Reference) -> Option<Open> {
        self.open.iter().copied().find(|open| open.reference == reference)
    }

    /// Forgets a reference that has its own record.
    pub(super) fn finish(&mut self, reference: Reference) {
        self.open.retain(|open| open.reference != reference);
    }

    /// Does a step. Returns the outcome, and whether anything has changed. A step with a reference leaves it open.
    pub(super) fn apply(&mut self, step: AccountStep, now: Timestamp) -> (AccountReply, bool) {
        let before = self.account.clone();
        let reply = step_on(&mut self.account, step, now);
        if reply.done != AccountDone::Step {
            self.account = before;
            return (reply, false);
        }
        if let Some(open) = opens(step, now) {
            self.open.push(open);
            return (reply, true);
        }
        (reply, self.account != before)
    }
}

/// The step's reference at `now`, and until when it is known.
fn opens(step: AccountStep, now: Timestamp) -> Option<Open> {
    let until = match step {
        AccountStep::Credit { expiry, .. } => expiry.reference_until(now),
        _ => now.saturating_add(REFERENCE_KEPT),
    };
    step.reference().map(|reference| Open { reference, until })
}

/// Does a step on an account from which expired lots were removed.
fn step_on(account: &mut Account, step: AccountStep, now: Timestamp) -> AccountReply {
    let mut reply =
        AccountReply { done: AccountDone::Step, left: 0, taken: 0, paid: None, suffices_until: Expiry::NEVER, now };
    match step {
        AccountStep::Take { units, shortfall, .. } => {
            reply.suffices_until = account.suffices_until(units);
            let (done, taken, paid) = take(account, units, shortfall);
            (reply.done, reply.taken, reply.paid) = (done, taken, paid);
        }
        AccountStep::GiveBack { units, paid } => account.give_back(units, paid, now),
        AccountStep::Credit { units, expiry, .. } => {
            if let Err(unfit) = account.credit(units, expiry.from(now), now) {
                reply.done = AccountDone::Unfit(unfit);
            }
        }
        AccountStep::Forgive => account.forgive(),
    }
    AccountReply { left: account.left(), ..reply }
}

fn take(account: &mut Account, units: u64, shortfall: Shortfall) -> (AccountDone, u64, Option<Paid>) {
    if units == 0 || shortfall == Shortfall::Rejected && account.left() < units {
        return (AccountDone::Nothing, 0, None);
    }
    match account.take(units, shortfall) {
        Ok((taken, paid)) => (AccountDone::Step, taken, paid),
        Err(unfit) => (AccountDone::Unfit(unfit), 0, None),
    }
}

/// The bytes that are left to read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn next<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (next, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*next)
    }

    fn number(&mut self) -> Option<u64> {
        self.next().map(u64::from_be_bytes)
    }
}
