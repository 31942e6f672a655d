//! The subjects that decide through PostgreSQL, each through its own public API.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use tower::Layer;
use tower_rate_limiter::{GcraQuota, PostgresGcra, RateLimitPolicy as _};
use tower_sluice::{Limiter, PartitionKey, RateLimitLayer};
use tower_sluice_postgres::Postgres;

use crate::load::{self, Hello, Layered, Outcome, text};
use crate::ours::{self, Adds};
use crate::rows::{Driver, Make, Terms, single};
use crate::server::Server;

pub enum Subject {
    Select(Pool),
    Count(Pool),
    Limiters(Vec<Arc<dyn Limiter>>),
    Layer(Layered<<RateLimitLayer as Layer<Hello>>::Service>),
    Peer(Vec<PostgresGcra>),
}

impl Subject {
    pub async fn new(server: &Server, make: Make, terms: Terms, connections: usize) -> Outcome<Self> {
        // More patient than by default, so that a pause in the machine causes a late answer and not a failure.
        let patient = |postgres: Postgres| postgres.timeout(Duration::from_secs(5));
        Ok(match make {
            Make::Select => Self::Select(server.deadpool(connections)?),
            Make::Count => Self::Count(server.deadpool(connections)?),
            Make::Limiters(driver, limiters) => {
                let postgres = match driver {
                    Driver::Deadpool => Postgres::new(server.deadpool(connections)?),
                    Driver::Bb8 => Postgres::new(server.bb8(connections).await?),
                    Driver::Sqlx => Postgres::new(server.older_sqlx(connections).await?),
                };
                Self::Limiters(limiters(&patient(postgres), terms))
            }
            Make::Layer(policies) => {
                let postgres = patient(Postgres::new(server.deadpool(connections)?));
                let policies = load::policies(policies, |name| single(&postgres, name, terms));
                Self::Layer(Layered::new(&ours::layer(policies, Adds::Fields)))
            }
            Make::Peer { policies, pings } => {
                let quota = GcraQuota::new(terms.rate, terms.period, terms.burst).map_err(text)?;
                let pool = server.sqlx(connections, pings).await?;
                let policy = |number| PostgresGcra::new(pool.clone(), quota).with_namespace(format!("policy-{number}"));
                Self::Peer((0..policies).map(policy).collect())
            }
        })
    }
}

impl load::Subject for Subject {
    async fn ask(&self, keys: &[Arc<String>], index: usize) -> Outcome<bool> {
        match self {
            Self::Select(pool) => {
                let client = pool.get().await.map_err(text)?;
                let statement = client.prepare_cached("SELECT 1").await.map_err(text)?;
                client.query_one(&statement, &[]).await.map_err(text)?;
                Ok(true)
            }
            Self::Count(pool) => {
                const COUNT: &str = "INSERT INTO counts AS c (key, n) VALUES ($1, 1) \
                    ON CONFLICT (key) DO UPDATE SET n = c.n + 1 RETURNING n";
                let client = pool.get().await.map_err(text)?;
                let statement = client.prepare_cached(COUNT).await.map_err(text)?;
                let row = client.query_one(&statement, &[&*keys[index]]).await.map_err(text)?;
                Ok(row.get::<_, i64>(0) > 0)
            }
            Self::Limiters(limiters) => {
                let mut admits = true;
                for limiter in limiters {
                    admits &= ours::decide(&**limiter, &PartitionKey::from(&*keys[index])).await?.is_allowed();
                }
                Ok(admits)
            }
            Self::Layer(service) => service.ask(&keys[index]).await,
            Self::Peer(policies) => {
                let mut admits = true;
                for policy in policies {
                    admits &= !policy.check(keys[index].to_string()).await.map_err(text)?.is_rate_limited();
                }
                Ok(admits)
            }
        }
    }
}
