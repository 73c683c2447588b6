//! What people read about a definition that differs from what runs (DECISIONS 4a).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use evenkeel_common::config::expand::is_shown;

use crate::model::definition::{HOME, UNNAMED_VARIABLE};
use crate::model::text::shell_word;
use crate::model::{Difference, Project};
use crate::service::gates::candidate::DefinitionHold;

/// What brings such a folder back.
pub(crate) const MOUNT_AGAIN: &str = "mount the disk, data set or share again that it is on";

/// Why containers are not brought up: compose would make of them something else than what runs.
pub(crate) fn left_as_it_is(differences: &[Difference]) -> String {
    let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
    let texts = texts.join("; ");
    if differences.iter().any(Difference::lacks_folder) {
        return format!(
            "{texts}. The running container still has what was there, and a new one would begin without it, or not start: \
             {MOUNT_AGAIN}"
        );
    }
    format!("the compose files no longer define what runs, so it is left as it is: {texts}")
}

/// Why an update waits: something other than the image would change with it.
pub(in crate::service) fn definition_differs(hold: &DefinitionHold, service: &str) -> String {
    let texts: Vec<String> = hold.differences.iter().map(ToString::to_string).collect();
    if hold.differences.iter().any(Difference::lacks_folder) {
        return left_as_it_is(&hold.differences);
    }
    if hold.differences.iter().all(Difference::is_of_providers) {
        return format!(
            "{}. An update brings up no dependencies, and so runs no provider: {}",
            texts.join("; "),
            update_by_hand(hold)
        );
    }
    // To compose, a service whose volume or secret is in another place is unchanged.
    let command = command(hold, "up -d --force-recreate");
    let what = format!("the compose files no longer define what runs: {}", texts.join("; "));
    if hold.differences.iter().all(Difference::is_of_connections) {
        return format!(
            "{what}. A new container would not be connected: {}",
            add_networks(&hold.differences)
        );
    }
    if hold.differences.iter().all(Difference::is_of_changes_since) {
        let keep_or_drop = keep_or_drop(&command, &format!("POST /redeploy/{service}"));
        return format!("{what}. A new container would not keep that: {keep_or_drop}");
    }
    if !hold.other_files.is_empty() {
        return format!(
            "{what}. The containers were made from {}, not from compose_files ({}): correct compose_files, or, if these are what \
             is to run, apply them with `{command}`",
            paths(&hold.other_files),
            paths(&hold.project.files)
        );
    }
    match write_down(&hold.differences) {
        None => format!(
            "{what}. Apply them with `{command}` or POST /redeploy/{service}, undo the edit, or set compose_watch"
        ),
        Some(advice) => format!(
            "{what}. {advice}. If the files were edited, apply them with `{command}`, or undo the edit"
        ),
    }
}

/// What to write down for variables that may have had another value when the project was started, so that nothing is to be
/// redeployed here before that is done; `None` if there are none.
pub(crate) fn write_down(differences: &[Difference]) -> Option<String> {
    let (names, is_unnamed, is_home) = unset(differences);
    let mut all = Vec::new();
    if !names.is_empty() {
        all.push(format!(
            "If {} had a value when the project was started, write it into the service's env_file, or into the project's \
             .env: a redeploy by the agent would do without it",
            names.join(", ")
        ));
    }
    if is_unnamed {
        all.push(format!(
            "{UNNAMED_VARIABLE}. If it is a variable, write its value into the service's env_file, or into the project's .env"
        ));
    }
    if is_home {
        all.push(format!(
            "If `~` or {HOME} was another user's home directory when the project was started, write the path out in the \
             compose file: a redeploy by the agent would use its own home directory"
        ));
    }
    if differences.iter().any(Difference::has_proxies) {
        all.push(
            "Compose sets the variables of docker's proxies from `proxies` in the config.json of the user who runs it, and the \
             agent's has others: write them into `environment` of the service, or into the agent's Docker configuration. A \
             redeploy by the agent would set its own"
                .to_owned(),
        );
    }
    (!all.is_empty()).then(|| all.join(". "))
}

/// What ends the wait for a definition that differs from what runs. Where variables are not set here, or not to the same value,
/// a redeployment might bring the services up without them.
pub(in crate::service) fn definition_cleared_by(hold: &DefinitionHold, service: &str) -> String {
    if hold.differences.iter().any(Difference::lacks_folder) {
        return MOUNT_AGAIN.to_owned();
    }
    if hold.differences.iter().all(Difference::is_of_connections) {
        return add_networks(&hold.differences);
    }
    if hold.differences.iter().all(Difference::is_of_providers) {
        return update_by_hand(hold);
    }
    if hold.differences.iter().all(Difference::is_of_changes_since) {
        return format!("POST /redeploy/{service}");
    }
    if !hold.other_files.is_empty() {
        return "correct compose_files".to_owned();
    }
    let (names, is_unnamed, is_home) = unset(&hold.differences);
    let variables = (!names.is_empty()).then(|| format!("set {} in env_file", names.join(", ")));
    let dollar = is_unnamed.then(|| "write a literal $ as $$".to_owned());
    let path = is_home.then(|| "write the path out in the compose file".to_owned());
    let proxies = hold.differences.iter().any(Difference::has_proxies);
    let proxies = proxies.then(|| "write the proxies into the service's environment".to_owned());
    let all: Vec<String> = [variables, dollar, path, proxies].into_iter().flatten().collect();
    if all.is_empty() { format!("POST /redeploy/{service}") } else { all.join(" and ") }
}

/// What keeps containers connected to the networks that they were connected to since they were made.
pub(crate) fn add_networks(differences: &[Difference]) -> String {
    let of_service =
        |one: &Difference| format!("{} to the networks of {}", one.connected.join(", "), one.service);
    let all: Vec<String> = differences.iter().map(of_service).collect();
    format!("add {} in the compose file, or disconnect them", all.join(" and "))
}

/// What keeps a setting that was changed since a container was made, and what drops it.
pub(crate) fn keep_or_drop(up: &str, redeploy: &str) -> String {
    format!("write it into the compose file and run `{up}`, or drop it with {redeploy}")
}

/// Variables of the differing services' files that have no value here, without `HOME`, which no env file can set; whether there
/// are others, whose names may be the rest of a password; and whether `HOME` may be another one here.
fn unset(differences: &[Difference]) -> (Vec<&str>, bool, bool) {
    let mut names: BTreeSet<&str> =
        differences.iter().flat_map(|one| &one.unset).map(String::as_str).collect();
    let is_home = names.remove(HOME);
    let count = names.len();
    names.retain(|name| is_shown(name));
    let is_unnamed = names.len() < count;
    (names.into_iter().collect(), is_unnamed, is_home)
}

/// Lists files.
pub(crate) fn paths(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Why an update can't be compared with what runs.
pub(in crate::service) fn unreadable_definition(why: &str) -> String {
    format!("the compose files can't be compared with what runs, so nothing is deployed: {why}")
}

/// How a person updates services whose variables come from a provider.
fn update_by_hand(hold: &DefinitionHold) -> String {
    format!("update it with `{} && {}`", command(hold, "pull"), command(hold, "up -d"))
}

/// The compose command of a person for the services that differ.
fn command(hold: &DefinitionHold, task: &str) -> String {
    let mut services: Vec<&str> = hold.differences.iter().map(|one| one.service.as_str()).collect();
    services.dedup();
    compose_command(&hold.project, task, &services)
}

/// The compose command of a person for these services of a project, or for all if none is named.
pub(crate) fn compose_command(project: &Project, task: &str, services: &[&str]) -> String {
    let path = |path: &Path| shell_word(&path.display().to_string());
    let mut words = vec!["docker compose -p".to_owned(), shell_word(&project.name)];
    words.extend(project.files.iter().map(|file| format!("-f {}", path(file))));
    let is_default =
        |folder: &PathBuf| project.files.first().and_then(|file| file.parent()) == Some(folder.as_path());
    if let Some(folder) = project.folder.as_ref().filter(|folder| !is_default(folder)) {
        words.push(format!("--project-directory {}", path(folder)));
    }
    let mut env_files: Vec<_> = project.env_files.iter().collect();
    env_files.extend(project.env_file.iter().filter(|file| project.env_files.last() != Some(*file)));
    // Compose reads `.env` by itself only if no file is named.
    let default = project.default_env_file();
    if env_files.iter().any(|file| Some(*file) != default.as_ref()) {
        words.extend(env_files.into_iter().map(|file| format!("--env-file {}", path(file))));
    }
    words.push(task.to_owned());
    words.extend(services.iter().map(|service| shell_word(service)));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hold of the service `web` of the project `shop`, in which this differs, and these variables are not set.
    fn hold(what: &str, unset: &[&str]) -> DefinitionHold {
        DefinitionHold {
            project: Project { name: "shop".into(), ..Project::default() },
            differences: vec![Difference {
                service: "web".into(),
                what: vec![what.to_owned()],
                unset: unset.iter().map(|name| (*name).to_owned()).collect(),
                connected: Vec::new(),
            }],
            ..DefinitionHold::default()
        }
    }

    #[test]
    fn a_variable_that_is_not_set_here_is_no_reason_to_redeploy_without_it() {
        let hold = |unset: &[&str]| hold("environment SECRET", unset);
        let edited = definition_differs(&hold(&[]), "shop");
        assert!(edited.contains("POST /redeploy/shop"), "{edited}");
        assert_eq!(definition_cleared_by(&hold(&[]), "shop"), "POST /redeploy/shop");
        let unset = definition_differs(&hold(&["SECRET"]), "shop");
        assert!(unset.contains("If SECRET had a value") && unset.contains("env_file"), "{unset}");
        assert!(!unset.contains("POST /redeploy") && !unset.contains("compose_watch"), "{unset}");
        assert_eq!(definition_cleared_by(&hold(&["SECRET"]), "shop"), "set SECRET in env_file");
    }

    #[test]
    fn a_folder_that_is_not_there_any_more_is_mounted_again_and_nothing_is_applied() {
        let difference = Difference::of_absent("db", "/mnt/usb/db");
        let mut hold = hold("volume /data", &["SECRET"]);
        hold.differences.push(difference.clone());
        let text = definition_differs(&hold, "shop");
        assert!(text.contains("db: folder /mnt/usb/db (not there any more). The running"), "{text}");
        assert!(text.ends_with(MOUNT_AGAIN) && !text.contains("redeploy"), "{text}");
        assert_eq!(definition_cleared_by(&hold, "shop"), MOUNT_AGAIN);
        assert!(left_as_it_is(&[difference]).ends_with(MOUNT_AGAIN));
        assert!(left_as_it_is(&hold.differences[..1]).starts_with("the compose files no longer define"));
    }

    #[test]
    fn where_the_containers_come_from_other_files_compose_files_is_corrected_and_not_applied() {
        let mut hold = hold("environment DB_HOST", &["SECRET"]);
        hold.project.files = vec!["/home/me/shop/compose.yml".into()];
        hold.other_files = vec!["/opt/stacks/shop/compose.yml".into()];
        let text = definition_differs(&hold, "shop");
        let files = "made from /opt/stacks/shop/compose.yml, not from compose_files (/home/me/shop/compose.yml): correct \
                     compose_files";
        assert!(text.contains(files) && !text.contains("redeploy"), "{text}");
        assert_eq!(definition_cleared_by(&hold, "shop"), "correct compose_files");
        hold.differences[0].what = vec!["memory limit (changed since)".into()];
        assert_eq!(definition_cleared_by(&hold, "shop"), "POST /redeploy/shop", "no file is edited");
    }

    #[test]
    fn what_may_be_the_rest_of_a_password_is_not_named_as_a_variable() {
        let hold = |unset: &[&str]| hold("environment PASSWORD", unset);
        let only = definition_differs(&hold(&["hunter2"]), "shop");
        assert!(!only.contains("hunter2") && !only.contains("not set here:"), "{only}");
        assert_eq!(only.matches("a literal $ is written $$").count(), 1, "{only}");
        assert!(!only.contains("POST /redeploy"), "{only}");
        assert_eq!(definition_cleared_by(&hold(&["hunter2"]), "shop"), "write a literal $ as $$");
        let both = hold(&["SECRET", "hunter2"]);
        let text = definition_differs(&both, "shop");
        assert!(text.contains("(not set here: SECRET)") && text.contains("If SECRET had"), "{text}");
        assert!(!text.contains("hunter2") && text.contains("a literal $ is written $$"), "{text}");
        assert_eq!(
            definition_cleared_by(&both, "shop"),
            "set SECRET in env_file and write a literal $ as $$"
        );
    }

    #[test]
    fn the_command_can_be_pasted_if_a_path_has_a_space() {
        let mut hold = hold("volume /data", &[]);
        hold.project.files = vec!["/srv/my shop/compose.yml".into()];
        hold.project.folder = Some("/srv/it's".into());
        hold.project.env_files = vec!["/srv/prod.env".into()];
        let text = definition_differs(&hold, "shop");
        let command = r"`docker compose -p shop -f '/srv/my shop/compose.yml' --project-directory '/srv/it'\''s' --env-file /srv/prod.env up -d --force-recreate web`";
        assert!(text.contains(command), "{text}");
    }

    #[test]
    fn another_home_directory_is_no_reason_to_redeploy_with_empty_data() {
        let hold = |unset: &[&str]| hold("volume /data", unset);
        let text = definition_differs(&hold(&["HOME"]), "shop");
        assert!(text.contains("web: volume /data (HOME may be another one here)"), "{text}");
        assert!(text.contains("write the path out in the compose file"), "{text}");
        assert!(!text.contains("POST /redeploy") && !text.contains("env_file"), "{text}");
        assert_eq!(definition_cleared_by(&hold(&["HOME"]), "shop"), "write the path out in the compose file");
        let both = hold(&["HOME", "SECRET"]);
        let text = definition_differs(&both, "shop");
        assert!(
            text.contains("(not set here: SECRET) (HOME may") && text.contains("If SECRET had"),
            "{text}"
        );
        assert_eq!(
            definition_cleared_by(&both, "shop"),
            "set SECRET in env_file and write the path out in the compose file"
        );
    }

    #[test]
    fn the_command_names_the_projects_env_file_beside_others() {
        let printed = |env_files: &[&str], env_file: Option<&str>| {
            let project = Project {
                name: "shop".into(),
                files: vec!["/srv/compose.yml".into()],
                folder: Some("/srv".into()),
                env_files: env_files.iter().map(Into::into).collect(),
                env_file: env_file.map(Into::into),
                ..Project::default()
            };
            command(&DefinitionHold { project, ..DefinitionHold::default() }, "up -d")
        };
        let expected =
            |env_files: &str| format!("docker compose -p shop -f /srv/compose.yml {env_files}up -d");
        for none in [printed(&[], None), printed(&["/srv/.env"], None), printed(&[], Some("/srv/.env"))] {
            assert_eq!(none, expected(""), "compose finds it");
        }
        let both = expected("--env-file /global.env --env-file /srv/.env ");
        assert_eq!(printed(&["/global.env", "/srv/.env"], None), both);
        assert_eq!(printed(&["/global.env", "/srv/.env"], Some("/srv/.env")), both);
        let configured = printed(&["/srv/.env"], Some("/srv/tags.env"));
        assert_eq!(configured, expected("--env-file /srv/.env --env-file /srv/tags.env "));
        assert_eq!(printed(&[], Some("/srv/tags.env")), expected("--env-file /srv/tags.env "));
    }

    #[test]
    fn a_variable_of_a_provider_is_no_edit_to_apply() {
        let difference = Difference {
            service: "web".into(),
            what: vec!["environment DB_URL (set by a provider)".into()],
            unset: Vec::new(),
            connected: Vec::new(),
        };
        let project = Project { name: "shop".into(), ..Project::default() };
        let mut hold = DefinitionHold { project, differences: vec![difference], ..DefinitionHold::default() };
        let by_hand = "update it with `docker compose -p shop pull web && docker compose -p shop up -d web`";
        let text = definition_differs(&hold, "shop");
        assert!(
            text.starts_with("web: environment DB_URL (set by a provider). ") && text.ends_with(by_hand),
            "{text}"
        );
        assert_eq!(definition_cleared_by(&hold, "shop"), by_hand);
        hold.differences[0].what.push("volume /data".into());
        assert_eq!(
            definition_cleared_by(&hold, "shop"),
            "POST /redeploy/shop",
            "the files were edited as well"
        );
    }

    #[test]
    fn dockers_proxies_are_written_down_and_no_reason_to_redeploy_without_them() {
        let difference = Difference {
            service: "web".into(),
            what: vec!["environment HTTP_PROXY (set by docker's proxies)".into()],
            unset: Vec::new(),
            connected: Vec::new(),
        };
        assert!(difference.has_proxies() && difference.is_beside_files());
        let hold = DefinitionHold { differences: vec![difference], ..DefinitionHold::default() };
        let text = definition_differs(&hold, "shop");
        assert!(text.contains("write them into `environment` of the service"), "{text}");
        assert!(!text.contains("POST /redeploy") && !text.contains("compose_watch"), "{text}");
        assert_eq!(definition_cleared_by(&hold, "shop"), "write the proxies into the service's environment");
    }

    #[test]
    fn a_network_that_was_connected_since_is_not_applied_but_added() {
        let difference = Difference {
            service: "proxy".into(),
            what: vec!["network shop_default (connected since)".into()],
            unset: Vec::new(),
            connected: vec!["shop_default".into()],
        };
        let mut hold = DefinitionHold { differences: vec![difference], ..DefinitionHold::default() };
        let text = definition_differs(&hold, "proxy");
        assert!(text.contains("add shop_default to the networks of proxy"), "{text}");
        assert!(!text.contains("redeploy") && !text.contains("up -d"), "{text}");
        let cleared_by = definition_cleared_by(&hold, "proxy");
        assert_eq!(
            cleared_by,
            "add shop_default to the networks of proxy in the compose file, or disconnect them"
        );
        hold.differences[0].what.push("volume /data".into());
        assert!(definition_differs(&hold, "proxy").contains("redeploy"), "the files were edited as well");
    }

    #[test]
    fn what_was_changed_since_is_written_down_or_dropped_and_no_edit_to_apply() {
        for what in ["memory limit (changed since)", "network shop_default (disconnected since)"] {
            let hold = hold(what, &["SECRET"]);
            let text = definition_differs(&hold, "shop");
            let end = "write it into the compose file and run `docker compose -p shop up -d --force-recreate web`, or drop \
                       it with POST /redeploy/shop";
            assert!(text.ends_with(end) && !text.contains("undo the edit"), "{text}");
            assert_eq!(definition_cleared_by(&hold, "shop"), "POST /redeploy/shop");
        }
    }
}
