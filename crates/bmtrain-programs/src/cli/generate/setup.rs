//! Everything that is checked before the weights are read: options, the model directory, settings and prompts.

use super::Options;
use super::output::rows_done;
use crate::cli::flags::with_flags;
use crate::cli::opened;
use crate::cli::ranks;
use crate::cli::terminal;
use crate::{Error, Result};
use bmtrain_core::Device;
use bmtrain_dist::Launch;
use model_center_base::file::printable;
use model_center_data::read_formats;
use model_center_formats::tokenizer::ChatMessage;
use model_center_models::adapter::Adapter;
use model_center_models::generate::{
    GenerationSettings, GenerationSetup, Method, PROMPT, Prompt, PromptLimit, PromptRow,
};
use model_center_models::{OpenOptions, Registry};

/// Default batch size of --input and --data.
const BATCH_OF_INPUT: usize = 8;
/// A larger batch is most likely a mistake, and exhausts the memory.
const MAX_BATCH: usize = 65_536;

/// A run with checked options and encoded prompts.
pub(super) struct GenerateRun {
    pub(super) options: Options,
    pub(super) registry: Registry<'static>,
    pub(super) setup: GenerationSetup,
    pub(super) settings: GenerationSettings,
    pub(super) rows: Vec<PromptRow>,
    /// Tokens of each row.
    pub(super) ids: Vec<Vec<u32>>,
    /// Rows that the output has already.
    pub(super) done: usize,
    pub(super) launch: Launch,
    /// Threads of all ranks of this process.
    pub(super) threads: usize,
    pub(super) batch: usize,
}

impl GenerateRun {
    /// Whether text is printed as it is generated: plain text of one sequence at a time.
    pub(super) fn streams(&self) -> bool {
        let one =
            self.batch == 1 && self.settings.texts == 1 && self.launch.world == self.options.model_ranks().count();
        one && !self.options.json
            && !self.options.echo
            && !self.options.prompts.are_rows()
            && !matches!(self.settings.options.method, Method::Beams(_))
    }
}

/// Check everything that needs no weights.
pub(super) fn prepare(options: &Options, registry: Registry<'static>) -> Result<GenerateRun> {
    check_options(options)?;
    let launch = ranks::launch(options.ranks, options.model_ranks())?;
    let threads = options.device.threads()?;
    let rows = options.prompts.rows()?;
    refuse_output(options)?;
    let mut setup = setup(options, registry, (&rows, launch.world))?;
    let settings = settings(options, &setup)?;
    setup.limit = prompt_limit(options, &setup, &settings)?;
    let batch = options.batch.unwrap_or(if options.prompts.are_rows() { BATCH_OF_INPUT } else { 1 });
    let done = match (&options.output, options.append) {
        (Some(output), true) => rows_done(output, &rows)?,
        _ => 0,
    };
    let ids = rows.iter().map(|row| setup.encode_row(row).map_err(with_flags)).collect::<Result<_>>()?;
    let options = options.clone();
    Ok(GenerateRun { options, registry, setup, settings, rows, ids, done, launch, threads, batch })
}

/// The model directory without its weights, for `world` ranks.
fn setup(
    options: &Options,
    registry: Registry<'static>,
    (rows, world): (&[PromptRow], usize),
) -> Result<GenerationSetup> {
    let prompts = &options.prompts;
    let (model, adapter) = opened::adapted(&options.model, &options.source)?;
    let directory = opened::resolve(&model, options.source.revision.as_deref(), options.held.weights)?;
    let open = |device: &_| open_options(options, adapter.as_ref(), device);
    let opened = GenerationSetup::check_model(&directory, registry, open)?;
    ranks::check(world, options.model_ranks(), opened.model.parameters())?;
    if !options.quiet {
        opened::note_opened(&opened, &directory)?;
    }
    let mut setup = GenerationSetup::new(&directory, opened.model.info());
    setup.adapter = adapter;
    let has_text = rows.iter().any(|row| !matches!(row.prompt, Prompt::Tokens(_)));
    let method = &options.method;
    let has_form = method.json_schema.is_some() || method.regex.is_some();
    let names_tokens = prompts.special_tokens || method.prefix.is_some() || has_form;
    setup.open_tokenizer(options.reads_lines() || has_text || names_tokens)?;
    if prompts.special_tokens {
        setup.special_tokenizer = Some(setup.open_special_tokenizer()?);
    }
    if prompts.chat || rows.iter().any(|row| matches!(row.prompt, Prompt::Messages(_))) {
        setup.open_chat_template(prompts.chat_template.as_deref())?;
    }
    (setup.template, setup.system, setup.is_chat) = (prompts.template.clone(), prompts.system.clone(), prompts.chat);
    if prompts.interactive || rows.iter().any(|row| matches!(row.prompt, Prompt::Text(_))) {
        follow_formats(&mut setup, options.quiet)?;
    }
    if options.is_conversation() {
        // Fails without a chat template.
        setup.encode_chat(&[ChatMessage::new("user", "?")]).map_err(with_flags)?;
    }
    Ok(setup)
}

/// Puts prompts into the text that inputs were part of in training, unless --template is given; reports what is done,
/// or that it differs.
fn follow_formats(setup: &mut GenerationSetup, is_quiet: bool) -> Result<()> {
    // An adapter was trained with formats of its own; of several the first's are taken.
    let of_adapter = setup.adapter.iter().flat_map(Adapter::directories).next();
    let formats = read_formats(of_adapter.unwrap_or(&setup.directory))?;
    let say = |text: String| {
        if !is_quiet {
            terminal::note(&printable(&text, 1000));
        }
    };
    let trained: Vec<String> = formats.iter().map(|format| format.input(PROMPT)).collect();
    let listed = || trained.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ");
    match (&setup.template, trained.as_slice()) {
        (_, []) => {}
        (Some(given), trained) if trained.contains(given) => {}
        (Some(given), _) => {
            say(format!("note: prompts are put into {given:?}; the model was trained with {}", listed()))
        }
        (None, [one]) => {
            say(format!("note: prompts are put into {one:?}, as inputs were in training; --template changes that"));
            setup.template = Some(one.clone());
        }
        (None, _) => {
            say(format!("note: the model was trained with {}: choose one of them with --template", listed()));
        }
    }
    Ok(())
}

/// The most tokens of a prompt: with --cut, so that there is room for the new tokens.
fn prompt_limit(options: &Options, setup: &GenerationSetup, settings: &GenerationSettings) -> Result<PromptLimit> {
    let (asked, cut) = (options.prompts.max_prompt_tokens, options.prompts.cut);
    if asked == Some(0) {
        return Err(Error::argument("--max-prompt-tokens", "prompts of 0 tokens", "give a number above 0"));
    }
    let new = match settings.options.max_length {
        _ if setup.info.generates_targets => 0,
        // The new tokens are what the prompt leaves of it.
        Some(_) => 1,
        None => settings.options.max_new_tokens,
    };
    let longest = settings.options.max_length.map_or(setup.info.max_length, |most| most.min(setup.info.max_length));
    let room = longest.saturating_sub(new);
    if cut.is_some() && room == 0 {
        let reason = format!("{new} new tokens leave no room for a prompt, the model takes {}", setup.info.max_length);
        return Err(Error::argument("--max-new-tokens", reason, "lower it"));
    }
    let most = if cut.is_some() { Some(asked.map_or(room, |asked| asked.min(room))) } else { asked };
    Ok(PromptLimit { most, cut })
}

/// The settings of the command line and the directory.
fn settings(options: &Options, setup: &GenerationSetup) -> Result<GenerationSettings> {
    let settings = setup.settings(&options.method.overrides(setup)?).map_err(with_flags)?;
    if !settings.not_followed.is_empty() && !options.quiet && !options.print_config {
        terminal::note(&format!(
            "the model directory has settings that are not followed: {}",
            settings.not_followed.join(", ")
        ));
    }
    if options.reads_lines() && settings.texts > 1 {
        let reason = format!("{} texts of each line, and one is shown as it is generated", settings.texts);
        let name = if options.prompts.interactive { "--interactive" } else { "--chat" };
        return Err(Error::argument(name, reason, "leave --texts and --best out"));
    }
    Ok(settings)
}

/// Refuse options without effect.
fn check_options(options: &Options) -> Result<()> {
    let prompts = &options.prompts;
    let is_given = !prompts.prompt.is_empty() || prompts.are_rows() || options.reads_lines();
    if !is_given && !options.print_config {
        let fix = "give --prompt \"...\", --input rows.jsonl, --data DIR, --chat or --interactive";
        return Err(Error::argument("--prompt", "there is no prompt", fix));
    }
    let are_as_stored = options.held.are_as_stored();
    if let (true, Some(dtype)) = (are_as_stored, options.device.dtype) {
        let reason = format!("{} is for dequantised weights, and blocks are computed with in f32", dtype.dtype());
        return Err(Error::argument("--dtype", reason, "leave it out, or choose --weights dequantised"));
    }
    if options.tensor > 1 && are_as_stored {
        let reason = "matrices in blocks are not split over tensor-parallel ranks";
        return Err(Error::argument("--tensor", reason, "leave it out, or choose --weights dequantised"));
    }
    if options.pipeline > 1 && are_as_stored {
        let reason = "matrices in blocks are held by every rank, not by pipeline stages";
        return Err(Error::argument("--pipeline", reason, "leave it out, or choose --weights dequantised"));
    }
    let is_wrong = |batch: &usize| *batch == 0 || *batch > MAX_BATCH;
    if let Some(batch) = options.batch.filter(is_wrong) {
        let reason = format!("{batch} prompts at a time");
        return Err(Error::argument("--batch", reason, format!("use a number from 1 to {MAX_BATCH}")));
    }
    if options.reads_lines() {
        let given = [
            ("--batch", options.batch.is_some()),
            ("--ranks", options.ranks.is_some_and(|ranks| ranks > 1)),
            ("--tensor", options.tensor > 1),
            ("--pipeline", options.pipeline > 1),
            ("--template", prompts.template.is_some() && prompts.chat),
        ];
        if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
            let reason = "lines are one prompt at a time, on one rank, as they are typed";
            return Err(Error::argument(*name, reason, "leave it out, or give --prompt or --input"));
        }
    }
    Ok(())
}

/// Refuse to replace an output, except with --overwrite.
fn refuse_output(options: &Options) -> Result<()> {
    let Some(output) = &options.output else { return Ok(()) };
    let refuse = |reason: &str, fix: &str| Err(Error::argument(output.display().to_string(), reason, fix));
    match output.is_dir() {
        true => refuse("the output is a directory", "name a file"),
        false if !options.overwrite && !options.append && output.symlink_metadata().is_ok() => refuse(
            "the output is there already",
            "name another file, go on with --append, or replace it with --overwrite",
        ),
        false => Ok(()),
    }
}

/// Options to open the model with.
pub(super) fn open_options(options: &Options, adapter: Option<&Adapter>, device: &Device) -> OpenOptions {
    let open = OpenOptions { weights: options.held.form(), ..GenerationSetup::open_options(device) };
    options.device.open_options(&options.source, adapter, open)
}
