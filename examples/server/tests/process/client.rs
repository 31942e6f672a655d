//! A minimal blocking HTTP client: one request per connection.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

pub(crate) fn get(server: SocketAddr, path: &str) -> Answer {
    get_with(server, path, &[])
}

pub(crate) fn get_with(server: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    send(server, "GET", path, &[&[("host", "test")], headers].concat(), "")
}

/// Posts JSON, to the server's address as its name.
pub(crate) fn post(server: SocketAddr, path: &str, body: &str) -> Answer {
    let host = server.to_string();
    send(server, "POST", path, &[("host", &host), ("content-type", "application/json")], body)
}

pub(crate) fn send(server: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut socket = TcpStream::connect(server).unwrap();
    let mut fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    if !body.is_empty() {
        fields += &format!("content-length: {}\r\n", body.len());
    }
    write!(socket, "{method} {path} HTTP/1.1\r\nconnection: close\r\n{fields}\r\n{body}").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| line.split_once(": ").unwrap());
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Answer { status, headers, body: body.to_owned() }
}
