//! Paginated listing of a repository's tags.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::{Instant, timeout};
use url::Url;

use super::content::Listing;
use super::fault::Fault;
use super::{Host, RegistryClient, subject};
use crate::model::RegistryError;
use crate::model::image::Repository;
use crate::ports::Tags;

/// Requested page size. Registries may return fewer tags.
const PAGE: usize = 1000;
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
            || Fault::Unfinished(format!("{}: timed out reading the list of tags", subject(repository)));
        let list = |host: Arc<Host>| async move {
            timeout(TIMEOUT, self.list(&host, repository)).await.unwrap_or_else(|_| Err(too_slow()))
        };
        self.ask_with_mirrors(repository, list).await
    }

    async fn list(&self, host: &Host, repository: &Repository) -> Result<Vec<String>, Fault> {
        let fault = |why: &str| Fault::Image(format!("{}: {why} {}", subject(repository), repository.path));
        let whole = host.url(repository, "tags/list")?;
        let mut tags: Vec<String> = Vec::new();
        // Whether the query of the next page is ours, and not from the registry's link.
        let (mut next, mut is_ours) = (Some(paged(&whole, None)), true);
        for _ in 0..MAX_PAGES {
            let Some(url) = next else { return Ok(tags) };
            let page = match self.page(host, repository, url, "application/json").await? {
                Listing::Page(page) => page,
                // It may be the size of the page that is refused.
                Listing::Unknown if is_ours && tags.is_empty() => {
                    (next, is_ours) = (Some(whole.clone()), false);
                    continue;
                }
                Listing::Unknown if is_ours => return Ok(tags),
                Listing::Unknown => return Err(fault("it has no list of tags for")),
            };
            let list: Tagged = serde_json::from_slice(&page.body)
                .map_err(|_| fault("the response is not a list of tags for"))?;
            let mut listed = list.tags.unwrap_or_default();
            // Some registries end the list at the requested size without a link to the rest.
            is_ours &= page.next.is_none() && listed.len() >= PAGE;
            // A name that is no tag can't be deployed, and may be of any length.
            listed.retain(|tag| tag.len() <= MAX_TAG_LENGTH);
            if is_ours && listed.last() == tags.last() {
                // It does not know `last`, and repeats the page.
                tags.clear();
                (next, is_ours) = (Some(whole.clone()), false);
                continue;
            }
            tags.extend(listed);
            if tags.len() > MAX_TAGS {
                return Err(fault("more than 100,000 tags are listed for"));
            }
            next = if is_ours { tags.last().map(|last| paged(&whole, Some(last))) } else { page.next };
        }
        Err(fault("more than 1,000 pages of tags are listed for"))
    }
}

/// The URL of a page of a list: the first one, or the one after this tag.
fn paged(list: &Url, last: Option<&str>) -> Url {
    let mut url = list.clone();
    url.query_pairs_mut().append_pair("n", &PAGE.to_string());
    if let Some(last) = last {
        url.query_pairs_mut().append_pair("last", last);
    }
    url
}
