//! Documents of another format are refused, whatever names their fields have.

use serde_json::json;
use warpsmith_schema::{
    CONFIG_FORMAT, DocumentError, EVENT_FORMAT, Event, FORMAT, OtherFormat, TRAJECTORY_FORMAT,
    Trajectory, Versioned, read_document,
};

fn refusal<D: Versioned + std::fmt::Debug>(document: &serde_json::Value) -> OtherFormat {
    match read_document::<D>(document.to_string().as_bytes()) {
        Err(DocumentError::OtherFormat(other)) => other,
        found => panic!("{found:?}"),
    }
}

#[test]
fn each_kind_of_document_counts_its_own_format() {
    let formats = [FORMAT, EVENT_FORMAT, TRAJECTORY_FORMAT, CONFIG_FORMAT];
    assert_eq!(formats, [1, 2, 2, 4]);
}

#[test]
fn an_event_of_another_format_is_refused() {
    // Its kind has another name since.
    let event = json!({ "format": 1, "at": "", "event": { "kind": "surveyed", "task": "a" } });
    let other = refusal::<Event>(&event);
    assert_eq!((other.found, other.reads), (Some(1), EVENT_FORMAT));
    assert_eq!(
        other.to_string(),
        "an event of format 1, and this program reads format 2"
    );
    // One whose fields all have the same names is refused too.
    let event = json!({ "format": 3, "at": "", "event": { "kind": "task_accepted", "task": "a" } });
    assert_eq!(refusal::<Event>(&event).found, Some(3));
}

#[test]
fn a_trajectory_of_another_format_is_refused() {
    let other = refusal::<Trajectory>(&json!({ "format": 1, "id": "x" }));
    assert_eq!(
        other.to_string(),
        "a trajectory of format 1, and this program reads format 2"
    );
    let other = refusal::<Trajectory>(&json!({ "id": "x" }));
    assert_eq!(
        other.to_string(),
        "a trajectory of no stated format, and this program reads format 2"
    );
    assert!(OtherFormat::HINT.contains("--out"));
}

#[test]
fn a_broken_document_of_the_right_format_is_broken() {
    let event = json!({ "format": EVENT_FORMAT, "at": "" }).to_string();
    let error = read_document::<Event>(event.as_bytes()).unwrap_err();
    assert!(matches!(error, DocumentError::Json(_)), "{error}");
    let error = read_document::<Event>(b"[1, 2]").unwrap_err();
    assert!(matches!(error, DocumentError::Json(_)), "{error}");
}
