//! Checks that the guide's pictures are up to date, and that it quotes the log correctly.

use std::fs;
use std::path::Path;

use crate::simulation::run_all;
use crate::traffic::Traffic;

#[test]
fn the_pictures_are_what_the_example_draws() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/shapes");
    let drawn = Traffic::all().map(|traffic| (traffic.name, crate::picture::draw(&traffic, &run_all(&traffic))));
    for (name, svg) in &drawn {
        let kept = fs::read_to_string(folder.join(name).with_extension("svg")).unwrap_or_default();
        assert!(kept == *svg, "{name}.svg is out of date: cargo run --example shapes -- src/guide/shapes");
        assert!(svg.len() < 30_000, "{name}.svg has {} bytes", svg.len());
        // Markdown ends a block of HTML at an empty line.
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
fn both_buckets_make_the_same_decisions() {
    for traffic in Traffic::all() {
        let [token, leaky, ..] = run_all(&traffic);
        let left = |run: &crate::simulation::Run| run.fates.iter().map(|fate| fate.left).collect::<Vec<_>>();
        assert_eq!(left(&token), left(&leaky), "{}", traffic.name);
        assert!(token.level.iter().zip(&leaky.level).all(|(tokens, level)| tokens + level == 10), "{}", traffic.name);
    }
}

#[test]
fn a_queue_keeps_its_order_and_its_distance() {
    for traffic in Traffic::all() {
        let [.., queue] = run_all(&traffic);
        let left: Vec<u64> = queue.fates.iter().filter_map(|fate| fate.left).collect();
        assert!(left.windows(2).all(|pair| pair[0] + 100 <= pair[1]), "{}: {left:?}", traffic.name);
        assert!(queue.longest_wait() <= 1_000 && queue.level.iter().all(|waiting| *waiting <= 10), "{}", traffic.name);
    }
}

#[test]
fn the_guide_quotes_the_log_exactly() {
    let source = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let logged = source("src/util/log.rs");
    // Joins strings that continue on the next line.
    let logged: String = logged.split("\\\n").map(str::trim_start).collect();
    let page = source("src/guide/operating.rs");
    let (_, table) = page.split_once("| it says | do |").expect("the page has its table");
    let rows = table.lines().skip(2).map_while(|row| row.strip_prefix("//! | ")?.split(" | ").next());
    let quotes: Vec<&str> = rows.flat_map(|row| row.split("; ")).collect();
    assert!(quotes.len() > 10, "the table was not found");
    for quote in quotes {
        assert!(logged.contains(quote), "nothing logs: {quote}");
    }
}
