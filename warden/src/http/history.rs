//! `GET /history`: the stored entries, newest first, page by page (DECISIONS 8).

use std::str::FromStr;

use evenkeel_common::http::{Request, Response, StatusCode, error};
use http::header::{CONTENT_TYPE, HeaderValue};
use jiff::Timestamp;

use super::Api;
use super::ingest::store_away;
use super::read::REQUIRED;
use crate::keep::{KeepError, MAX_PAGE, Page, Query, agent_of};

pub(super) async fn history(api: Api, request: Request) -> Response {
    if let Err(refused) = api.authorize(&request) {
        return refused.reply(REQUIRED);
    }
    let query = match query(&request) {
        Ok(query) => query,
        Err(fault) => return error(StatusCode::BAD_REQUEST, fault),
    };
    match search(&api, &query).await {
        Ok(page) => {
            let mut response = Response::new(body(&page).into());
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(fault) => store_away(&fault),
    }
}

/// Searches the store. An agent's id also matches the machine name in its entries, but not that name in entries of other
/// agents; the warden's entries about an agent use its id.
async fn search(api: &Api, query: &Query) -> Result<Page, KeepError> {
    let keep = api.collector.keep();
    let agent = query.machine.as_deref().unwrap_or_default();
    let Some(name) = api.collector.machine_name(agent) else { return keep.history(query).await };
    let named = Query { machine: Some(name), ..query.clone() };
    let (page, mut other) = tokio::try_join!(keep.history(query), keep.history(&named))?;
    other.entries.retain(|entry| agent_of(&entry.line) == agent);
    Ok(page.merged(other, query.limit))
}

/// Parses the query. Empty parameters are ignored.
fn query(request: &Request) -> Result<Query, String> {
    let text = |name: &str| request.query.get(name).filter(|value| !value.is_empty()).cloned();
    let limit = match text("limit") {
        None => Query::default().limit,
        Some(value) => match value.parse::<u64>() {
            Ok(limit) if limit > 0 => usize::try_from(limit).unwrap_or(MAX_PAGE).min(MAX_PAGE),
            _ => return Err("limit is not a positive integer".to_owned()),
        },
    };
    Ok(Query {
        machine: text("machine"),
        service: text("service"),
        image: text("image"),
        event: text("event"),
        level: text("level"),
        text: text("q"),
        since: parsed::<Timestamp>(text("since"), "since is not a time like 2026-01-02T03:04:05Z")?,
        until: parsed::<Timestamp>(text("until"), "until is not a time like 2026-01-02T03:04:05Z")?,
        before: parsed::<u64>(text("before"), "before is not an entry's id")?.unwrap_or(u64::MAX),
        limit,
    })
}

fn parsed<T: FromStr>(value: Option<String>, fault: &str) -> Result<Option<T>, String> {
    value.map(|value| value.parse().map_err(|_| fault.to_owned())).transpose()
}

/// Renders the page as JSON. The entries are JSON already; each gets its id as the first field.
fn body(page: &Page) -> String {
    let mut text = String::from("{\"entries\":[");
    for (index, entry) in page.entries.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let fields = entry.line.strip_prefix('{').unwrap_or("}");
        text.push_str(&format!("{comma}{{\"id\":{},{fields}", entry.id));
    }
    text.push(']');
    if let Some(next) = page.next {
        text.push_str(&format!(",\"next\":{next}"));
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::HistoryPage;

    use super::*;
    use crate::keep::Stored;

    #[test]
    fn a_page_matches_its_wire_type() {
        let line = r#"{"timestamp":"2026-01-02T03:04:05Z","machine":"m","service":"web","event":"updated","message":"x","level":"info","agent":"a"}"#;
        let entries = [9, 7].map(|id| Stored { id, line: line.to_owned() }).to_vec();
        for next in [None, Some(7)] {
            let text = body(&Page { entries: entries.clone(), next });
            let page: HistoryPage = serde_json::from_str(&text).unwrap();
            assert_eq!((page.entries.len(), page.entries[1].id, page.next), (2, 7, next));
            assert_eq!(serde_json::to_string(&page).unwrap(), text);
        }
        assert_eq!(body(&Page::default()), r#"{"entries":[]}"#);
    }
}
