//! The scripts against a naive model, on a server with a test clock.

use std::collections::BTreeMap;

use ::redis::{Value, from_redis_value};

use super::*;
use crate::script::manual_server::{ManualServer, START, key};
use crate::script::random::Xorshift;
use crate::script::variant::{Changes, all_are_noticed};

const SECOND: u64 = 1_000_000;

/// The server's expected state: units, end and length of the lease, by process and number; and when it forgets the key.
#[derive(Default)]
struct Model(BTreeMap<(u64, u64), (u64, u64, u64)>, u64);

impl Model {
    /// Drops leases that have ended, corrects ends that are too far in the future, and returns the sum of the remaining
    /// units.
    fn total(&mut self, now: u64) -> u64 {
        self.0.values_mut().for_each(|(_, end, lease)| *end = (*end).min(now + *lease));
        self.0.retain(|_, (_, end, _)| *end > now);
        self.0.values().map(|(units, ..)| units).sum()
    }

    /// When the last lease ends, if another begins now.
    fn last_end(&self, now: u64, lease: u64) -> u64 {
        self.0.values().map(|(_, end, _)| *end).max().unwrap_or(0).max(now + lease)
    }

    /// Returns when the server forgets the key, in milliseconds, and the fields in the key's hash.
    fn stored(&self) -> (i64, BTreeMap<String, String>) {
        let expiry = if self.0.is_empty() { -2 } else { self.1.div_ceil(1_000) as i64 };
        let field = |((process, number), (units, end, lease)): (&(u64, u64), &(u64, u64, u64))| {
            (format!("{process}:{number}"), format!("-{units}:{end}:{lease}"))
        };
        (expiry, self.0.iter().map(field).collect())
    }

    fn add(&mut self, now: u64, field: ProcessField, units: u64, lease: u64) {
        let held = self.0.entry((field.process, field.number)).or_default();
        *held = (held.0 + units, now + lease, lease);
    }

    fn take(&mut self, now: u64, field: ProcessField, cost: u64, limit: u64, lease: u64) -> (u32, u64) {
        let total = self.total(now);
        let fits = cost > 0 && total + cost <= limit;
        if fits {
            self.1 = self.last_end(now, lease);
            self.add(now, field, cost, lease);
        }
        (fits.into(), total)
    }

    fn renew(&mut self, now: u64, field: ProcessField, units: u64, lease: u64) -> (u32, u64) {
        let total = self.total(now);
        let last_end = self.last_end(now, lease);
        self.0.retain(|(process, number), _| *process != field.process || *number >= field.number);
        let own = self.0.get(&(field.process, field.number)).map_or(0, |(units, ..)| *units);
        if own + units > 0 {
            self.1 = last_end;
            self.add(now, field, units, lease);
        }
        ((own + units > 0).into(), total)
    }

    fn release(&mut self, field: ProcessField, units: u64) -> u32 {
        let held = self.0.get_mut(&(field.process, field.number)).filter(|(held, ..)| *held >= units);
        let released = held.map(|(held, ..)| *held -= units).is_some();
        self.0.retain(|_, (held, ..)| *held > 0);
        released.into()
    }
}

#[test]
fn scripts_match_the_model() {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&[&TAKE, &RENEW, &RELEASE]);
    for trace in 0..40 {
        let mut model = Model::default();
        let mut now = START;
        let mut expected = Vec::new();
        let scale = random.pick(&[1, 120_000_000_000_000]);
        for _ in 0..100 {
            now = match random.below(40) {
                0 => now - 3 * SECOND,
                1 => now + 20 * SECOND,
                // The end of a lease.
                2..6 => model.0.values().map(|(_, end, _)| *end).min().unwrap_or(0).max(now),
                _ => now + random.below(SECOND),
            };
            let field = ProcessField { process: random.below(3) + (1 << 51), number: random.below(3) };
            let units = random.below(5) * scale;
            let lease = random.pick(&[SECOND, 4 * SECOND]);
            let (call, answer) = match random.below(8) {
                0..=3 => {
                    let limit = random.pick(&[5, 8]) * scale;
                    let (admitted, total) = model.take(now, field, units, limit, lease);
                    (take(key(trace), field, units, limit, lease), (admitted, Some(total)))
                }
                4 => {
                    // A process renews once into a field.
                    let held = model.0.get(&(field.process, field.number)).map_or(0, |(held, ..)| *held);
                    let units = if held + units < (1 << 51) { units } else { 0 };
                    let (admitted, total) = model.renew(now, field, units, lease);
                    (renew(key(trace), field, units, lease), (admitted, Some(total)))
                }
                _ => {
                    let units = units.max(scale);
                    (release(key(trace), field, units), (model.release(field, units), None))
                }
            };
            server.add(now, &call);
            server.add_expiry(&key(trace));
            server.add_fields(&key(trace));
            expected.push((answer, model.stored()));
        }
        for (step, (replies, (expected, stored))) in server.replies().chunks(3).zip(expected).enumerate() {
            let answer = ScriptReply::read(replies[0].clone(), 1).unwrap();
            let found = from_redis_value::<(i64, BTreeMap<String, String>)>(Value::Array(replies[1..].into())).unwrap();
            assert_eq!(found, stored, "trace {trace}, step {step}");
            let total = answer.old(0).unwrap().map(|total| whole(total).unwrap());
            assert_eq!((answer.admitted, total), expected, "trace {trace}, step {step}");
        }
    }
}

#[test]
fn replies_name_the_taken_units() {
    let mut server = ManualServer::new(&[&TAKE]);
    let field = ProcessField { process: 1, number: 1 };
    let mut ask = |units| taken(&server.run(START, &take(key("a"), field, units, 5, SECOND))).unwrap();
    for (units, is_taken, before) in [(3, true, 0), (0, false, 3), (3, false, 3), (2, true, 3), (0, false, 5)] {
        assert_eq!(ask(units), TakenUnits { is_taken, before });
    }
}

/// A hash with a foreign field is an error, and stays unchanged.
#[test]
fn a_foreign_hash_is_an_error() {
    let mut server = ManualServer::new(&[&TAKE, &RENEW]);
    let field = ProcessField { process: 1, number: 1 };
    let end = START + SECOND;
    let wrong = [
        ("1", format!("-1:{end}:1")),
        ("1:1:1", format!("-1:{end}:1")),
        ("a:1", format!("-1:{end}:1")),
        ("1:1", format!("1:{end}:1")),
        ("1:1", format!("-1:{end}")),
        ("1:1", format!("-1:{end}:1:1")),
        ("1:1", format!("-2251799813685248:{end}:1")),
        ("1:1", "-1:9007199254740992:1".to_owned()),
        ("1:1", format!("-1:{end}:4503599627370496")),
    ];
    for (name, value) in wrong {
        for call in [take(key("a"), field, 1, 5, SECOND), renew(key("a"), field, 1, SECOND)] {
            server.set_field(&key("a"), name, &value);
            server.add(START, &call);
            assert!(server.error().to_string().contains("\"SLUICE\""), "{name} {value}");
            server.add_fields(&key("a"));
            let found = from_redis_value::<Vec<(String, String)>>(server.replies().remove(0)).unwrap();
            assert_eq!(found, [(name.to_owned(), value.clone())]);
            server.delete(&key("a"));
        }
    }
}

/// Processes that were cut off may have any number of units in flight, so the script cuts a sum that does not fit into
/// a double.
#[test]
fn an_overflowing_sum_rejects_every_request() {
    let mut server = ManualServer::new(&[&TAKE, &RENEW]);
    let field = ProcessField { process: 1, number: 1 };
    let most = (1_u64 << 51) - 1;
    for process in 2..7_u64 {
        server.set_field(&key("a"), &format!("{process}:1"), &format!("-{most}:{}:{SECOND}", START + SECOND));
        let answer = server.run(START, &take(key("a"), field, 1, Quota::MAX_UNITS, SECOND));
        let total = (most * (process - 1)).min((1 << 53) - 1);
        assert_eq!(answer.old(0).unwrap(), Some(total.to_string().as_bytes()));
        assert_eq!(taken(&answer), Ok(TakenUnits { is_taken: false, before: total }));
    }
    // The maximum that a process reports, beside the same number that it has taken there.
    let answer = server.run(START, &take(key("b"), field, Quota::MAX_UNITS, Quota::MAX_UNITS, SECOND));
    assert_eq!(taken(&answer), Ok(TakenUnits { is_taken: true, before: 0 }));
    assert_eq!(server.run(START, &renew(key("b"), field, u64::MAX, SECOND)).admitted, 1);
    let answer = server.run(START, &take(key("b"), field, 0, Quota::MAX_UNITS, SECOND));
    assert_eq!(answer.old(0).unwrap(), Some((2 * Quota::MAX_UNITS).to_string().as_bytes()));
}

/// One mistake at a time: the properties above notice every one.
#[test]
fn mistakes_in_the_scripts_are_noticed() {
    all_are_noticed(&[
        Changes {
            block: include_str!("lua/open.lua"),
            properties: &[
                scripts_match_the_model,
                a_foreign_hash_is_an_error,
                an_overflowing_sum_rejects_every_request,
            ],
            changes: &[
                ("reply[1] * 1000000 + reply[2]", "reply[1] * 1000000"),
                ("for index = 1, #fields, 2 do", "for index = 3, #fields, 2 do"),
                ("{}, now + lease", "{}, now"),
                ("'^(%d+):(%d+)$'", "'^(%d+):(%d+)'"),
                ("'^-(%d+):(%d+):(%d+)$'", "'^-(%d+):(%d+):(%d+)'"),
                ("held >= 2251799813685248", "held > 2251799813685248"),
                ("due >= 9007199254740992", "due > 9007199254740992"),
                ("span >= 4503599627370496", "span > 4503599627370496"),
                ("if due > now + span then", "if due > now + 2 * span then"),
                ("    due = now + span\n", ""),
                ("    call('HSET', key, field, format('-%d:%d:%d', held, due, span))\n", ""),
                ("held, due, span))", "held, due, lease))"),
                ("if due <= now then", "if due < now then"),
                ("    call('HDEL', key, field)\n", ""),
                ("total = total + held", "total = total + 1"),
                ("if due > expires then expires = due end", ""),
                ("if total > 9007199254740991 then total = 9007199254740991 end", ""),
                ("if holder == process then", "if true then"),
                ("if its_number == number then own = held", "if its_number >= number then own = held"),
                ("elseif its_number < number then", "else"),
                ("elseif its_number < number then", "elseif its_number > number then"),
            ],
        },
        Changes {
            block: include_str!("lua/take.lua"),
            properties: &[scripts_match_the_model],
            changes: &[
                ("units > 0 and", ""),
                ("total + units <= ARGV[5] + 0", "total + units < ARGV[5] + 0"),
                ("total + units <= ARGV[5] + 0", "total <= ARGV[5] + 0"),
                ("own + units, 1", "units, 1"),
            ],
        },
        Changes {
            block: include_str!("lua/renew.lua"),
            properties: &[scripts_match_the_model],
            changes: &[
                ("for _, field in ipairs(older) do call('HDEL', key, field) end", ""),
                ("own = own + units", "own = units"),
                ("if own > 0 then admitted = 1 end", "admitted = 1"),
                ("if own > 0 then admitted = 1 end", "if own > 1 then admitted = 1 end"),
            ],
        },
        Changes {
            block: include_str!("lua/close.lua"),
            properties: &[scripts_match_the_model],
            changes: &[
                ("if admitted > 0 then", "if true then"),
                ("own, now + lease, lease", "own, now, lease"),
                ("own, now + lease, lease", "own, expires, lease"),
                ("  call('PEXPIREAT', key, format('%d', (expires + 999) / 1000))\n", ""),
                ("(expires + 999) / 1000", "expires / 1000"),
                ("(expires + 999) / 1000", "(now + lease + 999) / 1000"),
                ("'%d', total", "'%d', total + units"),
            ],
        },
        Changes {
            block: include_str!("lua/release.lua"),
            properties: &[scripts_match_the_model],
            changes: &[
                ("if left > 0 then", "if left >= 0 then"),
                ("if left > 0 then", "if left > 1 then"),
                ("string.format('-%d', left)", "string.format('-%d', left + 1)"),
                ("  call('HDEL', key, field)\n", ""),
                ("elseif left == 0 then", "else"),
                ("  call('HDEL', key, field)\n  released = 1", "  call('HDEL', key, field)"),
            ],
        },
    ]);
}
