//! [`Search`]: finds the limit, by [`Doubling`] while nothing is known, and then by a [`LimitSearch`] about it.

use std::ops::RangeInclusive;

use super::cohort::Followed;
use super::doubling::Doubling;
use super::limit_search::LimitSearch;
use super::tally::{Tally, Verdict};
use crate::values::{PartitionKey, RequestEnd};

/// All times in nanoseconds.
#[derive(Debug)]
pub(super) struct Search {
    bounds: RangeInclusive<u64>,
    /// While it goes on, it has the limit.
    doubling: Option<Doubling>,
    exact: LimitSearch,
    /// Whether a limit was found. Before, a queue is no sign of overload.
    is_known: bool,
    /// How often the exact search has raised the limit in a row.
    rises: u32,
    /// The requests that have filled the limit since it changed last, and when the first of them came.
    full: u64,
    full_since: u64,
    /// The next cohort's number.
    next: u64,
    /// How long a request takes under this limit.
    time: u64,
    /// When the limit was lowered, if no request was admitted since.
    lowered: Option<u64>,
    /// While requests are abandoned, those that were admitted since, and how often there were some.
    losses: Option<Losses>,
    losses_before: u64,
    /// The key of the last followed request that was not given up, and when that ended.
    answered: Option<(PartitionKey, u64)>,
    /// Set while most requests are given up.
    lost: Option<Lost>,
    /// Until `deaf_until`, requests that are given up do not lower the limit. They were last ignored for `deaf_for`.
    deaf_until: u64,
    deaf_for: u64,
}

/// A limit that was left because most requests were given up.
#[derive(Clone, Copy, Debug)]
struct Lost {
    before: u64,
    /// Since when the least limit is in force.
    least_since: Option<u64>,
}

/// Requests that are followed to their end although they do not fill the limit.
#[derive(Debug)]
struct Losses {
    /// Their cohort's number, which no cohort in a [`Doubling`] has.
    number: u64,
    since: u64,
    tally: Tally,
    /// The most units in flight.
    most: u64,
}

/// Cohort numbers in [`Losses`] begin here.
const LOSSES: u64 = 1 << 62;

/// After this time, losses say nothing, because some of the requests last.
const LONGEST: u64 = 30_000_000_000;

/// If most requests are given up under the least limit for this time, too, the limit was not the reason. In this time,
/// the server catches up with the work for clients that have left.
const CAUGHT_UP: u64 = 30_000_000_000;

/// For this time at first, requests that are given up are ignored, once the limit was not the reason.
const FIRST_DEAF: u64 = 60_000_000_000;
const LONGEST_DEAF: u64 = 10 * FIRST_DEAF;

/// After this number of rises in a row, the limit is far away.
const FAR: u32 = 2;

/// If the limit is full, and the exact search has found nothing for this time, request times may tell more.
const IDLE: u64 = 20_000_000_000;

/// How many requests must have filled the limit in the time [`IDLE`].
const OFTEN: u64 = 64;

impl Search {
    pub(super) fn new(bounds: RangeInclusive<u64>, start: u64) -> Self {
        let mut search = Self {
            exact: LimitSearch::new(bounds.clone(), start),
            bounds,
            doubling: None,
            is_known: false,
            rises: 0,
            full: 0,
            full_since: 0,
            next: 1,
            time: 0,
            lowered: None,
            losses: None,
            losses_before: 0,
            answered: None,
            lost: None,
            deaf_until: 0,
            deaf_for: 0,
        };
        search.begin(false);
        search
    }

    /// Compares the present limit with its half, or its double with it.
    fn begin(&mut self, is_upwards: bool) {
        (self.rises, self.full) = (0, 0);
        if self.bounds.start() == self.bounds.end() {
            self.is_known = true;
            return;
        }
        let base = self.exact.base();
        // More requests than are compared now have shown that the present limit costs no throughput.
        let (high, free) = if is_upwards { (base.saturating_mul(2).min(*self.bounds.end()), base) } else { (base, 0) };
        self.doubling = Some(Doubling::new(self.bounds.clone(), high, free, self.next));
    }

    /// Ends the doubling, so that its cohorts are not taken for the next one's.
    fn end_doubling(&mut self) -> Option<Doubling> {
        let doubling = self.doubling.take()?;
        self.next = doubling.number() + 1;
        Some(doubling)
    }

    pub(super) fn set_bounds(&mut self, bounds: RangeInclusive<u64>) {
        self.lost = None;
        if let Some(doubling) = self.end_doubling() {
            self.exact = LimitSearch::new(self.bounds.clone(), doubling.limit());
        }
        self.exact.set_bounds(bounds.clone());
        self.bounds = bounds;
        if !self.is_known {
            self.begin(false);
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.doubling.as_ref().map_or_else(|| self.exact.limit(), Doubling::limit)
    }

    /// Whether each request's end must be [counted](Self::count).
    pub(super) const fn is_counting(&self) -> bool {
        self.losses.is_some() || (self.doubling.is_none() && self.exact.is_counting())
    }

    pub(super) const fn is_known(&self) -> bool {
        self.is_known
    }

    /// How long a request takes, if that was measured.
    pub(super) const fn time_of_one(&self) -> u64 {
        self.time
    }

    /// The time in which `units` end, if that was measured lately.
    pub(super) fn time_of(&self, units: u64) -> Option<u64> {
        self.exact.time_of(units)
    }

    /// A request was admitted. Returns whether it is followed.
    pub(super) fn follow(&mut self, now: u64, key: &PartitionKey, has_filled: bool) -> Option<Followed> {
        self.lowered = None;
        self.losses.take_if(|losses| losses.is_late(now));
        if has_filled {
            if self.full == 0 {
                self.full_since = now;
            }
            self.full += 1;
            if let Some(followed) = self.doubling.as_mut().and_then(|doubling| doubling.follow(now, key)) {
                return Some(followed);
            }
        }
        self.losses.as_mut()?.follow(now, key)
    }

    /// A request was withdrawn before it began.
    pub(super) fn forget(&mut self, key: &PartitionKey, followed: Followed) {
        if let Some(doubling) = &mut self.doubling {
            doubling.forget(key, followed);
        }
        if let Some(losses) = self.losses.as_mut().filter(|losses| losses.number == followed.cohort) {
            losses.tally.forget(key, followed.since);
        }
    }

    /// Counts a request that is over. `is_binding`: others waited for its units.
    pub(super) fn count(
        &mut self,
        now: u64,
        key: &PartitionKey,
        (units, followed): (u64, Option<Followed>),
        end: RequestEnd,
        is_binding: bool,
    ) {
        let before = self.limit();
        match &self.doubling {
            Some(_) => self.count_followed(now, key, followed, end),
            None => self.count_exactly(now, units, end == RequestEnd::Served, is_binding),
        }
        if self.limit() < before {
            self.lowered = Some(now);
        }
    }

    fn count_followed(&mut self, now: u64, key: &PartitionKey, followed: Option<Followed>, end: RequestEnd) {
        let (Some(doubling), Some(followed)) = (&mut self.doubling, followed) else { return };
        if followed.is_hasty(now, end) {
            doubling.forget(key, followed);
            return;
        }
        let answered = self.answered.as_ref().map(|(key, _)| key);
        let before = doubling.limit();
        let found = doubling.end(now, key, followed, end, (now >= self.deaf_until, answered));
        self.time = doubling.time().unwrap_or(self.time);
        if doubling.has_lost() {
            self.lost.get_or_insert(Lost { before, least_since: None });
        }
        if let Some(limit) = found {
            self.find(limit);
        }
    }

    /// The doubling has found a limit.
    fn find(&mut self, limit: u64) {
        self.end_doubling();
        // If the double is no better, the exact search goes on where it was.
        let base = self.exact.base();
        if !(self.is_known && (base..=base + base / 4).contains(&limit)) {
            self.exact = LimitSearch::new(self.bounds.clone(), limit);
        }
        (self.is_known, self.full) = (true, 0);
    }

    /// Goes back to the previous limit, if nothing was admitted for `longest` since the limit was lowered, and for
    /// twice a request's time. Then requests that take much longer than others hold more units than the limit has, and
    /// all others wait for them. Call this while requests wait.
    pub(super) fn look(&mut self, now: u64, longest: u64) {
        let longest = longest.max(self.time.saturating_mul(2));
        if self.lowered.is_none_or(|since| now.saturating_sub(since) <= longest) {
            return;
        }
        self.lowered = None;
        match &self.doubling {
            Some(doubling) => doubling.above_half().into_iter().for_each(|limit| self.find(limit)),
            None => self.exact.go_back_up(now),
        }
    }

    /// Notes a request that is over, if requests are abandoned. Its own units are among the `in_flight` ones.
    ///
    /// If clients give up before they get a response, the limit may be too high although it is never reached: the
    /// server may work for clients that have left. If it is reached, the exact search may see no throughput at all, and
    /// nothing that it could compare.
    ///
    /// We do not know how long a request took that is not followed. So the first abandoned request says nothing itself,
    /// and the requests that are admitted after it are followed.
    pub(super) fn note_end(
        &mut self,
        now: u64,
        key: &PartitionKey,
        in_flight: u64,
        followed: Option<Followed>,
        end: RequestEnd,
    ) {
        if followed.is_some() && end != RequestEnd::Abandoned {
            self.answered = Some((key.clone(), now));
        }
        self.answered.take_if(|(_, at)| now.saturating_sub(*at) > LONGEST);
        if self.losses.is_none() {
            if end != RequestEnd::Abandoned || self.bounds.start() == self.bounds.end() {
                return;
            }
            self.losses_before += 1;
        }
        let losses = self.losses.get_or_insert_with(|| Losses::new(LOSSES + self.losses_before, now));
        losses.most = losses.most.max(in_flight);
        if let Some(followed) = followed.filter(|followed| followed.cohort == losses.number) {
            losses.end(now, key, followed, end);
        }
        let verdict = losses.tally.verdict(now, self.answered.as_ref().map(|(key, _)| key));
        if verdict == Verdict::Unknown && !losses.is_late(now) {
            return;
        }
        let most = losses.most;
        self.losses = None;
        match verdict {
            Verdict::Lost if now >= self.deaf_until => self.lose(now, most),
            Verdict::Kept => self.lost = None,
            Verdict::Lost | Verdict::Unknown => {}
        }
    }

    /// Lowers the limit, because most requests are given up. If they were under the least limit for long enough, goes
    /// back to the previous limit, because clients leave for other reasons. `most`: the most units in flight.
    fn lose(&mut self, now: u64, most: u64) {
        let (limit, least) = (self.limit(), *self.bounds.start());
        let lost = self.lost.get_or_insert(Lost { before: limit, least_since: None });
        if limit == least && now.saturating_sub(*lost.least_since.get_or_insert(now)) > CAUGHT_UP {
            self.exact = LimitSearch::new(self.bounds.clone(), lost.before);
            self.lost = None;
            self.end_doubling();
            // This time doubles with each repetition, unless the last one is long ago.
            let is_long_ago = now.saturating_sub(self.deaf_until) > self.deaf_for;
            let twice = if is_long_ago { 0 } else { self.deaf_for.saturating_mul(2) };
            self.deaf_for = twice.clamp(FIRST_DEAF, LONGEST_DEAF);
            self.deaf_until = now.saturating_add(self.deaf_for);
            return;
        }
        // Under a limit that is full, a doubling looks for itself.
        let high = if most < limit || self.doubling.is_some() { most } else { limit / 2 };
        let high = high.clamp(least, *self.bounds.end());
        if high < limit {
            self.end_doubling();
            self.exact = LimitSearch::new(self.bounds.clone(), high);
            self.doubling = Some(Doubling::new(self.bounds.clone(), high, 0, self.next));
        }
    }

    fn count_exactly(&mut self, now: u64, units: u64, is_served: bool, is_binding: bool) {
        let before = self.exact.base();
        self.exact.count(now, units, is_served, is_binding);
        let after = self.exact.base();
        if after != before {
            self.rises = if after > before { self.rises + 1 } else { 0 };
            self.full = 0;
        }
        let is_idle = self.full >= OFTEN && now.saturating_sub(self.full_since) > IDLE;
        if self.rises >= FAR || is_idle {
            self.begin(true);
        }
    }
}

impl Losses {
    fn new(number: u64, now: u64) -> Self {
        Self { number, since: now, tally: Tally::default(), most: 0 }
    }

    fn follow(&mut self, now: u64, key: &PartitionKey) -> Option<Followed> {
        self.tally.has_room().then(|| {
            self.tally.follow(key, now);
            Followed { cohort: self.number, since: now }
        })
    }

    fn end(&mut self, now: u64, key: &PartitionKey, followed: Followed, end: RequestEnd) {
        if followed.is_hasty(now, end) {
            self.tally.forget(key, followed.since);
        } else {
            self.tally.end(key, followed.since, now, end == RequestEnd::Abandoned);
        }
    }

    const fn is_late(&self, now: u64) -> bool {
        now.saturating_sub(self.since) > LONGEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    const KEY: PartitionKey = PartitionKey::SHARED;

    /// Eight requests are in the server at any time, below the limit, and each ends after a second.
    fn limit_after(requests: u64, end: RequestEnd) -> u64 {
        let mut search = Search::new(2..=1_024, 20);
        let mut running = std::collections::VecDeque::new();
        for number in 0..requests {
            let now = number * 125 * MS;
            while running.len() as u64 >= search.limit().min(8) {
                let followed = running.pop_front().unwrap();
                search.note_end(now, &KEY, running.len() as u64 + 1, followed, end);
                search.count(now, &KEY, (1, followed), end, true);
            }
            let is_full = running.len() as u64 + 1 >= search.limit();
            running.push_back(search.follow(now, &KEY, is_full));
        }
        search.limit()
    }

    #[test]
    fn trap_unreached_limit_while_clients_give_up() {
        assert_eq!(limit_after(10, RequestEnd::Abandoned), 20);
        assert_eq!(limit_after(32, RequestEnd::Abandoned), 8);
        assert_eq!(limit_after(200, RequestEnd::Abandoned), 2);
    }

    /// One client makes most requests, and always leaves.
    #[test]
    fn trap_client_leaves_under_every_limit() {
        let mut lowest = 20;
        let restored = (200..1_000).step_by(50).find(|requests| {
            let limit = limit_after(*requests, RequestEnd::Abandoned);
            lowest = limit.min(lowest);
            limit == 20
        });
        assert!(restored.is_some_and(|requests| requests <= 700) && lowest == 2, "{restored:?}");
    }

    /// The exact search compares throughput, and sees none under both of its limits.
    #[test]
    fn trap_full_limit_while_clients_give_up() {
        let mut search = Search::new(2..=1_024, 20);
        search.find(20);
        let mut running = std::collections::VecDeque::new();
        for number in 0..60 {
            let now = number * 100 * MS;
            while running.len() as u64 >= search.limit() {
                let followed = running.pop_front().unwrap();
                search.note_end(now, &KEY, running.len() as u64 + 1, followed, RequestEnd::Abandoned);
                search.count(now, &KEY, (1, followed), RequestEnd::Abandoned, true);
            }
            running.push_back(search.follow(now, &KEY, true));
        }
        assert!(search.limit() <= 10, "{}", search.limit());
    }

    /// Streams that clients leave say nothing, either.
    #[test]
    fn failures_say_nothing_about_unreached_limits() {
        for end in [RequestEnd::Served, RequestEnd::Failed, RequestEnd::CutOff] {
            assert_eq!(limit_after(400, end), 20);
        }
    }
}
