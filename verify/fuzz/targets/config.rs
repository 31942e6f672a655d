//! A configuration is accepted, or rejected with a line that exists.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_sluice_config::Config;

fuzz_target!(|text: &str| {
    match Config::parse("limits.toml", text) {
        Ok(config) => {
            for route in config.routes() {
                assert!(!route.paths().is_empty() && (1..=text.lines().count()).contains(&route.line()));
            }
        }
        Err(error) => {
            let lines = 1 + text.bytes().filter(|byte| *byte == b'\n').count();
            assert!((1..=lines).contains(&error.line()), "{error}");
            let (position, problem) =
                error.to_string().split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
            assert_eq!(position, format!("limits.toml:{}", error.line()));
            assert!(!problem.trim().is_empty(), "{error}");
        }
    }
});
