//! Checks that each mutant that makes no difference is in a function that exists.

use crate::files::{read, text};

#[test]
fn listed_mutants_are_in_existing_functions() {
    let page = read("docs/mutants.md");
    let (_, table) = page.split_once("## Mutants that make no difference").unwrap();
    let (table, _) = table.split_once("## Lua").unwrap();
    let sources = text("src") + &text("crates/redis/src");
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
