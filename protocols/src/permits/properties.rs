//! What holds in every state, and the exploration of all of them.

use std::fmt::Write;

use stateright::{Checker, Model, Property};

use super::world::{Config, Step, World};

pub(super) const LIMIT_HOLDS: &str = "no more units are in flight than the limit and the excess";
pub(super) const NONE_IS_NEGATIVE: &str = "no count is negative";
pub(super) const SERVER_AGREES: &str = "after the time for repairs the server counts what is in flight";
pub(super) const LEFT_OVERS_END: &str = "the same, with units that nobody knows of";
pub(super) const WAITER_IS_ADMITTED: &str = "a waiter has a free unit in time";
pub(super) const TIME_PASSES: &str = "something can always happen";

impl Model for Config {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        world.steps(self, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        Some(world.after(self, &step)).filter(|next| next != world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LIMIT_HOLDS, |config: &Self, world: &World| {
                world.in_flight() <= config.limit + config.bounds.excess
            }),
            Property::always(NONE_IS_NEGATIVE, |_, world: &World| world.server.0.values().all(|field| field.units > 0)),
            Property::always(SERVER_AGREES, |config: &Self, world: &World| {
                !world.is_quiet(config) || world.is_left_over || world.calm < config.bounds.repair || world.agrees()
            }),
            Property::always(LEFT_OVERS_END, |config: &Self, world: &World| {
                !world.is_quiet(config) || !world.is_left_over || world.calm < config.bounds.late_repair || world.agrees()
            }),
            Property::always(WAITER_IS_ADMITTED, |config: &Self, world: &World| world.waited <= config.bounds.wait),
            Property::always(TIME_PASSES, |config: &Self, world: &World| {
                let mut steps = Vec::new();
                world.steps(config, &mut steps);
                !steps.is_empty()
            }),
        ]
    }
}

/// The names of the properties that do not hold, in order.
pub(super) fn violated(config: &Config) -> Vec<&'static str> {
    let start = std::time::Instant::now();
    let checker = config.clone().checker().threads(2).spawn_bfs().join();
    let mut report = format!("{} states", checker.unique_state_count());
    let mut found: Vec<_> = checker.discoveries().into_iter().collect();
    found.sort_by_key(|(name, _)| *name);
    for (name, path) in &found {
        write!(report, "\n{name}: does not hold after").unwrap();
        for (world, step) in path.clone().into_vec() {
            write!(report, "\n    {step:?}  [server {:?}, in flight {}]", world.server.0, world.in_flight()).unwrap();
        }
    }
    println!("{report}\n-- {:?}", start.elapsed());
    found.into_iter().map(|(name, _)| name).collect()
}
