//! All randomness in tests follows from `SLUICE_SEED`, so that two runs of one commit try equal cases.

use std::path::Path;

use super::files::{read, root, sources};

/// Randomness sources that no seed determines, and the library files that may draw from them.
const SOURCES: &[(&str, &[&str])] = &[
    ("RandomState", &["src/util/random.rs", "crates/dynamodb/src/hints.rs"]),
    ("thread_rng", &[]),
    ("rand::rng", &[]),
    ("OsRng", &[]),
    ("from_os_rng", &[]),
    ("getrandom", &[]),
    ("fastrand", &[]),
    ("with_cases(", &[]),
    ("TestRunner::default", &[]),
    ("TestRunner::deterministic", &[]),
    ("proptest_config(ProptestConfig", &[]),
    ("..ProptestConfig::default()", &[]),
    ("..Config::default()", &[]),
    ("rand::random", &[]),
    ("StdRng", &[]),
    ("Uuid::new_v4", &[]),
];

/// Files whose numbers do not depend on the seed, since documents quote their results.
const QUOTED: &[&str] = &["tests/store/accuracy.rs", "examples/overload/", "examples/capacity/"];

/// This file, which names all sources, and the file that configures proptest.
const EXEMPT: &[&str] = &["tests/repository/randomness.rs", "tests/support/cases.rs"];

/// Returns the mistakes in a file, each with its line.
fn mistakes(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |index: usize, mistake: &str| found.push(format!("{path}:{}: {mistake}", index + 1));
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        for (source, allowed) in SOURCES {
            if line.contains(source) && !allowed.contains(&path) {
                note(index, &format!("`{source}` draws from no seed: take `testing::Random`, or `cases` for proptest"));
            }
        }
        let draws_from_literal = ["Random::new(", "from_seed("].iter().any(|call| {
            line.split_once(call).is_some_and(|(_, rest)| rest.starts_with(|first: char| first.is_ascii_digit()))
        });
        let counts = line.contains("for seed in 0..rounds(") || line.contains("for seed in 1..");
        if (draws_from_literal || counts) && !QUOTED.iter().any(|quoted| path.starts_with(quoted)) {
            note(index, "a seed that is always the same: take `Random::of_trial` or `seeds`");
        }
        if line.trim_end().ends_with("proptest! {")
            && !lines.get(index + 1).is_some_and(|next| next.contains("#![proptest_config(cases("))
        {
            note(index, "a property without the seed of the run: begin it with `#![proptest_config(cases(256))]`");
        }
        // The order in a program's own loop is left to chance, because no test depends on it.
        let is_program = path.starts_with("crates/sluice/");
        let is_tested = !is_program && ["src/", "crates/", "tests/"].iter().any(|folder| path.starts_with(folder));
        let mut next = lines[index + 1..].iter().map(|line| line.trim()).filter(|line| !line.starts_with("//"));
        if is_tested && line.ends_with("select! {") && next.next() != Some("biased;") {
            note(index, "tokio draws the branch: begin with `biased;`");
        }
        if line.contains("seed") && line.contains("SystemTime::now()") {
            note(index, "a clock as a seed: take `testing::seed`");
        }
    }
    found
}

#[test]
fn tests_draw_from_the_seed_only() {
    let folders = ["src", "crates", "tests", "examples", "verify/protocols"];
    let found = folders.iter().flat_map(|folder| sources(folder)).flat_map(|path| {
        let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        if EXEMPT.contains(&name.as_str()) { Vec::new() } else { mistakes(&name, &read(Path::new(&name))) }
    });
    let found: Vec<_> = found.collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn other_sources_are_found() {
    for text in [
        "let hasher = RandomState::new();",
        "let mut random = Random::new(7);",
        "for seed in 0..rounds(60, 1_000) as u64 {",
        "let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();",
        "proptest! {\n    #[test]",
        "proptest! {\n    #![proptest_config(ProptestConfig::with_cases(5))]",
    ] {
        assert!(!mistakes("tests/a.rs", text).is_empty(), "{text}");
    }
    let fine = "proptest! {\n    #![proptest_config(cases(256))]\nfor seed in seeds(4) { Random::new(seed) }";
    assert_eq!(mistakes("tests/a.rs", fine), [""; 0]);
}
