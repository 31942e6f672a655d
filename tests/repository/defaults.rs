//! Compares the guide's page of defaults with the source: each number with the constant that it documents, and the
//! settings with the builders' methods.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A setting's row begins with it and ends with the value; the source has the line.
#[test]
fn the_guide_has_the_sources_defaults() {
    let page = read("docs/guide/defaults.md");
    for (setting, value, file, line) in [
        ("`PeerIp::ipv6_prefix`", "64 bits", "src/http/key/network.rs", "IPV6_PREFIX: u8 = 64;"),
        ("`ChargeOnce::free_retries`", "1", "src/engine/policy/retries/mod.rs", "free_retries: 1,"),
        ("`ChargeOnce::max_keys`", "65,536", "src/engine/policy/retries/mod.rs", "const MAX_KEYS: usize = 65_536;"),
        (
            "`MemoryStore::with_capacity`",
            "65,536",
            "src/store/memory/settings.rs",
            "const DEFAULT_CAPACITY: usize = 65_536;",
        ),
        ("`LeakyQueue::max_wait`", "30 s", "src/limiter/wait_bounds.rs", "max_wait: Duration::from_secs(30)"),
        ("`LeakyQueue::max_waiters`", "65,536", "src/limiter/wait_bounds.rs", "max_waiters: 65_536"),
        ("`LeakyQueue::max_keys`", "65,536", "src/queue/schedule/mod.rs", "max_keys: 65_536"),
        ("`SlowDown::free`", "half of", "src/queue/slow_down.rs", "free: quota.max_burst() / 2,"),
        ("`SlowDown::step`", "1 s", "src/queue/slow_down.rs", "step: nanos_of(Duration::from_secs(1))"),
        ("`SlowDown::max_delay`", "30 s", "src/limiter/wait_bounds.rs", "max_wait: Duration::from_secs(30)"),
        ("`Concurrency::max_queue`", "0", "src/concurrency/limiter.rs", "WaitBounds::new(0)"),
        ("`Concurrency::max_wait`", "30 s", "src/limiter/wait_bounds.rs", "max_wait: Duration::from_secs(30)"),
        ("`Concurrency::max_waiters`", "65,536", "src/limiter/wait_bounds.rs", "max_waiters: 65_536"),
        ("`Balance::max_keys`", "1,048,576", "src/balance/limiter.rs", "const DEFAULT_MAX_KEYS: usize = 1_048_576;"),
        ("`Overload::limits`", "2 to 1,024", "src/overload/limiter.rs", "bounds: 2..=1_024,"),
        ("`Overload::starting_at`", "20", "src/overload/limiter.rs", "start: 20,"),
        ("`Overload::queue_target`", "20 ms", "src/overload/limiter.rs", "queue_target: Duration::from_millis(20),"),
        ("`Overload::max_wait`", "500 ms", "src/overload/limiter.rs", "max_wait: Duration::from_millis(500),"),
        ("`Overload::max_queue`", "1,024", "src/overload/limiter.rs", "max_queue: 1_024,"),
        ("`Concurrency::max_keys`", "65,536", "src/concurrency/limiter.rs", "const DEFAULT_MAX_KEYS: usize = 65_536;"),
        (
            "`RedisBuilder::timeout`",
            "50 ms",
            "crates/redis/src/connection/builder.rs",
            " timeout: Duration::from_millis(50),",
        ),
        (
            "`RedisBuilder::connect_timeout`",
            "1 s",
            "crates/redis/src/connection/builder.rs",
            "connect_timeout: Duration::from_secs(1),",
        ),
        ("`RedisBuilder::max_in_flight`", "4,096", "crates/redis/src/connection/builder.rs", "max_in_flight: 4_096,"),
        ("`RedisBuilder::prefix`", "`sluice`", "crates/redis/src/connection/builder.rs", "prefix: \"sluice\""),
        (
            "`SharedConcurrency::lease`",
            "10 s",
            "src/concurrency/shared/limiter.rs",
            "const DEFAULT_LEASE: Duration = Duration::from_secs(10);",
        ),
        (
            "`KeyValueBackend::bounded`",
            "100 ms, and 1,024",
            "src/store/remote/key_value.rs",
            "const TIMEOUT: Duration = Duration::from_millis(100);",
        ),
        (
            "`KeyValueBackend::bounded`",
            "100 ms, and 1,024",
            "src/store/remote/key_value.rs",
            "const MAX_IN_FLIGHT: usize = 1_024;",
        ),
        (
            "`PacerLayer::max_wait`",
            "60 s",
            "crates/client/src/pacer/layer.rs",
            "const MAX_WAIT: Duration = Duration::from_secs(60);",
        ),
        ("`PacerLayer::max_waiters`", "1,000", "crates/client/src/pacer/layer.rs", "const MAX_WAITERS: usize = 1_000;"),
        (
            "`PacerLayer::max_pause`",
            "1 hour",
            "crates/client/src/pacer/layer.rs",
            "const MAX_PAUSE: Duration = Duration::from_secs(3_600);",
        ),
        (
            "`AdaptiveThrottle::success_percent`",
            "50",
            "crates/client/src/pacer/throttle.rs",
            "const SUCCESS_PERCENT: u64 = 50;",
        ),
        (
            "`AdaptiveThrottle::window`",
            "2 minutes",
            "crates/client/src/pacer/throttle.rs",
            "const WINDOW: Duration = Duration::from_secs(120);",
        ),
        ("`PacerLayer::attempts`", "no bound", "crates/client/src/pacer/layer.rs", "const ATTEMPTS: u32 = u32::MAX;"),
    ] {
        assert!(read(file).contains(line), "{file} has no `{line}`: correct {setting} on the page, and this test");
        let row = page.lines().find(|row| row.starts_with(&format!("| [{setting}]")));
        let row = row.unwrap_or_else(|| panic!("the page has no row for {setting}"));
        let shown = row.rsplit(" | ").next().unwrap();
        assert!(shown.starts_with(value), "{setting} is {value}, and the page says: {shown}");
    }
}

/// A setting is a public method that takes the builder by value and returns it.
#[test]
fn the_guide_has_every_setting() {
    let page = read("docs/guide/defaults.md");
    let mut settings = 0;
    for file in [
        "src/algorithm/calendar/mod.rs",
        "src/algorithm/fixed_window.rs",
        "src/algorithm/sliding_window.rs",
        "src/balance/limiter.rs",
        "src/concurrency/limiter.rs",
        "src/concurrency/shared/limiter.rs",
        "src/http/headers/fields.rs",
        "src/http/headers/wait.rs",
        "src/http/key/client_ip.rs",
        "src/http/key/ip.rs",
        "src/http/layer/builder.rs",
        "crates/client/src/pacer/layer.rs",
        "crates/client/src/pacer/throttle.rs",
        "src/engine/policy/retries/mod.rs",
        "src/http/exemptions.rs",
        "src/engine/policy/definition.rs",
        "src/engine/policy/bans.rs",
        "crates/client/src/throttle.rs",
        "src/overload/limiter.rs",
        "src/queue/leaky_queue.rs",
        "src/queue/shared/shared_queue.rs",
        "src/queue/slow_down.rs",
        "src/store/memory/settings.rs",
        "crates/redis/src/connection/builder.rs",
        "crates/redis/src/store/store.rs",
        "src/store/remote/key_value.rs",
        "src/store/remote/store.rs",
        "src/values/quota.rs",
    ] {
        let text = read(file);
        for signature in text.split("    pub ").skip(1) {
            let signature = signature.split('{').next().unwrap();
            let signature = signature.strip_prefix("const ").unwrap_or(signature);
            let Some((name, rest)) = signature.strip_prefix("fn ").and_then(|rest| rest.split_once('(')) else {
                continue;
            };
            let name = name.split('<').next().unwrap();
            let rest = rest.trim_start();
            let by_value = rest.starts_with("self") || rest.starts_with("mut self");
            // These turn a builder into something else, or are `burst` with an error.
            if !by_value || ["open", "build", "try_build", "parse", "try_burst"].contains(&name) {
                continue;
            }
            settings += 1;
            // The last is a link to another package's documentation.
            let links = [format!("::{name}]"), format!("::{name}`"), format!("#method.{name})")];
            let is_shown = links.iter().any(|link| page.contains(link));
            assert!(is_shown, "{file}: `{name}` is a setting without a row in docs/guide/defaults.md");
        }
    }
    assert!(settings > 60, "only {settings} settings were found");
}
