//! Runs the scripts, and checks the bounds on their quotas, with the proofs' counterexamples.

use std::cell::RefCell;
use std::time::Duration;

use tower_sluice::Quota;
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::internal::remote::testing::bucket_receipt;

use super::{ALL, NOW, estimate, refund};
use crate::script::manual_server::{ManualServer, key};
use crate::script::{Grid, MicrosSpan, ScriptCall, Scripted, decide};
use crate::support::counterexamples::{Counterexample, each};

fn window_quota(case: &Counterexample) -> Quota {
    Quota::per(case.number("limit"), Duration::from_nanos(case.number("period")))
}

fn bucket(case: &Counterexample) -> TokenBucket {
    TokenBucket::new(window_quota(case).burst(case.number("burst")))
}

/// Returns a state's numbers, and zeros for missing ones. A bucket's first number is without its mark.
fn numbers<const N: usize>(state: &str) -> [u128; N] {
    let mut numbers = state.trim_start_matches('-').split(['+', ':']).map(|number| number.parse().unwrap());
    std::array::from_fn(|_| numbers.next().unwrap_or(0_u128) % 10_u128.pow(16))
}

/// Runs a call at a lemma's `now` on a key that holds `state`. Returns whether it was admitted or refunded, and the
/// key's text after it.
fn run(
    server: &RefCell<ManualServer>,
    case: &Counterexample,
    state: &str,
    call: &ScriptCall,
) -> (bool, Option<String>) {
    let mut server = server.borrow_mut();
    server.set(&call.keys[0], state);
    let admitted = server.run(case.number("now"), call).admitted;
    (admitted > 0, server.get(&call.keys[0]))
}

fn run_decide<A: Scripted>(
    server: &RefCell<ManualServer>,
    case: &Counterexample,
    algorithm: &A,
    state: &str,
) -> Option<String> {
    let (admitted, state) = run(server, case, state, &decide(algorithm, key("proof"), case.number("cost"), 1, NOW));
    state.filter(|_| admitted)
}

#[test]
fn scripts_withstand_the_counterexamples() {
    let server = RefCell::new(ManualServer::new(&ALL));
    let bucket_state = |case: &Counterexample| {
        let [due, rest] = ["due", "rest"].map(|number| case.number::<u64>(number));
        if rest == 0 { format!("-{due}") } else { format!("-{due}+{rest}") }
    };
    for script in ["bucket_read.lua", "bucket_take.lua"] {
        each(&format!("crates/redis/src/script/lua/{script}"), |case| {
            let state = run_decide(&server, case, &bucket(case), &bucket_state(case));
            let [due, rest] = numbers(state.as_deref().unwrap_or("-0"));
            [("admitted", state.is_some().into()), ("due", due), ("rest", rest)]
        });
    }
    each("crates/redis/src/script/lua/bucket_refund.lua", |case| {
        let bucket = bucket(case);
        let grid = Grid::new(&bucket.quota());
        let [micros, rest] = ["receipt", "receipt_rest"].map(|number| case.number(number));
        let receipt = bucket_receipt(grid.units(MicrosSpan { micros, rest }));
        let call = refund(&bucket, &bucket, key("proof"), case.number("cost"), receipt, NOW).unwrap();
        let (refunded, state) = run(&server, case, &bucket_state(case), &call);
        let [due, rest] = numbers(state.as_deref().filter(|_| refunded).unwrap_or("-0"));
        [("refunded", refunded.into()), ("due", due), ("rest", rest)]
    });
    each("crates/redis/src/script/lua/fixed_window_take.lua", |case| {
        let state = format!("-{}:{}", case.number::<u64>("window"), case.number::<u64>("used"));
        let state = run_decide(&server, case, &FixedWindow::new(window_quota(case)), &state);
        let [window, used] = numbers(state.as_deref().unwrap_or("-0"));
        [("admitted", state.is_some().into()), ("window", window), ("used", used)]
    });
    each("crates/redis/src/script/lua/sliding_window_take.lua", |case| {
        let [window, previous, current] = ["window", "previous", "current"].map(|number| case.number::<u64>(number));
        check_estimate(case, window, previous);
        let state = format!("-{window}:{previous}:{current}");
        let state = run_decide(&server, case, &SlidingWindow::new(window_quota(case)), &state);
        let [_, _, current] = numbers(state.as_deref().unwrap_or("-0"));
        [("admitted", state.is_some().into()), ("current", current)]
    });
}

/// Checks a lemma's estimate against doubles, which are the same in Rust, Lua and Python.
fn check_estimate(case: &Counterexample, window: u64, previous: u64) {
    let period = case.number::<u64>("period") / 1_000;
    let left = (window + 1) * period - case.number::<u64>("now");
    let estimate = estimate(previous, left, period);
    assert_eq!(case.number_or("estimate", estimate), estimate);
}

#[test]
fn quota_bounds_withstand_the_counterexamples() {
    each("crates/redis/src/script/bucket.rs: Grid::check_fit", |case| {
        assert_eq!(Grid::new(&bucket(case).quota()).parts(), case.number::<u64>("parts"));
        [("fits", bucket(case).fits().is_ok().into())]
    });
    each("crates/redis/src/script/window.rs: check_fit", |case| {
        let quota = window_quota(case);
        let fits = FixedWindow::new(quota).fits().is_ok();
        assert_eq!(SlidingWindow::new(quota).fits().is_ok(), fits);
        [("fits", fits.into())]
    });
}

#[test]
fn spans_withstand_the_counterexamples() {
    each("crates/redis/src/script/bucket.rs: Grid::span", |case| {
        let MicrosSpan { micros, rest } = Grid::new(&window_quota(case)).span(case.number("units"));
        [("micros", micros.into()), ("rest", rest.into())]
    });
}
