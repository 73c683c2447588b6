//! Shell completions and manual pages, made from a program's own command line (DECISIONS 11).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::say;

/// Status, meaning: the same for all programs (DECISIONS 2, 11).
const EXIT_STATUS: [(&str, &str); 5] = [
    ("0", "It was told to stop, or what was asked is fine."),
    ("1", "The answer is bad news, or it failed."),
    ("2", "The command line is wrong."),
    ("69", "What was asked could not be reached."),
    ("78", "The configuration has faults; all of them are on standard error."),
];

/// A path that a program uses, and what is there.
pub type Place = (&'static str, &'static str);

/// What every program prints about itself.
#[derive(Debug, Clone, Subcommand)]
pub enum Pages {
    /// Print the completions for a shell
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Print a manual page, as roff; `evenkeel man | man -l -` shows it
    Man {
        /// The page of this subcommand
        #[arg(value_name = "SUBCOMMAND")]
        of: Option<String>,
        /// Write all pages to this folder instead
        #[arg(long, value_name = "FOLDER", conflicts_with = "of")]
        all: Option<PathBuf>,
    },
}

/// Prints what was asked for: 0, 1 where it can't be written, 2 where there is no such subcommand.
pub fn perform(pages: &Pages, command: Command, places: &[Place]) -> ExitCode {
    let name = command.get_name().to_owned();
    let printed = match pages {
        Pages::Completions { shell } => io::stdout().write_all(&completions(*shell, command)),
        Pages::Man { all: Some(folder), .. } => write_manual(folder, command, places),
        Pages::Man { of, .. } => {
            let manual = manual(command, places);
            let title = of.as_ref().map_or_else(|| name.clone(), |of| format!("{name}-{of}"));
            let Some((_, page)) = manual.iter().find(|(page, _)| *page == title) else {
                let prefix = format!("{name}-");
                let known: Vec<_> =
                    manual.iter().filter_map(|(page, _)| page.strip_prefix(&prefix)).collect();
                say(format_args!(
                    "{name}: no subcommand {:?}; there are {}",
                    of.as_deref().unwrap_or_default(),
                    known.join(", ")
                ));
                return ExitCode::from(2);
            };
            io::stdout().write_all(page)
        }
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough, as in `man | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{name}: cannot write: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The script that a shell reads.
pub fn completions(shell: Shell, mut command: Command) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// Writes all manual pages of a program to `FOLDER/NAME.1`. The folder is made.
///
/// # Errors
///
/// Where the folder or a page can't be written.
pub fn write_manual(folder: &Path, command: Command, places: &[Place]) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(named)?;
    for (title, page) in manual(command, places) {
        File::create(folder.join(format!("{title}.1")))
            .and_then(|mut file| file.write_all(&page))
            .map_err(named)?;
    }
    Ok(())
}

/// Titles and manual pages of a program and of its subcommands.
fn manual(command: Command, places: &[Place]) -> Vec<(String, Vec<u8>)> {
    let name = command.get_name().to_owned();
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut manual = vec![(name.clone(), page(&command, &name, places))];
    for subcommand in command.get_subcommands() {
        let title = format!("{name}-{}", subcommand.get_name());
        let page = page(subcommand, &title, &[]);
        manual.push((title, page));
    }
    manual
}

fn page(command: &Command, title: &str, places: &[Place]) -> Vec<u8> {
    let mut page = Vec::new();
    // A vector takes all that is written to it.
    let _infallible = render(command, title, places, &mut page);
    page
}

/// One manual page: what clap knows, then the sections that it does not.
fn render(command: &Command, title: &str, places: &[Place], page: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone()).title(title.to_uppercase()).manual("Evenkeel");
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(page)?;
    }
    let mut more = Roff::new();
    list(&mut more, "EXIT STATUS", &EXIT_STATUS);
    if !places.is_empty() {
        list(&mut more, "FILES", places);
        list(
            &mut more,
            "SIGNALS",
            &[("SIGHUP", "Read the configuration again."), ("SIGTERM, SIGINT", "End in order.")],
        );
    }
    page.write_all(more.to_roff().as_bytes())?;
    if command.get_version().is_some() {
        man.render_version_section(page)?;
    }
    Ok(())
}

fn list(page: &mut Roff, heading: &str, entries: &[(&str, &str)]) {
    page.control("SH", [heading]);
    for (term, meaning) in entries {
        page.control("TP", []);
        page.text([bold(*term)]);
        page.text([roman(*meaning)]);
    }
}
