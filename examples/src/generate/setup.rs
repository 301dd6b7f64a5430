//! Everything that can be known before weights are read: the model's directory, its tokenizer, settings and prompts.
//!
//! Defines [`Job`] and [`prepare`], which `run` calls.

use super::Options;
use super::rows::{Reader, Row, Said};
use super::settings::{Settings, Surroundings};
use crate::device;
use crate::opened::{self, Stored};
use crate::places::model_places;
use crate::terminal;
use bmtrain_core::wrap::Counting;
use bmtrain_core::{DType, Device};
use bmtrain_dist::Launch;
use bmtrain_dist::launch::Launcher;
use bmtrain_dist::shard::Sharding;
use model_center::formats::Pretrained;
use model_center::generate::{GenerationDefaults, Generator, Method};
use model_center::model::{OpenOptions, Registry, TextHead, TextModel};
use model_center::tokenizer::{AutoTokenizer, ChatMessage, ChatTemplate, TextSpecials, Tokenizer};
use model_center::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Prompts of a file that are read side by side.
const ROWS_AT_A_TIME: usize = 8;
/// More would be a slip, and take the memory.
const MOST_AT_A_TIME: usize = 65_536;

/// What is to be done.
pub(super) struct Job {
    pub(super) options: Options,
    pub(super) registry: Registry<'static>,
    pub(super) directory: PathBuf,
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    pub(super) chat: Option<ChatTemplate>,
    pub(super) settings: Settings,
    pub(super) rows: Vec<Row>,
    /// Of each row.
    pub(super) ids: Vec<Vec<u32>>,
    pub(super) launch: Launch,
    /// Of all ranks of this process.
    pub(super) threads: usize,
    pub(super) batch: usize,
}

impl Job {
    /// How conversations and texts become ids.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader {
            options: &self.options.rows,
            tokenizer: self.tokenizer.as_deref(),
            with_specials: None,
            chat: self.chat.as_ref(),
            directory: &self.directory,
        }
    }

    /// Whether texts are shown while they come: where there is but one at a time, in plain print.
    pub(super) fn shows_pieces(&self) -> bool {
        let one = self.batch == 1 && self.settings.texts == 1 && self.launch.world == 1;
        one && !self.options.json
            && !self.options.echo
            && self.options.rows.input.is_none()
            && !matches!(self.settings.generate.method, Method::Beams(_))
    }
}

/// Check everything that needs no weights.
///
/// # Errors
/// The first thing that does not fit.
pub(super) fn prepare(options: &Options, registry: Registry<'static>) -> Result<Job> {
    check_options(options)?;
    let launch = Launch::detect(options.ranks, &|name| std::env::var(name).ok())?;
    if launch.world > 1 && launch.launcher != Launcher::Threads {
        let reason = format!("{} started {} processes, and one writes the texts", launch.launcher.name(), launch.world);
        return Err(Error::argument("ranks", reason, "start it once, with --ranks"));
    }
    let threads = device::threads(options.threads)?;
    let rows = options.rows.rows()?;
    refuse_output(options)?;
    let directory = resolve(options)?;
    let model = sketch(options, &registry, &directory)?;
    let is_text = |row: &Row| !matches!(row.said, Said::Ids(_));
    let tokenizers = Tokenizers::open(options, &directory, options.is_conversation() || rows.iter().any(is_text))?;
    if let Some(tokenizer) = &tokenizers.tokenizer {
        tokenizer.require_rows(model.info().vocab_size)?;
    }
    let settings = settings(options, &directory, &*model, &tokenizers)?;
    let wants_chat = options.rows.chat || rows.iter().any(|row| matches!(row.said, Said::Messages(_)));
    let chat = if wants_chat { ChatTemplate::from_directory(&directory)? } else { None };
    let batch = options.batch.unwrap_or(if options.rows.input.is_some() { ROWS_AT_A_TIME } else { 1 });
    let Tokenizers { tokenizer, with_specials } = tokenizers;
    let (options, ids) = (options.clone(), Vec::new());
    let job = Job { options, registry, directory, tokenizer, chat, settings, rows, ids, launch, threads, batch };
    let with_specials = with_specials.as_deref().filter(|_| job.options.rows.special_tokens);
    let reader = Reader { with_specials, ..job.reader() };
    if job.options.is_conversation() {
        // Whether there is a template that takes one.
        reader.conversation(&[ChatMessage::new("user", "?")])?;
    }
    let ids = job.rows.iter().map(|row| reader.ids(row, &*model)).collect::<Result<_>>()?;
    Ok(Job { ids, ..job })
}

/// How words are chosen, as far as the model can do so.
fn settings(options: &Options, directory: &Path, model: &dyn TextModel, tokenizers: &Tokenizers) -> Result<Settings> {
    let defaults = GenerationDefaults::from_directory(directory, model.info().vocab_size)?;
    let tokenizer = tokenizers.tokenizer.as_deref();
    let around = Surroundings {
        defaults: &defaults,
        tokenizer,
        generates_targets: model.info().generates_targets,
        prefix: prefix(options, tokenizers.with_specials.as_deref().or(tokenizer), model)?,
    };
    let settings = Settings::resolve(&options.method, &around)?;
    Generator::new(model, tokenizer, settings.generate.clone()).map_err(|error| settings.blame(error))?;
    if !settings.left_aside.is_empty() && !options.quiet && !options.print_config {
        terminal::note(&format!(
            "the model's directory has settings that are not followed: {}",
            settings.left_aside.join(", ")
        ));
    }
    if options.is_conversation() && settings.texts > 1 {
        let reason = format!("{} texts of each answer, and a conversation goes on from one", settings.texts);
        return Err(Error::argument("--chat", reason, "leave --texts and --best out"));
    }
    Ok(settings)
}

/// Options without effect or sense.
fn check_options(options: &Options) -> Result<()> {
    let rows = &options.rows;
    if rows.prompt.is_empty() && rows.input.is_none() && !rows.chat && !options.print_config {
        let fix = "give --prompt \"...\", --input rows.jsonl, or --chat to talk";
        return Err(Error::argument("--prompt", "there is nothing to go on from", fix));
    }
    let is_wrong = |batch: &usize| *batch == 0 || *batch > MOST_AT_A_TIME;
    if let Some(batch) = options.batch.filter(is_wrong) {
        let reason = format!("{batch} prompts at a time");
        return Err(Error::argument("--batch", reason, format!("use a number from 1 to {MOST_AT_A_TIME}")));
    }
    if options.is_conversation() {
        let given = [
            ("--batch", options.batch.is_some()),
            ("--ranks", options.ranks.is_some_and(|ranks| ranks > 1)),
            ("--template", rows.template.is_some()),
        ];
        if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
            let reason = "a conversation has one prompt at a time, on one rank, as it is typed";
            return Err(Error::argument(*name, reason, "leave it out, or give --prompt or --input"));
        }
    }
    Ok(())
}

/// An output that is there is somebody's.
fn refuse_output(options: &Options) -> Result<()> {
    match &options.output {
        Some(output) if output.is_dir() => {
            Err(Error::argument(output.display().to_string(), "the output is a directory", "name a file"))
        }
        Some(output) if !options.overwrite && output.symlink_metadata().is_ok() => {
            let fix = "name another file, or replace it with --overwrite";
            Err(Error::argument(output.display().to_string(), "the output is there already", fix))
        }
        _ => Ok(()),
    }
}

fn resolve(options: &Options) -> Result<PathBuf> {
    if Path::new(&options.model).extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) {
        let fix = format!("convert {} DIRECTORY --dtype f32, and give the directory", options.model);
        return Err(Error::model(options.model.clone(), "a GGUF file is read by the program convert alone", fix));
    }
    Pretrained::resolve(&options.model, options.revision.as_deref(), &model_places())
}

/// How the model is opened.
pub(super) fn open_options(options: &Options, device: &Device, sharding: Sharding) -> OpenOptions {
    OpenOptions {
        family: options.family.clone(),
        head: Some(TextHead::CausalLm),
        leave: options.leave.clone(),
        dtype: options.dtype.map_or(DType::F32, Stored::dtype),
        keep_dtype: options.dtype.is_none(),
        sharding,
        ..OpenOptions::new(device)
    }
}

/// The model without values.
fn sketch(options: &Options, registry: &Registry<'_>, directory: &Path) -> Result<Box<dyn TextModel>> {
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let asked = OpenOptions { only_check: true, ..open_options(options, &nowhere, Sharding::solo()) };
    let opened = registry.open(directory, &asked).map_err(|error| match error {
        // The family knows that it has no such head, but not who asked for it.
        Error::Argument { reason, .. } => {
            let fix = "use a model that writes texts: a decoder, or one with an encoder and a decoder";
            Error::model(directory.display().to_string(), reason, fix)
        }
        other => other,
    })?;
    if let Some(name) = opened.initialized.first() {
        let reason = format!("its weights have no {name}, and texts of values that are drawn would mean nothing");
        return Err(Error::model(
            directory.display().to_string(),
            reason,
            "use a model that was trained to predict words",
        ));
    }
    if !options.quiet {
        opened::remarks_of(&opened).iter().for_each(|line| terminal::note(line));
    }
    Ok(opened.model)
}

/// The model's tokenizer, once as texts are read, and where somebody asks for it once more with names of special tokens
/// read as these.
struct Tokenizers {
    tokenizer: Option<Arc<dyn Tokenizer>>,
    with_specials: Option<Arc<dyn Tokenizer>>,
}

impl Tokenizers {
    /// Of a directory; none where there is none and nobody needs it.
    fn open(options: &Options, directory: &Path, is_needed: bool) -> Result<Self> {
        let (rows, prefix) = (&options.rows, &options.method.prefix);
        if !is_needed && !rows.special_tokens && prefix.is_none() && !AutoTokenizer::is_in(directory)? {
            return Ok(Tokenizers { tokenizer: None, with_specials: None });
        }
        let tokenizer = AutoTokenizer::open(directory)?;
        // The name of a token needs nobody to read it.
        let is_text = prefix.as_ref().is_some_and(|prefix| tokenizer.id(prefix).is_none());
        let with_specials = (rows.special_tokens || is_text)
            .then(|| AutoTokenizer::open_with(directory, TextSpecials::AsTokens))
            .transpose()?;
        Ok(Tokenizers { tokenizer: Some(tokenizer), with_specials })
    }
}

/// The ids of what the decoder begins with: a token by its name, or a text with names of special tokens in it.
fn prefix(options: &Options, tokenizer: Option<&dyn Tokenizer>, model: &dyn TextModel) -> Result<Vec<u32>> {
    let (Some(text), Some(tokenizer)) = (&options.method.prefix, tokenizer) else { return Ok(Vec::new()) };
    if !model.info().generates_targets {
        let reason = "it has no effect: it is for the decoder behind an encoder, and this model has none";
        return Err(Error::argument("--prefix", reason, "put it behind the prompt, or use --template"));
    }
    let ids = match tokenizer.id(text) {
        Some(id) => vec![id],
        None => tokenizer.tokenize(&[text])?.concat(),
    };
    match ids.is_empty() {
        false => Ok(ids),
        true => Err(Error::argument("--prefix", "it has no token", "leave it out, or give a text")),
    }
}
