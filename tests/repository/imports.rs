//! Imports point down. This is the picture; the code is held to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each module, with what it may import. Whatever is not named here fails the test, so that a new
/// module gets a place in the picture first.
const PICTURE: &[(&str, &[&str])] = &[
    // Facts.
    ("time", &[]),
    ("quota", &["time"]),
    ("terms", &["quota"]),
    ("decision", &["terms"]),
    ("backlog", &[]),
    ("base64", &[]),
    ("partition", &[]),
    ("sip", &["partition"]),
    ("inheritance", &[]),
    ("ask", &["partition", "time"]),
    ("batch", &["decision", "partition"]),
    ("description", &["ask", "batch", "terms"]),
    // Pure mathematics.
    ("algorithm", &["decision", "quota", "terms", "time"]),
    ("sync", &[]),
    ("telemetry", &["decision", "partition", "sip"]),
    // State and time.
    (
        "store",
        &[
            "algorithm",
            "ask",
            "backlog",
            "base64",
            "batch",
            "decision",
            "description",
            "inheritance",
            "partition",
            "quota",
            "sip",
            "sync",
            "telemetry",
            "time",
        ],
    ),
    // One decision.
    ("limiter", &["algorithm", "ask", "decision", "description", "inheritance", "partition", "store", "time"]),
    (
        "queue",
        &[
            "algorithm",
            "ask",
            "backlog",
            "decision",
            "description",
            "inheritance",
            "limiter",
            "partition",
            "quota",
            "store",
            "sync",
            "telemetry",
            "terms",
            "time",
        ],
    ),
    ("throttle", &["ask", "decision", "limiter", "partition"]),
    ("testing", &["algorithm", "ask", "decision", "partition", "quota", "store", "time"]),
    // From here on, HTTP.
    ("head", &[]),
    ("text", &[]),
    ("headers", &["base64", "decision", "partition", "quota", "sip", "terms", "text"]),
    ("grpc", &["base64", "head"]),
    ("body", &["telemetry"]),
    ("key", &["head", "partition", "telemetry"]),
    ("health", &["time"]),
    ("mounting", &[]),
    ("meter", &["store"]),
    ("penalty", &["algorithm", "ask", "decision", "inheritance", "limiter", "partition", "quota", "store", "time"]),
    ("open_charges", &["partition", "time"]),
    (
        "policy",
        &[
            "ask",
            "decision",
            "description",
            "head",
            "health",
            "inheritance",
            "key",
            "limiter",
            "meter",
            "open_charges",
            "partition",
            "penalty",
            "store",
            "telemetry",
            "time",
        ],
    ),
    ("tiers", &["head", "policy"]),
    ("preflight", &["algorithm", "head", "limiter", "partition", "policy", "quota", "store"]),
    ("verdict", &["decision", "policy"]),
    ("rejection", &["headers", "key", "policy", "verdict"]),
    ("problem", &["headers", "rejection", "text"]),
    (
        "responder",
        &[
            "algorithm",
            "body",
            "decision",
            "grpc",
            "head",
            "headers",
            "policy",
            "problem",
            "quota",
            "rejection",
            "verdict",
        ],
    ),
    ("live", &["headers", "limiter", "mounting", "policy", "preflight", "responder", "telemetry"]),
    (
        "evaluate",
        &[
            "ask",
            "batch",
            "body",
            "decision",
            "description",
            "grpc",
            "head",
            "headers",
            "inheritance",
            "key",
            "limiter",
            "live",
            "meter",
            "partition",
            "policy",
            "quota",
            "rejection",
            "terms",
            "time",
            "verdict",
        ],
    ),
    ("future", &["body", "evaluate", "head", "live", "telemetry"]),
    ("service", &["body", "evaluate", "future", "head", "live", "preflight"]),
    (
        "layer",
        &[
            "backlog",
            "body",
            "decision",
            "grpc",
            "head",
            "headers",
            "live",
            "partition",
            "policy",
            "preflight",
            "quota",
            "rejection",
            "responder",
            "service",
        ],
    ),
    (
        "config",
        &[
            "algorithm",
            "grpc",
            "head",
            "headers",
            "key",
            "layer",
            "limiter",
            "live",
            "partition",
            "penalty",
            "policy",
            "queue",
            "quota",
            "responder",
            "store",
            "telemetry",
        ],
    ),
    // Text.
    ("guide", &[]),
];

/// Modules that must compile without any HTTP type, for workers and clients of other protocols.
const BELOW_HTTP: &[&str] = &[
    "base64",
    "time",
    "decision",
    "claim",
    "partition",
    "sip",
    "quota",
    "terms",
    "algorithm",
    "sync",
    "telemetry",
    "store",
    "limiter",
    "queue",
    "throttle",
    "testing",
];

#[test]
fn imports_point_down() {
    for (module, path) in modules() {
        let Some((_, allowed)) = PICTURE.iter().find(|(name, _)| *name == module) else {
            panic!("{} belongs to no module of the picture: give `{module}` a place in it", path.display());
        };
        let text = fs::read_to_string(&path).unwrap();
        for import in crate_paths(&text) {
            assert!(
                import == module || allowed.contains(&import.as_str()),
                "{}: `{module}` must not import `{import}`",
                path.display()
            );
        }
        // `super` leads out of a module, too: not from a file at the top, and not two steps up.
        let is_top = path.parent().is_some_and(|folder| folder.ends_with("src"));
        for line in text.lines().filter(|line| line.contains("super::") && line.trim() != "use super::*;") {
            let steps_out = is_top || line.contains("super::super::");
            assert!(!steps_out || line.trim_start().starts_with("//"), "{}: {line}", path.display());
        }
        if BELOW_HTTP.contains(&module.as_str()) {
            let mentions = ["http::", "http_body", "bytes::"]
                .into_iter()
                .find(|name| text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains(name)));
            assert_eq!(mentions, None, "{}: `{module}` lies below HTTP", path.display());
        }
    }
}

#[test]
fn the_picture_has_no_cycle() {
    let mut below = BTreeSet::new();
    for (module, imports) in PICTURE {
        assert!(imports.iter().all(|import| below.contains(import)), "`{module}` imports what stands after it");
        below.insert(module);
    }
}

/// Every source file but the crate root, with its module.
fn modules() -> Vec<(String, PathBuf)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut files, mut folders) = (Vec::new(), vec![source.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && path != source.join("lib.rs") {
                let module = path.strip_prefix(&source).unwrap().iter().next().unwrap().to_str().unwrap();
                files.push((module.trim_end_matches(".rs").to_owned(), path));
            }
        }
    }
    assert!(files.len() > 20, "the sources were not found");
    files
}

/// The modules named by `crate::…` outside of comments; a list in braces counts each.
fn crate_paths(text: &str) -> Vec<String> {
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let word = |text: &str| text.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect::<String>();
    let after = code.split("crate::").skip(1).filter(|after| !after.starts_with('$'));
    after
        .flat_map(|after| match after.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap().split(',').map(|item| word(item.trim())).collect(),
            None => vec![word(after)],
        })
        .filter(|name| !name.is_empty())
        .collect()
}
