//! Checks the balance against the naive ledger.

use std::time::{Duration, UNIX_EPOCH};

use futures_util::FutureExt;

use super::ledger::Ledger;
use super::{charge, credit, debit, decide, left};
use crate::limiter::Limiter;
use crate::testing::{Random, check_modes, seeds};
use crate::util::effort;
use crate::values::time::Clock;
use crate::values::{Ask, Credit, Decision, PartitionKey};

/// Random credits, charges, refunds, charges by hand, resets and pauses.
#[test]
fn it_decides_like_the_naive_ledger() {
    for seed in seeds(effort::rounds(200, 10_000)) {
        let (balance, clock) = super::balance();
        let key = PartitionKey::from("alice");
        let mut random = Random::new(seed);
        let mut ledger = Ledger::default();
        let mut charges: Vec<(Vec<u64>, Decision)> = Vec::new();
        for step in 0..200 {
            let now = clock.now().as_nanos() / 1_000_000;
            ledger.expire(now);
            let units = 1 + random.below(9);
            let context = format!("seed {seed}, step {step}: {units} units");
            match random.below(8) {
                0 | 1 => {
                    let expires = now + 1 + random.below(20);
                    let at = UNIX_EPOCH + Duration::from_millis(expires);
                    (0..units).for_each(|_| ledger.add(expires, now));
                    assert_eq!(credit(&balance, &key, Credit::units(units).expires_at(at)).ok(), Some(ledger.left()));
                }
                2..=4 => {
                    let decision = charge(&balance, &key, units);
                    let taken = ledger.charge(units);
                    assert_eq!(
                        (decision.is_allowed(), decision.remaining()),
                        (taken.is_some(), ledger.left()),
                        "{context}"
                    );
                    charges.extend(taken.map(|taken| (taken, decision)));
                }
                5 if !charges.is_empty() => {
                    let (taken, decision) = charges.swap_remove(random.below(charges.len() as u64) as usize);
                    let units = random.below(taken.len() as u64 + 1);
                    ledger.refund(&taken, units, now);
                    balance.refund(&Ask::charge(&key, taken.len() as u64), decision.receipt(), units);
                }
                6 if random.below(4) == 0 => {
                    ledger.debit(units);
                    assert_eq!(
                        debit(&balance, &key, units, None).unwrap().decision.remaining(),
                        ledger.left(),
                        "{context}"
                    );
                }
                6 if random.below(4) == 0 => {
                    ledger.forgive();
                    let _ = decide(&balance, &Ask::reset(&key));
                }
                _ => clock.advance(Duration::from_micros(random.below(4_000))),
            }
            ledger.expire(clock.now().as_nanos() / 1_000_000);
            assert_eq!(left(&balance, &key), ledger.left(), "{context}");
        }
    }
}

#[test]
fn it_answers_the_described_modes() {
    let (balance, _) = super::balance();
    for key in ["asked in all modes", "asked in one mode"] {
        credit(&balance, &key.into(), Credit::units(20)).unwrap();
    }
    check_modes(&balance).now_or_never().expect("memory answers at once");
}
