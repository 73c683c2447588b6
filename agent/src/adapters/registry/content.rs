//! What a repository holds besides what its tags point at: manifests and blobs that may be there, lists in pages.

use http::header::LINK;
use http::{HeaderMap, Method, StatusCode};
use url::Url;

use super::fault::Fault;
use super::{Host, MANIFEST_TYPES, RegistryClient, Wanted, answer, whose};
use crate::model::image::{Digest, Reference, Repository};

/// Most bytes of one page of a list.
const PAGE_LIMIT: usize = 4 * 1024 * 1024;

/// One page of a list.
pub(super) struct Page {
    pub(super) body: Vec<u8>,
    /// Where the next page is.
    pub(super) next: Option<Url>,
}

/// What a registry has in a place that not every registry knows.
pub(super) enum Listing {
    Page(Page),
    /// It has no such place.
    Unknown,
}

impl RegistryClient {
    /// The manifest under a tag or digest; `None` where the registry says that there is none.
    pub(super) async fn manifest(
        &self,
        host: &Host,
        reference: &Reference,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let wanted =
            Wanted { method: Method::GET, url: host.manifest_url(reference)?, accept: MANIFEST_TYPES };
        let repository = &reference.repository;
        let response = self.exchange(host, repository, &wanted).await?;
        match response.status() {
            StatusCode::OK => answer::manifest(&format!("image {reference}"), response).await.map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(answer::refusal(&whose(repository), status, response.headers(), &repository.path)),
        }
    }

    /// A blob; `None` where there is none of this digest that is no longer than `limit`.
    pub(super) async fn blob(
        &self,
        host: &Host,
        repository: &Repository,
        digest: &Digest,
        limit: usize,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let url = host.url(repository, &format!("blobs/{digest}"))?;
        let wanted = Wanted { method: Method::GET, url, accept: "*/*" };
        let response = self.exchange(host, repository, &wanted).await?;
        let whose = whose(repository);
        match response.status() {
            StatusCode::OK => {
                let content = answer::content(&whose, "signature", response, limit).await?;
                Ok(content.filter(|content| digest.is_of(content)))
            }
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(answer::refusal(&whose, status, response.headers(), &repository.path)),
        }
    }

    /// One page of a list.
    pub(super) async fn page(
        &self,
        host: &Host,
        repository: &Repository,
        url: Url,
        accept: &'static str,
    ) -> Result<Listing, Fault> {
        let wanted = Wanted { method: Method::GET, url, accept };
        let response = self.exchange(host, repository, &wanted).await?;
        let whose = whose(repository);
        match response.status().as_u16() {
            200 => {
                let next = next_page(&wanted.url, response.headers());
                let body = answer::content(&whose, "list", response, PAGE_LIMIT).await?;
                let body = body.ok_or_else(|| {
                    Fault::Image(format!("{whose}: a page of the list for {} is over 4 MiB", repository.path))
                })?;
                Ok(Listing::Page(Page { body, next }))
            }
            400 | 404 | 405 | 501 => Ok(Listing::Unknown),
            _ => Err(answer::refusal(&whose, response.status(), response.headers(), &repository.path)),
        }
    }
}

/// The address of the next page. Only the query is taken from the link: behind a proxy, registries often name an address
/// that nobody else can reach, and no registry can send us elsewhere by it.
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
    fn the_next_page_is_asked_of_the_same_registry() {
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
