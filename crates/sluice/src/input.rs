//! Reads the files that a user names.

use std::io;
use std::path::Path;

use crate::failure::Failure;

/// Reads a configuration. Returns its name for messages, too.
pub(crate) fn read_config(file: &Path) -> Result<(String, String), Failure> {
    let name = file.display().to_string();
    match std::fs::read_to_string(file) {
        Ok(text) => Ok((name, text)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Failure::Io(format!("{name} is not text in UTF-8; name a configuration")))
        }
        Err(error) => {
            let cure = match error.kind() {
                io::ErrorKind::NotFound => "; is the path right?",
                io::ErrorKind::IsADirectory => "; name a file in it",
                _ => "",
            };
            Err(Failure::Io(format!("{name} cannot be read: {error}{cure}")))
        }
    }
}
