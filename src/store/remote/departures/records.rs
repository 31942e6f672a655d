//! The departure times of a queue as records.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Arrival, DepartureQueue, DepartureTerms, Departures, Reserved, Timeline};
use crate::store::NodeHealth;
use crate::store::remote::any_records::AnyRecords;
use crate::store::remote::backend::GaveUp;
use crate::store::remote::records::{Changed, LimiterRecords, Records, Step, Turn};
use crate::store::remote::shared_reports::SharedReports;
use crate::store::remote::tag::KeyTag;
use crate::util::lock::Lock;
use crate::util::undo::OnDrop;
use crate::values::time::{Timestamp, duration_from_nanos};
use crate::values::{Description, LimiterError};

/// The letter of these records.
const KIND: char = 'q';

/// The first byte of a record. Then come the number of the write, the ticks in a nanosecond, how far ahead the timeline
/// may end in nanoseconds (8 bytes each, big-endian), the end of the timeline, and the begin and the end of each hole
/// (16 bytes each): at most 2,089 bytes.
const VERSION: u8 = 1;

const HEAD: usize = 25;

pub(super) const MOST_BYTES: usize = HEAD + 16 * (1 + 2 * Timeline::MOST_HOLES);

/// One queue whose departure times are [`Records`].
pub struct RecordQueue<R>(pub(super) Arc<QueueRecords<R>>);

pub(super) struct QueueRecords<R> {
    records: LimiterRecords<Arc<R>>,
    pub(super) terms: DepartureTerms,
    line: Lock<Line>,
}

/// The steps of this process that wait for the turn of their key, in the order in which they came.
#[derive(Default)]
struct Line {
    next: u64,
    keys: HashMap<KeyTag, Group>,
}

type Group = BTreeMap<u64, Waiting>;

struct Waiting {
    asked: Asked,
    deadline: Instant,
}

enum Asked {
    Reserve(Arrival, Answer<Reserved>),
    GiveBack { length: u128, end: u128, answer: Answer<bool> },
}

/// Fails if nobody waits for the answer any more.
type Answer<T> = oneshot::Sender<Result<T, LimiterError>>;

impl Asked {
    /// Makes the step at `now`, the instant of the timeline. Returns the end of the reservation that was made or given
    /// back, if any was.
    fn make(&self, timeline: &mut Timeline, now: u128) -> Option<u128> {
        match *self {
            Self::Reserve(_, ref answer) if answer.is_closed() => None,
            Self::Reserve(arrival, _) => timeline.reserve(now, arrival),
            Self::GiveBack { length, end, .. } => timeline.give_back(now, length, end).then_some(end),
        }
    }

    /// Whether it would charge the key.
    fn is_charge(&self) -> bool {
        matches!(self, Self::Reserve(arrival, _) if arrival.length > 0)
    }

    fn fail(self, error: LimiterError) {
        match self {
            Self::Reserve(_, answer) => drop(answer.send(Err(error))),
            Self::GiveBack { answer, .. } => drop(answer.send(Err(error))),
        }
    }
}

/// A record that was read.
pub(super) struct KeptTimeline {
    pub(super) timeline: Timeline,
    /// The number of the write that wrote it, if it is there.
    pub(super) written: u64,
    /// Whether it ended too far ahead: the clock was set back.
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

    fn take(&mut self, key: KeyTag) -> Vec<Waiting> {
        self.keys.remove(&key).unwrap_or_default().into_values().collect()
    }
}

impl<R: Records> Departures for R {
    type Queue = RecordQueue<R>;

    fn open(self: Arc<Self>, name: &str, terms: DepartureTerms) -> Self::Queue {
        let records = LimiterRecords::new(self, name);
        RecordQueue(Arc::new(QueueRecords { records, terms, line: Lock::default() }))
    }

    fn shares_departures_with(&self, other: &Self) -> bool {
        self.shares_records_with(other)
    }

    fn secret(&self) -> &[u8] {
        Records::secret(self)
    }
}

impl<R: Records> DepartureQueue for RecordQueue<R> {
    async fn reserve(&self, key: KeyTag, arrival: Arrival) -> Result<Reserved, LimiterError> {
        let (answer, answered) = oneshot::channel();
        self.0.ask(key, Asked::Reserve(arrival, answer), answered).await
    }

    async fn give_back(&self, key: KeyTag, length: u128, end: u128) -> Result<bool, LimiterError> {
        let (answer, answered) = oneshot::channel();
        self.0.ask(key, Asked::GiveBack { length, end, answer }, answered).await
    }

    fn health(&self) -> Vec<NodeHealth> {
        self.0.records.records().health()
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        self.0.gave_up(reason)
    }

    /// Processes share the list of who is rejected most.
    fn describe(&self, description: Description) -> Description {
        let records = &self.0.records;
        let any = AnyRecords::new(Arc::clone(records.records()));
        description.sharing_reports(SharedReports::new(Arc::new(LimiterRecords::new(any, records.limiter()))))
    }
}

impl<R: Records> QueueRecords<R> {
    /// Makes a step together with all that come to this process for this key before its turn: they share two calls.
    async fn ask<T>(
        self: &Arc<Self>,
        key: KeyTag,
        asked: Asked,
        mut answered: oneshot::Receiver<Result<T, LimiterError>>,
    ) -> Result<T, LimiterError> {
        let runtime = Handle::try_current().map_err(|_| self.gave_up(GaveUp::NoRuntime))?;
        let unanswered = |_| Err(self.gave_up(GaveUp::Cancelled));
        let deadline = self.deadline();
        let name = self.records.name(key, KIND);
        let number = self.line.lock().join(key, Waiting { asked, deadline });
        // A step whose caller gives up leaves the line, unless it is just made: then a reservation is given back, since
        // nobody takes the answer.
        let _leaves = OnDrop::new(|| self.line.lock().leave(key, number));
        tokio::select! {
            biased;
            answer = &mut answered => return answer.unwrap_or_else(unanswered),
            turn = self.records.turn(&name, deadline) => if let Ok(turn) = turn {
                let group = self.line.lock().take(key);
                // In a task, since this caller may leave, or have less time than the others.
                runtime.spawn(Arc::clone(self).make_all(turn, key, group));
            },
        }
        match timeout_at(deadline, &mut answered).await {
            Ok(answer) => answer.unwrap_or_else(unanswered),
            Err(_) => {
                // From here on, nobody takes the answer.
                answered.close();
                answered.try_recv().unwrap_or_else(|_| Err(self.gave_up(GaveUp::TimedOut)))
            }
        }
    }

    /// Makes the steps of a group, and then of those that have come meanwhile, until there are none.
    async fn make_all(self: Arc<Self>, turn: Turn, key: KeyTag, mut group: Vec<Waiting>) {
        while !group.is_empty() {
            group = self.make(&turn, group).await;
            group.extend(self.line.lock().take(key));
        }
    }

    /// Makes the steps of a group by one change, for as long as anyone waits for it. Returns the steps that give back
    /// reservations whose callers have left.
    async fn make(&self, turn: &Turn, group: Vec<Waiting>) -> Vec<Waiting> {
        let deadline = group.iter().map(|waiting| waiting.deadline).max().unwrap_or_else(Instant::now);
        let mut seen = Instant::now();
        let changed = self.records.change_in_turn(turn, deadline, |value, now| {
            seen = Instant::now();
            let KeptTimeline { mut timeline, written, is_cut } = self.read(value, now)?;
            let mut made = Vec::with_capacity(group.len());
            let mut is_changed = false;
            for Waiting { asked, .. } in &group {
                let end = asked.make(&mut timeline, self.terms.ticks(now));
                // The correction is written, too: otherwise the timeline would stay too long until the clock has caught
                // up.
                is_changed |= end.is_some() || is_cut && asked.is_charge();
                made.push((end, timeline.clone()));
            }
            if is_changed {
                let (new, lifetime) = self.write(&timeline, written, now);
                Ok(Step::Write(made, new, lifetime))
            } else {
                Ok(Step::Leave(made))
            }
        });
        let Changed { result: made, now } = match changed.await {
            Ok(changed) => changed,
            Err(unchanged) => {
                let error = LimiterError::from(unchanged);
                group.into_iter().for_each(|waiting| waiting.asked.fail(error.clone()));
                return Vec::new();
            }
        };
        let mut unclaimed = Vec::new();
        for (Waiting { asked, .. }, (end, timeline)) in group.into_iter().zip(made) {
            match asked {
                Asked::GiveBack { answer, .. } => drop(answer.send(Ok(end.is_some()))),
                Asked::Reserve(Arrival { length, .. }, answer) => {
                    let is_claimed = answer.send(Ok(Reserved { now, seen, end, timeline })).is_ok();
                    // If this fails, the reservation stays, as when its waiter gives it back.
                    unclaimed.extend(end.filter(|_| !is_claimed).map(|end| self.giving_back(length, end)));
                }
            }
        }
        unclaimed
    }

    /// The step that gives back a reservation for which nobody waits.
    fn giving_back(&self, length: u128, end: u128) -> Waiting {
        Waiting { asked: Asked::GiveBack { length, end, answer: oneshot::channel().0 }, deadline: self.deadline() }
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        self.records.records().gave_up(reason)
    }

    #[cfg(all(test, not(sluice_loom)))]
    pub(super) fn waiting(&self) -> usize {
        self.line.lock().keys.values().map(BTreeMap::len).sum()
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.records.records().timeout()
    }

    pub(super) fn read(&self, value: Option<&[u8]>, now: Timestamp) -> Result<KeptTimeline, LimiterError> {
        let Some(bytes) = value else {
            let timeline = Timeline::as_of(now, &self.terms, 0, 0, []);
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
        let [written, ticks, most_ahead] =
            [1, 9, 17].map(|at| u64::from_be_bytes(head[at..at + 8].try_into().expect("eight bytes")));
        if ticks == 0 {
            return None;
        }
        let most_ahead = u128::from(most_ahead) * u128::from(self.terms.quota().limit());
        let number = |bytes: &[u8]| u128::from_be_bytes(bytes.try_into().expect("sixteen bytes"));
        let mut numbers = numbers.map(number);
        let end = self.in_ticks(numbers.next()?, ticks, true);
        let mut holes = Vec::with_capacity(numbers.len() / 2);
        while let Some(begin) = numbers.next() {
            // Holes become smaller by rounding, never larger.
            holes.push([self.in_ticks(begin, ticks, true), self.in_ticks(numbers.next()?, ticks, false)]);
        }
        let timeline = Timeline::as_of(now, &self.terms, end, most_ahead, holes);
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
        let most_ahead = timeline.most_ahead().div_ceil(ticks.into());
        let mut bytes = Vec::with_capacity(HEAD + 16 * 3);
        bytes.push(VERSION);
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&ticks.to_be_bytes());
        bytes.extend_from_slice(&u64::try_from(most_ahead).unwrap_or(u64::MAX).to_be_bytes());
        timeline.instants().for_each(|instant| bytes.extend_from_slice(&instant.to_be_bytes()));
        (Some(bytes), duration_from_nanos(ahead.div_ceil(ticks.into())))
    }
}

impl<R> fmt::Debug for RecordQueue<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordQueue").field("terms", &self.0.terms).finish_non_exhaustive()
    }
}
