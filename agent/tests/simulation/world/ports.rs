//! The agent's ports to engine, registry and store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use evenkeel_agent::model::image::{Digest, ImageId, Reference, Repository};
use evenkeel_agent::model::image_config::ImageConfig;
use evenkeel_agent::model::probe::{Answer, Probe, Target};
use evenkeel_agent::model::swarm::SwarmService;
use evenkeel_agent::model::{
    Container, ContainerEvent, EngineError, Members, Need, Platform, RegistryError, Running, SignatureError,
    SignatureVerdict, Signers, SwarmError, Usage,
};
use evenkeel_agent::ports::fleet::{DecisionsResponse, Fleet, FleetError, KnownRevisions};
use evenkeel_agent::ports::{
    DrainCall, Engine, ExecEnd, GateAnswer, GateCommand, GateQuestion, HookCall, HookError, Image, Probes,
    PullProgress, Registry, Signatures, Swarm, Tags, Urgency,
};
use evenkeel_common::store::{Change, Store, StoreError};
use evenkeel_common::wire::{FleetAnswer, FleetAsk, Inventory, MountRecord};
use futures_util::FutureExt;
use futures_util::stream::BoxStream;
use jiff::Timestamp;
use tokio::sync::watch;

use super::compose::{self, Changing};
use super::container::FakeImage;
use super::{CommandFault, FakeWorld, ProbeFault, RegistryFault, StoreFault};

#[async_trait]
impl Engine for FakeWorld {
    async fn ping(&self) -> Result<(), EngineError> {
        self.call(|_, _| Ok(())).await
    }

    async fn check_reads(&self) -> Result<(), EngineError> {
        self.call(|_, _| Ok(())).await
    }

    async fn containers(&self, members: &Members) -> Result<Vec<Container>, EngineError> {
        self.call(|inner, now| {
            inner.queries.insert(members.clone());
            if inner.prune_always {
                inner.prune();
            }
            let view = |c: &super::FakeContainer| {
                let shown = c.view(now);
                let (started_at, finished_at) = (shown.started_at, shown.finished_at);
                let wall = |at: Option<Timestamp>| at.map(|at| inner.wall(at));
                Container { started_at: wall(started_at), finished_at: wall(finished_at), ..shown }
            };
            Ok(inner.containers.iter().map(view).collect())
        })
        .await
    }

    async fn needed_containers(&self, asked: &[Container]) -> Result<BTreeMap<String, Need>, EngineError> {
        let inner = self.lock();
        let of_agent = inner.containers.iter().filter(|c| inner.of_agent.contains(&c.service)).map(|c| &c.id);
        let tasks = asked.iter().filter(|c| inner.of_agent.contains(&c.name)).map(|c| &c.id);
        Ok(of_agent.chain(tasks).map(|id| (id.clone(), Need::ToRun)).collect())
    }

    async fn running(&self, _: &str, ids: &[String]) -> Result<Running, EngineError> {
        self.call(|inner, _| {
            let container = |c: &super::FakeContainer| {
                let labels = serde_json::json!({
                    "com.docker.compose.service": c.service,
                    "com.docker.compose.config-hash": compose::hash_of(&c.reference, c.made_with),
                    "com.docker.compose.version": "1",
                    "version": c.made_with.to_string(),
                });
                let config = serde_json::json!({ "Image": c.reference.tagged(), "Labels": labels });
                let mount = |m: &MountRecord| {
                    serde_json::json!({ "Type": m.kind, "Source": m.source, "Destination": m.destination })
                };
                let mounts: Vec<serde_json::Value> = c.mounts().iter().map(mount).collect();
                let policy = if inner.docker_updated.contains(&c.id) { "always" } else { "" };
                let host = serde_json::json!({ "RestartPolicy": { "Name": policy } });
                serde_json::json!({ "Config": config, "Mounts": mounts, "HostConfig": host })
            };
            let named = inner.containers.iter().filter(|c| ids.contains(&c.id));
            Ok(Running { containers: named.map(container).collect(), ..Running::default() })
        })
        .await
    }

    async fn image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        self.call(|inner, _| {
            let Some((id, image)) = inner.by_name(name) else { return Ok(None) };
            if inner.unreadable.contains(&id) {
                return Err(EngineError::Refused("readlink: invalid argument".into()));
            }
            let (repo_digests, config) = (image.digests.into_iter().collect(), inner.config_of(&id));
            Ok(Some(Image { id, repo_digests, size: 1, config, platform: None, is_complete: true }))
        })
        .await
    }

    async fn pull(
        &self,
        reference: &Reference,
        _: Option<&Platform>,
        _: &watch::Sender<PullProgress>,
    ) -> Result<(), EngineError> {
        self.call(|inner, _| {
            let digest = reference.digest.clone().expect("the agent pulls by digest only");
            inner.check_fetched(&digest);
            inner.check_env_file();
            if inner.only_signed && !inner.signed.contains(&digest) {
                inner.violated(format!("{digest} is fetched without a signature"));
            }
            if inner.faults.pull {
                inner.trace("engine", "a pull fails");
                return Err(EngineError::Refused("no space left on device".into()));
            }
            let (id, behaviour) = inner
                .published
                .get(&digest)
                .cloned()
                .ok_or(EngineError::Refused("manifest unknown".into()))?;
            let empty = FakeImage { behaviour, digests: BTreeSet::new(), tags: BTreeSet::new() };
            inner.images.entry(id).or_insert(empty).digests.insert(reference.repository.at(&digest));
            Ok(())
        })
        .await
    }

    async fn tag(&self, id: &ImageId, reference: &Reference) -> Result<(), EngineError> {
        self.call(|inner, _| inner.tag(id, reference.tagged())).await
    }

    async fn untag(&self, reference: &Reference) -> Result<(), EngineError> {
        self.call(|inner, _| {
            for image in inner.images.values_mut() {
                image.tags.remove(&reference.tagged());
            }
            Ok(())
        })
        .await
    }

    async fn tags(&self, repository: &Repository) -> Result<Vec<Reference>, EngineError> {
        self.call(|inner, _| {
            let names = inner.images.values().flat_map(|image| image.tags.iter());
            let tags = names.filter_map(|name| Reference::parse(name).ok());
            Ok(tags.filter(|tag| tag.repository == *repository).collect())
        })
        .await
    }

    async fn anchor(&self, name: &str, id: &ImageId, _: &str) -> Result<(), EngineError> {
        self.call(|inner, _| {
            if !inner.images.contains_key(id) {
                return Err(EngineError::NotFound("No such image".into()));
            }
            inner.anchors.insert(name.to_owned(), id.clone());
            Ok(())
        })
        .await
    }

    async fn anchors(&self, _: &str) -> Result<Vec<String>, EngineError> {
        self.call(|inner, _| Ok(inner.anchors.keys().cloned().collect())).await
    }

    async fn remove_anchor(&self, name: &str) -> Result<(), EngineError> {
        self.call(|inner, _| {
            inner.anchors.remove(name);
            Ok(())
        })
        .await
    }

    async fn remove_image(&self, id: &ImageId, tags: &[Reference]) -> Result<bool, EngineError> {
        self.call(|inner, _| {
            let is_used = inner.containers.iter().any(|container| container.image == *id);
            let is_ours = |tag: &String| tags.iter().any(|reference| reference.tagged() == *tag);
            let is_named = inner.images.get(id).is_some_and(|image| !image.tags.iter().all(is_ours));
            if is_used || is_named || inner.anchors.values().any(|held| held == id) {
                return Ok(false);
            }
            inner.images.remove(id);
            Ok(true)
        })
        .await
    }

    async fn free_space(&self) -> Result<Option<u64>, EngineError> {
        self.call(|_, _| Ok(Some(1 << 40))).await
    }

    async fn log_tail(&self, _: &str, _: u32) -> Result<String, EngineError> {
        self.call(|_, _| Ok("it went wrong".into())).await
    }

    async fn rename(&self, _: &str, _: &str) -> Result<(), EngineError> {
        Ok(())
    }

    async fn restart(&self, container: &str) -> Result<(), EngineError> {
        let _changing = Changing::begin(self, compose::Change::Restart);
        self.call(|inner, _| {
            let Some(at) = inner.containers.iter().position(|c| c.id == container) else {
                return Err(EngineError::NotFound(format!("No such container: {container}")));
            };
            inner.restarts += 1;
            inner.check_restart(at);
            let name = inner.containers[at].name();
            inner.trace("engine", &format!("restarts {name}"));
            if inner.containers[at].is_up() {
                inner.end_by_sigterm(at, 143);
            }
            if inner.containers[at].behaviour == super::Behaviour::BadEntrypoint {
                return Err(EngineError::Refused("exec: no such file".into()));
            }
            inner.start(at);
            Ok(())
        })
        .await
    }

    async fn start(&self, container: &str) -> Result<(), EngineError> {
        self.call(|inner, _| {
            let at = inner.at(container)?;
            if !inner.containers[at].is_up() {
                let name = inner.containers[at].name();
                inner.trace("engine", &format!("starts {name}"));
                inner.start(at);
            }
            Ok(())
        })
        .await
    }

    async fn stop(&self, container: &str) -> Result<(), EngineError> {
        self.call(|inner, _| {
            let at = inner.at(container)?;
            if inner.unstoppable.contains(container) {
                return Err(EngineError::Refused(
                    "cannot stop container: did not receive an exit event".into(),
                ));
            }
            inner.stop_by_agent(at);
            Ok(())
        })
        .await
    }

    async fn remove(&self, container: &str, _: bool) -> Result<(), EngineError> {
        self.call(|inner, _| {
            let at = inner.at(container)?;
            if inner.containers[at].is_up() {
                return Err(EngineError::Refused("stop the container before removing it".into()));
            }
            let name = inner.containers[at].name();
            inner.trace("engine", &format!("removes {name}"));
            inner.remove(at);
            Ok(())
        })
        .await
    }

    async fn exec(&self, container: &str, argv: &[String], _: Duration) -> Result<ExecEnd, EngineError> {
        self.call(|inner, _| {
            let at = inner.at(container)?;
            if !inner.containers[at].is_up() {
                return Err(EngineError::Refused("container is not running".into()));
            }
            let name = inner.containers[at].name();
            inner.trace("engine", &format!("runs {} in {name}", argv.join(" ")));
            inner.containers[at].is_draining = argv.first().is_some_and(|word| word == "drain");
            Ok(ExecEnd::Exited { status: 0 })
        })
        .await
    }

    async fn running_since(&self, _: Timestamp) -> Result<Option<Timestamp>, EngineError> {
        self.call(|inner, _| Ok(inner.engine_since.map(|at| inner.wall(at)))).await
    }

    async fn stats(&self, _: &str) -> Result<Option<Usage>, EngineError> {
        Ok(None)
    }

    async fn machine_memory(&self) -> Result<u64, EngineError> {
        Ok(1 << 30)
    }

    async fn events(
        &self,
        since_nano: i64,
        until_nano: Option<i64>,
    ) -> Result<BoxStream<'static, ContainerEvent>, EngineError> {
        self.call(|inner, _| Ok(inner.events.read(since_nano, until_nano))).await
    }
}

#[async_trait]
impl Registry for FakeWorld {
    async fn digest(&self, reference: &Reference, _: Urgency) -> Result<Digest, RegistryError> {
        self.point().await;
        let fault = self.lock().faults.registry;
        match fault {
            RegistryFault::None => {}
            RegistryFault::Errors => return Err(RegistryError("the registry returns 500".into())),
            RegistryFault::Hangs => {
                tokio::time::sleep(Duration::from_secs(30)).await;
                return Err(RegistryError("the registry does not respond".into()));
            }
            RegistryFault::Slow => tokio::time::sleep(Duration::from_secs(5)).await,
        }
        let digest = {
            let mut inner = self.lock();
            let digest = inner.registry.get(&reference.tagged()).cloned();
            inner.digest_reported(reference, digest.as_ref());
            digest
        };
        digest.ok_or_else(|| RegistryError("tag not found".into()))
    }

    async fn digest_from_content(&self, reference: &Reference) -> Result<Digest, RegistryError> {
        self.digest(reference, Urgency::Manual).await
    }

    async fn has(&self, _: &Repository, digest: &Digest) -> Result<bool, RegistryError> {
        self.point().await;
        Ok(self.lock().registry.values().any(|known| known == digest))
    }

    async fn config(
        &self,
        _: &Repository,
        digest: &Digest,
        _: Option<&Platform>,
    ) -> Result<Option<ImageConfig>, RegistryError> {
        self.point().await;
        let inner = self.lock();
        match inner.faults.registry {
            RegistryFault::None | RegistryFault::Slow => {
                Ok(inner.published.get(digest).map(|(id, _)| inner.config_of(id)))
            }
            RegistryFault::Errors | RegistryFault::Hangs => {
                Err(RegistryError("the registry returns 500".into()))
            }
        }
    }
}

/// The engine is not part of a swarm.
#[async_trait]
impl Swarm for FakeWorld {
    async fn service(&self, _: &str) -> Result<SwarmService, SwarmError> {
        Err(SwarmError::NotManager("the engine is not part of a swarm".to_owned()))
    }

    async fn admits(&self, _: &SwarmService, _: &Reference) -> Result<(), SwarmError> {
        Err(SwarmError::NotManager("the engine is not part of a swarm".to_owned()))
    }

    async fn set_image(&self, _: &SwarmService, _: &str, _: bool) -> Result<(), SwarmError> {
        Err(SwarmError::NotManager("the engine is not part of a swarm".to_owned()))
    }

    async fn roll_back(&self, _: &SwarmService) -> Result<(), SwarmError> {
        Err(SwarmError::NotManager("the engine is not part of a swarm".to_owned()))
    }

    async fn task_log(&self, _: &str, _: u32) -> Result<String, SwarmError> {
        Err(SwarmError::NotManager("the engine is not part of a swarm".to_owned()))
    }

    async fn health_check(&self, _: &str) -> Result<String, SwarmError> {
        Err(SwarmError::NotManager("the engine is not part of a swarm".to_owned()))
    }
}

#[async_trait]
impl Signatures for FakeWorld {
    async fn verify(
        &self,
        _: &Repository,
        digest: &Digest,
        _: &Signers,
    ) -> Result<SignatureVerdict, SignatureError> {
        self.point().await;
        let mut inner = self.lock();
        inner.signature_reads += 1;
        let is_signed = inner.signed.contains(digest);
        Ok(if is_signed { SignatureVerdict::Valid { integrated: None } } else { SignatureVerdict::Missing })
    }

    async fn key_errors(&self, _: &[PathBuf]) -> Vec<String> {
        Vec::new()
    }
}

#[async_trait]
impl GateCommand for FakeWorld {
    async fn ask(&self, _: &[String], question: &GateQuestion) -> GateAnswer {
        self.point().await;
        let mut inner = self.lock();
        let fault = inner.faults.command;
        inner.command_answers(question, fault == CommandFault::None);
        let reason = String::new();
        match fault {
            CommandFault::None => GateAnswer::Go { reason },
            CommandFault::Waits => GateAnswer::Wait { reason },
            CommandFault::Fails => GateAnswer::Failed { fault: "it exited with code 1".to_owned(), reason },
        }
    }

    async fn run_drain(&self, call: &DrainCall) -> Result<(), HookError> {
        self.point().await;
        let mut inner = self.lock();
        let (leaving, staying) = (call.leaving.len(), call.staying.len());
        inner.trace("drain", &format!("{leaving} leaving, {staying} staying"));
        if inner.faults.command == CommandFault::Fails {
            return Err(HookError { why: "it exited with status 1".to_owned(), output: String::new() });
        }
        Ok(())
    }

    async fn run_hook(&self, call: &HookCall) -> Result<(), HookError> {
        self.point().await;
        let mut inner = self.lock();
        inner.hook_runs(call);
        if inner.faults.command == CommandFault::Fails {
            return Err(HookError { why: "it exited with status 1".to_owned(), output: String::new() });
        }
        Ok(())
    }
}

#[async_trait]
impl Probes for FakeWorld {
    async fn ask(&self, _: &Probe, targets: &[Target]) -> BTreeMap<Target, Answer> {
        self.point().await;
        let inner = self.lock();
        let answer = |target: &Target| {
            let container = inner.containers.iter().find(|c| Some(&*c.id) == target.container());
            let answers = match inner.faults.probe {
                ProbeFault::None => container.is_some_and(|c| c.answers(inner.now)),
                ProbeFault::Fails => false,
                ProbeFault::Passes => true,
            };
            if answers { Ok("status 200 OK".to_owned()) } else { Err("connection refused".to_owned()) }
        };
        targets.iter().map(|target| (target.clone(), answer(target))).collect()
    }
}

/// There is no fleet.
#[async_trait]
impl Fleet for FakeWorld {
    async fn decisions(&self, _: KnownRevisions, _: Duration) -> Result<DecisionsResponse, FleetError> {
        Err(FleetError::NoFleet)
    }

    async fn ask(&self, _: &FleetAsk) -> Result<FleetAnswer, FleetError> {
        Err(FleetError::NoFleet)
    }

    async fn release(&self, _: &FleetAsk) -> Result<(), FleetError> {
        Err(FleetError::NoFleet)
    }

    async fn report(&self, _: &Inventory) -> Result<(), FleetError> {
        Err(FleetError::NoFleet)
    }
}

#[async_trait]
impl Tags for FakeWorld {
    async fn tags(&self, repository: &Repository, _: bool) -> Result<Arc<[String]>, RegistryError> {
        self.point().await;
        let inner = self.lock();
        match inner.faults.registry {
            RegistryFault::None | RegistryFault::Slow => Ok(inner.tags_of(repository).into()),
            RegistryFault::Errors | RegistryFault::Hangs => {
                Err(RegistryError("the list of tags can't be read".into()))
            }
        }
    }
}

#[async_trait]
impl Store for FakeWorld {
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        self.point().await;
        let (refused, fault) = {
            let mut inner = self.lock();
            (inner.refuses_write.as_mut().is_some_and(|refuses| refuses()), inner.faults.store)
        };
        let error = || {
            let cause = "No space left on device (os error 28)".to_owned();
            StoreError { doing: "write", path: "state.redb".into(), cause }
        };
        if refused || fault == StoreFault::Refuses {
            return Err(error());
        }
        let mut before = Vec::with_capacity(changes.len());
        for (key, _) in &changes {
            before.push((key.clone(), self.store.get(key).await?));
        }
        self.store.put_all(changes.clone()).await?;
        if fault == StoreFault::Torn {
            let mut inner = self.lock();
            inner.last_write = before;
            inner.torn();
            return Err(error());
        }
        {
            let mut inner = self.lock();
            inner.last_write = before;
            inner.written(&changes);
        }
        self.point().await;
        Ok(())
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.get(key).await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.store.scan(prefix).await
    }
}

impl FakeWorld {
    /// The machine loses power: the last write is undone.
    pub(crate) fn power_cut(&self) {
        let undone = std::mem::take(&mut self.lock().last_write);
        self.store.put_all(undone.clone()).now_or_never().expect("memory").expect("memory");
        let mut inner = self.lock();
        inner.restore(&undone);
        inner.trace("machine", "loses the last write");
    }
}
