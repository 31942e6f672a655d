//! The debts of keys on the servers, computed from the scripts' replies, and not from the stored states.

use std::collections::BTreeMap;

use crate::script::{BUCKET, REFUND, SEVERAL};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    Nil,
    Ok,
    Number(i64),
    Text(Vec<u8>),
    List(Vec<Self>),
    /// The message begins with its code.
    Error(String),
}

/// A server's accounts. They are lost with its data: when it starts empty, and when a replica that lacks the last
/// writes replaces it. That is the documented bound: lost charges are admitted at most once more.
#[derive(Clone, Default)]
pub(super) struct Accounts {
    /// By key: the debt in microseconds, and the time on the server's clock at which it was computed. A clock that is
    /// set forward pays debts.
    owed: BTreeMap<Vec<u8>, (u64, u64)>,
    /// The charges since this was last taken: keys, and microseconds.
    charged: Vec<(Vec<u8>, u64)>,
    pub(super) problem: Option<String>,
}

impl Accounts {
    /// Takes the charges since the last time.
    pub(super) fn take_charged(&mut self) -> Vec<(Vec<u8>, u64)> {
        std::mem::take(&mut self.charged)
    }

    /// Notes a script's effect.
    pub(super) fn note(&mut self, hash: &str, keys: &[Vec<u8>], args: &[Vec<u8>], reply: &Reply, now: u64) {
        let number = |index: usize| args.get(index).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let number = |index| number(index).unwrap_or(0_u64);
        let Reply::Text(text) = reply else { return };
        let text = String::from_utf8_lossy(text);
        // The words behind the time.
        let words = text.split(',').skip(2);
        if hash == BUCKET.hash() {
            let mut words = words.step_by(2);
            for key in keys {
                let admitted: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                self.charge(key, admitted * price_of(number(1)), capacity_of(number(2)), now);
            }
        } else if hash == SEVERAL.hash() {
            let size = number(0) % 1_000_000;
            // The alternatives: their keys' numbers, and a zero behind each.
            let from = 1 + 6 * size as usize;
            let listed: Vec<u64> = (from..from + (number(0) / 1_000_000) as usize).map(number).collect();
            for (keys, charged) in keys.chunks(size as usize).zip(words.step_by(1 + size as usize)) {
                let Some(before) = charged.parse::<usize>().ok().and_then(|charged| charged.checked_sub(1)) else {
                    continue;
                };
                let set = listed.split(|index| *index == 0).nth(before).unwrap_or_default();
                for (index, key) in keys.iter().enumerate() {
                    let is_in_set = listed.is_empty() || set.contains(&(index as u64 + 1));
                    if is_in_set && (1..5).contains(&number(1 + 6 * index)) {
                        let [price, capacity] = [number(6 * index + 2), number(6 * index + 3)];
                        self.charge(key, price_of(price), capacity_of(capacity), now);
                    }
                }
            }
        } else if hash == REFUND.hash() {
            let refunded = self.owed.get_mut(&keys[0]).filter(|_| words.clone().next() == Some("1"));
            if let Some((owed, _)) = refunded {
                *owed = owed.saturating_sub(price_of(number(1)));
            }
        }
    }

    /// The clock is set from one time to another. If it is set back, debts stay.
    pub(super) fn set_clock(&mut self, from: u64, to: u64) {
        for (owed, since) in self.owed.values_mut().filter(|_| to < from) {
            *owed = owed.saturating_sub(from.saturating_sub(*since));
            *since = to;
        }
    }

    /// Charges a key. Its debt must not exceed its bucket.
    fn charge(&mut self, key: &[u8], price: u64, capacity: u64, now: u64) {
        if price == 0 {
            return;
        }
        let (owed, since) = self.owed.get(key).copied().unwrap_or((0, now));
        let owed = owed.saturating_sub(now.saturating_sub(since)) + price;
        if owed > capacity && self.problem.is_none() {
            self.problem = Some(format!("{} owes {owed} of {capacity} µs", String::from_utf8_lossy(key)));
        }
        self.owed.insert(key.to_vec(), (owed, now));
        self.charged.push((key.to_vec(), price));
    }
}

/// Returns the price in an argument that ends with a rate's mark.
const fn price_of(argument: u64) -> u64 {
    (argument / 1_000).saturating_sub(1)
}

/// Returns the capacity in an argument that ends with a digit for a flag.
const fn capacity_of(argument: u64) -> u64 {
    (argument / 10).saturating_sub(1)
}
