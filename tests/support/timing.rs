//! Time in tests with real servers, processes and threads, on busy machines.
//!
//! A busy machine only ever makes things slower. So a wait has no bound that it could miss ([`await_until`]), and a
//! time bound is kept if one of a few attempts keeps it ([`some_attempt`]): a defect makes all of them miss it.

use std::thread;
use std::time::{Duration, Instant};

/// How often a test tries to keep a time bound.
const ATTEMPTS: u32 = 5;

/// After this time, a condition that does not hold is assumed never to hold. It bounds a test that hangs, and asserts
/// nothing about time.
const NEVER: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(5);

/// Waits until the condition holds.
#[track_caller]
pub fn await_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + NEVER;
    while !is_so() {
        assert!(Instant::now() < give_up, "not in {NEVER:?}: {what}");
        thread::sleep(POLL);
    }
}

/// Waits until the condition holds, and lets the runtime's tasks run meanwhile.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + NEVER;
    while !is_so().await {
        assert!(Instant::now() < give_up, "not in {NEVER:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Tries a few times to keep a bound. An attempt returns its measurement as an error if it missed the bound.
#[track_caller]
pub fn some_attempt(what: &str, mut attempt: impl FnMut() -> Result<(), String>) {
    let mut missed = Vec::new();
    while let Err(measured) = attempt() {
        missed.push(measured);
        assert!(missed.len() < ATTEMPTS as usize, "in none of {ATTEMPTS} attempts: {what}\n{}", missed.join("\n"));
    }
}

/// Like [`some_attempt`], for attempts that wait on the runtime.
pub async fn some_attempt_async(what: &str, mut attempt: impl AsyncFnMut() -> Result<(), String>) {
    let mut missed = Vec::new();
    while let Err(measured) = attempt().await {
        missed.push(measured);
        assert!(missed.len() < ATTEMPTS as usize, "in none of {ATTEMPTS} attempts: {what}\n{}", missed.join("\n"));
    }
}
