//! Runs the examples as their readers would: starts each, and tries the commands that it prints. Needs `curl`.

#![allow(clippy::duplicate_mod, reason = "both kinds of servers take their ports from one file")]

#[cfg(all(feature = "calendar", feature = "config", feature = "postgres", feature = "redis"))]
mod moved_clock;
#[cfg(all(feature = "calendar", feature = "config", feature = "postgres", feature = "redis"))]
mod plans;
#[cfg(feature = "postgres")]
#[path = "../../../tests/support/postgres.rs"]
#[allow(dead_code, unreachable_pub)]
mod postgres;
mod program;
#[cfg(feature = "redis")]
#[path = "../../../crates/redis/tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub)]
mod redis;
#[cfg(any(feature = "postgres", feature = "redis"))]
#[path = "../../../tests/support/timing.rs"]
#[allow(dead_code, unreachable_pub)]
mod timing;
#[cfg(all(feature = "calendar", feature = "config", feature = "postgres", feature = "redis"))]
mod year;

use program::Program;
#[cfg(feature = "grpc")]
use program::run;

macro_rules! program {
    ($name:literal $(, $argument:expr)*) => {
        Program::start(env!(concat!("CARGO_BIN_EXE_", $name)), &["127.0.0.1:0" $(, $argument)*])
    };
}

#[test]
fn quickstart() {
    // One passes every 100 ms, so more than twenty may.
    let statuses = program!("quickstart").try_next();
    assert!(statuses.starts_with(&"200 ".repeat(20)), "{statuses}");
}

#[test]
fn login() {
    assert_eq!(program!("login").try_next(), "401 401 401 401 401 429 ");
}

#[test]
fn mcp() {
    let mut server = program!("mcp");
    let answers = server.try_next();
    let statuses: Vec<_> = answers.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(statuses, ["200", "200", "429"], "{answers}");
    // A busy machine may take one of the two seconds.
    let has_wait = [1, 2].iter().any(|wait| answers.contains(&format!(r#""retryAfter":{wait}}}"#)));
    assert!(has_wait && !answers.contains(r#""id":null"#), "{answers}");
    let answer = server.try_next();
    assert!(answer.contains("a word") && answer.ends_with(" 200\n"), "{answer}");
}

#[cfg(feature = "redis")]
#[test]
fn machines() {
    let mut redis = redis::RedisServer::start();
    let begun = std::time::Instant::now();
    let (mut first, mut second) = (program!("machines", &redis.url()), program!("machines", &redis.url()));
    assert_eq!(first.try_next(), "200 ".repeat(8));
    // Eight of ten leave two. One more passes for each six seconds that a busy machine takes.
    let statuses = second.try_next();
    let most = 2 + begun.elapsed().as_secs().div_ceil(6);
    let passed = statuses.matches("200 ").count() as u64;
    assert!(statuses.starts_with("200 200 ") && passed <= most, "{statuses}");
    assert_eq!(first.try_next(), "yes, Redis answers\n");
    redis.kill();
    let answer = second.try_next();
    assert!(answer.starts_with("no, this process decides by itself"), "{answer}");
}

#[cfg(feature = "grpc")]
#[test]
fn grpc() {
    let server = program!("grpc_server");
    let output = run(env!("CARGO_BIN_EXE_grpc_client"), &[&server.url]);
    assert!(output.contains("rejected (ResourceExhausted: "), "{output}");
    assert!(output.contains("call 4 was served"), "{output}");
}

#[cfg(feature = "config")]
#[test]
fn configuration() {
    let limits = include_str!("../../limits.toml");
    let file = std::env::temp_dir().join(format!("limits-{}.toml", std::process::id()));
    std::fs::write(&file, limits).unwrap();
    let mut service = program!("configuration", file.to_str().unwrap());
    assert_eq!(service.try_next(), "200 200 200 200 200 429 429 ");

    std::fs::write(&file, limits.replace("limit = 5\n", "limitt = 5\n")).unwrap();
    let reload = service.next_command();
    program::shell(&reload);
    let line = service.next_line();
    assert!(line.starts_with("limits unchanged: ") && line.contains(".toml:7: unknown field `limitt`"), "{line}");

    std::fs::write(&file, limits.replace("limit = 5\n", "limit = 500\n")).unwrap();
    program::shell(&reload);
    assert_eq!(service.next_line(), "limits changed: all policies kept their state");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn testing() {
    let mut service = program!("testing");
    let statuses = service.try_next();
    assert!(statuses.starts_with(&"200 ".repeat(20)), "{statuses}");
    let seconds = service.try_next();
    assert_eq!(seconds.split_whitespace().count(), 5, "{seconds}");
}

#[test]
fn cors() {
    let answers = program!("cors").try_next();
    assert!(answers.contains("200 OK") && answers.contains("access-control-expose-headers"), "{answers}");
}

#[test]
fn custom_key() {
    let mut service = program!("custom_key");
    assert_eq!(service.try_next(), "200 200 200 429 ");
    assert_eq!(service.try_next(), "200 200 200 429 ");
}
