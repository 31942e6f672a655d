//! Requests written byte by byte, since a client library would normalise them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::echo;

/// An empty gRPC message, uncompressed.
pub(crate) const MESSAGE: &[u8] = &[0; 5];

#[derive(Clone, Debug)]
pub(crate) struct Spelled {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) fields: Vec<(&'static str, String)>,
    pub(crate) body: &'static [u8],
}

impl Spelled {
    pub(crate) fn new(method: &'static str, fields: &[(&'static str, &str)]) -> Self {
        let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Self { method, path: echo::PATH.to_owned(), fields, body: b"" }
    }

    pub(crate) fn body(self, body: &'static [u8]) -> Self {
        Self { body, ..self }
    }

    /// Sends the request on its own connection. Returns the response; `None` if the server sends none.
    pub(crate) async fn ask(&self, address: SocketAddr, version: Version) -> Option<Answer> {
        let answer = async {
            let socket = TcpStream::connect(address).await.unwrap();
            socket.set_nodelay(true).unwrap();
            if version == Version::HTTP_2 {
                self.ask_http2(socket, address).await
            } else {
                self.ask_http1(socket).await
            }
        };
        tokio::time::timeout(Duration::from_secs(20), answer).await.unwrap_or_else(|_| panic!("silence after {self:?}"))
    }

    async fn ask_http1(&self, mut socket: TcpStream) -> Option<Answer> {
        let target = if self.method == "CONNECT" { "test:80" } else { &self.path };
        let mut text = format!("{} {target} HTTP/1.1\r\nhost: test\r\n", self.method);
        for (name, value) in &self.fields {
            text += &format!("{name}: {value}\r\n");
        }
        let chunked = self.fields.iter().any(|(name, _)| *name == "transfer-encoding");
        if !self.body.is_empty() && !chunked {
            text += &format!("content-length: {}\r\n", self.body.len());
        }
        text += "\r\n";
        let mut bytes = text.into_bytes();
        if chunked {
            bytes.extend(format!("{:x}\r\n", self.body.len()).as_bytes());
            bytes.extend(self.body);
            bytes.extend(b"\r\n0\r\n\r\n");
        } else {
            bytes.extend(self.body);
        }
        socket.write_all(&bytes).await.ok()?;
        let mut heard = Vec::new();
        while !heard.windows(4).any(|window| window == b"\r\n\r\n") {
            if socket.read_buf(&mut heard).await.ok()? == 0 {
                return None;
            }
        }
        let text = String::from_utf8_lossy(&heard).into_owned();
        let mut lines = text.split("\r\n\r\n").next()?.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let fields = lines.filter_map(|line| line.split_once(": "));
        Some(Answer { status, fields: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() })
    }

    async fn ask_http2(&self, socket: TcpStream, address: SocketAddr) -> Option<Answer> {
        let (mut requests, connection) = h2::client::handshake(socket).await.ok()?;
        tokio::spawn(connection);
        let mut request = Request::builder()
            .version(Version::HTTP_2)
            .method(Method::from_bytes(self.method.as_bytes()).unwrap())
            .uri(format!("http://{address}{}", self.path));
        for (name, value) in &self.fields {
            request = request.header(*name, value);
        }
        requests = requests.ready().await.ok()?;
        let (response, mut sender) = requests.send_request(request.body(()).unwrap(), self.body.is_empty()).ok()?;
        if !self.body.is_empty() {
            // The server may have answered before it read the body.
            let _ = sender.send_data(Bytes::from_static(self.body), true);
        }
        let (head, mut body) = response.await.ok()?.into_parts();
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let mut fields: HashMap<_, _> =
            head.headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
        // In gRPC, the trailers have the status.
        while let Some(Ok(data)) = body.data().await {
            let _ = body.flow_control().release_capacity(data.len());
        }
        if let Ok(Some(trailers)) = body.trailers().await {
            fields.extend(trailers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))));
        }
        Some(Answer { status: head.status.as_u16(), fields })
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: HashMap<String, String>,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// Whether the limiter has rejected the request: only then does the response have a wait.
    pub(crate) fn is_rejection(&self) -> bool {
        let is_rejection = self.fields.contains_key("retry-after");
        let code = self.field("grpc-status");
        assert_eq!(is_rejection, self.status == 429 || code == Some("8"), "{self:?}");
        is_rejection
    }
}
