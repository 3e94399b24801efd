//! Times of single calls as the evidence of a verdict keeps them, for a plot.

use std::path::{Component, Path, PathBuf};

use maud::{Markup, html};
use serde::Deserialize;
use warpsmith_report::plot::{Strip, StripRow};
use warpsmith_schema::Verdict;

/// A file of samples larger than this is not drawn.
const LARGEST_BYTES: u64 = 8 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Samples {
    candidate: Vec<Timed>,
    baselines: Option<Baselines>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Timed {
    singles: Vec<f64>,
    bursts: Vec<(u32, f64)>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Baselines {
    raw_eager: Vec<Timed>,
    raw_compile: Vec<Timed>,
}

/// Where the evidence of a verdict lies within a run's folder. Its path is from a log, which may say anything, and from the
/// time of the run, which may have been moved since.
pub(super) fn within(run: &Path, evidence: &str) -> Option<PathBuf> {
    let parts: Vec<Component<'_>> = Path::new(evidence).components().collect();
    let begins = parts
        .iter()
        .rposition(|part| part.as_os_str() == "evidence")?;
    let inside: PathBuf = parts[begins..].iter().collect();
    let plain = parts[begins..]
        .iter()
        .all(|part| matches!(part, Component::Normal(_)));
    let run = fs_err::canonicalize(run).ok()?;
    let found = fs_err::canonicalize(run.join(inside)).ok()?;
    (plain && found.starts_with(&run)).then_some(found)
}

/// Every timed call: ours, alone and in bursts, and those of the baselines. Nothing where nothing was timed or kept.
pub(super) fn strip(run: &Path, verdict: &Verdict) -> Option<Markup> {
    let times = verdict.times_us.as_ref()?;
    let file = within(run, verdict.evidence.as_deref()?)?.join("samples.json");
    if fs_err::metadata(&file).ok()?.len() > LARGEST_BYTES {
        return None;
    }
    let samples: Samples = serde_json::from_slice(&fs_err::read(&file).ok()?).ok()?;
    let constant = times.constant.0;
    // What a call costs with nothing in it is not the module's time.
    let singles = |all: &[Timed]| -> Vec<f64> {
        let calls = all.iter().flat_map(|one| one.singles.iter());
        calls.map(|us| us - constant).collect()
    };
    let bursts = |all: &[Timed]| -> Vec<f64> {
        let bursts = all.iter().flat_map(|one| one.bursts.iter());
        bursts
            .filter(|(calls, _)| *calls > 0)
            .map(|(calls, us)| (us - constant) / f64::from(*calls))
            .collect()
    };
    let baselines = samples.baselines.unwrap_or_default();
    let rows = [
        ("ours, single", singles(&samples.candidate)),
        ("ours, in bursts", bursts(&samples.candidate)),
        ("eager, single", singles(&baselines.raw_eager)),
        ("eager, in bursts", bursts(&baselines.raw_eager)),
        ("compile, single", singles(&baselines.raw_compile)),
        ("compile, in bursts", bursts(&baselines.raw_compile)),
    ];
    let rows: Vec<StripRow<'_>> = rows
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(name, values)| StripRow { name, values })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let strip = Strip {
        name: "Every timed call, per call of the module",
        unit: "us, without what an empty call costs",
        rows,
    };
    Some(html! { (strip) })
}

#[cfg(test)]
mod tests {
    use warpsmith_schema::{Profile, Status, Target};

    use super::*;

    #[test]
    fn samples_are_drawn_from_the_run_alone() {
        let runs = tempfile::tempdir().unwrap();
        let place = runs.path().join("run/evidence/task/abc");
        fs_err::create_dir_all(&place).unwrap();
        let samples = r#"{"candidate": [{"singles": [110.0, 112.0, 114.0], "bursts": [[4, 140.0]], "warm": true}],
            "baselines": {"raw_eager": [{"singles": [120.0], "bursts": []}], "raw_compile": [], "eager": []}}"#;
        fs_err::write(place.join("samples.json"), samples).unwrap();
        fs_err::create_dir_all(runs.path().join("other/evidence/task/abc")).unwrap();
        let mut verdict =
            Verdict::unreached(Status::Passed, Target::Cpu, Profile::Rl, String::new());
        let times = serde_json::json!({
            "candidate": 12, "eager": 20, "compile": null, "spread": 0.0, "samples": 3, "single": 12, "burst": null, "constant": 100,
        });
        verdict.times_us = Some(serde_json::from_value(times).unwrap());
        verdict.evidence = Some("/moved/since/evidence/task/abc".to_owned());
        let run = runs.path().join("run");
        let text = strip(&run, &verdict).unwrap().into_string();
        assert!(
            text.contains("ours, single: 3 measurements, median 12"),
            "{text}"
        );
        assert!(
            text.contains("ours, in bursts: 1 measurements, median 10"),
            "{text}"
        );
        assert!(
            text.contains("eager, single: 1 measurements, median 20"),
            "{text}"
        );
        for outside in ["evidence/../..", "/etc", "evidence/none", "evidence"] {
            verdict.evidence = Some(outside.to_owned());
            assert!(strip(&run, &verdict).is_none(), "{outside}");
        }
        // Of another run of the same shape nothing is shown but what this one has.
        let whole = fs_err::canonicalize(&run).unwrap();
        let found = within(&run, "evidence/../../other/evidence/task/abc").unwrap();
        assert!(found.starts_with(&whole));
    }
}
