//! Balances that many processes share, on Redis: each step on an account is one script call.

mod script;

use std::sync::Arc;

use tower_sluice::LimiterError;
use tower_sluice::store::remote::accounts::{AccountReply, AccountStep};
use tower_sluice::store::remote::{Accounts, AnyRecords, CallLimits, RemoteKey};

use crate::connection::{Fault, FaultKind, Redis};
use crate::script::{Key, ScriptReply};
use crate::store::failed;

/// The accounts of a [`SharedBalance`](tower_sluice::SharedBalance) on Redis (6.2 or later) or Valkey.
///
/// # What is kept
///
/// A key is a hash with a field for each lot. It expires with its last lot, or never if a lot never does, or if the key
/// owes something. A reference in a credit or a charge by hand is a separate key beside it. The server must not evict
/// keys (`maxmemory-policy noeviction`), and should write its log at once (`appendfsync always`), because data that it
/// loses is lost.
///
/// # Cost
///
/// One round trip per step, even for a rejection or with a reference. On the server, a key with one lot takes 120
/// bytes, and each further lot 15; a reference takes 140. A script reads all the key's lots: 64 at most.
impl Accounts for Redis {
    async fn apply(
        &self,
        key: &RemoteKey<'_>,
        step: AccountStep,
        limits: CallLimits,
    ) -> Result<AccountReply, LimiterError> {
        let name = |kind: &[&str]| Key::new(self.prefix(), key.limiter(), key.tag(), kind);
        let call = script::call(name(&["l"]), step, |reference| name(&["h", &reference.tag().to_string()]));
        let call = call.ok_or_else(|| failed(FaultKind::Unintelligible))?;
        let value = self.call_by(&call, limits).await.map_err(failed)?;
        let reply = ScriptReply::read(value, call.keys.len()).and_then(|reply| script::read(&reply));
        reply.map_err(|problem| failed(Fault::from(problem)))
    }

    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        Some(AnyRecords::new(Self::records(self)))
    }
}
