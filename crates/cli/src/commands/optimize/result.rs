//! What comes out: a folder with a correct module, and the numbers that stand behind it.

use std::path::{Path, PathBuf};

use serde_json::json;
use warpsmith_schema::{Ending, FORMAT, MODEL_NEW, Submission, Task, Trajectory, Verdict};

use super::court::Bench;
use super::package;
use crate::evidence;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::render::{Table, time};
use crate::source::submission;

/// The original under the name that users import.
const UNCHANGED: &str = "\"\"\"No faster module was found: this is the original.\"\"\"\n\nfrom model import Model as ModelNew\n\n__all__ = [\"ModelNew\"]\n";

pub(super) struct Outcome {
    /// Of the best attempt, measured once more: choosing the luckiest of several would mine noise.
    verdict: Option<Verdict>,
    folder: PathBuf,
}

impl Outcome {
    pub(super) fn reach(
        trajectory: &Trajectory,
        bench: &mut Bench<'_>,
        run: &Path,
    ) -> Result<Self, Stop> {
        let best = trajectory
            .best
            .and_then(|best| trajectory.attempts.get(best as usize));
        let folder = run.join("result");
        let Some(submission) = best.map(|best| submission(&best.files)) else {
            lay_out_original(&folder, &trajectory.task)?;
            return Ok(Self {
                verdict: None,
                folder,
            });
        };
        let place = run.join("final");
        let verdict = if place.exists() {
            evidence::read(&place)?.verdict
        } else {
            bench.afresh(&submission, &place)?
        };
        if verdict.passed() {
            lay_out(&folder, &trajectory.task, &submission)?;
        } else {
            lay_out_original(&folder, &trajectory.task)?;
        }
        Ok(Self {
            verdict: Some(verdict).filter(Verdict::passed),
            folder,
        })
    }

    fn speedup(&self) -> Option<f64> {
        let speedup = self.verdict.as_ref()?.speedup.as_ref()?;
        Some(speedup.compile.as_ref().unwrap_or(&speedup.eager).0)
    }

    pub(super) fn exit(&self, required: Option<f64>) -> Exit {
        match required {
            Some(required) if self.speedup().is_none_or(|found| found < required) => Exit::NO,
            _ => Exit::DONE,
        }
    }

    pub(super) fn report(
        &self,
        task: &Task,
        trajectory: &Trajectory,
        run: &Path,
        printer: &Printer,
    ) -> Result<(), Stop> {
        if printer.json() {
            return printer.object(&json!({
                "format": FORMAT, "task": task.name, "policy": trajectory.policy, "ending": trajectory.ending,
                "attempts": trajectory.attempts.len(), "usage": trajectory.usage, "verdict": self.verdict,
                "result": self.folder, "run": run,
            }));
        }
        let mut table = Table::titled(&task.name);
        let times = self
            .verdict
            .as_ref()
            .and_then(|verdict| verdict.times_us.as_ref());
        match times {
            Some(times) => {
                let over = |us: f64| format!("{:>12}  {:.2}x", time(us), us / times.candidate.0);
                table.row("eager", &over(times.eager.0));
                if let Some(compile) = &times.compile {
                    table.row("torch.compile", &over(compile.0));
                }
                table.row("ours", &format!("{:>12}", time(times.candidate.0)));
            }
            None => table.row(
                "result",
                &format!(
                    "no attempt passed ({}); the original module is kept",
                    words(&trajectory.ending)
                ),
            ),
        }
        table.row("attempts", &trajectory.attempts.len().to_string());
        table.row("folder", &self.folder.display().to_string());
        if self.verdict.is_some() {
            let package = self.folder.join(package::FOLDER);
            table.row("install", &format!("pip install {}", package.display()));
            let name = package::name(&task.name);
            table.row("import", &format!("from {name} import ModelNew"));
        }
        Ok(printer.data(&table.text())?)
    }
}

fn words(ending: &Ending) -> String {
    match ending {
        Ending::Finished => "all repairs were used".to_owned(),
        Ending::Limit { which } => format!("a limit was reached: {which:?}").to_lowercase(),
        Ending::ContextFull => "the policy's context was full".to_owned(),
        Ending::NothingUsable => "no reply held files to judge".to_owned(),
        Ending::Looping => "the policy said the same again".to_owned(),
        Ending::PolicyFailed { message } => message.clone(),
        Ending::Interrupted => "interrupted".to_owned(),
    }
}

fn lay_out(folder: &Path, task: &Task, submission: &Submission) -> Result<(), Stop> {
    for (name, content) in &submission.files {
        write(&folder.join(name), content)?;
    }
    package::lay_out(folder, task, submission)?;
    write(&folder.join("model.py"), task.source.as_bytes())
}

fn lay_out_original(folder: &Path, task: &Task) -> Result<(), Stop> {
    write(&folder.join("model.py"), task.source.as_bytes())?;
    write(&folder.join(MODEL_NEW), UNCHANGED.as_bytes())
}

pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), Stop> {
    if let Some(parent) = path.parent() {
        fs_err::create_dir_all(parent)?;
    }
    Ok(fs_err::write(path, content)?)
}
