//! A TCP proxy that delays, cuts and loses data, as networks do. The fault is set while it runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// How the proxy treats bytes that are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Pass,
    /// Delays answers by this time.
    Latency(Duration),
    /// Nothing arrives, in either direction, until this ends.
    BlackHole,
    /// Connections are reset, new ones too.
    Reset,
    /// Connections, new ones too, never receive anything again, and are not closed.
    HalfOpen,
    /// The server receives everything, the client nothing; answers sent meanwhile are lost.
    Swallow,
    /// Each byte by itself.
    Slices,
}

#[derive(Default)]
struct Seen {
    connections: AtomicU64,
    bytes: AtomicU64,
}

/// Runs in its own thread, so that it works regardless of a test's runtimes. Stopped when dropped.
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    server: watch::Sender<SocketAddr>,
    seen: Arc<Seen>,
    _stop: oneshot::Sender<()>,
}

impl Proxy {
    pub fn to(server: SocketAddr) -> Self {
        Self::at(server, Duration::ZERO)
    }

    /// For a server that is `round_trip` away: each answer arrives later by that time, however many are in flight.
    pub fn at(server: SocketAddr, round_trip: Duration) -> Self {
        let (mode, receiver) = watch::channel(Mode::Pass);
        let (stop, stopped) = oneshot::channel::<()>();
        let (to, servers) = watch::channel(server);
        let seen = Arc::new(Seen::default());
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let sees = seen.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = accept(TcpListener::from_std(listener).unwrap(), servers, receiver, round_trip, sees) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, mode, server: to, seen, _stop: stop }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Leads new connections to another server, like an address that moves with the primary.
    pub fn redirect(&self, server: SocketAddr) {
        self.server.send_replace(server);
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> u64 {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// How many client bytes were read so far.
    pub fn bytes(&self) -> u64 {
        self.seen.bytes.load(Ordering::SeqCst)
    }
}

async fn accept(
    listener: TcpListener,
    server: watch::Receiver<SocketAddr>,
    mode: watch::Receiver<Mode>,
    round_trip: Duration,
    seen: Arc<Seen>,
) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        seen.connections.fetch_add(1, Ordering::SeqCst);
        let server = *server.borrow();
        tokio::spawn(carry(client, server, mode.clone(), round_trip, seen.clone()));
    }
}

async fn carry(
    mut client: TcpStream,
    server: SocketAddr,
    mut mode: watch::Receiver<Mode>,
    round_trip: Duration,
    seen: Arc<Seen>,
) {
    let pass = async {
        let Ok(mut server) = TcpStream::connect(server).await else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let (late, later) = mpsc::unbounded_channel();
        tokio::select! {
            biased;
            () = pump(from_client, Out::Now(to_server), mode.clone(), Some(&seen.bytes)) => {}
            () = pump(from_server, Out::Later(late, round_trip), mode.clone(), None) => {}
            () = deliver(later, to_client) => {}
        }
    };
    let mut resets = mode.clone();
    let is_reset = tokio::select! {
        biased;
        () = pass => *mode.borrow_and_update() == Mode::Reset,
        reset = resets.wait_for(|mode| *mode == Mode::Reset) => reset.is_ok(),
    };
    if is_reset {
        let _ = client.set_zero_linger();
    }
}

/// Where bytes go: to the server, or to the client after the round trip.
enum Out<'a> {
    Now(WriteHalf<'a>),
    Later(mpsc::UnboundedSender<(Instant, Vec<u8>)>, Duration),
}

impl Out<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), ()> {
        match self {
            Self::Now(to) => to.write_all(bytes).await.map_err(drop),
            Self::Later(to, delay) => to.send((Instant::now() + *delay, bytes.to_vec())).map_err(drop),
        }
    }
}

async fn deliver(mut from: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>, mut to: WriteHalf<'_>) {
    while let Some((at, bytes)) = from.recv().await {
        if at > Instant::now() {
            sleep_until(at).await;
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Bytes without a counter are answers.
async fn pump(mut from: ReadHalf<'_>, mut to: Out<'_>, mut mode: watch::Receiver<Mode>, count: Option<&AtomicU64>) {
    let are_answers = count.is_none();
    let mut buffer = vec![0; 16_384];
    loop {
        let now = *mode.borrow_and_update();
        let length = tokio::select! {
            biased;
            changed = mode.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            // A half-open connection swallows sent bytes, but one in a black hole keeps them for later.
            length = from.read(&mut buffer), if now != Mode::BlackHole && !(now == Mode::HalfOpen && are_answers) => {
                match length {
                    Ok(0) | Err(_) => return,
                    Ok(length) => length,
                }
            }
        };
        if let Some(count) = count {
            count.fetch_add(length as u64, Ordering::SeqCst);
        }
        match now {
            Mode::HalfOpen => loop {
                // For good: later modes do not revive the connection.
                if !matches!(from.read(&mut buffer).await, Ok(1..)) {
                    return;
                }
            },
            Mode::Swallow if are_answers => continue,
            Mode::Latency(latency) if are_answers => sleep(latency).await,
            _ => {}
        }
        let chunk = if now == Mode::Slices { 1 } else { length };
        for slice in buffer[..length].chunks(chunk) {
            if to.write(slice).await.is_err() {
                return;
            }
            if now == Mode::Slices {
                tokio::task::yield_now().await;
            }
        }
    }
}
