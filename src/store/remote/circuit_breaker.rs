//! A node's circuit breaker: decides whether to call the node at all.
//!
//! While a node fails, its clients fall back at once instead of waiting for a timeout each. The calls themselves find
//! out when it has recovered: after a pause, one call passes as the half-open probe, and the others keep failing fast
//! until it succeeds. No background task does this, for three reasons: only a real call shows that the server can
//! decide (a server that is out of memory, or a replica, still answers every `PING`); where calls are rare, each call
//! is a probe, and the first after the recovery succeeds; and a server that no request needs is not called. An
//! application that pings a server for its own reasons may report its answers to the breaker
//! ([`CircuitBreaker::answered`]).

use std::time::Duration;

use tokio::time::Instant;

use super::backoff;
use crate::store::BreakerState;

/// The breaker opens after this many failures in a row, if they came in [`WAVES`] waves. If one call in a hundred fails
/// by chance, five in a row do once in ten billion calls.
const STREAK: u32 = 5;

/// The breaker also opens if half the calls in the window failed. With fewer calls than this, the failed share says too
/// little.
const MIN_CALLS: u32 = 20;

/// The length in seconds of the window over which calls and failures are counted. Two calls per second are enough for
/// [`MIN_CALLS`].
const SECONDS: usize = 10;

/// The least number of waves in which failures must come to open the breaker. A wave is a failure, together with all
/// failures of calls that were in flight when it was noticed. However many there are, they may have one cause that is
/// over by then, such as a pause in the server.
const WAVES: u32 = 2;

/// The longest pause between two probes to a node that answers them with an error, for example while it loads its data.
/// No request waits for such a probe, and it costs the node little work.
const LONGEST_IF_ANSWERED: Duration = Duration::from_secs(1);

/// How a call has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there is no third way")]
pub enum CallFailure {
    /// The node answered with an error.
    Answered,
    /// No answer came.
    Silent,
}

impl CallFailure {
    const fn longest_pause(self) -> Duration {
        match self {
            Self::Answered => LONGEST_IF_ANSWERED,
            Self::Silent => backoff::LONGEST,
        }
    }
}

#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    state: BreakerPhase,
    /// Grows with each state change, so that the outcome of a call that began before a change is ignored.
    epoch: u64,
    /// Failures since the last success, and in how many waves they came.
    streak: Failures,
    /// When the last wave's first failure was noticed.
    wave: Option<Instant>,
    /// How long a probe may take. If a probe takes longer, its runtime is blocked, and another call may probe.
    patience: Duration,
    window: FailureWindow,
    /// Whether the last call failed without an answer, which any answer disproves.
    was_silent: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    count: u32,
    waves: u32,
}

#[derive(Debug)]
enum BreakerPhase {
    Closed,
    /// Calls fail at once until `retry_at`. `probes` is the number of probes that have failed.
    Open {
        probes: u32,
        retry_at: Instant,
    },
    /// One probe is in flight.
    HalfOpen {
        probes: u32,
        until: Instant,
    },
}

/// The permission for one call.
#[derive(Debug)]
pub(crate) struct CallPermit {
    epoch: u64,
    began: Instant,
    /// How many requests share the call.
    requests: u32,
}

impl CircuitBreaker {
    /// Creates a closed breaker, for calls that take at most `timeout`.
    pub(crate) fn new(now: Instant, timeout: Duration) -> Self {
        Self {
            state: BreakerPhase::Closed,
            epoch: 0,
            streak: Failures::default(),
            wave: None,
            patience: timeout.saturating_mul(2),
            window: FailureWindow::new(now),
            was_silent: false,
        }
    }

    /// Returns a permit to make a call, unless the breaker is open. The call is counted now, because calls that hang
    /// must not look like calls that were not made.
    pub(crate) fn try_enter(&mut self, now: Instant, requests: u32) -> Option<CallPermit> {
        match self.state {
            BreakerPhase::Closed => {
                let calls = &mut self.window.second_at(now).calls;
                *calls = calls.saturating_add(requests);
            }
            BreakerPhase::Open { probes, retry_at: at } | BreakerPhase::HalfOpen { probes, until: at } if at <= now => {
                self.change(BreakerPhase::HalfOpen { probes, until: now + self.patience });
            }
            BreakerPhase::Open { .. } | BreakerPhase::HalfOpen { .. } => return None,
        }
        Some(CallPermit { epoch: self.epoch, began: now, requests })
    }

    /// Whether [`try_enter`](Self::try_enter) would give no permit.
    pub(crate) fn rejects_calls(&self, now: Instant) -> bool {
        match self.state {
            BreakerPhase::Closed => false,
            BreakerPhase::Open { retry_at: at, .. } | BreakerPhase::HalfOpen { until: at, .. } => now < at,
        }
    }

    /// Whether it is not closed, so that most calls fail at once.
    pub(crate) const fn is_failing(&self) -> bool {
        !matches!(self.state, BreakerPhase::Closed)
    }

    /// Records a success. Returns whether it closed the breaker.
    pub(crate) fn succeeded(&mut self, permit: &CallPermit) -> bool {
        if permit.epoch != self.epoch {
            return false;
        }
        self.streak = Failures::default();
        matches!(self.state, BreakerPhase::HalfOpen { .. }) && self.disproved()
    }

    /// Records an answer to a request other than a call. Returns whether it closed the breaker, which happens only if
    /// the last call failed without an answer.
    pub(crate) fn answered(&mut self) -> bool {
        self.was_silent && self.disproved()
    }

    /// Records that the cause of the failures is gone. Returns whether this closed the breaker.
    fn disproved(&mut self) -> bool {
        let closes = self.is_failing();
        if closes {
            self.window.counts = Default::default();
            self.change(BreakerPhase::Closed);
        }
        closes
    }

    /// Records a failure. Returns whether it opened the breaker. A failed probe does not, because the breaker was open
    /// before.
    pub(crate) fn failed(&mut self, permit: &CallPermit, now: Instant, failure: CallFailure) -> bool {
        self.was_silent = failure == CallFailure::Silent;
        if permit.epoch != self.epoch {
            return false;
        }
        match self.state {
            BreakerPhase::HalfOpen { probes, .. } => {
                let probes = probes.saturating_add(1);
                let pause = backoff::pause_of_at_most(failure.longest_pause(), probes);
                self.change(BreakerPhase::Open { probes, retry_at: now + pause });
                false
            }
            // An open breaker has let no call pass in this epoch.
            BreakerPhase::Closed | BreakerPhase::Open { .. } => {
                let begins_wave = self.wave.is_none_or(|noticed| permit.began >= noticed);
                if begins_wave {
                    self.wave = Some(now);
                }
                let failed = Failures { count: permit.requests, waves: begins_wave.into() };
                self.streak.add(failed);
                self.window.second_at(now).failures.add(failed);
                let is_streak = self.streak.count >= STREAK && self.streak.waves >= WAVES;
                let opens = is_streak || self.window.is_bad();
                if opens {
                    self.change(BreakerPhase::Open { probes: 0, retry_at: now + backoff::pause(0) });
                }
                opens
            }
        }
    }

    /// Records a call whose outcome is unknown, which is no evidence about the node. If it was the probe, another one
    /// may follow.
    pub(crate) fn abandoned(&mut self, permit: &CallPermit, now: Instant) {
        if let BreakerPhase::HalfOpen { probes, .. } = self.state {
            if permit.epoch == self.epoch {
                self.change(BreakerPhase::Open { probes, retry_at: now + backoff::pause(probes) });
            }
        }
    }

    /// Records a new connection, which justifies a probe at once.
    pub(crate) fn connected(&mut self, now: Instant) {
        if let BreakerPhase::Open { retry_at, .. } = &mut self.state {
            *retry_at = now;
        }
    }

    pub(crate) fn state(&self, now: Instant) -> BreakerState {
        match self.state {
            BreakerPhase::Closed => BreakerState::Closed,
            BreakerPhase::Open { retry_at, .. } => {
                BreakerState::Open { probe_in: Some(retry_at.saturating_duration_since(now)) }
            }
            BreakerPhase::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    fn change(&mut self, state: BreakerPhase) {
        self.state = state;
        self.streak = Failures::default();
        self.wave = None;
        self.epoch += 1;
    }
}

impl Failures {
    fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.waves = self.waves.saturating_add(other.waves);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct SecondCounts {
    calls: u32,
    failures: Failures,
}

/// Counts calls and failures, for each recent second.
#[derive(Debug)]
struct FailureWindow {
    start: Instant,
    /// The second that has the newest count.
    second: u64,
    counts: [SecondCounts; SECONDS],
}

impl FailureWindow {
    fn new(start: Instant) -> Self {
        Self { start, second: 0, counts: Default::default() }
    }

    /// Returns the counts for the second at `now`, and clears the seconds in between.
    fn second_at(&mut self, now: Instant) -> &mut SecondCounts {
        let second = now.saturating_duration_since(self.start).as_secs();
        for passed in (self.second..second).take(SECONDS) {
            self.counts[Self::index(passed + 1)] = SecondCounts::default();
        }
        // Cleared in order, so if more seconds have passed than there are counts, all are cleared.
        self.second = self.second.max(second);
        &mut self.counts[Self::index(self.second)]
    }

    fn index(second: u64) -> usize {
        usize::try_from(second % SECONDS as u64).expect("less than ten")
    }

    fn is_bad(&self) -> bool {
        let mut calls = 0_u32;
        let mut failures = Failures::default();
        for second in &self.counts {
            calls = calls.saturating_add(second.calls);
            failures.add(second.failures);
        }
        calls >= MIN_CALLS && failures.count >= calls.div_ceil(2) && failures.waves >= WAVES
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use crate::util::random::seeded;

    const TIMEOUT: Duration = Duration::from_millis(50);

    /// A node that has recovered is probed after this at the latest.
    const LONGEST_PAUSE: Duration = backoff::LONGEST;

    fn fails(breaker: &mut CircuitBreaker, now: Instant) -> bool {
        let permit = breaker.try_enter(now, 1).expect("it is closed");
        breaker.failed(&permit, now, CallFailure::Silent)
    }

    fn succeeds(breaker: &mut CircuitBreaker, now: Instant) -> bool {
        let permit = breaker.try_enter(now, 1).expect("it is closed");
        breaker.succeeded(&permit)
    }

    fn opened(now: Instant) -> CircuitBreaker {
        let mut breaker = CircuitBreaker::new(now, TIMEOUT);
        let opens = [(); STREAK as usize].map(|()| fails(&mut breaker, now));
        assert_eq!(opens, [false, false, false, false, true]);
        breaker
    }

    #[test]
    fn five_failures_in_a_row_open_it() {
        let now = Instant::now();
        // The pause is random, and can be zero.
        seeded::set(Some(1));
        let mut breaker = opened(now);
        seeded::set(None);
        let BreakerState::Open { probe_in: Some(pause) } = breaker.state(now) else { panic!("{breaker:?}") };
        assert!(!pause.is_zero() && pause <= Duration::from_millis(100), "{pause:?}");
        assert_eq!(breaker.state(now + pause), BreakerState::Open { probe_in: Some(Duration::ZERO) });
        assert!(breaker.try_enter(now, 1).is_none());
    }

    #[test]
    fn a_success_between_failures_keeps_it_closed() {
        let now = Instant::now();
        let mut breaker = CircuitBreaker::new(now, TIMEOUT);
        // One in three fails, at most four in a row, so never half.
        for round in 0..1_000_u64 {
            let now = now + Duration::from_millis(round * 10);
            let answers = round % 12 >= 4;
            let changes = if answers { succeeds(&mut breaker, now) } else { fails(&mut breaker, now) };
            assert!(!changes, "round {round}");
        }
        assert_eq!(breaker.state(now), BreakerState::Closed);
    }

    #[test]
    fn half_in_ten_seconds_open_it() {
        let start = Instant::now();
        for (gap, opens_at) in [(Duration::from_millis(100), Some(19)), (Duration::from_millis(600), None)] {
            let mut breaker = CircuitBreaker::new(start, TIMEOUT);
            let opened = (0..60).find(|round| {
                let now = start + gap * *round;
                if round % 2 == 0 { succeeds(&mut breaker, now) } else { fails(&mut breaker, now) }
            });
            assert_eq!(opened, opens_at, "{gap:?}");
        }
    }

    #[test]
    fn calls_that_hang_count_from_their_start() {
        let now = Instant::now();
        let mut breaker = CircuitBreaker::new(now, TIMEOUT);
        let hanging: Vec<_> = (0..16).map(|_| breaker.try_enter(now, 1).unwrap()).collect();
        for _ in 0..4 {
            assert!(!fails(&mut breaker, now));
        }
        // Twenty were made, but four failed.
        assert_eq!(breaker.state(now), BreakerState::Closed);
        succeeds(&mut breaker, now);
        // These are one wave, which isn't enough.
        let end = now + Duration::from_millis(1);
        assert!(!hanging.iter().take(5).any(|permit| breaker.failed(permit, end, CallFailure::Silent)));
        assert!(fails(&mut breaker, end));
    }

    #[test]
    fn a_second_wave_of_failures_opens_it() {
        let now = Instant::now();
        let mut breaker = CircuitBreaker::new(now, TIMEOUT);
        // A hundred calls begin within less than one timeout, and all of them time out.
        let begin = |number: u32| now + TIMEOUT * number / 120;
        let late: Vec<_> = (0..100).map(|number| breaker.try_enter(begin(number), 1).unwrap()).collect();
        for (permit, number) in late.iter().zip(0..) {
            assert!(
                !breaker.failed(permit, begin(number) + TIMEOUT, CallFailure::Silent),
                "all had begun before one failed"
            );
        }
        let next = breaker.try_enter(now + TIMEOUT * 2, 1).unwrap();
        assert!(breaker.failed(&next, now + TIMEOUT * 3, CallFailure::Silent));
    }

    #[test]
    fn shared_calls_fail_for_all_requests() {
        let now = Instant::now();
        let mut breaker = CircuitBreaker::new(now, TIMEOUT);
        assert!(!fails(&mut breaker, now));
        let shared = breaker.try_enter(now, 4).unwrap();
        assert!(breaker.failed(&shared, now, CallFailure::Silent));
    }

    #[test]
    fn exactly_one_probe_at_a_time() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + LONGEST_PAUSE;
        let probe = breaker.try_enter(later, 1).expect("a probe");
        assert_eq!(breaker.state(later), BreakerState::HalfOpen);
        assert!(breaker.try_enter(later, 1).is_none() && breaker.try_enter(later + TIMEOUT, 1).is_none());
        assert!(breaker.succeeded(&probe));
        assert_eq!(breaker.state(now), BreakerState::Closed);
        assert!(!breaker.succeeded(&probe), "only once");
    }

    #[test]
    fn it_closes_within_seconds_after_a_recovery() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for _ in 0..20 {
            now += LONGEST_PAUSE;
            assert!(!fails(&mut breaker, now));
        }
        now += LONGEST_PAUSE;
        assert!(succeeds(&mut breaker, now));
    }

    /// Redis loads its data for a minute, or has no memory until keys expire, and answers each probe at once. Once, the
    /// pauses grew to five seconds, as for a node that does not answer.
    #[test]
    fn answered_errors_are_probed_every_second() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for probe in 0..20 {
            now += LONGEST_IF_ANSWERED;
            let permit = breaker.try_enter(now, 1).unwrap_or_else(|| panic!("no probe {probe} within a second"));
            assert!(!breaker.failed(&permit, now, CallFailure::Answered));
        }
        now += LONGEST_IF_ANSWERED;
        assert!(succeeds(&mut breaker, now));
    }

    #[test]
    fn outcomes_from_before_a_change_are_ignored() {
        let now = Instant::now();
        let mut breaker = CircuitBreaker::new(now, TIMEOUT);
        let old: Vec<_> = (0..20).map(|_| breaker.try_enter(now, 1).unwrap()).collect();
        let opens: Vec<_> = old.iter().take(5).map(|permit| breaker.failed(permit, now, CallFailure::Silent)).collect();
        assert_eq!(opens.last(), Some(&true));
        assert!(!breaker.succeeded(&old[5]), "an old success does not close it");
        let later = now + LONGEST_PAUSE;
        assert!(succeeds(&mut breaker, later));
        assert!(
            old[6..].iter().all(|permit| !breaker.failed(permit, later, CallFailure::Silent)),
            "old failures do not open it again"
        );
    }

    #[test]
    fn an_abandoned_probe_makes_way_for_another() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let probe = breaker.try_enter(now + LONGEST_PAUSE, 1).unwrap();
        breaker.abandoned(&probe, now + LONGEST_PAUSE);
        assert!(succeeds(&mut breaker, now + LONGEST_PAUSE * 2));
    }

    #[test]
    fn an_endless_probe_makes_way_for_another() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let probe = breaker.try_enter(now + LONGEST_PAUSE, 1).unwrap();
        assert!(breaker.rejects_calls(now + LONGEST_PAUSE + TIMEOUT));
        let later = now + LONGEST_PAUSE + TIMEOUT * 2;
        assert!(!breaker.rejects_calls(later));
        let next = breaker.try_enter(later, 1).unwrap();
        assert!(!breaker.failed(&probe, later, CallFailure::Silent), "it is ignored");
        assert_eq!(breaker.state(later), BreakerState::HalfOpen);
        assert!(breaker.succeeded(&next));
    }

    #[test]
    fn a_new_connection_is_worth_a_probe() {
        let now = Instant::now();
        let mut breaker = opened(now);
        breaker.connected(now);
        assert!(succeeds(&mut breaker, now));
    }
}
