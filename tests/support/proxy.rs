//! A TCP proxy that does to its connections what networks do, as it is told while it runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use redis::io::tcp::socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

/// What happens to what is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Pass,
    /// Answers come later by this.
    Latency(Duration),
    /// Nothing arrives, in either direction, until this ends.
    BlackHole,
    /// Connections are reset, new ones too.
    Reset,
    /// What was connected, or connects, will never hear anything again, nor be told.
    HalfOpen,
    /// The server hears everything, the client nothing; what was said meanwhile is lost.
    Swallow,
    /// Each byte by itself.
    Slices,
}

/// Runs in a thread of its own, so that it works whatever the runtimes of a test do. Stopped when dropped.
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    connections: Arc<AtomicU64>,
    _stop: oneshot::Sender<()>,
}

impl Proxy {
    pub fn to(server: SocketAddr) -> Self {
        let (mode, receiver) = watch::channel(Mode::Pass);
        let (stop, stopped) = oneshot::channel::<()>();
        let connections = Arc::new(AtomicU64::new(0));
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let count = connections.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = accept(TcpListener::from_std(listener).unwrap(), server, receiver, &count) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, mode, connections, _stop: stop }
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

    /// How many were accepted so far.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, mode: watch::Receiver<Mode>, count: &AtomicU64) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        count.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(carry(client, server, mode.clone()));
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr, mut mode: watch::Receiver<Mode>) {
    let pass = async {
        let Ok(mut server) = TcpStream::connect(server).await else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        tokio::select! {
            () = pump(from_client, to_server, mode.clone(), false) => {}
            () = pump(from_server, to_client, mode.clone(), true) => {}
        }
    };
    let mut resets = mode.clone();
    let is_reset = tokio::select! {
        () = pass => *mode.borrow_and_update() == Mode::Reset,
        reset = resets.wait_for(|mode| *mode == Mode::Reset) => reset.is_ok(),
    };
    if is_reset {
        let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
    }
}

async fn pump(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, mut mode: watch::Receiver<Mode>, are_answers: bool) {
    let mut buffer = vec![0; 16_384];
    loop {
        let now = *mode.borrow_and_update();
        let length = tokio::select! {
            biased;
            changed = mode.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            // A connection that is half open swallows what is sent, but one in a black hole keeps it for later.
            length = from.read(&mut buffer), if now != Mode::BlackHole && !(now == Mode::HalfOpen && are_answers) => {
                match length {
                    Ok(0) | Err(_) => return,
                    Ok(length) => length,
                }
            }
        };
        match now {
            Mode::HalfOpen => loop {
                // For good, whatever comes later.
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
            if to.write_all(slice).await.is_err() {
                return;
            }
            if now == Mode::Slices {
                tokio::task::yield_now().await;
            }
        }
    }
}
