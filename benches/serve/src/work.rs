//! The inside of a cell: one thread sends many concurrent requests.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::connection::{Client, connect};
use crate::load::{Outcome, text};
use crate::machine;
use crate::protocol::{EXACTLY, Limit, Protocol};
use crate::rows::Row;
use crate::server::Server;

/// How many requests are under way at a time.
pub const IN_FLIGHT: usize = 64;

/// The fixed rate in requests per second.
pub const RATE: u32 = 2_000;

/// Request keys are drawn from this many.
pub const KEYS: u64 = 100_000;

/// Microseconds, unless stated otherwise.
#[derive(Clone, Copy)]
pub struct Sample {
    pub per_second: f64,
    /// The server's processor time for a request.
    pub server: f64,
    /// The processor time of the thread that asks.
    pub client: f64,
    /// At the fixed rate.
    pub p50: f64,
    pub p99: f64,
}

/// Measures one server, which is started for it.
pub async fn measure(row: Row, time: Duration) -> Outcome<Sample> {
    let server = Server::start(row.program, row.settings)?;
    let mut clients = connect(server.address(row.protocol), row.protocol, IN_FLIGHT).await?;
    let mut keys = Keys(1);
    // Once most keys, so that few are new to the server later.
    clients = ask_until(clients, keys.until(time / 4)).await?.1;

    let (before, thread) = (server.processor()?, machine::thread_time());
    let begun = Instant::now();
    let (requests, clients) = ask_until(clients, keys.until(time)).await?;
    let elapsed = begun.elapsed().as_secs_f64();
    let thread = machine::thread_time().zip(thread).map(|(after, before)| after - before);
    let used = server.processor()? - before;

    let mut waits = ask_at_rate(clients, &mut keys, time).await?;
    waits.sort_unstable();
    let [p50, p99] =
        [50, 99].map(|percent| waits.get(waits.len() * percent / 100).map_or(f64::NAN, |it| *it as f64 / 1e3));
    Ok(Sample {
        per_second: requests as f64 / elapsed,
        server: used as f64 / 1e3 / requests as f64,
        client: thread.map_or(f64::NAN, |nanos| nanos as f64 / 1e3 / requests as f64),
        p50,
        p99,
    })
}

/// A server's resident memory in bytes.
#[derive(Clone, Copy)]
pub struct Size {
    /// When it has started.
    pub empty: u64,
    /// After a request for each key.
    pub full: u64,
}

pub async fn size(row: Row, keys: u64) -> Outcome<Size> {
    let server = Server::start(row.program, row.settings)?;
    let clients = connect(server.address(row.protocol), row.protocol, IN_FLIGHT).await?;
    let empty = server.resident()?;
    let mut next = 0..keys;
    ask_until(clients, move || next.next()).await?;
    Ok(Size { empty, full: server.resident()? })
}

/// Sends twice the low limit for one key concurrently. Returns how many requests are admitted.
pub async fn admitted(server: &Server, protocol: Protocol) -> Outcome<u32> {
    let clients = connect(server.address(protocol), protocol, 2 * EXACTLY as usize).await?;
    let mut tasks = JoinSet::new();
    for mut client in clients {
        tasks.spawn(async move { client.ask(Limit::Low, 0).await });
    }
    let mut admitted = 0;
    while let Some(answer) = tasks.join_next().await {
        admitted += u32::from(answer.map_err(text)??);
    }
    Ok(admitted)
}

/// Lets every client ask for one key after the other, until there is none. Returns how many were asked for.
async fn ask_until(clients: Vec<Client>, next: impl FnMut() -> Option<u64> + 'static) -> Outcome<(u64, Vec<Client>)> {
    let next = Rc::new(RefCell::new(next));
    let local = tokio::task::LocalSet::new();
    let tasks: Vec<_> =
        clients.into_iter().map(|client| local.spawn_local(ask_in_turn(client, Rc::clone(&next)))).collect();
    local
        .run_until(async {
            let (mut requests, mut clients) = (0, Vec::new());
            for task in tasks {
                let (asked, client) = task.await.map_err(text)??;
                requests += asked;
                clients.push(client);
            }
            Ok((requests, clients))
        })
        .await
}

async fn ask_in_turn(mut client: Client, next: Rc<RefCell<impl FnMut() -> Option<u64>>>) -> Outcome<(u64, Client)> {
    let mut requests = 0;
    loop {
        let Some(key) = (next.borrow_mut())() else { return Ok((requests, client)) };
        ask(&mut client, key).await?;
        requests += 1;
    }
}

/// Asks at [`RATE`], whether or not earlier requests were answered. Returns the nanoseconds from when each request was
/// due to its answer.
async fn ask_at_rate(mut clients: Vec<Client>, keys: &mut Keys, time: Duration) -> Outcome<Vec<u64>> {
    let interval = Duration::from_secs(1) / RATE;
    let (begun, mut due) = (Instant::now(), Duration::ZERO);
    let (mut tasks, mut waits) = (JoinSet::new(), Vec::new());
    while due < time || !tasks.is_empty() {
        while let Some(done) = tasks.try_join_next() {
            let (wait, client) = done.map_err(text)??;
            waits.push(wait);
            clients.push(client);
        }
        if due < time && begun.elapsed() >= due {
            // Without a client, the request waits for one, and that counts.
            if let Some(mut client) = clients.pop() {
                let (key, due_at) = (keys.next(), begun + due);
                tasks.spawn(async move {
                    ask(&mut client, key).await?;
                    Outcome::Ok((due_at.elapsed().as_nanos() as u64, client))
                });
                due += interval;
            }
        }
        // Timers are a millisecond late.
        tokio::task::yield_now().await;
    }
    Ok(waits)
}

async fn ask(client: &mut Client, key: u64) -> Outcome<()> {
    if client.ask(Limit::High, key).await? { Ok(()) } else { Err("rejects".to_owned()) }
}

/// Draws keys, all equally often (SplitMix64).
struct Keys(u64);

impl Keys {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % KEYS
    }

    /// Keys for this time.
    fn until(&mut self, time: Duration) -> impl FnMut() -> Option<u64> + 'static {
        let mut keys = Self(self.next());
        let end = Instant::now() + time;
        move || (Instant::now() < end).then(|| keys.next())
    }
}
