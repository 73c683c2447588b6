//! One registry: its address, backoff and caches.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;
use url::Url;

use super::auth::Access;
use super::backoff::{Gate, Results};
use super::client::Response;
use super::fault::Fault;
use crate::model::image::{Reference, Repository};

/// How often the engine's settings for a registry that can't be reached, or no longer without TLS, are read again, and the
/// files of its certificates are looked at.
const READ_AGAIN: Duration = Duration::from_mins(1);

/// One registry.
#[derive(Debug)]
pub(super) struct Host {
    /// Base URL of its API.
    pub(super) base: Url,
    pub(super) gate: Gate,
    /// The last digests and errors.
    pub(super) results: Results,
    /// The last successful authorization by repository path.
    pub(super) access: Mutex<HashMap<String, Access>>,
    /// Tags (`path:tag`) with a wrong digest header: their manifest is hashed instead, until the header is right.
    pub(super) doubtful: Mutex<HashSet<String>>,
    /// Whose login it gets, if it is a mirror: its own, not that of the registry that it stands in for.
    mirror: Option<String>,
    /// When the engine's settings for it were read; `None` if they could not be read.
    settings_read: Mutex<Option<Instant>>,
    /// It was asked without TLS, and gave the answer of a server that has TLS.
    may_have_tls: AtomicBool,
    certificates: Mutex<Certificates>,
}

/// The files of the engine's certificates for a registry.
#[derive(Debug)]
struct Certificates {
    /// The latest change of the files that were read; `None` without any.
    changed: Option<SystemTime>,
    /// When they were last looked at.
    seen: Instant,
}

impl Host {
    pub(super) fn new(base: Url, concurrency: usize) -> Self {
        Self {
            base,
            gate: Gate::new(concurrency),
            results: Results::default(),
            access: Mutex::default(),
            doubtful: Mutex::default(),
            mirror: None,
            settings_read: Mutex::new(Some(Instant::now())),
            may_have_tls: AtomicBool::new(false),
            certificates: Mutex::new(Certificates { changed: None, seen: Instant::now() }),
        }
    }

    /// Reports whether the files of its certificates are to be looked at.
    pub(super) fn must_look_at_certificates(&self) -> bool {
        let mut certificates = self.certificates.lock();
        let is_due = certificates.seen.elapsed() >= READ_AGAIN;
        if is_due {
            certificates.seen = Instant::now();
        }
        is_due
    }

    /// Reports whether its certificates were read as of this latest change of their files.
    pub(super) fn has_certificates_of(&self, changed: Option<SystemTime>) -> bool {
        self.certificates.lock().changed == changed
    }

    /// Notes as of which change its certificates were read.
    pub(super) fn certificates_read(&self, changed: Option<SystemTime>) {
        self.certificates.lock().changed = changed;
    }

    /// Notes whether it refuses requests without TLS, as a server that has got TLS does: with 400, with 404 (Traefik), by closing
    /// the connection, or by a redirect.
    pub(super) fn note_protocol(&self, answer: &Result<Response, Fault>) {
        let may_have_tls = match answer {
            Ok(response) => {
                let url = response.url();
                matches!(response.status(), StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND)
                    || (url.scheme() == "https" && url.host_str() == self.base.host_str())
            }
            Err(fault) => matches!(fault, Fault::Repository(_)),
        };
        self.may_have_tls.store(may_have_tls && self.base.scheme() == "http", Ordering::Relaxed);
    }

    /// Reports whether the engine's settings for it have to be read again: a person may have mended why it can't be reached, or
    /// may have given it TLS.
    pub(super) fn must_read_settings(&self) -> bool {
        let mut read = self.settings_read.lock();
        let is_outdated = self.gate.is_down() || self.may_have_tls.load(Ordering::Relaxed);
        let is_due = is_outdated && read.is_none_or(|at| at.elapsed() >= READ_AGAIN);
        if is_due {
            *read = Some(Instant::now());
        }
        is_due
    }

    /// Notes that its settings could not be read.
    pub(super) fn settings_unread(&self) {
        *self.settings_read.lock() = None;
    }

    /// A mirror of Docker Hub.
    pub(super) fn of_mirror(base: Url, concurrency: usize) -> Self {
        let mirror = Some(base.authority().to_owned());
        Self { mirror, ..Self::new(base, concurrency) }
    }

    pub(super) fn is_mirror(&self) -> bool {
        self.mirror.is_some()
    }

    /// Returns the name under which logins for it are stored.
    pub(super) fn login<'a>(&'a self, repository: &'a Repository) -> &'a str {
        self.mirror.as_deref().unwrap_or(&repository.host)
    }

    pub(super) fn manifest_url(&self, reference: &Reference) -> Result<Url, Fault> {
        let which = match (&reference.digest, &reference.tag) {
            (Some(digest), _) => digest.as_str(),
            (None, tag) => tag.as_deref().unwrap_or("latest"),
        };
        self.url(&reference.repository, &format!("manifests/{which}"))
    }

    /// Returns the URL of a resource in a repository.
    pub(super) fn url(&self, repository: &Repository, what: &str) -> Result<Url, Fault> {
        let base = self.base.as_str().trim_end_matches('/');
        Url::parse(&format!("{base}/v2/{}/{what}", repository.path))
            .map_err(|_| Fault::Image(format!("repository {repository}: its name does not form a valid URL")))
    }

    pub(super) fn access(&self, repository: &Repository) -> Option<Access> {
        self.access.lock().get(&repository.path).cloned()
    }

    pub(super) fn forget(&self, repository: &Repository) {
        self.access.lock().remove(&repository.path);
    }

    /// Reports whether the registry sent a wrong digest header for this tag.
    pub(super) fn is_doubtful(&self, reference: &Reference) -> bool {
        self.doubtful.lock().contains(&key(reference))
    }
}

/// The name of an image within its registry: `path:tag`.
pub(super) fn key(reference: &Reference) -> String {
    format!("{}:{}", reference.repository.path, reference.tag.as_deref().unwrap_or("latest"))
}
