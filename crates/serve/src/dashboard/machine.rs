//! This machine, as `warpsmith doctor` says it, and what its GPUs do now.

use maud::{Markup, html};
use serde_json::Value;

use super::frame::{live, page as framed};
use warpsmith_report::page::fact;

pub(super) fn page(machine: &Value) -> Markup {
    let parts = machine.as_object().into_iter().flatten();
    let body = html! {
        @for (name, value) in parts {
            section aria-label=(words(name)) {
                h2 { (words(name)) }
                (part(value))
            }
        }
    };
    framed("Machine", Some("/machine"), &live("machine", &body))
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}

fn part(value: &Value) -> Markup {
    match value {
        Value::Object(fields) => html! {
            dl { @for (name, value) in fields { (fact(&words(name), &html! { (line(value)) })) } }
        },
        Value::Array(items) if items.iter().any(Value::is_object) => html! {
            @for item in items { (part(item)) }
        },
        other => html! { p { (line(other)) } },
    }
}

/// Everything that a value holds, in one line.
fn line(value: &Value) -> String {
    let joined = |items: Vec<String>| {
        if items.is_empty() {
            "none".to_owned()
        } else {
            items.join(", ")
        }
    };
    match value {
        Value::Null => "–".to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) => joined(items.iter().map(line).collect()),
        Value::Object(fields) => joined(
            fields
                .iter()
                .map(|(name, value)| format!("{} {}", words(name), line(value)))
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whatever_there_is_is_shown() {
        let machine = json!({
            "gpus_now": [], "cpu": { "cores": 2, "name": "<b>" }, "isolation": { "cgroup": { "by": "v2", "state": "held" } },
            "advice": [{ "missing": "GPU" }],
        });
        let page = page(&machine).into_string();
        for shown in [
            "gpus now",
            "none",
            "&lt;b&gt;",
            "by v2, state held",
            "missing",
        ] {
            assert!(page.contains(shown), "{shown}");
        }
    }
}
