//! A table in a file.

use tower_sluice::time::ManualClock;
use tower_sluice_config::{Config, ConfigError};

use super::Service;
use crate::file::opener;

fn parse(lines: &str) -> Result<Config, ConfigError> {
    let text = format!(
        "[store.dynamodb]\n{lines}\n[[route]]\npath = \"/\"\n[[route.policy]]\nname = \"p\"\n\
         algorithm = \"token-bucket\"\nlimit = 1\nper = \"1s\"\n"
    );
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
