//! Checks the guide's page on mistakes: each link to it leads to a section, and each section quotes the log.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn source(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The anchor that rustdoc makes of a heading.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-").replace([',', '.', ':', '`'], "")
}

#[test]
fn each_link_of_the_log_has_its_section_and_each_section_its_link() {
    let page = source("src/guide/misconfigured.rs");
    let sections: BTreeSet<_> = page.lines().filter_map(|line| line.strip_prefix("//! # ")).map(anchor).collect();
    let log = source("src/util/log.rs");
    let links: BTreeSet<_> =
        log.split("page!(\"").skip(1).map(|after| after.split('"').next().unwrap().to_owned()).collect();
    assert!(links.len() > 10, "the links were not found");
    assert_eq!(links, sections);
}

#[test]
fn each_section_quotes_the_log() {
    // Joins strings that continue on the next line.
    let log: String = source("src/util/log.rs").split("\\\n").map(str::trim_start).collect();
    let page = source("src/guide/misconfigured.rs");
    let sections: Vec<_> = page.split("\n//! # ").skip(1).collect();
    for section in sections {
        let quote = section.lines().find_map(|line| line.strip_prefix("//! > "));
        let quote = quote.unwrap_or_else(|| panic!("no quote: {section}"));
        assert!(log.contains(quote), "nothing logs: {quote}");
    }
}
