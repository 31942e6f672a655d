//! Prints the table with other crates beside the library's contenders. `scripts/overload` runs it.
//!
//! | crate | clock | so here |
//! |---|---|---|
//! | congestion-limiter 0.1.0 | tokio's (`limiter/token.rs:9`, `limits/windowed.rs:4`) | runs as it is; requests on which it panics (`moving_avg.rs:47`) count as refused |
//! | tower-acc 0.1.1 | `std`'s (`service.rs:13`, `future.rs:7`) | its service and algorithms, with latencies of the simulation |
//! | tower-resilience-adaptive 0.14.0 | `std`'s (`service.rs:9`) | the same |
//! | little-loadshedder 0.2.0 | `std`'s (`lib.rs:21`), also for the pace of its changes | not here: nothing can be replaced |
//!
//! `std`'s clock stands still in a simulation, so a service would measure latencies of zero. tower-acc and
//! tower-resilience define their algorithms as traits, to which their services pass the latency: [`Simulated`] replaces
//! it by the one on tokio's clock, and passes everything else on. The crate's own code holds permits, resizes and
//! rejects.

#![forbid(unsafe_code)]

mod congestion;
mod simulated;

use std::backtrace::Backtrace;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::Response;
use tower::load_shed::LoadShed;
use tower_resilience_adaptive::{AdaptiveService, ConcurrencyAlgorithm};
use tower_sluice_overload::contenders::{Contender, Entrance, contenders, entrance};
use tower_sluice_overload::{Server, ServerBody};

use crate::congestion::Congestion;
use crate::simulated::{Simulated, Timed};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    report_each_panic_once();
    let mut all = contenders();
    let ours = all.pop();
    all.extend(peers());
    all.extend(ours);
    tower_sluice_overload::main(std::env::args().skip(1), all)
}

/// A request on which a contender panics is lost, and the run continues.
fn report_each_panic_once() {
    let places = Mutex::new(BTreeSet::new());
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        if places.lock().is_ok_and(|mut places| places.insert(place.clone())) {
            let backtrace = Backtrace::force_capture().to_string();
            let crates = ["/congestion-limiter", "/tower-acc", "/tower-resilience"];
            let line = backtrace.lines().find(|line| crates.iter().any(|name| line.contains(name)));
            eprintln!("a contender panics in {place}, {}", line.unwrap_or_default().trim());
        }
    }));
}

fn peers() -> Vec<Box<dyn Contender>> {
    use tower_acc::{Gradient2, Vegas};
    use tower_resilience_adaptive as resilience;
    vec![
        Peer::boxed("tower-acc Vegas", |server| entrance(LoadShed::new(acc(server, Vegas::default())))),
        Peer::boxed("tower-acc Gradient2", |server| entrance(LoadShed::new(acc(server, Gradient2::default())))),
        Peer::boxed("tower-acc Vegas, waiting", |server| entrance(acc(server, Vegas::default()))),
        Peer::boxed("tower-resilience AIMD", |server| {
            adaptive(server, resilience::Aimd::builder().build().expect("its defaults are valid"))
        }),
        Peer::boxed("tower-resilience Vegas", |server| {
            adaptive(server, resilience::Vegas::builder().build().expect("its defaults are valid"))
        }),
        Peer::boxed("tower-resilience Gradient2", |server| {
            adaptive(server, resilience::Gradient2::builder().build().expect("its defaults are valid"))
        }),
        Peer::boxed("congestion-limiter Vegas p90", |server| entrance(Congestion::vegas(server))),
        Peer::boxed("congestion-limiter Gradient p90", |server| entrance(Congestion::gradient(server))),
    ]
}

/// A crate's limiter with its defaults.
struct Peer {
    name: &'static str,
    protect: fn(Server) -> Entrance,
}

impl Peer {
    fn boxed(name: &'static str, protect: fn(Server) -> Entrance) -> Box<dyn Contender> {
        Box::new(Self { name, protect })
    }
}

impl Contender for Peer {
    fn name(&self) -> &str {
        self.name
    }

    fn protect(&self, server: Server) -> Entrance {
        (self.protect)(server)
    }
}

type Answer = Result<Response<ServerBody>, Infallible>;
type AccLimit<A> = tower_acc::ConcurrencyLimit<Server, Simulated<A>, fn(&Answer) -> bool>;

/// tower-acc, told that a 5xx status is an error.
fn acc<A: tower_acc::Algorithm>(server: Server, algorithm: A) -> Timed<AccLimit<A>> {
    fn is_error(answer: &Answer) -> bool {
        answer.as_ref().is_ok_and(|response| response.status().is_server_error())
    }
    Timed(tower_acc::ConcurrencyLimit::with_classifier(server, Simulated(algorithm), is_error))
}

/// tower-resilience, with tower's `LoadShed` in front. It knows only the service's errors, not statuses.
fn adaptive<A: ConcurrencyAlgorithm + 'static>(server: Server, algorithm: A) -> Entrance {
    entrance(LoadShed::new(Timed(AdaptiveService::new(server, Arc::new(Simulated(algorithm))))))
}
