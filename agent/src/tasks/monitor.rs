//! Measures the resource usage of running containers every `monitor.stats_interval` (spec 1.7).
//!
//! The engine only reports counters; usage is the difference of two readings. A new container is read for the second time
//! after two seconds, so that values are available soon; from then on all containers are read together. Between two rounds
//! the task sleeps until a service's published state changes: only then can there be a new container.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::active;
use crate::model::few::FewMap;
use crate::model::{EngineError, Usage};
use crate::ports::Engine;
use crate::project::services::Services;
use crate::service::input::{ContainerUse, Input, Measurement};

use crate::project::handle::Command;

/// Delay until a new container is detected, and until its second reading.
const SOON: Duration = Duration::from_secs(2);
/// Maximum number of concurrent readings. Old engines answer all of them at the next tick of their collector, once a
/// second, so that a smaller number would take more seconds.
pub const PARALLEL: usize = 128;

/// The task that measures resource usage.
pub struct Monitor {
    /// The services whose containers are measured, and which receive the measurements.
    pub services: Arc<Services>,
    /// Container engine.
    pub engine: Arc<dyn Engine>,
    /// Active configuration: the interval.
    pub active: active::Watch,
}

/// Last reading and usage of one container.
struct Known {
    last: Usage,
    used: Option<ContainerUse>,
}

#[derive(Default)]
struct Readings {
    machine_memory: Option<u64>,
    containers: HashMap<String, Known>,
}

impl Monitor {
    /// Measures until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut readings = Readings::default();
        let mut round: Option<Instant> = None;
        let mut changes = self.services.changes().boxed();
        loop {
            // All changes so far are covered by this pass.
            while let Some(Some(())) = changes.next().now_or_never() {}
            let interval = self.active.borrow_and_update().config.monitor.stats_interval;
            let now = Instant::now();
            let is_full = round.is_none_or(|begun| now >= begun + interval);
            if is_full {
                round = Some(now);
            }
            let pass = async {
                self.pass(&mut readings, is_full).await.unwrap_or_else(|error| {
                    tracing::debug!(%error, "resource usage could not be measured");
                    true
                })
            };
            let again = tokio::select! {
                () = stop.cancelled() => return,
                again = pass => again,
            };
            let next = round.map_or(interval, |begun| (begun + interval).duration_since(Instant::now()));
            let changed = async {
                if !again {
                    tokio::select! {
                        Some(()) = changes.next() => {}
                        Ok(()) = self.active.changed() => {}
                        else => std::future::pending().await,
                    }
                }
                tokio::time::sleep(SOON).await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(next) => {}
                () = changed => {}
            }
        }
    }

    /// Reads all running containers (`is_full`), or only those without usage data so far. Returns whether a second reading is
    /// due. A container that gives none waits for the next round.
    async fn pass(&self, readings: &mut Readings, is_full: bool) -> Result<bool, EngineError> {
        let workers = self.services.workers();
        let mut services = Vec::new();
        let mut all = HashSet::new();
        for worker in workers.iter().filter(|worker| !worker.config.silent) {
            let ids = worker.published.get().service.measurable();
            all.extend(ids.iter().cloned());
            services.push((worker, ids));
        }
        readings.containers.retain(|id, _| all.contains(id));
        let asked: HashSet<String> =
            all.into_iter().filter(|id| is_full || readings.is_unknown(id)).collect();
        if asked.is_empty() {
            return Ok(false);
        }
        let machine_memory = match readings.machine_memory {
            Some(memory) if !is_full => memory,
            _ => *readings.machine_memory.insert(self.engine.machine_memory().await?),
        };
        let engine = self.engine.as_ref();
        let answers: Vec<_> = stream::iter(asked.clone())
            .map(|id| async move {
                let answer = engine.stats(&id).await;
                (id, answer)
            })
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        for (id, answer) in answers {
            match answer {
                Ok(Some(usage)) => readings.note(&id, usage, machine_memory),
                Err(error) if error.is_unavailable() => return Err(error),
                // Removed or stopped meanwhile, or the response could not be parsed.
                Ok(None) | Err(_) => {
                    readings.containers.remove(&id);
                }
            }
        }
        let again = asked.iter().any(|id| readings.was_read_once(id));
        for (worker, ids) in services {
            if !ids.iter().any(|id| asked.contains(id)) {
                continue;
            }
            let used = |id: String| readings.containers.get(&id)?.used.map(|used| (id, used));
            let containers: FewMap<_, _> = ids.into_iter().filter_map(used).collect();
            if !containers.is_empty() {
                let measurement = Measurement { is_full, machine_memory, containers };
                // An error means that the service has just been removed.
                let _ = worker.inbox.send(Command::Input(Box::new(Input::Measured(measurement))));
            }
        }
        Ok(again)
    }
}

impl Readings {
    /// Reports whether there is no usage data for a container yet.
    fn is_unknown(&self, id: &str) -> bool {
        self.containers.get(id).is_none_or(|known| known.used.is_none())
    }

    /// Reports whether a container was read, and a second reading is needed for its usage.
    fn was_read_once(&self, id: &str) -> bool {
        self.containers.get(id).is_some_and(|known| known.used.is_none())
    }

    fn note(&mut self, id: &str, usage: Usage, machine_memory: u64) {
        let earlier = self.containers.get(id).map(|known| known.last);
        let used =
            earlier.and_then(|earlier| cpu_percent(&earlier, &usage)).map(|cpu_percent| ContainerUse {
                cpu_percent,
                cores: usage.cores,
                memory: usage.memory,
                memory_limit: usage.memory_limit.filter(|limit| *limit < machine_memory),
            });
        self.containers.insert(id.to_owned(), Known { last: usage, used });
    }
}

/// Returns CPU time per elapsed time, in percent of one core. `None` if the readings can't be compared: the container was
/// restarted (its counter starts at zero), or the engine's clock was changed.
///
/// Elapsed time is taken from the timestamps of the readings. Docker's own client divides by the machine's CPU time, which
/// gives the same result with Docker but not with podman (DOMAIN 5).
fn cpu_percent(earlier: &Usage, later: &Usage) -> Option<f64> {
    let time =
        Duration::try_from(later.read.duration_since(earlier.read)).ok().filter(|time| !time.is_zero())?;
    let used = later.cpu.checked_sub(earlier.cpu)?;
    let percent = used.as_secs_f64() / time.as_secs_f64() * 100.0;
    // More than all cores can provide, beyond the error of the timestamps: the clock was set back.
    (percent <= f64::from(later.cores) * 110.0 + 10.0).then_some(percent)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn usage(read_ms: i64, cpu_ms: u64, cores: u32) -> Usage {
        let read = Timestamp::from_millisecond(1_800_000_000_000 + read_ms).unwrap();
        Usage { read, cpu: Duration::from_millis(cpu_ms), cores, memory: 5, memory_limit: Some(100) }
    }

    #[test]
    fn cpu_usage_is_the_difference_of_two_readings() {
        let earlier = usage(0, 1000, 4);
        for (what, later, expected) in [
            ("half a core", usage(10_000, 6000, 4), Some(50.0)),
            ("three cores", usage(10_000, 31_000, 4), Some(300.0)),
            ("frozen", usage(10_000, 1000, 4), Some(0.0)),
            ("restarted", usage(10_000, 999, 4), None),
            ("the same reading", usage(0, 1000, 4), None),
            ("the clock went back", usage(-10_000, 6000, 4), None),
            ("the clock went back, but not so far", usage(100, 6000, 4), None),
        ] {
            assert_eq!(cpu_percent(&earlier, &later), expected, "{what}");
        }
    }

    #[test]
    fn only_a_container_that_was_read_once_is_read_again_soon() {
        let mut readings = Readings::default();
        assert!(readings.is_unknown("a") && !readings.was_read_once("a"), "its stats may never come");
        readings.note("a", usage(0, 0, 1), 100);
        assert!(readings.is_unknown("a") && readings.was_read_once("a"));
        readings.note("a", usage(1000, 500, 1), 100);
        assert!(!readings.is_unknown("a") && !readings.was_read_once("a"));
    }

    #[test]
    fn usage_needs_two_readings_and_a_limit_of_all_memory_is_none() {
        let mut readings = Readings::default();
        readings.note("a", usage(0, 0, 2), 100);
        assert!(readings.containers["a"].used.is_none());
        readings.note("a", usage(1000, 500, 2), 100);
        let expected = ContainerUse { cpu_percent: 50.0, cores: 2, memory: 5, memory_limit: None };
        assert_eq!(
            readings.containers["a"].used,
            Some(expected),
            "a limit as large as the machine's memory is none"
        );
        readings.note("a", usage(2000, 0, 1), 101);
        assert!(readings.containers["a"].used.is_none(), "restarted");
        readings.note("a", usage(3000, 0, 1), 101);
        assert_eq!(readings.containers["a"].used.unwrap().memory_limit, Some(100));
    }
}
