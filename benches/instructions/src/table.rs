//! The committed table: for each row its count, since when, and why it takes more or less than before.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::compare::differs;

#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The lines before the table, with the line that names the toolchain.
    head: Vec<String>,
    /// The compiler, the processor's architecture and the C library with which the rows were counted.
    pub toolchain: String,
    pub rows: Vec<Counted>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    pub name: String,
    pub instructions: f64,
    since: String,
    why: String,
}

/// Begins the line that names the toolchain.
const TOOLCHAIN: &str = "Counted with: ";
const HEADER: [&str; 2] = ["| row | instructions | since | why |", "|---|--:|---|---|"];

impl Table {
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (head, rows): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| !line.starts_with('|'));
        let toolchain =
            head.iter().find_map(|line| line.strip_prefix(TOOLCHAIN)).ok_or("no line names the toolchain")?;
        if rows.get(..2) != Some(&HEADER[..]) {
            return Err(format!("the table does not begin with {}", HEADER[0]));
        }
        let row = |line: &&str| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [name, instructions, since, why] = cells[..] else { return Err(format!("not four cells: {line}")) };
            let instructions = instructions.parse().map_err(|_| format!("not a number of instructions: {line}"))?;
            Ok(Counted { name: name.to_owned(), instructions, since: since.to_owned(), why: why.to_owned() })
        };
        Ok(Self {
            head: head.iter().map(|line| (*line).to_owned()).collect(),
            toolchain: toolchain.to_owned(),
            rows: rows[2..].iter().map(row).collect::<Result<_, _>>()?,
        })
    }

    pub fn write(&self, path: &Path) -> Result<(), String> {
        fs::write(path, self.to_text()).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for line in &self.head {
            match line.strip_prefix(TOOLCHAIN) {
                Some(_) => writeln!(text, "{TOOLCHAIN}{}", self.toolchain),
                None => writeln!(text, "{line}"),
            }
            .expect("a string grows");
        }
        for line in HEADER {
            writeln!(text, "{line}").expect("a string grows");
        }
        for Counted { name, instructions, since, why } in &self.rows {
            writeln!(text, "| {name} | {instructions:.1} | {since} | {why} |").expect("a string grows");
        }
        text
    }

    /// Takes over the counts for changed and new rows, and with another toolchain for all rows. The others keep theirs,
    /// because if each update moved them by the tolerated part, no change would ever be too much.
    pub fn update(&mut self, counts: &[(String, f64)], toolchain: &str, date: &str, reason: &str) {
        let is_other = self.toolchain != toolchain;
        let row = |(name, instructions): &(String, f64)| match self.rows.iter().find(|row| row.name == *name) {
            Some(row) if !is_other && !differs(row.instructions, *instructions) => row.clone(),
            _ => Counted {
                name: name.clone(),
                instructions: *instructions,
                since: date.to_owned(),
                why: reason.replace('|', "/"),
            },
        };
        self.rows = counts.iter().map(row).collect();
        toolchain.clone_into(&mut self.toolchain);
    }
}

/// This machine's compiler, architecture and C library, on which counts depend. The compiler found here has built this
/// program, because the script has just called it.
pub fn toolchain() -> Result<String, String> {
    let rustc = output_of("rustc", &["--version"])?;
    let c_library = output_of("getconf", &["GNU_LIBC_VERSION"])?;
    Ok(format!("{rustc}, {}, {c_library}", std::env::consts::ARCH))
}

pub fn today() -> Result<String, String> {
    output_of("date", &["--utc", "+%Y-%m-%d"])
}

fn output_of(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# Title

Counted with: rustc 1, x86_64, glibc 2

| row | instructions | since | why |
|---|--:|---|---|
| one | 100.0 | 2026-01-01 | first |
| two | 250.5 | 2026-01-02 | first |
";

    fn updated(counts: &[(&str, f64)], toolchain: &str) -> String {
        let mut table = Table::parse(TEXT).unwrap();
        let counts: Vec<_> = counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        table.update(&counts, toolchain, "2026-02-01", "a|reason");
        table.to_text()
    }

    const SAME: &str = "rustc 1, x86_64, glibc 2";

    #[test]
    fn a_table_survives_reading_and_writing() {
        assert_eq!(Table::parse(TEXT).unwrap().to_text(), TEXT);
    }

    #[test]
    fn an_update_writes_only_changed_rows() {
        let text = updated(&[("one", 102.9), ("two", 300.0)], SAME);
        assert_eq!(text, TEXT.replace("250.5 | 2026-01-02 | first", "300.0 | 2026-02-01 | a/reason"));
    }

    #[test]
    fn an_update_adds_and_removes_rows() {
        let text = updated(&[("one", 100.0), ("three", 7.0)], SAME);
        assert_eq!(text, TEXT.replace("two | 250.5 | 2026-01-02 | first", "three | 7.0 | 2026-02-01 | a/reason"));
    }

    #[test]
    fn another_toolchain_updates_all_rows() {
        let text = updated(&[("one", 100.1), ("two", 250.5)], "rustc 2, x86_64, glibc 2");
        assert_eq!(text.matches("2026-02-01").count(), 2);
        assert!(text.contains("| one | 100.1 |") && text.contains("Counted with: rustc 2, x86_64"));
    }

    #[test]
    fn an_unreadable_table_is_reported() {
        for (text, problem) in [
            ("# Title\n", "no line names the toolchain"),
            ("Counted with: x\n", "the table does not begin with | row | instructions | since | why |"),
            (&TEXT.replace("100.0", "many"), "not a number of instructions: | one | many | 2026-01-01 | first |"),
            (&TEXT.replace(" first |\n| two", "\n| two"), "not four cells: | one | 100.0 | 2026-01-01 |"),
        ] {
            assert_eq!(Table::parse(text).unwrap_err(), problem);
        }
    }
}
