//! Sequences of edits.

use std::collections::BTreeMap;

use tower_sluice::testing::{Random, seeds};
use tower_sluice_config::Config;

use super::Limits;
use crate::serve::domains::Store;
use crate::serve::sources::Texts;

/// The limit for each route and domain.
type Expected = BTreeMap<String, u64>;

/// A file in TOML, and whether it is valid.
fn toml(random: &mut Random, expected: &mut Expected) -> (String, bool) {
    let limit = 1 + random.below(1_000);
    let route = |path: &str, limit: u64| {
        format!(
            "[[route]]\npath = \"/{path}\"\n[[route.policy]]\nname = \"all\"\nalgorithm = \"token-bucket\"\nlimit = {limit}\n\
             per = \"1s\"\n"
        )
    };
    expected.insert("/a".to_owned(), limit);
    let mistakes = [
        route("a", 0),
        route("b", limit),
        route("a", limit).replace("limit =", "limits ="),
        route("a", limit) + &route("b", limit),
        format!("[client-ip]\nsource = \"forwarded\"\n{}", route("a", limit)),
        "[[route".to_owned(),
    ];
    match mistakes.get(usize::try_from(random.below(16)).unwrap()) {
        Some(mistake) => (mistake.clone(), false),
        None => (route("a", limit), true),
    }
}

/// A file for envoyproxy/ratelimit.
fn envoy(random: &mut Random, expected: &mut Expected) -> (String, bool) {
    let limit = 1 + random.below(1_000);
    let domain = ["shop", "edge"][usize::try_from(random.below(2)).unwrap()];
    expected.insert(format!("domain {domain}"), limit);
    let file = |domain: &str, limit: &str| {
        format!("domain: {domain}\ndescriptors: [{{key: request.limit, rate_limit: {{unit: day, {limit}}}}}]\n")
    };
    let good = format!("requests_per_unit: {limit}");
    let mistakes = [
        file(domain, ""),
        file(domain, "requests_per_unit: -1"),
        // The TOML route, and Limitador's namespace.
        file("a", &good),
        file("counters", &good),
        "domain: [".to_owned(),
        String::new(),
    ];
    match mistakes.get(usize::try_from(random.below(16)).unwrap()) {
        Some(mistake) => (mistake.clone(), false),
        None => (file(domain, &good), true),
    }
}

fn limitador(random: &mut Random, expected: &mut Expected) -> (String, bool) {
    let limit = 1 + random.below(1_000);
    expected.insert("domain counters".to_owned(), limit);
    let file = |seconds: u64| format!("- {{namespace: counters, max_value: {limit}, seconds: {seconds}}}\n");
    match random.below(8) {
        0 => (file(0), false),
        1 => (file(60) + &file(60), false),
        _ => (file(60), true),
    }
}

fn draw(random: &mut Random) -> (Texts, Expected, bool) {
    let mut expected = Expected::new();
    let (toml, envoy, limitador) =
        (toml(random, &mut expected), envoy(random, &mut expected), limitador(random, &mut expected));
    let is_valid = toml.1 && envoy.1 && limitador.1;
    let texts = Texts {
        config: Some(("limits.toml".to_owned(), toml.0)),
        envoy: vec![("envoy.yaml".to_owned(), envoy.0)],
        limitador: vec![("limitador.yaml".to_owned(), limitador.0)],
    };
    (texts, expected, is_valid)
}

/// The limits in force.
fn found(limits: &Limits) -> Expected {
    let found = limits.operated().into_iter().map(|(name, limits)| {
        let policies = limits.policies();
        let enforced = policies.iter().filter(|policy| policy.name() != crate::rules::BROUGHT);
        let limit = enforced.map(|policy| policy.terms().unwrap().quota().unwrap().limit()).next().unwrap();
        (name, limit)
    });
    found.collect()
}

#[test]
fn edits_apply_to_all_files_or_none() {
    let (mut applied, mut rejected) = (0, 0);
    for seed in seeds(100) {
        let mut random = Random::new(seed);
        let (limits, mut expected) = loop {
            let (texts, expected, is_valid) = draw(&mut random);
            if is_valid {
                break (Limits::read(Config::reader(), &texts, Store::Memory { max_keys: 16 }).unwrap(), expected);
            }
        };
        assert_eq!(found(&limits), expected, "seed {seed}");
        for edit in 0..12 {
            let (texts, wanted, is_valid) = draw(&mut random);
            let changed = limits.change(&texts);
            assert_eq!(changed.is_ok(), is_valid, "seed {seed}, edit {edit}: {changed:?}\n{texts:?}");
            if is_valid {
                expected = wanted;
                applied += 1;
            } else {
                rejected += 1;
            }
            assert_eq!(found(&limits), expected, "seed {seed}, edit {edit}: {texts:?}");
        }
    }
    assert!(applied > 100 && rejected > 100, "{applied} {rejected}");
}
