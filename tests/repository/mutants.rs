//! Checks that the mutants which make no difference are of functions that exist.

use std::fs;
use std::path::Path;

#[test]
fn listed_mutants_are_of_functions_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/mutants.md")).unwrap();
    let (_, table) = text.split_once("## Mutants that make no difference").unwrap();
    let (table, _) = table.split_once("## Lua").unwrap();
    let mut sources = String::new();
    read(&root.join("src"), &mut sources);
    let mut checked = 0;
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let functions = row.split('|').nth(1).unwrap();
        for name in functions.split('`').skip(1).step_by(2) {
            let (owner, function) = name.rsplit_once("::").unwrap_or(("", name));
            let is_owner = |kind: &str| sources.contains(&format!("{kind} {owner}"));
            let has_owner = owner.is_empty() || ["struct", "enum", "trait", "type"].iter().any(|kind| is_owner(kind));
            let has_function = ["(", "<"].iter().any(|next| sources.contains(&format!("fn {function}{next}")));
            assert!(has_owner && has_function, "`{name}` does not exist: correct its row in docs/mutants.md");
            checked += 1;
        }
    }
    assert!(checked > 40, "{checked} functions: they were not found");
}

fn read(folder: &Path, sources: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, sources);
        } else {
            sources.push_str(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
}
