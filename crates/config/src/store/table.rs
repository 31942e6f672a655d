//! `StoreTable`: a file's `[store.NAME]`.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use crate::error::ConfigError;
use crate::parser_errors;
use crate::source::SourceText;
use crate::value::duration;

/// The key that says which kind of store it is.
const KIND: &str = "kind";

/// A `[store.NAME]` in a file, for the function that [opens](crate::ConfigReader::store) its store.
#[derive(Clone)]
pub struct StoreTable<'a> {
    source: &'a SourceText<'a>,
    name: String,
    kind: String,
    /// The place of its `kind`, otherwise of the table.
    kind_at: Range<usize>,
    /// Without its `kind`.
    table: Spanned<DeValue<'a>>,
}

impl<'a> StoreTable<'a> {
    /// Reads a table's kind.
    pub(super) fn new(
        source: &'a SourceText<'a>,
        name: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'a>>,
    ) -> Result<Self, ConfigError> {
        let name_at = name.span();
        let name = name.get_ref().as_ref().to_owned();
        let mut table = value.clone();
        let DeValue::Table(keys) = table.get_mut() else {
            let problem = format!(
                "store.{name} is no table; a store has a name: write [store.{name}], or another name in place of {name}"
            );
            return Err(source.error(&name_at, problem));
        };
        if let Some(problem) = name_problem(&name) {
            return Err(source.error(&name_at, problem));
        }
        if name == "memory" {
            let problem = "store = \"memory\" is this process; give the store another name";
            return Err(source.error(&name_at, problem));
        }
        let (kind, kind_at) = match keys.remove(KIND) {
            None => (name.clone(), name_at),
            Some(kind) => match kind.get_ref() {
                DeValue::String(text) => (text.to_string(), kind.span()),
                _ => return Err(source.error(&kind.span(), "kind: write a text in quotation marks, such as \"redis\"")),
            },
        };
        Ok(Self { source, name, kind, kind_at, table })
    }

    /// Returns a file's `[redis]`, if it has one.
    pub(crate) fn redis(source: &'a SourceText<'a>, file: &DeTable<'a>) -> Option<Self> {
        let (name, table) = file.get_key_value("redis")?;
        Self::new(source, name, table).ok()
    }

    /// Returns its name in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its `kind`, or its name if it has none.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Reads the table, without its `kind`. Give `T` the attributes `deny_unknown_fields` and `rename_all =
    /// "kebab-case"`, as other tables have.
    ///
    /// # Errors
    ///
    /// If a key is unknown, missing, or has another type. The message has the line, and not the value, which may be a
    /// secret.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        T::deserialize(ValueDeserializer::from(self.table.clone())).map_err(|error| {
            let at = error.span().unwrap_or_else(|| self.kind_at.clone());
            let path = parser_errors::path_to(self.keys(), &at);
            // A missing key is reported at the table's place, because its range begins with its first key.
            let is_missing = error.message().starts_with(parser_errors::MISSING);
            let at = if is_missing { self.kind_at.clone() } else { at };
            self.source.error(&at, parser_errors::of_store(&path, error.message()))
        })
    }

    /// Reads a time, such as `"50ms"`, if the table has the key.
    ///
    /// # Errors
    ///
    /// If it isn't a time, or is zero.
    pub fn time(&self, key: &str) -> Result<Option<Duration>, ConfigError> {
        let Some(value) = self.keys().get(key) else { return Ok(None) };
        let DeValue::String(text) = value.get_ref() else {
            return Err(self.error(key, format_args!("{key}: write a time in quotation marks, such as \"50ms\"")));
        };
        let time = duration(self.source, key, &Spanned::new(value.span(), text.to_string()))?;
        if time.is_zero() {
            return Err(self.error(key, format_args!("{key} = \"{text}\": the time is 0; write a time such as 50ms")));
        }
        Ok(Some(time))
    }

    /// Makes an error at a key's line, or at the table's if it does not have the key.
    #[must_use]
    pub fn error(&self, key: &str, problem: impl fmt::Display) -> ConfigError {
        self.source.error(&self.keys().get(key).map_or_else(|| self.kind_at.clone(), Spanned::span), problem)
    }

    /// Makes an error at the line with its `kind`, or at the table's line if it has none.
    pub(super) fn error_of_kind(&self, problem: impl fmt::Display) -> ConfigError {
        self.source.error(&self.kind_at, problem)
    }

    fn keys(&self) -> &DeTable<'a> {
        self.table.get_ref().as_table().expect("it is a table")
    }
}

/// Stores' names appear in messages and in comments in statements, and an address may have a password.
fn name_problem(name: &str) -> Option<&'static str> {
    let fits = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    let is_name = !name.is_empty() && name.len() <= 64 && name.chars().all(fits);
    (!is_name)
        .then_some("the name of a store has letters, digits, hyphens, dots and underscores, and at most 64 of them")
}

impl fmt::Debug for StoreTable<'_> {
    /// Prints no setting, since an address may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreTable").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}
