//! A Redis server in this process: its data, its clock, and the commands that the client uses.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::account::{Accounts, Reply};
use super::lua;
use crate::script::Script;

/// A server's data, which a replica copies.
#[derive(Clone, Default)]
pub(super) struct Data {
    /// Values, and the millisecond at which each expires.
    values: BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>,
    /// The keys' accounts, for the checks.
    pub(super) accounts: Accounts,
}

pub(super) struct Server {
    pub(super) data: Data,
    scripts: BTreeMap<String, String>,
    /// An instant, the time on the clock then, in microseconds, and the clock's rate, in parts per million.
    clock: (Instant, u64, u64),
    pub(super) is_replica: bool,
    /// The server accepts connections.
    pub(super) is_up: bool,
    /// The server reads its data from disk until then.
    pub(super) loading_until: Instant,
    /// The server is stopped until then: commands that arrive are carried out afterwards.
    pub(super) paused_until: Instant,
}

/// A Monday, 2026-11-23.
const START: u64 = 1_795_392_000_000_000;

impl Server {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            data: Data::default(),
            scripts: BTreeMap::new(),
            clock: (now, START, 1_000_000),
            is_replica: false,
            is_up: true,
            loading_until: now,
            paused_until: now,
        }
    }

    pub(super) fn micros(&self) -> u64 {
        let (set, micros, rate) = self.clock;
        let passed = Instant::now().duration_since(set).as_micros() as u64;
        micros + (u128::from(passed) * u128::from(rate) / 1_000_000) as u64
    }

    /// Steps the clock, and sets its rate.
    pub(super) fn set_clock(&mut self, step: i64, rate: u64) {
        let from = self.micros();
        let to = from.saturating_add_signed(step);
        self.data.accounts.set_clock(from, to);
        self.clock = (Instant::now(), to, rate);
    }

    pub(super) fn forget_scripts(&mut self) {
        self.scripts.clear();
    }

    pub(super) fn forget_all(&mut self) {
        self.scripts.clear();
        self.data = Data::default();
    }

    /// Carries out a client's command.
    pub(super) fn execute(&mut self, command: &[Vec<u8>]) -> Reply {
        let word = |index: usize| command.get(index).map(|word| String::from_utf8_lossy(word).into_owned());
        let name = word(0).unwrap_or_default();
        match name.as_str() {
            "HELLO" => Reply::List(vec![Reply::Text(b"proto".to_vec()), Reply::Number(3)]),
            "CLIENT" => Reply::Ok,
            "TIME" => time(self.micros()),
            _ if Instant::now() < self.loading_until => {
                Reply::Error("LOADING Redis is loading the dataset in memory".to_owned())
            }
            "EVALSHA" | "EVAL" => self.run(&name, &word(1).unwrap_or_default(), &command[2..]),
            _ => Reply::Error("ERR unknown command".to_owned()),
        }
    }

    fn run(&mut self, name: &str, script: &str, arguments: &[Vec<u8>]) -> Reply {
        let (hash, source) = if name == "EVAL" {
            let hash = ::redis::Script::new(script).get_hash().to_owned();
            self.scripts.insert(hash.clone(), script.to_owned());
            (hash, script.to_owned())
        } else {
            let Some(source) = self.scripts.get(script) else {
                return Reply::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned());
            };
            (script.to_owned(), source.clone())
        };
        let count = String::from_utf8_lossy(&arguments[0]).parse().expect("the number of keys");
        let (keys, args) = arguments[1..].split_at(count);
        let micros = self.micros();
        let is_replica = self.is_replica;
        let reply =
            lua::run(&hash, &source, keys, args, &mut Keys { values: &mut self.data.values, micros, is_replica });
        self.data.accounts.note(&hash, keys, args, &reply, micros);
        reply
    }
}

/// A script's view of a server. The time stands still while the script runs.
pub(super) struct Keys<'a> {
    values: &'a mut BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>,
    micros: u64,
    is_replica: bool,
}

impl lua::Commands for Keys<'_> {
    fn command(&mut self, arguments: &[Vec<u8>]) -> Reply {
        let word = |index: usize| arguments.get(index).map(Vec::as_slice).unwrap_or_default();
        let number = |index: usize| String::from_utf8_lossy(word(index)).parse::<i64>().expect("a whole number");
        let key = word(1).to_vec();
        let millis = self.micros / 1_000;
        if self.values.get(&key).is_some_and(|(_, expires)| expires.is_some_and(|expires| expires <= millis)) {
            self.values.remove(&key);
        }
        let name = word(0);
        if self.is_replica && [&b"SET"[..], b"DEL", b"INCRBY"].contains(&name) {
            return Reply::Error("READONLY You can't write against a read only replica.".to_owned());
        }
        let old = self.values.get(&key).cloned();
        match name {
            b"TIME" => time(self.micros),
            b"GET" => old.map_or(Reply::Nil, |(value, _)| Reply::Text(value)),
            b"DEL" => Reply::Number(self.values.remove(&key).is_some().into()),
            b"INCRBY" => {
                let sum = old.map_or(0, |(value, _)| String::from_utf8(value).unwrap().parse().unwrap()) + number(2);
                self.values.insert(key, (sum.to_string().into_bytes(), None));
                Reply::Number(sum)
            }
            b"SET" => {
                let expires = match word(3) {
                    b"PXAT" => u64::try_from(number(4)).ok(),
                    b"KEEPTTL" => old.and_then(|(_, expires)| expires),
                    _ => None,
                };
                self.values.insert(key, (word(2).to_vec(), expires));
                Reply::Ok
            }
            other => unreachable!("no script calls {}", String::from_utf8_lossy(other)),
        }
    }
}

fn time(micros: u64) -> Reply {
    let text = |number: u64| Reply::Text(number.to_string().into_bytes());
    Reply::List(vec![text(micros / 1_000_000), text(micros % 1_000_000)])
}

impl Reply {
    /// Writes the reply as RESP3.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => out.extend_from_slice(b"_\r\n"),
            Self::Ok => out.extend_from_slice(b"+OK\r\n"),
            Self::Number(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            Self::Error(error) => out.extend_from_slice(format!("-{error}\r\n").as_bytes()),
            Self::Text(text) => {
                out.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
            Self::List(items) => {
                out.extend_from_slice(format!("*{}\r\n", items.len()).as_bytes());
                items.iter().for_each(|item| item.write(out));
            }
        }
    }
}

/// Takes a command, a list of texts, off the front of a client's bytes, once it is complete.
pub(super) fn take_command(bytes: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let number = |at: &mut usize| -> Option<usize> {
        let line = bytes.get(*at..)?;
        let length = line.windows(2).position(|pair| pair == b"\r\n")?;
        *at += length + 2;
        std::str::from_utf8(&line[1..length]).ok()?.parse().ok()
    };
    let mut words = Vec::new();
    for _ in 0..number(&mut at)? {
        let length = number(&mut at)?;
        words.push(bytes.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= bytes.len()).then(|| bytes.drain(..at))?;
    Some(words)
}

/// A script for the simulation: adds a number to a key, and returns the sum.
pub(super) static ADD: Script = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");

/// How long a server reads its data after a start.
pub(super) const LOADING: Duration = Duration::from_millis(20);
