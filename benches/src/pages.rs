//! The pages in `results`, one for each processor, with a section for each run kind.

use std::fs;
use std::path::Path;

use crate::processor::Processor;

/// Puts a complete run's report into this processor's page, in place of the last report for that kind.
pub fn keep(report: &Path, results: &Path) -> Result<String, String> {
    let processor = Processor::here();
    let report = fs::read_to_string(report).map_err(|error| error.to_string())?;
    if !report.starts_with("# ") || report.contains(QUICK) {
        return Err("only reports of runs that are not quick are kept".into());
    }
    let path = results.join(processor.slug()).with_extension("md");
    let page = fs::read_to_string(&path).unwrap_or_else(|_| head(&processor));
    fs::write(&path, with_section(&page, &report)).map_err(|error| error.to_string())?;
    Ok(path.display().to_string())
}

/// Begins the notice in a quick run's report.
pub const QUICK: &str = "**A quick run:";

/// The built versions, as this `Cargo.lock` has them.
pub fn versions(lock: &str, names: &[&str]) -> String {
    let version = |name: &str| {
        let entry = format!("name = \"{name}\"\nversion = \"");
        let versions: Vec<_> = lock.split(&entry).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0)).collect();
        (!versions.is_empty()).then(|| format!("{name} {}", versions.join(" and ")))
    };
    names.iter().copied().filter_map(version).collect::<Vec<_>>().join(", ")
}

fn head(processor: &Processor) -> String {
    format!("# {processor}\n\nWhat `scripts/bench` printed on it: see [how to read it](../README.md#how-to-read-it).\n")
}

/// The page with the report, a heading level lower, in place of the section with an equal heading, or behind all.
fn with_section(page: &str, report: &str) -> String {
    let lower = |line: &str| if line.starts_with('#') { format!("#{line}\n") } else { format!("{line}\n") };
    let section: String = report.trim_end().lines().map(lower).collect();
    let heading = |section: &str| section.lines().next().unwrap_or_default().to_owned();
    let mut sections = vec![String::new()];
    for line in page.lines() {
        if line.starts_with("## ") {
            sections.push(String::new());
        }
        sections.last_mut().expect("there is the head").extend([line, "\n"]);
    }
    match sections.iter_mut().find(|it| heading(it) == heading(&section)) {
        Some(last) => *last = section,
        None => sections.push(section),
    }
    let sections: Vec<_> = sections.iter().map(|section| section.trim_end()).collect();
    sections.join("\n\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_the_last_one() {
        let page = with_section("# Processor\n\nIntroduction.\n", "# Targets\n\nold\n\n## Table\n");
        assert_eq!(page, "# Processor\n\nIntroduction.\n\n## Targets\n\nold\n\n### Table\n");
        let both = with_section(&page, "# Redis\n\nother\n");
        assert_eq!(both, "# Processor\n\nIntroduction.\n\n## Targets\n\nold\n\n### Table\n\n## Redis\n\nother\n");
        let new = with_section(&both, "# Targets\n\nnew\n");
        assert_eq!(new, "# Processor\n\nIntroduction.\n\n## Targets\n\nnew\n\n## Redis\n\nother\n");
    }
}
