//! Parses container stats of Docker on cgroup v1 and v2, and of podman (DOMAIN 5).

use std::time::Duration;

use serde_json::Value;

use super::answer::{amount, list, text};
use crate::model::Usage;

/// Returns the counters, or `None` for a container that is not running, for which engines send zeros.
pub(super) fn usage(stats: &Value) -> Option<Usage> {
    let per_core = || u32::try_from(list(stats, "/cpu_stats/cpu_usage/percpu_usage").len()).ok();
    let online = amount(stats, "/cpu_stats/online_cpus").and_then(|n| u32::try_from(n).ok());
    Some(Usage {
        // Without a reading, the time is in the year 1.
        read: text(stats, "/read")?.parse().ok().filter(|at: &jiff::Timestamp| at.as_second() > 0)?,
        cpu: Duration::from_nanos(amount(stats, "/cpu_stats/cpu_usage/total_usage")?),
        cores: online.filter(|n| *n > 0).or_else(per_core).filter(|n| *n > 0).unwrap_or(1),
        memory: without_cache(stats),
        memory_limit: amount(stats, "/memory_stats/limit").filter(|limit| *limit > 0),
    })
}

/// Returns the memory usage without the file cache that the kernel would drop first, like `docker stats`. Podman does not
/// report the cache.
fn without_cache(stats: &Value) -> u64 {
    let usage = amount(stats, "/memory_stats/usage").unwrap_or_default();
    // cgroup v1 has both fields; the `total` one includes child groups.
    let cache = amount(stats, "/memory_stats/stats/total_inactive_file")
        .or_else(|| amount(stats, "/memory_stats/stats/inactive_file"));
    usage - cache.filter(|cache| *cache < usage).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(answer: &Value) -> Option<Usage> {
        usage(answer)
    }

    fn answer(cpu: &Value, memory: &Value) -> Value {
        json!({ "read": "2026-01-02T03:04:05.5Z", "preread": "0001-01-01T00:00:00Z",
                "cpu_stats": cpu, "memory_stats": memory })
    }

    fn usual(cores: u32, memory: u64, memory_limit: Option<u64>) -> Usage {
        let read = "2026-01-02T03:04:05.5Z".parse().unwrap();
        Usage { read, cpu: Duration::from_nanos(700), cores, memory, memory_limit }
    }

    #[test]
    fn the_stats_of_each_engine_are_parsed() {
        let cgroup1 = answer(
            &json!({ "cpu_usage": { "total_usage": 700, "percpu_usage": [400, 300] }, "system_cpu_usage": 9 }),
            &json!({ "usage": 1000, "limit": 5000, "stats": { "inactive_file": 1, "total_inactive_file": 300 } }),
        );
        assert_eq!(read(&cgroup1), Some(usual(2, 700, Some(5000))));
        let cgroup2 = answer(
            &json!({ "cpu_usage": { "total_usage": 700 }, "online_cpus": 4 }),
            &json!({ "usage": 1000, "limit": 5000, "stats": { "inactive_file": 200 } }),
        );
        assert_eq!(read(&cgroup2), Some(usual(4, 800, Some(5000))));
        let podman = answer(
            &json!({ "cpu_usage": { "total_usage": 700 }, "online_cpus": 0 }),
            &json!({ "usage": 1000, "limit": 18_446_744_073_709_551_615_u64 }),
        );
        assert_eq!(read(&podman), Some(usual(1, 1000, Some(u64::MAX))));
        let cache_beyond_usage = answer(
            &json!({ "cpu_usage": { "total_usage": 700 }, "online_cpus": 1 }),
            &json!({ "usage": 100, "limit": 0, "stats": { "inactive_file": 200 } }),
        );
        assert_eq!(read(&cache_beyond_usage), Some(usual(1, 100, None)));
    }

    #[test]
    fn a_container_that_is_not_running_has_no_usage() {
        let mut stopped = answer(&json!({ "cpu_usage": { "total_usage": 0 } }), &json!({}));
        stopped["read"] = "0001-01-01T00:00:00Z".into();
        assert_eq!(read(&stopped), None);
        assert_eq!(read(&json!({})), None);
    }
}
