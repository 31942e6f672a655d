//! Formats that have a name, and that no proxy's format string describes.

use std::sync::LazyLock;

use super::pattern::Pattern;
use super::plain::{address, closing_quote, number, request_line, status, unescaped};
use super::time::TimeCache;
use super::{Entry, Headers, Unreadable};

/// A name, and the strings that its lines may have, in nginx's notation.
pub(super) struct Known {
    patterns: &'static [&'static str],
    read: LazyLock<Vec<Pattern>>,
}

/// Envoy's default text, and Istio's.
pub(super) static ENVOY: Known = Known {
    patterns: &[
        r#"[$time_iso8601] "$request" $status $flags $received $bytes_sent $duration $upstream_time "$http_x_forwarded_for" "$http_user_agent" "$request_id" "$host" "$upstream""#,
        r#"[$time_iso8601] "$request" $status $flags $details $termination "$failure" $received $bytes_sent $duration $upstream_time "$http_x_forwarded_for" "$http_user_agent" "$request_id" "$host" "$upstream" $cluster $upstream_local $local $remote_addr $server_name_indication $route"#,
    ],
    read: LazyLock::new(|| read(&ENVOY)),
};

/// AWS's Application Load Balancer, whose last time is the one at which the request came, and the Classic one.
pub(super) static ALB: Known = Known {
    patterns: &[
        r#"$type $time_iso8601 $elb $remote_addr $target $time1 $time2 $time3 $status $target_status $received $bytes_sent "$request" "$http_user_agent" $cipher $protocol $group "$trace" "$host" "$certificate" $priority $time_iso8601$? $rest"#,
        r#"$type $time_iso8601 $elb $remote_addr $target $time1 $time2 $time3 $status $target_status $received $bytes_sent "$request" "$http_user_agent""#,
        r#"$time_iso8601 $elb $remote_addr $backend $time1 $time2 $time3 $status $backend_status $received $bytes_sent "$request"$? "$http_user_agent""#,
    ],
    read: LazyLock::new(|| read(&ALB)),
};

fn read(known: &Known) -> Vec<Pattern> {
    known.patterns.iter().filter_map(|text| Pattern::new(text).ok()).collect()
}

impl Known {
    pub(super) fn parse<'a>(
        &self,
        line: &'a [u8],
        times: &mut TimeCache,
        has_headers: bool,
    ) -> Result<Entry<'a>, Unreadable> {
        let mut problem = None;
        for pattern in self.read.iter() {
            match pattern.parse(line, times, has_headers) {
                Ok(entry) => return Ok(entry),
                Err(error) => drop(problem.get_or_insert(error)),
            }
        }
        Err(problem.unwrap_or_else(|| Unreadable::new("it does not match the format")))
    }

    #[cfg(test)]
    pub(super) fn is_whole(&self) -> bool {
        self.read.len() == self.patterns.len()
    }
}

/// Parses HAProxy's `option httplog`: `IP:PORT [TIME] FRONTEND BACKEND/SERVER TIMES STATUS BYTES … "REQUEST"`.
/// Between bytes and request are cookies, flags, counts and perhaps captured fields in braces.
pub(super) fn haproxy<'a>(line: &'a [u8], times: &mut TimeCache) -> Result<Entry<'a>, Unreadable> {
    let missing = |what: &'static str| move || Unreadable::new(format!("it has no {what} where HAProxy writes it"));
    let (client, rest) = split(line, b" [").ok_or_else(missing("[time] behind the client"))?;
    let client = address(client)?;
    let (time, rest) = split(rest, b"] ").ok_or_else(missing("end of the [time]"))?;
    let nanos = times.read(time)?;
    let (words, request) = split(rest, b" \"").ok_or_else(missing("\"request\""))?;
    let mut words = words.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).skip(3);
    let status = words.next().and_then(status).ok_or_else(missing("status"))?;
    let length = words.next().map(|bytes| bytes.strip_prefix(b"+").unwrap_or(bytes)).and_then(number);
    let length = length.ok_or_else(missing("number of bytes"))?;
    let (end, _) = closing_quote(request).ok_or_else(missing("end of the \"request\""))?;
    let (method, target) = request_line(&request[..end])?;
    Ok(Entry {
        nanos,
        client,
        user: None,
        method: unescaped(method),
        target: unescaped(target),
        status,
        length,
        headers: Headers::new(),
    })
}

fn split<'a>(text: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let index = memchr::memmem::find(text, at)?;
    Some((&text[..index], &text[index + at.len()..]))
}
