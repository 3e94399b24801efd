use warpsmith_model::policy::{Policy, PolicyError, PolicyRequest, SamplingParams, ScriptPolicy};

fn request() -> PolicyRequest<'static> {
    PolicyRequest {
        messages: &[],
        tools: &[],
        sampling: SamplingParams::default(),
    }
}

#[test]
fn a_script_says_its_lines_and_then_that_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines.jsonl");
    fs_err::write(&path, "{\"text\": \"one\"}\n\n{\"text\": \"two\"}\n").unwrap();
    let mut script = ScriptPolicy::open(&path).unwrap();
    let mut shown = String::new();
    for expected in ["one", "two"] {
        let reply = script
            .reply(&request(), &mut |text| shown.push_str(text))
            .unwrap();
        assert_eq!(reply.text, expected);
    }
    assert_eq!(shown, "onetwo");
    let error = script.reply(&request(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, PolicyError::ScriptEnded { number: 3, .. }));
}

#[test]
fn a_mistake_in_any_line_shows_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines.jsonl");
    fs_err::write(&path, "{\"text\": \"one\"}\n{\"txt\": 1}\n").unwrap();
    let error = ScriptPolicy::open(&path).unwrap_err();
    assert!(error.to_string().starts_with("line 2"), "{error}");
}
