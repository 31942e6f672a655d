//! A load: the requests to a limiter on a server, and how its processes are set up.

use std::error::Error;
use std::time::Duration;

use super::server::Kind;

/// Requests for one limiter's keys, from several processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) kind: Kind,
    pub(crate) keys: u64,
    /// Requests per second, to all processes together.
    pub(crate) rate: u64,
    /// How many in a thousand requests are rejected. All keys have one limit, which is chosen so that it rejects this
    /// share.
    pub(crate) rejected: u32,
    /// The exponent in Zipf's law in thousandths: the key with rank *r* has a share of r^-s. Zero: all keys are alike.
    pub(crate) zipf: u32,
    /// Each request goes to a random process, independently of its key.
    pub(crate) processes: u32,
    pub(crate) lease: Option<Leasing>,
    /// How long a call takes, on the way and on the server.
    pub(crate) round_trip: Duration,
}

/// The arguments to `RedisStore::leasing`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leasing {
    pub(crate) most: u32,
    pub(crate) lifetime: Duration,
}

/// Which server keeps the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Redis,
    Postgres,
    DynamoDb,
}

/// The program's task.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    /// Print the needs of a load.
    Needs,
    /// Print the guide's tables.
    Tables,
    /// Measure a Redis, and print the model beside it.
    Answer,
}

/// Everything on the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    pub(crate) command: Command,
    pub(crate) load: Load,
    pub(crate) server: Server,
    /// For a million write units, in thousandths of a dollar.
    pub(crate) price: u64,
    pub(crate) seed: u64,
}

pub(crate) const USAGE: &str = "usage: capacity [--store redis|postgres|dynamodb] [--algorithm bucket|fixed-window] [--keys N] [--rate N] [--rejected PERCENT] \
     [--distribution uniform|zipf:S] [--processes N] [--lease N] [--lease-seconds N] [--round-trip-ms N] \
     [--price DOLLARS] [--seed N] | --tables | --check";

/// For a million write units on demand, in thousandths of a dollar: the list price in us-east-1 in 2026.
pub(crate) const PRICE: u64 = 625;

impl Load {
    /// Buckets for a million keys, 100,000 requests per second by Zipf's law, 5 % rejected, 32 processes without
    /// leases.
    pub(crate) const fn new(server: Server) -> Self {
        let round_trip = match server {
            Server::Redis | Server::Postgres => Duration::from_millis(1),
            Server::DynamoDb => Duration::from_millis(5),
        };
        let (kind, lease) = (Kind::Bucket, None);
        Self { kind, keys: 1_000_000, rate: 100_000, rejected: 50, zipf: 1_000, processes: 32, lease, round_trip }
    }
}

impl Arguments {
    /// # Errors
    ///
    /// If an argument is unknown, lacks its value, or makes no sense. The error names it, and a valid one.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::Needs;
        let (mut server, mut load, mut price, mut seed) = (Server::Redis, Load::new(Server::Redis), PRICE, 1);
        let (mut round_trip, mut most, mut seconds) = (None, 0, 1_000);
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--tables" => command = Command::Tables,
                "--check" => command = Command::Answer,
                _ => {
                    let value = arguments.next().ok_or_else(|| format!("{name} needs a value\n{USAGE}"))?;
                    let wrong = |what: &str| format!("{name} {value}: must be {what}");
                    let whole = |least, most| {
                        let wrong = || wrong(&format!("a whole number from {least} to {most}"));
                        whole(&value).filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
                    };
                    let thousandths = |most: u32| {
                        let wrong =
                            || wrong(&format!("a number from 0 to {}, with up to three decimals", most / 1_000));
                        thousandths(&value).filter(|number| *number <= most).ok_or_else(wrong)
                    };
                    match name.as_str() {
                        "--store" => {
                            server = match value.as_str() {
                                "redis" => Server::Redis,
                                "postgres" => Server::Postgres,
                                "dynamodb" => Server::DynamoDb,
                                _ => return Err(wrong("redis, postgres or dynamodb").into()),
                            }
                        }
                        "--algorithm" => {
                            load.kind = match value.as_str() {
                                "bucket" => Kind::Bucket,
                                "fixed-window" => Kind::FixedWindow,
                                _ => return Err(wrong("bucket or fixed-window").into()),
                            }
                        }
                        "--keys" => load.keys = whole(1, 1_000_000_000_000)?,
                        "--rate" => load.rate = whole(1, 100_000_000)?,
                        "--rejected" => load.rejected = thousandths(99_000)? / 100,
                        "--distribution" if value == "uniform" => load.zipf = 0,
                        "--distribution" => {
                            let zipf = value.strip_prefix("zipf:").and_then(self::thousandths);
                            let zipf = zipf.filter(|zipf| *zipf <= 3_000);
                            load.zipf = zipf.ok_or_else(|| wrong("uniform, or zipf:S with S from 0 to 3"))?;
                        }
                        "--processes" => load.processes = u32::try_from(whole(1, 10_000)?)?,
                        "--lease" => most = u32::try_from(whole(0, 1_024)?)?,
                        "--lease-seconds" => seconds = thousandths(60_000)?.max(1),
                        "--round-trip-ms" => round_trip = Some(Duration::from_micros(thousandths(10_000_000)?.into())),
                        "--price" => price = thousandths(1_000_000)?.into(),
                        "--seed" => seed = whole(0, u64::MAX)?,
                        _ => return Err(format!("{name} is unknown\n{USAGE}").into()),
                    }
                }
            }
        }
        load.round_trip = round_trip.unwrap_or(Load::new(server).round_trip);
        let lifetime = Duration::from_millis(seconds.into());
        load.lease = (most > 0).then_some(Leasing { most, lifetime });
        Ok(Self { command, load, server, price, seed })
    }
}

/// Reads `1000000`, `1_000_000` or `1e6`.
fn whole(text: &str) -> Option<u64> {
    let text = text.replace('_', "");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    digits.parse::<u64>().ok()?.checked_mul(10_u64.checked_pow(exponent.parse().ok()?)?)
}

/// Reads `1`, `0.5` or `1.05` as thousandths.
fn thousandths(text: &str) -> Option<u32> {
    let (ones, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_short = decimals.len() <= 3 && decimals.bytes().all(|byte| byte.is_ascii_digit());
    let decimals = format!("{decimals:0<3}");
    ones.parse::<u32>().ok()?.checked_mul(1_000)?.checked_add(decimals.parse().ok().filter(|_| is_short)?)
}
