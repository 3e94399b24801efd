//! Triton: kernels are compiled and tuned in one worker and replayed in another.
//!
//! The first worker runs the candidate on inputs that are never timed. It is as confined as every worker and starts no program:
//! it hands over PTX, and `ptxas` assembles it in the compilers' sandbox. What is left of it is a file of machine code and tuning
//! results under Triton's own keys, which the worker that is judged cannot add to.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fs_err as fs;
use serde::Deserialize;
use serde_json::{Value, json};
use warpsmith_schema::{Rule, Status, Target};

use super::stages::{LibraryImage, sealed, with_memory_limit};
use super::{JudgementState, Step, Supervisor, clip, go};
use crate::JudgeError;
use crate::candidate_failure::{CandidateFailure, channel_failure};
use crate::channel::{Asked, ChannelError};
use crate::session::PLAIN;
use crate::submission::{MODEL_NEW, SubmissionForm};
use crate::toolchain::BuiltLibrary;
use crate::trusted::InputDraw;
use crate::zygote::Worker;

/// For everything that is compiled and tuned.
const BUDGET: Duration = Duration::from_secs(90);

/// PTX to be assembled.
#[derive(Debug, Deserialize)]
struct PtxKernel {
    ptx: String,
    fmad: bool,
    /// As in `sm_90a`.
    arch: String,
}

/// Triton's assembler, and the newest PTX that it reads.
struct Assembler {
    program: PathBuf,
    version: String,
    ptx: u32,
}

impl Supervisor {
    /// Compiles and tunes a Triton solution: what the judged worker is given in place of libraries.
    pub(super) fn prepare_triton(
        &mut self,
        source: &str,
        attempt: &mut JudgementState,
    ) -> Result<Step<Vec<LibraryImage>>, JudgeError> {
        if self.config.target == Target::Cpu {
            return Ok(Step::Stop(CandidateFailure::new(
                Status::Rejected,
                Some(Rule::ForbiddenLanguage),
                "Triton kernels need a GPU: with `--target cpu` write C++ in kernels/ (`warpsmith new` makes a folder to start from)",
            )));
        }
        let begun = Instant::now();
        let assembler = self.assembler()?;
        let kept = self.kept_kernels(source, &assembler)?;
        let kernels = if let Ok(known) = fs::read(&kept) {
            known
        } else {
            if attempt.lease.is_none() {
                attempt.lease = Some(self.lease()?);
            }
            let made = go!(self.compile_and_tune(source, &assembler, begun + BUDGET)?);
            keep(&kept, &made)?;
            made
        };
        attempt.verdict.seconds.compile = begun.elapsed().as_secs_f64();
        attempt.verdict.compiled = true;
        attempt.verdict.progress.compiled = true;
        let image = LibraryImage {
            library: BuiltLibrary {
                name: assembler.ptx.to_string(),
                fingerprint: String::new(),
                with_status: Vec::new(),
                path: kept,
            },
            fd: sealed(&kernels).map_err(JudgeError::io("seal the kernels"))?,
        };
        Ok(Step::Go(vec![image]))
    }

    fn compile_and_tune(
        &mut self,
        source: &str,
        assembler: &Assembler,
        deadline: Instant,
    ) -> Result<Step<Vec<u8>>, JudgeError> {
        let (mut worker, flag) = self.take_worker()?;
        let target = self.config.target;
        let (session, _) = self.session_and_trusted()?;
        let variants: Vec<Vec<Value>> = (session.loaded.variants.iter())
            .map(|variant| variant.inputs.clone())
            .collect();
        let body = json!({
            "target": target.name(), "source": source, "file_name": MODEL_NEW, "init": session.loaded.init,
            "state": session.loaded.state, "libraries": [], "form": SubmissionForm::Triton.name(), "decoys": [],
            "kept_bytes": session.kept_bytes, "ptx_version": assembler.ptx,
        });
        let mut ask = |judge: &mut Self, verb: &str, body: Value, fds: &[BorrowedFd<'_>]| {
            judge.converse(&mut worker, assembler, (verb, body, fds), deadline)
        };
        go!(ask(self, "candidate", body, &[flag.as_fd()])?);
        for (index, inputs) in variants.iter().enumerate() {
            // By a seed of its own: what is drawn later stays the same whether or not the kernels were known.
            let draw = InputDraw {
                slot: 0,
                seed: rand::random::<u32>().into(),
                transform: PLAIN,
                exact: false,
            };
            let (_, trusted) = self.session_and_trusted()?;
            trusted.draw(index, (false, false), &[draw], None)?;
            let inputs = json!({ "inputs": inputs, "stage": false });
            go!(ask(self, "prepare", inputs, &[])?);
            go!(ask(self, "tune", json!({ "slot": 0 }), &[])?);
        }
        let told = go!(ask(self, "kernels", json!({}), &[])?);
        let kernels = serde_json::to_vec(&told["files"])
            .map_err(|error| JudgeError::infrastructure("json", error.to_string()))?;
        Ok(Step::Go(kernels))
    }

    /// A request of a worker that may ask for machine code before it answers.
    fn converse(
        &mut self,
        worker: &mut Worker,
        assembler: &Assembler,
        (verb, body, fds): (&str, Value, &[BorrowedFd<'_>]),
        deadline: Instant,
    ) -> Result<Step<Value>, JudgeError> {
        let mut asked = worker.channel.ask(verb, body, fds);
        loop {
            let reply = asked.and_then(|asked: Asked| {
                let left = deadline.saturating_duration_since(Instant::now());
                worker.channel.reply_to(&asked, left)
            });
            let wanted = match reply {
                Err(error) => return Ok(Step::Stop(preparation_failure(worker, error))),
                Ok((mut reply, _)) => match reply.get_mut("assemble") {
                    None => return Ok(Step::Go(reply)),
                    Some(wanted) => serde_json::from_value::<PtxKernel>(wanted.take()),
                },
            };
            let made = match wanted {
                Ok(wanted) => self.assemble(assembler, &wanted)?,
                Err(error) => Err(format!("the kernel cannot be read: {error}")),
            };
            asked = match made {
                Ok(code) => {
                    let fd: OwnedFd = sealed(&code).map_err(JudgeError::io("seal a kernel"))?;
                    let body = json!({ "error": null });
                    worker.channel.ask("assembled", body, &[fd.as_fd()])
                }
                Err(log) => {
                    let body = json!({ "error": clip(&log, 4000) });
                    worker.channel.ask("assembled", body, &[])
                }
            };
        }
    }

    /// Machine code of a kernel, from the cache of objects or assembled now; or the assembler's log.
    fn assemble(
        &self,
        assembler: &Assembler,
        kernel: &PtxKernel,
    ) -> Result<Result<Vec<u8>, String>, JudgeError> {
        let architecture = kernel.arch.strip_prefix("sm_").unwrap_or_default();
        if architecture.is_empty() || !architecture.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Ok(Err(format!("`{}` is no architecture", kernel.arch)));
        }
        let key = blake3::Hasher::new()
            .update(assembler.version.as_bytes())
            .update(&[u8::from(kernel.fmad)])
            .update(kernel.arch.as_bytes())
            .update(b"\0")
            .update(kernel.ptx.as_bytes())
            .finalize()
            .to_hex();
        let kept = self.object_place(&key, "cubin");
        if let Ok(known) = fs::read(&kept) {
            return Ok(Ok(known));
        }
        match self
            .toolchain
            .assemble(&assembler.program, &kernel.ptx, &kernel.arch, kernel.fmad)?
        {
            Ok(code) => {
                keep(&kept, &code)?;
                Ok(Ok(code))
            }
            Err(log) => Ok(Err(log)),
        }
    }

    /// The assembler that came with Triton.
    fn assembler(&self) -> Result<Assembler, JudgeError> {
        let python = &self.config.python;
        let packages = python.torch.dir.parent().unwrap_or(Path::new("/"));
        let program = packages.join("triton/backends/nvidia/bin/ptxas");
        if !program.exists() {
            return Err(JudgeError::Config {
                code: "no_triton",
                message: format!("the solution needs Triton, which {} does not have", python.executable.display()),
                hint: Some("install the version that belongs to this PyTorch, such as `pip install triton==3.6.0`, or let `warpsmith setup --target cuda` fetch both".to_owned()),
            });
        }
        let said = std::process::Command::new(&program)
            .arg("--version")
            .env_clear()
            .output()
            .map_err(JudgeError::io("ask for the version of Triton's assembler"))?;
        let version = String::from_utf8_lossy(&said.stdout).into_owned();
        let ptx = newest_ptx(&version).ok_or_else(|| {
            let message = format!("`{}` did not tell its version", program.display());
            JudgeError::infrastructure("ptxas", message)
        })?;
        Ok(Assembler {
            program,
            version,
            ptx,
        })
    }

    /// Where the kernels of this solution of this task are kept.
    fn kept_kernels(&self, source: &str, assembler: &Assembler) -> Result<PathBuf, JudgeError> {
        let session = self
            .session
            .as_ref()
            .ok_or_else(|| JudgeError::infrastructure("harness", "no task is loaded"))?;
        let mut hasher = blake3::Hasher::new();
        for part in [
            source,
            &session.task_hash,
            &assembler.version,
            &self.device_name,
            &self.config.python.torch.version,
            // The harness decides what is kept, and how.
            &self.harness.dir.display().to_string(),
        ] {
            hasher.update(part.as_bytes()).update(b"\0");
        }
        Ok(self.object_place(&hasher.finalize().to_hex(), "triton"))
    }

    fn object_place(&self, key: &str, ending: &str) -> PathBuf {
        let objects = self.config.caches.objects();
        objects.join(&key[..2]).join(format!("{key}.{ending}"))
    }
}

fn keep(place: &Path, bytes: &[u8]) -> Result<(), JudgeError> {
    let doing = || format!("keep `{}`", place.display());
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent).map_err(JudgeError::io(doing()))?;
    }
    let temporary = place.with_extension(format!("tmp{}", std::process::id()));
    fs::write(&temporary, bytes).map_err(JudgeError::io(doing()))?;
    fs::rename(&temporary, place).map_err(JudgeError::io(doing()))
}

fn preparation_failure(worker: &Worker, error: ChannelError) -> CandidateFailure {
    if matches!(error, ChannelError::TimedOut(_)) {
        let seconds = BUDGET.as_secs();
        return CandidateFailure::new(
            Status::TimedOut,
            None,
            format!(
                "the kernels were not compiled and tuned within {seconds} s: let the autotuner try fewer configurations"
            ),
        );
    }
    with_memory_limit(worker, channel_failure(error))
}

/// Of the assembler of a CUDA release, as Triton numbers it: 87 is PTX 8.7.
fn newest_ptx(version: &str) -> Option<u32> {
    let release = version.split("release ").nth(1)?.split(',').next()?;
    let (major, minor) = release.trim().split_once('.')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    match (major, minor) {
        (12, 0..=5) => Some(80 + minor),
        (12, _) => Some(79 + minor),
        (13.., _) => Some(90 + (major - 13) * 10 + minor),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assemblers_version_says_which_ptx_it_reads() {
        let said = |release: &str| {
            format!("ptxas: NVIDIA (R)\nCuda compilation tools, release {release}, V{release}.93\n")
        };
        assert_eq!(newest_ptx(&said("12.8")), Some(87));
        assert_eq!(newest_ptx(&said("12.4")), Some(84));
        assert_eq!(newest_ptx(&said("13.0")), Some(90));
        assert_eq!(newest_ptx("no compiler"), None);
    }
}
