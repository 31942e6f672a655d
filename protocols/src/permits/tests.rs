use super::properties::*;
use super::world::{Bounds, Config, Faults, Flaw};

const NO_FAULTS: Faults = Faults { losses: 0, delays: 0, crashes: 0, stops: 0, suspensions: 0, data_losses: 0 };

/// Two processes, of which each has one request at a time. In ticks, of which a lease has four, half a lease is two.
const ONE: Config = Config {
    processes: 2,
    limit: 1,
    requests: 1,
    has_fallback: false,
    waiter: None,
    faults: NO_FAULTS,
    flaw: None,
    bounds: Bounds { excess: 0, repair: 1, late_repair: 4, wait: 4 },
};

/// Three processes, so that an excess of one unit is less than all could have.
const THREE: Config = Config { processes: 3, ..ONE };

/// Two processes, of which the first has up to two requests at a time.
const TWO: Config = Config { limit: 2, requests: 2, ..ONE };

const ONE_LOSS: Faults = Faults { losses: 1, ..NO_FAULTS };
const ONE_DELAY: Faults = Faults { delays: 1, ..NO_FAULTS };
const ONE_CRASH: Faults = Faults { crashes: 1, ..NO_FAULTS };
const ONE_STOP: Faults = Faults { stops: 1, ..NO_FAULTS };
const ONE_SUSPENSION: Faults = Faults { suspensions: 1, ..NO_FAULTS };
const DATA_LOSS: Faults = Faults { data_losses: 1, ..NO_FAULTS };

fn with_excess(excess: u32, config: &Config) -> Config {
    Config { bounds: Bounds { excess, ..config.bounds }, ..config.clone() }
}

const NOTHING: [&str; 0] = [];

#[test]
fn without_faults_the_limit_holds_and_the_server_counts_what_is_in_flight() {
    assert_eq!(violated(&Config { bounds: Bounds { repair: 0, ..TWO.bounds }, ..TWO }), NOTHING);
}

/// Tight: one unit less has a counterexample, since the limit can be used.
#[test]
fn the_limit_can_be_used() {
    assert_eq!(violated(&Config { flaw: Some(Flaw::LimitIsHigher), ..ONE }), [LIMIT_HOLDS]);
}

#[test]
fn no_lost_call_and_no_late_call_admits_more_than_the_limit() {
    for faults in [ONE_LOSS, ONE_DELAY, Faults { delays: 1, losses: 1, ..NO_FAULTS }] {
        println!("{faults:?} {:?}", violated(&Config { faults, ..ONE }));
    }
}

#[test]
fn a_crash_frees_the_units_of_a_process_when_its_lease_ends_and_not_before() {
    println!("{:?}", violated(&Config { faults: ONE_CRASH, ..ONE }));
    let sooner = Bounds { late_repair: 3, ..ONE.bounds };
    println!("{:?}", violated(&Config { faults: ONE_CRASH, bounds: sooner, ..ONE }));
    println!("{:?}", violated(&Config { faults: ONE_CRASH, waiter: Some(2), ..ONE }));
    let sooner = Bounds { wait: 3, ..ONE.bounds };
    println!("{:?}", violated(&Config { faults: ONE_CRASH, bounds: sooner, waiter: Some(2), ..ONE }));
}

#[test]
fn a_process_that_stood_still_overruns_by_its_own_units() {
    println!("{:?}", violated(&with_excess(1, &Config { faults: ONE_STOP, ..ONE })));
    println!("{:?}", violated(&with_excess(0, &Config { faults: ONE_STOP, ..ONE })));
    println!("{:?}", violated(&with_excess(1, &Config { faults: ONE_SUSPENSION, ..ONE })));
    println!("{:?}", violated(&with_excess(0, &Config { faults: ONE_SUSPENSION, ..ONE })));
}

#[test]
fn three_data() {
    println!("{:?}", violated(&with_excess(1, &Config { faults: DATA_LOSS, ..ONE })));
    println!("{:?}", violated(&with_excess(0, &Config { faults: DATA_LOSS, ..ONE })));
    println!("{:?}", violated(&with_excess(1, &Config { faults: DATA_LOSS, ..THREE })));
}

#[test]
fn three_stop() {
    println!("{:?}", violated(&with_excess(1, &Config { faults: ONE_STOP, ..THREE })));
}

#[test]
fn fallback() {
    println!("{:?}", violated(&with_excess(1, &Config { faults: ONE_LOSS, has_fallback: true, ..ONE })));
    println!("{:?}", violated(&with_excess(0, &Config { faults: ONE_LOSS, has_fallback: true, ..ONE })));
}

#[test]
fn flaws() {
    use Flaw::*;
    for flaw in [NoRenewal, RenewalDoesNotWait, OneFieldPerProcess, RenewalReplaces, OlderFieldsStay, ReleaseUnchecked, LeaseDatedByProcess, LostIsNotRun, NameIsReused, SentTwice] {
        for config in [ONE, TWO] {
        for faults in [NO_FAULTS, ONE_LOSS, ONE_DELAY, ONE_CRASH] {
            if config.limit == 2 && faults != NO_FAULTS { continue }
            println!("FLAW {flaw:?} {} {faults:?} {:?}", config.limit, violated(&Config { flaw: Some(flaw), faults, ..config.clone() }));
        }
        }
    }
}
