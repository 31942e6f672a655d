//! The departure times of a queue as records.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::Instant;

use super::{Arrival, DepartureQueue, DepartureTerms, Departures, Reserved, Timeline};
use crate::store::NodeHealth;
use crate::store::remote::any_records::AnyRecords;
use crate::store::remote::backend::{GaveUp, deadline_in};
use crate::store::remote::records::{Changed, LimiterRecords, Records, Step, Turn};
use crate::store::remote::shared_reports::SharedReports;
use crate::store::remote::tag::KeyTag;
use crate::util::lock::Lock;
use crate::util::undo::OnDrop;
use crate::values::time::{Timestamp, duration_from_nanos};
use crate::values::{Description, LimiterError};

/// The letter of these records.
const KIND: char = 'q';

/// The first byte of a record. Then come the number of the write, the ticks in a nanosecond (8 bytes each, big-endian),
/// the end of the timeline, and the begin and the end of each hole (16 bytes each): at most 2,081 bytes.
const VERSION: u8 = 1;

const HEAD: usize = 17;

pub(super) const MOST_BYTES: usize = HEAD + 16 * (1 + 2 * Timeline::MOST_HOLES);

/// One queue whose departure times are [`Records`].
pub struct RecordQueue<R> {
    records: LimiterRecords<Arc<R>>,
    terms: DepartureTerms,
    line: Lock<Line>,
}

/// The requests of this process that wait for a reservation, in the order in which they came.
#[derive(Default)]
struct Line {
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

impl Line {
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
    type Queue = RecordQueue<R>;

    fn open(self: Arc<Self>, name: &str, terms: DepartureTerms) -> Self::Queue {
        RecordQueue { records: LimiterRecords::new(self, name), terms, line: Lock::default() }
    }

    fn shares_departures_with(&self, other: &Self) -> bool {
        self.shares_records_with(other)
    }

    fn secret(&self) -> &[u8] {
        Records::secret(self)
    }
}

impl<R: Records> DepartureQueue for RecordQueue<R> {
    /// Together with all that come to this process for this key before its turn: they share the two calls.
    async fn reserve(&self, key: KeyTag, arrival: Arrival) -> Result<Reserved, LimiterError> {
        let deadline = self.deadline();
        let name = self.records.name(key, KIND);
        let (answer, answered) = oneshot::channel();
        let number = self.line.lock().join(key, Waiting { arrival, answer });
        // A request that gives up leaves the line. It drops its end of the channel before that: if its reservation is
        // just made, it is given back.
        let leaves = OnDrop::new(|| self.line.lock().leave(key, number));
        let mut answered = answered;
        let unanswered = |_| Err(self.gave_up(GaveUp::Cancelled));
        let turn = tokio::select! {
            biased;
            answer = &mut answered => {
                leaves.end();
                return answer.unwrap_or_else(unanswered);
            }
            turn = self.records.turn(&name, deadline) => turn,
        };
        match turn {
            // Its answer may have come at the same time. If not, it is still in the line, since all that were taken out
            // in an earlier turn were answered in it.
            Ok(turn) => match answered.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.reserve_in_turn(turn, key, deadline).await;
                    answered.await.unwrap_or_else(unanswered)
                }
                Err(TryRecvError::Closed) => Err(self.gave_up(GaveUp::Cancelled)),
                Ok(answer) => answer,
            },
            Err(unchanged) => {
                // The request that makes its reservation from here on gives it back.
                answered.close();
                answered.try_recv().unwrap_or(Err(unchanged.into()))
            }
        }
    }

    async fn give_back(&self, key: KeyTag, length: u128, end: u128) -> Result<bool, LimiterError> {
        let changed = self.records.change(key, KIND, self.deadline(), |value, now| {
            let KeptTimeline { mut timeline, written, .. } = self.read(value, now)?;
            if timeline.give_back(self.terms.ticks(now), length, end) {
                let (new, lifetime) = self.write(&timeline, written, now);
                Ok(Step::Write(true, new, lifetime))
            } else {
                Ok(Step::Leave(false))
            }
        });
        Ok(changed.await?.result)
    }

    fn health(&self) -> Vec<NodeHealth> {
        self.records.records().health()
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        self.records.records().gave_up(reason)
    }

    /// Processes share the list of who is rejected most.
    fn describe(&self, description: Description) -> Description {
        let records = AnyRecords::new(Arc::clone(self.records.records()));
        description.sharing_reports(SharedReports::new(Arc::new(LimiterRecords::new(records, self.records.limiter()))))
    }
}

impl<R: Records> RecordQueue<R> {
    /// Reserves time for all requests that wait for this key, in the order in which they came, by one change.
    async fn reserve_in_turn(&self, turn: Turn, key: KeyTag, deadline: Instant) {
        let waiting: Vec<_> = self.line.lock().keys.remove(&key).unwrap_or_default().into_values().collect();
        let mut seen = Instant::now();
        let changed = self.records.change_in_turn(&turn, deadline, |value, now| {
            seen = Instant::now();
            let KeptTimeline { mut timeline, written, is_cut } = self.read(value, now)?;
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
                let (new, lifetime) = self.write(&timeline, written, now);
                Ok(Step::Write(answers, new, lifetime))
            } else {
                Ok(Step::Leave(answers))
            }
        });
        let Changed { result: answers, now } = match changed.await {
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
            let _ = self.give_back(key, length, end).await;
        }
    }

    fn deadline(&self) -> Instant {
        deadline_in(self.records.records().timeout())
    }

    pub(super) fn read(&self, value: Option<&[u8]>, now: Timestamp) -> Result<KeptTimeline, LimiterError> {
        let Some(bytes) = value else {
            let timeline = Timeline::as_of(now, &self.terms, 0, []);
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
        let timeline = Timeline::as_of(now, &self.terms, end, holes);
        let is_cut = end > timeline.end();
        Some(KeptTimeline { timeline, written, is_cut })
    }

    /// Converts an instant from other ticks: the time stays.
    fn in_ticks(&self, instant: u128, ticks: u64, rounded_up: bool) -> u128 {
        let own = self.terms.quota().limit();
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
        let ahead = timeline.end().saturating_sub(self.terms.ticks(now));
        if ahead == 0 {
            return (None, Duration::ZERO);
        }
        let ticks = self.terms.quota().limit();
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

impl<R> fmt::Debug for RecordQueue<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordQueue").field("terms", &self.terms).finish_non_exhaustive()
    }
}
