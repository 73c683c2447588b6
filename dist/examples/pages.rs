//! Writes the manual pages and shell completions of all three programs for the packages.
//!
//! `cargo run -p evenkeel --example pages -- FOLDER` writes `FOLDER/man/*.1` and `FOLDER/completions/*`. The programs can print
//! the same (`completions`, `man`), but packages for another architecture are built without running them.

#[path = "../src/command.rs"]
#[allow(dead_code, reason = "only the definition of the command line is needed here")]
mod command;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use evenkeel_common::cli::pages::{self, About};

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| OsString::from("."));
    let folder = Path::new(&folder);
    write(folder, &evenkeel_agent::cli::command(), &evenkeel_agent::cli::about())?;
    write(folder, &evenkeel_warden::cli::command(), &evenkeel_warden::cli::about())?;
    write(folder, &command::whole(), &command::about())
}

fn write(folder: &Path, command: &Command, about: &About) -> io::Result<()> {
    pages::write_manual(&folder.join("man"), command.clone(), about)?;
    let name = command.get_name();
    for (shell, file) in [
        (Shell::Bash, name.to_owned()),
        (Shell::Zsh, format!("_{name}")),
        (Shell::Fish, format!("{name}.fish")),
    ] {
        let target = folder.join("completions").join(shell.to_string());
        fs::create_dir_all(&target)?;
        fs::write(target.join(file), pages::completions(shell, command.clone()))?;
    }
    Ok(())
}
