//! The mail channel: a message with a plain and an HTML part.

use std::net::Ipv4Addr;
use std::time::Duration;

use evenkeel_common::secret::Secret;
use evenkeel_common::wire::AuditEntry;
use lettre::address::Envelope;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, Mailboxes, MultiPart};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{CertificateStore, Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{Message, Tokio1Executor};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::message::{fields, one_line, title};
use crate::audit::delivery::{Delivery, Mailer};
use crate::audit::receiver::{Carrier, Receiver, Render};
use crate::audit::redact::Redactor;
use crate::config::{EntryFilter, SmtpConfig, SmtpTls, mail};

/// Timeout of the connection; the delivery as a whole has its own limit.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a client is used.
const RENEWAL: Duration = Duration::from_mins(1);
/// Port for implicit TLS.
const IMPLICIT_PORT: u16 = 465;
const SUBJECT: usize = 200;

/// Mail to one recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    /// The server, the sender and all recipients.
    pub(in crate::audit) config: SmtpConfig,
    /// The address of this one.
    pub(in crate::audit) recipient: String,
}

impl Receiver for Mail {
    fn name(&self) -> String {
        // Always with the address, so that a queue stays with its recipient.
        format!("smtp/{}", self.recipient)
    }

    fn key(&self) -> String {
        match recipients(&self.config).len() {
            1 => "notifications.smtp".to_owned(),
            _ => format!("notifications.smtp ({})", self.recipient),
        }
    }

    fn filter(&self) -> EntryFilter {
        self.config.filter.clone()
    }

    fn hide_secrets(&self, redactor: &mut Redactor) {
        if let (Some(name), Some(password)) = (&self.config.username, &self.config.password) {
            redactor.login(name, password.expose());
            redactor.hide(password);
        }
    }

    fn open(&self) -> Result<Box<dyn Carrier>, String> {
        Ok(Box::new(Smtp::new(&self.config, &self.recipient)?))
    }
}

/// A mail server with sender and recipients. Each recipient is a channel with a queue of its own: one that is refused does not
/// keep the mail from the others (DECISIONS 5). All are named in the header.
struct Smtp {
    config: SmtpConfig,
    /// The client, and when it was built.
    mailer: Mutex<(Mailer, Instant)>,
    from: Mailbox,
    to: Mailboxes,
    envelope: Envelope,
}

impl Smtp {
    /// Creates the channel of one recipient.
    fn new(config: &SmtpConfig, recipient: &str) -> Result<Self, String> {
        let mailer = Mutex::new((client(config)?, Instant::now()));
        let (from, to) = (mail::sender(&config.from)?, mail::receivers(&config.to)?);
        let recipient = recipient.parse().map_err(|error| format!("{recipient}: {error}"))?;
        let envelope = Envelope::new(Some(from.email.clone()), vec![recipient]);
        let envelope = envelope.map_err(|error| error.to_string())?;
        Ok(Self { config: config.clone(), mailer, from, to, envelope })
    }

    /// Returns the client, built at most a minute ago: it trusts the CAs that the system trusted then.
    fn mailer(&self) -> Mailer {
        let mut mailer = self.mailer.lock();
        if mailer.1.elapsed() >= RENEWAL {
            match client(&self.config) {
                Ok(client) => *mailer = (client, Instant::now()),
                Err(why) => tracing::debug!("the former settings of TLS are used: {why}"),
            }
        }
        mailer.0.clone()
    }
}

fn client(config: &SmtpConfig) -> Result<Mailer, String> {
    let mut builder = Mailer::builder_dangerous(config.host.as_str())
        .port(config.port)
        .timeout(Some(TIMEOUT))
        .hello_name(greeting(rustix::system::uname().nodename().to_str().unwrap_or_default()))
        .tls(encryption(config)?);
    if let Some(user) = &config.username {
        let password = config.password.as_ref().map(Secret::expose).unwrap_or_default();
        builder = builder.credentials(Credentials::new(user.clone(), password.to_owned()));
    }
    Ok(builder.build::<Tokio1Executor>())
}

/// The addresses of the recipients, each once.
pub(in crate::audit) fn recipients(config: &SmtpConfig) -> Vec<String> {
    let mut found = Vec::new();
    for mailbox in mail::receivers(&config.to).unwrap_or_default() {
        let address = mailbox.email.to_string();
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

/// The argument of EHLO: the name of this machine if it is one that a mail server accepts (RFC 5321 4.1.2 has no underscores),
/// or else an address literal.
fn greeting(name: &str) -> ClientId {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    if name.len() <= 253 && name.split('.').all(is_label) {
        ClientId::Domain(name.to_owned())
    } else {
        ClientId::Ipv4(Ipv4Addr::LOCALHOST)
    }
}

/// Maps [`SmtpTls`] to lettre's setting for this server. A password is sent over the network in the clear only with
/// `none`. Therefore `auto` requires STARTTLS with a login: otherwise a man in the middle could hide STARTTLS and read it.
fn encryption(config: &SmtpConfig) -> Result<Tls, String> {
    let parameters = || {
        let roots = if rustls_native_certs::load_native_certs().certs.is_empty() {
            CertificateStore::WebpkiRoots
        } else {
            CertificateStore::Default
        };
        TlsParameters::builder(config.host.clone())
            .certificate_store(roots)
            .build()
            .map_err(|error| format!("cannot prepare TLS: {error}"))
    };
    let is_local = matches!(config.host.as_str(), "localhost" | "127.0.0.1" | "::1");
    Ok(match config.tls {
        SmtpTls::None => Tls::None,
        SmtpTls::Implicit => Tls::Wrapper(parameters()?),
        SmtpTls::Starttls => Tls::Required(parameters()?),
        SmtpTls::Auto if config.port == IMPLICIT_PORT => Tls::Wrapper(parameters()?),
        SmtpTls::Auto if config.username.is_some() && !is_local => Tls::Required(parameters()?),
        SmtpTls::Auto => Tls::Opportunistic(parameters()?),
    })
}

impl Render for Smtp {
    fn render(&self, entry: &AuditEntry) -> Result<Delivery, String> {
        let subject: String = title(entry).chars().take(SUBJECT).collect();
        // Suppresses out-of-office replies.
        let automatic =
            HeaderValue::new(HeaderName::new_from_ascii_str("Auto-Submitted"), "auto-generated".to_owned());
        let message = Message::builder()
            .from(self.from.clone())
            .mailbox(lettre::message::header::To::from(self.to.clone()))
            .subject(subject)
            .date_now()
            .message_id(entry.seq.map(|seq| message_id(seq, entry)))
            .raw_header(automatic)
            .multipart(MultiPart::alternative_plain_html(plain(entry), html(entry)))
            .map_err(|error| error.to_string())?;
        Ok(Delivery::Mail(self.mailer(), Box::new(self.envelope.clone()), message.formatted()))
    }
}

/// The same ID for each attempt, so that the receiver can detect duplicates. Numbers alone would repeat after the state was
/// restored from a backup, and mail servers drop a repeated ID.
fn message_id(seq: u64, entry: &AuditEntry) -> String {
    let at = entry.timestamp.as_millisecond();
    let machine = entry.machine.chars();
    let host: String =
        machine.filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).take(100).collect();
    let host = host.trim_matches('.').replace("..", ".");
    format!("<evenkeel.{seq}.{at}@{}>", if host.is_empty() { "localhost" } else { &host })
}

fn plain(entry: &AuditEntry) -> String {
    let mut text = format!("{}\n\n{}\n\nTime: {}\n", title(entry), entry.message, entry.timestamp);
    for (name, value) in fields(entry) {
        text.push_str(&format!("{name}: {}\n", one_line(&value)));
    }
    if !entry.output.is_empty() {
        text.push_str(&format!("\nOutput:\n{}\n", entry.output));
    }
    text
}

fn html(entry: &AuditEntry) -> String {
    let mut rows = format!("<tr><th align=\"left\">Time</th><td>{}</td></tr>", entry.timestamp);
    for (name, value) in fields(entry) {
        rows.push_str(&format!("<tr><th align=\"left\">{name}</th><td>{}</td></tr>", escape(&value)));
    }
    let output =
        if entry.output.is_empty() { String::new() } else { format!("<pre>{}</pre>", escape(&entry.output)) };
    format!(
        "<!DOCTYPE html><html><body><h3>{}</h3><p>{}</p><table>{rows}</table>{output}</body></html>",
        escape(&title(entry)),
        escape(&entry.message)
    )
}

fn escape(text: &str) -> String {
    crate::config::template::Escape::Html.apply(text)
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::{Kind, Level};
    use jiff::Timestamp;

    use super::*;
    use crate::config::EntryFilter;

    fn channel(from: &str, to: &str) -> Result<Smtp, String> {
        let config = config(from, to);
        let first = recipients(&config).into_iter().next().unwrap_or_default();
        Smtp::new(&config, &first)
    }

    fn config(from: &str, to: &str) -> SmtpConfig {
        SmtpConfig {
            host: "mail.example".into(),
            port: 25,
            from: from.into(),
            to: to.into(),
            username: None,
            password: None,
            tls: SmtpTls::None,
            filter: EntryFilter::default(),
        }
    }

    #[test]
    fn the_port_the_login_and_the_host_choose_the_encryption() {
        let chosen = |tls, port, username: Option<&str>, host: &str| {
            let username = username.map(str::to_owned);
            let config =
                SmtpConfig { tls, port, username, host: host.into(), ..config("a@b.example", "x@b.example") };
            match encryption(&config).unwrap() {
                Tls::None => "none",
                Tls::Opportunistic(_) => "if offered",
                Tls::Required(_) => "starttls",
                Tls::Wrapper(_) => "implicit",
            }
        };
        let (auto, user) = (SmtpTls::Auto, Some("user"));
        assert_eq!(chosen(auto, 465, None, "mail.example"), "implicit");
        assert_eq!(chosen(auto, 465, user, "localhost"), "implicit");
        assert_eq!(chosen(auto, 587, user, "mail.example"), "starttls");
        assert_eq!(chosen(auto, 587, user, "localhost"), "if offered");
        assert_eq!(chosen(auto, 25, None, "mail.example"), "if offered");
        assert_eq!(chosen(SmtpTls::Implicit, 25, None, "mail.example"), "implicit");
        assert_eq!(chosen(SmtpTls::Starttls, 465, None, "mail.example"), "starttls");
        assert_eq!(chosen(SmtpTls::None, 465, user, "mail.example"), "none");
    }

    fn mail(entry: &AuditEntry) -> String {
        let channel = channel("Evenkeel <e@a.example>", "x@b.example, Y <y@b.example>").unwrap();
        let entry = AuditEntry { seq: Some(7), ..entry.clone() };
        let Ok(Delivery::Mail(_, envelope, mail)) = channel.render(&entry) else { panic!("not a mail") };
        assert_eq!(envelope.to(), ["x@b.example".parse().unwrap()], "each has a mail of its own");
        // Long lines are wrapped in quoted-printable.
        String::from_utf8(mail).unwrap().replace("=\r\n", "")
    }

    #[test]
    fn a_mail_has_the_usual_headers_and_parts() {
        let mut entry =
            AuditEntry::new(Timestamp::UNIX_EPOCH, "web", Kind::UPDATED, Level::Info, "<b>up</b> é");
        entry.machine = "box 1".into();
        let text = mail(&entry);
        for part in [
            "From: Evenkeel <e@a.example>",
            "To: x@b.example, Y <y@b.example>",
            "Subject: [info] updated: web on box 1\r\n",
            "Date: ",
            "Message-ID: <evenkeel.7.0@box1>",
            "Auto-Submitted: auto-generated",
            "text/plain",
            "text/html",
            "&lt;b&gt;up",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_server_is_verified_with_the_cas_of_the_last_minute() {
        let channel = channel("e@a.example", "x@b.example").unwrap();
        let built_at = || {
            drop(channel.mailer());
            channel.mailer.lock().1
        };
        let first = built_at();
        assert_eq!(built_at(), first);
        tokio::time::advance(RENEWAL).await;
        assert!(built_at() > first);
    }

    #[test]
    fn each_attempt_has_the_same_id_and_an_entry_that_reuses_a_number_has_another() {
        let id = |milliseconds| {
            let at = Timestamp::from_millisecond(milliseconds).unwrap();
            let text = mail(&AuditEntry::new(at, "web", Kind::UPDATED, Level::Info, "m"));
            text.lines().find_map(|line| line.strip_prefix("Message-ID: ")).unwrap().to_owned()
        };
        assert_eq!(id(1_767_225_600_123), "<evenkeel.7.1767225600123@localhost>");
        assert_eq!(id(1_767_225_600_123), id(1_767_225_600_123));
        // The same number, after the state was restored from a backup.
        assert_ne!(id(1_767_225_600_123), id(1_767_225_600_124));
    }

    #[test]
    fn a_name_that_is_no_host_name_is_greeted_with_as_an_address() {
        for (name, is_name) in [
            ("nas", true),
            ("nas.home.arpa", true),
            ("my_nas", false),
            ("-nas", false),
            ("nas.", false),
            ("", false),
            ("küche", false),
        ] {
            assert_eq!(matches!(greeting(name), ClientId::Domain(_)), is_name, "{name}");
        }
    }

    #[test]
    fn untrusted_text_cannot_add_a_header() {
        let evil = "web\r\nBcc: evil@x.example\r\n\r\n<script>";
        let mut entry = AuditEntry::new(Timestamp::UNIX_EPOCH, evil, Kind::ERROR, Level::Error, evil);
        entry.machine = evil.into();
        entry.container = Some(evil.into());
        entry.reason = Some("x\r\n.\r\nMAIL FROM".into());
        let text = mail(&entry);
        let (head, _) = text.split_once("\r\n\r\n").unwrap();
        assert!(!head.lines().any(|line| line.to_ascii_lowercase().starts_with("bcc:")), "{head}");
        assert!(!text.contains("<script>") || !text.contains("<h3>[error] error: web\r\n"), "{text}");
    }

    #[test]
    fn addresses_are_checked() {
        assert!(channel("no address", "x@b.example").is_err());
        assert!(channel("a@b.example", "").is_err());
        assert!(channel("a@b.example", "x@b.example, nobody").is_err());
        assert!(channel("a@b.example\r\nBcc: c@d.example", "x@b.example").is_err());
    }
}
