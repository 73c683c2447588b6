//! The fields of a compose service, each compared with what the engine reports of a container.
//!
//! A field that the files do not set has the value of the image, or the engine's default. Where neither is known, it is
//! not compared: unknown is not different.

mod proxies;
mod security;
mod since;
mod uncommon;
mod updated;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::model::compose::{Model, duration};
use crate::model::container::is_full_id;

/// Variables that compose adds by itself, from the client's proxy settings.
const PROXIES: [&str; 5] = ["http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"];

/// The numbers of a health check with their names at the engine and its defaults, durations in nanoseconds.
const HEALTH_NUMBERS: [(&str, &str, u64); 5] = [
    ("interval", "Interval", 30_000_000_000),
    ("timeout", "Timeout", 30_000_000_000),
    ("start_period", "StartPeriod", 0),
    ("start_interval", "StartInterval", 5_000_000_000),
    ("retries", "Retries", 3),
];

/// Where compose binds the engine's socket for a service with `use_api_socket`, and the variable that it sets unless the
/// service does.
const API_SOCKET: &str = "/var/run/docker.sock";
const API_SOCKET_VARIABLE: (&str, &str) = ("DOCKER_CONFIG", "/run/secrets/docker");

/// The values that are compared.
pub(super) struct Sides<'a> {
    /// The compose service.
    pub(super) service: &'a Value,
    pub(super) model: &'a Model,
    /// The container's inspection.
    pub(super) container: &'a Value,
    /// The configuration of its image, if known.
    pub(super) image: Option<&'a Value>,
}

/// Reports whether compose changes a service further before it computes the hash for the label, so that no hash of the files
/// can equal it: it resolves `volumes_from` to containers, adds what models and its own socket need, and, from 5.1 on, names the
/// image of a volume by its ID.
pub(super) fn is_completed_by_up(service: &Value) -> bool {
    let is_set = |key: &str| match service.get(key) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        Some(_) => true,
    };
    let volumes = service.get("volumes").and_then(Value::as_array).into_iter().flatten();
    volumes.map(|volume| text(volume, "type")).any(|kind| kind == "image")
        || ["volumes_from", "models", "use_api_socket"].into_iter().any(is_set)
}

impl Sides<'_> {
    /// Returns the fields that differ. Values are not named, because they may be secret.
    pub(super) fn differences(&self) -> Vec<String> {
        let mut what = self.environment();
        what.extend(self.labels());
        what.extend(self.mounts());
        let single: [(&str, bool); 36] = [
            ("command", self.command_differs()),
            ("entrypoint", self.entrypoint_differs()),
            ("user", self.text_differs("user", "/Config/User", "/User")),
            ("working_dir", self.text_differs("working_dir", "/Config/WorkingDir", "/WorkingDir")),
            ("stop_signal", self.text_differs("stop_signal", "/Config/StopSignal", "/StopSignal")),
            ("hostname", self.hostname_differs()),
            ("stop_grace_period", self.stop_grace_period_differs()),
            ("tty", self.flag_differs("tty", "/Config/Tty")),
            ("stdin_open", self.flag_differs("stdin_open", "/Config/OpenStdin")),
            ("privileged", self.flag_differs("privileged", "/HostConfig/Privileged")),
            ("read_only", self.flag_differs("read_only", "/HostConfig/ReadonlyRootfs")),
            ("init", self.flag_differs("init", "/HostConfig/Init")),
            ("restart", self.restart_differs()),
            ("cap_add", self.capabilities_differ("cap_add", "/HostConfig/CapAdd")),
            ("cap_drop", self.capabilities_differ("cap_drop", "/HostConfig/CapDrop")),
            ("security_opt", self.security_differs()),
            ("devices", self.devices_differ()),
            ("ports", self.ports_differ()),
            ("networks", self.networks_differ()),
            ("network_mode", self.network_mode_differs()),
            ("pid", self.namespace_differs("pid", "/HostConfig/PidMode")),
            ("ipc", self.namespace_differs("ipc", "/HostConfig/IpcMode")),
            ("tmpfs", self.tmpfs_differs()),
            ("shm_size", self.shm_size_differs()),
            ("memory limit", self.memory_differs()),
            ("memory reservation", self.reservation_differs()),
            ("cpu limit", self.cpus_differ()),
            ("cpu_shares", self.number_differs(&["/cpu_shares"], "/HostConfig/CpuShares")),
            ("pids limit", self.pids_differ()),
            ("cpuset", self.plain_text_differs("cpuset", "/HostConfig/CpusetCpus")),
            ("ulimits", self.ulimits_differ()),
            ("sysctls", self.sysctls_differ()),
            ("extra_hosts", self.extra_hosts_differ()),
            ("dns", self.list_differs("dns", "/HostConfig/Dns")),
            ("logging", self.logging_differs()),
            ("healthcheck", self.healthcheck_differs()),
        ];
        what.extend(single.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()));
        if self.list_differs("group_add", "/HostConfig/GroupAdd") {
            what.push("group_add".to_owned());
        }
        if self.name_differs() {
            what.push("container_name".to_owned());
        }
        what.extend(self.uncommon());
        what
    }

    fn wanted(&self, key: &str) -> Option<&Value> {
        self.service.get(key).filter(|value| !value.is_null())
    }

    fn actual(&self, pointer: &str) -> Option<&Value> {
        self.container.pointer(pointer).filter(|value| !value.is_null())
    }

    fn of_image(&self, pointer: &str) -> Option<&Value> {
        self.image?.pointer(pointer).filter(|value| !value.is_null())
    }

    fn environment(&self) -> Vec<String> {
        let actual = variables(self.actual("/Config/Env"));
        let listed = || self.wanted("environment").and_then(Value::as_object).into_iter().flatten();
        // A name without a value is passed through from compose's surroundings, which do not set it.
        let is_passed_through = |name: &str| listed().any(|(known, value)| known == name && value.is_null());
        let wanted: BTreeMap<String, String> = listed()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), plain(value)))
            .collect();
        let mut what: BTreeSet<String> = wanted
            .iter()
            .filter(|(name, value)| actual.get(*name) != Some(value))
            .map(|(n, _)| n.clone())
            .collect();
        if self.image.is_some() {
            let of_image = variables(self.of_image("/Env"));
            let of_models = self.variables_of_models();
            let uses_api_socket = self.uses_api_socket();
            let is_of_socket =
                |name: &str, value: &str| uses_api_socket && (name, value) == API_SOCKET_VARIABLE;
            let is_podman = self.is_podman();
            let is_filled_in = |name: &str, value: &str| {
                is_podman && uncommon::PODMANS_VARIABLES.contains(&name)
                    || of_models.contains(name)
                    || is_of_socket(name, value)
            };
            let is_added = |name: &str, value: &str| {
                !wanted.contains_key(name)
                    && !is_filled_in(name, value)
                    && of_image.get(name).map(String::as_str) != Some(value)
                    && (is_passed_through(name) || !PROXIES.contains(&name.to_lowercase().as_str()))
            };
            what.extend(actual.iter().filter(|(name, value)| is_added(name, value)).map(|(n, _)| n.clone()));
        }
        what.into_iter().map(|name| format!("environment {name}")).collect()
    }

    fn uses_api_socket(&self) -> bool {
        self.wanted("use_api_socket").and_then(Value::as_bool) == Some(true)
    }

    /// Variables that compose sets for the service's models when it starts them.
    fn variables_of_models(&self) -> BTreeSet<String> {
        let models = self.wanted("models").and_then(Value::as_object).into_iter().flatten();
        let of_model = |(name, options): (&String, &Value)| {
            let plain = name.to_uppercase().replace('-', "_");
            [("endpoint_var", "URL"), ("model_var", "MODEL")].map(|(key, end)| {
                let named = options.get(key).and_then(Value::as_str).filter(|name| !name.is_empty());
                named.map_or_else(|| format!("{plain}_{end}"), str::to_owned)
            })
        };
        models.flat_map(of_model).collect()
    }

    fn labels(&self) -> Vec<String> {
        let map = |value: Option<&Value>| -> BTreeMap<String, String> {
            let all = value.and_then(Value::as_object).into_iter().flatten();
            all.map(|(name, value)| {
                (name.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            })
            .collect()
        };
        let wanted: BTreeMap<String, String> =
            map(self.wanted("labels")).into_iter().map(|(name, value)| (name, unescaped(&value))).collect();
        let (actual, of_image) = (map(self.actual("/Config/Labels")), map(self.of_image("/Labels")));
        let is_of_tool =
            |name: &str| name.starts_with("com.docker.compose.") || name.starts_with("desktop.docker.io/");
        let changed =
            wanted.iter().filter(|(name, value)| !is_of_tool(name) && actual.get(*name) != Some(value));
        let mut what: BTreeSet<&str> = changed.map(|(name, _)| name.as_str()).collect();
        if self.image.is_some() {
            let added = actual.iter().filter(|(name, value)| {
                !wanted.contains_key(*name) && !is_of_tool(name) && of_image.get(*name) != Some(value)
            });
            what.extend(added.map(|(name, _)| name.as_str()));
        }
        what.into_iter().map(|name| format!("label {name}")).collect()
    }

    fn mounts(&self) -> Vec<String> {
        let mounts: Vec<&Value> =
            self.actual("/Mounts").and_then(Value::as_array).into_iter().flatten().collect();
        let at = |target: &str| {
            mounts.iter().copied().find(|mount| cleaned(text(mount, "Destination")) == cleaned(target))
        };
        let mut known: BTreeSet<PathBuf> = BTreeSet::new();
        known.extend(self.uses_api_socket().then(|| cleaned(API_SOCKET)));
        let mut what: BTreeSet<String> = BTreeSet::new();
        for volume in self.wanted("volumes").and_then(Value::as_array).into_iter().flatten() {
            let target = unescaped(text(volume, "target"));
            known.insert(cleaned(&target));
            let source = unescaped(text(volume, "source"));
            let Some(mount) = at(&target) else {
                if text(volume, "type") != "tmpfs" {
                    what.insert(target);
                }
                continue;
            };
            let is_same_source = match text(volume, "type") {
                "bind" => text(mount, "Type") == "bind" && cleaned(text(mount, "Source")) == cleaned(&source),
                "volume" if source.is_empty() => text(mount, "Type") == "volume",
                "volume" => {
                    let name = self.volume_name(&source).unwrap_or(&source);
                    text(mount, "Type") == "volume" && text(mount, "Name") == name
                }
                "image" => text(mount, "Type") == "image",
                _ => true,
            };
            let read_only = volume.get("read_only").and_then(Value::as_bool).unwrap_or(false);
            // The engine mounts images read-only, whatever the files say.
            let is_writable =
                mount.get("RW").and_then(Value::as_bool).filter(|_| text(volume, "type") != "image");
            if !is_same_source || is_writable.is_some_and(|writable| writable == read_only) {
                what.insert(target);
            }
        }
        for (target, path) in self.secrets_and_configs() {
            known.insert(cleaned(&target));
            if let Some(path) = path
                && at(&target).is_none_or(|mount| cleaned(text(mount, "Source")) != cleaned(&path))
            {
                what.insert(target);
            }
        }
        let declared = self.of_image("/Volumes").and_then(Value::as_object);
        for mount in &mounts {
            let target = text(mount, "Destination");
            let is_anonymous = text(mount, "Type") == "volume" && is_full_id(text(mount, "Name"));
            let is_declared =
                declared.is_some_and(|all| all.keys().any(|path| cleaned(path) == cleaned(target)));
            // The volumes of other containers are mounted under targets that are not known here.
            if self.wanted("volumes_from").is_none()
                && !known.contains(&cleaned(target))
                && !is_anonymous
                && !is_declared
                && text(mount, "Type") != "tmpfs"
            {
                what.insert(target.to_owned());
            }
        }
        what.into_iter().map(|target| format!("volume {target}")).collect()
    }

    fn volume_name(&self, key: &str) -> Option<&str> {
        self.model.volume(key).and_then(|volume| volume.get("name")?.as_str())
    }

    /// The secrets and configs by their paths in the container, each with its file. Those without one are copied into the
    /// container.
    fn secrets_and_configs(&self) -> Vec<(String, Option<String>)> {
        let mut all = Vec::new();
        for (section, folder) in [("secrets", "/run/secrets/"), ("configs", "/")] {
            for file in self.wanted(section).and_then(Value::as_array).into_iter().flatten() {
                let source = text(file, "source");
                let target = match text(file, "target") {
                    "" => format!("{folder}{source}"),
                    path if path.starts_with('/') => path.to_owned(),
                    name => format!("{folder}{name}"),
                };
                let path = self.model.file(section, source).and_then(|file| file.get("file")?.as_str());
                all.push((target, path.map(unescaped)));
            }
        }
        all
    }

    /// Reports whether the container binds what the rendered definition has below `home` under another folder: `~` was the
    /// home directory of another user when it was made.
    pub(super) fn binds_below_another(&self, home: &Path) -> bool {
        let volumes = self.wanted("volumes").and_then(Value::as_array).into_iter().flatten();
        let binds = volumes.filter(|volume| text(volume, "type") == "bind");
        let binds = binds.map(|bind| (unescaped(text(bind, "target")), unescaped(text(bind, "source"))));
        let files = self.secrets_and_configs().into_iter();
        let files = files.filter_map(|(target, path)| Some((target, path?)));
        let mounts = self.actual("/Mounts").and_then(Value::as_array);
        let is_elsewhere = |(target, source): (String, String)| {
            let source = cleaned(&source);
            let rest = source.strip_prefix(home).ok().filter(|rest| !rest.as_os_str().is_empty());
            let Some(rest) = rest else { return false };
            mounts.into_iter().flatten().any(|mount| {
                let bound = Path::new(text(mount, "Source"));
                let is_it = cleaned(text(mount, "Destination")) == cleaned(&target);
                is_it && !bound.starts_with(home) && bound.ends_with(rest)
            })
        };
        // It is neither empty nor the root.
        home.parent().is_some() && binds.chain(files).any(is_elsewhere)
    }

    /// Returns the mounts of the container whose volume or file is another one by now: a hash has only the keys that the
    /// service knows them by.
    pub(super) fn moved_mounts(&self) -> Vec<String> {
        let mut wanted: Vec<(String, &str, String)> = Vec::new();
        for volume in self.wanted("volumes").and_then(Value::as_array).into_iter().flatten() {
            if text(volume, "type") == "volume"
                && let Some(name) = self.volume_name(&unescaped(text(volume, "source")))
            {
                wanted.push((unescaped(text(volume, "target")), "Name", name.to_owned()));
            }
        }
        for (target, path) in self.secrets_and_configs() {
            wanted.extend(path.map(|path| (target, "Source", path)));
        }
        let mounts = self.actual("/Mounts").and_then(Value::as_array);
        wanted.retain(|(target, key, source)| {
            let mut all = mounts.into_iter().flatten();
            let mount = all.find(|mount| cleaned(text(mount, "Destination")) == cleaned(target));
            mount.is_some_and(|mount| cleaned(text(mount, key)) != cleaned(source))
        });
        wanted.into_iter().map(|(target, ..)| format!("volume {target}")).collect()
    }

    fn command_differs(&self) -> bool {
        let actual = words(self.actual("/Config/Cmd"));
        match self.wanted("command") {
            Some(command) => {
                words(Some(command)).map(|word| word.iter().map(|w| unescaped(w)).collect()) != actual
            }
            // With an entrypoint of its own, a service does not get the image's command.
            None if self.wanted("entrypoint").is_some() => actual.is_some_and(|words| !words.is_empty()),
            None => {
                self.image.is_some()
                    && words(self.of_image("/Cmd")).unwrap_or_default() != actual.unwrap_or_default()
            }
        }
    }

    fn entrypoint_differs(&self) -> bool {
        let actual = words(self.actual("/Config/Entrypoint")).unwrap_or_default();
        match self.wanted("entrypoint") {
            Some(wanted) => {
                let wanted: Vec<String> =
                    words(Some(wanted)).unwrap_or_default().iter().map(|word| unescaped(word)).collect();
                wanted != actual
            }
            None => self.image.is_some() && words(self.of_image("/Entrypoint")).unwrap_or_default() != actual,
        }
    }

    /// A text whose default comes from the image.
    fn text_differs(&self, key: &str, actual: &str, of_image: &str) -> bool {
        let actual = self.actual(actual).and_then(Value::as_str).unwrap_or_default();
        match self.wanted(key) {
            Some(wanted) => plain(wanted) != actual,
            None if self.image.is_none() => false,
            None => {
                let default = self.of_image(of_image).and_then(Value::as_str).unwrap_or_default();
                // Some engines spell out their default.
                !(actual == default || actual == "/" || actual == "SIGTERM" || actual == "15")
            }
        }
    }

    fn plain_text_differs(&self, key: &str, actual: &str) -> bool {
        let wanted = self.wanted(key).map(plain).unwrap_or_default();
        wanted != self.actual(actual).and_then(Value::as_str).unwrap_or_default()
    }

    fn hostname_differs(&self) -> bool {
        let actual = self.actual("/Config/Hostname").and_then(Value::as_str).unwrap_or_default();
        self.wanted("hostname").is_some_and(|wanted| plain(wanted) != actual)
    }

    fn name(&self) -> &str {
        self.actual("/Name").and_then(Value::as_str).unwrap_or_default().trim_start_matches('/')
    }

    fn name_differs(&self) -> bool {
        self.wanted("container_name").is_some_and(|wanted| plain(wanted) != self.name())
    }

    fn stop_grace_period_differs(&self) -> bool {
        let actual =
            self.actual("/Config/StopTimeout").and_then(Value::as_i64).filter(|seconds| *seconds != 10);
        let wanted = self.wanted("stop_grace_period").and_then(Value::as_str).and_then(duration);
        let wanted =
            wanted.and_then(|period| i64::try_from(period.as_secs()).ok()).filter(|seconds| *seconds != 10);
        wanted.unwrap_or(0) != actual.unwrap_or(0)
    }

    fn flag_differs(&self, key: &str, actual: &str) -> bool {
        let flag = |value: Option<&Value>| value.and_then(Value::as_bool).unwrap_or(false);
        flag(self.wanted(key)) != flag(self.actual(actual))
    }

    fn restart_differs(&self) -> bool {
        // `deploy.restart_policy` is translated by compose in ways that depend on its version.
        if self.service.pointer("/deploy/restart_policy").is_some_and(|policy| !policy.is_null()) {
            return false;
        }
        let wanted = self.wanted("restart").map(plain).unwrap_or_default();
        let (name, count) = wanted.split_once(':').unwrap_or((&wanted, "0"));
        let actual =
            self.actual("/HostConfig/RestartPolicy/Name").and_then(Value::as_str).unwrap_or_default();
        let actual_count =
            self.actual("/HostConfig/RestartPolicy/MaximumRetryCount").and_then(Value::as_i64).unwrap_or(0);
        let named = |name: &str| if name == "no" { String::new() } else { name.to_owned() };
        named(name) != named(actual) || count.parse().unwrap_or(0) != actual_count
    }

    fn devices_differ(&self) -> bool {
        let text = |value: &Value, keys: [&str; 2]| {
            keys.iter().find_map(|key| value.get(*key)?.as_str()).unwrap_or_default().to_owned()
        };
        let set = |value: Option<&Value>| -> BTreeSet<(String, String, String)> {
            let all = value.and_then(Value::as_array).into_iter().flatten();
            all.map(|device| match device {
                Value::String(short) => {
                    let mut parts = short.split(':');
                    let host = parts.next().unwrap_or_default().to_owned();
                    let target = parts.next().map_or_else(|| host.clone(), str::to_owned);
                    (host, target, parts.next().unwrap_or("rwm").to_owned())
                }
                device => {
                    let permissions = text(device, ["permissions", "CgroupPermissions"]);
                    let permissions = if permissions.is_empty() { "rwm".to_owned() } else { permissions };
                    (
                        text(device, ["source", "PathOnHost"]),
                        text(device, ["target", "PathInContainer"]),
                        permissions,
                    )
                }
            })
            .collect()
        };
        let mut wanted = set(self.wanted("devices"));
        wanted.retain(|(source, ..)| !uncommon::is_device_name(source));
        wanted != set(self.actual("/HostConfig/Devices"))
    }

    fn ports_differ(&self) -> bool {
        let mut wanted: BTreeSet<(String, String, String)> = BTreeSet::new();
        for port in self.wanted("ports").and_then(Value::as_array).into_iter().flatten() {
            let text = |key: &str| port.get(key).map(plain).unwrap_or_default();
            let protocol = if text("protocol").is_empty() { "tcp".to_owned() } else { text("protocol") };
            wanted.insert((format!("{}/{protocol}", text("target")), text("host_ip"), text("published")));
        }
        let mut actual: BTreeSet<(String, String, String)> = BTreeSet::new();
        let bindings = self.actual("/HostConfig/PortBindings").and_then(Value::as_object);
        for (target, hosts) in bindings.into_iter().flatten() {
            for host in hosts.as_array().into_iter().flatten() {
                let text = |key: &str| host.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
                actual.insert((target.clone(), text("HostIp"), text("HostPort")));
            }
        }
        // `0` and no port both mean any.
        let normal = |ports: BTreeSet<(String, String, String)>| -> BTreeSet<(String, String, String)> {
            let any = |port: String| if port == "0" { String::new() } else { port };
            ports.into_iter().map(|(target, host, port)| (target, host, any(port))).collect()
        };
        normal(wanted) != normal(actual)
    }

    fn networks_differ(&self) -> bool {
        if self.wanted("network_mode").is_some() {
            return false;
        }
        let Some(actual) = self.actual("/NetworkSettings/Networks").and_then(Value::as_object) else {
            return false;
        };
        let Some(wanted) = self.wanted("networks").and_then(Value::as_object) else { return false };
        let names: BTreeSet<String> = wanted.keys().map(|key| self.network_name(key)).collect();
        if names != actual.keys().cloned().collect() {
            return true;
        }
        wanted.iter().any(|(key, options)| {
            let Some(endpoint) = actual.get(&self.network_name(key)) else { return true };
            let address = |wanted: &str, actual: &str| {
                let wanted = options.get(wanted).and_then(Value::as_str).unwrap_or_default();
                let actual = endpoint.pointer(&format!("/IPAMConfig/{actual}")).and_then(Value::as_str);
                wanted != actual.unwrap_or_default()
            };
            let aliases: BTreeSet<String> =
                words(endpoint.get("Aliases")).unwrap_or_default().into_iter().collect();
            let wanted = words(options.get("aliases")).unwrap_or_default();
            address("ipv4_address", "IPv4Address")
                || address("ipv6_address", "IPv6Address")
                || wanted.iter().any(|alias| !aliases.contains(alias))
        })
    }

    /// The networks that it is to be connected to, and those that it is; `None` if the files or the engine name none.
    fn networks(&self) -> Option<(Vec<String>, Vec<String>)> {
        if self.wanted("network_mode").is_some() {
            return None;
        }
        let actual = self.actual("/NetworkSettings/Networks")?.as_object()?;
        let wanted = self.wanted("networks")?.as_object()?.keys().map(|key| self.network_name(key));
        Some((wanted.collect(), actual.keys().cloned().collect()))
    }

    fn network_name(&self, key: &str) -> String {
        let name = self.model.network(key).and_then(|network| network.get("name")?.as_str());
        name.unwrap_or(key).to_owned()
    }

    fn network_mode_differs(&self) -> bool {
        let actual = self.actual("/HostConfig/NetworkMode").and_then(Value::as_str).unwrap_or_default();
        let is_shared = actual.starts_with("container:");
        match self.wanted("network_mode").map(plain) {
            None => is_shared || actual == "host" || actual == "none",
            Some(wanted) if wanted.starts_with("service:") || wanted.starts_with("container:") => !is_shared,
            Some(wanted) => wanted != actual && !(wanted == "bridge" && actual == "default"),
        }
    }

    fn namespace_differs(&self, key: &str, actual: &str) -> bool {
        let actual = self.actual(actual).and_then(Value::as_str).unwrap_or_default();
        match self.wanted(key).map(plain) {
            // The rest are defaults, which depend on the engine.
            None => actual == "host" || actual.starts_with("container:"),
            Some(wanted) if wanted.starts_with("service:") || wanted.starts_with("container:") => {
                !actual.starts_with("container:")
            }
            Some(wanted) => wanted != actual,
        }
    }

    fn tmpfs_differs(&self) -> bool {
        let mut wanted: BTreeSet<String> = BTreeSet::new();
        let one = self.wanted("tmpfs").and_then(Value::as_str).map(str::to_owned);
        for path in words(self.wanted("tmpfs")).unwrap_or_default().into_iter().chain(one) {
            wanted.insert(path.split(':').next().unwrap_or_default().to_owned());
        }
        let actual = self.actual("/HostConfig/Tmpfs").and_then(Value::as_object);
        wanted != actual.into_iter().flatten().map(|(path, _)| path.clone()).collect()
    }

    /// The default is the engine's (`default-shm-size`).
    fn shm_size_differs(&self) -> bool {
        let wanted = self.wanted("shm_size").and_then(amount);
        let actual = self.actual("/HostConfig/ShmSize").and_then(Value::as_i64);
        wanted.zip(actual).is_some_and(|(wanted, actual)| wanted != actual)
    }

    fn bytes_differ(&self, wanted: &[&str], actual: &str) -> bool {
        self.number_differs(wanted, actual)
    }

    /// A number whose default is 0; -1 also means no limit.
    fn number_differs(&self, wanted: &[&str], actual: &str) -> bool {
        let wanted =
            wanted.iter().find_map(|pointer| self.service.pointer(pointer).and_then(amount)).unwrap_or(0);
        let actual = self.actual(actual).and_then(Value::as_i64).unwrap_or(0);
        wanted.max(0) != actual.max(0)
    }

    fn cpus_differ(&self) -> bool {
        let cpus = ["/cpus", "/deploy/resources/limits/cpus"].iter().find_map(|pointer| {
            let value = self.service.pointer(pointer)?;
            value.as_f64().or_else(|| value.as_str()?.parse().ok())
        });
        let number = |value: Option<&Value>| value.and_then(amount);
        let wanted = cpus.filter(|cpus| *cpus > 0.0).unwrap_or_else(|| {
            uncommon::cpu_quota(number(self.wanted("cpu_quota")), number(self.wanted("cpu_period")))
        });
        let actual = self.actual("/HostConfig/NanoCpus").and_then(Value::as_f64).map(|nanos| nanos / 1e9);
        let actual = actual.filter(|cpus| *cpus > 0.0).unwrap_or_else(|| {
            uncommon::cpu_quota(
                number(self.actual("/HostConfig/CpuQuota")),
                number(self.actual("/HostConfig/CpuPeriod")),
            )
        });
        (wanted - actual).abs() > 1e-3
    }

    /// An engine adds limits of its own (`default-ulimits`).
    fn ulimits_differ(&self) -> bool {
        let mut wanted: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for (name, limit) in self.wanted("ulimits").and_then(Value::as_object).into_iter().flatten() {
            let part = |key: &str| limit.get(key).and_then(amount);
            let single = amount(limit);
            let (Some(soft), Some(hard)) = (part("soft").or(single), part("hard").or(single)) else {
                continue;
            };
            wanted.insert(name.clone(), (soft, hard));
        }
        let mut actual: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for limit in self.actual("/HostConfig/Ulimits").and_then(Value::as_array).into_iter().flatten() {
            let part = |key: &str| limit.get(key).and_then(Value::as_i64).unwrap_or(0);
            let name = limit.get("Name").and_then(Value::as_str).unwrap_or_default();
            actual.insert(name.to_owned(), (part("Soft"), part("Hard")));
        }
        wanted.iter().any(|(name, limits)| actual.get(name) != Some(limits))
    }

    fn sysctls_differ(&self) -> bool {
        let map = |value: Option<&Value>| -> BTreeMap<String, String> {
            let all = value.and_then(Value::as_object).into_iter().flatten();
            all.map(|(name, value)| (name.clone(), plain(value))).collect()
        };
        map(self.wanted("sysctls")) != map(self.actual("/HostConfig/Sysctls"))
    }

    fn extra_hosts_differ(&self) -> bool {
        let set = |value: Option<&Value>| -> BTreeSet<String> {
            let listed = words(value).unwrap_or_default().into_iter().map(|host| host.replacen('=', ":", 1));
            let mapped =
                value.and_then(Value::as_object).into_iter().flatten().flat_map(|(name, addresses)| {
                    let several = words(Some(addresses)).unwrap_or_default();
                    let all = if several.is_empty() { vec![plain(addresses)] } else { several };
                    all.into_iter().map(move |address| format!("{name}:{address}"))
                });
            listed.chain(mapped).map(|host| host.replace(['[', ']'], "")).collect()
        };
        set(self.wanted("extra_hosts")) != set(self.actual("/HostConfig/ExtraHosts"))
    }

    fn list_differs(&self, key: &str, actual: &str) -> bool {
        let one = self.wanted(key).and_then(Value::as_str).map(|one| vec![one.to_owned()]);
        let wanted = words(self.wanted(key)).or(one).unwrap_or_default();
        wanted != words(self.actual(actual)).unwrap_or_default()
    }

    /// An engine adds options of its own (`log-opts`).
    fn logging_differs(&self) -> bool {
        let Some(logging) = self.wanted("logging") else { return false };
        let driver = logging.get("driver").and_then(Value::as_str).unwrap_or_default();
        let actual = self.actual("/HostConfig/LogConfig/Type").and_then(Value::as_str).unwrap_or_default();
        let map = |value: Option<&Value>| -> BTreeMap<String, String> {
            let all = value.and_then(Value::as_object).into_iter().flatten();
            all.map(|(name, value)| (name.clone(), plain(value))).collect()
        };
        let options = map(self.actual("/HostConfig/LogConfig/Config"));
        (!driver.is_empty() && driver != actual)
            || map(logging.get("options")).iter().any(|(name, value)| options.get(name) != Some(value))
    }

    fn healthcheck_differs(&self) -> bool {
        let actual = self.actual("/Config/Healthcheck");
        let of_image = self.of_image("/Healthcheck");
        let test =
            |value: Option<&Value>| words(value.and_then(|check| check.get("Test"))).unwrap_or_default();
        let Some(wanted) = self.wanted("healthcheck") else {
            return self.image.is_some() && actual != of_image;
        };
        if wanted.get("disable").and_then(Value::as_bool) == Some(true) {
            return test(actual) != ["NONE"];
        }
        let command = words(wanted.get("test"))
            .map(|words| words.iter().map(|word| unescaped(word)).collect::<Vec<_>>());
        // The engine takes from the image what is left out, and podman puts in its defaults.
        let image = of_image.filter(|_| !self.is_podman());
        let inherits = self.image.is_some() && !self.is_podman();
        match command {
            Some(command) if command != test(actual) => return true,
            None if inherits && test(actual) != test(image) => return true,
            _ => {}
        }
        let number = |check: Option<&Value>, key: &str| {
            check.and_then(|check| check.get(key)).and_then(Value::as_u64).unwrap_or(0)
        };
        HEALTH_NUMBERS.iter().any(|(key, field, default)| {
            let named = wanted.get(key).filter(|_| *key != "start_interval" || !self.is_podman());
            let named = named.and_then(|value| match value.as_str().and_then(duration) {
                Some(period) => u64::try_from(period.as_nanos()).ok(),
                None => u64::try_from(amount(value)?).ok(),
            });
            let inherited = inherits.then(|| number(image, field));
            let Some(expected) = named.filter(|named| *named > 0).or(inherited) else { return false };
            let or_default = |number: u64| if number == 0 { *default } else { number };
            or_default(expected) != or_default(number(actual, field))
        })
    }
}

/// The words of a list; `None` if it is none.
fn words(value: Option<&Value>) -> Option<Vec<String>> {
    Some(
        value?
            .as_array()?
            .iter()
            .map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned))
            .collect(),
    )
}

fn variables(list: Option<&Value>) -> BTreeMap<String, String> {
    let all = words(list).unwrap_or_default();
    all.iter()
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The value of a field as text, as compose passes it to the engine.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), unescaped)
}

/// Compose prints a literal `$` as `$$`.
pub(crate) fn unescaped(text: &str) -> String {
    text.replace("$$", "$")
}

/// A path as the engine reports it.
pub(crate) fn cleaned(path: &str) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in Path::new(path).components() {
        if part == Component::ParentDir {
            clean.pop();
        } else {
            clean.push(part);
        }
    }
    clean
}

/// A number, also as text.
fn amount(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}
