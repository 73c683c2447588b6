//! Checks the wardens: whether they answer, accept the token, can store entries, make decisions for a fleet, and agree on
//! the time.

use super::finding::{Finding, Words};
use crate::audit::channels::WardenAnswer;
use crate::service::fleet::CLOCK_OFF;

pub(super) const AREA: &str = "warden";

/// Returns the findings for the warden at `url`.
pub(super) fn check(url: &str, answer: &Result<WardenAnswer, String>) -> Vec<Finding> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(cause) => {
            let words = Words {
                what: format!("no answer: {cause}"),
                why: "entries are queued on this machine until it is back; beyond 10,000 the oldest are dropped",
                remedy: format!("start it, or correct push.warden_url; try `curl {url}/health`"),
            };
            return vec![words.warning(AREA, url)];
        }
    };
    let mut found = Vec::new();
    if answer.ingest == 401 || answer.ingest == 403 {
        let words = Words {
            what: format!("it rejects this agent's token ({})", answer.ingest),
            why: "no entry from this machine arrives there",
            remedy: "set push.token to the token of this machine in the warden's \"agents\"",
        };
        found.push(words.error(AREA, url));
    } else if answer.ingest == 404 || answer.ingest == 405 || (300..400).contains(&answer.ingest) {
        let words = Words {
            what: format!("the server there accepts no entries ({})", answer.ingest),
            why: "no entry from this machine arrives at a warden",
            remedy: "correct push.warden_url: use the warden's own address, without /ingest",
        };
        found.push(words.error(AREA, url));
    } else if answer.fleet == 404 || answer.fleet == 405 {
        let words = Words {
            what: format!("it makes no decisions for a fleet ({})", answer.fleet),
            why: "an image that fails on one machine is still deployed on the others, and nothing can be frozen there",
            remedy: "run Evenkeel's warden in the same version as this agent; a proxy in front of it must forward /fleet",
        };
        found.push(words.warning(AREA, url));
    } else if answer.fleet == 401 || answer.fleet == 403 {
        let words = Words {
            what: format!(
                "it accepts entries from this agent, but rejects its request to /fleet ({})",
                answer.fleet
            ),
            why: "updates continue with the decisions of the fleet that are known, in ring 1 to 9 after push.patience",
            remedy: "have the proxy in front of the warden forward the header Authorization for /fleet, as for /ingest",
        };
        found.push(words.error(AREA, url));
    }
    found.extend(answer.clock_ahead.filter(|ahead| ahead.abs() >= CLOCK_OFF).map(|ahead| {
        let side = if ahead.is_negative() { "behind" } else { "ahead of" };
        let words = Words {
            what: format!("this machine's clock is {} s {side} the warden's", ahead.unsigned_abs().as_secs()),
            why: "update windows and the times of entries are wrong on one of the two",
            remedy: "set the clock on both, for example with `timedatectl set-ntp true`",
        };
        words.warning(AREA, url)
    }));
    found.extend(of_health(url, answer));
    found
}

/// Returns the finding for its `GET /health`.
fn of_health(url: &str, answer: &WardenAnswer) -> Option<Finding> {
    if answer.store_is_away || answer.ingest == 503 {
        let words = Words {
            what: "it answers, but its store is unavailable",
            why: "entries are queued on this machine until the store is back",
            remedy: "start the warden's database; the warden's log shows the error",
        };
        return Some(words.warning(AREA, url));
    }
    // A proxy answers 5xx for a warden that is down.
    if answer.health != 200 && (answer.has_status || answer.health >= 500) {
        let words = Words {
            what: format!("its /health answers {}", answer.health),
            why: "entries may be queued on this machine",
            remedy: "see the warden's log: `journalctl -u evenkeel-warden -n 50`",
        };
        return Some(words.warning(AREA, url));
    }
    (!answer.has_status).then(|| {
        let words = Words {
            what: format!("the server that answers at /health is not a warden ({})", answer.health),
            why: "rejected entries stay queued on this machine; a 400 from a TLS server looks like a warden's",
            remedy: "correct push.warden_url (https:// instead of http://?), or have the proxy forward /health",
        };
        words.error(AREA, url)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenkeel_common::secret::Secret;
    use jiff::fmt::rfc2822;
    use jiff::tz::TimeZone;
    use jiff::{SignedDuration, Timestamp};
    use serde_json::json;
    use wiremock::matchers::{header, method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::super::finding::Severity;
    use super::*;
    use crate::audit::trial::ask_wardens;
    use crate::config::PushConfig;

    async fn warden(health: ResponseTemplate, ingest: u16, fleet: u16) -> MockServer {
        let server = MockServer::start().await;
        Mock::given(method("GET")).and(path("/base/health")).respond_with(health).mount(&server).await;
        for (verb, place, code) in [("POST", "/base/ingest", ingest), ("GET", "/base/fleet", fleet)] {
            Mock::given(method(verb))
                .and(path(place))
                .and(header("authorization", "Bearer right"))
                .respond_with(ResponseTemplate::new(code))
                .mount(&server)
                .await;
            let any = Mock::given(method(verb)).and(path(place));
            any.respond_with(ResponseTemplate::new(401)).mount(&server).await;
        }
        server
    }

    async fn findings(server: &MockServer, token: &str) -> Vec<Finding> {
        let config = PushConfig {
            warden_urls: vec![format!("{}/base", server.uri())],
            token: Secret::new(token),
            ring: 0,
            patience: Duration::ZERO,
        };
        check(&config.warden_urls[0], &ask_wardens(&config, Duration::from_secs(5)).await[0])
    }

    #[tokio::test]
    async fn a_warden_that_accepts_the_token_has_no_finding() {
        let ok = ResponseTemplate::new(200).set_body_json(json!({"status": "ok"}));
        assert_eq!(findings(&warden(ok, 400, 400).await, "right").await, []);
    }

    #[tokio::test]
    async fn every_fault_of_a_warden_is_reported_with_a_remedy() {
        let ok = || ResponseTemplate::new(200).set_body_json(json!({"status": "ok"}));
        let away = ResponseTemplate::new(200).set_body_json(json!({"status": "ok", "store": "away"}));
        let early = (Timestamp::now() - SignedDuration::from_mins(11)).to_zoned(TimeZone::UTC);
        let early = ok().insert_header("date", rfc2822::to_string(&early).unwrap().as_str());
        for (health, ingest, fleet, token, severity, remedy) in [
            (ok(), 400, 400, "wrong", Severity::Error, "push.token"),
            (ok(), 404, 404, "right", Severity::Error, "push.warden_url"),
            (ok(), 400, 404, "right", Severity::Warning, "Evenkeel's warden"),
            (ok(), 400, 401, "right", Severity::Error, "Authorization"),
            (early, 400, 400, "right", Severity::Warning, "set the clock"),
            (away, 400, 400, "right", Severity::Warning, "database"),
            (ok(), 503, 400, "right", Severity::Warning, "database"),
            (ResponseTemplate::new(500), 400, 400, "right", Severity::Warning, "journalctl"),
            (ResponseTemplate::new(400), 400, 400, "right", Severity::Error, "https://"),
            (
                ResponseTemplate::new(200).set_body_string("ok"),
                400,
                400,
                "right",
                Severity::Error,
                "https://",
            ),
            (
                ResponseTemplate::new(429).set_body_json(json!({"status": "busy"})),
                400,
                400,
                "right",
                Severity::Warning,
                "journalctl",
            ),
        ] {
            let found = findings(&warden(health, ingest, fleet).await, token).await;
            assert_eq!(found.len(), 1, "{found:#?}");
            assert_eq!(found[0].severity, severity);
            assert!(found[0].remedy.contains(remedy), "{found:#?}");
        }
        let unreachable = check("http://w", &Err("connection refused".to_owned()));
        assert!(unreachable[0].remedy.contains("curl http://w/health"), "{unreachable:#?}");
    }
}
