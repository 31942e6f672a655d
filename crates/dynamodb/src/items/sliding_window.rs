//! The sliding window: one item per key, with a count for each window.
//!
//! An item has `w<number>` for the present window and the one before it, `l`, the latest window's number, and `q`, the
//! last charge's quota. How much the present window may hold depends on the previous window's count, and conditions do
//! not have arithmetic. So a process reads that count once per key and window, and each write names it in its
//! condition. It no longer changes, unless by a refund, or by a process whose clock is a little behind. Then the write
//! does not apply, and the next one names the new count.
//!
//! If a process whose clock is a little ahead has begun the next window, or if others have begun it while a request was
//! on its way, then the latest window is the present one for all, as for a clock that was set back.

use tower_sluice::algorithm::{Algorithm, SlidingWindow, SlidingWindowState};
use tower_sluice::limiter::Receipt;
use tower_sluice::time::Timestamp;

use super::bytes::{self, SLIDING_WINDOW};
use super::sealed::Items;
use super::{BadItem, Charge, Moment, Plan, Unfit, at_most, fitting, quota_name};
use crate::hints::Hint;
use crate::table::{Item, Write, number};

/// A window by its number, and the counts that a decision needs.
#[derive(Clone, Copy, Debug)]
struct Counts {
    window: u64,
    previous: u64,
    current: u64,
}

/// The attribute of a window's count. `None`, for the time before the first window, names an attribute that is never
/// written.
fn name(window: Option<u64>) -> String {
    window.map_or_else(|| "w".to_owned(), |window| format!("w{window}"))
}

/// Returns a window's count, or zero without an attribute.
fn count(item: &Item, window: Option<u64>) -> Result<u64, BadItem> {
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

/// Returns an item's latest window.
fn latest(item: &Item) -> Result<u64, BadItem> {
    number(item, "l").ok_or(BadItem)
}

fn state(algorithm: &SlidingWindow, counts: Counts, now: Timestamp) -> SlidingWindowState {
    let Counts { window, previous, current } = counts;
    let numbers: (&[u8], &[u64]) = (&window.to_be_bytes(), &[previous, current]);
    bytes::state(algorithm, SLIDING_WINDOW, &algorithm.quota(), numbers, now).expect("the numbers of a state")
}

fn counts(algorithm: &SlidingWindow, state: &SlidingWindowState) -> Counts {
    let (window, [previous, current]) = bytes::numbers(algorithm, state);
    Counts { window: u64::from_be_bytes(window), previous, current }
}

/// Reads the window that is the present one for all processes, and its counts.
fn read(algorithm: &SlidingWindow, item: &Item, at: Moment) -> Result<Counts, BadItem> {
    let (present, latest) = (present(algorithm, at), latest(item)?);
    let window = if may_have_begun(algorithm, latest, at) { latest.max(present) } else { present };
    Ok(Counts { window, previous: count(item, window.checked_sub(1))?, current: count(item, Some(window))? })
}

/// Returns how many units fit into an empty window beside the previous one.
fn room(algorithm: &SlidingWindow, window: u64, previous: u64, now: Timestamp) -> u64 {
    let empty = state(algorithm, Counts { window, previous, current: 0 }, now);
    algorithm.decide(Some(empty), now, 0).0.remaining()
}

/// Charges `count` requests to this window, on the condition that they fit beside the previous one and, if one more
/// request is waiting, that it does not fit. The window is the latest, or replaces `replaced`, which a wrong clock has
/// written.
fn charge(
    algorithm: &SlidingWindow,
    (window, previous): (u64, u64),
    replaced: Option<u64>,
    count: u32,
    charge: Charge,
) -> Write {
    let Charge { at, cost, .. } = charge;
    let all = u64::from(count) * cost;
    let most = room(algorithm, window, previous, at.now).saturating_sub(all);
    let least = most.checked_sub(cost).filter(|_| count < charge.count);
    let window_holds = match replaced {
        Some(_) => "l = :l",
        // This process knew the window from a later reading of the clock. An item that has not begun it is read as of
        // `at`.
        None if window > present(algorithm, at) => "l = :w",
        None => "(attribute_not_exists(k) OR l <= :w)",
    };
    let previous_holds = if previous == 0 { "(attribute_not_exists(#p) OR #p = :p)" } else { "#p = :p" };
    let current_fits =
        if least.is_some() { "#c > :least AND #c <= :most" } else { "(attribute_not_exists(#c) OR #c <= :most)" };
    let condition = format!("{window_holds} AND {previous_holds} AND {current_fits}");
    let end = Timestamp::from_nanos(window.saturating_add(2).saturating_mul(period(algorithm)));
    let mut write = Write::new("ADD #c :c SET l = :w, q = :q, x = :x", condition)
        .number(":w", window)
        .text(":q", quota_name::of(&algorithm.quota()));
    write = write.name("#c", name(Some(window))).name("#p", name(window.checked_sub(1)));
    write = write.number(":p", previous).number(":c", all).number(":most", most).number(":x", at.expiry(end));
    write = replaced.into_iter().fold(write, |write, replaced| write.number(":l", replaced));
    least.into_iter().fold(write, |write, least| write.number(":least", least))
}

/// Lets a write remove the counts that decisions no longer need. Any process that begins a window has read the item, so
/// no count stays for longer than that.
fn tidied(mut write: Write, item: &Item, window: u64) -> Write {
    let needed = [window.checked_sub(1), Some(window)].map(name);
    let stale = item.keys().filter(|name| name.starts_with('w') && !needed.contains(name));
    for (index, stale) in stale.enumerate() {
        write.update += if index == 0 { " REMOVE " } else { ", " };
        write.update += &format!("#s{index}");
        write = write.name(format!("#s{index}"), stale);
    }
    write
}

/// Returns the window that was charged, and how much of the charge still counts. `None` if it no longer counts, or if
/// its window is more than one ahead of our clock; then too little is admitted.
fn charged_in(algorithm: &SlidingWindow, cost: u64, receipt: Receipt, at: Moment) -> Option<(u64, u64)> {
    let present = present(algorithm, at);
    // A refund takes from the window that the receipt names, so we look for the window that loses by it.
    [present, present.saturating_add(1)].into_iter().find_map(|window| {
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
    fn check_fit(&self) -> Result<(), Unfit> {
        // The greatest draw has the latest phase, which is zero only without staggering.
        if self.phase(u64::MAX).is_zero() { Ok(()) } else { Err(Unfit::Staggered) }
    }

    /// Contains the period, by which windows are numbered.
    fn suffix(&self, _: Timestamp) -> String {
        format!("s{}", period(self))
    }

    fn read(&self, item: Option<&Item>, at: Moment) -> Result<Option<SlidingWindowState>, BadItem> {
        item.map(|item| Ok(state(self, read(self, item, at)?, at.now))).transpose()
    }

    fn put(&self, state: Option<&SlidingWindowState>, at: Moment) -> Write {
        let none = Counts { window: present(self, at), previous: 0, current: 0 };
        let Counts { window, previous, current } = state.map_or(none, |state| counts(self, state));
        let end = Timestamp::from_nanos(window.saturating_add(2).saturating_mul(period(self))).max(at.now);
        let write = Write::new("SET #c = :c, #p = :p, l = :w, q = :q, x = :x", "");
        let write = write.name("#c", name(Some(window))).name("#p", name(window.checked_sub(1)));
        let write = write.number(":c", current).number(":p", previous).number(":w", window);
        write.text(":q", quota_name::of(&self.quota())).number(":x", at.expiry(end))
    }

    fn guess(&self, hint: Option<Hint>, asked: Charge) -> Plan {
        let Some(Hint::Window { window, previous, used }) = hint else { return Plan::Read };
        let is_present = window >= present(self, asked.at) && may_have_begun(self, window, asked.at);
        let fitting = room(self, window, previous, asked.at.now).saturating_sub(used) / asked.cost;
        match at_most(fitting, asked.count) {
            count if is_present && count > 0 => {
                Plan::Charge(charge(self, (window, previous), None, count, asked), count)
            }
            _ => Plan::Read,
        }
    }

    fn plan(&self, item: Option<&Item>, asked: Charge) -> Result<Plan, BadItem> {
        let Some(item) = item else {
            let window = present(self, asked.at);
            let fitting = at_most(self.quota().limit() / asked.cost, asked.count);
            return Ok(Plan::Charge(charge(self, (window, 0), None, fitting, asked), fitting));
        };
        let counts = read(self, item, asked.at)?;
        let (fitting, _) = fitting(self, Some(state(self, counts, asked.at.now)), asked);
        if fitting == 0 {
            return Ok(Plan::Reject);
        }
        let Counts { window, previous, .. } = counts;
        let replaced = Some(latest(item)?).filter(|latest| *latest > window);
        let write = charge(self, (window, previous), replaced, fitting, asked);
        Ok(Plan::Charge(tidied(write, item, window), fitting))
    }

    fn hint(
        &self,
        _: Option<Hint>,
        _: Option<&SlidingWindowState>,
        new: Option<&SlidingWindowState>,
        _: Moment,
    ) -> Option<Hint> {
        let Counts { window, previous, current: used } = counts(self, new?);
        Some(Hint::Window { window, previous, used })
    }

    fn guess_refund(&self, cost: u64, receipt: Receipt, at: Moment) -> Option<Write> {
        let (window, charged) = charged_in(self, cost, receipt, at)?;
        let write = Write::new("SET #c = #c - :c", "#c >= :c").name("#c", name(Some(window)));
        Some(write.number(":c", charged))
    }

    fn plan_refund(
        &self,
        item: Option<&Item>,
        cost: u64,
        receipt: Receipt,
        at: Moment,
    ) -> Result<Option<Write>, BadItem> {
        let Some((item, (window, charged))) = item.zip(charged_in(self, cost, receipt, at)) else { return Ok(None) };
        let used = count(item, Some(window))?;
        let write = Write::new("SET #c = :n", "#c = :old").name("#c", name(Some(window))).number(":old", used);
        Ok((used > 0).then(|| write.number(":n", used.saturating_sub(charged))))
    }
}
