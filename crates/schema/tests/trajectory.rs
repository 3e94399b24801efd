//! Trajectories, written and read again.

use serde_json::{Value, json};
use warpsmith_schema::{
    ElidedMessage, Elision, TRAJECTORY_FORMAT, TokenRecord, Trajectory, Usage, json_schema,
};

/// Only the fields that must be there.
fn minimal() -> Value {
    json!({
        "format": TRAJECTORY_FORMAT, "id": "0123456789abcdef", "target": "cpu",
        "task": { "id": "relu", "name": "relu", "source": "", "level": null, "problem_id": null, "origin": "relu.py" },
        "policy": { "name": "script:x.jsonl", "hash": null, "step": null }, "mode": "agent",
        "messages": [{ "role": "user", "text": "Go" }, { "role": "assistant", "text": "", "calls": [] }],
        "attempts": [], "best": null, "ending": { "kind": "limit", "which": "tokens" },
        "usage": { "prompt_tokens": 7, "completion_tokens": 2 }, "seconds": 0.5, "tokens": null,
    })
}

#[test]
fn absent_fields_have_their_defaults() {
    let read: Trajectory = serde_json::from_value(minimal()).unwrap();
    assert_eq!((&read.elisions, &read.tokens), (&Vec::new(), &None));
    let usage = Usage {
        prompt_tokens: 7,
        completion_tokens: 2,
        cached_tokens: 0,
    };
    assert_eq!(read.usage, usage);
}

#[test]
fn a_trajectory_comes_back_as_it_was() {
    let mut trajectory: Trajectory = serde_json::from_value(minimal()).unwrap();
    trajectory.elisions.push(Elision {
        turn: 3,
        freed_tokens: 900,
        elided: vec![ElidedMessage {
            message: 1,
            replacement: "[left out]".to_owned(),
        }],
    });
    trajectory.tokens = Some(vec![TokenRecord {
        ids: vec![1, 2],
        logprobs: vec![None, Some(-0.1)],
        loss_mask: vec![false, true],
        replies: vec![1],
        template: Some("a".to_owned()),
        tokenizer: None,
    }]);
    let text = serde_json::to_string(&trajectory).unwrap();
    assert_eq!(
        serde_json::from_str::<Trajectory>(&text).unwrap(),
        trajectory
    );
    // Absent is null, never missing.
    assert!(text.contains(r#""tokenizer":null"#));
}

#[test]
fn the_schema_knows_every_field() {
    let trajectory: Trajectory = serde_json::from_value(minimal()).unwrap();
    let written = serde_json::to_value(trajectory).unwrap();
    let schema = json_schema("trajectory").unwrap();
    for field in written.as_object().unwrap().keys() {
        assert!(schema["properties"][field].is_object(), "{field}");
    }
}
