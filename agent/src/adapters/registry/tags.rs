//! Paginated listing of a repository's tags.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use super::content::{Listing, Page};
use super::fault::Fault;
use super::{Host, RegistryClient, subject};
use crate::model::RegistryError;
use crate::model::image::Repository;
use crate::ports::Tags;

/// Requested page size. Registries may return fewer tags.
const PAGE: u32 = 1000;
/// The longest tag that the OCI distribution specification allows, in bytes; with the limit on their count, it bounds the
/// memory of a list.
const MAX_TAG_LENGTH: usize = 128;
/// Maximum number of tags of a repository.
const MAX_TAGS: usize = 100_000;
/// Maximum number of pages: a registry could return a single tag on each.
const MAX_PAGES: usize = 1000;
/// How long a list is cached for all services. A minute less than the interval of a service's own checks for tags.
const CACHE_TIME: Duration = Duration::from_mins(59);
/// How long a list is cached after a push: several services may request it at the same time.
const CACHE_TIME_AFTER_PUSH: Duration = Duration::from_secs(1);
/// Timeout for all pages together.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The result of the last read of a list.
#[derive(Debug)]
pub(super) struct TagList {
    read_at: Instant,
    tags: Result<Arc<[String]>, RegistryError>,
}

/// Lists of tags, by repository.
pub(super) type Lists = Mutex<HashMap<Repository, Arc<tokio::sync::Mutex<Option<TagList>>>>>;

#[derive(Deserialize)]
struct Tagged {
    tags: Option<Vec<String>>,
}

#[async_trait]
impl Tags for RegistryClient {
    async fn tags(&self, repository: &Repository, refresh: bool) -> Result<Arc<[String]>, RegistryError> {
        let entry = self.tag_lists.lock().entry(repository.clone()).or_default().clone();
        // Concurrent calls for the same repository wait for this result; other repositories are not affected.
        let mut list = entry.lock().await;
        let cache_time = if refresh { CACHE_TIME_AFTER_PUSH } else { CACHE_TIME };
        if let Some(known) = list.as_ref().filter(|known| known.read_at.elapsed() < cache_time) {
            return known.tags.clone();
        }
        let tags = self.read_tags(repository).await.map(Arc::from);
        *list = Some(TagList { read_at: Instant::now(), tags: tags.clone() });
        tags
    }
}

impl RegistryClient {
    async fn read_tags(&self, repository: &Repository) -> Result<Vec<String>, RegistryError> {
        let too_slow =
            || Fault::Repository(format!("{}: timed out reading the list of tags", subject(repository)));
        let list = |host: Arc<Host>| async move {
            timeout(TIMEOUT, self.list(&host, repository)).await.unwrap_or_else(|_| Err(too_slow()))
        };
        self.ask_with_mirrors(repository, list).await
    }

    async fn list(&self, host: &Host, repository: &Repository) -> Result<Vec<String>, Fault> {
        let fault = |why: &str| Fault::Image(format!("{}: {why} {}", subject(repository), repository.path));
        let mut tags = Vec::new();
        let mut next = Some(host.url(repository, &format!("tags/list?n={PAGE}"))?);
        for _ in 0..MAX_PAGES {
            let Some(url) = next else { return Ok(tags) };
            let page = self.page(host, repository, url, "application/json").await?;
            let Listing::Page(Page { body, next: following }) = page else {
                return Err(fault("it has no list of tags for"));
            };
            let list: Tagged =
                serde_json::from_slice(&body).map_err(|_| fault("the response is not a list of tags for"))?;
            // A name that is no tag can't be deployed, and may be of any length.
            tags.extend(list.tags.into_iter().flatten().filter(|tag| tag.len() <= MAX_TAG_LENGTH));
            if tags.len() > MAX_TAGS {
                return Err(fault("more than 100,000 tags are listed for"));
            }
            next = following;
        }
        Err(fault("more than 1,000 pages of tags are listed for"))
    }
}
