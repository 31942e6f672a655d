//! Advice on logging, so that policies find their keys.

use std::net::IpAddr;

use super::units::count;
use crate::counts::{LogCounts, OnlyClient};
use crate::replay::Replay;

/// Advice on key parts that lines lack, and on a proxy that is taken for the client.
pub(super) fn hints(log: &LogCounts, replays: &[Replay]) -> Vec<String> {
    let mut hints = hints_on_keys(replays);
    hints.extend(hint_on_proxy(log));
    hints
}

/// If at least this many requests come from one client, with an address that cannot be a client's, it is a proxy.
const MANY: u64 = 20;

fn hint_on_proxy(log: &LogCounts) -> Option<String> {
    let Some(OnlyClient::One(client)) = log.only_client else { return None };
    let is_private = match client {
        IpAddr::V4(client) => client.is_private() || client.is_loopback(),
        IpAddr::V6(client) => client.is_unique_local() || client.is_loopback(),
    };
    (is_private && log.requests >= MANY).then(|| {
        format!(
            "all requests are of {client}, an address of a private network: perhaps of a proxy. Let the log have the \
             client, such as the field X-Forwarded-For, and leave the proxy out of --log-format"
        )
    })
}

/// Advice for each key part that lines lack.
fn hints_on_keys(replays: &[Replay]) -> Vec<String> {
    let mut missing: Vec<(&str, u64)> = Vec::new();
    let routes = replays.iter().flat_map(|replay| &replay.limited);
    for (part, requests) in routes.flat_map(|route| &route.policies).flat_map(|policy| &policy.key_parts) {
        match missing.iter_mut().find(|(other, _)| other == part) {
            _ if *requests == 0 => {}
            Some((_, most)) => *most = (*most).max(*requests),
            None => missing.push((part, *requests)),
        }
    }
    missing.into_iter().map(|(part, requests)| hint(part, requests)).collect()
}

fn hint(part: &str, requests: u64) -> String {
    let requests = count(requests, "request has", "requests have");
    match part.split_once(':').map(|(kind, name)| (kind, name.trim())) {
        Some(("cookie", cookie)) => format!(
            "{requests} no cookie {cookie}, which a key needs: log it (nginx \"$cookie_{cookie}\", Apache \"%{{{cookie}}}C\", \
             Envoy \"%REQ(COOKIE)%\") and give the string of the format to --log-format, or name its field of JSON: \
             --log-format json:cookie:{cookie}=FIELD"
        ),
        Some(("query", name)) => format!(
            "{requests} no parameter {name} in the query, which a key needs: if clients send it, log the query, too (nginx \
             $request_uri, Apache %U%q, Envoy %REQ(:PATH)%)"
        ),
        Some(("header", header)) => {
            let variable = header.to_ascii_lowercase().replace('-', "_");
            let upper = header.to_ascii_uppercase();
            format!(
                "{requests} no header {header}, which a key needs: log it (nginx \"$http_{variable}\", Apache \
                 \"%{{{header}}}i\", Envoy \"%REQ({upper})%\") and give the string of the format to --log-format, or name \
                 its field of JSON: --log-format json:header:{header}=FIELD"
            )
        }
        None if part == "client-ip" => format!(
            "{requests} no address, which the key client-ip needs: log it (nginx $remote_addr, Apache %a, Envoy \
             %DOWNSTREAM_REMOTE_ADDRESS%), or name its field of JSON: --log-format json:client=FIELD"
        ),
        None if part == "user" => format!(
            "{requests} no user, which a key needs: log it (nginx $remote_user, Apache %u), or name its field of JSON: \
             --log-format json:user=FIELD"
        ),
        _ => format!("{requests} no {part}, which a key needs, and which no log has"),
    }
}
