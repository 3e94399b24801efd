//! Events, written and read again; steps, taken apart and put together.

use proptest::prelude::*;
use serde_json::{Value, json};
use warpsmith_schema::{
    EVENT_FORMAT, EpisodeId, EpisodeStep, Event, EventKind, Gauges, Message, StepCursor,
    TokenRecord, Trajectory, json_schema,
};

fn trajectory() -> Trajectory {
    serde_json::from_value(json!({
        "format": 1, "id": "", "target": "cpu", "sample": 2,
        "task": { "id": "relu", "name": "relu", "source": "", "level": null, "problem_id": null, "origin": "relu.py", "graph": null },
        "policy": { "name": "script:x.jsonl", "hash": null, "step": null }, "mode": "single",
        "messages": [], "attempts": [], "best": null, "ending": { "kind": "interrupted" },
        "usage": { "prompt_tokens": 0, "completion_tokens": 0 }, "seconds": 0.0, "tokens": null,
    }))
    .unwrap()
}

/// One more reply of these tokens, in the same sequence or in another.
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
    fn steps_put_together_are_the_trajectory(
        replies in prop::collection::vec((prop::collection::vec(0_u32..9, 1..4), any::<bool>(), any::<bool>()), 0..8)
    ) {
        let mut whole = trajectory();
        let mut told = StepCursor::default();
        let mut read = trajectory();
        for (sampled, another, tell) in replies {
            grow(&mut whole, &sampled, another);
            if tell {
                let step = EpisodeStep::since(&told, &whole);
                let text = serde_json::to_string(&step).unwrap();
                serde_json::from_str::<EpisodeStep>(&text).unwrap().add_to(&mut read);
                told = StepCursor::all_of(&whole);
                prop_assert_eq!(&read, &whole);
            }
        }
    }
}

#[test]
fn a_record_that_was_given_up_is_forgotten() {
    let mut whole = trajectory();
    grow(&mut whole, &[1], false);
    let mut read = trajectory();
    EpisodeStep::since(&StepCursor::default(), &whole).add_to(&mut read);
    let told = StepCursor::all_of(&whole);
    whole.tokens = None;
    EpisodeStep::since(&told, &whole).add_to(&mut read);
    assert_eq!(read, whole);
}

#[test]
fn an_event_comes_back_as_it_was() {
    let episode = EpisodeId {
        task: "level1/19".to_owned(),
        sample: 2,
    };
    let gauges = Gauges {
        seconds: 1.5,
        ..Gauges::default()
    };
    let mut whole = trajectory();
    grow(&mut whole, &[1, 2], false);
    for (event, kind) in [
        (
            EventKind::EpisodeBegun {
                episode: episode.clone(),
            },
            "episode_begun",
        ),
        (EventKind::Measured { gauges }, "measured"),
        (
            EventKind::Progressed {
                episode,
                step: Box::new(EpisodeStep::since(&StepCursor::default(), &whole)),
            },
            "progressed",
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
        "run_begun",
        "surveyed",
        "left_out",
        "episode_begun",
        "progressed",
        "judged",
        "episode_ended",
        "hitch",
        "measured",
        "compared",
        "run_ended",
    ] {
        assert!(schema.contains(&format!("\"const\":\"{kind}\"")), "{kind}");
        let page = include_str!("../../../docs/reference/events.md");
        assert!(page.contains(&format!("| `{kind}` |")), "{kind}");
    }
}
