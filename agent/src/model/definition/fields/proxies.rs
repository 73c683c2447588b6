//! The proxy variables that compose adds to a container from docker's configuration. They are part of no hash.

use std::collections::BTreeMap;

use super::{PROXIES, Sides, variables};

impl Sides<'_> {
    /// Returns the proxy variables that a new container of this service would not have as this one has them. `set`: those that
    /// compose adds.
    pub(in crate::model::definition) fn proxies(&self, set: &BTreeMap<String, String>) -> Vec<String> {
        // Podman adds those of its own surroundings.
        if self.is_podman() || self.image.is_none() {
            return Vec::new();
        }
        let (actual, of_image) = (variables(self.actual("/Config/Env")), variables(self.of_image("/Env")));
        let is_listed = |name: &str| self.wanted("environment").is_some_and(|all| all.get(name).is_some());
        let differs = |name: &str| actual.get(name) != set.get(name).or_else(|| of_image.get(name));
        let names = PROXIES.iter().flat_map(|name| [name.to_uppercase(), (*name).to_owned()]);
        names.filter(|name| !is_listed(name) && differs(name)).collect()
    }
}
