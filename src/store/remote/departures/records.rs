//! A queue's departure times as records.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Arrival, DepartureTerms, Departures, Reserved, Timeline};
use crate::store::remote::any_records::AnyRecords;
use crate::store::remote::backend::{CallLimits, GaveUp};
use crate::store::remote::limiter_keys::RemoteKey;
use crate::store::remote::records::{Changed, Records, Step, Turn, Turns, change};
use crate::store::remote::server::deadline_of;
use crate::store::remote::tag::KeyTag;
use crate::util::lock::Lock;
use crate::util::undo::OnDrop;
use crate::values::LimiterError;
use crate::values::time::{Timestamp, duration_from_nanos};

/// The letter for these records.
const KIND: char = 'q';

/// A record's first byte. Then come the write's number, the ticks in a nanosecond, how far ahead the timeline may end
/// in nanoseconds (8 bytes each, big-endian), the timeline's end, and each hole's begin and end (16 bytes each): at
/// most 2,089 bytes.
const VERSION: u8 = 1;

const HEAD: usize = 25;

pub(super) const MOST_BYTES: usize = HEAD + 16 * (1 + 2 * Timeline::MOST_HOLES);

/// A key in a queue whose departure times are [`Records`].
struct RecordQueue<R> {
    records: Arc<R>,
    line: Line,
    key: KeyTag,
    name: String,
    terms: DepartureTerms,
}

/// This process's steps that wait for their key's turn, in one queue. Clones share the line.
#[derive(Clone, Default)]
pub(in crate::store::remote) struct Line(Arc<Lock<Lines>>);

/// Each key's steps, in the order in which they came.
#[derive(Default)]
struct Lines {
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

/// Fails if the caller does not wait for the answer any more.
type Answer<T> = oneshot::Sender<Result<T, LimiterError>>;

impl Asked {
    /// Makes the step at `now`, the timeline's instant. Returns the end of the reservation that was made or given back,
    /// if any.
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
    /// The number of the write that wrote it, if it exists.
    pub(super) written: u64,
    /// Whether it ended too far ahead, because the clock was set back.
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

    fn take(&mut self, key: KeyTag) -> Vec<Waiting> {
        self.keys.remove(&key).unwrap_or_default().into_values().collect()
    }
}

impl<R: Records> Departures for R {
    async fn reserve(
        self: &Arc<Self>,
        key: &RemoteKey<'_>,
        terms: &DepartureTerms,
        arrival: Arrival,
        limits: CallLimits,
    ) -> Result<Reserved, LimiterError> {
        let (answer, answered) = oneshot::channel();
        RecordQueue::new(self, key, terms)
            .ask(Asked::Reserve(arrival, answer), answered, key.turns(), limits.deadline)
            .await
    }

    async fn give_back(
        self: &Arc<Self>,
        key: &RemoteKey<'_>,
        terms: &DepartureTerms,
        length: u128,
        end: u128,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        let (answer, answered) = oneshot::channel();
        let asked = Asked::GiveBack { length, end, answer };
        RecordQueue::new(self, key, terms).ask(asked, answered, key.turns(), limits.deadline).await
    }

    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        Some(AnyRecords::shared(Arc::clone(self)))
    }
}

impl Line {
    /// Returns how many steps wait for their turn.
    #[cfg(all(test, not(sluice_loom)))]
    pub(super) fn waiting(&self) -> usize {
        self.0.lock().keys.values().map(BTreeMap::len).sum()
    }
}

impl<R: Records> RecordQueue<R> {
    fn new(records: &Arc<R>, key: &RemoteKey<'_>, terms: &DepartureTerms) -> Self {
        Self {
            records: Arc::clone(records),
            line: key.line().clone(),
            key: key.tag(),
            name: key.record(KIND),
            terms: *terms,
        }
    }

    /// Makes a step together with all that come to this process for this key before its turn, so that they share two
    /// calls.
    async fn ask<T>(
        self,
        asked: Asked,
        mut answered: oneshot::Receiver<Result<T, LimiterError>>,
        turns: &Turns,
        deadline: Instant,
    ) -> Result<T, LimiterError> {
        let runtime = Handle::try_current().map_err(|_| self.records.gave_up(GaveUp::NoRuntime))?;
        let (records, line, key) = (Arc::clone(&self.records), self.line.clone(), self.key);
        let unanswered = |_| Err(records.gave_up(GaveUp::Cancelled));
        let number = line.0.lock().join(key, Waiting { asked, deadline });
        // If a step's caller gives up, the step leaves the line, unless it is being made. Then its reservation is given
        // back, since no caller takes the answer.
        let _leaves = OnDrop::new(|| line.0.lock().leave(key, number));
        tokio::select! {
            biased;
            answer = &mut answered => return answer.unwrap_or_else(unanswered),
            turn = turns.take(&self.name, deadline) => if let Ok(turn) = turn {
                let group = line.0.lock().take(key);
                // In a task, since this caller may leave, or have less time than the others.
                runtime.spawn(self.make_all(turn, group));
            },
        }
        match timeout_at(deadline, &mut answered).await {
            Ok(answer) => answer.unwrap_or_else(unanswered),
            Err(_) => {
                // From here on, no caller takes the answer.
                answered.close();
                answered.try_recv().unwrap_or_else(|_| Err(records.gave_up(GaveUp::TimedOut)))
            }
        }
    }

    /// Makes a group's steps, and then those that have come meanwhile, until no step is left.
    async fn make_all(self, turn: Turn, mut group: Vec<Waiting>) {
        while !group.is_empty() {
            group = self.make(group).await;
            group.extend(self.line.0.lock().take(self.key));
        }
        drop(turn);
    }

    /// Makes a group's steps by one change, until the last deadline in the group. Returns the steps that give back
    /// reservations whose callers have left.
    async fn make(&self, group: Vec<Waiting>) -> Vec<Waiting> {
        let deadline = group.iter().map(|waiting| waiting.deadline).max().unwrap_or_else(Instant::now);
        let mut seen = Instant::now();
        let step = |value: Option<&[u8]>, now| {
            seen = Instant::now();
            let KeptTimeline { mut timeline, written, is_cut } = self.terms.read(value, now)?;
            let mut made = Vec::with_capacity(group.len());
            let mut is_changed = false;
            for Waiting { asked, .. } in &group {
                let end = asked.make(&mut timeline, self.terms.ticks(now));
                // The correction is written, too, because otherwise the timeline would stay too long until the clock
                // has caught up.
                is_changed |= end.is_some() || is_cut && asked.is_charge();
                made.push((end, timeline.clone()));
            }
            if is_changed {
                let (new, lifetime) = self.terms.write(&timeline, written, now);
                Ok(Step::Write(made, new, lifetime))
            } else {
                Ok(Step::Leave(made))
            }
        };
        // In the group's turn.
        let changed = change(&*self.records, None, &self.name, deadline, step).await;
        let Changed { result: made, now } = match changed {
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

    /// Returns the step that gives back an unclaimed reservation.
    fn giving_back(&self, length: u128, end: u128) -> Waiting {
        let answer = oneshot::channel().0;
        Waiting { asked: Asked::GiveBack { length, end, answer }, deadline: deadline_of(&*self.records) }
    }
}

/// The bytes in a record.
impl DepartureTerms {
    pub(super) fn read(&self, value: Option<&[u8]>, now: Timestamp) -> Result<KeptTimeline, LimiterError> {
        let Some(bytes) = value else {
            let timeline = Timeline::as_of(now, self, 0, 0, []);
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
        let most_ahead = u128::from(most_ahead) * u128::from(self.quota().limit());
        let number = |bytes: &[u8]| u128::from_be_bytes(bytes.try_into().expect("sixteen bytes"));
        let mut numbers = numbers.map(number);
        let end = self.in_ticks(numbers.next()?, ticks, true);
        let mut holes = Vec::with_capacity(numbers.len() / 2);
        while let Some(begin) = numbers.next() {
            // Rounding may make holes smaller, but never larger.
            holes.push([self.in_ticks(begin, ticks, true), self.in_ticks(numbers.next()?, ticks, false)]);
        }
        let timeline = Timeline::as_of(now, self, end, most_ahead, holes);
        let is_cut = end > timeline.end();
        Some(KeptTimeline { timeline, written, is_cut })
    }

    /// Converts an instant from other ticks. The time stays the same.
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

    /// Returns the new record, or `None` if no time is reserved any more, and its lifetime.
    pub(super) fn write(&self, timeline: &Timeline, written: u64, now: Timestamp) -> (Option<Vec<u8>>, Duration) {
        let ahead = timeline.end().saturating_sub(self.ticks(now));
        if ahead == 0 {
            return (None, Duration::ZERO);
        }
        let ticks = self.quota().limit();
        // A record that was forgotten or deleted begins again at a number higher than any write before it.
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
