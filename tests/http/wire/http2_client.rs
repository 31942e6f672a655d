//! A minimal HTTP/2 client that reads and writes raw frames (RFC 9113, sections 4 and 6).

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::soon;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

pub(crate) const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    /// Parses the first frame in these bytes, if it is complete.
    pub(crate) fn first_of(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_at_checked(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let (payload, rest) = rest.split_at_checked(usize::try_from(length).unwrap())?;
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        Some((Self::new(head[3], head[4], stream, payload), rest))
    }

    fn write_to(&self, out: &mut Vec<u8>) {
        out.extend(&u32::try_from(self.payload.len()).unwrap().to_be_bytes()[1..]);
        out.extend([self.kind, self.flags]);
        out.extend(self.stream.to_be_bytes());
        out.extend(&self.payload);
    }

    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// The error code, if the frame has one.
    pub(crate) fn code(&self) -> Option<u32> {
        let at = match self.kind {
            RST_STREAM => 0,
            GOAWAY => 4,
            _ => return None,
        };
        Some(u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap()))
    }

    /// Whether it begins a response with status 200, which every server encodes as one byte from HPACK's static table
    /// (RFC 7541, appendix A).
    pub(crate) fn is_ok(&self) -> bool {
        self.kind == HEADERS && self.payload.first() == Some(&0x88)
    }
}

/// A client that sends any frames, valid or not, and keeps no state but the next stream id.
pub(crate) struct Connection {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    read: Vec<u8>,
    next_stream: u32,
    path: &'static str,
}

impl Connection {
    /// Every request will be a GET for `path`.
    pub(crate) async fn open(address: SocketAddr, path: &'static str) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (reader, writer) = socket.into_split();
        let mut connection = Self { reader, writer, read: Vec::new(), next_stream: 1, path };
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        Frame::new(SETTINGS, 0, 0, []).write_to(&mut bytes);
        // A large window, so that no response waits for flow control.
        Frame::new(WINDOW_UPDATE, 0, 0, 0x7000_0000_u32.to_be_bytes()).write_to(&mut bytes);
        connection.send(bytes).await.unwrap();
        connection
    }

    async fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        soon(self.writer.write_all(&bytes)).await
    }

    fn head(&mut self, out: &mut Vec<u8>) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        // :method GET, :scheme http, :path and :authority (RFC 7541, sections 6.1 and 6.2.2).
        let mut block = vec![0x82, 0x86];
        for (name, value) in [(4, self.path), (1, "test")] {
            block.extend([name, u8::try_from(value.len()).unwrap()]);
            block.extend(value.bytes());
        }
        Frame::new(HEADERS, END_STREAM | END_HEADERS, stream, block).write_to(out);
        stream
    }

    fn reset(stream: u32, out: &mut Vec<u8>) {
        Frame::new(RST_STREAM, 0, stream, CANCEL.to_be_bytes()).write_to(out);
    }

    /// Sends this number of requests in one write. Returns their streams.
    pub(crate) async fn ask(&mut self, count: usize) -> Vec<u32> {
        let mut bytes = Vec::new();
        let streams = (0..count).map(|_| self.head(&mut bytes)).collect();
        self.send(bytes).await.unwrap();
        streams
    }

    /// Sends this number of requests, each followed by its reset, in one write.
    pub(crate) async fn ask_and_reset(&mut self, count: usize) -> io::Result<()> {
        let mut bytes = Vec::new();
        for _ in 0..count {
            let stream = self.head(&mut bytes);
            Self::reset(stream, &mut bytes);
        }
        self.send(bytes).await
    }

    pub(crate) async fn reset_all(&mut self, streams: &[u32]) {
        let mut bytes = Vec::new();
        streams.iter().for_each(|stream| Self::reset(*stream, &mut bytes));
        self.send(bytes).await.unwrap();
    }

    /// The next frame; `None` once the connection is closed.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, rest)) = Frame::first_of(&self.read) {
                let rest = self.read.len() - rest.len();
                self.read.drain(..rest);
                return Some(frame);
            }
            match soon(self.reader.read_buf(&mut self.read)).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Waits until the server has read everything. Returns the frames that came meanwhile.
    pub(crate) async fn settle(&mut self) -> Vec<Frame> {
        let mut bytes = Vec::new();
        Frame::new(PING, 0, 0, [0; 8]).write_to(&mut bytes);
        self.send(bytes).await.unwrap();
        let mut frames = Vec::new();
        loop {
            let frame = self.frame().await.expect("the server keeps the connection");
            if (frame.kind, frame.flags) == (PING, ACK) {
                return frames;
            }
            frames.push(frame);
        }
    }

    /// Reads all frames on these streams until each has ended. Returns them by stream.
    pub(crate) async fn answers(&mut self, streams: &[u32]) -> BTreeMap<u32, Vec<Frame>> {
        let mut answers: BTreeMap<_, Vec<Frame>> = streams.iter().map(|stream| (*stream, Vec::new())).collect();
        let mut open = answers.len();
        while open > 0 {
            let frame = self.frame().await.expect("the server keeps the connection");
            if let Some(frames) = answers.get_mut(&frame.stream) {
                open -= usize::from(frame.ends_stream() || frame.kind == RST_STREAM);
                frames.push(frame);
            }
        }
        answers
    }
}
