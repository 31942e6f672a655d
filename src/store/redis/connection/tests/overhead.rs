//! What our part of a call costs, against the connection alone: in time, and in the processor time of this process,
//! which depends less on what else is running.

use std::fs;

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
        let mut rounds: [Vec<(u64, u64)>; 2] = Default::default();
        for _ in 0..15 {
            let ours = run(concurrency, || {
                let (redis, call) = (redis.clone(), add("a"));
                async move {
                    for _ in 0..CALLS / concurrency {
                        redis.call(&call).await.unwrap();
                    }
                }
            });
            rounds[0].push(ours.await);
            let theirs = run(concurrency, || {
                let (mut bare, key) = (bare.clone(), key("a"));
                async move {
                    for _ in 0..CALLS / concurrency {
                        let mut command = ::redis::cmd("EVALSHA");
                        command.arg(ADD.hash()).arg(1).arg(key.as_str()).arg(1);
                        bare.send_packed_command(&command).await.unwrap();
                    }
                }
            });
            rounds[1].push(theirs.await);
        }
        let median = |which: usize, value: fn(&(u64, u64)) -> u64| {
            let mut values: Vec<_> = rounds[which].iter().map(value).collect();
            values.sort_unstable();
            values[values.len() / 2]
        };
        println!("{concurrency} at a time, medians in nanoseconds per call, ours and the connection's alone:");
        println!("  time {} and {}", median(0, |it| it.0), median(1, |it| it.0));
        println!("  processor {} and {}", median(0, |it| it.1), median(1, |it| it.1));
    }
}

/// Nanoseconds per call: that passed, and of the processor.
async fn run<F: Future<Output = ()> + Send + 'static>(concurrency: u32, work: impl Fn() -> F) -> (u64, u64) {
    let (start, processor) = (Instant::now(), processor_time());
    let tasks: Vec<_> = (0..concurrency).map(|_| tokio::spawn(work())).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let passed = u64::try_from(start.elapsed().as_nanos()).unwrap();
    (passed / u64::from(CALLS), (processor_time() - processor) / u64::from(CALLS))
}

/// Returns the processor time of all threads, in nanoseconds.
fn processor_time() -> u64 {
    let threads = fs::read_dir("/proc/self/task").expect("Linux");
    let times = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap());
    times.map(|text| text.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}
