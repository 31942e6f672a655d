//! The scripts that keep balances on the server, and how to read their replies.

use std::time::{Duration, UNIX_EPOCH};

use smallvec::smallvec;
use tower_sluice::internal::remote::REFERENCE_KEPT;
use tower_sluice::store::remote::accounts::{
    AccountDone, AccountReply, AccountStep, CreditExpiry, Expiry, Paid, Reference, Shortfall, Unfit,
};

use crate::script::{BadReply, Key, Script, ScriptCall, ScriptReply, whole};

macro_rules! balance_script {
    ($block:literal) => {
        Script::new(concat!(
            include_str!("lua/open.lua"),
            include_str!(concat!("lua/", $block, ".lua")),
            include_str!("lua/close.lua")
        ))
    };
}

static TAKE: Script = balance_script!("take");

static GIVE_BACK: Script = balance_script!("give_back");

static CREDIT: Script = balance_script!("credit");

static FORGIVE: Script = balance_script!("forgive");

/// The call that does a step; `None` for a step without a script. `record` names a reference's key.
pub(super) fn call(key: Key, step: AccountStep, record: impl Fn(Reference) -> Key) -> Option<ScriptCall> {
    Some(match step {
        AccountStep::Take { units, shortfall, reference } => {
            let shortfall = match shortfall {
                Shortfall::Rejected => 0,
                Shortfall::Forgiven => 1,
                Shortfall::Owed => 2,
            };
            script_call(&TAKE, key, reference.map(record), [units, shortfall, millis(REFERENCE_KEPT)])
        }
        AccountStep::GiveBack { units, paid } => {
            script_call(&GIVE_BACK, key, None, [units, paid.first.millis(), paid.last.millis(), paid.by_last])
        }
        AccountStep::Credit { units, expiry, reference } => {
            let (micros, expiry) = match expiry {
                CreditExpiry::Never => (0, Expiry::NEVER.millis()),
                // The sum of this and any server time is exact. Zero has a separate meaning.
                CreditExpiry::In(span) => (span.as_nanos().div_ceil(1_000).clamp(1, (1 << 52) - 1), 0),
                CreditExpiry::At(at) => (0, at_millis(at.duration_since(UNIX_EPOCH).unwrap_or_default())),
            };
            let micros = u64::try_from(micros).unwrap_or(u64::MAX);
            script_call(&CREDIT, key, reference.map(record), [units, micros, expiry, millis(REFERENCE_KEPT)])
        }
        AccountStep::Forgive => script_call(&FORGIVE, key, None, [0]),
        _ => return None,
    })
}

fn script_call<const N: usize>(script: &'static Script, key: Key, record: Option<Key>, args: [u64; N]) -> ScriptCall {
    let mut call = ScriptCall { script, keys: smallvec![key], args: args.into_iter().collect(), texts: Vec::new() };
    call.keys.extend(record);
    call
}

/// A millisecond since the Unix epoch, rounded up.
fn at_millis(since: Duration) -> u64 {
    Expiry::from_millis(millis(since)).millis()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Reads a script's reply.
pub(super) fn read(reply: &ScriptReply) -> Result<AccountReply, BadReply> {
    let mut numbers = reply.old(0)?.ok_or(BadReply::Shape)?.split(|byte| *byte == b';').map(whole);
    let mut number = || numbers.next().flatten().ok_or(BadReply::Shape);
    let [left, taken, first, last, by_last, suffices_until] =
        [number()?, number()?, number()?, number()?, number()?, number()?];
    let done = match reply.admitted {
        0 => AccountDone::Nothing,
        1 => AccountDone::Step,
        2 => AccountDone::Repeated,
        3 => AccountDone::Unfit(Unfit::TooManyLots),
        4 => AccountDone::Unfit(Unfit::TooManyUnits),
        5 => AccountDone::Unfit(Unfit::Expired),
        _ => return Err(BadReply::Shape),
    };
    let paid = Paid { first: Expiry::from_millis(first), last: Expiry::from_millis(last), by_last };
    let suffices_until = Expiry::from_millis(suffices_until);
    Ok(AccountReply { done, left, taken, paid: (taken > 0).then_some(paid), suffices_until, now: reply.now })
}
