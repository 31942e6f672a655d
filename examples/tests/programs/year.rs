//! A year in the program `plans`: two processes and a server, whose clocks a test moves, against a naive ledger.
//!
//! The clock behind the feature `fast-clock` cannot be moved, so this needs a build without it: `scripts/test`, or
//! `cargo test -p examples --all-features`.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};
use tower_sluice::testing::Random;

use crate::moved_clock::MovedClock;
use crate::plans::{StoreFile, field, send};
use crate::postgres::PostgresServer;
use crate::program::Program;
use crate::redis::RedisServer;

/// A customer in the program's table: its plan, its team, its zone and its billing day.
struct Customer {
    name: &'static str,
    included: u64,
    overage: u64,
    team: Option<&'static str>,
    zone: &'static str,
    billing_day: i8,
}

const fn customer(
    name: &'static str,
    [included, overage]: [u64; 2],
    team: Option<&'static str>,
    zone: &'static str,
    billing_day: i8,
) -> Customer {
    Customer { name, included, overage, team, zone, billing_day }
}

const FREE: [u64; 2] = [1_000, 0];
const PRO: [u64; 2] = [10_000, 5_000];
const TEAM: [u64; 2] = [2_000, 0];
const POOL: u64 = 6_000;
const OF_POOL: u64 = 4_000;
const CUSTOMERS: [Customer; 6] = [
    customer("ada", PRO, None, "Europe/Berlin", 17),
    customer("bob", FREE, None, "UTC", 1),
    customer("cyd", TEAM, Some("engines"), "America/New_York", 31),
    customer("dee", TEAM, Some("engines"), "Asia/Kolkata", 1),
    customer("eve", TEAM, Some("sails"), "Pacific/Auckland", 30),
    customer("fay", PRO, None, "America/St_Johns", 29),
];

const DAY: i64 = 86_400;

/// The second at which the month after `now` begins, on this day of the month by a zone's clocks.
fn end_of_month(zone: &str, day: i8, now: i64) -> i64 {
    let zone = TimeZone::get(zone).unwrap();
    let today = zone.to_datetime(Timestamp::from_second(now).unwrap()).date();
    let begins_in = |month: Date| month.with().day(day.min(month.days_in_month())).build().unwrap();
    let this = begins_in(today.first_of_month());
    let next = if today < this { this } else { begins_in(today.first_of_month() + 1.month()) };
    next.to_zoned(zone).unwrap().timestamp().as_second()
}

/// The naive ledger: units by policy, key and month's end, and lots of bought units with their ends.
#[derive(Default)]
struct Ledger {
    used: HashMap<(&'static str, &'static str, i64), u64>,
    bought: HashMap<&'static str, Vec<(i64, u64)>>,
    warnings: Vec<String>,
}

/// The policies that a request was charged to, each with the units left; or its wait, if a wait helps.
type Outcome = Result<Vec<(&'static str, u64)>, Option<i64>>;

impl Ledger {
    fn request(&mut self, customer: &Customer, cost: u64, now: i64) -> Outcome {
        let own = end_of_month(customer.zone, customer.billing_day, now);
        let first = end_of_month("UTC", 1, now);
        let mut alternatives = vec![vec![("included", customer.name, own, customer.included)]];
        let team =
            customer.team.map(|team| vec![("pool", team, first, POOL), ("of-pool", customer.name, first, OF_POOL)]);
        alternatives.extend(team);
        if customer.overage > 0 {
            alternatives.push(vec![("overage", customer.name, own, customer.overage)]);
        }
        let mut wait = None;
        for members in alternatives {
            let used = |ledger: &Self, &(policy, key, end, _): &_| *ledger.used.get(&(policy, key, end)).unwrap_or(&0);
            let full: Vec<_> = members.iter().filter(|it| used(self, it) + cost > it.3).collect();
            if full.is_empty() {
                return Ok(members.into_iter().map(|it| (it.0, self.charge(it, cost))).collect());
            }
            let waits = full.iter().map(|(_, _, end, limit)| (cost <= *limit).then_some(end - now));
            let longest = waits.reduce(|a, b| Some(a?.max(b?))).flatten();
            wait = [wait, longest].into_iter().flatten().min();
        }
        let lots = self.bought.entry(customer.name).or_default();
        lots.retain(|(end, units)| *end > now && *units > 0);
        let left = lots.iter().map(|(_, units)| units).sum::<u64>().checked_sub(cost).ok_or(wait)?;
        lots.sort_unstable();
        lots.iter_mut().fold(cost, |due, (_, units)| {
            let paid = due.min(*units);
            *units -= paid;
            due - paid
        });
        Ok(vec![("bought", left)])
    }

    /// Returns the units left.
    fn charge(&mut self, (policy, key, end, limit): (&'static str, &'static str, i64, u64), cost: u64) -> u64 {
        let used = self.used.entry((policy, key, end)).or_default();
        let before = *used;
        *used += cost;
        let share = limit * 4 / 5;
        if policy == "included" && before < share && *used >= share {
            self.warnings.push(format!("mail to {key}: you have used {used} of {limit} units"));
        }
        limit - *used
    }
}

/// The members that the field `RateLimit` reports, with the units left, without the pace and the requests in flight.
fn reported(head: &str) -> Vec<(String, u64)> {
    let members = field(head, "ratelimit").unwrap_or_default().split(", ").filter_map(|member| {
        let (name, rest) = member.strip_prefix('"')?.split_once("\";r=")?;
        let digits = rest.split(';').next()?;
        Some((name.to_owned(), digits.parse().ok()?))
    });
    members.filter(|(name, _)| !["pace", "in-flight", "tokens"].contains(&&**name)).collect()
}

/// Both agree to the unit for a whole year.
#[test]
fn plans_on_redis_match_a_ledger() {
    let clock = MovedClock::new();
    let redis = RedisServer::with_environment(&[], clock.environment());
    let mut connection = redis.connection();
    run_a_year(clock, &StoreFile::new("redis", &redis.url()), &mut || wait_for_commands(&mut connection));
}

/// Both agree to the unit for a whole year.
#[test]
fn plans_on_postgresql_match_a_ledger() {
    let clock = MovedClock::new();
    let postgres = PostgresServer::with_environment(&[], clock.environment());
    let mut activity = Activity::of(&postgres.url());
    run_a_year(clock, &StoreFile::new("postgres", &postgres.url()), &mut || activity.wait_for_end());
}

/// Waits until Redis runs no commands but those in this function, for some looks in a row: a program releases its units
/// in flight after its answer, and must not be doing that when its clock jumps.
fn wait_for_commands(connection: &mut redis::Connection) {
    let (mut last, mut same) = (0, 0);
    while same < 4 {
        let stats: String = redis::cmd("INFO").arg("stats").query(connection).unwrap();
        let commands = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).expect(&stats);
        let commands: u64 = commands.parse().unwrap();
        same = if commands == last + 1 { same + 1 } else { 0 };
        last = commands;
        thread::sleep(Duration::from_millis(1));
    }
}

/// The programs' statements. A program that is in the middle of one when its clock jumps sees a server that has not
/// answered for hours, and closes the connection.
struct Activity {
    runtime: Runtime,
    client: Client,
}

impl Activity {
    fn of(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls)).unwrap();
        runtime.spawn(connection);
        Self { runtime, client }
    }

    /// Waits until no statement has begun or ended for some looks in a row. A program may do several things after an
    /// answer, one after the other: refunds, and reports on rejected keys.
    fn wait_for_end(&mut self) {
        let look = "SELECT count(*) FILTER (WHERE state <> 'idle'), max(state_change)::text, count(*) \
                    FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        let (mut last, mut same) = (None, 0);
        while same < 4 {
            let row = self.runtime.block_on(self.client.query_one(look, &[])).unwrap();
            let state: (i64, Option<String>, i64) = (row.get(0), row.get(1), row.get(2));
            let is_idle = state.0 == 0;
            let state = Some(state);
            same = if is_idle && state == last { same + 1 } else { 0 };
            last = state;
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// `settle` returns when the programs have nothing to do.
fn run_a_year(mut clock: MovedClock, store: &StoreFile, settle: &mut dyn FnMut()) {
    // The last days of a year, so that the processes begin with a clock that is ahead, as all others do.
    let begin = Date::constant(2027, 12, 31).to_zoned(TimeZone::UTC).unwrap().timestamp().as_second();
    clock.move_to(begin);
    let mut programs = [(), ()].map(|()| store.start(clock.environment()));
    let mut mails = Mails::of(&mut programs);
    let mut ledger = Ledger::default();
    let mut random = Random::of_trial(0);
    let mut invoices = 0;
    let (mut at, mut requests, mut rejected) = (begin, 0, 0);
    while at < begin + 366 * DAY {
        // Ten minutes past an hour: no zone's month ends near it, however long a request takes.
        at += i64::try_from(random.below(8)).unwrap() * 3_600;
        settle();
        clock.move_to(at + 600);
        // If a time has passed at which a program was to do something, it does so when it wakes up. This request does
        // nothing.
        for program in &programs {
            let _ = send(program, "GET", "/paid/nobody/1/nothing", "");
        }
        let customer = &CUSTOMERS[usize::try_from(random.below(6)).unwrap()];
        let program = &programs[usize::try_from(random.below(2)).unwrap()];
        if random.below(60) == 0 {
            invoices += 1;
            let units = 100 + random.below(3_000);
            let path = format!("/paid/{}/{units}/invoice-{invoices}", customer.name);
            // The payment provider calls twice, and reaches another process.
            let answers = programs.each_ref().map(|program| send(program, "POST", &path, "").1);
            assert_eq!(answers, ["bought", "was bought before"]);
            ledger.bought.entry(customer.name).or_default().push((clock.now() + 90 * DAY, units));
            continue;
        }
        let cost = 1 + random.below(900);
        let before = clock.now();
        let (head, _) = send(program, "GET", &format!("/v1/rows/{cost}"), customer.name);
        let took = clock.now() - before;
        let outcome = ledger.request(customer, cost, before);
        // The clock must not jump while a program asks the server whether it has to send a mail.
        mails.wait_for(ledger.warnings.len());
        requests += 1;
        let context = format!("{cost} units of {} at {at}: {outcome:?}, but {head}", customer.name);
        match outcome {
            Ok(mut charged) => {
                assert!(head.starts_with("http/1.1 200"), "{context}");
                let mut reported = reported(&head);
                // The balance advertises no quota, and is not reported.
                charged.retain(|(policy, _)| *policy != "bought");
                charged.sort_unstable();
                reported.sort_unstable();
                let charged: Vec<_> = charged.into_iter().map(|(policy, left)| (policy.to_owned(), left)).collect();
                assert_eq!(reported, charged, "{context}");
            }
            Err(wait) => {
                rejected += 1;
                assert!(head.starts_with("http/1.1 429"), "{context}");
                let advertised = field(&head, "retry-after").map(|wait| wait.parse::<i64>().unwrap());
                // No response advertises more than 24.8 days.
                let expected = wait.map(|wait| wait.min(2_147_483));
                let is_near = |(advertised, expected)| (expected - took - 1..=expected + 1).contains(&advertised);
                assert!(advertised.zip(expected).map_or(advertised == expected, is_near), "{context}");
            }
        }
    }
    // A year has at least 1,255 steps of seven hours. At most one in sixty of them is not a request.
    assert!(requests > 1_000, "{requests} requests, {rejected} rejected");
    let mut mails = mails.end(programs);
    mails.sort();
    ledger.warnings.sort();
    assert_eq!(mails, ledger.warnings);
}

/// The mails from both programs, which they send in the background.
struct Mails {
    lines: Receiver<String>,
    sent: Vec<String>,
}

impl Mails {
    fn of(programs: &mut [Program; 2]) -> Self {
        let (sender, lines) = channel();
        for program in programs {
            let (output, sender) = (program.take_output(), sender.clone());
            thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        }
        Self { lines, sent: Vec::new() }
    }

    /// Waits until there are `count` mails. Unless one is missing, none takes that long.
    fn wait_for(&mut self, count: usize) {
        while self.sent.len() < count {
            let line = self.lines.recv_timeout(Duration::from_secs(60)).expect("another mail");
            self.sent.extend(Some(line).filter(|line| is_mail(line)));
        }
    }

    /// Ends the programs, and returns all mails.
    fn end(mut self, programs: [Program; 2]) -> Vec<String> {
        drop(programs);
        self.sent.extend(self.lines.iter().filter(|line| is_mail(line)));
        self.sent
    }
}

fn is_mail(line: &str) -> bool {
    line.starts_with("mail to ")
}
