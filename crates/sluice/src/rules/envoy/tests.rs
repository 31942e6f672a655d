//! The examples, a naive model, collisions and errors.

use std::fmt::Write;
use std::time::Duration;

use proptest::prelude::*;
use tower_sluice::{PartitionKey, Quota};

use super::super::{Algorithm, Descriptor, Domain, Limit, Selected};
use super::examples::EXAMPLES;
use crate::cases::cases;

fn domain(file: &str) -> Domain {
    super::parse([("a.yaml", file)]).unwrap().remove(0)
}

fn error(file: &str) -> String {
    super::parse([("a.yaml", file)]).unwrap_err().to_string()
}

/// Reads `key=value, subkey=value`.
fn descriptor(text: &str) -> Descriptor {
    let entries = text.split(", ").map(|entry| entry.split_once('=').unwrap());
    Descriptor { entries: entries.map(|(key, value)| (key.into(), value.into())).collect(), has_own_limit: false }
}

fn select(domain: &Domain, descriptors: &[&str]) -> Vec<Selected> {
    let descriptors: Vec<_> = descriptors.iter().map(|text| descriptor(text)).collect();
    domain.select.select(&descriptors)
}

/// Returns the names of the selected rules.
fn names<'a>(domain: &'a Domain, descriptors: &[&str]) -> Vec<&'a str> {
    select(domain, descriptors).iter().map(|selected| &*domain.rules[selected.rule].name).collect()
}

/// Writes a selected rule as the examples do.
fn shown(domain: &Domain, selected: &Selected) -> String {
    let rule = &domain.rules[selected.rule];
    let limit = match rule.limit {
        Limit::Unlimited => "unlimited".to_owned(),
        Limit::Zero { period } => format!("0/{}", period.as_secs()),
        Limit::Rate { quota, algorithm } => {
            assert_eq!(algorithm, Algorithm::FixedWindow);
            format!("{}/{}", quota.limit(), quota.period().as_secs())
        }
    };
    let shadow = if rule.is_shadow { " shadow" } else { "" };
    let key = std::str::from_utf8(selected.key.as_bytes()).unwrap();
    format!("{} {limit}{shadow} for {}", rule.name, if key.is_empty() { "all" } else { key })
}

#[test]
fn the_examples_of_envoyproxy_ratelimit_hold() {
    for example in &EXAMPLES {
        let domain = domain(example.file);
        for request in example.requests {
            let descriptors: Vec<&str> = request.iter().map(|(descriptor, _)| *descriptor).collect();
            let mut found = vec!["nothing".to_owned(); request.len()];
            for selected in select(&domain, &descriptors) {
                found[selected.descriptor] = shown(&domain, &selected);
            }
            let expected: Vec<&str> = request.iter().map(|(_, expected)| *expected).collect();
            assert_eq!(found, expected, "{}: {descriptors:?}", example.title);
        }
    }
}

#[test]
fn all_fields_are_read() {
    let domain = domain(
        "domain: d\ndescriptors:\n- key: a\n  quota_mode: yes\n  shadow_mode: false\n  metadata: {x: [1, {y: 2}]}\n  \
         rate_limit:\n    name: of-a\n    unit: WEEK\n    requests_per_unit: 1_000\n    algorithm: token-bucket\n    \
         burst: 7\n- key: b\n  rate_limit: {unit: Year, requests_per_unit: 1, algorithm: sliding-window}\n- key: c\n  \
         rate_limit: {unit: month, requests_per_unit: 1, algorithm: leaky-bucket}\n",
    );
    assert_eq!((&*domain.name, domain.line), ("d", 1));
    let [a, b, c] = &domain.rules[..] else { panic!("{:?}", domain.rules) };
    let day = Duration::from_secs(86_400);
    let rate = |limit, days, algorithm| Limit::Rate { quota: Quota::per(limit, day * days), algorithm };
    assert_eq!((a.is_quota, a.is_shadow, a.label.as_deref(), a.line), (true, false, Some("of-a"), 3));
    assert_eq!(a.limit, Limit::Rate { quota: Quota::per(1_000, day * 7).burst(7), algorithm: Algorithm::TokenBucket });
    assert_eq!(b.limit, rate(1, 365, Algorithm::SlidingWindow));
    assert_eq!(c.limit, rate(1, 30, Algorithm::LeakyBucket));
    assert_eq!((b.is_quota, b.label.as_deref()), (false, None));
}

#[test]
fn defaults_may_be_merged() {
    let domain = domain(
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: &slow {unit: hour, requests_per_unit: 5}\n- key: b\n  \
         rate_limit: {<<: *slow, requests_per_unit: 6}\n",
    );
    let limits: Vec<_> = domain.rules.iter().map(|rule| rule.limit).collect();
    let rate = |limit| Limit::Rate { quota: Quota::per_hour(limit), algorithm: Algorithm::FixedWindow };
    assert_eq!(limits, [rate(5), rate(6)]);
}

#[test]
fn keys_do_not_merge_with_values() {
    let limit = "rate_limit: {unit: hour, requests_per_unit: 5}";
    let domain = domain(&format!("domain: d\ndescriptors: [{{key: a_b, {limit}}}, {{key: a, value: b_c, {limit}}}]\n"));
    assert_eq!(names(&domain, &["a_b=c"]), ["a_b"]);
    assert_eq!(names(&domain, &["a=b_c"]), ["a:b_c"]);
    assert!(names(&domain, &["a=b"]).is_empty());

    // The entries' key in a limit that the request brings.
    assert_ne!(descriptor("a_b=c").key(), descriptor("a=b_c").key());
    assert_ne!(descriptor("a=b|c=d").key(), descriptor("a=b, c=d").key());
    assert_ne!(descriptor("a=b, c=").key(), descriptor("a=b").key());
}

/// In the other server, `x_y`/`z` and `x`/`y_z` on two levels share a counter.
#[test]
fn values_on_two_levels_stay_apart() {
    let file = "{key: a, descriptors: [{key: b, rate_limit: {unit: hour, requests_per_unit: 5}}]}";
    let domain = domain(&format!("domain: d\ndescriptors: [{file}]\n"));
    let selected = select(&domain, &["a=x, b=y|z", "a=x|y, b=z", "a=x, b=y|z"]);
    assert_eq!(selected[0].key, selected[2].key);
    assert_ne!(selected[0].key, selected[1].key);
}

#[test]
fn a_pattern_matches_its_own_text() {
    let rule =
        |value, more| format!("{{key: k, value: {value}, rate_limit: {{unit: hour, requests_per_unit: 5}}{more}}}");
    let list = [rule("a*", ""), rule("ab*", ", share_threshold: true"), rule("abc", "")].join(", ");
    let domain = domain(&format!("domain: d\ndescriptors: [{list}]\n"));
    assert_eq!(names(&domain, &["k=ab*", "k=abx", "k=abc"]), ["k:ab*", "k:a*", "k:abc"]);
    assert_eq!(select(&domain, &["k=a*"])[0].key, PartitionKey::from("a*"));
    assert_eq!(select(&domain, &["k=ab*"])[0].key, PartitionKey::SHARED);
}

#[test]
fn replacing_reaches_across_descriptors() {
    let domain = domain(
        "domain: d\ndescriptors:\n\
         - {key: a, rate_limit: {name: a, unit: hour, requests_per_unit: 1, replaces: [{name: b}]}}\n\
         - {key: b, rate_limit: {name: b, unit: hour, requests_per_unit: 1, replaces: [{name: c}]}}\n\
         - {key: c, rate_limit: {name: c, unit: hour, requests_per_unit: 1}}\n\
         - {key: u, rate_limit: {name: c, unlimited: true, replaces: [{name: a}]}}\n",
    );
    assert_eq!(names(&domain, &["c=1", "b=1"]), ["b"]);
    // A rule that is replaced still replaces others.
    assert_eq!(names(&domain, &["c=1", "b=1", "a=1"]), ["a"]);
    // A rule without a limit replaces, and is not replaced.
    assert_eq!(names(&domain, &["u=1", "b=1", "a=1"]), ["u"]);
    // A limit that the request brings takes no part.
    let mut descriptors = [descriptor("c=1"), descriptor("b=1")];
    descriptors[1].has_own_limit = true;
    let selected = domain.select.select(&descriptors);
    assert_eq!(selected.iter().map(|selected| (selected.descriptor, selected.rule)).collect::<Vec<_>>(), [(0, 2)]);
}

#[test]
fn descriptors_without_entries_select_nothing() {
    let domain = domain("domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]\n");
    assert!(domain.select.select(&[]).is_empty());
    assert!(domain.select.select(&[Descriptor::default()]).is_empty());
    // A file may be without limits.
    assert!(self::domain("domain: d\n").rules.is_empty());
}

/// Returns a file with a descriptor, which begins in line 3.
fn list(descriptor: &str) -> String {
    format!("domain: d\ndescriptors:\n- {}\n", descriptor.replace('\n', "\n  "))
}

/// Returns a file with a `rate_limit`, whose fields begin in line 5.
fn limit(fields: &str) -> String {
    list(&format!("key: a\nrate_limit:\n  {}", fields.replace('\n', "\n  ")))
}

#[test]
fn mistakes_have_a_line_and_a_cure() {
    let cases = [
        ("".to_owned(), "1: the file is empty; begin with `domain: NAME`"),
        (
            "- namespace: n\n  max_value: 1\n".to_owned(),
            "1: this is a list of Limitador's limits; give it to `sluice serve` with --limitador-config",
        ),
        ("- a\n".to_owned(), "1: the file must be a table; write `domain: …`"),
        ("descriptors: []\n".to_owned(), "1: there is no domain; add"),
        ("domain: ''\n".to_owned(), "1: there is no domain; add"),
        ("domain: [a]\n".to_owned(), "1: `domain` is a text; write one"),
        ("domain: d\ndescriptors: a\n".to_owned(), "2: `descriptors` is a list; write `- `"),
        (
            "domain: d\ndescriptor: []\n".to_owned(),
            "2: the file has no field `descriptor`; correct it to one of domain, ",
        ),
        ("domain: d\n1: a\n".to_owned(), "2: the file has no field `1`; correct it"),
        ("domain: d\ndomain: e\n".to_owned(), "2: `domain` is there already, in line 1"),
        (list("a"), "3: a descriptor must be a table; write `key: …`"),
        (list("value: a"), "3: a descriptor has no key; add"),
        (list("key: ''\nvalue: a"), "3: a descriptor has no key; add"),
        (list("key: a*"), "3: the key `a*` has a `*`; patterns are for values"),
        (
            list("key: a\nunit: second"),
            "4: a descriptor has no field `unit`; move it, since it is a field of a rate_limit",
        ),
        (list("key: a\nshadow_mode: maybe"), "4: `shadow_mode` is `maybe`; write true or false"),
        (
            list("key: a\nquota_mode: 'true'"),
            "4: `quota_mode` is `\"true\"`; write true or false, without quotation marks",
        ),
        (list("key: a\nshare_threshold: true\nvalue: b"), "4: `share_threshold` needs a `value` with a `*`"),
        (
            list("key: a\n\ndescriptors:\n- key: b\n- key: b"),
            "7: this list has a descriptor with key `b` without a value",
        ),
        (
            list("key: a\ndescriptors: [{key: b, value: c},\n {key: b, value: c}]"),
            "5: this list has a descriptor with key `b` and value `c` already; merge",
        ),
        (
            limit("unit: fortnight\nrequests_per_unit: 1"),
            "5: `unit` is `fortnight`; write second, minute, hour, day, week, ",
        ),
        (limit("requests_per_unit: 1"), "5: a rate_limit has no unit; add `unit: minute`"),
        (limit("unit: day"), "5: a rate_limit has no requests_per_unit; add it"),
        (
            limit("unit: day\nrequests_per_unit: -1"),
            "6: `requests_per_unit` is `-1`; write a whole number of at most 4294967295",
        ),
        (limit("unit: day\nrequests_per_unit: 4294967296"), "6: `requests_per_unit` is `4294967296`; write"),
        (limit("unit: day\nrequests_per_unit: 010"), "6: `requests_per_unit` is `010`; write"),
        (limit("unit: day\nrequests_per_unit: [1]"), "6: `requests_per_unit` has one value; write it behind the colon"),
        (limit("unlimited: true\nunit: day"), "6: `unlimited` has no unit; remove"),
        (
            limit("unlimited: true\nshadow_mode: true"),
            "6: a rate_limit has no field `shadow_mode`; move it, since it is a field of a descriptor",
        ),
        (limit("unlimited: true\nname: a\nreplaces: [{name: a}]"), "7: the rate_limit `a` replaces itself"),
        (
            limit("unlimited: true\nreplaces: [{name: ''}]"),
            "6: an element of `replaces` has no name; write `- name: NAME`",
        ),
        (limit("unlimited: true\nreplaces: [{name: b}]"), "6: no rate_limit of the file has the name `b`; correct it"),
        (limit("unit: day\nrequests_per_unit: 1\nalgorithm: gcra"), "7: `algorithm` is `gcra`; write fixed-window, "),
        (
            limit("unit: day\nrequests_per_unit: 1\nburst: 2"),
            "7: a window admits its whole limit at once; remove `burst`",
        ),
        (
            limit("unit: day\nrequests_per_unit: 1\nalgorithm: token-bucket\nburst: 0"),
            "8: `burst` counts the first request",
        ),
    ];
    for (file, expected) in cases {
        let error = error(&file);
        assert!(error.starts_with(&format!("a.yaml:{expected}")), "{error}\nis not\n{expected}\nfor\n{file}");
    }
    let two = super::parse([("a.yaml", "\ndomain: d"), ("b.yaml", "domain: e"), ("c.yaml", "domain: d")]);
    let expected =
        "c.yaml:1: the domain `d` is in a.yaml:2 already; move its descriptors there, or give it another name";
    assert_eq!(two.unwrap_err().to_string(), expected);
}

/// A descriptor in a random file. Its limit has a unique number.
#[derive(Clone, Debug)]
struct Model {
    key: String,
    value: String,
    is_shared: bool,
    limit: Option<u32>,
    nested: Vec<Self>,
}

/// Finds the limit's number, and the values with separate budgets.
fn naive(list: &[Model], entries: &[(String, String)]) -> Option<(u32, Vec<String>)> {
    let ((key, value), rest) = entries.split_first()?;
    let same_key = || list.iter().filter(|model| model.key == *key);
    let by_value = same_key().find(|model| !model.value.is_empty() && model.value == *value);
    let by_pattern = || same_key().find(|model| is_match(&model.value, value));
    let model = by_value.or_else(by_pattern).or_else(|| same_key().find(|model| model.value.is_empty()))?;
    let (limit, values) = if rest.is_empty() { (model.limit?, Vec::new()) } else { naive(&model.nested, rest)? };
    let is_fixed = !model.value.is_empty() && (!model.value.contains('*') || model.is_shared);
    let own = if is_fixed { Vec::new() } else { vec![value.clone()] };
    Some((limit, [own, values].concat()))
}

/// Matches a pattern that ends with its only `*`.
fn is_match(pattern: &str, value: &str) -> bool {
    pattern.strip_suffix('*').is_some_and(|start| value.starts_with(start))
}

fn models() -> impl Strategy<Value = Vec<Model>> {
    let fields = ("[ab]", "[xy]{0,2}[*]?", any::<bool>(), prop::option::weighted(0.7, Just(0)));
    let model = |(key, value, is_shared, limit): (String, String, bool, Option<u32>), nested| Model {
        is_shared: is_shared && value.contains('*'),
        key,
        value,
        limit,
        nested,
    };
    let leaf = fields.clone().prop_map(move |fields| vec![model(fields, Vec::new())]);
    leaf.prop_recursive(3, 40, 6, move |inner| {
        prop::collection::vec((fields.clone(), inner), 0..6)
            .prop_map(move |list| list.into_iter().map(|(fields, nested)| model(fields, nested)).collect())
    })
}

/// Removes duplicates, which a file cannot have, and numbers the limits.
fn prepare(list: &mut Vec<Model>, next: &mut u32) {
    let mut seen = Vec::new();
    list.retain(|model| {
        let entry = (model.key.clone(), model.value.clone());
        let is_new = !seen.contains(&entry);
        seen.push(entry);
        is_new
    });
    for model in list {
        *next += 1;
        model.limit = model.limit.map(|_| *next);
        prepare(&mut model.nested, next);
    }
}

fn write(file: &mut String, list: &[Model]) {
    file.push('[');
    for Model { key, value, is_shared, limit, nested } in list {
        write!(file, "{{key: {key}, value: '{value}', share_threshold: {is_shared}, descriptors: ").unwrap();
        write(file, nested);
        if let Some(limit) = limit {
            write!(file, ", rate_limit: {{unit: hour, requests_per_unit: {limit}}}").unwrap();
        }
        file.push_str("}, ");
    }
    file.push(']');
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn selection_equals_a_naive_model(
        mut models in models(),
        requests in prop::collection::vec(prop::collection::vec(("[ab]", "[xy*|]{0,3}"), 0..4), 20),
    ) {
        prepare(&mut models, &mut 0);
        let mut file = "domain: d\ndescriptors: ".to_owned();
        write(&mut file, &models);
        let domain = domain(&file);
        let mut found = Vec::new();
        for entries in &requests {
            let descriptor = Descriptor { entries: entries.clone(), has_own_limit: false };
            let selected = domain.select.select(&[descriptor]).pop();
            let expected = naive(&models, entries);
            let limit = selected.as_ref().map(|selected| match domain.rules[selected.rule].limit {
                Limit::Rate { quota, .. } => quota.limit(),
                other => panic!("{other:?}"),
            });
            prop_assert_eq!(limit, expected.as_ref().map(|(limit, _)| u64::from(*limit)), "{:?}", entries);
            found.extend(selected.zip(expected));
        }
        // Requests share a budget exactly if the model says so.
        for (one, same_as_one) in &found {
            for (two, same_as_two) in &found {
                let is_one_budget = one.rule == two.rule && one.key == two.key;
                prop_assert_eq!(is_one_budget, same_as_one == same_as_two);
            }
        }
    }
}
