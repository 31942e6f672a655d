//! Checks the guide: its quotes from the log, its index, and its pages' form.

use std::fs;
use std::path::Path;

use crate::files::log_lines;

#[test]
fn the_guide_quotes_the_log_exactly() {
    let source = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let logged = log_lines();
    let page = source("src/guide/monitoring.rs");
    let (_, table) = page.split_once("| it says | do |").expect("the page has its table");
    let rows = table.lines().skip(2).map_while(|row| row.strip_prefix("//! | ")?.split(" | ").next());
    let quotes: Vec<&str> = rows.flat_map(|row| row.split("; ")).collect();
    assert!(quotes.len() > 10, "the table was not found");
    for quote in quotes {
        assert!(logged.contains(quote), "nothing logs: {quote}");
    }
}

/// The guide's pages: their names and texts.
fn pages() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let named = pages.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path));
    named.filter(|(name, _)| name != "mod").map(|(name, path)| (name, fs::read_to_string(path).unwrap())).collect()
}

/// Each page ends with a link to the next one.
#[test]
fn pages_begin_with_programs() {
    let pages = pages();
    assert!(pages.len() > 30, "the pages were not found");
    for (name, text) in &pages {
        let first_program = text.lines().position(|line| line.contains("```"));
        assert!(first_program.is_some_and(|line| line < 15), "{name}: no program on the first screen");
        let last = text.lines().rfind(|line| !line.starts_with("//! [") && *line != "//!").unwrap();
        assert!(last.starts_with("//! Next: "), "{name}: ends without the next page: {last}");
        let next = last.split("](super").nth(1).and_then(|link| link.split(')').next()).unwrap();
        let exists = next.strip_prefix("::").is_none_or(|next| pages.iter().any(|(name, _)| name == next));
        assert!(exists, "{name}: there is no page {next}");
    }
}

#[test]
fn the_index_lists_each_page() {
    let index = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/mod.rs")).unwrap();
    for (name, _) in pages() {
        let is_listed = [format!("[`{name}`]"), format!("]({name})")].iter().any(|link| index.contains(link));
        assert!(is_listed, "src/guide/mod.rs does not link to {name}");
    }
}
