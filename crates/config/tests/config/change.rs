//! Checks which edits to a file apply to running layers and which do not, and checks the log.

use crate::log::Log;
use crate::{reader, with};

const TABLES: [(&str, &str); 4] = [
    ("[client-ip]", "[client-ip]\nipv6-prefix = 56\n"),
    ("[redis]", "[redis]\nurl = \"redis://127.0.0.1:1\"\n"),
    ("[snapshot]", "[snapshot]\npath = \"never\"\n"),
    ("[response]", "[response]\nadvertise = \"never\"\n"),
];

/// Returns the message of the error that a change causes.
#[track_caller]
fn rejected(before: &str, after: &str) -> String {
    let mut config = reader().parse("f.toml", before).unwrap_or_else(|error| panic!("{error}\n{before}"));
    let message = config.change("f.toml", after).expect_err(after).to_string();
    message.strip_suffix("; undo this change, or restart the server to apply it").expect(&message).to_owned()
}

/// Each is reported at its line, or at the place where it is missing.
#[test]
fn changed_fixed_tables_are_reported() {
    let policy = with("store = \"memory\"");
    for (name, table) in TABLES {
        let without = format!("\n{policy}");
        let set = format!("\n{table}{policy}");
        let other = set.replace("56", "48").replace("127.0.0.1", "127.0.0.2").replace("never", "always");
        assert_eq!(rejected(&without, &set), format!("f.toml:2: there was no {name} at the start"));
        assert_eq!(rejected(&set, &other), format!("f.toml:2: {name} differs from the one at the start"));
        let lines = without.lines().count();
        assert_eq!(rejected(&set, &without), format!("f.toml:{}: {name} is missing", lines + 1));
    }
}

/// Each is reported at its route's path.
#[test]
fn changed_fixed_settings_are_reported() {
    let policy = with("burst = 20");
    let unlimited = "[[route]]\npath = \"/a\"\n";
    let answer = policy.replace("[[route.policy]]", "response = { advertise = \"never\" }\n[[route.policy]]");
    let exempt =
        policy.replace("[[route.policy]]", "exempt-preflights = { limit = 1, per = \"1s\" }\n[[route.policy]]");
    let missing = policy.replace("/a", "/b");
    let [policy, answer, exempt, missing]: [&str; 4] = [&policy, &answer, &exempt, &missing];
    for (before, after, expected) in [
        (policy, answer, "f.toml:2: the [response] of this route differs from the one at the start"),
        (answer, policy, "f.toml:2: the [response] of this route differs from the one at the start"),
        (policy, exempt, "f.toml:2: exempt-preflights of this route differs from the one at the start"),
        (exempt, policy, "f.toml:2: exempt-preflights of this route differs from the one at the start"),
        (policy, unlimited, "f.toml:2: this route no longer has a policy (to switch one off, write shadow = true)"),
        (unlimited, policy, "f.toml:2: this route had no policy at the start"),
        (policy, missing, "f.toml:2: these paths are not those of any route at the start"),
        (policy, "\n\n", "f.toml:3: the route of path `/a` is missing"),
    ] {
        assert_eq!(rejected(before, after), expected);
    }
}

#[test]
fn lost_optional_fields_are_logged() {
    let queue = "leaky-queue";
    for (algorithm, field, value) in [
        ("token-bucket", "burst", "20"),
        ("concurrency", "plans", "{ by = \"header:x-plan\", limits = { gold = { limit = 20 } } }"),
        (queue, "max-queue", "5"),
        (queue, "max-wait", "\"5s\""),
        ("concurrency", "max-queue", "5"),
        ("concurrency", "release-at", "\"head\""),
        ("concurrency", "lease", "\"10s\""),
        ("token-bucket", "settle-by", "\"handler\""),
        ("token-bucket", "owe-shortfalls", "false"),
        (queue, "max-keys", "9"),
        ("slow-down", "free", "3"),
        ("slow-down", "step", "\"200ms\""),
        ("slow-down", "max-delay", "\"10s\""),
        (queue, "when-full", "\"overflow\""),
        ("fixed-window", "staggered", "true"),
        ("token-bucket", "key", "\"user\""),
        ("token-bucket", "cost", "2"),
        ("token-bucket", "store", "\"memory\""),
        ("token-bucket", "on-failure", "\"reject\""),
        ("token-bucket", "on-missing-key", "\"skip\""),
        ("token-bucket", "status", "430"),
        ("token-bucket", "charge-when", "[401]"),
        ("token-bucket", "charge-once", "{ header = \"k\", within = \"1h\", free-retries = 1 }"),
        ("token-bucket", "track-offenders", "\"hash\""),
        ("token-bucket", "warn-at", "[0.8]"),
        ("token-bucket", "exempt", "{ paths = [\"/healthz\"] }"),
        ("token-bucket", "penalty", "{ rejections = 3, per = \"1m\", ban = \"1m\" }"),
    ] {
        let line = format!("{field} = {value}\n");
        let before = with(&line).replace("token-bucket", algorithm).replace("global", "header:x-api-key");
        // Requests in flight have no period.
        let before = if algorithm == "concurrency" { before.replace("per = \"1s\"\n", "") } else { before };
        let before =
            if field == "lease" { format!("[redis]\nurl = \"redis://127.0.0.1:1\"\n{before}") } else { before };
        let mut config = reader().parse("f.toml", &before).unwrap_or_else(|error| panic!("{error}\n{before}"));
        let (log, _guard) = Log::start();
        config.change("f.toml", &before).unwrap();
        assert_eq!(log.lines(), [""; 0], "nothing was removed: {field}");
        config.change("f.toml", &before.replace(&line, "")).unwrap();
        let logged = log.lines().into_iter().filter(|line| line.contains("fields of a policy were removed"));
        let logged: Vec<_> = logged.collect();
        let [warning] = &logged[..] else { panic!("{field}: {logged:?}") };
        for part in ["WARN tower_sluice: ", "http.route=\"/a\"", "policy=\"p\"", &format!("fields=\"{field}\"")] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
    }
    // Ending a shadow or a suspension is deliberate.
    for line in ["shadow = true", "suspended = true"] {
        let before = with(line);
        let mut config = reader().parse("f.toml", &before).unwrap();
        let (log, _guard) = Log::start();
        config.change("f.toml", &before.replace(line, "")).unwrap();
        assert_eq!(log.lines(), [""; 0]);
    }
}

#[test]
fn a_changes_result_is_a_log_line() {
    let before = with("cost = 1");
    let policy = &before[before.find("[[route.policy]]").unwrap()..];
    let mut config = reader().parse("f.toml", &(before.clone() + &policy.replace("\"p\"", "\"q\""))).unwrap();
    assert_eq!(config.change("f.toml", &before).unwrap().to_string(), "removed: /a q");
    assert_eq!(config.change("f.toml", &before).unwrap().to_string(), "all policies kept their state");
    let other = before.replace("token-bucket", "concurrency").replace("per = \"1s\"\n", "");
    assert_eq!(config.change("f.toml", &other).unwrap().to_string(), "lost their state: /a p");
}
