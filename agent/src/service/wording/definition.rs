//! What people read about a definition that differs from what runs (DECISIONS 4a).

use crate::model::Project;
use crate::service::gates::candidate::DefinitionHold;

/// Why an update waits: something other than the image would change with it.
pub(in crate::service) fn definition_differs(hold: &DefinitionHold, service: &str) -> String {
    let texts: Vec<String> = hold.differences.iter().map(ToString::to_string).collect();
    let mut services: Vec<&str> = hold.differences.iter().map(|one| one.service.as_str()).collect();
    services.dedup();
    let command = up_command(&hold.project, &services);
    format!(
        "the compose files no longer define what runs: {}. Apply them with `{command}` or POST /redeploy/{service}, undo the \
         edit, or set compose_watch",
        texts.join("; ")
    )
}

/// Why an update can't be compared with what runs.
pub(in crate::service) fn unreadable_definition(why: &str) -> String {
    format!("the compose files can't be compared with what runs, so nothing is deployed: {why}")
}

/// The command with which a person brings up these compose services.
fn up_command(project: &Project, services: &[&str]) -> String {
    let mut words = vec!["docker compose -p".to_owned(), project.name.clone()];
    words.extend(project.files.iter().map(|file| format!("-f {}", file.display())));
    let is_default = |folder: &std::path::PathBuf| {
        project.files.first().and_then(|file| file.parent()) == Some(folder.as_path())
    };
    if let Some(folder) = project.folder.as_ref().filter(|folder| !is_default(folder)) {
        words.push(format!("--project-directory {}", folder.display()));
    }
    for file in project.env_files.iter().chain(&project.env_file) {
        if project.folder.as_ref().map(|folder| folder.join(".env")).as_ref() != Some(file) {
            words.push(format!("--env-file {}", file.display()));
        }
    }
    words.push("up -d".to_owned());
    words.extend(services.iter().map(|service| (*service).to_owned()));
    words.join(" ")
}
