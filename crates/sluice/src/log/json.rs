//! Logs in JSON, one object per line.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::plain::{address, request_line, status};
use super::{Entry, Headers, Unreadable, cookie, forwarded, time};

/// The names for each field in the logs of Caddy, Traefik, Envoy, nginx (the `log_format` in its documentation), pino,
/// Cloudflare, the load balancers of Google Cloud and Azure, AWS API Gateway, the Elastic Common Schema and others. A
/// dot leads into an object, or is part of the name.
const TIME: [&str; 13] = [
    "ts",
    "time",
    "timestamp",
    "@timestamp",
    "StartUTC",
    "time_iso8601",
    "msec",
    "time_local",
    "start_time",
    "date",
    "datetime",
    "EdgeStartTimestamp",
    "requestTime",
];
const CLIENT: [&str; 20] = [
    "request.client_ip",
    "request.remote_ip",
    "ClientHost",
    "ClientAddr",
    "remote_addr",
    "client_ip",
    "remote_ip",
    "clientip",
    "downstream_remote_address",
    "client.ip",
    "source.ip",
    "client.address",
    "source.address",
    "ip",
    "client",
    "ClientIP",
    "httpRequest.remoteIp",
    "req.remoteAddress",
    "properties.clientIP",
    "sourceIp",
];
/// Read if there is no other address.
const FORWARDED: [&str; 2] = ["x_forwarded_for", "http_x_forwarded_for"];
const USER: [&str; 6] = ["user_id", "ClientUsername", "remote_user", "user.name", "user", "username"];
const METHOD: [&str; 10] = [
    "request.method",
    "RequestMethod",
    "request_method",
    "http.request.method",
    "method",
    "ClientRequestMethod",
    "httpRequest.requestMethod",
    "req.method",
    "properties.httpMethod",
    "httpMethod",
];
/// The last is a pattern, such as `/users/{id}`, where AWS API Gateway logs no path.
const TARGET: [&str; 15] = [
    "request.uri",
    "RequestPath",
    "request_uri",
    "x_envoy_original_path",
    "url.original",
    "url.path",
    "uri",
    "path",
    "url",
    "ClientRequestURI",
    "ClientRequestPath",
    "httpRequest.requestUrl",
    "req.url",
    "properties.requestUri",
    "resourcePath",
];
const REQUEST: [&str; 4] = ["request", "request_line", "http_request", "routeKey"];
const STATUS: [&str; 10] = [
    "status",
    "DownstreamStatus",
    "status_code",
    "response_code",
    "http.response.status_code",
    "code",
    "EdgeResponseStatus",
    "httpRequest.status",
    "res.statusCode",
    "properties.httpStatus",
];
const LENGTH: [&str; 11] = [
    "size",
    "DownstreamContentSize",
    "body_bytes_sent",
    "bytes_sent",
    "http.response.body.bytes",
    "bytes",
    "response_length",
    "EdgeResponseBytes",
    "httpRequest.responseSize",
    "properties.sentBytes",
    "responseLength",
];
const HOST: [&str; 7] =
    ["request.host", "RequestHost", "host", "http_host", "authority", "url.domain", "ClientRequestHost"];
const REFERER: [&str; 6] = [
    "http_referer",
    "referer",
    "request_Referer",
    "http.request.referrer",
    "ClientRequestReferer",
    "httpRequest.referer",
];
const AGENT: [&str; 8] = [
    "http_user_agent",
    "user_agent",
    "agent",
    "request_User-Agent",
    "user_agent.original",
    "ClientRequestUserAgent",
    "httpRequest.userAgent",
    "properties.userAgent",
];

/// The first second of the year 2000. Smaller numbers in a field such as `time` may be durations.
const LEAST_TIME: u64 = 946_684_800_000_000_000;

/// Names that replace the usual ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    time: Option<String>,
    client: Option<String>,
    user: Option<String>,
    method: Option<String>,
    path: Option<String>,
    request: Option<String>,
    status: Option<String>,
    bytes: Option<String>,
    host: Option<String>,
    /// Header fields: their name, and the name in the object.
    headers: Vec<(String, String)>,
    /// Cookies: their name, and the name in the object.
    cookies: Vec<(String, String)>,
}

impl Names {
    /// Reads `time=ts,client=ip,header:x-api-key=api_key`.
    ///
    /// # Errors
    ///
    /// If a part isn't a request's field.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let mut names = Self::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (part, name) = pair.split_once('=').ok_or_else(|| format!("`{pair}`: write PART=FIELD"))?;
            let name = name.to_owned();
            if let Some(header) = part.strip_prefix("header:") {
                names.headers.push((header.trim().to_ascii_lowercase(), name));
                continue;
            }
            if let Some(cookie) = part.strip_prefix("cookie:") {
                names.cookies.push((cookie.trim().to_owned(), name));
                continue;
            }
            let field = match part {
                "time" => &mut names.time,
                "client" => &mut names.client,
                "user" => &mut names.user,
                "method" => &mut names.method,
                "path" => &mut names.path,
                "request" => &mut names.request,
                "status" => &mut names.status,
                "bytes" => &mut names.bytes,
                "host" => &mut names.host,
                _ => {
                    return Err(format!(
                        "`{part}` is no part of a request: write time, client, user, method, path, request, status, \
                         bytes, host, header:NAME or cookie:NAME"
                    ));
                }
            };
            *field = Some(name);
        }
        Ok(names)
    }
}

pub(super) fn parse<'a>(line: &[u8], names: &Names) -> Result<Entry<'a>, Unreadable> {
    let object: Map<String, Value> =
        serde_json::from_slice(line).map_err(|error| Unreadable::new(format!("not an object of JSON: {error}")))?;
    let object = Object(&object);
    let nanos = object.time(names.time.as_deref())?;
    let client = object.client(names.client.as_deref())?;
    let (method, target) = object.request(names)?;
    let status = object.status(names.status.as_deref())?;
    Ok(Entry {
        nanos,
        client,
        user: object.text(names.user.as_deref(), &USER).map(|user| Cow::Owned(user.to_owned())),
        method: Cow::Owned(method.into_bytes()),
        target: Cow::Owned(target.into_bytes()),
        status,
        length: object.whole(names.bytes.as_deref(), &LENGTH).unwrap_or(0),
        headers: object.headers(names),
    })
}

/// A line.
struct Object<'a>(&'a Map<String, Value>);

impl<'a> Object<'a> {
    /// Returns the first field in the list that exists, or the field that the user named.
    fn find<T>(&self, name: Option<&str>, names: &[&str], of: impl Fn(&'a Value) -> Option<T>) -> Option<T> {
        match name {
            Some(name) => at(self.0, name).and_then(of),
            None => names.iter().find_map(|name| of(at(self.0, name)?)),
        }
    }

    /// A text that is not empty, and not `-`.
    fn text(&self, name: Option<&str>, names: &[&str]) -> Option<&'a str> {
        self.find(name, names, |value| value.as_str().filter(|text| !matches!(*text, "" | "-")))
    }

    /// A whole number, which may be a text.
    fn whole(&self, name: Option<&str>, names: &[&str]) -> Option<u64> {
        self.find(name, names, |value| match value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        })
    }

    /// Returns the first field that holds a time, because some logs have a duration under `time`.
    fn time(&self, name: Option<&str>) -> Result<u64, Unreadable> {
        let mut problem = None;
        let names: &[&str] = if let Some(name) = &name { &[name] } else { &TIME };
        for name in names {
            let read = match at(self.0, name) {
                Some(Value::Number(number)) => time::number(&number.to_string()),
                Some(Value::String(text)) => time::any(text.as_bytes()),
                _ => continue,
            };
            match read {
                Ok(nanos) if nanos >= LEAST_TIME => return Ok(nanos),
                Ok(_) => drop(problem.get_or_insert_with(|| {
                    Unreadable::new(format!("`{name}` is before the year 2000; name the time by json:time=FIELD"))
                })),
                Err(error) => drop(problem.get_or_insert(error)),
            }
        }
        Err(problem.unwrap_or_else(|| missing("time", "time", names)))
    }

    fn client(&self, name: Option<&str>) -> Result<Option<std::net::IpAddr>, Unreadable> {
        let no_address = || Unreadable::new("the client is no address, such as 203.0.113.7");
        match (name, self.text(name, &CLIENT)) {
            // A field that was named may be a list.
            (Some(_), Some(client)) => forwarded(client.as_bytes()).map(Some).ok_or_else(no_address),
            (None, Some(client)) => address(client.as_bytes()).map_err(|_| no_address()),
            (Some(_), None) => Ok(None),
            (None, None) => Ok(self.text(None, &FORWARDED).and_then(|list| forwarded(list.as_bytes()))),
        }
    }

    fn request(&self, names: &Names) -> Result<(String, String), Unreadable> {
        let request = self.text(names.request.as_deref(), &REQUEST);
        let method = self.text(names.method.as_deref(), &METHOD);
        let target = self.text(names.path.as_deref(), &TARGET);
        if let (Some(method), Some(target), None) = (method, target, &names.request) {
            // The Elastic Common Schema and Azure have the query in its own field.
            let query = self.text(None, &["url.query", "properties.requestQuery"]).filter(|_| !target.contains('?'));
            let query = query.map_or_else(String::new, |query| format!("?{}", query.trim_start_matches('?')));
            return Ok((method.to_owned(), format!("{target}{query}")));
        }
        if let Some(request) = request {
            let (method, target) = request_line(request.as_bytes())?;
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            return Ok((text(method), text(target)));
        }
        match target {
            None => Err(missing("path", "path", &TARGET)),
            Some(_) => Err(missing("method", "method", &METHOD)),
        }
    }

    fn status(&self, name: Option<&str>) -> Result<u16, Unreadable> {
        let found = self.find(name, &STATUS, |value| match value {
            Value::Number(number) => status(number.to_string().trim_end_matches(".0").as_bytes()),
            Value::String(text) => status(text.as_bytes()),
            _ => None,
        });
        match (found, name) {
            (Some(found), _) => Ok(found),
            // The log has no status, so the response is taken for a success.
            (None, None) => Ok(200),
            (None, Some(_)) => Err(missing("status", "status", &STATUS)),
        }
    }

    fn headers<'b>(&self, names: &Names) -> Headers<'b> {
        let mut headers = Headers::new();
        for (header, name) in &names.headers {
            if let Some(value) = self.text(Some(name), &[]) {
                add(&mut headers, header, value);
            }
        }
        for (name, field) in &names.cookies {
            if let Some(value) = self.text(Some(field), &[]) {
                headers.push(cookie(name, value.as_bytes()));
            }
        }
        for (header, name, usual) in
            [("host", names.host.as_deref(), &HOST[..]), ("referer", None, &REFERER), ("user-agent", None, &AGENT)]
        {
            if let Some(value) = self.text(name, usual) {
                add(&mut headers, header, value);
            }
        }
        // Caddy logs the header fields, each as a list. Traefik logs the ones that its configuration names, as
        // `request_NAME`. nginx logs them as `http_NAME`, and cookies as `cookie_NAME`.
        if let Some(fields) = at(self.0, "request.headers").and_then(Value::as_object) {
            for (name, values) in fields {
                for value in values.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    add(&mut headers, name, value);
                }
            }
        }
        for (name, value) in self.0 {
            let Some(value) = value.as_str() else { continue };
            if let Some(name) = name.strip_prefix("request_") {
                // nginx's `$request_method` isn't a header field, and other names in this spelling aren't, either.
                if name.starts_with(|first: char| first.is_ascii_uppercase()) {
                    add(&mut headers, name, value);
                }
            } else if let Some(name) = name.strip_prefix("http_").filter(|name| !name.starts_with("request")) {
                if value != "-" {
                    add(&mut headers, &name.replace('_', "-"), value);
                }
            } else if let Some(name) = name.strip_prefix("cookie_").filter(|_| !matches!(value, "" | "-")) {
                headers.push(cookie(name, value.as_bytes()));
            }
        }
        headers
    }
}

fn missing(what: &str, part: &str, names: &[&str]) -> Unreadable {
    Unreadable::new(format!("no {what} under any of {}; name it by json:{part}=FIELD", names.join(", ")))
}

/// Adds a field, unless another key of the object has set it.
fn add(headers: &mut Headers<'_>, name: &str, value: &str) {
    let name = name.to_ascii_lowercase();
    if !["host", "referer", "user-agent"].contains(&&*name) || headers.iter().all(|(other, _)| *other != name) {
        headers.push((name.into(), Cow::Owned(value.as_bytes().to_vec())));
    }
}

/// The value under a name, or under its parts between dots.
fn at<'a>(object: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(value) = object.get(path) {
        return Some(value);
    }
    path.match_indices('.').find_map(|(dot, _)| at(object.get(&path[..dot])?.as_object()?, &path[dot + 1..]))
}
