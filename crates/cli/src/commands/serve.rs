//! `warpsmith serve`

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use clap::Args;
use serde_json::json;
use warpsmith_schema::FORMAT;
use warpsmith_serve::{Offer, Token, serve};

use crate::args::{Means, ModelOn};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::{interrupt, language_model};

/// Serve a language model to whatever speaks OpenAI's chat completions
///
/// `POST /v1/chat/completions`, `GET /v1/models` and `GET /healthz`, until Ctrl-C. Replies of several clients are generated
/// together. Exit code 2: wrong usage. 3: this machine. 130: Ctrl-C.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// `NAME[+ADAPTER…]`: a name of `models list`, a GGUF file or a safetensors folder
    #[arg(long, value_name = "MODEL", default_value = "qwen2.5-coder-1.5b")]
    model: String,
    /// The address to listen on; one that other machines reach needs `--token`
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
    /// What runs the model
    #[arg(long, value_enum, default_value_t)]
    model_on: ModelOn,
    /// Which GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,
    /// Fetch nothing from the network
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(args: &ServeArgs, printer: &Printer) -> Result<Exit, Stop> {
    let token = args.token.as_deref().filter(|token| !token.is_empty());
    let address = address(&args.host, args.port)?;
    if token.is_none() && !address.ip().is_loopback() {
        let message = format!(
            "other machines reach `{}`, so clients need a token",
            args.host
        );
        let hint = "give one with `--token` or WARPSMITH_TOKEN, or leave out `--host`";
        return Err(Stop::config("token", message, Some(hint.to_owned())));
    }
    language_model::check(&args.model)?;
    let means = Means {
        offline: args.offline,
        on: args.model_on,
        device: args.device,
    };
    // Before the weights are read, which takes its time.
    let listener = TcpListener::bind(address).map_err(|error| {
        let message = format!("failed to listen on `{address}`: {error}");
        let hint = "choose another port with `--port`, or 0 for one that is free";
        Stop::config("address", message, Some(hint.to_owned()))
    })?;
    let base_url = format!("http://{}/v1", listener.local_addr()?);
    let model = language_model::load(&args.model, means, printer)?;
    if printer.json() {
        printer.object(&json!({
            "format": FORMAT, "base_url": base_url, "model": args.model, "context": model.engine.context(),
            "token_required": token.is_some(),
        }))?;
    } else {
        printer.data(&format!("{base_url}\n"))?;
    }
    printer.note(&format!(
        "`{}` is served until Ctrl-C. To use it:",
        args.model
    ));
    let key = if token.is_some() {
        "your token"
    } else {
        "anything"
    };
    printer.note(&format!(
        "  any client of OpenAI   OPENAI_BASE_URL={base_url} OPENAI_API_KEY={key}, model `{}`",
        args.model
    ));
    printer.note(&format!(
        "  an agent of ours       warpsmith optimize --policy openai:{} --base-url {base_url}",
        args.model
    ));
    serve(
        listener,
        Offer {
            model,
            name: args.model.clone(),
            token: token.map(Token::new),
            interrupted: interrupt::happened,
        },
    )?;
    Ok(Exit::DONE)
}

fn address(host: &str, port: u16) -> Result<SocketAddr, Stop> {
    let found = (host, port).to_socket_addrs().ok();
    found.and_then(|mut found| found.next()).ok_or_else(|| {
        let hint = "give an address of this machine, such as 127.0.0.1, ::1 or 0.0.0.0";
        let message = format!("there is no host `{host}`");
        Stop::config("address", message, Some(hint.to_owned()))
    })
}
