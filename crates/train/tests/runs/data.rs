//! From trajectories to what is learnt from.

use warpsmith_schema::{EVENT_FORMAT, Event, EventKind};

use super::*;

#[test]
fn examples_are_the_tokens_that_were_sampled_where_they_are_this_models() {
    let tiny = Tiny::new();
    let codec = ChatCodec::open(&tiny.path(), None).unwrap();
    let of = |trajectory: &Trajectory, max_tokens, too_long| {
        Examples {
            codec: &codec,
            tools: &[],
            replies: TrainedReplies::All,
            max_tokens,
            too_long,
        }
        .of(trajectory)
        .unwrap()
    };
    let mut trajectory = trajectory(1);
    let rendered = of(&trajectory, 256, TooLong::Drop).unwrap();
    let text = codec
        .tokenizer()
        .decode(rendered.sequences[0].tokens())
        .unwrap();
    assert!(text.contains("Once more, 1."), "{text}");
    let said: Vec<u32> = rendered.sequences[0]
        .loss_positions()
        .iter()
        .map(|place| rendered.sequences[0].tokens()[*place])
        .collect();
    let reply = codec.tokenizer().encode("int int x;<|im_end|>").unwrap();
    assert_eq!(said, [reply.clone(), reply].concat());

    let origin = codec.origin().clone();
    let mut record = TokenRecord {
        ids: vec![1, 2, 3, 4],
        logprobs: vec![None, Some(-0.5), None, Some(-2.0)],
        loss_mask: vec![false, true, false, true],
        replies: vec![1, 3],
        template: Some(origin.template.clone()),
        tokenizer: Some(origin.tokenizer.clone()),
    };
    trajectory.tokens = Some(vec![record.clone()]);
    let recorded = of(&trajectory, 256, TooLong::Drop).unwrap();
    assert_eq!(recorded.sequences[0].tokens(), [1, 2, 3, 4]);
    assert_eq!(recorded.sequences[0].loss_positions(), [1, 3]);
    assert_eq!(of(&trajectory, 3, TooLong::Drop), None);
    let cut = of(&trajectory, 3, TooLong::Cut).unwrap();
    assert_eq!(cut.sequences[0].loss_positions(), [1]);

    // Reinforcement wants the record, and of this model.
    let reward_rule = RewardRule {
        kind: RewardKind::Ladder,
        counts: CountedAttempt::Best,
    };
    let episode =
        |trajectory: &Trajectory| TokenEpisode::of(trajectory, &reward_rule, &codec, "tiny");
    let found = episode(&trajectory).unwrap().unwrap();
    assert_eq!(found.tokens.sampled, [-0.5, -2.0]);
    // The last token does not end a reply.
    assert!(found.cut);
    assert_eq!(found.reward, -1.0);
    record.tokenizer = Some("another".into());
    trajectory.tokens = Some(vec![record]);
    assert_eq!(of(&trajectory, 256, TooLong::Drop), Some(rendered));
    assert_eq!(
        episode(&trajectory).unwrap_err().to_string(),
        "the tokens of task 1, sample 1 are not those of `tiny`"
    );
    trajectory.tokens = None;
    let error = episode(&trajectory).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the trajectory of task 1, sample 1 has no record of its tokens"
    );
    assert!(error.hint().unwrap().contains("`local:` policy"));
}

/// Three replies, of which the first was judged wrong, the second right and the third made nothing better: only the second is
/// learnt, and what came before it is read. So it is with and without a record of tokens.
#[test]
fn only_the_solution_and_what_led_to_it_is_trained() {
    let tiny = Tiny::new();
    let codec = ChatCodec::open(&tiny.path(), None).unwrap();
    let solution = TrainedReplies::Solution(CountedAttempt::Best);
    let of = |replies, trajectory: &Trajectory| {
        let examples = Examples {
            replies,
            ..maker(&codec)
        };
        examples.of(trajectory)
    };
    let mut trajectory = trajectory(1);
    let add = |trajectory: &mut Trajectory, user: &str, reply: &str| {
        trajectory
            .messages
            .push(Message::User { text: user.into() });
        trajectory.messages.push(Message::Assistant {
            text: reply.into(),
            calls: Vec::new(),
        });
    };
    trajectory.messages.clear();
    add(&mut trajectory, "Write.", "void;");
    add(&mut trajectory, "It is wrong.", "int x;");
    add(&mut trajectory, "It is right.", "float;");
    let attempt = |message, passed| Attempt {
        message,
        files: BTreeMap::new(),
        verdict: verdict(passed),
    };
    trajectory.attempts = vec![attempt(1, false), attempt(3, true), attempt(5, false)];
    trajectory.best = Some(1);
    let said = |example: &Example| -> String {
        let tokens = example.sequences.iter().flat_map(|one| {
            let places = one.loss_positions().iter();
            places.map(|place| one.tokens()[*place]).collect::<Vec<_>>()
        });
        codec
            .tokenizer()
            .decode(&tokens.collect::<Vec<_>>())
            .unwrap()
    };
    let read = |example: &Example| {
        let tokens = example.sequences[0].tokens();
        codec.tokenizer().decode(tokens).unwrap()
    };
    let all = of(TrainedReplies::All, &trajectory).unwrap().unwrap();
    // The first failed and was corrected: it is read.
    assert_eq!(said(&all).replace("<|im_end|>", ""), "int x;float;");
    assert!(read(&all).contains("void;"));
    let trained = of(solution, &trajectory).unwrap().unwrap();
    assert_eq!(said(&trained).replace("<|im_end|>", ""), "int x;");
    assert!(read(&trained).contains("void;") && !read(&trained).contains("right"));

    let origin = codec.origin().clone();
    trajectory.tokens = Some(vec![TokenRecord {
        ids: vec![1, 2, 3, 4, 5, 6, 7, 8],
        logprobs: vec![None; 8],
        loss_mask: [0, 1, 0, 1, 1, 0, 1, 0].map(|one| one == 1).to_vec(),
        replies: vec![1, 3, 5],
        template: Some(origin.template.clone()),
        tokenizer: Some(origin.tokenizer.clone()),
    }]);
    let trained = of(solution, &trajectory).unwrap().unwrap();
    assert_eq!(trained.sequences[0].tokens(), [1, 2, 3, 4, 5]);
    assert_eq!(trained.sequences[0].loss_positions(), [3, 4]);
    // A reply that led there and was not judged is learnt too.
    trajectory.attempts.remove(0);
    trajectory.best = Some(0);
    let trained = of(solution, &trajectory).unwrap().unwrap();
    assert_eq!(trained.sequences[0].loss_positions(), [1, 3, 4]);
    for record in trajectory.tokens.iter_mut().flatten() {
        record.replies.pop();
    }
    let error = of(solution, &trajectory).unwrap_err();
    assert!(error.to_string().ends_with("does not add up"), "{error}");
}

#[test]
fn rewards_are_those_of_the_attempt_that_counts_and_failures_of_ours_are_none() {
    let mut trajectory = trajectory(1);
    let attempt = |passed| Attempt {
        message: 1,
        files: BTreeMap::new(),
        verdict: verdict(passed),
    };
    trajectory.attempts = vec![attempt(true), attempt(false)];
    trajectory.best = Some(0);
    let of = |trajectory: &Trajectory, kind, counts| RewardRule { kind, counts }.reward(trajectory);
    assert_eq!(
        of(&trajectory, RewardKind::Robust, CountedAttempt::Best),
        Some(1.0)
    );
    assert_eq!(
        of(&trajectory, RewardKind::Ladder, CountedAttempt::Final),
        Some(-0.5)
    );
    trajectory.attempts.clear();
    trajectory.best = None;
    assert_eq!(
        of(&trajectory, RewardKind::Robust, CountedAttempt::Best),
        Some(-1.0)
    );
    assert_eq!(
        of(&trajectory, RewardKind::Raw, CountedAttempt::Best),
        Some(0.0)
    );
    trajectory.ending = EpisodeEnding::PolicyFailed {
        message: "gone".into(),
    };
    assert_eq!(
        of(&trajectory, RewardKind::Robust, CountedAttempt::Best),
        None
    );
}

/// A line of a run's event log.
fn ended(trajectory: &Trajectory) -> String {
    let trajectory = Box::new(trajectory.clone());
    let event = Event {
        format: EVENT_FORMAT,
        at: "2026-01-01T00:00:00Z".into(),
        event: EventKind::EpisodeEnded { trajectory },
    };
    serde_json::to_string(&event).unwrap()
}

#[test]
fn trajectories_are_read_from_files_and_runs_and_forgeable_verdicts_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trajectories.jsonl");
    let line = |trajectory: &Trajectory| serde_json::to_string(trajectory).unwrap() + "\n";
    let mut fine = trajectory(1);
    fine.attempts = vec![Attempt {
        message: 1,
        files: BTreeMap::new(),
        verdict: verdict(false),
    }];
    fs_err::write(&file, line(&fine) + &line(&trajectory(2))).unwrap();
    let run = tempfile::tempdir().unwrap();
    let events = ended(&fine) + "\n" + &ended(&trajectory(2)) + "\n";
    fs_err::write(run.path().join("events.jsonl"), events).unwrap();
    for path in [run.path(), &file] {
        let found = read_trajectories(path).unwrap();
        assert_eq!(found, [fine.clone(), trajectory(2)]);
    }
    fine.attempts[0].verdict.isolation = Some(BTreeMap::new());
    fs_err::write(&file, line(&fine)).unwrap();
    assert_eq!(
        read_trajectories(&file).unwrap_err().to_string(),
        "a verdict on task 1, sample 1 was given without the required protections"
    );
    fine.attempts[0].verdict.trust.contained = true;
    fs_err::write(&file, line(&fine)).unwrap();
    assert_eq!(read_trajectories(&file).unwrap().len(), 1);
    assert!(read_trajectories(&folder.path().join("nowhere")).is_err());
}

#[test]
fn a_file_with_something_else_is_told_from_a_torn_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trajectories.jsonl");
    let whole = serde_json::to_string(&trajectory(1)).unwrap();
    let second = serde_json::to_string(&trajectory(2)).unwrap();
    let refused = |text: &str| {
        fs_err::write(&file, text).unwrap();
        let error = read_trajectories(&file).unwrap_err();
        (error.to_string(), error.hint().unwrap())
    };
    let shown = file.display();
    for (text, line) in [
        ("{\"name\": \"a\", \"code\": \"\"}\n".to_owned(), 1),
        ("\0\u{1}\u{2}".to_owned(), 1),
        (format!("{whole}\n\n{}", &second[..second.len() / 2]), 3),
    ] {
        let (message, hint) = refused(&text);
        assert_eq!(message, format!("{shown}:{line}: not a trajectory"));
        assert!(hint.contains("train demos"), "{hint}");
    }
    // In a run's folder that is what a crash leaves.
    let run = tempfile::tempdir().unwrap();
    let (first, torn) = (ended(&trajectory(1)), ended(&trajectory(2)));
    let events = format!("{first}\n{}", &torn[..torn.len() / 2]);
    fs_err::write(run.path().join("events.jsonl"), events).unwrap();
    assert_eq!(read_trajectories(run.path()).unwrap(), [trajectory(1)]);
    let mut later = trajectory(1);
    later.format += 1;
    let (message, _) = refused(&serde_json::to_string(&later).unwrap());
    assert!(message.contains("a trajectory of format"), "{message}");
    // Nobody need end the last line.
    fs_err::write(&file, format!("{whole}\n{second}")).unwrap();
    assert_eq!(
        read_trajectories(&file).unwrap(),
        [trajectory(1), trajectory(2)]
    );
}

#[test]
fn many_are_read_at_once_and_keep_their_order() {
    let tiny = Tiny::new();
    let codec = ChatCodec::open(&tiny.path(), None).unwrap();
    let examples = maker(&codec);
    let trajectories: Vec<Trajectory> = (1..=9).map(trajectory).collect();
    let one_by_one = trajectories
        .iter()
        .filter_map(|one| examples.of(one).unwrap());
    let all = examples.of_all(&trajectories.iter().collect::<Vec<_>>());
    assert_eq!(all.unwrap(), one_by_one.collect::<Vec<_>>());
    assert_eq!(examples.of_all(&[]).unwrap(), []);
}
