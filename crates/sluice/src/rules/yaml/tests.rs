//! Trees, merge keys and hostile files.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::cases::cases;

/// Writes a tree in one line, with each text's line.
fn shown(node: &Node) -> String {
    match &node.value {
        Value::Text { text, .. } => format!("{text}@{}", node.line),
        Value::List(list) => format!("[{}]", list.iter().map(|node| shown(node)).collect::<Vec<_>>().join(" ")),
        Value::Table(table) => {
            let entries: Vec<_> = table.iter().map(|(key, node)| format!("{}:{}", key.text, shown(node))).collect();
            format!("{{{}}}", entries.join(" "))
        }
    }
}

fn parsed(text: &str) -> String {
    parse("a.yaml", text).unwrap().map_or_else(|| "nothing".to_owned(), |node| shown(&node))
}

fn error(text: &str) -> String {
    match parse("a.yaml", text) {
        // The tree may be too large to be printed.
        Ok(_) => panic!("there is no error"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn values_have_their_lines() {
    assert_eq!(parsed("a: 1\nb:\n  - c\n  - 'd': {e: \"f\"}\n"), "{a:1@1 b:[c@3 {d:{e:f@4}}]}");
    assert_eq!(parsed("# nothing\n"), "nothing");
    assert_eq!(parsed("---\n"), "nothing");
    assert_eq!(parsed("---\na: b\n...\n"), "{a:b@2}");
    for text in ["a: b\n---\n", "---\na: b\n---\n---\n", "---\n---\na: b\n", "a: b\n--- ~\n...\n", "a: b\n---\n# end\n"]
    {
        assert!(parsed(text).starts_with("{a:b@"), "{text}");
    }
}

#[test]
fn aliases_and_merge_keys_repeat_values() {
    assert_eq!(parsed("- &a {x: 1}\n- *a\n"), "[{x:1@1} {x:1@1}]");
    assert_eq!(parsed("- &a {x: 1, y: 2}\n- {y: 3, <<: *a}\n"), "[{x:1@1 y:2@1} {y:3@2 x:1@1}]");
    let two = "- &a {x: 1}\n- &b {x: 2, y: 2}\n- <<: [*a, *b]\n  z: 3\n";
    assert_eq!(parsed(two), "[{x:1@1} {x:2@2 y:2@2} {z:3@4 x:1@1 y:2@2}]");
    assert_eq!(parsed("'<<': 1\n"), "{<<:1@1}");
}

#[test]
fn errors_have_a_line() {
    assert_eq!(error("a: 1\nb: 2\na: 3\n"), "a.yaml:3: `a` is there already, in line 1; remove one of them");
    assert!(error("a: 1\n---\nb: 2\n").starts_with("a.yaml:2: a second document"));
    assert!(error("a:\n  - !!str 5\n").starts_with("a.yaml:2: the tag `!!str`"));
    assert!(error("a: 1\nb: !x 5\n").starts_with("a.yaml:2: the tag `!x`"));
    assert!(error("a: 1\n[b]: 2\n").starts_with("a.yaml:2: a list or a table cannot be a key"));
    assert!(error("a: 1\n<<: 2\n").starts_with("a.yaml:2: `<<` needs a table"));
    assert!(error("a: 1\nb: *c\n").starts_with("a.yaml:2: this is not YAML: "));
    assert!(error("a: &a\n  - *a\n").starts_with("a.yaml:2: this alias is inside of"));
}

#[test]
fn a_bomb_of_aliases_is_rejected() {
    let mut bomb = "- &a0 [x]\n".to_owned();
    for level in 1..60 {
        writeln!(bomb, "- &a{level} [*a{0}, *a{0}, *a{0}, *a{0}]", level - 1).unwrap();
    }
    assert!(error(&bomb).contains("repeat more than 4 MiB"), "{}", error(&bomb));

    // A long text counts by its length.
    let text = format!("- &a {}\n- [{}]\n", "x".repeat(1 << 20), "*a, ".repeat(5));
    assert!(error(&text).contains("repeat more than 4 MiB"));
}

#[test]
fn deep_nesting_is_rejected() {
    assert_eq!(parse("a.yaml", &("[".repeat(64) + &"]".repeat(64))).unwrap().unwrap().depth, 64);
    assert!(error(&"[".repeat(65)).contains("more than 64"));
    assert!(error(&"- ".repeat(10_000)).contains("more than 64"));

    // An alias in an alias is as deep as the values that it stands for.
    let mut text = "- &a0 [x]\n".to_owned();
    for level in 1..100 {
        writeln!(text, "- &a{level} [*a{}]", level - 1).unwrap();
    }
    assert!(error(&text).contains("more than 64"));
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn no_text_panics(text in r"[-:&*<>{}\[\], a-c0\n'|#!?%~]{0,60}") {
        let _ = parse("a.yaml", &text);
    }
}
