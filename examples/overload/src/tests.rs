//! The server against queueing theory, figures against known values, and contenders that are broken on purpose.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::Request;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Duration, sleep};
use tower::{BoxError, Service};

use crate::contenders::{Contender, Entrance, Fixed, Nothing, Ours, contenders, entrance};
use crate::figures::{Value, jain};
use crate::guide;
use crate::picture::{Chart, Line, Mark};
use crate::plan::{Abandoned, Mix, Plan};
use crate::random;
use crate::run::{Trace, run};
use crate::scenarios::{Figure, Target, cold_start, few_requests, no_overload, short_proof};
use crate::server::Server;
use crate::table::{measure, table};
use crate::time::{Epoch, MILLISECOND, SECOND, seconds};

/// The mean time in the system, in milliseconds.
fn mean_latency(trace: &Trace) -> f64 {
    let all: u64 = trace.records.iter().map(|record| record.left - record.arrived).sum();
    all as f64 / trace.records.len() as f64 / MILLISECOND as f64
}

fn assert_near(measured: f64, expected: f64, what: &str) {
    assert!((measured - expected).abs() < 0.05 * expected, "{what}: {measured}, not {expected}");
}

/// Without the scenarios that take long unless optimised: `scripts/overload` has all.
#[test]
fn ours_reaches_the_targets() {
    let few = few_requests().into_iter().filter(|scenario| scenario.plan.requests() < 20_000.0);
    let scenarios: Vec<_> = short_proof().into_iter().chain(few).collect();
    let figures = measure(&Ours::default(), &scenarios);
    let missed: Vec<_> = figures.iter().filter(|figure| figure.misses_its_target()).collect();
    assert!(figures.iter().any(|figure| figure.target.is_some()) && missed.is_empty(), "{missed:?}");
}

/// A request waits for half the load divided by the rest of the capacity (M/D/1), in units of the service time; longer
/// if that varies (Pollaczek and Khinchine).
#[test]
fn the_server_queues_as_theory_says() {
    for (mix, load, variation) in
        [(Mix::Fixed, 50, 0.0), (Mix::Fixed, 80, 0.0), (Mix::Exponential, 50, 1.0), (Mix::Bimodal, 50, 2.25)]
    {
        let plan = Plan { workers: 1, mix, ..Plan::new(&[(600, load)]) };
        let trace = run(&plan, &Nothing, 1);
        let share = load as f64 / 100.0;
        let latency = 5.0 + 5.0 * (1.0 + variation) / 2.0 * share / (1.0 - share);
        assert_near(mean_latency(&trace), latency, &format!("latency, {mix:?}, {load} %"));
        let work: u64 = trace.records.iter().map(|record| record.job.worker_time()).sum();
        assert_near(work as f64 / plan.end() as f64, share, "utilisation");
        // Little's law.
        let inside = trace.records.len() as f64 / seconds(plan.end()) * mean_latency(&trace) / 1_000.0;
        assert_near(trace.in_flight((0, 600)), inside, "in the server");
    }
}

/// M/M/2 with room for 20 loses the share of arrivals that find 20.
#[test]
fn a_limit_sheds_what_theory_says() {
    let plan = Plan { mix: Mix::Exponential, ..Plan::new(&[(2_000, 80)]) };
    let shed = run(&plan, &Fixed::new("limit", 20), 1).shed((0, 2_000));
    let states = |from: i32| (from..=20).map(|inside| 2.0 * 0.8_f64.powi(inside)).sum::<f64>();
    let loss = states(20) / (1.0 + states(1));
    assert!((shed - loss).abs() < 0.2 * loss, "{shed}, not {loss}");
}

#[test]
fn the_load_has_rate_classes_and_tenants() {
    let trace = run(&Plan::new(&[(100, 200)]), &Nothing, 1);
    let count = trace.records.len() as f64;
    let share = |is: &dyn Fn(&crate::job::Job) -> bool| {
        trace.records.iter().filter(|record| is(&record.job)).count() as f64 / count
    };
    assert_near(count, 80_000.0, "requests");
    assert_near(share(&|job| job.is_top), 0.2, "top class");
    assert_near(share(&|job| job.tenant == 0), 0.6, "greedy tenant");
    assert_near(share(&|job| job.tenant == 9), 0.4 / 9.0, "last tenant");
}

#[test]
fn jains_index_has_its_known_values() {
    assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
    assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), 0.25);
    assert!((jain(&[1.0, 2.0, 3.0]) - 36.0 / 42.0).abs() < 1e-9);
    assert_eq!(jain(&[0.0, 0.0]), 0.0);
}

#[test]
fn targets_are_bounds() {
    assert!(Target::AtLeast(0.9).is_met(Value::Share(0.9)) && !Target::AtLeast(0.9).is_met(Value::Share(0.89)));
    assert!(Target::AtMost(5.0).is_met(Value::Time(Some(5.0))) && !Target::AtMost(5.0).is_met(Value::Time(None)));
    assert!(Target::Unchanged.is_met(Value::Change(10.0, 12.0)) && !Target::Unchanged.is_met(Value::Change(10.0, 7.9)));
}

/// Without a limit, an overloaded server answers too late. A limit of ten times the workers keeps the goodput.
#[test]
fn a_limit_keeps_the_goodput() {
    let plan = Plan::new(&[(20, 1_000)]);
    let [without, with] =
        [&Nothing as &dyn Contender, &Fixed::new("limit", 20)].map(|it| run(&plan, it, 1).goodput((10, 20)));
    assert!(without < 0.01 && with > 0.99, "{without}, {with}");
}

/// A server that works for clients which have given up has less time for the others.
#[test]
fn abandoned_requests_are_skipped_or_done() {
    let answered = |abandoned| {
        let plan = Plan { patience: SECOND / 20, abandoned, ..Plan::new(&[(10, 200)]) };
        let trace = run(&plan, &Nothing, 1);
        trace.records.iter().filter(|record| record.is_good()).count()
    };
    assert!(answered(Abandoned::Skipped) > 100 && answered(Abandoned::Done) < 50);
}

/// Bodies that are still produced count for our limiter, and not for tower's.
#[test]
fn the_body_counts() {
    let plan = Plan { mix: Mix::LongBody, ..Plan::new(&[(20, 200)]) };
    let [tower, ours] =
        [&Fixed::new("limit", 20) as &dyn Contender, &Ours::default()].map(|it| run(&plan, it, 1).goodput((10, 20)));
    assert!(tower < 0.5 && ours > 0.9, "{tower}, {ours}");
}

/// Nothing is answered while the server hangs, and all clients are told after a second.
#[test]
fn a_server_hangs_and_recovers() {
    let plan = Plan { hang: Some((10 * SECOND, 20 * SECOND)), patience: 2 * SECOND, ..Plan::new(&[(30, 50)]) };
    let trace = run(&plan, &Nothing, 1);
    assert!(trace.goodput((10, 20)) < 0.01 && trace.goodput((22, 30)) > 0.4);
    assert!(trace.records.iter().all(|record| record.left - record.arrived <= SECOND + SECOND / 10));
}

/// A limiter with a defect: it forgets the permit for one request in fifty.
struct Leaky;

impl Contender for Leaky {
    fn name(&self) -> &str {
        "leaky"
    }

    fn protect(&self, server: Server) -> Entrance {
        let (permits, calls) = (Arc::new(Semaphore::new(20)), Arc::new(AtomicU32::new(0)));
        entrance(tower::service_fn(move |request: Request<()>| {
            let leaks = calls.fetch_add(1, Ordering::Relaxed) % 50 == 0;
            let (permits, mut server) = (Arc::clone(&permits), server.clone());
            async move {
                let permit = permits.try_acquire_owned()?;
                let response = server.call(request).await?;
                if leaks {
                    permit.forget();
                }
                Ok::<_, BoxError>(response)
            }
        }))
    }
}

#[test]
fn leaked_permits_are_noticed() {
    let scenarios = [no_overload()];
    let misses = |contender: &dyn Contender| measure(contender, &scenarios).iter().any(Figure::misses_its_target);
    assert!(misses(&Leaky), "a limiter that leaks its permits sheds everything");
    assert!(!misses(&Fixed::new("limit", 20)));
}

#[test]
fn equal_runs_print_equal_bytes() {
    let scenarios = [cold_start()];
    let [first, second] = [(); 2].map(|()| table(&contenders(), &scenarios).0);
    assert_eq!(first, second);
    assert!(first.lines().count() == 4 && first.contains("| ours"), "{first}");
}

/// A contender's timer fires at its time, and not at the simulation's next event.
#[test]
fn timers_fire_between_events() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (epoch, changed) = (Epoch::begin(), Arc::new(Notify::new()));
        assert!(!epoch.approach(7 * MILLISECOND + 300_000, &changed).await);
        assert!(epoch.approach(7 * MILLISECOND + 300_000, &changed).await);
        assert_eq!(epoch.now(), 7 * MILLISECOND + 300_000);

        let notify = Arc::clone(&changed);
        let timer = tokio::spawn(async move {
            sleep(Duration::from_millis(3)).await;
            notify.notify_one();
            epoch.now()
        });
        tokio::task::yield_now().await;
        while !epoch.approach(SECOND, &changed).await && !timer.is_finished() {}
        assert_eq!(timer.await.unwrap(), 11 * MILLISECOND, "at the first whole millisecond");
    });
}

#[test]
fn pictures_fit_into_the_guide() {
    let line = |number: u32| Line {
        name: "a".to_owned(),
        color: "red".to_owned(),
        mark: if number == 1 { Mark::Dashes } else { Mark::Line },
        points: vec![(0.0, 5.0), (1.0, 0.0)],
    };
    let columns = vec![(0.0, "1".to_owned()), (1.0, "2".to_owned())];
    let chart =
        Chart { name: "name", title: "Title", columns, top: 5.0, unit: " %", lines: (0..30).map(line).collect() };
    let svg = chart.svg();
    // Markdown ends an HTML block at an empty line.
    assert!(!svg.contains("\n\n") && svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    assert!(svg.contains("M75.0 50.0L565.0 310.0"), "{svg}");
    assert!(svg.contains("<title>Title</title>\n<desc>a: 1: 5 %, 2: 0 %. a: "), "{svg}");
    assert!(svg.len() < 30_000, "{} bytes", svg.len());
}

/// Draws only the cheapest picture again; `scripts/slow` draws them all.
#[test]
fn the_guides_pictures_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/overload");
    let kept = |name: &str| fs::read_to_string(folder.join(name).with_extension("svg")).unwrap();
    let tenants = guide::tenants();
    let command = "cargo run --release -p tower-sluice-overload -- --guide docs/guide/overload";
    // The page's table has figures from these runs.
    assert!(
        kept(tenants.name) == tenants.svg(),
        "{}.svg is out of date, and perhaps the table in docs/guide/overload.md: {command}",
        tenants.name
    );
    for svg in ["goodput", "classes", "tenants"].map(kept) {
        assert!(svg.contains("</desc>") && !svg.contains("\n\n") && svg.len() < 10_000, "{svg}");
    }
}

#[test]
fn a_redrawn_scenario_stays_the_same() {
    let of_seed = |seed| (0..10).map(move |number| format!("{:?}", random::draw(seed, number)));
    assert!(of_seed(3).eq(of_seed(3)) && of_seed(3).ne(of_seed(4)));
    for plan in (0..100).map(|number| random::draw(number / 10, number % 10)) {
        let Mix::Drawn { mean, .. } = plan.mix else { panic!("{plan:?}") };
        assert!(plan.patience > 2 * mean && plan.end() >= 180 * SECOND, "{plan:?}");
    }
}
