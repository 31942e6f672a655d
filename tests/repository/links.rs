//! Checks the documents' links.

use std::fs;
use std::path::{Path, PathBuf};

/// Pages beside those in `docs`.
const PAGES: &[&str] = &[
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "DESIGN.md",
    "crates/sluice/README.md",
    "crates/dynamodb/README.md",
    "crates/postgres/README.md",
    "crates/redis/README.md",
    "crates/admin/README.md",
    "crates/client/README.md",
    "crates/config/README.md",
    "benches/README.md",
    "examples/README.md",
];

#[test]
fn links_lead_to_existing_targets() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut checked = 0;
    let pages = PAGES.iter().map(PathBuf::from).chain(documents(root));
    for page in pages {
        let path = root.join(&page);
        let text = fs::read_to_string(&path).unwrap();
        for link in links(&text) {
            checked += 1;
            if let Err(reason) = check(root, &path, &link) {
                panic!("{}: {link}: {reason}", page.display());
            }
        }
    }
    assert!(checked > 20, "{checked} links: they were not found");
}

/// In code, a compiler rejects them.
#[test]
fn no_document_has_conflict_markers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in PAGES.iter().map(PathBuf::from).chain(documents(root)) {
        let text = fs::read_to_string(root.join(&page)).unwrap();
        let marker = text.lines().find(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> "));
        assert_eq!(marker, None, "{}", page.display());
    }
}

/// The README is read even before the first release, when docs.rs and crates.io have nothing about this crate.
#[test]
fn readme_links_need_no_release() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let is_released = |link: &String| {
        ["docs.rs/", "crates.io/crates/"].iter().any(|site| link.contains(&format!("{site}tower-sluice")))
    };
    let links: Vec<_> = links(&text).into_iter().filter(is_released).collect();
    assert_eq!(links, [""; 0]);
    assert!(text.contains("git clone https://github.com/tower-sluice/tower-sluice"));
}

/// The pages in `docs`, `docs/design` and `docs/guide`.
fn documents(root: &Path) -> Vec<PathBuf> {
    let entries = ["docs", "docs/design", "docs/guide"].map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let paths = entries.into_iter().flatten().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

fn check(root: &Path, page: &Path, link: &str) -> Result<(), &'static str> {
    // Pages that crates.io shows link to files of the repository by their addresses.
    let in_repository = ["blob/main/", "tree/main/"]
        .iter()
        .find_map(|kind| link.strip_prefix("https://github.com/tower-sluice/tower-sluice/")?.strip_prefix(kind));
    if let Some(file) = in_repository {
        return check(root, &root.join("README.md"), file);
    }
    let guide = "https://docs.rs/tower-sluice/latest/tower_sluice/guide/";
    if let Some(name) = link.strip_prefix(guide).map(|page| page.split(['/', '#']).next().unwrap()) {
        let exists =
            ["", "index.html"].contains(&name) || root.join("docs/guide").join(name).with_extension("md").is_file();
        return if exists { Ok(()) } else { Err("the guide has no such page") };
    }
    if link.starts_with("https://") {
        return Ok(());
    }
    // A path from the root would lead to the host's root, and other schemes are not shown.
    if link.starts_with('/') || link.contains(':') {
        return Err("neither https nor a path from the page's folder");
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { PathBuf::from(page) } else { page.parent().unwrap().join(file) };
    if !target.exists() {
        return Err("there is no such file");
    }
    let has_heading =
        |anchor: &str| fs::read_to_string(&target).is_ok_and(|text| headings(&text).any(|it| it == anchor));
    if !anchor.is_empty() && !has_heading(anchor) {
        return Err("the page has no such heading");
    }
    Ok(())
}

/// Returns the targets of inline links and link definitions, outside code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for after in line.split("](").skip(1) {
            found.push(after.split(')').next().unwrap().to_owned());
        }
        found.extend(definition(line).map(|(_, target)| target.to_owned()));
    }
    found
}

/// The label and the target, if the line defines a link.
pub(crate) fn definition(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix('[')?.split_once("]: ").filter(|(label, _)| !label.contains(']'))
}

/// Returns the anchors of a page's headings, as the sites that show it make them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = |char: &char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_');
        title.chars().filter(kept).map(|char| if char == ' ' { '-' } else { char }).collect()
    })
}
