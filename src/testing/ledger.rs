//! A balance, as naive as it can be: a list of single units, each with the millisecond at which it expires.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Ledger {
    units: Vec<u64>,
    owed: u64,
}

impl Ledger {
    pub fn expire(&mut self, now: u64) {
        self.units.retain(|expires| *expires > now);
        self.units.sort_unstable();
    }

    pub fn left(&self) -> u64 {
        self.units.len() as u64
    }

    /// Returns the units that were taken.
    pub fn charge(&mut self, cost: u64) -> Option<Vec<u64>> {
        (cost <= self.left()).then(|| self.units.drain(..usize::try_from(cost).expect("few")).collect())
    }

    pub fn debit(&mut self, units: u64) {
        let taken = units.min(self.left());
        self.charge(taken);
        self.owed += units - taken;
    }

    pub fn add(&mut self, expires: u64, now: u64) {
        match self.owed {
            _ if expires <= now => {}
            0 => self.units.push(expires),
            _ => self.owed -= 1,
        }
        self.units.sort_unstable();
    }

    /// Gives back the last of these units. Units that are not from the last lot count as from the first one.
    pub fn refund(&mut self, taken: &[u64], units: u64, now: u64) {
        for unit in taken.iter().rev().take(usize::try_from(units).expect("few")) {
            self.add(if Some(unit) == taken.last() { *unit } else { taken[0] }, now);
        }
    }

    pub fn forgive(&mut self) {
        self.owed = 0;
    }

    /// The number of units by their expiry, and the debt.
    pub fn state(&self) -> (BTreeMap<u64, u64>, u64) {
        let mut lots = BTreeMap::new();
        self.units.iter().for_each(|expires| *lots.entry(*expires).or_default() += 1);
        (lots, self.owed)
    }
}
