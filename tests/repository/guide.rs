//! Checks that the guide quotes the log correctly.

use std::fs;
use std::path::Path;

#[test]
fn the_guide_quotes_the_log_exactly() {
    let source = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let logged = source("src/util/log.rs");
    // Joins strings that continue on the next line.
    let logged: String = logged.split("\\\n").map(str::trim_start).collect();
    let page = source("src/guide/monitoring.rs");
    let (_, table) = page.split_once("| it says | do |").expect("the page has its table");
    let rows = table.lines().skip(2).map_while(|row| row.strip_prefix("//! | ")?.split(" | ").next());
    let quotes: Vec<&str> = rows.flat_map(|row| row.split("; ")).collect();
    assert!(quotes.len() > 10, "the table was not found");
    for quote in quotes {
        assert!(logged.contains(quote), "nothing logs: {quote}");
    }
}
