//! The image of a compose service, compared with the one that its containers were created from.

use serde_json::Value;

use super::Running;
use crate::model::compose::{Model, ModelService};
use crate::model::image::{HUB, LOCAL_HOST, Reference};

impl Running {
    /// Returns those of these compose services whose containers were created from another image than the files name now.
    /// `is_own_change`: whether the agent itself moves containers from the first reference to the second.
    pub fn other_images(
        &self,
        model: &Model,
        services: &[String],
        is_own_change: impl Fn(&Reference, &Reference) -> bool,
    ) -> Vec<String> {
        let is_other = |service: ModelService<'_>, container: &Value| {
            let actual = container.pointer("/Config/Image").and_then(Value::as_str).unwrap_or_default();
            !is_same(service, actual, &is_own_change)
        };
        let differs = |name: &&String| {
            let service = model.service(name);
            service.is_some_and(|service| self.of_service(name).any(|c| is_other(service, c)))
        };
        services.iter().filter(differs).cloned().collect()
    }
}

fn is_same(
    service: ModelService<'_>,
    actual: &str,
    is_own_change: impl Fn(&Reference, &Reference) -> bool,
) -> bool {
    let Some(wanted) = service.element().get("image").and_then(Value::as_str) else {
        // Compose names the image of a service that is only built after project and service; older versions with `_`.
        let named = |separator: char| actual.ends_with(&format!("{separator}{}", service.name));
        return actual.is_empty() || named('-') || named('_');
    };
    if wanted == actual {
        return true;
    }
    let (Ok(wanted), Ok(actual)) = (Reference::parse(wanted), Reference::parse(actual)) else {
        // The engine does not report it.
        return actual.is_empty();
    };
    if wanted.digest.is_some() && wanted.digest == actual.digest && wanted.repository == actual.repository {
        return true;
    }
    wanted == actual || is_found_locally(&wanted, &actual) || is_own_change(&actual, &wanted)
}

/// Reports whether podman has resolved a name without a host to an image that is only on this machine.
fn is_found_locally(wanted: &Reference, actual: &Reference) -> bool {
    let name = |reference: &Reference| {
        let path = reference.repository.path.strip_prefix("library/");
        path.unwrap_or(&reference.repository.path).to_owned()
    };
    actual.repository.host == LOCAL_HOST
        && wanted.repository.host == HUB
        && name(wanted) == name(actual)
        && (&wanted.tag, &wanted.digest) == (&actual.tag, &actual.digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";
    const TWO: &str = "sha256:2222222222222222222222222222222222222222222222222222222222222222";

    /// Whether the image counts as edited, with these texts in the file and at the container.
    fn is_edited(wanted: Option<&str>, actual: &str, own: &[[&str; 2]]) -> bool {
        let mut element = serde_json::json!({});
        if let Some(wanted) = wanted {
            element["image"] = wanted.into();
        }
        let model = serde_json::json!({ "services": { "web": element } });
        let model: Model = serde_json::from_value(model).expect("a model");
        let labels = serde_json::json!({ "com.docker.compose.service": "web" });
        let container = serde_json::json!({ "Config": { "Image": actual, "Labels": labels } });
        let running = Running { containers: vec![container], ..Running::default() };
        let is_own = |from: &Reference, to: &Reference| {
            let parsed = |text: &str| Reference::parse(text).expect("a reference");
            own.iter().any(|[before, after]| (parsed(before), parsed(after)) == (from.clone(), to.clone()))
        };
        !running.other_images(&model, &["web".to_owned()], is_own).is_empty()
    }

    #[test]
    fn another_tag_repository_host_or_digest_is_an_edit_of_the_image() {
        let pinned = |digest: &str| format!("web:1@{digest}");
        for (wanted, actual) in [
            ("web:2", "web:1"),
            ("web", "web:1"),
            ("other:1", "web:1"),
            ("ghcr.io/a/web:1", "a/web:1"),
            (&pinned(ONE), "web:1"),
            ("web:1", &pinned(ONE)),
            (&pinned(TWO), &pinned(ONE)),
            ("web:2", "localhost/web:1"),
        ] {
            assert!(is_edited(Some(wanted), actual, &[]), "{wanted} for {actual}");
        }
    }

    #[test]
    fn another_spelling_of_the_same_image_is_no_edit() {
        let pinned = |name: &str| format!("{name}@{ONE}");
        for (wanted, actual) in [
            ("web:1", "web:1"),
            ("docker.io/library/web:1", "web:1"),
            ("web", "docker.io/library/web:latest"),
            ("a/web:1", "index.docker.io/a/web:1"),
            (&pinned("web:1"), &pinned("web")),
            // Podman names images that were built here so.
            ("web:1", "localhost/web:1"),
            ("web:1", ""),
        ] {
            assert!(!is_edited(Some(wanted), actual, &[]), "{wanted} for {actual}");
        }
    }

    #[test]
    fn a_service_that_is_only_built_has_the_name_that_compose_gives_its_image() {
        assert!(!is_edited(None, "shop-web", &[]));
        assert!(!is_edited(None, "shop_web", &[]));
        assert!(is_edited(None, "web:1", &[]), "it had an image, which was taken out of the file");
    }

    #[test]
    fn a_tag_that_the_agent_itself_sets_is_no_edit() {
        assert!(!is_edited(Some("web:2"), "web:1", &[["web:1", "web:2"]]));
        assert!(is_edited(Some("web:3"), "web:1", &[["web:1", "web:2"]]), "the file says something else");
        assert!(is_edited(Some("web:1"), "proxy:1", &[["web:1", "web:2"]]), "it is of another service");
    }
}
