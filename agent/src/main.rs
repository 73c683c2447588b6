//! The program `evenkeel-agent`.

fn main() -> std::process::ExitCode {
    evenkeel_agent::cli::main()
}
