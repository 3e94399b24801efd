//! `warpsmith serve`

mod examine;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use warpsmith_judge::{Cancellation, EvidencePlace, Judge, LocalJudge};
#[cfg(feature = "local-models")]
use warpsmith_machine::SharedDevice;
use warpsmith_machine::{Caches, gpu_clocks, gpus, inspect_machine};
#[cfg(feature = "local-models")]
use warpsmith_model::GenerationThread;
use warpsmith_sandbox::{Isolation, effective};
use warpsmith_schema::{FORMAT, Target, Task};
#[cfg(feature = "local-models")]
use warpsmith_serve::ServedModel;
use warpsmith_serve::judging::{JudgeService, ServedTasks};
use warpsmith_serve::{ApiKeys, LookAtMachine, Offer, serve};
use warpsmith_store::evidence::EvidenceQuota;
use warpsmith_tasks::load_all;

use crate::args::{Count, JudgingArgs};
#[cfg(feature = "local-models")]
use crate::args::{LocalModelOptions, ModelOn};
use crate::engine::{choose, configure};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::source::Source;
#[cfg(feature = "local-models")]
use crate::{engine::expected_lease, language_model};
use crate::{examples, interrupt};

/// Serve a dashboard of runs, the judge, and a language model if one is named
///
/// Pages for a browser, `POST /v1/judge` and jobs for trainers (`/openapi.json` describes them), an environment of `OpenEnv` at `/ws`, and with
/// `--model` OpenAI's chat completions, until Ctrl-C, or SIGTERM, upon which running judgements end, waiting ones are sent away and the exit code
/// is 0. Exit code 2: wrong usage. 3: this machine. 130: Ctrl-C.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// `NAME[+ADAPTER…]`: a name of `models list`, a GGUF file or a safetensors folder
    #[cfg(feature = "local-models")]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// What runs the model
    #[cfg(feature = "local-models")]
    #[arg(long, value_enum, default_value_t)]
    model_on: ModelOn,
    /// The folder whose runs are shown
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    /// Tasks that are judged by name: a `KernelBench` folder, JSONL or module; else the embedded examples
    #[arg(long, value_name = "TASKS")]
    tasks: Option<PathBuf>,
    /// Let clients bring tasks of their own, which run outside the sandbox: trusts them as much as yourself
    #[arg(long)]
    client_tasks: bool,
    /// Judges side by side; else 4 for cuda and 1 for cpu
    #[arg(long, value_name = "N")]
    judges: Option<Count>,
    /// The address to listen on; one that other machines reach needs `--token` or `--token-file`
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// The port to listen on; 0 takes one that is free
    #[arg(long, value_name = "N", default_value_t = 8000)]
    port: u16,
    /// What clients must send as `Authorization: Bearer TOKEN`
    #[arg(
        long,
        value_name = "TOKEN",
        env = "WARPSMITH_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
    /// API keys, one a line, each with a name if its client is to be known by one; clients take turns
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// End when standard input is closed, as it is when the program that started this one ends
    #[arg(long)]
    until_stdin_closes: bool,
    #[command(flatten)]
    judging: JudgingArgs,
}

pub(crate) fn run(args: &ServeArgs, printer: &Printer) -> Result<Exit, Stop> {
    let token = args.token.as_deref().filter(|token| !token.is_empty());
    let address = address(&args.host, args.port)?;
    let keys = keys(token, args.token_file.as_deref())?;
    if keys.is_empty() && !address.ip().is_loopback() {
        let message = format!(
            "other machines reach `{}`, so clients need a token",
            args.host
        );
        let hint =
            "give one with `--token`, WARPSMITH_TOKEN or `--token-file`, or leave out `--host`";
        return Err(Stop::config("token", message, Some(hint.to_owned())));
    }
    // Before anything is fetched or read, which takes its time.
    let judge = judge_service(args, printer)?;
    #[cfg(feature = "local-models")]
    if let Some(model) = &args.model {
        language_model::check(model)?;
    }
    let listener = TcpListener::bind(address).map_err(|error| {
        let message = format!("failed to listen on `{address}`: {error}");
        let hint = "choose another port with `--port`, or 0 for one that is free";
        Stop::config("address", message, Some(hint.to_owned()))
    })?;
    let root = format!("http://{}", listener.local_addr()?);
    #[cfg(feature = "local-models")]
    let model = model(args, printer)?;
    #[cfg(feature = "local-models")]
    let (name, context) = model.as_ref().map_or((None, None), |served| {
        (Some(served.name.clone()), Some(served.context))
    });
    #[cfg(not(feature = "local-models"))]
    let (name, context) = (None::<String>, None::<usize>);
    let key = if keys.is_empty() {
        "anything"
    } else {
        "your token"
    };
    if printer.json() {
        printer.object(&json!({
            "format": FORMAT, "url": root, "base_url": format!("{root}/v1"), "model": name, "context": context,
            "token_required": !keys.is_empty(),
        }))?;
    } else {
        printer.data(&format!("{root}\n"))?;
    }
    printer.note("served until Ctrl-C. To use it:");
    printer.note(&format!("  a browser              {root}"));
    printer.note(&format!(
        "  the judge              POST {root}/v1/judge; {root}/openapi.json says how"
    ));
    printer.note(&format!(
        "  an OpenEnv client      GenericEnvClient(base_url=\"{root}\")"
    ));
    if let Some(name) = name {
        printer.note(&format!(
            "  any client of OpenAI   OPENAI_BASE_URL={root}/v1 OPENAI_API_KEY={key}, model `{name}`"
        ));
        printer.note(&format!(
            "  an agent of ours       warpsmith optimize --policy openai:{name} --base-url {root}/v1"
        ));
    }
    if args.until_stdin_closes {
        interrupt::when_stdin_closes()?;
    }
    interrupt::drain_on_terminate();
    serve(
        listener,
        Offer {
            #[cfg(feature = "local-models")]
            model,
            judge,
            runs: args.runs.clone(),
            look_at_machine: machine(args)?,
            examine: examine::examiner(&args.judging, printer),
            keys,
            sockets: sockets(),
            draining: interrupt::terminated,
            interrupted: interrupt::happened,
        },
    )?;
    Ok(Exit::DONE)
}

/// Who is answered.
fn keys(token: Option<&str>, file: Option<&Path>) -> Result<ApiKeys, Stop> {
    let text = file.map(fs_err::read_to_string).transpose();
    let text = text.map_err(|error| {
        let hint = "give a readable file with a key a line: `--token-file FILE`";
        Stop::config("token_file", error.to_string(), Some(hint.to_owned()))
    })?;
    ApiKeys::new(token, text.as_deref()).map_err(|error| {
        let name = file.map(|file| file.display().to_string());
        let message = format!("`{}` is no key file: {error}", name.unwrap_or_default());
        let hint = "a line is a key, then a name if its client is to have one; `#` begins a remark";
        Stop::config("token_file", message, Some(hint.to_owned()))
    })
}

/// Sockets that may be open at a time, of what this process may have open. More than a training run has requests in flight.
fn sockets() -> usize {
    const WANTED: u64 = 4096;
    /// For logs, evidence and the processes of judges.
    const OTHERS: u64 = 512;
    let limit = getrlimit(Resource::Nofile);
    let (mut current, most) = (
        limit.current.unwrap_or(u64::MAX),
        limit.maximum.unwrap_or(u64::MAX),
    );
    let raised = most.min(WANTED + OTHERS);
    if current < raised {
        let raised_limit = Rlimit {
            current: Some(raised),
            maximum: limit.maximum,
        };
        if setrlimit(Resource::Nofile, raised_limit).is_ok() {
            current = raised;
        }
    }
    let left = current.saturating_sub(OTHERS).clamp(128, WANTED);
    usize::try_from(left).unwrap_or(128)
}

/// Evidence of all servers of this user: about as much as can still be asked about. Past it the oldest goes.
const MAX_BUNDLES: usize = 10_000;

/// Judges that are started with the first submission.
fn judge_service(args: &ServeArgs, printer: &Printer) -> Result<JudgeService, Stop> {
    if args.judging.judging_options().isolation == Isolation::Weak {
        let message = "what comes over a network is judged with every protection or not at all";
        let hint = "leave out `--isolation weak`";
        return Err(Stop::config("isolation", message, Some(hint.to_owned())));
    }
    // Without a Python yet: with the first submission it may turn out to be the other.
    let (target, _) = choose(args.judging.machine.target, None);
    let usual = match target {
        Target::Cuda => 4,
        Target::Cpu => 1,
    };
    let count = args.judges.map_or(usual, |count| u32::from(count) as usize);
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let served = Caches::locate()?.evidence().join("served");
    let begun = served.join(format!("{now}-{}", std::process::id()));
    let configure = configure(&args.judging, count, printer);
    let judge = |number: usize| -> Box<dyn Judge> {
        // A folder each, since two may be at the same submission; and for this server only: a verdict of another, perhaps on
        // another device or by older rules, does not stand.
        let judge = LocalJudge::lazy(configure.clone())
            .keeping_evidence(EvidencePlace::ByHash {
                folder: begun.join(number.to_string()),
                quota: Some(EvidenceQuota {
                    folder: served.clone(),
                    max_bundles: MAX_BUNDLES,
                }),
            })
            .cancelled_by(Cancellation::when(interrupt::happened));
        Box::new(judge)
    };
    Ok(JudgeService {
        judges: (0..count).map(judge).collect(),
        tasks: ServedTasks {
            tasks: tasks(args)?.into_iter().map(Arc::new).collect(),
            client_tasks: args.client_tasks,
            instructions: warpsmith_agent::skill(target),
        },
        target,
    })
}

fn tasks(args: &ServeArgs) -> Result<Vec<Task>, Stop> {
    match &args.tasks {
        Some(path) => Ok(load_all(path)?),
        None => examples::names()
            .into_iter()
            .map(|name| Source::example(name)?.task())
            .collect(),
    }
}

/// What `doctor` says, and how busy each GPU is just now.
fn machine(args: &ServeArgs) -> Result<LookAtMachine, Stop> {
    let (choice, caches) = (args.judging.machine.python.choice(), Caches::locate()?);
    let isolation = serde_json::to_value(effective())?;
    // What does not change is found out once, and the rest not more often than anybody can read.
    let (found, latest) = (OnceLock::new(), Mutex::new(None::<(Instant, Value)>));
    Ok(Arc::new(move || {
        let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, known)) = &*latest
            && at.elapsed() < Duration::from_secs(2)
        {
            return known.clone();
        }
        let report = found.get_or_init(|| {
            let report = inspect_machine(&choice, &caches, Some(isolation.clone()));
            serde_json::to_value(report).unwrap_or_default()
        });
        let now: Vec<Value> = gpus()
            .into_iter()
            .map(|gpu| json!({ "gpu": gpu.index, "name": gpu.name, "now": gpu_clocks(gpu.index) }))
            .collect();
        let mut all = json!({ "gpus_now": now });
        if let (Value::Object(all), Value::Object(report)) = (&mut all, report) {
            all.extend(report.clone());
        }
        *latest = Some((Instant::now(), all.clone()));
        all
    }))
}

#[cfg(feature = "local-models")]
fn model(args: &ServeArgs, printer: &Printer) -> Result<Option<ServedModel>, Stop> {
    let Some(name) = &args.model else {
        return Ok(None);
    };
    let machine = &args.judging.machine;
    let model_options = LocalModelOptions {
        offline: machine.python.offline,
        on: args.model_on,
        device: machine.device,
    };
    let loaded = language_model::load(name, model_options, printer)?;
    // It rests while a judgement has the device alone, whichever that will be.
    let guest = SharedDevice::open(&expected_lease(&args.judging.machine))?;
    Ok(Some(ServedModel {
        context: loaded.engine.context(),
        generation: GenerationThread::start(loaded.engine, Some(guest))?,
        dialogue: loaded.dialogue,
        name: name.clone(),
    }))
}

fn address(host: &str, port: u16) -> Result<SocketAddr, Stop> {
    let found = (host, port).to_socket_addrs().ok();
    found.and_then(|mut found| found.next()).ok_or_else(|| {
        let hint = "give an address of this machine, such as 127.0.0.1, ::1 or 0.0.0.0";
        let message = format!("there is no host `{host}`");
        Stop::config("address", message, Some(hint.to_owned()))
    })
}
