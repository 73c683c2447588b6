//! The warden: whether it answers, knows the token, and can store.

use super::finding::{Finding, Words};
use crate::audit::trial::WardenAnswer;

pub(super) const AREA: &str = "warden";

/// What is wrong with the warden at `url`.
pub(super) fn check(url: &str, answer: &Result<WardenAnswer, String>) -> Vec<Finding> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(cause) => {
            let words = Words {
                what: format!("no answer: {cause}"),
                why: "entries wait on this machine until it is back; the oldest go beyond 10,000",
                remedy: format!("bring it up, or correct push.warden_url; try `curl {url}/health`"),
            };
            return vec![words.warning(AREA, url)];
        }
    };
    let mut found = Vec::new();
    if answer.ingest == 401 || answer.ingest == 403 {
        let words = Words {
            what: format!("it refuses this agent's token ({})", answer.ingest),
            why: "no entry of this machine arrives there",
            remedy: "set push.token to the token of this machine in the warden's \"agents\"",
        };
        found.push(words.error(AREA, url));
    } else if answer.ingest == 404 || answer.ingest == 405 || (300..400).contains(&answer.ingest) {
        let words = Words {
            what: format!("what answers there takes no entries ({})", answer.ingest),
            why: "no entry of this machine arrives at a warden",
            remedy: "correct push.warden_url: the warden's own address, without /ingest",
        };
        found.push(words.error(AREA, url));
    }
    if answer.store_is_away || answer.ingest == 503 {
        let words = Words {
            what: "it answers, but its store is away",
            why: "entries wait on this machine until the store is back",
            remedy: "bring the warden's database up; its log says what is wrong",
        };
        found.push(words.warning(AREA, url));
    } else if answer.health >= 500 {
        let words = Words {
            what: format!("its /health answers {}", answer.health),
            why: "entries may wait on this machine",
            remedy: "see the warden's log: `journalctl -u evenkeel-warden -n 50`",
        };
        found.push(words.warning(AREA, url));
    }
    found
}

#[cfg(test)]
mod tests {
    use evenkeel_common::secret::Secret;
    use serde_json::json;
    use wiremock::matchers::{header, method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::super::finding::Severity;
    use super::*;
    use crate::audit::trial::ask_warden;
    use crate::config::PushConfig;

    async fn warden(health: ResponseTemplate, ingest: u16) -> MockServer {
        let server = MockServer::start().await;
        Mock::given(method("GET")).and(path("/base/health")).respond_with(health).mount(&server).await;
        Mock::given(method("POST"))
            .and(path("/base/ingest"))
            .and(header("authorization", "Bearer right"))
            .respond_with(ResponseTemplate::new(ingest))
            .mount(&server)
            .await;
        let any = Mock::given(method("POST")).and(path("/base/ingest"));
        any.respond_with(ResponseTemplate::new(401)).mount(&server).await;
        server
    }

    async fn findings(server: &MockServer, token: &str) -> Vec<Finding> {
        let config = PushConfig {
            warden_url: format!("{}/base", server.uri()),
            token: Secret::new(token),
            machine_id: String::new(),
        };
        check(&config.warden_url, &ask_warden(&config).await)
    }

    #[tokio::test]
    async fn a_warden_that_knows_the_token_has_no_finding() {
        let ok = ResponseTemplate::new(200).set_body_json(json!({"status": "ok"}));
        assert_eq!(findings(&warden(ok, 400).await, "right").await, []);
    }

    #[tokio::test]
    async fn every_fault_of_a_warden_is_named_with_what_to_do() {
        let ok = || ResponseTemplate::new(200).set_body_json(json!({"status": "ok"}));
        let away = ResponseTemplate::new(200).set_body_json(json!({"status": "ok", "store": "away"}));
        for (health, ingest, token, severity, remedy) in [
            (ok(), 400, "wrong", Severity::Error, "push.token"),
            (ok(), 404, "right", Severity::Error, "push.warden_url"),
            (away, 400, "right", Severity::Warning, "database"),
            (ok(), 503, "right", Severity::Warning, "database"),
            (ResponseTemplate::new(500), 400, "right", Severity::Warning, "journalctl"),
        ] {
            let found = findings(&warden(health, ingest).await, token).await;
            assert_eq!(found.len(), 1, "{found:#?}");
            assert_eq!(found[0].severity, severity);
            assert!(found[0].remedy.contains(remedy), "{found:#?}");
        }
        let nobody = check("http://w", &Err("connection refused".to_owned()));
        assert!(nobody[0].remedy.contains("curl http://w/health"), "{nobody:#?}");
    }
}
