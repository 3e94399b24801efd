//! This machine, as `warpsmith doctor` says it.

use maud::{Markup, html};
use serde_json::Value;

use super::frame::{live, page as framed};

pub(super) fn page(machine: &Value) -> Markup {
    framed(
        "Machine",
        Some("/machine"),
        &live("machine", &shown(machine)),
    )
}

fn shown(value: &Value) -> Markup {
    match value {
        Value::Null => html! { span.quiet { "–" } },
        Value::Bool(yes) => html! { @if *yes { "yes" } @else { "no" } },
        Value::Number(number) => html! { (number) },
        Value::String(text) => html! { (text) },
        Value::Array(items) if items.is_empty() => html! { span.quiet { "none" } },
        Value::Array(items) => html! { ul { @for item in items { li { (shown(item)) } } } },
        Value::Object(fields) => html! {
            dl {
                @for (name, value) in fields {
                    div { dt { (name.replace('_', " ")) } dd { (shown(value)) } }
                }
            }
        },
    }
}
