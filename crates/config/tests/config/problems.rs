//! `ConfigReader::problems`: all mistakes in a file at once.

use proptest::prelude::*;

use crate::cases::cases;
use crate::errors::mistakes;
use crate::{reader, with};

fn problems(text: &str) -> Vec<String> {
    reader().problems("f.toml", text).iter().map(ToString::to_string).collect()
}

/// Returns the lines, and checks how the message on each begins.
fn assert_problems(text: &str, expected: &[&str]) {
    let found = problems(text);
    assert_eq!(found.len(), expected.len(), "{text}\n{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(&format!("f.toml:{expected}")), "{found}\nis not\n{expected}");
    }
}

#[test]
fn a_single_mistake_is_the_only_one() {
    for (text, line, expected) in mistakes() {
        let found = problems(&text);
        let first = reader().parse("f.toml", &text).unwrap_err().to_string();
        assert_eq!(found, [first.as_str()], "{text}");
        assert!(first.starts_with(&format!("f.toml:{line}: {expected}")));
    }
}

#[test]
fn a_valid_file_has_none() {
    assert_problems(&with("limit = 3"), &[]);
    assert_problems(include_str!("../../src/format.toml"), &[]);
}

#[test]
fn all_fields_of_a_policy_are_checked() {
    let policy = "
[[route]]
path = \"/a\"
[[route.policy]]
name = 3
algorithm = \"tokens\"
limit = 0
per = \"1 fortnight\"
burst = \"x\"
brust = 4
penalty = { rejections = \"3\", per = \"1m\", ban = \"1y\", bann = 3 }
";
    assert_problems(
        policy,
        &[
            "5: name = 3: write a text",
            "6: algorithm = \"tokens\": write \"token-bucket\"",
            "7: limit = 0 is out of range",
            "8: per = \"1 fortnight\"",
            "9: burst = \"x\": write a whole number",
            "10: unknown field `brust` (did you mean `burst`?)",
            "11: unknown field `bann`",
            "11: rejections = \"3\": write a whole number",
        ],
    );
}

#[test]
fn all_tables_are_checked() {
    let text = "
[client-ip]
source = \"x-forwarded-for\"
hop = 1
[redis]
url = 3
timeout = \"0\"
[[route]]
path = \"a\"
response = { advertise = \"sometimes\" }
exempt = { networks = [] }
  [[route.policy]]
  name = \"p\"
  algorithm = \"token-bucket\"
  limit = 3
  [[route.policy]]
  name = \"p\"
  algorithm = \"fixed-window\"
  limit = 3
  per = \"1m\"
  burst = 4
  store = \"redis\"
[[route]]
  [[route.policy]]
  algorithm = \"token-bucket\"
[[rout]]
";
    assert_problems(
        text,
        &[
            "4: unknown field `hop` (did you mean `hops`?)",
            "6: url: write a text",
            "9: path `a` must begin with a slash",
            "10: advertise",
            "11: networks: nothing is exempt",
            "15: per is missing",
            "21: burst is for",
            "23: missing field `path`",
            "24: missing field `name`",
            "26: unknown field `rout` (did you mean `route`?)",
        ],
    );
}

#[test]
fn reading_stops_after_a_thousand() {
    let text = "[[route]]\npath = \"a\"\nlimit = 3\n".repeat(2_000);
    assert_eq!(problems(&text).len(), 1_000);
}

proptest! {
    #![proptest_config(cases(256))]

    /// There is a mistake if and only if the file cannot be read, and the first that the reader finds is among them.
    #[test]
    fn problems_are_those_of_the_reader(
        lines in prop::collection::vec(
            prop::sample::select(vec![
                "limit = 3", "limit = 0", "limit = \"3\"", "burst = 9", "max-queue = 5", "per = \"1m\"", "per = 3",
                "algorithm = \"leaky-queue\"", "algorithm = \"overload\"", "key = \"user\"", "key = \"who\"", "store = \"redis\"",
                "name = \"q\"", "exempt = { paths = [\"/x\"] }", "exempt = { paths = [] }", "charge-when = [401]", "zone = \"X\"",
                "plans = { by = \"user\", limits = { a = { limit = 9 } } }",
                "plans = { by = \"path\", limits = { \"/\" = { limit = 9, burst = 3 } } }",
            ]), 0..4),
    ) {
        let mut fields = std::collections::BTreeMap::from([
            ("name", "name = \"p\""), ("algorithm", "algorithm = \"token-bucket\""), ("limit", "limit = 3"),
            ("per", "per = \"1s\""),
        ]);
        fields.extend(lines.iter().map(|line| (line.split(' ').next().unwrap(), *line)));
        let policy = fields.into_values().collect::<Vec<_>>().join("\n");
        let text = format!("[[route]]\npath = \"/a\"\n[[route.policy]]\n{policy}\n");
        let found = problems(&text);
        match reader().parse("f.toml", &text) {
            Ok(_) => prop_assert!(found.is_empty(), "{text}\n{found:?}"),
            Err(first) => prop_assert!(found.contains(&first.to_string()), "{text}\n{first}\n{found:?}"),
        }
    }
}
