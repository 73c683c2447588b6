//! Digests that are in the registry but do not run: when they were first seen, and whether they are approved (DECISIONS 7).
//! `gates/mod.rs` evaluates them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

use crate::config::UpdateConfig;
use crate::model::image::{Digest, Reference};
use crate::model::image_config::ConfigDifference;
use crate::model::snapshot::{EarlierData, FolderId, Room, Source};
use crate::model::{Difference, Obstacle, Project, SignatureFlaw};
use crate::ports::GateAnswer;
use crate::service::fleet::FleetHold;
use crate::service::images::NotCopied;

/// Why a valid signature is none for today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlayedBack {
    /// The digest was proven here and left for another one.
    Left,
    /// It was signed before the digest that runs.
    SignedEarlier,
}

/// A digest that may be deployed once no gate holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Image as configured.
    pub image: String,
    /// Its normalized reference.
    pub reference: Reference,
    /// The digest in the registry.
    pub digest: Digest,
    /// The running digest.
    pub old_digest: Option<Digest>,
    /// When this agent or the fleet first saw it.
    pub first_seen: Timestamp,
    /// A user has approved it.
    pub approved: bool,
    /// Why it does not count as signed, if a signature is required.
    pub unsigned: Option<Unsigned>,
    /// Why its signature is none for today, if a signature is required (DECISIONS 7).
    pub played_back: Option<PlayedBack>,
    /// A manual trigger has found it.
    pub triggered: bool,
    /// The gate command's answer; `None` while there is none.
    pub command: Option<GateAnswer>,
    /// The warden's answer, if it holds the update.
    pub fleet: Option<FleetHold>,
    /// How the definition of what its update would bring up differs from what runs, if it does.
    pub definition: Option<Arc<DefinitionHold>>,
    /// How its configuration differs from that of the running image; `None` if they have not been compared yet.
    pub configs: Option<ConfigsCompared>,
    /// The compose services on the image that are asked to hand over, each with what keeps it from doing so.
    pub orders: BTreeMap<String, Option<Obstacle>>,
    /// The data that is copied before the update, or why it can't be; `None` if it has not been looked at yet.
    pub snapshot: Option<Result<SnapshotSeen, String>>,
    /// The last failure to copy the data before its update.
    pub not_copied: Option<NotCopied>,
    /// The compose service that the probe names, if the compose files do not have it.
    pub probe_lacks: Option<String>,
    /// The same digest as seen by other services of the project that use the same image.
    pub others: Vec<SharedCandidate>,
}

impl Candidate {
    /// How its configuration differs from that of the running image, as far as that is known.
    pub(in crate::service) fn config_differences(&self) -> &[ConfigDifference] {
        self.configs.as_ref().and_then(|compared| compared.as_deref().ok()).unwrap_or_default()
    }
}

/// Why the definition of what runs can't be deployed with a new image (DECISIONS 4a).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefinitionHold {
    /// What differs, by compose service.
    pub differences: Vec<Difference>,
    /// The project as a person has started it.
    pub project: Project,
    /// The files that the containers were made from in place of the configured ones; empty if there are none.
    pub other_files: Vec<PathBuf>,
}

/// A digest as seen by another service that uses the same image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedCandidate {
    /// The name of the other service.
    pub(in crate::service) service: String,
    /// Its configured gates.
    pub(in crate::service) update: Arc<UpdateConfig>,
    /// The digest as its candidate.
    pub(in crate::service) candidate: Candidate,
}

/// The data that a snapshot is taken of, as of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSeen {
    /// The data.
    pub sources: Vec<Source>,
    /// The folder of each copy, and the room that it needs.
    pub rooms: Vec<(PathBuf, Room)>,
    /// Where hooks leave what they save of the data.
    pub dumps: PathBuf,
    /// The earlier data that is to be put back, with what tells each of its folders from others, in the order of the sources.
    pub earlier: Option<(EarlierData, Vec<FolderId>)>,
}

/// How the configuration of a new image differs from that of the running one, or what of them is not known.
pub type ConfigsCompared = Result<Vec<ConfigDifference>, String>;

/// Why an image does not count as signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsigned {
    /// It has no signature.
    Missing,
    /// It has signatures, but none is valid.
    Invalid(SignatureFlaw),
    /// It is unknown whether it has one; the error text is stable.
    Unknown(String),
    /// Another service of the project requires a signature that is missing, none for today, or not known to exist.
    Elsewhere {
        /// Which service, and what is wrong.
        why: String,
        /// What a person can do about it.
        clear: String,
    },
}
