//! Shell completions and manual pages, generated from a program's command-line definition (DECISIONS 11).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::eprint_line;

/// Exit status and its meaning; the same for all programs (DECISIONS 2, 11).
const EXIT_STATUS: [(&str, &str); 5] = [
    ("0", "Success, or a requested shutdown."),
    ("1", "The command failed, or it reports a problem."),
    ("2", "The command line is invalid."),
    ("69", "The agent or the warden could not be reached."),
    ("78", "The configuration is invalid; all errors are printed to standard error."),
];

/// A path that a program uses, or the arguments of an example, and a description of it.
pub type Line = (&'static str, &'static str);

/// What the page of a program contains beyond its command line.
#[derive(Debug, Clone)]
pub struct About {
    /// The paths that the program uses by default.
    pub files: Vec<Line>,
    /// Arguments of the program, and what it does with them.
    pub examples: Vec<Line>,
}

const MANUAL: &str = "The manual, which the packages install as /usr/share/doc/*/manual.";

/// Subcommands that print a program's completions and manual pages.
#[derive(Debug, Clone, Subcommand)]
pub enum Pages {
    /// Print the completion script for a shell
    Completions {
        /// Shell to generate the script for
        shell: Shell,
    },
    /// Print a manual page as roff; view it with `evenkeel man | man -l -`
    Man {
        /// Print the page of this subcommand
        #[arg(value_name = "SUBCOMMAND")]
        of: Option<String>,
        /// Write all pages to this folder instead
        #[arg(long, value_name = "FOLDER", conflicts_with = "of")]
        all: Option<PathBuf>,
    },
}

/// Prints the requested pages. Returns 0, 1 if they cannot be written, or 2 if there is no such subcommand.
pub fn perform(pages: &Pages, command: Command, about: &About) -> ExitCode {
    let name = command.get_name().to_owned();
    let printed = match pages {
        Pages::Completions { shell } => io::stdout().write_all(&completions(*shell, command)),
        Pages::Man { all: Some(folder), .. } => write_manual(folder, command, about),
        Pages::Man { of, .. } => {
            let manual = manual(command, about);
            let title = of.as_ref().map_or_else(|| name.clone(), |of| format!("{name}-{of}"));
            let Some((_, page)) = manual.iter().find(|(page, _)| *page == title) else {
                let prefix = format!("{name}-");
                let known: Vec<_> =
                    manual.iter().filter_map(|(page, _)| page.strip_prefix(&prefix)).collect();
                eprint_line(format_args!(
                    "{name}: no subcommand {:?}; available: {}",
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
        // The reader closed the pipe, as in `man | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprint_line(format_args!("{name}: cannot write: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns the completion script for a shell.
pub fn completions(shell: Shell, mut command: Command) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// Writes all manual pages of a program to `FOLDER/NAME.1`, creating the folder.
///
/// # Errors
///
/// If the folder or a page cannot be written.
pub fn write_manual(folder: &Path, command: Command, about: &About) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(named)?;
    for (title, page) in manual(command, about) {
        File::create(folder.join(format!("{title}.1")))
            .and_then(|mut file| file.write_all(&page))
            .map_err(named)?;
    }
    Ok(())
}

/// Titles and manual pages of a program and its subcommands.
fn manual(command: Command, about: &About) -> Vec<(String, Vec<u8>)> {
    let name = command.get_name().to_owned();
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut manual = vec![(name.clone(), page(&command, &name, Page::Program(about)))];
    for subcommand in command.get_subcommands() {
        let title = format!("{name}-{}", subcommand.get_name());
        let page = page(subcommand, &title, Page::Subcommand { of: &name });
        manual.push((title, page));
    }
    manual
}

#[derive(Clone, Copy)]
enum Page<'a> {
    Program(&'a About),
    Subcommand { of: &'a str },
}

fn page(command: &Command, title: &str, kind: Page) -> Vec<u8> {
    let mut page = Vec::new();
    // Writing to a vector cannot fail.
    let _infallible = render(command, title, kind, &mut page);
    page
}

/// Renders one manual page: the sections that clap generates, then those of man-pages(7) that it does not know.
fn render(command: &Command, title: &str, kind: Page, page: &mut Vec<u8>) -> io::Result<()> {
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
    list(&mut more, "EXIT STATUS", EXIT_STATUS);
    match kind {
        Page::Program(About { files, examples }) => {
            list(&mut more, "FILES", files.iter().copied());
            list(
                &mut more,
                "SIGNALS",
                [("SIGHUP", "Reload the configuration."), ("SIGTERM, SIGINT", "Shut down gracefully.")],
            );
            let examples = examples.iter().map(|(line, meaning)| (format!("{title} {line}"), *meaning));
            list(&mut more, "EXAMPLES", examples);
            see_also(&mut more, &["docker(1)", "systemctl(1)"]);
        }
        Page::Subcommand { of } => see_also(&mut more, &[&format!("{of}(1)")]),
    }
    page.write_all(more.to_roff().as_bytes())?;
    if command.get_version().is_some() {
        man.render_version_section(page)?;
    }
    Ok(())
}

fn see_also(page: &mut Roff, pages: &[&str]) {
    page.control("SH", ["SEE ALSO"]);
    page.text([bold(pages.join(", "))]);
    page.control("PP", []);
    page.text([roman(MANUAL)]);
}

fn list<'a>(page: &mut Roff, heading: &str, entries: impl IntoIterator<Item = (impl Into<String>, &'a str)>) {
    page.control("SH", [heading]);
    for (term, meaning) in entries {
        page.control("TP", []);
        page.text([bold(term)]);
        page.text([roman(meaning)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_the_sections_that_readers_expect() {
        let command = Command::new("boat").about("Sails").version("1").subcommand(Command::new("tack"));
        let about =
            About { files: vec![("/etc/boat", "Where it is.")], examples: vec![("tack --now", "Turn.")] };
        let manual = manual(command, &about);
        let page = |name: &str| {
            let (_, page) = manual.iter().find(|(title, _)| title == name).expect("a page");
            String::from_utf8(page.clone()).expect("text")
        };
        let headings = |page: &str| -> Vec<String> {
            page.lines().filter_map(|line| line.strip_prefix(".SH ")).map(str::to_owned).collect()
        };
        let program = page("boat");
        assert_eq!(
            headings(&program),
            [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "SUBCOMMANDS",
                "\"EXIT STATUS\"",
                "FILES",
                "SIGNALS",
                "EXAMPLES",
                "\"SEE ALSO\"",
                "VERSION"
            ]
        );
        assert!(program.contains("boat tack \\-\\-now"), "{program}");
        let subcommand = page("boat-tack");
        assert!(headings(&subcommand).contains(&"\"SEE ALSO\"".to_owned()), "{subcommand}");
        assert!(subcommand.contains("boat(1)"), "{subcommand}");
    }
}
