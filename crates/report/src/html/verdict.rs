//! A verdict and what stands behind it.

use maud::{Markup, html};
use serde::Serialize;
use serde_json::Value;
use warpsmith_schema::{Precision, TrustCheck, Verdict};

use crate::page::{count, fact, runtime, times};

/// In one line.
pub fn line(verdict: &Verdict) -> Markup {
    let first = verdict
        .reason
        .as_deref()
        .and_then(|reason| reason.lines().next());
    html! {
        (status(verdict))
        @if let Some(times) = &verdict.times_us { ", " (runtime(Some(times.candidate.0))) }
        @if let Some(reason) = first { span.quiet { " " (reason) } }
    }
}

/// The same without markup, with the speed-up that its own precision class has.
pub fn words(verdict: &Verdict) -> String {
    let mut words = vec![verdict.status.name().to_owned()];
    if let Some(found) = &verdict.times_us {
        words.push(runtime(Some(found.candidate.0)));
    }
    if let Some(matched) = &verdict.matched_precision {
        words.push(format!(
            "{} over eager",
            times(Some(matched.speedup.eager.0))
        ));
        if let Some(compile) = matched.speedup.compile {
            words.push(format!("{} over torch.compile", times(Some(compile.0))));
        }
    }
    words.join(", ")
}

fn status(verdict: &Verdict) -> Markup {
    html! {
        @if verdict.passed() { span.good { (verdict.status.name()) } } @else { span.bad { (verdict.status.name()) } }
    }
}

/// The word that JSON has.
fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    }
}

pub fn verdict(verdict: &Verdict) -> Markup {
    let over = |us: Option<f64>, ratio: Option<f64>| html! { (runtime(us)) ", " (times(ratio)) };
    html! {
        dl {
            (fact("verdict", &status(verdict)))
            @if let Some(rule) = &verdict.rule { (fact("rule", &html! { (word(rule)) })) }
            @if let (Some(found), Some(speedup)) = (&verdict.times_us, &verdict.speedup) {
                (fact("runtime", &html! {
                    (runtime(Some(found.candidate.0))) " ± " (format!("{:.1} %", 100.0 * found.spread.0))
                    " over " (found.samples) " calls"
                }))
                (fact("eager, speed-up", &over(Some(found.eager.0), Some(speedup.eager.0))))
                @let compile = (found.compile.map(|us| us.0), speedup.compile.map(|ratio| ratio.0));
                (fact("torch.compile, speed-up", &over(compile.0, compile.1)))
            }
            @if let Some(matched) = &verdict.matched_precision {
                @if matched.mode == Precision::Tf32 {
                    (fact("against eager in TF32", &over(Some(matched.eager_us.0), Some(matched.speedup.eager.0))))
                }
            }
            @if let Some(numerics) = &verdict.numerics {
                (fact("error against float64", &html! {
                    (format!("{:.1e}, eager {:.1e}", numerics.candidate_vs_fp64.0, numerics.eager_vs_fp64.0))
                }))
            }
            @let seconds = &verdict.seconds;
            (fact("seconds", &html! {
                (format!("compile {:.1}, verify {:.1}, time {:.1}", seconds.compile, seconds.verify, seconds.time))
            }))
        }
        @if let Some(reason) = &verdict.reason { pre.said tabindex="0" role="group" aria-label="reason" { (reason) } }
        @for note in &verdict.notes { p.note { strong { "Note: " } (note) } }
        @for caution in cautions(verdict) { p.note { strong { "Caution: " } (caution) } }
        (checks(verdict))
        @if let Some(evidence) = &verdict.evidence {
            p { "Evidence, to be judged again: " code { "warpsmith replay " (evidence) } }
        }
    }
}

/// What the judge looked at, and what held the candidate.
fn checks(verdict: &Verdict) -> Markup {
    let checks = &verdict.trust.checks;
    let held = checks
        .values()
        .filter(|check| **check == TrustCheck::Held)
        .count();
    let protections = verdict.isolation.iter().flatten();
    html! {
        details {
            summary { (held) " of " (count(checks.len(), "check")) " held" }
            ul {
                @for (name, check) in checks { li { (name) ": " (word(check).replace('_', " ")) } }
                @for (name, by) in protections { li { "protection " (name) ": " (by) } }
            }
        }
    }
}

/// What a reader of the numbers should not overlook.
fn cautions(verdict: &Verdict) -> Vec<&'static str> {
    let trust = &verdict.trust;
    let uncontained = verdict.isolation.is_some() && !trust.contained;
    let all = [
        (uncontained, "a required protection was missing"),
        (
            trust.degenerate_inputs,
            "the task's own inputs let a trivial answer pass; only transformed inputs told it apart",
        ),
        (
            trust.deferred_work,
            "work was batched or put off between calls; the single-call time counts",
        ),
    ];
    all.into_iter()
        .filter(|(applies, _)| *applies)
        .map(|(_, caution)| caution)
        .collect()
}
