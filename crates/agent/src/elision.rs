//! Long conversations: old tool output is elided from what the policy is shown, to make room for what is to come.
//!
//! The system prompt, the task, the policy's own replies, the answers to its last calls and the last answers of the compiler
//! and the judge stay. Of the rest the oldest goes first, and a line stands in its place. An elision is never undone, and it
//! takes as much as possible at once: every change has the policy read the whole conversation anew.

use std::borrow::Cow;
use std::collections::BTreeSet;

use warpsmith_schema::{ElidedMessage, Elision, Message};

/// A message that answers calls.
#[derive(Debug, Clone)]
pub(crate) struct ToolMessage {
    pub(crate) message: usize,
    /// Of the tools that were called, in their order.
    pub(crate) tools: Vec<String>,
}

/// Tools that say where the work stands: the last answer of each is kept.
const STATUS_TOOLS: [&str; 3] = ["compile", "verify", "judge"];

/// A shorter answer is not worth the line that says it is gone. The line itself is shorter, so nothing is elided twice.
const MIN_CHARACTERS: usize = 300;
/// The most tools that the line names.
const MAX_NAMED: usize = 6;
const NAME_CHARACTERS: usize = 20;

/// The conversation as the policy is shown it.
pub(crate) fn shown<'a>(messages: &'a [Message], elisions: &[Elision]) -> Cow<'a, [Message]> {
    let mut shown = Cow::Borrowed(messages);
    for left_out in elisions.iter().flat_map(|elision| &elision.elided) {
        if let Some(message) = shown.to_mut().get_mut(left_out.message as usize) {
            replace(message, &left_out.replacement);
        }
    }
    shown
}

/// Everything else about it stays: a call and its answer remain a pair.
fn replace(message: &mut Message, with: &str) {
    match message {
        Message::System { text }
        | Message::User { text }
        | Message::Assistant { text, .. }
        | Message::Tool { text, .. } => with.clone_into(text),
    }
}

/// What to leave out next.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ElisionPlan {
    pub(crate) left_out: Vec<ElidedMessage>,
    pub(crate) freed_tokens: u64,
}

/// The least that brings a conversation, as it is shown, down to `goal` tokens, or else all that may go.
pub(crate) fn plan(shown: &[Message], tool_messages: &[ToolMessage], goal: u64) -> ElisionPlan {
    let kept = kept(shown, tool_messages);
    let excess = size(shown).saturating_sub(goal);
    let mut plan = ElisionPlan::default();
    for (number, answer) in tool_messages.iter().enumerate() {
        if plan.freed_tokens >= excess {
            break;
        }
        let Some(text) = shown.get(answer.message).map(Message::text) else {
            continue;
        };
        let characters = text.chars().count();
        if kept.contains(&number) || characters < MIN_CHARACTERS {
            continue;
        }
        let line = line(&answer.tools, characters);
        plan.freed_tokens += tokens(text).saturating_sub(tokens(&line));
        plan.left_out.push(ElidedMessage {
            message: answer.message as u32,
            replacement: line,
        });
    }
    plan
}

/// Indices into `tool_messages` of those that must stay.
fn kept(shown: &[Message], tool_messages: &[ToolMessage]) -> BTreeSet<usize> {
    let last_reply = shown
        .iter()
        .rposition(|message| matches!(message, Message::Assistant { .. }));
    let newest =
        (0..tool_messages.len()).filter(|&number| Some(tool_messages[number].message) > last_reply);
    let status = STATUS_TOOLS.iter().filter_map(|name| {
        tool_messages
            .iter()
            .rposition(|answer| answer.tools.iter().any(|tool| tool == name))
    });
    newest.chain(status).collect()
}

fn line(tools: &[String], characters: usize) -> String {
    let mut named: Vec<String> = Vec::new();
    for tool in tools {
        // As a policy wrote it: any length is possible where there is no such tool.
        let name: String = tool.chars().take(NAME_CHARACTERS).collect();
        let name = format!("`{name}`");
        if !named.contains(&name) {
            named.push(name);
        }
    }
    if named.len() > MAX_NAMED {
        named.truncate(MAX_NAMED);
        named.push("others".to_owned());
    }
    format!(
        "[left out to save room: {characters} characters that {} gave; call again what you still need]",
        named.join(", ")
    )
}

pub(crate) fn size(messages: &[Message]) -> u64 {
    messages.iter().map(|message| tokens(message.text())).sum()
}

/// A guess: code has about three characters a token.
pub(crate) fn tokens(text: &str) -> u64 {
    text.len() as u64 / 3
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use warpsmith_schema::ToolCall;

    use super::*;

    /// System, task, then a turn for each: the tools called and the characters each gave.
    fn conversation(turns: &[Vec<(&str, usize)>]) -> (Vec<Message>, Vec<ToolMessage>) {
        let words = |text: &str| text.repeat(100);
        let mut messages = vec![
            Message::System {
                text: words("rule "),
            },
            Message::User {
                text: words("task "),
            },
        ];
        let mut tool_messages = Vec::new();
        for (turn, calls) in turns.iter().enumerate() {
            let id = |number: usize| format!("call_{turn}_{number}");
            messages.push(Message::Assistant {
                text: words("word "),
                calls: calls
                    .iter()
                    .enumerate()
                    .map(|(number, (name, _))| ToolCall {
                        id: id(number),
                        name: (*name).to_owned(),
                        arguments: serde_json::Value::Null,
                    })
                    .collect(),
            });
            for (number, (name, characters)) in calls.iter().enumerate() {
                tool_messages.push(ToolMessage {
                    message: messages.len(),
                    tools: vec![(*name).to_owned()],
                });
                messages.push(Message::Tool {
                    call: id(number),
                    name: (*name).to_owned(),
                    text: "x".repeat(*characters),
                    failed: false,
                });
            }
        }
        (messages, tool_messages)
    }

    fn places(plan: &ElisionPlan) -> Vec<u32> {
        plan.left_out.iter().map(|one| one.message).collect()
    }

    fn after(messages: &[Message], plan: ElisionPlan) -> Vec<Message> {
        let elision = Elision {
            turn: 1,
            freed_tokens: plan.freed_tokens,
            elided: plan.left_out,
        };
        shown(messages, &[elision]).into_owned()
    }

    #[test]
    fn the_oldest_goes_first_and_no_more_than_needed() {
        // Messages 3, 5 and 7 are answers, of 1000 tokens each; the rest is 830.
        let one = || vec![("read", 3000)];
        let (messages, tool_messages) = conversation(&[one(), one(), one()]);
        for (goal, expected) in [
            (3830, vec![]),
            (3829, vec![3]),
            (2900, vec![3]),
            (2800, vec![3, 5]),
            (0, vec![3, 5]),
        ] {
            assert_eq!(
                places(&plan(&messages, &tool_messages, goal)),
                expected,
                "{goal}"
            );
        }
    }

    #[test]
    fn short_answers_and_the_last_results_stay() {
        for (turns, expected) in [
            (vec![vec![("write", 40)], vec![("bash", 40)]], vec![]),
            // Of two judgements the first goes; the answers to the last calls stay, all of them.
            (
                vec![
                    vec![("judge", 900), ("read", 900)],
                    vec![("compile", 900), ("judge", 900)],
                    vec![("verify", 900)],
                    vec![("read", 900), ("read", 900)],
                ],
                vec![3, 4],
            ),
            (vec![vec![("profile", 900)], vec![("glob", 900)]], vec![3]),
        ] {
            let (messages, tool_messages) = conversation(&turns);
            assert_eq!(
                places(&plan(&messages, &tool_messages, 0)),
                expected,
                "{turns:?}"
            );
        }
    }

    #[test]
    fn the_line_says_what_was_there() {
        let (messages, mut tool_messages) =
            conversation(&[vec![("read", 3120)], vec![("read", 10)]]);
        let line = |tool_messages: &[ToolMessage]| {
            plan(&messages, tool_messages, 0)
                .left_out
                .remove(0)
                .replacement
        };
        assert_eq!(
            line(&tool_messages),
            "[left out to save room: 3120 characters that `read` gave; call again what you still need]"
        );
        // One message for several calls, as models without an interface for tools get it.
        tool_messages[0].tools = ["write", "bash", "write"].map(str::to_owned).to_vec();
        assert!(line(&tool_messages).contains("that `write`, `bash` gave"));
        tool_messages[0].tools = (0..50)
            .map(|number| format!("{number}{}", "é".repeat(99)))
            .collect();
        assert!(line(&tool_messages).chars().count() < MIN_CHARACTERS);
    }

    #[test]
    fn only_tool_messages_are_left_out() {
        let (messages, tool_messages) = conversation(&[vec![("read", 3000)], vec![("bash", 3000)]]);
        let short = after(&messages, plan(&messages, &tool_messages, 0));
        assert_eq!(short.len(), messages.len());
        for (before, after) in messages.iter().zip(&short) {
            match (before, after) {
                (
                    Message::Tool { call, name, .. },
                    Message::Tool {
                        call: same_call,
                        name: same_name,
                        ..
                    },
                ) => {
                    assert_eq!((call, name), (same_call, same_name));
                }
                _ => assert_eq!(before, after),
            }
        }
    }

    const TOOLS: [&str; 5] = ["read", "bash", "compile", "judge", "write"];

    fn turns() -> impl Strategy<Value = Vec<Vec<(&'static str, usize)>>> {
        let call = (0..TOOLS.len(), 0_usize..6000).prop_map(|(tool, size)| (TOOLS[tool], size));
        prop::collection::vec(prop::collection::vec(call, 0..4), 0..10)
    }

    proptest! {
        #[test]
        fn the_goal_is_met_where_possible(turns in turns(), goal in 0_u64..20_000) {
            let (messages, tool_messages) = conversation(&turns);
            let found = plan(&messages, &tool_messages, goal);
            let (places, freed) = (places(&found), found.freed_tokens);
            prop_assert!(places.is_sorted());
            let short = after(&messages, found);
            prop_assert_eq!(size(&messages) - size(&short), freed);
            let least = after(&messages, plan(&messages, &tool_messages, 0));
            prop_assert!(size(&short) <= goal.max(size(&least)));
            if size(&messages) <= goal {
                prop_assert!(places.is_empty());
            }
            // Once more changes nothing.
            prop_assert_eq!(plan(&short, &tool_messages, goal), ElisionPlan::default());
            prop_assert_eq!(plan(&least, &tool_messages, 0), ElisionPlan::default());
        }
    }
}
