//! What every step came to: lines of `metrics.jsonl`, which the report and the dashboard draw.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Map, Value};
use warpsmith_store::EventLog;

use crate::TrainError;
use crate::checkpoint::{read_failed, write_failed};

/// Numbers of one step, by name.
pub type Numbers = BTreeMap<&'static str, f64>;

#[derive(Debug)]
pub struct StepMetrics {
    log: EventLog,
}

fn place(run: &Path) -> PathBuf {
    run.join("metrics.jsonl")
}

impl StepMetrics {
    /// In a run's folder. Lines of steps after `done` are dropped: those steps are made again. So is what was found before
    /// the first step, until one is done.
    pub fn open(run: &Path, done: u64) -> Result<Self, TrainError> {
        let path = place(run);
        let mut text = String::new();
        EventLog::for_each_line(&path, |line: Value| {
            let kept = done > 0 && line["step"].as_u64().is_some_and(|step| step <= done);
            if kept {
                text.push_str(&line.to_string());
                text.push('\n');
            }
        })?;
        let begun = run.join(".metrics.jsonl.new");
        fs_err::write(&begun, text)
            .and_then(|()| fs_err::rename(&begun, &path))
            .map_err(write_failed(&path))?;
        let log = EventLog::open(&path)?;
        Ok(Self { log })
    }

    /// A step of so many. What is not finite is left out: JSON has no word for it.
    pub fn append(&mut self, step: u64, steps: u64, numbers: &Numbers) -> Result<(), TrainError> {
        let mut line = Map::new();
        line.insert("step".to_owned(), step.into());
        line.insert("steps".to_owned(), steps.into());
        line.insert("at".to_owned(), Timestamp::now().to_string().into());
        for (name, number) in numbers {
            if let Some(number) = serde_json::Number::from_f64(*number) {
                line.insert((*name).to_owned(), Value::Number(number));
            }
        }
        Ok(self.log.append(&Value::Object(line))?)
    }
}

/// A step and its numbers, as they were written.
pub type Line = (u64, BTreeMap<String, f64>);

/// The numbers of every step in a run's folder, in order.
pub fn read(run: &Path) -> Result<Vec<Line>, TrainError> {
    let path = place(run);
    if !path.is_file() {
        return Err(read_failed(&path)(std::io::ErrorKind::NotFound.into()));
    }
    let lines: Vec<Map<String, Value>> = EventLog::read_lines(&path)?.lines;
    let numbers = |line: &Map<String, Value>| {
        let pairs = line
            .iter()
            .filter(|(name, _)| !["step", "steps"].contains(&name.as_str()))
            .filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
        Some((line.get("step")?.as_u64()?, pairs.collect()))
    };
    Ok(lines.iter().filter_map(numbers).collect())
}
