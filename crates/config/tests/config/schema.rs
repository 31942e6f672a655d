//! Checks that the JSON schema agrees with the parser.

use serde_json::{Value, json};
use tower_sluice_config::SCHEMA;

use crate::{documented_format, reader};

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

/// Validates a configuration by the schema.
fn validate(text: &str) -> Result<(), String> {
    let value: Value = toml::from_str(text).unwrap();
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    compiler.add_resource("limits.json", schema()).unwrap();
    let index = compiler.compile("limits.json", &mut schemas).unwrap();
    schemas.validate(&value, index).map_err(|error| error.to_string())
}

/// Returns the keys in backquotes after `expected`, or the words in quotation marks after `write`: the parser's list of
/// valid values.
fn expected(text: &str) -> Vec<String> {
    let error = reader().parse("f.toml", text).unwrap_err().to_string();
    let keys = error.split_once("expected").map(|(_, list)| (list, '`'));
    let (list, quote) = keys.or_else(|| error.split_once("write").map(|(_, list)| (list, '"'))).expect(&error);
    let mut names: Vec<_> = list.split(quote).skip(1).step_by(2).map(str::to_owned).collect();
    names.sort_unstable();
    names
}

const POLICY: &str = "[[route]]\npath = \"/a\"\n[[route.policy]]\n";
const WHOLE: &str = "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"token-bucket\"\nlimit = 10\nper = \"1s\"\n";

#[test]
fn the_schema_has_every_key_and_word() {
    let schema = schema();
    let keys = |table: &Value| -> Vec<String> {
        assert_eq!(table["additionalProperties"], json!(false), "{table}");
        let mut keys: Vec<_> = table["properties"].as_object().unwrap().keys().cloned().collect();
        keys.sort_unstable();
        keys
    };
    let penalty = format!("{POLICY}penalty = {{ x = 1 }}");
    for (pointer, text) in [
        ("", "x = 1"),
        ("/$defs/client-ip", "[client-ip]\nx = 1"),
        ("/$defs/redis", "[redis]\nx = 1"),
        ("/$defs/response", "[response]\nx = 1"),
        ("/$defs/exempt-preflights", "[[route]]\nexempt-preflights = { x = 1 }"),
        ("/$defs/route", "[[route]]\nx = 1"),
        ("/$defs/policy", &format!("{POLICY}x = 1")),
        ("/$defs/penalty", &penalty),
        ("/$defs/exempt", &format!("{POLICY}exempt = {{ x = 1 }}")),
        ("/$defs/charge-once", &format!("{POLICY}charge-once = {{ x = 1 }}")),
        ("/$defs/priority", &format!("{POLICY}priority = {{ x = 1 }}")),
        ("/$defs/weight", &format!("{POLICY}weight = {{ x = 1 }}")),
        ("/$defs/plans", &format!("{POLICY}plans = {{ x = 1 }}")),
        ("/$defs/plan", &format!("{POLICY}plans = {{ limits = {{ gold = {{ x = 1 }} }} }}")),
    ] {
        assert_eq!(keys(schema.pointer(pointer).unwrap()), expected(text), "{pointer}");
    }
    for (table, before) in [("response", "[response]\n"), ("policy", POLICY)] {
        for (key, property) in schema["$defs"][table]["properties"].as_object().unwrap() {
            let Some(words) = property["enum"].as_array() else { continue };
            let mut words: Vec<_> = words.iter().map(|word| word.as_str().unwrap().to_owned()).collect();
            words.sort_unstable();
            assert_eq!(words, expected(&format!("{before}{key} = \"nonsense\"")), "{key}");
        }
    }
}

/// The parser lists the fields that it knows in its message on an unknown one.
#[test]
fn the_documented_format_has_every_field() {
    let format = documented_format();
    for before in [
        "",
        "[client-ip]\n",
        "[redis]\n",
        "[response]\n",
        "[[route]]\n",
        "[[route]]\n[route.exempt-preflights]\n",
        POLICY,
        &format!("{POLICY}[route.policy.penalty]\n"),
        &format!("{POLICY}[route.policy.charge-once]\n"),
        &format!("{POLICY}[route.policy.priority]\n"),
        &format!("{POLICY}[route.policy.weight]\n"),
        &format!("{POLICY}[route.policy.plans]\n"),
        &format!("{POLICY}[route.policy.plans.limits.gold]\n"),
        &format!("{POLICY}[route.policy.exempt]\n"),
    ] {
        let fields = expected(&format!("{before}x = 1"));
        assert!(fields.len() > 1, "{before}");
        for field in fields {
            let has = |form: String| format.contains(&form);
            let is_there = has(format!(" {field} = ")) || has(format!("\n{field} = ")) || has(format!("\n#{field} = "));
            assert!(is_there || has(format!("[{field}]")) || has(format!(".{field}]")), "{field}, after {before}");
        }
    }
}

/// A date is not a valid value for any field.
#[test]
fn wrong_types_have_a_cure() {
    let schema = schema();
    for (pointer, before) in [
        ("", ""),
        ("/$defs/client-ip", "[client-ip]\n"),
        ("/$defs/redis", "[redis]\n"),
        ("/$defs/response", "[response]\n"),
        ("/$defs/route", "[[route]]\n"),
        ("/$defs/policy", POLICY),
        ("/$defs/penalty", &format!("{POLICY}[route.policy.penalty]\n")),
        ("/$defs/charge-once", &format!("{POLICY}[route.policy.charge-once]\n")),
        ("/$defs/priority", &format!("{POLICY}[route.policy.priority]\n")),
        ("/$defs/weight", &format!("{POLICY}[route.policy.weight]\n")),
        ("/$defs/plans", &format!("{POLICY}[route.policy.plans]\n")),
        ("/$defs/plan", &format!("{POLICY}[route.policy.plans.limits.gold]\n")),
        ("/$defs/exempt", &format!("{POLICY}[route.policy.exempt]\n")),
        ("/$defs/exempt", "[[route]]\n[route.exempt]\n"),
        ("/$defs/exempt-preflights", "[[route]]\n[route.exempt-preflights]\n"),
    ] {
        let line = before.lines().count() + 1;
        for field in schema.pointer(pointer).unwrap()["properties"].as_object().unwrap().keys() {
            let error = reader().parse("f.toml", &format!("{before}{field} = 2026-11-22\n")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("f.toml:{line}: {field}")) && error.contains("write "), "{error}");
        }
    }
}

/// It accepts every file that the parser accepts, and rejects most of those that it rejects.
#[test]
fn the_schema_agrees_with_the_parser() {
    validate(include_str!("../../../../examples/server/server.toml")).unwrap();
    validate(include_str!("../../../../tests/clients/server.toml")).unwrap();
    for (line, is_taken) in [
        ("", true),
        ("burst = 20", true),
        ("burst = 0", false),
        ("key = [\"client-ip\", \"path\"]", true),
        ("key = 3", false),
        ("cost = 0", false),
        ("cost = 1", true),
        ("cost = -1", false),
        ("status = 418", true),
        ("status = 200", false),
        ("shadow = true", true),
        ("shadow = \"yes\"", false),
        ("store = 3", false),
        ("store = \"memory\"", true),
        ("charge-when = [401, 403]", true),
        ("charge-when = []", false),
        ("key = \"client-ip\"\npenalty = { rejections = 30, per = \"1m\", ban = \"10m\" }", true),
        ("penalty = { rejections = 30, per = \"1m\", ban = \"10m\" }", false),
        ("penalty = { rejections = 30, per = \"1m\" }", false),
        (
            "exempt = { networks = [\"10.0.0.0/8\"], headers = { x-internal = \"s\" }, paths = [\"/a\", \"/b/*\"] }",
            true,
        ),
        ("exempt = { headers = { x-internal = [\"s\", \"t\"] } }", true),
        ("charge-once = { header = \"idempotency-key\", within = \"24h\", free-retries = 3 }", true),
        ("charge-once = { header = \"k\", within = \"24h\", free-retries = 1, max-keys = 9 }", true),
        ("charge-once = { header = \"k\", within = \"24h\", free-retries = 0 }", false),
        ("charge-once = { header = \"k\", within = \"24h\", free-retries = 1, max-keys = 0 }", false),
        ("charge-once = { header = \"k\", within = \"24h\" }", false),
        ("exempt = {}", false),
        ("exempt = { networks = [] }", false),
        ("exempt = { headers = {} }", false),
        ("exempt = { headers = { x-internal = \"\" } }", false),
        ("exempt = { headers = { x-internal = [] } }", false),
        ("exempt = { paths = [\"/*\"] }", false),
        ("exempt = { paths = [\"a\"] }", false),
        (
            "plans = { by = \"header:x-plan\", limits = { gold = { limit = 9, burst = 3 }, free = { limit = 1 } } }",
            false,
        ),
        ("key = \"user\"\nplans = { by = \"header:x-plan\", limits = { gold = { limit = 9, burst = 3 } } }", true),
        ("key = \"user\"\nplans = { by = [\"user\"], limits = { ada = { limit = 0 } } }", false),
        ("key = \"user\"\nplans = { by = [\"user\"], limits = { ada = { burst = 1 } } }", false),
        ("key = \"user\"\nplans = { by = [\"user\"], limits = {} }", false),
        ("staggered = false", true),
        ("staggered = \"yes\"", false),
        ("limt = 10", false),
        ("response = { advertise = \"below-20%\" }", false),
    ] {
        let text = format!("{WHOLE}{line}\n");
        let (schema, parser) = (validate(&text), reader().parse("f.toml", &text));
        assert_eq!((schema.is_ok(), parser.is_ok()), (is_taken, is_taken), "{line}: {schema:?} {parser:?}");
    }
    let queue = WHOLE.replace("token-bucket", "leaky-queue");
    for (line, is_taken) in
        [("max-keys = 9\nwhen-full = \"overflow\"", true), ("max-keys = 0", false), ("when-full = \"forget\"", false)]
    {
        let text = format!("{queue}{line}\n");
        let (schema, parser) = (validate(&text), reader().parse("f.toml", &text));
        assert_eq!((schema.is_ok(), parser.is_ok()), (is_taken, is_taken), "{line}: {schema:?} {parser:?}");
    }
    let slow_down = WHOLE.replace("token-bucket", "slow-down");
    for (line, is_taken) in [
        ("", true),
        ("burst = 20\nfree = 0\nstep = \"200ms\"\nmax-delay = \"10s\"\nmax-keys = 9\nwhen-full = \"overflow\"", true),
        ("store = \"memory\"", true),
        ("store = \"redis\"", false),
        ("max-queue = 3", false),
        ("key = \"user\"\nplans = { by = \"header:x-plan\", limits = { gold = { limit = 9 } } }", false),
        ("free = -1", false),
        ("step = 3", false),
    ] {
        let text = format!("{slow_down}{line}\n");
        let (schema, parser) = (validate(&text), reader().parse("f.toml", &text));
        assert_eq!((schema.is_ok(), parser.is_ok()), (is_taken, is_taken), "{line}: {schema:?} {parser:?}");
    }
    let concurrency = WHOLE.replace("token-bucket", "concurrency").replace("per = \"1s\"\n", "");
    for (line, is_taken) in [
        ("", true),
        ("max-queue = 100\nmax-wait = \"5s\"\nmax-keys = 9\nrelease-at = \"head\"", true),
        ("key = \"user\"\nplans = { by = \"header:x-plan\", limits = { gold = { limit = 9 } } }", true),
        ("per = \"1s\"", false),
        ("burst = 3", false),
        ("max-queue = -1", false),
    ] {
        let text = format!("{concurrency}{line}\n");
        let (schema, parser) = (validate(&text), reader().parse("f.toml", &text));
        assert_eq!((schema.is_ok(), parser.is_ok()), (is_taken, is_taken), "{line}: {schema:?} {parser:?}");
    }
    let overload = WHOLE.replace("token-bucket", "overload").replace("limit = 10\nper = \"1s\"\n", "");
    for (line, is_taken) in [
        ("", true),
        ("limits = [4, 100]\nstarting-at = 9\nqueue-target = \"10ms\"\nmax-wait = \"1s\"\nmax-queue = 9", true),
        ("release-at = \"head\"\nshadow = true\nstore = \"memory\"", true),
        ("priority = { by = \"header:x-plan\", classes = { gold = \"high\" }, default = \"low\" }", true),
        ("priority = { by = [\"header:x-plan\", \"path\"], classes = { \"gold + /a\" = \"high\" } }", true),
        ("weight = { by = \"user\", weights = { alice = 10 }, default = 2 }", true),
        ("priority = { by = \"header:x-plan\", classes = {} }", false),
        ("priority = { by = \"header:x-plan\", classes = { gold = \"top\" } }", false),
        ("weight = { by = \"user\", weights = { alice = 0 } }", false),
        ("limit = 10", false),
        ("key = \"user\"\nplans = { by = \"header:x-plan\", limits = { gold = { limit = 9 } } }", false),
        ("per = \"1s\"", false),
        ("max-keys = 9", false),
        ("limits = [4]", false),
        ("store = \"redis\"", false),
    ] {
        let text = format!("{overload}{line}\n");
        let (schema, parser) = (validate(&text), reader().parse("f.toml", &text));
        assert_eq!((schema.is_ok(), parser.is_ok()), (is_taken, is_taken), "{line}: {schema:?} {parser:?}");
    }
    let balance = overload.replace("overload", "balance");
    for (line, is_taken) in [
        ("", true),
        ("max-keys = 9\nshadow = true\nstore = \"memory\"", true),
        ("limit = 10", false),
        ("key = \"user\"\nplans = { by = \"header:x-plan\", limits = { gold = { limit = 9 } } }", false),
        ("per = \"1s\"", false),
        ("burst = 3", false),
        ("max-queue = 9", false),
        ("release-at = \"head\"", false),
        ("charge-once = { header = \"k\", within = \"1h\", free-retries = 1 }", false),
    ] {
        let text = format!("{balance}{line}\n");
        let (schema, parser) = (validate(&text), reader().parse("f.toml", &text));
        assert_eq!((schema.is_ok(), parser.is_ok()), (is_taken, is_taken), "{line}: {schema:?} {parser:?}");
    }
    let on_redis = format!("[redis]\nurl = \"redis://127.0.0.1:1\"\n{concurrency}");
    for (line, is_taken) in [("max-queue = 100\nmax-wait = \"5s\"\nlease = \"10s\"", true), ("lease = 10", false)] {
        let text = format!("{on_redis}{line}\n");
        let (schema, parser) = (validate(&text), reader().parse("f.toml", &text));
        assert_eq!((schema.is_ok(), parser.is_ok()), (is_taken, is_taken), "{line}: {schema:?} {parser:?}");
    }
    for (line, is_taken) in [
        ("settle-by = \"content-bytes\"", true),
        ("max-queue = 3", false),
        ("limits = [4, 9]", false),
        ("priority = { by = \"user\", classes = { alice = \"high\" } }", false),
        ("lease = \"10s\"", false),
        ("release-at = \"head\"", false),
    ] {
        let text = format!("{WHOLE}{line}\n");
        let (schema, parser) = (validate(&text), reader().parse("f.toml", &text));
        assert_eq!((schema.is_ok(), parser.is_ok()), (is_taken, is_taken), "{line}: {schema:?} {parser:?}");
    }
    let without_period = WHOLE.replace("per = \"1s\"\n", "");
    assert!(validate(&without_period).is_err() && reader().parse("f.toml", &without_period).is_err());
    let without_limit = WHOLE.replace("limit = 10\n", "");
    assert!(validate(&without_limit).is_err() && reader().parse("f.toml", &without_limit).is_err());
    assert!(validate("[[route]]\npath = \"/a\"\nresponse = { advertise = \"below-20%\" }").is_ok());
    for (budget, is_taken) in [
        ("limit = 50, per = \"1s\"", true),
        ("limit = 50, per = \"1s\", burst = 100", true),
        ("limit = 0, per = \"1s\"", false),
        ("limit = 50", false),
    ] {
        let text = WHOLE.replace("[[route.policy]]", &format!("exempt-preflights = {{ {budget} }}\n[[route.policy]]"));
        assert_eq!(
            (validate(&text).is_ok(), reader().parse("f.toml", &text).is_ok()),
            (is_taken, is_taken),
            "{budget}"
        );
    }
    for (share, is_taken) in [("0", true), ("020", true), ("100", true), ("101", false), ("", false)] {
        let text = format!("[response]\nadvertise = \"below-{share}%\"\n{WHOLE}");
        assert_eq!((validate(&text).is_ok(), reader().parse("f.toml", &text).is_ok()), (is_taken, is_taken), "{share}");
    }
    assert!(validate("[[route]]").is_err());
    for nothing in ["", "route = []", "[response]\nadvertise = \"never\"\n"] {
        assert!(validate(nothing).is_err() && reader().parse("f.toml", nothing).is_err(), "{nothing}");
    }
    for (rest, is_taken) in [("hops = 100", true), ("hops = 101", false), ("hops = 0", false), ("hops = -1", false)] {
        let text = format!("[client-ip]\nsource = \"forwarded\"\n{rest}\n{WHOLE}");
        assert_eq!((validate(&text).is_ok(), reader().parse("f.toml", &text).is_ok()), (is_taken, is_taken), "{rest}");
    }
    for (length, is_taken) in [(64, true), (65, false)] {
        let text = WHOLE.replace("\"p\"", &format!("\"{}\"", "n".repeat(length)));
        assert_eq!(
            (validate(&text).is_ok(), reader().parse("f.toml", &text).is_ok()),
            (is_taken, is_taken),
            "{length}"
        );
    }
}
