//! The sliding window: one item per key, with a count for each window.
//!
//! An item has `w<number>` for the present window and the one before it. How much the present window may hold depends
//! on the count of the one before, and conditions have no arithmetic. So a process reads that count once per key and
//! window, and each write names it in its condition. It no longer changes, unless by a refund, or by a process whose
//! clock is a little behind. Then the write does not apply, and the next one names the new count.
//!
//! If a process whose clock is a little ahead has begun the next window, then that is the present one for all, as for a
//! clock that was set back.

use std::time::Duration;

use tower_sluice::Receipt;
use tower_sluice::algorithm::{Algorithm, SlidingWindow, SlidingWindowState};
use tower_sluice::time::Timestamp;

use super::bytes::{self, SLIDING_WINDOW};
use super::sealed::Items;
use super::{BadItem, Charge, Moment, Plan, Unfit, fitting};
use crate::hints::Hint;
use crate::table::{Item, Write, number};

/// A window by its number, and the counts that a decision needs.
#[derive(Clone, Copy, Debug)]
struct Counts {
    window: u64,
    previous: u32,
    current: u32,
}

/// The attribute of the count of a window. Before the first window there is none, whose attribute is never written.
fn name(window: Option<u64>) -> String {
    window.map_or_else(|| "w".to_owned(), |window| format!("w{window}"))
}

/// Returns the count of a window, zero if there is none.
fn count(item: &Item, window: Option<u64>) -> Result<u32, BadItem> {
    let name = name(window);
    if item.contains_key(&name) { number(item, &name).ok_or(BadItem) } else { Ok(0) }
}

fn period(algorithm: &SlidingWindow) -> u64 {
    bytes::period_nanos(&algorithm.quota())
}

fn present(algorithm: &SlidingWindow, at: Moment) -> u64 {
    at.now.as_nanos() / period(algorithm)
}

/// Whether a right clock may have reached this window.
fn may_have_begun(algorithm: &SlidingWindow, window: u64, at: Moment) -> bool {
    window.saturating_mul(period(algorithm)) <= at.latest().as_nanos()
}

fn state(algorithm: &SlidingWindow, counts: Counts, now: Timestamp) -> SlidingWindowState {
    let mut numbers = [0; 16];
    numbers[..8].copy_from_slice(&counts.window.to_be_bytes());
    numbers[8..12].copy_from_slice(&counts.previous.to_be_bytes());
    numbers[12..].copy_from_slice(&counts.current.to_be_bytes());
    bytes::state(algorithm, SLIDING_WINDOW, &algorithm.quota(), &numbers, now).expect("the numbers of a state")
}

fn counts(algorithm: &SlidingWindow, state: &SlidingWindowState) -> Counts {
    let numbers: [u8; 16] = bytes::numbers(algorithm, state);
    let four = |index: usize| u32::from_be_bytes(numbers[index..index + 4].try_into().expect("four bytes"));
    let window = u64::from_be_bytes(numbers[..8].try_into().expect("eight bytes"));
    Counts { window, previous: four(8), current: four(12) }
}

/// Reads the counts that matter now. `None` if there are none.
fn read(algorithm: &SlidingWindow, item: Option<&Item>, at: Moment) -> Result<Option<Counts>, BadItem> {
    let Some(item) = item else { return Ok(None) };
    if !item.keys().any(|name| name.starts_with('w')) {
        return Err(BadItem);
    }
    let present = present(algorithm, at);
    let has_next = item.contains_key(&name(Some(present + 1))) && may_have_begun(algorithm, present + 1, at);
    let window = present + u64::from(has_next);
    let (previous, current) = (count(item, window.checked_sub(1))?, count(item, Some(window))?);
    Ok((previous > 0 || current > 0).then_some(Counts { window, previous, current }))
}

/// Returns how many units fit into the window beside the previous one, if nothing else is in it.
fn room(algorithm: &SlidingWindow, window: u64, previous: u32, now: Timestamp) -> u32 {
    let empty = state(algorithm, Counts { window, previous, current: 0 }, now);
    algorithm.decide(Some(empty), now, 0).0.remaining()
}

/// The write of `count` requests to this window, of which so much is used that they fit beside the previous one, and one
/// more does not, if one more is waiting. `stale` are attributes that no decision needs any more.
fn charge(
    algorithm: &SlidingWindow,
    (window, previous): (u64, u32),
    stale: impl Iterator<Item = String>,
    count: u32,
    charge: Charge,
) -> Write {
    let Charge { at, cost, .. } = charge;
    let all = count * cost;
    let most = room(algorithm, window, previous, at.now).saturating_sub(all);
    let mut condition = match previous {
        0 => "(attribute_not_exists(#p) OR #p = :p)".to_owned(),
        _ => "#p = :p".to_owned(),
    };
    let mut update = "ADD #c :c SET x = :x".to_owned();
    let least = most.checked_sub(cost).filter(|_| count < charge.count);
    condition += if least.is_some() {
        " AND #c > :least AND #c <= :most"
    } else {
        " AND (attribute_not_exists(#c) OR #c <= :most)"
    };
    let next = name(window.checked_add(1));
    let mut separator = " REMOVE ";
    if may_have_begun(algorithm, window + 1, at) {
        condition += " AND attribute_not_exists(#n)";
    } else {
        // Left by a clock that was wrong.
        update += " REMOVE #n";
        separator = ", ";
    }
    let mut stales = Vec::new();
    for (index, stale) in stale.filter(|stale| *stale != next).enumerate() {
        update += separator;
        update += &format!("#s{index}");
        separator = ", ";
        stales.push((format!("#s{index}"), stale));
    }
    let end = Timestamp::from_nanos(window.saturating_add(2).saturating_mul(period(algorithm)));
    let mut write = Write::new(update, condition).name("#c", name(Some(window))).name("#n", next);
    write = write.name("#p", name(window.checked_sub(1))).number(":p", previous).number(":c", all);
    write = write.number(":most", most).number(":x", at.expiry(end));
    write = least.into_iter().fold(write, |write, least| write.number(":least", least));
    stales.into_iter().fold(write, |write, (place, stale)| write.name(place, stale))
}

/// Returns the window in which the charge was made, and how much of it still counts.
fn charged_in(algorithm: &SlidingWindow, cost: u32, receipt: Receipt, at: Moment) -> Option<(u64, u32)> {
    let present = present(algorithm, at);
    // A refund takes from the window that the receipt names: so the one that loses by it is that window.
    [present, present + 1].into_iter().find_map(|window| {
        let full = state(algorithm, Counts { window, previous: cost, current: cost }, at.now);
        let left = counts(algorithm, &algorithm.refund(full, at.now, cost, receipt));
        if left.current < cost {
            Some((window, cost - left.current))
        } else if left.previous < cost {
            Some((window.checked_sub(1)?, cost - left.previous))
        } else {
            None
        }
    })
}

impl Items for SlidingWindow {
    fn check_fit(&self, clock_error: Duration) -> Result<(), Unfit> {
        let period = self.quota().period();
        // The phase of the greatest draw is the latest: only without staggering is it zero.
        if !self.phase(u64::MAX).is_zero() {
            Err(Unfit::Staggered)
        } else if period < clock_error.saturating_mul(2) {
            Err(Unfit::TooShort { period, clock_error })
        } else {
            Ok(())
        }
    }

    /// With the period, by which windows are numbered.
    fn suffix(&self, _: Timestamp) -> String {
        format!("s{}", period(self))
    }

    fn read(&self, item: Option<&Item>, at: Moment) -> Result<Option<SlidingWindowState>, BadItem> {
        Ok(read(self, item, at)?.map(|counts| state(self, counts, at.now)))
    }

    fn guess(&self, hint: Option<Hint>, asked: Charge) -> Plan {
        let Some(Hint::Window { window, previous }) = hint else { return Plan::Read };
        let present = present(self, asked.at);
        let is_now = window == present || window == present + 1 && may_have_begun(self, window, asked.at);
        let fitting = room(self, window, previous, asked.at.now) / asked.cost;
        match fitting.min(asked.count) {
            count if is_now && count > 0 => {
                let write = charge(self, (window, previous), std::iter::empty(), count, Charge { count, ..asked });
                Plan::Charge(write, count)
            }
            _ => Plan::Read,
        }
    }

    fn plan(&self, item: Option<&Item>, asked: Charge) -> Result<Plan, BadItem> {
        let counts = read(self, item, asked.at)?;
        let (fitting, _) = fitting(self, counts.map(|counts| state(self, counts, asked.at.now)), asked);
        if fitting == 0 {
            return Ok(Plan::Reject);
        }
        let window = counts.map_or_else(|| present(self, asked.at), |counts| counts.window);
        let needed = [window.checked_sub(1), Some(window)].map(name);
        let names = item.into_iter().flat_map(Item::keys).filter(|name| name.starts_with('w'));
        let stale = names.filter(|name| !needed.contains(name)).cloned();
        let previous = counts.map_or(0, |counts| counts.previous);
        Ok(Plan::Charge(charge(self, (window, previous), stale, fitting, asked), fitting))
    }

    fn hint(
        &self,
        _: Option<Hint>,
        _: Option<&SlidingWindowState>,
        new: Option<&SlidingWindowState>,
        _: Moment,
    ) -> Option<Hint> {
        let Counts { window, previous, .. } = counts(self, new?);
        Some(Hint::Window { window, previous })
    }

    fn guess_refund(&self, cost: u32, receipt: Receipt, at: Moment) -> Option<Write> {
        let (window, charged) = charged_in(self, cost, receipt, at)?;
        let write = Write::new("SET #c = #c - :c", "#c >= :c").name("#c", name(Some(window)));
        Some(write.number(":c", charged))
    }

    fn plan_refund(
        &self,
        item: Option<&Item>,
        cost: u32,
        receipt: Receipt,
        at: Moment,
    ) -> Result<Option<Write>, BadItem> {
        let Some((item, (window, charged))) = item.zip(charged_in(self, cost, receipt, at)) else { return Ok(None) };
        let used = count(item, Some(window))?;
        let write = Write::new("SET #c = :n", "#c = :old").name("#c", name(Some(window))).number(":old", used);
        Ok((used > 0).then(|| write.number(":n", used.saturating_sub(charged))))
    }
}
