//! The pace of one line: when the next call may depart, by the partner's reports. Pure: instants are microseconds on
//! one clock. In memory, this is the state itself. On Redis, `lua/` makes equal transitions, and the tests compare the
//! two.

use std::time::Duration;

/// How long a line waits for the answer to a call that was sent alone, before it sends the next one.
pub(super) const PATIENCE: u64 = 1_000_000;

/// How soon to look again while another call is awaited, since its answer may come to another process.
pub(super) const RECHECK: u64 = 20_000;

/// How much of a delay is caught up. Timers are late by a millisecond, and the rate must not suffer from that.
pub(super) const CATCH_UP: u64 = 50_000;

/// Fields count whole seconds, rounded up: an end that is reported `t` seconds ahead is more than `t − 1` ahead. The
/// rest is for clocks that are read a little later than the event that they time.
pub(super) const UNCERTAINTY: u64 = 1_010_000;

/// The share of a learnt gap by which each accepted call shortens it, so that it halves in some ninety calls.
const GROWTH: u64 = 128;

/// How many times longer a learnt gap may become at once.
const LONGEST_CUT: u64 = 4;

/// The first pause after a rejection that does not report how long to wait. It doubles with each call that goes alone
/// and is rejected, this many times at most.
const FIRST_PAUSE: u64 = 1_000_000;
const DOUBLINGS: u64 = 5;

/// How many calls may be under way once the call that went alone was accepted.
const FIRST_WINDOW: u64 = 2;

/// Once a partner without fields has accepted this many calls at a time, it is not limited.
pub(super) const WIDEST: u64 = 1_024;

/// The window widens only if at least an eighth was under way, because a client that never fills it has not shown that
/// the partner accepts more.
const FILLED: u64 = 8;

/// If a departure is this much later than possible, the client had nothing to send.
const IDLE: u64 = 1_000_000;

/// The knowledge about a partner, and the departures so far.
///
/// Every departure has a number. The answer to a call reports the units left when the partner judged it, and calls with
/// greater numbers are taken to come on top. So the remaining units do not depend on which answers are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartnerPace {
    /// No call departs before.
    pub(super) paused: u64,
    /// The number of the latest departure. It begins with the time, so the numbers in a lost state are all smaller.
    pub(super) number: u64,
    /// When that departure is, or was.
    pub(super) last: u64,
    /// When all departures are paid for, by your own quota (GCRA).
    pub(super) tat: u64,
    /// The call whose answer reported `left`.
    pub(super) by: u64,
    /// How many calls the partner would still take after that one, until `ends`.
    pub(super) left: u64,
    /// The latest instant at which the reported window ends; 0 without a report.
    pub(super) ends: u64,
    /// The earliest instant at which it ends.
    pub(super) since: u64,
    /// The mean time between calls by the partner's quota; 0 if unknown.
    pub(super) spacing: u64,
    /// Until when the answer to the latest departure is awaited before anything else departs; 0 if it isn't.
    pub(super) probe: u64,
    /// Whether the partner answers without any field.
    pub(super) is_free: bool,
    /// The time between departures that the partner has taught by its rejections; 0 if there is no such time.
    pub(super) gap: u64,
    /// The latest departure when the partner last rejected a call. Answers to calls up to it teach nothing more.
    pub(super) cut: u64,
    /// Since when the calls that the partner accepted are counted, to measure its rate.
    pub(super) counted: u64,
    /// How many it accepted since.
    pub(super) passed: u64,
    /// How many calls that went alone were rejected in succession.
    pub(super) doublings: u64,
    /// How many calls may be under way at a time while neither fields nor `gap` set a pace. Doubles per round trip, up
    /// to [`WIDEST`], as in TCP's slow start.
    pub(super) window: u64,
    /// How many more may depart within that window.
    pub(super) room: u64,
}

/// The settings from the line's owner.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    /// The time between two departures by your own quota; 0 without one.
    pub(super) interval: u64,
    /// How far ahead of its payment a call may depart: `burst − 1` intervals.
    pub(super) ahead: u64,
    /// The longest wait that a partner can cause.
    pub(super) longest: u64,
}

/// A departure, now or at a time to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacedDeparture {
    pub(super) number: u64,
    pub(super) at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacedTurn {
    Depart(PacedDeparture),
    /// Nothing is reserved: ask again then.
    Wait(u64),
}

/// A turn that a server decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedTurn {
    pub(super) turn: PacedTurn,
    /// How long after the server's reply its time comes.
    pub(super) delay: Duration,
}

/// A script can compute with larger numbers only inexactly: 71 years.
const MAX_MICROS: u64 = 1 << 51;

/// Whole microseconds, rounded down.
pub(super) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(MAX_MICROS)
}

/// The report in the answer to a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallReport {
    pub(super) answer: CallAnswer,
    /// For how long a rejection asks to send nothing; 0 if it does not say.
    pub(super) wait: u64,
    pub(super) budget: Option<Budget>,
}

/// The kind of an answer, with its number in the scripts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CallAnswer {
    /// The call was cancelled, or failed before an answer.
    #[default]
    Missing = 0,
    /// The partner did not reject the call, which may have failed for another reason.
    Taken = 1,
    /// The partner rejected the call because of a limit.
    Rejected = 2,
}

/// The remaining units of the policy that governs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) left: u64,
    /// How long that has to last: whole seconds, rounded up.
    pub(super) reset: u64,
    /// The mean time between calls, as in [`PartnerPace::spacing`].
    pub(super) spacing: u64,
}

impl PartnerPace {
    /// Creates a pace that knows nothing yet.
    pub(super) const fn new(now: u64) -> Self {
        Self {
            paused: 0,
            number: now,
            last: 0,
            tat: 0,
            by: now,
            left: 0,
            ends: 0,
            since: 0,
            spacing: 0,
            probe: 0,
            is_free: false,
            gap: 0,
            cut: now,
            counted: now,
            passed: 0,
            doublings: 0,
            window: 0,
            room: 0,
        }
    }

    /// Returns when the next call may depart and reserves that time, or returns when to ask again. `slot` is a
    /// departure that was reserved before and has come. It is used if later reports still allow it.
    pub(super) fn turn(&mut self, now: u64, rules: &Rules, slot: Option<PacedDeparture>) -> PacedTurn {
        if self.paused > now {
            return PacedTurn::Wait(self.paused);
        }
        if let Some(slot) = slot.filter(|slot| self.covers(slot.number, now)) {
            return PacedTurn::Depart(slot);
        }
        if self.probe > now {
            return PacedTurn::Wait(self.probe.min(now.max(self.last) + RECHECK));
        }
        let paid = self.tat.saturating_sub(rules.ahead);
        if paid > now {
            // This is not reserved, because a caller that gives up before would take the departure with it, and those
            // behind it would wait longer.
            return PacedTurn::Wait(paid);
        }
        let mut at = paid.max(now.saturating_sub(CATCH_UP));
        at = at.max(self.paced(rules));
        let (units, mut probe) = (self.units(), 0);
        if self.is_free {
            if let Some(opens) = self.enter_window(now) {
                return PacedTurn::Wait(opens);
            }
        } else {
            let ends = if units > 0 { self.ends } else { self.ends.min(self.last + rules.longest) };
            if ends <= now {
                // The knowledge is out of date, so one call departs alone, and its answer says how to go on.
                at = at.max(now);
                probe = at + PATIENCE;
            } else if units == 0 {
                return PacedTurn::Wait(ends);
            } else {
                at = at.max(self.last + self.interval(units).min(rules.longest));
                if at >= ends {
                    return PacedTurn::Wait(ends);
                }
            }
        }
        if at > self.paused.max(self.last + self.gap) + IDLE {
            // The client was idle: the partner's rate is measured from here.
            (self.counted, self.passed) = (at, 0);
        }
        (self.number, self.last, self.probe) = (self.number + 1, at, probe);
        if rules.interval > 0 {
            self.tat = self.tat.max(at) + rules.interval;
        }
        PacedTurn::Depart(PacedDeparture { number: self.number, at })
    }

    /// Returns when the next call may depart by the pace that rejections have taught.
    fn paced(&self, rules: &Rules) -> u64 {
        if self.gap == 0 { 0 } else { self.last + self.gap.min(rules.longest) }
    }

    /// Takes a place in the window, or returns when to ask again: once answers have come, or after a while without
    /// rejections.
    fn enter_window(&mut self, now: u64) -> Option<u64> {
        if self.gap > 0 || self.window >= WIDEST {
            return None;
        }
        if self.room == 0 {
            let opens = self.last + PATIENCE;
            if opens > now {
                return Some(opens.min(now.max(self.last) + RECHECK));
            }
            self.window = (self.window * 2).clamp(FIRST_WINDOW, WIDEST);
            self.room = self.window;
        }
        self.room -= 1;
        None
    }

    /// Whether a slot is still good.
    fn covers(&self, number: u64, now: u64) -> bool {
        let is_awaited = number == self.number && self.probe > now;
        self.is_free || is_awaited || now < self.ends && number <= self.by + self.left
    }

    /// Returns how many calls may depart in the reported window.
    pub(super) fn units(&self) -> u64 {
        self.left.saturating_sub(self.number - self.by)
    }

    /// Returns the time between departures that spreads `units` until the window ends, with the last one an interval
    /// before its end. The end is known to a second or less; within that, the partner's mean rate decides.
    fn interval(&self, units: u64) -> u64 {
        let until = |end: u64| end.saturating_sub(self.last).div_ceil(units + 1);
        let (shortest, longest) = (until(self.since), until(self.ends));
        if self.spacing == 0 { longest } else { self.spacing.max(shortest).min(longest) }
    }

    /// Processes the answer to the call with that number, which came at `now` and was `took` under way. Returns whether
    /// the line learns about a rejection. If calls were sent together, only the first rejection counts as new.
    pub(super) fn learn(&mut self, number: u64, now: u64, took: u64, report: &CallReport, rules: &Rules) -> bool {
        if number > self.number {
            // A call from before this state was lost and begun again.
            return report.answer == CallAnswer::Rejected;
        }
        if number == self.number {
            self.probe = 0;
        }
        let (was_free, was_known) = (self.is_free, now < self.ends);
        // Answers may overtake each other. If a later call's answer came first, this one's budget is out of date.
        if let Some(budget) = report.budget.filter(|_| number >= self.by) {
            self.learn_budget(number, now, took, &budget, rules);
        }
        match report.answer {
            CallAnswer::Missing => self.room = (self.room + 1).min(self.window),
            CallAnswer::Taken => self.learn_acceptance(number, now),
            CallAnswer::Rejected if number > self.cut => {
                let is_used_up = report.budget.is_some_and(|budget| budget.left == 0);
                if was_free || was_known && !is_used_up {
                    self.learn_gap(now, rules);
                } else {
                    self.doublings = (self.doublings + 1).min(DOUBLINGS);
                }
                self.close(now, report.wait, is_used_up, rules);
                return true;
            }
            // The call was sent before the last rejection, so this repeats it, and perhaps asks to wait for longer.
            CallAnswer::Rejected if report.wait > 0 => self.pause(now, report.wait, rules),
            CallAnswer::Rejected => {}
        }
        false
    }

    fn learn_budget(&mut self, number: u64, now: u64, took: u64, budget: &Budget, rules: &Rules) {
        let reset = if budget.left == 0 { budget.reset.min(rules.longest) } else { budget.reset };
        let latest = now + reset;
        let earliest = (now + reset).saturating_sub(took + UNCERTAINTY);
        // If there is more left than was expected, this is another window, or a bucket that fills up.
        let expected = self.left.saturating_sub(number - self.by);
        let overlap = now < self.ends && earliest < self.ends && self.since < latest;
        if overlap && budget.left <= expected {
            (self.ends, self.since) = (self.ends.min(latest), self.since.max(earliest));
        } else {
            (self.ends, self.since) = (latest, earliest);
        }
        (self.by, self.left, self.spacing) = (number, budget.left, budget.spacing);
        self.is_free = false;
    }

    /// Lengthens the gap. A call that was sent at the pace was rejected, so the pace is too fast.
    fn learn_gap(&mut self, now: u64, rules: &Rules) {
        let measured = now.saturating_sub(self.counted) / self.passed.max(1);
        let gap = if self.gap == 0 {
            // Even if the line was idle or the partner was slow, because later rejections lengthen it soon enough.
            measured.clamp(1, FIRST_PAUSE)
        } else {
            // The measure includes the pauses, so it is the rate at which the partner has really accepted.
            (self.gap + self.gap.div_ceil(2)).max(measured.min(self.gap * LONGEST_CUT))
        };
        (self.gap, self.counted, self.passed, self.doublings) = (gap.min(rules.longest), now, 0, 0);
    }

    /// Closes the line after a rejection. Afterwards, one call goes first.
    ///
    /// It pauses until the time that the rejection states, or until the end of the budget that is used up. If the
    /// rejection states no time, or the pause was too short more than once, the pause doubles with each call that went
    /// alone and was rejected.
    fn close(&mut self, now: u64, wait: u64, is_used_up: bool, rules: &Rules) {
        let guess = match self.doublings {
            doublings if wait == 0 && !is_used_up => FIRST_PAUSE << doublings,
            0 | 1 => 0,
            doublings => FIRST_PAUSE << (doublings - 1),
        };
        self.pause(now, wait.max(guess), rules);
        if !is_used_up {
            // If the partner reports units left, it has rejected the call by another budget.
            (self.left, self.ends) = (0, 0);
        }
        (self.cut, self.is_free, self.window, self.room) = (self.number, false, 0, 0);
    }

    fn pause(&mut self, now: u64, pause: u64, rules: &Rules) {
        if pause > 0 {
            self.paused = self.paused.max(now + pause.min(rules.longest));
        }
    }

    /// Processes an answer to a call that the partner accepted.
    fn learn_acceptance(&mut self, number: u64, now: u64) {
        self.passed += 1;
        if number <= self.cut {
            return;
        }
        self.doublings = 0;
        self.is_free |= self.ends <= now;
        if self.gap > 0 {
            self.gap -= self.gap.div_ceil(GROWTH);
            (self.window, self.room) = if self.gap == 0 { (WIDEST, WIDEST) } else { (0, 0) };
        } else if self.is_free && self.window == 0 {
            (self.window, self.room) = (FIRST_WINDOW, FIRST_WINDOW);
            // The partner may have been closed until now, for reasons other than the rate.
            (self.counted, self.passed) = (now, 0);
        } else if self.is_free {
            let wider = u64::from((self.window - self.room) * FILLED >= self.window);
            self.window = (self.window + wider).min(WIDEST);
            self.room = (self.room + 1 + wider).min(self.window);
        }
    }

    /// Records a departure that was decided elsewhere. Returns its number here.
    pub(super) fn note_departure(&mut self, now: u64) -> u64 {
        (self.number, self.last) = (self.number + 1, now);
        self.number
    }

    /// Returns the earliest instant at which a call with `ahead` others before it may depart, by the present knowledge.
    pub(super) fn earliest(&self, now: u64, ahead: u64, rules: &Rules) -> u64 {
        let paid = self.tat.saturating_add(ahead.saturating_mul(rules.interval)).saturating_sub(rules.ahead);
        let start = now.max(self.paused).max(paid);
        let units = self.units();
        let start = match self.gap.min(rules.longest) {
            0 => start,
            gap => start.max(self.last.saturating_add(gap.saturating_mul(ahead + 1))),
        };
        if self.is_free || self.ends <= start {
            start
        } else if ahead < units {
            let interval = self.interval(units).min(rules.longest);
            start.max(self.last.saturating_add(interval.saturating_mul(ahead + 1))).min(self.ends)
        } else {
            self.ends.min(self.last + rules.longest).max(start)
        }
    }

    /// Whether calls may depart in any order.
    pub(super) const fn is_unlimited(&self, rules: &Rules) -> bool {
        self.is_free && self.gap == 0 && self.window >= WIDEST && rules.interval == 0
    }

    /// Returns the loss if this is forgotten at `now`.
    pub(super) fn need(&self, now: u64, rules: &Rules) -> Need {
        let is_used_up = !self.is_free && self.units() == 0;
        let ends = if is_used_up { self.ends.min(self.last + rules.longest) } else { 0 };
        let closed = self.paused.max(ends).max(self.tat.saturating_sub(rules.ahead));
        let known = self.paused.max(self.ends).max(self.tat).max(self.probe);
        Need { closed: closed.saturating_sub(now), known: known.saturating_sub(now) }
    }
}

/// The loss if a pace is forgotten. Compared in this order: without a pause, a call is sent too early, and without a
/// budget, one call is sent alone before the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Need {
    /// For how long no call would depart.
    closed: u64,
    /// For how long anything is known.
    known: u64,
}

impl Need {
    /// Knows something for this long at least.
    pub(super) fn known_for(self, time: u64) -> Self {
        Self { known: self.known.max(time), ..self }
    }
}
