//! The scripts against a naive model, on a server with a clock of the test's.

use std::collections::BTreeMap;

use super::*;
use crate::store::redis::manual_server::{ManualServer, START, key};
use crate::store::redis::random::Random;

const SECOND: u64 = 1_000_000;

/// What the server should have: units, end and length of the lease, by process and number.
#[derive(Default)]
struct Model(BTreeMap<(u64, u64), (u32, u64, u64)>);

impl Model {
    /// Drops what has ended, corrects what is from the future, and returns the sum of the rest.
    fn total(&mut self, now: u64) -> u32 {
        self.0.values_mut().for_each(|(_, end, lease)| *end = (*end).min(now + *lease));
        self.0.retain(|_, (_, end, _)| *end > now);
        self.0.values().map(|(units, ..)| units).sum()
    }

    fn add(&mut self, now: u64, field: Field, units: u32, lease: u64) {
        let held = self.0.entry((field.process, field.number)).or_default();
        *held = (held.0 + units, now + lease, lease);
    }

    fn take(&mut self, now: u64, field: Field, cost: u32, limit: u32, lease: u64) -> (u32, u32) {
        let total = self.total(now);
        let fits = cost > 0 && total + cost <= limit;
        if fits {
            self.add(now, field, cost, lease);
        }
        (fits.into(), total)
    }

    fn renew(&mut self, now: u64, field: Field, units: u32, lease: u64) -> (u32, u32) {
        let total = self.total(now);
        self.0.retain(|(process, number), _| *process != field.process || *number >= field.number);
        let own = self.0.get(&(field.process, field.number)).map_or(0, |(units, ..)| *units);
        if own + units > 0 {
            self.add(now, field, units, lease);
        }
        ((own + units > 0).into(), total)
    }

    fn release(&mut self, field: Field, units: u32) -> u32 {
        let held = self.0.get_mut(&(field.process, field.number)).filter(|(held, ..)| *held >= units);
        let released = held.map(|(held, ..)| *held -= units).is_some();
        self.0.retain(|_, (held, ..)| *held > 0);
        released.into()
    }
}

#[test]
fn scripts_count_as_the_model_does() {
    let mut random = Random::seeded();
    let mut server = ManualServer::new(&[&TAKE, &RENEW, &RELEASE]);
    for trace in 0..40 {
        let (mut model, mut now, mut expected) = (Model::default(), START, Vec::new());
        for _ in 0..100 {
            now = match random.below(40) {
                0 => now - 3 * SECOND,
                1 => now + 20 * SECOND,
                _ => now + random.below(SECOND),
            };
            let field = Field { process: random.below(3) + (1 << 51), number: random.below(3) };
            let (units, lease) = (random.below(5) as u32, random.pick(&[SECOND, 4 * SECOND]));
            let (call, answer) = match random.below(8) {
                0..=3 => {
                    let limit = random.pick(&[5, 8]);
                    let (admitted, total) = model.take(now, field, units, limit, lease);
                    (take(key(trace), field, units, limit, lease), (admitted, Some(total)))
                }
                4 => {
                    let (admitted, total) = model.renew(now, field, units, lease);
                    (renew(key(trace), field, units, lease), (admitted, Some(total)))
                }
                _ => {
                    let units = units.max(1);
                    (release(key(trace), field, units), (model.release(field, units), None))
                }
            };
            server.add(now, &call);
            expected.push(answer);
        }
        for (step, (answer, expected)) in server.answers().iter().zip(expected).enumerate() {
            let total = answer.old(0).unwrap().map(|total| whole(total).unwrap() as u32);
            assert_eq!((answer.admitted, total), expected, "trace {trace}, step {step}");
        }
    }
}

#[test]
fn replies_become_decisions() {
    let mut server = ManualServer::new(&[&TAKE]);
    let field = Field { process: 1, number: 1 };
    let mut ask = |cost| {
        let answer = server.run(START, &take(key("a"), field, cost, 5, SECOND));
        (decision(&answer, cost, 5).unwrap(), answer)
    };
    assert_eq!(ask(3).0, Decision::allow(5, 2));
    assert_eq!(ask(0).0, Decision::allow(5, 2));
    assert_eq!(ask(6).0, Decision::deny(5, 2, None));
    assert_eq!(ask(3).0, Decision::deny_until_released(5, 2));
    let (last, answer) = ask(2);
    assert_eq!(last, Decision::allow(5, 0));
    // Under a smaller limit, Rust would have rejected what the script has admitted.
    assert_eq!(decision(&answer, 2, 4), Err(BadReply::Disagreement));
}
