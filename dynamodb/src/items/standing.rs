//! Bans and debts: `b`, until when the key is banned, and `d`, until when it owes something, in nanoseconds.
//!
//! Only the writes of this file apply to an item with these: all others have the condition that they are absent. While
//! one of them lasts, the state in the item is as of the end.

use tower_sluice::store::remote::Standing;
use tower_sluice::time::Timestamp;

use crate::table::{EXPIRY, Item, KEY, Write, number};

/// The standing of an item, if it has one.
pub(crate) fn read(item: &Item) -> Option<Standing> {
    let time = |name| number(item, name).map(Timestamp::from_nanos);
    Some(Standing { banned_until: time("b")?, owing_until: time("d")?, ..Standing::default() })
}

/// Lets a write of a charge or a refund apply only to an item without a standing.
pub(crate) fn unless_any(mut write: Write) -> Write {
    write.condition = format!("({}) AND attribute_not_exists(b)", write.condition);
    write
}

/// Adds a standing to the write of a state.
pub(crate) fn with(mut write: Write, standing: Standing) -> Write {
    write.update += ", b = :b, d = :d";
    write.number(":b", standing.banned_until.as_nanos()).number(":d", standing.owing_until.as_nanos())
}

/// Takes the standing off an item.
pub(crate) fn over(standing: Standing) -> Write {
    let write = Write::new("REMOVE b, d", "b = :b AND d = :d");
    write.number(":b", standing.banned_until.as_nanos()).number(":d", standing.owing_until.as_nanos())
}

/// Lets a write apply only to exactly this item.
pub(crate) fn replacing(mut write: Write, item: Option<&Item>) -> Write {
    let Some(item) = item else {
        write.condition = format!("attribute_not_exists({KEY})");
        return write;
    };
    let mut conditions = Vec::new();
    // One that gets a standing must not lose another process's.
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

/// Lets a write of a standing apply unless the item's own lasts longer.
pub(crate) fn extending(mut write: Write) -> Write {
    write.condition = "attribute_not_exists(b) OR (b <= :b AND d <= :d)".to_owned();
    write
}
