//! Checks errors in a configuration: each names the file, the line, the field and the cure; secrets stay out; and they
//! are found in linear time.

use std::fmt::Write;
use std::time::Duration;

use crate::busy::busy_for;
use crate::{error, reader};

const POLICY: &str = "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"token-bucket\"\nlimit = 10\nper = \"1s\"\n";

/// A policy with one more line, the file's 8th.
fn in_policy(line: &str) -> String {
    format!("{POLICY}{line}\n")
}

/// The policy with another line for this field.
fn instead(field: &str, line: &str) -> String {
    let begin = format!("{field} = ");
    POLICY.lines().map(|old| if old.starts_with(&begin) { line } else { old }).collect::<Vec<_>>().join("\n")
}

fn client_ip(lines: &str) -> String {
    format!("[client-ip]\n{lines}\n")
}

fn redis(lines: &str) -> String {
    format!("[redis]\nurl = \"redis://h\"\n{lines}\n")
}

fn route(path: &str) -> String {
    format!("[[route]]\npath = \"{path}\"\n")
}

/// Texts with a mistake, its line, and the expected message.
pub(crate) fn mistakes() -> Vec<(String, usize, &'static str)> {
    let longest = format!("name = \"{}\"", "n".repeat(65));
    vec![
        // A file without a route limits nothing. It is empty, truncated, or another file than was meant.
        (String::new(), 1, "the file has no route, so that nothing is limited; add [[route]] with path = \"/api\""),
        ("# limits\n\n".into(), 3, "the file has no route"),
        ("route = []".into(), 1, "the file has no route"),
        (client_ip("hops = 2\nsource = \"forwarded\""), 4, "the file has no route"),
        (redis("timeout = \"1ms\""), 4, "the file has no route"),
        // A list of tables, a table, and a list are different.
        ("[route]\npath = \"/a\"".into(), 1, "route is a list of tables; write [[route]], in double brackets"),
        ("route = 3".into(), 1, "route is a list of tables; write [[route]], in double brackets"),
        (
            "[[route]]\npath = \"/a\"\n[route.policy]\nname = \"p\"".into(),
            3,
            "policy is a list of tables; write [[route.policy]], in double brackets",
        ),
        ("[[client-ip]]\nhops = 1".into(), 1, "client-ip is one table; write [client-ip], in single brackets"),
        ("[[redis]]\nurl = \"redis://h\"".into(), 1, "redis is one table; write [redis], in single brackets"),
        ("response = 3".into(), 1, "response is one table; write [response], in single brackets"),
        (
            "[[response]]\nadvertise = \"never\"".into(),
            1,
            "response is one table; write [response], in single brackets",
        ),
        ("[[route]]\npath = \"/a\"\nresponse = 3".into(), 3, "response needs a table; write { advertise = \"never\" }"),
        (
            client_ip("source = \"forwarded\"\ntrusted = \"10.0.0.0/8\""),
            3,
            "trusted = \"10.0.0.0/8\": write a list in brackets, such as [\"10.0.0.0/8\"]",
        ),
        (client_ip("trusted = [10]"), 2, "trusted = [10]: write a list in brackets, such as [\"10.0.0.0/8\"]"),
        (in_policy("charge-when = \"401\""), 8, "charge-when = \"401\": write a list in brackets, such as [401, 403]"),
        (
            in_policy("charge-when = [\"401\"]"),
            8,
            "charge-when = [\"401\"]: write a list in brackets, such as [401, 403]",
        ),
        // Each value with its field.
        (instead("per", "per = 1"), 7, "per = 1: write a time in quotation marks, such as \"1s\""),
        (instead("per", "per = \"0s\""), 7, "per = \"0s\": the period is 0; write a time such as 1s"),
        (instead("per", "per = \"80000days\""), 7, "per = \"80000days\": the period of"),
        (
            in_policy("penalty = { rejections = 3, per = \"0s\", ban = \"1m\" }"),
            8,
            "per = \"0s\": the period is 0; write a time such as 1s",
        ),
        (
            in_policy("penalty = { rejections = 3, per = \"1m\", ban = \"0s\" }"),
            8,
            "ban = \"0s\": the time is 0; write a time such as 10m",
        ),
        (
            in_policy("penalty = { rejections = 3, per = 60, ban = \"1m\" }"),
            8,
            "per = 60: write a time in quotation marks, such as \"1m\"",
        ),
        (in_policy("penalty = { rejections = 3 }"), 8, "missing field `per`; add per = \"1m\""),
        (
            in_policy("[route.policy.penalty]\nrejections = 3\nper = \"1m\"\nban = [\n  \"1m\",\n]"),
            11,
            "ban: write a time in quotation marks, such as \"10m\"",
        ),
        ("[[route]]\nresponse = {}".into(), 1, "missing field `path`; add path = \"/api\""),
        (redis("timeout = 50"), 3, "timeout = 50: write a time in quotation marks, such as \"50ms\""),
        (in_policy("max-wait = 3"), 8, "max-wait = 3: write a time in quotation marks, such as \"5s\""),
        (in_policy("key = 3"), 8, "key = 3: write a text in quotation marks or a list of such, such as \"client-ip\""),
        (
            "[[route]]\npath = 3".into(),
            2,
            "path = 3: write a text in quotation marks or a list of such, such as \"/api\"",
        ),
        (
            in_policy("store = \"disk\""),
            8,
            "store = \"disk\": the file has no [store.disk]; write that table, with kind = \"redis\", or store = \"memory\"",
        ),
        (
            in_policy("on-missing-key = \"ignore\""),
            8,
            "on-missing-key = \"ignore\": write \"reject\", \"skip\" or \"share\"",
        ),
        (
            instead("algorithm", "algorithm = \"leaky\""),
            5,
            "algorithm = \"leaky\": write \"token-bucket\", \"leaky-bucket\", \"leaky-queue\", \"slow-down\", \"fixed-window\", \"sliding-window\", \"concurrency\", \"overload\" or \"balance\"",
        ),
        (in_policy("store = { redis = 1 }"), 8, "store"),
        (
            in_policy("store = { disk = 1 }"),
            8,
            "store = { disk = 1 }: write a text in quotation marks, such as \"memory\"",
        ),
        (in_policy("shadow = { x = 1 }"), 8, "shadow = { x = 1 }: write true or false"),
        (in_policy("shadow = 1"), 8, "shadow = 1: write true or false"),
        (
            "[response]\nfields = \"draft-12\"".into(),
            2,
            "fields = \"draft-12\": write \"draft-11\", \"draft-07\" or \"none\"",
        ),
        (client_ip("ipv6-prefix = 16"), 2, "ipv6-prefix = 16 is out of range; write a number from 32 to 128"),
        (client_ip("ipv6-prefix = 300"), 2, "ipv6-prefix = 300 is out of range; write a number from 32 to 128"),
        (in_policy("status = 70000"), 8, "status = 70000 is out of range; write a number from 400 to 599"),
        (in_policy("charge-when = [70000]"), 8, "charge-when = [70000]: no response has that status; write 200 to 599"),
        (
            in_policy("penalty = { rejections = 3, per = \"1m\", ban = \"1h\", factor = 2 }"),
            8,
            "factor needs up-to, the longest ban; add up-to = \"1day\"",
        ),
        (
            in_policy("penalty = { rejections = 3, per = \"1m\", ban = \"1h\", up-to = \"1day\" }"),
            8,
            "up-to needs factor; add factor = 2, or remove it",
        ),
        (
            in_policy("penalty = { rejections = 3, per = \"1m\", ban = \"1h\", forgetting-after = \"1day\" }"),
            8,
            "forgetting-after needs factor and up-to; add factor = 2 and up-to = \"1day\", or remove it",
        ),
        (
            in_policy("penalty = { rejections = 3, per = \"1m\", ban = \"1h\", factor = 2, up-to = \"5m\" }"),
            8,
            "up-to = \"5m\" is shorter than ban = \"1h\"",
        ),
        (
            in_policy("penalty = { rejections = 3, per = \"1m\", ban = \"1h\", factor = 1, up-to = \"1day\" }"),
            8,
            "factor = 1 is out of range; write a number from 2 to 1000",
        ),
        (
            in_policy("warn-at = [0.8, 95]"),
            8,
            "warn-at = [0.8, 95.0]: write shares of the limit, above 0 and at most 1, such as [0.8, 0.95]",
        ),
        (
            in_policy("warn-at = []"),
            8,
            "warn-at = []: write shares of the limit, above 0 and at most 1, such as [0.8, 0.95]",
        ),
        (in_policy("warn-at = 0.8"), 8, "warn-at = 0.8: write a list in brackets, such as [0.8, 0.95]"),
        (client_ip("source = \"forwarded\"\ntrusted = []"), 3, "trusted: no proxy is trusted; write their addresses"),
        (redis("prefix = \"{x}\""), 3, "prefix = \"{x}\": a cluster takes braces for the part to hash; leave them out"),
        // Values without sense.
        (
            in_policy("cost = 0"),
            8,
            "cost = 0 would limit nothing; write a number from 1 to 999999999999999, or remove the policy",
        ),
        (redis("timeout = \"0s\""), 3, "timeout = \"0s\": the time is 0; write a time such as 50ms"),
        (
            client_ip("source = \"forwarded\"\nhops = 1000000000000000000"),
            3,
            "hops = 1000000000000000000 is out of range; write a number from 1 to 100",
        ),
        (client_ip("source = \"forwarded\"\nhops = -1"), 3, "hops = -1 is out of range; write a number from 1 to 100"),
        (client_ip("source = \"forwarded\"\nhops = \"1\""), 3, "hops = \"1\": write a whole number, such as 1"),
        (
            client_ip("source = \"forwarded\"\ntrusted = [\"0.0.0.0/1\", \"128.0.0.0/1\"]"),
            3,
            "trusted: \"0.0.0.0/1\" trusts half of all addresses or more",
        ),
        (
            client_ip("source = \"forwarded\"\ntrusted = [\"0.0.0.0/2\", \"10.0.0.0/8\", \"64.0.0.0/2\"]"),
            3,
            "trusted: \"64.0.0.0/2\" and the others together trust half of all addresses or more",
        ),
        (client_ip("source = \"forwarded\"\ntrusted = [\"2000::/3\"]"), 3, "trusted: \"2000::/3\" trusts half of all"),
        (
            client_ip("source = \"forwarded\"\ntrusted = [\"10.0.0.0/08\"]"),
            3,
            "trusted: \"10.0.0.0/08\" is not a network",
        ),
        (
            client_ip("source = \"forwarded\"\ntrusted = [\"fd00::/008\"]"),
            3,
            "trusted: \"fd00::/008\" is not a network",
        ),
        (
            route("/a%zz"),
            2,
            "segment `a%zz` of path `/a%zz` cannot be matched; write % as %25, or two hexadecimal digits",
        ),
        (route("/a%2"), 2, "segment `a%2` of path `/a%2` cannot be matched; write % as %25"),
        (route("/%"), 2, "segment `%` of path `/%` cannot be matched; write % as %25"),
        (instead("name", &longest), 4, "\"nnnnnnnn"),
    ]
}

#[test]
fn mistakes_have_file_line_field_and_cure() {
    let mut wrong = String::new();
    for (text, line, expected) in mistakes() {
        let error = reader().parse("f.toml", &text).err().map(|error| error.to_string());
        if !error.as_ref().is_some_and(|error| error.starts_with(&format!("f.toml:{line}: {expected}"))) {
            writeln!(wrong, "{text}\n  reported: {error:?}\n  expected: f.toml:{line}: {expected}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(error(&instead("name", &format!("name = \"{}\"", "n".repeat(65)))).contains("64 bytes at most"));
}

#[test]
fn sensible_values_at_the_edge_are_accepted() {
    for text in [
        client_ip("source = \"forwarded\"\nhops = 100") + POLICY,
        client_ip("source = \"forwarded\"\ntrusted = [\"10.0.0.0/8\", \"fc00::/7\", \"0.0.0.0/2\", \"10.1.0.0/16\"]")
            + POLICY,
        client_ip("source = \"forwarded\"\ntrusted = [\"0.0.0.0/2\", \"0.0.0.0/2\"]") + POLICY,
        route("/a%2f%C3%A9"),
        instead("name", &format!("name = \"{}\"", "n".repeat(64))),
        in_policy("cost = 1"),
        redis("timeout = \"1ms\"") + POLICY,
    ] {
        reader().parse("f.toml", &text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    }
}

/// More people can read a log than a configuration. If `main` returns the error, users see its `Debug`.
#[test]
fn debug_output_is_the_message() {
    let error = reader().parse("f.toml", "x = 1").unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
}

#[test]
fn no_message_holds_a_secret() {
    let fine = "[redis]\nurl = \"redis://u:4711@h\"\nsecret = \"4711\"\n";
    for text in [
        redis("secret = 4711"),
        redis("secret = 4711.5"),
        redis("secret = [\"4711\"]"),
        redis("secret = { x = \"4711\" }"),
        redis("secret = 4711 # so that it is one of these\nmaster = 3"),
        redis("secret = hunter-4711"),
        redis("secret = \"4711"),
        redis("secret = '4711\nprefix = \"x\""),
        redis("secret = \"\\q4711\""),
        redis("secret = \"x\"\nsecret = \"4711\""),
        redis("secrt = \"4711\""),
        redis("secret = 47114711471147114711471147114711"),
        redis("redis.secret = 4711"),
        "redis = { url = \"redis://h\", secret = 4711 }".into(),
        "redis = { url = \"redis://:4711@h\", secret = \"4711\", timeout = 3 }".into(),
        "redis = \"redis://:4711@h\"".into(),
        "redis = [\"redis://:4711@h\"]".into(),
        "[redis]\nurl = 4711".into(),
        "[redis]\nurl = [4711]".into(),
        "[redis]\nurl = redis://:4711@h".into(),
        "[redis]\nurl = \"redis://u:4711@\"".into(),
        "[redis]\nurl = \"http://u:4711@h\"".into(),
        "[redis]\nurl = \"redis://u:4711@h:99999\"".into(),
        "[redis]\nurl = [\"redis://h\", \"redis://u:4711@h/x\"]".into(),
        "[redis]\nurl = \"redis://h\"\nmaster = 4711".into(),
        "[redis]\nurl = \"redis://h\"\nmaster = \"http://u:4711@main\"".into(),
        format!("{fine}timeout = \"0s\""),
        format!("{fine}prefix = \"{{}}\""),
        format!("{fine}[[route]]\npath = \"a\""),
    ] {
        let error = reader().parse("f.toml", &text).expect_err(&text);
        for message in [error.to_string(), format!("{error:?}")] {
            assert!(!message.contains("4711"), "{text}\n  reported: {message}");
        }
    }
    let fine = format!("{fine}{}", route("/"));
    let mut config = reader().parse("f.toml", &fine).unwrap();
    assert!(!format!("{config:?}").contains("4711"));
    let changed = config.change("f.toml", &fine.replace("4711", "0815")).unwrap_err().to_string();
    assert!(!changed.contains("4711") && !changed.contains("0815"), "{changed}");
}

fn routes(count: usize, rest: &str) -> String {
    (0..count).fold(String::new(), |mut text, number| {
        write!(text, "[[route]]\npath = \"/route/{number}\"\n{rest}").unwrap();
        text
    })
}

/// Returns the best time out of five, since the machine may be busy. It counts how long this thread is busy, which a
/// loaded machine hardly changes.
fn time(mut what: impl FnMut()) -> Duration {
    let once = |_| {
        let begun = busy_for();
        what();
        busy_for().saturating_sub(begun)
    };
    (0..5).map(once).min().unwrap()
}

#[test]
fn parsing_and_changing_take_linear_time() {
    // A file of twenty times the length must take twenty times the time. With quadratic growth it would be four hundred
    // times. The bound in between allows for a busy machine.
    let [short, long] = [500, 10_000].map(|count| {
        let text = routes(count, "");
        let mut config = None;
        let parse = time(|| config = Some(reader().parse("f.toml", &text).unwrap()));
        let config = config.as_mut().unwrap();
        assert_eq!(config.routes()[count - 1].line(), 2 * count);
        let change = time(|| drop(config.change("f.toml", &text).unwrap()));

        let last = routes(count, "") + "[[route]]\npath = 3\n";
        let mut reported = String::new();
        let failure = time(|| reported = error(&last));
        assert!(reported.starts_with(&format!("f.toml:{}: path = 3: ", 2 * count + 2)), "{reported}");
        println!(
            "{count} routes: parsed in {parse:?}, changed in {change:?}; an error on the last line in {failure:?}"
        );
        [parse, change, failure]
    });
    for (short, long) in short.into_iter().zip(long) {
        assert!(long < 130 * short, "{long:?} of 10,000 routes, {short:?} of 500");
    }
}

#[test]
fn penalties_on_shared_keys_are_rejected() {
    let file = |key: &str| {
        format!(
            "[[route]]\npath = \"/\"\n  [[route.policy]]\n  name = \"api\"\n  algorithm = \"token-bucket\"\n  limit = 1\n  \
             per = \"1s\"\n  penalty = {{ rejections = 30, per = \"1m\", ban = \"10m\" }}\n{key}"
        )
    };
    for key in ["", "key = \"global\"\n", "key = \"header:x-api-key\"\non-missing-key = \"share\"\n"] {
        let error = reader().parse("f.toml", &file(key)).unwrap_err().to_string();
        assert!(error.starts_with("f.toml:8: policy `api`: `penalty` cannot be combined with "), "{error}");
        assert!(error.contains("one client"), "{error}");
    }
    reader().parse("f.toml", &file("key = \"header:x-api-key\"\n")).unwrap();
}
