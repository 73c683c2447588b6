//! The `evenkeel-agent` binary.

fn main() -> std::process::ExitCode {
    evenkeel_agent::cli::main()
}
