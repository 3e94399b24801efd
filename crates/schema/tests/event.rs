//! Events, written and read again; trajectories, split into deltas and added up.

use proptest::prelude::*;
use serde_json::{Value, json};
use warpsmith_schema::{
    DeltaCursor, EVENT_FORMAT, EpisodeDelta, EpisodeId, Event, EventKind, Message, RunMetrics,
    TRAJECTORY_FORMAT, TokenRecord, Trajectory, json_schema,
};

fn trajectory() -> Trajectory {
    serde_json::from_value(json!({
        "format": TRAJECTORY_FORMAT, "id": "", "target": "cpu", "sample": 2,
        "task": { "id": "relu", "name": "relu", "source": "", "level": null, "problem_id": null, "origin": "relu.py", "graph": null },
        "policy": { "name": "script:x.jsonl", "hash": null, "step": null }, "mode": "single",
        "messages": [], "attempts": [], "best": null, "ending": { "kind": "interrupted" },
        "usage": { "prompt_tokens": 0, "completion_tokens": 0 }, "seconds": 0.0, "tokens": null,
    }))
    .unwrap()
}

/// Appends one reply of these tokens, to the last sequence or as a new one.
fn grow(trajectory: &mut Trajectory, sampled: &[u32], another: bool) {
    let message = trajectory.messages.len() as u32;
    trajectory.messages.push(Message::Assistant {
        text: format!("{sampled:?}"),
        calls: Vec::new(),
    });
    trajectory.usage.completion_tokens += sampled.len() as u64;
    trajectory.seconds += 0.5;
    let records = trajectory.tokens.get_or_insert_default();
    if another || records.is_empty() {
        records.push(TokenRecord {
            ids: Vec::new(),
            logprobs: Vec::new(),
            loss_mask: Vec::new(),
            replies: Vec::new(),
            template: Some("a".to_owned()),
            tokenizer: None,
        });
    }
    let record = records.last_mut().unwrap();
    for id in sampled {
        record.ids.push(*id);
        record.logprobs.push(Some(-0.25));
        record.loss_mask.push(true);
    }
    record.replies.push(message);
}

proptest! {
    #[test]
    fn deltas_added_up_are_the_trajectory(
        replies in prop::collection::vec((prop::collection::vec(0_u32..9, 1..4), any::<bool>(), any::<bool>()), 0..8)
    ) {
        let mut whole = trajectory();
        let mut told = DeltaCursor::default();
        let mut read = trajectory();
        for (sampled, another, tell) in replies {
            grow(&mut whole, &sampled, another);
            if tell {
                let step = EpisodeDelta::since(&told, &whole);
                let text = serde_json::to_string(&step).unwrap();
                serde_json::from_str::<EpisodeDelta>(&text).unwrap().add_to(&mut read);
                told = DeltaCursor::at_end_of(&whole);
                prop_assert_eq!(&read, &whole);
            }
        }
    }
}

#[test]
fn a_token_record_that_was_dropped_is_forgotten() {
    let mut whole = trajectory();
    grow(&mut whole, &[1], false);
    let mut read = trajectory();
    EpisodeDelta::since(&DeltaCursor::default(), &whole).add_to(&mut read);
    let told = DeltaCursor::at_end_of(&whole);
    whole.tokens = None;
    EpisodeDelta::since(&told, &whole).add_to(&mut read);
    assert_eq!(read, whole);
}

#[test]
fn an_event_comes_back_as_it_was() {
    let episode = EpisodeId {
        task: "level1/19".to_owned(),
        sample: 2,
    };
    let gauges = RunMetrics {
        seconds: 1.5,
        ..RunMetrics::default()
    };
    let mut whole = trajectory();
    grow(&mut whole, &[1, 2], false);
    for (event, kind) in [
        (
            EventKind::EpisodeStarted {
                episode: episode.clone(),
            },
            "episode_started",
        ),
        (
            EventKind::MetricsSampled { metrics: gauges },
            "metrics_sampled",
        ),
        (
            EventKind::EpisodeProgressed {
                episode,
                delta: Box::new(EpisodeDelta::since(&DeltaCursor::default(), &whole)),
            },
            "episode_progressed",
        ),
        (
            EventKind::EpisodeEnded {
                trajectory: Box::new(whole.clone()),
            },
            "episode_ended",
        ),
    ] {
        let event = Event {
            format: EVENT_FORMAT,
            at: "2026-01-01T00:00:00Z".to_owned(),
            event,
        };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["event"]["kind"], kind);
    }
}

#[test]
fn the_schema_names_every_kind() {
    let schema = json_schema("event").unwrap().to_string();
    for kind in [
        "run_started",
        "task_accepted",
        "task_skipped",
        "episode_started",
        "episode_progressed",
        "judged",
        "episode_ended",
        "infrastructure_failed",
        "metrics_sampled",
        "compile_mode_compared",
        "remeasured",
        "run_ended",
    ] {
        assert!(schema.contains(&format!("\"const\":\"{kind}\"")), "{kind}");
        let page = include_str!("../../../docs/reference/events.md");
        assert!(page.contains(&format!("| `{kind}` |")), "{kind}");
    }
}
