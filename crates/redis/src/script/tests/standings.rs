//! Bans, debts and overrides: the scripts, with their callers' computations, decide like a plain map.

use std::fmt::Debug;
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::internal::remote::testing::{
    DecideStanding as _, NewBanGrowth as _, ReplayApplied as _, allowed_for, banned_for,
};
use tower_sluice::limiter::{Override, OverrideReason, Receipt};
use tower_sluice::store::remote::{Applied, BanGrowth, Standing};
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, Quota};

use super::{ALL, decide_all, hostile, talk, target};
use crate::script::manual_server::{ManualServer, START, at, key};
use crate::script::random::Xorshift;
use crate::script::{
    Key, OwnQuota, ScriptCharge, Scripted, TextUnder, ban, begin_record, decide_once, growing_ban, reset, swap,
};
use crate::store::conversation::{KeyPart, Quotas};
use crate::support::trace::Trace;

const DAY: u64 = 86_400_000_000;

/// A key on the server, and its expected standing and state.
struct Checked<A: Scripted> {
    server: ManualServer,
    algorithm: A,
    quota: Option<Quota>,
    key: Key,
    standing: Standing,
    state: Option<A::State>,
    now: u64,
}

impl<A: Scripted<State: PartialEq + Debug>> Checked<A> {
    /// Makes a key with or without a quota behind its states.
    fn new(algorithm: A, has_quotas: bool) -> Self {
        let quota = has_quotas.then(|| algorithm.quota());
        let server = ManualServer::new(&ALL);
        let standing = Standing::default();
        Self { server, algorithm, quota, key: key("checked"), standing, state: None, now: START }
    }

    fn text_under(&self) -> TextUnder<'_, A> {
        TextUnder { algorithm: &self.algorithm, limiter: self.algorithm.quota(), of_mark: &|_| None }
    }

    /// Holds a conversation about the key, with or without the quota behind its states. It must end after one call.
    fn talk(&mut self, cost: u64, receipt: Option<Receipt>) -> Applied<A::State> {
        let quotas = Quotas::default();
        let target = target(&self.algorithm, self.quota, self.algorithm.quota());
        let part = KeyPart::charging((target, &quotas), self.key.clone(), cost);
        let mut part = if let Some(receipt) = receipt { part.refunding(receipt) } else { part };
        assert_eq!(talk(&mut self.server, &mut part, self.now), 1);
        part.found
    }

    fn pass(&mut self, micros: u64) {
        self.now += micros;
        if !self.standing.is_in_force(at(self.now)) {
            self.standing = Standing::default();
        }
    }

    fn expected(&self, cost: u64) -> Decision {
        let now = at(self.now);
        let by_standing = self.standing.decide(&self.algorithm, self.state, now, cost);
        by_standing.unwrap_or_else(|| self.algorithm.decide(self.state, now, cost).0)
    }

    fn own_quota(&self) -> OwnQuota {
        OwnQuota { quota: self.quota, conversion: None }
    }

    /// Makes a request, and checks the server's decision and charge.
    fn charge(&mut self, cost: u64) -> Decision {
        let found = self.talk(cost, None);
        let algorithm = &self.algorithm;
        let (decision, next) = match found.standing.decide(algorithm, found.old, found.now, cost) {
            Some(decision) => (decision, None),
            None => {
                let (decisions, next) = found.replay(algorithm, cost, 1).unwrap();
                (decisions[0], next)
            }
        };
        assert_eq!(decision, self.expected(cost), "{cost} of {:?}, {:?}", self.state, self.standing);
        self.state = next.or(self.state);
        decision
    }

    /// Makes a request together with another key, which always has units left: both are charged or rejected together,
    /// or this key is only read.
    fn charge_beside(&mut self, cost: u64, is_read: bool) {
        let other = key("other");
        self.server.delete(&other);
        let asked = if is_read { 0 } else { cost };
        let charges =
            [self.key.clone(), other.clone()].map(|key| ScriptCharge::new(&self.algorithm, key, cost, at(self.now)));
        let [_, beside] = charges;
        let first =
            ScriptCharge::new(&self.algorithm, self.key.clone(), asked, at(self.now)).with_own_quota(self.own_quota());
        let answer = self.server.run(self.now, &decide_all([first, beside]));
        let expected = self.expected(asked);
        assert_eq!(answer.admitted, u32::from(expected.is_allowed()), "{:?} {expected:?}", self.standing);
        assert_eq!(self.server.get(&other).is_some(), expected.is_allowed());
        let standing = answer.text(0).unwrap().standing;
        assert_eq!(standing.is_in_force(at(self.now)), self.standing.is_in_force(at(self.now)));
        if expected.is_allowed() && !is_read && !self.standing.is_allowed(at(self.now)) {
            self.state = self.algorithm.decide(self.state, at(self.now), cost).1.or(self.state);
        }
    }

    /// Makes a request that may be a retry, and has `free` free retries.
    fn charge_once(&mut self, cost: u64, free: u32) {
        let budget = A::budget(Quota::per_day(Quota::MAX_UNITS));
        let [budget_key, record] = ["budget", "record"].map(key);
        self.server.delete(&record);
        self.server.delete(&budget_key);
        self.server.add_silent(&begin_record(record.clone(), free, Duration::from_secs(1_000)));
        self.server.replies();
        let state =
            ScriptCharge::new(&self.algorithm, self.key.clone(), cost, at(self.now)).with_own_quota(self.own_quota());
        let budget_charge = ScriptCharge::new(&budget, budget_key, cost, at(self.now));
        let answer = self.server.run(self.now, &decide_once(state, budget_charge, record));
        let now = at(self.now);
        let is_banned = self.standing.banned_until > now;
        let receipt = answer.free_retry(&budget, cost, is_banned).unwrap();
        assert_eq!(receipt.is_some(), free > 0 && !is_banned);
        let expected = self.expected(cost);
        let is_charged = receipt.is_none() && expected.is_allowed() && !self.standing.is_allowed(now);
        assert!(receipt.is_some() || answer.admitted == u32::from(is_charged && cost > 0));
        let text = answer.text(0).unwrap();
        assert_eq!(text.standing.is_in_force(now), self.standing.is_in_force(now));
        let state = self.text_under().state_at(&text, now.max(text.standing.until())).unwrap();
        let found = self.standing.decide(&self.algorithm, state, now, cost);
        assert_eq!(found.unwrap_or_else(|| self.algorithm.decide(state, now, cost).0), expected);
        if is_charged {
            self.state = self.algorithm.decide(self.state, now, cost).1;
        }
    }

    /// Refunds a charge. While the standing lasts, the refund does nothing.
    fn refund(&mut self, cost: u64, receipt: Receipt) {
        if receipt.is_none() || cost == 0 {
            return;
        }
        let found = self.talk(cost, Some(receipt));
        assert_eq!(found.standing.is_some(), self.standing.is_in_force(at(self.now)));
        if !found.standing.is_some() {
            self.state = self.state.map(|state| self.algorithm.refund(state, at(self.now), cost, receipt));
        }
    }

    /// A standing without a debt that is over. A script forgets it when it reads the key, even if the key is banned
    /// already.
    fn present(&self, standing: Standing) -> Standing {
        let is_over = standing.owing_until <= at(self.now);
        if is_over { Standing { owing_until: Timestamp::ZERO, ..standing } } else { standing }
    }

    fn ban(&mut self, span: Duration) {
        let answer = self.server.run(self.now, &ban(self.key.clone(), span));
        self.standing = self.standing.ban(at(self.now), span);
        assert_eq!(self.present(answer.text(0).unwrap().standing), self.present(self.standing));
        assert!(self.server.expiry(&self.key) >= millis(self.standing.until()));
    }

    /// Bans the key by the number of its bans. `bans` has this number and the last ban's end, in microseconds.
    fn ban_again(&mut self, growth: &BanGrowth, bans: &mut Option<(u32, u64)>) {
        let answer = self.server.run(self.now, &growing_ban(self.key.clone(), key("bans"), growth));
        let now = at(self.now);
        let before = bans.filter(|(_, until)| *until > self.now).map_or(0, |(times, _)| times);
        let begins = self.standing.banned_until <= now && !self.standing.is_allowed(now);
        let span = growth.ban_after(before);
        self.standing = self.standing.ban(now, span);
        assert_eq!(self.present(answer.text(0).unwrap().standing), self.present(self.standing));
        if begins {
            let until = self.now + (span + growth.forgotten_after()).as_micros() as u64;
            *bans = Some((before + 1, until));
            assert_eq!(self.server.get(&key("bans")), Some(format!("{}:{until}", before + 1)));
            assert!(self.server.expiry(&key("bans")) >= millis(at(until)));
        }
    }

    fn owe(&mut self, units: u64) {
        let (standing, state) = self.standing.charge(&self.algorithm, self.state, at(self.now), units);
        // Scripts round up to a microsecond.
        let owing_until = at(standing.owing_until.as_nanos().div_ceil(1_000));
        self.standing = Standing { owing_until, ..standing };
        self.state = state;
        let answer = self.server.run(self.now, &swap(self.key.clone(), None));
        let (_, next) = self.text_under().owing(answer.old(0).unwrap(), answer.now, self.quota, units).unwrap();
        if self.standing.is_allowed(at(self.now)) {
            assert_eq!(next, None, "a key that is allowed owes nothing more");
            return;
        }
        let put = swap(self.key.clone(), Some(next.expect("the debt changes")));
        // The second swap comes too late and changes nothing.
        assert_eq!(self.server.run(self.now, &put).admitted, 1);
        assert_eq!(self.server.run(self.now, &put).admitted, 0);
        assert!(self.server.expiry(&self.key) >= millis(self.standing.until()));
    }

    /// Bans or allows the key by hand, or lifts both.
    fn override_by_hand(&mut self, by_hand: Override) {
        let now = at(self.now);
        let holds = self.server.get(&self.key);
        let answer = self.server.run(self.now, &swap(self.key.clone(), None));
        let (applied, next) = self.text_under().overriding(answer.old(0).unwrap(), answer.now, by_hand).unwrap();
        self.standing = self.standing.overridden(now, by_hand);
        assert_eq!(applied.standing, self.standing);
        let Some(next) = next else { return assert_eq!((by_hand, holds), (Override::Lift, None)) };
        assert_eq!(self.server.run(self.now, &swap(self.key.clone(), Some(next))).admitted, 1);
        let written = self.server.run(self.now, &swap(self.key.clone(), None));
        assert_eq!(written.text(0).unwrap().standing, self.standing);
        if self.standing.is_in_force(now) {
            assert!(self.server.expiry(&self.key) >= millis(self.standing.expires()));
        }
    }
}

fn some_override(random: &mut Xorshift) -> Override {
    let span = Duration::from_micros(1 + random.below(DAY));
    let reason = OverrideReason::new(random.pick(&["scrapes", "a,b:c!d@e%f \u{e9}-1", "!0:0:0:!"])).unwrap();
    random.pick(&[banned_for(span, reason), allowed_for(span, reason), Override::Lift])
}

fn millis(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanos() / 1_000_000).unwrap()
}

fn check<A: Scripted<State: PartialEq + Debug>>(make: impl Fn(Quota) -> A) {
    let mut random = Xorshift::seeded();
    let mut rejected = 0;
    let mut admitted = 0;
    let mut trace = Trace::of(20);
    while trace.goes_on([("admitted requests", admitted > 100), ("rejected requests", rejected > 200)]) {
        let batch = trace.step();
        // These quotas' times are whole microseconds.
        let scale = random.pick(&[1, 100_000_000_000_000]);
        let quota = Quota::per_day(scale * random.pick(&[1, 2, 4, 5, 8]));
        let mut checked = Checked::new(make(quota), batch % 2 > 0);
        let mut receipt = None;
        for _ in 0..120 {
            checked.pass(random.pick(&[0, 1, DAY / 100, DAY / 10, DAY / 3]));
            let cost = scale * (1 + random.below(quota.limit() / scale));
            match random.below(19) {
                10 => {
                    // Exactly to the end of a ban, a debt or an allowance.
                    let Standing { banned_until, owing_until, allowed_until, .. } = checked.standing;
                    let until = random.pick(&[banned_until, owing_until, allowed_until]);
                    checked.pass(until.saturating_since(at(checked.now)).as_micros() as u64);
                    let _ = checked.charge(cost);
                }
                0 => checked.ban(Duration::from_micros(1 + random.below(DAY))),
                17..19 => checked.override_by_hand(some_override(&mut random)),
                1 => checked.owe(cost * random.pick(&[1, 3, 20])),
                2 => {
                    let answer = checked.server.run(checked.now, &reset([checked.key.clone()]));
                    assert_eq!(answer.admitted, 0);
                    checked.standing = Standing::default();
                    checked.state = None;
                }
                3..5 => {
                    let _ = checked.charge(0);
                }
                5..7 => checked.charge_beside(cost, random.below(2) == 0),
                7..9 => checked.charge_once(cost, random.below(2) as u32),
                9 => {
                    if let Some((cost, receipt)) = receipt.take() {
                        checked.refund(cost, receipt);
                    }
                }
                _ => {
                    let decision = checked.charge(cost);
                    let count = if decision.is_allowed() { &mut admitted } else { &mut rejected };
                    *count += 1;
                    receipt = decision.is_allowed().then(|| (cost, decision.receipt()));
                }
            }
        }
    }
    println!("{admitted} admitted, {rejected} rejected");
}

#[test]
pub(super) fn bans_and_debts_match_a_plain_map() {
    check(TokenBucket::new);
    check(FixedWindow::new);
    check(SlidingWindow::new);
    check(|quota| CalendarWindow::daily(quota.limit()));
}

/// Random histories of one key, with short and long pauses, against a number and a time.
#[test]
pub(super) fn bans_grow_by_the_remembered_bans() {
    let mut random = Xorshift::seeded();
    for batch in 0..10 {
        let mut checked = Checked::new(TokenBucket::new(Quota::per_day(8)), batch % 2 > 0);
        let hour = Duration::from_secs(3_600);
        let growth = BanGrowth::new(hour, random.pick(&[2, 3, 1_000]), random.pick(&[1, 5, 40, 3_000]) * hour);
        let growth = growth.with_forgotten_after(random.pick(&[1, 10, 100]) * hour);
        let mut bans = None;
        let mut longest = Duration::ZERO;
        for _ in 0..100 {
            checked.pass(random.pick(&[0, 1, DAY / 24, DAY / 3, DAY, 5 * DAY]));
            match random.below(8) {
                0 => {
                    checked.server.run(checked.now, &reset([checked.key.clone(), key("bans")]));
                    (checked.standing, checked.state, bans) = (Standing::default(), None, None);
                }
                1 => {
                    // Exactly to the end of the ban, or until its bans are forgotten.
                    let ban = checked.standing.banned_until.as_nanos() / 1_000;
                    let until = random.pick(&[ban, bans.map_or(0, |(_, until)| until)]);
                    checked.pass(until.saturating_sub(checked.now));
                    checked.ban_again(&growth, &mut bans);
                }
                2..4 => drop(checked.charge(1)),
                _ => checked.ban_again(&growth, &mut bans),
            }
            longest = longest.max(checked.standing.banned_until.saturating_since(at(checked.now)));
        }
        assert!(longest > hour || growth.most() == hour, "{growth:?}: {longest:?}");
    }
}

#[test]
pub(super) fn a_foreign_ban_count_is_never_replaced() {
    let mut server = ManualServer::new(&ALL);
    let (name, bans) = (key("a"), key("bans"));
    let growth = BanGrowth::new(Duration::from_secs(1), 2, Duration::from_secs(9));
    for value in ["hello", "5", "5:", ":6", "5:6:7", "-1:6", "!5:6"] {
        server.set(&bans, value);
        server.add(START, &growing_ban(name.clone(), bans.clone(), &growth));
        assert!(server.error().to_string().contains("SLUICE"), "{value}");
        assert_eq!((server.get(&bans).as_deref(), server.get(&name)), (Some(value), None));
    }
    // A number that no process writes is cut.
    server.set(&bans, &format!("{}:{}", u64::MAX, u64::MAX));
    let answer = server.run(START, &growing_ban(name, bans.clone(), &growth));
    assert_eq!(answer.text(0).unwrap().standing.banned_until, at(START + 9_000_000));
}

/// A nine-hour ban does not delete the debt in a monthly bucket.
#[test]
pub(super) fn a_ban_forgets_no_state() {
    let mut checked = Checked::new(TokenBucket::new(Quota::per(8, Duration::from_secs(30 * 86_400))), false);
    assert!(checked.charge(8).is_allowed());
    let owes_until = checked.server.expiry(&checked.key);
    checked.ban(Duration::from_secs(9 * 3_600));
    assert!(checked.server.expiry(&checked.key) >= owes_until);
    checked.pass(DAY);
    assert!(!checked.charge(1).is_allowed());
    // A debt that is over is not a state, so a clock that is set back does not restore it.
    let mut server = ManualServer::new(&ALL);
    let name = key("over");
    server.set(&name, &format!("!0:{}:0:!", START - 1));
    server.run(START, &ban(name.clone(), Duration::from_secs(1)));
    assert_eq!(server.get(&name), Some(format!("!{}:0:0:!", START + 1_000_000)));
}

#[test]
pub(super) fn a_foreign_value_is_never_replaced() {
    let mut server = ManualServer::new(&ALL);
    let name = key("foreign");
    for value in [
        "hello",
        "!5",
        "!5:6:7!",
        "!5:6:7:8:9!",
        "!9007199254740992:0:0:!",
        "!0:9007199254740992:0:!",
        "!0:0:9007199254740992:!",
        "5",
    ] {
        server.set(&name, value);
        server.add(START, &ban(name.clone(), Duration::from_secs(1)));
        let error = server.error().to_string();
        assert!(error.contains("SLUICE"), "{value}: {error}");
        assert_eq!(server.get(&name).as_deref(), Some(value));
        let bucket = TokenBucket::new(Quota::per_day(1));
        let under = TextUnder { algorithm: &bucket, limiter: bucket.quota(), of_mark: &|_| None };
        let answer = server.run(START, &swap(name.clone(), None));
        assert!(under.owing(answer.old(0).unwrap(), answer.now, None, 1).is_err(), "{value}");
        assert!(under.overriding(answer.old(0).unwrap(), answer.now, Override::Lift).is_err(), "{value}");
    }
    assert!(hostile::FOREIGN.contains(&"!5"));
}
