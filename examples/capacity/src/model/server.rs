//! The simulated server: each key's debt, and a call's cost.

use std::collections::HashMap;

use tower_sluice::testing::Random;

use super::draw::Draw;
use super::tally::Tally;

/// A key in the simulation.
pub(crate) type Key = u64;

/// The limit for all keys. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) kind: Kind,
    /// How long one unit takes to come back.
    pub(crate) interval: u64,
    /// How many units a bucket holds, or a window has.
    pub(crate) burst: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bucket,
    FixedWindow,
}

/// A key's debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// When a bucket's debt is paid, or when a window ends.
    pub(crate) until: u64,
    /// How many units were used in a window.
    used: u64,
}

impl Limit {
    /// How long a bucket takes to fill, and a window lasts.
    pub(crate) const fn period(&self) -> u64 {
        self.interval.saturating_mul(self.burst)
    }

    /// How many requests fit in.
    pub(crate) const fn room(&self, state: State, now: u64) -> u64 {
        match self.kind {
            Kind::Bucket => self.period().saturating_sub(state.until.saturating_sub(now)) / self.interval,
            Kind::FixedWindow if now < state.until => self.burst.saturating_sub(state.used),
            Kind::FixedWindow => self.burst,
        }
    }

    fn charge(&self, state: State, now: u64, count: u64) -> State {
        match self.kind {
            Kind::Bucket => State { until: state.until.max(now) + count * self.interval, used: 0 },
            Kind::FixedWindow if now < state.until => State { used: state.used + count, ..state },
            Kind::FixedWindow => {
                let windows = (now - state.until) / self.period() + 1;
                State { until: state.until + windows * self.period(), used: count }
            }
        }
    }

    /// A key's debt when the simulation begins, if requests came for long before: for `share` of its limit.
    fn drawn(&self, share: f64, random: &mut Random) -> State {
        match self.kind {
            Kind::Bucket if share >= 1.0 => State { until: self.period(), used: 0 },
            Kind::Bucket if random.unit() > share => State::default(),
            Kind::Bucket => {
                // The mean debt in a queue with random arrivals and one service length, if there is any.
                let mean = self.interval as f64 / (2.0 * (1.0 - share));
                let owed = (-random.unit().ln() * mean) as u64;
                State { until: owed.min(self.period() - self.interval), used: 0 }
            }
            Kind::FixedWindow => {
                let passed = random.below(self.period());
                let used = (passed as f64 / self.interval as f64 * share) as u64;
                State { until: self.period() - passed, used: used.min(self.burst) }
            }
        }
    }

    const fn refund(&self, state: State, count: u64) -> State {
        match self.kind {
            Kind::Bucket => State { until: state.until.saturating_sub(count * self.interval), used: 0 },
            Kind::FixedWindow => State { used: state.used.saturating_sub(count), until: state.until },
        }
    }
}

/// All keys' debts.
pub(crate) struct Server {
    pub(crate) limit: Limit,
    states: HashMap<Key, State>,
}

/// A call's result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) admitted: u32,
    /// Before the call.
    pub(crate) old: State,
    pub(crate) new: State,
}

impl Server {
    pub(crate) fn new(limit: Limit) -> Self {
        Self { limit, states: HashMap::new() }
    }

    /// Charges `count` requests, as far as they fit. A key that is new to the simulation was asked for before, for
    /// `share` of its limit.
    pub(crate) fn charge(&mut self, key: Key, now: u64, count: u32, share: f64) -> Reply {
        let Self { limit, states } = self;
        let state = states.entry(key).or_insert_with(|| limit.drawn(share, &mut Random::new(key)));
        let (old, admitted) = (*state, limit.room(*state, now).min(count.into()));
        if admitted > 0 {
            *state = limit.charge(old, now, admitted);
        }
        Reply { admitted: u32::try_from(admitted).expect("no more than were asked for"), old, new: *state }
    }

    pub(crate) fn refund(&mut self, key: Key, count: u32) {
        let limit = self.limit;
        self.states.entry(key).and_modify(|state| *state = limit.refund(*state, count.into()));
    }
}

/// A bucket on DynamoDB as a process last saw it. From this the process predicts which conditional update applies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hint {
    state: State,
    /// From 0 to [`ALWAYS_BUSY`]: how often there was a debt lately.
    busy: u8,
}

const ALWAYS_BUSY: u8 = 15;

impl Hint {
    /// Counts a charge's writes and reads on DynamoDB. A window takes one write. A bucket without a debt is written by
    /// one update, and one with a debt by another. If an update's condition does not hold, it costs a write unit, too,
    /// and returns the present state.
    pub(crate) fn charge(hint: Option<Self>, limit: Limit, now: u64, count: u32, reply: Reply, tally: &mut Tally) {
        if limit.kind == Kind::FixedWindow {
            tally.writes += 1;
            return;
        }
        let (is_busy, admitted) = (reply.old.until > now, u64::from(reply.admitted));
        let seen = hint.unwrap_or_default();
        let predicted = if seen.state.until > now {
            (true, limit.room(seen.state, now).min(count.into()))
        } else {
            let is_likely_busy = seen.busy > ALWAYS_BUSY / 2 && u64::from(count) < limit.burst;
            (is_likely_busy, limit.burst.min(count.into()))
        };
        if predicted.1 == 0 {
            // According to the hint, the key is used up. A read is cheaper than a write that does nothing.
            tally.reads += 1;
            tally.writes += u64::from(admitted > 0);
        } else {
            tally.writes += 1;
            tally.writes += u64::from(predicted != (is_busy, admitted) && admitted > 0);
        }
    }

    pub(crate) fn after(hint: Option<Self>, now: u64, reply: Reply) -> Self {
        let Self { state, busy } = hint.unwrap_or_default();
        let busy = match reply.old.until > now {
            // The process's own hint was enough, and says nothing about the others.
            _ if state.until > now => busy,
            true => (busy + 1).min(ALWAYS_BUSY),
            false => busy.saturating_sub(1),
        };
        Self { state: reply.new, busy }
    }
}
