//! Folders of files.

use std::path::{Path, PathBuf};

use super::kind::is_yaml;

/// Returns the file itself, or the files of a folder that end in `.yaml` or `.yml`, in the order of their names. An
/// error is the message to print.
pub(crate) fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let problem = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(problem)? {
        let file = entry.map_err(problem)?.path();
        if is_yaml(&file.to_string_lossy()) {
            files.push(file);
        }
    }
    files.sort();
    match files.is_empty() {
        true => Err(format!("{} has no file that ends in .yaml or .yml", path.display())),
        false => Ok(files),
    }
}
