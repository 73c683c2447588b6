//! Settings that few services have. Podman reports docker's defaults in place of most of them, so that they are compared for
//! docker only. Where docker's default depends on the host, a setting that the files do not name is not compared.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Sides, amount, cleaned, plain, unescaped, words};

/// What podman reports as every container's runtime.
const PODMANS_RUNTIME: &str = "oci";

/// The variables that podman sets in every container unless the image or the files do.
pub(super) const PODMANS_VARIABLES: [&str; 5] = ["container", "HOME", "HOSTNAME", "PATH", "TERM"];

/// The period of a CPU quota that names none, in microseconds.
const CPU_PERIOD: f64 = 100_000.0;

/// The driver of devices that are named as `vendor/class=name`.
const CDI: &str = "cdi";

/// A request for devices: driver, number, IDs, capabilities and options.
type DeviceRequest = (String, i64, BTreeSet<String>, BTreeSet<String>, BTreeMap<String, String>);

/// Reports whether compose requests this entry of `devices` by its name: it is no path.
pub(super) fn is_device_name(source: &str) -> bool {
    !source.starts_with('/')
        && source.split_once('=').is_some_and(|(kind, name)| kind.contains('/') && !name.is_empty())
}

/// The part of a CPU that a quota and its period come to; engines report one as the other.
pub(super) fn cpu_quota(quota: Option<i64>, period: Option<i64>) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "quotas are small")]
    let number = |value: i64| value as f64;
    let period = period.filter(|period| *period > 0).map_or(CPU_PERIOD, number);
    quota.filter(|quota| *quota > 0).map_or(0.0, |quota| number(quota) / period)
}

impl Sides<'_> {
    pub(super) fn is_podman(&self) -> bool {
        self.actual("/HostConfig/Runtime").and_then(Value::as_str) == Some(PODMANS_RUNTIME)
    }

    /// Returns which of these settings differ.
    pub(super) fn uncommon(&self) -> Vec<String> {
        if self.is_podman() {
            return Vec::new();
        }
        let differs = [
            ("gpus", self.device_requests_differ()),
            (
                "device_cgroup_rules",
                self.list_differs("device_cgroup_rules", "/HostConfig/DeviceCgroupRules"),
            ),
            ("memswap_limit", self.swap_differs()),
            ("mem_swappiness", self.swappiness_differs()),
            ("oom_kill_disable", self.oom_kill_differs()),
            ("oom_score_adj", self.oom_score_differs()),
            ("runtime", self.named_text_differs("runtime", "/HostConfig/Runtime")),
            ("cgroup", self.named_text_differs("cgroup", "/HostConfig/CgroupnsMode")),
            ("domainname", self.named_text_differs("domainname", "/Config/Domainname")),
            ("cgroup_parent", self.plain_text_differs("cgroup_parent", "/HostConfig/CgroupParent")),
            ("userns_mode", self.plain_text_differs("userns_mode", "/HostConfig/UsernsMode")),
            ("uts", self.plain_text_differs("uts", "/HostConfig/UTSMode")),
            ("dns_search", self.list_differs("dns_search", "/HostConfig/DnsSearch")),
            ("dns_opt", self.list_differs("dns_opt", "/HostConfig/DnsOptions")),
            ("mac_address", self.mac_address_differs()),
            ("volumes_from", self.volumes_from_differ()),
            ("tmpfs options", self.tmpfs_options_differ()),
        ];
        let mut what: Vec<String> =
            differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect();
        what.extend(self.mount_options().into_iter().map(|target| format!("volume {target}")));
        what
    }

    /// A text that is compared only if the files name it.
    fn named_text_differs(&self, key: &str, actual: &str) -> bool {
        self.wanted(key).is_some() && self.plain_text_differs(key, actual)
    }

    fn device_requests_differ(&self) -> bool {
        let mut wanted: BTreeSet<DeviceRequest> = BTreeSet::new();
        let reserved = self.service.pointer("/deploy/resources/reservations/devices");
        let listed = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
        wanted.extend(listed(reserved).iter().map(|request| device_request(request, &COMPOSES, None)));
        let gpus = listed(self.wanted("gpus"));
        wanted.extend(gpus.iter().map(|request| device_request(request, &COMPOSES, Some("gpu"))));
        let devices = listed(self.wanted("devices"));
        let source = |device: &Value| Some(device.get("source")?.as_str()?.to_owned());
        let named: BTreeSet<String> =
            devices.iter().filter_map(source).filter(|name| is_device_name(name)).collect();
        if !named.is_empty() {
            wanted.insert((CDI.to_owned(), 0, named, BTreeSet::new(), BTreeMap::new()));
        }
        let actual = listed(self.actual("/HostConfig/DeviceRequests"));
        let actual = actual.iter().map(|request| device_request(request, &ENGINES, None));
        wanted != actual.collect::<BTreeSet<DeviceRequest>>()
    }

    pub(super) fn swap_differs(&self) -> bool {
        let number = |pointer: &str| self.actual(pointer).and_then(Value::as_i64).unwrap_or(0);
        let (memory, actual) = (number("/HostConfig/Memory"), number("/HostConfig/MemorySwap"));
        match self.wanted("memswap_limit").and_then(amount).filter(|limit| *limit != 0) {
            // A kernel that does not count swap makes every limit none.
            Some(wanted) => wanted != actual && actual != -1,
            None => actual > 0 && actual != memory.saturating_mul(2),
        }
    }

    fn swappiness_differs(&self) -> bool {
        let actual = self.actual("/HostConfig/MemorySwappiness").and_then(Value::as_i64);
        // -1 and nothing are the host's, also where the kernel can't set it.
        let actual = actual.filter(|value| *value >= 0);
        match (self.wanted("mem_swappiness").and_then(amount).filter(|value| *value != 0), actual) {
            (Some(wanted), Some(actual)) => wanted != actual,
            (None, Some(actual)) => actual > 0,
            (_, None) => false,
        }
    }

    /// With cgroups v2 the engine drops the setting.
    fn oom_kill_differs(&self) -> bool {
        let actual = self.actual("/HostConfig/OomKillDisable").and_then(Value::as_bool);
        let wanted = self.wanted("oom_kill_disable").and_then(Value::as_bool).unwrap_or(false);
        actual.is_some_and(|actual| actual != wanted)
    }

    fn oom_score_differs(&self) -> bool {
        let actual = self.actual("/HostConfig/OomScoreAdj").and_then(Value::as_i64).unwrap_or(0);
        self.wanted("oom_score_adj").and_then(amount).unwrap_or(0) != actual
    }

    /// The engine chooses an address that is not named, and need not tell that of a container that does not run.
    fn mac_address_differs(&self) -> bool {
        let empty = serde_json::Map::new();
        let endpoints = self.actual("/NetworkSettings/Networks").and_then(Value::as_object).unwrap_or(&empty);
        let address = |value: &Value| {
            let text = value.get("MacAddress")?.as_str()?;
            (!text.is_empty()).then(|| text.to_lowercase())
        };
        let mut known: Vec<String> = endpoints.values().filter_map(address).collect();
        known.extend(self.actual("/Config").and_then(address));
        let wanted = self.wanted("mac_address").map(|wanted| plain(wanted).to_lowercase());
        let of_networks = self.wanted("networks").and_then(Value::as_object);
        wanted.is_some_and(|wanted| !known.is_empty() && !known.contains(&wanted))
            || of_networks.into_iter().flatten().any(|(key, options)| {
                let wanted = options.get("mac_address").map(|wanted| plain(wanted).to_lowercase());
                let actual = endpoints.get(&self.network_name(key)).and_then(address);
                wanted.zip(actual).is_some_and(|(wanted, actual)| wanted != actual)
            })
    }

    /// Compose puts containers in the place of services, and some versions leave out whether they are read-only.
    fn volumes_from_differ(&self) -> bool {
        let count = |value: Option<&Value>| words(value).unwrap_or_default().len();
        count(self.wanted("volumes_from")) != count(self.actual("/HostConfig/VolumesFrom"))
    }

    fn tmpfs_options_differ(&self) -> bool {
        let options = |text: &str| -> BTreeSet<String> {
            text.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect()
        };
        let one = self.wanted("tmpfs").and_then(Value::as_str).map(str::to_owned);
        let wanted = words(self.wanted("tmpfs")).unwrap_or_default().into_iter().chain(one);
        let actual = self.actual("/HostConfig/Tmpfs");
        wanted.map(|text| unescaped(&text)).any(|text| {
            let (path, wanted) = text.split_once(':').unwrap_or((&text, ""));
            // A path that is missing is another difference.
            let actual = actual.and_then(|all| all.get(path)?.as_str());
            actual.is_some_and(|actual| options(actual) != options(wanted))
        })
    }

    /// Returns the targets of binds with another propagation, and of volumes in memory with another size or mode.
    fn mount_options(&self) -> Vec<String> {
        let list = |pointer: &str| self.actual(pointer).and_then(Value::as_array).into_iter().flatten();
        let text = |value: &Value, pointer: &str| {
            value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let number = |value: Option<&Value>, pointer: &str| {
            value.and_then(|value| value.pointer(pointer)).and_then(amount).unwrap_or(0)
        };
        let mut what = Vec::new();
        for volume in self.wanted("volumes").and_then(Value::as_array).into_iter().flatten() {
            let target = unescaped(&text(volume, "/target"));
            let is_at = |value: &Value, key: &str| cleaned(&text(value, key)) == cleaned(&target);
            let differs = match text(volume, "/type").as_str() {
                "bind" => {
                    let mount = list("/Mounts").find(|mount| is_at(mount, "/Destination"));
                    let actual = mount.map(|mount| text(mount, "/Propagation")).unwrap_or_default();
                    match text(volume, "/bind/propagation").as_str() {
                        // Docker binds its own folder with `rslave`.
                        "" => !["", "private", "rprivate", "rslave"].contains(&actual.as_str()),
                        wanted => !actual.is_empty() && wanted != actual,
                    }
                }
                "tmpfs" => {
                    let mount = list("/HostConfig/Mounts").find(|mount| is_at(mount, "/Target"));
                    let (mode, actual) =
                        (number(Some(volume), "/tmpfs/mode"), number(mount, "/TmpfsOptions/Mode"));
                    let size = number(Some(volume), "/tmpfs/size");
                    // Earlier versions of compose leave out the mode.
                    mount.is_some_and(|_| size != number(mount, "/TmpfsOptions/SizeBytes"))
                        || (mode != 0 && actual != 0 && mode != actual)
                }
                _ => false,
            };
            if differs {
                what.push(target);
            }
        }
        what
    }
}

/// How the parts of a device request are called: driver, number, IDs, capabilities and options.
type Names = [&'static str; 5];
const COMPOSES: Names = ["driver", "count", "device_ids", "capabilities", "options"];
const ENGINES: Names = ["Driver", "Count", "DeviceIDs", "Capabilities", "Options"];

fn device_request(request: &Value, names: &Names, implied: Option<&str>) -> DeviceRequest {
    let [driver, count, ids, capabilities, options] = names.map(|name| request.get(name));
    let ids: BTreeSet<String> = words(ids).unwrap_or_default().into_iter().collect();
    // All devices are -1, and 0 or nothing in some versions.
    let count = match count.and_then(amount) {
        _ if !ids.is_empty() => 0,
        None | Some(0) => -1,
        Some(count) => count,
    };
    let mut able: BTreeSet<String> = BTreeSet::new();
    for one in capabilities.and_then(Value::as_array).into_iter().flatten() {
        // The engine has alternatives, of which compose uses one.
        able.extend(one.as_str().map(str::to_owned));
        able.extend(words(Some(one)).unwrap_or_default());
    }
    able.extend(implied.map(str::to_owned));
    let options = options.and_then(Value::as_object).into_iter().flatten();
    let options = options.map(|(name, value)| (name.clone(), plain(value))).collect();
    (driver.map(plain).unwrap_or_default(), count, ids, able, options)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::compose::Model;
    use crate::model::definition::{Rendered, Running};

    #[test]
    fn variables_that_podman_sets_by_itself_differ_only_if_the_files_name_them() {
        let found = |service: Value, runtime: &str, variables: &[&str]| {
            let container = json!({ "Config": { "Env": variables }, "HostConfig": { "Runtime": runtime } });
            let (model, image) = (Model::default(), json!({ "Env": ["PATH=/bin"] }));
            Sides { service: &service, model: &model, container: &container, image: Some(&image) }
                .differences()
        };
        let set = ["container=podman", "HOME=/root", "HOSTNAME=0123456789ab", "TERM=xterm", "PATH=/sbin"];
        let none: [&str; 0] = [];
        assert_eq!(found(json!({}), "oci", &set), none);
        assert_eq!(found(json!({}), "runc", &set[..1]), ["environment container"]);
        let named = json!({ "environment": { "HOME": "/srv" } });
        assert_eq!(found(named, "oci", &set), ["environment HOME"]);
        assert_eq!(found(json!({}), "oci", &["MODE=one"]), ["environment MODE"]);
    }

    #[test]
    fn an_image_that_is_mounted_is_no_difference_although_the_hash_has_its_id() {
        let volume = |kind: &str| json!({ "type": kind, "source": "assets:1", "target": "/assets" });
        let what = |kind: &str, mounted: &str| {
            let model = json!({ "services": { "web": { "volumes": [volume(kind)] } } });
            let rendered = Rendered {
                model: serde_json::from_value(model).expect("a model"),
                hashes: [("web".to_owned(), "new".to_owned())].into(),
                version: "5.1.0".to_owned(),
                ..Rendered::default()
            };
            let labels = json!({
                "com.docker.compose.service": "web",
                "com.docker.compose.config-hash": "old",
                "com.docker.compose.version": "5.1.0",
            });
            let mount = json!({ "Type": mounted, "Source": "/x", "Destination": "/assets", "RW": mounted != "image" });
            let container = json!({ "Config": { "Labels": labels }, "Mounts": [mount] });
            let running = Running { containers: vec![container], ..Running::default() };
            let found = rendered.differences(&["web".to_owned()], &running);
            found.into_iter().flat_map(|difference| difference.what).collect::<Vec<String>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(what("image", "image"), none);
        assert_eq!(what("image", "bind"), ["volume /assets"], "it was another volume before");
        assert_eq!(what("npipe", "bind"), ["a setting that the engine does not report"]);
    }
}
