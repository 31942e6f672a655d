//! The properties, which hold in every state, and the exploration that checks them.

use stateright::{Checker, HasDiscoveries, Model, Property};

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
                !world.is_quiet(config)
                    || !world.is_left_over
                    || world.calm < config.bounds.late_repair
                    || world.agrees()
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

/// Checks that all properties hold in every state.
pub(super) fn holds(config: &Config) {
    if let Some((name, _)) = explore(config, HasDiscoveries::Any) {
        panic!("{name}: does not hold, see above");
    }
}

/// Checks that a property fails.
pub(super) fn breaks(config: &Config, property: &'static str) {
    let found = explore(config, HasDiscoveries::AllOf([property].into()));
    assert_eq!(found.map(|found| found.0), Some(property), "the checker should have found a counterexample");
}

/// Explores until these discoveries are made, and returns the last one, which it prints.
fn explore(config: &Config, until: HasDiscoveries) -> Option<(&'static str, usize)> {
    let wanted = if let HasDiscoveries::AllOf(names) = &until { names.first().copied() } else { None };
    let checker = config.clone().checker().threads(2).finish_when(until).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    let found = checker.discoveries().into_iter().find(|(name, _)| wanted.is_none_or(|wanted| wanted == *name));
    let (name, path) = found?;
    let path = path.into_vec();
    println!("{name}: does not hold after");
    for (world, step) in &path {
        println!("    server {:?}, in flight {}, then {step:?}", world.server.0, world.in_flight());
    }
    Some((name, path.len()))
}
