//! A run's figures.

use crate::run::{Fate, Record, Trace};
use crate::time::{MILLISECOND, SECOND, seconds};

/// A figure, as it is printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    /// A share of one.
    Share(f64),
    /// A time in seconds, or `None` if it was not over when the run ended.
    Time(Option<f64>),
    /// A time in milliseconds, or `None` if nothing was measured.
    Latency(Option<f64>),
    /// A plain number.
    Index(f64),
    /// Requests in flight before and after.
    Change(f64, f64),
}

/// From and until, in seconds.
pub(crate) type Span = (u64, u64);

impl Trace {
    /// The requests that arrived within a span.
    fn arrivals(&self, (from, until): Span) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| (from * SECOND..until * SECOND).contains(&record.arrived))
    }

    /// The share of the workers' time that went into good answers, which left within these nanoseconds.
    fn goodput_within(&self, from: u64, until: u64, counts: impl Fn(&Record) -> bool) -> f64 {
        let good = self.records.iter().filter(|record| (from..until).contains(&record.left) && record.is_good());
        let work: u64 = good.filter(|record| counts(record)).map(|record| record.job.worker_time()).sum();
        work as f64 / (f64::from(self.plan.workers_at(from)) * (until - from) as f64)
    }

    /// Responses with 200 within 100 ms after the arrival, as a share of the capacity.
    pub(crate) fn goodput(&self, (from, until): Span) -> f64 {
        self.goodput_within(from * SECOND, until * SECOND, |_| true)
    }

    /// One class's goodput.
    pub(crate) fn goodput_of_class(&self, span: Span, is_top: bool) -> f64 {
        self.goodput_of(span, |record| record.job.is_top == is_top)
    }

    /// The goodput for the requests that count.
    pub(crate) fn goodput_of(&self, (from, until): Span, counts: impl Fn(&Record) -> bool) -> f64 {
        self.goodput_within(from * SECOND, until * SECOND, counts)
    }

    /// One tenant's goodput, as a share of the total goodput.
    pub(crate) fn share_of_tenant(&self, span: Span, tenant: u8) -> f64 {
        let good = self.arrivals(span).filter(|record| record.is_good());
        let (count, all) = good.fold((0.0, 0.0), |(count, all), record| {
            (count + f64::from(u8::from(record.job.tenant == tenant)), all + 1.0)
        });
        if all > 0.0 { count / all } else { 0.0 }
    }

    /// The share among the requests that count which got a good answer.
    pub(crate) fn served(&self, span: Span, counts: impl Fn(&Record) -> bool) -> f64 {
        let counted = self.arrivals(span).filter(|record| counts(record));
        let (good, all) =
            counted.fold((0.0, 0.0), |(good, all), record| (good + f64::from(u8::from(record.is_good())), all + 1.0));
        good / all
    }

    /// The share of requests that were not answered.
    pub(crate) fn shed(&self, span: Span) -> f64 {
        let (shed, all) = self.arrivals(span).fold((0.0, 0.0), |(shed, all), record| {
            (shed + f64::from(u8::from(record.fate != Fate::Answered)), all + 1.0)
        });
        shed / all
    }

    /// The answers, late or not, in proportion to `per_second`.
    pub(crate) fn answered(&self, (from, until): Span, per_second: f64) -> f64 {
        let left = self.records.iter().filter(|record| (from * SECOND..until * SECOND).contains(&record.left));
        left.filter(|record| record.fate == Fate::Answered).count() as f64 / (per_second * (until - from) as f64)
    }

    /// The share among the requests that count which were answered, late or not.
    pub(crate) fn answered_of(&self, span: Span, counts: impl Fn(&Record) -> bool) -> f64 {
        let (answered, all) =
            self.arrivals(span).filter(|record| counts(record)).fold((0.0, 0.0), |(some, all), record| {
                (some + f64::from(u8::from(record.fate == Fate::Answered)), all + 1.0)
            });
        answered / all
    }

    /// The median time to an answer.
    pub(crate) fn median(&self, span: Span) -> Value {
        match self.latency(span, 50) {
            Value::Latency(millis) => Value::Time(millis.map(|millis| millis / 1_000.0)),
            other => other,
        }
    }

    /// Jain's index over the nine well-behaved tenants' goodput: 1 if all got equal shares, 1/9 if one got everything.
    pub(crate) fn jain(&self, span: Span) -> f64 {
        let mut good = [0.0; 9];
        for record in self.arrivals(span).filter(|record| record.is_good() && record.job.tenant > 0) {
            good[usize::from(record.job.tenant) - 1] += 1.0;
        }
        jain(&good)
    }

    /// A latency percentile over answered requests, in milliseconds.
    pub(crate) fn latency(&self, span: Span, percent: usize) -> Value {
        let answered = self.arrivals(span).filter(|record| record.fate == Fate::Answered);
        let mut latencies: Vec<u64> = answered.map(|record| record.left - record.arrived).collect();
        latencies.sort_unstable();
        let last = latencies.len().saturating_sub(1);
        let at = (latencies.len() * percent / 100).min(last);
        Value::Latency(latencies.get(at).map(|latency| *latency as f64 / MILLISECOND as f64))
    }

    /// The time from `since` to the beginning of the first second in which the goodput is 90 % of `usual`. A goodput
    /// near zero cannot be recovered.
    pub(crate) fn recovery(&self, since: u64, usual: f64) -> Value {
        if usual < 0.1 {
            return Value::Time(None);
        }
        const STEP: u64 = 100 * MILLISECOND;
        let starts = (since * SECOND..self.plan.end() - SECOND).step_by(STEP as usize);
        let mut starts = starts.filter(|start| self.goodput_within(*start, start + SECOND, |_| true) >= 0.9 * usual);
        Value::Time(starts.next().map(|start| seconds(start - since * SECOND)))
    }

    /// The mean number of requests in the server.
    pub(crate) fn in_flight(&self, (from, until): Span) -> f64 {
        (from..until).map(|second| self.inside.get(second as usize).unwrap_or(&0.0)).sum::<f64>()
            / (until - from) as f64
    }
}

/// Jain's fairness index.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares > 0.0 { sum * sum / (shares.len() as f64 * squares) } else { 0.0 }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Share(share) => write!(f, "{:.1} %", 100.0 * share),
            Self::Time(Some(time)) => write!(f, "{time:.1} s"),
            Self::Time(None) => write!(f, "never"),
            Self::Latency(Some(latency)) => write!(f, "{latency:.0} ms"),
            Self::Latency(None) => write!(f, "–"),
            Self::Index(index) => write!(f, "{index:.3}"),
            Self::Change(before, after) => write!(f, "{before:.1} → {after:.1}"),
        }
    }
}
