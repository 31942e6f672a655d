//! The configuration in force with its TOML, from which the server describes policies.

use std::ops::Deref;

use toml::{Table, Value};
use tower_sluice::key::{ClientIp, HeaderKey, KeyExtractor, User};
use tower_sluice::{PartitionKey, RequestHead};
use tower_sluice_config::{Changed, Config, ConfigError, ConfigReader, Route};

pub(crate) struct Limits {
    config: Config,
    file: Table,
    /// Whether the configuration is the program's own. Otherwise it comes from a file.
    is_built_in: bool,
}

impl Limits {
    pub(crate) fn parse(reader: ConfigReader, name: &str, text: &str) -> Result<Self, ConfigError> {
        Ok(Self { config: reader.parse(name, text)?, file: table(text), is_built_in: false })
    }

    /// Allows the page to change the limit, since no file sets it.
    pub(crate) fn built_in(self) -> Self {
        Self { is_built_in: true, ..self }
    }

    pub(crate) fn is_built_in(&self) -> bool {
        self.is_built_in
    }

    pub(crate) fn change(&mut self, name: &str, text: &str) -> Result<Changed, ConfigError> {
        let changed = self.config.change(name, text)?;
        self.file = table(text);
        Ok(changed)
    }

    /// Sets the limit for all policies that have one, because overload protection finds its own.
    pub(crate) fn change_limit(&mut self, limit: i64) -> Result<(), ConfigError> {
        let mut file = self.file.clone();
        let routes = file.get_mut("route").and_then(Value::as_array_mut).into_iter().flatten();
        let policies = routes.filter_map(|route| route.get_mut("policy")?.as_array_mut()).flatten();
        for written in policies.filter_map(|policy| policy.get_mut("limit")) {
            *written = limit.into();
        }
        self.change("server.toml", &file.to_string()).map(drop)
    }

    /// Returns the configuration's part for the route with this path.
    pub(crate) fn toml_of_route(&self, path: &str) -> Option<String> {
        let routes = self.file.get("route")?.as_array()?;
        let has_path = |route: &&Value| route.get("path").is_some_and(|paths| texts(paths).contains(&path));
        let route = routes.iter().find(has_path)?;
        Some(Table::from_iter([("route".to_owned(), Value::Array(vec![route.clone()]))]).to_string())
    }

    /// Returns a route's policies, in the file's order. An edited file may have its routes in another order.
    pub(crate) fn policies(&self, route: &Route) -> impl Iterator<Item = Policy<'_>> {
        let routes = self.file.get("route").and_then(Value::as_array).into_iter().flatten();
        let mut routes = routes.filter_map(Value::as_table);
        let written = routes.find(|written| written.get("path").is_some_and(|paths| texts(paths) == route.paths()));
        let policies = written.and_then(|written| written.get("policy")?.as_array()).into_iter().flatten();
        policies.filter_map(Value::as_table).map(Policy)
    }
}

impl Deref for Limits {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}

fn table(text: &str) -> Table {
    text.parse().expect("the configuration was parsed from it")
}

/// Returns one text, or all texts in a list.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(texts) => texts.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    }
}

/// Writes a value without quotation marks.
fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A policy as the file has it.
pub(crate) struct Policy<'a>(&'a Table);

impl<'a> Policy<'a> {
    pub(crate) fn name(&self) -> &'a str {
        self.0.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the key's parts.
    fn key(&self) -> Vec<&'a str> {
        self.0.get("key").map_or_else(|| vec!["global"], texts)
    }

    pub(crate) fn algorithm(&self) -> &'a str {
        self.0.get("algorithm").and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.0.get("shadow") == Some(&Value::Boolean(true))
    }

    pub(crate) fn limit(&self) -> Option<i64> {
        self.0.get("limit")?.as_integer()
    }

    /// Returns the period in milliseconds if it is written with one unit, from milliseconds to hours.
    pub(crate) fn period_ms(&self) -> Option<u64> {
        let text = self.0.get("per")?.as_str()?;
        let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
        let millis = match unit.trim() {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(millis)
    }

    /// Describes the policy in one line: the algorithm with its numbers, and the key.
    pub(crate) fn words(&self) -> String {
        let word = |field: &str| self.0.get(field).map(written);
        let is_set = |field: &str| self.0.get(field) == Some(&Value::Boolean(true));
        // Overload protection has no limit in the file, and a limit on requests in flight has no period.
        let limit = word("limit").unwrap_or_else(|| "as many as the server can do".to_owned());
        let per = word("per").map_or_else(|| "in flight".to_owned(), |per| format!("per {per}"));
        let mut parts = vec![format!("{}: {limit} {per}", self.algorithm())];
        for (field, before, after) in
            [("burst", "burst ", ""), ("max-queue", "up to ", " waiting"), ("max-wait", "for up to ", "")]
        {
            parts.extend(word(field).map(|value| format!("{before}{value}{after}")));
        }
        if is_set("staggered") {
            parts.push("staggered".to_owned());
        }
        parts.extend(word("cost").map(|cost| format!("cost {cost}")));
        parts.push(match self.key().as_slice() {
            ["global"] => "for all clients together".to_owned(),
            parts => format!("by {}", parts.join(" and ")),
        });
        if let Some(statuses) = self.0.get("charge-when").and_then(Value::as_array) {
            let statuses: Vec<_> = statuses.iter().map(written).collect();
            parts.push(format!("for responses {} only", statuses.join(" and ")));
        }
        if let Some(penalty) = self.0.get("penalty").and_then(Value::as_table) {
            let [ban, rejections, per] =
                ["ban", "rejections", "per"].map(|field| penalty.get(field).map(written).unwrap_or_default());
            parts.push(format!("banned for {ban} after more than {rejections} early retries per {per}"));
        }
        if is_set("shadow") {
            parts.push("shadow".to_owned());
        }
        parts.join(", ")
    }

    /// Returns the key that this request would have on `path`; keys may be personal data.
    pub(crate) fn key_of(&self, head: &RequestHead<'_>, client_ip: &ClientIp, path: &str) -> String {
        let read = |key: Result<PartitionKey, _>| key.map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
        let parts = self.key().into_iter().map(|part| {
            let key = match part.split_once(':') {
                Some((_, header)) => match header.trim().to_ascii_lowercase().parse() {
                    Ok(name) => read(HeaderKey::new(name).extract(head)),
                    Err(_) => Ok(part.to_owned()),
                },
                None if part == "client-ip" => client_ip.network(head).map(|network| network.to_string()),
                None if part == "user" => read(User::key().extract(head)),
                None if part == "path" => Ok(path.to_owned()),
                None => Ok("all clients".to_owned()),
            };
            key.unwrap_or_else(|error| error.to_string())
        });
        parts.collect::<Vec<_>>().join(" + ")
    }
}
