//! The decisions of one policy.

use std::time::Duration;

use hdrhistogram::Histogram;
use tower_sluice::PartitionKey;
use tower_sluice::limiter::Terms;

use super::demand::{Measure, quantile};
use super::keys::{self, Keys, Note, Offenders};
use super::timeline::{Timeline, WorstMinutes};
use crate::log::Place;
use crate::words::PolicyWords;

/// One policy's counts.
pub(crate) struct PolicyCounts {
    pub(crate) words: PolicyWords,
    measure: Measure,
    pub(crate) admitted: u64,
    pub(crate) rejected: u64,
    pub(crate) without_key: WithoutKey,
    /// The parts of the key, as spelled in the file, each with the number of requests whose line lacks it.
    pub(crate) key_parts: Vec<(String, u64)>,
    /// The waits of delayed requests, in microseconds.
    pub(crate) waits: Histogram<u64>,
    pub(crate) keys: Keys,
    pub(crate) offenders: Offenders,
    pub(crate) first: Option<FirstRejection>,
    pub(crate) minutes: WorstMinutes,
    pub(crate) timeline: Timeline,
}

/// Requests from which a policy cannot extract a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WithoutKey {
    pub(crate) rejected: u64,
    /// By `on-missing-key`, as a shadow or as exempt.
    pub(crate) not_limited: u64,
    /// A server would know the client's address, but the log does not have it.
    pub(crate) without_address: u64,
}

impl WithoutKey {
    pub(crate) const fn total(&self) -> u64 {
        self.rejected + self.not_limited + self.without_address
    }
}

pub(crate) struct FirstRejection {
    pub(crate) nanos: u64,
    pub(crate) place: Place,
    pub(crate) key: String,
}

/// Limits under which a share of the keys is never rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suggestion {
    /// At the policy's limit (buckets only).
    pub(crate) burst: Option<u64>,
    /// The limit, which is also the burst.
    pub(crate) limit: u64,
}

/// The text in place of a key that is too long to keep.
const HASHED: &str = "(a long key)";

impl PolicyCounts {
    pub(crate) fn new(words: PolicyWords, terms: Option<Terms>) -> Self {
        let measure = if words.is_staggered || words.has_plans { Measure::None } else { Measure::of(terms) };
        Self {
            key_parts: words.keys.iter().map(|part| (part.clone(), 0)).collect(),
            measure,
            keys: Keys::new(measure, words.cost),
            words,
            admitted: 0,
            rejected: 0,
            without_key: WithoutKey::default(),
            // Three significant digits. It grows to the longest wait.
            waits: Histogram::new(3).expect("three digits are allowed"),
            offenders: Offenders::default(),
            first: None,
            minutes: WorstMinutes::default(),
            timeline: Timeline::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.words.name
    }

    /// Notes that a key asked, on its arrival.
    pub(crate) fn note_demand(&mut self, key: &PartitionKey, now: u64) {
        self.keys.note(keys::hash(key), Note::Asked(now));
    }

    pub(crate) fn note_admitted(&mut self, delay: Duration, now: u64) {
        self.admitted += 1;
        self.timeline.bin(now).admitted += 1;
        if !delay.is_zero() {
            let micros = u64::try_from(delay.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
            // Cannot fail, because the histogram grows as needed.
            let _ = self.waits.record(micros);
        }
    }

    /// `text` writes the key for a policy name.
    pub(crate) fn note_rejected(
        &mut self,
        key: &PartitionKey,
        now: u64,
        place: Place,
        text: impl Fn(&str) -> Option<String>,
    ) {
        let text = || text(&self.words.name).unwrap_or_else(|| HASHED.to_owned());
        self.rejected += 1;
        self.timeline.bin(now).rejected += 1;
        self.minutes.note(now);
        self.first.get_or_insert_with(|| FirstRejection { nanos: now, place, key: text() });
        let hash = keys::hash(key);
        self.keys.note(hash, Note::Rejected);
        self.offenders.note(hash, text);
    }

    /// Notes which parts of the key a line lacks.
    pub(crate) fn note_missing_parts(&mut self, is_missing: impl Fn(&str) -> bool) {
        for (part, missing) in &mut self.key_parts {
            *missing += u64::from(is_missing(part));
        }
    }

    pub(crate) const fn requests(&self) -> u64 {
        self.admitted + self.rejected
    }

    /// Returns the number of keys, and how many were rejected at least once.
    pub(crate) fn clients(&self) -> (u64, u64) {
        (self.keys.count(|record| record.requests > 0), self.keys.count(|record| record.rejected > 0))
    }

    /// Returns the limits under which `per_100_000` out of 100,000 keys are never rejected, or `None` if the policy is
    /// not measured or has no request.
    pub(crate) fn suggest(&self, per_100_000: u64) -> Option<Suggestion> {
        let of = |number: fn(&keys::KeyRecord) -> u64| {
            quantile(self.keys.records().filter(|record| record.requests > 0).map(number).collect(), per_100_000)
        };
        let limit = of(|record| record.demand.limit())?;
        match self.measure {
            Measure::None => None,
            Measure::Bucket { .. } => Some(Suggestion { burst: of(|record| record.demand.burst()), limit }),
            Measure::FixedWindow { .. } | Measure::SlidingWindow { .. } => Some(Suggestion { burst: None, limit }),
        }
    }
}

impl Suggestion {
    /// The suggestion in the file's notation: each line is one way.
    pub(crate) fn in_words(&self, words: &PolicyWords) -> Vec<String> {
        let per = &words.per;
        let Some(burst) = self.burst else { return vec![format!("limit = {}, per = \"{per}\"", self.limit)] };
        let limit = words.limit;
        match words.algorithm.as_str() {
            "leaky-queue" => {
                let at_once = words.burst.unwrap_or(1);
                let room = |units: u64| units.saturating_sub(at_once).max(1);
                vec![
                    format!("limit = {limit}, per = \"{per}\", max-queue = {} (and a max-wait for it)", room(burst)),
                    format!("limit = {0}, per = \"{per}\", max-queue = {1}", self.limit, room(self.limit)),
                ]
            }
            _ => vec![
                format!("limit = {limit}, per = \"{per}\", burst = {burst}"),
                format!("limit = {0}, per = \"{per}\", burst = {0}", self.limit),
            ],
        }
    }
}
