//! Folders with files.

use std::path::{Path, PathBuf};

use super::kind::is_yaml;

/// Returns the file itself, or a folder's files that end in `.yaml` or `.yml`, sorted by name. Hidden files are left
/// out, because editors create them, such as Emacs's lock `.#limits.yaml`, a link to nothing. An error is the message
/// to print.
pub(crate) fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let problem = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(problem)? {
        let file = entry.map_err(problem)?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if is_yaml(&name) && !name.starts_with('.') {
            files.push(file);
        }
    }
    files.sort();
    match files.is_empty() {
        true => Err(format!("{} has no file that ends in .yaml or .yml", path.display())),
        false => Ok(files),
    }
}
