//! `sluice completions` and `sluice man`, which are derived from the definition of the arguments.

use clap::{Command, ValueEnum};
use clap_complete::generate;
use clap_complete::shells::{Bash, Fish, Zsh};
use clap_mangen::Man;

use crate::failure::Failure;

/// A shell with completions.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Returns a shell's completion script.
pub(crate) fn completions(shell: Shell, mut command: Command) -> String {
    let mut script = Vec::new();
    match shell {
        Shell::Bash => generate(Bash, &mut command, "sluice", &mut script),
        Shell::Zsh => generate(Zsh, &mut command, "sluice", &mut script),
        Shell::Fish => generate(Fish, &mut command, "sluice", &mut script),
    }
    String::from_utf8_lossy(&script).into_owned()
}

/// Returns the manual page, in roff. Each command's options are a section in it, so that one file suffices.
pub(crate) fn page(mut command: Command) -> Result<String, Failure> {
    command.build();
    let mut page = Vec::new();
    let written = Man::new(command.clone()).render(&mut page).and_then(|()| {
        let commands = command.get_subcommands().filter(|command| command.get_name() != "help");
        commands.into_iter().try_for_each(|command| write_section(command, &mut page))
    });
    written.map_err(|error| Failure::Io(format!("the manual page cannot be written: {error}")))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// Writes a command's synopsis and options under its name.
fn write_section(command: &Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_uppercase();
    page.extend_from_slice(format!(".SH \"{name}\"\n").as_bytes());
    let man = Man::new(command.clone());
    let mut sections = Vec::new();
    man.render_synopsis_section(&mut sections)?;
    man.render_description_section(&mut sections)?;
    man.render_options_section(&mut sections)?;
    // The command's sections are subsections here.
    page.extend_from_slice(String::from_utf8_lossy(&sections).replace(".SH ", ".SS ").as_bytes());
    Ok(())
}
