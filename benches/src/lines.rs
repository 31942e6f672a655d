//! How much code the crate has: lines below `src` that contain more than white space and comments, without tests.

use std::fs;
use std::path::{Path, PathBuf};

/// `None` if this is not started in the crate's folder.
pub fn of_code() -> Option<usize> {
    let (mut files, mut tests) = (Vec::new(), Vec::new());
    find(Path::new("src"), &mut files)?;
    let texts: Vec<_> = files.into_iter().map(|path| fs::read_to_string(&path).map(|text| (path, text))).collect();
    let mut lines = Vec::new();
    for text in texts {
        let (path, text) = text.ok()?;
        let count = count(&text, |module| {
            // `x.rs` and everything below `x/`, where modules with a `path` are.
            let folder = if path.ends_with("mod.rs") || path.ends_with("lib.rs") {
                path.parent().map(Path::to_path_buf).unwrap_or_default()
            } else {
                path.with_extension("")
            };
            tests.push(folder.join(module));
        });
        lines.push((path, count));
    }
    let is_test =
        |path: &PathBuf| tests.iter().any(|test| path.starts_with(test) || *path == test.with_extension("rs"));
    Some(lines.iter().filter(|(path, _)| !is_test(path)).map(|(_, count)| count).sum())
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> Option<()> {
    for entry in fs::read_dir(folder).ok()? {
        let path = entry.ok()?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Some(())
}

/// The lines of code in one file, without items under `#[cfg(test)]`, which end with a line as far to the left as they
/// begin. `test` gets the names of such modules in their own files.
fn count(text: &str, mut test: impl FnMut(&str)) -> usize {
    let (mut count, mut attribute, mut end) = (0, false, None);
    for line in text.lines() {
        let code = line.trim();
        if let Some(last) = &end {
            if line == last {
                end = None;
            }
        } else if ["#[cfg(test)]", "#[cfg(all(test,"].iter().any(|start| code.starts_with(start)) {
            attribute = true;
        } else if attribute && !code.starts_with("#[") && !code.starts_with("//") {
            attribute = false;
            let module = code.trim_start_matches("pub(crate) ").strip_prefix("mod ");
            if let Some(module) = module.and_then(|rest| rest.strip_suffix(';')) {
                test(module);
            } else if !(code.ends_with(';') || code.contains('{') && code.ends_with('}')) {
                end = Some(format!("{}}}", &line[..line.len() - line.trim_start().len()]));
            }
        } else if !attribute && !code.is_empty() && !code.starts_with("//") {
            count += 1;
        }
    }
    count
}
