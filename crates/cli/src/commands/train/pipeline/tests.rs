use serde_json::{Map, Value, from_value, to_value};

use super::*;

fn settings(changed: Value) -> PipelineSettings {
    let defaults: Map<String, Value> = toml::from_str(PipelineSettings::TEXT).unwrap();
    let mut values = defaults;
    values.insert("validation".to_owned(), json!("validation.jsonl"));
    values.extend(from_value::<Map<String, Value>>(changed).unwrap());
    from_value(Value::Object(values)).unwrap()
}

fn names(changed: Value) -> Vec<&'static str> {
    let stages = settings(changed).stages();
    stages.into_iter().map(Stage::name).collect()
}

#[test]
fn the_text_says_the_defaults() {
    crate::config::assert_text_says_the_defaults::<PipelineSettings>();
}

#[test]
fn every_ablation_is_a_switch() {
    let whole = [
        "sft",
        "gate",
        "single_turn",
        "collect",
        "rft",
        "value",
        "agentic",
    ];
    assert_eq!(names(json!({})), whole);
    // The paper's order.
    assert_eq!(names(json!({ "no_sft": true })), whole[2..]);
    let without = |left_out: &str| -> Vec<&str> {
        let kept = whole.into_iter().filter(|name| *name != left_out);
        kept.collect()
    };
    assert_eq!(names(json!({ "no_rft": true })), without("rft"));
    assert_eq!(names(json!({ "no_value": true })), without("value"));
    assert_eq!(names(json!({ "validation": null })), without("gate"));
    assert_eq!(names(json!({ "raw_reward": true })), whole);
    assert_eq!(names(json!({ "no_agent_loop": true })), whole);
    // Without what comes before it: the run that collapsed.
    let bare = json!({ "no_sft": true, "no_single_turn": true, "no_rft": true, "no_value": true });
    assert_eq!(names(bare), ["agentic"]);
}

/// A stage's settings by name.
fn told<S: Settings + Args>(changed: Value, stage: Stage, tables: &Tables) -> Value {
    let found: S = settings(changed).of_stage(stage, tables, "m+a").unwrap();
    to_value(found).unwrap()
}

#[test]
fn stages_are_told_what_the_switches_mean() {
    let tables: Tables = from_value(json!({
        "learning": { "rank": 32 },
        "judging": { "target": "cpu" },
        "agentic": { "reward": "ladder", "rank": 4 },
    }))
    .unwrap();
    let plain = || json!({ "seed": 7 });
    let agentic = told::<PpoSettings>(plain(), Stage::Agentic, &tables);
    let expected = json!(["m+a", "agent", "ladder", 4, "cpu", "keep", 7]);
    let keys = [
        "model",
        "mode",
        "reward",
        "rank",
        "target",
        "cut_replies",
        "seed",
    ];
    assert_eq!(json!(keys.map(|key| agentic[key].clone())), expected);
    let single = told::<PpoSettings>(plain(), Stage::SingleTurn, &tables);
    assert_eq!(
        (&single["mode"], &single["rank"]),
        (&json!("single"), &json!(32))
    );
    // A critic expects what the actor will be paid.
    let value = told::<ValueSettings>(plain(), Stage::Value, &tables);
    assert_eq!(value["reward"], "ladder");
    let collect = told::<RolloutSettings>(plain(), Stage::Collect, &tables);
    assert_eq!(
        (&collect["policy"], &collect["mode"]),
        (&json!("local:m+a"), &json!("agent"))
    );
    let flat = json!({ "no_agent_loop": true });
    for (stage, found) in [
        (
            Stage::Agentic,
            told::<PpoSettings>(flat.clone(), Stage::Agentic, &tables),
        ),
        (
            Stage::Collect,
            told::<RolloutSettings>(flat, Stage::Collect, &tables),
        ),
    ] {
        assert_eq!(found["mode"], "single", "{stage:?}");
    }
    let raw = json!({ "raw_reward": true });
    // Whatever a file says: a switch is an ablation of it.
    for found in [
        told::<PpoSettings>(raw.clone(), Stage::SingleTurn, &tables),
        told::<ValueSettings>(raw.clone(), Stage::Value, &tables),
        told::<PpoSettings>(raw, Stage::Agentic, &tables),
    ] {
        assert_eq!(found["reward"], "raw");
    }
    let tables: Tables = from_value(json!({ "agentic": { "mode": "single" } })).unwrap();
    let refused = settings(plain()).of_stage::<PpoSettings>(Stage::Agentic, &tables, "m");
    assert_eq!(
        refused.unwrap_err().0.message,
        "[agentic]: `mode` is the pipeline's to decide"
    );
}

#[test]
fn mistakes_of_late_stages_are_told_before_the_first() {
    let tables: Tables = from_value(json!({ "agentic": { "rats": 1 } })).unwrap();
    let failure = settings(json!({})).check(&tables).unwrap_err().0;
    assert_eq!(failure.message, "[agentic]: there is no setting `rats`");
    let failure = settings(json!({})).tasks().unwrap_err().0;
    assert_eq!(
        failure.message,
        "the pipeline needs a teacher's trajectories"
    );
    let failure = settings(json!({ "no_sft": true })).tasks().unwrap_err().0;
    assert_eq!(failure.message, "the pipeline needs tasks");
}

/// Every configuration that comes with the program can be used as it is.
#[test]
fn shipped_configurations_are_whole() {
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Verb {
        #[command(flatten)]
        pipeline: PipelineArgs,
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    for name in ["small.toml", "paper/cuda-agent.toml"] {
        let path = folder.join(name);
        let arguments = ["verb", "--config", path.to_str().unwrap()];
        let args = Verb::try_parse_from(arguments).unwrap().pipeline;
        let resolved = args.config.resolve_stages(&args.settings, &tables());
        let (resolved, tables) = resolved.unwrap();
        resolved.settings.check(&tables).unwrap();
    }
    let study = |name: &str| {
        let text = fs_err::read_to_string(folder.join("paper").join(name)).unwrap();
        toml::from_str::<Map<String, Value>>(&text).unwrap()
    };
    let sft: SftSettings = crate::config::from_table(&study("study-sft.toml"), "study").unwrap();
    assert_eq!(to_value(sft).unwrap()["rank"], 8);
    let grpo = study("study-grpo.toml");
    let grpo: super::super::reinforce::GrpoSettings =
        crate::config::from_table(&grpo, "study").unwrap();
    assert_eq!(to_value(grpo).unwrap()["samples"], 6);
}
