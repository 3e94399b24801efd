//! From flags to a judge: caches, a Python, a target.

use std::sync::{Arc, Mutex, PoisonError};

use warpsmith_judge::{Configure, JudgeConfig, JudgeError, JudgePool};
use warpsmith_machine::{Caches, GpuInfo, Python, cpu, ensure_python, find_nvcc, gpus};
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{Profile, Rules, Target};

use crate::args::{
    IsolationChoice, JudgingArgs, MachineArgs, ProfileChoice, PythonArgs, TargetChoice,
};
use crate::failure::Stop;
use crate::fleet::{Fleet, FleetArgs};
use crate::printer::Printer;

/// What kernels will run on and what Python judges them.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) caches: Caches,
    pub(crate) python: Python,
    pub(crate) target: Target,
    device: u32,
    /// Whose workers judge, in place of this machine.
    pub(crate) fleet: Option<Fleet>,
}

/// How to judge, beyond where.
#[derive(Debug, Clone)]
pub(crate) struct JudgingOptions {
    pub(crate) profile: Profile,
    pub(crate) rules: Rules,
    pub(crate) isolation: Isolation,
    pub(crate) compile_mode: Option<String>,
    pub(crate) seed: Option<u64>,
}

impl JudgingArgs {
    pub(crate) fn judging_options(&self) -> JudgingOptions {
        JudgingOptions {
            profile: self.profile.into(),
            rules: self.rules.into(),
            isolation: self.isolation.into(),
            compile_mode: (!self.no_compile).then(|| "default".to_owned()),
            seed: None,
        }
    }
}

impl Engine {
    /// Fetches torch if it must, and says beforehand how long and how large.
    pub(crate) fn python(args: &PythonArgs, printer: &Printer) -> Result<(Python, Caches), Stop> {
        let caches = Caches::locate()?;
        let progress = printer.progress();
        let python = ensure_python(&args.choice(), &caches, progress.as_ref(), args.offline)
            .map_err(|error| Stop::python(error, &args.choice()))?;
        if !python.torch.tested() {
            printer.note(&format!(
                "warning: torch {} is outside the tested range",
                python.torch.version
            ));
        }
        Ok((python, caches))
    }

    /// With torch, and with the target that this machine has.
    pub(crate) fn prepare(args: &MachineArgs, printer: &Printer) -> Result<Self, Stop> {
        let (python, caches) = Self::python(&args.python, printer)?;
        let (target, why) = choose(args.target, Some(&python));
        if let Some(why) = why {
            printer.note(&format!("target: {} ({why})", target.name()));
        }
        Ok(Self {
            caches,
            python,
            target,
            device: args.device,
            fleet: None,
        })
    }

    /// The same, for a fleet if one is named: kernels run on what its workers have.
    pub(crate) fn prepare_for(
        fleet: &FleetArgs,
        args: &MachineArgs,
        isolation: Isolation,
        printer: &Printer,
    ) -> Result<Self, Stop> {
        // A wrong address should not cost an installation of PyTorch.
        let Some(fleet) = fleet.connect(args, isolation, printer)? else {
            return Self::prepare(args, printer);
        };
        let (python, caches) = Self::python(&args.python, printer)?;
        Ok(Self {
            caches,
            python,
            target: fleet.target(),
            device: args.device,
            fleet: Some(fleet),
        })
    }

    pub(crate) fn options(&self, judging_options: JudgingOptions) -> JudgeConfig {
        JudgeConfig {
            target: self.target,
            device: self.device,
            profile: judging_options.profile,
            rules: judging_options.rules,
            isolation: judging_options.isolation,
            compile_mode: judging_options.compile_mode,
            seed: judging_options.seed,
            pool: None,
            caches: self.caches.clone(),
            python: self.python.clone(),
        }
    }

    /// What kernels run on, by name.
    pub(crate) fn device_name(&self) -> String {
        match &self.fleet {
            Some(fleet) => fleet.device().to_owned(),
            None => self.gpu().map_or_else(|| cpu().name, |gpu| gpu.name),
        }
    }

    /// The name under which the device is leased.
    pub(crate) fn lease(&self) -> String {
        lease_of(self.gpu())
    }

    fn gpu(&self) -> Option<GpuInfo> {
        gpu_of(self.target, self.device)
    }
}

/// How to judge, found out with the first call: whoever never has anything judged never fetches PyTorch. So many judges share
/// what was found.
pub(crate) fn configure(judging: &JudgingArgs, judges: usize, printer: &Printer) -> Configure {
    let (machine, judging_options) = (judging.machine.clone(), judging.judging_options());
    let (found, printer) = (Mutex::new(None::<JudgeConfig>), printer.clone());
    Arc::new(move || {
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = &*found {
            return Ok(config.clone());
        }
        let engine =
            Engine::prepare(&machine, &printer).map_err(|stop| JudgeError::Around(stop.0))?;
        let config = JudgeConfig {
            pool: Some(JudgePool::of(judges)),
            ..engine.options(judging_options.clone())
        };
        Ok(found.insert(config).clone())
    })
}

/// What a model on this machine shares with whoever will judge here, before there is a Python.
#[cfg(feature = "local-models")]
pub(crate) fn expected_lease(args: &MachineArgs) -> String {
    let (target, _) = choose(args.target, None);
    lease_of(gpu_of(target, args.device))
}

fn gpu_of(target: Target, device: u32) -> Option<GpuInfo> {
    let mut gpus = gpus().into_iter();
    gpus.find(|gpu| target == Target::Cuda && gpu.index == device)
}

fn lease_of(gpu: Option<GpuInfo>) -> String {
    gpu.map_or_else(|| "cpu".to_owned(), |gpu| gpu.uuid)
}

/// The target, and why where it was ours to choose. Without a Python yet, one with CUDA is assumed.
pub(crate) fn choose(
    choice: TargetChoice,
    python: Option<&Python>,
) -> (Target, Option<&'static str>) {
    match choice {
        TargetChoice::Cuda => (Target::Cuda, None),
        TargetChoice::Cpu => (Target::Cpu, None),
        TargetChoice::Auto if gpus().is_empty() => (Target::Cpu, Some("no GPU was found")),
        TargetChoice::Auto if find_nvcc().is_none() => {
            (Target::Cpu, Some("there is a GPU, but no nvcc"))
        }
        TargetChoice::Auto if python.is_some_and(|python| python.torch.cuda.is_none()) => (
            Target::Cpu,
            Some("there is a GPU, but torch was built for the CPU"),
        ),
        TargetChoice::Auto => (Target::Cuda, Some("GPU, nvcc and CUDA torch found")),
    }
}

impl From<ProfileChoice> for Profile {
    fn from(choice: ProfileChoice) -> Self {
        match choice {
            ProfileChoice::Full => Self::Full,
            ProfileChoice::Rl => Self::Rl,
            ProfileChoice::Verify => Self::Verify,
        }
    }
}

impl From<IsolationChoice> for Isolation {
    fn from(choice: IsolationChoice) -> Self {
        match choice {
            IsolationChoice::Strict => Self::Strict,
            IsolationChoice::Weak => Self::Weak,
        }
    }
}
