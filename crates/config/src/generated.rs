//! The JSON schema and the format page, as the table in `format` makes them. `SLUICE_WRITE=1 cargo test -p
//! tower-sluice-config --all-features --lib generated` writes both files.

use std::fmt::Write;
use std::path::Path;

use super::format::{KeyKind, TABLES, TableKey};

fn table(name: &str) -> &'static [TableKey] {
    TABLES.iter().find(|(table, _)| *table == name).unwrap_or_else(|| panic!("no table {name}")).1
}

/// The schema's rules for combining keys.
fn rules_of(table: &str) -> &'static str {
    match table {
        "exempt" => "  \"minProperties\": 1,\n",
        "policy" => {
            r#"  "dependentRequired": { "penalty": ["key"] },
  "if": { "properties": { "algorithm": { "enum": ["concurrency", "overload", "balance"] } } },
  "then": { "properties": { "per": false, "burst": false, "when-full": false } },
  "else": {
    "required": ["per"], "properties": { "lease": false, "release-at": false }, "dependentRequired": { "plans": ["key"] }
  },
  "allOf": [
    {
      "if": { "properties": { "algorithm": { "enum": ["leaky-queue", "concurrency", "overload"] } } },
      "else": { "properties": { "max-queue": false, "max-wait": false } }
    },
    {
      "if": { "properties": { "algorithm": { "const": "slow-down" } } },
      "then": { "properties": { "store": { "const": "memory" }, "plans": false } },
      "else": { "properties": { "free": false, "step": false, "max-delay": false } }
    },
    {
      "if": { "properties": { "algorithm": { "const": "overload" } } },
      "then": {
        "properties": {
          "limit": false, "plans": false, "lease": false, "max-keys": false, "penalty": false,
          "store": { "const": "memory" }
        }
      },
      "else": {
        "properties": {
          "limits": false, "starting-at": false, "queue-target": false, "priority": false, "weight": false
        }
      }
    },
    {
      "if": { "properties": { "algorithm": { "const": "balance" } } },
      "then": {
        "properties": {
          "limit": false, "plans": false, "lease": false, "release-at": false, "penalty": false, "charge-once": false
        }
      }
    },
    {
      "if": { "properties": { "algorithm": { "enum": ["overload", "balance"] } } },
      "else": { "required": ["limit"] }
    }
  ],
"#
        }
        _ => "",
    }
}

/// Returns the members of a JSON object that describes a table.
fn schema_of(name: &str) -> String {
    let fields = table(name);
    let properties: Vec<_> = fields.iter().map(|field| format!("    {}", property(field))).collect();
    let needed = |field: &&TableKey| field.is_required || matches!(field.kind, KeyKind::Tables("route"));
    let required: Vec<_> = fields.iter().filter(needed).map(|field| format!("\"{}\"", field.name())).collect();
    let required = match required[..] {
        [] => String::new(),
        _ => format!("  \"required\": [{}],\n", required.join(", ")),
    };
    format!(
        "  \"type\": \"object\",\n  \"additionalProperties\": false,\n{required}{}  \"properties\": {{\n{}\n  }}\n",
        rules_of(name),
        properties.join(",\n"),
    )
}

fn property(field: &TableKey) -> String {
    let reference = |name: &str| format!("\"$ref\": \"#/$defs/{name}\"");
    let mut members = vec![format!("\"description\": {}", serde_json::to_string(field.about).unwrap())];
    members.push(match field.kind {
        KeyKind::Text => "\"type\": \"string\"".to_owned(),
        KeyKind::Texts => reference("one-or-many"),
        KeyKind::Time if field.schema.is_empty() => reference("time"),
        KeyKind::Time => "\"type\": \"string\"".to_owned(),
        KeyKind::List => "\"type\": \"array\"".to_owned(),
        KeyKind::Flag => "\"type\": \"boolean\"".to_owned(),
        KeyKind::Words(words) => format!("\"enum\": {}", serde_json::to_string(&words()).unwrap()),
        KeyKind::Number(least, most) => format!("\"type\": \"integer\", \"minimum\": {least}, \"maximum\": {most}"),
        KeyKind::Map(name) | KeyKind::Table(name) | KeyKind::Inline(name) => reference(name),
        KeyKind::MapOf(name) => format!("\"type\": \"object\", \"additionalProperties\": {{ {} }}", reference(name)),
        KeyKind::Tables(name) => format!("\"type\": \"array\", \"items\": {{ {} }}", reference(name)),
    });
    members.extend((!field.schema.is_empty()).then(|| field.schema.to_owned()));
    members.extend(field.default.map(|value| format!("\"default\": {value}")));
    format!("\"{}\": {{ {} }}", field.name(), members.join(", "))
}

fn schema() -> String {
    let mut text = r#"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "Rate limits",
  "description": "Routes and the policies that limit them, as tower-sluice reads them from a TOML file.",
"#
    .to_owned();
    text += schema_of("").trim_end();
    text += ",\n  \"$defs\": {\n";
    for (name, _) in TABLES.iter().filter(|(name, _)| !name.is_empty()) {
        let body: String = schema_of(name).lines().map(|line| format!("    {line}\n")).collect();
        write!(text, "    \"{name}\": {{\n{body}    }},\n").unwrap();
    }
    text + r#"    "headers": {
      "type": "object",
      "minProperties": 1,
      "additionalProperties": {
        "oneOf": [
          { "type": "string", "minLength": 1 },
          { "type": "array", "minItems": 1, "items": { "type": "string", "minLength": 1 } }
        ]
      }
    },
    "stores": {
      "type": "object",
      "propertyNames": { "not": { "const": "memory" } },
      "additionalProperties": { "type": "object", "properties": { "kind": { "type": "string" } } }
    },
    "classes": {
      "type": "object",
      "minProperties": 1,
      "additionalProperties": { "enum": ["low", "normal", "high", "critical"] }
    },
    "weights": {
      "type": "object",
      "minProperties": 1,
      "additionalProperties": { "type": "integer", "minimum": 1, "maximum": 4294967295 }
    },
    "one-or-many": { "oneOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] },
    "time": { "type": "string", "examples": ["250ms", "1s", "1m", "1h", "1day"] }
  }
}
"#
}

/// Adds a comment in lines with at most 100 bytes.
fn comment(page: &mut String, text: &str) {
    let mut line = String::from("#");
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > 100 {
            writeln!(page, "{line}").unwrap();
            line = String::from("#");
        }
        write!(line, " {word}").unwrap();
    }
    writeln!(page, "{line}").unwrap();
}

/// Adds a table's keys, and then its own tables, each under its name in a file.
fn add_table(page: &mut String, path: &str, name: &str) {
    for field in table(name) {
        let mut about = field.about.to_owned();
        match field.kind {
            KeyKind::Table(_) | KeyKind::Tables(_) => continue,
            KeyKind::Inline(_) if !field.is_aside => continue,
            KeyKind::Words(words) => write!(about, " One of: {}.", words().join(", ")).unwrap(),
            // Greater bounds stand for any number.
            KeyKind::Number(least, most) if most < 1_000 => write!(about, " From {least} to {most}.").unwrap(),
            _ => {}
        }
        if let Some(value) = field.default {
            write!(about, " Default: {}.", value.trim_matches('"')).unwrap();
        }
        comment(page, &about);
        writeln!(page, "{}{} = {}", if field.is_aside { "#" } else { "" }, field.name(), field.example).unwrap();
    }
    for field in table(name) {
        let path = [path, &field.name()].join(".").trim_start_matches('.').to_owned();
        let (header, inner) = match field.kind {
            KeyKind::Table(inner) => (format!("[{path}]"), inner),
            KeyKind::Tables(inner) => (format!("[[{path}]]"), inner),
            KeyKind::Inline(inner) if !field.is_aside => (format!("[{path}]"), inner),
            _ => continue,
        };
        page.push('\n');
        comment(page, field.about);
        writeln!(page, "{header}").unwrap();
        add_table(page, &path, inner);
    }
}

fn page() -> String {
    let mut page = String::new();
    add_table(&mut page, "", "");
    page.trim_start().to_owned()
}

#[test]
fn schema_and_page_match_the_table() {
    for (file, text) in [("schema.json", schema()), ("format.toml", page())] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
        if std::env::var_os("SLUICE_WRITE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == text, "{file} differs from the table in format.rs: run this with SLUICE_WRITE=1");
    }
}
