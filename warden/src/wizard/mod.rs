//! `warden-config`: creates or edits the warden's configuration in a conversation.
//!
//! | module | what it holds |
//! |---|---|
//! | `session` | what is asked, and in which order |
//! | `draft` | the file while it is edited: what it holds, how it is written |
//! | `prompt` | how a question is put: on a terminal, or as plain lines on a pipe |
//!
//! The file is only touched at the end, whole or not at all, and only when it is valid.

mod draft;
mod prompt;
mod session;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use evenkeel_common::config::source::{self, ReadError};

use draft::Draft;
use prompt::{Plain, Prompt, PromptError, Terminal};
use session::{Outcome, Session};

/// The subcommand: 0 when the file was written or left as it was by choice, 1 when the conversation broke off.
pub fn main(path: &Path) -> ExitCode {
    // On a terminal that cannot move its cursor, lines are all there is.
    let is_terminal = io::stdin().is_terminal()
        && io::stderr().is_terminal()
        && std::env::var_os("TERM").is_some_and(|term| term != "dumb" && !term.is_empty());
    if is_terminal {
        converse(path, &mut Terminal)
    } else {
        converse(path, &mut Plain::new(io::stdin().lock(), io::stdout().lock()))
    }
}

fn converse(path: &Path, prompt: &mut dyn Prompt) -> ExitCode {
    let text = match source::read(path) {
        Ok(text) => Some(text),
        Err(ReadError::Missing) => None,
        Err(error) => return refuse(path, &error.to_string()),
    };
    let draft = match text.as_deref().map_or_else(|| Ok(Draft::default()), Draft::parse) {
        Ok(draft) => draft,
        Err(error) => return refuse(path, &error),
    };
    let mut session = Session::new(path, text, draft, &|name| std::env::var(name).ok());
    match session.run(prompt) {
        Ok(Outcome::Written | Outcome::Unchanged) => ExitCode::SUCCESS,
        Err(PromptError::Io(error)) => refuse(path, &format!("the conversation broke off: {error}")),
        Err(PromptError::Interrupted | PromptError::Cancelled) => refuse(path, "left as it was"),
    }
}

fn refuse(path: &Path, why: &str) -> ExitCode {
    // Nobody may be reading any more.
    let _ = writeln!(io::stderr(), "{}: {why}", path.display());
    ExitCode::FAILURE
}
