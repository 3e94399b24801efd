//! A verdict and what stands behind it.

use maud::{Markup, html};
use serde::Serialize;
use serde_json::Value;
use warpsmith_schema::{Precision, Status, TrustCheck, Verdict};

use crate::page::{Column, count, fact, runtime, table, times};

/// In one line.
pub fn line(verdict: &Verdict) -> Markup {
    // Not the file and the function that the compiler is about to speak of.
    let lines = || verdict.reason.iter().flat_map(|reason| reason.lines());
    let error = lines().find(|line| line.contains("error:"));
    let first = error.or(lines().find(|line| !line.starts_with("== ")));
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

/// What the judge looked at, on which inputs, and what held the candidate.
fn checks(verdict: &Verdict) -> Markup {
    let trust = &verdict.trust;
    let held = trust
        .checks
        .values()
        .filter(|check| **check == TrustCheck::Held)
        .count();
    let columns = |first, second| [first, second].map(|name| Column { name, words: true });
    let checks = trust.checks.iter().map(|(name, check)| {
        let (class, sign) = match check {
            TrustCheck::Held => (Some("good"), "✓ "),
            TrustCheck::Failed => (Some("bad"), "✗ "),
            TrustCheck::NotReached => (None, ""),
        };
        let outcome = html! { span class=[class] { (sign) (word(check).replace('_', " ")) } };
        vec![html! { (name.replace('_', " ")) }, outcome]
    });
    let checks: Vec<Vec<Markup>> = checks.collect();
    // Nothing is drawn after the first draw that differs.
    let differs = verdict.status == Status::Mismatch;
    let draws = trust.draws.iter().enumerate().map(|(number, name)| {
        let outcome = if differs && number + 1 == trust.draws.len() {
            html! { span.bad { "✗ differs" } }
        } else if verdict.status == Status::Passed || differs {
            html! { span.good { "✓ agrees" } }
        } else {
            html! { "checked" }
        };
        vec![
            html! { (number + 1) ": " (name.replace('_', " ")) },
            outcome,
        ]
    });
    let draws: Vec<Vec<Markup>> = draws.collect();
    let protections = verdict.isolation.iter().flatten();
    let protections: Vec<Vec<Markup>> = protections
        .map(|(name, by)| vec![html! { (name.replace('_', " ")) }, html! { (by) }])
        .collect();
    let left = trust
        .checks
        .values()
        .filter(|check| **check == TrustCheck::NotReached)
        .count();
    html! {
        details {
            summary {
                @if checks.is_empty() { "What held the candidate" } @else {
                    (held) " of " (count(checks.len(), "check")) " held"
                    @if left > 0 { ", " (left) " not reached" }
                    ", " (count(draws.len(), "draw")) " of inputs"
                }
            }
            div.tables {
                @if !checks.is_empty() { (table("Checks", &columns("check", "outcome"), &checks)) }
                @if !draws.is_empty() { (table("Draws of inputs, in order", &columns("distribution", "against the original"), &draws)) }
                @if !protections.is_empty() { (table("What held the candidate", &columns("protection", "by"), &protections)) }
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

#[cfg(test)]
mod tests {
    use warpsmith_schema::{Profile, Target};

    use super::*;

    #[test]
    fn a_line_has_the_first_error() {
        let mut found = Verdict::unreached(
            Status::CompileFailed,
            Target::Cpu,
            Profile::Rl,
            String::new(),
        );
        let reason = "== kernels/a.cpp\na.cpp: In function 'f':\na.cpp:7:1: error: no <x>\n";
        found.reason = Some(reason.to_owned());
        let shown = line(&found).into_string();
        assert!(
            shown.contains(" a.cpp:7:1: error: no &lt;x&gt;</span>"),
            "{shown}"
        );
    }

    #[test]
    fn checks_and_draws_are_tables_and_the_draw_that_differs_is_named() {
        let mut found =
            Verdict::unreached(Status::Mismatch, Target::Cpu, Profile::Rl, String::new());
        found.trust.checks = [
            ("output_after_timing".to_owned(), TrustCheck::NotReached),
            ("values".to_owned(), TrustCheck::Failed),
        ]
        .into();
        found.trust.draws = vec!["own".to_owned(), "own negated".to_owned()];
        let page = verdict(&found).into_string();
        for text in [
            "0 of 2 checks held, 1 not reached, 2 draws of inputs",
            ">values</th><td class=\"words\" data-label=\"outcome\"><span class=\"bad\">✗ failed",
            ">1: own</th><td class=\"words\" data-label=\"against the original\"><span class=\"good\">✓ agrees",
            ">2: own negated</th><td class=\"words\" data-label=\"against the original\"><span class=\"bad\">✗ differs",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
    }
}
