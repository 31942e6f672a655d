//! Services share the limits of one configuration on PostgreSQL.

use reqwest::Client;
use tokio::task::JoinSet;

use crate::server::PostgresServer;
use crate::service::{Service, file};

const LIMIT: usize = 777;

fn config(url: &str) -> String {
    // The time of a decision is longer than a busy machine pauses: otherwise, each service decides by itself.
    format!(
        "[store.shared]\nkind = \"postgres\"\nurl = \"{url}\"\ntimeout = \"60s\"\n\
         [[route]]\npath = \"/shop\"\n[[route.policy]]\nname = \"everybody\"\nalgorithm = \"fixed-window\"\n\
         limit = {LIMIT}\nper = \"365days\"\n"
    )
}

/// Runs the program with a configuration. Returns what it prints.
fn migration(config: &str) -> String {
    let config = file("migrated.toml", config);
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_sluice")).arg("migration").arg(config).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn two_services_admit_the_limit_exactly() {
    let server = PostgresServer::start();
    let config = config(&server.url());
    let statement = migration(&config);
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
