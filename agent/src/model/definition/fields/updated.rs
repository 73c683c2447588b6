//! What `docker update` changes of a container that exists. The engine does not report that it was changed, and a hash is that
//! of the definition that the container was made from, so that these settings are compared even if the hash is known.

use super::{Sides, amount, plain};

/// The restart policies that compose passes to the engine as they are.
const POLICIES: [&str; 5] = ["", "no", "always", "on-failure", "unless-stopped"];

impl Sides<'_> {
    /// Returns the settings of the container that are no longer those that it was made with.
    pub(in crate::model::definition) fn changed_since(&self) -> Vec<&'static str> {
        // It has limits by default.
        if self.is_podman() {
            return Vec::new();
        }
        // An engine drops what its kernel can't limit. That is no change.
        let is_set = |field: &str| {
            let value = self.actual(&format!("/HostConfig/{field}"));
            value.is_some_and(|value| {
                value.as_i64().is_some_and(|number| number > 0)
                    || value.as_str().is_some_and(|text| !text.is_empty())
            })
        };
        let all: [(&'static str, bool, bool); 8] = [
            ("restart", is_set("RestartPolicy/Name"), self.is_plain_policy() && self.restart_differs()),
            ("memory limit", is_set("Memory"), self.memory_differs()),
            ("memswap_limit", is_set("MemorySwap"), self.swap_differs()),
            ("memory reservation", is_set("MemoryReservation"), self.reservation_differs()),
            ("cpu limit", is_set("NanoCpus") || is_set("CpuQuota"), self.cpus_differ()),
            (
                "cpu_shares",
                is_set("CpuShares"),
                self.number_differs(&["/cpu_shares"], "/HostConfig/CpuShares"),
            ),
            ("cpuset", is_set("CpusetCpus"), self.plain_text_differs("cpuset", "/HostConfig/CpusetCpus")),
            ("pids limit", is_set("PidsLimit"), self.pids_differ()),
        ];
        all.into_iter().filter(|(_, is_set, differs)| *is_set && *differs).map(|(name, ..)| name).collect()
    }

    fn is_plain_policy(&self) -> bool {
        let wanted = self.wanted("restart").map(plain).unwrap_or_default();
        POLICIES.contains(&wanted.split(':').next().unwrap_or_default())
    }

    pub(super) fn memory_differs(&self) -> bool {
        self.bytes_differ(&["/mem_limit", "/deploy/resources/limits/memory"], "/HostConfig/Memory")
    }

    pub(super) fn reservation_differs(&self) -> bool {
        self.bytes_differ(
            &["/mem_reservation", "/deploy/resources/reservations/memory"],
            "/HostConfig/MemoryReservation",
        )
    }

    pub(super) fn pids_differ(&self) -> bool {
        let keys = ["/pids_limit", "/deploy/resources/limits/pids"];
        let is_named = || keys.iter().any(|key| self.service.pointer(key).and_then(amount).is_some());
        // Podman has a limit by default.
        (!self.is_podman() || is_named()) && self.number_differs(&keys, "/HostConfig/PidsLimit")
    }
}
