//! The fields in a table, read with errors that name line, field and cure.

use std::fmt;
use std::rc::Rc;

use tower_sluice_config::ConfigError;

use super::{Key, Node, Value};

/// The longest value that a message repeats, in bytes.
const LONGEST_SHOWN: usize = 60;

/// A kind of table, and the fields that it may have.
#[derive(Debug)]
pub(in crate::rules) struct Shape {
    /// Such as "a descriptor".
    pub(in crate::rules) what: &'static str,
    pub(in crate::rules) fields: &'static [&'static str],
}

/// A table whose fields are all known.
#[derive(Clone, Copy, Debug)]
pub(in crate::rules) struct Fields<'a> {
    file: &'a str,
    line: usize,
    table: &'a [(Key, Rc<Node>)],
}

impl<'a> Fields<'a> {
    /// Reads a table with the given `shape`, which is part of the `format`.
    ///
    /// # Errors
    ///
    /// If it isn't a table, or has a field that the shape lacks.
    pub(in crate::rules) fn read(
        file: &'a str,
        node: &'a Node,
        shape: &Shape,
        format: &[Shape],
    ) -> Result<Self, ConfigError> {
        let Value::Table(table) = &node.value else {
            let problem = format!("{} must be a table; write `{}: …`", shape.what, shape.fields[0]);
            return Err(ConfigError::new(file, node.line, problem));
        };
        for (key, _) in table {
            if !shape.fields.contains(&&*key.text) {
                let elsewhere = format.iter().find(|shape| shape.fields.contains(&&*key.text));
                return Err(unknown(file, key, shape, elsewhere));
            }
        }
        Ok(Self { file, line: node.line, table })
    }

    /// Returns the line where the table begins.
    pub(in crate::rules) const fn line(&self) -> usize {
        self.line
    }

    /// Returns a field's line, or the table's first line if the field is absent.
    pub(in crate::rules) fn line_of(&self, name: &str) -> usize {
        self.table.iter().find(|(key, _)| key.text == name).map_or(self.line, |(key, _)| key.line)
    }

    /// Returns a field's value, unless it is absent or null.
    pub(in crate::rules) fn get(&self, name: &str) -> Option<&'a Node> {
        let (_, node) = self.table.iter().find(|(key, _)| key.text == name)?;
        if node.is_null() { None } else { Some(node) }
    }

    /// Returns a text. A number or a flag is returned as the file spells it.
    pub(in crate::rules) fn text(&self, name: &str) -> Result<Option<&'a str>, ConfigError> {
        let Some(node) = self.get(name) else { return Ok(None) };
        match &node.value {
            Value::Text { text, .. } => Ok(Some(text)),
            Value::List(_) | Value::Table(_) => Err(self.error(name, format_args!("`{name}` is a text; write one"))),
        }
    }

    /// Returns whether a flag is set. As in YAML 1.1, `yes` and `on` are `true`.
    pub(in crate::rules) fn flag(&self, name: &str) -> Result<bool, ConfigError> {
        match self.plain(name, "true or false, without quotation marks")? {
            None => Ok(false),
            Some("true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON") => Ok(true),
            Some("false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF") => Ok(false),
            Some(text) => Err(self.wrong(name, text, "true or false")),
        }
    }

    /// Returns a whole number, which is at most `max`.
    pub(in crate::rules) fn number(&self, name: &str, max: u64) -> Result<Option<u64>, ConfigError> {
        let expected = format!("a whole number of at most {max}, without quotation marks");
        let Some(text) = self.plain(name, &expected)? else { return Ok(None) };
        // In YAML 1.1, 010 is eight, and in YAML 1.2, it is ten.
        let is_octal = text.len() > 1 && text.starts_with('0');
        let digits = text.replace('_', "");
        let is_number = !is_octal && !text.starts_with('_') && digits.bytes().all(|byte| byte.is_ascii_digit());
        match digits.parse() {
            Ok(number) if is_number && number <= max => Ok(Some(number)),
            _ => Err(self.wrong(name, text, &expected)),
        }
    }

    /// Returns a list's elements. The list is empty if the field is absent.
    pub(in crate::rules) fn list(&self, name: &str) -> Result<&'a [Rc<Node>], ConfigError> {
        match self.get(name).map(|node| &node.value) {
            None => Ok(&[]),
            Some(Value::List(list)) => Ok(list),
            Some(Value::Text { .. } | Value::Table(_)) => {
                Err(self.error(name, format_args!("`{name}` is a list; write `- ` in front of each element")))
            }
        }
    }

    /// Makes an error at a field, or at the table if the field is absent.
    pub(in crate::rules) fn error(&self, name: &str, problem: impl fmt::Display) -> ConfigError {
        ConfigError::new(self.file, self.line_of(name), problem)
    }

    /// Makes an error for a field with the wrong value.
    pub(in crate::rules) fn wrong(&self, name: &str, found: &str, expected: &str) -> ConfigError {
        if found.len() > LONGEST_SHOWN {
            return self.error(name, format_args!("`{name}`: write {expected}"));
        }
        self.error(name, format_args!("`{name}` is `{found}`; write {expected}"))
    }

    /// Returns the text of a number or a flag. A text in quotation marks is an error.
    fn plain(&self, name: &str, expected: &str) -> Result<Option<&'a str>, ConfigError> {
        match self.get(name).map(|node| &node.value) {
            None => Ok(None),
            Some(Value::Text { text, is_plain: true }) => Ok(Some(text)),
            Some(Value::Text { text, is_plain: false }) => Err(self.wrong(name, &format!("\"{text}\""), expected)),
            Some(Value::List(_) | Value::Table(_)) => {
                Err(self.error(name, format_args!("`{name}` has one value; write it behind the colon")))
            }
        }
    }
}

fn unknown(file: &str, key: &Key, shape: &Shape, elsewhere: Option<&Shape>) -> ConfigError {
    let Key { line, text, .. } = key;
    let name = if text.len() > LONGEST_SHOWN { "such a field".to_owned() } else { format!("field `{text}`") };
    let cure = match elsewhere {
        Some(other) => format!("move it, since it is a field of {}", other.what),
        None => format!("correct it to one of {}, or remove it", shape.fields.join(", ")),
    };
    ConfigError::new(file, *line, format_args!("{} has no {name}; {cure}", shape.what))
}
