//! Checks that the tests which `docs/threats.md` and `docs/requirements.md` name exist, and the functions in
//! DESIGN.md's tables.

use crate::files::read;

/// A heading, paragraph or list item, as one line.
#[derive(Debug)]
struct Block {
    /// 0 for an item at the margin.
    indent: usize,
    text: String,
}

impl Block {
    fn is_item(&self) -> bool {
        self.text.starts_with("- ")
    }

    /// Whether this is an item such as "- `path/of/file.rs`: `test`, `test`".
    fn names_tests(&self) -> bool {
        self.text.starts_with("- `") && self.text.contains(".rs`: `")
    }

    fn assert_tests_exist(&self) {
        let (file, names) = self.text[2..].split_once(": ").unwrap();
        let file = file.trim_matches('`');
        let source = read(file);
        for name in names.split(", ").map(|name| name.trim_matches('`')) {
            assert!(source.contains(&format!("fn {name}(")), "{file} has no `{name}`");
        }
    }
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for line in page.lines() {
        let text = line.trim();
        if is_open && !text.is_empty() && !text.starts_with("- ") {
            let last = &mut blocks.last_mut().unwrap().text;
            last.push(' ');
            last.push_str(text);
        } else if !text.is_empty() {
            blocks.push(Block { indent: line.len() - line.trim_start().len(), text: text.to_owned() });
        }
        is_open = !text.is_empty() && !text.starts_with('#');
    }
    blocks
}

#[test]
fn each_threat_names_tests_that_exist() {
    let blocks = blocks(&read("docs/threats.md"));
    let mut numbers = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let Some(heading) = block.text.strip_prefix("## A") else { continue };
        numbers.push(heading.split(' ').next().unwrap().parse::<u64>().unwrap());
        let section = || blocks[index + 1..].iter().take_while(|block| !block.text.starts_with('#'));
        assert!(section().any(Block::names_tests), "no test: {heading}");
        section().filter(|block| block.is_item()).for_each(Block::assert_tests_exist);
    }
    assert_eq!(numbers, (1..=65).collect::<Vec<_>>());
}

#[test]
fn each_property_names_tests_that_exist() {
    let blocks = blocks(&read("docs/requirements.md"));
    let mut properties = 0;
    for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.is_item()) {
        if block.names_tests() {
            block.assert_tests_exist();
        } else {
            properties += 1;
            assert!(
                blocks.get(index + 1).is_some_and(|next| next.indent > 0 && next.names_tests()),
                "no test: {block:?}"
            );
        }
    }
    assert!(properties > 40, "only {properties} properties were found");
}

/// A row is "| number | `Type::function` | `file` in `src`, or below `crates` | …".
#[test]
fn each_hop_is_in_its_file() {
    let mut hops = 0;
    for row in read("docs/design/hops.md").lines() {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let ["", number, function, file, ..] = cells[..] else { continue };
        if number.parse::<u32>().is_err() {
            continue;
        }
        hops += 1;
        let name = function.trim_matches('`').rsplit("::").next().unwrap();
        let file = file.trim_matches('`');
        let source = read(if file.starts_with("crates/") { file.to_owned() } else { format!("src/{file}") });
        let is_there = ["(", "<"].iter().any(|next| source.contains(&format!("fn {name}{next}")));
        assert!(is_there, "{file} has no {function}");
    }
    // A rejection shares nine hops with an admitted request.
    assert_eq!(hops, 15 + (22 - 9) + 31 + 26 + 18);
}
