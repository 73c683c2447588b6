//! Templates of webhook bodies: minijinja, with support for Go's `{{ .Service }}` for plain fields. Values are escaped
//! (DECISIONS 5).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;
use minijinja::value::Kwargs;
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value, filters, tests as checks,
};

use super::template_syntax::{self, LONGEST};

/// Maximum number of steps of a template: far more than any body needs, and it stops a runaway loop quickly.
const FUEL: u64 = 50_000;
/// Keyword arguments for `tojson`: none.
const NO_OPTIONS: [(&str, Value); 0] = [];
/// Maximum number of bytes of `message` and of `reason`. Telegram refuses a text of more than 4096 UTF-16 units, ntfy one of more
/// than 4096 bytes, and a refused entry delays those behind it.
const LONGEST_TEXT: usize = 1500;
/// Maximum length of the body, and of any string that a filter produces.
const LONGEST_BODY: usize = 256 * 1024;

/// How values are escaped for the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Escape {
    /// No escaping.
    None,
    /// For use inside a JSON string.
    Json,
    /// Form URL encoding.
    Form,
    /// HTML or XML text.
    Html,
}

impl Escape {
    /// Returns the escaping for a content type.
    pub(crate) fn of(content_type: &str) -> Self {
        let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if kind.contains("json") {
            Self::Json
        } else if kind == "application/x-www-form-urlencoded" {
            Self::Form
        } else if kind.contains("html") || kind.contains("xml") {
            Self::Html
        } else {
            Self::None
        }
    }

    pub(crate) fn apply(self, text: &str) -> String {
        match self {
            Self::None => text.to_owned(),
            Self::Json => {
                let quoted = serde_json::Value::from(text).to_string();
                quoted[1..quoted.len() - 1].to_owned()
            }
            Self::Form => {
                percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
            }
            Self::Html => {
                let mut out = String::with_capacity(text.len());
                for c in text.chars() {
                    match c {
                        '&' => out.push_str("&amp;"),
                        '<' => out.push_str("&lt;"),
                        '>' => out.push_str("&gt;"),
                        '"' => out.push_str("&quot;"),
                        '\'' => out.push_str("&#39;"),
                        c => out.push(c),
                    }
                }
                out
            }
        }
    }
}

/// A template that has been rendered once, so that faults in it are detected before the first entry.
pub(crate) struct Template {
    source: String,
    environment: Environment<'static>,
}

impl Template {
    /// Checks the template of a webhook's body.
    pub(crate) fn check(body: &str) -> Result<(), String> {
        Self::new(body, Escape::None).map(drop)
    }

    pub(crate) fn new(body: &str, escape: Escape) -> Result<Self, String> {
        let source = from_go(body);
        template_syntax::check(&source).map_err(|why| format!("the template cannot be used: {why}"))?;
        let mut environment = restricted();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| AutoEscape::Custom("value".into()));
        environment.set_formatter(move |out, state, value| {
            let as_it_is = value.is_safe() || matches!(state.auto_escape(), AutoEscape::None);
            let text = value.to_string();
            out.write_str(&if as_it_is { text } else { escape.apply(&text) }).map_err(Error::from)
        });
        let template = Self { source, environment };
        let sample = AuditEntry::new(Timestamp::UNIX_EPOCH, "web", Kind::UPDATED, Level::Info, "a sample");
        template.render(&sample)?;
        Ok(template)
    }

    pub(crate) fn render(&self, entry: &AuditEntry) -> Result<String, String> {
        let values = FIELDS.map(|(name, _, value)| (name, value(entry)));
        let template = self.environment.template_from_str(&self.source);
        let mut body = Bounded(Vec::new());
        let rendered = template
            .and_then(|template| template.render_captured_to(BTreeMap::from(values), &mut body).map(drop));
        let text = rendered.map(|()| String::from_utf8_lossy(&body.0).into_owned());
        text.map_err(|error| {
            let known = FIELDS.map(|(name, ..)| name).join(", ");
            let mut text = format!("the template cannot be used: {error}");
            if error.kind() == minijinja::ErrorKind::UndefinedError {
                let _ = write!(text, " (known names: {known})");
            }
            text
        })
    }
}

/// Output buffer of limited size.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.0.len() + text.len() > LONGEST_BODY {
            return Err(io::Error::other(format!("the body is longer than {LONGEST_BODY} bytes")));
        }
        self.0.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Creates an environment with the filters and tests that messages need, none of which can produce excessive output.
fn restricted() -> Environment<'static> {
    fn bounded(value: Value) -> Result<Value, Error> {
        let is_long = value.as_str().is_some_and(|text| text.len() > LONGEST_BODY);
        let why = || {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("a filter produced a string longer than {LONGEST_BODY} bytes"),
            )
        };
        if is_long { Err(why()) } else { Ok(value) }
    }
    let mut environment = Environment::empty();
    environment.add_filter("upper", |text: String| bounded(text.to_uppercase().into()));
    environment.add_filter("lower", |text: String| bounded(text.to_lowercase().into()));
    environment.add_filter("title", |text: String| bounded(filters::title(text.into()).into()));
    environment.add_filter("trim", |text: String| text.trim().to_owned());
    environment.add_filter("safe", filters::safe);
    environment.add_filter("length", filters::length);
    environment.add_filter("first", filters::first);
    environment.add_filter("last", filters::last);
    environment.add_filter("default", filters::default);
    environment.add_filter("tojson", |value: &Value| {
        bounded(filters::tojson(value, None, Kwargs::from_iter(NO_OPTIONS))?)
    });
    environment.add_filter("replace", |text: String, from: String, to: String| {
        // Each occurrence may grow to the length of a template.
        let growth = text.matches(&from).count().saturating_mul(to.len());
        if growth.saturating_add(text.len()) > LONGEST_BODY + LONGEST {
            let why = format!("replace would produce a string longer than {LONGEST_BODY} bytes");
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
        bounded(text.replace(&from, &to).into())
    });
    environment.add_test("defined", checks::is_defined);
    environment.add_test("undefined", checks::is_undefined);
    environment.add_test("string", checks::is_string);
    environment.add_test("startingwith", checks::is_startingwith);
    environment.add_test("endingwith", checks::is_endingwith);
    environment.add_test("in", checks::is_in);
    environment
}

type Field = (&'static str, &'static str, fn(&AuditEntry) -> String);

/// The names that a template may use, in both notations. A field without a value is an empty string.
const FIELDS: [Field; 13] = [
    ("service", "Service", |entry| entry.service.clone()),
    ("event", "Event", |entry| entry.event.to_string()),
    ("message", "Message", |entry| short(&entry.message)),
    ("reason", "Reason", |entry| short(entry.reason.as_deref().unwrap_or_default())),
    ("old_digest", "OldDigest", |entry| entry.old_digest.clone().unwrap_or_default()),
    ("new_digest", "NewDigest", |entry| entry.new_digest.clone().unwrap_or_default()),
    ("image", "Image", |entry| entry.image.clone().unwrap_or_default()),
    ("container", "Container", |entry| entry.container.clone().unwrap_or_default()),
    ("output", "Output", |entry| entry.output.clone()),
    ("timestamp", "Timestamp", |entry| entry.timestamp.to_string()),
    ("level", "Level", |entry| entry.level.to_string()),
    ("machine", "Machine", |entry| entry.machine.clone()),
    ("id", "Id", id),
];

/// Identifies an entry, also when it is sent again, in characters that mean nothing in a URL. A sample has no number.
fn id(entry: &AuditEntry) -> String {
    let number = match entry.seq {
        Some(seq) => format!("{}-{seq}", entry.epoch.as_deref().unwrap_or_default()),
        None => entry.timestamp.as_millisecond().to_string(),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    format!("{}-{number}", entry.machine).chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}

/// The forms of `id` in a URL. Nothing else is replaced there: a URL may contain any secret.
const ID_IN_URL: [&str; 4] = ["{{ id }}", "{{id}}", "{{ .Id }}", "{{.Id}}"];

fn with_id(url: &str, id: &str) -> String {
    ID_IN_URL.iter().fold(url.to_owned(), |url, form| url.replace(form, id))
}

/// Returns the URL to which an entry is sent.
pub(crate) fn url_for(url: &str, entry: &AuditEntry) -> String {
    with_id(url, &id(entry))
}

/// Returns the URL with a colon for the id, which separates the parts beside it.
pub(crate) fn without_id(url: &str) -> String {
    with_id(url, ":")
}

/// Returns the beginning of `text` that receivers with a limit accept, with an ellipsis if it was cut.
fn short(text: &str) -> String {
    let end = text.floor_char_boundary(LONGEST_TEXT);
    if end == text.len() { text.to_owned() } else { format!("{}…", &text[..end]) }
}

/// Rewrites `{{ .OldDigest }}` to `{{ old_digest }}` and leaves everything else unchanged.
fn from_go(body: &str) -> String {
    let mut out = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(start) = rest.find("{{") {
        let (before, inside) = rest.split_at(start + 2);
        out.push_str(before);
        rest = inside;
        let Some(end) = inside.find("}}") else { break };
        let (dash, field) = match inside[..end].strip_prefix('-') {
            Some(field) => ("-", field),
            None => ("", &inside[..end]),
        };
        let (field, last_dash) = match field.strip_suffix('-') {
            Some(field) => (field, "-"),
            None => (field, ""),
        };
        let known =
            field.trim().strip_prefix('.').and_then(|name| FIELDS.iter().find(|(_, go, _)| *go == name));
        if let Some((name, ..)) = known {
            let _ = write!(out, "{dash} {name} {last_dash}");
            rest = &inside[end..];
        }
    }
    out.push_str(rest);
    out
}

/// Renders the body that a webhook with this template would send. Used by the fuzzer.
pub fn render_template(body: &str, entry: &AuditEntry) -> Result<String, String> {
    Template::new(body, Escape::Json)?.render(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> AuditEntry {
        let at = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut entry = AuditEntry::new(at, "web", Kind::UPDATED, Level::Info, "it said \"hi\"\n<&\\>");
        entry.new_digest = Some("sha256:ab".into());
        entry
    }

    fn render(body: &str, escape: Escape) -> Result<String, String> {
        Template::new(body, escape)?.render(&entry())
    }

    #[test]
    fn a_long_message_and_a_long_reason_are_cut_at_a_character() {
        for (filler, kept) in [("x", 1500), ("é", 750), ("😀", 375), ("€", 500)] {
            let mut entry = entry();
            entry.message = filler.repeat(4000);
            entry.reason = Some(entry.message.clone());
            let cut = format!("{}…", filler.repeat(kept));
            let template = Template::new("{{ message }}|{{ reason }}", Escape::None).unwrap();
            assert_eq!(template.render(&entry).unwrap(), format!("{cut}|{cut}"));
        }
        let whole = AuditEntry { message: "x".repeat(1500), ..entry() };
        assert_eq!(
            Template::new("{{ message }}", Escape::None).unwrap().render(&whole).unwrap(),
            whole.message
        );
    }

    #[test]
    fn all_names_work_in_both_notations() {
        for (name, go, _) in FIELDS {
            let plain = render(&format!("<{{{{ {name} }}}}>"), Escape::None).unwrap();
            for form in
                [format!("<{{{{.{go}}}}}>"), format!("<{{{{ .{go} }}}}>"), format!("<{{{{- .{go} -}}}}>")]
            {
                assert_eq!(render(&form, Escape::None).unwrap(), plain, "{form}");
            }
        }
        assert_eq!(
            render("{{ .Timestamp }} {{.NewDigest}}{{ .OldDigest }} {{level}}", Escape::None).unwrap(),
            "2026-01-02T03:04:05Z sha256:ab info"
        );
    }

    #[test]
    fn values_are_escaped_for_the_body() {
        let body = r#"{"text": "{{ message }}", "all": {{ message | tojson }}}"#;
        let json: serde_json::Value = serde_json::from_str(&render(body, Escape::Json).unwrap()).unwrap();
        assert_eq!(json, serde_json::json!({"text": entry().message, "all": entry().message}));
        assert_eq!(render("a={{ message }}", Escape::Form).unwrap(), "a=it%20said%20%22hi%22%0A%3C%26%5C%3E");
        assert_eq!(render("{{ message }}", Escape::Html).unwrap(), "it said &quot;hi&quot;\n&lt;&amp;\\&gt;");
        assert_eq!(render("{{ message }}", Escape::None).unwrap(), entry().message);
        assert_eq!(
            render("{% if reason %}no{% else %}{{ service | upper }}{% endif %}", Escape::Json).unwrap(),
            "WEB"
        );
    }

    #[test]
    fn the_content_type_selects_the_escaping() {
        for (content_type, escape) in [
            ("application/json", Escape::Json),
            ("Application/JSON; charset=utf-8", Escape::Json),
            ("application/vnd.x+json", Escape::Json),
            ("application/x-www-form-urlencoded", Escape::Form),
            ("text/html", Escape::Html),
            ("application/xml", Escape::Html),
            ("text/plain", Escape::None),
        ] {
            assert_eq!(Escape::of(content_type), escape, "{content_type}");
        }
    }

    #[test]
    fn a_faulty_template_is_detected_before_the_first_entry() {
        for body in ["{{ service", "{% if %}", "{{ nothing }}", "{{ .Nothing }}", "{{ service | nofilter }}"]
        {
            assert!(Template::new(body, Escape::None).is_err(), "{body}");
        }
        let error = Template::new("{{ servce }}", Escape::None).err().unwrap();
        assert!(error.contains("known names: service, event"), "{error}");
        let endless = "{% for a in message %}{% for b in timestamp %}{% for c in timestamp %}{% for d in timestamp %}{% for e in timestamp %}x{% endfor %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}";
        assert!(Template::new(endless, Escape::None).is_err());
    }

    /// Each template would need a gigabyte or more, or more stack than a thread has.
    #[test]
    fn no_template_can_exhaust_memory_or_stack() {
        let mut entry = entry();
        entry.message = "\"a\\".repeat(2000);
        for body in [
            "{{ 'x' * 100000000 }}".to_owned(),
            "{{ 'x' ~ message }}".to_owned(),
            format!("{{{{ message{} }}}}", "|tojson".repeat(25)),
            format!("{{{{ message{} }}}}", "|urlencode".repeat(25)),
            format!(
                "{{{{ message|replace('a', '{}')|replace('b', '{}') }}}}",
                "b".repeat(7000),
                "c".repeat(7000)
            ),
            "{{ message|indent(999999999) }}".to_owned(),
            "{{ range(999999999) }}".to_owned(),
            format!(
                "{{% for a in message %}}{{% for b in message %}}{}{{% endfor %}}{{% endfor %}}",
                "x".repeat(8000)
            ),
            format!("{{{{ {}message }}}}", "not ".repeat(5000)),
            format!("{{{{ message{} }}}}", "|upper".repeat(2500)),
            format!("{{{{ message{} }}}}", ".a".repeat(8000)),
            format!("{{{{ {}message{} }}}}", "[".repeat(8000), "]".repeat(7000)),
            "{% if 1 %}".repeat(1600),
            "{{".repeat(8000),
        ] {
            let rendered = Template::new(&body, Escape::Json).and_then(|template| template.render(&entry));
            let error = rendered.expect_err(&body[..body.len().min(60)]);
            assert!(error.len() < 1000, "{error}");
        }
        let twice = Template::new("{{ message|tojson|tojson }}", Escape::None).unwrap();
        assert!(twice.render(&entry).unwrap().len() < LONGEST_BODY);
        let replaced = Template::new("{{ message|replace('a', 'bc')|upper|length }}", Escape::None).unwrap();
        assert_eq!(replaced.render(&entry).unwrap(), "2001", "the message is cut, which a sign shows");
    }

    #[test]
    fn the_id_is_that_of_the_entry_and_means_nothing_in_a_url() {
        let of = |machine: &str, seq: Option<u64>, epoch: Option<&str>| {
            let machine = machine.to_owned();
            url_for("/{{ id }}", &AuditEntry { machine, seq, epoch: epoch.map(str::to_owned), ..entry() })
        };
        assert_eq!(of("nas-1", Some(7), Some("e1")), "/nas-1-e1-7");
        assert_eq!(of("a/../b?é", Some(8), None), "/a_.._b__--8");
        assert_eq!(of("nas-1", None, None), "/nas-1-1767323045000");
        assert_eq!(url_for("{{id}}{{ .Id }}{{.Id}}", &entry()), "-1767323045000".repeat(3));
        assert_eq!(without_id("/{{ id }}/{{ message }}"), "/:/{{ message }}");
    }

    #[test]
    fn text_that_only_looks_like_a_field_is_unchanged() {
        assert_eq!(
            from_go("{{ .Nope }} {{ service.Service }} {{ {{"),
            "{{ .Nope }} {{ service.Service }} {{ {{"
        );
        assert_eq!(from_go("{{.Service}}{{.Level"), "{{ service }}{{.Level");
    }
}
