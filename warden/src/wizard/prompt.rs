//! Asks questions: with a prompt library on a terminal, as plain lines on a pipe.

use std::io::{self, BufRead, IsTerminal, Write};

use inquire::error::InquireError;
use inquire::{Confirm, Password, PasswordDisplayMode, Select, Text};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum PromptError {
    /// The user left the question (Esc).
    Cancelled,
    /// The user pressed Ctrl-C, or the input ended.
    Interrupted,
    /// The terminal or the pipe failed.
    Io(io::Error),
}

impl From<io::Error> for PromptError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<InquireError> for PromptError {
    fn from(error: InquireError) -> Self {
        match error {
            InquireError::OperationCanceled => Self::Cancelled,
            InquireError::OperationInterrupted => Self::Interrupted,
            InquireError::IO(error) => Self::Io(error),
            other => Self::Io(io::Error::other(other.to_string())),
        }
    }
}

/// A user interface for questions.
pub(super) trait Prompt {
    /// Prints a text.
    fn say(&mut self, text: &str) -> Result<(), PromptError>;
    /// Asks for one of `choices`, and returns its index.
    fn choose(&mut self, question: &str, choices: &[String]) -> Result<usize, PromptError>;
    /// Asks for a text, and returns `default` if nothing is typed.
    fn text(&mut self, question: &str, default: &str) -> Result<String, PromptError>;
    /// Asks for a text that is not echoed.
    fn secret(&mut self, question: &str) -> Result<String, PromptError>;
    /// Asks yes or no.
    fn confirm(&mut self, question: &str, default: bool) -> Result<bool, PromptError>;
}

/// A terminal.
pub(super) struct Terminal;

impl Prompt for Terminal {
    fn say(&mut self, text: &str) -> Result<(), PromptError> {
        Ok(writeln!(io::stderr(), "{text}")?)
    }

    fn choose(&mut self, question: &str, choices: &[String]) -> Result<usize, PromptError> {
        let select = Select::new(question, choices.to_vec()).with_page_size(12);
        Ok(select.raw_prompt()?.index)
    }

    fn text(&mut self, question: &str, default: &str) -> Result<String, PromptError> {
        let text = Text::new(question);
        let text = if default.is_empty() { text } else { text.with_default(default) };
        Ok(text.prompt()?.trim().to_owned())
    }

    fn secret(&mut self, question: &str) -> Result<String, PromptError> {
        let password = Password::new(question).with_display_mode(PasswordDisplayMode::Hidden);
        Ok(password.without_confirmation().prompt()?.trim().to_owned())
    }

    fn confirm(&mut self, question: &str, default: bool) -> Result<bool, PromptError> {
        Ok(Confirm::new(question).with_default(default).prompt()?)
    }
}

/// Plain lines: a question ends with a colon, an answer is a line. Suitable for scripts and screen readers.
pub(super) struct Plain<I, O> {
    input: I,
    output: O,
}

impl<I: BufRead, O: Write> Plain<I, O> {
    pub(super) fn new(input: I, output: O) -> Self {
        Self { input, output }
    }

    fn ask(&mut self, question: &str) -> Result<String, PromptError> {
        write!(self.output, "{question}: ")?;
        self.output.flush()?;
        let mut line = String::new();
        // A line without a line break is not an answer: the input was truncated.
        if self.input.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            writeln!(self.output)?;
            return Err(PromptError::Interrupted);
        }
        Ok(line.trim().to_owned())
    }
}

impl<I: BufRead, O: Write> Prompt for Plain<I, O> {
    fn say(&mut self, text: &str) -> Result<(), PromptError> {
        Ok(writeln!(self.output, "{text}")?)
    }

    fn choose(&mut self, question: &str, choices: &[String]) -> Result<usize, PromptError> {
        writeln!(self.output, "{question}")?;
        for (n, choice) in choices.iter().enumerate() {
            writeln!(self.output, "  {}) {choice}", n + 1)?;
        }
        loop {
            let answer = self.ask(&format!("1-{}", choices.len()))?;
            let index = answer.parse().ok().and_then(|n: usize| n.checked_sub(1));
            if let Some(index) = index.filter(|index| *index < choices.len()) {
                return Ok(index);
            }
            writeln!(self.output, "Please answer with a number from 1 to {}.", choices.len())?;
        }
    }

    fn text(&mut self, question: &str, default: &str) -> Result<String, PromptError> {
        let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
        let answer = self.ask(&format!("{question}{shown}"))?;
        Ok(if answer.is_empty() { default.to_owned() } else { answer })
    }

    fn secret(&mut self, question: &str) -> Result<String, PromptError> {
        let no_echo = NoEcho::new();
        let answer = self.ask(question);
        if no_echo.is_some() {
            // The line break was not echoed either.
            writeln!(self.output)?;
        }
        answer
    }

    fn confirm(&mut self, question: &str, default: bool) -> Result<bool, PromptError> {
        let choice = if default { "Y/n" } else { "y/N" };
        loop {
            match self.ask(&format!("{question} ({choice})"))?.to_ascii_lowercase().as_str() {
                "" => return Ok(default),
                "y" | "yes" => return Ok(true),
                "n" | "no" => return Ok(false),
                _ => writeln!(self.output, "Please answer with y or n.")?,
            }
        }
    }
}

/// Turns off the terminal's echo until it is dropped.
struct NoEcho(Termios);

impl NoEcho {
    /// Returns `None` if stdin is not a terminal.
    fn new() -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let before = tcgetattr(&stdin).ok()?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&stdin, OptionalActions::Flush, &silent).ok()?;
        Some(Self(before))
    }
}

impl Drop for NoEcho {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
