//! This machine for people: what it is, what its GPUs do now, what is missing and what to do about it.

use maud::{Markup, html};
use serde_json::Value;
use warpsmith_schema::RunMetrics;

use super::frame::{columns, encoded, live, page as framed};
use super::shelf::{Doing, Shelf};
use warpsmith_report::page::{UNKNOWN, count, duration, fact, percent, table};

pub(super) fn page(shelf: &Shelf, machine: &Value) -> Markup {
    let mut busy: Vec<(String, RunMetrics)> = Vec::new();
    for name in shelf.names() {
        let found = shelf.look(&name, |run| {
            let running = run.doing() == Doing::Running;
            run.index.metrics.filter(|_| running)
        });
        busy.extend(found.flatten().map(|metrics| (name, metrics)));
    }
    let body = html! {
        (now(machine, &busy))
        (parts(machine))
        (missing(machine))
        (isolation(machine))
        details {
            summary { "Everything, as " code { "warpsmith doctor --json" } " says it" }
            @for (name, value) in machine.as_object().into_iter().flatten() {
                section aria-label=(words(name)) { h3 { (words(name)) } (part(value)) }
            }
        }
    };
    framed("Machine", Some("/machine"), &live("machine", &body))
}

/// GPUs, judges and queues at this moment.
fn now(machine: &Value, busy: &[(String, RunMetrics)]) -> Markup {
    let empty = Vec::new();
    let gpus = machine["gpus_now"].as_array().unwrap_or(&empty);
    let described = machine["gpus"].as_array().unwrap_or(&empty);
    let number = |value: &Value, unit: &str| match value.as_f64() {
        Some(number) => format!("{number:.0} {unit}"),
        None => UNKNOWN.to_owned(),
    };
    let rows: Vec<Vec<Markup>> = gpus
        .iter()
        .enumerate()
        .map(|(place, gpu)| {
            let about = described.get(place).unwrap_or(&Value::Null);
            let gpu = &gpu["now"];
            vec![
                html! { (place) ": " (about["name"].as_str().unwrap_or("GPU")) },
                html! {
                    (number(&gpu["utilization_percent"], "%"))
                    @if let Some(share) = gpu["utilization_percent"].as_f64() { " " meter min="0" max="100" value=(share) aria-label="busy" {} }
                },
                html! { (bytes(&about["memory_bytes"])) },
                html! { (number(&gpu["sm_mhz"], "MHz")) },
                html! { (number(&gpu["temperature_c"], "°C")) },
                html! { (number(&gpu["power_w"], "W")) },
            ]
        })
        .collect();
    let runs: Vec<Vec<Markup>> = busy
        .iter()
        .map(|(name, metrics)| {
            vec![
                html! { a href={ "/runs/" (encoded(name)) } { (name) } },
                html! { (metrics.episodes_running) },
                html! { (metrics.asking) },
                html! { (metrics.judge_queue) },
                html! { (duration(Some(metrics.judge_wait_seconds))) },
                html! { (format!("{:.1}", metrics.judgements_per_minute)) },
                html! { (percent(Some(metrics.judges_busy))) },
                html! { (percent(Some(metrics.device_leased))) },
                html! { (percent(metrics.device_busy)) },
            ]
        })
        .collect();
    let gpu_columns = ["GPU", "busy", "memory", "clock", "temperature", "power"];
    let run_columns = [
        "run",
        "episodes",
        "asking",
        "waiting for a judge",
        "mean wait",
        "judgements a minute",
        "judges busy",
        "device leased",
        "device busy",
    ];
    html! {
        h2 { "Now" }
        @if rows.is_empty() { p { "No GPU: kernels are written in C++ and timed on the processor." } }
        @else { (table("GPUs", &columns(&gpu_columns, &["GPU"]), &rows)) }
        @if runs.is_empty() { p { "No run of this folder is under way: judges and queue are idle." } }
        @else { (table("Judges and queues of the runs under way", &columns(&run_columns, &["run"]), &runs)) }
    }
}

fn parts(machine: &Value) -> Markup {
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| "none".to_owned(), str::to_owned)
    };
    let python = &machine["python"];
    let empty = Vec::new();
    let models = machine["models"].as_array().unwrap_or(&empty);
    html! {
        h2 { "What it is" }
        dl {
            (fact("processor", &html! { (text(&machine["cpu"]["name"])) ", " (line(&machine["cpu"]["cores"])) " cores, " (line(&machine["cpu"]["vector"])) }))
            (fact("memory", &html! { (bytes(&machine["memory_bytes"])) }))
            (fact("disk", &html! { (bytes(&machine["disk"]["free_bytes"])) " free at " code { (line(&machine["disk"]["cache"])) } }))
            (fact("C++ compiler", &html! { (text(&machine["cxx"]["version"])) }))
            (fact("nvcc", &html! { (text(&machine["nvcc"]["version"])) }))
            (fact("Python", &html! { (text(&python["version"])) }))
            (fact("PyTorch", &html! { (text(&python["torch"]["version"])) }))
            @if machine.get("models").is_some() {
                (fact("models", &html! { @if models.is_empty() { "none" } @for model in models { div { (line(model)) } } }))
            }
        }
    }
}

fn missing(machine: &Value) -> Markup {
    let empty = Vec::new();
    let advice = machine["advice"].as_array().unwrap_or(&empty);
    html! {
        @if !advice.is_empty() {
            h2 { "What is missing" }
            @for one in advice {
                p { strong { (line(&one["missing"])) } ": " (line(&one["consequence"])) ". What to do: " (line(&one["what_to_do"])) "." }
            }
        }
    }
}

fn isolation(machine: &Value) -> Markup {
    let protections = machine["isolation"].as_object();
    let protections: Vec<(&String, &Value)> = protections.into_iter().flatten().collect();
    let held = |value: &Value| value["state"] == "held";
    let holding = protections.iter().filter(|(_, value)| held(value)).count();
    html! {
        @if !protections.is_empty() {
            h2 { "Isolation" }
            details open[holding < protections.len()] {
                summary { (holding) " of " (count(protections.len(), "protection")) " held" }
                ul {
                    @for (name, value) in protections {
                        li {
                            @if held(value) { span.good { "✓ held" } } @else { span.bad { "✗ missing" } }
                            " " (words(name)) ": " (line(if held(value) { &value["by"] } else { &value["why"] }))
                        }
                    }
                }
            }
        }
    }
}

/// `25.3 GB`
fn bytes(value: &Value) -> String {
    value.as_f64().map_or_else(
        || UNKNOWN.to_owned(),
        |bytes| format!("{:.1} GB", bytes / 1e9),
    )
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
        Value::Null => UNKNOWN.to_owned(),
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
    fn whatever_there_is_is_shown_for_people() {
        let machine = json!({
            "gpus_now": [{ "gpu": 0, "now": { "utilization_percent": 40.0, "sm_mhz": 1980, "temperature_c": 51.0, "power_w": null } }],
            "gpus": [{ "name": "H200", "memory_bytes": 150e9 }],
            "cpu": { "cores": 2, "name": "<b>", "vector": "avx512" }, "memory_bytes": 25_276_514_304_u64,
            "isolation": { "cgroup": { "by": "v2", "state": "held" }, "network": { "why": "no namespace", "state": "missing" } },
            "advice": [{ "missing": "nvcc", "consequence": "nothing compiles", "what_to_do": "install it" }],
        });
        let runs = tempfile::tempdir().unwrap();
        let page = page(&Shelf::new(runs.path().to_path_buf()), &machine).into_string();
        for shown in [
            "0: H200",
            "40 %",
            "150.0 GB",
            "51 °C",
            "&lt;b&gt;, 2 cores, avx512",
            "25.3 GB",
            "✓ held",
            "✗ missing",
            "no namespace",
            "1 of 2 protections held",
            "nothing compiles. What to do: install it.",
            "No run of this folder is under way",
        ] {
            assert!(page.contains(shown), "{shown}: {page}");
        }
    }
}
