//! The serve program: OpenAI's API for a model. [`crate::serve`] does the work. The manual is `docs/serve.md`.

use crate::cli::{
    device::{self, DeviceArguments, WeightsArgument},
    flags::with_flags,
    opened::{self, ModelSource},
    program, terminal,
};
use crate::serve::{
    ModelServer, ServedDecoder, ServedKind, ServedModel, ServedPredictor, ServedReranker, ServerOptions, ToolForm,
};
use crate::{Error, Result};
use bmtrain_core::Device;
use bmtrain_core::wrap::Counting;
use clap::Parser;
use model_center_base::error::ExitStatus;
use model_center_base::file::printable;
use model_center_base::stop_flag::StopFlag;
use model_center_formats::config::TextHead;
use model_center_formats::tokenizer::AutoTokenizer;
use model_center_models::adapter::{Adapter, tokenizer_directory};
use model_center_models::generate::{GenerationConfig, GenerationSetup};
use model_center_models::{CrossEncoder, OpenMode, OpenOptions, OpenedModel, Registry};
use model_center_recipe::run::listen;
use model_center_train::predict::{PredictOptions, PredictionKind, Predictor};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Serve a model in the form of OpenAI's API.
///
/// A decoder answers /v1/completions and /v1/chat/completions, a fine-tuned classifier of texts or words, or a model
/// for questions, /v1/predict and /classify, a reranker /v1/rerank too, an encoder /v1/embeddings; / is a page to chat
/// with the model, /metrics counts. Requests share passes of the model: those that come join between two tokens.
///
/// SIGINT and SIGTERM refuse new requests, let running ones end (--grace) and end the program with 0; a second SIGINT
/// ends it at once, with 130. Other exit codes: 2 for a wrong command line or an address in use, 3 for a model that
/// cannot be served, 5 where memory is refused.
///
/// Example: bmtrain serve HuggingFaceTB/SmolLM2-135M-Instruct --port 8000
#[derive(Debug, Clone, Parser)]
#[command(name = "serve", version)]
pub struct Options {
    /// Directory of Hugging Face or ModelCenter, a GGUF file, or the hub name of a model in its cache (program fetch).
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Files of the model, and its adapter.
    #[command(flatten)]
    pub source: ModelSource,
    /// Serve embeddings of a model that could generate texts or predict; an encoder does so by itself.
    #[arg(long)]
    pub embeddings: bool,
    /// Name of the model's chat template, of several with names; by default `default`.
    #[arg(long, value_name = "NAME", conflicts_with = "embeddings")]
    pub chat_template: Option<String>,
    /// The name of the model in requests and responses; by default the name of its directory.
    #[arg(long, value_name = "NAME")]
    pub served_name: Option<String>,
    /// The form of the model's tool calls; by default the one of its chat template.
    #[arg(long, value_enum, value_name = "FORM", conflicts_with = "embeddings")]
    pub tool_form: Option<ToolForm>,
    /// The address to listen on. Any but a loopback address requires a token.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// The port; 0 takes a free one.
    #[arg(long, value_name = "N", default_value_t = 8000)]
    pub port: u16,
    /// The file of the token that requests have to show (Authorization: Bearer TOKEN); white space at its ends does not
    /// count. Unlike --token it is not in the list of processes.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// The token itself.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// A name by which browsers may ask, beside localhost and addresses; may be repeated.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["token", "token_file"])]
    pub name: Vec<String>,
    /// Limits.
    #[command(flatten)]
    pub limits: Limits,
    /// Device and dtype of the computation.
    #[command(flatten)]
    pub device: DeviceArguments,
    /// Form of a GGUF file's blocks in memory.
    #[command(flatten)]
    pub held: WeightsArgument,
    /// Print only errors on standard error.
    #[arg(long)]
    pub quiet: bool,
}

/// Limits of requests.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// New tokens of a sequence; requests of more are refused.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub max_tokens: usize,
    /// Sequences that share passes; further ones wait.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_sequences: usize,
    /// Tokens of a pass: one for each running sequence, the rest for prompts, which are read in pieces.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub step_tokens: usize,
    /// Tokens of the KV caches of all sequences, prompts and new tokens; by default what a quarter of the available
    /// memory holds.
    #[arg(long, value_name = "N")]
    pub max_cached_tokens: Option<usize>,
    /// Requests that wait for the model; further ones are refused with 429.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_queue: usize,
    /// Connections at the same time; further ones are refused with 503.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_connections: usize,
    /// Bytes of the body of a request.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    pub max_body: usize,
    /// Seconds that a client has to send a request.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub read_timeout: u64,
    /// Seconds of a request, from its arrival to its last token.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub timeout: u64,
    /// Seconds that running requests have when the server is stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub grace: u64,
}

impl Options {
    /// The options of the library.
    fn server(&self) -> Result<ServerOptions> {
        let Limits { max_tokens, max_sequences, step_tokens, max_cached_tokens, max_queue, max_connections, .. } =
            self.limits;
        let Limits { max_body, read_timeout, timeout, grace, .. } = self.limits;
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|e| Error::file("read", path, e, "check the name"))?;
            Ok::<_, Error>(text.trim().to_owned())
        };
        let token = self.token_file.as_ref().map(read).transpose()?.or_else(|| self.token.clone());
        Ok(ServerOptions {
            address: self.host,
            port: self.port,
            token,
            names: self.name.clone(),
            body_bytes: max_body,
            connections: max_connections,
            queue: max_queue,
            new_tokens: max_tokens,
            sequences: max_sequences,
            step_tokens,
            cached_tokens: max_cached_tokens,
            read_timeout: Duration::from_secs(read_timeout),
            timeout: Duration::from_secs(timeout),
            grace: Duration::from_secs(grace),
        })
    }

    fn open_options(&self, (head, adapter): (Option<TextHead>, Option<&Adapter>), device: &Device) -> OpenOptions {
        let open = OpenOptions { head, weights: self.held.form(), ..GenerationSetup::open_options(device) };
        self.device.open_options(&self.source, adapter, open)
    }
}

/// The program: what a binary's `main` calls, with the families of its registry.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, run)
}

/// Run the program with the models of `registry`, until it is stopped.
///
/// # Errors
/// Options out of range; an address in use; a model that cannot be served.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    let server = ModelServer::bind(options.server()?).map_err(with_flags)?;
    let threads = options.device.threads()?;
    let (model, adapter) = opened::adapted(&options.model, &options.source)?;
    let directory = opened::resolve(&model, options.source.revision.as_deref(), options.held.weights)?;
    let (served, head) = prepare(options, (&directory, adapter.as_ref()), registry)?;
    let stop = StopFlag::default();
    let _listening = listen(&stop)?;
    let opened = device::open(options.device.device, (0, 1), threads, !options.quiet)?;
    options.held.check_device(opened.cuda.is_some())?;
    let device = Device::new(opened.backend);
    let open = options.open_options((head, adapter.as_ref()), &device);
    let model = match head {
        Some(TextHead::CausalLm) => GenerationSetup::open_model(&directory, registry, &open)?.model,
        _ => registry.open(&directory, &open)?.model,
    };
    let name = served.name.clone();
    let mut ready = |cached_tokens: usize| {
        let cache = if cached_tokens > 0 { format!(", KV cache of {cached_tokens} tokens") } else { String::new() };
        terminal::print(&format!("{}: http://{}/{cache}", printable(&name, 200), server.address()))
    };
    server.run(served, (&*model, &device), &stop, &mut ready)?;
    if !options.quiet {
        terminal::note("stopped");
    }
    Ok(ExitStatus::Done)
}

/// Refuses settings of conversations, which a model that generates no texts does not use.
fn refuse_of_chat(options: &Options) -> Result<()> {
    let given = [("--chat-template", options.chat_template.is_some()), ("--tool-form", options.tool_form.is_some())];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(Error::without_effect(flag, "the model generates no texts")),
        None => Ok(()),
    }
}

/// Everything that needs no weights: whether the model generates or embeds, its tokenizer and its settings.
fn prepare(
    options: &Options,
    (directory, adapter): (&Path, Option<&Adapter>),
    registry: Registry<'static>,
) -> Result<(ServedModel, Option<TextHead>)> {
    let check = |head: Option<TextHead>| -> Result<OpenedModel> {
        let device = Device::new(Arc::new(Counting::new(1 << 20)));
        let open = OpenOptions { mode: OpenMode::Check, ..options.open_options((head, adapter), &device) };
        registry.open(directory, &open)
    };
    let note = |opened: &OpenedModel| if options.quiet { Ok(()) } else { opened::note_opened(opened, directory) };
    let name = options.served_name.clone().unwrap_or_else(|| {
        // A hub's cache has the name in the argument; its directories are named by commits.
        Path::new(&options.model).file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into())
    });
    let created = ServedModel::time_of(directory);
    let predicts = |opened: &OpenedModel| {
        use TextHead::{Classification, QuestionAnswering, TokenClassification};
        let head = opened.model.info().head;
        opened.initialized.is_empty()
            && matches!(head, Classification { .. } | TokenClassification { .. } | QuestionAnswering)
    };
    // With the directory's own head; where it has none, other heads are tried below.
    let own = if options.embeddings { None } else { check(None).ok() };
    if let Some(opened) = own.as_ref().filter(|opened| predicts(opened)) {
        refuse_of_chat(options)?;
        note(opened)?;
        return Ok((ServedModel { name, created, kind: predictor((directory, adapter), opened)? }, None));
    }
    let generates = match own {
        _ if options.embeddings => None,
        Some(opened) if opened.model.info().head == TextHead::CausalLm => Some(opened),
        _ => match check(Some(TextHead::CausalLm)) {
            Ok(opened) => Some(opened),
            // An encoder has no head for the next token; a decoder's error is returned.
            Err(error @ (Error::Argument { .. } | Error::Recipe { .. })) => match check(Some(TextHead::None)) {
                Ok(opened) if opened.model.packed_decoding().is_err() => None,
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        },
    };
    if let Some(opened) = generates {
        if let Some(name) = opened.initialized.first() {
            let reason = format!("its weights have no {name}, which would be initialized at random");
            let fix = "use a model with a trained language-modelling head, or serve its --embeddings";
            return Err(Error::model(directory.display().to_string(), reason, fix));
        }
        opened.model.packed_decoding().map(drop)?;
        note(&opened)?;
        let info = opened.model.info();
        let mut setup = GenerationSetup::new(directory, info);
        setup.adapter = adapter.cloned();
        setup.open_tokenizer(false)?;
        setup.open_chat_template(options.chat_template.as_deref())?;
        let config = GenerationConfig::from_directory(directory, info.vocab_size)?;
        let kind = ServedKind::Decoder(Box::new(ServedDecoder { setup, config, tool_form: options.tool_form }));
        return Ok((ServedModel { name, created, kind }, Some(TextHead::CausalLm)));
    }
    let opened = check(Some(TextHead::None))?;
    note(&opened)?;
    Ok((ServedModel { name, created, kind: predictor((directory, adapter), &opened)? }, Some(TextHead::None)))
}

/// A model that predicts or embeds.
fn predictor((directory, adapter): (&Path, Option<&Adapter>), opened: &OpenedModel) -> Result<ServedKind> {
    let info = opened.model.info();
    let texts = tokenizer_directory(adapter, directory)?;
    let kind = PredictionKind::of(info, directory)?;
    let tokenizer = AutoTokenizer::open(texts)?;
    let reranker = |kind: &PredictionKind| -> Result<ServedReranker> {
        let encoder = CrossEncoder::from_directory(directory)?;
        let max_length = encoder.max_length.map(|most| most.min(info.max_length));
        let options = PredictOptions { max_length, ..PredictOptions::default() };
        Ok(ServedReranker { predictor: Predictor::new((kind.clone(), info), tokenizer.clone(), options)?, encoder })
    };
    let ranks = kind == PredictionKind::Numbers(1);
    let reranker = ranks.then(|| reranker(&kind).map_err(|error| error.to_string()));
    let predictor = Predictor::new((kind, info), tokenizer, PredictOptions::default())?;
    let predictor = predictor.with_chat_template(texts)?;
    Ok(ServedKind::Predictor(Box::new(ServedPredictor { predictor, vocab_size: info.vocab_size, reranker })))
}
