//! `warden-config`: creates or edits the warden's configuration interactively.
//!
//! | module | contents |
//! |---|---|
//! | `session` | the questions and their order |
//! | `draft` | the file while it is edited: its content and formatting |
//! | `prompt` | asks questions: on a terminal, or as plain lines on a pipe |
//!
//! The file is written only at the end, atomically, and only if it is valid.

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

/// Runs the subcommand. Exits with 0 when the file was written or deliberately left unchanged, and with 1 when the wizard
/// was interrupted.
pub fn main(path: &Path) -> ExitCode {
    // A terminal that cannot move its cursor gets plain lines.
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
        Err(PromptError::Io(error)) => refuse(path, &format!("cannot read or write the terminal: {error}")),
        Err(PromptError::Interrupted | PromptError::Cancelled) => refuse(path, "left unchanged"),
    }
}

fn refuse(path: &Path, why: &str) -> ExitCode {
    // stderr may be closed.
    let _ = writeln!(io::stderr(), "{}: {why}", path.display());
    ExitCode::FAILURE
}

/// The commands that start the warden with this file.
fn start(path: &Path) -> String {
    let program = std::env::current_exe().ok();
    let name = program.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    let run = match name {
        Some("evenkeel") => "evenkeel --mode warden",
        _ => "evenkeel-warden",
    };
    format!(
        "Start the warden with it:\n\n  {run} --config {}\n\nor, where a package has installed it as a service:\n\n  sudo \
         systemctl enable evenkeel-warden && sudo systemctl restart evenkeel-warden",
        path.display()
    )
}
