//! How a question is put: with a well-kept prompt library on a terminal, as plain lines on a pipe.

use std::io::{self, BufRead, IsTerminal, Write};

use inquire::error::InquireError;
use inquire::{Confirm, Password, PasswordDisplayMode, Select, Text};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Stop {
    /// The person wants to go back a step.
    Back,
    /// The person wants to end it (Ctrl-C), or there is no more input.
    Ended,
    /// The terminal or the pipe failed.
    Broken(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<InquireError> for Stop {
    fn from(error: InquireError) -> Self {
        match error {
            InquireError::OperationCanceled => Self::Back,
            InquireError::OperationInterrupted => Self::Ended,
            InquireError::IO(error) => Self::Broken(error),
            other => Self::Broken(io::Error::other(other.to_string())),
        }
    }
}

/// Who asks the person.
pub(super) trait Prompt {
    /// Says something.
    fn say(&mut self, text: &str) -> Result<(), Stop>;
    /// Which of these? Gives its place.
    fn choose(&mut self, question: &str, choices: &[String]) -> Result<usize, Stop>;
    /// A text; `default` when nothing is typed.
    fn text(&mut self, question: &str, default: &str) -> Result<String, Stop>;
    /// A text that is not shown while it is typed.
    fn secret(&mut self, question: &str) -> Result<String, Stop>;
    /// Yes or no?
    fn confirm(&mut self, question: &str, default: bool) -> Result<bool, Stop>;
}

/// A terminal.
pub(super) struct Terminal;

impl Prompt for Terminal {
    fn say(&mut self, text: &str) -> Result<(), Stop> {
        Ok(writeln!(io::stderr(), "{text}")?)
    }

    fn choose(&mut self, question: &str, choices: &[String]) -> Result<usize, Stop> {
        let select = Select::new(question, choices.to_vec()).with_page_size(12);
        Ok(select.raw_prompt()?.index)
    }

    fn text(&mut self, question: &str, default: &str) -> Result<String, Stop> {
        let text = Text::new(question);
        let text = if default.is_empty() { text } else { text.with_default(default) };
        Ok(text.prompt()?.trim().to_owned())
    }

    fn secret(&mut self, question: &str) -> Result<String, Stop> {
        let password = Password::new(question).with_display_mode(PasswordDisplayMode::Hidden);
        Ok(password.without_confirmation().prompt()?.trim().to_owned())
    }

    fn confirm(&mut self, question: &str, default: bool) -> Result<bool, Stop> {
        Ok(Confirm::new(question).with_default(default).prompt()?)
    }
}

/// Lines: a question ends with a colon, an answer is a line. Scripts can use it, and screen readers.
pub(super) struct Plain<I, O> {
    input: I,
    output: O,
}

impl<I: BufRead, O: Write> Plain<I, O> {
    pub(super) fn new(input: I, output: O) -> Self {
        Self { input, output }
    }

    fn ask(&mut self, question: &str) -> Result<String, Stop> {
        write!(self.output, "{question}: ")?;
        self.output.flush()?;
        let mut line = String::new();
        // A line that the end of the input cut off is no answer.
        if self.input.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            writeln!(self.output)?;
            return Err(Stop::Ended);
        }
        Ok(line.trim().to_owned())
    }
}

impl<I: BufRead, O: Write> Prompt for Plain<I, O> {
    fn say(&mut self, text: &str) -> Result<(), Stop> {
        Ok(writeln!(self.output, "{text}")?)
    }

    fn choose(&mut self, question: &str, choices: &[String]) -> Result<usize, Stop> {
        writeln!(self.output, "{question}")?;
        for (n, choice) in choices.iter().enumerate() {
            writeln!(self.output, "  {}) {choice}", n + 1)?;
        }
        loop {
            let answer = self.ask(&format!("1-{}", choices.len()))?;
            let place = answer.parse().ok().and_then(|n: usize| n.checked_sub(1));
            if let Some(place) = place.filter(|place| *place < choices.len()) {
                return Ok(place);
            }
            writeln!(self.output, "Please answer with a number from 1 to {}.", choices.len())?;
        }
    }

    fn text(&mut self, question: &str, default: &str) -> Result<String, Stop> {
        let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
        let answer = self.ask(&format!("{question}{shown}"))?;
        Ok(if answer.is_empty() { default.to_owned() } else { answer })
    }

    fn secret(&mut self, question: &str) -> Result<String, Stop> {
        let silence = Silence::new();
        let answer = self.ask(question);
        if silence.is_some() {
            // The line break was not shown either.
            writeln!(self.output)?;
        }
        answer
    }

    fn confirm(&mut self, question: &str, default: bool) -> Result<bool, Stop> {
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

/// While it lives, a terminal does not show what is typed.
struct Silence(Termios);

impl Silence {
    /// `None` where there is no terminal.
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

impl Drop for Silence {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
