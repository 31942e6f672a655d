//! Checks the guide's page on mistakes: each link to it leads to a section, and each section quotes the log.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::files::{log_lines, sources};

fn source(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The anchor that rustdoc makes from a heading.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-").replace([',', '.', ':', '`'], "")
}

#[test]
fn log_links_and_sections_match() {
    let page = source("docs/guide/misconfigured.md");
    let sections: BTreeSet<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).map(anchor).collect();
    let log = log_lines();
    let links: BTreeSet<_> =
        log.split("page!(\"").skip(1).map(|after| after.split('"').next().unwrap().to_owned()).collect();
    assert!(links.len() > 10, "the links were not found");
    assert_eq!(links, sections);
}

/// The other tests read only these files.
#[test]
fn only_log_files_write_lines() {
    for path in sources("src").into_iter().filter(|path| !path.ends_with("log.rs")) {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let macros = ["event!(", "tracing::error!(", "tracing::warn!(", "tracing::info!(", "tracing::debug!("];
        for line in code {
            assert!(!macros.iter().any(|call| line.contains(call)), "{} writes to the log: {line}", path.display());
        }
    }
}

#[test]
fn each_section_quotes_the_log() {
    let log = log_lines();
    let page = source("docs/guide/misconfigured.md");
    let sections: Vec<_> = page.split("\n## ").skip(1).collect();
    for section in sections {
        let quote = section.lines().find_map(|line| line.strip_prefix("> "));
        let quote = quote.unwrap_or_else(|| panic!("no quote: {section}"));
        assert!(log.contains(quote), "nothing logs: {quote}");
    }
}
