//! Two servers that keep their limits on one Redis, or on one PostgreSQL.

use std::thread;

use crate::client::get_with;
use crate::server::Server;
use crate::timing::await_until;

const LIMIT: usize = 500;

fn route() -> String {
    format!(
        "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"fixed-window\"\nlimit = {LIMIT}\n\
         per = \"100days\"\nkey = \"header:x-client\"\non-failure = \"reject\"\n"
    )
}

/// Together they admit exactly the limit, unless the store misses its timeout.
#[cfg(feature = "redis")]
#[test]
fn servers_on_redis_admit_the_limit() {
    let redis = crate::redis::RedisServer::start();
    admit_exactly_the_limit(&[(); 2].map(|()| Server::start_on(&redis.url(), &route())));
}

/// Together they admit exactly the limit, unless the store misses its timeout.
#[cfg(feature = "postgres")]
#[test]
fn servers_on_postgres_admit_the_limit() {
    let postgres = crate::postgres::PostgresServer::start();
    let config = format!("[store.postgres]\nurl = \"{}\"\ntimeout = \"1s\"\n{}", postgres.url(), route());
    let reader = tower_sluice_config::Config::reader().store("postgres", tower_sluice_postgres::file::open);
    let migrations = reader.parse("server.toml", &config).unwrap();
    postgres.run(&migrations.migrations()[0].1);
    admit_exactly_the_limit(&[(); 2].map(|()| Server::start_with(&config)));
}

fn admit_exactly_the_limit(servers: &[Server; 2]) {
    let outcomes = thread::scope(|scope| {
        let asking: Vec<_> = (0..8)
            .map(|number| {
                let address = servers[number % 2].address;
                let ask = move || get_with(address, "/a", &[("x-client", "a")]).status;
                scope.spawn(move || (0..125).map(|_| ask()).collect::<Vec<_>>())
            })
            .collect();
        asking.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    // If the machine is so busy that the store misses the timeout, the request is rejected, whether it was charged or
    // not. Then less is known, but never more admitted.
    let count = |status| outcomes.iter().filter(|it| **it == status).count();
    let (admitted, rejected, failed) = (count(200), count(429), count(503));
    assert_eq!((admitted + rejected + failed, outcomes.len()), (2 * LIMIT, 2 * LIMIT));
    assert!(admitted <= LIMIT && admitted + failed >= LIMIT, "{admitted} {rejected} {failed}");
    // Both are used up for good.
    for server in servers {
        let ask = || get_with(server.address, "/a", &[("x-client", "a")]).status;
        await_until("the store rejects", || ask() == 429);
    }
}
