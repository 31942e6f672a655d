//! A running example, and the commands that it prints.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

pub(crate) struct Program {
    process: Child,
    /// Until the caller takes it.
    output: Option<BufReader<ChildStdout>>,
    pub(crate) url: String,
}

impl Program {
    /// Starts it, and waits until it says where it listens.
    pub(crate) fn start(path: &str, arguments: &[&str]) -> Self {
        Self::start_with(path, arguments, Vec::new())
    }

    /// Starts it with these variables in its environment.
    pub(crate) fn start_with(path: &str, arguments: &[&str], environment: Vec<(String, String)>) -> Self {
        let mut process = Command::new(path).args(arguments).envs(environment).stdout(Stdio::piped()).spawn().unwrap();
        let output = process.stdout.take().map(BufReader::new);
        let mut program = Self { process, output, url: String::new() };
        let line = program.next_line();
        program.url = line.strip_prefix("listening on ").expect(&line).to_owned();
        program
    }

    pub(crate) fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.output.as_mut().expect("its output is read here").read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Lets the caller read its output from now on.
    pub(crate) fn take_output(&mut self) -> BufReader<ChildStdout> {
        self.output.take().expect("its output is read here")
    }

    /// The command in the next line that it prints.
    pub(crate) fn next_command(&mut self) -> String {
        let line = self.next_line();
        let (_, command) = line.split_once("try: ").expect(&line);
        command.to_owned()
    }

    /// Runs the next command that it prints. Returns that command's output.
    pub(crate) fn try_next(&mut self) -> String {
        shell(&self.next_command())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if it has exited already, which is fine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a command as a shell does. Returns its output.
pub(crate) fn shell(command: &str) -> String {
    run("sh", &["-c", command])
}

/// Runs a program to its end. Returns its output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?} failed: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}
