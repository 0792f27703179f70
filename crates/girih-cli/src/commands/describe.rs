//! `girih completions` and `girih man`: what shells and readers know of the command.

use std::io::Write;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::Answer;

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Writes what a shell completes words with, for `source <(girih completions bash)` and the like.
pub(crate) fn completions(
    args: &CompletionsArgs,
    mut command: Command,
    out: &mut dyn Write,
) -> anyhow::Result<Answer> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "girih", &mut text);
    out.write_all(&text)?;
    Ok(Answer::Yes)
}

/// Writes the man page: the command, and each of its commands as a chapter.
pub(crate) fn man(mut command: Command, out: &mut dyn Write) -> anyhow::Result<Answer> {
    command.build();
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(command.clone());
    page.render(&mut text)?;
    for part in command.get_subcommands().filter(|part| part.get_name() != "help") {
        let chapter = clap_mangen::Man::new(part.clone());
        writeln!(text, ".SH \"GIRIH {}\"", part.get_name().to_uppercase())?;
        chapter.render_description_section(&mut text)?;
        chapter.render_options_section(&mut text)?;
    }
    out.write_all(&text)?;
    Ok(Answer::Yes)
}
