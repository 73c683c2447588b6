//! The HTTP client of the subcommands for the APIs of a running agent and of a warden.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_common::cli::eprint_line;
use evenkeel_common::config::{ConfigErrors, ConfigSource, Findings, address, json, source};
use evenkeel_common::http::BasePath;
use evenkeel_common::proxy::Proxies;
use evenkeel_common::secret::Secret;
use evenkeel_common::wire::ErrorBody;
use reqwest::header::RETRY_AFTER;
use reqwest::{Method, Proxy, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::UNIT_VARIABLES;
use crate::config::{Config, WithoutServices};

/// Default address of an agent's API.
const DEFAULT_API: &str = "http://127.0.0.1:9090";
/// Default port of a warden's API.
const WARDEN_PORT: u16 = 8080;
/// The variable with the login, as `user:password`, of a reverse proxy in front of the agent's API.
const LOGIN: &str = "EVENKEEL_API_LOGIN";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of bytes read of an answer, and of a line of a stream.
pub(super) const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The value of `--api` or `--warden` is not a URL.
    #[error("{flag} {text}; allowed: http://host:port or https://host:port")]
    Address {
        /// The flag.
        flag: &'static str,
        /// Its value.
        text: String,
    },
    /// The address or the token is missing.
    #[error("{0}")]
    Setup(String),
    /// The configuration file, which holds the address, has faults.
    #[error("{0}")]
    Config(ConfigErrors),
    /// There is no answer from the address, or none of the peer.
    #[error("no {peer} answers at {api}: {cause}")]
    Unreachable {
        /// The kind of server.
        peer: &'static str,
        /// The requested address.
        api: String,
        /// What went wrong.
        cause: String,
    },
    /// The server answered with an error.
    #[error("{0}")]
    Refused(String),
    /// The server is temporarily unable to answer and asks for a retry.
    #[error("{0}")]
    Busy(String),
    /// The answer does not match the API.
    #[error("{api} is not an Evenkeel {peer} of this version: {cause}")]
    Unexpected {
        /// The kind of server.
        peer: &'static str,
        /// The requested address.
        api: String,
        /// What is wrong with the answer.
        cause: String,
    },
}

/// The kind of server.
enum Peer {
    /// An agent, whose API has no authentication.
    Agent,
    /// A warden, with its `api.token`.
    Warden(Secret),
}

impl Peer {
    fn name(&self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Warden(_) => "warden",
        }
    }

    /// The flag for its address.
    fn flag(&self) -> &'static str {
        match self {
            Self::Agent => "--api",
            Self::Warden(_) => "--warden",
        }
    }
}

/// A client of an agent or a warden.
pub(super) struct Client {
    api: Url,
    /// The address for messages: without a login.
    shown: Url,
    peer: Peer,
    http: reqwest::Client,
}

impl Client {
    /// Creates a client of the agent at `api`, with the login of `EVENKEEL_API_LOGIN` if there is one, or else of the agent in the
    /// configuration file, which may also be that of a warden. If that file can't be read or has faults, it uses the address in it
    /// as far as that is readable, or else the default one: an agent that was started before the fault was made still runs.
    pub(super) fn new(api: Option<&str>, config: &Path) -> Result<Self, ClientError> {
        match api {
            Some(api) => Self::at(api, Peer::Agent)?.with_login(std::env::var(LOGIN).ok()),
            None => Self::at(&configured(config), Peer::Agent),
        }
    }

    /// Uses the login of the variable, unless the address has one.
    fn with_login(mut self, login: Option<String>) -> Result<Self, ClientError> {
        let login = login.filter(|login| !login.is_empty() && self.api == self.shown);
        let Some(login) = login else { return Ok(self) };
        let invalid = || ClientError::Setup(format!("{LOGIN} is not a login; allowed: user:password"));
        let (user, password) = login.split_once(':').ok_or_else(invalid)?;
        // The URL keeps a % as it is, and what follows it would be decoded.
        let escaped = |text: &str| text.replace('%', "%25");
        self.api.set_username(&escaped(user)).map_err(|()| invalid())?;
        self.api.set_password(Some(&escaped(password))).map_err(|()| invalid())?;
        Ok(self)
    }

    /// Creates a client of the warden at `url`, or else of the first one in `push.warden_url` of the configuration file.
    pub(super) fn of_warden(url: Option<&str>, token: Secret, config: &Path) -> Result<Self, ClientError> {
        let url = match url {
            Some(url) => Some(url.to_owned()),
            None => read(config)?.and_then(|config| config.push?.warden_urls.into_iter().next()),
        };
        let unknown = || {
            ClientError::Setup(format!(
                "no warden is configured: {} has no usable push.warden_url; give its address with --warden URL",
                config.display()
            ))
        };
        Self::at(&url.ok_or_else(unknown)?, Peer::Warden(token))
    }

    fn at(text: &str, peer: Peer) -> Result<Self, ClientError> {
        // What is before the @ may be a password.
        let shown = text.rsplit_once('@').map_or(text, |(_, host)| host);
        let refused = || ClientError::Address { flag: peer.flag(), text: shown.to_owned() };
        let api = Url::parse(text).map_err(|_| refused())?;
        if !matches!(api.scheme(), "http" | "https") || api.host_str().is_none_or(str::is_empty) {
            return Err(refused());
        }
        let mut shown = api.clone();
        shown.set_username("").and_then(|()| shown.set_password(None)).map_err(|()| refused())?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(evenkeel_common::tls::client_config())
            .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none());
        // A warden is reached as the agent reaches it. An agent is on this machine, or nearby.
        let proxies = Proxies::from_env();
        let http = match peer {
            Peer::Agent => http.no_proxy(),
            Peer::Warden(_) => http.proxy(Proxy::custom(move |url| proxies.of(url.as_str()))),
        };
        let http = http.build().map_err(|error| ClientError::Unreachable {
            peer: peer.name(),
            api: shown.to_string(),
            cause: chain(&error),
        })?;
        Ok(Self { api, shown, peer, http })
    }

    /// Sends a `GET` request; `path` holds the segments of the path. An agent's answer other than 200 is accepted as well if
    /// it has the expected form (`GET /health` answers 503 with a body).
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, ClientError> {
        self.exchange(self.http.request(Method::GET, self.url(path))).await
    }

    /// Sends a `POST` request without a body.
    pub(super) async fn post<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, ClientError> {
        self.post_with(path, &[]).await
    }

    /// Sends a `POST` request without a body, with a query.
    pub(super) async fn post_with<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, ClientError> {
        let mut url = self.url(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.exchange(self.http.request(Method::POST, url)).await
    }

    /// Sends a `POST` request with a JSON body.
    pub(super) async fn post_json<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.exchange(self.http.request(Method::POST, self.url(path)).json(body)).await
    }

    /// Opens a stream, which continues until the agent ends it.
    pub(super) async fn stream(&self, path: &[&str], after: Option<&str>) -> Result<Response, ClientError> {
        let mut request = self.http.request(Method::GET, self.url(path));
        if let Some(id) = after {
            request = request.header("Last-Event-ID", id);
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status() == StatusCode::OK { Ok(response) } else { Err(self.refusal(response).await) }
    }

    /// Returns the last `limit` audit entries, newest first.
    pub(super) async fn audit<T: DeserializeOwned>(&self, limit: u32) -> Result<T, ClientError> {
        let mut url = self.url(&["audit"]);
        url.query_pairs_mut().append_pair("limit", &limit.to_string());
        self.exchange(self.http.request(Method::GET, url)).await
    }

    async fn exchange<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        let request = match &self.peer {
            Peer::Agent => request,
            Peer::Warden(token) => request.bearer_auth(token.expose()),
        };
        let response =
            request.timeout(ANSWER_TIMEOUT).send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let is_busy = response.headers().contains_key(RETRY_AFTER);
        let body = self.body(response).await?;
        // All fields of a warden's answers have defaults, so the body of an error would parse as an answer.
        if let (Peer::Warden(_), false) = (&self.peer, status.is_success()) {
            return Err(self.failure(status, is_busy, &body));
        }
        match serde_json::from_slice(&body) {
            Ok(answer) => Ok(answer),
            Err(_) if !status.is_success() => Err(self.failure(status, is_busy, &body)),
            Err(error) if error.is_data() => Err(ClientError::Unexpected {
                peer: self.peer.name(),
                api: self.shown.to_string(),
                cause: error.to_string(),
            }),
            Err(_) => Err(self.foreign("an answer that is not JSON")),
        }
    }

    async fn refusal(&self, response: Response) -> ClientError {
        let status = response.status();
        let is_busy = response.headers().contains_key(RETRY_AFTER);
        match self.body(response).await {
            Ok(body) => self.failure(status, is_busy, &body),
            Err(error) => error,
        }
    }

    /// Builds the error for an answer with this status. `is_busy`: it asks for a retry.
    fn failure(&self, status: StatusCode, is_busy: bool, body: &[u8]) -> ClientError {
        match self.refused(status, body) {
            Some(text) if is_busy => ClientError::Busy(text),
            Some(text) => ClientError::Refused(text),
            None => self.foreign(&status.to_string()),
        }
    }

    /// Builds the error for an answer of another program, which may have the port, or of a proxy that does not reach the peer.
    fn foreign(&self, answer: &str) -> ClientError {
        let peer = self.peer.name();
        let cause = format!(
            "what answers is not an Evenkeel {peer} ({answer}); if it listens elsewhere, give its address with {} URL",
            self.peer.flag()
        );
        ClientError::Unreachable { peer, api: self.shown.to_string(), cause }
    }

    /// Reads the body of an answer, whose end a server may never send.
    async fn body(&self, mut response: Response) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(ClientError::Unexpected {
                    peer: self.peer.name(),
                    api: self.shown.to_string(),
                    cause: format!("its answer has more than {} MiB", MAX_ANSWER >> 20),
                });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Returns the text of an answer that is no JSON.
    pub(super) async fn text(&self, path: &[&str]) -> Result<String, ClientError> {
        let response = self.stream(path, None).await?;
        Ok(String::from_utf8_lossy(&self.body(response).await?).into_owned())
    }

    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.api.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    /// Builds the error for a failed connection.
    pub(super) fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        ClientError::Unreachable { peer: self.peer.name(), api: self.shown.to_string(), cause: chain(error) }
    }

    /// Returns the message of an error answer; `None` if it is not from the peer.
    fn refused(&self, status: StatusCode, body: &[u8]) -> Option<String> {
        match (&self.peer, status) {
            (Peer::Warden(_), StatusCode::UNAUTHORIZED) => Some(format!(
                "the warden at {} does not accept this token; use the warden's api.token",
                self.shown
            )),
            (Peer::Warden(_), StatusCode::NOT_FOUND) => {
                Some(format!("the warden at {} has no fleet API; is it an older version?", self.shown))
            }
            _ => serde_json::from_slice::<ErrorBody>(body).ok().map(|body| body.error),
        }
    }
}

/// Reads the configuration file without its services; `None` if there is none that this user may read.
fn read(config: &Path) -> Result<Option<Config>, ClientError> {
    let source = ConfigSource::of_process(config.to_owned());
    // Without the variable of its token, the push is off, and with it the address of the warden.
    let source = source.with_environment_file(&config.with_file_name(UNIT_VARIABLES)).unwrap_or(source);
    let config = source.load_if_readable::<WithoutServices>().map_err(ClientError::Config)?;
    Ok(config.map(|WithoutServices(config)| config))
}

/// `audit.path` of a configuration file.
pub(super) enum AuditPath {
    /// This user can't read the file, or it has errors.
    Unknown,
    Unset,
    Set(PathBuf),
}

/// Returns `audit.path` of the configuration file.
pub(super) fn audit_path(config: &Path) -> AuditPath {
    match read(config) {
        Ok(Some(config)) => config.audit_path.map_or(AuditPath::Unset, AuditPath::Set),
        Ok(None) | Err(_) => AuditPath::Unknown,
    }
}

/// Chooses a listen address that is always there (a loopback address, or all addresses) if there is one: the machine may not
/// have the others at this moment.
fn preferred(addresses: impl IntoIterator<Item = String>) -> Option<String> {
    let always = ["127.", "localhost:", "[::1]:", ":", "0.0.0.0:", "[::]:"];
    addresses.into_iter().min_by_key(|address| !always.iter().any(|start| address.starts_with(start)))
}

/// Returns the address of the agent or the warden in the configuration file, or else the default address.
fn configured(config: &Path) -> String {
    let tree = read_tree(config);
    if let Some((address, base_path)) = of_warden(&tree, config) {
        return format!("{}{base_path}", reachable(&address));
    }
    let (address, base_path) = match read(config) {
        Ok(config) => {
            let api = config.map(|config| config.api).unwrap_or_default();
            (preferred(api.addresses), api.base_path)
        }
        Err(error) => {
            let (address, base_path) = (salvaged(&tree["api"]), BasePath::default());
            let used = address.as_deref().map_or_else(|| DEFAULT_API.to_owned(), reachable);
            eprint_line(format_args!(
                "evenkeel: warning: {error}\nevenkeel: asking the agent at {used} all the same"
            ));
            (address, base_path)
        }
    };
    let address = address.map_or_else(|| DEFAULT_API.to_owned(), |address| reachable(&address));
    format!("{address}{base_path}")
}

/// Returns the file as JSON, whatever else is wrong with it; `null` if it can't be read.
fn read_tree(config: &Path) -> Value {
    let text = source::read(config).unwrap_or_default();
    json::parse(&text, &mut Findings::default()).unwrap_or_default()
}

/// Returns a valid one of the listen addresses in `api`.
fn salvaged(api: &Value) -> Option<String> {
    let addresses = api["address"].as_array()?.iter().filter_map(Value::as_str);
    preferred(addresses.filter(|text| address::parse(text).is_ok()).map(str::to_owned))
}

/// Returns where a warden listens, and its base path, if the file is that of a warden: only that one lists agents, or has a
/// token for its API. One that can't be read is taken for what its name says.
fn of_warden(file: &Value, path: &Path) -> Option<(String, BasePath)> {
    let api = &file["api"];
    let is_unread = file.is_null() && path.ends_with("warden.json");
    let has_token = api.get("token").is_some() && file.get("services").is_none();
    if file.get("agents").is_none() && !has_token && !is_unread {
        return None;
    }
    // A port may also be a number.
    let port = match &api["port"] {
        Value::String(text) => address::port(text),
        other => address::port(&other.to_string()),
    };
    let address = salvaged(api).unwrap_or_else(|| format!(":{}", port.unwrap_or(WARDEN_PORT)));
    let base_path = api["base_path"].as_str().and_then(|text| BasePath::parse(text).ok());
    Some((address, base_path.unwrap_or_default()))
}

/// Returns the URL at which this machine reaches a listen address.
pub(super) fn reachable(address: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "9090"));
    let host = match host {
        "" | "0.0.0.0" | "*" => "127.0.0.1",
        "[::]" => "[::1]",
        other => other,
    };
    format!("http://{host}:{port}")
}

/// Returns the root cause of an error: the outermost message does not contain the reason.
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
    fn a_listen_address_becomes_a_url_for_this_machine() {
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
    fn the_configuration_file_selects_the_agent_if_it_is_readable() {
        let folder = tempfile::tempdir().unwrap();
        let of = |content: &str| {
            let path = folder.path().join("config.json");
            std::fs::write(&path, content).unwrap();
            Client::new(None, &path).map(|client| client.api.to_string())
        };
        let address = r#""api": {"address": ["10.8.0.1:9191", "127.0.0.1:9191"]}"#;
        assert_eq!(of(&format!("{{{address}}}")).unwrap(), "http://127.0.0.1:9191/");
        // Non-fatal mistakes.
        let doubtful = format!(r#"{{{address}, "servces": [], "services": [{{"name": "a b"}}]}}"#);
        assert_eq!(of(&doubtful).unwrap(), "http://127.0.0.1:9191/");
        // With a fault, the agent that was started before still answers.
        for (faulty, used) in [
            (format!(r#"{{{address}, "runtime": "lxc"}}"#), "http://127.0.0.1:9191/"),
            (
                r#"{"api": {"address": ["nonsense", "127.0.0.1:9192"]}, "runtime": 5}"#.to_owned(),
                "http://127.0.0.1:9192/",
            ),
            (r#"{"api": {"address": 5}, "runtime": 5}"#.to_owned(), "http://127.0.0.1:9090/"),
            (format!("{{{address}"), "http://127.0.0.1:9090/"),
            (String::new(), "http://127.0.0.1:9090/"),
        ] {
            assert_eq!(of(&faulty).unwrap(), used, "{faulty}");
        }
        let missing = Client::new(None, Path::new("/none")).unwrap();
        assert_eq!(missing.api.as_str(), "http://127.0.0.1:9090/");
        // The health check of the warden's image.
        for (api, used) in [
            (r#""port": "8081""#, "http://127.0.0.1:8081/"),
            (r#""port": 8082, "base_path": "/warden""#, "http://127.0.0.1:8082/warden"),
            (r#""address": ["10.8.0.1:8083", "127.0.0.1:8084"], "port": 8082"#, "http://127.0.0.1:8084/"),
            (r#""address": ["10.8.0.1:8083"]"#, "http://10.8.0.1:8083/"),
            (r#""port": """#, "http://127.0.0.1:8080/"),
            (r#""port": "nonsense""#, "http://127.0.0.1:8080/"),
            (r#""token": "$TOKEN""#, "http://127.0.0.1:8080/"),
        ] {
            let file = format!(r#"{{"api": {{{api}}}, "agents": []}}"#);
            assert_eq!(of(&file).unwrap(), used, "{file}");
        }
        assert_eq!(of(r#"{"agents": []}"#).unwrap(), "http://127.0.0.1:8080/");
        assert_eq!(of(r#"{"api": {"token": "t", "port": "8081"}}"#).unwrap(), "http://127.0.0.1:8081/");
        for unread in ["{", "", "[]"] {
            let path = folder.path().join("warden.json");
            std::fs::write(&path, unread).unwrap();
            let used = if unread == "[]" { "http://127.0.0.1:9090/" } else { "http://127.0.0.1:8080/" };
            assert_eq!(Client::new(None, &path).unwrap().api.as_str(), used, "{unread}");
        }
        // With an explicit address no file is needed.
        let path = folder.path().join("config.json");
        assert_eq!(Client::new(Some("http://a"), &path).unwrap().api.as_str(), "http://a/");
    }

    #[test]
    fn names_are_escaped_as_segments_of_the_path() {
        let client = Client::new(Some("http://127.0.0.1:1/base/"), Path::new("/none")).unwrap();
        assert_eq!(client.url(&["status", "a/b ?"]).as_str(), "http://127.0.0.1:1/base/status/a%2Fb%20%3F");
    }

    #[test]
    fn without_a_flag_and_a_file_there_is_no_warden() {
        let error = Client::of_warden(None, Secret::new("t"), Path::new("/none")).err().unwrap().to_string();
        assert!(
            error.contains("/none has no usable push.warden_url") && error.contains("--warden URL"),
            "{error}"
        );
        let error = Client::of_warden(Some("w"), Secret::new("t"), Path::new("/none")).err().unwrap();
        assert!(error.to_string().starts_with("--warden w; allowed: "), "{error}");
    }

    #[test]
    fn the_warden_of_a_push_whose_token_is_a_variable_of_the_unit_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let push = r#"{"push": {"warden_url": "http://w.example", "token": "$A_TOKEN_OF_THE_UNIT"}}"#;
        std::fs::write(&path, push).unwrap();
        let of = || Client::of_warden(None, Secret::new("t"), &path);
        assert!(of().err().unwrap().to_string().contains("no usable push.warden_url"));
        std::fs::write(folder.path().join("agent.env"), "A_TOKEN_OF_THE_UNIT=t\n").unwrap();
        assert_eq!(of().unwrap().api.as_str(), "http://w.example/");
    }

    #[tokio::test]
    async fn a_login_is_in_no_error() {
        // Nothing listens on this port.
        let text = "http://operator:hunter2@127.0.0.1:1/base";
        let client = Client::new(Some(text), Path::new("/none")).unwrap();
        assert_eq!(client.api.as_str(), text);
        let unreachable = client.get::<Value>(&["status"]).await.unwrap_err();
        let of_warden = Client::of_warden(Some(text), Secret::new("t"), Path::new("/none")).unwrap();
        let mut errors = vec![unreachable.to_string(), client.foreign("404").to_string()];
        for status in [StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND] {
            errors.push(of_warden.refused(status, b"").unwrap());
        }
        for error in errors {
            assert!(error.contains(" http://127.0.0.1:1/base"), "{error}");
            assert!(!error.contains("hunter2") && !error.contains("operator"), "{error}");
        }
        for text in ["ftp://operator:hunter2@host", "https://operator:hunter2@", "https://a:hunter2@b@host:x"]
        {
            let error = Client::new(Some(text), Path::new("/none")).err().unwrap().to_string();
            assert!(!error.contains("hunter2") && error.contains("allowed: http://host:port"), "{error}");
        }
    }

    #[test]
    fn the_login_of_the_variable_is_used_unless_the_address_has_one() {
        let of = |api: &str, login: &str| {
            let client = Client::at(api, Peer::Agent).unwrap().with_login(Some(login.to_owned()));
            client.map(|client| client.api.to_string())
        };
        assert_eq!(
            of("https://host/", "operator:p@ss:word").unwrap(),
            "https://operator:p%40ss%3Aword@host/"
        );
        assert_eq!(of("https://host/", "per%cent:p%41").unwrap(), "https://per%25cent:p%2541@host/");
        assert_eq!(of("https://a:b@host/", "operator:pw").unwrap(), "https://a:b@host/");
        assert_eq!(of("https://host/", "").unwrap(), "https://host/", "an empty variable counts as none");
        let error = of("https://host/", "hunter2").unwrap_err().to_string();
        assert_eq!(error, "EVENKEEL_API_LOGIN is not a login; allowed: user:password");
    }

    #[test]
    fn an_invalid_address_is_rejected_with_the_allowed_form() {
        for text in ["", "localhost", "localhost:9090", "ftp://a", "http://"] {
            let error = Client::new(Some(text), Path::new("/none")).err().unwrap().to_string();
            assert!(error.contains("allowed: http://host:port"), "{error}");
        }
    }
}
