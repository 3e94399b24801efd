//! What `warpsmith doctor` reports.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use crate::{
    Caches, CpuInfo, CxxCompiler, GpuInfo, MachineError, Nvcc, Python, PythonChoice, Torch,
};
use crate::{
    cpu, find_cxx, find_nvcc, find_python, free_disk, gpus, install_estimate, memory_bytes,
};

/// What this machine offers. Absent is null, and `advice` says what can be done about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineReport {
    pub cpu: CpuInfo,
    pub memory_bytes: u64,
    pub disk: DiskSpace,
    pub gpus: Vec<GpuInfo>,
    pub cxx: Option<CxxCompiler>,
    pub nvcc: Option<Nvcc>,
    pub python: Option<Python>,
    /// Which protections hold, as the sandbox reports them.
    pub isolation: Option<Value>,
    pub advice: Vec<Advice>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiskSpace {
    pub cache: PathBuf,
    /// Null where the file system does not say.
    pub free_bytes: Option<u64>,
}

/// Something missing, what that costs, and how to get it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    pub missing: String,
    pub consequence: String,
    pub what_to_do: String,
}

/// Inspects everything and changes nothing. It never fails: what is missing becomes advice.
pub fn inspect_machine(
    choice: &PythonChoice,
    caches: &Caches,
    isolation: Option<Value>,
) -> MachineReport {
    let python = find_python(choice, caches);
    let (python, python_error) = match python {
        Ok(python) => (python, None),
        Err(error) => (None, Some(error)),
    };
    let mut report = MachineReport {
        cpu: cpu(),
        memory_bytes: memory_bytes(),
        disk: DiskSpace {
            cache: caches.root.clone(),
            free_bytes: free_disk(&caches.root).ok(),
        },
        gpus: gpus(),
        cxx: find_cxx(),
        nvcc: find_nvcc(),
        python,
        isolation,
        advice: Vec::new(),
    };
    report.advice = advice(
        &report,
        python_error.as_ref(),
        install_estimate(caches).disk_bytes,
    );
    report
}

fn advice(
    report: &MachineReport,
    python_error: Option<&MachineError>,
    environment_bytes: u64,
) -> Vec<Advice> {
    let mut advice = Vec::new();
    let mut note = |missing: &str, consequence: &str, what_to_do: &str| {
        advice.push(Advice {
            missing: missing.to_owned(),
            consequence: consequence.to_owned(),
            what_to_do: what_to_do.to_owned(),
        });
    };
    if report.cxx.is_none() {
        note(
            "C++ compiler",
            "nothing can be compiled",
            "install one, on Debian or Ubuntu with `apt install g++`",
        );
    }
    match (report.gpus.is_empty(), &report.nvcc) {
        (true, _) => note(
            "GPU",
            "kernels are written in C++ and timed on the CPU",
            "nothing, if this machine has no NVIDIA GPU; else install the driver until `nvidia-smi` lists it",
        ),
        (false, None) => note(
            "nvcc",
            "the GPU cannot be used: CUDA kernels cannot be compiled",
            "install the CUDA toolkit (https://developer.nvidia.com/cuda-downloads) and set `CUDA_HOME` to it",
        ),
        (false, Some(_)) => {}
    }
    match (&report.python, python_error) {
        (Some(python), _) => {
            let torch = &python.torch;
            if !torch.tested() {
                let [low, high] = Torch::TESTED;
                note(
                    &format!("tested PyTorch ({} is used)", torch.version),
                    "the judge may misbehave",
                    &format!(
                        "use torch from {}.{} to before {}.{}, or leave out `--python` and run `warpsmith setup`",
                        low.0, low.1, high.0, high.1
                    ),
                );
            }
            if torch.cuda.is_none() && !report.gpus.is_empty() {
                note(
                    "PyTorch with CUDA",
                    "the GPU cannot be used: this torch was built for the CPU",
                    "give a Python whose torch has CUDA by `--python`, or take this one off the PATH and run `warpsmith setup`",
                );
            }
            if python.include.is_none() {
                note(
                    "Python.h",
                    "solutions with torch bindings (`cuda_extension`) cannot be compiled; our own form can",
                    "install the headers of that Python, on Debian or Ubuntu with `apt install python3-dev`",
                );
            }
        }
        (None, Some(error)) => {
            note(
                "PyTorch",
                &error.to_string(),
                &error
                    .hint()
                    .unwrap_or_else(|| "run `warpsmith setup`".into()),
            );
        }
        (None, None) => note(
            "PyTorch",
            "nothing can be judged until it is there; it is fetched on first use",
            &format!(
                "run `warpsmith setup` ({:.1} GB on disk)",
                environment_bytes as f64 / 1e9
            ),
        ),
    }
    if report.python.is_none()
        && report
            .disk
            .free_bytes
            .is_some_and(|free| free < environment_bytes)
    {
        note(
            "disk space",
            "PyTorch does not fit in the cache folder",
            "free some space, or set `WARPSMITH_CACHE` to a folder on a larger disk",
        );
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare() -> MachineReport {
        MachineReport {
            cpu: CpuInfo {
                name: "a processor".into(),
                cores: 2,
                vector: "avx2",
            },
            memory_bytes: 8 << 30,
            disk: DiskSpace {
                cache: "/cache".into(),
                free_bytes: Some(1 << 30),
            },
            gpus: Vec::new(),
            cxx: None,
            nvcc: None,
            python: None,
            isolation: None,
            advice: Vec::new(),
        }
    }

    #[test]
    fn everything_missing_is_advised_on() {
        let missing: Vec<String> = advice(&bare(), None, 5 << 30)
            .into_iter()
            .map(|note| note.missing)
            .collect();
        assert_eq!(missing, ["C++ compiler", "GPU", "PyTorch", "disk space"]);
    }

    #[test]
    fn a_python_that_was_given_and_is_wrong_is_named() {
        let error = MachineError::NoTorch {
            program: "/opt/python".into(),
        };
        let notes = advice(&bare(), Some(&error), 0);
        let note = notes.iter().find(|note| note.missing == "PyTorch").unwrap();
        assert!(
            note.consequence.contains("/opt/python") && note.what_to_do.contains("pip install")
        );
    }

    #[test]
    fn a_report_is_data() {
        let value = serde_json::to_value(bare()).unwrap();
        assert_eq!(value["nvcc"], Value::Null);
        assert_eq!(value["cpu"]["vector"], "avx2");
    }
}
