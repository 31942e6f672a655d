//! Decisions on several keys: random sets of keys against the algorithms, and eight tasks that create the same keys.

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::store::remote::Standing;
use tower_sluice::testing::Random;
use tower_sluice::time::{Clock, ManualClock, Timestamp};

use super::effort::rounds;
use super::*;
use crate::backend::StandingChange;
use crate::joint::{JointCall, KeyAnswer, KeyPart};

/// A key with any algorithm, in a plain map.
trait AnyKey {
    fn part(&self, cost: u64) -> KeyPart;

    /// Whether the cost has room, and whether it is charged if it has.
    fn judge(&self, now: Timestamp, cost: u64) -> (bool, bool);

    fn charge(&mut self, now: Timestamp, cost: u64);

    /// Compares it with a statement's reading.
    fn check(&self, answer: &KeyAnswer, context: &str);

    fn most(&self) -> u64;

    fn set_standing(&mut self, standing: Standing);
}

struct OneKey<A: Kept> {
    id: u128,
    algorithm: A,
    state: Option<A::State>,
    standing: Standing,
}

impl<A: Kept> AnyKey for OneKey<A> {
    fn part(&self, cost: u64) -> KeyPart {
        KeyPart::new(&self.algorithm, format!("{:032x}", self.id), "a \"name\\\", {with}", cost)
    }

    fn judge(&self, now: Timestamp, cost: u64) -> (bool, bool) {
        match self.standing.is_in_force(now) {
            true => (self.standing.is_allowed(now) || cost == 0 && self.standing.banned_until <= now, false),
            false => (self.algorithm.decide(self.state, now, cost).0.is_allowed(), cost > 0),
        }
    }

    fn charge(&mut self, now: Timestamp, cost: u64) {
        self.state = self.algorithm.decide(self.state, now, cost).1.or(self.state);
    }

    fn check(&self, answer: &KeyAnswer, context: &str) {
        let now = answer.now;
        let row = answer.row.as_ref();
        let found = row.map(|row| row.numbers.state(&self.algorithm, now).unwrap());
        let shown = |state| {
            let decision = self.algorithm.decide(state, now, 0).0;
            (decision.remaining(), decision.reset_after())
        };
        assert_eq!(shown(found), shown(self.state), "{context}");
        let standing = row.map_or(Standing::default(), |row| row.standing);
        assert_eq!(standing.is_in_force(now), self.standing.is_in_force(now), "{context}");
    }

    fn most(&self) -> u64 {
        self.algorithm.max_cost()
    }

    fn set_standing(&mut self, standing: Standing) {
        self.standing = standing;
    }
}

fn key<A: Kept>(id: u128, algorithm: A) -> Box<dyn AnyKey> {
    Box::new(OneKey { id, algorithm, state: None, standing: Standing::default() })
}

/// Four keys per algorithm.
fn keys() -> Vec<Box<dyn AnyKey>> {
    let one = |id: u128| {
        let quota = if id < 8 { quota() } else { greatest() };
        match id % 4 {
            0 => key(id, TokenBucket::new(quota)),
            1 => key(id, FixedWindow::new(quota)),
            #[cfg(feature = "calendar")]
            2 => key(id, tower_sluice::algorithm::CalendarWindow::daily(9)),
            _ => key(id, SlidingWindow::new(quota)),
        }
    };
    (0..16).map(one).collect()
}

#[tokio::test]
async fn several_keys_match_their_algorithms() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_123_456_789));
    let postgres = process(pool(1)).await.with_clock(clock.clone()).without_sweeps();
    let mut random = Random::of_trial(1);
    let mut model = keys();
    for step in 0..rounds(1_500, 50_000) {
        let now = clock.now();
        let context = format!("step {step} at {now:?}");
        if random.below(16) == 0 {
            let id = usize::try_from(random.below(16)).unwrap();
            let span = Some(Duration::from_secs(random.pick(&[1, 30, 300])));
            let [banned, allowed] = random.pick(&[[None, None], [span, None], [None, span]]);
            let until = |span: Option<Duration>| span.map_or(Timestamp::ZERO, |span| now.saturating_add(span));
            let (banned_until, allowed_until) = (until(banned), until(allowed));
            model[id].set_standing(Standing { banned_until, allowed_until, ..Standing::default() });
            let spans = banned.into_iter().collect();
            let change = StandingChange { by_hand: true, spans, allowed, ..StandingChange::default() };
            row(&postgres, &TokenBucket::new(quota()), id as u128).stand(change).await.unwrap();
        }
        let mut ids: Vec<usize> = (0..16).collect();
        for index in 0..16 {
            ids.swap(index, usize::try_from(random.below(16)).unwrap());
        }
        ids.truncate(1 + usize::try_from(random.pick(&[0, 1, 1, 2, 3, 4])).unwrap());
        let cost = |id: &usize, random: &mut Random| {
            let most = model[*id].most();
            let some = 1 + random.below(most);
            random.pick(&[0, 1, 1, 2, some, most, most + 1, u64::MAX])
        };
        let costs: Vec<u64> = ids.iter().map(|id| cost(id, &mut random)).collect();
        let all = (1_u64 << ids.len()) - 1;
        let sets = match random.below(4) {
            0 => None,
            1 | 2 => Some(vec![all]),
            _ => Some((0..1 + random.below(4)).map(|_| random.below(all) + 1).collect::<Vec<_>>()),
        };
        let parts = ids.iter().zip(&costs).map(|(id, cost)| model[*id].part(*cost)).collect();
        let postgres = if random.below(4) == 0 { postgres.clone().with_whole_statements() } else { postgres.clone() };
        let outcome = JointCall { postgres, parts, sets: sets.clone() }.decide().await.unwrap();
        let judged: Vec<_> = ids.iter().zip(&costs).map(|(id, cost)| model[*id].judge(now, *cost)).collect();
        let has_room = |set: &u64| judged.iter().enumerate().all(|(index, room)| set & 1 << index == 0 || room.0);
        let chosen = sets.as_ref().and_then(|sets| sets.iter().position(has_room));
        let number = chosen.map_or(0, |index| u32::try_from(index).unwrap() + 1);
        assert_eq!((outcome.now, outcome.charged), (now, number), "{context}: {costs:?} {sets:?}");
        for (index, (id, answer)) in ids.iter().zip(&outcome.answers).enumerate() {
            model[*id].check(answer, &context);
            let is_charged = chosen.is_some_and(|set| sets.as_ref().unwrap()[set] & 1 << index != 0) && judged[index].1;
            assert_eq!(answer.is_charged, is_charged, "{context}");
            if is_charged {
                model[*id].charge(now, costs[index]);
            }
        }
        let seconds = random.pick(&[0, 0, 0, 1, 10, 100, 40_000]);
        clock.advance(Duration::from_nanos(random.below(seconds * 1_000_000_000 + 2)));
    }
}

/// Each task charges two or three of six new keys, all or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_that_create_keys_charge_exactly() {
    const LIMIT: u64 = 5;
    let postgres = process(pool(8)).await;
    let quota = Quota::per(LIMIT, YEAR);
    for round in 0..rounds(40, 1_000) {
        let first = round as u128 * 6;
        let charged: Arc<[AtomicU64; 6]> = Arc::default();
        let tasks: Vec<_> = (0..8_u64)
            .map(|task| {
                let (postgres, charged) = (postgres.clone(), Arc::clone(&charged));
                let mut random = Random::of_trial(round as u64 * 8 + task);
                tokio::spawn(async move {
                    for _ in 0..6 {
                        let mut keys = [0, 1, 2, 3, 4, 5];
                        for index in 0..6 {
                            keys.swap(index, usize::try_from(random.below(6)).unwrap());
                        }
                        let part = |key: &usize| {
                            let id = format!("{:032x}", first + *key as u128);
                            match key % 2 {
                                0 => KeyPart::new(&TokenBucket::new(quota), id, "test", 1),
                                _ => KeyPart::new(&SlidingWindow::new(quota), id, "test", 1),
                            }
                        };
                        // Both; or all three, or else the first alone.
                        let (count, sets) = random.pick(&[(2, &[0b11_u64][..]), (3, &[0b111, 0b001])]);
                        let parts = keys[..count].iter().map(part).collect();
                        let call = JointCall { postgres: postgres.clone(), parts, sets: Some(sets.to_vec()) };
                        let outcome = call.decide().await.expect("no deadlock");
                        for (key, answer) in keys.iter().zip(&outcome.answers) {
                            charged[*key].fetch_add(answer.is_charged.into(), Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        for (key, charged) in charged.iter().enumerate() {
            let id = first + key as u128;
            let left = match key % 2 {
                0 => {
                    let bucket = TokenBucket::new(quota);
                    let read = apply(&postgres, &bucket, id, Transition::Read).await.unwrap();
                    bucket.decide(read.old, read.now, 0).0.remaining()
                }
                _ => {
                    let window = SlidingWindow::new(quota);
                    let read = apply(&postgres, &window, id, Transition::Read).await.unwrap();
                    window.decide(read.old, read.now, 0).0.remaining()
                }
            };
            assert_eq!(charged.load(Ordering::Relaxed), LIMIT - left, "round {round}, key {key}");
        }
    }
}
