//! A table in a configuration file.

use tower_sluice::time::ManualClock;
use tower_sluice_config::{Config, ConfigError};

use super::Service;
use crate::file::opener;

fn parse(lines: &str) -> Result<Config, ConfigError> {
    parse_policy(lines, "algorithm = \"token-bucket\"\nlimit = 1\nper = \"1s\"")
}

fn parse_policy(lines: &str, policy: &str) -> Result<Config, ConfigError> {
    let text =
        format!("[store.dynamodb]\n{lines}\n[[route]]\npath = \"/\"\n[[route.policy]]\nname = \"p\"\n{policy}\n");
    let client = Service::new(ManualClock::new()).client();
    Config::reader().store("dynamodb", opener(client)).parse("f.toml", &text)
}

#[test]
fn mistakes_in_the_table_are_reported() {
    parse("table = \"limits\"\ntimeout = \"50ms\"\nclock-error = \"1ms\"\nsecret = \"s\"").unwrap();
    for (lines, expected) in [
        ("timeout = \"1s\"", "f.toml:1: missing field `table`"),
        ("table = \"\"", "f.toml:2: table is empty; "),
        ("table = \"t\"\ntimeout = \"2m\"", "f.toml:3: timeout: a decision may take a minute at the most"),
        ("table = \"t\"\nregion = \"eu\"", "f.toml:3: unknown field `region`, expected one of "),
    ] {
        let message = parse(lines).expect_err(lines).to_string();
        assert!(message.starts_with(expected), "{message}");
    }
}

/// These policies use records.
#[test]
fn each_kind_of_policy_opens() {
    for policy in [
        "algorithm = \"concurrency\"\nlimit = 8\nlease = \"10s\"",
        "algorithm = \"leaky-queue\"\nlimit = 10\nper = \"1s\"\nmax-queue = 50",
        "algorithm = \"balance\"",
    ] {
        parse_policy("table = \"limits\"", policy).expect(policy).close();
    }
}

/// A program whose policies are in code creates the table by the file.
#[tokio::test]
async fn a_store_creates_its_table() {
    let service = Service::new(ManualClock::new());
    let reader = Config::reader().store("dynamodb", opener(service.client()));
    let store = reader.open_store("f.toml", "[store.dynamodb]\ntable = \"limits\"").unwrap();
    store.prepare().await.unwrap();
    assert!(service.items().is_empty());
}
