//! Selection compared with a naive model, and errors.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use proptest::prelude::*;
use tower_sluice::{PartitionKey, Quota};

use super::super::{Algorithm, Descriptor, Domain, Limit};
use super::expression::{Comparison, Reference};
use super::program::{LimitNames, Program, Request};
use crate::cases::cases;

fn domain(file: &str) -> Domain {
    let mut domains = super::parse("a.yaml", file).unwrap();
    assert_eq!(domains.len(), 1);
    domains.remove(0)
}

fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Descriptor { entries: entries.collect(), has_own_limit: false }
}

/// Returns each selected limit's descriptor, rule and key.
fn select(domain: &Domain, descriptors: &[Descriptor]) -> Vec<(usize, usize, PartitionKey)> {
    let selected = domain.select.select(descriptors);
    selected.into_iter().map(|selected| (selected.descriptor, selected.rule, selected.key)).collect()
}

#[test]
fn limits_are_read_by_namespace() {
    let file = r#"
- namespace: shop
  max_value: 1000000
  seconds: 60
  conditions:
  variables:
- namespace: shop
  name: posts per user
  id: posts
  max_value: 5
  seconds: 60
  conditions:
    - "descriptors[0]['req.method'] == 'POST'"
  variables:
    - descriptors[0].user_id
- namespace: other
  max_value: 0
  seconds: 1
"#;
    let domains = super::parse("a.yaml", file).unwrap();
    let [shop, other] = &domains[..] else { panic!("{domains:?}") };
    assert_eq!((&*shop.name, shop.line, &*other.name, other.line), ("shop", 2, "other", 16));
    let rate = |limit| Limit::Rate { quota: Quota::per_minute(limit), algorithm: Algorithm::FixedWindow };
    assert_eq!((shop.rules[0].limit, shop.rules[1].limit), (rate(1_000_000), rate(5)));
    assert_eq!(other.rules[0].limit, Limit::Zero { period: Duration::from_secs(1) });
    assert_eq!((&*shop.rules[0].name, shop.rules[0].line), ("all/60s", 2));
    assert_eq!((shop.rules[1].label.as_deref(), shop.rules[1].line), (Some("posts per user"), 7));
    assert!(shop.rules[1].name.starts_with("posts_per_user~"), "{}", shop.rules[1].name);

    let shared = (0, 0, PartitionKey::SHARED);
    let request = |method, user| [descriptor(&[("req.method", method), ("user_id", user)])];
    assert_eq!(select(shop, &request("POST", "ann")), [shared.clone(), (0, 1, PartitionKey::from("ann"))]);
    assert_eq!(select(shop, &request("GET", "ann")), std::slice::from_ref(&shared));
    assert_eq!(select(shop, &[descriptor(&[("req.method", "POST")])]), [shared]);
    assert!(select(shop, &[]).is_empty());
}

#[test]
fn names_alone_search_all_descriptors() {
    let list = r#"[{namespace: n, max_value: 1, seconds: 1, conditions: ['method != "GET"'], variables: [user]}]"#;
    let domain = domain(list);
    let [user, method] = [descriptor(&[("user", "ann")]), descriptor(&[("method", "PUT"), ("x", "")])];
    assert_eq!(select(&domain, &[user.clone(), method.clone()]), [(1, 0, PartitionKey::from("ann"))]);
    assert_eq!(select(&domain, &[method.clone(), user.clone()]), [(1, 0, PartitionKey::from("ann"))]);
    assert!(select(&domain, std::slice::from_ref(&user)).is_empty());
    assert!(select(&domain, &[user, method, descriptor(&[("method", "GET")])]).is_empty());
}

#[test]
fn the_last_entry_of_a_key_counts() {
    let domain = domain("[{namespace: n, max_value: 1, seconds: 1, variables: ['descriptors[0].user']}]");
    let selected = select(&domain, &[descriptor(&[("user", "ann"), ("user", "bob")])]);
    assert_eq!(selected, [(0, 0, PartitionKey::from("bob"))]);
}

#[test]
fn values_stay_apart_in_any_order() {
    let file = |variables| format!("[{{namespace: n, max_value: 1, seconds: 1, variables: [{variables}]}}]");
    let domain = domain(&file("a, b"));
    let key = |domain: &Domain, a, b| select(domain, &[descriptor(&[("a", a), ("b", b)])]).remove(0).2;
    assert_ne!(key(&domain, "x|y", "z"), key(&domain, "x", "y|z"));
    assert_eq!(key(&domain, "x", "y"), key(&self::domain(&file("b, a, b")), "x", "y"));
}

/// Adding limits does not change other limits' names.
#[test]
fn names_are_readable_and_stable() {
    let limit = |more| format!("{{namespace: n, max_value: 1, {more}}}");
    let by_user = limit("seconds: 60, conditions: [\"method == 'GET'\"], variables: ['descriptors[1].user']");
    let same_name = [limit("seconds: 1, name: api"), limit("seconds: 2, name: api"), limit("seconds: 3, name: api")];
    let names = |list: &[&String]| {
        let list: Vec<&str> = list.iter().map(|limit| limit.as_str()).collect();
        domain(&format!("[{}]", list.join(", "))).rules.into_iter().map(|rule| rule.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&[&by_user]), ["method:GET/user/60s"]);
    let [one, two, three] = &same_name;
    let all = names(&[one, two, three]);
    assert_eq!(all[0], "api");
    assert_eq!(names(&[one, three])[1], all[2]);
}

/// Returns a file with a limit, whose fields begin in line 3.
fn limit(fields: &str) -> String {
    format!("\n- namespace: n\n  {}\n", fields.replace('\n', "\n  "))
}

/// Returns a file with a complete limit, whose other fields begin in line 5.
fn full(fields: &str) -> String {
    limit(&format!("max_value: 1\nseconds: 1\n{fields}"))
}

#[test]
fn mistakes_have_a_line_and_a_cure() {
    let cases = [
        (String::new(), "1: the file is empty; write a list of limits"),
        (
            "domain: d\ndescriptors: []".to_owned(),
            "1: this is a file of envoyproxy/ratelimit; give it to `sluice serve` with --envoy-config",
        ),
        ("namespace: n".to_owned(), "1: the file must be a list; begin each limit with `- namespace: NAME`"),
        ("- a".to_owned(), "1: a limit must be a table; write `namespace: …`"),
        ("- seconds: 1".to_owned(), "1: a limit has no namespace; add"),
        (limit("seconds: 1"), "2: a limit has no max_value; add it"),
        (limit("max_value: 1"), "2: a limit has no seconds; add `seconds: 60`"),
        (limit("max_value: x\nseconds: 1"), "3: `max_value` is `x`; write a whole number of at most 999999999999999"),
        (limit("max_value: 1\nseconds: 0"), "4: `seconds` is `0`; write at least 1"),
        (limit("max_value: 1\nseconds: 9999999999"), "4: "),
        (full("policy: x"), "5: a limit has no field `policy`; correct it to one of namespace, max_value, "),
        (full("conditions: a"), "5: `conditions` is a list; write `- `"),
        (
            full("conditions:\n- [a]"),
            "6: an element of `conditions` is a text; put the expression into quotation marks",
        ),
        (
            full("conditions:\n- a == 'b'\n- descriptors[0].a ="),
            "7: `conditions` has `descriptors[0].a =`: this is not CEL",
        ),
        (full("conditions:\n- size(a) ="), "6: `conditions` has `size(a) =`: this is not CEL"),
        (
            full("conditions:\n- a.toLower() == 'b'"),
            "6: `conditions` has `a.toLower() == 'b'`: there is no function `toLower`; Limitador has bytes, contains, ",
        ),
        (full("conditions:\n- 'A{b: 1} == a'"), "6: `conditions` has `A{b: 1} == a`: messages such as"),
        (full("variables:\n- limit.name"), "6: `variables` has `limit.name`: a variable cannot read `limit`"),
        (
            full("variables: [size(b), a]") + &full("variables: [a, size(b)]"),
            "7: the limit in line 2 has the same conditions, variables and seconds; remove one of them",
        ),
    ];
    for (file, expected) in cases {
        let error = super::parse("a.yaml", &file).unwrap_err().to_string();
        assert!(error.starts_with(&format!("a.yaml:{expected}")), "{error}\nis not\n{expected}\nfor\n{file}");
    }
}

#[test]
fn all_mistakes_are_reported() {
    let file = full("conditions: [a =]") + &full("") + &limit("seconds: 1") + &limit("max_value: 2\nseconds: 0");
    let mut problems = Vec::new();
    let domains = super::read("a.yaml", &file, &mut problems);
    assert_eq!(domains[0].rules.len(), 1);
    assert_eq!(problems.iter().map(|problem| problem.line()).collect::<Vec<_>>(), [5, 12, 17]);
}

/// Whether a limit with a condition applies to a request with these descriptors.
fn applies(condition: &str, descriptors: &[Descriptor]) -> bool {
    let condition = serde_json::to_string(condition).unwrap();
    let domain =
        domain(&format!("[{{namespace: n, name: calls, max_value: 1, seconds: 1, conditions: [{condition}]}}]"));
    !select(&domain, descriptors).is_empty()
}

/// Most expressions come from Limitador's own tests and documents.
#[test]
fn conditions_are_cel() {
    let request = [
        descriptor(&[("method", "GET"), ("path", "/api/x"), ("n", "7"), ("req.method", "GET")]),
        descriptor(&[("user", "ann"), ("ts", "2019-10-12T13:20:50.52Z")]),
    ];
    for (condition, expected) in [
        ("descriptors[0].method == 'GET' && descriptors[1].user != 'bob'", true),
        ("descriptors[0].method == 'PUT' || descriptors[0].path.startsWith('/api/')", true),
        ("descriptors[0]['req.method'] in ['GET', 'HEAD']", true),
        ("!(descriptors[0].method in ['GET', 'HEAD'])", false),
        ("descriptors[0].path.matches('^/api/[a-z]+$')", true),
        ("descriptors[0].path.contains('admin')", false),
        ("int(descriptors[0].n) > 5", true),
        ("timestamp(descriptors[1].ts).getHours() == 13", true),
        ("size(descriptors) == 2", true),
        ("has(descriptors[1].user)", true),
        ("has(descriptors[1].name)", false),
        ("descriptors.exists(d, has(d.user) && d.user == 'ann')", true),
        ("descriptors.all(d, has(d.user))", false),
        ("descriptors[0].method == 'G\\x45T'", true),
        ("'GET' == descriptors[0].method", true),
        ("true", true),
        // The limit's names.
        ("limit.name == 'calls' && limit.id == null", true),
        ("limit.name == 'others'", false),
        // Entries without a descriptor, as in version 1.
        ("method == 'GET' && user == 'ann'", true),
        ("req.method.startsWith('G')", true),
        ("req.path.startsWith('/')", false),
        // A key or a descriptor that the request lacks.
        ("descriptors[0].missing == 'x' || true", false),
        ("descriptors[2].user == 'ann' || true", false),
        // Errors during evaluation.
        ("int(descriptors[0].method) > 5", false),
        ("descriptors[0].method", false),
        ("descriptors[0].method > 5", false),
        ("descriptors[0].method.exists(x, x == 'a')", false),
    ] {
        assert_eq!(applies(condition, &request), expected, "{condition}");
    }
}

#[test]
fn variables_are_cel() {
    let budget = |variable: &str, entries: &[(&str, &str)]| {
        let domain = domain(&format!("[{{namespace: n, max_value: 1, seconds: 1, variables: [\"{variable}\"]}}]"));
        select(&domain, &[descriptor(&[("x", "y")]), descriptor(entries)]).pop()
    };
    for (variable, value) in [
        ("descriptors[1].user.endsWith('n')", "true"),
        ("timestamp(descriptors[1].ts).getHours()", "13"),
        ("size(descriptors[1].user)", "3"),
        ("descriptors[1].user + '@' + descriptors[1].ts", "ann@2019-10-12T13:20:50.52Z"),
        ("has(descriptors[1].plan) ? descriptors[1].plan : 'free'", "free"),
    ] {
        let entries = [("user", "ann"), ("ts", "2019-10-12T13:20:50.52Z")];
        assert_eq!(budget(variable, &entries), Some((1, 0, PartitionKey::from(value))), "{variable}");
    }
    for variable in ["descriptors[1].plan + 'x'", "[descriptors[1].user]", "int(descriptors[1].user)"] {
        assert_eq!(budget(variable, &[("user", "ann")]), None, "{variable}");
    }
}

/// A comparison: descriptor, key, whether it is `==`, and the value.
type Compared = (usize, String, bool, String);
/// A variable: descriptor and key.
type Variable = (usize, String);

/// Selects as Limitador documents it: each descriptor is a table.
fn naive(
    (conditions, variables): &(Vec<Compared>, Vec<Variable>),
    request: &[HashMap<String, String>],
) -> Option<Vec<(Variable, String)>> {
    let find = |index: usize, key: &String| request.get(index)?.get(key);
    for (index, key, is_equal, value) in conditions {
        if (find(*index, key)? == value) != *is_equal {
            return None;
        }
    }
    let mut budget = Vec::new();
    for variable in variables {
        budget.push((variable.clone(), find(variable.0, &variable.1)?.clone()));
    }
    budget.sort();
    budget.dedup();
    Some(budget)
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn selection_equals_a_naive_model(
        limits in prop::collection::vec((
            prop::collection::vec((0..2_usize, "[ab]", any::<bool>(), "[xy]"), 0..3),
            prop::collection::vec((0..2_usize, "[ab]"), 0..3),
        ), 1..6),
        requests in prop::collection::vec(
            prop::collection::vec(prop::collection::hash_map("[ab]", "[xy|]{1,2}", 0..3), 1..3), 10),
    ) {
        // Each limit has a different period, since two limits that differ only in `max_value` are a mistake.
        let mut file = "\n".to_owned();
        for (index, (conditions, variables)) in limits.iter().enumerate() {
            writeln!(file, "- namespace: n\n  max_value: 1\n  seconds: {}\n  conditions:", index + 1).unwrap();
            for (index, key, is_equal, value) in conditions {
                let operator = if *is_equal { "==" } else { "!=" };
                writeln!(file, "    - descriptors[{index}].{key} {operator} '{value}'").unwrap();
            }
            file.push_str("  variables:\n");
            for (index, key) in variables {
                writeln!(file, "    - descriptors[{index}]['{key}']").unwrap();
            }
        }
        let domain = domain(&file);
        let mut found = Vec::new();
        for request in &requests {
            let descriptors: Vec<_> = request
                .iter()
                .map(|table| Descriptor { entries: table.clone().into_iter().collect(), has_own_limit: false })
                .collect();
            let mut selected = domain.select.select(&descriptors);
            selected.sort_by_key(|selected| selected.rule);
            let expected: Vec<_> = limits
                .iter()
                .enumerate()
                .filter_map(|(rule, limit)| Some((rule, naive(limit, request)?)))
                .collect();
            let rules = |list: &[(usize, _)]| list.iter().map(|(rule, _)| *rule).collect::<Vec<_>>();
            prop_assert_eq!(selected.iter().map(|selected| selected.rule).collect::<Vec<_>>(), rules(&expected));
            found.extend(selected.into_iter().map(|selected| (selected.rule, selected.key)).zip(expected));
        }
        // Requests share a budget exactly if the model says so.
        for (one, same_as_one) in &found {
            for (two, same_as_two) in &found {
                prop_assert_eq!(one == two, same_as_one == same_as_two);
            }
        }
    }

    /// The fast path and the interpreter agree on plain comparisons and entries.
    #[test]
    fn plain_expressions_mean_the_same_in_cel(
        entry in r"descriptors\[[012]\](\.[ab]|\['(a|b|a\.b)'\])|a|b|a\.b",
        operator in "==|!=| == | != ",
        value in "'[xyé|]{0,2}'|\"[xy']{0,2}\"",
        request in prop::collection::vec(prop::collection::vec(("a|b|a\\.b", "[xyé|]{0,2}"), 0..4), 1..4),
    ) {
        let descriptors: Vec<_> =
            request.into_iter().map(|entries| Descriptor { entries, has_own_limit: false }).collect();
        let request = Request::new(&descriptors);
        let condition = format!("{entry}{operator}{value}");
        let comparison = Comparison::parse(&condition).unwrap();
        let program = Program::condition(&condition, LimitNames { name: None, id: None }).unwrap();
        prop_assert_eq!(comparison.holds(&descriptors), program.holds(&request), "{}", condition);
        let (reference, program) = (Reference::parse(&entry).unwrap(), Program::variable(&entry).unwrap());
        let found = reference.find(&descriptors).map(|(index, value)| (index, value.to_owned()));
        prop_assert_eq!(found, program.value(&request), "{}", entry);
    }

    #[test]
    fn no_expression_panics(text in r"(descriptors)?[\[\]{}()'a.0=&|!?:+<,in é]{0,24}") {
        if let Ok(program) = Program::condition(&text, LimitNames { name: None, id: None }) {
            let _ = program.holds(&Request::new(&[descriptor(&[("a", "0")])]));
        }
    }
}

#[test]
fn loops_within_loops_are_mistakes() {
    let file = |text: &str| format!("- {{namespace: n, max_value: 1, seconds: 60, conditions: [\"{text}\"]}}\n");
    let nested = |depth: usize, list: &str| {
        let begin: String = (0..depth).map(|level| format!("{list}.all(v{level}, ")).collect();
        format!("{begin}true{}", ")".repeat(depth))
    };
    for text in [nested(7, "descriptors"), nested(3, "descriptors"), nested(7, "[1,2,3,4,5,6,7,8,9,10]")] {
        let error = super::parse("a.yaml", &file(&text)).unwrap_err().to_string();
        assert!(error.contains("and 2000000 is the most; nest at most two"), "{error}");
    }
    for text in [nested(2, "descriptors"), nested(5, "[1,2,3]"), nested(2, "(descriptors + [{}])")] {
        super::parse("a.yaml", &file(&text)).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

/// The parser calls itself for each of these.
#[test]
fn endless_expressions_are_mistakes() {
    for text in ["(".repeat(150) + "true" + &")".repeat(150), "1+".repeat(20_000) + "1 == 2", "!".repeat(900) + "true"]
    {
        let file = format!("- {{namespace: n, max_value: 1, seconds: 60, conditions: [\"{text}\"]}}\n");
        let error = super::parse("a.yaml", &file).unwrap_err().to_string();
        assert!(error.starts_with("a.yaml:1: ") && error.contains("may have 12 and 200"), "{error}");
    }
}

/// Builds the expression at the greatest depth that is accepted, and checks that the next one is a mistake.
fn deepest(expression: impl Fn(usize) -> String) -> Program {
    let read = |depth| Program::condition(&expression(depth), LimitNames { name: None, id: None });
    let deepest = (1..200).take_while(|depth| read(*depth).is_ok()).last().unwrap();
    let error = read(deepest + 1).unwrap_err();
    let is_bounded = error.contains("split it into several conditions") || error.contains("may have 12 and 200");
    assert!(is_bounded, "{}: {error}", expression(deepest + 1));
    read(deepest).unwrap()
}

/// A tokio worker has twice this stack, since a request needs some before its conditions are evaluated.
#[test]
fn deepest_expressions_fit_the_stack() {
    let around = |begin: &str, inner: &str, end: &str, depth| begin.repeat(depth) + inner + &end.repeat(depth);
    let programs = [
        deepest(|depth| format!("{}'a' != descriptors[0].a", "'a'+".repeat(depth))),
        deepest(|depth| format!("{}1 != 0", "1-".repeat(depth))),
        deepest(|depth| format!("{}true", "descriptors[0].a == 'a' && ".repeat(depth))),
        deepest(|depth| format!("{}true", "descriptors[0].a == 'b' || ".repeat(depth))),
        deepest(|depth| format!("{} != descriptors[0].a", around("string(", "'b'", ")", depth))),
        deepest(|depth| format!("{} != descriptors[0].a", around("max(1, ", "1", ")", depth))),
        deepest(|depth| format!("'b'{} != 'a'", ".orValue('b')".repeat(depth))),
        deepest(|depth| format!("{} != []", around("[", "descriptors[0].a", "]", depth))),
        deepest(|depth| format!("{} != {{}}", around("{'a': ", "descriptors[0].a", "}", depth))),
        deepest(|depth| format!("{}true", "false ? false : ".repeat(depth))),
        deepest(|depth| format!("{}true{}", "[1].all(v, ".repeat(depth), ")".repeat(depth))),
        deepest(|depth| format!("[1]{} == [1]", ".map(v, v)".repeat(depth))),
    ];
    for program in programs {
        let evaluate = move || program.holds(&Request::new(&[descriptor(&[("a", "a")])]));
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(evaluate).unwrap();
        assert!(thread.join().is_ok());
    }
}

/// Lists and texts that grow from loop to loop.
#[test]
fn growing_loops_are_mistakes() {
    let read = |text: &str| Program::condition(text, LimitNames { name: None, id: None });
    let terms = |term: &str, count: usize| vec![term; count].join("+");
    let grown = |list: &str, count: usize, depth: usize| {
        let ranges = (0..depth).map(|level| match level {
            0 => format!("[{}].all(v0, ", terms(list, count)),
            _ => format!("[{}].all(v{level}, ", terms(&format!("v{}", level - 1), count)),
        });
        format!("{}size(v{}) > 0{}", ranges.collect::<String>(), depth - 1, ")".repeat(depth))
    };
    let grown = [
        grown("descriptors", 8, 8),
        grown("descriptors", 7, 11),
        grown("descriptors", 12, 4),
        grown("descriptors[0].a", 14, 3),
        "descriptors.all(a, descriptors.map(b, [a, b, descriptors]).all(c, c == c))".to_owned(),
        "[(true ? [descriptors] : [])].all(a, a.all(b, b.all(c, b.all(d, b.all(e, true)))))".to_owned(),
        "descriptors.all(a, descriptors.all(b, a.a.matches(b.b)))".to_owned(),
        format!("descriptors.all(a, descriptors.all(b, {}true))", "a.a != b.b && ".repeat(25)),
        "[false || descriptors].all(a, a.all(b, a.all(c, a.all(d, true))))".to_owned(),
    ];
    for text in grown {
        assert!(read(&text).is_err(), "{text}");
    }
    for text in [
        "descriptors.exists(d, d.a.matches('^[a-z]+$'))",
        "descriptors.exists(d, d.a + '/' + d.b == 'a/b')",
        "descriptors.all(d, descriptors.all(e, d.a != e.b || d.a in ['a', 'b']))",
        "descriptors.filter(d, size(d) > 1).map(d, d.a).exists(a, a == 'x')",
        "[descriptors, descriptors].all(v, v.all(d, d.exists(key, key == 'a')))",
    ] {
        read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

/// Operators in a row make the parser call itself for each.
#[test]
fn long_expressions_are_mistakes() {
    let deep = ["1-".repeat(198) + "1 == 0", "true?true:".repeat(66) + "true", "-".repeat(190) + "1 == 1"];
    let nested = ["[{'a':max(1,(".repeat(3) + "1", ")".repeat(12)];
    for text in deep.into_iter().chain(nested) {
        let _ = Program::condition(&text, LimitNames { name: None, id: None });
    }
    let file =
        format!("- {{namespace: n, max_value: 1, seconds: 60, conditions: [\"{}'' != a\"]}}\n", "'a'+".repeat(60));
    let error = super::parse("a.yaml", &file).unwrap_err().to_string();
    assert!(error.starts_with("a.yaml:1: ") && error.contains("split it into several conditions"), "{error}");
}
