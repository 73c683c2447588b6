//! Writes what packages carry beside the programs: manual pages and shell completions, from the command lines themselves.
//!
//! `cargo run -p evenkeel --example pages -- FOLDER` makes `FOLDER/man/*.1` and `FOLDER/completions/*`. An example and no
//! subcommand, so that the programs do not grow by it.

#[path = "../src/command.rs"]
#[allow(dead_code, reason = "only the command line of the program is needed here, not what runs it")]
mod command;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use clap::{Args as _, Command, CommandFactory as _, Subcommand as _};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Status, meaning: the same for all programs (DECISIONS 2, 11).
const EXIT_STATUS: [(&str, &str); 5] = [
    ("0", "It was told to stop, or what was asked is fine."),
    ("1", "The answer is bad news, or it failed."),
    ("2", "The command line is wrong."),
    ("69", "What was asked could not be reached."),
    ("78", "The configuration has faults; all of them are on standard error."),
];

const AGENT_FILES: [(&str, &str); 4] = [
    ("/etc/evenkeel/config.json", "Configuration of the agent."),
    ("/etc/evenkeel/agent.env", "Variables that the configuration names, read by the systemd unit."),
    ("/var/lib/evenkeel", "What it must not forget: blocked digests, the journal of a deployment."),
    ("/var/log/evenkeel", "Where the audit file belongs."),
];

const WARDEN_FILES: [(&str, &str); 3] = [
    ("/etc/evenkeel/warden.json", "Configuration of the warden."),
    ("/etc/evenkeel/warden.env", "Variables that the configuration names, read by the systemd unit."),
    ("/var/lib/evenkeel-warden", "The last entries and what is known of each machine."),
];

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| OsString::from("."));
    let folder = Path::new(&folder);
    let both: Vec<_> = AGENT_FILES.into_iter().chain(WARDEN_FILES).collect();
    write(folder, &evenkeel_agent_command(), &AGENT_FILES)?;
    write(folder, &evenkeel_warden_command(), &WARDEN_FILES)?;
    write(folder, &command::Command::command(), &both)
}

/// The separate program of the agent, put together from the parts that are public.
fn evenkeel_agent_command() -> Command {
    let command = evenkeel_agent::cli::Args::augment_args(Command::new("evenkeel-agent"));
    // What the parts say of themselves is not what the program is.
    evenkeel_agent::cli::Task::augment_subcommands(command)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Keeps container services up to date, proves every new image, goes back when it is bad")
}

/// The separate program of the warden.
fn evenkeel_warden_command() -> Command {
    let command = evenkeel_warden::cli::Args::augment_args(Command::new("evenkeel-warden"));
    evenkeel_warden::cli::Task::augment_subcommands(command)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Collects the audit entries of many agents and shows a whole fleet")
}

/// Manual pages of a program and of its subcommands, and its completions.
fn write(folder: &Path, command: &Command, files: &[(&str, &str)]) -> io::Result<()> {
    let name = command.get_name().to_owned();
    let man = folder.join("man");
    fs::create_dir_all(&man)?;
    let mut built = command.clone().disable_help_subcommand(true);
    built.build();
    fs::write(man.join(format!("{name}.1")), page(&built, &name, files)?)?;
    for subcommand in built.get_subcommands() {
        let title = format!("{name}-{}", subcommand.get_name());
        fs::write(man.join(format!("{title}.1")), page(subcommand, &title, &[])?)?;
    }
    let completions = folder.join("completions");
    fs::create_dir_all(&completions)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let file = match shell {
            Shell::Zsh => format!("_{name}"),
            Shell::Fish => format!("{name}.fish"),
            _ => name.clone(),
        };
        let place = completions.join(shell.to_string());
        fs::create_dir_all(&place)?;
        clap_complete::generate(shell, &mut command.clone(), &name, &mut File::create(place.join(file))?);
    }
    Ok(())
}

/// One manual page: what clap knows, then the sections that it does not.
fn page(command: &Command, title: &str, files: &[(&str, &str)]) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).title(title.to_uppercase()).manual("Evenkeel");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut more = Roff::new();
    list(&mut more, "EXIT STATUS", &EXIT_STATUS);
    if !files.is_empty() {
        list(&mut more, "FILES", files);
        list(
            &mut more,
            "SIGNALS",
            &[("SIGHUP", "Read the configuration again."), ("SIGTERM, SIGINT", "End in order.")],
        );
    }
    page.write_all(more.to_roff().as_bytes())?;
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}

fn list(page: &mut Roff, heading: &str, entries: &[(&str, &str)]) {
    page.control("SH", [heading]);
    for (term, meaning) in entries {
        page.control("TP", []);
        page.text([bold(*term)]);
        page.text([roman(*meaning)]);
    }
}
