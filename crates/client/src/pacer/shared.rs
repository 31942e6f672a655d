//! A pace that processes share: its state is in one key on Redis, on the server's clock. `lua/` makes the transitions
//! in [`PartnerPace`](super::pace::PartnerPace), and the tests compare the two.

use std::time::Duration;

use tower_sluice::PartitionKey;
use tower_sluice_redis::shared_state::{SharedState, SharedStates, StateReply, StateScript};

use super::pace::{CallReport, PacedDeparture, PacedTurn, Rules, SharedTurn, micros};

macro_rules! pace_script {
    ($block:literal) => {
        StateScript::new(concat!(
            include_str!("lua/open.lua"),
            include_str!(concat!("lua/", $block, ".lua")),
            include_str!("lua/close.lua"),
        ))
    };
}

static TURN: StateScript = pace_script!("turn");

static LEARN: StateScript = pace_script!("learn");

/// One partner's pace on the server.
pub(super) struct SharedPace(SharedState);

/// Where a layer's paces are shared, and under which names.
pub(super) type Sharing = SharedStates;

impl SharedPace {
    /// Returns the pace for the partner with this key.
    pub(super) fn new(paces: &Sharing, partner: &PartitionKey) -> Self {
        Self(paces.of(partner, 'p'))
    }

    /// Makes [`PartnerPace::turn`](super::pace::PartnerPace::turn) on the server, in one round trip. Returns `None` if
    /// it fails.
    pub(super) async fn turn(&self, rules: &Rules, slot: Option<PacedDeparture>) -> Option<SharedTurn> {
        read(&self.0.run(&TURN, turn(rules, slot)).await.ok()?)
    }

    /// Makes [`PartnerPace::learn`](super::pace::PartnerPace::learn) on the server, for an answer that came `age` ago,
    /// in one round trip. If it fails, the next answer brings this report again.
    pub(super) async fn learn(&self, number: u64, age: Duration, took: Duration, report: &CallReport, rules: &Rules) {
        let _ = self.0.run(&LEARN, learn(number, micros(age), micros(took), report, rules)).await;
    }
}

/// The arguments to [`TURN`].
fn turn(rules: &Rules, slot: Option<PacedDeparture>) -> [u64; 5] {
    let slot = slot.unwrap_or(PacedDeparture { number: 0, at: 0 });
    [rules.interval, rules.ahead, rules.longest, slot.number, slot.at]
}

/// The arguments to [`LEARN`].
fn learn(number: u64, age: u64, took: u64, report: &CallReport, rules: &Rules) -> [u64; 10] {
    let answer = report.answer as u64;
    let (has_budget, [left, reset, spacing]) = match report.budget {
        Some(budget) => (1, [budget.left, budget.reset, budget.spacing]),
        None => (0, [0; 3]),
    };
    [number, age, took, answer, report.wait, has_budget, left, reset, spacing, rules.longest]
}

/// Reads `<number> <at>`, which follows the time and whether the call departs.
fn read(reply: &StateReply) -> Option<SharedTurn> {
    let (number, at) = reply.text()?.split_once(' ')?;
    let (number, at) = (number.parse().ok()?, at.parse().ok()?);
    let turn = if reply.is_admitted() { PacedTurn::Depart(PacedDeparture { number, at }) } else { PacedTurn::Wait(at) };
    Some(SharedTurn { turn, delay: Duration::from_micros(at.saturating_sub(reply.now().as_nanos() / 1_000)) })
}

#[cfg(test)]
mod tests {
    use redis::cmd;
    use tower_sluice::testing::Random;

    use super::*;
    use crate::manual_redis::{ManualRedis, START, time};
    use crate::pacer::pace::{Budget, CallAnswer, PartnerPace};
    use crate::trace::Trace;

    /// A server on which both scripts run by the test's clock.
    struct Server {
        redis: ManualRedis,
        hashes: [(&'static str, String); 2],
    }

    impl Server {
        fn start() -> Self {
            let mut redis = ManualRedis::start();
            let hashes = [&TURN, &LEARN].map(|script| (script.source(), redis.load(script.source()).manual));
            Self { redis, hashes }
        }

        /// Runs a script on a state, at `micros`.
        fn run(&mut self, micros: u64, script: &StateScript, state: usize, args: &[u64]) -> StateReply {
            time(micros).exec(&mut self.redis.connection).unwrap();
            let (_, hash) = self.hashes.iter().find(|(source, _)| *source == script.source()).unwrap();
            let mut call = cmd("EVALSHA");
            call.arg(hash).arg(1).arg(format!("pace {state}")).arg(args);
            StateReply::read(call.query(&mut self.redis.connection).unwrap()).unwrap()
        }
    }

    /// Random calls and answers, in order and out of order.
    #[test]
    fn the_scripts_equal_the_memory_state() {
        let mut random = Random::of_trial(0);
        let mut server = Server::start();
        let mut departures = 0;
        let mut probes = 0;
        let mut waits = 0;
        let mut confirmed = 0;
        let mut rejected = 0;
        let mut gaps = 0;
        let mut windows = 0;
        let mut trace = Trace::of(200);
        while trace.goes_on([
            ("departures", departures > 500),
            ("probes", probes > 100),
            ("waits", waits > 500),
            ("confirmed departures", confirmed > 100),
            ("departures that are not confirmed", rejected > 50),
            ("gaps", gaps > 50),
            ("departures in windows", windows > 50),
        ]) {
            let round = trace.step();
            let (mut now, mut slots) = (START, Vec::new());
            let interval = random.pick(&[0, 0, 100_000]);
            let rules = Rules {
                interval,
                ahead: interval * random.below(3),
                longest: random.pick(&[1_500_000, 3_600_000_000]),
            };
            let mut pace = None;
            for _ in 0..60 {
                let step = random.pick(&[1_000, 100_000, 2_000_000]);
                now += random.below(step);
                // The server creates a state with the first departure.
                if slots.is_empty() {
                    pace = None;
                }
                let state = pace.get_or_insert(PartnerPace::new(now));
                if random.below(2) == 0 {
                    let slot = if random.below(3) == 0 { slots.last().copied() } else { None };
                    let ours = state.turn(now, &rules, slot);
                    let theirs = read(&server.run(now, &TURN, round, &turn(&rules, slot))).unwrap();
                    assert_eq!(theirs.turn, ours, "{state:?} {rules:?} {slot:?} at {now}");
                    match ours {
                        PacedTurn::Depart(departure) if Some(departure) == slot => confirmed += 1,
                        PacedTurn::Depart(departure) => {
                            slots.push(departure);
                            departures += 1;
                            probes += u32::from(state.probe > 0);
                        }
                        PacedTurn::Wait(_) => waits += 1,
                    }
                    rejected += u32::from(slot.is_some() && PacedTurn::Depart(slot.unwrap()) != ours);
                } else if !slots.is_empty() {
                    let back = random.below(3).min(slots.len() as u64 - 1);
                    let number = slots[slots.len() - 1 - usize::try_from(back).unwrap()].number + random.below(8) / 7;
                    let (age, took) = (random.below(3_000), random.below(50_000));
                    let seconds = |random: &mut Random, most| random.below(most) * 1_000_000;
                    let answer = match round % 2 {
                        0 => random.pick(&[CallAnswer::Taken, CallAnswer::Taken, CallAnswer::Rejected]),
                        _ => random.pick(&[CallAnswer::Missing, CallAnswer::Taken, CallAnswer::Taken]),
                    };
                    let is_rejection = answer == CallAnswer::Rejected;
                    let has_fields = round % 4 > 1 && answer != CallAnswer::Missing && random.below(3) > 0;
                    let report = CallReport {
                        answer,
                        wait: if is_rejection && random.below(2) == 0 { seconds(&mut random, 4) } else { 0 },
                        budget: has_fields.then(|| Budget {
                            left: random.below(6),
                            reset: 1_000_000 + seconds(&mut random, 4),
                            spacing: random.pick(&[0, 200_000]),
                        }),
                    };
                    gaps += u32::from(is_rejection && state.is_free && number > state.cut);
                    windows += u32::from(state.window > 2);
                    server.run(now, &LEARN, round, &learn(number, age, took, &report, &rules));
                    state.learn(number, now - age, took, &report, &rules);
                }
            }
        }
        println!(
            "{departures} departures, {probes} alone, {waits} waits, {confirmed} confirmed, {rejected} not, \
             {gaps} gaps, {windows} in windows"
        );
    }
}
