//! Checks the guide: its quotes from the log, its index, its pages' form, and its links.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::files::{log_lines, read, root};
use crate::links::definition;

#[test]
fn the_guide_quotes_the_log_exactly() {
    let logged = log_lines();
    let page = read("docs/guide/monitoring.md");
    let (_, table) = page.split_once("| it says | do |").expect("the page has its table");
    let rows = table.lines().skip(2).map_while(|row| row.strip_prefix("| ")?.split(" | ").next());
    let quotes: Vec<&str> = rows.flat_map(|row| row.split("; ")).collect();
    assert!(quotes.len() > 10, "the table was not found");
    for quote in quotes {
        assert!(logged.contains(quote), "nothing logs: {quote}");
    }
}

/// The guide's pages: their names and texts.
fn pages() -> Vec<(String, String)> {
    let files = fs::read_dir(root().join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let named = pages.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path));
    named.filter(|(name, _)| name != "README").map(|(name, path)| (name, fs::read_to_string(path).unwrap())).collect()
}

/// Each page ends with a link to the next one.
#[test]
fn pages_begin_with_programs() {
    let pages = pages();
    assert!(pages.len() > 30, "the pages were not found");
    for (name, text) in &pages {
        let first_program = text.lines().position(|line| line.contains("```"));
        assert!(first_program.is_some_and(|line| line < 15), "{name}: no program on the first screen");
        let is_bullet = |line: &&str| line.starts_with("+ ");
        assert_eq!(text.lines().find(is_bullet), None, "{name}: Markdown takes this line for a list item");
        let last = text.lines().rfind(|line| !line.starts_with('[') && !line.is_empty()).unwrap();
        assert!(last.starts_with("Next: "), "{name}: ends without the next page: {last}");
        let next = last.split("][guide/").nth(1).and_then(|link| link.split(']').next());
        let exists = next.is_none_or(|next| pages.iter().any(|(name, _)| name == next));
        assert!(exists && last.contains("][guide"), "{name}: there is no page {next:?}");
    }
}

#[test]
fn the_index_lists_each_page() {
    let index = read("docs/guide/README.md");
    let modules = read("src/guide.rs");
    for (name, _) in pages() {
        assert!(index.contains(&format!("[guide/{name}]: {name}.md")), "docs/guide/README.md does not link to {name}");
        assert!(modules.contains(&format!("    {name}\n")), "src/guide.rs has no module {name}");
    }
}

/// A text's definitions of links.
fn definitions(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(definition).collect()
}

/// The labels that a page's prose refers to.
fn labels(text: &str) -> BTreeSet<&str> {
    let mut labels = BTreeSet::new();
    let prose = text.split("\n```").step_by(2).flat_map(str::lines);
    for line in prose.filter(|line| definition(line).is_none()) {
        labels.extend(line.split("][").skip(1).filter_map(|after| after.split(']').next()));
        let shortcuts = line.split("[`").skip(1).filter_map(|after| after.split_once("`]"));
        let is_shortcut = |after: &str| !after.starts_with(['[', '(']);
        for (name, _) in shortcuts.filter(|(name, after)| is_shortcut(after) && !name.contains('`')) {
            let start = line.find(&format!("[`{name}`]")).unwrap() + 1;
            labels.insert(&line[start..start + name.len() + 2]);
        }
    }
    labels
}

/// The path of an item of this crate, from its address on docs.rs.
fn item(address: &str) -> Option<String> {
    let path = address.strip_prefix("https://docs.rs/tower-sluice/latest/tower_sluice/")?;
    let (file, fragment) = path.split_once('#').unwrap_or((path, ""));
    let parts = file.trim_end_matches(".html").split('/').filter(|part| *part != "index");
    let mut item = parts.map(|part| part.rsplit('.').next().unwrap()).collect::<Vec<_>>().join("::");
    match fragment.split_once('.') {
        Some((_, member)) => item += &format!("::{member}"),
        None if !fragment.is_empty() => item += &format!("#{fragment}"),
        None => {}
    }
    Some(item)
}

/// A page defines its links for a browser of the repository, and `links.txt` for rustdoc: both must lead to the same
/// page, item or picture.
#[test]
fn links_are_the_same_in_both_forms() {
    let shared = read("docs/guide/links.txt");
    let shared = definitions(&shared);
    let mut used = BTreeSet::new();
    for (name, text) in pages().into_iter().chain([("README".to_owned(), read("docs/guide/README.md"))]) {
        let defined = definitions(&text);
        let referred = labels(&text);
        let undefined: Vec<_> = referred.iter().filter(|label| !defined.contains_key(*label)).collect();
        assert!(undefined.is_empty(), "{name} does not define {undefined:?}");
        for (label, target) in defined {
            let is_used = referred.contains(label) || text.matches(&format!("[{label}]")).count() > 1;
            assert!(is_used, "{name} does not use {label}");
            let Some(rustdoc) = shared.get(label) else {
                assert!(target.starts_with("https://"), "{name}: docs/guide/links.txt does not define {label}");
                continue;
            };
            used.insert(label.to_owned());
            let is_same = if let Some(page) = rustdoc.strip_prefix("crate::guide::") {
                let (page, heading) =
                    page.split_once('#').map_or((page, String::new()), |(page, heading)| (page, format!("#{heading}")));
                *target == format!("{page}.md{heading}")
            } else if *rustdoc == "crate::guide" {
                target == "README.md"
            } else if let Some(path) = rustdoc.strip_prefix("crate::") {
                // An item that the root re-exports has its page in its module.
                item(target).is_some_and(|item| item == path || item.ends_with(&format!("::{path}")))
            } else {
                rustdoc.ends_with(&format!("/docs/guide/{target}"))
            };
            assert!(is_same, "{name}: {label} leads to {target}, and in rustdoc to {rustdoc}");
        }
    }
    let unused: Vec<_> = shared.keys().filter(|label| !used.contains(**label)).collect();
    assert!(unused.is_empty(), "no page uses {unused:?}");
}
