//! The steps of `InFlight` on one key: the scripts in `crates/redis/src/in_flight/lua`, and the functions in
//! `src/store/remote/in_flight/record.rs`.

use std::collections::BTreeMap;

use super::entry::Renewal;
use super::world::{Config, Flaw, LEASE};

/// The fields of the key's hash, by process and number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Server(pub(super) BTreeMap<(u8, u64), Field>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Field {
    /// Negative only if there is a flaw.
    pub(super) units: i8,
    /// The ticks until its lease ends. An ended field is dropped by the next script that counts.
    pub(super) left: u8,
}

/// The script that a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Script {
    Take,
    Release(u8),
    Renew(Moved),
}

/// A [`Renewal`], in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Moved {
    pub(super) units: u64,
    /// Ticks since it was sent, by the process's clock.
    pub(super) age: u8,
}

impl Server {
    /// The units that count.
    pub(super) fn total(&self) -> i8 {
        self.0.values().filter(|field| field.left > 0).map(|field| field.units).sum()
    }

    pub(super) fn of(&self, process: u8) -> i8 {
        self.0.iter().filter(|((its, _), field)| *its == process && field.left > 0).map(|(_, field)| field.units).sum()
    }

    /// The server's clock advances by a tick. The key ends with its last field: `close.lua`, `PEXPIREAT`.
    pub(super) fn tick(&mut self) {
        for field in self.0.values_mut() {
            field.left = field.left.saturating_sub(1);
        }
        if self.0.values().all(|field| field.left == 0) {
            self.0.clear();
        }
    }

    /// Runs a step at once, as the server does. Returns whether its reply says that units were taken or released. `ago`
    /// is how many ticks have passed since the step read the time.
    pub(super) fn run(&mut self, process: u8, number: u64, script: Script, ago: u8, config: &Config) -> bool {
        let Config { limit, flaw, .. } = *config;
        let key = (process, if flaw == Some(Flaw::OneFieldPerProcess) { 0 } else { number });
        match script {
            Script::Release(units) => {
                // A script leaves this to the next script that counts.
                if config.reads_and_swaps {
                    self.open();
                }
                self.release(key, units, flaw)
            }
            Script::Take => {
                self.open();
                // take.lua
                let limit = limit + u64::from(flaw == Some(Flaw::LimitIsHigher));
                let fits = self.total() < i8::try_from(limit).unwrap();
                if fits {
                    self.close(key, 1, ago, flaw);
                }
                fits
            }
            Script::Renew(Moved { units, .. }) => {
                self.open();
                // renew.lua
                if flaw != Some(Flaw::OlderFieldsStay) {
                    self.0.retain(|(its, other), _| *its != key.0 || *other >= key.1);
                }
                if matches!(flaw, Some(Flaw::OneFieldPerProcess | Flaw::RenewalReplaces)) {
                    self.0.remove(&key);
                }
                if units > 0 || self.0.contains_key(&key) {
                    self.close(key, i8::try_from(units).unwrap(), ago, flaw);
                }
                true
            }
        }
    }

    /// `open.lua`: drops the fields that have ended.
    fn open(&mut self) {
        self.0.retain(|_, field| field.left > 0);
    }

    /// `close.lua`: adds to a field, whose lease starts over.
    fn close(&mut self, key: (u8, u64), units: i8, ago: u8, flaw: Option<Flaw>) {
        let field = self.0.entry(key).or_insert(Field { units: 0, left: 0 });
        field.units += units;
        // The first process's clock is behind the server's.
        let behind = if flaw == Some(Flaw::LeaseDatedByProcess) && key.0 == 0 { LEASE - 1 } else { 0 };
        field.left = LEASE.saturating_sub(behind + ago);
    }

    /// `release.lua`.
    fn release(&mut self, key: (u8, u64), units: u8, flaw: Option<Flaw>) -> bool {
        let held = self.0.get(&key).copied();
        let units = i8::try_from(units).unwrap();
        match held {
            Some(held) if held.units == units => drop(self.0.remove(&key)),
            Some(held) if held.units > units || flaw == Some(Flaw::ReleaseUnchecked) => {
                self.0.insert(key, Field { units: held.units - units, ..held });
            }
            None if flaw == Some(Flaw::ReleaseUnchecked) => {
                self.0.insert(key, Field { units: -units, left: LEASE });
            }
            _ => return false,
        }
        true
    }
}

impl Moved {
    pub(super) fn of(renewal: Renewal) -> Self {
        Self { units: renewal.units, age: 0 }
    }
}
