use super::{Cell, Table, fraction, head};
use crate::RunReport;
use crate::metrics::{Group, Speed, Summary};
use crate::page::{percent, runtime, times};

/// The table of the papers that tune small models: how many compiled, how many are correct, how long these take.
pub(super) fn counts(runs: &[RunReport<'_>]) -> Table {
    let row = |run: &RunReport<'_>, name: String, of: &Summary| -> Vec<Cell> {
        let policies: Vec<&str> = run.policies.iter().copied().collect();
        vec![
            name.into(),
            policies.join(", ").into(),
            fraction(of.compiled).into(),
            fraction(of.correct).into(),
            runtime(of.average_runtime_us).into(),
        ]
    };
    let rows = runs.iter().flat_map(|run| {
        let whole = row(run, run.name.to_owned(), &run.metrics.overall);
        let part =
            |group: &Group| row(run, format!("{}, {}", run.name, group.name), &group.summary);
        std::iter::once(whole)
            .chain(run.by_part.iter().map(part))
            .collect::<Vec<_>>()
    });
    Table {
        title: "Compiled, correct and runtime".to_owned(),
        head: head("run", ["policy", "compiled", "correct", "average runtime"]),
        rows: rows.collect(),
    }
}

/// By level and by family; nothing where that says no more than the whole.
pub(super) fn groups(run: &RunReport<'_>, several: bool) -> Option<Table> {
    let row = |group: &Group| {
        let of = &group.summary;
        let clearly = |speed: Option<Speed>| speed.and_then(|speed| speed.clearly_faster.value());
        let speedup = |speed: Option<Speed>| times(speed.and_then(|speed| speed.geomean));
        vec![
            group.name.as_str().into(),
            of.tasks.to_string().into(),
            percent(of.compiled.value()).into(),
            percent(of.correct.value()).into(),
            percent(clearly(of.strict.eager)).into(),
            percent(clearly(of.strict.compile)).into(),
            speedup(of.strict.eager).into(),
            speedup(of.strict.compile).into(),
            runtime(of.average_runtime_us).into(),
        ]
    };
    let levels = Some(&run.metrics.by_level).filter(|groups| groups.len() > 1);
    let families = Some(&run.metrics.by_family).filter(|groups| groups.len() > 1);
    let parts = Some(&run.by_part);
    let rows: Vec<Vec<Cell>> = [levels, parts, families]
        .into_iter()
        .flatten()
        .flatten()
        .map(row)
        .collect();
    let of = if several {
        format!(": {}", run.name)
    } else {
        String::new()
    };
    (!rows.is_empty()).then(|| Table {
        title: format!("By level and family{of}"),
        head: head(
            "group",
            [
                "tasks",
                "compiled",
                "correct",
                "> eager",
                "> compile",
                "over eager",
                "over compile",
                "average runtime",
            ],
        ),
        rows,
    })
}
