//! The Discord channel: an embed within Discord's size limits.

use evenkeel_common::wire::{AuditEntry, Level};
use reqwest::{Client, Url};
use serde_json::{Value, json};

use super::message::{fields, title};
use crate::audit::delivery::{Delivery, web_client};
use crate::audit::receiver::{Carrier, Receiver, Render};
use crate::audit::redact::Redactor;
use crate::config::{DiscordConfig, EntryFilter};
use crate::model::text::tail;

// Discord's limits, counted in UTF-16 units to be safe.
const TITLE: usize = 256;
const DESCRIPTION: usize = 4096;
const FIELD: usize = 1024;
const FOOTER: usize = 256;
const ALL: usize = 6000;
/// Maximum length of compose output, of which the end is shown.
const OUTPUT: usize = 900;

impl Receiver for DiscordConfig {
    fn name(&self) -> String {
        "discord".to_owned()
    }

    fn key(&self) -> String {
        "notifications.discord".to_owned()
    }

    fn filter(&self) -> EntryFilter {
        self.filter.clone()
    }

    fn hide_secrets(&self, redactor: &mut Redactor) {
        redactor.hide_url(&self.webhook_url);
    }

    fn open(&self) -> Result<Box<dyn Carrier>, String> {
        let url = Url::parse(self.webhook_url.expose()).map_err(|error| format!("webhook_url: {error}"))?;
        Ok(Box::new(Discord { client: web_client()?, url }))
    }
}

/// A Discord webhook.
struct Discord {
    client: Client,
    url: Url,
}

impl Render for Discord {
    fn render(&self, entry: &AuditEntry) -> Result<Delivery, String> {
        Delivery::request(&self.client, self.client.post(self.url.clone()).json(&body(entry)))
    }
}

fn body(entry: &AuditEntry) -> Value {
    let title = cut(&title(entry), TITLE);
    let mut spent = length(&title);
    let mut shown = Vec::new();
    let mut field = |name: &str, value: String, is_inline: bool| {
        spent += length(name) + length(&value);
        shown.push(json!({ "name": name, "value": value, "inline": is_inline }));
    };
    for (name, value) in fields(entry).into_iter().filter(|(name, _)| *name != "Machine") {
        field(name, cut(&plain(&value), FIELD), name == "Container");
    }
    if !entry.output.trim().is_empty() {
        // A code fence in the output would end the block early.
        let end = tail(&entry.output, OUTPUT).replace("```", "'''");
        field("Output", format!("```\n{end}\n```"), false);
    }
    let footer = cut(&entry.machine, FOOTER);
    spent += length(&footer);
    let mut embed = json!({
        "title": title,
        "description": cut(&plain(&entry.message), DESCRIPTION.min(ALL - spent)),
        "color": colour(entry.level),
        "timestamp": entry.timestamp,
        "fields": shown,
    });
    if !footer.is_empty() {
        embed["footer"] = json!({ "text": footer });
    }
    // Untrusted text must not trigger mentions.
    json!({ "embeds": [embed], "allowed_mentions": { "parse": [] } })
}

/// Escapes what Discord would take for markdown: a text from a registry or a container could show a link under another name.
/// In an address, Discord takes a backslash for a part of it, and reads no emphasis. The title has only the agent's own words and
/// the names of its configuration, and is also shown where no markdown is read.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_address = false;
    for (at, c) in text.char_indices() {
        let begins = || ["http://", "https://"].iter().any(|scheme| text[at..].starts_with(scheme));
        is_address = !c.is_whitespace() && (is_address || begins());
        let marks = if is_address { "\\`|<>[]" } else { "\\*_~`|<>[]#" };
        if marks.contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn colour(level: Level) -> u32 {
    match level {
        Level::Info => 0x0034_98db,
        Level::Warning => 0x00f1_c40f,
        Level::Error => 0x00e6_7e22,
        Level::Critical => 0x00e7_4c3c,
    }
}

fn length(text: &str) -> usize {
    text.encode_utf16().count()
}

/// Truncates `text` to at most `limit` units, with an ellipsis if it was cut.
fn cut(text: &str, limit: usize) -> String {
    if length(text) <= limit {
        return text.to_owned();
    }
    let mut left = limit.saturating_sub(1);
    let fits = |c: &char| {
        let fits = c.len_utf16() <= left;
        left = left.saturating_sub(c.len_utf16());
        fits
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::Kind;

    use super::*;

    fn entry() -> AuditEntry {
        let at = "2026-01-02T03:04:05Z".parse().unwrap();
        AuditEntry::new(at, "web", Kind::ROLLED_BACK, Level::Warning, "went back")
    }

    #[test]
    fn an_embed_has_title_colour_and_the_fields_with_a_value() {
        let mut entry = entry();
        entry.machine = "m1".into();
        entry.old_digest = Some("sha256:aa".into());
        entry.reason = Some("exit 1".into());
        assert_eq!(
            body(&entry),
            json!({
                "embeds": [{
                    "title": "[warning] rolled_back: web on m1",
                    "description": "went back",
                    "color": 0x00f1_c40f,
                    "timestamp": "2026-01-02T03:04:05Z",
                    "fields": [
                        {"name": "Old digest", "value": "sha256:aa", "inline": false},
                        {"name": "Reason", "value": "exit 1", "inline": false},
                    ],
                    "footer": {"text": "m1"},
                }],
                "allowed_mentions": {"parse": []},
            })
        );
    }

    #[test]
    fn texts_are_not_read_as_markdown() {
        let mut entry = entry();
        entry.message = r"[approve it](https://evil.example) __init__.py a\b".into();
        entry.reason = Some("# **bold** <@1> ~~x~~ ||y|| `z`".into());
        entry.output = "__init__.py".into();
        let body = body(&entry);
        let embed = &body["embeds"][0];
        assert_eq!(embed["description"], json!(r"\[approve it\](https://evil.example) \_\_init\_\_.py a\\b"));
        assert_eq!(embed["fields"][0]["value"], json!(r"\# \*\*bold\*\* \<@1\> \~\~x\~\~ \|\|y\|\| \`z\`"));
        assert_eq!(embed["fields"][1]["value"], "```\n__init__.py\n```");
    }

    #[test]
    fn addresses_stay_as_they_are_apart_from_brackets() {
        for (text, shown) in [
            (
                "see https://r.example/my_app/~x#a_b and not_this",
                r"see https://r.example/my_app/~x#a_b and not\_this",
            ),
            (
                "Get \"http://r.example/v2/my_app\": not_found",
                "Get \"http://r.example/v2/my_app\": not\\_found",
            ),
            ("https://a_b.example/[x](y)<z>|", r"https://a_b.example/\[x\](y)\<z\>\|"),
            ("http:_x_", r"http:\_x\_"),
        ] {
            assert_eq!(plain(text), shown);
        }
    }

    #[test]
    fn the_longest_entry_is_within_all_limits() {
        for filler in ["x", "é", "😀", "`"] {
            let long = filler.repeat(9000);
            let mut entry =
                AuditEntry::new(entry().timestamp, &long, Kind::ERROR, Level::Error, long.clone());
            entry.machine.clone_from(&long);
            entry.output.clone_from(&long);
            for field in
                [&mut entry.reason, &mut entry.container, &mut entry.old_digest, &mut entry.new_digest]
            {
                *field = Some(long.clone());
            }
            let body = body(&entry);
            let embed = &body["embeds"][0];
            let size = |value: &Value| value.as_str().unwrap().encode_utf16().count();
            assert!(size(&embed["title"]) <= 256 && size(&embed["description"]) <= 4096);
            let mut all =
                size(&embed["title"]) + size(&embed["description"]) + size(&embed["footer"]["text"]);
            let fields = embed["fields"].as_array().unwrap();
            assert!(fields.len() <= 25);
            for field in fields {
                assert!(size(&field["name"]) <= 256 && size(&field["value"]) <= 1024);
                all += size(&field["name"]) + size(&field["value"]);
            }
            assert!(all <= 6000, "{all}");
        }
    }

    #[test]
    fn truncation_adds_an_ellipsis_and_splits_no_character() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        assert_eq!(cut("😀😀", 3), "😀…");
    }
}
