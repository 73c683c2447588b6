//! Queries of the history, and pages of results.

use std::time::Duration;

use evenkeel_common::wire::FleetEntry;
use jiff::Timestamp;
use tokio::time::Instant;

use super::Stored;

/// Maximum number of entries on one page.
pub const MAX_PAGE: usize = 500;
/// Maximum number of entries scanned for one page, and the time limit of a scan once it has covered a minimum number. A page
/// that is not full by then ends early, and the next one continues. The time per entry depends on the store and on the load
/// of the machine, so the number of entries alone is not a bound.
pub const SCAN_BUDGET: usize = 10_000;
const SCAN_TIME: Duration = Duration::from_millis(15);
const SCAN_LEAST: usize = 500;

/// The search criteria; an entry must match all that are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The entry's machine.
    pub machine: Option<String>,
    /// The service.
    pub service: Option<String>,
    /// The image as configured.
    pub image: Option<String>,
    /// The kind.
    pub event: Option<String>,
    /// The level.
    pub level: Option<String>,
    /// Text in message, reason, output, container or digest, case-insensitive.
    pub text: Option<String>,
    /// At or after this time.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
    /// Only ids less than this.
    pub before: u64,
    /// Maximum number of entries on the page, at most [`MAX_PAGE`].
    pub limit: usize,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            machine: None,
            service: None,
            image: None,
            event: None,
            level: None,
            text: None,
            since: None,
            until: None,
            before: u64::MAX,
            limit: 50,
        }
    }
}

/// Fields with an index: entries with a certain value are found without scanning the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// `machine`
    Machine,
    /// `service`
    Service,
    /// `image`
    Image,
    /// `event`
    Event,
    /// `level`
    Level,
    /// `agent`: only for the retention, which is per agent.
    Agent,
}

impl Field {
    /// All fields, the most selective first.
    pub const ALL: [Field; 6] =
        [Self::Image, Self::Machine, Self::Service, Self::Event, Self::Level, Self::Agent];

    /// Returns the field's value in an entry.
    pub fn of(self, entry: &FleetEntry) -> Option<&str> {
        match self {
            Self::Machine => Some(&entry.machine),
            Self::Service => Some(&entry.service),
            Self::Image => entry.image.as_deref(),
            Self::Event => Some(&entry.event),
            Self::Level => Some(&entry.level),
            Self::Agent => Some(&entry.agent),
        }
    }
}

impl Query {
    /// Returns the value to search for in a field.
    pub fn wanted(&self, field: Field) -> Option<&str> {
        match field {
            Field::Machine => self.machine.as_deref(),
            Field::Service => self.service.as_deref(),
            Field::Image => self.image.as_deref(),
            Field::Event => self.event.as_deref(),
            Field::Level => self.level.as_deref(),
            Field::Agent => None,
        }
    }

    /// Returns the field whose index to use, usually the most selective one, and its value; `None` to scan all entries.
    pub fn index(&self) -> Option<(Field, &str)> {
        Field::ALL.into_iter().find_map(|field| Some((field, self.wanted(field)?)))
    }

    /// Returns the search text in lower case if JSON does not escape any of its characters. Every matching ASCII line
    /// contains it, ignoring case. So most other lines can be skipped without parsing them.
    fn needle(&self) -> Option<String> {
        let text = self.text.as_deref()?;
        let is_verbatim = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        text.bytes().all(is_verbatim).then(|| text.to_ascii_lowercase())
    }

    /// Reports whether an entry matches.
    pub fn matches(&self, entry: &FleetEntry) -> bool {
        let fields = Field::ALL
            .into_iter()
            .all(|field| self.wanted(field).is_none_or(|wanted| field.of(entry) == Some(wanted)));
        fields
            && self.since.is_none_or(|since| entry.timestamp >= since)
            && self.until.is_none_or(|until| entry.timestamp < until)
            && self.text.as_deref().is_none_or(|text| contains(entry, text))
    }
}

fn contains(entry: &FleetEntry, text: &str) -> bool {
    let wanted = text.to_lowercase();
    let optional = [&entry.reason, &entry.output, &entry.container, &entry.old_digest, &entry.new_digest];
    let texts = optional.into_iter().flatten().chain([&entry.message]);
    texts.into_iter().any(|text| text.to_lowercase().contains(&wanted))
}

/// One page of results.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// Newest first.
    pub entries: Vec<Stored>,
    /// `before` of the next page; `None` at the end.
    pub next: Option<u64>,
}

impl Page {
    /// Merges the pages of two searches. Entries that one of them has not reached yet are left for the next page.
    #[must_use]
    pub fn merged(self, other: Self, limit: usize) -> Self {
        let floor = self.next.max(other.next).unwrap_or(0);
        let mut entries = [self.entries, other.entries].concat();
        entries.retain(|entry| entry.id >= floor);
        entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.id));
        entries.dedup_by_key(|entry| entry.id);
        let is_cut = entries.len() > limit;
        entries.truncate(limit);
        let last = entries.last().map(|entry| entry.id).filter(|_| is_cut);
        Self { entries, next: last.or(Some(floor).filter(|floor| *floor > 0)) }
    }
}

/// Collects a page from entries, which are added newest first.
pub(super) struct Collect<'a> {
    query: &'a Query,
    needle: Option<String>,
    limit: usize,
    begun: Instant,
    seen: usize,
    page: Page,
}

impl<'a> Collect<'a> {
    /// Starts an empty page.
    pub(super) fn new(query: &'a Query) -> Self {
        let limit = query.limit.clamp(1, MAX_PAGE);
        let begun = Instant::now();
        Self { query, needle: query.needle(), limit, begun, seen: 0, page: Page::default() }
    }

    /// Reports whether the scan is finished.
    pub(super) fn is_over(&self) -> bool {
        self.page.entries.len() >= self.limit
            || self.seen >= SCAN_BUDGET
            || (self.seen >= SCAN_LEAST && self.begun.elapsed() >= SCAN_TIME)
    }

    /// Reports whether another entry may be added. If not, the next page starts at `id`.
    pub(super) fn takes(&mut self, id: u64) -> bool {
        let takes = !self.is_over();
        if !takes {
            self.page.next = Some(id + 1);
        }
        takes
    }

    /// Adds an entry if it matches. A line that is not a valid entry never matches.
    pub(super) fn look(&mut self, id: u64, line: &str) {
        self.seen += 1;
        let lacks = |needle: &str| line.is_ascii() && !line.to_ascii_lowercase().contains(needle);
        if self.needle.as_deref().is_some_and(lacks) {
            return;
        }
        let matches = serde_json::from_str(line).is_ok_and(|entry| self.query.matches(&entry));
        if matches {
            self.page.entries.push(Stored { id, line: line.to_owned() });
        }
    }

    /// Returns the page.
    pub(super) fn finish(self) -> Page {
        self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> FleetEntry {
        serde_json::from_str(
            r#"{"timestamp":"2026-01-02T03:04:05Z","machine":"m","service":"web","event":"updated","message":"Über alles",
                "level":"info","image":"web:1","reason":"exit CODE 1"}"#,
        )
        .unwrap()
    }

    #[test]
    fn a_line_is_skipped_only_if_its_text_cannot_match() {
        let of = |text: &str| Query { text: Some(text.to_owned()), ..Query::default() };
        assert_eq!(of("Exit CODE 1").needle().as_deref(), Some("exit code 1"));
        // JSON escapes these, or their lower case is shared with another character.
        for text in ["say \"no\"", "C:\\", "a\nb", "\u{0}", "über", "\u{212a}"] {
            assert_eq!(of(text).needle(), None, "{text:?}");
        }
        let line = serde_json::to_string(&FleetEntry { message: "273 \u{212a}elvin".to_owned(), ..entry() })
            .unwrap();
        let query = of("KELVIN");
        let mut page = Collect::new(&query);
        page.look(1, &line);
        page.look(2, &line.replace('\u{212a}', "k").replace('Ü', "U"));
        page.look(3, &line.replace('\u{212a}', "z").replace('Ü', "U"));
        let ids: Vec<_> = page.finish().entries.iter().map(|entry| entry.id).collect();
        assert_eq!(ids, [1, 2]);
    }

    #[test]
    fn merging_two_pages_skips_no_entry() {
        let page = |ids: &[u64], next| Page {
            entries: ids.iter().map(|id| Stored { id: *id, line: String::new() }).collect(),
            next,
        };
        for (one, other, limit, ids, next) in [
            (page(&[9, 5], None), page(&[7, 6], None), 9, vec![9, 7, 6, 5], None),
            (page(&[9, 5], None), page(&[7, 6], None), 2, vec![9, 7], Some(7)),
            // The second search has only reached 6.
            (page(&[9, 5], Some(5)), page(&[7, 6], Some(6)), 9, vec![9, 7, 6], Some(6)),
            (page(&[], Some(4)), page(&[], None), 9, vec![], Some(4)),
            (page(&[8, 3], None), page(&[8], None), 9, vec![8, 3], None),
        ] {
            let merged = one.clone().merged(other.clone(), limit);
            let found: Vec<u64> = merged.entries.iter().map(|entry| entry.id).collect();
            assert_eq!((found, merged.next), (ids, next), "{one:?} {other:?} {limit}");
        }
    }

    #[test]
    fn an_entry_must_match_all_criteria() {
        let some = |text: &str| Some(text.to_owned());
        let at = |text: &str| Some(text.parse().unwrap());
        let none = Query::default;
        for (query, expected) in [
            (none(), true),
            (Query { machine: some("m"), service: some("web"), ..none() }, true),
            (Query { machine: some("m"), service: some("db"), ..none() }, false),
            (Query { image: some("web:1"), event: some("updated"), level: some("info"), ..none() }, true),
            (Query { image: some("web"), ..none() }, false),
            (Query { text: some("über"), ..none() }, true),
            (Query { text: some("code 1"), ..none() }, true),
            (Query { text: some("m"), ..none() }, false),
            (Query { since: at("2026-01-02T03:04:05Z"), until: at("2026-01-02T03:04:06Z"), ..none() }, true),
            (Query { since: at("2026-01-02T03:04:06Z"), ..none() }, false),
            (Query { until: at("2026-01-02T03:04:05Z"), ..none() }, false),
        ] {
            assert_eq!(query.matches(&entry()), expected, "{query:?}");
        }
    }
}
