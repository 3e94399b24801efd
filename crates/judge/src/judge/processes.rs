//! The processes that the judge keeps warm, and the baselines measured in one of them.

use super::conclude::output_floor_us;
use super::{AheadCompiler, Supervisor, task_hash};
use crate::JudgeError;
use crate::baseline;
use crate::baseline::Baselines;
use crate::lease::lease_device;
use crate::process;
use crate::process::PythonProcess;
use crate::runner::{attach, has_gate};
use crate::session::Session;
use crate::trusted::TrustedProcess;
use crate::zygote;
use crate::zygote::Worker;
use crate::zygote::Zygote;
use serde_json::Value;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use warpsmith_machine::DeviceLease;
use warpsmith_schema::Precision;
use warpsmith_schema::{Target, Task};

/// A module that takes longer is left to the baseline process, which says so.
const COMPILE_LIMIT: Duration = Duration::from_mins(10);

impl Supervisor {
    pub(super) fn launch_trusted(&self) -> Result<PythonProcess, JudgeError> {
        let mut environment = self.trusted_environment();
        // Its threads must not spin on the cores that the timed process needs.
        environment.push(("OMP_WAIT_POLICY".to_owned(), "PASSIVE".to_owned()));
        let process = PythonProcess::start(process::ProcessLaunch {
            name: "trusted",
            target: self.config.target,
            script: "trusted.py",
            arguments: vec![self.harness.support.display().to_string()],
            environment,
            python: &self.config.python,
            harness: &self.harness.dir,
        })?;
        if let Some(cores) = &self.cores {
            cores.pin_judge(process.id());
        }
        Ok(process)
    }

    pub(super) fn launch_baseline(&self) -> Result<PythonProcess, JudgeError> {
        let process = PythonProcess::start(process::ProcessLaunch {
            name: "baseline",
            target: self.config.target,
            script: "worker.py",
            arguments: vec![
                self.harness.support.display().to_string(),
                self.harness.cuda_arena.display().to_string(),
                if self.compiles_ahead() {
                    "compiler"
                } else {
                    "-"
                }
                .to_owned(),
            ],
            environment: self.compiler_environment(),
            python: &self.config.python,
            harness: &self.harness.dir,
        })?;
        if let Some(cores) = &self.cores {
            cores.pin_candidate(process.id());
        }
        Ok(process)
    }

    /// On a CPU target the cores that would compile ahead are the ones the candidate's build needs.
    fn compiles_ahead(&self) -> bool {
        self.config.target == Target::Cuda && self.config.compile_mode.is_some()
    }

    pub(super) fn launch_ahead_compiler(&self) -> Result<Option<AheadCompiler>, JudgeError> {
        if !self.compiles_ahead() {
            return Ok(None);
        }
        let process = PythonProcess::start(process::ProcessLaunch {
            name: "compiler",
            target: self.config.target,
            script: "compile_ahead.py",
            arguments: Vec::new(),
            environment: self.compiler_environment(),
            python: &self.config.python,
            harness: &self.harness.dir,
        })?;
        Ok(Some(AheadCompiler {
            process,
            greeted: false,
            task_hash: None,
        }))
    }

    /// Where a task is new, gets ready to measure its baselines beside everything that needs none. Where it is known,
    /// nothing is started that would import PyTorch while somebody is timed.
    pub(super) fn prepare_for_baselines(&mut self, task: &Task) -> Result<(), JudgeError> {
        let hash = task_hash(task);
        if self.baseline_path(&hash, Precision::Fp32).exists() {
            return Ok(());
        }
        if self.baseline.is_none() {
            self.baseline = Some(self.launch_baseline()?);
        }
        self.compile_ahead(task, hash)
    }

    fn compile_ahead(&mut self, task: &Task, hash: String) -> Result<(), JudgeError> {
        let at = self
            .ahead_compiler
            .as_ref()
            .and_then(|ahead| ahead.task_hash.as_ref());
        let Some(mode) = self.config.compile_mode.clone() else {
            return Ok(());
        };
        if !self.compiles_ahead() || at == Some(&hash) {
            return Ok(());
        }
        // One that is still at work on a task nobody waits for any more is of no use.
        if self
            .ahead_compiler
            .as_ref()
            .is_none_or(|ahead| ahead.task_hash.is_some())
        {
            self.ahead_compiler = self.launch_ahead_compiler()?;
        }
        if let Some(ahead) = &mut self.ahead_compiler {
            ahead.process.send_request(&json!({
                "source": task.source, "target": self.config.target.name(), "mode": mode, "tf32": false,
            }))?;
            ahead.task_hash = Some(hash);
        }
        Ok(())
    }

    /// Waits until nothing is compiled any more. What could not be compiled, the baseline process will tell.
    fn await_ahead_compiler(&mut self) -> Result<(), JudgeError> {
        let Some(ahead) = self
            .ahead_compiler
            .as_mut()
            .filter(|ahead| ahead.task_hash.is_some())
        else {
            return Ok(());
        };
        if !ahead.greeted {
            ahead.process.await_hello()?;
            ahead.greeted = true;
        }
        let settled = ahead.process.channel().receive(COMPILE_LIMIT);
        ahead.task_hash = None;
        if settled.is_err() {
            self.ahead_compiler = None;
        }
        Ok(())
    }

    fn compiler_environment(&self) -> Vec<(String, String)> {
        let mut environment = self.trusted_environment();
        environment.push((
            "TORCHINDUCTOR_CACHE_DIR".to_owned(),
            self.config.caches.compile().display().to_string(),
        ));
        environment.push((
            "TRITON_CACHE_DIR".to_owned(),
            self.config
                .caches
                .compile()
                .join("triton")
                .display()
                .to_string(),
        ));
        environment
    }

    pub(super) fn trusted_environment(&self) -> Vec<(String, String)> {
        let mut environment = zygote::device_environment(self.config.target, self.config.device);
        environment.push(("PATH".to_owned(), std::env::var("PATH").unwrap_or_default()));
        environment.push(("HOME".to_owned(), std::env::var("HOME").unwrap_or_default()));
        environment.push((
            "OMP_NUM_THREADS".to_owned(),
            self.worker_limits.threads.to_string(),
        ));
        environment
    }

    pub(super) fn launch_zygote(&self) -> Result<Zygote, JudgeError> {
        Zygote::start(&zygote::ZygoteLaunch {
            python: &self.config.python,
            harness: &self.harness,
            target: self.config.target,
            device: self.config.device,
            isolation: self.config.isolation,
            allowance: self.worker_limits.clone(),
        })
    }

    pub(super) fn trusted(&mut self) -> Result<&mut TrustedProcess, JudgeError> {
        if self
            .trusted
            .as_mut()
            .is_none_or(|trusted| !trusted.is_usable())
        {
            self.close_session();
            let process = match self.trusted_starting.take() {
                Some(process) => process,
                None => self.launch_trusted()?,
            };
            self.trusted = Some(TrustedProcess::await_hello(process)?);
        }
        self.trusted
            .as_mut()
            .ok_or_else(|| JudgeError::infrastructure("harness", "no trusted process"))
    }

    pub(super) fn fork(&mut self) -> Result<Worker, JudgeError> {
        if self
            .zygote
            .as_mut()
            .is_none_or(|zygote| !zygote.is_usable())
        {
            self.zygote = Some(self.launch_zygote()?);
        }
        match &mut self.zygote {
            Some(zygote) => {
                let worker = zygote.fork()?;
                if let (Some(cores), Some(pid)) = (&self.cores, worker.host_pid()) {
                    cores.pin_candidate(pid);
                }
                Ok(worker)
            }
            None => Err(JudgeError::infrastructure("zygote", "no zygote")),
        }
    }

    /// Has a worker ready that knows the task's memory and has run nothing of a candidate: on a GPU its context takes a
    /// fifth of a second, which passes while compilers run.
    pub(super) fn stand_by(&mut self) -> Result<(), JudgeError> {
        if self.standby.as_mut().is_some_and(Worker::is_idle) {
            return Ok(());
        }
        self.standby = None;
        let mut worker = self.fork()?;
        let (target, threads) = (self.config.target, self.worker_limits.threads);
        let (session, _) = self.session_and_trusted()?;
        let weights = session.loaded.weights_bytes;
        let (body, fds) = attach(&session.regions, weights, target, threads);
        let attached = worker
            .channel
            .request("attach", body, &fds, Duration::from_mins(1));
        let (attached, _) = attached.map_err(|error| {
            JudgeError::infrastructure("worker", format!("a worker could not attach: {error}"))
        })?;
        // No line of a candidate has run in it yet.
        session.regions.gate &= has_gate(&attached);
        self.standby = Some(worker);
        Ok(())
    }

    /// How the GPU runs now, for the evidence; null on a CPU.
    pub(super) fn clocks(&mut self) -> Result<Value, JudgeError> {
        match (&self.gpu, &mut self.trusted) {
            (Some(gpu), Some(trusted)) => trusted.clocks(&gpu.uuid),
            _ => Ok(Value::Null),
        }
    }

    /// The device, for as long as this judge has work on it: others compile meanwhile.
    pub(super) fn lease(&self) -> Result<DeviceLease, JudgeError> {
        lease_device(self.gpu.as_ref())
    }

    pub(super) fn environment(&self, clocks: &Value) -> BTreeMap<String, Value> {
        let hello = self
            .trusted
            .as_ref()
            .map(|trusted| trusted.hello.clone())
            .unwrap_or_default();
        BTreeMap::from([
            ("device".to_owned(), json!(self.device_name)),
            ("gpu".to_owned(), json!(self.gpu)),
            ("clocks".to_owned(), clocks.clone()),
            ("python".to_owned(), json!(self.config.python.version)),
            ("torch".to_owned(), json!(self.config.python.torch.version)),
            ("cxx".to_owned(), json!(self.toolchain.cxx.version)),
            (
                "nvcc".to_owned(),
                json!(
                    self.toolchain
                        .nvcc
                        .as_ref()
                        .map(|nvcc| nvcc.version.clone())
                ),
            ),
            ("threads".to_owned(), json!(self.worker_limits.threads)),
            ("warpsmith".to_owned(), json!(env!("CARGO_PKG_VERSION"))),
            ("trusted".to_owned(), hello),
        ])
    }

    pub(super) fn baseline_file(
        &self,
        precision: Precision,
    ) -> Result<std::path::PathBuf, JudgeError> {
        let session = self
            .session
            .as_ref()
            .ok_or_else(|| JudgeError::infrastructure("harness", "no task is loaded"))?;
        Ok(self.baseline_path(&session.task_hash, precision))
    }

    fn baseline_path(&self, task_hash: &str, precision: Precision) -> std::path::PathBuf {
        let device = match &self.gpu {
            Some(gpu) => format!("{} {} {}", gpu.name, gpu.uuid, gpu.driver),
            None => self.device_name.clone(),
        };
        let key = baseline::BaselineKey {
            task_hash,
            target: self.config.target,
            device: &device,
            torch: &self.config.python.torch.version,
            threads: self.worker_limits.threads,
            precision,
            mode: self.config.compile_mode.as_deref().unwrap_or("eager only"),
        };
        key.file(&self.config.caches.baselines())
    }

    /// Those measured here before, if the machine is as it was.
    pub(super) fn cached_baselines(
        &mut self,
        precision: Precision,
    ) -> Result<Option<Baselines>, JudgeError> {
        let kept = baseline::load(&self.baseline_file(precision)?);
        let regimes = self.session.as_ref().map(Session::regimes);
        let Some(kept) = kept.filter(|kept| Some(&kept.regimes) == regimes.as_ref()) else {
            return Ok(None);
        };
        let (_, trusted) = self.session_and_trusted()?;
        Ok(baseline::still_hold(&kept, trusted)?.then_some(kept))
    }

    pub(super) fn measure_baselines(
        &mut self,
        task: &Task,
        precision: Precision,
    ) -> Result<Baselines, JudgeError> {
        let file = self.baseline_file(precision)?;
        let mut process = match self.baseline.take() {
            Some(process) => process,
            None => self.launch_baseline()?,
        };
        process.await_hello()?;
        self.await_ahead_compiler()?;
        let (Some(session), Some(trusted)) = (&mut self.session, &mut self.trusted) else {
            return Err(JudgeError::infrastructure("harness", "no task is loaded"));
        };
        session.new_weights(trusted)?;
        let wanted = baseline::BaselineRequest {
            source: &task.source,
            target: self.config.target,
            threads: self.worker_limits.threads,
            precision,
            compile: self.config.compile_mode.as_deref(),
        };
        let floors: Vec<f64> = (session.loaded.variants.iter())
            .map(|variant| output_floor_us(wanted.target, variant.output_bytes as f64))
            .collect();
        let mut baselines = baseline::measure(&mut process, trusted, session, &wanted)?;
        if baselines.fault(&floors).is_some() {
            drop(process);
            process = self.launch_baseline()?;
            process.await_hello()?;
            let (Some(session), Some(trusted)) = (&mut self.session, &mut self.trusted) else {
                return Err(JudgeError::infrastructure("harness", "no task is loaded"));
            };
            baselines = baseline::measure(&mut process, trusted, session, &wanted)?;
        }
        if let Some(fault) = baselines.fault(&floors) {
            return Err(fault);
        }
        // One from a busy moment serves the judgement at hand and nobody after it.
        if baselines.is_quiet() {
            baseline::save(&file, &baselines)?;
        }
        drop(process);
        if self.config.target == Target::Cuda {
            // Its import runs beside the GPU's work; on the CPU target it would disturb what is timed next.
            self.baseline = Some(self.launch_baseline()?);
        }
        Ok(baselines)
    }
}
