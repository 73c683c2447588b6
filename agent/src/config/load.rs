//! Parses a configuration into a [`Config`], or reports all of its faults at once (DECISIONS 2).

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::shape::Shape;
use evenkeel_common::config::{
    ConfigErrors, Configuration, Extent, Finding, Findings, KeyPath, load, unread_list,
};
use evenkeel_common::hanging::{self, Look};
use evenkeel_common::wire::LeftOutService;
use serde_json::Value;

use super::file::AgentFile;
use super::misplaced::{self, Misplaced};
use super::{Config, api, channels, global, named, notes, paths, push, service, update};

/// The JSON Schema of the configuration file.
pub fn schema() -> Value {
    Shape::of::<AgentFile>().schema().clone()
}

/// The configuration without its services, whose files may be on a file system that hangs: for programs that only ask an
/// agent which runs.
#[derive(Debug)]
pub struct WithoutServices(pub Config);

impl Configuration for WithoutServices {
    fn parse(text: &str, path: &Path, env: Env<'_>) -> Result<Self, ConfigErrors> {
        Config::read(text, path, env, false, Look::default()).map(Self)
    }

    fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    fn extent(&self) -> Extent {
        notes::extent(&self.0)
    }
}

impl Config {
    /// `look`: how the paths in the file are looked at.
    fn read(
        text: &str,
        path: &Path,
        env: Env<'_>,
        with_services: bool,
        look: Look,
    ) -> Result<Self, ConfigErrors> {
        let mut findings = Findings::default();
        let (mut named_variables, mut named_channels) = (BTreeSet::new(), channels::Named::default());
        let (mut has_registry, mut misplaced) = (false, Misplaced::default());
        let mut unread_services = None;
        let normalize = |mut tree: Value, findings: &mut Findings| {
            unread_services = unread_list(&tree, "services", findings);
            if !with_services && let Some(services) = tree.get_mut("services").and_then(Value::as_array_mut) {
                services.clear();
            }
            push::note_unread(&mut tree, findings);
            channels::note_unread(&mut tree, findings);
            named_variables = named::variables(&tree);
            named_channels = channels::Named::of(&tree, findings);
            has_registry = tree["registry"]["url"].is_string();
            let mut tree = without_old_port(tree, findings);
            misplaced = misplaced::take(&mut tree, findings);
            tree
        };
        let file: AgentFile = load::typed(text, path, normalize, &mut findings)?;
        hanging::ask(looked_at(&file, env), look);
        paths::check_file(path, &mut findings);
        let names: Vec<String> = file
            .services
            .iter()
            .map(|service| service.as_ref().map(|s| s.name.clone()).unwrap_or_default())
            .collect();
        let registry = global::registry(&file.registry, &mut findings);
        let push::Push { config: push, terms_without: fleet_terms_without_push, machine_id } =
            push::push(file.push, env, &mut findings);
        let (services, left_out) =
            service::services(file.services, &registry.host, &misplaced, env, &mut findings);
        let mut config = Self {
            runtime: file.runtime,
            api: api::api(&file.api, &mut findings),
            audit_path: paths::audit_path(&file.audit, &mut findings),
            state_path: paths::state_path(&file.state, env, &mut findings),
            monitor: global::monitor(&file.monitor, &registry, &mut findings),
            docker_health: global::docker_health(&file.docker_health, &mut findings),
            notifications: channels::notifications(file.notifications, env, &mut findings),
            push,
            machine_id,
            fleet_terms_without_push,
            notes: if has_registry { Vec::new() } else { notes::images_without_host(&services) },
            services,
            left_out,
            registry,
            named_variables,
            faulty_channels: Vec::new(),
            unusable_services: None,
            warnings: Vec::new(),
            text_hash: hash_of(text),
        };
        config.faulty_channels = named_channels.off(&config, &mut findings);
        let services = KeyPath::of("services");
        let fault = findings.fault_at(&services).map(|what| format!("{services}: {what}"));
        config.unusable_services = fault.or(unread_services);
        let all = config.unusable_services.as_ref();
        let all = all.map(|reason| LeftOutService { name: services.to_string(), reason: reason.clone() });
        config.left_out.extend(all);
        global::keep_only_fatal(&mut findings);

        let (faults, warnings) = findings.finish();
        config.warnings = warnings.iter().map(|warning| describe(warning, &names)).collect();
        if faults.is_empty() { Ok(config) } else { Err(ConfigErrors::new(path, faults, config.warnings)) }
    }
}

impl Configuration for Config {
    fn parse(text: &str, path: &Path, env: Env<'_>) -> Result<Self, ConfigErrors> {
        Self::read(text, path, env, true, Look::default())
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn notes(&self) -> Vec<String> {
        let private = notes::private_files(&self.services, notes::is_root());
        self.notes.iter().cloned().chain(private).collect()
    }

    fn extent(&self) -> Extent {
        notes::extent(self)
    }
}

/// Returns the paths that the rules look at. One on a file system that hangs must keep neither the agent nor the other services
/// waiting.
fn looked_at(file: &AgentFile, env: Env<'_>) -> BTreeSet<PathBuf> {
    let mut texts: Vec<&str> = vec![file.audit.path.as_str(), file.state.path.as_str()];
    for service in file.services.iter().flatten().filter(|service| !service.silent) {
        texts.extend(service.compose_files.iter().flatten().map(String::as_str));
        texts.push(&service.env_file);
        texts.extend(service.update.iter().flat_map(update::paths));
    }
    let absolute = texts.into_iter().filter(|text| text.starts_with('/')).map(PathBuf::from);
    absolute.chain([paths::default_state_path(env)]).collect()
}

fn hash_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Removes the key `api.port` of an older version and reports it as a fault.
fn without_old_port(mut tree: Value, findings: &mut Findings) -> Value {
    if let Some(api) = tree.get_mut("api").and_then(Value::as_object_mut)
        && api.remove("port").is_some()
    {
        // Spec 9.2. If it were ignored, the agent would listen on a different port than configured.
        let what = "was replaced by api.address; write \"address\": [\"<host>:<port>\"] with the host from api.address \
                    and the port from api.port, for example [\"127.0.0.1:9090\"]";
        findings.fault(&KeyPath::of("api.port"), what);
    }
    tree
}

/// Formats a warning as `<service>: <reason>` if it is about a service with a valid name, else as `<key>: <reason>`.
fn describe(warning: &Finding, names: &[String]) -> String {
    match warning.at.element_of("services") {
        Some((n, at)) if names.get(n).is_some_and(|name| service::name_is_valid(name)) => {
            format!("{}: {}", names[n], Finding { at, message: warning.message.clone() })
        }
        _ => warning.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_common::config::ConfigSource;
    use serde_json::json;

    use super::super::testing::{faults, good};
    use super::*;

    fn error_of(text: &str) -> String {
        Config::parse(text, Path::new("c.json"), &|_| None).unwrap_err().to_string()
    }

    #[test]
    fn without_the_services_their_files_are_not_looked_at_and_a_fault_has_the_same_text() {
        let service =
            json!({"name": "web", "container_name": "web", "compose_files": ["/nonexistent/c.yml"]});
        let text = json!({"api": {"address": ["127.0.0.1:9191"]}, "services": [service]}).to_string();
        let without = |text: &str| WithoutServices::parse(text, Path::new("c.json"), &|_| None);
        let whole = Config::parse(&text, Path::new("c.json"), &|_| None).unwrap();
        assert_eq!(whole.left_out.len(), 1);
        let WithoutServices(config) = without(&text).unwrap();
        assert_eq!((config.left_out.len(), config.services.len()), (0, 0));
        assert_eq!(config.api.addresses, ["127.0.0.1:9191"]);
        for faulty in [r#"{"runtime": "lxc", "services": [{"name": 5}]}"#, r#"{"a": "#, "[]"] {
            assert_eq!(without(faulty).unwrap_err().to_string(), error_of(faulty));
        }
    }

    #[test]
    fn a_service_whose_files_are_on_a_file_system_that_hangs_is_left_out_and_keeps_nothing_waiting() {
        let text = json!({
            "audit": {"path": "/unresponsive/audit.jsonl"},
            "services": [
                {"name": "nas", "container_name": "nas", "compose_files": ["/unresponsive/compose.yml"]},
                {"name": "env", "container_name": "env", "env_file": "/unresponsive/.env"},
                {"name": "key", "container_name": "key", "update": {"signed_by": "/unresponsive/cosign.pub"}},
                {"name": "web", "container_name": "web"},
            ],
        });
        let call = |path: &Path| {
            if path.starts_with("/unresponsive") {
                loop {
                    std::thread::park();
                }
            }
        };
        let look = Look { call, limit: std::time::Duration::from_millis(100) };
        let config = Config::read(&text.to_string(), Path::new("c.json"), &|_| None, true, look).unwrap();
        let watched: Vec<_> = config.services.iter().map(|service| service.name.as_str()).collect();
        assert_eq!(watched, ["key", "web"]);
        let left_out: Vec<_> = config.left_out.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(left_out, ["nas", "env"]);
        for one in &config.left_out {
            assert!(one.reason.contains(hanging::UNRESPONSIVE), "{}", one.reason);
        }
        assert_eq!(config.audit_path.as_deref(), Some(Path::new("/unresponsive/audit.jsonl")));
        for of in ["audit.path: ", "key: update.signed_by[0]: "] {
            let is_told = |text: &String| text.starts_with(of) && text.contains(hanging::UNRESPONSIVE);
            assert!(config.warnings.iter().any(is_told), "{of} {:#?}", config.warnings);
        }
    }

    #[test]
    fn the_check_supports_every_keyword_of_the_schema() {
        assert_eq!(Shape::of::<AgentFile>().unknown_keywords(), Vec::<String>::new());
    }

    #[test]
    fn the_schema_has_every_key_of_the_specification() {
        let schema = schema();
        for (pointer, keys) in [
            ("", "runtime registry api audit monitor docker_health notifications push services state"),
            ("/registry", "url poll_interval insecure concurrency"),
            ("/api", "address allowed_hosts base_path"),
            ("/audit", "path"),
            ("/state", "path"),
            ("/monitor", "stats_interval"),
            ("/docker_health", "check_interval timeout"),
            ("/notifications", "discord smtp webhooks"),
            ("/push", "warden_url token machine_id ring patience"),
        ] {
            let part = pointer.replace('/', "/properties/") + "/properties";
            let mut expected: Vec<_> = keys.split(' ').collect();
            expected.sort_unstable();
            let found: Vec<_> = schema.pointer(&part).unwrap().as_object().unwrap().keys().collect();
            assert_eq!(found, expected, "{pointer}");
        }
        let service = &schema["properties"]["services"]["items"]["properties"];
        for key in "name images silent compose_files compose_project container_name swarm_service env_file auto_update auto_start \
                    auto_heal compose_watch cpu_threshold memory_threshold health_grace heal_cooldown heal_max_restarts keep_images update"
            .split_whitespace()
        {
            assert!(service[key].is_object(), "{key}");
        }
        assert_eq!(service.as_object().unwrap().len(), 19);
    }

    #[test]
    fn a_file_that_is_not_an_object_is_rejected() {
        for (text, seen) in [("[]", "an array"), ("5", "a number"), ("\"x\"", "a string"), ("null", "null")] {
            assert_eq!(error_of(text), format!("c.json: {seen}; allowed: an object"));
        }
        assert_eq!(
            error_of("{"),
            "c.json: is not JSON: line 1, column 1: EOF while parsing an object, found the end of the file"
        );
    }

    #[test]
    fn unknown_keys_are_reported_at_every_level() {
        let config = good(&json!({
            "servics": [], "registry": {"pol_interval": 5}, "notifications": {"telegram": {}},
            "services": [{"name": "a", "x": 1}], "$schema": "s.json",
        }));
        assert_eq!(
            config.warnings,
            [
                "notifications.telegram: is not a known key and is ignored; allowed: discord, smtp, webhooks",
                "registry.pol_interval: is not a known key and is ignored; did you mean \"poll_interval\"?",
                "a: x: is not a known key and is ignored; allowed: auto_heal, auto_start, auto_update, compose_files, \
                 compose_project, compose_watch, container_name, cpu_threshold, env_file, heal_cooldown, \
                 heal_max_restarts, health_grace, images, keep_images, memory_threshold, name, silent, swarm_service, update",
                "servics: is not a known key and is ignored; did you mean \"services\"?",
            ]
        );
    }

    #[test]
    fn repeated_keys_are_reported() {
        let text = r#"{"runtime": "podman", "runtime": "docker", "services": [{"name": "a", "name": "b"}]}"#;
        let config = Config::parse(text, Path::new("c.json"), &|_| None).unwrap();
        let twice = "is given more than once; the last one is used";
        assert_eq!(config.warnings, [format!("runtime: {twice}"), format!("b: name: {twice}")]);
    }

    #[test]
    fn services_that_are_not_read_are_not_taken_for_removed() {
        let list = |name: &str| json!([{"name": name, "container_name": name}]);
        for (text, reason, watched) in [
            (
                format!(r#"{{"service": {}}}"#, list("a")),
                "service: is not a known key; did you mean \"services\"?",
                0,
            ),
            (
                format!(r#"{{"services": {}, "services": {}}}"#, list("a"), list("b")),
                "services: is given more than once",
                1,
            ),
        ] {
            let config = Config::parse(&text, Path::new("c.json"), &|_| None).unwrap();
            assert_eq!(config.unusable_services.as_deref(), Some(reason));
            assert_eq!((config.services.len(), config.left_out.len()), (watched, 1), "{text}");
            assert!(!config.extent().is_complete, "{text}");
        }
    }

    #[test]
    fn a_gate_that_is_given_twice_holds_the_updates() {
        let text = r#"{"services": [
            {"name": "a", "container_name": "a", "update": {"signed_by": "/k.pub"}, "update": {"approve": true}},
            {"name": "b", "container_name": "b", "update": {"min_age": "3d", "min_age": "1d"}},
            {"name": "c", "container_name": "c", "update": {"min_age": "3d"}}
        ]}"#;
        let config = Config::parse(text, Path::new("c.json"), &|_| None).unwrap();
        let faults: Vec<_> = config.services.iter().map(|s| s.update.as_ref()?.fault.clone()).collect();
        let [Some(block), Some(key), None] = faults.as_slice() else { panic!("{faults:?}") };
        assert!(block.starts_with("update: is given more than once"), "{block}");
        assert!(key.starts_with("update.min_age: is given more than once"), "{key}");
        // A redeploy by a person passes the hold, but not a signature that the lost part may have required.
        assert!(!config.services[0].update.as_ref().unwrap().signed_by.is_empty());
    }

    #[test]
    fn a_rejected_file_reports_its_warnings_too() {
        let refused = super::super::testing::parse(&json!({"runtime": 5, "x": 1}), &|_| None).unwrap_err();
        assert_eq!(refused.to_string(), "c.json: runtime: 5; allowed: docker, podman");
        assert_eq!(
            refused.warnings(),
            [
                "x: is not a known key and is ignored; allowed: api, audit, docker_health, monitor, notifications, push, \
              registry, runtime, services, state"
            ]
        );
    }

    #[test]
    fn an_untrusted_value_cannot_forge_or_flood_a_message() {
        let texts = faults(&json!({"runtime": format!("a\nb{}", "x".repeat(100_000))}));
        assert_eq!(texts.len(), 1);
        assert!(texts[0].len() < 200 && texts[0].starts_with("runtime: \"a\\nbxxx"), "{texts:?}");
    }

    #[test]
    fn a_source_rereads_the_file_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.json");
        let source = ConfigSource::new(path.clone(), |_| None);
        assert_eq!(
            source.load::<Config>().unwrap_err().to_string(),
            format!("{}: there is no such file", path.display())
        );
        std::fs::write(&path, r#"{"runtime": "podman"}"#).unwrap();
        assert_eq!(source.load::<Config>().unwrap().runtime, crate::config::Runtime::Podman);
    }
}
