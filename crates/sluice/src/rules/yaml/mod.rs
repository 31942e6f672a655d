//! YAML as a tree whose values know their lines.

mod fields;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Tag};
use tower_sluice_config::ConfigError;

pub(super) use self::fields::{Fields, Shape};

/// The deepest nesting that is accepted, because the readers of a tree are recursive.
const MAX_DEPTH: usize = 64;

/// The bytes that a file's aliases may repeat. A tree shares the repeated values, but its readers copy them.
const MAX_REPEATED: usize = 4 << 20;

/// A value's approximate size besides its text, in bytes.
const BYTES_OF_VALUE: usize = 64;

/// A value and the line where it begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
    /// The size of a copy, in bytes.
    bytes: usize,
    /// How many lists and tables are nested in it.
    depth: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A text as it is written. Without quotation marks, the reader decides whether it is a number.
    Text {
        text: String,
        is_plain: bool,
    },
    List(Vec<Rc<Node>>),
    Table(Table),
}

/// Keys and values in the file's order. The keys are texts, and differ.
pub(super) type Table = Vec<(Key, Rc<Node>)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) line: usize,
    pub(super) text: String,
    /// Whether it is the `<<` whose value is merged into the table.
    is_merge: bool,
}

impl Node {
    /// Whether the value is left out: empty, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        match &self.value {
            Value::Text { text, is_plain } => *is_plain && matches!(&**text, "" | "~" | "null" | "Null" | "NULL"),
            Value::List(_) | Value::Table(_) => false,
        }
    }
}

/// Reads a file, which has one document beside empty ones, because tools that join files write `---` at the ends.
/// Returns `None` if all are empty.
///
/// # Errors
///
/// If it is not YAML, has a second document, a tag, a key twice or a key that is not a text, nests too deep, or repeats
/// too much by aliases.
pub(super) fn parse(file: &str, text: &str) -> Result<Option<Rc<Node>>, ConfigError> {
    let mut tree = Tree { file, root: None, begin: 1, open: Vec::new(), anchors: HashMap::new(), repeated: 0 };
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| syntax_error(file, &error))?;
        tree.push(event, span.start.line())?;
    }
    Ok(tree.root)
}

fn syntax_error(file: &str, error: &ScanError) -> ConfigError {
    let problem = format!(
        "this is not YAML: {}; check the indentation, and put a text that begins with `*`, `&`, `{{` or `[`, or has `: ` \
         in it, into quotation marks",
        error.info()
    );
    ConfigError::new(file, error.marker().line(), problem)
}

/// The tree as built from the events so far.
struct Tree<'a> {
    file: &'a str,
    root: Option<Rc<Node>>,
    /// The line where the document begins.
    begin: usize,
    /// The lists and tables that have not ended, from the outermost.
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    /// The bytes that aliases have repeated.
    repeated: usize,
}

/// A list or a table that has not ended.
struct Open {
    line: usize,
    anchor: usize,
    content: Content,
    bytes: usize,
    depth: usize,
}

enum Content {
    List(Vec<Rc<Node>>),
    Table { entries: Table, key: Option<Key> },
}

impl Tree<'_> {
    fn push(&mut self, event: Event<'_>, line: usize) -> Result<(), ConfigError> {
        match event {
            Event::DocumentStart(_) => {
                self.begin = line;
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.reject_tag(tag.as_deref(), line)?;
                let bytes = BYTES_OF_VALUE + text.len();
                let value = Value::Text { text: text.into_owned(), is_plain: style == ScalarStyle::Plain };
                self.add(Node { line, value, bytes, depth: 0 }, anchor)
            }
            Event::SequenceStart(anchor, tag) => self.open(Content::List(Vec::new()), anchor, tag.as_deref(), line),
            Event::MappingStart(anchor, tag) => {
                self.open(Content::Table { entries: Vec::new(), key: None }, anchor, tag.as_deref(), line)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.repeat(anchor, line),
            _ => Ok(()),
        }
    }

    fn open(&mut self, content: Content, anchor: usize, tag: Option<&Tag>, line: usize) -> Result<(), ConfigError> {
        self.reject_tag(tag, line)?;
        self.open.push(Open { line, anchor, content, bytes: BYTES_OF_VALUE, depth: 1 });
        self.check_depth(0, line)
    }

    fn close(&mut self) -> Result<(), ConfigError> {
        let Some(Open { line, anchor, content, bytes, depth }) = self.open.pop() else { return Ok(()) };
        let value = match content {
            Content::List(list) => Value::List(list),
            Content::Table { entries, .. } => Value::Table(self.merged(entries)?),
        };
        self.add(Node { line, value, bytes, depth }, anchor)
    }

    /// Repeats an anchor's value here.
    fn repeat(&mut self, anchor: usize, line: usize) -> Result<(), ConfigError> {
        let Some(node) = self.anchors.get(&anchor).map(Rc::clone) else {
            return Err(self.error(line, "this alias is inside of the value that it repeats; write the value out"));
        };
        self.repeated = self.repeated.saturating_add(node.bytes);
        if self.repeated > MAX_REPEATED {
            return Err(self.error(line, "the aliases of the file repeat more than 4 MiB; repeat less"));
        }
        self.attach(node)
    }

    fn add(&mut self, node: Node, anchor: usize) -> Result<(), ConfigError> {
        let node = Rc::new(node);
        // The number 0 means that there is no anchor.
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.attach(node)
    }

    /// Makes the node the next element, key or value in the innermost list or table.
    fn attach(&mut self, node: Rc<Node>) -> Result<(), ConfigError> {
        self.check_depth(node.depth, node.line)?;
        let Some(parent) = self.open.last_mut() else {
            if node.is_null() {
                return Ok(());
            }
            if self.root.is_some() {
                let problem = "a second document begins here; put it into a file of its own, or remove the line `---`";
                return Err(self.error(self.begin, problem));
            }
            self.root = Some(node);
            return Ok(());
        };
        parent.bytes = parent.bytes.saturating_add(node.bytes);
        parent.depth = parent.depth.max(node.depth + 1);
        match &mut parent.content {
            Content::List(list) => list.push(node),
            Content::Table { entries, key } => match key.take() {
                Some(key) => entries.push((key, node)),
                None => *key = Some(key_of(self.file, &node)?),
            },
        }
        Ok(())
    }

    /// Adds the tables that `<<` names. The table's own keys win over merged keys, and keys in an earlier merged table
    /// win over keys in a later one.
    fn merged(&self, entries: Table) -> Result<Table, ConfigError> {
        let (merges, mut table): (Table, Table) = entries.into_iter().partition(|(key, _)| key.is_merge);
        let mut lines: HashMap<String, usize> = HashMap::new();
        for (key, _) in &table {
            if let Some(first) = lines.insert(key.text.clone(), key.line) {
                let problem = format!("`{}` is there already, in line {first}; remove one of them", key.text);
                return Err(self.error(key.line, &problem));
            }
        }
        for (key, node) in &merges {
            let sources = match &node.value {
                Value::List(list) => list.as_slice(),
                Value::Table(_) | Value::Text { .. } => std::slice::from_ref(node),
            };
            for source in sources {
                let Value::Table(source) = &source.value else {
                    return Err(self.error(key.line, "`<<` needs a table, or a list of tables, such as <<: *defaults"));
                };
                for (key, node) in source {
                    if !lines.contains_key(&key.text) {
                        lines.insert(key.text.clone(), key.line);
                        table.push((key.clone(), Rc::clone(node)));
                    }
                }
            }
        }
        Ok(table)
    }

    fn check_depth(&self, depth: usize, line: usize) -> Result<(), ConfigError> {
        if self.open.len() + depth <= MAX_DEPTH {
            return Ok(());
        }
        Err(self.error(line, &format!("more than {MAX_DEPTH} lists and tables are nested here; nest fewer")))
    }

    fn reject_tag(&self, tag: Option<&Tag>, line: usize) -> Result<(), ConfigError> {
        match tag {
            None => Ok(()),
            Some(tag) => {
                let tag = if tag.is_yaml_core_schema() { format!("!!{}", tag.suffix) } else { tag.to_string() };
                Err(self.error(line, &format!("the tag `{tag}` has no meaning here; remove it")))
            }
        }
    }

    fn error(&self, line: usize, problem: &str) -> ConfigError {
        ConfigError::new(self.file, line, problem)
    }
}

fn key_of(file: &str, node: &Node) -> Result<Key, ConfigError> {
    match &node.value {
        Value::Text { text, is_plain } => {
            Ok(Key { line: node.line, text: text.clone(), is_merge: *is_plain && text == "<<" })
        }
        Value::List(_) | Value::Table(_) => {
            Err(ConfigError::new(file, node.line, "a list or a table cannot be a key; write the name of a field"))
        }
    }
}
