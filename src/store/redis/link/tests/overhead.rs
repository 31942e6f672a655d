//! What our part of a call costs, against the connection alone.

use super::*;

const CALLS: u32 = 40_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, for a quiet machine: cargo test --release --lib overhead -- --ignored --nocapture"]
async fn overhead() {
    let server = RedisServer::start();
    let redis = patient(&server);
    charge(&redis, "a").await.unwrap();
    let client = ::redis::Client::open(server.url()).unwrap();
    let bare = client.get_multiplexed_async_connection().await.unwrap();
    for concurrency in [1, 64] {
        let mut ratios = Vec::new();
        for _ in 0..9 {
            let ours = rate(concurrency, || {
                let (redis, call) = (redis.clone(), add("a"));
                async move {
                    for _ in 0..CALLS / concurrency {
                        redis.call(&call).await.unwrap();
                    }
                }
            });
            let ours = ours.await;
            let theirs = rate(concurrency, || {
                let (mut bare, key) = (bare.clone(), key("a"));
                async move {
                    for _ in 0..CALLS / concurrency {
                        let mut command = ::redis::cmd("EVALSHA");
                        command.arg(ADD.hash()).arg(1).arg(key.as_str()).arg(1);
                        bare.send_packed_command(&command).await.unwrap();
                    }
                }
            });
            let theirs = theirs.await;
            ratios.push((ours * 1_000 / theirs, ours, theirs));
        }
        ratios.sort_unstable();
        println!("{concurrency} at a time: {:?} thousandths, ours and theirs per second", ratios[4]);
        println!("  all: {:?}", ratios.iter().map(|it| it.0).collect::<Vec<_>>());
    }
}

async fn rate<F: Future<Output = ()> + Send + 'static>(concurrency: u32, work: impl Fn() -> F) -> u128 {
    let start = Instant::now();
    let tasks: Vec<_> = (0..concurrency).map(|_| tokio::spawn(work())).collect();
    for task in tasks {
        task.await.unwrap();
    }
    u128::from(CALLS) * 1_000_000 / start.elapsed().as_micros()
}
