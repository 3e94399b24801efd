//! `warpsmith mcp`

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use warpsmith_agent::mcp::{McpServer, serve};
use warpsmith_agent::{Workspace, WorkspaceError, skill};
use warpsmith_judge::{Cancellation, EvidencePlace, LocalJudge};
use warpsmith_store::evidence;

use crate::args::JudgingArgs;
use crate::engine::{choose, configure};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::source::Source;
use crate::{examples, interrupt};

/// Give the judge's tools to another agent, over MCP on stdin and stdout
///
/// Started by a client, for one task; PyTorch and the judge are started with its first call. Exit code 0: the client left.
/// 2: wrong usage or a broken task. 3: this machine.
#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// A `KernelBench` module, `FILE.jsonl#level1/19`, or an example's name
    task: Option<String>,
    /// The folder that the client edits; else one with the task's name, here
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    #[command(flatten)]
    judging: JudgingArgs,
}

pub(crate) fn run(args: &McpArgs, printer: &Printer) -> Result<Exit, Stop> {
    if printer.json() {
        let hint = "leave out `--json`; clients get verdicts as structured content".to_owned();
        let message = "`mcp` speaks a protocol of its own on stdout";
        return Err(Stop::config("usage", message, Some(hint)));
    }
    let source = match &args.task {
        Some(task) => Source::given(task, None)?,
        None => Source::example(examples::DEFAULT)?,
    };
    let task = source.task()?;
    let folder = args.workspace.clone();
    let folder = folder.unwrap_or_else(|| evidence::folder_name(&task.name).into());
    let workspace =
        Workspace::open_for_user(&folder, &task.source).map_err(|error| unusable(&error))?;
    printer.note(&format!("workspace: {}", workspace.root().display()));

    let cancellation = Cancellation::when(interrupt::happened);
    let judge = LocalJudge::lazy(configure(&args.judging, 1, printer))
        .keeping_evidence(EvidencePlace::Cache)
        .cancelled_by(cancellation.clone());
    let target = args.judging.machine.target;
    serve(McpServer {
        workspace,
        judge: Box::new(judge),
        task,
        cancellation,
        skill: Arc::new(move || skill(choose(target, None).0)),
        kill: interrupt::kill_descendants,
        interrupted: interrupt::happened,
    })?;
    Ok(Exit::DONE)
}

fn unusable(error: &WorkspaceError) -> Stop {
    let hint = match error {
        WorkspaceError::OtherTask { .. } => "name another folder with `--workspace DIR`",
        _ => "name a folder that can be written to with `--workspace DIR`",
    };
    Stop::config("workspace", error.to_string(), Some(hint.to_owned()))
}
