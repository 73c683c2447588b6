mod since;

use serde_json::{Value, json};

use super::*;

const COMPOSE: &str = "2.40.0";

/// The fields that differ between a service and a container that another version of compose has created.
fn of(service: Value, container: Value, image: Option<Value>) -> Vec<String> {
    let mut model = json!({ "services": {} });
    model["services"]["web"] = service;
    in_model(model, container, image)
}

fn in_model(model: Value, mut container: Value, image: Option<Value>) -> Vec<String> {
    let rendered = Rendered {
        model: serde_json::from_value(model).expect("a model"),
        hashes: BTreeMap::from([("web".to_owned(), "new".to_owned())]),
        version: COMPOSE.to_owned(),
        ..Rendered::default()
    };
    let labels = json!({ SERVICE_LABEL: "web", HASH_LABEL: "old", VERSION_LABEL: "2.20.0" });
    container["Config"]["Labels"] = labels;
    container["Image"] = "sha256:1".into();
    let running = Running {
        containers: vec![container],
        images: image.map(|config| ("sha256:1".to_owned(), config)).into_iter().collect(),
        networks: Vec::new(),
    };
    let differences = rendered.differences(&["web".to_owned()], &running);
    differences.into_iter().flat_map(|difference| difference.what).collect()
}

#[test]
fn a_variable_that_is_passed_through_but_not_set_here_is_a_difference_if_the_container_has_it() {
    let service = || json!({ "environment": { "SECRET": null, "MODE": "one" } });
    let container = |variables: &[&str]| json!({ "Config": { "Env": variables } });
    let image = |variables: &[&str]| Some(json!({ "Env": variables }));
    let set = ["SECRET=abc", "MODE=one", "PATH=/bin"];
    assert_eq!(of(service(), container(&set), image(&["PATH=/bin"])), ["environment SECRET"]);
    assert_eq!(
        of(service(), container(&set), image(&["PATH=/bin", "SECRET=of the image"])),
        ["environment SECRET"]
    );
    let none: [&str; 0] = [];
    assert_eq!(
        of(service(), container(&set), image(&["PATH=/bin", "SECRET=abc"])),
        none,
        "it is the image's"
    );
    assert_eq!(of(service(), container(&["SECRET", "MODE=one"]), image(&[])), none, "compose has unset it");
    assert_eq!(of(service(), container(&["MODE=one"]), image(&[])), none);
    let proxy = || container(&["HTTP_PROXY=http://proxy"]);
    assert_eq!(
        of(json!({ "environment": { "HTTP_PROXY": null } }), proxy(), image(&[])),
        ["environment HTTP_PROXY"]
    );
    assert_eq!(of(json!({}), proxy(), image(&[])), none, "compose adds the client's proxies by itself");
}

#[test]
fn the_proxies_of_docker_differ_if_a_new_container_would_get_others_whatever_the_hash_is() {
    let found = |hash: &str, service: Value, variables: &[&str], set: &[(&str, &str)]| {
        let rendered = Rendered {
            model: serde_json::from_value(json!({ "services": { "web": service } })).expect("a model"),
            hashes: BTreeMap::from([("web".to_owned(), "same".to_owned())]),
            proxies: Some(
                set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ),
            ..Rendered::default()
        };
        let labels = json!({ SERVICE_LABEL: "web", HASH_LABEL: hash });
        let container = json!({ "Config": { "Env": variables, "Labels": labels }, "Image": "sha256:1" });
        let image = json!({ "Env": ["NO_PROXY=of the image"] });
        let running = Running {
            containers: vec![container],
            images: [("sha256:1".to_owned(), image)].into(),
            networks: Vec::new(),
        };
        let differences = rendered.differences(&["web".to_owned()], &running);
        differences.into_iter().flat_map(|difference| difference.what).collect::<Vec<_>>()
    };
    let of_image = "NO_PROXY=of the image";
    let none: [&str; 0] = [];
    for hash in ["same", "old"] {
        let plain = |variables: &[&str], set: &[(&str, &str)]| found(hash, json!({}), variables, set);
        let lost = ["environment HTTP_PROXY (set by docker's proxies)"];
        assert_eq!(plain(&[of_image, "HTTP_PROXY=a"], &[]), lost, "it would be gone");
        assert_eq!(plain(&[of_image], &[("HTTP_PROXY", "a")]), lost, "it would be added");
        assert_eq!(plain(&[of_image, "HTTP_PROXY=b"], &[("HTTP_PROXY", "a")]), lost);
        assert_eq!(plain(&[of_image, "HTTP_PROXY=a"], &[("HTTP_PROXY", "a")]), none);
        assert_eq!(plain(&[of_image], &[]), none);
        let listed = json!({ "environment": { "HTTP_PROXY": "a" } });
        assert_eq!(found(hash, listed, &[of_image, "HTTP_PROXY=a"], &[("HTTP_PROXY", "b")]), none);
    }
}

/// The networks that differ, for one whose definition and state are these.
fn of_network(defined: Value, mut existing: Value) -> Vec<String> {
    let mut model = json!({ "services": { "web": { "networks": { "net": null } } }, "networks": {} });
    model["networks"]["net"] = defined;
    existing["Name"] = "p_net".into();
    existing["Labels"] = json!({ HASH_LABEL: "old" });
    let rendered = Rendered { model: serde_json::from_value(model).expect("a model"), ..Rendered::default() };
    let running = Running { networks: vec![existing], ..Running::default() };
    let differences = rendered.differences(&["web".to_owned()], &running);
    differences.into_iter().flat_map(|difference| difference.what).collect()
}

#[test]
fn a_network_whose_driver_the_file_no_longer_names_differs() {
    let driver = |name: &str| json!({ "Driver": name, "IPAM": { "Driver": "default", "Config": [] } });
    let plain = || json!({ "name": "p_net", "ipam": {} });
    let none: [&str; 0] = [];
    assert_eq!(of_network(plain(), driver("macvlan")), ["network net (driver)"]);
    assert_eq!(of_network(plain(), driver("bridge")), none);
    let named = json!({ "name": "p_net", "driver": "bridge" });
    assert_eq!(of_network(named.clone(), driver("bridge")), none);
    assert_eq!(of_network(named, driver("ipvlan")), ["network net (driver)"]);
}

#[test]
fn options_of_a_network_that_the_file_does_not_name_may_be_the_engines_defaults() {
    let with = |options: Value, is_ipv6: bool| json!({ "Driver": "bridge", "Options": options, "EnableIPv6": is_ipv6 });
    let by_default =
        || json!({ "com.docker.network.driver.mtu": "1450", "com.docker.network.enable_ipv4": "true" });
    let named = |more: Value| {
        let mut network = json!({ "name": "p_net" });
        network.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        network
    };
    let mtu = |mtu: Value| named(json!({ "driver_opts": { "com.docker.network.driver.mtu": mtu } }));
    let none: [&str; 0] = [];
    assert_eq!(of_network(named(json!({})), with(by_default(), true)), none);
    assert_eq!(of_network(mtu(json!("1450")), with(by_default(), false)), none);
    assert_eq!(of_network(mtu(json!(1450)), with(by_default(), false)), none);
    assert_eq!(of_network(mtu(json!("1400")), with(by_default(), false)), ["network net (driver_opts)"]);
    assert_eq!(of_network(mtu(json!("1450")), with(json!({}), false)), ["network net (driver_opts)"]);
    for (wanted, actual) in [(true, false), (false, true)] {
        let network = || named(json!({ "enable_ipv6": wanted }));
        assert_eq!(of_network(network(), with(Value::Null, actual)), ["network net (enable_ipv6)"]);
        assert_eq!(of_network(network(), with(Value::Null, wanted)), none);
    }
}

#[test]
fn a_network_without_ipv4_differs_unless_the_file_or_the_engine_says_so() {
    let defined = |enabled: Value| json!({ "name": "p_net", "enable_ipv4": enabled });
    let found = |enabled: Value, existing: Value| !of_network(defined(enabled), existing).is_empty();
    let with = |enabled: bool| json!({ "Driver": "bridge", "EnableIPv4": enabled });
    let swarms = json!({ "Driver": "bridge", "Scope": "swarm", "EnableIPv4": false });
    for (wanted, actual) in [(json!(false), true), (json!(true), false), (Value::Null, false)] {
        let what = of_network(defined(wanted.clone()), with(actual));
        assert_eq!(what, ["network net (enable_ipv4)"], "{wanted}");
        assert!(!found(wanted.clone(), with(!actual)), "{wanted}");
        assert!(!found(wanted.clone(), json!({ "Driver": "bridge" })), "an engine before 28");
        assert!(!found(wanted.clone(), swarms.clone()), "an engine before 28.3");
        let mut podmans = with(actual);
        podmans["IPAM"] = json!({ "Driver": "default", "Options": { "driver": "host-local" } });
        assert!(!found(wanted, podmans), "podman");
    }
    let mut by_default = with(false);
    by_default["Options"] = json!({ "com.docker.network.enable_ipv4": "false" });
    assert!(!found(Value::Null, by_default), "the engine's default");
}

#[test]
fn addresses_of_a_network_differ_only_where_the_engine_has_not_chosen_them() {
    let pools = |driver: &str, pool: Value| json!({ "Driver": "bridge", "IPAM": { "Driver": driver, "Options": null, "Config": [pool] } });
    let wanted = |ipam: Value| json!({ "name": "p_net", "ipam": ipam });
    let chosen = json!({ "Subnet": "172.18.0.0/16", "Gateway": "172.18.0.1" });
    let empty = json!({ "Subnet": "172.18.0.0/16", "IPRange": "", "Gateway": "172.18.0.1" });
    let ranged = json!({ "Subnet": "10.5.0.0/16", "IPRange": "10.5.1.0/24", "Gateway": "10.5.0.1",
        "AuxiliaryAddresses": { "host": "10.5.0.9" } });
    let range = |range: &str, host: &str| json!({ "config": [{ "subnet": "10.5.0.0/16", "ip_range": range, "aux_addresses": { "host": host } }] });
    let table = [
        (json!({}), pools("default", chosen.clone()), false),
        (Value::Null, pools("default", empty.clone()), false),
        (json!({}), pools("host-local", chosen.clone()), false),
        (json!({ "driver": "default" }), pools("host-local", chosen.clone()), false),
        (json!({ "config": [{ "subnet": "172.18.0.0/16" }] }), pools("default", empty), false),
        (json!({ "config": [{ "subnet": "172.19.0.0/16" }] }), pools("default", chosen.clone()), true),
        (
            json!({ "config": [{ "subnet": "10.5.0.0/16" }] }),
            json!({ "Driver": "bridge", "IPAM": { "Driver": "default", "Config": [
                { "Subnet": "10.5.0.0/16", "Gateway": "10.5.0.1" },
                { "Subnet": "fdd3::/64", "Gateway": "fdd3::1" },
            ] } }),
            false,
        ),
        (json!({}), pools("custom", chosen.clone()), true),
        (json!({ "driver": "custom" }), pools("default", chosen), true),
        (json!({}), pools("default", ranged.clone()), true),
        (range("10.5.1.0/24", "10.5.0.9"), pools("default", ranged.clone()), false),
        (range("10.5.2.0/24", "10.5.0.9"), pools("default", ranged.clone()), true),
        (range("10.5.1.0/24", "10.5.0.8"), pools("default", ranged), true),
        (
            range("10.5.1.0/24", "10.5.0.9"),
            pools("host-local", json!({ "Subnet": "10.5.0.0/16", "Gateway": "10.5.0.1" })),
            false,
        ),
    ];
    for (ipam, existing, differs) in table {
        let found = of_network(wanted(ipam.clone()), existing.clone());
        let expected: &[&str] = if differs { &["network net (ipam)"] } else { &[] };
        assert_eq!(found, expected, "{ipam} {existing}");
    }
}

/// A container as docker reports it, with these settings in its `HostConfig`.
fn by_docker(settings: Value) -> Value {
    let mut container = json!({
        "Config": { "Env": [], "MacAddress": "", "Domainname": "" },
        "HostConfig": {
            "NetworkMode": "p_default", "CpuShares": 0, "Memory": 0, "NanoCpus": 0, "CgroupParent": "",
            "CpuPeriod": 0, "CpuQuota": 0, "Devices": null, "DeviceCgroupRules": null, "DeviceRequests": null,
            "MemoryReservation": 0, "MemorySwap": 0, "MemorySwappiness": null, "OomKillDisable": null,
            "OomScoreAdj": 0, "PidsLimit": null, "Runtime": "runc", "UsernsMode": "", "UTSMode": "",
            "CgroupnsMode": "private", "Dns": [], "DnsSearch": [], "DnsOptions": [], "VolumesFrom": null,
            "ShmSize": 67_108_864, "RestartPolicy": { "Name": "no", "MaximumRetryCount": 0 },
        },
        "NetworkSettings": { "Networks": { "p_default": { "MacAddress": "02:42:ac:12:00:02" } } },
    });
    let Value::Object(settings) = settings else { unreachable!("settings have names") };
    for (key, value) in settings {
        container["HostConfig"][key] = value;
    }
    container
}

fn nvidia(count: i64) -> Value {
    json!([{ "Driver": "nvidia", "Count": count, "DeviceIDs": null, "Capabilities": [["gpu"]], "Options": {} }])
}

/// What compose renders for a reservation of GPUs.
fn reserved(device: Value) -> Value {
    let mut service = json!({ "deploy": { "resources": { "reservations": {} } } });
    service["deploy"]["resources"]["reservations"]["devices"] = vec![device].into();
    service
}

#[test]
fn less_common_settings_are_compared() {
    let gpu = json!({ "driver": "nvidia", "capabilities": ["gpu"], "count": -1 });
    let table = [
        ("gpus", reserved(gpu.clone()), json!({ "DeviceRequests": nvidia(-1) })),
        (
            "gpus",
            json!({ "gpus": [{ "driver": "nvidia", "count": 2 }] }),
            json!({ "DeviceRequests": nvidia(2) }),
        ),
        (
            "gpus",
            json!({ "devices": [{ "source": "nvidia.com/gpu=all", "target": "nvidia.com/gpu=all" }] }),
            json!({ "DeviceRequests": [{ "Driver": "cdi", "Count": 0, "DeviceIDs": ["nvidia.com/gpu=all"] }] }),
        ),
        (
            "device_cgroup_rules",
            json!({ "device_cgroup_rules": ["c 1:3 mr"] }),
            json!({ "DeviceCgroupRules": ["c 1:3 mr"] }),
        ),
        ("memswap_limit", json!({ "memswap_limit": "1073741824" }), json!({ "MemorySwap": 1_073_741_824 })),
        ("cpu limit", json!({ "cpu_quota": 50000 }), json!({ "CpuQuota": 50000 })),
        (
            "cpu limit",
            json!({ "cpu_quota": 50000, "cpu_period": 50000 }),
            json!({ "CpuQuota": 50000, "CpuPeriod": 50000 }),
        ),
        ("oom_kill_disable", json!({ "oom_kill_disable": true }), json!({ "OomKillDisable": true })),
        ("oom_score_adj", json!({ "oom_score_adj": -500 }), json!({ "OomScoreAdj": -500 })),
        ("cgroup_parent", json!({ "cgroup_parent": "m-executor" }), json!({ "CgroupParent": "m-executor" })),
        ("userns_mode", json!({ "userns_mode": "host" }), json!({ "UsernsMode": "host" })),
        ("uts", json!({ "uts": "host" }), json!({ "UTSMode": "host" })),
        ("dns_search", json!({ "dns_search": ["a.example"] }), json!({ "DnsSearch": ["a.example"] })),
        ("dns_opt", json!({ "dns_opt": ["use-vc"] }), json!({ "DnsOptions": ["use-vc"] })),
        ("volumes_from", json!({ "volumes_from": ["db:ro"] }), json!({ "VolumesFrom": ["0123456789ab"] })),
    ];
    let none: [&str; 0] = [];
    for (field, service, settings) in table {
        assert_eq!(
            of(service.clone(), by_docker(settings.clone()), Some(json!({}))),
            none,
            "{field} is the same"
        );
        assert_eq!(of(json!({}), by_docker(settings), Some(json!({}))), [field], "{field} was removed");
        let mut without = by_docker(json!({ "OomKillDisable": false }));
        without["Id"] = "1".into();
        assert_eq!(of(service, without, Some(json!({}))), [field], "{field} was added");
    }
    let one = json!({ "driver": "nvidia", "capabilities": ["gpu"], "count": 1 });
    assert_eq!(of(reserved(one), by_docker(json!({ "DeviceRequests": nvidia(-1) })), None), ["gpus"]);
    let named = json!({ "driver": "nvidia", "capabilities": ["gpu"], "device_ids": ["0", "3"] });
    assert_eq!(of(reserved(named), by_docker(json!({ "DeviceRequests": nvidia(2) })), None), ["gpus"]);
    let swappiness = || by_docker(json!({ "MemorySwappiness": 10 }));
    assert_eq!(of(json!({ "mem_swappiness": 10 }), swappiness(), None), none);
    assert_eq!(of(json!({ "mem_swappiness": 20 }), swappiness(), None), ["mem_swappiness"]);
    assert_eq!(of(json!({}), swappiness(), None), ["mem_swappiness"]);
    assert_eq!(of(json!({ "mem_swappiness": 10 }), by_docker(json!({})), None), none, "cgroups v2 have none");
    assert_eq!(of(json!({ "runtime": "nvidia" }), by_docker(json!({})), None), ["runtime"]);
    let address = |address: &str| json!({ "mac_address": address });
    assert_eq!(of(address("02:42:ac:12:00:03"), by_docker(json!({})), None), ["mac_address"]);
    assert_eq!(of(address("02:42:AC:12:00:02"), by_docker(json!({})), None), none);
}

/// The limits of a container, with one that no file names.
fn nofile(limit: i64) -> Value {
    json!([{ "Name": "nofile", "Soft": limit, "Hard": limit }, { "Name": "nproc", "Soft": 512, "Hard": 512 }])
}

/// The log options of a container whose service names none but its tag.
fn logged(size: &str) -> Value {
    json!({ "LogConfig": { "Type": "json-file", "Config": { "max-size": size, "tag": "web" } } })
}

#[test]
fn what_the_files_name_is_compared_beside_the_engines_defaults() {
    let options = |size: &str| json!({ "logging": { "options": { "max-size": size } } });
    let shm = |size: &str| json!({ "shm_size": size });
    let limits = |limit: i64| json!({ "ulimits": { "nofile": { "soft": limit, "hard": limit } } });
    let table: [(Value, Value, &[&str]); 9] = [
        (options("10m"), logged("10m"), &[]),
        (options("20m"), logged("10m"), &["logging"]),
        (options("10m"), json!({ "LogConfig": { "Type": "json-file", "Config": {} } }), &["logging"]),
        (json!({ "logging": { "driver": "local" } }), logged("10m"), &["logging"]),
        (shm("134217728"), json!({ "ShmSize": 134_217_728 }), &[]),
        (shm("67108864"), json!({ "ShmSize": 134_217_728 }), &["shm_size"]),
        (limits(64_000), json!({ "Ulimits": nofile(64_000) }), &[]),
        (limits(1024), json!({ "Ulimits": nofile(64_000) }), &["ulimits"]),
        (limits(1024), json!({}), &["ulimits"]),
    ];
    for (service, settings, expected) in table {
        let found = of(service.clone(), by_docker(settings.clone()), Some(json!({})));
        assert_eq!(found, expected, "{service} {settings}");
    }
}

#[test]
fn what_an_engine_fills_in_is_no_difference() {
    let limited = || json!({ "mem_limit": "1048576" });
    let table = [
        (json!({}), json!({})),
        (limited(), json!({ "Memory": 1_048_576, "MemorySwap": 2_097_152, "OomKillDisable": false })),
        (limited(), json!({ "Memory": 1_048_576, "MemorySwap": -1, "MemorySwappiness": -1 })),
        (json!({ "memswap_limit": "2097152" }), json!({ "MemorySwap": -1 })),
        (json!({ "oom_kill_disable": true }), json!({})),
        (json!({ "cpus": 0.5 }), json!({ "NanoCpus": 500_000_000, "CpuPeriod": 100_000, "CpuQuota": 50000 })),
        (json!({ "cpu_quota": 50000 }), json!({ "NanoCpus": 500_000_000 })),
        (json!({}), json!({ "Runtime": "nvidia", "DeviceRequests": [], "DeviceCgroupRules": [] })),
        (
            reserved(json!({ "capabilities": ["gpu"] })),
            json!({ "DeviceRequests": [
            { "Driver": "", "Count": 0, "DeviceIDs": null, "Capabilities": [["gpu"]], "Options": null },
        ] }),
        ),
        (
            json!({ "security_opt": ["systempaths=unconfined"] }),
            json!({ "MaskedPaths": [], "ReadonlyPaths": [] }),
        ),
        // Defaults in daemon.json.
        (json!({}), json!({ "ShmSize": 134_217_728, "Ulimits": nofile(64_000) })),
        (json!({ "ulimits": { "nofile": 64_000 } }), json!({ "Ulimits": nofile(64_000) })),
        (json!({ "logging": {} }), logged("10m")),
        (json!({ "logging": { "driver": "json-file", "options": { "tag": "web" } } }), logged("10m")),
        // Podman.
        (
            json!({ "gpus": [{ "count": -1 }], "userns_mode": "host", "oom_score_adj": 1, "tmpfs": ["/run:size=1m"] }),
            json!({ "Runtime": "oci", "OomScoreAdj": 200, "PidsLimit": 2048, "Tmpfs": { "/run": "rw,nosuid,size=1m" } }),
        ),
    ];
    let none: [&str; 0] = [];
    for (service, settings) in table {
        assert_eq!(
            of(service.clone(), by_docker(settings.clone()), Some(json!({}))),
            none,
            "{service} {settings}"
        );
    }
}

#[test]
fn mounts_differ_by_their_propagation_size_and_options() {
    let bind = |propagation: &str| {
        let volume = json!({ "type": "bind", "source": "/srv", "target": "/data", "bind": { "propagation": propagation } });
        json!({ "volumes": [volume] })
    };
    let bound = |propagation: &str| {
        let mut container = by_docker(json!({}));
        let mount = json!({ "Type": "bind", "Source": "/srv", "Destination": "/data", "RW": true });
        container["Mounts"] = json!([mount]);
        container["Mounts"][0]["Propagation"] = propagation.into();
        container
    };
    let memory = |size: &str| json!({ "volumes": [{ "type": "tmpfs", "target": "/cache", "tmpfs": { "size": size, "mode": 0o700 } }] });
    let in_memory = |options: Value| {
        by_docker(json!({ "Mounts": [{ "Type": "tmpfs", "Target": "/cache", "TmpfsOptions": options }] }))
    };
    let tmpfs = |options: &str| json!({ "tmpfs": [format!("/run{options}")] });
    let mounted = || by_docker(json!({ "Tmpfs": { "/run": "size=64m,mode=755" } }));
    let shared = || {
        let mut container = bound("rprivate");
        container["HostConfig"]["VolumesFrom"] = json!(["0123456789ab:rw"]);
        container
    };
    let data: &[&str] = &["volume /data"];
    let table: [(Value, Value, &[&str]); 13] = [
        (bind(""), bound("rprivate"), &[]),
        (bind(""), bound("rslave"), &[]),
        (bind("rslave"), bound("rslave"), &[]),
        (bind("rslave"), bound("rprivate"), data),
        (bind(""), bound("rshared"), data),
        (memory("1024"), in_memory(json!({ "SizeBytes": 1024 })), &[]),
        (memory("1024"), in_memory(json!({ "SizeBytes": 1024, "Mode": 0o755 })), &["volume /cache"]),
        (memory("2048"), in_memory(json!({ "SizeBytes": 1024 })), &["volume /cache"]),
        (tmpfs(":mode=755,size=64m"), mounted(), &[]),
        (tmpfs(":mode=755"), mounted(), &["tmpfs options"]),
        (tmpfs(""), mounted(), &["tmpfs options"]),
        (json!({ "volumes_from": ["db"] }), shared(), &[]),
        (json!({}), bound("rprivate"), data),
    ];
    for (service, container, expected) in table {
        assert_eq!(
            of(service.clone(), container.clone(), Some(json!({}))),
            expected,
            "{service} {container}"
        );
    }
    let mut unclean = bind("");
    unclean["volumes"][0]["source"] = "/srv//x/../".into();
    assert_eq!(of(unclean, bound("rprivate"), Some(json!({}))), [""; 0], "the engine cleans the path");
}

#[test]
fn what_a_health_check_leaves_out_comes_from_the_image() {
    let checked = |check: Value| {
        let mut container = by_docker(json!({}));
        container["Config"]["Healthcheck"] = check;
        container
    };
    let service = |check: Value| json!({ "healthcheck": check });
    let of_image = |check: Value| Some(json!({ "Healthcheck": check }));
    let second = 1_000_000_000_u64;
    let test = json!(["CMD", "true"]);
    let image = json!({ "Test": ["CMD", "true"], "Interval": 5 * second });
    let plain = || service(json!({ "test": ["CMD", "true"] }));
    let whole = || {
        service(json!({ "test": ["CMD", "true"], "interval": "7s", "start_interval": "2s", "retries": 4 }))
    };
    let exact = json!({ "Test": test, "Interval": 7 * second, "StartInterval": 2 * second, "Retries": 4 });
    let table = [
        (whole(), exact.clone(), None, false),
        (whole(), exact.clone(), Some(json!({})), false),
        (plain(), exact.clone(), None, false),
        (plain(), exact, Some(json!({})), true),
        (whole(), json!({ "Test": test, "Interval": 7 * second, "Retries": 4 }), None, true),
        (plain(), json!({ "Test": test }), Some(json!({})), false),
        (plain(), json!({ "Test": test, "Interval": 30 * second, "Retries": 3 }), Some(json!({})), false),
        (plain(), json!({ "Test": test, "Timeout": 3 * second }), Some(json!({})), true),
        (plain(), json!({ "Test": test, "Interval": 5 * second }), of_image(image.clone()), false),
        (
            service(json!({ "interval": "9s" })),
            json!({ "Test": test, "Interval": 9 * second }),
            of_image(image.clone()),
            false,
        ),
        (
            service(json!({ "interval": "9s" })),
            json!({ "Test": ["CMD", "old"], "Interval": 9 * second }),
            of_image(image),
            true,
        ),
    ];
    for (service, check, image, differs) in table {
        let found = of(service.clone(), checked(check.clone()), image.clone());
        let expected: &[&str] = if differs { &["healthcheck"] } else { &[] };
        assert_eq!(found, expected, "{service} {check} {image:?}");
    }
}

/// How a container whose label has this hash, made by the compose in use, differs from a file whose hash is `new`.
fn made_with(hash: &str, service: Value, container: Value) -> Vec<Difference> {
    let mut model = json!({ "services": {}, "networks": { "default": { "name": "p_default" } } });
    model["services"]["web"] = service;
    made_from(hash, model, container)
}

fn made_from(hash: &str, model: Value, container: Value) -> Vec<Difference> {
    let rendered = Rendered {
        model: serde_json::from_value(model).expect("a model"),
        hashes: BTreeMap::from([("web".to_owned(), "new".to_owned())]),
        version: COMPOSE.to_owned(),
        ..Rendered::default()
    };
    let mut container = container;
    container["Config"]["Labels"] = json!({
        PROJECT_LABEL: "p",
        SERVICE_LABEL: "web",
        HASH_LABEL: hash,
        VERSION_LABEL: COMPOSE,
    });
    let running = Running { containers: vec![container], ..Running::default() };
    rendered.differences(&["web".to_owned()], &running)
}

#[test]
fn a_path_below_another_home_directory_is_told_from_an_edit() {
    let found = |home: &str, source: &str, bound: &str| {
        let volume = json!({ "type": "bind", "source": source, "target": "/data" });
        let service = json!({ "volumes": [volume] });
        let mount = json!({ "Type": "bind", "Source": bound, "Destination": "/data", "RW": true });
        let mut container = json!({ "Mounts": [mount] });
        container["Config"]["Labels"] = json!({ SERVICE_LABEL: "web", HASH_LABEL: "old" });
        let rendered = Rendered {
            model: serde_json::from_value(json!({ "services": { "web": service } })).expect("a model"),
            home: home.to_owned(),
            ..Rendered::default()
        };
        let running = Running { containers: vec![container], ..Running::default() };
        let differences = rendered.differences(&["web".to_owned()], &running);
        differences.into_iter().map(|one| (one.what, one.unset)).collect::<Vec<_>>()
    };
    let with = |unset: &[&str]| {
        let unset: Vec<String> = unset.iter().map(|name| (*name).to_owned()).collect();
        [(vec!["volume /data".to_owned()], unset)]
    };
    let is_home = with(&[HOME]);
    assert_eq!(found("/root", "/root/wiki", "/home/ann/wiki"), is_home);
    assert_eq!(found("/root/", "/root/wiki", "/home/ann/wiki"), is_home);
    for (home, source, bound) in [
        ("/root", "/root/wiki", "/home/ann/other"),
        ("/root", "/root/wiki", "/root/old/wiki"),
        ("/root", "/rooted/wiki", "/home/ann/wiki"),
        ("/root", "/srv/wiki", "/home/ann/wiki"),
        ("", "/root/wiki", "/home/ann/wiki"),
        ("/", "/root/wiki", "/home/ann/root/wiki"),
    ] {
        assert_eq!(found(home, source, bound), with(&[]), "{home} {source} {bound}");
    }
    assert!(found("/root", "/root/wiki", "/root/wiki").is_empty());
}

#[test]
fn the_file_of_a_secret_below_another_home_directory_is_told_from_an_edit() {
    let unset = |bound: &str| {
        let model = json!({
            "services": { "web": { "secrets": [{ "source": "key" }] } },
            "secrets": { "key": { "file": "/root/.secrets/db" } },
        });
        let labels = json!({ SERVICE_LABEL: "web", HASH_LABEL: "same" });
        let mount = json!({ "Type": "bind", "Source": bound, "Destination": "/run/secrets/key" });
        let rendered = Rendered {
            model: serde_json::from_value(model).expect("a model"),
            hashes: BTreeMap::from([("web".to_owned(), "same".to_owned())]),
            home: "/root".to_owned(),
            ..Rendered::default()
        };
        let container = json!({ "Config": { "Labels": labels }, "Mounts": [mount] });
        let running = Running { containers: vec![container], ..Running::default() };
        let differences = rendered.differences(&["web".to_owned()], &running);
        differences.into_iter().map(|difference| difference.unset).collect::<Vec<_>>()
    };
    assert_eq!(unset("/home/ann/.secrets/db"), [[HOME.to_owned()]]);
    assert_eq!(unset("/srv/db"), [[""; 0]], "it was edited");
}

#[test]
fn variables_of_a_provider_are_told_from_an_edit() {
    let found = |provider: Value, variables: &[&str]| {
        let web = json!({ "environment": { "DB_MODE": "one" }, "depends_on": { "my-db": null, "db": null } });
        let model =
            json!({ "services": { "web": web, "db": provider, "my-db": { "provider": { "type": "x" } } } });
        let all = [&["DB_MODE=one"][..], variables].concat();
        in_model(model, json!({ "Config": { "Env": all } }), Some(json!({})))
    };
    let provider = || json!({ "provider": { "type": "awesomecloud" } });
    assert_eq!(found(provider(), &["DB_URL=u"]), ["environment DB_URL (set by a provider)"]);
    assert_eq!(found(provider(), &["MY-DB_URL=u"]), ["environment MY-DB_URL (set by a provider)"]);
    assert_eq!(found(provider(), &["OTHER_URL=u"]), ["environment OTHER_URL"]);
    assert_eq!(found(provider(), &["DBURL=u"]), ["environment DBURL"]);
    assert_eq!(found(provider(), &["DB_MODE=two"]), ["environment DB_MODE"], "it is in the files");
    assert_eq!(found(json!({ "image": "db" }), &["DB_URL=u"]), ["environment DB_URL"]);
    let difference = |what: &[&str]| Difference {
        service: "web".to_owned(),
        what: what.iter().map(|one| (*one).to_owned()).collect(),
        unset: Vec::new(),
        connected: Vec::new(),
    };
    assert!(difference(&["environment DB_URL (set by a provider)"]).is_of_providers());
    assert!(!difference(&["environment DB_URL (set by a provider)", "volume /data"]).is_of_providers());
}

#[test]
fn another_volume_or_file_behind_the_same_key_differs_although_the_hash_is_equal() {
    let found = |volumes: Value, key: &str, mounts: Value| -> Vec<String> {
        let service = json!({
            "volumes": [
                { "type": "volume", "source": "db", "target": "/data/" },
                { "type": "volume", "target": "/cache" },
                { "type": "bind", "source": "/srv/web", "target": "/srv" },
            ],
            "secrets": [{ "source": "key" }],
            "configs": [{ "source": "app", "target": "/etc/app" }],
        });
        let model = json!({
            "services": { "web": service },
            "volumes": volumes,
            "secrets": { "key": { "file": key } },
            "configs": { "app": { "content": "text" } },
        });
        let differences = made_from("new", model, json!({ "Mounts": mounts }));
        differences.into_iter().flat_map(|difference| difference.what).collect()
    };
    let named = |name: &str| json!({ "db": { "name": name } });
    let mounts = || {
        json!([
            { "Type": "volume", "Name": "shop_db", "Source": "/var/lib/docker/volumes/shop_db/_data", "Destination": "/data" },
            { "Type": "volume", "Name": "0123", "Source": "/var/lib/docker/volumes/0123/_data", "Destination": "/cache" },
            { "Type": "bind", "Source": "/srv/$key", "Destination": "/run/secrets/key" },
        ])
    };
    let none: [&str; 0] = [];
    for key in ["/srv/$$key", "/srv//x/../$$key", "/../srv/./$$key/"] {
        assert_eq!(found(named("shop_db"), key, mounts()), none, "{key}");
    }
    assert_eq!(found(named("db_prod"), "/srv/$$key", mounts()), ["volume /data/"]);
    assert_eq!(found(named("shop_db"), "/srv/other", mounts()), ["volume /run/secrets/key"]);
    assert_eq!(found(json!({}), "/srv/$$key", mounts()), none, "the name is not known");
    assert_eq!(found(named("db_prod"), "/srv/other", Value::Null), none, "nothing is known of the mounts");
}

#[test]
fn a_volume_is_one_that_was_made_for_the_container_only_if_its_name_is_an_id() {
    let is_told = |name: String| {
        let mount = json!({ "Type": "volume", "Name": name, "Destination": "/extra" });
        of(json!({}), json!({ "Mounts": [mount] }), None).contains(&"volume /extra".to_owned())
    };
    assert!(is_told("x".repeat(64)));
    assert!(!is_told("0123456789abcdef".repeat(4)));
}

#[test]
fn services_that_mount_another_volume_or_file_than_the_files_name_are_told_by_their_containers() {
    let model: Model = serde_json::from_value(json!({
        "services": {
            "db": { "volumes": [{ "type": "volume", "source": "data", "target": "/data" }] },
            "web": { "secrets": [{ "source": "key" }] },
        },
        "volumes": { "data": { "name": "shop_data" } },
        "secrets": { "key": { "file": "/srv/keys/../key" } },
    }))
    .expect("a model");
    let of = |service: &str, kind: &str, name: &str, source: &str, destination: &str| Container {
        mounts: vec![MountRecord {
            kind: kind.to_owned(),
            name: name.to_owned(),
            source: source.to_owned(),
            destination: destination.to_owned(),
            read_only: false,
        }],
        ..Container::running(service, "web:1")
    };
    let db = |name: &str| of("db", "volume", name, "/var/lib/docker/volumes/x/_data", "/data");
    let web = |source: &str| of("web", "bind", "", source, "/run/secrets/key");
    let none: [&str; 0] = [];
    assert_eq!(moved_services(&model, &[db("shop_data"), web("/srv/key")]), none);
    assert_eq!(moved_services(&model, &[web("/srv/old"), db("old"), web("/srv/old")]), ["db", "web"]);
    let gone = of("gone", "volume", "old", "", "/data");
    assert_eq!(moved_services(&model, &[gone, Container::running("web", "web:1")]), none, "nothing is known");
}

#[test]
fn a_service_whose_hash_can_not_be_computed_from_the_files_is_compared_by_what_is_known() {
    let unknown = "a setting that the engine does not report";
    let what = |service: Value, container: Value| -> Vec<String> {
        made_with("old", service, container).into_iter().flat_map(|difference| difference.what).collect()
    };
    assert_eq!(what(json!({}), json!({})), [unknown]);
    assert_eq!(
        what(json!({ "models": {}, "volumes_from": null, "use_api_socket": false }), json!({})),
        [unknown]
    );
    let none: [&str; 0] = [];
    let shared = json!({ "HostConfig": { "VolumesFrom": ["0123"] } });
    assert_eq!(what(json!({ "volumes_from": ["app"] }), shared), none);
    assert_eq!(what(json!({ "use_api_socket": true }), json!({})), none);
    let models =
        json!({ "models": { "small-llm": null, "big": { "endpoint_var": "BIG", "model_var": "" } } });
    let variables = ["SMALL_LLM_URL=u", "SMALL_LLM_MODEL=m", "BIG=u", "BIG_MODEL=m"];
    let set = |more: &str| {
        let mut variables = variables.to_vec();
        variables.push(more);
        of(models.clone(), json!({ "Config": { "Env": variables } }), Some(json!({ "Env": ["PATH=/bin"] })))
    };
    assert_eq!(set("PATH=/bin"), none);
    assert_eq!(set("BIG_URL=u"), ["environment BIG_URL"]);
}

#[test]
fn what_compose_adds_to_a_service_that_uses_its_socket_is_no_difference() {
    let found = |service: Value, config: &str| {
        let mut container = by_docker(json!({}));
        container["Config"]["Env"] = json!([format!("DOCKER_CONFIG={config}")]);
        let socket = json!({
            "Type": "bind", "Source": "/run/user/1000/docker.sock", "Destination": "/var/run/docker.sock", "RW": true,
        });
        container["Mounts"] = json!([socket]);
        of(service, container, Some(json!({})))
    };
    let added = "/run/secrets/docker";
    let none: [&str; 0] = [];
    assert_eq!(found(json!({ "use_api_socket": true }), added), none);
    let own = json!({ "use_api_socket": true, "environment": { "DOCKER_CONFIG": "/srv/docker" } });
    assert_eq!(found(own, "/srv/docker"), none);
    assert_eq!(found(json!({ "use_api_socket": true }), "/srv/docker"), ["environment DOCKER_CONFIG"]);
    for service in [json!({}), json!({ "use_api_socket": false })] {
        let both = ["environment DOCKER_CONFIG", "volume /var/run/docker.sock"];
        assert_eq!(found(service, added), both, "somebody has added them");
    }
}

#[test]
fn what_docker_update_has_changed_differs_although_the_hash_is_equal() {
    let limited = || json!({ "mem_limit": "1048576", "restart": "unless-stopped" });
    let policy = |name: &str| json!({ "Name": name, "MaximumRetryCount": 0 });
    let limits = json!({
        "NanoCpus": 500_000_000, "CpuShares": 512, "CpusetCpus": "0", "PidsLimit": 100, "MemoryReservation": 1_048_576,
    });
    let swap = |limit: i64| json!({ "MemorySwap": limit });
    let table: [(Value, Value, &[&str]); 11] = [
        (json!({}), json!({}), &[]),
        (
            limited(),
            json!({ "Memory": 1_048_576, "MemorySwap": 2_097_152, "RestartPolicy": policy("unless-stopped") }),
            &[],
        ),
        (
            limited(),
            json!({ "Memory": 2_097_152, "MemorySwap": 4_194_304, "RestartPolicy": policy("no") }),
            &["memory limit", "restart"],
        ),
        (json!({}), json!({ "RestartPolicy": policy("always") }), &["restart"]),
        (json!({}), limits, &["cpu limit", "cpu_shares", "cpuset", "memory reservation", "pids limit"]),
        (json!({ "memswap_limit": "1073741824" }), swap(1_073_741_824), &[]),
        (json!({ "memswap_limit": "1073741824" }), swap(2_147_483_648), &["memswap_limit"]),
        // The kernel has no such limits.
        (limited(), json!({ "Memory": 0, "MemorySwap": -1, "RestartPolicy": policy("unless-stopped") }), &[]),
        // Compose translates these.
        (json!({ "restart": "none" }), json!({}), &[]),
        (
            json!({ "deploy": { "restart_policy": { "condition": "any" } } }),
            json!({ "RestartPolicy": policy("always") }),
            &[],
        ),
        (json!({}), json!({ "Runtime": "oci", "PidsLimit": 2048 }), &[]),
    ];
    for (service, settings, expected) in table {
        let found = made_with("new", service.clone(), by_docker(settings.clone()));
        let expected: Vec<String> = expected.iter().map(|what| format!("{what} (changed since)")).collect();
        let what: Vec<String> = found.iter().flat_map(|difference| difference.what.clone()).collect();
        assert_eq!(what, expected, "{service} {settings}");
        assert!(found.iter().all(Difference::is_of_changes_since), "{found:?}");
    }
    let [edited] = &made_with("old", limited(), by_docker(json!({})))[..] else { panic!("no difference") };
    assert!(!edited.is_of_changes_since(), "{edited:?}");
    assert!(!edited.is_beside_files(), "{edited:?}");
}

#[test]
fn settings_that_were_changed_since_and_dockers_proxies_are_beside_the_files_also_together() {
    let differs_in = |what: &[&str]| Difference {
        service: "web".to_owned(),
        what: what.iter().map(|what| (*what).to_owned()).collect(),
        unset: Vec::new(),
        connected: Vec::new(),
    };
    let (limit, proxy) = ("memory limit (changed since)", "environment HTTP_PROXY (set by docker's proxies)");
    for what in [&[limit][..], &[proxy], &[limit, proxy]] {
        assert!(differs_in(what).is_beside_files(), "{what:?}");
    }
    let none: &[&str] = &[];
    for what in [none, &["entrypoint"], &[proxy, "entrypoint"]] {
        assert!(!differs_in(what).is_beside_files(), "{what:?}");
    }
}
