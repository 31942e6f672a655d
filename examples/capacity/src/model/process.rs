//! One process's knowledge about keys: rejections, leases, and DynamoDB's last answers. Sizes and rules match
//! `src/store/remote`.

use super::load::Leasing;
use super::server::{Hint, Key, Kind, Limit, State};

/// How many sets a table has, with four keys each: 8,192 keys in all.
pub(crate) const SETS: u64 = 2_048;

/// After this many nanoseconds, one request verifies a known rejection by a call.
const VERIFY_EVERY: u64 = 500_000_000;

/// A known rejection is ignored after this many nanoseconds.
const MAX_AGE: u64 = 60_000_000_000;

/// One set from each of a process's tables. The other sets have no influence on it.
#[derive(Clone, Default)]
pub(crate) struct Known {
    rejections: Set<Rejection>,
    leases: Set<Lease>,
    /// The hints for DynamoDB are a table with 4,096 places: two for each set.
    hints: [Option<(Key, Hint)>; 2],
}

/// A key that was used up.
#[derive(Clone, Copy)]
struct Rejection {
    state: State,
    observed: u64,
    verified: u64,
}

/// Requests that were paid in advance.
#[derive(Clone, Copy)]
struct Lease {
    left: u32,
    /// How many were asked for.
    size: u32,
    is_asked_for: bool,
    /// With its lifetime; or earlier, when the key's window is over or its bucket full.
    end: u64,
    /// How many requests the key had room for when the lease was taken.
    room: u64,
}

/// A call's result.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    /// The key's debt.
    pub(crate) state: State,
}

/// An action that a call takes beside its own charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    More(u32),
    Refund(u32),
}

impl Known {
    /// Whether a lease pays for a request. Spends it.
    pub(crate) fn spend(&mut self, key: Key, now: u64) -> bool {
        let lease = self.leases.get(key).filter(|lease| lease.left > 0 && now < lease.end);
        lease.map(|lease| lease.left -= 1).is_some()
    }

    /// Whether a request is rejected without a call; `verifies` if it may have to verify that.
    pub(crate) fn rejects(&mut self, key: Key, limit: Limit, now: u64, verifies: bool) -> bool {
        let Some(known) = self.rejections.get(key) else { return false };
        if verifies && now - known.verified > VERIFY_EVERY {
            known.verified = now;
            return false;
        }
        now - known.observed <= MAX_AGE && limit.room(known.state, now) == 0
    }

    /// Notes a call's result.
    pub(crate) fn learn(&mut self, key: Key, limit: Limit, seen: Seen) {
        if limit.room(seen.state, seen.sent) > 0 {
            self.rejections.remove(key);
            return;
        }
        let rejection = Rejection { state: seen.state, observed: seen.answered, verified: seen.answered };
        self.rejections.put(key, rejection, |it| it.observed);
    }

    pub(crate) fn lease_action(&mut self, key: Key, leasing: Leasing, now: u64) -> LeaseAction {
        let Some(lease) = self.leases.get(key) else { return LeaseAction::More(0) };
        if now >= lease.end {
            return match std::mem::take(&mut lease.left) {
                0 => LeaseAction::More(0),
                left => LeaseAction::Refund(left),
            };
        }
        if lease.is_asked_for {
            return LeaseAction::More(0);
        }
        let affordable = u32::try_from(lease.room / 2).unwrap_or(u32::MAX);
        let more = lease.size.saturating_mul(2).clamp(1, leasing.most).min(affordable);
        lease.is_asked_for = more > 0;
        LeaseAction::More(more)
    }

    /// Keeps the granted part beyond the call's own needs, out of `extra` that it asked for.
    pub(crate) fn hold(&mut self, key: Key, left: u32, extra: u32, seen: Seen, leasing: Leasing, limit: Limit) {
        let room = limit.room(seen.state, seen.sent);
        if let Some(held) = self.leases.get(key) {
            held.is_asked_for &= extra == 0;
            if left == 0 && seen.sent < held.end {
                if held.left == 0 {
                    held.room = room;
                }
                return;
            }
        }
        let lifetime = u64::try_from(leasing.lifetime.as_nanos()).unwrap_or(u64::MAX);
        let window = if limit.kind == Kind::FixedWindow { seen.state.until } else { u64::MAX };
        let end = seen.sent.saturating_add(lifetime).min(window);
        self.leases.put(key, Lease { left, size: extra, is_asked_for: false, end, room }, |it| {
            if it.left == 0 { 0 } else { it.end }
        });
    }

    pub(crate) fn hint(&self, key: Key) -> Option<Hint> {
        self.hints[place(key)].filter(|(other, _)| *other == key).map(|(_, hint)| hint)
    }

    pub(crate) fn set_hint(&mut self, key: Key, hint: Hint) {
        self.hints[place(key)] = Some((key, hint));
    }
}

const fn place(key: Key) -> usize {
    // Any bit that does not depend on the set.
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63) as usize
}

/// Four keys with a value each.
#[derive(Clone)]
struct Set<V>([Option<(Key, V)>; 4]);

impl<V> Default for Set<V> {
    fn default() -> Self {
        Self([const { None }; 4])
    }
}

impl<V> Set<V> {
    fn get(&mut self, key: Key) -> Option<&mut V> {
        self.0.iter_mut().flatten().find(|(other, _)| *other == key).map(|(_, value)| value)
    }

    /// Replaces the key's own value, or the one with the least worth, unless that is worth more.
    fn put(&mut self, key: Key, value: V, worth: impl Fn(&V) -> u64) {
        let worth_of = |place: &Option<(Key, V)>| place.as_ref().map(|(_, value)| worth(value));
        let own = self.0.iter().position(|place| place.as_ref().is_some_and(|(other, _)| *other == key));
        let least = (0..4).min_by_key(|index| worth_of(&self.0[*index])).expect("there are four");
        let is_replaced = own.is_some() || worth_of(&self.0[least]) <= Some(worth(&value));
        if is_replaced {
            self.0[own.unwrap_or(least)] = Some((key, value));
        }
    }

    fn remove(&mut self, key: Key) {
        let own = self.0.iter_mut().find(|place| place.as_ref().is_some_and(|(other, _)| *other == key));
        if let Some(place) = own {
            *place = None;
        }
    }
}
