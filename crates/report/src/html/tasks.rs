use maud::{Markup, html};
use warpsmith_schema::Attempt;

use super::{shown, verdict};
use crate::metrics::EpisodeMetrics;
use crate::page::{anchor, code, count, line_diff, times};
use crate::tables::tasks as table;
use crate::{Report, TaskReport};

/// The anchor of a task.
pub(super) fn place(id: &str) -> String {
    format!("task-{}", anchor(id))
}

pub(super) fn tasks(report: &Report<'_>) -> Markup {
    html! {
        (shown(&table(report)))
        @for task in report.by_task() {
            details {
                summary {
                    strong { (task.title) }
                    @for cell in &task.cells { " · " (in_a_word(*cell)) }
                }
                // Within, not on the whole: a link to what is hidden opens it.
                div id=(place(task.id)) {
                    @for (run, cell) in report.runs.iter().zip(&task.cells) {
                        @if let Some(task) = cell {
                            @if report.runs.len() > 1 { h3 { (run.name) } }
                            (of_run(task))
                        }
                    }
                }
            }
        }
    }
}

fn in_a_word(task: Option<&TaskReport<'_>>) -> Markup {
    html! {
        @match task {
            None => span.quiet { "not in this run" },
            Some(task) => @match (task.status, task.speedup_eager) {
                (_, Some(_)) => span.good { "passed, " (times(task.speedup_eager)) " over eager" },
                (Some(status), None) => span.bad { (status) },
                (None, None) => span.quiet { "nothing judged" },
            },
        }
    }
}

fn of_run(task: &TaskReport<'_>) -> Markup {
    let trajectory = task.best.trajectory;
    html! {
        @match task.best.attempt {
            None => p { "The policy gave nothing that could be judged." },
            Some(attempt) => {
                (verdict::verdict(&attempt.verdict))
                (sources(attempt))
            },
        }
        details {
            summary { "The original, " code { "model.py" } }
            (code("model.py", &trajectory.task.source))
        }
        @if trajectory.attempts.len() > 1 {
            p.label { "Attempts" }
            ol {
                @for attempt in &trajectory.attempts {
                    li { (verdict::line(&attempt.verdict)) }
                }
            }
            @for (number, pair) in trajectory.attempts.windows(2).enumerate() {
                (step(number + 1, &pair[0], &pair[1]))
            }
        }
        @if task.samples > 1 {
            p.label { "Samples" }
            p { (task.correct) " of " (task.samples) " correct; shown above is sample " (task.sample) "." }
            ul {
                @for episode in &task.episodes {
                    li { "Sample " (episode.trajectory.sample) ": " (sample(episode)) }
                }
            }
        }
    }
}

fn sample(episode: &EpisodeMetrics<'_>) -> Markup {
    let attempts = count(episode.trajectory.attempts.len(), "attempt");
    html! {
        @match episode.attempt {
            None => "nothing judged",
            Some(attempt) => (verdict::line(&attempt.verdict)),
        }
        span.quiet { " (" (attempts) ")" }
    }
}

fn sources(attempt: &Attempt) -> Markup {
    html! {
        @for (name, content) in &attempt.files {
            details {
                summary { code { (name) } ", " (count(content.lines().count(), "line")) }
                (code(name, content))
            }
        }
    }
}

/// What changed from one attempt to the next, file by file.
fn step(number: usize, before: &Attempt, after: &Attempt) -> Markup {
    let names: std::collections::BTreeSet<&String> =
        before.files.keys().chain(after.files.keys()).collect();
    let text =
        |attempt: &'_ Attempt, name: &String| attempt.files.get(name).cloned().unwrap_or_default();
    html! {
        details {
            summary { "Attempt " (number) " to " (number + 1) }
            @for name in names {
                @let (old, new) = (text(before, name), text(after, name));
                @let changes = line_diff(&old, &new);
                @if old == new {
                    p { code { (name) } " is the same." }
                } @else {
                    p { code { (name) } ": " (changes.added()) " added, " (changes.removed()) " removed" }
                    (changes)
                }
            }
        }
    }
}
