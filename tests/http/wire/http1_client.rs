//! A minimal HTTP/1.1 client that checks every response byte.

use std::io;
use std::net::SocketAddr;

use futures_util::FutureExt;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::soon;

pub(crate) struct Connection(BufReader<TcpStream>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) content: String,
}

impl Answer {
    /// The value in a field that occurs at most once.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.fields.iter().filter(|(field, _)| field == name);
        let line = lines.next().map(|(_, value)| value.as_str());
        assert_eq!(lines.next(), None, "{self:?}");
        line
    }

    /// The response without its date, and with its fields sorted.
    pub(crate) fn at_any_time(mut self) -> Self {
        self.fields.retain(|(name, _)| name != "date");
        self.fields.sort();
        self
    }
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Self(BufReader::new(socket))
    }

    pub(crate) async fn send(&mut self, text: impl AsRef<[u8]>) {
        self.try_send(text).await.unwrap();
    }

    pub(crate) async fn try_send(&mut self, text: impl AsRef<[u8]>) -> io::Result<()> {
        soon(self.0.write_all(text.as_ref())).await
    }

    /// Whether nothing has arrived so far.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.0.fill_buf().now_or_never().is_none()
    }

    /// Sends a request without a body. Returns the response.
    pub(crate) async fn ask(&mut self, method: &str, path: &str) -> Answer {
        self.send(format!("{method} {path} HTTP/1.1\r\nhost: test\r\n\r\n")).await;
        self.answer(method).await
    }

    /// Reads the response to a request with this method.
    ///
    /// # Panics
    ///
    /// If it is not a response, or breaks a rule for all responses.
    pub(crate) async fn answer(&mut self, method: &str) -> Answer {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let count = soon(self.0.read_until(b'\n', &mut head)).await.unwrap();
            assert_ne!(count, 0, "the connection ends in {:?}", String::from_utf8_lossy(&head));
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.bytes().all(|byte| byte == b'\r' || byte == b'\n' || (b' '..=b'~').contains(&byte)), "{head}");
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).expect(&head);
        let status = status[..3].parse().unwrap();
        let fields = lines.map(|line| line.split_once(": ").expect(&head));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut answer = Answer { status, fields, content: String::new() };

        assert!(answer.fields.iter().all(|(name, _)| *name == name.to_ascii_lowercase()), "{head}");
        for of_the_connection in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
            assert_eq!(answer.field(of_the_connection), None, "{head}");
        }
        if method != "HEAD" && status >= 200 && status != 304 {
            let length = answer.field("content-length").expect(&head).parse().unwrap();
            let mut content = vec![0; length];
            soon(self.0.read_exact(&mut content)).await.unwrap();
            answer.content = String::from_utf8(content).unwrap();
        }
        answer
    }

    /// Waits until the connection ends, before which nothing more may arrive.
    pub(crate) async fn ends(mut self) {
        let mut rest = Vec::new();
        // The system resets a connection with unread data.
        let _ = soon(self.0.read_to_end(&mut rest)).await;
        assert_eq!(String::from_utf8_lossy(&rest), "", "after the last answer");
    }
}
