//! Checks that imports point down, as the pictures below allow.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::files::{root, sources};

/// A room, and the rooms that it may import.
type Picture = &'static [(&'static str, &'static [&'static str])];

/// The crate's rooms. A room that is not listed fails the test, so a new one is added here first.
const ROOMS: Picture = &[
    ("values", &[]),
    ("util", &["values"]),
    ("algorithm", &["values"]),
    ("store", &["algorithm", "util", "values"]),
    ("limiter", &["algorithm", "store", "util", "values"]),
    ("balance", &["limiter", "store", "util", "values"]),
    ("concurrency", &["limiter", "store", "util", "values"]),
    ("overload", &["limiter", "store", "util", "values"]),
    ("queue", &["algorithm", "limiter", "store", "util", "values"]),
    ("testing", &["algorithm", "limiter", "store", "util", "values"]),
    ("engine", &["algorithm", "limiter", "store", "util", "values"]),
    ("http", &["algorithm", "engine", "limiter", "store", "util", "values"]),
    // Internals that the other workspace packages share with this one.
    ("internal", &["algorithm", "balance", "engine", "http", "limiter", "queue", "store", "util", "values"]),
    // Text.
    ("guide", &[]),
];

/// The rooms that know no HTTP type, for workers and for clients over other protocols.
const BELOW_HTTP: &[&str] = &[
    "values",
    "util",
    "algorithm",
    "store",
    "limiter",
    "balance",
    "concurrency",
    "overload",
    "queue",
    "engine",
    "testing",
];

/// The rooms within `engine`.
const ENGINE: Picture = &[
    ("domain", &[]),
    ("first_requests", &[]),
    ("permits", &[]),
    ("key", &["domain"]),
    ("log", &[]),
    ("settled_names", &["log"]),
    ("policy", &["domain", "key", "settled_names"]),
    ("verdict", &["domain", "policy"]),
    ("reason", &[]),
    ("settlement", &["settled_names"]),
    ("translate", &["domain", "key", "permits", "policy", "reason", "settlement", "verdict"]),
    ("outcome", &["translate", "verdict"]),
    ("shed_replies", &["translate"]),
    ("reload", &["domain", "key", "outcome", "policy", "shed_replies", "translate"]),
    (
        "evaluate",
        &[
            "key",
            "outcome",
            "permits",
            "policy",
            "reason",
            "reload",
            "settlement",
            "shed_replies",
            "translate",
            "verdict",
        ],
    ),
    ("snapshot", &["domain", "policy", "reload", "translate"]),
    (
        "direct",
        &[
            "domain",
            "evaluate",
            "key",
            "outcome",
            "permits",
            "policy",
            "reason",
            "reload",
            "settlement",
            "translate",
            "verdict",
        ],
    ),
];

/// The rooms within `http`.
const HTTP: Picture = &[
    ("head", &[]),
    ("text", &[]),
    ("log", &[]),
    ("body", &["log"]),
    ("mounting", &[]),
    ("extensions", &[]),
    ("grpc", &["head"]),
    ("headers", &["head", "text"]),
    ("key", &["head", "text"]),
    ("exemptions", &["head", "key"]),
    ("policy", &["exemptions", "head"]),
    ("key_of", &["head"]),
    ("preflight", &["head", "policy"]),
    ("reject", &["body", "grpc", "head", "headers", "key", "log", "policy", "text"]),
    ("outcome", &["extensions", "grpc", "head", "headers"]),
    (
        "translation",
        &["body", "extensions", "grpc", "head", "headers", "log", "mounting", "outcome", "preflight", "reject"],
    ),
    ("response_body", &["body", "outcome"]),
    ("service", &["body", "head", "log", "outcome", "preflight", "response_body", "translation"]),
    ("answer", &["body", "head", "outcome", "response_body", "service", "translation"]),
    ("layer", &["body", "grpc", "head", "headers", "key", "preflight", "reject", "service"]),
    ("snapshot", &["layer"]),
];

/// The rooms within `engine/policy`. The four option groups are `selector`, `costs`, `billing` and `lineage`.
const POLICY: Picture = &[
    ("named", &[]),
    ("log", &[]),
    ("names", &[]),
    ("error", &["names"]),
    ("expiring", &[]),
    ("facts", &["named"]),
    ("selector", &["log"]),
    ("costs", &["log"]),
    ("precedence", &[]),
    ("shares", &["selector"]),
    ("transitions", &["selector", "shares"]),
    ("open_charges", &[]),
    ("bans", &["expiring"]),
    ("debts", &["expiring"]),
    ("limited_keys", &["expiring"]),
    ("overrides", &["expiring"]),
    ("retries", &["expiring"]),
    ("billing", &["retries"]),
    ("offender_record", &["named"]),
    ("metrics", &["named", "shares"]),
    ("record", &["debts", "expiring", "limited_keys", "open_charges", "overrides"]),
    ("lineage", &["bans", "metrics", "offender_record", "record"]),
    (
        "definition",
        &[
            "bans",
            "billing",
            "costs",
            "facts",
            "lineage",
            "offender_record",
            "precedence",
            "retries",
            "selector",
            "shares",
            "transitions",
        ],
    ),
    ("charges", &["billing", "costs", "definition", "facts", "retries"]),
    ("extras", &["billing", "definition", "lineage", "precedence"]),
    ("combined", &["definition"]),
    ("rules", &["combined", "definition", "error", "facts", "names", "selector"]),
    ("crossings", &["definition", "facts", "shares", "transitions"]),
    ("owed", &["debts", "definition"]),
    ("adjust", &["definition", "log"]),
    ("asks", &["definition", "overrides"]),
    ("inherit", &["bans", "definition", "lineage", "log"]),
    ("offenders", &["definition", "offender_record"]),
    ("reports", &["bans", "definition", "limited_keys", "log", "metrics", "overrides", "shares", "transitions"]),
    ("snapshot", &["bans", "debts", "definition", "expiring", "overrides"]),
];

/// The rooms within `store`. All of them use the root's own items, such as `OpenStore`.
const STORE: Picture = &[
    ("health", &[]),
    ("quota_change", &[]),
    ("stats", &["health"]),
    ("memory", &["quota_change", "stats"]),
    ("remote", &["quota_change"]),
];

const MEMORY: Picture = &[
    ("quota_state", &[]),
    ("resets", &[]),
    ("when_full", &[]),
    ("wall_time", &[]),
    ("occupancy", &["when_full"]),
    ("own_quota", &["quota_state"]),
    ("settings", &["when_full"]),
    ("table", &["occupancy", "quota_state", "when_full"]),
    ("debt_copies", &["occupancy", "table"]),
    ("read_states", &["debt_copies", "occupancy", "quota_state", "table"]),
    ("ledger", &["debt_copies", "occupancy", "quota_state", "read_states", "table", "wall_time", "when_full"]),
    ("locked", &["debt_copies", "occupancy", "quota_state", "read_states", "table", "when_full"]),
    (
        "tables",
        &[
            "ledger",
            "locked",
            "occupancy",
            "own_quota",
            "quota_state",
            "read_states",
            "resets",
            "settings",
            "table",
            "when_full",
        ],
    ),
    ("start", &["settings", "tables"]),
    ("restored", &["debt_copies", "occupancy", "quota_state", "read_states", "table", "tables"]),
    (
        "heir",
        &[
            "debt_copies",
            "ledger",
            "locked",
            "own_quota",
            "quota_state",
            "read_states",
            "restored",
            "start",
            "table",
            "tables",
            "when_full",
        ],
    ),
    ("quota_table", &["heir", "ledger", "locked", "own_quota", "read_states", "resets", "start", "tables"]),
    (
        "snapshot",
        &[
            "debt_copies",
            "heir",
            "ledger",
            "occupancy",
            "quota_state",
            "read_states",
            "restored",
            "settings",
            "start",
            "table",
            "tables",
        ],
    ),
];

/// The rooms in `tower-sluice-redis`.
const REDIS: Picture = &[
    ("script", &[]),
    ("connection", &["script"]),
    ("store", &["connection", "script"]),
    ("records", &["connection", "script", "store"]),
    ("queue", &["connection", "script", "store"]),
    ("in_flight", &["connection", "script", "store"]),
    ("balance", &["connection", "script", "store"]),
    ("shared_state", &["connection", "script"]),
    ("file", &["balance", "connection", "in_flight", "queue", "script", "store"]),
];

/// The rooms within its `store`.
const REDIS_STORE: Picture = &[
    ("conversation", &[]),
    ("backend", &["conversation"]),
    ("batch", &["backend", "conversation"]),
    ("charge_once", &["backend", "conversation"]),
    ("by_hand", &["backend"]),
    ("store", &["backend", "batch", "by_hand", "charge_once"]),
];

const QUEUE: Picture = &[
    ("log", &[]),
    ("schedule", &[]),
    ("timer", &[]),
    ("monitor", &["schedule"]),
    ("driver", &["log", "monitor", "schedule", "timer"]),
    ("local", &["driver", "monitor", "schedule"]),
    ("leaky_queue", &["local", "schedule"]),
    ("shared", &["leaky_queue"]),
    ("slow_down", &["local", "schedule"]),
];

/// The rooms in the program `sluice`.
const SLUICE: Picture = &[
    ("cases", &[]),
    ("failure", &[]),
    ("table", &[]),
    ("path", &["cases"]),
    ("rules", &["cases"]),
    ("input", &["failure"]),
    ("init", &["failure"]),
    ("manual", &["failure"]),
    ("descriptors", &["rules"]),
    ("stores", &["descriptors", "failure"]),
    ("log", &["cases", "path"]),
    ("words", &["descriptors", "path"]),
    ("routes", &["path", "words"]),
    ("notes", &["path", "routes", "words"]),
    ("counts", &["log", "words"]),
    ("replay", &["counts", "descriptors", "log", "path", "routes", "stores", "words"]),
    ("report", &["counts", "log", "replay", "table"]),
    ("run", &["cases", "failure", "input", "log", "replay", "report", "rules"]),
    ("serve", &["descriptors", "failure", "path", "routes", "rules", "stores", "words"]),
    ("check", &["descriptors", "notes", "routes", "rules", "serve", "stores", "table", "words"]),
];

/// All pictures, by their folders.
const PICTURES: &[(&str, Picture)] = &[
    ("src", ROOMS),
    ("src/engine", ENGINE),
    ("src/engine/policy", POLICY),
    ("src/http", HTTP),
    ("src/store", STORE),
    ("src/store/memory", MEMORY),
    ("crates/redis/src", REDIS),
    ("crates/redis/src/store", REDIS_STORE),
    ("src/queue", QUEUE),
    ("crates/sluice/src", SLUICE),
];

/// Rooms that hold only tests.
const TESTS: &[&str] = &["tests", "models", "simulation", "support", "manual_server", "invariants", "contention"];

#[test]
fn rooms_import_what_lies_below_them() {
    for (folder, picture) in PICTURES {
        hold(folder, picture);
    }
}

#[test]
fn rooms_below_http_use_no_http_type() {
    for (room, path) in files("src") {
        if BELOW_HTTP.contains(&room.as_str()) {
            // The engine's tests are about requests.
            if room == "engine" && is_test(&path) {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let text = if room == "engine" { before_tests(&text) } else { &text };
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
    for (_, picture) in PICTURES {
        let mut below = BTreeSet::new();
        for (room, imports) in *picture {
            assert!(
                imports.iter().all(|import| below.contains(import)),
                "`{room}` imports a room that is listed after it"
            );
            below.insert(room);
        }
    }
}

fn hold(folder: &str, picture: Picture) {
    let rooms: Vec<_> = picture.iter().map(|(room, _)| *room).collect();
    let above: Vec<_> = folder.split('/').skip_while(|name| *name != "src").skip(1).map(str::to_owned).collect();
    for (room, path) in files(folder) {
        if is_test(&path) {
            continue;
        }
        let Some((_, allowed)) = picture.iter().find(|(name, _)| *name == room) else {
            panic!("{} belongs to no room of the picture: add `{room}` to it", path.display());
        };
        for import in imports(&path) {
            let Some(import) = import.strip_prefix(&above[..]).and_then(<[_]>::first) else { continue };
            // Items that the folder's root defines or passes on do not form a room.
            let is_allowed = import == &room || allowed.contains(&import.as_str()) || !rooms.contains(&import.as_str());
            assert!(is_allowed, "{}: `{room}` must not import `{import}`", path.display());
        }
    }
}

/// Whether a file is in a room for tests.
fn is_test(path: &Path) -> bool {
    let is_test = |name: &OsStr| TESTS.contains(&name.to_str().unwrap().trim_end_matches(".rs"));
    path.iter().skip_while(|name| *name != "src").any(is_test)
}

/// Returns a file's text up to its test module.
fn before_tests(text: &str) -> &str {
    text.split("\nmod tests {").next().unwrap()
}

/// Returns every source file below a folder except its root, with its room.
fn files(folder: &str) -> Vec<(String, PathBuf)> {
    let root = root().join(folder);
    let is_root = |path: &PathBuf| ["lib.rs", "main.rs", "mod.rs"].iter().any(|name| *path == root.join(name));
    let found: Vec<_> = sources(folder)
        .into_iter()
        .filter(|path| !is_root(path))
        .map(|path| {
            let room = path.strip_prefix(&root).unwrap().iter().next().unwrap().to_str().unwrap();
            (room.trim_end_matches(".rs").to_owned(), path)
        })
        .collect();
    assert!(found.len() > 5, "the sources were not found");
    found
}

/// Returns the paths in this crate that a file names outside comments and tests, from the root, one for each entry in
/// braces.
fn imports(path: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap();
    let code: String = before_tests(&text).lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let file = path.strip_prefix(root()).unwrap().with_extension("");
    let below = file.iter().skip_while(|name| *name != "src").skip(1);
    let mut module: Vec<_> = below.map(|name| name.to_str().unwrap().to_owned()).collect();
    if module.last().is_some_and(|name| name == "mod") {
        module.pop();
    }
    let mut found = Vec::new();
    for (at, _) in code.match_indices("::") {
        let before = &code[..at];
        let word = before.rsplit(|char: char| !char.is_alphanumeric() && char != '_').next().unwrap();
        let is_first = !before[..at - word.len()].ends_with(':');
        let mut from = match word {
            "crate" if is_first => Vec::new(),
            "self" if is_first => module.clone(),
            "super" if is_first => module[..module.len().saturating_sub(1)].to_vec(),
            _ => continue,
        };
        let mut rest = &code[at + 2..];
        while let Some(up) = rest.strip_prefix("super::") {
            from.pop();
            rest = up;
        }
        add_paths(rest, &from, &mut found);
    }
    found
}

/// Adds the path that begins `rest`, or those in a braced list, to the module that it starts `from`.
fn add_paths<'a>(mut rest: &'a str, from: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    let Some(mut items) = rest.strip_prefix('{') else {
        let end = rest.find(|char: char| !char.is_alphanumeric() && char != '_').unwrap_or(rest.len());
        let path = [from, &[rest[..end].to_owned()]].concat();
        rest = &rest[end..];
        return match rest.strip_prefix("::") {
            Some(inner) => add_paths(inner, &path, found),
            None => {
                found.push(path);
                rest
            }
        };
    };
    loop {
        items = items.trim_start_matches([' ', ',']);
        match items.strip_prefix('}') {
            Some(after) => return after,
            None if items.is_empty() => return items,
            None => {
                let after = add_paths(items, from, found);
                // Anything else there, such as `as _`, ends with the next comma or brace.
                items = &after[after.find([',', '}']).unwrap_or(after.len())..];
            }
        }
    }
}
