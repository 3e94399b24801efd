//! The interface's own description.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Value, json};
use warpsmith_schema::{FailureReport, Trajectory};

use crate::dashboard::{EpisodeList, RunList, RunSummary};
use crate::judging::{Job, JobList, JudgeRequest, MAX_LISTED, MAX_WAIT_SECONDS};

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
    let runs = reference::<RunList>(&mut generator);
    let run = reference::<RunSummary>(&mut generator);
    let episodes = reference::<EpisodeList>(&mut generator);
    let trajectory = reference::<Trajectory>(&mut generator);
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
    // In the form that clients of OpenAI know, since the whole server is behind one door.
    let door = json!({ "type": "object", "required": ["error"], "properties": { "error": { "type": "object" } } });
    let denied = answer("the token is missing or wrong", &door);
    let foreign = answer("asked as another machine, without a token", &door);
    let either = json!({ "anyOf": [door, problem("")["content"]["application/json"]["schema"]] });
    let forbidden = answer(
        "asked as another machine, or with a task of its own that this server does not take",
        &either,
    );
    let unknown = problem("no such run or episode, or its log cannot be read");
    let wait = json!({
        "name": "wait", "in": "query", "description": "seconds to wait for the job to be over",
        "schema": { "type": "integer", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "default": 0 },
    });
    let id = json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } });
    let limit = json!({
        "name": "limit", "in": "query",
        "schema": { "type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": 50 },
    });
    let offset = json!({ "name": "offset", "in": "query", "schema": { "type": "integer", "minimum": 0, "maximum": u32::MAX, "default": 0 } });
    let name = json!({ "name": "run", "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } });
    let task =
        json!({ "name": "task", "in": "query", "required": true, "schema": { "type": "string" } });
    let sample = json!({ "name": "sample", "in": "query", "schema": { "type": "integer", "minimum": 0, "maximum": u32::MAX, "default": 1 } });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Warpsmith", "version": env!("CARGO_PKG_VERSION"),
            "description": "Compiles, verifies and times solutions that nobody has reason to trust, and shows what runs came to.",
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
                    "400": problem("not a request"), "401": denied, "403": forbidden, "404": problem("no such task"),
                    "413": problem("too large"), "415": problem("not JSON"), "429": busy, "503": problem("the server ends; send it elsewhere"),
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
            "/v1/runs": { "get": {
                "operationId": "runs", "summary": "Runs of this server's folder",
                "responses": { "200": answer("runs, the latest first", &runs), "401": denied, "403": foreign },
            } },
            "/v1/runs/{run}": { "get": {
                "operationId": "run", "summary": "One run", "parameters": [name],
                "responses": { "200": answer("the run", &run), "400": problem("not a name"), "401": denied, "403": foreign, "404": unknown },
            } },
            "/v1/runs/{run}/episodes": { "get": {
                "operationId": "episodes", "summary": "Its episodes, in the order they began", "parameters": [name, offset, limit],
                "responses": { "200": answer("episodes", &episodes), "400": problem("not a range"), "401": denied, "403": foreign, "404": unknown },
            } },
            "/v1/runs/{run}/episode": { "get": {
                "operationId": "episode", "summary": "The whole of an episode that has ended", "parameters": [name, task, sample],
                "responses": { "200": answer("the trajectory", &trajectory), "400": problem("not an episode"), "401": denied, "403": foreign, "404": unknown },
            } },
        },
    })
}

fn reference<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}
