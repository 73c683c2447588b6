//! The warden's endpoints: one line each, in the order of spec 4.3.

mod metrics;
mod page;
mod read;
mod write;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::http::{
    Arrival, Bodies, Guard, HeaderMap, Limiter, Limits, Method, Request, Response, Routes, StatusCode, error,
    too_many,
};
use http::header::{HeaderValue, WWW_AUTHENTICATE};
use warp::filters::BoxedFilter;

use crate::access::{self, SHORT_TOKEN};
use crate::guesses::{self, Guesses};
use crate::live::{Live, Watch};
use crate::ring::Ring;

use metrics::Login;
pub use metrics::Metrics;

/// What the endpoints share.
#[derive(Clone)]
pub struct Api {
    /// Who may ask.
    pub live: Watch,
    /// Entries and machines.
    pub ring: Arc<Ring>,
    /// Places for streams.
    pub limiter: Limiter,
    /// Places for the requests of agents, by their ids.
    pub requests: Limiter<String>,
    /// Room for the bodies of agents, and for those of people who log in: neither takes the other's.
    pub bodies: (Bodies, Bodies),
    /// Who shows wrong tokens.
    pub guesses: Arc<Guesses>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// The warden's limits are wider than the agent's (DECISIONS 6): all its streams need the token, and behind a proxy
/// all its clients have one address.
pub fn limits() -> Limits {
    Limits {
        connections: 8192,
        connections_per_peer: 7168,
        // The largest answers are those about ten thousand agents.
        unsent_bytes: 128 * 1024 * 1024,
        // A connection that an agent keeps between two entries.
        idle: Duration::from_mins(2),
        ..Limits::default()
    }
}

/// Places for streams: 4,096, for one address too.
pub fn stream_seats() -> Limiter {
    Limiter::new(4096, 4096)
}

/// Places for requests of agents: 16 for each. One that sends in order, as it should, needs one; one that floods the
/// warden takes neither memory nor time from the others.
pub fn request_seats() -> Limiter<String> {
    Limiter::new(usize::MAX, 16)
}

/// Room for the bodies of agents, of which one has a sixteenth, and for those of people who log in.
pub fn bodies(limits: Limits) -> (Bodies, Bodies) {
    let agents = Bodies::new(limits.body_bytes, 64 * limits.body_bytes, 4 * limits.body_bytes);
    (agents, Bodies::new(LOGIN_BYTES, 256 * LOGIN_BYTES, 64 * LOGIN_BYTES))
}

/// What the form's fields may have.
const LOGIN_BYTES: usize = 4096;

/// All endpoints as one filter.
pub fn routes(api: Api, limits: Limits) -> BoxedFilter<(Response,)> {
    let (of_agents, of_people) = api.bodies.clone();
    Routes::new(api)
        .route_with_body(Method::POST, "/ingest", &of_agents, write::admit, write::ingest)
        .route(Method::GET, "/events", read::events)
        .route(Method::GET, "/", page::page)
        .route_with_body(Method::POST, "/login", &of_people, page::admit, page::login)
        .route(Method::POST, "/logout", page::logout)
        .route(Method::GET, "/health", read::health)
        .route(Method::GET, "/machines", read::machines)
        .route(Method::GET, "/metrics", metrics::metrics)
        .into_filter(Guard::any_host().pages(&["/"]), limits)
}

impl Api {
    /// The configuration in force at this moment.
    fn live(&self) -> Arc<Live> {
        self.live.borrow().clone()
    }

    /// Admits a person who brings a session or the token: in the query, in the cookie, or as bearer.
    fn admit(&self, request: &Request) -> Result<(), Refused> {
        let bearer = access::bearer(&request.headers);
        self.admit_person(request, bearer.map(str::to_owned))
    }

    /// The same without the bearer.
    fn admit_page(&self, request: &Request) -> Result<(), Refused> {
        self.admit_person(request, None)
    }

    fn admit_person(&self, request: &Request, bearer: Option<String>) -> Result<(), Refused> {
        let cookies = access::cookies(&request.headers);
        let (live, now) = (self.live(), self.clock.now());
        if cookies.iter().any(|value| live.access.session_left(value, now).is_some()) {
            return Ok(());
        }
        let cookies = cookies.into_iter().filter(|value| !access::is_session(value));
        let tokens = request.query.get(access::TOKEN).cloned().into_iter().chain(cookies).chain(bearer);
        self.check_people(&live, &request.headers, &request.arrival, tokens)
    }

    /// Whether one of these is the token for people. A wrong one is counted against the client.
    fn check_people(
        &self,
        live: &Live,
        headers: &HeaderMap,
        arrival: &Arrival,
        tokens: impl Iterator<Item = String>,
    ) -> Result<(), Refused> {
        let tokens: Vec<String> = tokens.filter(|token| !token.is_empty()).collect();
        if tokens.is_empty() {
            return Err(Refused::Unknown);
        }
        let client = guesses::client(arrival, headers);
        // Whatever was sent, so that nobody learns whether it was right.
        if live.access.api_is_short() && !client.is_loopback() {
            self.metrics.refused_login(Login::Short);
            return Err(Refused::Short);
        }
        if let Some(wait) = self.guesses.wait(client) {
            self.metrics.refused_login(Login::Slowed);
            return Err(Refused::Slowed(whole_seconds(wait)));
        }
        if tokens.iter().any(|token| live.access.is_api(token)) {
            return Ok(());
        }
        for token in &tokens {
            self.metrics.refused_login(Login::Wrong);
            self.guesses.wrong(client, &access::digest(token), "people");
        }
        Err(Refused::Wrong)
    }
}

/// Why a person is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// Nothing was shown.
    Unknown,
    /// What was shown is not the token.
    Wrong,
    /// Too many wrong ones came from that address: to come back after so many seconds.
    Slowed(u16),
    /// The token is too short to be accepted from another machine.
    Short,
}

impl Refused {
    /// The answer, where `needed` says what would have let in.
    fn reply(self, needed: &str) -> Response {
        match self {
            Self::Unknown | Self::Wrong => unauthorised(needed),
            Self::Slowed(seconds) => too_many(self.in_words().unwrap_or_default(), seconds),
            Self::Short => error(StatusCode::FORBIDDEN, self.in_words().unwrap_or_default()),
        }
    }

    /// What a person is told; nothing where nothing was shown.
    fn in_words(self) -> Option<String> {
        match self {
            Self::Unknown => None,
            Self::Wrong => Some("That token is not accepted.".to_owned()),
            Self::Slowed(seconds) => {
                Some(format!("Too many wrong tokens came from this address. Try again in {seconds} seconds."))
            }
            Self::Short => Some(format!(
                "api.token in the warden's configuration has fewer than {SHORT_TOKEN} characters, so it is accepted \
                 from the warden's own machine only. Set a longer one."
            )),
        }
    }
}

fn whole_seconds(wait: Duration) -> u16 {
    u16::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u16::MAX)
}

/// 401 as JSON.
fn unauthorised(what: &str) -> Response {
    challenge(error(StatusCode::UNAUTHORIZED, what))
}

fn challenge(mut response: Response) -> Response {
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
