use super::properties::*;
use super::world::{Bounds, Config, Faults, Flaw};

const TWO: Config = Config {
    processes: 2,
    limit: 2,
    requests: 2,
    has_fallback: false,
    waiter: None,
    faults: NO_FAULTS,
    flaw: None,
    bounds: Bounds { excess: 0, repair: 2, late_repair: 4, wait: 4 },
};

const NO_FAULTS: Faults = Faults { losses: 0, delays: 0, crashes: 0, stops: 0, suspensions: 0, data_losses: 0 };

fn try_it(name: &str, config: &Config) {
    let t = std::time::Instant::now();
    println!("== {name}");
    let v = violated(config);
    println!("{name}: {v:?} in {:?}", t.elapsed());
}

#[test]
fn explore() {
    try_it("calm", &TWO);
    let one = Config { limit: 1, requests: 1, ..TWO };
    try_it("one calm", &one);
    try_it("one loss", &Config { faults: Faults { losses: 1, ..NO_FAULTS }, ..one.clone() });
    try_it("one delay", &Config { faults: Faults { delays: 1, ..NO_FAULTS }, ..one.clone() });
    try_it("one crash", &Config { faults: Faults { crashes: 1, ..NO_FAULTS }, ..one.clone() });
    try_it("one stop", &Config { faults: Faults { stops: 1, ..NO_FAULTS }, ..one.clone() });
    try_it("two loss", &Config { faults: Faults { losses: 1, ..NO_FAULTS }, ..TWO });
}
