//! The network between the processes and the servers: streams in this process, and their faults.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::account::Reply;
use super::server::{Data, Server, take_command};
use crate::connection::Connector;
use crate::script::random::Xorshift;
use crate::script::{SLOTS, crc16};

pub(super) struct Network(Mutex<NetworkState>);

pub(super) struct NetworkState {
    pub(super) random: Xorshift,
    pub(super) began: Instant,
    pub(super) servers: Vec<Server>,
    /// Each shard has some of the slots.
    pub(super) shards: Vec<Shard>,
    is_cluster: bool,
    /// By process and server.
    links: Vec<Vec<Link>>,
    /// The delay in one direction, in milliseconds: the least, and the most that is added.
    delay: (u64, u64),
    connections: Vec<Connection>,
    /// The sum of each key's charges, without losses and refunds.
    pub(super) charged: BTreeMap<Vec<u8>, u64>,
    /// A task in the simulation panicked.
    pub(super) has_panicked: bool,
    /// The events, if the run is logged.
    pub(super) log: Option<Vec<String>>,
}

pub(super) struct Shard {
    pub(super) primary: usize,
    pub(super) standby: usize,
    /// The data that the standby has copied.
    pub(super) copy: Data,
}

/// The faults in the packets between a process and a server, and until when they last.
#[derive(Clone)]
pub(super) struct Link {
    /// Packets are delivered late, as after repeated sending: to the server, and from it.
    pub(super) stalled: [Instant; 2],
    /// New connections are refused.
    pub(super) refuses: Instant,
    /// Connections are reset in place of an answer.
    pub(super) swallows: Instant,
    /// No answer gets through, from the first instant to the second.
    pub(super) dead: Option<(Instant, Instant)>,
    /// The first connection since the server has become the primary.
    pub(super) connected: Option<Instant>,
}

struct Connection {
    process: usize,
    server: usize,
    task: AbortHandle,
    /// The server has forgotten the connection, and the process does not know.
    is_lost: Arc<AtomicBool>,
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

impl Network {
    /// Makes one server and a standby for each shard. With `shards` 0, there is a single server and its standby.
    pub(super) fn new(seed: u64, processes: usize, shards: usize, delay: (u64, u64), is_logged: bool) -> Arc<Self> {
        let now = Instant::now();
        let count = shards.max(1);
        let link = Link { stalled: [now; 2], refuses: now, swallows: now, dead: None, connected: None };
        let mut servers: Vec<_> = (0..2 * count).map(|_| Server::new(now)).collect();
        servers[count..].iter_mut().for_each(|standby| standby.is_replica = true);
        Arc::new(Self(Mutex::new(NetworkState {
            random: Xorshift::from_seed(seed ^ 0x006e_6574),
            began: now,
            servers,
            shards: (0..count).map(|at| Shard { primary: at, standby: count + at, copy: Data::default() }).collect(),
            is_cluster: shards > 0,
            links: vec![vec![link; 2 * count]; processes],
            delay,
            connections: Vec::new(),
            charged: BTreeMap::new(),
            has_panicked: false,
            log: is_logged.then(Vec::new),
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a process's connector.
    pub(super) fn connector(self: &Arc<Self>, process: usize) -> Connector {
        let network = Arc::clone(self);
        Connector(Arc::new(move |address| Box::pin(Arc::clone(&network).connect(process, address))))
    }

    async fn connect(self: Arc<Self>, process: usize, address: String) -> io::Result<DuplexStream> {
        let (server, there, back) = {
            let mut state = self.lock();
            let server = state.server_at(&address);
            (server, state.draw_delay(), state.draw_delay())
        };
        sleep(there).await;
        self.pass(process, server, Direction::Up).await;
        self.pass(process, server, Direction::Down).await;
        let (client, stream) = duplex(1 << 20);
        {
            let mut state = self.lock();
            let now = Instant::now();
            let link = state.links[process][server].clone();
            if !state.servers[server].is_up || now < link.refuses {
                state.note(format_args!("process {process} is refused by server {server}"));
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            state.note(format_args!("process {process} connects to server {server}"));
            let is_lost = Arc::new(AtomicBool::new(false));
            let serve = Arc::clone(&self).serve(process, server, stream, Arc::clone(&is_lost));
            let task = tokio::spawn(serve).abort_handle();
            state.connections.retain(|it| !it.task.is_finished());
            state.connections.push(Connection { process, server, task, is_lost });
            let Link { dead, connected, .. } = &mut state.links[process][server];
            connected.get_or_insert(now);
            *dead = dead.filter(|(_, until)| now < *until && *until < now + FOREVER / 2);
        }
        sleep(back).await;
        Ok(client)
    }

    /// Serves a connection. Commands and answers travel in order, many at a time.
    async fn serve(self: Arc<Self>, process: usize, server: usize, stream: DuplexStream, is_lost: Arc<AtomicBool>) {
        let _watch = PanicWatch(&self);
        let (mut from_client, mut to_client) = split(stream);
        let (send_command, mut commands) = unbounded_channel();
        let (send_answer, mut answers) = unbounded_channel();
        let arrival = |last: &mut Instant| {
            *last = (*last).max(Instant::now() + self.lock().draw_delay());
            *last
        };
        let reads = async {
            let mut bytes = Vec::new();
            let mut last = Instant::now();
            while from_client.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
                while let Some(command) = take_command(&mut bytes) {
                    let _ = send_command.send((arrival(&mut last), command));
                }
            }
            Err::<(), ()>(())
        };
        let executes = async {
            let mut last = Instant::now();
            while let Some((at, command)) = commands.recv().await {
                self.travel(process, server, Direction::Up, at, &is_lost).await;
                loop {
                    let until = self.lock().servers[server].paused_until;
                    if until <= Instant::now() {
                        break;
                    }
                    sleep_until(until).await;
                }
                let mut answer = Vec::new();
                self.lock().execute(process, server, &command).write(&mut answer);
                let _ = send_answer.send((arrival(&mut last), answer));
            }
            Err::<(), ()>(())
        };
        let writes = async {
            while let Some((at, answer)) = answers.recv().await {
                self.travel(process, server, Direction::Down, at, &is_lost).await;
                let swallows = self.lock().links[process][server].swallows;
                if Instant::now() < swallows || to_client.write_all(&answer).await.is_err() {
                    return Err::<(), ()>(());
                }
            }
            Err(())
        };
        let _ = tokio::try_join!(reads, executes, writes);
    }

    async fn travel(&self, process: usize, server: usize, direction: Direction, at: Instant, is_lost: &AtomicBool) {
        sleep_until(at).await;
        self.pass(process, server, direction).await;
        if is_lost.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    }

    /// Waits until packets pass.
    async fn pass(&self, process: usize, server: usize, direction: Direction) {
        loop {
            let until = self.lock().links[process][server].stalled[direction as usize];
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// Notes a panic in the task that drops it. The runtime would catch the panic.
pub(super) struct PanicWatch<'a>(pub(super) &'a Network);

impl Drop for PanicWatch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().has_panicked = true;
        }
    }
}

/// Longer than any run.
pub(super) const FOREVER: Duration = Duration::from_secs(1_000);

impl NetworkState {
    pub(super) fn note(&mut self, event: std::fmt::Arguments<'_>) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>6} ms  {event}", self.began.elapsed().as_millis()));
        }
    }

    fn draw_delay(&mut self) -> Duration {
        Duration::from_millis(self.delay.0 + self.random.below(self.delay.1 + 1))
    }

    /// Returns the server at an address. A single server has one name, which leads to its successor after a failover.
    fn server_at(&self, address: &str) -> usize {
        if !self.is_cluster {
            return self.shards[0].primary;
        }
        let host = address.strip_prefix("10.0.0.").and_then(|rest| rest.split(':').next()?.parse::<usize>().ok());
        host.expect("an address of ours") - 1
    }

    pub(super) fn shard_of(&self, slot: u16) -> usize {
        usize::from(slot) * self.shards.len() / usize::from(SLOTS)
    }

    pub(super) fn link(&mut self, process: usize, server: usize) -> &mut Link {
        &mut self.links[process][server]
    }

    /// No process knows yet that a server is a primary.
    pub(super) fn begin_as_primary(&mut self, server: usize) {
        self.links.iter_mut().for_each(|links| links[server].connected = None);
    }

    /// Ends a process's connections to a server. While packets are lost, the process does not notice.
    pub(super) fn end_connections(&mut self, process: usize, server: usize, silently: bool) {
        let now = Instant::now();
        let is_stalled = self.links[process][server].stalled.iter().any(|until| now < *until);
        for connection in &self.connections {
            if (connection.process, connection.server) != (process, server) {
                continue;
            }
            if silently || is_stalled {
                connection.is_lost.store(true, Ordering::Relaxed);
            } else {
                connection.task.abort();
            }
        }
    }

    fn execute(&mut self, process: usize, server: usize, command: &[Vec<u8>]) -> Reply {
        let reply = self.redirect(server, command).unwrap_or_else(|| self.servers[server].execute(command));
        for (key, charged) in self.servers[server].data.accounts.take_charged() {
            *self.charged.entry(key).or_default() += charged;
        }
        if self.log.is_some() {
            let shown =
                |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).replace(['\r', '\n'], " ");
            let words: Vec<_> = command.iter().map(|word| shown(word)).collect();
            let mut answer = Vec::new();
            reply.write(&mut answer);
            self.note(format_args!("server {server}, of process {process}: {} → {}", words.join(" "), shown(&answer)));
        }
        reply
    }

    /// Returns the answer by a cluster's node that does not carry out a command.
    fn redirect(&self, server: usize, command: &[Vec<u8>]) -> Option<Reply> {
        let name = command[0].as_slice();
        if !self.is_cluster {
            return None;
        }
        if name == b"CLUSTER" {
            let node = |at: usize| {
                Reply::List(vec![Reply::Text(format!("10.0.0.{}", at + 1).into_bytes()), Reply::Number(6379)])
            };
            let count = self.shards.len();
            let slots = usize::from(SLOTS);
            let first = |at: usize| (at * slots).div_ceil(count) as i64;
            let rows = self.shards.iter().enumerate().map(|(at, shard)| {
                let range = [Reply::Number(first(at)), Reply::Number(first(at + 1) - 1)];
                Reply::List(range.into_iter().chain([node(shard.primary), node(shard.standby)]).collect())
            });
            return Some(Reply::List(rows.collect()));
        }
        if !name.starts_with(b"EVAL") {
            return None;
        }
        let count: usize = std::str::from_utf8(&command[2]).unwrap().parse().unwrap();
        let slots: Vec<_> = command[3..3 + count].iter().map(|key| slot_of(key)).collect();
        if slots.iter().any(|slot| *slot != slots[0]) {
            return Some(Reply::Error("CROSSSLOT Keys in request don't hash to the same slot".to_owned()));
        }
        let owner = self.shards[self.shard_of(slots[0])].primary;
        (owner != server).then(|| Reply::Error(format!("MOVED {} 10.0.0.{}:6379", slots[0], owner + 1)))
    }
}

fn slot_of(key: &[u8]) -> u16 {
    let tag = key.split(|byte| *byte == b'{' || *byte == b'}').nth(1).unwrap_or(key);
    crc16(tag) % SLOTS
}
