//! Optional content of a repository: manifests and blobs that may exist, and paginated lists.

use http::header::LINK;
use http::{HeaderMap, StatusCode};
use url::Url;

use super::fault::Fault;
use super::transport::Outgoing;
use super::{Host, MANIFEST_TYPES, RegistryClient, answer, subject};
use crate::model::image::{Digest, Reference, Repository};

/// Maximum size of a page in bytes.
const PAGE_LIMIT: usize = 4 * 1024 * 1024;

/// One page of a list.
pub(super) struct Page {
    pub(super) body: Vec<u8>,
    /// URL of the next page.
    pub(super) next: Option<Url>,
}

/// The response of an endpoint that not every registry has.
pub(super) enum Listing {
    Page(Page),
    /// The registry does not have this endpoint, or refuses the query.
    Unknown,
}

impl RegistryClient {
    /// Fetches the manifest of a tag or digest, or returns `None` if it does not exist.
    pub(super) async fn manifest(
        &self,
        host: &Host,
        reference: &Reference,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let wanted = Outgoing::get(host.manifest_url(reference)?, MANIFEST_TYPES);
        let repository = &reference.repository;
        let response = self.exchange(host, repository, &wanted).await?;
        match response.status() {
            StatusCode::OK => answer::manifest(&format!("image {reference}"), response).await.map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(answer::refused(repository, &response)),
        }
    }

    /// Fetches a blob, or returns `None` if it does not exist, does not match its digest, or is larger than `limit`.
    pub(super) async fn blob(
        &self,
        host: &Host,
        repository: &Repository,
        digest: &Digest,
        limit: usize,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let url = host.url(repository, &format!("blobs/{digest}"))?;
        let wanted = Outgoing::get(url, "*/*");
        let response = self.exchange(host, repository, &wanted).await?;
        match response.status() {
            StatusCode::OK => {
                let content = answer::content(&subject(repository), "signature", response, limit).await?;
                Ok(content.filter(|content| digest.is_of(content)))
            }
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(answer::refused(repository, &response)),
        }
    }

    /// Fetches a page of a list.
    pub(super) async fn page(
        &self,
        host: &Host,
        repository: &Repository,
        url: Url,
        accept: &'static str,
    ) -> Result<Listing, Fault> {
        let wanted = Outgoing::get(url, accept);
        let response = self.exchange(host, repository, &wanted).await?;
        let subject = subject(repository);
        match response.status().as_u16() {
            200 => {
                let next = next_page(&wanted.url, response.headers());
                let body = answer::content(&subject, "list", response, PAGE_LIMIT).await?;
                let body = body.ok_or_else(|| {
                    Fault::Image(format!(
                        "{subject}: a page of the list for {} is over 4 MiB",
                        repository.path
                    ))
                })?;
                Ok(Listing::Page(Page { body, next }))
            }
            // 406 is the answer of Artifactory (go-containerregistry#1962), 413 that of Quay to a page that is too large.
            400 | 404 | 405 | 406 | 413 | 501 => Ok(Listing::Unknown),
            _ => Err(answer::refused(repository, &response)),
        }
    }
}

/// Returns the URL of the next page. Only the query is taken from the link: behind a proxy, registries often return an
/// unreachable host, and a registry must not redirect us this way.
fn next_page(url: &Url, headers: &HeaderMap) -> Option<Url> {
    let links = headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok());
    let link = links.flat_map(|value| value.split(',')).find(|link| {
        let mut parameters = link.split(';').skip(1).map(|parameter| parameter.replace(['"', ' '], ""));
        parameters.any(|parameter| parameter.eq_ignore_ascii_case("rel=next"))
    })?;
    let target = link.split_once('<')?.1.split_once('>')?.0;
    let query = url.join(target).ok()?.query()?.to_owned();
    let mut next = url.clone();
    next.set_query(Some(&query));
    (next != *url).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_requested_from_the_same_registry() {
        let url = Url::parse("https://r.example/v2/web/tags/list?n=1000").unwrap();
        for (link, next) in [
            (r#"</v2/web/tags/list?last=b&n=2>; rel="next""#, Some("last=b&n=2")),
            (r#"<http://10.0.0.1:5000/v2/other?last=c>; rel="next""#, Some("last=c")),
            ("<?last=d>;rel=next", Some("last=d")),
            (r#"</v2/web/tags/list?a=1>; rel="prev", </v2/web/tags/list?b=2>; rel="next""#, Some("b=2")),
            (r#"</v2/web/tags/list>; rel="next""#, None),
            // The same page again would be an endless loop.
            (r#"</v2/web/tags/list?n=1000>; rel="next""#, None),
            (r#"</v2/web/tags/list?last=b>; rel="last""#, None),
            ("last=b; rel=next", None),
        ] {
            let headers = HeaderMap::from_iter([(LINK, link.parse().unwrap())]);
            let expected = next.map(|query| format!("https://r.example/v2/web/tags/list?{query}"));
            assert_eq!(next_page(&url, &headers).map(String::from), expected, "{link}");
        }
        assert_eq!(next_page(&url, &HeaderMap::new()), None);
    }
}
