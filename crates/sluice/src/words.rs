//! Describes a file's policies in words. The file is valid, so this only reads its values.

use toml::de::DeTable;
use toml::{Table, Value};

use crate::descriptors::DESCRIPTOR;
use crate::path::PathIgnores;

/// A valid file. Its text is parsed once, since a file may have thousands of routes.
pub(crate) struct FileWords<'a> {
    pub(crate) file: &'a str,
    pub(crate) text: &'a str,
    table: Table,
}

impl<'a> FileWords<'a> {
    pub(crate) fn parse(file: &'a str, text: &'a str) -> Self {
        Self { file, text, table: text.parse().unwrap_or_default() }
    }

    /// The routes' tables.
    pub(crate) fn route_tables(&self) -> Vec<&Table> {
        tables(&self.table, "route")
    }

    /// Describes the routes.
    pub(crate) fn routes(&self) -> Vec<RouteWords> {
        let lines = path_lines(self.text).into_iter().chain(std::iter::repeat(1));
        let stores = self.stores();
        let routes = self.route_tables().into_iter().zip(lines).map(|(route, line)| {
            let exempt = route.get("exempt").and_then(Value::as_table);
            let policies = tables(route, "policy").into_iter().map(|policy| PolicyWords::of(policy, exempt, &stores));
            let ignores = texts(route.get("path-ignores"));
            RouteWords {
                paths: texts(route.get("path")),
                line,
                ignored: PathIgnores::of_words(&ignores),
                ignores,
                policies: policies.collect(),
            }
        });
        routes.collect()
    }

    /// The names of the servers that may hold budgets.
    fn stores(&self) -> Vec<&str> {
        let redis = self.table.contains_key("redis").then_some("redis");
        let stores = self.table.get("store").and_then(Value::as_table);
        redis.into_iter().chain(stores.into_iter().flat_map(Table::keys).map(String::as_str)).collect()
    }
}

/// A route and its policies.
pub(crate) struct RouteWords {
    pub(crate) paths: Vec<String>,
    /// The line that has its paths.
    pub(crate) line: usize,
    /// The differences between paths that its app ignores, as the file spells them.
    pub(crate) ignores: Vec<String>,
    pub(crate) ignored: PathIgnores,
    pub(crate) policies: Vec<PolicyWords>,
}

/// A policy.
#[derive(Clone, Debug)]
pub(crate) struct PolicyWords {
    pub(crate) name: String,
    pub(crate) algorithm: String,
    /// The parts of its key.
    pub(crate) keys: Vec<String>,
    /// Who has a separate budget.
    pub(crate) who: String,
    /// The limit.
    pub(crate) what: String,
    /// Where its budgets are, if the file names a server.
    pub(crate) place: Option<String>,
    /// The consequence for a request that does not fit.
    pub(crate) when_full: String,
    pub(crate) cost: u64,
    pub(crate) is_shadow: bool,
    /// Whether each key's windows begin at a different instant.
    pub(crate) is_staggered: bool,
    /// Whether keys on some plans have their own limits.
    pub(crate) has_plans: bool,
    /// `per` as in the file.
    pub(crate) per: String,
    pub(crate) limit: u64,
    pub(crate) burst: Option<u64>,
}

impl PolicyWords {
    /// `exempt` has the route's exemptions, and `stores` the file's servers.
    fn of(policy: &Table, exempt: Option<&Table>, stores: &[&str]) -> Self {
        let algorithm = text(policy, "algorithm").unwrap_or_default();
        let is_shadow = is_set(policy, "shadow");
        Self {
            name: text(policy, "name").unwrap_or_default(),
            who: who(policy) + &exemptions(&[exempt, policy.get("exempt").and_then(Value::as_table)]),
            what: what(policy, &algorithm) + &plans(policy),
            place: place(policy, &algorithm, stores),
            when_full: when_full(policy, &algorithm, is_shadow),
            cost: number(policy, "cost").unwrap_or(1),
            is_shadow,
            is_staggered: is_set(policy, "staggered"),
            has_plans: policy.contains_key("plans"),
            per: text(policy, "per").unwrap_or_default(),
            limit: number(policy, "limit").unwrap_or_default(),
            burst: number(policy, "burst"),
            keys: keys(policy),
            algorithm,
        }
    }
}

fn who(policy: &Table) -> String {
    let parts = keys(policy);
    if let Some(entries) = parts.iter().map(|key| key.strip_prefix(DESCRIPTOR)).collect::<Option<Vec<_>>>() {
        return who_of_descriptor(&entries);
    }
    let words = parts.iter().map(|key| match key.as_str() {
        "global" => "all clients together".to_owned(),
        "client-ip" => "each client address".to_owned(),
        "user" => "each user".to_owned(),
        "path" => "each route".to_owned(),
        key => match key.split_once(':') {
            Some(("header", name)) => format!("each {}", name.trim()),
            Some(("query", name)) => format!("each {} of the query", name.trim()),
            Some((kind, name)) => format!("each {kind} {}", name.trim()),
            None => format!("each {key}"),
        },
    });
    words.collect::<Vec<_>>().join(" and ")
}

/// Describes the requests that a policy does not charge.
fn exemptions(tables: &[Option<&Table>]) -> String {
    let mut exempt = Vec::new();
    for (key, value) in tables.iter().flatten().flat_map(|table| table.iter()) {
        match value {
            Value::Table(fields) => exempt.extend(fields.iter().map(|(name, value)| match texts(Some(value)) {
                values if values.is_empty() => name.clone(),
                values => format!("{name}={}", values.join("|")),
            })),
            value => exempt.extend(texts(Some(value)).into_iter().map(|text| format!("{key} {text}"))),
        }
    }
    if exempt.is_empty() { String::new() } else { format!(", but not {}", exempt.join(", ")) }
}

/// Describes a policy's key for descriptors in Envoy's protocol.
fn who_of_descriptor(entries: &[&str]) -> String {
    let values = entries.iter().filter(|entry| !entry.contains('=')).copied().collect::<Vec<_>>();
    let fixed = entries.iter().filter(|entry| entry.contains('=')).copied().collect::<Vec<_>>();
    let who = if values.is_empty() { "all".to_owned() } else { format!("each {}", values.join(" and ")) };
    if fixed.is_empty() { who } else { format!("{who} with {}", fixed.join(", ")) }
}

/// The parts of a policy's key.
pub(crate) fn keys(policy: &Table) -> Vec<String> {
    match policy.get("key") {
        None => vec!["global".to_owned()],
        key => texts(key),
    }
}

/// A text, or the texts in a list.
fn texts(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// The line with each route's paths, in order.
fn path_lines(text: &str) -> Vec<usize> {
    let Ok(file) = DeTable::parse(text) else { return Vec::new() };
    let routes = file.get_ref().get("route").and_then(|routes| routes.get_ref().as_array()).into_iter().flatten();
    let places = routes.filter_map(|route| Some(route.get_ref().get("path")?.span().start));
    let mut before = 0..0;
    let mut line = 1;
    let mut lines = Vec::new();
    for place in places {
        before = before.end..place.max(before.end);
        line += text[before.clone()].bytes().filter(|byte| *byte == b'\n').count();
        lines.push(line);
    }
    lines
}

fn what(policy: &Table, algorithm: &str) -> String {
    let limit = number(policy, "limit").unwrap_or_default();
    let per = per(policy);
    let burst = number(policy, "burst").unwrap_or(limit);
    let units = match number(policy, "cost") {
        Some(cost) if cost > 1 => format!(" units ({cost} per request)"),
        _ => String::new(),
    };
    match algorithm {
        "token-bucket" | "leaky-bucket" => format!("{burst}{units} at once, then {limit} per {per}"),
        "fixed-window" => format!("{limit}{units} per {per}, {}", window(policy)),
        "sliding-window" => format!("{limit}{units} within any {per}, about"),
        "leaky-queue" => match number(policy, "burst") {
            Some(burst) if burst > 1 => format!("{burst}{units} at once, then paced at {limit} per {per}"),
            _ => format!("paced at {limit}{units} per {per}"),
        },
        "slow-down" => {
            let free = number(policy, "free").unwrap_or(burst / 2);
            let step = text(policy, "step").unwrap_or_else(|| "1s".to_owned());
            format!("{free}{units} at once, then {step} more of delay each; {limit} per {per}")
        }
        "concurrency" => format!("{limit}{units} in flight"),
        "overload" => match policy.get("limits").and_then(Value::as_array).map(Vec::as_slice) {
            Some([least, most]) => format!("as many in flight as the server bears, {least} to {most}"),
            _ => "as many in flight as the server bears, 4 to 1024".to_owned(),
        },
        "balance" => "the units credited to the key".to_owned(),
        other => other.to_owned(),
    }
}

/// Where a policy's budgets are: see `store` in the format. `None` if only memory is possible.
fn place(policy: &Table, algorithm: &str, stores: &[&str]) -> Option<String> {
    let is_of_process = matches!(algorithm, "slow-down" | "overload");
    let only = *stores.first()?;
    match text(policy, "store") {
        Some(name) if name == "memory" => Some("in memory".to_owned()),
        Some(name) => Some(format!("on {name}")),
        None if is_of_process => Some("in memory".to_owned()),
        None => Some(format!("on {only}")),
    }
}

/// The plans' limits, behind the limit for all other keys.
fn plans(policy: &Table) -> String {
    let Some(plans) = policy.get("plans").and_then(Value::as_table) else { return String::new() };
    let limits = plans.get("limits").and_then(Value::as_table).into_iter().flatten();
    let limits = limits.filter_map(|(name, plan)| {
        let plan = plan.as_table()?;
        let burst = number(plan, "burst").map(|burst| format!(" ({burst} at once)")).unwrap_or_default();
        Some(format!("{name} {}{burst}", number(plan, "limit")?))
    });
    format!("; by {}: {}", texts(plans.get("by")).join(" + "), limits.collect::<Vec<_>>().join(", "))
}

fn window(policy: &Table) -> String {
    let zone = text(policy, "zone").unwrap_or_else(|| "UTC".to_owned());
    match text(policy, "per").as_deref() {
        Some("day") => format!("from midnight, {zone}"),
        Some("week") => {
            format!("from {}, {zone}", text(policy, "week-start").unwrap_or_else(|| "monday".to_owned()))
        }
        Some("month") => format!("from day {}, {zone}", number(policy, "anchor").unwrap_or(1)),
        _ if is_set(policy, "staggered") => "in windows of each key".to_owned(),
        _ => "in fixed windows".to_owned(),
    }
}

/// The period in words: `1s` is a second.
fn per(policy: &Table) -> String {
    match text(policy, "per").unwrap_or_default().as_str() {
        "1s" => "second".to_owned(),
        "1m" | "60s" => "minute".to_owned(),
        "1h" => "hour".to_owned(),
        "1d" | "1day" | "24h" => "day".to_owned(),
        "day" => "calendar day".to_owned(),
        "week" => "calendar week".to_owned(),
        "month" => "calendar month".to_owned(),
        other => other.to_owned(),
    }
}

fn requests(count: u64) -> String {
    format!("{count} request{}", if count == 1 { "" } else { "s" })
}

fn when_full(policy: &Table, algorithm: &str, is_shadow: bool) -> String {
    if is_set(policy, "suspended") {
        return "suspended: every request is rejected with 403".to_owned();
    }
    if is_shadow {
        return "counted only (a shadow)".to_owned();
    }
    // Clients that share a budget may have done nothing wrong.
    let is_shared = keys(policy).iter().all(|key| matches!(key.as_str(), "global" | "path" | "method"));
    let is_shared = is_shared || algorithm == "overload";
    let status = number(policy, "status").unwrap_or(if is_shared { 503 } else { 429 });
    let queue = number(policy, "max-queue");
    let wait = text(policy, "max-wait");
    let mut words = match (algorithm, queue) {
        ("leaky-queue", queue) => {
            let limit = number(policy, "limit").unwrap_or_default();
            let wait = wait.unwrap_or_else(|| "30s".to_owned());
            format!("waits its turn (up to {}, {wait}), then {status}", requests(queue.unwrap_or(limit)))
        }
        ("concurrency", Some(queue)) => {
            let wait = wait.unwrap_or_else(|| "30s".to_owned());
            format!("waits (up to {}, {wait}), then {status}", requests(queue))
        }
        ("overload", queue) => {
            let wait = wait.unwrap_or_else(|| "500ms".to_owned());
            format!("waits (up to {}, {wait}), then {status}", requests(queue.unwrap_or(1_024)))
        }
        ("slow-down", _) => {
            let delay = text(policy, "max-delay").unwrap_or_else(|| "30s".to_owned());
            format!("delayed up to {delay}, then {status}")
        }
        _ => format!("rejected with {status}"),
    };
    if let Some(penalty) = policy.get("penalty").and_then(Value::as_table) {
        let (ban, per) = (text(penalty, "ban").unwrap_or_default(), text(penalty, "per").unwrap_or_default());
        let rejections = number(penalty, "rejections").unwrap_or_default();
        words.push_str(&format!("; banned for {ban} after {rejections} early retries in {per}"));
        if let Some((factor, longest)) = number(penalty, "factor").zip(text(penalty, "up-to")) {
            words.push_str(&format!(", then {factor} times as long, up to {longest}"));
        }
    }
    words
}

pub(crate) fn tables<'a>(table: &'a Table, key: &str) -> Vec<&'a Table> {
    table.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table).collect()
}

fn text(table: &Table, key: &str) -> Option<String> {
    table.get(key)?.as_str().map(str::to_owned)
}

fn number(table: &Table, key: &str) -> Option<u64> {
    u64::try_from(table.get(key)?.as_integer()?).ok()
}

fn is_set(table: &Table, key: &str) -> bool {
    table.get(key).and_then(Value::as_bool).unwrap_or(false)
}
