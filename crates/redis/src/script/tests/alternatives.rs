//! Charges by a formula: the script chooses like [`Formula::choose`] over a plain map.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Debug;
use std::future::ready;
use std::ops::Range;

use futures_util::FutureExt;
use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::internal::remote::testing::DecideStanding as _;
use tower_sluice::internal::remote::testing::{Formula, Room, alternatives_of};
use tower_sluice::store::remote::{Alternatives, Standing};
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, Quota};

use super::{ALL, target};
use crate::script::arguments::listed;
use crate::script::manual_server::{ManualServer, START, at, key};
use crate::script::random::Xorshift;
use crate::script::{Key, OwnQuota, ScriptCall, ScriptCharge, ScriptReply, Scripted, decide_first};
use crate::store::conversation::{ConversationPart, KeyPart, Quotas, converse};
use crate::support::trace::Trace;

const DAY: u64 = 86_400_000_000;

/// Returns a tree with these members.
fn formula(random: &mut Xorshift, members: Range<usize>, depth: u32) -> Formula {
    if members.len() == 1 && (depth == 0 || random.below(4) > 0) {
        return Formula::Member(members.start);
    }
    let mut parts = Vec::new();
    let mut from = members.start;
    while from < members.end {
        let to = if depth == 0 { from + 1 } else { from + 1 + random.below((members.end - from) as u64) as usize };
        parts.push(formula(random, from..to, depth.saturating_sub(1)));
        from = to;
    }
    if random.below(2) == 0 { Formula::All(parts) } else { Formula::Any(parts) }
}

/// Returns the members that are charged if these have room, and their number in a reply; `None` if there is no room.
fn choose(
    formula: &Formula,
    alternatives: &Alternatives,
    room: &impl Fn(usize) -> Room,
    index: &impl Fn(usize) -> Option<usize>,
) -> Option<(Vec<usize>, u32)> {
    let mut chosen = Vec::new();
    (formula.choose(room, &mut chosen) == Room::Enough).then(|| {
        let chosen: Vec<_> = chosen.into_iter().filter_map(index).collect();
        let number = alternatives.number_of(&chosen).expect("each choice is listed");
        (chosen, number)
    })
}

/// The formula chooses the first set whose keys all have room, with any members outside the call.
#[test]
fn alternatives_are_the_formulas_choices() {
    let mut random = Xorshift::seeded();
    for _ in 0..20_000 {
        let members = 1 + random.below(10) as usize;
        let formula = formula(&mut random, 0..members, 3);
        let asked: Vec<usize> = (0..members).filter(|_| random.below(4) > 0).collect();
        let index = |member| asked.iter().position(|other| *other == member);
        let Some(alternatives) = alternatives_of(&formula, asked.len(), &index) else { continue };
        let listed: Vec<u64> = listed(&alternatives).collect();
        let sets: Vec<Vec<u64>> = match listed.split_last() {
            Some((_, listed)) => listed.split(|number| *number == 0).map(Vec::from).collect(),
            None => vec![(1..=asked.len() as u64).collect()],
        };
        assert!(sets.len() <= 32);
        for _ in 0..8 {
            let have_room: Vec<bool> = asked.iter().map(|_| random.below(3) > 0).collect();
            let room = |member| {
                index(member).map_or(Room::Enough, |index| [Room::Lacking, Room::Enough][usize::from(have_room[index])])
            };
            let first = sets.iter().position(|set| set.iter().all(|number| have_room[*number as usize - 1]));
            let chosen = choose(&formula, &alternatives, &room, &index).map(|(_, number)| number as usize - 1);
            assert_eq!(first, chosen, "{formula:?} of {asked:?}: {sets:?}");
        }
    }
}

#[test]
fn a_call_lists_up_to_32_alternatives() {
    let pairs = |pairs: usize| {
        let pair = |index| Formula::Any(vec![Formula::Member(2 * index), Formula::Member(2 * index + 1)]);
        Formula::All((0..pairs).map(pair).collect())
    };
    let any = |members: usize| Formula::Any((0..members).map(Formula::Member).collect());
    for (formula, members, are_few) in
        [(pairs(5), 10, true), (pairs(6), 12, false), (any(32), 32, true), (any(33), 33, false)]
    {
        assert_eq!(alternatives_of(&formula, members, &Some).is_some(), are_few, "{formula:?}");
    }
    // The sixth pair is not in the call.
    assert!(alternatives_of(&pairs(6), 10, &|member| Some(member).filter(|member| *member < 10)).is_some());
}

/// A member of a formula, with the states of its keys in a plain map.
trait Member {
    fn key(&self, id: u64) -> Key;

    /// Draws a cost: sometimes 0, or a cost that is never admitted.
    fn cost(&self, random: &mut Xorshift) -> u64;

    fn charge(&self, cost: u64, now: u64) -> ScriptCharge;

    /// Returns the expected decision, and charges the key if `is_charged`.
    fn decide(&mut self, id: u64, cost: u64, now: u64, is_charged: bool) -> Decision;

    /// Returns the decision by a reply.
    fn found(&self, answer: &ScriptReply, index: usize, cost: u64) -> Decision;
}

struct Checked<A: Scripted> {
    name: String,
    algorithm: A,
    quota: Option<Quota>,
    states: HashMap<u64, A::State>,
    standings: HashMap<u64, Standing>,
}

impl<A: Scripted> Checked<A> {
    fn standing(&self, id: u64) -> Standing {
        self.standings.get(&id).copied().unwrap_or(Standing::default())
    }
}

impl<A: Scripted + Debug> Member for Checked<A> {
    fn key(&self, id: u64) -> Key {
        key(format!("{} {id}", self.name))
    }

    fn cost(&self, random: &mut Xorshift) -> u64 {
        match random.below(12) {
            0 => 0,
            1 => self.algorithm.max_cost() + 1,
            _ => 1 + random.below(self.algorithm.max_cost()),
        }
    }

    fn charge(&self, cost: u64, now: u64) -> ScriptCharge {
        let own = OwnQuota { quota: self.quota, conversion: None };
        ScriptCharge::new(&self.algorithm, key(""), cost, at(now)).with_own_quota(own)
    }

    fn decide(&mut self, id: u64, cost: u64, now: u64, is_charged: bool) -> Decision {
        let state = self.states.get(&id).copied();
        if let Some(decision) = self.standing(id).decide(&self.algorithm, state, at(now), cost) {
            return decision;
        }
        let (decision, next) = self.algorithm.decide(state, at(now), cost);
        if let Some(next) = next.filter(|_| is_charged) {
            self.states.insert(id, next);
        }
        decision
    }

    fn found(&self, answer: &ScriptReply, index: usize, cost: u64) -> Decision {
        let text = answer.text(index).unwrap();
        let state = text.state(&self.algorithm, answer.now).unwrap();
        let by_standing = text.standing.decide(&self.algorithm, state, answer.now, cost);
        by_standing.unwrap_or_else(|| self.algorithm.decide(state, answer.now, cost).0)
    }
}

/// Draws a member. Two of its keys have a standing on the server: 3 is banned, and 4 is allowed.
fn member(random: &mut Xorshift, server: &mut ManualServer, name: String, has_quota: bool) -> Box<dyn Member> {
    fn checked<A: Scripted + Debug>(
        algorithm: A,
        server: &mut ManualServer,
        name: String,
        has_quota: bool,
    ) -> Box<dyn Member> {
        let quota = has_quota.then(|| algorithm.quota());
        let until = at(START + 1_000 * DAY);
        let banned = Standing { banned_until: until, ..Standing::default() };
        let allowed = Standing { allowed_until: until, ..Standing::default() };
        let standings = HashMap::from([(3, banned), (4, allowed)]);
        let member = Checked { name, algorithm, quota, states: HashMap::new(), standings };
        let micros = |until: Timestamp| until.as_nanos() / 1_000;
        for (id, standing) in &member.standings {
            let text = format!("!{}:0:{}:!", micros(standing.banned_until), micros(standing.allowed_until));
            server.set(&member.key(*id), &text);
        }
        Box::new(member)
    }
    let quota = Quota::per_day(1 + random.below(6));
    match random.below(4) {
        0 => checked(TokenBucket::new(quota), server, name, has_quota),
        1 => checked(FixedWindow::new(quota), server, name, has_quota),
        2 => checked(SlidingWindow::new(quota), server, name, has_quota),
        _ => checked(CalendarWindow::daily(quota.limit()), server, name, has_quota),
    }
}

/// Random trees over members with all algorithms: several requests in one run, some for the same keys.
#[test]
pub(super) fn the_script_charges_the_formulas_choice() {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&ALL);
    let mut first = 0;
    let mut later = 0;
    let mut rejected = 0;
    let mut trace = Trace::of(60);
    while trace.goes_on([
        ("charges by the first alternative", first > 300),
        ("charges by a later alternative", later > 200),
        ("rejections", rejected > 300),
    ]) {
        let batch = trace.step();
        let size = 1 + random.below(6) as usize;
        let has_quotas = random.below(2) == 0;
        let mut members: Vec<_> = (0..size)
            .map(|index| {
                let has_quota = has_quotas && random.below(2) == 0;
                member(&mut random, &mut server, format!("{batch} {index}"), has_quota)
            })
            .collect();
        let formula = formula(&mut random, 0..size, 3);
        // Now and then, a member is not in the call.
        let asked: Vec<usize> = (0..size).filter(|index| *index == 0 || random.below(8) > 0).collect();
        let index = |member| asked.iter().position(|other| *other == member);
        let Some(alternatives) = alternatives_of(&formula, asked.len(), &index) else { continue };
        let mut now = START;
        let mut expected = Vec::new();
        for _ in 0..30 {
            now += random.pick(&[0, 1, DAY / 100, DAY / 10, DAY / 3]);
            let costs: Vec<u64> = asked.iter().map(|member| members[*member].cost(&mut random)).collect();
            let charges = asked.iter().zip(&costs).map(|(member, cost)| members[*member].charge(*cost, now));
            let call = decide_first(charges, Some(&alternatives));
            let requests: Vec<Vec<u64>> =
                (0..1 + random.below(3)).map(|_| asked.iter().map(|_| random.below(5)).collect()).collect();
            let names = |ids: &Vec<u64>| -> Vec<Key> {
                asked.iter().zip(ids).map(|(member, id)| members[*member].key(*id)).collect()
            };
            server.add(now, &ScriptCall { keys: requests.iter().flat_map(names).collect(), ..call });
            let mut decided = Vec::new();
            for ids in requests {
                let mut decide =
                    |index: usize, is_charged| members[asked[index]].decide(ids[index], costs[index], now, is_charged);
                let decisions: Vec<_> = (0..asked.len()).map(|index| decide(index, false)).collect();
                let lacks_room = |member| index(member).is_some_and(|index| !decisions[index].is_allowed());
                let room = |member| if lacks_room(member) { Room::Lacking } else { Room::Enough };
                let choice = choose(&formula, &alternatives, &room, &index);
                let count = match &choice {
                    None => &mut rejected,
                    Some((_, 1)) => &mut first,
                    Some(_) => &mut later,
                };
                *count += 1;
                choice.iter().flat_map(|(chosen, _)| chosen).for_each(|index| {
                    let _ = decide(*index, true);
                });
                decided.push((decisions, choice.map_or(0, |(_, number)| number)));
            }
            expected.push((costs, decided));
        }
        for (reply, (costs, decided)) in server.replies().iter().zip(expected) {
            let answers = ScriptReply::read_each(reply, decided.len(), asked.len()).unwrap();
            for (answer, (decisions, number)) in answers.into_iter().zip(decided) {
                let answer = answer.expect("its keys can be read");
                let found = asked.iter().zip(&costs).enumerate();
                let found: Vec<_> =
                    found.map(|(index, (member, cost))| members[*member].found(&answer, index, *cost)).collect();
                assert_eq!(found, decisions, "{formula:?} of {asked:?}, {answer:?}");
                assert_eq!(answer.charged(number), Ok(()), "{formula:?} of {asked:?}, {costs:?}, {answer:?}");
            }
        }
    }
    println!("{first} charged by the first alternative, {later} by a later one, {rejected} rejected");
}

/// Holds a conversation about two daily limits, and charges the first that has room. Returns the units that are left in
/// both, whether they were charged, and the number of calls.
fn talk_about_either<A: Scripted + Copy>(
    server: &mut ManualServer,
    make: fn(Quota) -> A,
    quotas: [Option<Quota>; 2],
    cost: u64,
) -> ([(u64, bool); 2], usize) {
    let limiter = make(Quota::per_day(10));
    let algorithms = quotas.map(|quota| quota.map_or(limiter, make));
    let carried = [(); 2].map(|()| Quotas::default());
    let [mut included, mut overage] = [0, 1].map(|index| {
        let target = target(&algorithms[index], quotas[index], limiter.quota());
        KeyPart::charging((target, &carried[index]), key(["included", "overage"][index]), cost)
    });
    let either = Formula::Any(vec![Formula::Member(0), Formula::Member(1)]);
    let alternatives = alternatives_of(&either, 2, &Some).unwrap();
    let calls = Cell::new(0);
    let server = RefCell::new(server);
    let send = |call| {
        calls.set(calls.get() + 1);
        let answer = server.borrow_mut().run(START, &call);
        ready(Ok(answer))
    };
    let compose = |charges| decide_first(charges, Some(&alternatives));
    let mut parts = [&mut included, &mut overage];
    converse(at(START), &mut parts, compose, send).now_or_never().expect("it is ready").unwrap();
    let numbers = [included, overage].map(|part| {
        let algorithm = part.found.kept.map_or(*part.subject.0.algorithm(), make);
        let decision = algorithm.decide(part.found.old, part.found.now, 0).0;
        (decision.remaining(), part.found.charged > 0)
    });
    (numbers, calls.get())
}

/// A key under another quota than the call's may have room once it is converted. So no other alternative is charged
/// before it is.
#[test]
pub(super) fn another_quota_stops_later_alternatives() {
    check_another_quota(TokenBucket::new);
    check_another_quota(FixedWindow::new);
}

fn check_another_quota<A: Scripted + Copy>(make: fn(Quota) -> A) {
    let mut server = ManualServer::new(&ALL);
    let quota = |limit| Some(Quota::per_day(limit));
    let mut talk = |quotas, cost| talk_about_either(&mut server, make, quotas, cost);
    assert_eq!(talk([None, None], 8), ([(10, true), (10, false)], 1));
    // The key has no quota behind its state yet, and has room under the caller's quota.
    assert_eq!(talk([quota(20), None], 8), ([(12, true), (10, false)], 2));
    // The other key is under another quota, and is converted although it is not charged.
    assert_eq!(talk([quota(20), quota(30)], 3), ([(4, true), (30, false)], 1));
    assert_eq!(talk([quota(20), quota(30)], 3), ([(1, false), (30, true)], 1));
    assert_eq!(talk([quota(20), quota(40)], 1), ([(1, true), (37, false)], 2));
    // A call without quotas finds one behind the state.
    assert_eq!(talk([None, quota(40)], 3), ([(0, false), (37, true)], 2));
    assert_eq!(talk([None, None], 3), ([(0, false), (4, true)], 2));
}

/// If the key in a request's first alternative has foreign content, the request leaves its bundle, and then fails.
#[test]
pub(super) fn an_unreadable_key_stops_later_alternatives() {
    let mut server = ManualServer::new(&ALL);
    let bucket = TokenBucket::new(Quota::per_day(1));
    let [good, other, foreign, beside] = ["good", "other", "foreign", "beside"].map(key);
    server.set(&foreign, "hello");
    let charges = [&good, &other].map(|key| ScriptCharge::new(&bucket, key.clone(), 1, at(START)));
    let either = Formula::Any(vec![Formula::Member(0), Formula::Member(1)]);
    let call = decide_first(charges, alternatives_of(&either, 2, &Some).as_ref());
    let keys = [&foreign, &beside, &good, &other, &good, &other].map(Clone::clone);
    server.add(START, &ScriptCall { keys: keys.into_iter().collect(), ..call });
    let answers = ScriptReply::read_each(&server.replies()[0], 3, 2).unwrap();
    let charged: Vec<_> = answers.iter().map(|answer| answer.as_ref().map(|answer| answer.admitted)).collect();
    assert_eq!(charged, [None, Some(1), Some(2)]);
    assert_eq!((server.get(&beside), server.get(&foreign).as_deref()), (None, Some("hello")));
}

/// If a process's clock is wrong, its call does not have bounds for the present window, which may have room.
#[test]
fn an_unknown_window_stops_later_alternatives() {
    let server = RefCell::new(ManualServer::new(&ALL));
    let daily = CalendarWindow::daily(2);
    let bucket = TokenBucket::new(Quota::per_day(10));
    let quotas = [(); 2].map(|()| Quotas::default());
    let either = Formula::Any(vec![Formula::Member(0), Formula::Member(1)]);
    let alternatives = alternatives_of(&either, 2, &Some).unwrap();
    let calls = Cell::new(0);
    let send = |call| {
        calls.set(calls.get() + 1);
        ready(Ok(server.borrow_mut().run(START, &call)))
    };
    let compose = |charges| decide_first(charges, Some(&alternatives));
    // A window that has begun continues, even if the call does not know it.
    for (asked, charged, expected_calls) in
        [(START - 2 * DAY, [1, 0], 2), (START - 2 * DAY, [1, 0], 1), (START, [0, 1], 1)]
    {
        calls.set(0);
        let mut window = KeyPart::charging((target(&daily, None, daily.quota()), &quotas[0]), key("window"), 1);
        let mut other = KeyPart::charging((target(&bucket, None, bucket.quota()), &quotas[1]), key("bucket"), 1);
        let mut parts: [&mut dyn ConversationPart; 2] = [&mut window, &mut other];
        converse(at(asked), &mut parts, compose, send).now_or_never().expect("it is ready").unwrap();
        assert_eq!([window.found.charged, other.found.charged], charged);
        assert_eq!(calls.get(), expected_calls);
    }
}
