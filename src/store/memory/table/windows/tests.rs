//! Checks the rules over words against the algorithms that they stand for.

use std::fmt::Debug;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::algorithm::{Algorithm, ChargedIn, FixedWindow, SlidingWindow};
use crate::store::memory::table::codec::Codec;
use crate::store::memory::table::rule::{Rule, Ruling};
use crate::store::memory::table::word::Word;
use crate::util::cases::cases;
use crate::values::counterexamples::{Counterexample, each};
use crate::values::{Decision, Receipt};

/// A rule, and the algorithm whose decisions it makes.
trait Pair: Copy + Debug {
    type State: WindowState + PartialEq;
    type Algorithm: Algorithm<State = Self::State>;

    fn algorithm(quota: Quota, staggered: bool) -> Self::Algorithm;
    fn state(window: u64, counts: [u64; 2]) -> Self::State;

    fn rule(quota: &Quota, staggered: bool) -> Option<WindowRule<Self::State>> {
        WindowRule::holding(quota, staggered, 0)
    }

    fn holding(quota: &Quota, greatest: u64) -> WindowRule<Self::State> {
        WindowRule::holding(quota, false, greatest).unwrap()
    }

    /// Returns the counts in a state that fits into words.
    fn counts(rule: &WindowRule<Self::State>, window: u64, counts: [u64; 2]) -> WindowCounts<Self::State> {
        rule.clipped(Self::state(window, counts))
    }
}

#[derive(Clone, Copy, Debug)]
struct Fixed;

impl Pair for Fixed {
    type State = FixedWindowState;
    type Algorithm = FixedWindow;

    fn algorithm(quota: Quota, staggered: bool) -> FixedWindow {
        let window = FixedWindow::new(quota);
        if staggered { window.staggered() } else { window }
    }

    fn state(window: u64, [used, _]: [u64; 2]) -> FixedWindowState {
        FixedWindowState { window, used }
    }
}

#[derive(Clone, Copy, Debug)]
struct Sliding;

impl Pair for Sliding {
    type State = SlidingWindowState;
    type Algorithm = SlidingWindow;

    fn algorithm(quota: Quota, staggered: bool) -> SlidingWindow {
        let window = SlidingWindow::new(quota);
        if staggered { window.staggered() } else { window }
    }

    fn state(window: u64, [previous, current]: [u64; 2]) -> SlidingWindowState {
        SlidingWindowState { window, previous, current }
    }
}

fn quota(limit: u64, nanos: u64) -> Quota {
    Quota::per(limit, Duration::from_nanos(nanos))
}

const CENTURY: u64 = 100 * 366 * 86_400 * 1_000_000_000;

/// Draws numbers in all magnitudes, and numbers beside powers of two.
fn number(greatest: u64) -> impl Strategy<Value = u64> {
    let power = (0..64_u32, 0..3_u64).prop_map(|(bit, beside)| (1_u64 << bit).wrapping_add(beside).wrapping_sub(1));
    let any = (any::<u64>(), 0..64_u32).prop_map(|(number, shift)| number >> shift);
    prop_oneof![power, any, (0..5_u64).prop_map(move |back| greatest - back)]
        .prop_map(move |number| if number <= greatest { number } else { number % greatest })
}

fn limit() -> impl Strategy<Value = u64> {
    number(u32::MAX.into()).prop_map(|limit| limit.max(1))
}

/// Draws an instant at an edge of a window or within one.
fn instant(period: u64) -> impl Strategy<Value = u64> {
    let beside = (number(u64::MAX / period), 0..5_u64)
        .prop_map(move |(window, beside)| (window * period).saturating_add(beside).saturating_sub(2));
    prop_oneof![beside, number(u64::MAX)]
}

fn moment(rule: &impl Rule<Now = Moment>, nanos: u64) -> Moment {
    rule.read(Timestamp::from_nanos(nanos))
}

fn decided<R: Rule<Now = Moment>>(rule: &R, debt: R::Debt, cost: u64, now: Moment) -> (Decision, Option<R::Debt>) {
    let ruling = rule.judge(debt, cost, now);
    let next = if let Ruling::Admit { debt } = ruling { Some(debt) } else { None };
    (rule.decision(ruling, cost, now), next)
}

const TAG: Tag = Tag::from_hash(7);

/// A word that holds a state, and an instant at which it is read.
struct Case<P: Pair> {
    quota: Quota,
    rule: WindowRule<P::State>,
    algorithm: P::Algorithm,
    state: P::State,
    /// The state's window.
    window: u64,
    now: Moment,
    at: Timestamp,
    /// How the word reads.
    debt: WindowCounts<P::State>,
}

impl<P: Pair> Case<P> {
    /// Returns the case for a state whose window is `offset` windows after the instant's window. Returns `None` if a
    /// word cannot hold such states, or there is no such window.
    fn new(quota: Quota, nanos: u64, offset: i64, counts: [u64; 2]) -> Option<Self> {
        let rule = P::rule(&quota, false)?;
        let now = moment(&rule, nanos);
        let last = u64::MAX / quota.period_nanos();
        let window = now.window.checked_add_signed(offset).filter(|window| *window <= last)?;
        let state = P::state(window, counts.map(|count| count.min(quota.limit())));
        let debt = rule.owed(Word::new(TAG, rule.stamp(rule.clipped(state), now)), now);
        let algorithm = P::algorithm(quota, false);
        let at = Timestamp::from_nanos(nanos);
        Some(Self { quota, rule, algorithm, state, window, now, at, debt })
    }

    fn is_charged_alike(&self, cost: u64) -> Result<(), TestCaseError> {
        let expected = self.algorithm.decide(Some(self.state), self.at, cost);
        let (decision, next) = decided(&self.rule, self.debt, cost, self.now);
        prop_assert_eq!((decision, next.map(WindowCounts::state)), expected, "{:?} at {:?}", self.debt, self.at);
        Ok(())
    }

    /// A word reads as empty only if that makes no difference, and always if its state has expired.
    fn expires_alike(&self, cost: u64) -> Result<(), TestCaseError> {
        let size = self.rule.size(self.debt);
        let expires_at = self.algorithm.expires_at(&self.state);
        if size == 0 {
            let decided = |state| self.algorithm.decide(state, self.at, cost).0;
            let fresh = decided(None);
            let expected = decided(Some(self.state));
            prop_assert_eq!((fresh.outcome(), fresh.remaining()), (expected.outcome(), expected.remaining()));
        } else {
            prop_assert!(expires_at > self.at, "{:?}: owed after it expired", self.debt);
            prop_assert_eq!(
                self.rule.nanos_until_paid(self.debt, self.now),
                expires_at.as_nanos() - self.at.as_nanos()
            );
            prop_assert_eq!(size, self.algorithm.owed(&self.state, self.at));
        }
        Ok(())
    }

    /// A word counts as paid by an epoch if and only if that epoch's sweeper clears it.
    fn is_swept_when_paid(&self) -> Result<(), TestCaseError> {
        let rule = &self.rule;
        let stamp = rule.stamp(self.debt, self.now);
        let present = rule.epoch(self.now);
        for epoch in [present, present.saturating_add(1)] {
            let is_swept = rule.size(rule.owed(Word::new(TAG, stamp), rule.epoch_start(epoch))) == 0;
            prop_assert_eq!(rule.is_paid_by(stamp, epoch), is_swept);
        }
        Ok(())
    }

    /// Refunds a charge from the window that is `back - 1` before the state's.
    fn is_refunded_alike(&self, cost: u64, back: u64) -> Result<(), TestCaseError> {
        let charged = self.window.saturating_add(1).saturating_sub(back);
        let refunded = self.rule.refunded(self.debt, cost, charged, self.now);
        let expected = self.algorithm.refund(self.state, self.at, cost, Receipt::from_proof(ChargedIn(charged)));
        for cost in [0, 1, self.quota.limit()] {
            let (decision, _) = decided(&self.rule, refunded, cost, self.now);
            let (expected, _) = self.algorithm.decide(Some(expected), self.at, cost);
            prop_assert_eq!(decision, expected, "{:?} after a refund", refunded);
        }
        Ok(())
    }
}

fn judges_alike<P: Pair>(
    quota: Quota,
    nanos: u64,
    offset: i64,
    counts: [u64; 2],
    cost: u64,
    back: u64,
) -> Result<(), TestCaseError> {
    let Some(case) = Case::<P>::new(quota, nanos, offset, counts) else { return Ok(()) };
    case.is_charged_alike(cost)?;
    // A state that never expires has this instant as its end.
    if case.at < Timestamp::MAX {
        case.expires_alike(cost)?;
        case.is_swept_when_paid()?;
        case.is_refunded_alike(cost, back)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(if cfg!(miri) { 8 } else { 20_000 }))]

    #[test]
    fn words_are_judged_like_states(
        (quota, nanos) in (limit(), number(CENTURY)).prop_flat_map(|(limit, period)| {
            let period = period.max(1);
            // Mostly limits with few bits, or words would rarely hold them.
            (Just(quota((limit >> (limit % 20)).max(1), period)), instant(period))
        }),
        offset in prop_oneof![4 => -3..=3_i64, 1 => -9..=5_i64],
        counts in [number(u32::MAX.into()), number(u32::MAX.into())],
        cost in number(u64::MAX),
        small in any::<bool>(),
        back in 0..4_u64,
    ) {
        let below = quota.limit() + 1;
        let counts = counts.map(|count| count % below);
        let cost = if small { cost % below } else { cost };
        judges_alike::<Fixed>(quota, nanos, offset, counts, cost, back)?;
        judges_alike::<Sliding>(quota, nanos, offset, counts, cost, back)?;
    }

    /// Windows whose limits take many bits, so that their indices take few.
    #[test]
    fn short_indices_are_judged_like_states(
        period in 0..=60_u32,
        nanos in any::<u64>(),
        offset in -9..=5_i64,
        counts in [0..1_u64 << 32, 0..1_u64 << 32],
        cost in 0..=9_u64,
        less in 0..2_u64,
    ) {
        let period = (1 << period) + nanos % (1 << period);
        let widest = |fits: &dyn Fn(u64) -> bool| (1..=50).rev().map(|bits| Quota::MAX_UNITS >> (50 - bits)).find(|limit| fits(*limit));
        if let Some(limit) = widest(&|limit| Fixed::rule(&quota(limit, period), false).is_some()) {
            judges_alike::<Fixed>(quota(limit, period), nanos, offset, counts, limit.wrapping_add(cost).wrapping_sub(4), less)?;
        }
        if let Some(limit) = widest(&|limit| Sliding::rule(&quota(limit, period), false).is_some()) {
            let counts = counts.map(|count| count % (limit + 1));
            judges_alike::<Sliding>(quota(limit, period), nanos, offset, counts, cost % (limit + 1), less)?;
        }
    }

    #[test]
    fn windows_are_exact_quotients(period in 1..=CENTURY, shift in 0..62_u32, nanos in any::<u64>(), part in any::<u64>(), count in any::<u32>()) {
        let period = (period >> shift).max(1);
        // Words without counts can hold windows of any length.
        let windows = Windows::new(&quota(1, period), false, 0).unwrap();
        let window = part % (u64::MAX / period);
        for nanos in [nanos, window * period, (window * period).saturating_sub(1), u64::MAX] {
            prop_assert_eq!(windows.window_of(nanos), nanos / period);
            let window = nanos / period;
            let now = Moment { nanos, window, by: window };
            let left = period - nanos % period;
            let exact = (u128::from(count) * u128::from(left)).div_ceil(u128::from(period));
            prop_assert_eq!(u128::from(windows.carried(count, window, now)), exact);
            // An estimate that is just whole.
            let whole = u32::try_from(period).map_or(count, |period| count / period * period);
            let exact = (u128::from(whole) * u128::from(left)).div_ceil(u128::from(period));
            prop_assert_eq!(u128::from(windows.carried(whole, window, now)), exact);
        }
    }

    /// A key whose windows begin at its own instant.
    #[test]
    fn staggered_windows_follow_a_later_clock(
        (period, nanos) in number(CENTURY).prop_flat_map(|period| (Just(period.max(2)), instant(period.max(2)))),
        hash in any::<u64>(),
    ) {
        let Some(rule) = Fixed::rule(&quota(1, period), true) else { return Ok(()) };
        let tag = Tag::from_hash(hash);
        let phase = Fixed::algorithm(quota(1, period), true).phase(tag.phase_draw());
        let later = Timestamp::from_nanos(nanos).saturating_add(phase);
        let now = rule.local(moment(&rule, nanos), tag);
        prop_assert_eq!((now.nanos, now.window, now.by), (later.as_nanos(), later.as_nanos() / period, later.as_nanos() / period));
    }
}

#[test]
fn the_documented_limits_fit() {
    for (nanos, fixed, sliding) in [
        (1_000_000, 524_287, 511),
        (1_000_000_000, 536_870_911, 16_383),
        (5_000_000_000, u32::MAX.into(), 65_535),
        (60_000_000_000, u32::MAX.into(), 65_535),
        (CENTURY, u32::MAX.into(), 65_535),
    ] {
        assert!(Fixed::rule(&quota(fixed, nanos), true).is_some(), "{nanos}");
        assert!(Fixed::rule(&quota(fixed + 1, nanos), true).is_none(), "{nanos}");
        assert!(Sliding::rule(&quota(sliding, nanos), true).is_some(), "{nanos}");
        assert!(Sliding::rule(&quota(sliding + 1, nanos), true).is_none(), "{nanos}");
    }
}

/// A new key for which the table has no room resets like a key that has used up its quota, and not before there is
/// room.
#[test]
fn a_full_tables_rejection_has_a_reset() {
    fn has_a_reset<P: Pair>() {
        const NOW: u64 = 90_000_000_000;
        let quota = quota(5, 60_000_000_000);
        let rule = P::rule(&quota, false).unwrap();
        let algorithm = P::algorithm(quota, false);
        let (used_up, _) = algorithm.decide(None, Timestamp::from_nanos(NOW), 5);
        let soon = Duration::from_secs(1);
        let late = Duration::from_secs(1_000);
        for (wait, reset) in [(soon, used_up.reset_after()), (late, late)] {
            let full = Ruling::Full { wait: u64::try_from(wait.as_nanos()).unwrap() };
            let decision = rule.decision(full, 1, moment(&rule, NOW));
            assert_eq!(decision, Decision::reject(5, 0, Some(wait)).with_reset_after(reset));
        }
    }
    has_a_reset::<Fixed>();
    has_a_reset::<Sliding>();
}

/// A charge reads right in the epochs after its own, and as paid from its end until it is swept.
#[test]
fn words_survive_the_wrap() {
    fn reads_right<P: Pair>(quota: Quota, lasts: u64) {
        let rule = P::rule(&quota, false).unwrap();
        let epoch = rule.epoch_start(1).window;
        let last = u64::MAX / quota.period_nanos();
        for window in [1, 2, epoch, epoch + 1, 7 * epoch, 16 * epoch - 1, 16 * epoch, 100 * epoch + 3] {
            if window + 9 * epoch > last {
                continue;
            }
            let now = moment(&rule, window * quota.period_nanos() + 5);
            let counts = if lasts == 1 { [1, 0] } else { [0, 1] };
            let word = Word::new(TAG, rule.stamp(P::counts(&rule, window, counts), now));
            // The clock is set back, by at most the range of a word.
            for back in [1, epoch, 5 * epoch] {
                let earlier = Moment { by: window.saturating_sub(back), ..now };
                assert_eq!(rule.size(rule.owed(word, earlier)), 1, "{window}, {back} earlier");
            }
            for later in [0, 1, 2, epoch, 9 * epoch - 2] {
                let then = moment(&rule, (window + later) * quota.period_nanos());
                let owed = rule.size(rule.owed(word, then)) == 1;
                assert_eq!(owed, later < lasts, "{window}, {later} later");
            }
        }
        assert_eq!(rule.size(rule.owed(Word::EMPTY, moment(&rule, 5))), 0);
    }
    for seconds in [5, 60] {
        let quota_of = |limit| quota(limit, seconds * 1_000_000_000);
        for limit in [1, 100, 65_535] {
            reads_right::<Fixed>(quota_of(limit), 1);
            reads_right::<Sliding>(quota_of(limit), 2);
        }
        reads_right::<Fixed>(quota_of(u32::MAX.into()), 1);
    }
}

/// Returns a counterexample's windows, and the instant.
fn windows_of(case: &Counterexample) -> (Windows, Moment) {
    // Words without counts can hold windows of any length.
    let windows = Windows::new(&quota(1, case.number("period")), false, 0).unwrap();
    (windows, windows.read(Timestamp::from_nanos(case.number("now"))))
}

#[test]
fn window_numbers_withstand_the_counterexamples() {
    each("src/store/memory/table/windows/mod.rs: Windows::window_of", |case| {
        let (windows, _) = windows_of(case);
        [("window", windows.window_of(case.number("now")).into())]
    });
}

#[test]
fn weights_withstand_the_counterexamples() {
    each("src/store/memory/table/windows/mod.rs: Windows::carried", |case| {
        let (windows, now) = windows_of(case);
        [("carried", windows.carried(case.number("count"), case.number("window"), now).into())]
    });
}

#[test]
fn waits_withstand_the_counterexamples() {
    each("src/store/memory/table/windows/mod.rs: Windows::decay", |case| {
        let (windows, now) = windows_of(case);
        let [short, long] = [Windows::decay, Windows::long_decay].map(|decay| {
            decay(&windows, case.number("count"), case.number("room"), case.number("window"), now).ceil().as_nanos()
        });
        assert_eq!(short, long);
        [("wait", short)]
    });
}

#[test]
fn rulings_withstand_the_counterexamples() {
    each("src/store/memory/table/windows/rule.rs: WindowRule::judge", |case| {
        let rule = Sliding::rule(&quota(case.number("limit"), case.number("period")), false).unwrap();
        let state = Sliding::counts(&rule, case.number("window"), [case.number("previous"), case.number("current")]);
        let ruling = rule.judge(state, case.number("cost"), moment(&rule, case.number("now")));
        [("admitted", matches!(ruling, Ruling::Admit { .. }).into())]
    });
}

#[test]
fn stamps_withstand_the_counterexamples() {
    fn read<P: Pair>(case: &Counterexample, counts: [u64; 2]) -> P::State {
        let greatest = u64::MAX >> (u64::BITS - case.number::<u32>("count_bits"));
        let rule = P::holding(&quota(1, CENTURY), greatest);
        let window = case.number("window");
        let now = Moment { nanos: 0, window, by: window };
        rule.stamped(rule.stamp(P::counts(&rule, window, counts), now), now).state()
    }
    each("src/store/memory/table/windows/rule.rs: WindowRule::stamp", |case| {
        let [previous, current] = ["previous", "current"].map(|count| case.number(count));
        let (window, [previous, current]) = if case.number::<u32>("counts") == 1 {
            let state = read::<Fixed>(case, [current, previous]);
            (state.window, [0, state.used])
        } else {
            let state = read::<Sliding>(case, [previous, current]);
            (state.window, [state.previous, state.current])
        };
        [("window", window.into()), ("previous", previous.into()), ("current", current.into())]
    });
}

#[test]
fn indices_withstand_the_counterexamples() {
    each("src/store/memory/table/windows/mod.rs: Windows::ahead", |case| {
        let (count_bits, window): (u32, u64) = (case.number("count_bits"), case.number("window"));
        let windows = Windows::new(&quota(1, CENTURY), false, count_bits).unwrap();
        let bits = 36 - count_bits;
        let ahead = windows.ahead(window & (u64::MAX >> (u64::BITS - bits)), bits, case.number("earliest"));
        [("counts", ahead.is_some().into()), ("ahead", ahead.unwrap_or(0).into())]
    });
}
