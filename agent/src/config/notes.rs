//! What someone who checks the file is told besides the warnings: what is watched, and what an image without a host means.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use evenkeel_common::config::{Extent, quote};
use evenkeel_common::permissions::is_private;
use evenkeel_common::wire::LeftOutService;

use super::{Config, ServiceConfig};

/// An image without a host belongs to `registry.url`; where that is not set, Docker Hub may have been meant.
pub(super) fn images_without_host(services: &[Arc<ServiceConfig>]) -> Vec<String> {
    let images = services.iter().flat_map(|service| service.images.iter().map(move |image| (service, image)));
    let plain = images.filter(|(_, image)| image.has_no_host());
    plain.map(|(service, image)| format!("{}: {}", service.name, image.host_note())).collect()
}

/// Files that root may read here, but not under the shipped unit, which has no capability for that.
pub(super) fn private_files(services: &[Arc<ServiceConfig>], is_root: bool) -> Vec<String> {
    let files = services.iter().filter(|_| is_root).flat_map(|service| {
        let files = service.compose_files.iter().chain(&service.env_file);
        files.filter(|path| is_private(path)).map(move |path| (service, path))
    });
    files.map(|(service, path)| {
        format!(
            "{}: {} is private to another user, and the agent's systemd unit can't read it without the drop-in \
             read-homes.conf",
            service.name,
            quote(&path.to_string_lossy())
        )
    })
    .collect()
}

/// Reports whether this process runs as root.
pub(super) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0)
}

/// What the agent watches, and what it does not.
pub(super) fn extent(config: &Config) -> Extent {
    let left_out =
        config.left_out.iter().map(|LeftOutService { name, reason }| (name.as_str(), reason.as_str()));
    let nothing = config.services.iter().filter(|service| !service.names_something());
    let why = "names no compose_project, container_name or swarm_service";
    let not_watched: Vec<(&str, &str)> =
        left_out.chain(nothing.map(|service| (service.name.as_str(), why))).collect();
    let all = config.services.len() + config.left_out.len();
    let watched = all - not_watched.len();
    let what = match (watched, all) {
        (0, 0) => "watching nothing: no services are listed (`evenkeel adopt` prints those of this machine)"
            .to_owned(),
        (watched, all) if watched < all => format!("watching {watched} of {all} services"),
        (1, _) => "watching 1 service".to_owned(),
        (watched, _) => format!("watching {watched} services"),
    };
    let named: Vec<String> = not_watched.iter().map(|(name, why)| format!("{name} ({why})")).collect();
    let but = if named.is_empty() { String::new() } else { format!("; not watched: {}", named.join(", ")) };
    Extent { summary: format!("{what}{but}"), is_complete: not_watched.is_empty() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use evenkeel_common::config::Configuration as _;
    use serde_json::{Value, json};

    use super::super::testing::good;

    #[test]
    fn the_summary_names_what_is_not_watched_and_why() {
        let summary = |services: Value| good(&json!({ "services": services })).extent();
        let watched = json!({"name": "web", "container_name": "web"});
        let nothing =
            "watching nothing: no services are listed (`evenkeel adopt` prints those of this machine)";
        for (services, text, is_complete) in [
            (json!([]), nothing, true),
            (json!([watched]), "watching 1 service", true),
            (json!([{"name": "a", "silent": true}, watched]), "watching 2 services", true),
            (
                json!([watched, {"name": "blog", "compose_files": ["compose.yml"]}]),
                "watching 1 of 2 services; not watched: blog (compose_files[0]: \"compose.yml\" is not absolute; \
                 allowed: the absolute path of a regular file, not of a link to one)",
                false,
            ),
            (
                json!([watched, {"name": "a b"}, 5]),
                "watching 1 of 3 services; not watched: services[1] (name: \"a b\"; allowed: 1 to 64 letters, digits, \
                 \"_\", \".\" and \"-\"), services[2] (a number; allowed: an object)",
                false,
            ),
            (
                json!([watched, watched]),
                "watching 1 of 2 services; not watched: services[1] (name: services[1] has the name of services[0])",
                false,
            ),
            (
                json!([{"name": "db", "images": ["db"]}]),
                "watching 0 of 1 services; not watched: db (names no compose_project, container_name or swarm_service)",
                false,
            ),
            (
                json!({"web": {}}),
                "watching 0 of 1 services; not watched: services (services: an object; allowed: an array of objects)",
                false,
            ),
        ] {
            let extent = summary(services);
            assert_eq!((extent.summary.as_str(), extent.is_complete), (text, is_complete));
        }
    }

    #[test]
    fn a_file_that_the_unit_could_not_read_is_named_to_root() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("compose.yml");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        // Without root, it belongs to another user than root already.
        let _ = std::os::unix::fs::chown(&path, Some(65534), Some(65534));
        let service = json!({"name": "web", "compose_project": "web", "compose_files": [path]});
        let services = good(&json!({"services": [service]})).services;
        let notes = super::private_files(&services, true);
        assert!(
            notes.len() == 1 && notes[0].starts_with("web: ") && notes[0].contains("read-homes.conf"),
            "{notes:?}"
        );
        assert_eq!(super::private_files(&services, false), Vec::<String>::new());
    }

    #[test]
    fn an_image_without_a_host_is_explained_unless_the_registry_is_configured() {
        let of = |registry: Value| {
            let service =
                json!({"name": "web", "container_name": "web", "images": ["nginx:1.27", "ghcr.io/a/b:1"]});
            good(&json!({"registry": registry, "services": [service]})).notes()
        };
        assert_eq!(
            of(json!({})),
            [
                "web: \"nginx:1.27\" means localhost:5000/nginx:1.27, because registry.url is not set; the image of \
                 Docker Hub is docker.io/library/nginx:1.27"
            ]
        );
        assert_eq!(of(json!({"url": "http://localhost:5000"})), Vec::<String>::new());
    }
}
