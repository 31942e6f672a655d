//! Expressions in the Common Expression Language (CEL), read and evaluated by Limitador's own interpreter.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{self, AtomicBool};
use std::sync::{Arc, LazyLock};
use std::thread;

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, operators};
use cel::common::value::CelVal;
use cel::objects::Map;
use cel::parser::Parser;
use cel::{Context, ExecutionError, IdedExpr, Value};

use super::super::Descriptor;
use super::expression::Reference;

/// The interpreter's functions.
const FUNCTIONS: [&str; 32] = [
    "bytes",
    "contains",
    "double",
    "duration",
    "endsWith",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
    "hasValue",
    "int",
    "matches",
    "max",
    "min",
    "none",
    "of",
    "ofNonZeroValue",
    "optional.none",
    "or",
    "orValue",
    "size",
    "startsWith",
    "string",
    "timestamp",
    "uint",
    "value",
];

/// The functions are set up once, because that takes longer than evaluating most expressions.
static ROOT: LazyLock<Context<'static>> = LazyLock::new(Context::default);

/// An expression beyond a plain comparison. Two are equal if their texts are.
#[derive(Clone, Debug)]
pub(super) struct Program {
    text: String,
    expression: Arc<IdedExpr>,
    /// The entries that it names without a descriptor, as in Limitador 1.
    names: BTreeSet<String>,
    /// The greatest index that it writes out, as in `descriptors[1]`.
    descriptor: usize,
    /// The value of `limit`, if the expression reads it.
    limit: Option<Value>,
    /// Whether an error was logged. One line for each expression suffices, since clients may cause more.
    has_failed: Arc<AtomicBool>,
}

/// An expression's limit, which its conditions may read.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitNames<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) id: Option<&'a str>,
}

/// A request's descriptors. They are converted to the interpreter's values when the first expression needs them.
pub(super) struct Request<'a> {
    pub(super) descriptors: &'a [Descriptor],
    context: OnceCell<Context<'static>>,
}

impl<'a> Request<'a> {
    pub(super) const fn new(descriptors: &'a [Descriptor]) -> Self {
        Self { descriptors, context: OnceCell::new() }
    }

    fn context(&self) -> &Context<'static> {
        self.context.get_or_init(|| {
            let list: Vec<Value> = self.descriptors.iter().map(map_of).collect();
            let mut context = ROOT.new_inner_scope();
            context.add_variable_from_value("descriptors", Value::List(list.into()));
            context
        })
    }
}

/// If entries have the same key, the last counts.
fn map_of(descriptor: &Descriptor) -> Value {
    let entries: HashMap<String, String> = descriptor.entries.iter().cloned().collect();
    Value::Map(Map::from(entries))
}

/// The deepest nesting that an expression may have. The parser calls itself for each level and each operator, so a
/// longer expression would end the process.
const DEEPEST: usize = 12;
const MOST_OPERATORS: usize = 200;

/// Checks that an expression is not too long for the parser.
fn check_size(text: &str) -> Result<(), String> {
    let (mut depth, mut deepest, mut operators) = (0_usize, 0, 0);
    for character in text.chars() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '+' | '-' | '*' | '/' | '%' | '!' | '=' | '<' | '>' | '&' | '|' | '?' | ':' | '.' | ',' => {}
            _ => continue,
        }
        operators += 1;
        deepest = deepest.max(depth);
    }
    if deepest > DEEPEST || operators > MOST_OPERATORS {
        return Err(format!(
            "it is nested {deepest} deep and has {operators} operators and brackets, and may have {DEEPEST} and \
             {MOST_OPERATORS}; write conditions of their own, which hold together"
        ));
    }
    Ok(())
}

/// How many bytes of stack the parser gets. Without optimization, an expression with `MOST_OPERATORS` needs more than a
/// worker's 2 MiB. The system provides only the part that is used.
const PARSER_STACK: usize = 64 << 20;

/// Reads an expression on a separate thread, and returns it if a worker's stack suffices to evaluate it.
fn parse_on_large_stack(text: &str) -> Result<IdedExpr, String> {
    let parse = || {
        // The parser panics on some texts that are not CEL.
        let expression = match catch_unwind(|| Parser::new().parse(text)) {
            Ok(Ok(expression)) => expression,
            Ok(Err(errors)) => return Err(syntax_error(&errors.to_string())),
            Err(_) => return Err(syntax_error("")),
        };
        check_depth(&expression)?;
        Ok(expression)
    };
    thread::scope(|scope| {
        let parser = thread::Builder::new().name("cel parser".to_owned()).stack_size(PARSER_STACK);
        let parser = parser.spawn_scoped(scope, parse).map_err(|error| {
            format!("no thread can be started to read it: {error}; allow the process more threads or memory")
        })?;
        parser.join().unwrap_or_else(|_| Err(syntax_error("")))
    })
}

/// The deepest tree that an expression may have. The interpreter calls itself for each level, and `a + b + c` is a
/// level deeper than `a + b`. A level takes up to 50 kB in a build without optimization, and a worker's stack has 2
/// MiB.
const DEEPEST_TREE: usize = 16;

/// Checks that a worker's stack suffices to evaluate an expression.
fn check_depth(expression: &IdedExpr) -> Result<(), String> {
    let depth = depth(&expression.expr);
    if depth > DEEPEST_TREE {
        return Err(format!(
            "its operators, calls and lists are {depth} levels deep, and {DEEPEST_TREE} is the most (each further `+` is \
             a level); split it into several conditions, which hold together"
        ));
    }
    Ok(())
}

fn depth(expression: &Expr) -> usize {
    parts(expression).iter().map(|part| depth(&part.expr)).max().unwrap_or(0) + 1
}

/// The direct subexpressions.
fn parts(expression: &Expr) -> Vec<&IdedExpr> {
    match expression {
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) => Vec::new(),
        Expr::Select(select) => vec![&select.operand],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => entries_of(map.entries.iter().map(|entry| &entry.expr)),
        Expr::Struct(of) => entries_of(of.entries.iter().map(|entry| &entry.expr)),
        Expr::Call(call) => call.target.iter().map(|target| &**target).chain(&call.args).collect(),
        Expr::Comprehension(of) => vec![&of.iter_range, &of.accu_init, &of.loop_cond, &of.loop_step, &of.result],
    }
}

fn entries_of<'a>(entries: impl Iterator<Item = &'a EntryExpr>) -> Vec<&'a IdedExpr> {
    let parts = entries.flat_map(|entry| match entry {
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        EntryExpr::StructField(field) => vec![&field.value],
    });
    parts.collect()
}

/// The most descriptors in a request, and the most entries in a descriptor, that the service accepts.
const DESCRIPTORS: u64 = 256;
const ENTRIES: u64 = 64;

/// The most steps that an expression may take, which suffices for two loops over descriptors, one in the other, with a
/// short condition. A step is an operator, a call, a value, or an element that is copied or compared.
const MOST_STEPS: u64 = 2_000_000;

/// How many steps `matches` takes, because it compiles its pattern each time.
const MATCHES: u64 = 1_000;

/// How many request texts one text may be joined from. Their bytes count only by this.
const MOST_TEXTS: u64 = 256;

/// Functions whose value is a number, a flag or a time. All others may return their arguments.
const SCALAR: [&str; 16] = [
    "contains",
    "double",
    "duration",
    "endsWith",
    "hasValue",
    "int",
    "matches",
    "size",
    "startsWith",
    "timestamp",
    "uint",
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::IN,
    operators::LOGICAL_NOT,
    operators::NOT_STRICTLY_FALSE,
];

/// Checks that a request cannot keep the interpreter busy for longer than a moment, because macros such as `all` are
/// loops, and nested loops multiply.
fn check_loops(expression: &IdedExpr) -> Result<(), String> {
    let mut work = Work::default();
    work.shape(&expression.expr);
    let steps = work.steps;
    if steps > MOST_STEPS {
        return Err(format!(
            "its loops (all, exists, map, filter) may take {steps} steps for a request, and {MOST_STEPS} is the most; \
             nest at most two of them, shorten what they contain, or write conditions of their own, which hold together"
        ));
    }
    Ok(())
}

/// An upper bound for a value's lengths: a list's, then the longest among the lists in it, and so on. The last length
/// counts the request texts in a text. A loop over descriptors sees `[256, 64, 1]`, and its variable is `[64, 1]`.
type Shape = Vec<u64>;

/// The greatest work that an expression can cause. It tracks the lengths of variables, since a loop may go over a list
/// that the loop around it has made.
#[derive(Default)]
struct Work {
    steps: u64,
    /// The variables in the loops around the current place.
    variables: Vec<(String, Shape)>,
}

impl Work {
    /// Adds an expression's work, and returns the shape of its value.
    fn shape(&mut self, expression: &Expr) -> Shape {
        self.touch(1);
        match expression {
            Expr::Unspecified | Expr::Literal(_) => vec![1],
            Expr::Ident(name) => match self.variables.iter().rev().find(|(variable, _)| variable == name) {
                Some((_, shape)) => shape.clone(),
                None if name == "descriptors" => vec![DESCRIPTORS, ENTRIES, 1],
                None if name == "limit" => vec![2, 1],
                None => vec![1],
            },
            Expr::Select(select) => element(&self.shape(&select.operand.expr)),
            Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => {
                let parts = parts(expression);
                let elements = self.join(&parts);
                let shape: Shape = std::iter::once(parts.len() as u64).chain(elements).collect();
                self.touch(elements_of(&shape));
                shape
            }
            Expr::Call(call) => self.call(&call.func_name, &parts(expression)),
            Expr::Comprehension(of) => self.comprehension(of),
        }
    }

    fn call(&mut self, name: &str, parts: &[&IdedExpr]) -> Shape {
        match (name, parts) {
            (operators::ADD, [left, right]) => {
                let (left, right) = (self.shape(&left.expr), self.shape(&right.expr));
                let length = first(&left).saturating_add(first(&right));
                self.touch(length);
                let mut sum = join(left, &right);
                if sum.len() <= 1 && length > MOST_TEXTS {
                    self.steps = u64::MAX;
                }
                sum.splice(..sum.len().min(1), [length]);
                sum
            }
            (operators::EQUALS | operators::NOT_EQUALS, [left, right]) => {
                let (left, right) = (self.shape(&left.expr), self.shape(&right.expr));
                self.touch(elements_of(&left).min(elements_of(&right)));
                vec![1]
            }
            (operators::INDEX, [list, index]) => {
                self.shape(&index.expr);
                element(&self.shape(&list.expr))
            }
            ("size", _) => {
                self.join(parts);
                vec![1]
            }
            (operators::CONDITIONAL | operators::LOGICAL_AND | operators::LOGICAL_OR, _) => self.join(parts),
            _ => {
                let shape = self.join(parts);
                self.touch(elements_of(&shape));
                if name == "matches" {
                    self.touch(MATCHES);
                }
                if SCALAR.contains(&name) { vec![1] } else { with_elements(shape) }
            }
        }
    }

    fn comprehension(&mut self, of: &ComprehensionExpr) -> Shape {
        let range = self.shape(&of.iter_range.expr);
        // An accumulated list grows by at most one element per step.
        let is_list = matches!(of.accu_init.expr, Expr::List(_));
        let accumulated = vec![if is_list { first(&range) } else { 1 }];
        let outside = std::mem::take(&mut self.steps);
        let outer = self.variables.len();
        self.variables.push((of.iter_var.clone(), element(&range)));
        self.variables.push((of.accu_var.clone(), accumulated.clone()));
        self.shape(&of.loop_cond.expr);
        let step = self.shape(&of.loop_step.expr);
        self.variables.truncate(outer);
        let steps = self.steps.saturating_mul(first(&range));
        self.steps = outside.saturating_add(steps);
        join(step, &accumulated)
    }

    /// Returns the shape of a value that may be any of several.
    fn join(&mut self, parts: &[&IdedExpr]) -> Shape {
        parts.iter().fold(Shape::new(), |shape, part| join(shape, &self.shape(&part.expr)))
    }

    fn touch(&mut self, elements: u64) {
        self.steps = self.steps.saturating_add(elements);
    }
}

fn first(shape: &Shape) -> u64 {
    shape.first().copied().unwrap_or(0)
}

/// Returns the shape of a list's elements. A text has none, but a key with dots is read as if it had.
fn element(shape: &Shape) -> Shape {
    if shape.len() > 1 { shape[1..].to_vec() } else { vec![1] }
}

/// Counts the elements in a list and in its lists.
fn elements_of(shape: &Shape) -> u64 {
    shape.iter().fold(1, |product: u64, length| product.saturating_mul(*length))
}

fn join(mut one: Shape, two: &Shape) -> Shape {
    one.resize(one.len().max(two.len()), 0);
    for (one, two) in one.iter_mut().zip(two) {
        *one = (*one).max(*two);
    }
    one
}

/// Returns the shape of a value that may be a list or, as for `max`, an element in it.
fn with_elements(shape: Shape) -> Shape {
    let elements = element(&shape);
    join(shape, &elements)
}

impl Program {
    /// Reads a condition, which may use `limit.name` and `limit.id`. An error is the problem and its cure.
    pub(super) fn condition(text: &str, limit: LimitNames<'_>) -> Result<Self, String> {
        let mut names = Names::default();
        let mut program = Self::parse(text, &mut names)?;
        if names.reads_limit {
            let text = |text: Option<&str>| text.map_or(Value::Null, |text| Value::String(Arc::new(text.to_owned())));
            let fields = [("name", text(limit.name)), ("id", text(limit.id))];
            program.limit = Some(Value::Map(Map::from(HashMap::from(fields))));
        }
        Ok(program)
    }

    /// Reads a variable. An error is the problem and its cure.
    pub(super) fn variable(text: &str) -> Result<Self, String> {
        let mut names = Names::default();
        let program = Self::parse(text, &mut names)?;
        if names.reads_limit {
            return Err(
                "a variable cannot read `limit`, and Limitador never applies such a limit; remove it, since each \
                        limit has budgets of its own in any case"
                    .to_owned(),
            );
        }
        Ok(program)
    }

    fn parse(text: &str, names: &mut Names) -> Result<Self, String> {
        let text = text.trim();
        check_size(text)?;
        let mut expression = parse_on_large_stack(text)?;
        check_loops(&expression)?;
        names.read(&mut expression)?;
        Ok(Self {
            text: text.to_owned(),
            expression: Arc::new(expression),
            names: std::mem::take(&mut names.entries),
            descriptor: names.descriptor,
            limit: None,
            has_failed: Arc::default(),
        })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the index of the descriptor that is charged, if the condition holds.
    pub(super) fn holds(&self, request: &Request<'_>) -> Option<usize> {
        match self.evaluate(request)? {
            (index, Value::Bool(holds)) => holds.then_some(index),
            _ => {
                self.note_failure("it is neither true nor false");
                None
            }
        }
    }

    /// Returns the index of the descriptor that is charged, and the variable's value.
    pub(super) fn value(&self, request: &Request<'_>) -> Option<(usize, String)> {
        let (index, value) = self.evaluate(request)?;
        let text = match value {
            Value::Int(number) => number.to_string(),
            Value::UInt(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::String(text) => text.to_string(),
            Value::Bool(flag) => flag.to_string(),
            Value::Null => "null".to_owned(),
            _ => {
                self.note_failure("it is no text, number or flag");
                return None;
            }
        };
        Some((index, text))
    }

    /// Returns `None` if the request lacks an entry, or if the evaluation fails.
    fn evaluate(&self, request: &Request<'_>) -> Option<(usize, Value)> {
        let mut scope = request.context().new_inner_scope();
        let mut descriptor = self.descriptor.min(request.descriptors.len().saturating_sub(1));
        for name in &self.names {
            let reference = Reference { descriptor: None, key: name.clone() };
            let (index, value) = reference.find(request.descriptors)?;
            descriptor = descriptor.max(index);
            scope.add_variable_from_value(name.as_str(), Value::String(Arc::new(value.to_owned())));
        }
        if let Some(limit) = &self.limit {
            scope.add_variable_from_value("limit", limit.clone());
        }
        // The interpreter panics where it is not finished, such as in a loop over a text. It keeps no state.
        match catch_unwind(AssertUnwindSafe(|| Value::resolve(&self.expression, &scope))) {
            Ok(Ok(value)) => Some((descriptor, value)),
            // A missing entry makes a plain comparison false, too.
            Ok(Err(ExecutionError::NoSuchKey(_) | ExecutionError::IndexOutOfBounds(_))) => None,
            Ok(Err(error)) => {
                self.note_failure(&in_words(&error));
                None
            }
            Err(_) => {
                self.note_failure("the interpreter gave up");
                None
            }
        }
    }

    fn note_failure(&self, problem: &str) {
        if !self.has_failed.swap(true, atomic::Ordering::Relaxed) {
            tracing::warn!(
                "`{}` cannot be evaluated, so that its limit does not apply to such requests: {problem}; correct it. \
                 Further failures are not logged",
                self.text
            );
        }
    }
}

impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Program {}

impl PartialOrd for Program {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Program {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl Hash for Program {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// Returns the first line of the parser's message, without its place in the text.
fn syntax_error(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let line = line.split_once("Syntax error: ").map_or(line, |(_, line)| line);
    let problem = if line.is_empty() { String::new() } else { format!(": {line}") };
    format!("this is not CEL{problem}; write such as `descriptors[0].method == 'GET'`")
}

/// Describes the error without the request's values, which may be secrets.
fn in_words(error: &ExecutionError) -> String {
    match error {
        ExecutionError::FunctionError { function, .. } => format!("`{function}` cannot read the value"),
        ExecutionError::UndeclaredReference(name) => format!("there is no `{name}`"),
        ExecutionError::InvalidArgumentCount { .. } | ExecutionError::MissingArgumentOrTarget => {
            "a function has too many or too few arguments".to_owned()
        }
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "it divides by zero".to_owned(),
        ExecutionError::Overflow(..) => "a number is too great".to_owned(),
        _ => "a value is of the wrong type".to_owned(),
    }
}

/// The names that an expression reads.
#[derive(Debug, Default)]
struct Names {
    entries: BTreeSet<String>,
    descriptor: usize,
    reads_limit: bool,
    /// The variables in the loops around the current place.
    in_scope: Vec<String>,
}

impl Names {
    /// Reads an expression. A key with dots, as in `req.method`, becomes one name, because a value has no fields.
    fn read(&mut self, expression: &mut IdedExpr) -> Result<(), String> {
        if let Some(name) = self.entry(&expression.expr) {
            self.entries.insert(name.clone());
            expression.expr = Expr::Ident(name);
            return Ok(());
        }
        match &mut expression.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => {
                self.reads_limit |= name == "limit" && !self.in_scope.contains(name);
                Ok(())
            }
            Expr::Select(select) => self.read(&mut select.operand),
            Expr::List(list) => list.elements.iter_mut().try_for_each(|element| self.read(element)),
            Expr::Map(map) => map.entries.iter_mut().try_for_each(|entry| match &mut entry.expr {
                EntryExpr::MapEntry(entry) => self.read(&mut entry.key).and_then(|()| self.read(&mut entry.value)),
                EntryExpr::StructField(_) => Err(NO_MESSAGES.to_owned()),
            }),
            Expr::Struct(_) => Err(NO_MESSAGES.to_owned()),
            Expr::Call(call) => {
                let name = call.func_name.as_str();
                let is_operator = !name.starts_with(|char: char| char.is_ascii_alphabetic());
                if !is_operator && !FUNCTIONS.contains(&name) {
                    return Err(format!("there is no function `{name}`; Limitador has {}", FUNCTIONS.join(", ")));
                }
                if let (operators::INDEX, [list, index]) = (name, call.args.as_slice()) {
                    self.note_index(list, index);
                }
                call.target.iter_mut().try_for_each(|target| self.read(target))?;
                call.args.iter_mut().try_for_each(|argument| self.read(argument))
            }
            Expr::Comprehension(of) => {
                self.read(&mut of.iter_range)?;
                self.read(&mut of.accu_init)?;
                let outer = self.in_scope.len();
                self.in_scope.extend([of.iter_var.clone(), of.accu_var.clone()]);
                self.in_scope.extend(of.iter_var2.clone());
                let inner = [&mut of.loop_cond, &mut of.loop_step, &mut of.result];
                let read = inner.into_iter().try_for_each(|part| self.read(part));
                self.in_scope.truncate(outer);
                read
            }
        }
    }

    /// The name of an entry without a descriptor, which may have dots.
    fn entry(&self, expression: &Expr) -> Option<String> {
        match expression {
            Expr::Ident(name) => {
                let is_other = matches!(name.as_str(), "descriptors" | "limit") || name.starts_with('@');
                (!is_other && !self.in_scope.contains(name)).then(|| name.clone())
            }
            Expr::Select(select) if !select.test => {
                Some(format!("{}.{}", self.entry(&select.operand.expr)?, select.field))
            }
            _ => None,
        }
    }

    fn note_index(&mut self, list: &IdedExpr, index: &IdedExpr) {
        let is_descriptors = matches!(&list.expr, Expr::Ident(name) if name == "descriptors");
        let index = match &index.expr {
            Expr::Literal(CelVal::Int(index)) => usize::try_from(*index).ok(),
            Expr::Literal(CelVal::UInt(index)) => usize::try_from(*index).ok(),
            _ => None,
        };
        if let Some(index) = index.filter(|_| is_descriptors) {
            self.descriptor = self.descriptor.max(index);
        }
    }
}

const NO_MESSAGES: &str = "messages such as `Name{field: 1}` do not exist here; write a map, such as `{'field': 1}`";
