//! The tags of a repository, read in pages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use super::content::{Listing, Page};
use super::fault::Fault;
use super::{Host, RegistryClient, lock, whose};
use crate::model::RegistryError;
use crate::model::image::Repository;
use crate::ports::{Tags, Urgency};

/// Tags that are asked for at once. Registries give fewer where they want to.
const PAGE: u32 = 1000;
/// Most tags that are read of a repository.
const MOST_TAGS: usize = 100_000;
/// Most pages that are read of it: a registry may put a single tag on each.
const MOST_PAGES: usize = 1000;
/// A list is not read again for so long, whoever asks. A minute less than between two looks of one service.
const GOOD_FOR: Duration = Duration::from_mins(59);
/// The same where something was pushed: several services may ask for it at once.
const JUST_READ: Duration = Duration::from_secs(1);
/// For all pages together.
const PATIENCE: Duration = Duration::from_mins(2);

/// A list as it was read last, or why it could not be.
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
    async fn tags(&self, repository: &Repository, anew: bool) -> Result<Arc<[String]>, RegistryError> {
        let place = lock(&self.tag_lists).entry(repository.clone()).or_default().clone();
        // Who asks for it meanwhile waits for that answer; other repositories do not.
        let mut list = place.lock().await;
        let good_for = if anew { JUST_READ } else { GOOD_FOR };
        if let Some(known) = list.as_ref().filter(|known| known.read_at.elapsed() < good_for) {
            return known.tags.clone();
        }
        let tags = self.read_tags(repository).await.map(Arc::from);
        *list = Some(TagList { read_at: Instant::now(), tags: tags.clone() });
        tags
    }
}

impl RegistryClient {
    async fn read_tags(&self, repository: &Repository) -> Result<Vec<String>, RegistryError> {
        let host = self.host(&repository.host)?;
        let pass = host.gate.pass(Urgency::Routine).await?;
        let listed = timeout(PATIENCE, self.list(&host, repository)).await;
        let too_slow = || Fault::Host(format!("{}: no list of tags in time", whose(repository)));
        let outcome = listed.unwrap_or_else(|_| Err(too_slow()));
        pass.settle(&outcome);
        Ok(outcome?)
    }

    async fn list(&self, host: &Host, repository: &Repository) -> Result<Vec<String>, Fault> {
        let fault = |why: &str| Fault::Image(format!("{}: {why} {}", whose(repository), repository.path));
        let mut tags = Vec::new();
        let mut next = Some(host.url(repository, &format!("tags/list?n={PAGE}"))?);
        for _ in 0..MOST_PAGES {
            let Some(url) = next else { return Ok(tags) };
            let page = self.page(host, repository, url, "application/json").await?;
            let Listing::Page(Page { body, next: following }) = page else {
                return Err(fault("it has no list of tags for"));
            };
            let list: Tagged =
                serde_json::from_slice(&body).map_err(|_| fault("not a list of tags came for"))?;
            tags.extend(list.tags.unwrap_or_default());
            if tags.len() > MOST_TAGS {
                return Err(fault("more than 100,000 tags are listed for"));
            }
            next = following;
        }
        Err(fault("more than 1,000 pages of tags are listed for"))
    }
}
