//! Bans, allowances and debts: a key's [`Standing`], beside its state.
//!
//! An item has `b`, until when the key is banned; `d`, until when it owes something; `a`, until when an operator allows
//! it, if one ever did; `r`, the operator's reason, if there is one; and `s`, the time of the change that made this
//! standing. All times are in nanoseconds. An item without a standing has none of these attributes.
//!
//! Only this file's writes apply to an item with a standing, because all others have the condition that the item does
//! not have one. While the key owes something, the item's state is as of the end of the debt.
//!
//! If a key has an item for each window, a change is made in the present item, and then copied into the items of later
//! windows, unless these have a later change, by `s`. A change of the present item has a later `s` than its
//! predecessor, even if the clock goes back.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use tower_sluice::limiter::OverrideReason;
use tower_sluice::store::remote::Standing;
use tower_sluice::time::Timestamp;

use super::BadItem;
use crate::table::{EXPIRY, Item, KEY, Write, number};

/// A standing's attributes.
pub(crate) const ATTRIBUTES: [&str; 5] = ["b", "d", "a", "r", "s"];

/// A standing, and when it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamped {
    pub(crate) standing: Standing,
    pub(crate) since: Timestamp,
}

impl Stamped {
    /// The time of a change that replaces this standing at `now`.
    pub(crate) fn next_since(self, now: Timestamp) -> Timestamp {
        now.max(self.since.saturating_add(Duration::from_nanos(1)))
    }

    /// Returns `None` if it is over.
    pub(crate) fn in_force(self, now: Timestamp) -> Option<Self> {
        self.standing.is_in_force(now).then_some(self)
    }
}

/// An item's standing, if it has one.
pub(crate) fn read(item: &Item) -> Result<Option<Stamped>, BadItem> {
    let time = |name| number(item, name).map(Timestamp::from_nanos).ok_or(BadItem);
    if !item.contains_key("b") {
        return Ok(None);
    }
    let allowed_until = if item.contains_key("a") { time("a")? } else { Timestamp::ZERO };
    let reason = match item.get("r") {
        Some(reason) => reason.as_s().ok().and_then(|text| OverrideReason::new(text).ok()).ok_or(BadItem)?,
        None => OverrideReason::NONE,
    };
    let standing = Standing { banned_until: time("b")?, owing_until: time("d")?, allowed_until, reason };
    Ok(Some(Stamped { standing, since: time("s")? }))
}

/// Lets a write that charges or refunds apply only to an item without a standing.
pub(crate) fn unless_any(mut write: Write) -> Write {
    write.condition = format!("({}) AND attribute_not_exists(b)", write.condition);
    write
}

/// Adds a standing to a write, or removes it from the item. The item is kept until `expiry` at least.
pub(crate) fn with(mut write: Write, stamped: Option<Stamped>, expiry: u64) -> Write {
    let mut removed = Vec::new();
    for (name, value) in ATTRIBUTES.into_iter().zip(values(stamped)) {
        match value {
            Some(value) => {
                write.update += &format!(", {name} = :{name}");
                write = write.value(format!(":{name}"), value);
            }
            None => removed.push(name),
        }
    }
    if !removed.is_empty() {
        write.update += &format!(" REMOVE {}", removed.join(", "));
    }
    if stamped.is_some() { write.at_least(":x", expiry) } else { write }
}

/// The values of [`ATTRIBUTES`].
fn values(stamped: Option<Stamped>) -> [Option<AttributeValue>; 5] {
    let Some(Stamped { standing, since }) = stamped else { return Default::default() };
    let Standing { banned_until, owing_until, allowed_until, reason } = standing;
    let time = |time: Timestamp| Some(AttributeValue::N(time.as_nanos().to_string()));
    let allowed = time(allowed_until).filter(|_| allowed_until > Timestamp::ZERO);
    let reason = (!reason.is_none()).then(|| AttributeValue::S(reason.as_str().to_owned()));
    [time(banned_until), time(owing_until), allowed, reason, time(since)]
}

/// Removes this standing from an item.
pub(crate) fn over(Stamped { standing, since }: Stamped) -> Write {
    let write = Write::new(format!("REMOVE {}", ATTRIBUTES.join(", ")), "b = :b AND d = :d AND s = :s");
    let write = write.number(":b", standing.banned_until.as_nanos()).number(":d", standing.owing_until.as_nanos());
    write.number(":s", since.as_nanos())
}

/// Lets a write apply only to exactly this item.
pub(crate) fn replacing(mut write: Write, item: Option<&Item>) -> Write {
    let Some(item) = item else {
        write.condition = format!("attribute_not_exists({KEY})");
        return write;
    };
    let mut conditions = Vec::new();
    // A write that adds a standing must not overwrite another process's.
    if !item.contains_key("b") {
        conditions.push("attribute_not_exists(b)".to_owned());
    }
    for (index, (name, value)) in item.iter().filter(|(name, _)| ![KEY, EXPIRY].contains(&name.as_str())).enumerate() {
        conditions.push(format!("#o{index} = :o{index}"));
        write = write.name(format!("#o{index}"), name).value(format!(":o{index}"), value.clone());
    }
    write.condition = conditions.join(" AND ");
    write
}

/// Lets a write with a standing apply unless the item has a later one.
pub(crate) fn replacing_earlier(mut write: Write) -> Write {
    write.condition = "attribute_not_exists(b) OR s < :s".to_owned();
    write
}

/// The condition that an item has a standing from before this time.
pub(crate) fn is_from_before(since: Timestamp) -> Write {
    Write::new("", "s < :s").number(":s", since.as_nanos())
}

/// The condition that an item has a standing of exactly this time.
pub(crate) fn is_from(since: Timestamp) -> Write {
    Write::new("", "s = :s").number(":s", since.as_nanos())
}
