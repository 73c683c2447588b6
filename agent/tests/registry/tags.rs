//! The tags of a repository, in pages.

use evenkeel_agent::ports::Tags;
use wiremock::matchers::{method, path};
use wiremock::{Mock, Request, Respond, ResponseTemplate};

use crate::world::{World, errors, status};

/// A repository with `count` tags that returns at most `page` at a time, as a distribution registry does.
struct Paged {
    count: usize,
    page: usize,
}

impl Respond for Paged {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let last = request.url.query_pairs().find(|(key, _)| key == "last");
        let begin =
            last.map_or(0, |(_, last)| last.trim_start_matches("1.").parse::<usize>().expect("a number") + 1);
        let end = (begin + self.page).min(self.count);
        let tags: Vec<String> = (begin..end).map(|n| format!("1.{n}")).collect();
        let answer =
            ResponseTemplate::new(200).set_body_json(serde_json::json!({"name": "web", "tags": tags}));
        if end == self.count {
            return answer;
        }
        // Behind a proxy, the registry does not know its public address.
        let next = format!("<http://inside:5000/v2/web/tags/list?last=1.{}&n=1000>; rel=\"next\"", end - 1);
        answer.insert_header("Link", next)
    }
}

/// A repository with 2,500 tags whose registry sends no links: a list ends at the requested size.
struct Cut {
    knows_last: bool,
    /// The largest size of a page; above it, requests are refused with this status.
    limit: Option<(usize, u16)>,
}

impl Respond for Cut {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let value = |wanted: &str| {
            request.url.query_pairs().find(|(key, _)| key == wanted).map(|(_, value)| value.into_owned())
        };
        let size = value("n").map(|n| n.parse::<usize>().expect("a number"));
        if let (Some((limit, code)), Some(size)) = (self.limit, size)
            && size > limit
        {
            return status(code);
        }
        let last = value("last").filter(|_| self.knows_last);
        let begin = last.map_or(0, |last| last["1.".len()..].parse::<usize>().expect("a number") + 1);
        let end = size.map_or(2500, |size| (begin + size).min(2500));
        let tags: Vec<String> = (begin..end).map(|n| format!("1.{n}")).collect();
        ResponseTemplate::new(200).set_body_json(serde_json::json!({"name": "web", "tags": tags}))
    }
}

async fn with(answer: impl Respond + 'static) -> World {
    let world = World::new().await;
    Mock::given(method("GET")).and(path("/v2/web/tags/list")).respond_with(answer).mount(&world.server).await;
    world
}

async fn fault(answer: ResponseTemplate) -> String {
    let world = with(answer).await;
    let error =
        world.client.tags(&world.web().repository, false).await.expect_err("there is a fault").to_string();
    error.replace(&world.server.address().to_string(), "HOST")
}

#[tokio::test]
async fn two_thousand_tags_are_read_page_by_page() {
    let world = with(Paged { count: 2000, page: 300 }).await;
    let tags = world.client.tags(&world.web().repository, false).await.expect("a list");
    assert_eq!(tags.len(), 2000);
    assert_eq!((tags[0].as_str(), tags[1999].as_str()), ("1.0", "1.1999"));
    assert_eq!(world.requests().await.len(), 7);
}

#[tokio::test]
async fn a_list_that_ends_at_the_requested_size_is_continued_and_one_that_refuses_the_size_is_read_whole() {
    for (knows_last, limit, listed, requests) in [
        (true, None, 2500, 3),
        (false, None, 2500, 3),
        (true, Some((100, 400)), 2500, 2),
        (true, Some((100, 413)), 2500, 2),
    ] {
        let world = with(Cut { knows_last, limit }).await;
        let tags = world.client.tags(&world.web().repository, false).await.expect("a list");
        assert_eq!((tags.len(), world.requests().await.len()), (listed, requests), "{knows_last} {limit:?}");
        assert_eq!(tags[listed - 1], format!("1.{}", listed - 1));
    }
}

#[tokio::test]
async fn concurrent_requests_read_a_list_once() {
    let world = with(Paged { count: 3, page: 5 }).await;
    let repository = world.web().repository;
    let (one, other) =
        tokio::join!(world.client.tags(&repository, false), world.client.tags(&repository, false));
    assert_eq!((one.expect("a list").len(), other.expect("a list").len()), (3, 3));
    assert_eq!(world.requests().await.len(), 1);
}

#[tokio::test]
async fn after_a_push_concurrent_requests_read_a_list_again_once() {
    let world = with(Paged { count: 3, page: 5 }).await;
    let repository = world.web().repository;
    world.client.tags(&repository, false).await.expect("a list");
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    tokio::time::resume();
    world.client.tags(&repository, false).await.expect("a list");
    assert_eq!(world.requests().await.len(), 1);
    let (one, other) =
        tokio::join!(world.client.tags(&repository, true), world.client.tags(&repository, true));
    assert_eq!((one.expect("a list").len(), other.expect("a list").len()), (3, 3));
    assert_eq!(world.requests().await.len(), 2);
}

#[tokio::test]
async fn an_endless_list_is_an_error() {
    let world = with(Paged { count: usize::MAX, page: 50_000 }).await;
    let error = world.client.tags(&world.web().repository, false).await.expect_err("too many").to_string();
    assert!(error.ends_with("more than 100,000 tags are listed for web"), "{error}");
}

#[tokio::test]
async fn a_repository_without_tags_has_none() {
    let world = with(ResponseTemplate::new(200).set_body_string(r#"{"name":"web","tags":null}"#)).await;
    assert!(world.client.tags(&world.web().repository, false).await.expect("a list").is_empty());
}

#[tokio::test]
async fn a_response_that_is_not_a_list_is_an_error_with_a_stable_message() {
    let not_known = errors(404, "NAME_UNKNOWN", "repository name not known to registry");
    assert_eq!(fault(not_known).await, "registry HOST: it has no list of tags for web");
    assert_eq!(fault(status(403)).await, "registry HOST: 403 forbidden for web");
    let page = ResponseTemplate::new(200).set_body_string("<html>");
    assert_eq!(fault(page).await, "registry HOST: the response is not a list of tags for web");
}
