//! The client of a running agent's API, and of a warden's: what the subcommands ask, by the wire types.

use std::path::Path;
use std::time::Duration;

use evenkeel_common::config::{ConfigFaults, ConfigSource};
use evenkeel_common::secret::Secret;
use evenkeel_common::wire::ErrorBody;
use reqwest::header::RETRY_AFTER;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::Config;

/// Where an agent listens that is not told otherwise.
const DEFAULT_API: &str = "http://127.0.0.1:9090";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why there is no answer to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// `--api` or `--warden` is no address.
    #[error("{flag} {text}; allowed: http://host:port or https://host:port")]
    Address {
        /// The flag.
        flag: &'static str,
        /// What it says.
        text: String,
    },
    /// It is not known whom to ask, or by what token.
    #[error("{0}")]
    Setup(String),
    /// The configuration file, which says whom to ask, has faults.
    #[error("{0}")]
    Config(ConfigFaults),
    /// Nobody answers there.
    #[error("no {peer} answers at {api}: {cause}")]
    Unreachable {
        /// Who should.
        peer: &'static str,
        /// The address that was asked.
        api: String,
        /// What went wrong.
        cause: String,
    },
    /// It answered with an error.
    #[error("{0}")]
    Refused(String),
    /// It answered that it can't now, and that one should ask again.
    #[error("{0}")]
    Busy(String),
    /// It answered with something else than its API says.
    #[error("{api} is no {peer} of this version: {cause}")]
    Unexpected {
        /// Who should be there.
        peer: &'static str,
        /// The address that was asked.
        api: String,
        /// What is wrong with the answer.
        cause: String,
    },
}

/// Who is asked.
enum Peer {
    /// An agent, which has no login.
    Agent,
    /// A warden, with its token for people.
    Warden(Secret),
}

impl Peer {
    fn name(&self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Warden(_) => "warden",
        }
    }

    /// The flag that says where it is.
    fn flag(&self) -> &'static str {
        match self {
            Self::Agent => "--api",
            Self::Warden(_) => "--warden",
        }
    }
}

/// The client.
pub(super) struct Client {
    api: Url,
    peer: Peer,
    http: reqwest::Client,
}

impl Client {
    /// A client of the agent at `api`, else of the one that the configuration file describes, else, where that file
    /// can't be read, of the one at the default address.
    pub(super) fn new(api: Option<&str>, config: &Path) -> Result<Self, ClientError> {
        let address = match api {
            Some(api) => api.to_owned(),
            None => configured(config)?,
        };
        Self::at(&address, Peer::Agent)
    }

    /// A client of the warden at `url`, else of the first one that the configuration file pushes to.
    pub(super) fn of_warden(url: Option<&str>, token: Secret, config: &Path) -> Result<Self, ClientError> {
        let url = match url {
            Some(url) => Some(url.to_owned()),
            None => read(config)?.and_then(|config| config.push?.warden_urls.into_iter().next()),
        };
        let unknown = || {
            ClientError::Setup(format!(
                "no warden is known: {} has no push.warden_url that can be used; say where it is with --warden URL",
                config.display()
            ))
        };
        Self::at(&url.ok_or_else(unknown)?, Peer::Warden(token))
    }

    fn at(text: &str, peer: Peer) -> Result<Self, ClientError> {
        let refused = || ClientError::Address { flag: peer.flag(), text: text.to_owned() };
        let api = Url::parse(text).map_err(|_| refused())?;
        if !matches!(api.scheme(), "http" | "https") || api.host_str().is_none_or(str::is_empty) {
            return Err(refused());
        }
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(evenkeel_common::tls::client_config())
            .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            // The agent is on this machine or behind an address that a person named.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| ClientError::Unreachable {
                peer: peer.name(),
                api: text.to_owned(),
                cause: chain(&error),
            })?;
        Ok(Self { api, peer, http })
    }

    /// `GET`s a path whose segments are `path`. An answer other than 200 that has the expected form is one, too
    /// (`GET /health` says 503 with a body).
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, ClientError> {
        self.answer(Method::GET, path).await
    }

    /// `POST`s without a body.
    pub(super) async fn post<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, ClientError> {
        self.answer(Method::POST, path).await
    }

    /// `POST`s a body.
    pub(super) async fn post_json<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.exchange(self.http.request(Method::POST, self.url(path)).json(body)).await
    }

    /// Opens a stream; its chunks come until the agent ends it.
    pub(super) async fn stream(&self, path: &[&str], after: Option<&str>) -> Result<Response, ClientError> {
        let mut request = self.http.request(Method::GET, self.url(path));
        if let Some(id) = after {
            request = request.header("Last-Event-ID", id);
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status() == StatusCode::OK { Ok(response) } else { Err(self.refusal(response).await) }
    }

    /// The last `limit` audit entries, newest first.
    pub(super) async fn audit<T: DeserializeOwned>(&self, limit: u32) -> Result<T, ClientError> {
        let mut url = self.url(&["audit"]);
        url.query_pairs_mut().append_pair("limit", &limit.to_string());
        self.exchange(self.http.request(Method::GET, url)).await
    }

    async fn answer<T: DeserializeOwned>(&self, method: Method, path: &[&str]) -> Result<T, ClientError> {
        self.exchange(self.http.request(method, self.url(path))).await
    }

    async fn exchange<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        let request = match &self.peer {
            Peer::Agent => request,
            Peer::Warden(token) => request.bearer_auth(token.expose()),
        };
        let response =
            request.timeout(ANSWER_TIMEOUT).send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        // A warden's answers have defaults for all that could be missing: an error would look like one.
        if let (Peer::Warden(_), false) = (&self.peer, status.is_success()) {
            return Err(ClientError::Refused(self.refused(status, &body)));
        }
        match serde_json::from_slice(&body) {
            Ok(answer) => Ok(answer),
            Err(_) if !status.is_success() => Err(ClientError::Refused(self.refused(status, &body))),
            Err(error) => Err(ClientError::Unexpected {
                peer: self.peer.name(),
                api: self.api.to_string(),
                cause: error.to_string(),
            }),
        }
    }

    async fn refusal(&self, response: Response) -> ClientError {
        let status = response.status();
        let is_busy = response.headers().contains_key(RETRY_AFTER);
        match response.bytes().await {
            Ok(body) if is_busy => ClientError::Busy(self.refused(status, &body)),
            Ok(body) => ClientError::Refused(self.refused(status, &body)),
            Err(error) => self.unreachable(&error),
        }
    }

    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.api.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    /// What is to be said where the connection broke.
    pub(super) fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        ClientError::Unreachable { peer: self.peer.name(), api: self.api.to_string(), cause: chain(error) }
    }

    /// What an answer with an error says.
    fn refused(&self, status: StatusCode, body: &[u8]) -> String {
        let said = serde_json::from_slice::<ErrorBody>(body).map(|body| body.error);
        match (&self.peer, status) {
            (Peer::Warden(_), StatusCode::UNAUTHORIZED) => {
                format!("the warden at {} does not accept this token; it takes its api.token", self.api)
            }
            (Peer::Warden(_), StatusCode::NOT_FOUND) => {
                format!("the warden at {} knows nothing of a fleet; is it of this version?", self.api)
            }
            _ => said.unwrap_or_else(|_| format!("the {} answered {status}", self.peer.name())),
        }
    }
}

/// The file; `None` where there is none that this user may read. One with faults says nothing: the agent that it was
/// written for may be another than the one at the default address.
fn read(config: &Path) -> Result<Option<Config>, ClientError> {
    ConfigSource::of_process(config.to_owned()).load_if_readable().map_err(ClientError::Config)
}

/// The address of the agent that the file describes.
fn configured(config: &Path) -> Result<String, ClientError> {
    let addresses = read(config)?.map(|config| config.api.addresses).unwrap_or_default();
    Ok(addresses.first().map_or_else(|| DEFAULT_API.to_owned(), |address| reachable(address)))
}

/// The URL by which this machine reaches a listen address.
pub(super) fn reachable(address: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "9090"));
    let host = match host {
        "" | "0.0.0.0" | "*" => "127.0.0.1",
        "[::]" => "[::1]",
        other => other,
    };
    format!("http://{host}:{port}")
}

/// An error with its causes: what the client says alone does not tell why.
fn chain(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    if text.is_empty() { error.to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listen_address_is_reached_from_this_machine() {
        for (listens, url) in [
            ("127.0.0.1:9090", "http://127.0.0.1:9090"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:9090", "http://[::1]:9090"),
            (":9090", "http://127.0.0.1:9090"),
            ("localhost:9", "http://localhost:9"),
        ] {
            assert_eq!(reachable(listens), url);
        }
    }

    #[test]
    fn the_file_says_which_agent_is_meant_unless_it_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let of = |content: &str| {
            let path = folder.path().join("config.json");
            std::fs::write(&path, content).unwrap();
            Client::new(None, &path).map(|client| client.api.to_string())
        };
        let address = r#""api": {"address": ["127.0.0.1:9191"]}"#;
        assert_eq!(of(&format!("{{{address}}}")).unwrap(), "http://127.0.0.1:9191/");
        // A mistake that the agent runs with.
        let doubtful = format!(r#"{{{address}, "servces": [], "services": [{{"name": "a b"}}]}}"#);
        assert_eq!(of(&doubtful).unwrap(), "http://127.0.0.1:9191/");
        for (faulty, says) in [
            (format!(r#"{{{address}, "runtime": "lxc"}}"#), "runtime"),
            (format!("{{{address}"), "is not JSON"),
            (String::new(), "is empty"),
        ] {
            let error = of(&faulty).unwrap_err();
            assert!(matches!(&error, ClientError::Config(_)) && error.to_string().contains(says), "{error}");
        }
        let missing = Client::new(None, Path::new("/none")).unwrap();
        assert_eq!(missing.api.as_str(), "http://127.0.0.1:9090/");
        // Whoever says where it is needs no file.
        let path = folder.path().join("config.json");
        assert_eq!(Client::new(Some("http://a"), &path).unwrap().api.as_str(), "http://a/");
    }

    #[test]
    fn names_are_segments_of_the_path_whatever_is_in_them() {
        let client = Client::new(Some("http://127.0.0.1:1/base/"), Path::new("/none")).unwrap();
        assert_eq!(client.url(&["status", "a/b ?"]).as_str(), "http://127.0.0.1:1/base/status/a%2Fb%20%3F");
    }

    #[test]
    fn without_a_flag_and_without_a_file_no_warden_is_known() {
        let error = Client::of_warden(None, Secret::new("t"), Path::new("/none")).err().unwrap().to_string();
        assert!(error.contains("/none has no push.warden_url") && error.contains("--warden URL"), "{error}");
        let error = Client::of_warden(Some("w"), Secret::new("t"), Path::new("/none")).err().unwrap();
        assert!(error.to_string().starts_with("--warden w; allowed: "), "{error}");
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_is_allowed() {
        for text in ["", "localhost", "localhost:9090", "ftp://a", "http://"] {
            let error = Client::new(Some(text), Path::new("/none")).err().unwrap().to_string();
            assert!(error.contains("allowed: http://host:port"), "{error}");
        }
    }
}
