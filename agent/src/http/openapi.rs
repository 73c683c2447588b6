//! The endpoints together with what is said about them: one table makes the routes and the `OpenAPI` document, so that
//! the two can't part.

use std::sync::Arc;

use evenkeel_common::http::{
    Admitted, Arrival, Bodies, Guard, HeaderMap, Limits, Method, Request, Response, Routes,
};
use evenkeel_common::wire::ErrorBody;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};
use warp::filters::BoxedFilter;

use super::{Api, with_type};

/// Where the document is served.
const PATH: &str = "/openapi.json";
const JSON: &str = "application/json";

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// What is said about an endpoint.
pub(super) struct Doc {
    summary: &'static str,
    query: Vec<(&'static str, &'static str, Value)>,
    body: Option<(&'static [&'static str], &'static str, Option<MakeSchema>)>,
    answers: Vec<(u16, &'static str, &'static str, Option<MakeSchema>)>,
}

impl Doc {
    /// What the endpoint is for, in one sentence.
    pub(super) fn of(summary: &'static str) -> Self {
        Self { summary, query: Vec::new(), body: None, answers: Vec::new() }
    }

    /// It answers with this type.
    pub(super) fn json<T: JsonSchema>(mut self, status: u16, when: &'static str) -> Self {
        self.answers.push((status, when, JSON, Some(SchemaGenerator::subschema_for::<T>)));
        self
    }

    /// It answers with something that is no JSON.
    pub(super) fn text(mut self, status: u16, when: &'static str, media_type: &'static str) -> Self {
        self.answers.push((status, when, media_type, None));
        self
    }

    /// It answers without a body.
    pub(super) fn empty(mut self, status: u16, when: &'static str) -> Self {
        self.answers.push((status, when, "", None));
        self
    }

    /// It takes a query parameter, described by a JSON schema.
    pub(super) fn query(mut self, name: &'static str, what: &'static str, schema: Value) -> Self {
        self.query.push((name, what, schema));
        self
    }

    /// It reads a body, of whatever form.
    pub(super) fn body(mut self, media_types: &'static [&'static str], what: &'static str) -> Self {
        self.body = Some((media_types, what, None));
        self
    }

    /// It reads this type, if there is a body.
    pub(super) fn json_body<T: JsonSchema>(mut self, what: &'static str) -> Self {
        self.body = Some((&[JSON], what, Some(SchemaGenerator::subschema_for::<T>)));
        self
    }

    /// The path names a service, which may not exist.
    pub(super) fn named(self) -> Self {
        self.json::<ErrorBody>(404, "No service of this name is configured.")
    }
}

/// The endpoints, one line each.
pub(super) struct Endpoints {
    routes: Routes<Api>,
    said: Vec<(Method, &'static str, Doc)>,
}

impl Endpoints {
    /// None yet.
    pub(super) fn new(api: Api) -> Self {
        Self { routes: Routes::new(api), said: Vec::new() }
    }

    /// Adds an endpoint.
    pub(super) fn route<F>(
        mut self,
        method: Method,
        path: &'static str,
        handler: impl Fn(Api, Request) -> F + Send + Sync + 'static,
        doc: Doc,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        self.said.push((method.clone(), path, doc));
        self.routes = self.routes.route(method, path, handler);
        self
    }

    /// Adds an endpoint that reads a body, of whoever sends one.
    pub(super) fn route_with_body<F>(
        mut self,
        method: Method,
        path: &'static str,
        bodies: &Bodies,
        handler: impl Fn(Api, Request) -> F + Send + Sync + 'static,
        doc: Doc,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        self.said.push((method.clone(), path, doc));
        #[allow(clippy::result_large_err)] // The answer of one that is refused; here everybody is admitted.
        let admit = |_: &Api, _: &HeaderMap, arrival: &Arrival| Ok(Admitted::as_peer(arrival));
        self.routes = self.routes.route_with_body(method, path, bodies, admit, handler);
        self
    }

    /// The filter that answers every request, the one for the document included.
    pub(super) fn into_filter(mut self, guard: Guard, limits: Limits) -> BoxedFilter<(Response,)> {
        let own = Doc::of("This document.").json::<Map<String, Value>>(200, "An OpenAPI 3.1 document.");
        self.said.push((Method::GET, PATH, own));
        // Written when it is asked for, which is seldom: it takes a millisecond then, and neither time nor memory before.
        let said = Arc::new(self.said);
        self.routes
            .route(Method::GET, PATH, move |_, _| {
                let said = said.clone();
                async move { with_type(document(&said).to_string(), JSON) }
            })
            .into_filter(guard, limits)
    }
}

fn document(said: &[(Method, &'static str, Doc)]) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut schemas = settings.into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for (method, path, doc) in said {
        let operation = operation(method, path, doc, &mut schemas);
        paths.entry(*path).or_insert_with(|| json!({}))[method.as_str().to_ascii_lowercase()] = operation;
    }
    let error = schemas.subschema_for::<ErrorBody>();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Evenkeel agent",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Keeps container services up to date.",
            "description": "There is no login. Requests whose Host is no IP address, localhost, the machine's name \
                or in api.allowed_hosts are refused with 403, and so are those from pages of other sites, except that a \
                link may lead to the page and anybody may ask for /health. What GET serves, HEAD serves too. A body is \
                read only where one is described. While the agent starts, what needs its services is answered with 503 \
                and Retry-After until they are loaded. Where too much is under way at once the answer is 429 or 503 with \
                Retry-After.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "responses": {
                "Refused": { "description": "Refused; the text says why.", "content": { JSON: { "schema": error } } },
            },
        },
    })
}

fn operation(method: &Method, path: &str, doc: &Doc, schemas: &mut SchemaGenerator) -> Value {
    let mut parameters = Vec::new();
    for name in path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}')) {
        parameters.push(json!({
            "name": name, "in": "path", "required": true, "description": "Name of a service.",
            "schema": { "type": "string", "minLength": 1 },
        }));
    }
    for (name, what, schema) in &doc.query {
        parameters.push(json!({ "name": name, "in": "query", "description": what, "schema": schema }));
    }
    let mut responses = Map::new();
    for (status, when, media_type, schema) in &doc.answers {
        if media_type.is_empty() {
            responses.insert(status.to_string(), json!({ "description": when }));
            continue;
        }
        let content = match schema {
            Some(make) => json!({ "schema": make(schemas) }),
            None => json!({ "schema": { "type": "string" } }),
        };
        responses
            .insert(status.to_string(), json!({ "description": when, "content": { *media_type: content } }));
    }
    responses.insert("default".to_owned(), json!({ "$ref": "#/components/responses/Refused" }));
    let mut operation = json!({
        "operationId": operation_id(method, path),
        "summary": doc.summary,
        "responses": responses,
    });
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some((media_types, what, schema)) = doc.body {
        let schema = schema.map_or_else(|| json!({}), |make| json!(make(schemas)));
        let content: Map<String, Value> =
            media_types.iter().map(|kind| ((*kind).to_owned(), json!({ "schema": schema }))).collect();
        operation["requestBody"] = json!({ "description": what, "content": content });
    }
    operation
}

/// `GET /status/{name}` is `get_status_name`.
fn operation_id(method: &Method, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(method.as_str().to_ascii_lowercase(), |id, word| format!("{id}_{word}"))
}
