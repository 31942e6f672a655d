//! The schedules for keys with their own windows, numbered: a quota names its calendar in 32 bits, and stays small
//! enough to be kept for each key.
//!
//! Numbers are never taken back. There are at most as many as the database has zones, times the 39 periods; if a
//! database is updated while the process runs, a changed zone counts again.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use super::schedule::CalendarSchedule;

#[derive(Default)]
struct Numbered {
    /// The index of a schedule is its number.
    schedules: Vec<Arc<CalendarSchedule>>,
    /// The numbers by fingerprint, which different schedules may share.
    numbers: HashMap<u64, Vec<u32>>,
}

/// For the whole process: a number means the same in all limiters, and so after a live change, too.
static NUMBERED: LazyLock<RwLock<Numbered>> = LazyLock::new(RwLock::default);

impl Numbered {
    fn number_of(&self, schedule: &CalendarSchedule) -> Option<u32> {
        let numbers = self.numbers.get(&schedule.fingerprint())?;
        numbers.iter().copied().find(|number| self.schedules[*number as usize].is_same(schedule))
    }

    fn insert(&mut self, schedule: &Arc<CalendarSchedule>) -> u32 {
        // Another thread may have inserted it since this one looked.
        if let Some(number) = self.number_of(schedule) {
            return number;
        }
        let number = u32::try_from(self.schedules.len()).expect("far fewer zones and periods");
        self.schedules.push(Arc::clone(schedule));
        self.numbers.entry(schedule.fingerprint()).or_default().push(number);
        number
    }
}

/// Returns a schedule's number, and assigns one at the first call.
pub(super) fn number_of(schedule: &Arc<CalendarSchedule>) -> u32 {
    schedule.number_or_assign(|| {
        // A panic under the lock leaves at most a schedule without a fingerprint, which gets a second number.
        let known = NUMBERED.read().unwrap_or_else(PoisonError::into_inner).number_of(schedule);
        known.unwrap_or_else(|| NUMBERED.write().unwrap_or_else(PoisonError::into_inner).insert(schedule))
    })
}

/// Returns the schedule with a number that [`number_of`] has returned.
pub(super) fn schedule(number: u32) -> Arc<CalendarSchedule> {
    Arc::clone(&NUMBERED.read().unwrap_or_else(PoisonError::into_inner).schedules[number as usize])
}
