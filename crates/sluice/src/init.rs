//! `sluice init`: a first configuration for a task, with comments.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::failure::Failure;

#[derive(Args, Debug)]
pub(crate) struct InitArguments {
    /// What the limits are for. Left out: print the tasks
    task: Option<Task>,
    /// Write this file, which must not exist yet, and not to standard output
    #[arg(long, value_name = "FILE", requires = "task")]
    output: Option<PathBuf>,
}

/// A task. Its comment is the heading of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Task {
    /// An API, by key and plan
    Api,
    /// A login
    Login,
    /// A public site
    Site,
    /// A language model: tokens per minute
    Llm,
    /// Uploads
    Uploads,
}

impl Task {
    /// Returns the file.
    pub(crate) const fn file(self) -> &'static str {
        match self {
            Self::Api => include_str!("init/api.toml"),
            Self::Login => include_str!("init/login.toml"),
            Self::Site => include_str!("init/site.toml"),
            Self::Llm => include_str!("init/llm.toml"),
            Self::Uploads => include_str!("init/uploads.toml"),
        }
    }

    /// Returns the file's first paragraph, which says what its limits are.
    fn heading(self) -> String {
        let lines = self.file().lines().map_while(|line| line.strip_prefix("# "));
        lines.collect::<Vec<_>>().join(" ")
    }
}

/// Returns the text for standard output.
pub(crate) fn run(arguments: &InitArguments) -> Result<String, Failure> {
    let Some(task) = arguments.task else { return Ok(tasks()) };
    let Some(path) = &arguments.output else { return Ok(task.file().to_owned()) };
    let problem = |error: &std::io::Error| {
        let cure = match error.kind() {
            ErrorKind::AlreadyExists => "; it is not overwritten: name a new file, or remove it",
            ErrorKind::NotFound => "; is the folder there?",
            _ => "",
        };
        Failure::Io(format!("{} cannot be written: {error}{cure}", path.display()))
    };
    let mut file = File::create_new(path).map_err(|error| problem(&error))?;
    file.write_all(task.file().as_bytes()).map_err(|error| problem(&error))?;
    Ok(format!("{0} is written; read its comments, and then: sluice check {0}\n", path.display()))
}

fn tasks() -> String {
    let mut text = "Write a first configuration, with comments: sluice init TASK --output FILE\n".to_owned();
    for task in Task::value_variants() {
        let name = task.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        text.push_str(&format!("\n{name}\n    {}\n", task.heading()));
    }
    text
}
