//! [`Timeline`]: the reserved time for a key, and the two steps that change it.

use std::iter;

use smallvec::SmallVec;

use crate::values::Quota;
use crate::values::time::Timestamp;

/// The terms of a queue that its server has to know. Processes that share the queue may differ in these terms, such as
/// during a deployment. Then times stay the same.
///
/// A queue's instants and lengths are numbers of *ticks*: its quota's [limit](Quota::limit) is the number of ticks in a
/// nanosecond, and instants count from the Unix epoch. So one unit takes a whole number of ticks, at any rate. All of a
/// quota's numbers stay below 2^118.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepartureTerms {
    quota: Quota,
    most_ahead: u128,
}

/// A request that asks for a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a server reads all of it")]
pub struct Arrival {
    /// The reservation's length, in ticks. If it is zero, no reservation is made, and the step only reads.
    pub length: u128,
    /// The reservation ends at most this long after the arrival, in ticks, or is not made.
    pub reach: u128,
}

/// A key's reserved time: everything up to an end, except for some holes, whose reservations were given back. All
/// numbers are in ticks, see [`DepartureTerms`].
///
/// A timeline belongs to an instant: nothing before it is reserved, and nothing before it can be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    end: u128,
    most_ahead: u128,
    /// In order. They don't touch each other or the end.
    holes: SmallVec<[Hole; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hole {
    begin: u128,
    end: u128,
}

impl DepartureTerms {
    /// The terms for a queue with this quota, in which no reservation ever ends more than `most_ahead` ticks after its
    /// arrival.
    #[must_use]
    pub const fn new(quota: Quota, most_ahead: u128) -> Self {
        Self { quota, most_ahead }
    }

    /// Returns the quota.
    pub const fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Returns how far ahead of its arrival this process's reservations may end, in ticks.
    #[must_use]
    pub const fn most_ahead(&self) -> u128 {
        self.most_ahead
    }

    /// Returns an instant in ticks.
    #[must_use]
    pub fn ticks(&self, at: Timestamp) -> u128 {
        u128::from(at.as_nanos()) * u128::from(self.quota.limit())
    }
}

impl Timeline {
    /// The most holes that are kept. If there are more, those that pass first are lost.
    pub const MOST_HOLES: usize = 64;

    /// Makes a key's timeline from the numbers that its server keeps, at `now`: the end, how far ahead it [may
    /// be](Self::most_ahead), and each hole's begin and end, in order. These may lie in the past, or too far ahead. All
    /// are zero if the server keeps nothing.
    #[must_use]
    pub fn as_of(
        now: Timestamp,
        terms: &DepartureTerms,
        end: u128,
        most_ahead: u128,
        holes: impl IntoIterator<Item = [u128; 2]>,
    ) -> Self {
        let now = terms.ticks(now);
        let most_ahead = most_ahead.max(terms.most_ahead);
        // While time goes forward, a timeline never ends later than `most_ahead` allows, because each process that
        // makes a reservation has raised that number. Without the number, a process with small bounds would cut off
        // reservations that were made under greater ones, and give their time away again.
        let end = end.clamp(now, now.saturating_add(most_ahead));
        let holes = holes.into_iter().map(|[begin, end]| Hole { begin: begin.max(now), end });
        Self { end, most_ahead, holes: holes.filter(|hole| hole.begin < hole.end && hole.end <= end).collect() }
    }

    /// Returns until when time is reserved.
    #[must_use]
    pub const fn end(&self) -> u128 {
        self.end
    }

    /// Returns how far ahead it may end, in ticks: the greatest [`most_ahead`](DepartureTerms::most_ahead) among the
    /// processes that have changed it since it was empty. A timeline that ends later is from before the clock was set
    /// back.
    #[must_use]
    pub const fn most_ahead(&self) -> u128 {
        self.most_ahead
    }

    /// Returns each hole's begin and end, in order.
    pub fn holes(&self) -> impl Iterator<Item = [u128; 2]> + '_ {
        self.holes.iter().map(|hole| [hole.begin, hole.end])
    }

    /// Returns when the next reservation with this length begins: in the first hole that is wide enough, or at the end.
    #[must_use]
    pub fn first_fit(&self, length: u128) -> u128 {
        self.hole_for(length).map_or(self.end, |index| self.holes[index].begin)
    }

    fn hole_for(&self, length: u128) -> Option<usize> {
        self.holes.iter().position(|hole| hole.begin.saturating_add(length) <= hole.end)
    }

    /// Makes a reservation for a request that arrives at `now`, this timeline's instant. Returns when it ends. Returns
    /// `None` if that would be out of its reach, or if its length is zero.
    pub fn reserve(&mut self, now: u128, arrival: Arrival) -> Option<u128> {
        let Arrival { length, reach } = arrival;
        let hole = self.hole_for(length);
        let end = self.first_fit(length).saturating_add(length);
        if length == 0 || end > now.saturating_add(reach) {
            return None;
        }
        match hole {
            Some(index) if self.holes[index].end == end => drop(self.holes.remove(index)),
            Some(index) => self.holes[index].begin = end,
            None => self.end = end,
        }
        Some(end)
    }

    /// Gives back the reservation with this length that ends at `end`. At `now`, this timeline's instant, part of it
    /// may have passed. Returns whether part of it was left, and had not been given back before.
    ///
    /// The last reservation makes the timeline shorter. Any other leaves a hole, since the waiters behind it already
    /// know when to depart.
    pub fn give_back(&mut self, now: u128, length: u128, end: u128) -> bool {
        let mut hole = Hole { begin: end.saturating_sub(length).max(now), end };
        let is_free = |it: &Hole| it.begin < hole.end && hole.begin < it.end;
        if hole.begin >= hole.end || hole.end > self.end || self.holes.iter().any(is_free) {
            return false;
        }
        let next = self.holes.iter().position(|it| it.begin >= hole.end).unwrap_or(self.holes.len());
        let mut place = next;
        // Adjacent holes are merged.
        if let Some(behind) = self.holes.get(next).filter(|it| it.begin == hole.end) {
            hole.end = behind.end;
            self.holes.remove(next);
        }
        if let Some(before) = next.checked_sub(1).map(|index| self.holes[index]).filter(|it| it.end == hole.begin) {
            hole.begin = before.begin;
            place = next - 1;
            self.holes.remove(place);
        }
        self.holes.insert(place, hole);
        if let Some(last) = self.holes.last().copied().filter(|last| last.end == self.end) {
            self.end = last.begin;
            self.holes.pop();
        }
        if self.holes.len() > Self::MOST_HOLES {
            self.holes.remove(0);
        }
        true
    }

    /// Returns all instants: the end, and then each hole's begin and end.
    pub(super) fn instants(&self) -> impl Iterator<Item = u128> + '_ {
        iter::once(self.end).chain(self.holes.iter().flat_map(|hole| [hole.begin, hole.end]))
    }
}
