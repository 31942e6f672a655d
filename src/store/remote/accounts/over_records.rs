//! Accounts over [`Records`], which are swapped one at a time.
//!
//! A step without a reference reads the account's record, and swaps it. A step with a reference must be done once, even
//! if a process is killed between two calls, and two records cannot be swapped at once. So the process that enters it
//! takes these steps:
//!
//! 1. It reads the account.
//! 2. It reads the reference's record, after the account. If either knows the reference, nothing is done.
//! 3. It swaps the account for a value that has both the step's units and the reference.
//! 4. It writes the reference's record.
//! 5. It swaps the account once more, for a value without the reference. If that fails, a later entry does it.
//!
//! A reference is entered once. If two processes enter it, the second swap in step 3 fails, unless its process has read
//! the account after the first swap: then it finds the reference in the account, or it was taken out, and its record
//! was written before, which step 2 reads. This needs a guarantee that an account never has the same value twice, for
//! which it has a number.
//!
//! The test `tests::interleavings` tries all orders in which two entries' calls can arrive, with crashes and lost
//! answers.

use std::sync::Arc;
use std::time::Duration;

use super::record::{AccountRecord, MOST_OPEN, Open};
use super::{AccountDone, AccountReply, AccountStep, Accounts, Reference};
use crate::store::remote::any_records::AnyRecords;
use crate::store::remote::attempts::Attempts;
use crate::store::remote::backend::CallLimits;
use crate::store::remote::limiter_keys::RemoteKey;
use crate::store::remote::records::{Record, Records};
use crate::values::time::Timestamp;
use crate::values::{Expiry, LimiterError};

/// The number of open references that an entry finishes if there are [`MOST_OPEN`].
const FINISHED: usize = 2;

/// The letters for the records of an account and of a reference.
const ACCOUNT: char = 'l';

const REFERENCE: char = 'h';

/// The value in a reference's record, which has no content.
const KNOWN: &[u8] = &[1];

impl<R: Records> Accounts for R {
    async fn apply(
        &self,
        key: &RemoteKey<'_>,
        step: AccountStep,
        limits: CallLimits,
    ) -> Result<AccountReply, LimiterError> {
        let name = key.record(ACCOUNT);
        // If this process sent requests for one key at once, they would only make each other's swap fail.
        let _turn = key.turns().take_in_half(&name, limits.deadline).await.map_err(|reason| self.gave_up(reason))?;
        Entering { records: self, key: *key, limits }.apply(&name, step).await
    }

    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        Some(AnyRecords::shared(Arc::clone(self)))
    }
}

/// A step that is being done.
struct Entering<'a, R> {
    records: &'a R,
    key: RemoteKey<'a>,
    limits: CallLimits,
}

impl<R: Records> Entering<'_, R> {
    fn reference(&self, reference: Reference) -> String {
        self.key.record_of(REFERENCE, reference.tag())
    }

    async fn apply(&self, name: &str, step: AccountStep) -> Result<AccountReply, LimiterError> {
        let mut attempts = Attempts::new(self.limits.deadline);
        loop {
            let Record { value, now } = self.records.read(name, self.limits).await?;
            let mut record = AccountRecord::read(value.as_deref(), now).ok_or_else(no_account)?;
            if let Some(reference) = step.reference() {
                if self.is_known(&record, reference).await? {
                    let left = record.left();
                    if let Some(open) = record.find(reference) {
                        self.settle(name, value, record, open, now).await;
                    }
                    return Ok(repeated(left, now));
                }
                self.make_room(&mut record, now).await?;
            }
            let (reply, is_changed) = record.apply(step, now);
            if !is_changed {
                return Ok(reply);
            }
            let (new, lifetime) = record.next(now);
            if self.records.swap(name, value.as_deref(), Some(&new), lifetime, self.limits).await? {
                if let Some(open) = step.reference().and_then(|reference| record.find(reference)) {
                    self.settle(name, Some(new), record, open, now).await;
                }
                return Ok(reply);
            }
            attempts.lost().await.map_err(|reason| self.records.gave_up(reason))?;
        }
    }

    /// Whether a reference was entered. The account was read before.
    async fn is_known(&self, record: &AccountRecord, reference: Reference) -> Result<bool, LimiterError> {
        if record.find(reference).is_some() {
            return Ok(true);
        }
        Ok(self.records.read(&self.reference(reference), self.limits).await?.value.is_some())
    }

    /// Finishes the oldest references in an account that has [`MOST_OPEN`]. They are taken out of the value that is
    /// written next.
    async fn make_room(&self, record: &mut AccountRecord, now: Timestamp) -> Result<(), LimiterError> {
        if record.open().len() < MOST_OPEN {
            return Ok(());
        }
        let oldest: Vec<_> = record.open().iter().copied().take(FINISHED).collect();
        for open in oldest {
            self.write_reference(open, now).await?;
            record.finish(open.reference);
        }
        Ok(())
    }

    /// Writes the record for a reference that is in the account.
    async fn write_reference(&self, open: Open, now: Timestamp) -> Result<(), LimiterError> {
        let lifetime =
            if open.until == Expiry::NEVER.instant() { Duration::MAX } else { open.until.saturating_since(now) };
        let name = self.reference(open.reference);
        // If there is one, another process has finished this entry.
        self.records.swap(&name, None, Some(KNOWN), lifetime, self.limits).await.map(drop)
    }

    /// Writes the record for a reference that is in the account with this value, and takes the reference out. A failure
    /// is ignored, because the reference stays in the account, where each entry finds it.
    async fn settle(&self, name: &str, value: Option<Vec<u8>>, mut record: AccountRecord, open: Open, now: Timestamp) {
        if self.write_reference(open, now).await.is_err() {
            return;
        }
        record.finish(open.reference);
        let (new, lifetime) = record.next(now);
        let _ = self.records.swap(name, value.as_deref(), Some(&new), lifetime, self.limits).await;
    }
}

fn repeated(left: u64, now: Timestamp) -> AccountReply {
    AccountReply { done: AccountDone::Repeated, left, taken: 0, paid: None, suffices_until: Expiry::NEVER, now }
}

#[cold]
fn no_account() -> LimiterError {
    LimiterError::new("the record of the key holds no balance; another program writes to the same names")
}
