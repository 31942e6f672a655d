use super::properties::{
    LEFT_OVERS_END, LIMIT_HOLDS, NONE_IS_NEGATIVE, SERVER_AGREES, WAITER_IS_ADMITTED, breaks, holds,
};
use super::world::{Bounds, Config, Faults, Flaw};

const NO_FAULTS: Faults = Faults { losses: 0, delays: 0, crashes: 0, stops: 0, suspensions: 0, data_losses: 0 };

/// Two processes, of which each has one request at a time. In ticks, of which a lease has four, half a lease is two.
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

/// Three processes, so that an excess of one unit is less than all could have. Calls take no time, for fewer states.
const THREE: Config = Config { processes: 3, calls_are_instant: true, ..ONE };

/// Two processes, of which the first has up to two requests at a time.
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

#[test]
fn without_faults_the_limit_holds_and_the_server_counts_what_is_in_flight() {
    let at_once = Bounds { repair: 0, late_repair: 0, ..ONE.bounds };
    holds(&Config { bounds: at_once, ..ONE });
    holds(&Config { bounds: at_once, ..THREE });
}

#[test]
fn the_limit_holds_for_several_requests_of_a_process() {
    holds(&TWO);
}

/// So the limit is not below what is admitted, and the property can fail.
#[test]
fn a_server_that_admits_one_unit_more_is_found() {
    breaks(&without(Flaw::LimitIsHigher, &ONE), LIMIT_HOLDS);
}

#[test]
fn one_lost_call_is_repaired_within_half_a_lease_and_admits_nothing_beyond_the_limit() {
    holds(&with(ONE_LOSS, &ONE));
}

#[test]
fn one_late_call_admits_nothing_beyond_the_limit() {
    holds(&with(ONE_DELAY, &ONE));
    // What runs after its caller has given up, and is of a process without other units, ends with its lease, not
    // sooner.
    let sooner = Bounds { late_repair: 3, ..ONE.bounds };
    breaks(&Config { bounds: sooner, ..with(ONE_DELAY, &ONE) }, LEFT_OVERS_END);
}

/// Of three attempts in a row that take a quarter of a lease each, the last comes when the lease has ended.
#[test]
fn two_calls_in_a_row_that_fail_slowly_are_an_outage_as_long_as_a_lease() {
    let faults = Faults { losses: 2, ..NO_FAULTS };
    breaks(&with(faults, &ONE), LIMIT_HOLDS);
}

/// On records, a step reads the time before it swaps, and the swap may be late.
#[test]
fn a_lease_dated_by_its_read_is_long_enough() {
    let on_records = Config { reads_and_swaps: true, ..ONE };
    for faults in [ONE_DELAY, ONE_LOSS, ONE_CRASH] {
        holds(&with(faults, &on_records));
    }
}

#[test]
fn the_units_of_a_process_that_died_are_free_when_its_lease_ends_and_no_sooner() {
    holds(&with(ONE_CRASH, &ONE));
    let sooner = Bounds { late_repair: 3, ..ONE.bounds };
    breaks(&Config { bounds: sooner, ..with(ONE_CRASH, &ONE) }, LEFT_OVERS_END);
}

/// It asks once in a tick.
#[test]
fn a_waiter_has_what_a_dead_process_held_a_tick_after_its_lease_ends() {
    let waits = Config { waiter: Some(2), ..with(ONE_CRASH, &ONE) };
    holds(&waits);
    breaks(&Config { bounds: Bounds { wait: 4, ..ONE.bounds }, ..waits }, WAITER_IS_ADMITTED);
}

#[test]
fn a_process_that_was_stopped_overruns_by_its_own_units() {
    holds(&within(1, &with(ONE_STOP, &ONE)));
    breaks(&with(ONE_STOP, &ONE), LIMIT_HOLDS);
}

#[test]
fn a_machine_that_was_suspended_overruns_by_its_own_units() {
    holds(&within(1, &with(ONE_SUSPENSION, &ONE)));
    breaks(&with(ONE_SUSPENSION, &ONE), LIMIT_HOLDS);
}

#[test]
fn a_server_that_loses_its_data_admits_the_limit_once_more() {
    holds(&within(1, &with(DATA_LOSS, &ONE)));
    breaks(&with(DATA_LOSS, &ONE), LIMIT_HOLDS);
}

#[test]
fn fallbacks_admit_the_limit_in_each_process_and_report_it_afterwards() {
    let falls_back = Config { has_fallback: true, ..with(ONE_LOSS, &ONE) };
    holds(&within(1, &falls_back));
    breaks(&falls_back, LIMIT_HOLDS);
}

#[test]
fn renewals_are_needed() {
    breaks(&without(Flaw::NoRenewal, &ONE), LIMIT_HOLDS);
}

#[test]
fn a_renewal_that_does_not_wait_for_earlier_calls_is_found() {
    breaks(&without(Flaw::RenewalDoesNotWait, &TWO), LIMIT_HOLDS);
}

#[test]
fn one_field_per_process_is_too_few() {
    breaks(&without(Flaw::OneFieldPerProcess, &TWO), LIMIT_HOLDS);
}

#[test]
fn a_renewal_that_overwrites_its_field_is_found() {
    breaks(&without(Flaw::RenewalReplaces, &TWO), LIMIT_HOLDS);
}

#[test]
fn a_renewal_that_leaves_earlier_fields_is_found() {
    breaks(&without(Flaw::OlderFieldsStay, &ONE), SERVER_AGREES);
}

#[test]
fn a_release_that_is_not_checked_is_found() {
    breaks(&without(Flaw::ReleaseUnchecked, &with(ONE_DELAY, &ONE)), NONE_IS_NEGATIVE);
}

#[test]
fn a_lease_dated_by_a_process_is_found() {
    breaks(&without(Flaw::LeaseDatedByProcess, &ONE), LIMIT_HOLDS);
}

#[test]
fn a_lost_answer_that_is_taken_for_no_call_is_found() {
    breaks(&without(Flaw::LostIsNotRun, &with(ONE_LOSS, &ONE)), SERVER_AGREES);
}

#[test]
fn a_name_that_is_used_again_is_found() {
    breaks(&without(Flaw::NameIsReused, &with(ONE_CRASH, &ONE)), LIMIT_HOLDS);
}

#[test]
fn a_call_that_is_sent_twice_is_found() {
    breaks(&without(Flaw::SentTwice, &with(ONE_LOSS, &TWO)), LIMIT_HOLDS);
}

/// With three processes, that is less than all could have.
#[test]
fn of_three_processes_only_the_one_that_stood_still_overruns() {
    for faults in [ONE_STOP, ONE_SUSPENSION, DATA_LOSS] {
        holds(&within(1, &with(faults, &THREE)));
        breaks(&with(faults, &THREE), LIMIT_HOLDS);
    }
    let twice = Faults { stops: 2, ..NO_FAULTS };
    breaks(&within(1, &with(twice, &THREE)), LIMIT_HOLDS);
    holds(&within(2, &with(twice, &THREE)));
}
