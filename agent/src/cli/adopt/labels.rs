//! What the labels of other updaters say about a container, and which images should not be updated like others.

use std::collections::BTreeMap;

use crate::cli::updaters::known;
use crate::model::{Container, Reference};

/// All labels of a container.
pub(super) type Labels = BTreeMap<String, String>;

/// Proxies in front of the engine's socket, by the last component of their image's path: the agent may reach it through one.
const PROXIES: [&str; 2] = ["docker-socket-proxy", "socket-proxy"];
/// Labels that exclude a container from updates when they are false, and with which containers opt in when they are true.
const SWITCHES: [&str; 5] =
    ["com.centurylinklabs.watchtower.enable", "com.ouroboros.enable", "dd.watch", "diun.enable", "wud.watch"];
/// Programs that create and end containers of their own, by how one of their labels begins, as `name=value`.
const CREATORS: [(&str, &str); 7] = [
    ("ContainerType=server_", "Wings (Pterodactyl, Pelican)"),
    // An image can have labels of that name, which are empty.
    ("com.amazonaws.ecs.task-arn=arn:", "Amazon ECS"),
    ("com.gitlab.gitlab-runner.", "GitLab Runner"),
    ("com.hashicorp.nomad.", "Nomad"),
    ("supervisor_managed=", "Home Assistant"),
    ("io.kubernetes.", "Kubernetes"),
    ("org.testcontainers", "Testcontainers"),
];
/// The one of a program that only reports.
const REPORTS: &str = "diun.enable";
const YES: [&str; 6] = ["true", "1", "yes", "on", "t", "y"];
const MONITOR_ONLY: &str = "com.centurylinklabs.watchtower.monitor-only";
const NO_PULL: &str = "com.centurylinklabs.watchtower.no-pull";
const AUTO_UPDATE: &str = "io.containers.autoupdate";
/// Labels of drydock and its predecessor that concern what is updated.
const PREFIXES: [&str; 2] = ["dd.", "wud."];
/// Their settings that mean nothing here or are always so.
const WITHOUT_EFFECT: [&str; 5] = ["watch", "watch.digest", "display.name", "display.icon", "rollback.auto"];
/// Parts of the names of images that keep data of their own.
const DATABASES: [&str; 24] = [
    "arangodb",
    "cassandra",
    "clickhouse",
    "cockroach",
    "couchbase",
    "couchdb",
    "elasticsearch",
    "etcd",
    "immudb",
    "influxdb",
    "keydb",
    "mariadb",
    "meilisearch",
    "mongo",
    "mssql",
    "mysql",
    "neo4j",
    "opensearch",
    "percona",
    "pgvector",
    "postg",
    "redis",
    "timescale",
    "valkey",
];

/// What a container's image and labels ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    /// Like every other.
    Update,
    /// New images are to be reported only; the label.
    Ask(String),
    /// It is not to be updated; why.
    Exclude(String),
}

/// Returns the switches that are true at one of these containers, given with their images: with them, containers opt in. That of a
/// program that only reports counts if there is none of an updater.
pub(super) fn opt_in<'a>(containers: impl Iterator<Item = (&'a str, &'a Labels)>) -> Vec<&'static str> {
    let of_others: Vec<&Labels> =
        containers.filter(|(image, _)| updater(image).is_none()).map(|(_, labels)| labels).collect();
    let is_used = |name: &&str| of_others.iter().any(|labels| is(labels, name, &YES));
    let mut used: Vec<&'static str> = SWITCHES.into_iter().filter(is_used).collect();
    if used.len() > 1 {
        used.retain(|name| *name != REPORTS);
    }
    used
}

/// Reports whether a label has one of these values.
fn is(labels: &Labels, name: &str, words: &[&str]) -> bool {
    labels.get(name).is_some_and(|value| words.contains(&value.trim().to_ascii_lowercase().as_str()))
}

/// Returns what the container asks for, where containers opt in with these switches.
pub(super) fn wish(image: &str, labels: &Labels, opt_in: &[&str]) -> Wish {
    let is = |name: &str, words: &[&str]| is(labels, name, words);
    if name_of(image).is_some_and(|name| PROXIES.contains(&name.as_str())) {
        return Wish::Exclude("it is a proxy in front of the engine's socket".to_owned());
    }
    if let Some(name) = updater(image) {
        let what = if name.starts_with("evenkeel") {
            "Evenkeel itself".to_owned()
        } else {
            format!("{name}, another updater")
        };
        return Wish::Exclude(format!("it is {what}"));
    }
    let is_of = |(start, _): &(&str, &str)| {
        labels.iter().any(|(name, value)| format!("{name}={value}").starts_with(start))
    };
    if let Some((_, creator)) = CREATORS.into_iter().find(is_of) {
        return Wish::Exclude(format!("{creator} manages it"));
    }
    let said =
        |name: &str| format!("its label {name}={} says so", labels.get(name).map_or("", String::as_str));
    if let Some(name) = SWITCHES.into_iter().find(|name| is(name, &["false", "0", "no", "off", "f", "n"])) {
        return Wish::Exclude(said(name));
    }
    if is(NO_PULL, &YES) {
        return Wish::Exclude(said(NO_PULL));
    }
    if is(AUTO_UPDATE, &["disabled", "false"]) {
        return Wish::Exclude(said(AUTO_UPDATE));
    }
    if let Some(first) = opt_in.first()
        && !opt_in.iter().any(|name| is(name, &YES))
    {
        return Wish::Exclude(format!("another container has {first}=true, and this one does not"));
    }
    if is(MONITOR_ONLY, &YES) { Wish::Ask(MONITOR_ONLY.to_owned()) } else { Wish::Update }
}

/// Reports whether Kamal has created the container of this name: each deploy creates another one, which is named after service, role
/// and version.
pub(super) fn is_of_kamal(name: &str, labels: &Labels) -> bool {
    let [service, role, destination] = ["service", "role", "destination"].map(|label| labels.get(label));
    let (Some(service), Some(role), Some(_)) = (service, role, destination) else { return false };
    name.starts_with(&format!("{service}-{role}-"))
}

/// Returns the labels of drydock that restrict updates and are not taken over.
pub(super) fn not_taken_over(labels: &Labels) -> Vec<&str> {
    let rest = |name: &str| PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).map(str::to_owned);
    let matters = |name: &&str| rest(name).is_some_and(|rest| !WITHOUT_EFFECT.contains(&rest.as_str()));
    labels.keys().map(String::as_str).filter(matters).collect()
}

/// Reports whether a container looks like a database that keeps its data in a volume or a folder.
pub(super) fn is_database(container: &Container) -> bool {
    let name = name_of(&container.config_image).unwrap_or_default();
    DATABASES.iter().any(|part| name.contains(part))
        && !name.contains("exporter")
        && container.mounts.iter().any(|mount| !mount.read_only && mount.kind != "tmpfs")
}

fn updater(image: &str) -> Option<&'static str> {
    let name = name_of(image)?;
    known(&name).map(|(name, _)| name)
}

/// Returns the last component of an image's path.
fn name_of(image: &str) -> Option<String> {
    let reference = Reference::parse(image).ok()?;
    reference.repository.path.rsplit('/').next().map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::MountRecord;

    use super::*;

    fn labels(all: &[(&str, &str)]) -> Labels {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_labels_of_other_updaters_are_honoured() {
        for (name, value, excluded) in [
            ("com.centurylinklabs.watchtower.enable", "false", true),
            ("com.centurylinklabs.watchtower.enable", " False", true),
            ("com.centurylinklabs.watchtower.enable", "true", false),
            ("com.centurylinklabs.watchtower.no-pull", "true", true),
            ("com.ouroboros.enable", "false", true),
            ("wud.watch", "false", true),
            ("wud.watch", "true", false),
            ("diun.enable", "false", true),
            ("dd.watch", "false", true),
            ("io.containers.autoupdate", "disabled", true),
            ("io.containers.autoupdate", "registry", false),
            ("com.gitlab.gitlab-runner.job.id", "12", true),
            ("io.hass.type", "core", false),
            ("supervisor_managed", "", true),
            ("io.kubernetes.pod.name", "web-0", true),
            ("org.testcontainers", "true", true),
            ("ContainerType", "server_process", true),
            ("ContainerType", "proxy", false),
            ("Service", "web", false),
            ("com.hashicorp.nomad.alloc_id", "8ea3", true),
            ("com.amazonaws.ecs.task-arn", "arn:aws:ecs:eu-west-1:1:task/8ea3", true),
            ("com.amazonaws.ecs.task-arn", "", false),
            ("com.example.enable", "false", false),
        ] {
            let wish = wish("nginx", &labels(&[(name, value)]), &[]);
            assert_eq!(matches!(wish, Wish::Exclude(_)), excluded, "{name}={value}: {wish:?}");
        }
        let monitored = labels(&[("com.centurylinklabs.watchtower.monitor-only", "true")]);
        assert_eq!(
            wish("nginx", &monitored, &[]),
            Wish::Ask("com.centurylinklabs.watchtower.monitor-only".into())
        );
        let both = labels(&[
            ("com.centurylinklabs.watchtower.monitor-only", "true"),
            ("com.centurylinklabs.watchtower.enable", "false"),
        ]);
        assert!(matches!(wish("nginx", &both, &[]), Wish::Exclude(_)));
        let drydock = labels(&[
            ("dd.watch", "true"),
            ("dd.tag.include", "^1"),
            ("wud.watch.digest", "true"),
            ("x", "y"),
        ]);
        assert_eq!(not_taken_over(&drydock), ["dd.tag.include"]);
    }

    #[test]
    fn where_containers_opt_in_the_others_are_left_out() {
        let watchtower = "com.centurylinklabs.watchtower.enable";
        let of = |all: &[(&str, &[(&str, &str)])]| {
            let all: Vec<(&str, Labels)> = all.iter().map(|(image, all)| (*image, labels(all))).collect();
            opt_in(all.iter().map(|(image, labels)| (*image, labels)))
        };
        assert_eq!(of(&[("nginx", &[(watchtower, "false")]), ("redis", &[])]), Vec::<&str>::new());
        assert_eq!(of(&[("nginx", &[(watchtower, "True")]), ("redis", &[])]), [watchtower]);
        assert_eq!(of(&[("nginx", &[("diun.enable", "true")])]), ["diun.enable"]);
        assert_eq!(
            of(&[("nginx", &[("diun.enable", "true")]), ("redis", &[("wud.watch", "true")])]),
            ["wud.watch"],
            "what is only reported is not updated"
        );
        assert_eq!(of(&[("containrrr/watchtower", &[(watchtower, "true")])]), Vec::<&str>::new());

        let wish = |all: &[(&str, &str)]| wish("nginx", &labels(all), &[watchtower, "wud.watch"]);
        for all in [&[][..], &[("diun.enable", "true")], &[(MONITOR_ONLY, "true")]] {
            let why =
                "another container has com.centurylinklabs.watchtower.enable=true, and this one does not";
            assert_eq!(wish(all), Wish::Exclude(why.into()), "{all:?}");
        }
        assert_eq!(wish(&[("wud.watch", "true")]), Wish::Update);
        assert_eq!(wish(&[(watchtower, "true"), (MONITOR_ONLY, "true")]), Wish::Ask(MONITOR_ONLY.to_owned()));
    }

    #[test]
    fn another_updater_is_never_listed() {
        for image in [
            "containrrr/watchtower",
            "ghcr.io/nicholas-fedor/watchtower:1.12",
            "getwud/wud@sha256:0000000000000000000000000000000000000000000000000000000000000000",
            "crazymax/diun:latest",
            "pyouroboros/ouroboros",
            "ghcr.io/x/dockward:1.3.1",
            "ghcr.io/x/evenkeel-warden",
            "localhost:5000/evenkeel",
        ] {
            assert!(matches!(wish(image, &Labels::new(), &[]), Wish::Exclude(_)), "{image}");
        }
        assert_eq!(wish("my/watchtower-dashboard", &Labels::new(), &[]), Wish::Update);
    }

    #[test]
    fn a_proxy_in_front_of_the_engine_is_never_listed() {
        for image in ["tecnativa/docker-socket-proxy", "lscr.io/linuxserver/socket-proxy:3", "x/socket-proxy"]
        {
            assert!(matches!(wish(image, &Labels::new(), &[]), Wish::Exclude(_)), "{image}");
        }
        assert_eq!(wish("my/tcp-socket-proxy-test", &Labels::new(), &[]), Wish::Update);
    }

    #[test]
    fn a_database_with_a_volume_is_recognised() {
        let mount = |kind: &str, read_only| MountRecord {
            kind: kind.into(),
            name: String::new(),
            source: "/srv/db".into(),
            destination: "/var/lib/data".into(),
            read_only,
        };
        let is = |image: &str, mounts: Vec<MountRecord>| {
            is_database(&Container { mounts, ..Container::running("db", image) })
        };
        for image in [
            "postgres:16",
            "docker.io/bitnami/postgresql:15",
            "postgis/postgis",
            "mariadb",
            "mongo:7",
            "valkey/valkey",
        ] {
            assert!(
                is(image, vec![mount("volume", false)]) && is(image, vec![mount("bind", false)]),
                "{image}"
            );
            assert!(!is(image, vec![]) && !is(image, vec![mount("bind", true)]), "{image}");
        }
        assert!(
            !is("nginx", vec![mount("volume", false)])
                && !is("x/postgres-exporter", vec![mount("volume", false)])
        );
    }
}
