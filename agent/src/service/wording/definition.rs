//! What people read about a definition that differs from what runs (DECISIONS 4a).

use std::collections::BTreeSet;

use crate::model::Project;
use crate::service::gates::candidate::DefinitionHold;

/// Why an update waits: something other than the image would change with it.
pub(in crate::service) fn definition_differs(hold: &DefinitionHold, service: &str) -> String {
    let texts: Vec<String> = hold.differences.iter().map(ToString::to_string).collect();
    let mut services: Vec<&str> = hold.differences.iter().map(|one| one.service.as_str()).collect();
    services.dedup();
    let command = up_command(&hold.project, &services);
    let what = format!("the compose files no longer define what runs: {}", texts.join("; "));
    let unset = unset(hold);
    if unset.is_empty() {
        return format!(
            "{what}. Apply them with `{command}` or POST /redeploy/{service}, undo the edit, or set compose_watch"
        );
    }
    let names = unset.into_iter().collect::<Vec<_>>().join(", ");
    format!(
        "{what}. If {names} had a value when the project was started, write it into the service's env_file, or into the \
         project's .env: a redeploy by the agent would do without it. If the files were edited, apply them with `{command}`, or \
         undo the edit"
    )
}

/// What ends the wait for a definition that differs from what runs. Where variables are not set here, a redeployment might
/// bring the services up without them.
pub(in crate::service) fn definition_cleared_by(hold: &DefinitionHold, service: &str) -> String {
    let unset = unset(hold);
    if unset.is_empty() {
        return format!("POST /redeploy/{service}");
    }
    format!("set {} in env_file", unset.into_iter().collect::<Vec<_>>().join(", "))
}

/// Variables of the differing services' files that have no value here.
fn unset(hold: &DefinitionHold) -> BTreeSet<&str> {
    hold.differences.iter().flat_map(|one| &one.unset).map(String::as_str).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Difference;

    #[test]
    fn a_variable_that_is_not_set_here_is_no_reason_to_redeploy_without_it() {
        let hold = |unset: &[&str]| DefinitionHold {
            project: Project { name: "shop".into(), ..Project::default() },
            differences: vec![Difference {
                service: "web".into(),
                what: vec!["environment SECRET".into()],
                unset: unset.iter().map(|name| (*name).to_owned()).collect(),
            }],
        };
        let edited = definition_differs(&hold(&[]), "shop");
        assert!(edited.contains("POST /redeploy/shop"), "{edited}");
        assert_eq!(definition_cleared_by(&hold(&[]), "shop"), "POST /redeploy/shop");
        let unset = definition_differs(&hold(&["SECRET"]), "shop");
        assert!(unset.contains("If SECRET had a value") && unset.contains("env_file"), "{unset}");
        assert!(!unset.contains("POST /redeploy") && !unset.contains("compose_watch"), "{unset}");
        assert_eq!(definition_cleared_by(&hold(&["SECRET"]), "shop"), "set SECRET in env_file");
    }
}
