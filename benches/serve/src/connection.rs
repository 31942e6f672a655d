//! Clients: each has one request in flight.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::load::{Outcome, text};
use crate::protocol::{Limit, Protocol};

/// The number that Envoy has with four workers.
const HTTP2_CONNECTIONS: usize = 4;

/// A client that has one request in flight at a time.
pub struct Client {
    protocol: Protocol,
    way: Way,
}

enum Way {
    /// A stream for each request, on a connection that others use as well.
    Http2 { connection: SendRequest<Bytes>, uri: http::Uri },
    /// Its own connection.
    Plain { socket: TcpStream, read: BytesMut },
}

/// Connects this many clients.
pub async fn connect(address: SocketAddr, protocol: Protocol, clients: usize) -> Outcome<Vec<Client>> {
    let mut all = Vec::new();
    let Some(method) = protocol.method() else {
        for _ in 0..clients {
            let way = Way::Plain { socket: open(address).await?, read: BytesMut::with_capacity(4096) };
            all.push(Client { protocol, way });
        }
        return Ok(all);
    };
    let uri: http::Uri = format!("http://{address}{method}").parse().map_err(text)?;
    let mut connections = Vec::new();
    for _ in 0..HTTP2_CONNECTIONS.min(clients) {
        let (client, connection) = h2::client::Builder::new()
            .initial_window_size(1 << 20)
            .initial_connection_window_size(1 << 24)
            .handshake(open(address).await?)
            .await
            .map_err(text)?;
        tokio::spawn(connection);
        connections.push(client);
    }
    for number in 0..clients {
        let connection = connections[number % connections.len()].clone();
        all.push(Client { protocol, way: Way::Http2 { connection, uri: uri.clone() } });
    }
    Ok(all)
}

async fn open(address: SocketAddr) -> Outcome<TcpStream> {
    let socket = TcpStream::connect(address).await.map_err(text)?;
    socket.set_nodelay(true).map_err(text)?;
    Ok(socket)
}

impl Client {
    /// Whether a request for the key with this number is admitted.
    pub async fn ask(&mut self, limit: Limit, key: u64) -> Outcome<bool> {
        let protocol = self.protocol;
        let request = protocol.request(limit, key);
        match &mut self.way {
            Way::Http2 { connection, uri } => {
                let answer = call(connection, uri, request).await?;
                protocol.admits(&answer)
            }
            Way::Plain { socket, read } => {
                socket.write_all(&request).await.map_err(text)?;
                loop {
                    if let Some(end) = protocol.end(read) {
                        return protocol.admits(&read.split_to(end));
                    }
                    if socket.read_buf(read).await.map_err(text)? == 0 {
                        return Err("the server has closed the connection".to_owned());
                    }
                }
            }
        }
    }
}

/// Calls a gRPC method with the fields that Envoy sends.
async fn call(connection: &mut SendRequest<Bytes>, uri: &http::Uri, message: Bytes) -> Outcome<BytesMut> {
    let request = Request::post(uri.clone())
        .header("te", "trailers")
        .header("grpc-timeout", "1000m")
        .header("content-type", "application/grpc")
        .body(())
        .map_err(text)?;
    std::future::poll_fn(|context| connection.poll_ready(context)).await.map_err(text)?;
    let (response, mut stream) = connection.send_request(request, false).map_err(text)?;
    stream.send_data(message, true).map_err(text)?;
    let (head, mut body) = response.await.map_err(text)?.into_parts();
    let mut answer = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part.map_err(text)?;
        body.flow_control().release_capacity(part.len()).map_err(text)?;
        answer.extend_from_slice(&part);
    }
    let trailers = body.trailers().await.map_err(text)?.unwrap_or_default();
    if is_ok(&trailers) || is_ok(&head.headers) {
        Ok(answer)
    } else {
        Err(format!("status {}, {:?}, {trailers:?}", head.status, head.headers))
    }
}

fn is_ok(fields: &HeaderMap) -> bool {
    fields.get("grpc-status").is_some_and(|status| status == "0")
}
