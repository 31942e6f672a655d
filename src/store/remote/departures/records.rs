//! The departure times of a queue as records.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::Instant;

use super::{Arrival, DepartureTerms, Departures, Reserved, Timeline};
use crate::store::remote::any_records::AnyRecords;
use crate::store::remote::backend::{CallLimits, GaveUp};
use crate::store::remote::limiter_keys::RemoteKey;
use crate::store::remote::records::{Changed, Records, Step, Turn, change};
use crate::store::remote::server::deadline_of;
use crate::store::remote::tag::KeyTag;
use crate::util::lock::Lock;
use crate::util::undo::OnDrop;
use crate::values::LimiterError;
use crate::values::time::{Timestamp, duration_from_nanos};

/// The letter of these records.
const KIND: char = 'q';

/// The first byte of a record. Then come the number of the write, the ticks in a nanosecond (8 bytes each, big-endian),
/// the end of the timeline, and the begin and the end of each hole (16 bytes each): at most 2,081 bytes.
const VERSION: u8 = 1;

const HEAD: usize = 17;

pub(super) const MOST_BYTES: usize = HEAD + 16 * (1 + 2 * Timeline::MOST_HOLES);

/// A key of a queue whose departure times are [`Records`].
struct RecordQueue<'a, R> {
    records: &'a R,
    key: RemoteKey<'a>,
    terms: &'a DepartureTerms,
}

/// The requests of this process that wait for reservations in one queue.
#[derive(Default)]
pub(in crate::store::remote) struct Line(Lock<Lines>);

/// Those of each key, in the order in which they came.
#[derive(Default)]
struct Lines {
    next: u64,
    keys: HashMap<KeyTag, BTreeMap<u64, Waiting>>,
}

struct Waiting {
    arrival: Arrival,
    answer: oneshot::Sender<Result<Reserved, LimiterError>>,
}

/// A record that was read.
pub(super) struct KeptTimeline {
    pub(super) timeline: Timeline,
    /// The number of the write that wrote it, if it is there.
    pub(super) written: u64,
    /// Whether it ended too far ahead: the clock was set back, or the quota was another.
    pub(super) is_cut: bool,
}

impl Lines {
    fn join(&mut self, key: KeyTag, waiting: Waiting) -> u64 {
        let number = self.next;
        self.next += 1;
        self.keys.entry(key).or_default().insert(number, waiting);
        number
    }

    fn leave(&mut self, key: KeyTag, number: u64) {
        if let Entry::Occupied(mut line) = self.keys.entry(key) {
            line.get_mut().remove(&number);
            if line.get().is_empty() {
                line.remove();
            }
        }
    }
}

impl<R: Records> Departures for R {
    /// Together with all that come to this process for this key before its turn: they share the two calls.
    async fn reserve(
        &self,
        key: &RemoteKey<'_>,
        terms: &DepartureTerms,
        arrival: Arrival,
        limits: CallLimits,
    ) -> Result<Reserved, LimiterError> {
        RecordQueue { records: self, key: *key, terms }.reserve(arrival, limits.deadline).await
    }

    async fn give_back(
        &self,
        key: &RemoteKey<'_>,
        terms: &DepartureTerms,
        length: u128,
        end: u128,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        RecordQueue { records: self, key: *key, terms }.give_back(length, end, limits.deadline).await
    }

    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        Some(AnyRecords::shared(Arc::clone(self)))
    }
}

impl<R: Records> RecordQueue<'_, R> {
    async fn reserve(&self, arrival: Arrival, deadline: Instant) -> Result<Reserved, LimiterError> {
        let name = self.key.record(KIND);
        let tag = self.key.tag();
        let line = &self.key.line().0;
        let (answer, answered) = oneshot::channel();
        let number = line.lock().join(tag, Waiting { arrival, answer });
        // A request that gives up leaves the line. It drops its end of the channel before that: if its reservation is
        // just made, it is given back.
        let leaves = OnDrop::new(|| line.lock().leave(tag, number));
        let mut answered = answered;
        let unanswered = |_| Err(self.records.gave_up(GaveUp::Cancelled));
        let turn = tokio::select! {
            biased;
            answer = &mut answered => {
                leaves.end();
                return answer.unwrap_or_else(unanswered);
            }
            turn = self.key.turns().take(&name, deadline, self.records) => turn,
        };
        match turn {
            // Its answer may have come at the same time. If not, it is still in the line, since all that were taken out
            // in an earlier turn were answered in it.
            Ok(turn) => match answered.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.reserve_in_turn(turn, &name, deadline).await;
                    answered.await.unwrap_or_else(unanswered)
                }
                Err(TryRecvError::Closed) => Err(self.records.gave_up(GaveUp::Cancelled)),
                Ok(answer) => answer,
            },
            Err(gave_up) => {
                // The request that makes its reservation from here on gives it back.
                answered.close();
                answered.try_recv().unwrap_or(Err(gave_up))
            }
        }
    }

    async fn give_back(&self, length: u128, end: u128, deadline: Instant) -> Result<bool, LimiterError> {
        let give_back = |value: Option<&[u8]>, now| {
            let KeptTimeline { mut timeline, written, .. } = self.terms.read(value, now)?;
            if timeline.give_back(self.terms.ticks(now), length, end) {
                let (new, lifetime) = self.terms.write(&timeline, written, now);
                Ok(Step::Write(true, new, lifetime))
            } else {
                Ok(Step::Leave(false))
            }
        };
        let turns = Some(self.key.turns());
        Ok(change(self.records, turns, &self.key.record(KIND), deadline, give_back).await?.result)
    }

    /// Reserves time for all requests that wait for this key, in the order in which they came, by one change.
    async fn reserve_in_turn(&self, turn: Turn, name: &str, deadline: Instant) {
        let waiting: Vec<_> =
            self.key.line().0.lock().keys.remove(&self.key.tag()).unwrap_or_default().into_values().collect();
        let mut seen = Instant::now();
        let reserve = |value: Option<&[u8]>, now| {
            seen = Instant::now();
            let KeptTimeline { mut timeline, written, is_cut } = self.terms.read(value, now)?;
            let mut answers = Vec::with_capacity(waiting.len());
            let mut is_changed = false;
            for Waiting { arrival, answer } in &waiting {
                let end = if answer.is_closed() { None } else { timeline.reserve(self.terms.ticks(now), *arrival) };
                // The correction is written, too: otherwise the timeline would stay too long until the clock has caught
                // up.
                is_changed |= end.is_some() || is_cut && arrival.length > 0;
                answers.push((end, timeline.clone()));
            }
            if is_changed {
                let (new, lifetime) = self.terms.write(&timeline, written, now);
                Ok(Step::Write(answers, new, lifetime))
            } else {
                Ok(Step::Leave(answers))
            }
        };
        let Changed { result: answers, now } = match change(self.records, None, name, deadline, reserve).await {
            Ok(changed) => changed,
            Err(unchanged) => {
                let error = LimiterError::from(unchanged);
                waiting.into_iter().for_each(|it| drop(it.answer.send(Err(error.clone()))));
                return;
            }
        };
        let mut unclaimed = Vec::new();
        for (Waiting { arrival, answer }, (end, timeline)) in waiting.into_iter().zip(answers) {
            let is_claimed = answer.send(Ok(Reserved { now, seen, end, timeline })).is_ok();
            unclaimed.extend(end.filter(|_| !is_claimed).map(|end| (arrival.length, end)));
        }
        drop(turn);
        for (length, end) in unclaimed {
            // If this fails, it stays, as when its waiter gives it back.
            let _ = self.give_back(length, end, deadline_of(self.records)).await;
        }
    }
}

/// The bytes of a record.
impl DepartureTerms {
    pub(super) fn read(&self, value: Option<&[u8]>, now: Timestamp) -> Result<KeptTimeline, LimiterError> {
        let Some(bytes) = value else {
            let timeline = Timeline::as_of(now, self, 0, []);
            return Ok(KeptTimeline { timeline, written: 0, is_cut: false });
        };
        self.decode(bytes, now).ok_or_else(|| LimiterError::new("the record of the key holds no schedule of a queue"))
    }

    fn decode(&self, bytes: &[u8], now: Timestamp) -> Option<KeptTimeline> {
        let (head, numbers) = bytes.split_at_checked(HEAD)?;
        let (numbers, rest) = (numbers.chunks_exact(16), numbers.len() % 16);
        if head[0] != VERSION || rest != 0 || bytes.len() > MOST_BYTES {
            return None;
        }
        let [written, ticks] = [1, 9].map(|at| u64::from_be_bytes(head[at..at + 8].try_into().expect("eight bytes")));
        if ticks == 0 {
            return None;
        }
        let number = |bytes: &[u8]| u128::from_be_bytes(bytes.try_into().expect("sixteen bytes"));
        let mut numbers = numbers.map(number);
        let end = self.in_ticks(numbers.next()?, ticks, true);
        let mut holes = Vec::with_capacity(numbers.len() / 2);
        while let Some(begin) = numbers.next() {
            // Holes become smaller by rounding, never larger.
            holes.push([self.in_ticks(begin, ticks, true), self.in_ticks(numbers.next()?, ticks, false)]);
        }
        let timeline = Timeline::as_of(now, self, end, holes);
        let is_cut = end > timeline.end();
        Some(KeptTimeline { timeline, written, is_cut })
    }

    /// Converts an instant from other ticks: the time stays.
    fn in_ticks(&self, instant: u128, ticks: u64, rounded_up: bool) -> u128 {
        let own = self.quota().limit();
        if ticks == own {
            return instant;
        }
        let (own, ticks) = (u128::from(own), u128::from(ticks));
        let rest = (instant % ticks) * own;
        let rest = if rounded_up { rest.div_ceil(ticks) } else { rest / ticks };
        (instant / ticks).saturating_mul(own).saturating_add(rest)
    }

    /// Returns the new record, or none if no time is reserved any more; and its lifetime.
    pub(super) fn write(&self, timeline: &Timeline, written: u64, now: Timestamp) -> (Option<Vec<u8>>, Duration) {
        let ahead = timeline.end().saturating_sub(self.ticks(now));
        if ahead == 0 {
            return (None, Duration::ZERO);
        }
        let ticks = self.quota().limit();
        // A record that was forgotten or deleted begins anew at a number that no write before it has had.
        let number = written.saturating_add(1).max(now.as_nanos());
        let mut bytes = Vec::with_capacity(HEAD + 16 * 3);
        bytes.push(VERSION);
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&ticks.to_be_bytes());
        timeline.numbers().for_each(|number| bytes.extend_from_slice(&number.to_be_bytes()));
        (Some(bytes), duration_from_nanos(ahead.div_ceil(ticks.into())))
    }
}
