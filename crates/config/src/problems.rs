//! `ConfigReader::problems`: all mistakes in a file.
//!
//! The parser stops at the first mistake. So each table is read by itself, and again without each wrong field.

use std::collections::{HashMap, HashSet};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::error::ConfigError;
use super::format::{self, KeyKind, RawClientIp, RawConfig, RawPolicy, RawRedis, RawResponse, RawRoute, RawStores};
use super::parser_errors::{self, MISSING};
use super::reader::ConfigReader;
use super::response::ResponseSettings;
use super::snapshot::SnapshotFile;
use super::source::SourceText;
use super::store::{NamedStores, StoreMode, StoreTable, Stores};
use super::value::{duration, number_in};
use super::{
    NO_ROUTE, SharedSettings, check_ignored, check_paths, check_without_policy, client_ip, combine, read_preflights,
};
use tower_sluice::key::ClientIp;

/// Reading stops after this many mistakes.
const MOST: usize = 1_000;

/// Stands for the path of a route that has none.
const NO_PATH: &str = "/";

pub(crate) fn find(file: &str, text: &str, reader: ConfigReader) -> Vec<ConfigError> {
    let source = SourceText::new(file, text);
    let table = match source.parse_table() {
        Ok(table) => table,
        Err(error) => return vec![error],
    };
    let mut finder = Finder { source: &source, file: table.get_ref(), problems: Vec::new() };
    finder.read_file(table.get_ref().clone(), reader);
    let mut problems = finder.problems;
    problems.sort_by_key(ConfigError::line);
    problems.truncate(MOST);
    problems
}

/// The mistakes that were found so far.
struct Finder<'a, 't> {
    source: &'a SourceText<'t>,
    /// The whole file.
    file: &'a DeTable<'t>,
    problems: Vec<ConfigError>,
}

impl<'t> Finder<'_, 't> {
    /// Adds a result's mistake, or returns its value.
    fn note<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.problems.push(error)).ok()
    }

    fn read_file(&mut self, mut file: DeTable<'t>, reader: ConfigReader) {
        let raw = self.table::<Spanned<RawClientIp>>(&mut file, "client-ip");
        let client_ip = raw.and_then(|raw| self.note(client_ip(self.source, raw.into_inner())));
        let client_ip = client_ip.unwrap_or_else(ClientIp::peer);
        let has_redis = file.contains_key("redis");
        let redis = StoreTable::redis(self.source, &file);
        let redis = self.table::<Spanned<RawRedis>>(&mut file, "redis").and(redis);
        let tables = file.get("store").cloned();
        self.table::<Spanned<RawStores>>(&mut file, "store");
        let named = NamedStores { has_redis, redis, tables: tables.as_ref() };
        let mode = StoreMode::Checked { is_replay: reader.replay.is_some() };
        let stores = Stores::open(self.source, named, reader.redis, mode, &reader.kinds, &mut self.problems);
        if let Some(raw) = self.table::<Spanned<_>>(&mut file, "snapshot") {
            self.note(SnapshotFile::parse(self.source, raw.into_inner()));
        }
        if let Some(raw) = self.table::<Spanned<RawResponse>>(&mut file, "response") {
            self.note(ResponseSettings::parse(self.source, raw.get_ref()));
        }
        let shared = SharedSettings {
            client_ip: &client_ip,
            custom_keys: reader.custom_keys.as_deref(),
            response: ResponseSettings::default(),
            stores: &stores,
        };
        let routes = take_tables(&mut file, "route");
        // The remaining fields are unknown, or a route that is not a list of tables.
        self.read::<RawConfig>(Spanned::new(0..0, DeValue::Table(file)));
        match routes {
            Some(routes) => self.read_routes(routes, &shared),
            None if self.problems.is_empty() => self.problems.push(self.source.error(&self.source.end(), NO_ROUTE)),
            // An unknown field may be the misspelt route.
            None => {}
        }
    }

    fn read_routes(&mut self, routes: Vec<Spanned<DeValue<'t>>>, shared: &SharedSettings<'_>) {
        let mut lines = HashMap::new();
        for mut route in routes {
            if self.problems.len() >= MOST {
                return;
            }
            let policies = match route.get_mut() {
                DeValue::Table(table) => take_tables(table, "policy").unwrap_or_default(),
                _ => Vec::new(),
            };
            let raw = self.read::<RawRoute>(route);
            if let Some(raw) = &raw {
                self.note(check_paths(self.source, raw.path.get_ref().as_slice(), &raw.path.span(), &mut lines));
                if policies.is_empty() {
                    self.note(check_without_policy(self.source, raw));
                }
                self.note(check_ignored(self.source, raw));
                self.note(shared.read_response(self.source, raw));
                self.note(read_preflights(self.source, raw));
            }
            let exemptions = raw.as_ref().and_then(|raw| self.note(shared.read_exemptions(self.source, raw)).flatten());
            let path = raw.as_ref().and_then(|raw| raw.path.get_ref().as_slice().first());
            let path = path.map_or(NO_PATH, String::as_str);
            let (count, mut names, mut built) = (policies.len(), HashSet::new(), Vec::new());
            for policy in policies {
                let begin = self.problems.len();
                let values = policy.get_ref().clone();
                if let Some(raw) = self.read::<RawPolicy>(policy) {
                    let policy = shared.read_policy(self.source, &raw, path, exemptions.as_ref(), &mut names);
                    built.extend(self.note(policy));
                }
                self.check_values("policy", &values, begin);
            }
            if let Some(raw) = raw.filter(|_| count > 0 && built.len() == count) {
                self.note(combine(self.source, &raw, built));
            }
        }
    }

    /// Takes a table out of the file, and reads it.
    fn table<T: DeserializeOwned>(&mut self, file: &mut DeTable<'t>, key: &str) -> Option<T> {
        let value = file.remove(key)?;
        self.read(value)
    }

    /// Reads a table, repeatedly, without each field that is wrong. Returns it if it has no mistake.
    fn read<T: DeserializeOwned>(&mut self, mut value: Spanned<DeValue<'t>>) -> Option<T> {
        let mut removed: Vec<Vec<String>> = Vec::new();
        loop {
            let error = match T::deserialize(ValueDeserializer::from(value.clone())) {
                Ok(read) => return removed.is_empty().then_some(read),
                Err(error) => error,
            };
            let DeValue::Table(table) = value.get_mut() else {
                self.problems.push(self.source.type_error(self.file, &error));
                return None;
            };
            let path = parser_errors::path_to(table, &error.span().unwrap_or(0..0));
            // A field that was removed is missing now.
            let is_echo = error.message().starts_with(MISSING)
                && removed.iter().any(|field| field.len() == path.len() + 1 && field.starts_with(&path));
            if !is_echo {
                self.problems.push(self.source.type_error(self.file, &error));
            }
            if !remove(table, &path) {
                return None;
            }
            removed.push(path);
        }
    }

    /// Adds a table's numbers and times that are out of range, by the format alone. `begin` is the index of the table's
    /// first mistake, because a line that has a mistake already is left out.
    fn check_values(&mut self, table: &str, value: &DeValue<'_>, begin: usize) {
        let Some(entries) = value.as_table() else { return };
        for (key, value) in entries {
            let name = format!("{table}.{}", key.get_ref());
            let Some(field) = format::field(&name) else { continue };
            let checked = match (field.kind, value.get_ref()) {
                (KeyKind::Number(least, most), DeValue::Integer(number)) => {
                    let Ok(number) = i64::from_str_radix(number.as_str(), number.radix()) else { continue };
                    number_in(self.source, &name, least..=most, &Spanned::new(value.span(), number)).map(drop)
                }
                // Calendar words are times, too.
                (KeyKind::Time, DeValue::String(text)) if !matches!(&**text, "day" | "week" | "month") => {
                    duration(self.source, key.get_ref(), &Spanned::new(value.span(), text.to_string())).map(drop)
                }
                (KeyKind::Inline(table), inner) => {
                    self.check_values(table, inner, begin);
                    continue;
                }
                (KeyKind::MapOf(table), DeValue::Table(entries)) => {
                    entries.values().for_each(|entry| self.check_values(table, entry.get_ref(), begin));
                    continue;
                }
                _ => continue,
            };
            let has_other = |error: &ConfigError| self.problems[begin..].iter().any(|it| it.line() == error.line());
            if let Some(error) = checked.err().filter(|error| !has_other(error)) {
                self.problems.push(error);
            }
        }
    }
}

/// Takes a list of tables out of a table. Leaves any other value there.
fn take_tables<'t>(table: &mut DeTable<'t>, key: &str) -> Option<Vec<Spanned<DeValue<'t>>>> {
    let is_list = |value: &Spanned<DeValue<'_>>| {
        let list = value.get_ref().as_array();
        list.is_some_and(|list| !list.is_empty() && list.iter().all(|value| value.get_ref().is_table()))
    };
    if !table.get(key).is_some_and(is_list) {
        return None;
    }
    match table.remove(key)?.into_inner() {
        DeValue::Array(list) => Some(list.into_iter().collect()),
        _ => None,
    }
}

/// Removes the field to which these keys lead. Returns whether there was one.
fn remove(table: &mut DeTable<'_>, path: &[String]) -> bool {
    match path {
        [] => false,
        [key] => table.remove(key.as_str()).is_some(),
        [key, rest @ ..] => match table.get_mut(key.as_str()).map(Spanned::get_mut) {
            Some(DeValue::Table(inner)) => remove(inner, rest),
            _ => false,
        },
    }
}
