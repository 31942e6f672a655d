//! A key's record: its fields as bytes, and the steps on them. These are plain functions.
//!
//! A record is a byte 1, its version's number, and its fields of 40 bytes each. Numbers have 8 bytes, big-endian. A
//! field is the process and its number, its units, the nanosecond in which its lease ends, and the lease's length.
//!
//! # Why a late swap does no harm
//!
//! A swap is applied only to the value that its step has read. Versions grow with each write and begin at the server's
//! time, so no value comes back. A swap that expects no value may be applied after others have come and gone: then it
//! has the effect that its step would have at that time, except that its lease ends earlier.

use std::time::Duration;

use super::{ProcessField, TakenUnits};
use crate::store::remote::records::Step;
use crate::values::LimiterError;
use crate::values::time::Timestamp;

const VERSION: u8 = 1;

/// A byte and a number.
const HEADER: usize = 9;

const FIELD: usize = 40;

/// The most fields in a record, which then takes 160 KiB. More processes than this never share a key.
const MOST_FIELDS: usize = 4_096;

/// One field's units, by the server's clock.
#[derive(Clone, Copy)]
struct Field {
    name: ProcessField,
    units: u64,
    end: Timestamp,
    lease: Duration,
}

/// One key's fields.
struct Fields {
    version: u64,
    all: Vec<Field>,
    /// Whether a lease's end was too far in the future, and was moved. That must be written, because it would be too
    /// far in the future the next time, too, until the clock has caught up.
    is_corrected: bool,
}

/// The step [`InFlight::take`](super::InFlight::take).
pub(super) fn take(
    old: Option<&[u8]>,
    now: Timestamp,
    name: ProcessField,
    units: u64,
    limit: u64,
    lease: Duration,
) -> Result<Step<TakenUnits>, LimiterError> {
    let mut fields = Fields::open(old, now)?;
    let before = fields.total();
    let is_taken = units > 0 && before.checked_add(units).is_some_and(|after| after <= limit);
    if is_taken {
        fields.add(name, units, now, lease)?;
    }
    let taken = TakenUnits { is_taken, before };
    Ok(if is_taken || fields.is_corrected { fields.write(taken, now) } else { Step::Leave(taken) })
}

/// The step [`InFlight::renew`](super::InFlight::renew).
pub(super) fn renew(
    old: Option<&[u8]>,
    now: Timestamp,
    name: ProcessField,
    units: u64,
    lease: Duration,
) -> Result<Step<()>, LimiterError> {
    let mut fields = Fields::open(old, now)?;
    fields.all.retain(|field| field.name.process != name.process || field.name.number >= name.number);
    if units > 0 || fields.all.iter().any(|field| field.name == name) {
        fields.add(name, units, now, lease)?;
    }
    Ok(fields.write((), now))
}

/// The step [`InFlight::release`](super::InFlight::release).
pub(super) fn release(
    old: Option<&[u8]>,
    now: Timestamp,
    name: ProcessField,
    units: u64,
) -> Result<Step<bool>, LimiterError> {
    let mut fields = Fields::open(old, now)?;
    let field = fields.all.iter_mut().find(|field| field.name == name && field.units >= units);
    let is_released = field.map(|field| field.units -= units).is_some();
    fields.all.retain(|field| field.units > 0);
    Ok(if is_released || fields.is_corrected { fields.write(is_released, now) } else { Step::Leave(is_released) })
}

impl Fields {
    /// Drops leases that have ended, and corrects ends that are too far in the future because the clock was set back.
    fn open(old: Option<&[u8]>, now: Timestamp) -> Result<Self, LimiterError> {
        let mut fields = Self::read(old)?;
        for field in &mut fields.all {
            let latest = now.saturating_add(field.lease);
            fields.is_corrected |= field.end > latest;
            field.end = field.end.min(latest);
        }
        fields.all.retain(|field| field.end > now);
        Ok(fields)
    }

    fn read(old: Option<&[u8]>) -> Result<Self, LimiterError> {
        let Some(bytes) = old else { return Ok(Self { version: 0, all: Vec::new(), is_corrected: false }) };
        let foreign = || LimiterError::new("the record of the key holds no units in flight");
        let (header, fields) = bytes.split_at_checked(HEADER).ok_or_else(foreign)?;
        let fits = fields.len() % FIELD == 0 && fields.len() / FIELD <= MOST_FIELDS;
        if header[0] != VERSION || !fits {
            return Err(foreign());
        }
        let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
        let read = |field: &[u8]| {
            let mut numbers = field.chunks_exact(8).map(number);
            let mut next = || numbers.next().expect("five numbers");
            Field {
                name: ProcessField { process: next(), number: next() },
                units: next(),
                end: Timestamp::from_nanos(next()),
                lease: Duration::from_nanos(next()),
            }
        };
        let all = fields.chunks_exact(FIELD).map(read).collect();
        Ok(Self { version: number(&header[1..]), all, is_corrected: false })
    }

    /// The units in flight. Processes that were cut off may have more than any limit.
    fn total(&self) -> u64 {
        self.all.iter().fold(0, |sum, field| sum.saturating_add(field.units))
    }

    /// Adds units to a field, whose lease begins again.
    fn add(&mut self, name: ProcessField, units: u64, now: Timestamp, lease: Duration) -> Result<(), LimiterError> {
        let end = now.saturating_add(lease);
        let is_full = self.all.len() >= MOST_FIELDS;
        match self.all.iter_mut().find(|field| field.name == name) {
            Some(field) => *field = Field { name, units: field.units.saturating_add(units), end, lease },
            None if is_full => return Err(LimiterError::new("too many processes have units of the key in flight")),
            None => self.all.push(Field { name, units, end, lease }),
        }
        Ok(())
    }

    /// Writes the fields until the last lease ends. If there is no lease, the record is deleted.
    fn write<T>(self, result: T, now: Timestamp) -> Step<T> {
        let last = self.all.iter().map(|field| field.end).max().unwrap_or(Timestamp::ZERO);
        if last <= now {
            return Step::Write(result, None, Duration::ZERO);
        }
        let version = self.version.saturating_add(1).max(now.as_nanos());
        let mut bytes = Vec::with_capacity(HEADER + FIELD * self.all.len());
        bytes.push(VERSION);
        bytes.extend(version.to_be_bytes());
        for Field { name, units, end, lease } in self.all {
            let lease = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
            for number in [name.process, name.number, units, end.as_nanos(), lease] {
                bytes.extend(number.to_be_bytes());
            }
        }
        Step::Write(result, Some(bytes), last.saturating_since(now))
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::{Random, seed_of};

    const SECOND: Duration = Duration::from_secs(1);

    /// Each field's units, end and lease.
    #[derive(Default)]
    struct Model(BTreeMap<ProcessField, (u64, Timestamp, Duration)>);

    impl Model {
        fn total(&mut self, now: Timestamp) -> u64 {
            self.0.values_mut().for_each(|(_, end, lease)| *end = (*end).min(now.saturating_add(*lease)));
            self.0.retain(|_, (_, end, _)| *end > now);
            self.0.values().map(|(units, ..)| units).sum()
        }

        fn add(&mut self, now: Timestamp, name: ProcessField, units: u64, lease: Duration) {
            let held = self.0.get(&name).map_or(0, |(held, ..)| *held);
            self.0.insert(name, (held + units, now.saturating_add(lease), lease));
        }

        fn take(&mut self, now: Timestamp, name: ProcessField, units: u64, limit: u64, lease: Duration) -> TakenUnits {
            let before = self.total(now);
            let is_taken = units > 0 && before + units <= limit;
            if is_taken {
                self.add(now, name, units, lease);
            }
            TakenUnits { is_taken, before }
        }

        fn renew(&mut self, now: Timestamp, name: ProcessField, units: u64, lease: Duration) {
            self.total(now);
            self.0.retain(|other, _| other.process != name.process || other.number >= name.number);
            if units > 0 || self.0.contains_key(&name) {
                self.add(now, name, units, lease);
            }
        }

        fn release(&mut self, now: Timestamp, name: ProcessField, units: u64) -> bool {
            self.total(now);
            let held = self.0.get_mut(&name).filter(|(held, ..)| *held >= units);
            let is_released = held.map(|(held, ..)| *held -= units).is_some();
            self.0.retain(|_, (held, ..)| *held > 0);
            is_released
        }
    }

    /// A record as a server keeps it, until its lifetime is over.
    #[derive(Default)]
    struct Stored {
        value: Option<Vec<u8>>,
        end: Timestamp,
        /// All values so far.
        seen: Vec<Vec<u8>>,
    }

    impl Stored {
        fn apply<T>(&mut self, now: Timestamp, step: impl FnOnce(Option<&[u8]>) -> Result<Step<T>, LimiterError>) -> T {
            if self.end <= now {
                self.value = None;
            }
            match step(self.value.as_deref()).unwrap() {
                Step::Leave(result) => result,
                Step::Write(result, value, lifetime) => {
                    assert!(value.as_ref().is_none_or(|value| !self.seen.contains(value)), "a value comes back");
                    self.seen.extend(value.clone());
                    (self.value, self.end) = (value, now.saturating_add(lifetime));
                    result
                }
            }
        }

        fn fields(&self, now: Timestamp) -> BTreeMap<ProcessField, (u64, Timestamp, Duration)> {
            let fields = Fields::read(self.value.as_deref().filter(|_| self.end > now)).unwrap();
            fields.all.iter().map(|field| (field.name, (field.units, field.end, field.lease))).collect()
        }
    }

    #[test]
    fn steps_count_as_the_model_does() {
        let mut random = Random::new(seed_of(58));
        for trace in 0..200 {
            let (mut model, mut stored) = (Model::default(), Stored::default());
            let mut now = Timestamp::from_nanos(1_700_000_000_000_000_000);
            let scale = random.pick(&[1, 120_000_000_000_000]);
            for step in 0..100 {
                now = match random.below(40) {
                    0 => {
                        // A lease that has ended is dropped by the next step that writes, unless the clock is set back.
                        let writes = ProcessField { process: 1, number: 1 };
                        stored.apply(now, |old| renew(old, now, writes, 1, SECOND));
                        model.renew(now, writes, 1, SECOND);
                        Timestamp::from_nanos(now.as_nanos() - 3_000_000_000)
                    }
                    1 => now.saturating_add(20 * SECOND),
                    // Moves to the end of a lease.
                    2..6 => model.0.values().map(|(_, end, _)| *end).min().unwrap_or(now).max(now),
                    _ => now.saturating_add(Duration::from_nanos(1 + random.below(1_000_000_000))),
                };
                let name = ProcessField { process: random.below(3) + (1 << 51), number: random.below(3) };
                let units = random.below(5) * scale;
                let lease = random.pick(&[SECOND, 4 * SECOND]);
                let at = format!("trace {trace}, step {step}");
                match random.below(8) {
                    0..=3 => {
                        let limit = random.pick(&[5, 8]) * scale;
                        let taken = stored.apply(now, |old| take(old, now, name, units, limit, lease));
                        assert_eq!(taken, model.take(now, name, units, limit, lease), "{at}");
                    }
                    4 => {
                        stored.apply(now, |old| renew(old, now, name, units, lease));
                        model.renew(now, name, units, lease);
                    }
                    _ => {
                        let released = stored.apply(now, |old| release(old, now, name, units.max(scale)));
                        assert_eq!(released, model.release(now, name, units.max(scale)), "{at}");
                    }
                }
                let live = |fields: BTreeMap<_, (u64, Timestamp, Duration)>| {
                    fields.into_iter().filter(|(_, (_, end, _))| *end > now).collect::<BTreeMap<_, _>>()
                };
                assert_eq!(live(stored.fields(now)), live(model.0.clone()), "{at}");
            }
        }
    }

    #[test]
    fn foreign_records_are_errors() {
        let now = Timestamp::from_nanos(5);
        let name = ProcessField { process: 1, number: 1 };
        let most = [&[VERSION][..], &[0; 8], &vec![0xff; MOST_FIELDS * FIELD]].concat();
        let more = [&most[..], &[0xff; FIELD]].concat();
        for bytes in [&b""[..], &[VERSION; 8], &[2; HEADER], &[VERSION; HEADER + FIELD - 1], &more] {
            assert!(take(Some(bytes), now, name, 1, 1, SECOND).is_err(), "{} bytes", bytes.len());
            assert!(renew(Some(bytes), now, name, 1, SECOND).is_err(), "{} bytes", bytes.len());
            assert!(release(Some(bytes), now, name, 1).is_err(), "{} bytes", bytes.len());
        }
        // Every number has its greatest value.
        let Ok(Step::Leave(taken)) = take(Some(&most), Timestamp::MAX, name, 0, 1, SECOND) else { panic!() };
        assert_eq!(taken.before, 0, "all have ended");
        let earlier = Timestamp::from_nanos(u64::MAX - 1);
        let Ok(Step::Leave(taken)) = take(Some(&most), earlier, name, 1, u64::MAX, SECOND) else { panic!() };
        assert_eq!(taken, TakenUnits { is_taken: false, before: u64::MAX });
        assert!(renew(Some(&most), earlier, name, 1, SECOND).is_err(), "no further process");
    }
}
