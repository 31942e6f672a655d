//! Tables with mistakes in each part of a file. Each is reported with its line and the cure.

use tower_sluice_config::SCHEMA;

use crate::{error, reader, with};

#[test]
fn every_concurrency_mistake_is_reported() {
    for (lines, expected) in [
        ("limit = 4\nper = \"1s\"", "f.toml:7: per is for limits over time; remove it or choose that algorithm"),
        (
            "limit = 4\nburst = 9",
            "f.toml:7: burst is for token-bucket, leaky-bucket, leaky-queue and slow-down; remove it",
        ),
        ("limit = 3000000000", "f.toml:6: limit = 3000000000 is out of range; write a number from 1 to 2147483647"),
        (
            "limit = 1000000000000000",
            "f.toml:6: limit = 1000000000000000 is out of range; write a number from 1 to 2147483647",
        ),
        (
            "limit = 4\nmax-wait = \"5s\"",
            "f.toml:7: max-wait bounds the wait in a queue, and there is none; add max-queue",
        ),
        ("limit = 4\nlease = \"10s\"", "f.toml:7: lease is for a server: in memory, what is in flight ends"),
        ("limit = 4\nmax-queue = -1", "f.toml:7: max-queue = -1 is out of range; write a number from 0"),
        ("limit = 4\ncost = 5", "f.toml:7: policy `p`: a cost of 5 never fits"),
        (
            "limit = 4\nsettle-by = \"handler\"",
            "f.toml:7: policy `p`: `settle-by = \"handler\"` cannot be combined with a limit of requests in flight",
        ),
        (
            "limit = 4\ncharge-when = [401]",
            "f.toml:7: policy `p`: `charge-when` cannot be combined with a limit of requests in flight",
        ),
        (
            "limit = 4\nsuspended = true",
            "f.toml:7: policy `p`: `suspended` cannot be combined with a limiter that has one quota for all keys",
        ),
        (
            "limit = 4\nwarn-at = [0.8]",
            "f.toml:7: policy `p`: `warn-at` cannot be combined with a limit of requests in flight",
        ),
        (
            "limit = 4\nkey = \"client-ip\"\npenalty = { rejections = 3, per = \"1m\", ban = \"1m\" }",
            "f.toml:8: policy `p`: `penalty` cannot be combined with a limit of requests in flight",
        ),
    ] {
        let text = format!(
            "\n[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"concurrency\"\n{lines}\n"
        );
        let message = reader().parse("f.toml", text.trim_start()).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{lines}: {message}");
    }
    let missing = "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"token-bucket\"\nlimit = 4\n";
    let message = reader().parse("f.toml", missing).unwrap_err().to_string();
    assert_eq!(message, "f.toml:6: per is missing: without it, the limit has no period; add per = \"1m\"");
}

#[test]
fn every_mistake_in_an_overload_is_reported() {
    let by = "by = \"header:x-plan\"";
    for (line, expected) in [
        (
            "limit = 4".to_owned(),
            "f.toml:6: limit is for all algorithms but overload, which finds its limit itself, and balance; remove it",
        ),
        ("per = \"1s\"".to_owned(), "f.toml:6: per is for limits over time; remove it or choose that algorithm"),
        ("max-keys = 4".to_owned(), "f.toml:6: max-keys is for policies in memory, except for overload; remove it"),
        (
            "limits = [4]".to_owned(),
            "f.toml:6: limits = [4]: write the lowest and the highest limit, from 1 to 2147483647, such as [2, 1024]",
        ),
        ("limits = [9, 4]".to_owned(), "f.toml:6: limits = [9, 4]: write the lowest and the highest limit"),
        ("limits = [0, 4]".to_owned(), "f.toml:6: limits = [0, 4]: write the lowest and the highest limit"),
        ("limits = 4".to_owned(), "f.toml:6: limits = 4: write a list in brackets, such as [2, 1024]"),
        (
            "starting-at = 0".to_owned(),
            "f.toml:6: starting-at = 0 is out of range; write a number from 1 to 2147483647",
        ),
        (
            "starting-at = 1".to_owned(),
            "f.toml:6: starting-at = 1 is not in limits = [2, 1024]; choose a limit between them",
        ),
        ("limits = [30, 40]\nstarting-at = 41".to_owned(), "f.toml:7: starting-at = 41 is not in limits = [30, 40]"),
        (
            "queue-target = \"0s\"".to_owned(),
            "f.toml:6: queue-target = \"0s\": every request would wait too long; write a time such as 20ms",
        ),
        ("store = \"redis\"".to_owned(), "f.toml:6: store = \"redis\""),
        (
            "key = \"client-ip\"\npenalty = { rejections = 3, per = \"1m\", ban = \"1m\" }".to_owned(),
            "f.toml:7: policy `p`: `penalty` cannot be combined with a limiter that sheds: a rejection is due to the load",
        ),
        (
            format!("priority = {{ {by} }}"),
            "f.toml:6: missing field `classes`; add classes = { gold = \"high\", free = \"low\" }",
        ),
        (
            "priority = { by = \"plan\", classes = { gold = \"high\" } }".to_owned(),
            "f.toml:6: unknown key `plan`; write global",
        ),
        (
            "priority = { by = \"global\", classes = { gold = \"high\" } }".to_owned(),
            "f.toml:6: by = \"global\" is the same for all requests; write header:NAME",
        ),
        (
            format!("priority = {{ {by}, classes = {{}} }}"),
            "f.toml:6: classes = {} has no entry; write one, or leave the option out",
        ),
        (
            format!("priority = {{ {by}, classes = {{ gold = \"top\" }} }}"),
            "f.toml:6: classes: write a table of \"low\", \"normal\", \"high\" or \"critical\", such as { gold = \"high\", free = \"low\" }",
        ),
        (
            "priority = { by = \"client-ip\", classes = { gold = \"high\" } }".to_owned(),
            "f.toml:6: classes: \"gold\": ",
        ),
        (
            format!("priority = {{ {by}, classes = {{ gold = \"low\" }}, default = \"top\" }}"),
            "f.toml:6: default = \"top\": write \"low\", \"normal\", \"high\" or \"critical\"",
        ),
        (
            format!("weight = {{ {by}, weights = {{ gold = 0 }} }}"),
            "f.toml:6: weights = 0 is out of range; write a number from 1 to 4294967295",
        ),
        (
            format!("weight = {{ {by}, weights = {{ gold = 2 }}, default = 0 }}"),
            "f.toml:6: default = 0 is out of range; write a number from 1 to 4294967295",
        ),
    ] {
        let text =
            format!("[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"overload\"\n{line}\n");
        let message = error(&text);
        assert!(message.starts_with(expected), "{line}\n  reported: {message}\n  expected: {expected}");
    }
    let needs_overload = "f.toml:9: policy `p`: `priority` cannot be combined with a limiter that does not shed: its requests \
                          have no classes and no weights; protect the server with `overload`, or remove the option";
    assert_eq!(error(&with(&format!("priority = {{ {by}, classes = {{ gold = \"high\" }} }}"))), needs_overload);
    let message = error(&with("limits = [4, 9]"));
    assert_eq!(message, "f.toml:9: limits is for overload; remove it or choose that algorithm");
    let missing =
        "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"token-bucket\"\nper = \"1s\"\n";
    assert_eq!(error(missing), "f.toml:4: missing field `limit`; add limit = 10");
}

#[test]
fn every_policy_mistake_has_its_line() {
    for (line, expected) in [
        (
            "limt = 10",
            "f.toml:9: unknown field `limt` (did you mean `limit`?), expected one of `name`, `algorithm`, `limit`",
        ),
        ("pre = \"1s\"", "f.toml:9: unknown field `pre` (did you mean `per`?), expected one of `name`, `algorithm`"),
        ("rate = 10", "f.toml:9: unknown field `rate`, expected one of `name`, `algorithm`, `limit`, `per`"),
        ("limit = 0", "f.toml:6: limit = 0 is out of range; write a number from 1 to 999999999999999"),
        ("limit = -3", "f.toml:6: limit = -3 is out of range"),
        (
            "limit = 1000000000000000",
            "f.toml:6: limit = 1000000000000000 is out of range; write a number from 1 to 999999999999999",
        ),
        ("burst = 1000000000000000", "f.toml:9: burst = 1000000000000000 is out of range"),
        ("cost = 1000000000000000", "f.toml:9: cost = 1000000000000000 is out of range"),
        ("limit = \"ten\"", "f.toml:6: limit = \"ten\": write a whole number, such as 10"),
        ("limit = 1.5", "f.toml:6: limit = 1.5: write a whole number, such as 10"),
        ("limit = 99999999999999999999", "f.toml:6: limit = 99999999999999999999: write a whole number"),
        ("shadow = \"yes\"", "f.toml:9: shadow = \"yes\": write true or false"),
        ("name = 3", "f.toml:4: name = 3: write a text in quotation marks"),
        ("store = true", "f.toml:9: store = true: write a text in quotation marks, such as \"memory\""),
        ("status = \"429\"", "f.toml:9: status = \"429\": write a whole number, such as 429"),
        ("charge-when = 401", "f.toml:9: charge-when = 401: write a list in brackets, such as [401, 403]"),
        (
            "penalty = 3",
            "f.toml:9: penalty needs a table; write { rejections = 30, per = \"1m\", ban = \"10m\", factor = 2, up-to = \"1day\", forgetting-after = \"7days\" }",
        ),
        (
            "penalty = { rejections = \"a\", per = \"1m\", ban = \"1m\" }",
            "f.toml:9: rejections = \"a\": write a whole number, such as 30",
        ),
        (
            "charge-once = true",
            "f.toml:9: charge-once needs a table; write { header = \"idempotency-key\", within = \"24h\", free-retries = 3 }",
        ),
        (
            "charge-once = { header = \"a b\", within = \"1h\", free-retries = 1 }",
            "f.toml:9: header = \"a b\" is not a header's name; write one such as idempotency-key",
        ),
        (
            "charge-once = { header = \"k\", within = \"0s\", free-retries = 1 }",
            "f.toml:9: within = \"0s\": the period is 0; write a time such as 1s",
        ),
        (
            "charge-once = { header = \"k\", within = \"1h\", free-retries = 0 }",
            "f.toml:9: free-retries = 0 is out of range; write a number from 1",
        ),
        (
            "charge-once = { header = \"k\", within = \"1h\" }",
            "f.toml:9: missing field `free-retries`; add free-retries = 3",
        ),
        ("exempt = 3", "f.toml:9: exempt needs a table; write { networks = [\"10.0.0.0/8\"] }"),
        ("exempt = {}", "f.toml:9: exempt names no request; write networks, headers or paths into it"),
        (
            "exempt = { network = [] }",
            "f.toml:9: unknown field `network` (did you mean `networks`?), expected one of `networks`, `headers`, `paths`",
        ),
        ("exempt = { networks = [] }", "f.toml:9: networks: nothing is exempt by an empty list; write what is exempt"),
        ("exempt = { paths = [] }", "f.toml:9: paths: nothing is exempt by an empty list; write what is exempt"),
        ("exempt = { headers = {} }", "f.toml:9: headers: nothing is exempt by an empty list; write what is exempt"),
        (
            "exempt = { networks = \"10.0.0.0/8\" }",
            "f.toml:9: networks = \"10.0.0.0/8\": write a list in brackets, such as [\"10.0.0.0/8\"]",
        ),
        (
            "exempt = { networks = [\"10.0.0.1/8\"] }",
            "f.toml:9: networks: \"10.0.0.1/8\" is an address within a network; write 10.0.0.0/8 for the network",
        ),
        (
            "exempt = { networks = [\"10.0.0.0/8\", \"0.0.0.0/0\"] }",
            "f.toml:9: networks: \"0.0.0.0/0\", with the networks before it, exempts half of all addresses or more",
        ),
        (
            "exempt = { headers = { \"x internal\" = \"s\" } }",
            "f.toml:9: headers: \"x internal\" is not a header's name; write one such as x-internal",
        ),
        (
            "exempt = { headers = { x-internal = \"\" } }",
            "f.toml:9: headers: no request can have this value of x-internal; write at least one character",
        ),
        ("exempt = { paths = [\"/*\"] }", "f.toml:9: paths: /* exempts all requests; write the paths that are exempt"),
        (
            "exempt = { paths = [\"/a*\"] }",
            "f.toml:9: paths: \"/a*\" cannot be matched; write a path such as /healthz, or /assets/*",
        ),
        (
            "per = \"1M\"",
            "f.toml:7: per = \"1M\" has months or years, whose lengths differ; write 1m for a minute, or a number",
        ),
        ("per = \"soon\"", "f.toml:7: per = \"soon\" is not a time; write 250ms, 1s, 1m, 1h or 1day"),
        ("per = 1", "f.toml:7: per = 1: write a time in quotation marks, such as \"1s\""),
        ("per = \"0s\"", "f.toml:7: per = \"0s\": the period is 0; write a time such as 1s"),
        ("per = \"200000days\"", "f.toml:7: per = \"200000days\": the period of"),
        ("burst = 0", "f.toml:9: burst = 0 is out of range; write a number from 1"),
        (
            "cost = 11",
            "f.toml:9: policy `p`: a cost of 11 never fits, since 10 is the most that is ever admitted at once",
        ),
        ("cost = -1", "f.toml:9: cost = -1 is out of range; write a number from 1"),
        (
            "max-wait = \"3s\"",
            "f.toml:9: max-wait is for leaky-queue, concurrency and overload; remove it or choose that algorithm",
        ),
        ("order = \"newest-first\"", "f.toml:9: unknown field `order`"),
        (
            "staggered = true",
            "f.toml:9: staggered is for fixed-window and sliding-window; remove it or choose that algorithm",
        ),
        (
            "max-queue = 3",
            "f.toml:9: max-queue is for leaky-queue, concurrency and overload; remove it or choose that algorithm",
        ),
        ("free = 3", "f.toml:9: free is for slow-down; remove it or choose that algorithm"),
        ("step = \"1s\"", "f.toml:9: step is for slow-down; remove it or choose that algorithm"),
        ("max-delay = \"1s\"", "f.toml:9: max-delay is for slow-down; remove it or choose that algorithm"),
        ("settle-by = \"later\"", "f.toml:9: settle-by = \"later\": write \"handler\" or \"content-bytes\""),
        (
            "charge-when = [401]\nsettle-by = \"handler\"",
            "f.toml:10: policy `p`: `charge-when` cannot be combined with `settle-by = \"handler\"`: both say what is charged",
        ),
        (
            "owe-shortfalls = true",
            "f.toml:9: policy `p`: `owe-shortfalls` cannot be combined with costs that are never above the charge",
        ),
        (
            "release-at = \"head\"",
            "f.toml:9: policy `p`: `release-at = \"head\"` cannot be combined with a limiter whose requests hold nothing",
        ),
        (
            "when-full = \"reject\"",
            "f.toml:9: when-full is for leaky-queue in memory and slow-down; remove it or choose that algorithm",
        ),
        ("algorithm = \"tocken-bucket\"", "f.toml:5: algorithm = \"tocken-bucket\": write \"token-bucket\", "),
        (
            "name = \"two words\"",
            "f.toml:4: \"two words\" cannot be a policy's name; begin with an ASCII letter or `*`",
        ),
        ("key = \"ip\"", "f.toml:8: unknown key `ip`; write global, client-ip, header:NAME"),
        ("key = \"header:\"", "f.toml:8: unknown key `header:`"),
        ("key = []", "f.toml:8: the key is empty; write global"),
        ("key = 3", "f.toml:8: key = 3: write a text in quotation marks or a list of such, such as \"client-ip\""),
        ("status = 200", "f.toml:9: status = 200 is out of range; write a number from 400 to 599"),
        ("status = 700", "f.toml:9: status = 700 is out of range; write a number from 400 to 599"),
        ("charge-when = []", "f.toml:9: charge-when = []: no request would count; write the statuses that count"),
        ("charge-when = [401, 99]", "f.toml:9: charge-when = [99]: no response has that status; write 200 to 599"),
        (
            "penalty = { rejections = 0, per = \"1m\", ban = \"1m\" }",
            "f.toml:9: rejections = 0 is out of range; write a number from 1",
        ),
        (
            "penalty = { rejections = 1, per = \"1m\", ban = \"ever\" }",
            "f.toml:9: ban = \"ever\" is not a time; write 250ms",
        ),
        ("penalty = { rejections = 1, per = \"1m\" }", "f.toml:9: missing field `ban`; add ban = \"10m\""),
        (
            "store = \"redis\"",
            "f.toml:9: store = \"redis\" needs a server; write [redis] with url = \"redis://HOST:PORT\" at the top of the file",
        ),
        (
            "store = \"disk\"",
            "f.toml:9: store = \"disk\": the file has no [store.disk]; write that table, with kind = \"redis\", or store = \"memory\"",
        ),
        // Texts that read like the parser's messages.
        (
            "store = \"x`, expected `y\"",
            "f.toml:9: store = \"x`, expected `y\": the file has no [store.x`, expected `y]; write that table, with kind = \"redis\", or store = \"memory\"",
        ),
        ("limit = \"missing field `burst`\"", "f.toml:6: limit = \"missing field `burst`\": write a whole number"),
        (
            "on-missing-key = \"ignore\"",
            "f.toml:9: on-missing-key = \"ignore\": write \"reject\", \"skip\" or \"share\"",
        ),
        (
            "on-failure = \"panic\"",
            "f.toml:9: on-failure = \"panic\": write \"local-fallback\", \"allow\" or \"reject\"",
        ),
    ] {
        let message = error(&with(line));
        assert!(message.starts_with(expected), "{line}\n  reported: {message}\n  expected: {expected}");
    }
}

#[test]
fn mistakes_around_policies_have_lines() {
    let policy = "[[route.policy]]\nname = \"p\"\nalgorithm = \"fixed-window\"\nlimit = 1\nper = \"1s\"\n";
    for (text, expected) in [
        (
            format!("[[route]]\npath = \"/a\"\n{policy}{policy}"),
            "f.toml:9: two policies are named `p`; give each a name of its own",
        ),
        (
            format!("[[route]]\npath = \"/a\"\n{policy}burst = 3"),
            "f.toml:8: burst is for token-bucket, leaky-bucket, leaky-queue and slow-down",
        ),
        (format!("[[route]]\n{policy}"), "f.toml:1: missing field `path`"),
        ("[[route]]\npath = \"a\"".into(), "f.toml:2: path `a` must begin with a slash; write \"/a\""),
        ("[[route]]\npath = []".into(), "f.toml:2: the route has no path"),
        ("[[route]]\npath = \"/a/:id\"".into(), "f.toml:2: segment `:id` of path `/a/:id` cannot be matched"),
        ("[[route]]\npath = \"/a/{b\"".into(), "f.toml:2: segment `{b` of path `/a/{b` cannot be matched"),
        ("[[route]]\npath = \"/{*b}/a\"".into(), "f.toml:2: segment `{*b}` of path `/{*b}/a` cannot be matched"),
        ("[[route]]\npath = \"/a/{*}\"".into(), "f.toml:2: segment `{*}` of path `/a/{*}` cannot be matched"),
        (
            "[[route]]\npath = \"/a/*\"".into(),
            "f.toml:2: segment `*` of path `/a/*` cannot be matched; write it literally, {name} for any one segment, or at the end",
        ),
        (
            "[[route]]\npath = \"/a\"\n\n[[route]]\npath = [\"/b\", \"/a\"]".into(),
            "f.toml:5: path `/a` is already served by the route on line 2",
        ),
        (
            "[[route]]\npath = \"/a/{x}\"\n[[route]]\npath = \"/a/{y}\"".into(),
            "f.toml:4: path `/a/{y}` is already served",
        ),
        (
            "[[rout]]\npath = \"/a\"".into(),
            "f.toml:1: unknown field `rout` (did you mean `route`?), expected one of `client-ip`, `redis`, `store`, `snapshot`, `response`, `route`",
        ),
        ("[[route]\n".into(), "f.toml:1: "),
        (
            "snapshot = { path = \"\" }".into(),
            "f.toml:1: path is empty; write the file for snapshots, or remove [snapshot]",
        ),
        (
            "[snapshot]\npath = \"f\"\nevery = \"99ms\"".into(),
            "f.toml:3: every = \"99ms\" is too often; write 100ms or more",
        ),
        ("[snapshot]\npath = \"f\"\nevery = \"soon\"".into(), "f.toml:3: every = \"soon\" is not a time; write 250ms"),
        (
            "[client-ip]\nsource = \"x-forwarded-for\"".into(),
            "f.toml:2: any client can forge a header; write which proxies to trust",
        ),
        ("[client-ip]\nsource = \"peer\"\nhops = 1".into(), "f.toml:2: the socket's peer needs no trusted proxies"),
        (
            "[client-ip]\nsource = \"not a header\"\nhops = 1".into(),
            "f.toml:2: source `not a header` is not a header's name",
        ),
        ("[client-ip]\nsource = \"forwarded\"\ntrusted = [\"10.0.0.0/33\"]".into(), "f.toml:3: "),
        (
            "[client-ip]\nipv6-prefix = 16".into(),
            "f.toml:2: ipv6-prefix = 16 is out of range; write a number from 32 to 128",
        ),
        ("\n[client-ip]\nhops = 1".into(), "f.toml:3: the socket's peer needs no trusted proxies"),
        ("[client-ip]\nsource = \"forwarded\"\nhops = 0".into(), "f.toml:3: hops = 0 trusts no proxy"),
        ("[[route]]\npath = \"/a\\\"b\"".into(), "f.toml:2: segment `a\"b`"),
        (
            format!("[[route]]\npath = \"/a\"\nexempt-preflights = 3\n{policy}"),
            "f.toml:3: exempt-preflights needs a table; write { limit = 50, per = \"1s\" }",
        ),
        (
            format!("[[route]]\npath = \"/a\"\nexempt-preflights = {{ limit = 0, per = \"1s\" }}\n{policy}"),
            "f.toml:3: limit = 0 is out of range; write a number from 1",
        ),
        (
            "[[route]]\npath = \"/a\"\nexempt-preflights = { limit = 5, per = \"1s\" }".into(),
            "f.toml:3: the route has no policy, so that all requests pass uncounted; remove exempt-preflights",
        ),
        (
            "[client-ip]\nhop = 1".into(),
            "f.toml:2: unknown field `hop` (did you mean `hops`?), expected one of `source`, `trusted`, `hops`",
        ),
    ] {
        let message = error(&text);
        assert!(message.starts_with(expected), "{text}\n  reported: {message}\n  expected: {expected}");
    }
}

#[test]
fn every_response_mistake_has_its_line() {
    for (line, expected) in [
        (
            "field = \"none\"",
            "unknown field `field` (did you mean `fields`?), expected one of `fields`, `x-ratelimit`, `advertise`, `rejection-format`",
        ),
        ("fields = \"draft-12\"", "fields = \"draft-12\": write \"draft-11\", \"draft-07\" or \"none\""),
        (
            "fields = [\"draft-11\", \"draft-07\"]",
            "fields = [\"draft-11\", \"draft-07\"]: write \"draft-11\", \"draft-07\" or \"none\"",
        ),
        ("fields = 11", "fields = 11: write \"draft-11\", \"draft-07\" or \"none\""),
        ("x-ratelimit = \"date\"", "x-ratelimit = \"date\": write \"epoch-seconds\", \"delta-seconds\" or \"none\""),
        ("rejection-format = \"html\"", "rejection-format = \"html\": write \"problem\", \"text\" or \"empty\""),
        ("grpc-status = \"ok\"", "grpc-status = \"ok\": write \"resource-exhausted\" or \"unavailable\""),
        ("advertise = true", "advertise = true: write a text in quotation marks"),
        (
            "advertise = \"sometimes\"",
            "advertise = \"sometimes\" is not known; write always, rejected, never, or below-20%",
        ),
        ("advertise = \"below-101%\"", "advertise = \"below-101%\" is not known"),
        ("advertise = \"below-300%\"", "advertise = \"below-300%\" is not known"),
        ("advertise = \"below-+5%\"", "advertise = \"below-+5%\" is not known"),
        ("advertise = \"below-%\"", "advertise = \"below-%\" is not known"),
        ("advertise = \"below-20\"", "advertise = \"below-20\" is not known"),
        ("retry-jitter = \"some\"", "retry-jitter = \"some\" is not a time; write 250ms, 1s, 1m, 1h or 1day"),
    ] {
        let route = format!("{}[route.response]\n{line}\n", with("burst = 20"));
        for (text, at) in [(format!("\n[response]\n{line}\n"), 3), (route, 11)] {
            let message = error(&text);
            let expected = format!("f.toml:{at}: {expected}");
            assert!(message.starts_with(&expected), "{line}\n  reported: {message}\n  expected: {expected}");
        }
    }
    let twice = error("[response]\n[response]\n");
    assert!(twice.starts_with("f.toml:2: duplicate key"), "{twice}");
    for text in [
        "[[route]]\npath = \"/a\"\nresponse = { advertise = \"never\" }",
        "[[route]]\npath = \"/a\"\n[route.response]\nadvertise = \"never\"",
    ] {
        let message = error(text);
        assert!(message.starts_with("f.toml:3: the route has no policy"), "{message}");
    }
}

#[test]
fn staggered_windows_are_for_memory() {
    let redis = "[redis]\nurl = \"redis://127.0.0.1:1\"\n";
    let window = with("staggered = true").replace("token-bucket", "fixed-window");
    let message = error(&format!("{redis}{window}"));
    assert!(message.starts_with("f.toml:11: a staggered window is kept in memory only"), "{message}");
    let message = error(&format!("{redis}{}", window.replace("fixed-window", "sliding-window")));
    assert!(message.starts_with("f.toml:11: a staggered window is kept in memory only"), "{message}");
    reader().parse("f.toml", &format!("{redis}{window}store = \"memory\"\n")).unwrap();
    reader().parse("f.toml", &window).unwrap();
}

#[test]
fn redis_mistakes_have_their_lines() {
    let policy = |lines: &str| {
        format!(
            "[redis]\nurl = \"redis://127.0.0.1:1\"\n[[route]]\npath = \"/\"\n[[route.policy]]\nname = \"p\"\nlimit = 1\n{lines}"
        )
    };
    for (text, expected) in [
        ("[redis]\nurl = \"127.0.0.1\"".to_owned(), "f.toml:2: "),
        ("[redis]\nurl = []".to_owned(), "f.toml:2: "),
        ("[redis]\ntimeout = \"1s\"".to_owned(), "f.toml:1: missing field `url`"),
        ("[redis]\nurl = \"redis://h\"\ntimeout = \"soon\"".to_owned(), "f.toml:3: timeout = \"soon\" is not a time"),
        (
            "[redis]\nurl = \"redis://h\"\nprefix = \"{x}\"".to_owned(),
            "f.toml:3: prefix = \"{x}\": a cluster takes braces for the part to hash; leave them out",
        ),
        (policy("algorithm = \"fixed-window\"\nper = \"1500ns\""), "f.toml:9: "),
        (
            policy("algorithm = \"concurrency\"\nmax-wait = \"5s\""),
            "f.toml:9: max-wait bounds the wait in a queue, and there is none; add max-queue",
        ),
        (
            policy("algorithm = \"concurrency\"\nlease = \"500ms\""),
            "f.toml:9: lease = \"500ms\" is out of range; write a time from 1s to 1h, such as 10s",
        ),
        (policy("algorithm = \"concurrency\"\nlease = \"2h\""), "f.toml:9: lease = \"2h\" is out of range"),
        (policy("algorithm = \"concurrency\"\nlease = \"long\""), "f.toml:9: lease = \"long\" is not a time"),
        (
            policy("algorithm = \"concurrency\"\nstore = \"memory\"\nlease = \"10s\""),
            "f.toml:10: lease is for a server: in memory, what is in flight ends with its process; remove it, or name \
             the [store.NAME] of a server (store = \"NAME\")",
        ),
        (
            policy("algorithm = \"fixed-window\"\nper = \"1s\"\nlease = \"10s\""),
            "f.toml:10: lease is for concurrency on a server; remove it or choose that algorithm",
        ),
        (
            policy("algorithm = \"concurrency\"\nmax-keys = 5"),
            "f.toml:9: max-keys is for policies in memory, except for overload; remove it or choose that algorithm",
        ),
        // Redis can keep it without waiters, but not with the default `max-queue`.
        (
            policy("algorithm = \"leaky-queue\"\nper = \"1s\"\nburst = 2251799800"),
            "f.toml:9: an empty bucket would take",
        ),
    ] {
        let message = error(&text);
        assert!(message.starts_with(expected), "{text}\n  reported: {message}\n  expected: {expected}");
    }
    for fine in [
        policy("algorithm = \"fixed-window\"\nper = \"1500ns\"\nstore = \"memory\""),
        policy("algorithm = \"leaky-queue\"\nper = \"1s\"\nstore = \"redis\"\nmax-queue = 3\nmax-wait = \"9s\""),
        policy("algorithm = \"slow-down\"\nper = \"1s\"\nmax-keys = 5"),
        policy("algorithm = \"concurrency\""),
        // A count of bytes, which is too large for a slot in memory, but fine for Redis.
        policy("algorithm = \"concurrency\"").replace("limit = 1", "limit = 10000000000000"),
        policy("algorithm = \"concurrency\"\nmax-queue = 5\nmax-wait = \"5s\"\nlease = \"1s\""),
        policy("algorithm = \"concurrency\"\nlease = \"1h\""),
        policy("algorithm = \"concurrency\"\nstore = \"memory\"\nmax-queue = 5\nmax-wait = \"5s\"\nmax-keys = 5"),
        "[redis]\nurl = [\"redis://a:1\", \"redis://b:2\"]\ntimeout = \"20ms\"\nprefix = \"shop\"\n[[route]]\npath = \"/\"".to_owned(),
        "[redis]\nurl = [\"redis://a:1\", \"redis://b:2\"]\nmaster = \"main\"\n[[route]]\npath = \"/\"".to_owned(),
    ] {
        reader().parse("f.toml", &fine).unwrap_or_else(|error| panic!("{fine}: {error}"));
    }
}

#[test]
fn earlier_field_names_are_explained() {
    let policy = with("burst = 20");
    let at_top = |line: &str| format!("{line}\n{policy}");
    let in_route = |line: &str| format!("[[route]]\npath = \"/a\"\n{line}\n");
    for (text, line, old, new) in [
        (at_top("[answer]\ntell = \"never\""), 1, "answer", "response"),
        (in_route("answer = { tell = \"never\" }"), 3, "answer", "response"),
        (at_top("[response]\ntell = \"never\""), 2, "tell", "advertise"),
        (at_top("[response]\nrejection = \"text\""), 2, "rejection", "rejection-format"),
        (in_route("except = { paths = [\"/healthz\"] }"), 3, "except", "exempt"),
        (with("except = { paths = [\"/healthz\"] }"), 9, "except", "exempt"),
        (with("capacity = 5"), 9, "capacity", "max-queue"),
        (with("queue = 5"), 9, "queue", "max-queue"),
        (with("stagger = true"), 9, "stagger", "staggered"),
        (with("on-store-error = \"allow\""), 9, "on-store-error", "on-failure"),
        (with("charge-on = [401]"), 9, "charge-on", "charge-when"),
        (with("settle = \"handler\""), 9, "settle", "settle-by"),
        (with("shortfall = \"owed\""), 9, "shortfall", "owe-shortfalls"),
        (with("penalty = { refusals = 3, per = \"1m\", ban = \"1m\" }"), 9, "refusals", "rejections"),
    ] {
        assert_eq!(error(&text), format!("f.toml:{line}: unknown field `{old}`: it is called `{new}` now"), "{text}");
        assert!(SCHEMA.contains(&format!("\"{new}\": {{")), "{new}");
    }
}

#[test]
fn every_mistake_in_alternatives_is_reported() {
    let policies = ["a", "b"].map(|name| {
        format!("[[route.policy]]\nname = \"{name}\"\nalgorithm = \"fixed-window\"\nlimit = 4\nper = \"1s\"\n")
    });
    for (alternatives, expected) in [
        ("[\"a\"]", "f.toml:3: alternatives needs two at least; write the names of policies"),
        ("[\"a\", \"c\"]", "f.toml:3: alternatives names `c`, which is no policy of this route, or is named twice"),
        (
            "[\"a\", [\"b\", \"a\"]]",
            "f.toml:3: alternatives names `a`, which is no policy of this route, or is named twice",
        ),
        ("[\"a\", []]", "f.toml:3: an alternative without a policy would always have room"),
        ("\"a\"", "f.toml:3: alternatives"),
    ] {
        let text = format!("[[route]]\npath = \"/a\"\nalternatives = {alternatives}\n{}", policies.concat());
        let message = error(&text);
        assert!(message.starts_with(expected), "{alternatives}: {message}");
    }
    let message = error("[[route]]\npath = \"/a\"\nalternatives = [\"a\", \"b\"]\n");
    let expected = "f.toml:3: the route has no policy, so that there is nothing to choose from; remove alternatives";
    assert!(message.starts_with(expected), "{message}");
}
