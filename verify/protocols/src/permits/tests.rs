use super::properties::{
    LEFT_OVERS_END, LIMIT_HOLDS, NONE_IS_NEGATIVE, SERVER_AGREES, WAITER_IS_ADMITTED, breaks, holds,
};
use super::world::{Bounds, Config, Faults, Flaw};

const NO_FAULTS: Faults = Faults { losses: 0, delays: 0, crashes: 0, stops: 0, suspensions: 0, data_losses: 0 };

/// Two processes, each with one request at a time. Times are ticks: a lease has four, so half a lease is two.
const ONE: Config = Config {
    processes: 2,
    limit: 1,
    requests: 1,
    has_fallback: false,
    calls_are_instant: false,
    reads_and_swaps: false,
    waiter: None,
    faults: NO_FAULTS,
    flaw: None,
    bounds: Bounds { excess: 0, repair: 2, late_repair: 4, wait: 5 },
};

/// Three processes, so an excess of one unit is less than all could have. Calls take no time, for fewer states.
const THREE: Config = Config { processes: 3, calls_are_instant: true, ..ONE };

/// Two processes. The first has up to two requests at a time.
const TWO: Config = Config { limit: 2, requests: 2, ..ONE };

const ONE_LOSS: Faults = Faults { losses: 1, ..NO_FAULTS };
const ONE_DELAY: Faults = Faults { delays: 1, ..NO_FAULTS };
const ONE_CRASH: Faults = Faults { crashes: 1, ..NO_FAULTS };
const ONE_STOP: Faults = Faults { stops: 1, ..NO_FAULTS };
const ONE_SUSPENSION: Faults = Faults { suspensions: 1, ..NO_FAULTS };
const DATA_LOSS: Faults = Faults { data_losses: 1, ..NO_FAULTS };

fn with(faults: Faults, config: &Config) -> Config {
    Config { faults, ..config.clone() }
}

fn within(excess: u64, config: &Config) -> Config {
    Config { bounds: Bounds { excess, ..config.bounds }, ..config.clone() }
}

fn without(flaw: Flaw, config: &Config) -> Config {
    Config { flaw: Some(flaw), ..config.clone() }
}

/// The limit holds, and the server counts the requests in flight.
#[test]
fn without_faults_all_properties_hold() {
    let at_once = Bounds { repair: 0, late_repair: 0, ..ONE.bounds };
    holds(&Config { bounds: at_once, ..ONE });
    holds(&Config { bounds: at_once, ..THREE });
}

#[test]
fn the_limit_holds_for_several_requests() {
    holds(&TWO);
}

/// This shows that the limit is not below the admitted units, so the property can fail.
#[test]
fn admitting_one_unit_more_is_found() {
    breaks(&without(Flaw::LimitIsHigher, &ONE), LIMIT_HOLDS);
}

/// The repair takes at most half a lease, and the limit holds meanwhile.
#[test]
fn one_lost_call_is_repaired() {
    holds(&with(ONE_LOSS, &ONE));
}

#[test]
fn one_late_call_keeps_the_limit() {
    holds(&with(ONE_DELAY, &ONE));
    // If a call runs after its caller has given up, and its process has no other units, its units end with its lease,
    // not sooner.
    let sooner = Bounds { late_repair: 3, ..ONE.bounds };
    breaks(&Config { bounds: sooner, ..with(ONE_DELAY, &ONE) }, LEFT_OVERS_END);
}

/// If three attempts in a row take a quarter of a lease each, the last comes when the lease has ended.
#[test]
fn two_slow_failures_are_an_outage() {
    let faults = Faults { losses: 2, ..NO_FAULTS };
    breaks(&with(faults, &ONE), LIMIT_HOLDS);
}

/// On records, a step reads the time before it swaps, and the swap may be late.
#[test]
fn leases_dated_by_reads_suffice() {
    let on_records = Config { reads_and_swaps: true, ..ONE };
    for faults in [ONE_DELAY, ONE_LOSS, ONE_CRASH] {
        holds(&with(faults, &on_records));
    }
}

#[test]
fn dead_processes_hold_units_until_lease_end() {
    holds(&with(ONE_CRASH, &ONE));
    let sooner = Bounds { late_repair: 3, ..ONE.bounds };
    breaks(&Config { bounds: sooner, ..with(ONE_CRASH, &ONE) }, LEFT_OVERS_END);
}

/// The units are free a tick after the lease ends, because the waiter asks once in a tick.
#[test]
fn waiters_get_a_dead_processs_units() {
    let waits = Config { waiter: Some(2), ..with(ONE_CRASH, &ONE) };
    holds(&waits);
    breaks(&Config { bounds: Bounds { wait: 4, ..ONE.bounds }, ..waits }, WAITER_IS_ADMITTED);
}

#[test]
fn stopped_processes_overrun_by_their_units() {
    holds(&within(1, &with(ONE_STOP, &ONE)));
    breaks(&with(ONE_STOP, &ONE), LIMIT_HOLDS);
}

#[test]
fn suspended_machines_overrun_by_their_units() {
    holds(&within(1, &with(ONE_SUSPENSION, &ONE)));
    breaks(&with(ONE_SUSPENSION, &ONE), LIMIT_HOLDS);
}

#[test]
fn data_loss_admits_the_limit_again() {
    holds(&within(1, &with(DATA_LOSS, &ONE)));
    breaks(&with(DATA_LOSS, &ONE), LIMIT_HOLDS);
}

/// Afterwards, each process reports the units that its fallback has admitted.
#[test]
fn fallbacks_admit_the_limit_per_process() {
    let falls_back = Config { has_fallback: true, ..with(ONE_LOSS, &ONE) };
    holds(&within(1, &falls_back));
    breaks(&falls_back, LIMIT_HOLDS);
}

#[test]
fn renewals_are_needed() {
    breaks(&without(Flaw::NoRenewal, &ONE), LIMIT_HOLDS);
}

#[test]
fn renewals_must_wait_for_earlier_calls() {
    breaks(&without(Flaw::RenewalDoesNotWait, &TWO), LIMIT_HOLDS);
}

#[test]
fn one_field_per_process_is_too_few() {
    breaks(&without(Flaw::OneFieldPerProcess, &TWO), LIMIT_HOLDS);
}

#[test]
fn renewals_must_not_overwrite_fields() {
    breaks(&without(Flaw::RenewalReplaces, &TWO), LIMIT_HOLDS);
}

#[test]
fn renewals_must_remove_earlier_fields() {
    breaks(&without(Flaw::OlderFieldsStay, &ONE), SERVER_AGREES);
}

#[test]
fn releases_must_be_checked() {
    breaks(&without(Flaw::ReleaseUnchecked, &with(ONE_DELAY, &ONE)), NONE_IS_NEGATIVE);
}

#[test]
fn processes_must_not_date_leases() {
    breaks(&without(Flaw::LeaseDatedByProcess, &ONE), LIMIT_HOLDS);
}

#[test]
fn lost_answers_may_have_run() {
    breaks(&without(Flaw::LostIsNotRun, &with(ONE_LOSS, &ONE)), SERVER_AGREES);
}

#[test]
fn names_must_not_be_reused() {
    breaks(&without(Flaw::NameIsReused, &with(ONE_CRASH, &ONE)), LIMIT_HOLDS);
}

#[test]
fn calls_must_not_be_sent_twice() {
    breaks(&without(Flaw::SentTwice, &with(ONE_LOSS, &TWO)), LIMIT_HOLDS);
}

/// Its overrun is less than all three processes could have together.
#[test]
fn only_the_halted_process_overruns() {
    for faults in [ONE_STOP, ONE_SUSPENSION, DATA_LOSS] {
        holds(&within(1, &with(faults, &THREE)));
        breaks(&with(faults, &THREE), LIMIT_HOLDS);
    }
    let twice = Faults { stops: 2, ..NO_FAULTS };
    breaks(&within(1, &with(twice, &THREE)), LIMIT_HOLDS);
    holds(&within(2, &with(twice, &THREE)));
}
