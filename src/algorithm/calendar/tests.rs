//! Calendar windows against a model that walks through the days, and days that are easily got wrong.

use std::thread;
use std::time::Duration;

use jiff::Span;
use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::period::{Period, to_jiff};
use super::schedule::CalendarSchedule;
use super::*;
use crate::testing::Random;

/// Zones where clocks are changed at various hours, by an hour or another time, over midnight, or not at all.
const ZONES: [&str; 10] = [
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "UTC",
    "America/Havana",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Antarctica/Troll",
];

const WEEK: [Weekday; 7] = [
    Weekday::Monday,
    Weekday::Tuesday,
    Weekday::Wednesday,
    Weekday::Thursday,
    Weekday::Friday,
    Weekday::Saturday,
    Weekday::Sunday,
];

fn periods() -> Vec<Period> {
    let weeks = WEEK.map(|first| Period::Week { first });
    let months = [1, 2, 17, 28, 29, 30, 31].map(|anchor| Period::Month { anchor });
    [Period::Day].into_iter().chain(weeks).chain(months).collect()
}

fn at(second: u64) -> Timestamp {
    Timestamp::from_nanos(second * 1_000_000_000)
}

/// Whether a window begins on a date.
fn is_first(period: Period, date: Date) -> bool {
    match period {
        Period::Day => true,
        Period::Week { first } => date.weekday() == to_jiff(first),
        Period::Month { anchor } => date.day() == date.days_in_month().min(anchor as i8),
    }
}

/// The seconds at which the window of `now` begins and ends: walks through the days around it.
fn model(period: Period, zone: &TimeZone, now: i64) -> [i64; 2] {
    let today = zone.to_datetime(jiff::Timestamp::from_second(now).unwrap()).date();
    let mut date = today.checked_sub(Span::new().days(40)).unwrap();
    let mut starts = i64::MIN;
    loop {
        if is_first(period, date) {
            let begins = zone.to_timestamp(date.at(0, 0, 0, 0)).unwrap().as_second();
            if begins > now {
                return [starts, begins];
            }
            starts = begins;
        }
        date = date.tomorrow().unwrap();
    }
}

/// A second in the years 2024 to 2030.
fn second(random: &mut Random) -> u64 {
    1_704_067_200 + random.below(7 * 365 * 86_400)
}

fn bounds(schedule: &CalendarSchedule, now: u64) -> [i64; 2] {
    let [starts, ends] = schedule.bounds(at(now));
    [starts, ends].map(|second| i64::try_from(second).unwrap())
}

/// Instants in no order, so that the clock goes back, and several windows pass; and those around the edges.
#[test]
fn windows_match_a_walk_through_days() {
    let mut random = Random::of_trial(1);
    for name in ZONES {
        let zone = zone::find(name).unwrap();
        for period in periods() {
            let schedule = CalendarSchedule::new(period, zone.clone());
            for _ in 0..120 {
                let now = second(&mut random);
                let found = bounds(&schedule, now);
                assert_eq!(found, model(period, &zone, now as i64), "{period:?} in {name} at {now}");
                for edge in found.map(i64::unsigned_abs) {
                    let before = bounds(&schedule, edge - 1);
                    let after = bounds(&schedule, edge);
                    assert!(before[1] == edge as i64 && after[0] == edge as i64, "{period:?} in {name} at {edge}");
                }
            }
        }
    }
}

/// In the year 2554, the last window ends beyond the range of clocks. At the greatest instant it had ended for each
/// request again: a limit of two admitted without end.
#[test]
fn the_last_window_admits_its_limit() {
    for window in [CalendarWindow::daily(2), CalendarWindow::weekly(2), CalendarWindow::monthly(2)] {
        for nanos in [u64::MAX, u64::MAX - 1] {
            let now = Timestamp::from_nanos(nanos);
            let mut state = None;
            let mut admitted = 0;
            for _ in 0..10 {
                let (decision, next) = window.decide(state, now, 1);
                state = next.or(state);
                admitted += u64::from(decision.is_allowed());
                assert!(decision.is_allowed() || decision.retry_after().is_none(), "no later window begins");
            }
            assert_eq!(admitted, 2, "{window:?} at {nanos}");
            assert_eq!(window.owed(&state.unwrap(), now), 2);
        }
    }
}

/// Each thread reads windows that another found, for another time.
#[test]
fn threads_find_their_own_windows() {
    let zone = zone::find("Europe/Berlin").unwrap();
    let schedule = CalendarSchedule::new(Period::Day, zone.clone());
    thread::scope(|scope| {
        for seed in 0..4 {
            let (schedule, zone) = (&schedule, &zone);
            scope.spawn(move || {
                let mut random = Random::of_trial(seed);
                for _ in 0..2_000 {
                    // Few days, so that some are found by others.
                    let now = 1_774_600_000 + random.below(4 * 86_400);
                    assert_eq!(bounds(schedule, now), model(Period::Day, zone, now as i64), "{now}");
                }
            });
        }
    });
}

#[test]
fn the_calendar_is_consulted_once_per_window() {
    let schedule = CalendarSchedule::new(Period::Day, TimeZone::UTC);
    let now = 1_700_000_000;
    assert_eq!(schedule.asked(), 0);
    for second in [now, now + 1, now - 3_600, now + 3_600] {
        schedule.window(at(second));
        assert_eq!(schedule.asked(), 1, "{second}");
    }
    for _ in 0..2 {
        schedule.edges(at(now));
        assert_eq!(schedule.asked(), 2, "a neighbour");
    }
    schedule.window(at(now + 86_400));
    assert_eq!(schedule.asked(), 3);
}

/// Spends all, and returns the next request's wait.
fn wait(window: &CalendarWindow, now: u64) -> Duration {
    let (_, state) = window.decide(None, at(now), window.max_cost());
    window.decide(state, at(now), 1).0.retry_after().unwrap()
}

fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3_600)
}

/// In Berlin, a day in March has 23 hours, and a day in October 25.
#[test]
fn clock_changes_shorten_and_lengthen_days() {
    let daily = CalendarWindow::daily(5).zone("Europe/Berlin").unwrap();
    let (march, october) = (1_774_738_800, 1_792_879_200);
    assert_eq!([march - 1, march, october - 1, october].map(|now| wait(&daily, now).as_secs()), [1, 82_800, 1, 90_000]);
}

/// The first dates of the windows from January 2027 to May 2028.
#[test]
fn months_begin_on_anchor_or_last_day() {
    for (anchor, expected) in [
        (29, ["01-29", "02-28", "03-29", "04-29", "02-29", "03-29"]),
        (30, ["01-30", "02-28", "03-30", "04-30", "02-29", "03-30"]),
        (31, ["01-31", "02-28", "03-31", "04-30", "02-29", "03-31"]),
    ] {
        let monthly = CalendarWindow::monthly(5).anchor(anchor);
        // 15 February 2027 and the two months after it, and 15 February 2028.
        let instants = [1_802_649_600_u64, 1_805_068_800, 1_807_747_200, 1_834_185_600];
        let mut found: Vec<_> = instants.iter().map(|now| *now + wait(&monthly, *now).as_secs()).collect();
        found.insert(0, u64::try_from(bounds(&monthly.schedule, instants[0])[0]).unwrap());
        found.push(found[4] + wait(&monthly, found[4]).as_secs());
        let dates = found.iter().map(|second| {
            let midnight = jiff::Timestamp::from_second(*second as i64).unwrap().to_zoned(TimeZone::UTC);
            assert_eq!(second % 86_400, 0);
            midnight.date().to_string()[5..].to_owned()
        });
        assert_eq!(dates.collect::<Vec<_>>(), expected, "on the {anchor}th");
    }
}

#[test]
fn weeks_begin_on_any_day() {
    // Thursday, 1 January 2026.
    let now = 1_767_225_600;
    for (first, days) in WEEK.into_iter().zip([4, 5, 6, 7, 1, 2, 3]) {
        assert_eq!(wait(&CalendarWindow::weekly(5).week_start(first), now), hours(24 * days), "{first:?}");
    }
}

#[test]
fn days_may_lack_midnight_or_be_missing() {
    // Samoa had no 30 December 2011.
    let apia = CalendarWindow::daily(5).zone("Pacific/Apia").unwrap();
    assert_eq!(wait(&apia, 1_325_152_800), hours(24));
    assert_eq!(bounds(&apia.schedule, 1_325_239_200), [1_325_239_200, 1_325_239_200 + 86_400]);
    // In São Paulo, 4 November 2018 began at one o'clock.
    let sao_paulo = CalendarWindow::daily(5).zone("America/Sao_Paulo").unwrap();
    assert_eq!(wait(&sao_paulo, 1_541_214_000), hours(24));
    assert_eq!(wait(&sao_paulo, 1_541_300_400), hours(23));
}

/// As in Toronto in 1919. The half hour after the change is in a day whose midnight was left out, and which counts as
/// begun when the old clock would have shown it.
#[test]
fn skipped_midnights_follow_the_old_clock() {
    // On 28 February, which the last day of the month follows or the first.
    let zone = TimeZone::posix("EST5EDT,J59/23:30,J304").unwrap();
    for year in 2024..2031 {
        let change = zone.to_timestamp(jiff::civil::date(year, 2, 28).at(23, 30, 0, 0)).unwrap().as_second();
        for period in periods() {
            let schedule = CalendarSchedule::new(period, zone.clone());
            for now in (change - 3_600..change + 7_200).step_by(300) {
                let found = bounds(&schedule, now.unsigned_abs());
                assert_eq!(found, model(period, &zone, now), "{period:?} at {now}");
                assert!(found[0] <= now && now < found[1], "{period:?} at {now}");
            }
        }
        let day = CalendarSchedule::new(Period::Day, zone.clone());
        let [before, after] = [0, 1_800].map(|since| bounds(&day, change.unsigned_abs() + since));
        assert_eq!([before[1], after[0]], [change + 1_800; 2]);
    }
}

#[test]
fn windows_exist_at_the_clocks_ends() {
    for period in periods() {
        for name in ["UTC", "Pacific/Apia", "America/New_York"] {
            let schedule = CalendarSchedule::new(period, zone::find(name).unwrap());
            assert!(schedule.window(Timestamp::ZERO).ends() > Timestamp::ZERO);
            assert_eq!(schedule.window(Timestamp::MAX).ends(), Timestamp::MAX);
            let _ = (schedule.edges(Timestamp::ZERO), schedule.edges(Timestamp::MAX));
        }
    }
}

/// A server's clock that differs by less than half a window is within the two that a call to it knows.
#[test]
fn edges_enclose_the_time() {
    let mut random = Random::of_trial(7);
    for period in periods() {
        let zone = zone::find("America/New_York").unwrap();
        let schedule = CalendarSchedule::new(period, zone.clone());
        for _ in 0..300 {
            let now = second(&mut random);
            let [starts, ends] = bounds(&schedule, now);
            let edges = schedule.edges(at(now)).map(|edge| i64::try_from(edge).unwrap());
            let first = model(period, &zone, edges[0]);
            let second = model(period, &zone, edges[1]);
            assert_eq!([first, second].concat(), [edges[0], edges[1], edges[1], edges[2]], "{period:?} at {now}");
            assert!([first, second].contains(&[starts, ends]));
            let (now, half) = (now as i64, (ends - starts) / 2);
            assert!(edges[0] <= now - half + 1 && now + half - 1 <= edges[2], "{period:?} at {now}: {edges:?}");
        }
    }
}

/// They are found even without `/usr/share/zoneinfo`.
#[test]
fn test_zones_are_compiled_in() {
    let bundled = TimeZoneDatabase::bundled();
    for name in ZONES {
        let compiled_in = bundled.get(name).unwrap();
        let found = zone::find(name).unwrap();
        // The past: for the future, the system may have other rules.
        for second in (1_577_836_800..1_704_067_200).step_by(86_400) {
            let now = jiff::Timestamp::from_second(second).unwrap();
            assert_eq!(compiled_in.to_offset(now), found.to_offset(now), "{name} at {now}");
        }
    }
}

#[test]
fn zones_have_iana_names_in_any_case() {
    let zone = |name: &str| CalendarWindow::monthly(1).zone(name).map(|window| window.schedule.zone_name().to_owned());
    assert_eq!(zone("europe/berlin").as_deref(), Ok("Europe/Berlin"));
    assert_eq!(zone("UTC").as_deref(), Ok("UTC"));
    for name in ["", "Berlin", "Europe/Berlln", "CEST", "../passwd", "Etc/Unknown", "+01:00"] {
        let error = zone(name).unwrap_err();
        assert_eq!(error.name(), name);
        assert!(error.to_string().contains("write a name of the IANA database, such as Europe/Berlin"), "{error}");
    }
}

#[test]
fn schedules_differ_by_period_zone_and_anchor() {
    let monthly = || CalendarWindow::monthly(5);
    let all = [
        monthly(),
        monthly().anchor(2),
        monthly().zone("Europe/Berlin").unwrap(),
        CalendarWindow::daily(5),
        CalendarWindow::weekly(5),
        CalendarWindow::weekly(5).week_start(Weekday::Sunday),
    ];
    for (index, one) in all.iter().enumerate() {
        assert!(all[..index].iter().all(|other| other.schedule() != one.schedule()), "{one:?}");
    }
    assert_eq!(monthly().schedule(), CalendarWindow::monthly(7).anchor(1).schedule());
}

#[test]
fn own_windows_are_found_by_their_quota() {
    let limiter = CalendarWindow::daily(5);
    let all = || {
        let weekly = CalendarWindow::weekly(5).week_start(Weekday::Sunday);
        let months = [1, 17].map(|anchor| CalendarWindow::monthly(7).anchor(anchor).zone("Asia/Kolkata").unwrap());
        [CalendarWindow::daily(5), weekly].into_iter().chain(months).collect::<Vec<_>>()
    };
    let quotas: Vec<_> = all().iter().map(CalendarWindow::own_quota).collect();
    let now = at(1_774_004_400);
    for (window, quota) in all().iter().zip(&quotas) {
        // One that was made alike has the same quota, on each thread.
        assert_eq!(thread::scope(|scope| scope.spawn(|| window.own_quota()).join().unwrap()), *quota);
        assert_eq!(quotas.iter().filter(|other| *other == quota).count(), 1, "{quotas:?}");
        assert_ne!(window.quota(), *quota, "a limiter's own quota names no calendar");
        assert_eq!((quota.limit(), quota.max_burst()), (window.quota().limit(), window.quota().limit()));
        assert_eq!((quota.period(), quota.without_calendar()), (window.quota().period(), window.quota()));
        let own = limiter.under(*quota).unwrap();
        assert_eq!((own.quota(), own.own_quota()), (*quota, *quota));
        assert_eq!(own.end_of_window(now), window.end_of_window(now), "{window:?}");
        // Under a quota without a calendar, windows stay the algorithm's.
        assert_eq!(own.under(Quota::per_day(9)).unwrap().end_of_window(now), window.end_of_window(now));
    }
    assert_eq!(limiter.under(Quota::per_day(9)).unwrap().quota(), Quota::per(9, limiter.quota().period()));
}

/// Prints the cost to build a customer's window at each request: `cargo test --release -- --nocapture`.
#[test]
fn windows_can_be_built_per_request() {
    let begun = std::time::Instant::now();
    const BUILT: u32 = 10_000;
    for _ in 0..BUILT {
        let window = CalendarWindow::monthly(10_000).anchor(17).zone("Europe/Berlin").unwrap();
        let _ = std::hint::black_box(window.own_quota());
    }
    println!("{:?} to build a window", begun.elapsed() / BUILT);
    let window = CalendarWindow::monthly(10_000).anchor(17).zone("Europe/Berlin").unwrap();
    let limiter = CalendarWindow::daily(1);
    let begun = std::time::Instant::now();
    for _ in 0..BUILT {
        let _ = std::hint::black_box(limiter.under(std::hint::black_box(&window).clone().own_quota()));
    }
    println!("{:?} to find one that is kept", begun.elapsed() / BUILT);
    // They are all one in the process.
    let built = || CalendarWindow::monthly(10_000).anchor(17).zone("Europe/Berlin").unwrap().own_quota();
    assert_eq!(built(), built());
}
