//! The connections: how long a client may take to ask for something, and what becomes of them when the server stops.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

/// For the head of a request, from the first byte or the end of the response before it. Connections without a request are closed
/// after this time, and so are those that send one byte after the other.
const HEAD: Duration = Duration::from_secs(10);

/// How often a client of HTTP/2 is asked whether it is there, and how long it may take to answer.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// For the responses that are under way when the server is told to stop.
const DRAIN: Duration = Duration::from_secs(10);

/// How many connections may wait to be accepted; the system's `somaxconn` may allow fewer.
const BACKLOG: u32 = 4_096;

pub(crate) fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `app` until `stop` is ready, and then what is under way, for as long as [`DRAIN`] at most. `close` is called in
/// between.
pub(crate) async fn serve(listener: TcpListener, app: Router, stop: impl Future<Output = ()>, close: impl FnOnce()) {
    let (stopping, is_stopping) = watch::channel(());
    // Each connection has a sender: none is left when the last connection is closed.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let accepting = async {
        loop {
            let (socket, peer) = accept(&listener).await;
            let (app, is_stopping, open) = (app.clone(), is_stopping.clone(), open.clone());
            tokio::spawn(async move {
                keep(socket, peer, app, is_stopping).await;
                drop(open);
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop => {}
    }
    drop(listener);
    close();
    let _ = stopping.send(());
    drop(open);
    if timeout(DRAIN, all_closed.recv()).await.is_err() {
        tracing::warn!("connections are still open {DRAIN:?} after the server was told to stop, and are given up");
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => {
                // Small answers should not wait for more of their kind.
                let _ = socket.set_nodelay(true);
                return (socket, peer);
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Mostly for want of file descriptors, of which connections that end give some back.
                tracing::error!("a connection cannot be accepted: {error}");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Serves one connection for as long as it may stay.
async fn keep(socket: TcpStream, peer: SocketAddr, app: Router, mut is_stopping: watch::Receiver<()>) {
    let has_asked = Arc::new(AtomicBool::new(false));
    let service = {
        let has_asked = Arc::clone(&has_asked);
        service_fn(move |request: hyper::Request<Incoming>| {
            has_asked.store(true, Ordering::Relaxed);
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            let app = app.clone();
            async move { Ok::<_, Infallible>(app.oneshot(request).await.unwrap_or_else(|never| match never {})) }
        })
    };
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
    let (interval, answer) = PING;
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(interval).keep_alive_timeout(answer);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    // Hyper's own time for the head begins only when it knows the version of HTTP, and not at all with the newer one.
    let mut first_head = pin!(sleep(HEAD));
    let mut is_new = true;
    loop {
        tokio::select! {
            // An error is the client's, and there is nobody to report it to.
            _ = connection.as_mut() => return,
            () = first_head.as_mut(), if is_new => is_new = false,
            _ = is_stopping.changed() => {
                connection.as_mut().graceful_shutdown();
                // It has nothing under way, or half a head.
                if !has_asked.load(Ordering::Relaxed) {
                    return;
                }
                let _ = connection.await;
                return;
            }
        }
        if !has_asked.load(Ordering::Relaxed) {
            return;
        }
    }
}
