//! A model of envoyproxy/ratelimit, after its README and its default settings, and random requests to both.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use tower_sluice::testing::Random;
use tower_sluice_config::Config;

use super::proto::{Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use super::{Limits, decide};
use crate::serve::domains::Store;
use crate::serve::sources::Texts;

/// A year has 365 days in that service, so its windows begin at multiples of this.
const YEAR: u64 = 365 * 86_400;

/// A descriptor in a file. `limit` is `None` if it has no `rate_limit`.
#[derive(Debug)]
struct Node {
    key: &'static str,
    value: &'static str,
    limit: Option<Limit>,
    nested: Vec<Self>,
}

#[derive(Clone, Debug)]
struct Limit {
    /// `None` if it is unlimited.
    requests: Option<u64>,
    is_shadow: bool,
    is_quota: bool,
    name: &'static str,
    replaces: Vec<&'static str>,
}

type Entries = Vec<(&'static str, &'static str)>;

/// The counters, by all keys and values in their descriptors.
#[derive(Default)]
struct Reference(HashMap<Entries, u64>);

/// The answer to a request: the overall code, and for each descriptor the code and the requests that are left.
type Answer = (Code, Vec<(Code, Option<u64>)>);

impl Reference {
    /// Decides on descriptors with their hits.
    fn decide(&mut self, root: &[Node], request: &[(Entries, u64)]) -> Answer {
        let mut limits: Vec<_> = request.iter().map(|(entries, _)| find(root, entries)).collect();
        let replaced: Vec<_> = limits.iter().flatten().flat_map(|limit| limit.replaces.clone()).collect();
        for limit in &mut limits {
            limit.take_if(|limit| limit.requests.is_some() && replaced.contains(&limit.name));
        }
        let (mut rejected, mut quotas, mut quotas_over) = (false, 0, 0);
        let mut answers = Vec::new();
        for ((entries, hits), limit) in request.iter().zip(limits) {
            let Some(limit) = limit else {
                answers.push((Code::Ok, None));
                continue;
            };
            let Some(requests) = limit.requests else {
                answers.push((Code::Ok, Some(u64::from(u32::MAX))));
                continue;
            };
            let used = self.0.entry(entries.clone()).or_default();
            *used = used.saturating_add(*hits);
            // That service admits a look at a limit that is used up exactly, and rejects the next request.
            let is_over = *used > requests || (*hits == 0 && *used == requests);
            let code = if is_over && !limit.is_shadow { Code::OverLimit } else { Code::Ok };
            quotas += u32::from(limit.is_quota);
            match code {
                Code::OverLimit if limit.is_quota => quotas_over += 1,
                Code::OverLimit => rejected = true,
                _ => {}
            }
            answers.push((code, Some(requests.saturating_sub(*used))));
        }
        let is_over = rejected || (quotas > 0 && quotas == quotas_over);
        (if is_over { Code::OverLimit } else { Code::Ok }, answers)
    }
}

/// Finds the limit for the last entry: by the value, then by the first pattern, then without a value.
fn find(list: &[Node], entries: &[(&str, &str)]) -> Option<Limit> {
    let ((key, value), rest) = entries.split_first()?;
    let same_key = || list.iter().filter(|node| node.key == *key);
    let pattern = |node: &&Node| node.value.strip_suffix('*').is_some_and(|start| value.starts_with(start));
    let node = same_key().find(|node| node.value == *value && !value.is_empty());
    let node = node.or_else(|| same_key().find(pattern)).or_else(|| same_key().find(|node| node.value.is_empty()))?;
    if rest.is_empty() { node.limit.clone() } else { find(&node.nested, rest) }
}

const NAMES: [&str; 3] = ["one", "two", "three"];

fn draw_list(random: &mut Random, depth: u32) -> Vec<Node> {
    let mut list: Vec<Node> = Vec::new();
    for _ in 0..=random.below(3) {
        let key = random.pick(&["a", "b"]);
        let value = random.pick(&["", "x", "y", "x*"]);
        if list.iter().any(|node| (node.key, node.value) == (key, value)) {
            continue;
        }
        let nested = if depth < 2 && random.below(2) == 0 { draw_list(random, depth + 1) } else { Vec::new() };
        let limit = (random.below(4) > 0).then(|| draw_limit(random));
        list.push(Node { key, value, limit, nested });
    }
    list
}

fn draw_limit(random: &mut Random) -> Limit {
    let name = if random.below(3) == 0 { random.pick(&NAMES) } else { "" };
    let replaced = if random.below(5) == 0 { random.pick(&NAMES) } else { "" };
    Limit {
        requests: (random.below(6) > 0).then(|| random.below(8)),
        is_shadow: random.below(5) == 0,
        is_quota: random.below(4) == 0,
        name,
        replaces: if replaced == name || replaced.is_empty() { Vec::new() } else { vec![replaced] },
    }
}

/// The names of all limits, since a file may replace only its own.
fn names(list: &[Node]) -> Vec<&'static str> {
    let own = list.iter().filter_map(|node| Some(node.limit.as_ref()?.name));
    own.chain(list.iter().flat_map(|node| names(&node.nested))).collect()
}

fn keep_names(list: &mut [Node], known: &[&str]) {
    for node in list {
        if let Some(limit) = &mut node.limit {
            limit.replaces.retain(|name| known.contains(name));
        }
        keep_names(&mut node.nested, known);
    }
}

fn write(file: &mut String, list: &[Node]) {
    file.push('[');
    for Node { key, value, limit, nested } in list {
        write!(file, "{{key: {key}, value: '{value}', descriptors: ").unwrap();
        self::write(file, nested);
        if let Some(Limit { requests, is_shadow, is_quota, name, replaces }) = limit {
            let replaces = replaces.iter().map(|name| format!("{{name: {name}}}")).collect::<Vec<_>>().join(", ");
            let limit = match requests {
                None => "unlimited: true".to_owned(),
                Some(requests) => format!("unit: year, requests_per_unit: {requests}"),
            };
            write!(file, ", shadow_mode: {is_shadow}, quota_mode: {is_quota}").unwrap();
            write!(file, ", rate_limit: {{{limit}, name: '{name}', replaces: [{replaces}]}}").unwrap();
        }
        file.push_str("}, ");
    }
    file.push(']');
}

/// Looks, single requests and larger costs, with one to three descriptors. Most descriptors have a limit.
fn draw_request(random: &mut Random, root: &[Node]) -> Vec<(Entries, u64)> {
    let mut request = Vec::new();
    for _ in 0..=random.below(3) {
        let mut entries = Vec::new();
        let mut list = root;
        loop {
            let node = list.get(usize::try_from(random.below(4)).unwrap());
            let key = node.map_or_else(|| random.pick(&["a", "b"]), |node| node.key);
            let value = match node.map(|node| node.value) {
                Some("x*") => random.pick(&["x", "xz"]),
                None | Some("") => random.pick(&["x", "xy", "y", "z"]),
                Some(value) => value,
            };
            entries.push((key, value));
            list = node.map_or(&[][..], |node| &node.nested);
            if list.is_empty() || random.below(3) == 0 {
                break;
            }
        }
        request.push((entries, random.pick(&[0, 0, 1, 1, 1, 2, 5])));
    }
    request
}

fn to_proto(request: &[(Entries, u64)]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry::new(key, value);
    let descriptor = |(entries, hits): &(Entries, u64)| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        limit: None,
        hits_addend: Some(*hits),
    };
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: request.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

fn seen(response: &RateLimitResponse) -> Answer {
    let left = |status: &super::DescriptorStatus| {
        let has_limit = status.current_limit.is_some() || status.limit_remaining == u32::MAX;
        has_limit.then(|| status.limit_remaining.into())
    };
    let statuses = response.statuses.iter().map(|status| (status.code(), left(status))).collect();
    (response.overall_code(), statuses)
}

fn year() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / YEAR
}

/// Runs one sequence. Returns how many requests it has, and how many were over a limit.
async fn run(trial: u64) -> Result<(u64, u64), String> {
    let mut random = Random::of_trial(trial);
    let mut root = draw_list(&mut random, 0);
    let known = names(&root);
    keep_names(&mut root, &known);
    let mut file = "domain: shop\ndescriptors: ".to_owned();
    write(&mut file, &root);
    let texts = Texts { envoy: vec![("limits.yaml".to_owned(), file.clone())], ..Texts::default() };
    let limits = Limits::read(Config::reader(), &texts, Store::Memory { max_keys: 64 });
    let limits = limits.map_err(|error| format!("{error}\n{file}"))?;
    let mut reference = Reference::default();
    let (requests, mut over) = (12, 0);
    for number in 0..requests {
        let request = draw_request(&mut random, &root);
        let found = seen(&decide(&limits, to_proto(&request)).await.map_err(|status| status.to_string())?);
        let expected = reference.decide(&root, &request);
        if found != expected {
            let problem = format!("{found:?} is not {expected:?}: request {number}, {request:?}\n{file}");
            return Err(problem);
        }
        over += u64::from(expected.0 == Code::OverLimit);
    }
    Ok((requests, over))
}

/// Runs 5,000 sequences, or the number in `SEQUENCES`.
#[tokio::test]
async fn decisions_are_those_of_envoyproxy_ratelimit() {
    let sequences = std::env::var("SEQUENCES").map_or(5_000, |count| count.parse().unwrap());
    let (mut requests, mut over) = (0, 0);
    for trial in 0..sequences {
        let begun = year();
        match run(trial).await {
            Ok(counted) => {
                requests += counted.0;
                over += counted.1;
            }
            // A window has ended in between.
            Err(_) if year() != begun => {}
            Err(problem) => panic!("trial {trial}: {problem}"),
        }
    }
    // Otherwise, the test compared too little.
    assert!(over * 10 > requests, "{over} of {requests} requests are over a limit");
}
