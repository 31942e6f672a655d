//! Requests through a proxy at even distances: how long after the time at which each was due its answer has come.
//! `scripts/ci/gateways --latency` runs this.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::load::{Outcome, text};
use crate::protocol::Protocol;

/// Each has a thread, and sends every fiftieth request. A request that is sent late, since the answer before it was
/// late, counts from when it was due.
const CONNECTIONS: u32 = 50;

/// Prints three quantiles in microseconds: p50, p99 and p99.9.
pub fn run(arguments: &[String]) -> Outcome<()> {
    let [address, path, rate, seconds] = arguments else {
        return Err("usage: --paced ADDRESS PATH RATE SECONDS".to_owned());
    };
    let (rate, seconds): (u32, u32) = (rate.parse().map_err(text)?, seconds.parse().map_err(text)?);
    let interval = Duration::from_secs(1) / rate;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let request = request.as_bytes();
    // Once all threads have connected.
    let begin = Instant::now() + Duration::from_millis(200);
    let dues = |first| (first..rate * seconds).step_by(CONNECTIONS as usize).map(move |nth| begin + interval * nth);
    let mut waits = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..CONNECTIONS).map(dues).map(|dues| scope.spawn(|| ask(address, request, dues))).collect();
        let all: io::Result<Vec<_>> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        all.map(|all| all.concat())
    })
    .map_err(text)?;
    waits.sort_unstable();
    let [p50, p99, p999] = [500, 990, 999].map(|part| waits[waits.len() * part / 1_000].as_micros());
    println!("{p50} {p99} {p999}");
    Ok(())
}

/// Sends a request at each of these times, and returns how long each took.
fn ask(address: &str, request: &[u8], dues: impl Iterator<Item = Instant>) -> io::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut answer = vec![0; 1 << 16];
    let mut waits = Vec::new();
    for due in dues {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        stream.write_all(request)?;
        let mut read = 0;
        while Protocol::Auth.end(&answer[..read]).is_none() {
            match stream.read(&mut answer[read..])? {
                0 => return Err(io::Error::other("the proxy has closed the connection")),
                count => read += count,
            }
        }
        if !Protocol::Auth.admits(&answer[..read]).map_err(io::Error::other)? {
            return Err(io::Error::other("a request was rejected"));
        }
        waits.push(due.elapsed());
    }
    Ok(waits)
}
