//! Checks that the guide's pictures are up to date, and agree with the algorithms.

use std::fs;
use std::path::Path;

use crate::goodput;
use crate::picture::draw;
use crate::simulation::{Run, run_all};
use crate::traffic::Traffic;

#[test]
fn the_example_draws_the_pictures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/shapes");
    let mut drawn = Traffic::all().map(|traffic| (traffic.name, draw(&traffic, &run_all(&traffic)))).to_vec();
    drawn.push(("goodput", goodput::draw(goodput::MEASURED)));
    for (name, svg) in &drawn {
        let kept = fs::read_to_string(folder.join(name).with_extension("svg")).unwrap_or_default();
        assert!(kept == *svg, "{name}.svg is out of date: cargo run -p tower-sluice-shapes -- docs/guide/shapes");
        assert!(svg.len() < 30_000, "{name}.svg has {} bytes", svg.len());
        // Markdown ends an HTML block at an empty line.
        assert!(!svg.contains("\n\n"), "{name}.svg has an empty line, and would not be a picture in the guide");
    }
    let kept = fs::read_dir(folder).unwrap().count();
    assert_eq!(kept, drawn.len(), "there are pictures that the example no longer draws");
}

/// At ten per second: token bucket, leaky bucket, fixed window, sliding window, queue.
#[test]
fn the_algorithms_admit_what_the_guide_documents() {
    let admitted = Traffic::all().map(|traffic| (traffic.name, run_all(&traffic).map(|run| run.admitted())));
    let documented = [
        ("steady", [20, 20, 20, 20, 20]),
        ("burst", [23, 23, 20, 19, 24]),
        ("overload", [49, 49, 40, 37, 50]),
        ("edge", [12, 12, 20, 11, 13]),
    ];
    assert_eq!(admitted, documented);
}

#[test]
fn both_buckets_decide_alike() {
    for traffic in Traffic::all() {
        let [token, leaky, ..] = run_all(&traffic);
        let left = |run: &Run| run.fates.iter().map(|fate| fate.left).collect::<Vec<_>>();
        assert_eq!(left(&token), left(&leaky), "{}", traffic.name);
        assert!(token.level.iter().zip(&leaky.level).all(|(tokens, level)| tokens + level == 10), "{}", traffic.name);
    }
}

#[test]
fn a_queue_keeps_order_and_distance() {
    for traffic in Traffic::all() {
        let [.., queue] = run_all(&traffic);
        let left: Vec<u64> = queue.fates.iter().filter_map(|fate| fate.left).collect();
        assert!(left.windows(2).all(|pair| pair[0] + 100 <= pair[1]), "{}: {left:?}", traffic.name);
        assert!(queue.longest_wait() <= 1_000 && queue.level.iter().all(|waiting| *waiting <= 10), "{}", traffic.name);
    }
}
