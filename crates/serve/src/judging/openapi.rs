//! The interface's own description.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Value, json};
use warpsmith_schema::FailureReport;

use super::job::{Job, JobList, JudgeRequest};
use super::routes::{MOST_LISTED, MOST_WAIT};

/// `OpenAPI` 3.1, whose schemas are those that requests are read by.
pub(crate) fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let request = reference::<JudgeRequest>(&mut generator);
    let job = reference::<Job>(&mut generator);
    let jobs = reference::<JobList>(&mut generator);
    let problem = reference::<FailureReport>(&mut generator);
    let answer = |what: &str, schema: &Value| json!({ "description": what, "content": { "application/json": { "schema": schema } } });
    let problem = |what: &str| answer(what, &problem);
    let busy = json!({
        "description": "too many requests or submissions",
        "headers": { "Retry-After": { "schema": { "type": "integer" } } },
        "content": problem("")["content"],
    });
    let placed = |what: &str| {
        let mut answer = answer(what, &job);
        answer["headers"] = json!({ "Location": { "schema": { "type": "string" } } });
        answer
    };
    let denied = problem("the token is missing or wrong");
    let foreign = problem("asked as another machine, without a token");
    let wait = json!({
        "name": "wait", "in": "query", "description": "seconds to wait for the job to be over",
        "schema": { "type": "integer", "minimum": 0, "maximum": MOST_WAIT, "default": 0 },
    });
    let id = json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } });
    let limit = json!({
        "name": "limit", "in": "query",
        "schema": { "type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": 50 },
    });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Warpsmith's judge", "version": env!("CARGO_PKG_VERSION"),
            "description": "Compiles, verifies and times solutions that nobody has reason to trust.",
        },
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{ "token": [] }, {}],
        "paths": {
            "/v1/judge": { "post": {
                "operationId": "judge", "summary": "Have a solution judged",
                "parameters": [wait],
                "requestBody": { "required": true, "content": { "application/json": { "schema": request } } },
                "responses": {
                    "200": placed("over, within the time"), "202": placed("taken; ask again at `Location`"),
                    "400": problem("not a request"), "401": denied, "403": foreign,
                    "413": problem("too large"), "415": problem("not JSON"), "429": busy,
                },
            } },
            "/v1/jobs": { "get": {
                "operationId": "jobs", "summary": "The latest jobs", "parameters": [limit],
                "responses": { "200": answer("jobs, the latest first", &jobs), "400": problem("not a limit"), "401": denied, "403": foreign, "429": busy },
            } },
            "/v1/jobs/{id}": {
                "get": {
                    "operationId": "job", "summary": "A job and, once it has one, its verdict", "parameters": [id, wait],
                    "responses": { "200": answer("the job", &job), "400": problem("not a time"), "401": denied, "403": foreign, "404": problem("no such job"), "429": busy },
                },
                "delete": {
                    "operationId": "cancel", "summary": "Take a job back that no judge has begun with", "parameters": [id],
                    "responses": { "200": answer("the job", &job), "400": problem("not an id"), "401": denied, "403": foreign, "404": problem("no such job"), "409": problem("being judged or over"), "429": busy },
                },
            },
        },
    })
}

fn reference<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}
