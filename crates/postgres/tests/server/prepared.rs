//! A program that makes its store from a file has its tables when it begins, even if another role has created them.

use std::sync::Arc;

use tokio_postgres::Client;
use tower_sluice_config::store::Store;
use tower_sluice_config::{Config, ConfigError};

use super::server::PostgresServer;
use super::*;

/// The store from a file that names this address.
fn store(url: &str) -> Arc<dyn Store> {
    let open = || -> Result<_, ConfigError> {
        let reader = Config::reader().store("postgres", tower_sluice_postgres::file::open);
        reader.open_store("store.toml", &format!("[store.postgres]\nurl = {url:?}"))
    };
    open().expect("one store")
}

/// A new database, and a client to it.
async fn empty_database() -> (String, Client) {
    let url = PostgresServer::shared().database();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    (url, client)
}

/// Makes a role with the guide's grants, and returns the address with its name.
async fn role(url: &str, client: &Client, name: &str, grant: &str) -> String {
    let name = format!("{name}_{}", std::process::id());
    client.batch_execute(&format!("CREATE ROLE {name} LOGIN; {}", grant.replace("ROLE", &name))).await.unwrap();
    url.replace("postgres@", &format!("{name}@"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_create_the_tables_at_once() {
    for _ in 0..10 {
        let (url, client) = empty_database().await;
        let starts: Vec<_> = (0..16)
            .map(|_| {
                let store = store(&url);
                tokio::spawn(async move { store.prepare().await.map_err(|error| error.to_string()) })
            })
            .collect();
        for start in starts {
            start.await.unwrap().expect("one of them creates the tables, and the others find them");
        }
        client.batch_execute("SELECT FROM sluice_state, sluice_state_records").await.expect("both tables");
    }
}

#[tokio::test]
async fn a_role_without_create_finds_tables() {
    let (url, client) = empty_database().await;
    let as_owner = Postgres::new(pool(&url, 1));
    as_owner.migrate().await.unwrap();
    let grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON sluice_state, sluice_state_records TO ROLE";
    let as_role = role(&url, &client, "finds", grant).await;
    store(&as_role).prepare().await.expect("the tables are there");
}

#[tokio::test]
async fn a_role_without_any_permission_fails() {
    let (url, client) = empty_database().await;
    let as_role = role(&url, &client, "neither", "SELECT 1").await;
    let error = format!("{:#}", store(&as_role).prepare().await.expect_err("there is no table"));
    assert!(error.contains("permission denied"), "{error}");
}
