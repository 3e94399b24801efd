//! What a client sees: five tools, and the skill as a prompt and as a resource.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, GetPromptRequestParams,
    GetPromptResponse, GetPromptResult, Implementation, ListPromptsResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, Prompt, PromptMessage,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource,
    ResourceContents, Role, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Mutex, oneshot};
use warpsmith_schema::{ToolCall, ToolSchema};

use super::ROUND;
use super::clerk::{Order, Told};
use crate::tools::judging::NAMES;
use crate::tools::schemas;

const PROMPT: &str = "optimize";
const SKILL: &str = "warpsmith://skill";
/// Between two notifications of progress: some clients give up on a server that is silent for long.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

pub(super) struct Server {
    root: PathBuf,
    /// Who holds it has the clerk to itself.
    orders: Mutex<mpsc::Sender<Order>>,
    skill: Arc<dyn Fn() -> String + Send + Sync>,
    abandon: Arc<dyn Fn() + Send + Sync>,
}

impl Server {
    pub(super) fn new(
        root: PathBuf,
        orders: mpsc::Sender<Order>,
        skill: Arc<dyn Fn() -> String + Send + Sync>,
        abandon: Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self {
            root,
            orders: Mutex::new(orders),
            skill,
            abandon,
        }
    }

    async fn ask(
        &self,
        call: ToolCall,
        context: &RequestContext<RoleServer>,
    ) -> Result<Told, ErrorData> {
        let cancelled = || ErrorData::internal_error("cancelled", None);
        let gone = || {
            let message = "the judge's thread has ended; start the server again";
            ErrorData::internal_error(message, None)
        };
        let orders = tokio::select! {
            orders = self.orders.lock() => orders,
            () = context.ct.cancelled() => return Err(cancelled()),
        };
        let (reply, mut told) = oneshot::channel();
        orders.send(Order { call, reply }).map_err(|_| gone())?;
        tokio::select! {
            biased;
            told = &mut told => return told.map_err(|_| gone()),
            () = context.ct.cancelled() => {}
        }
        // A judge whose processes died starts others, once.
        while matches!(told.try_recv(), Err(TryRecvError::Empty)) {
            (self.abandon)();
            tokio::time::sleep(ROUND).await;
        }
        Err(cancelled())
    }

    async fn skill(&self) -> Result<String, ErrorData> {
        let skill = self.skill.clone();
        let text = tokio::task::spawn_blocking(move || skill()).await;
        let text = text.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(format!("{text}\n{}\n", self.place()))
    }

    fn place(&self) -> String {
        format!(
            "The workspace is `{}`; `model.py` lies there. Write `model_new.py` and `kernels/` beside it with your own tools: \
             every call looks at what lies there at that moment.",
            self.root.display()
        )
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_prompts()
            .enable_resources()
            .build();
        let instructions = format!(
            "Judges a PyTorch module rewritten with kernels of its own: compiles, verifies and times it. {} The resource \
             `{SKILL}` says what is judged and how to work: read it first. A first judgement takes a minute or two.",
            self.place()
        );
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("warpsmith", env!("CARGO_PKG_VERSION")))
            .with_instructions(instructions)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let ours = schemas().into_iter();
        let ours = ours.filter(|tool| NAMES.contains(&tool.name.as_str()));
        Ok(ListToolsResult::with_all_items(ours.map(tool).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !NAMES.contains(&request.name.as_ref()) {
            let message = format!(
                "there is no tool `{}`; there are {}",
                request.name,
                NAMES.join(", ")
            );
            return Err(ErrorData::invalid_params(message, None));
        }
        let call = ToolCall {
            id: context.id.to_string(),
            name: request.name.into_owned(),
            arguments: request.arguments.map_or(Value::Null, Value::Object),
        };
        let doing = format!("{}: at work", call.name);
        let told = tokio::select! {
            told = self.ask(call, &context) => told?,
            never = show_life(&doing, &context) => match never {},
        };
        let mut result = CallToolResult::success(vec![ContentBlock::text(told.text)]);
        result.structured_content = told.structured;
        result.is_error = Some(told.failed);
        Ok(result.into())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let description = "Write a faster module for the task in the workspace";
        let prompt = Prompt::new(PROMPT, Some(description), None);
        Ok(ListPromptsResult::with_all_items(vec![prompt]))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        if request.name != PROMPT {
            let message = format!("there is no prompt `{}`; there is `{PROMPT}`", request.name);
            return Err(ErrorData::invalid_params(message, None));
        }
        let message = PromptMessage::new_text(Role::User, self.skill().await?);
        Ok(GetPromptResult::new(vec![message]).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let skill = Resource::new(SKILL, "skill")
            .with_description("What is judged, and how to write a faster module")
            .with_mime_type("text/markdown");
        Ok(ListResourcesResult::with_all_items(vec![skill]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        if request.uri != SKILL {
            let message = format!("there is no resource `{}`; there is `{SKILL}`", request.uri);
            return Err(ErrorData::resource_not_found(message, None));
        }
        let text = ResourceContents::text(self.skill().await?, SKILL);
        let text = text.with_mime_type("text/markdown");
        Ok(ReadResourceResult::new(vec![text]).into())
    }
}

fn tool(schema: ToolSchema) -> Tool {
    let submits = schema.name == "submit";
    let description = if submits {
        "Judge the solution anew and, if it passes, keep it as a result.".to_owned()
    } else {
        schema.description
    };
    let parameters = match schema.parameters {
        Value::Object(fields) => fields,
        _ => serde_json::Map::new(),
    };
    // Only what `submit` does is seen in the workspace afterwards, and none of them reaches beyond this machine.
    let annotations = ToolAnnotations::new()
        .read_only(!submits)
        .destructive(false)
        .open_world(false);
    Tool::new(schema.name, description, Arc::new(parameters)).with_annotations(annotations)
}

/// Tells a client that asked for it that the call goes on.
async fn show_life(doing: &str, context: &RequestContext<RoleServer>) -> std::convert::Infallible {
    let Some(token) = context.meta.get_progress_token() else {
        return std::future::pending().await;
    };
    let begun = Instant::now();
    loop {
        let seconds = begun.elapsed().as_secs_f64();
        let sign = ProgressNotificationParam::new(token.clone(), seconds).with_message(doing);
        // A client that cannot be written to is gone, which the protocol's own loop finds out.
        let _ = context.peer.notify_progress(sign).await;
        tokio::time::sleep(SIGN_OF_LIFE).await;
    }
}
