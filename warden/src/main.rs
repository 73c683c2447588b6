//! The program `evenkeel-warden`.

fn main() -> std::process::ExitCode {
    evenkeel_warden::cli::main()
}
