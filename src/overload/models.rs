//! How threads can interfere in the [`Gate`], in every order, with loom: see `verify/models/Cargo.toml`.

use std::num::NonZeroU32;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use loom::sync::Arc;
use loom::thread;

use super::InFlight;
use super::fair_queue::{Arrival, Ticket};
use super::gate::{Gate, GateSettings, Turn};
use crate::limiter::WatchedUnits;
use crate::values::{PartitionKey, Priority, Receipt, RequestEnd, WatchedBody, WatchesBodies};

/// With a limit below four there is no reserve, and a fixed limit is not searched.
const GRANTED: Turn = Turn::Granted(InFlight(0));

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(builder.preemption_bound.map_or(3, |bound| bound.min(3)));
    builder.check(run);
}

fn settings(limit: u64) -> GateSettings {
    GateSettings {
        bounds: limit..=limit,
        queue_target: Duration::from_secs(60),
        max_wait: Duration::from_secs(60),
        max_queue: 8,
    }
}

fn gate(limit: u64) -> Arc<Gate> {
    Arc::new(Gate::new(&settings(limit), limit))
}

fn beside<O: 'static>(gate: &Arc<Gate>, act: impl FnOnce(&Gate) -> O + 'static) -> thread::JoinHandle<O> {
    let gate = Arc::clone(gate);
    thread::spawn(move || act(&gate))
}

/// Takes a unit, or waits for one.
fn enter(gate: &Gate) -> Result<Ticket, Turn> {
    if gate.take_at_once(1).is_ok() {
        return Err(GRANTED);
    }
    gate.enter(Arrival {
        key: 7_u64.into(),
        priority: Priority::Normal,
        weight: NonZeroU32::MIN,
        cost: 1,
        at: gate.now(),
    })
}

fn turn(gate: &Gate, ticket: Ticket) -> Option<Turn> {
    match gate.poll(ticket, &Context::from_waker(Waker::noop())) {
        Poll::Ready(turn) => Some(turn),
        Poll::Pending => None,
    }
}

fn release(gate: &Gate) {
    gate.release(&7_u64.into(), 1, InFlight::default(), RequestEnd::Served);
}

#[test]
fn the_last_unit_is_taken_once() {
    model(|| {
        let gate = gate(1);
        let other = beside(&gate, enter);
        let (mine, theirs) = (enter(&gate), other.join().unwrap());
        assert!((mine == Err(GRANTED)) != (theirs == Err(GRANTED)));
        gate.check(1);
        release(&gate);
        // The waiter has the unit now.
        gate.check(1);
    });
}

#[test]
fn new_waiters_get_the_released_unit() {
    model(|| {
        let gate = gate(1);
        assert_eq!(enter(&gate), Err(GRANTED));
        let other = beside(&gate, enter);
        release(&gate);
        match other.join().unwrap() {
            Err(Turn::Granted(_)) => {}
            Ok(ticket) => assert_eq!(turn(&gate, ticket), Some(GRANTED)),
            other => panic!("{other:?}"),
        }
        gate.check(1);
    });
}

#[test]
fn a_shrunk_limit_is_in_force() {
    model(|| {
        let gate = gate(2);
        assert_eq!(enter(&gate), Err(GRANTED));
        let other = beside(&gate, enter);
        let change = gate.begin_change();
        gate.change(change, &settings(1));
        let theirs = other.join().unwrap();
        // It came before the change, or it waits.
        gate.check(if theirs == Err(GRANTED) { 2 } else { 1 });
        assert!(gate.take_at_once(1).is_err(), "one is in flight at least");
        release(&gate);
        gate.check(1);
    });
}

#[test]
fn a_grown_limit_grants_all_units() {
    model(|| {
        let gate = gate(1);
        assert_eq!(enter(&gate), Err(GRANTED));
        let waiting = [0; 3].map(|_| match enter(&gate) {
            Ok(ticket) => ticket,
            other => panic!("{other:?}"),
        });
        let other = beside(&gate, |gate| {
            let change = gate.begin_change();
            gate.change(change, &settings(2));
        });
        release(&gate);
        other.join().unwrap();
        gate.check(2);
        assert_eq!(waiting.map(|ticket| turn(&gate, ticket).is_some()), [true, true, false]);
    });
}

#[test]
fn no_release_between_limits_is_lost() {
    model(|| {
        let gate = gate(2);
        assert_eq!([enter(&gate), enter(&gate)], [Err(GRANTED), Err(GRANTED)]);
        let other = beside(&gate, release);
        let change = gate.begin_change();
        gate.change(change, &settings(1));
        release(&gate);
        other.join().unwrap();
        gate.check(0);
    });
}

#[test]
fn the_later_change_counts() {
    model(|| {
        let gate = gate(2);
        let (first, second) = (gate.begin_change(), gate.begin_change());
        let other = beside(&gate, move |gate| gate.change(second, &settings(4)));
        gate.change(first, &settings(3));
        other.join().unwrap();
        assert_eq!(gate.stats().limit, 4);
    });
}

#[test]
fn leaving_beside_a_release_loses_nothing() {
    model(|| {
        let gate = gate(1);
        assert_eq!(enter(&gate), Err(GRANTED));
        let Ok(ticket) = enter(&gate) else { panic!("it waits") };
        let other = beside(&gate, move |gate| gate.leave(ticket, false));
        release(&gate);
        match other.join().unwrap() {
            None => gate.check(0),
            Some(Turn::Granted(_)) => {
                gate.check(1);
                gate.refund(&7_u64.into(), 1, InFlight::default());
                gate.check(0);
            }
            Some(other) => panic!("{other:?}"),
        }
    });
}

#[test]
fn no_request_waits_in_closed_gates() {
    model(|| {
        let gate = gate(1);
        assert_eq!(enter(&gate), Err(GRANTED));
        let other = beside(&gate, enter);
        gate.close();
        match other.join().unwrap() {
            Ok(ticket) => assert_eq!(turn(&gate, ticket), Some(Turn::Closed)),
            other => assert_eq!(other, Err(Turn::Closed)),
        }
        release(&gate);
        gate.check(0);
    });
}

/// The units of a request whose head was sent, and that the gate watches.
fn watched(gate: &Arc<Gate>) -> (std::sync::Arc<WatchedUnits>, usize) {
    let watcher: std::sync::Arc<dyn WatchesBodies> = std::sync::Arc::new(Watcher(Arc::clone(gate)));
    let units = std::sync::Arc::new(WatchedUnits::new(watcher, 8_u64.into(), 1));
    units.hand_over();
    let place = gate.bodies.watch(std::sync::Arc::clone(&units) as _);
    (units, place)
}

/// Ends the request.
fn end(gate: &Gate, units: &WatchedUnits, place: usize) {
    let is_taken_back = units.end();
    gate.bodies.forget(place, units);
    if is_taken_back { WatchesBodies::end(gate, &8_u64.into(), 1, Receipt::default()) } else { release(gate) }
}

/// The gate, whose `Arc` is loom's.
#[derive(Debug)]
struct Watcher(Arc<Gate>);

impl WatchesBodies for Watcher {
    /// Long before the gate looks.
    fn now(&self) -> u64 {
        0
    }

    fn watch(&self, _: std::sync::Arc<dyn WatchedBody>) -> usize {
        unreachable!("the model does")
    }

    fn forget(&self, _: usize, _: &dyn WatchedBody) {
        unreachable!("the model does")
    }

    fn end(&self, _: &PartitionKey, _: u64, _: Receipt) {
        unreachable!("the model does")
    }
}

/// An instant at which a body that is silent from zero on has been so for long enough.
const LATER: u64 = 1_000_000_000;

fn enter_later(gate: &Gate) -> Result<Ticket, Turn> {
    gate.enter(Arrival { key: 7_u64.into(), priority: Priority::Normal, weight: NonZeroU32::MIN, cost: 1, at: LATER })
}

#[test]
fn an_ending_body_releases_once() {
    model(|| {
        let gate = gate(1);
        assert_eq!(enter(&gate), Err(GRANTED));
        let (units, place) = watched(&gate);
        let other = beside(&gate, enter_later);
        end(&gate, &units, place);
        match other.join().unwrap() {
            Err(Turn::Granted(_)) => {}
            Ok(ticket) => assert_eq!(turn(&gate, ticket), Some(GRANTED)),
            other => panic!("{other:?}"),
        }
        gate.check(1);
        assert!(gate.bodies.is_empty());
    });
}

#[test]
fn a_resuming_reader_keeps_or_loses_units() {
    model(|| {
        let gate = gate(1);
        assert_eq!(enter(&gate), Err(GRANTED));
        let (units, place) = watched(&gate);
        let other = beside(&gate, enter_later);
        units.resume();
        match other.join().unwrap() {
            Err(Turn::Granted(_)) => assert!(units.is_taken_back()),
            Ok(ticket) => assert!(!units.is_taken_back() && turn(&gate, ticket).is_none()),
            other => panic!("{other:?}"),
        }
        gate.check(1);
        end(&gate, &units, place);
        gate.check(1);
        assert!(gate.bodies.is_empty());
    });
}
