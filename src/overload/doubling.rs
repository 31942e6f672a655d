//! [`Doubling`]: finds the limit within a factor of two, from the times of few requests.
//!
//! It compares a limit with its half. If requests take equally long under both, the limit costs nothing, and its double
//! is tried; if they take twice the time, the half serves the same number, and is compared with its own half. So a
//! limit that is far too low or too high is left in steps of two, each of which takes some 16 requests if they are
//! alike, and more if their times are scattered.
//!
//! A comparison of neighbours knows no normal time, which an incident or a slow start could spoil.

use std::ops::RangeInclusive;

use super::cohort::{Cohort, Followed, grows};
use super::tally::{Tally, Verdict};
use crate::values::{PartitionKey, RequestEnd};

#[derive(Debug)]
pub(super) struct Doubling {
    bounds: RangeInclusive<u64>,
    /// The upper one of the two limits that are compared; the other is its half.
    high: u64,
    /// Whether the half is in force.
    is_at_half: bool,
    /// The measurements under both limits.
    of_high: Option<Cohort>,
    of_half: Option<Cohort>,
    /// The highest limit that costs nothing, and the lowest one that costs time.
    free: u64,
    dear: u64,
    /// The requests that are followed now.
    cohort: Cohort,
    tally: Tally,
    number: u64,
    opened: Option<u64>,
    /// The usual request time in the last cohort.
    time: Option<u64>,
    /// Whether a limit was left because most requests were given up under it.
    has_lost: bool,
}

/// A cohort has at least this number of requests, and at least the limit.
const FEWEST: u64 = 16;

/// A cohort lasts at least this time. In a shorter time, the scheduler decides how long requests take.
const SHORTEST: u64 = 20_000_000;

/// After this time, a cohort is closed although some of its requests go on: streams may take an hour.
const LONGEST: u64 = 30_000_000_000;

/// With this number of requests, a comparison ends, however scattered their times are.
const ENOUGH: u64 = 192;

impl Doubling {
    /// Begins with a limit and its half, which is first if it is known to be `free`. `cohort` numbers the first cohort.
    pub(super) fn new(bounds: RangeInclusive<u64>, high: u64, free: u64, cohort: u64) -> Self {
        Self {
            bounds,
            high,
            is_at_half: free > 0,
            of_high: None,
            of_half: None,
            free,
            dear: u64::MAX,
            cohort: Cohort::default(),
            tally: Tally::default(),
            number: cohort,
            opened: None,
            time: None,
            has_lost: false,
        }
    }

    pub(super) fn limit(&self) -> u64 {
        if self.is_at_half { self.half() } else { self.high }
    }

    fn half(&self) -> u64 {
        (self.high / 2).max(*self.bounds.start())
    }

    /// The usual request time in the last cohort, in nanoseconds.
    pub(super) const fn time(&self) -> Option<u64> {
        self.time
    }

    /// Whether a limit was left because most requests were given up under it.
    pub(super) const fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// The followed cohort's number.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// The upper limit, if its half is in force.
    pub(super) fn above_half(&self) -> Option<u64> {
        self.is_at_half.then_some(self.high)
    }

    /// Follows a request that was admitted now, and has filled the limit.
    pub(super) fn follow(&mut self, now: u64, key: &PartitionKey) -> Option<Followed> {
        if self.age(now) >= 2 * LONGEST && self.cohort.ended() * 2 < self.cohort.admitted() {
            // More than half go on, as streams do.
            self.open();
        }
        if self.is_complete(now) {
            return None;
        }
        self.opened.get_or_insert(now);
        self.cohort.admit(now);
        self.tally.follow(key, now);
        Some(Followed { cohort: self.number, since: now })
    }

    /// A request was withdrawn.
    pub(super) fn forget(&mut self, key: &PartitionKey, followed: Followed) {
        if followed.cohort == self.number {
            self.cohort.forget(followed.since);
            self.tally.forget(key, followed.since);
        }
    }

    /// A request is over. Returns the limit once it is found. `answered` is as of [`Tally::verdict`], which counts if
    /// it `is_heeded`.
    pub(super) fn end(
        &mut self,
        now: u64,
        key: &PartitionKey,
        followed: Followed,
        end: RequestEnd,
        (is_heeded, answered): (bool, Option<&PartitionKey>),
    ) -> Option<u64> {
        if followed.cohort != self.number {
            return None;
        }
        self.cohort.end(followed.since, now, end);
        self.tally.end(key, followed.since, now, end == RequestEnd::Abandoned);
        if is_heeded && self.tally.verdict(now, answered) == Verdict::Lost {
            return self.lose();
        }
        let has_ended = self.cohort.ended() * 16 >= self.cohort.admitted() * 15;
        let are_enough = self.cohort.ended() >= FEWEST && self.cohort.ended() * 2 >= self.cohort.admitted();
        let is_late = self.age(now) >= LONGEST && are_enough;
        if !(self.is_complete(now) && has_ended || is_late) {
            return None;
        }
        self.compare(now)
    }

    /// Whether no more requests are followed. Until half of them have ended, we follow more, because that costs no
    /// time.
    fn is_complete(&self, now: u64) -> bool {
        let needed = self.limit().max(FEWEST);
        self.cohort.admitted() >= needed && self.cohort.ended() * 2 >= needed && self.age(now) >= SHORTEST
    }

    fn age(&self, now: u64) -> u64 {
        self.opened.map_or(0, |opened| now.saturating_sub(opened))
    }

    fn open(&mut self) {
        self.number += 1;
        (self.cohort, self.tally, self.opened) = (Cohort::default(), Tally::default(), None);
    }

    fn compare(&mut self, now: u64) -> Option<u64> {
        self.time = Some(self.cohort.usual_time());
        let closed = self.cohort.closed(now);
        let known = if self.is_at_half { &mut self.of_half } else { &mut self.of_high };
        known.get_or_insert_default().add(&closed);
        self.open();
        if self.half() == self.high {
            return Some(self.high);
        }
        let (Some(low), Some(high)) = (&self.of_half, &self.of_high) else {
            self.is_at_half = !self.is_at_half;
            return None;
        };
        match grows(low, high) {
            Some(true) => return self.go_down(),
            Some(false) => return self.go_up(),
            None => {}
        }
        // To measure the half again, requests above it would have to end first, and none could begin meanwhile. So on
        // the way up, we learn more only about the upper one.
        let is_on_the_way_up = self.free >= self.half();
        let is_half_next = !is_on_the_way_up && low.error() >= high.error();
        if (if is_half_next { low } else { high }).ended() >= ENOUGH {
            // A limit that is too high costs time, and a limit that is too low costs answers.
            return Some(self.high);
        }
        self.is_at_half = is_half_next;
        None
    }

    /// Clients give up before the server answers, however long it takes: with less in it, it may answer in time.
    fn lose(&mut self) -> Option<u64> {
        self.has_lost = true;
        self.high = self.limit();
        (self.of_high, self.of_half, self.is_at_half) = (None, None, false);
        self.open();
        let half = self.half();
        if half <= self.free || half == self.high {
            return Some(half);
        }
        (self.dear, self.high) = (self.dear.min(self.high), half);
        None
    }

    fn go_down(&mut self) -> Option<u64> {
        self.dear = self.dear.min(self.high);
        let half = self.half();
        if half <= self.free || half == *self.bounds.start() {
            return Some(self.between(half));
        }
        (self.of_high, self.of_half) = (self.of_half.take(), None);
        (self.high, self.is_at_half) = (half, true);
        None
    }

    fn go_up(&mut self) -> Option<u64> {
        self.free = self.free.max(self.high);
        let most = *self.bounds.end();
        if self.high >= most || self.high.saturating_mul(2) >= self.dear {
            return Some(self.between(self.high));
        }
        (self.of_half, self.of_high) = (self.of_high.take(), None);
        (self.high, self.is_at_half) = (self.high.saturating_mul(2).min(most), false);
        None
    }

    /// A limit that costs nothing or little, since the next limit that was tried costs more.
    fn between(&self, free: u64) -> u64 {
        if self.dear == u64::MAX { free } else { free + self.dear.saturating_sub(free) / 4 }
    }
}
