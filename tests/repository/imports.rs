//! Checks that imports point down, as the pictures below allow.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A room, and the rooms that it may import.
type Picture = &'static [(&'static str, &'static [&'static str])];

/// The rooms of the crate. A room that is not listed fails the test, so a new one is added here first.
const ROOMS: Picture = &[
    ("values", &[]),
    ("util", &["values"]),
    ("algorithm", &["values"]),
    ("store", &["algorithm", "util", "values"]),
    ("limiter", &["algorithm", "store", "util", "values"]),
    ("concurrency", &["limiter", "store", "util", "values"]),
    ("queue", &["algorithm", "limiter", "store", "util", "values"]),
    ("testing", &["algorithm", "limiter", "store", "util", "values"]),
    ("http", &["algorithm", "limiter", "store", "util", "values"]),
    ("config", &["algorithm", "concurrency", "http", "limiter", "queue", "store", "util", "values"]),
    // Text.
    ("guide", &[]),
];

/// The rooms that compile without any HTTP type, for workers and for clients of other protocols.
const BELOW_HTTP: &[&str] = &["values", "util", "algorithm", "store", "limiter", "concurrency", "queue", "testing"];

/// The rooms within `http`.
const HTTP: Picture = &[
    ("head", &[]),
    ("text", &[]),
    ("body", &[]),
    ("first_requests", &[]),
    ("mounting", &["first_requests"]),
    ("permits", &[]),
    ("settlement", &[]),
    ("grpc", &["head"]),
    ("headers", &["text"]),
    ("key", &["first_requests", "head", "text"]),
    ("policy", &["head", "key"]),
    ("verdict", &["policy"]),
    ("preflight", &["head", "policy"]),
    ("reject", &["body", "grpc", "head", "headers", "key", "policy", "text", "verdict"]),
    ("reload", &["headers", "mounting", "policy", "preflight", "reject"]),
    (
        "evaluate",
        &["body", "grpc", "head", "headers", "key", "permits", "policy", "reject", "reload", "settlement", "verdict"],
    ),
    ("response_body", &["body", "evaluate"]),
    ("service", &["body", "evaluate", "head", "preflight", "reload", "response_body"]),
    ("pacer", &["head", "headers"]),
    ("layer", &["body", "grpc", "head", "headers", "key", "policy", "preflight", "reject", "reload", "service"]),
];

/// The rooms within `http/policy`. The four groups of options are `who`, `how_much`, `after` and `heritage`.
const POLICY: Picture = &[
    ("names", &[]),
    ("error", &["names"]),
    ("expiring", &[]),
    ("facts", &[]),
    ("who", &[]),
    ("how_much", &[]),
    ("after", &["expiring"]),
    ("heritage", &["after", "expiring"]),
    ("definition", &["after", "facts", "heritage", "how_much", "who"]),
    ("rules", &["definition", "error", "facts", "names", "who"]),
    ("owed", &["after", "definition"]),
    ("asks", &["definition"]),
    ("inherit", &["definition", "heritage"]),
    ("reports", &["definition", "heritage"]),
    ("tests", &["definition", "error", "heritage", "names", "who"]),
];

#[test]
fn rooms_import_what_lies_below_them() {
    hold("src", "crate::", ROOMS);
}

#[test]
fn rooms_of_http_import_what_lies_below_them() {
    hold("src/http", "crate::http::", HTTP);
}

#[test]
fn rooms_of_a_policy_import_what_lies_below_them() {
    hold("src/http/policy", "crate::http::policy::", POLICY);
}

#[test]
fn rooms_below_http_use_no_http_type() {
    for (room, path) in files("src") {
        if BELOW_HTTP.contains(&room.as_str()) {
            let text = fs::read_to_string(&path).unwrap();
            let code = |line: &&str| !line.trim_start().starts_with("//");
            let mention = ["http::", "http_body", "bytes::"]
                .into_iter()
                .find(|name| text.lines().filter(code).any(|line| line.contains(name)));
            assert_eq!(mention, None, "{}: `{room}` is below HTTP", path.display());
        }
    }
}

#[test]
fn the_pictures_have_no_cycle() {
    for picture in [ROOMS, HTTP, POLICY] {
        let mut below = BTreeSet::new();
        for (room, imports) in picture {
            assert!(
                imports.iter().all(|import| below.contains(import)),
                "`{room}` imports a room that is listed after it"
            );
            below.insert(room);
        }
    }
}

fn hold(folder: &str, prefix: &str, picture: Picture) {
    for (room, path) in files(folder) {
        let Some((_, allowed)) = picture.iter().find(|(name, _)| *name == room) else {
            panic!("{} belongs to no room of the picture: add `{room}` to it", path.display());
        };
        let text = fs::read_to_string(&path).unwrap();
        for import in imports(&text, prefix) {
            let is_allowed = import == room || allowed.contains(&import.as_str());
            assert!(is_allowed, "{}: `{room}` must not import `{import}`", path.display());
        }
        // `super` leads out of a room, too: not from a file that is a room, and not two steps up.
        let is_room = path.parent().is_some_and(|parent| parent.ends_with(folder));
        for line in text.lines().filter(|line| line.contains("super::") && line.trim() != "use super::*;") {
            let leads_out = is_room || line.contains("super::super::");
            assert!(!leads_out || line.trim_start().starts_with("//"), "{}: {line}", path.display());
        }
    }
}

/// Returns every source file below a folder except its root, with its room.
fn files(folder: &str) -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !["lib.rs", "mod.rs"].iter().any(|name| path == root.join(name))
            {
                let room = path.strip_prefix(&root).unwrap().iter().next().unwrap().to_str().unwrap();
                found.push((room.trim_end_matches(".rs").to_owned(), path));
            }
        }
    }
    assert!(found.len() > 20, "the sources were not found");
    found
}

/// Returns the rooms that follow `prefix` outside of comments, each of a list in braces.
fn imports(text: &str, prefix: &str) -> Vec<String> {
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let word = |text: &str| text.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect::<String>();
    let after = code.split(prefix).skip(1).filter(|after| !after.starts_with('$'));
    after
        .flat_map(|after| match after.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap().split(',').map(|item| word(item.trim())).collect(),
            None => vec![word(after)],
        })
        .filter(|name| !name.is_empty())
        .collect()
}
