//! `scripts/test` runs each test program. One lane names the programs that wait for others. The other lane excludes
//! their first letters, so a new program with such a letter would run in neither.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders `tests` of all packages.
fn folders(root: &Path) -> Vec<PathBuf> {
    let packages = ["crates", "examples"].map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let of_packages = packages.into_iter().flatten().map(|entry| entry.unwrap().path().join("tests"));
    of_packages.chain([root.join("tests")]).filter(|folder| folder.is_dir()).collect()
}

/// The names of the test programs in a folder: a file, or a folder with a `main.rs`.
fn programs(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let programs =
        entries.filter(|path| path.extension().is_some_and(|it| it == "rs") || path.join("main.rs").exists());
    programs.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

/// Whether a name matches what follows `--test`: a name, the beginning of one, or all but some first letters.
fn matches(pattern: &str, name: &str) -> bool {
    let pattern = pattern.trim_matches('\'');
    match (pattern.strip_prefix("[!"), pattern.strip_suffix('*')) {
        (Some(excluded), _) => !excluded.trim_end_matches("]*").contains(&name[..1]),
        (None, Some(beginning)) => name.starts_with(beginning),
        (None, None) => pattern == name,
    }
}

#[test]
fn each_test_program_has_a_lane() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = fs::read_to_string(root.join("scripts/test")).unwrap();
    let lanes = script.lines().filter(|line| line.contains("run_tests \"${members[@]}\""));
    let words: Vec<&str> = lanes.flat_map(str::split_whitespace).collect();
    let patterns: Vec<&str> = words.windows(2).filter(|pair| pair[0] == "--test").map(|pair| pair[1]).collect();
    let has_lane = |name: &str| patterns.iter().any(|pattern| matches(pattern, name));
    assert!(has_lane("queue_new") && has_lane("new") && !has_lane("plans"), "{patterns:?}");
    // `scripts/verify` runs those of the store on DynamoDB.
    let all = folders(root).into_iter().filter(|folder| !folder.ends_with("dynamodb/tests"));
    let without: Vec<_> = all.flat_map(|folder| programs(&folder)).filter(|name| !has_lane(name)).collect();
    assert!(without.is_empty(), "name them in `scripts/test`: {without:?}");
}
