//! Endpoints with their documentation. The routes and the `OpenAPI` document come from the same table, so they cannot
//! diverge.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderValue};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};
use warp::filters::BoxedFilter;

use super::routes::Admit;
use super::{BasePath, Bodies, Guard, Limits, Request, Response, Routes};
use crate::wire::ErrorBody;

/// Path of the document.
const PATH: &str = "/openapi.json";
const JSON: &str = "application/json";

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// The documentation of an endpoint.
pub struct Doc {
    summary: &'static str,
    query: Vec<(&'static str, &'static str, Value)>,
    body: Option<(&'static [&'static str], &'static str, Option<MakeSchema>)>,
    answers: Vec<(u16, &'static str, &'static str, Option<MakeSchema>)>,
}

impl Doc {
    /// Describes the endpoint in one sentence.
    pub fn of(summary: &'static str) -> Self {
        Self { summary, query: Vec::new(), body: None, answers: Vec::new() }
    }

    /// Adds a JSON response of this type.
    #[must_use]
    pub fn json<T: JsonSchema>(mut self, status: u16, when: &'static str) -> Self {
        self.answers.push((status, when, JSON, Some(SchemaGenerator::subschema_for::<T>)));
        self
    }

    /// Adds a response that is not JSON.
    #[must_use]
    pub fn text(mut self, status: u16, when: &'static str, media_type: &'static str) -> Self {
        self.answers.push((status, when, media_type, None));
        self
    }

    /// Adds a response without a body.
    #[must_use]
    pub fn empty(mut self, status: u16, when: &'static str) -> Self {
        self.answers.push((status, when, "", None));
        self
    }

    /// Adds a query parameter, described by a JSON schema.
    #[must_use]
    pub fn query(mut self, name: &'static str, what: &'static str, schema: Value) -> Self {
        self.query.push((name, what, schema));
        self
    }

    /// Adds a request body without a schema.
    #[must_use]
    pub fn body(mut self, media_types: &'static [&'static str], what: &'static str) -> Self {
        self.body = Some((media_types, what, None));
        self
    }

    /// Adds an optional JSON request body of this type.
    #[must_use]
    pub fn json_body<T: JsonSchema>(mut self, what: &'static str) -> Self {
        self.body = Some((&[JSON], what, Some(SchemaGenerator::subschema_for::<T>)));
        self
    }

    /// The path contains the name of a service: adds the 404 response for an unknown one.
    #[must_use]
    pub fn with_service_name(self) -> Self {
        self.json::<ErrorBody>(404, "No service of this name is configured.")
    }
}

/// The general information about an API.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Name of the program.
    pub title: &'static str,
    /// Version of the program.
    pub version: &'static str,
    /// What the program does, in one sentence.
    pub summary: &'static str,
    /// Notes that apply to all endpoints.
    pub description: &'static str,
}

/// The documented endpoints of a program.
pub struct Endpoints<S> {
    routes: Routes<S>,
    docs: Vec<(Method, &'static str, Doc)>,
    about: About,
}

impl<S: Clone + Send + Sync + 'static> Endpoints<S> {
    /// Creates an empty table.
    pub fn new(about: About, state: S) -> Self {
        Self { routes: Routes::new(state), docs: Vec::new(), about }
    }

    /// Adds an endpoint.
    #[must_use]
    pub fn route<F>(
        mut self,
        method: Method,
        path: &'static str,
        handler: impl Fn(S, Request) -> F + Send + Sync + 'static,
        doc: Doc,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        self.docs.push((method.clone(), path, doc));
        self.routes = self.routes.route(method, path, handler);
        self
    }

    /// Adds an endpoint that reads the bodies of the requests that `admit` accepts.
    #[must_use]
    pub fn route_with_body<F>(
        mut self,
        method: Method,
        path: &'static str,
        bodies: &Bodies,
        admit: Admit<S>,
        handler: impl Fn(S, Request) -> F + Send + Sync + 'static,
        doc: Doc,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        self.docs.push((method.clone(), path, doc));
        self.routes = self.routes.route_with_body(method, path, bodies, admit, handler);
        self
    }

    /// Serves all endpoints below this path, and `/health` outside as well.
    #[must_use]
    pub fn below(mut self, base: BasePath) -> Self {
        self.routes = self.routes.below(base);
        self
    }

    /// Builds the filter that answers all requests, including those for the document.
    pub fn into_filter(mut self, guard: Guard, limits: Limits) -> BoxedFilter<(Response,)> {
        let own = Doc::of("This document.").json::<Map<String, Value>>(200, "An OpenAPI 3.1 document.");
        self.docs.push((Method::GET, PATH, own));
        // Generated on request. That is rare and takes a millisecond, and otherwise costs neither time nor memory.
        let (docs, about) = (Arc::new(self.docs), self.about);
        self.routes
            .route(Method::GET, PATH, move |_, request: Request| {
                let docs = docs.clone();
                async move { answer(document(about, &request.base, &docs).to_string()) }
            })
            .into_filter(guard, limits)
    }
}

fn answer(document: String) -> Response {
    let mut response = Response::new(Bytes::from(document).into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

fn document(about: About, base: &BasePath, docs: &[(Method, &'static str, Doc)]) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut schemas = settings.into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for (method, path, doc) in docs {
        let operation = operation(method, path, doc, &mut schemas);
        paths.entry(*path).or_insert_with(|| json!({}))[method.as_str().to_ascii_lowercase()] = operation;
    }
    let error = schemas.subschema_for::<ErrorBody>();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": about.title,
            "version": about.version,
            "summary": about.summary,
            "description": about.description,
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": if base.as_str().is_empty() { "/" } else { base.as_str() } }],
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "responses": {
                "Refused": { "description": "An error; the body says why.", "content": { JSON: { "schema": error } } },
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
        // One status may have several media types.
        let answer = responses
            .entry(status.to_string())
            .or_insert_with(|| json!({ "description": when, "content": {} }));
        answer["content"][*media_type] = content;
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
