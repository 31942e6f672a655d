//! Checks that the tests use every counterexample from the proofs.

use std::collections::BTreeSet;
use std::path::Path;

use crate::files::{read, root, text};

/// Returns the functions that the counterexamples are for, written as `file: Type::function`.
fn functions() -> BTreeSet<String> {
    let text = read("verify/proofs/counterexamples.json");
    let entries: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    entries.iter().map(|entry| entry["function"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn each_counterexample_is_tried() {
    let text = text("src") + &text("crates");
    let functions = functions();
    assert!(functions.len() > 20, "only {functions:?}");
    for function in functions {
        // A test for a few scripts names their folder once, and each file by itself.
        let (file, _) = function.split_once(": ").unwrap_or((&function, ""));
        let name = Path::new(file).file_name().unwrap().to_str().unwrap();
        let is_script = name.ends_with(".lua");
        let is_fed =
            text.contains(&format!("each(\"{function}\"")) || is_script && text.contains(&format!("\"{name}\""));
        assert!(is_fed, "no test feeds the counterexamples for `{function}` to it");
        assert!(root().join(file).is_file(), "{file}");
    }
}
