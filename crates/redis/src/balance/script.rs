//! The scripts that keep balances on the server, and how to read their replies.

use std::time::{Duration, UNIX_EPOCH};

use smallvec::smallvec;
use tower_sluice::internal::redis::{CreditExpiry, Expiry, Paid, REFERENCE_KEPT, Shortfall, Unfit, UnitsLeft};

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

/// What a script has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Nothing,
    Step,
    /// Nothing: the reference was used before.
    Repeated,
    Unfit(Unfit),
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BalanceReply {
    pub(super) done: Done,
    /// The units that the key has afterwards.
    pub(super) left: UnitsLeft,
    pub(super) taken: u64,
    pub(super) paid: Option<Paid>,
}

/// The call that charges `units`; 0 only reads. `record` is the key of the reference of a charge by hand.
pub(super) fn take(key: Key, record: Option<Key>, units: u64, shortfall: Shortfall) -> ScriptCall {
    call(&TAKE, key, record, [units, shortfall as u64, millis(REFERENCE_KEPT)])
}

/// The call that gives back units of a charge.
pub(super) fn give_back(key: Key, units: u64, paid: Paid) -> ScriptCall {
    call(&GIVE_BACK, key, None, [units, paid.first.millis(), paid.last.millis(), paid.by_last])
}

/// The call that adds units.
pub(super) fn credit(key: Key, record: Option<Key>, units: u64, expiry: CreditExpiry) -> ScriptCall {
    let (micros, expiry) = match expiry {
        CreditExpiry::Never => (0, Expiry::NEVER.millis()),
        // The sum of this and any time of a server is exact. Zero has a meaning of its own.
        CreditExpiry::In(span) => (span.as_nanos().div_ceil(1_000).clamp(1, (1 << 52) - 1), 0),
        CreditExpiry::At(at) => (0, at_millis(at.duration_since(UNIX_EPOCH).unwrap_or_default())),
    };
    let micros = u64::try_from(micros).unwrap_or(u64::MAX);
    call(&CREDIT, key, record, [units, micros, expiry, millis(REFERENCE_KEPT)])
}

/// The call that forgives what a key owes.
pub(super) fn forgive(key: Key) -> ScriptCall {
    call(&FORGIVE, key, None, [0])
}

fn call<const N: usize>(script: &'static Script, key: Key, record: Option<Key>, args: [u64; N]) -> ScriptCall {
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

impl BalanceReply {
    pub(super) fn read(reply: &ScriptReply) -> Result<Self, BadReply> {
        let mut numbers = reply.old(0)?.ok_or(BadReply::Shape)?.split(|byte| *byte == b';').map(whole);
        let mut number = || numbers.next().flatten().ok_or(BadReply::Shape);
        let [left, taken, first, last, by_last, suffices_until] =
            [number()?, number()?, number()?, number()?, number()?, number()?];
        let done = match reply.admitted {
            0 => Done::Nothing,
            1 => Done::Step,
            2 => Done::Repeated,
            3 => Done::Unfit(Unfit::TooManyLots),
            4 => Done::Unfit(Unfit::TooManyUnits),
            5 => Done::Unfit(Unfit::Expired),
            _ => return Err(BadReply::Shape),
        };
        let left = UnitsLeft::new(left, Expiry::from_millis(suffices_until), reply.now);
        let paid = Paid { first: Expiry::from_millis(first), last: Expiry::from_millis(last), by_last };
        Ok(Self { done, left, taken, paid: (taken > 0).then_some(paid) })
    }
}
