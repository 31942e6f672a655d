//! Logs in JSON, one object per line.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::plain::address;
use super::{Entry, Headers, Unreadable, time};

/// The names of each field, in the logs of Caddy, Traefik, nginx (by the `log_format` of its documentation) and others.
/// A dot leads into an object.
const TIME: [&str; 10] =
    ["ts", "time", "timestamp", "@timestamp", "StartUTC", "time_iso8601", "msec", "time_local", "start_time", "date"];
const CLIENT: [&str; 9] = [
    "request.client_ip",
    "request.remote_ip",
    "ClientHost",
    "remote_addr",
    "client_ip",
    "remote_ip",
    "clientip",
    "ip",
    "client",
];
const USER: [&str; 5] = ["user_id", "ClientUsername", "remote_user", "user", "username"];
const METHOD: [&str; 4] = ["request.method", "RequestMethod", "request_method", "method"];
const TARGET: [&str; 6] = ["request.uri", "RequestPath", "request_uri", "uri", "path", "url"];
const STATUS: [&str; 5] = ["status", "DownstreamStatus", "status_code", "response_code", "code"];
const LENGTH: [&str; 6] =
    ["size", "DownstreamContentSize", "body_bytes_sent", "bytes_sent", "bytes", "response_length"];
const HOST: [&str; 4] = ["request.host", "RequestHost", "host", "http_host"];
const REFERER: [&str; 3] = ["http_referer", "referer", "request_Referer"];
const AGENT: [&str; 4] = ["http_user_agent", "user_agent", "agent", "request_User-Agent"];

pub(super) fn parse<'a>(line: &[u8]) -> Result<Entry<'a>, Unreadable> {
    let object: Map<String, Value> =
        serde_json::from_slice(line).map_err(|error| Unreadable::new(format!("not an object of JSON: {error}")))?;
    let missing = |what: &str, names: &[&str]| Unreadable::new(format!("no {what} under any of {}", names.join(", ")));

    let nanos = match find(&object, &TIME).ok_or_else(|| missing("time", &TIME))? {
        Value::Number(number) => time::number(&number.to_string())?,
        Value::String(text) if text.starts_with(|first: char| first.is_ascii_digit()) && !text.contains(['-', '/']) => {
            time::number(text)?
        }
        Value::String(text) if text.contains('/') => time::TimeCache::default().read(text.as_bytes())?,
        Value::String(text) => time::rfc3339(text)?,
        _ => return Err(missing("time", &TIME)),
    };
    let client = text(&object, &CLIENT).unwrap_or_default();
    let client = if client.is_empty() { None } else { address(without_port(&client).as_bytes())? };
    let method = text(&object, &METHOD).ok_or_else(|| missing("method", &METHOD))?;
    let target = text(&object, &TARGET).ok_or_else(|| missing("path", &TARGET))?;
    let status = whole(&object, &STATUS).and_then(|status| u16::try_from(status).ok());
    let status = status.filter(|status| (100..600).contains(status)).ok_or_else(|| missing("status", &STATUS))?;
    let length = whole(&object, &LENGTH).unwrap_or(0);

    let mut headers = Headers::new();
    for (name, names) in [("host", &HOST[..]), ("referer", &REFERER), ("user-agent", &AGENT)] {
        if let Some(value) = text(&object, names) {
            headers.push((name.into(), Cow::Owned(value.into_bytes())));
        }
    }
    // Caddy logs the header fields, each as a list; Traefik those that it is told to, as `request_NAME`.
    if let Some(fields) = at(&object, "request.headers").and_then(Value::as_object) {
        for (name, values) in fields {
            for value in values.as_array().into_iter().flatten().filter_map(Value::as_str) {
                add(&mut headers, name, value);
            }
        }
    }
    for (name, value) in &object {
        if let Some((name, value)) = name.strip_prefix("request_").zip(value.as_str()) {
            // nginx's `$request_method` is none, and so are the others of that spelling.
            if name.starts_with(|first: char| first.is_ascii_uppercase()) {
                add(&mut headers, name, value);
            }
        }
    }
    Ok(Entry {
        nanos,
        client,
        user: text(&object, &USER).map(Cow::Owned),
        method: Cow::Owned(method.into_bytes()),
        target: Cow::Owned(target.into_bytes()),
        status,
        length,
        headers,
    })
}

/// Adds a field, unless another key of the object has set it.
fn add(headers: &mut Headers<'_>, name: &str, value: &str) {
    let name = name.to_ascii_lowercase();
    if !["host", "referer", "user-agent"].contains(&&*name) || headers.iter().all(|(other, _)| *other != name) {
        headers.push((name.into(), Cow::Owned(value.as_bytes().to_vec())));
    }
}

fn at<'a>(object: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        Some((first, rest)) => at(object.get(first)?.as_object()?, rest),
        None => object.get(path),
    }
}

fn find<'a>(object: &'a Map<String, Value>, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| at(object, name)).filter(|value| !value.is_null())
}

/// Finds a text that is not empty, and not `-`.
fn text(object: &Map<String, Value>, names: &[&str]) -> Option<String> {
    names
        .iter()
        .filter_map(|name| at(object, name)?.as_str())
        .find(|text| !matches!(*text, "" | "-"))
        .map(str::to_owned)
}

/// Finds a whole number, which may be a text.
fn whole(object: &Map<String, Value>, names: &[&str]) -> Option<u64> {
    match find(object, names)? {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// Drops the port of `203.0.113.7:4711` and `[2001:db8::1]:4711`.
fn without_port(text: &str) -> &str {
    match text.parse::<std::net::SocketAddr>() {
        Ok(_) => text.rsplit_once(':').map_or(text, |(address, _)| address),
        Err(_) => text,
    }
}
