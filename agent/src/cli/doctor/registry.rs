//! Checks the registries: whether they return the digest of each image, and how their clocks compare with this machine's.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_common::config::address::is_this_machine;
use jiff::SignedDuration;

use super::finding::{Finding, Severity, Words};
use crate::config::ConfiguredImage;
use crate::model::errors::is_not_in_registry;

pub(super) const AREA: &str = "registry";
/// This machine's clock, compared with the registries' clocks.
pub(super) const CLOCK: &str = "clock";

/// Accepted difference: times in answers are in whole seconds, and requests take time.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(60);

/// A configured image, and why its digest is not available.
pub(super) struct Lookup<'a> {
    pub(super) image: &'a ConfiguredImage,
    pub(super) fault: Option<String>,
}

/// Returns the message for a registry that hangs.
pub(super) fn hung(host: &str, limit: Duration) -> String {
    format!("registry {host}: no answer within {} s", limit.as_secs())
}

/// Returns the findings. A fault shared by several images is one finding. `proxy`: that of the engine, if the agent has none.
pub(super) fn check(lookups: &[Lookup<'_>], proxy: Option<&str>) -> Vec<Finding> {
    let mut by_fault: BTreeMap<&str, Vec<&ConfiguredImage>> = BTreeMap::new();
    for Lookup { image, fault } in lookups {
        if let Some(fault) = fault {
            by_fault.entry(fault).or_default().push(image);
        }
    }
    by_fault.iter().map(|(fault, images)| of(fault, images, proxy)).collect()
}

fn of(fault: &str, images: &[&ConfiguredImage], proxy: Option<&str>) -> Finding {
    let first = images[0];
    let host = &first.reference.repository.host;
    let subject = match images.len() {
        1 => first.configured.clone(),
        many => format!("{host} ({many} images)"),
    };
    let (severity, remedy) = remedy(fault, first, host, proxy);
    Words { what: fault, why: "the agent can't tell whether there is a new image", remedy }
        .of(severity, AREA, subject)
}

fn remedy(fault: &str, image: &ConfiguredImage, host: &str, proxy: Option<&str>) -> (Severity, String) {
    // Names of hosts and images may contain any of the words below, and a port any number.
    let cause = fault.strip_prefix(&format!("registry {host}: ")).unwrap_or(fault);
    let cause = cause.split_once(" for ").map_or(cause, |(cause, _)| cause);
    let says = |words: &[&str]| words.iter().any(|word| cause.contains(word));
    let is_missing = is_not_in_registry(fault);
    if !is_missing && says(&["429", "too many requests", "rate limit"]) {
        let remedy = format!("raise registry.poll_interval, or log in: `sudo docker login {host}`");
        return (Severity::Warning, remedy);
    }
    let helper =
        fault.strip_prefix("credential helper ").filter(|rest| rest.ends_with(": not found in PATH"));
    if let Some(helper) = helper.and_then(|rest| rest.split(' ').next()) {
        let remedy = format!(
            "install {helper} in a folder of the PATH of the agent's unit, such as /usr/local/bin; or remove it from \
             \"credsStore\" and \"credHelpers\" of the Docker configuration and log in: `sudo docker login {host}`"
        );
        return (Severity::Error, remedy);
    }
    let unreached = ["no connection", "no answer", "connection refused", "unreachable", "looked up"];
    let is_unreached = fault.starts_with("registry ") && !is_missing && says(&unreached);
    if let Some(proxy) = proxy.filter(|_| is_unreached && !is_this_machine(name(host))) {
        let remedy = format!(
            "the engine uses a proxy ({proxy}), the agent none: set HTTPS_PROXY in /etc/evenkeel/agent.env, and \
             NO_PROXY for registries that are reached without it"
        );
        return (Severity::Error, remedy);
    }
    let remedy = match () {
        () if is_missing
            && image.reference.to_string() != image.configured
            && !image.configured.contains(host) =>
        {
            format!(
                "push {}; an image of another registry needs its host in \"images\" (docker.io/…)",
                image.reference
            )
        }
        () if is_missing => format!("push {}, or correct \"images\"", image.reference),
        () if says(&["reading registry logins", "credential", "identity token"]) => {
            format!("renew the login: `sudo docker logout {host} && sudo docker login {host}`")
        }
        () if says(&["401", "403", "unauthorized", "denied", "login"]) => {
            format!(
                "log in as the user that runs the agent: `sudo docker login {host}`, with podman `sudo podman login {host}`"
            )
        }
        () if says(&["known authority"]) => {
            format!(
                "put its CA into /etc/docker/certs.d/{host}/ca.crt, where the engine looks as well, or into the system's \
                 trust store (and restart the agent if there is a folder /etc/docker/certs.d/{host}); or set registry.insecure if it is the registry of registry.url"
            )
        }
        () if says(&["certificate"]) => format!("renew the certificate of {host}"),
        () if says(&["does not speak TLS"]) => format!(
            "set registry.url to http://{host} if it is that registry, or else add {host} to the engine's \
             insecure-registries"
        ),
        () if says(&["looked up"]) => format!("correct the name, or DNS: `getent hosts {}`", name(host)),
        () => format!("start it, or correct registry.url; try `curl -I http://{host}/v2/`"),
    };
    (Severity::Error, remedy)
}

fn name(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Checks whether this machine's clock agrees with at least one registry's. `None` if no registry returned its time.
pub(super) fn clock(offsets: &[SignedDuration]) -> Option<Vec<Finding>> {
    let offset = *offsets.iter().min_by_key(|offset| offset.abs())?;
    if offset.abs() <= CLOCK_TOLERANCE {
        return Some(Vec::new());
    }
    let seconds = offset.abs().as_secs();
    let direction = if offset.is_positive() { "ahead of" } else { "behind" };
    let words = Words {
        what: format!("it is {seconds} s {direction} the clocks of the registries"),
        why: "entries, schedules and certificates depend on it",
        remedy: "synchronize it: `timedatectl set-ntp true`",
    };
    Some(vec![words.warning(CLOCK, "this machine's clock")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::image::Reference;

    fn image(text: &str) -> ConfiguredImage {
        let reference = Reference::parse_in(text, "localhost:5000").unwrap();
        ConfiguredImage { configured: text.to_owned(), reference }
    }

    #[test]
    fn every_fault_of_a_registry_is_reported_with_a_remedy() {
        use Severity::{Error, Warning};
        for (text, fault, severity, remedy) in [
            ("web:1", "image localhost:5000/web:1: tag not found in the registry", Error, "docker.io/…"),
            ("ghcr.io/a/b:1", "image ghcr.io/a/b:1: not found in the registry", Error, "push ghcr.io/a/b:1"),
            (
                "ghcr.io/a/b:1",
                "registry ghcr.io: 401 unauthorized for a/b",
                Error,
                "sudo docker login ghcr.io",
            ),
            (
                "ghcr.io/a/b:1",
                "reading registry logins from /root/.docker/config.json: it is not JSON",
                Error,
                "docker logout ghcr.io",
            ),
            (
                "r.lan/a",
                "registry r.lan: it requires a user name and password, but the Docker configuration has an identity token",
                Error,
                "docker logout r.lan",
            ),
            (
                "r.lan/login:429",
                "image r.lan/login:429: tag not found in the registry",
                Error,
                "push r.lan/login:429",
            ),
            (
                "ghcr.io/a/b:1",
                "credential helper docker-credential-desktop.exe for ghcr.io: not found in PATH",
                Error,
                "install docker-credential-desktop.exe in a folder of the PATH",
            ),
            (
                "ghcr.io/a/b:1",
                "credential helper docker-credential-x for ghcr.io: it failed",
                Error,
                "docker logout ghcr.io",
            ),
            ("ghcr.io/a/b:1", "registry ghcr.io: 429 too many requests", Warning, "poll_interval"),
            (
                "127.0.0.1:24290/web-429",
                "registry 127.0.0.1:24290: 401 unauthorized for web-429 (it asks for neither a Basic nor a Bearer login)",
                Error,
                "docker login 127.0.0.1:24290",
            ),
            (
                "web",
                "registry localhost:5000: connection refused",
                Error,
                "curl -I http://localhost:5000/v2/",
            ),
            ("web", "registry localhost:5000: no answer within 12 s", Error, "curl -I"),
            ("r.lan/a", "registry r.lan: its name could not be looked up", Error, "getent hosts r.lan"),
            (
                "r.lan/a",
                "registry r.lan: its TLS certificate is not signed by a known authority",
                Error,
                "/etc/docker/certs.d/r.lan/ca.crt",
            ),
            ("r.lan/a", "registry r.lan: its TLS certificate has expired", Error, "renew"),
            (
                "r.lan/a",
                "registry r.lan: it does not speak TLS",
                Error,
                "add r.lan to the engine's insecure-registries",
            ),
        ] {
            let image = image(text);
            let found = check(&[Lookup { image: &image, fault: Some(fault.to_owned()) }], None);
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].severity, found[0].subject.as_str()), (severity, text), "{found:#?}");
            assert!(found[0].remedy.contains(remedy), "{found:#?}");
        }
    }

    #[test]
    fn a_registry_that_is_not_reached_may_be_behind_the_engines_proxy() {
        for (text, fault, is_behind) in [
            ("ghcr.io/a/b:1", "registry ghcr.io: no connection in time", true),
            ("ghcr.io/a/b:1", "registry ghcr.io: its name could not be looked up", true),
            ("ghcr.io/a/b:1", "registry ghcr.io: 503 service unavailable for a/b", false),
            ("web:1", "registry localhost:5000: connection refused", false),
        ] {
            let image = image(text);
            let lookup = Lookup { image: &image, fault: Some(fault.to_owned()) };
            let found = check(&[lookup], Some("http://proxy.lan:3128"));
            let remedy = &found[0].remedy;
            assert_eq!(remedy.contains("(http://proxy.lan:3128)"), is_behind, "{fault}: {remedy}");
            assert_eq!(remedy.contains("HTTPS_PROXY in /etc/evenkeel/agent.env"), is_behind, "{remedy}");
        }
    }

    #[test]
    fn a_registry_that_is_down_is_a_single_finding() {
        let images = [image("a"), image("b"), image("ghcr.io/c/d")];
        let down = "registry localhost:5000: connection refused".to_owned();
        let faults = [Some(down.clone()), Some(down), None];
        let lookups: Vec<Lookup<'_>> =
            images.iter().zip(faults).map(|(image, fault)| Lookup { image, fault }).collect();
        let found = check(&lookups, None);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].subject, "localhost:5000 (2 images)");
    }

    #[test]
    fn a_clock_is_off_when_no_answer_agrees_with_it() {
        let seconds = SignedDuration::from_secs;
        assert_eq!(clock(&[]), None);
        assert_eq!(clock(&[seconds(1), seconds(-60)]), Some(vec![]));
        assert_eq!(clock(&[seconds(4000), seconds(2)]), Some(vec![]), "the other registry's clock is wrong");
        let found = clock(&[seconds(-700), seconds(-701)]).unwrap();
        assert_eq!((found[0].severity, found[0].area), (Severity::Warning, CLOCK));
        assert!(
            found[0].what.contains("700 s behind") && found[0].remedy.contains("timedatectl"),
            "{found:#?}"
        );
    }
}
