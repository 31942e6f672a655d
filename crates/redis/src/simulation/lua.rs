//! Runs the real scripts on Lua 5.1, like a Redis server.

use std::cell::RefCell;
use std::collections::BTreeMap;

use mlua::{Function, IntoLua, Lua, Value, Variadic};

use super::account::Reply;
use super::server::Keys;

/// The commands that a script may call.
pub(super) trait Commands {
    fn command(&mut self, arguments: &[Vec<u8>]) -> Reply;
}

thread_local! {
    static LUA: (Lua, RefCell<BTreeMap<String, Function>>) = (Lua::new(), RefCell::default());
}

/// Runs the script with this hash.
pub(super) fn run(hash: &str, source: &str, keys: &[Vec<u8>], args: &[Vec<u8>], commands: &mut Keys<'_>) -> Reply {
    LUA.with(|(lua, compiled)| {
        let mut compiled = compiled.borrow_mut();
        let script = compiled
            .entry(hash.to_owned())
            .or_insert_with(|| lua.load(source).into_function().expect("the scripts are Lua"))
            .clone();
        drop(compiled);
        let commands = RefCell::new(commands);
        // The error from the command that ended the script.
        let failure = RefCell::new(None);
        let text = |bytes: &Vec<u8>| lua.create_string(bytes);
        let list = |items: &[Vec<u8>]| lua.create_sequence_from(items.iter().map(text).collect::<Result<Vec<_>, _>>()?);
        let run = |arguments: Variadic<mlua::String>| {
            let arguments: Vec<_> = arguments.iter().map(|it| it.as_bytes().to_vec()).collect();
            commands.borrow_mut().command(&arguments)
        };
        let answer = lua.scope(|scope| {
            let call = scope.create_function(|lua, arguments| match run(arguments) {
                Reply::Error(error) => {
                    *failure.borrow_mut() = Some(error);
                    Err(mlua::Error::runtime("the command failed"))
                }
                reply => to_lua(lua, &reply),
            })?;
            let pcall = scope.create_function(|lua, arguments| to_lua(lua, &run(arguments)))?;
            let error_reply =
                lua.create_function(|lua, error: mlua::String| lua.create_table_from([("err", error)]))?;
            let redis = lua.create_table_from([("call", call), ("pcall", pcall), ("error_reply", error_reply)])?;
            lua.globals().set("redis", redis)?;
            lua.globals().set("KEYS", list(keys)?)?;
            lua.globals().set("ARGV", list(args)?)?;
            script.call::<Value>(())
        });
        match (answer, failure.take()) {
            (Ok(answer), _) => from_lua(&answer),
            (Err(_), Some(error)) => Reply::Error(error),
            (Err(error), None) => Reply::Error(format!("ERR {error}").replace(['\r', '\n'], " ")),
        }
    })
}

fn to_lua(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Nil => Value::Boolean(false),
        Reply::Number(number) => number.into_lua(lua)?,
        Reply::Text(text) => Value::String(lua.create_string(text)?),
        Reply::Ok => Value::Table(lua.create_table_from([("ok", "OK")])?),
        Reply::Error(error) => Value::Table(lua.create_table_from([("err", error.as_str())])?),
        Reply::List(items) => {
            let items = items.iter().map(|item| to_lua(lua, item)).collect::<Result<Vec<_>, _>>()?;
            Value::Table(lua.create_sequence_from(items)?)
        }
    })
}

fn from_lua(value: &Value) -> Reply {
    match value {
        Value::Boolean(true) => Reply::Number(1),
        Value::Integer(_) => Reply::Number(value.as_i64().unwrap_or_default()),
        // A number in Lua 5.1 is a double; Redis cuts it.
        Value::Number(number) => Reply::Number(*number as i64),
        Value::String(text) => Reply::Text(text.as_bytes().to_vec()),
        Value::Table(table) => match table.get::<Option<String>>("err") {
            Ok(Some(error)) => Reply::Error(error),
            // Up to the first nil.
            _ => Reply::List(table.sequence_values::<Value>().flatten().map(|item| from_lua(&item)).collect()),
        },
        _ => Reply::Nil,
    }
}
