//! Connections: timeouts for slow clients, and the graceful shutdown.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tower::{Service, ServiceExt};

/// The timeout for a request's head, from its first byte or the end of the previous response. It also closes idle
/// connections, and those that send the head byte by byte.
const HEAD: Duration = Duration::from_secs(10);

/// The timeout for a first head when the server stops. Heads that were sent before arrive within it.
const LAST_HEAD: Duration = Duration::from_millis(500);

/// The most fields in a request. Hyper's 100 are fewer than some proxies accept from clients, and the proxies add their
/// own. With HTTP/1.1, hyper clears an array of this length for each request: at 1,000, that was a quarter of the
/// instructions of an answer.
const FIELDS: usize = 320;

/// The most bytes in these fields with HTTP/2. With HTTP/1.1, hyper's 400 KiB apply.
const FIELD_BYTES: u32 = 1 << 18;

/// The interval of HTTP/2 pings, and the timeout for their acknowledgement.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// The timeout for responses in flight when the server stops.
const DRAIN: Duration = Duration::from_secs(10);

/// The most connections that wait to be accepted; the system's `somaxconn` may allow fewer.
const BACKLOG: u32 = 4_096;

/// What answers requests, such as a router of axum.
pub trait App:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + Sync + 'static
{
}

impl<S> App for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// Binds an address.
///
/// # Errors
///
/// If the system refuses it.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `app` until `stop` is ready. Then it calls `close`, takes the connections that the kernel has accepted, and
/// completes the requests in flight within `DRAIN`.
pub async fn serve(listener: TcpListener, app: impl App, stop: impl Future<Output = ()>, close: impl FnOnce()) {
    let (stopping, is_stopping) = watch::channel(());
    // Each connection has a sender, so the channel closes with the last connection.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let begin = |(socket, peer): (TcpStream, SocketAddr)| {
        let (app, is_stopping, open) = (app.clone(), is_stopping.clone(), open.clone());
        tokio::spawn(async move {
            serve_connection(socket, peer, app, is_stopping).await;
            drop(open);
        });
    };
    let accepting = async {
        loop {
            begin(accept(&listener).await);
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop => {}
    }
    close();
    match take_queued(listener) {
        Ok(queued) => queued.into_iter().for_each(begin),
        Err(error) => tracing::error!("queued connections are lost: {error}"),
    }
    let _ = stopping.send(());
    drop(open);
    if timeout(DRAIN, all_closed.recv()).await.is_err() {
        tracing::warn!("connections are still open {DRAIN:?} after the server began to stop, and are dropped");
    }
}

/// Returns the connections that the kernel has accepted and the server has not, because closing the listener would
/// reset them.
fn take_queued(listener: TcpListener) -> std::io::Result<Vec<(TcpStream, SocketAddr)>> {
    // Tokio learns about a connection only when its driver runs. Asking the kernel has no such delay.
    let listener = listener.into_std()?;
    let mut queued = Vec::new();
    // Takes at most a full queue, although others may keep coming.
    while queued.len() < BACKLOG as usize {
        match listener.accept() {
            Ok((socket, peer)) => {
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                queued.push((TcpStream::from_std(socket)?, peer));
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => {
                tracing::error!("queued connections cannot be accepted: {error}");
                break;
            }
        }
    }
    Ok(queued)
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => {
                // A small response should not wait for more data.
                let _ = socket.set_nodelay(true);
                return (socket, peer);
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Mostly for lack of file descriptors, which closing connections free.
                tracing::error!("a connection cannot be accepted: {error}");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Serves one connection until it ends, times out, or is idle when the server stops. A connection without a request is
/// idle after `LAST_HEAD`.
async fn serve_connection(socket: TcpStream, peer: SocketAddr, app: impl App, mut is_stopping: watch::Receiver<()>) {
    // Relaxed: hyper calls the service within this task, which also reads it.
    let has_requests = Arc::new(AtomicBool::new(false));
    let is_http2 = Arc::new(AtomicBool::new(false));
    let service = {
        let (has_requests, is_http2) = (Arc::clone(&has_requests), Arc::clone(&is_http2));
        service_fn(move |request: Request<Incoming>| {
            has_requests.store(true, Ordering::Relaxed);
            is_http2.store(request.version() == Version::HTTP_2, Ordering::Relaxed);
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            let app = app.clone();
            async move { Ok::<_, Infallible>(app.oneshot(request).await.unwrap_or_else(|never| match never {})) }
        })
    };
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_headers(FIELDS);
    let (interval, answer) = PING;
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(interval).keep_alive_timeout(answer);
    builder.http2().max_header_list_size(FIELD_BYTES);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    // Hyper's own timeout for the head begins only once it knows the HTTP version, and never with HTTP/2.
    let mut first_head = pin!(sleep(HEAD));
    let mut is_new = true;
    let mut is_behind = false;
    loop {
        // Hyper answers each HTTP/2 request in a task, which wakes this one. Tokio would run this one next, and write
        // one response at a time. If this task waits behind the tasks that are ready, it writes all their responses at
        // once.
        let mut batched = poll_fn(|context| {
            is_behind = !is_behind && is_http2.load(Ordering::Relaxed);
            if is_behind {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            connection.as_mut().poll(context)
        });
        tokio::select! {
            // The error is the client's, who can no longer receive a report.
            _ = &mut batched => return,
            () = first_head.as_mut(), if is_new => is_new = false,
            _ = is_stopping.changed() => {
                // A head may have arrived that hyper has not read yet. Closing the connection now would reset it.
                let first_request = poll_fn(|context| match connection.as_mut().poll(context) {
                    Poll::Pending if !has_requests.load(Ordering::Relaxed) => Poll::Pending,
                    polled => Poll::Ready(polled),
                });
                if let Ok(Poll::Pending) = timeout(LAST_HEAD, first_request).await {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
                return;
            }
        }
        if !has_requests.load(Ordering::Relaxed) {
            return;
        }
    }
}
