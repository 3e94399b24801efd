//! Numbers as TensorBoard reads them: a file of records, each a protobuf `Event` between two checksums. The few fields that
//! are needed are written by hand.

use std::io::Write;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use warpsmith_store::StoreError;

use crate::metrics::Curve;
use crate::training::{TrainingStep, training_steps};
use crate::{Report, RunReport, curves};

/// TensorBoard takes any name with `tfevents` in it. The same report again replaces the file.
const FILE: &str = "events.out.tfevents.0.warpsmith";
/// Steps are whole numbers: p in hundredths.
const STEPS_PER_P: f64 = 100.0;

/// Writes a folder for each run, as `tensorboard --logdir` wants them.
pub fn write(report: &Report<'_>, folder: &Path, now_s: f64) -> Result<(), StoreError> {
    for run in &report.runs {
        let place = folder.join(run.name).join(FILE);
        let write = |source| StoreError::Write {
            path: place.clone(),
            source,
        };
        if let Some(parent) = place.parent() {
            fs_err::create_dir_all(parent).map_err(write)?;
        }
        fs_err::write(&place, events(run, now_s)).map_err(write)?;
    }
    Ok(())
}

/// Curves of a run that trains, for a TensorBoard that looks while it does: `tensorboard --logdir runs`.
#[derive(Debug)]
pub struct LiveCurves {
    path: PathBuf,
    file: fs_err::File,
}

impl LiveCurves {
    /// A file in the run's folder, with the steps that its metrics have already. One of an earlier process is replaced: some
    /// of its steps may be made again.
    pub fn begin(run: &Path) -> Result<Self, StoreError> {
        let path = run.join("tensorboard").join(FILE);
        let write = |source| StoreError::Write {
            path: path.clone(),
            source,
        };
        let done = training_steps(run)?;
        let now_s = done.first().map_or_else(now, wall_s);
        let mut events = opening(now_s);
        for step in &done {
            for (name, value) in &step.values {
                let name = format!("training/{name}");
                events.extend(scalar(wall_s(step), &name, step.step as i64, *value));
            }
        }
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent).map_err(write)?;
        }
        let mut file = fs_err::File::create(&path).map_err(write)?;
        file.write_all(&events).map_err(write)?;
        Ok(Self { path, file })
    }

    /// Adds a step. What is not finite is left out, as it is in the metrics.
    pub fn add<'a>(
        &mut self,
        step: u64,
        numbers: impl Iterator<Item = (&'a str, f64)>,
    ) -> Result<(), StoreError> {
        let now_s = now();
        let mut events = Vec::new();
        for (name, value) in numbers.filter(|(_, value)| value.is_finite()) {
            let name = format!("training/{name}");
            events.extend(scalar(now_s, &name, step as i64, value));
        }
        // In one piece, so that whoever reads meanwhile finds whole records.
        self.file
            .write_all(&events)
            .map_err(|source| StoreError::Write {
                path: self.path.clone(),
                source,
            })
    }
}

fn now() -> f64 {
    Timestamp::now().as_millisecond() as f64 / 1e3
}

fn wall_s(step: &TrainingStep) -> f64 {
    step.at
        .map_or_else(now, |at| at.as_millisecond() as f64 / 1e3)
}

/// What a file begins with.
fn opening(now_s: f64) -> Vec<u8> {
    record(&event(now_s, 0, &bytes_field(3, b"brain.Event:2")))
}

fn scalar(now_s: f64, name: &str, step: i64, value: f64) -> Vec<u8> {
    let value = [
        bytes_field(1, name.as_bytes()),
        float_field(2, value as f32),
    ]
    .concat();
    let summary = bytes_field(5, &bytes_field(1, &value));
    record(&event(now_s, step, &summary))
}

fn events(run: &RunReport<'_>, now_s: f64) -> Vec<u8> {
    let mut file = opening(now_s);
    let mut scalar = |name: &str, step: i64, value: f64| {
        file.extend(scalar(now_s, name, step, value));
    };
    let row = &run.metrics.overall;
    let (eager, compile) = (row.strict.eager, row.strict.compile);
    let numbers = [
        ("compiled", row.compiled.value()),
        ("correct", row.correct.value()),
        (
            "faster_than_eager",
            eager.and_then(|speed| speed.clearly_faster.value()),
        ),
        (
            "faster_than_compile",
            compile.and_then(|speed| speed.clearly_faster.value()),
        ),
        ("speedup_eager", eager.and_then(|speed| speed.geomean)),
        ("speedup_compile", compile.and_then(|speed| speed.geomean)),
        ("average_runtime_us", row.average_runtime_us),
    ];
    for (name, value) in numbers {
        if let Some(value) = value {
            scalar(&format!("report/{name}"), 0, value);
        }
    }
    let mut curve = |name: &str, curve: &Curve| {
        for (p, share) in curve {
            scalar(
                &format!("fast_p/{name}"),
                (p * STEPS_PER_P).round() as i64,
                *share,
            );
        }
    };
    curve("eager", &run.metrics.fast_p.eager);
    if let Some(found) = &run.metrics.fast_p.compile {
        curve("compile", found);
    }
    for (name, points) in curves(run.training) {
        for (step, value) in points {
            scalar(&format!("training/{name}"), step as i64, value);
        }
    }
    file
}

/// `Event`: wall time, step, and what happened.
fn event(now_s: f64, step: i64, what: &[u8]) -> Vec<u8> {
    // Field 1 is a double, field 2 a varint.
    let mut event = vec![1 << 3 | 1];
    event.extend(now_s.to_le_bytes());
    event.push(2 << 3);
    event.extend(varint(step as u64));
    event.extend(what);
    event
}

fn bytes_field(number: u8, content: &[u8]) -> Vec<u8> {
    [
        &[number << 3 | 2],
        varint(content.len() as u64).as_slice(),
        content,
    ]
    .concat()
}

fn float_field(number: u8, value: f32) -> Vec<u8> {
    [&[number << 3 | 5], value.to_le_bytes().as_slice()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Length, its checksum, the content, its checksum.
fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    [
        &length,
        masked(&length).as_slice(),
        content,
        &masked(content),
    ]
    .concat()
}

/// Of bytes that hold checksums themselves, as the format's authors wanted it.
fn masked(content: &[u8]) -> [u8; 4] {
    let sum = crc32c(content);
    sum.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Castagnoli's polynomial, bit by bit: these files are small.
fn crc32c(content: &[u8]) -> u32 {
    let mut sum = !0_u32;
    for byte in content {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            let carried = if sum & 1 == 1 { 0x82f6_3b78 } else { 0 };
            sum = (sum >> 1) ^ carried;
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the polynomial's catalogue entry, and RFC 3720's test of 32 zeros.
    #[test]
    fn checksums_are_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn lengths_are_varints() {
        assert_eq!([varint(1), varint(300)], [vec![1], vec![0xac, 2]]);
    }
}
