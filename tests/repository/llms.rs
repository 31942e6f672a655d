//! Checks `llms.txt`: its size, and that its signatures name existing items. Doc tests compile its programs.

use std::collections::BTreeSet;

use crate::files::read;

#[test]
fn the_page_is_short() {
    let page = read("llms.txt");
    let lines = page.lines().count();
    assert!(lines <= 260, "{lines} lines");
    for (number, line) in page.lines().enumerate() {
        assert!(line.chars().count() <= 120, "line {} is too long", number + 1);
    }
}

#[test]
fn its_signatures_name_public_items() {
    let api: String = ["", "_config", "_redis"].map(|part| read(format!("docs/public_api{part}.txt"))).concat();
    let api: BTreeSet<&str> = words(&api).map(|(word, _)| word).collect();
    let page = read("llms.txt");
    let block = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it has signatures");
    let mut checked = 0;
    for (word, after) in words(block) {
        if ["(", "<", "::new"].iter().any(|next| after.starts_with(next)) {
            checked += 1;
            assert!(api.contains(word) || OTHERS.contains(&word), "the interface has no `{word}`");
        }
    }
    assert!(checked > 80, "{checked} names: they were not found");
}

/// Types of the standard library.
const OTHERS: [&str; 4] = ["Box", "From", "Option", "Result"];

/// Returns the words of a text, each with the text behind it.
fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_part = |char: char| char.is_alphanumeric() || char == '_';
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(|char| !is_part(char));
        let end = rest.find(|char| !is_part(char)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        (!word.is_empty()).then_some((word, after))
    })
}
