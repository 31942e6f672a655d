//! Services share one configuration's limits on PostgreSQL.

use std::process::Command;

use reqwest::Client;
use tokio::task::JoinSet;

use crate::server::PostgresServer;
use crate::service::{Service, file};

const LIMIT: usize = 777;

fn config(url: &str) -> String {
    // The timeout is longer than a busy machine pauses. Otherwise, each service would decide by itself.
    format!(
        "[store.shared]\nkind = \"postgres\"\nurl = \"{url}\"\ntimeout = \"60s\"\n\
         [[route]]\npath = \"/shop\"\n[[route.policy]]\nname = \"everybody\"\nalgorithm = \"fixed-window\"\n\
         limit = {LIMIT}\nper = \"365days\"\n"
    )
}

/// Runs `sluice migration` with a configuration and more arguments. Returns its output and its error.
fn migration(config: &str, more: &[&str]) -> (String, String) {
    let config = file("migrated.toml", config);
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    let output = command.arg("migration").arg(config).args(more).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn statements_of_two_servers_are_printed_apart() {
    let stores = config("postgres://h/d")
        + "[store.other]\nkind = \"postgres\"\nurl = \"postgres://h/e\"\ntable = \"limits.other\"\n";
    let stores = stores.replace("[[route.policy]]", "[[route.policy]]\nstore = \"shared\"");
    let (printed, error) = migration(&stores, &[]);
    assert!(printed.is_empty() && error.ends_with(": write --store with one of other, shared\n"), "{printed}{error}");
    let (printed, _) = migration(&stores, &["--store", "other"]);
    assert!(printed.starts_with("-- [store.other]\n") && printed.contains("\"limits\".\"other\""), "{printed}");
    let (_, error) = migration(&stores, &["--store", "memory"]);
    assert!(error.ends_with(": write --store with one of other, shared\n"), "{error}");
    let (_, start) = stores.split_once("[[route]]").unwrap();
    let memory = "[[route]]".to_owned() + start.split("[store.other]").next().unwrap();
    let (_, error) = migration(&memory.replace("store = \"shared\"\n", ""), &[]);
    assert!(error.contains(" has no store that needs a statement"), "{error}");
}

/// Proxies take a 5xx for a failing limiter, and let the request pass.
#[tokio::test]
async fn dead_stores_reject_if_configured() {
    let dead = |mode: &str| {
        config("postgres://127.0.0.1:1/d").replace("\"60s\"", "\"1s\"") + &format!("on-failure = \"{mode}\"\n")
    };
    for (mode, status) in [("reject", 429), ("allow", 200), ("local-fallback", 200)] {
        let service = Service::start(&dead(mode));
        let asked = Client::new().get(service.url("/auth")).header("x-forwarded-uri", "/shop").send().await.unwrap();
        assert_eq!(asked.status(), status, "{mode}");
    }
}

#[tokio::test]
async fn two_services_admit_the_limit_exactly() {
    let server = PostgresServer::start();
    let config = config(&server.url());
    let (statement, error) = migration(&config, &[]);
    assert!(error.is_empty(), "{error}");
    assert!(statement.starts_with("-- [store.shared]\n"), "{statement}");
    server.run(statement.split_once('\n').unwrap().1);
    let services = [Service::start(&config), Service::start(&config)];
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let (client, url) = (Client::new(), services[number % 2].url("/auth"));
        clients.spawn(async move {
            let mut admitted = 0;
            for _ in 0..120 {
                let asked = client.get(&url).header("x-forwarded-uri", "/shop").send().await.unwrap();
                assert!([200, 429, 503].contains(&asked.status().as_u16()), "{asked:?}");
                admitted += usize::from(asked.status() == 200);
            }
            admitted
        });
    }
    assert_eq!(clients.join_all().await.into_iter().sum::<usize>(), LIMIT);
}

/// The file on the guide's page about plans, on PostgreSQL.
fn plans(url: &str) -> String {
    let page = include_str!("../../../../docs/guide/plans.md");
    let (_, file) = page.split_once("```toml\n").expect("the page has a file");
    let (file, _) = file.split_once("```\n").expect("the file ends");
    let mut text = format!("[store.shared]\nkind = \"postgres\"\nurl = \"{url}\"\ntimeout = \"60s\"\n");
    for line in file.lines() {
        text += line;
        text.push('\n');
    }
    text
}

#[tokio::test]
async fn the_guides_plans_are_shared_on_postgresql() {
    let server = PostgresServer::start();
    let config = plans(&server.url());
    let (statement, error) = migration(&config, &[]);
    assert!(error.is_empty(), "{error}");
    server.run(statement.split_once('\n').unwrap().1);
    let services = [Service::start(&config), Service::start(&config)];
    let client = Client::new();
    for asked in 1..=20_u64 {
        for (key, plan, month) in [("bob", "free", 1_000), ("ada", "pro", 1_000_000)] {
            let service = &services[usize::from(asked % 2 == 0)];
            let request = client.get(service.url("/auth")).header("x-forwarded-uri", "/v1/orders");
            let answer = request.header("x-api-key", key).header("x-plan", plan).send().await.unwrap();
            let left = answer.headers()["ratelimit"].to_str().unwrap();
            assert!(left.contains(&format!("\"month\";r={};", month - asked)), "{key}: {left}");
            assert_eq!(answer.status(), 200, "{key}: {left}");
        }
    }
}
