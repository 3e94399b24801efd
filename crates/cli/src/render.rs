//! A verdict for a person.

use warpsmith_judge::ImportCheck;
use warpsmith_schema::{MatchedPrecision, Precision, Rule, Status, TrustCheck, Verdict};

use crate::printer::{Printer, Tone};

/// Lines of a compiler's or Python's message that are shown; the evidence has all of it.
const REASON_LINES: usize = 30;

/// `512.3 us`, `12.34 ms`.
pub(crate) fn time(us: f64) -> String {
    if us >= 10_000.0 {
        format!("{:.2} ms", us / 1000.0)
    } else {
        format!("{us:.1} us")
    }
}

/// `500 MB`, `4.9 GB`.
pub(crate) fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes >= 1e9 {
        format!("{:.1} GB", bytes / 1e9)
    } else if bytes >= 1e6 {
        format!("{:.0} MB", bytes / 1e6)
    } else {
        format!("{:.0} kB", bytes / 1e3)
    }
}

/// Whether what is handed over can be imported outside the judge.
pub(crate) fn import_check(check: &ImportCheck) -> String {
    match check {
        ImportCheck::Works { seconds, .. } => format!(
            "in a fresh process it builds, imports and gives what the original gives ({seconds:.1} s)"
        ),
        ImportCheck::Fails { message } => format!("it cannot be imported here: {message}"),
    }
}

fn ratio(value: f64) -> String {
    format!("{value:.2}x")
}

/// Left words, right values.
pub(crate) struct Table(String);

impl Table {
    pub(crate) fn titled(title: &str) -> Self {
        Self(format!("{title}\n\n"))
    }

    pub(crate) fn row(&mut self, name: &str, value: &str) {
        let mut lines = value.lines();
        let first = lines.next().unwrap_or_default();
        self.push(&format!("  {name:<14} {first}"));
        for line in lines {
            self.push(&format!("  {:<14} {line}", ""));
        }
    }

    fn push(&mut self, line: &str) {
        self.0.push_str(line.trim_end());
        self.0.push('\n');
    }

    pub(crate) fn text(self) -> String {
        self.0
    }
}

/// The whole of it, as `judge` prints it.
pub(crate) fn verdict(task: &str, verdict: &Verdict, printer: &Printer) -> String {
    let tone = if verdict.passed() {
        Tone::Good
    } else {
        Tone::Bad
    };
    let status = printer.paint(tone, verdict.status.name());
    let mut table = Table::titled(&format!(
        "{status}  {task} on {}, {}",
        verdict.target.name(),
        verdict.device
    ));
    if !verdict.passed() {
        failure_rows(&mut table, verdict);
    }
    time_rows(&mut table, verdict);
    if let Some(numerics) = &verdict.numerics {
        table.row(
            "numerics",
            &format!(
                "{:.1e} from float64 (eager {:.1e})",
                numerics.candidate_vs_fp64.0, numerics.eager_vs_fp64.0
            ),
        );
    }
    let reward = &verdict.reward;
    table.row(
        "reward",
        &format!(
            "robust {}, raw {:.2}, composite {:.2}, ladder {:.2}",
            reward.robust, reward.raw.0, reward.composite.0, reward.ladder
        ),
    );
    let seconds = &verdict.seconds;
    table.row(
        "seconds",
        &format!(
            "compile {:.1}, verify {:.1}, time {:.1}, total {:.1}",
            seconds.compile, seconds.verify, seconds.time, seconds.total
        ),
    );
    trust_rows(&mut table, verdict, printer);
    for note in &verdict.notes {
        table.row("note", note.lines().last().unwrap_or_default());
    }
    if let Some(evidence) = &verdict.evidence {
        table.row("evidence", evidence);
    }
    table.text()
}

fn failure_rows(table: &mut Table, verdict: &Verdict) {
    if let Some(rule) = verdict.rule {
        table.row("rule", &word(&rule));
    }
    table.row(
        "reason",
        &clip(
            verdict.reason.as_deref().unwrap_or("unknown"),
            verdict.status,
        ),
    );
    table.row("next", next(verdict));
}

/// The word that JSON has.
fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => String::new(),
    }
}

/// A compiler's first error is the one that counts; of a traceback it is the end.
fn clip(text: &str, status: Status) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    if lines.len() <= REASON_LINES {
        return lines.join("\n");
    }
    let left_out = format!("({} lines left out)", lines.len() - REASON_LINES);
    if status == Status::CompileFailed {
        format!("{}\n{left_out}", lines[..REASON_LINES].join("\n"))
    } else {
        format!(
            "{left_out}\n{}",
            lines[lines.len() - REASON_LINES..].join("\n")
        )
    }
}

fn time_rows(table: &mut Table, verdict: &Verdict) {
    let (Some(times), Some(speedup)) = (&verdict.times_us, &verdict.speedup) else {
        return;
    };
    table.row(
        "candidate",
        &format!(
            "{:>11}   +-{:.1} % over {} calls",
            time(times.candidate.0),
            times.spread.0 * 100.0,
            times.samples
        ),
    );
    let against =
        |us: f64, ratio_to: f64| format!("{:>11}   {} speed-up", time(us), ratio(ratio_to));
    table.row("eager", &against(times.eager.0, speedup.eager.0));
    let compile = match (times.compile, speedup.compile) {
        (Some(us), Some(over)) => against(us.0, over.0),
        _ => format!("{:>11}", "not measured"),
    };
    table.row("torch.compile", &compile);
    if let Some(matched) = &verdict.matched_precision {
        let value = match matched.mode {
            Precision::Fp32 => "fp32, as the baselines above".to_owned(),
            Precision::Tf32 => against_tf32(matched),
        };
        table.row("precision", &value);
    }
}

/// A solution in TF32 beside PyTorch in TF32.
pub(crate) fn against_tf32(matched: &MatchedPrecision) -> String {
    let compile = match (matched.compile_us, matched.speedup.compile) {
        (Some(us), Some(over)) => {
            format!(", torch.compile {} ({})", time(us.0), ratio(over.0))
        }
        _ => String::new(),
    };
    format!(
        "tf32: against tf32 baselines eager {} ({}){compile}",
        time(matched.eager_us.0),
        ratio(matched.speedup.eager.0)
    )
}

fn trust_rows(table: &mut Table, verdict: &Verdict, printer: &Printer) {
    if let Some(isolation) = &verdict.isolation {
        let missing = isolation
            .values()
            .filter(|by| by.starts_with("missing"))
            .count();
        let contained = if verdict.trust.contained {
            "contained"
        } else {
            "NOT contained"
        };
        table.row(
            "isolation",
            &format!(
                "{contained}, {} of {} protections hold",
                isolation.len() - missing,
                isolation.len()
            ),
        );
        if printer.verbose() {
            for (name, by) in isolation {
                table.row("", &format!("{name}: {by}"));
            }
        }
    }
    let warnings = warnings(verdict);
    let checks = &verdict.trust.checks;
    let held = checks
        .values()
        .filter(|check| **check == TrustCheck::Held)
        .count();
    if !checks.is_empty() {
        table.row("trust", &format!("{held} of {} checks held", checks.len()));
    }
    if printer.verbose() {
        for (name, check) in checks {
            table.row("", &format!("{name}: {}", word(check)));
        }
        if let Some(fp64) = &verdict.trust.fp64 {
            table.row("", &format!("float64 answers: {fp64}"));
        }
        if !verdict.trust.draws.is_empty() {
            table.row("", &format!("draws: {}", verdict.trust.draws.join(", ")));
        }
        if let Some(moved) = &verdict.trust.moved {
            table.row("", &format!("moved off its initial values: {moved}"));
        }
    }
    for warning in warnings {
        table.row("warning", &warning);
    }
}

/// What a reader of the verdict should not overlook.
pub(crate) fn warnings(verdict: &Verdict) -> Vec<String> {
    let trust = &verdict.trust;
    let mut warnings = Vec::new();
    if verdict.isolation.is_some() && !trust.contained {
        warnings.push(
            "a required protection was missing: not to be used for training or benchmarks"
                .to_owned(),
        );
    }
    if trust.degenerate_inputs {
        warnings.push("the task's own inputs let a trivial answer pass: only transformed inputs told it apart".to_owned());
    }
    if trust.deferred_work {
        warnings.push(
            "work was batched or put off between calls: the single-call time counts".to_owned(),
        );
    }
    if trust.excluded_share > 0.0 {
        warnings.push(format!(
            "{:.3} % of the elements lie at a discontinuity and were left out",
            trust.excluded_share * 100.0
        ));
    }
    warnings
}

/// One line of what to do about a verdict that is not `passed`.
pub(crate) fn next(verdict: &Verdict) -> &'static str {
    match (verdict.status, verdict.rule) {
        (Status::Passed, _) => "nothing",
        (Status::CompileFailed, _) => {
            "mend the first error above; `compile.log` in the evidence has the rest"
        }
        (_, Some(Rule::ForbiddenOperator)) => {
            "compute in a kernel of your own; views, allocation and same-dtype copies may stay"
        }
        (_, Some(Rule::NothingReplaced)) => {
            "compute at least one of the reference's operators in a kernel of your own"
        }
        (_, Some(Rule::ForbiddenImport)) => {
            "use only libc, libm, OpenMP and the provided `gemm` (cuBLAS and cuDNN on a GPU)"
        }
        (_, Some(Rule::ForbiddenLanguage)) => "write CUDA C++ (inline PTX may be used) or C++",
        (_, Some(Rule::Form)) => {
            "compare with `warpsmith new NAME`, which writes a solution of the right form"
        }
        (_, Some(Rule::StateDict)) => {
            "`ModelNew` must have the same parameters and buffers as `Model`"
        }
        (_, Some(Rule::OutputType)) => {
            "return plain tensors, in the structure that `Model` returns"
        }
        (_, Some(Rule::SharedOutput)) => "allocate the output anew in every call",
        (_, Some(Rule::InputChanged)) => "write to tensors you allocated, never to an input",
        (_, Some(Rule::MemoryLimit)) => "allocate less",
        (_, Some(Rule::WrongWhenTimed)) => {
            "the kernel is wrong only now and then: look for a race or a missing synchronisation"
        }
        (_, Some(Rule::StaleWeights)) => {
            "weights are rewritten in place between calls: derive what you need from them in `forward`"
        }
        (Status::Mismatch, _) => {
            "compare with `Model` on inputs of other scale and sign, and at the borders of the shape"
        }
        (Status::Crashed, _) => {
            "run it under a debugger, or read what it printed in the evidence's `printed.log`"
        }
        (Status::TimedOut, _) => "look for an endless loop or a wait that is never answered",
        (Status::Rejected | Status::Cheating, _) => {
            "do the work of every call inside that call, from its inputs"
        }
    }
}
