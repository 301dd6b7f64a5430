//! Commands of IBM's "Distributed finetuning": its training as a recipe, its generation and its export as commands.
//!
//! Defines [`distributed_finetuning`]. The list of its flags is [`FLAGS`]; `docs/from-distributed-finetuning.md` has a
//! table of all of them.

use super::flags::{Flag, Flags, many, read, switch, unused, unused_switch};
use super::keys;
use super::sheet::{Commands, NoteKind, Sheet, Translated};
use super::shell::Command;
use super::{ImportOptions, batch::BatchParts};
use crate::file::printable;
use crate::recipe::quote;
use crate::{Error, Result};

const RECORDS: &str = "metrics.jsonl, TensorBoard's files and a text log in output.dir have all of it";

/// The flags of its three programs.
pub(super) const FLAGS: &[Flag] = &[
    // Model and checkpoint.
    read("--model-name"),
    read("--model-class"),
    read("--save-path"),
    read("--load-path"),
    // Data: lists of one entry for each data set.
    many("--data-sampling-proportion"),
    many("--data-path"),
    many("--data-class"),
    many("--data-config"),
    many("--input-format"),
    many("--output-format"),
    many("--max-input-tokens"),
    many("--max-output-tokens"),
    // Method.
    read("--training-inference-type"),
    read("--prompt-tuning-init"),
    read("--prompt-tuning-init-text"),
    read("--num-virtual-tokens"),
    read("--seed"),
    read("--dtype"),
    // Training.
    read("--num-training-steps"),
    read("--gradient-accumulation-steps"),
    read("--eval-and-save-interval"),
    read("--batch-size-per-gpu"),
    switch("--no-eval"),
    read("--stage"),
    unused_switch("--overlap-comm", "collectives overlap with computation, always"),
    unused_switch("--contiguous-gradients", "gradients of a block are contiguous, always"),
    switch("--cpu-offload"),
    unused("--logdir", RECORDS),
    unused("--aim-repo", "`runs serve` compares runs from their directories: there is no store to set up"),
    read("--experiment-name"),
    // Optimizer and schedule.
    read("--learning-rate"),
    read("--weight-decay"),
    read("--beta1"),
    read("--beta2"),
    read("--eps"),
    read("--warmup-steps"),
    read("--lr-schedule"),
    read("--steps-per-print"),
    // Generation.
    read("--batch-size"),
    switch("--do-sample"),
    read("--max-new-tokens"),
    read("--temperature"),
    read("--top-k"),
    read("--top-p"),
    read("--output-file"),
];

/// Its classes of data, with ours.
const CLASSES: [(&str, &str); 5] = [
    ("JSONLinesDataset", "records"),
    ("SST2Dataset", "sst2"),
    ("AlpacaDataset", "alpaca"),
    ("DebugDataset", "debug"),
    ("DineshChitChatDataset", "chit-chat"),
];

/// Its programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Train,
    Generate,
    Export,
}

/// A recipe from a command of its training, or the commands here that do what its generation or export does.
///
/// # Errors
/// [`Error::Argument`] for a text without a command, unknown and missing flags, lists of different lengths, and what
/// contradicts itself there as well.
pub fn distributed_finetuning(text: &str, options: &ImportOptions) -> Result<Translated> {
    let command = Command::parse(text)?;
    if command.arguments.is_empty() {
        let fix = "give the command line of src.train, src.generate or src.ds_to_hf, or the flags alone";
        return Err(Error::argument("the command", "there is no flag in it", fix));
    }
    let flags = Flags::parse(&command.arguments, FLAGS, &options.leave)?;
    let program = program(&command, &flags);
    let name = match program {
        Program::Train => "src.train",
        Program::Generate => "src.generate",
        Program::Export => "src.ds_to_hf",
    };
    let mut sheet = Sheet::new(format!("Distributed finetuning, {name}"));
    sheet.ranks = options.ranks.or_else(|| super::ranks_of(&command));
    let lines = match program {
        Program::Train => {
            train(&flags, options, &mut sheet)?;
            Vec::new()
        }
        Program::Generate => generate(&flags, &mut sheet)?,
        Program::Export => export(&flags)?,
    };
    flags.account(FLAGS, &options.leave, &mut sheet)?;
    if program == Program::Train {
        sheet.apply(&options.sets)?;
        return Ok(Translated::Recipe(sheet));
    }
    if !options.sets.is_empty() {
        return Err(Error::argument("--set", "this command makes no recipe", "remove it"));
    }
    Ok(Translated::Commands(Commands::of(sheet, lines)))
}

/// Which program a command starts: by its name, or by flags that it alone has.
fn program(command: &Command, flags: &Flags) -> Program {
    let name = command.program.as_deref().unwrap_or_default();
    let is = |part: &str| name.split(['.', '/']).any(|word| word == part);
    let has = |name| flags.has(name);
    if is("generate") || (!is("train") && (has("--output-file") || has("--batch-size"))) {
        Program::Generate
    } else if is("ds_to_hf") || (!is("train") && has("--load-path") && has("--save-path")) {
        Program::Export
    } else {
        Program::Train
    }
}

fn required<'f>(flags: &'f Flags, name: &'static str) -> Result<&'f str> {
    let fix = format!("give {name}, which its program requires too");
    flags.text(name)?.ok_or_else(|| Error::argument(name, "it is missing", fix))
}

/// One of a few names.
fn choice<'n>(flags: &Flags, name: &'static str, names: &[&'n str]) -> Result<Option<&'n str>> {
    let Some(text) = flags.text(name)? else { return Ok(None) };
    let found = names.iter().find(|known| **known == text);
    let reason = format!("\"{}\" is none of {}", printable(text, 60), names.join(", "));
    found.map(|name| Some(*name)).ok_or_else(|| Error::argument(name, reason, format!("write {}", names.join(" or "))))
}

fn train(flags: &Flags, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
    sheet.text(keys::MODEL_PATH, required(flags, "--model-name")?, flags.shown("--model-name"));
    let is_seq2seq = is_seq2seq(flags, sheet)?;
    method(flags, is_seq2seq, sheet)?;
    let dtypes = ["float32", "float16", "bfloat16"];
    match choice(flags, "--dtype", &dtypes)? {
        Some("float16") => {
            sheet.text(keys::DTYPE, "f16", flags.shown("--dtype"));
            sheet.text(keys::LOSS_SCALE, "deepspeed", "DeepSpeed's dynamic loss scale");
        }
        Some("bfloat16") => sheet.text(keys::DTYPE, "bf16", flags.shown("--dtype")),
        Some(_) => sheet.text(keys::DTYPE, "f32", flags.shown("--dtype")),
        None => {}
    }
    data(flags, is_seq2seq, options, sheet)?;
    steps(flags, sheet)?;
    optimizer(flags, sheet)?;
    layout(flags, sheet)?;
    let save = required(flags, "--save-path")?;
    sheet.text(keys::OUTPUT, save, flags.shown("--save-path"));
    if flags.has("--load-path") {
        let why = "training begins with --model_name; `finetune --init-from` begins with a checkpoint";
        sheet.note(NoteKind::Unused, flags.shown("--load-path"), why);
    }
    if let Some(name) = flags.text("--experiment-name")? {
        sheet.text(keys::RUN_NAME, name, flags.shown("--experiment-name"));
    }
    if let Some(every) = flags.maybe_whole("--steps-per-print")? {
        sheet.whole(keys::LOG_EVERY, every.value.max(1), every.from);
    }
    let seed = flags.whole("--seed", 42)?;
    sheet.whole(keys::SEED, seed.value, seed.from);
    let why = "decoders have BOS where their tokenizer adds one; there, only EOS is added";
    sheet.note(NoteKind::Differs, "special tokens", why);
    Ok(())
}

/// Whether the class is an encoder-decoder's.
fn is_seq2seq(flags: &Flags, sheet: &mut Sheet) -> Result<bool> {
    let classes = ["AutoModelForCausalLM", "AutoModelForSeq2SeqLM"];
    let class = choice(flags, "--model-class", &classes)?;
    if class.is_some() {
        let why = "config.json of the model states its family, and with it the class";
        sheet.note(NoteKind::Unused, flags.shown("--model-class"), why);
    }
    Ok(class == Some(classes[1]))
}

/// Whole models or prompt tuning, and what contradicts itself in its own program.
fn method(flags: &Flags, is_seq2seq: bool, sheet: &mut Sheet) -> Result<()> {
    let kind = choice(flags, "--training-inference-type", &["full_finetuning", "prompt_tuning"])?;
    let of_prompts = ["--prompt-tuning-init", "--prompt-tuning-init-text", "--num-virtual-tokens"];
    if kind != Some("prompt_tuning") {
        if let Some(name) = of_prompts.into_iter().find(|name| flags.has(name)) {
            let fix = "remove it, or set --training_inference_type prompt_tuning";
            return Err(Error::argument(name, "it is for prompt tuning", fix));
        }
        if kind.is_some() {
            let why = "adapter.method = \"none\" is the default";
            sheet.note(NoteKind::Unused, flags.shown("--training-inference-type"), why);
        }
        return Ok(());
    }
    sheet.text(keys::ADAPTER, "prompt", flags.shown("--training-inference-type"));
    required(flags, "--num-virtual-tokens")?;
    let tokens = flags.whole("--num-virtual-tokens", 0)?;
    sheet.whole(keys::VIRTUAL_TOKENS, tokens.value, tokens.from);
    let text = flags.text("--prompt-tuning-init-text")?;
    match (choice(flags, "--prompt-tuning-init", &["RANDOM", "TEXT"])?, text) {
        (Some("TEXT"), Some(text)) => {
            let from = format!("--prompt-tuning-init TEXT, {}", flags.shown("--prompt-tuning-init-text"));
            sheet.text(keys::PROMPT_TEXT, text, from);
        }
        (Some("TEXT"), None) => {
            let name = "--prompt-tuning-init-text";
            return Err(Error::argument(name, "it is missing", "give the text, or --prompt_tuning_init RANDOM"));
        }
        (_, Some(_)) => {
            let fix = "remove the text, or set --prompt_tuning_init TEXT";
            return Err(Error::argument("--prompt-tuning-init-text", "RANDOM takes no text", fix));
        }
        (init, None) => {
            let what =
                if init.is_some() { flags.shown("--prompt-tuning-init") } else { "no --prompt-tuning-init".into() };
            sheet.note(NoteKind::Unused, what, "without adapter.prompt_text embeddings begin at random");
        }
    }
    if is_seq2seq {
        sheet.text("adapter.prompt_stacks", "both", "its PEFT put virtual tokens before encoder and decoder");
    }
    Ok(())
}

/// The entry of a list for data set `at`; lists may be absent.
fn entry<'f>(flags: &'f Flags, name: &'static str, count: usize, at: usize) -> Result<Option<&'f str>> {
    let Some(values) = flags.values(name) else { return Ok(None) };
    if values.len() != count {
        let reason = format!("{} values for {count} data sets", values.len());
        return Err(Error::argument(name, reason, "give one for each data set"));
    }
    let Some(value) = values.get(at) else { return Ok(None) };
    super::flags::check_set(name, value)?;
    Ok(Some(value))
}

fn number(name: &'static str, text: &str) -> Result<u64> {
    let value = super::flags::parse(name, text)?;
    match value >= 1.0 && value.fract() == 0.0 && value < 1e9 {
        true => Ok(value as u64),
        false => {
            Err(Error::argument(name, format!("{value} is not a number of tokens"), "write a whole number above 0"))
        }
    }
}

fn data(flags: &Flags, is_seq2seq: bool, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
    sheet.text(keys::TASK, "sft", "inputs are read, outputs are learned");
    let lists = ["--data-path", "--data-class"];
    let first = lists.into_iter().find(|name| flags.has(name));
    let Some(count) = first.and_then(|name| flags.values(name)).map(<[String]>::len) else {
        let fix = "give --data_path with a directory of train/*.jsonl and val/*.jsonl";
        return Err(Error::argument("--data-path", "there is no data set", fix));
    };
    let (mut sets, mut longest, mut longest_output, mut is_limited) = (Vec::new(), 0, 0, true);
    for at in 0..count {
        let mut fields = Vec::new();
        let of = |name| entry(flags, name, count, at);
        let class = of("--data-class")?.unwrap_or("JSONLinesDataset");
        let known = CLASSES.iter().find(|(theirs, ours)| *theirs == class || ours == &class);
        let Some((_, class)) = known else {
            let names: Vec<&str> = CLASSES.iter().map(|(theirs, _)| *theirs).collect();
            let reason = format!("the class {} is not available", printable(class, 60));
            let fix = format!("write its data as JSON lines of input and output; available are {}", names.join(", "));
            return Err(Error::argument("--data-class", reason, fix));
        };
        if let Some(path) = of("--data-path")? {
            fields.push(format!("path = {}", quote(path)));
        }
        match *class {
            "records" => fields.push("records = \"input-output\"".to_owned()),
            class => fields.push(format!("class = {}", quote(class))),
        }
        let config = of("--data-config")?.unwrap_or("{}").trim();
        let is_left = options.leave.iter().any(|left| left.trim_start_matches('-').replace('_', "-") == "data-config");
        if !["{}", ""].contains(&config) {
            let why = "classes have other names of settings here: `config` of data.sets, docs/sft.md";
            if !is_left {
                let fix = "write `config` of data.sets into the recipe, and pass this over with --leave data-config";
                return Err(Error::argument("--data-config", why, fix));
            }
            sheet.note(NoteKind::Differs, format!("--data-config {}", printable(config, 80)), why);
        }
        if let Some(share) = of("--data-sampling-proportion")? {
            fields.push(format!("proportion = {}", number("--data-sampling-proportion", share)?));
        }
        for (name, field) in [("--input-format", "input_format"), ("--output-format", "output_format")] {
            if let Some(format) = of(name)? {
                fields.push(format!("{field} = {}", quote(format)));
            }
        }
        let mut total = 0;
        for (name, field) in [("--max-input-tokens", "max_input_tokens"), ("--max-output-tokens", "max_output_tokens")]
        {
            match of(name)? {
                Some(text) => {
                    let most = number(name, text)?;
                    fields.push(format!("{field} = {most}"));
                    total = if is_seq2seq { total.max(most) } else { total + most };
                    longest_output = longest_output.max(if field == "max_output_tokens" { most } else { 0 });
                }
                None => is_limited = false,
            }
        }
        longest = longest.max(total);
        sets.push(format!("{{ {} }}", fields.join(", ")));
    }
    let names = [
        "--data-path",
        "--data-class",
        "--data-config",
        "--data-sampling-proportion",
        "--input-format",
        "--output-format",
        "--max-input-tokens",
        "--max-output-tokens",
    ];
    let given: Vec<String> = names.into_iter().filter(|name| flags.has(name)).map(|name| flags.shown(name)).collect();
    sheet.raw(keys::SETS, format!("[{}]", sets.join(", ")), given.join(" "));
    match is_limited {
        true => {
            let why = if is_seq2seq { "the longest input" } else { "the longest input and output, and BOS" };
            sheet.whole(keys::MAX_LENGTH, longest + u64::from(!is_seq2seq), why);
            if is_seq2seq {
                sheet.whole(keys::TARGET_LENGTH, longest_output, "the longest output");
            }
        }
        false => {
            let why = "lengths have no limit there; here data.max_length cuts longer samples, 512 by default";
            sheet.note(NoteKind::Differs, "no --max-input-tokens or --max-output-tokens", why);
        }
    }
    if flags.is_given("--no-eval") {
        let why = "`val/` of a data set is evaluated after each epoch, and without that directory nothing is; \
                   eval.every = \"end\" evaluates once";
        sheet.note(NoteKind::Differs, "--no-eval", why);
    }
    Ok(())
}

/// Steps: its loop counts micro-batches, and its schedule optimizer steps.
fn steps(flags: &Flags, sheet: &mut Sheet) -> Result<()> {
    for name in ["--num-training-steps", "--eval-and-save-interval", "--batch-size-per-gpu", "--lr-schedule"] {
        required(flags, name)?;
    }
    let accumulation = flags.whole("--gradient-accumulation-steps", 1)?;
    let of_step = accumulation.value.max(1);
    let all = flags.whole("--num-training-steps", 0)?;
    let every = flags.whole("--eval-and-save-interval", 0)?;
    let micro = flags.whole("--batch-size-per-gpu", 0)?;
    let per_step = |from: &str| match of_step {
        1 => from.to_owned(),
        _ => format!("{from}, micro-batches there; a step has {of_step}"),
    };
    let steps = all.value.div_ceil(of_step).max(1);
    sheet.whole(keys::STEPS, steps, per_step(&all.from));
    if of_step > 1 {
        let why = "its schedule is made for the number of micro-batches, and ends early";
        sheet.whole(keys::DECAY_STEPS, all.value, why);
    }
    let interval = format!("{} steps", (every.value / of_step).max(1));
    if !flags.has("--no-eval") {
        sheet.text(keys::EVAL_EVERY, &interval, per_step(&every.from));
    }
    sheet.text(keys::CHECKPOINT_EVERY, &interval, per_step(&every.from));
    let schedule = choice(flags, "--lr-schedule", &["linear", "cosine"])?.unwrap_or("linear");
    sheet.text(keys::SCHEDULE, schedule, flags.shown("--lr-schedule"));
    let warmup = flags.whole("--warmup-steps", 200)?;
    sheet.whole(keys::WARMUP, warmup.value, warmup.from);
    let parts = BatchParts {
        batch: None,
        micro: Some((micro.value, micro.from)),
        accumulation: Some((accumulation.value, accumulation.from)),
        ranks: sheet.ranks,
        model_ranks: 1,
    };
    parts.write(sheet)
}

fn optimizer(flags: &Flags, sheet: &mut Sheet) -> Result<()> {
    let lr = flags.number("--learning-rate", 1e-5)?;
    sheet.number(keys::LR, lr.value, lr.from);
    let decay = flags.number("--weight-decay", 0.1)?;
    sheet.number(keys::WEIGHT_DECAY, decay.value, decay.from);
    sheet.flag(keys::DECAY_ALL, true, "it decays all parameters, norms and biases among them");
    let (one, two) = (flags.number("--beta1", 0.9)?, flags.number("--beta2", 0.95)?);
    sheet.raw(keys::BETAS, format!("[{:?}, {:?}]", one.value, two.value), format!("{}, {}", one.from, two.from));
    let eps = flags.number("--eps", 1e-8)?;
    sheet.number(keys::EPS, eps.value, eps.from);
    sheet.text(keys::CLIP_KIND, "none", "it clips no gradients; train.clip_norm = 1.0 is safer");
    Ok(())
}

fn layout(flags: &Flags, sheet: &mut Sheet) -> Result<()> {
    let stage = flags.whole("--stage", 3)?;
    if stage.value > 3 {
        return Err(Error::argument("--stage", format!("stage {} is none of 0 to 3", stage.value), "write --stage 3"));
    }
    sheet.whole(keys::ZERO, stage.value, stage.from);
    if flags.is_given("--cpu-offload") {
        sheet.flag(keys::OFFLOAD, true, "--cpu-offload");
        if stage.value == 3 {
            sheet.flag(keys::OFFLOAD_PARAMETERS, true, "--cpu-offload with --stage 3");
        }
    }
    Ok(())
}

/// A word as a shell reads it.
fn word(text: &str) -> String {
    let is_plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c));
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\"'\"'")) }
}

/// The options of its dtypes.
fn stored(flags: &Flags) -> Result<Option<&'static str>> {
    let dtype = choice(flags, "--dtype", &["float32", "float16", "bfloat16"])?;
    Ok(dtype.map(|dtype| match dtype {
        "float16" => "f16",
        "bfloat16" => "bf16",
        _ => "f32",
    }))
}

fn generate(flags: &Flags, sheet: &mut Sheet) -> Result<Vec<String>> {
    is_seq2seq(flags, sheet)?;
    let name = required(flags, "--model-name")?;
    let (load, model) = (flags.text("--load-path")?, word(name));
    let model = match load {
        Some(load) => {
            let why = "the directory `model` of a run has all that generation needs, its text formats among it";
            sheet.note(NoteKind::Unused, flags.shown("--model-name"), why);
            word(&format!("{}/model", load.trim_end_matches('/')))
        }
        None => model,
    };
    for name in [
        "--training-inference-type",
        "--prompt-tuning-init",
        "--prompt-tuning-init-text",
        "--num-virtual-tokens",
        "--input-format",
        "--output-format",
        "--max-input-tokens",
        "--max-output-tokens",
    ] {
        if flags.is_given(name) {
            let why = "it is kept in the model's directory since training";
            sheet.note(NoteKind::Unused, flags.shown(name), why);
        }
    }
    for name in ["--data-class", "--data-config", "--data-sampling-proportion"] {
        if flags.is_given(name) {
            let why = "rows of the test files are read as they are: input, and fields that are kept";
            sheet.note(NoteKind::Differs, flags.shown(name), why);
        }
    }
    let Some(paths) = flags.values("--data-path") else {
        return Err(Error::argument("--data-path", "there is no data set", "give the directory with test/*.jsonl"));
    };
    let files: Vec<String> =
        paths.iter().map(|path| format!("{}/test/*.jsonl", word(path.trim_end_matches('/')))).collect();
    let output = required(flags, "--output-file")?;
    let mut line = format!("generate {model} --input test.jsonl --output {} ", word(output));
    let batch = flags.whole("--batch-size", 8)?;
    line += &format!("--batch {} ", batch.value);
    let most = flags.whole("--max-new-tokens", 20)?;
    line += &format!("--max-new-tokens {}", most.value);
    match flags.is_given("--do-sample") {
        true => line += " --sample",
        false => {
            for name in ["--temperature", "--top-k", "--top-p"] {
                if flags.is_given(name) {
                    let why = "without --do_sample no token is sampled, there as here";
                    sheet.note(NoteKind::Unused, flags.shown(name), why);
                }
            }
        }
    }
    for (name, ours) in [("--temperature", "--temperature"), ("--top-k", "--top-k"), ("--top-p", "--top-p")] {
        if let Some(found) = flags.maybe_number(name)?.filter(|_| flags.has("--do-sample")) {
            line += &format!(" {ours} {}", found.value);
        }
    }
    if let Some(seed) = flags.maybe_whole("--seed")? {
        match flags.has("--do-sample") {
            true => line += &format!(" --seed {}", seed.value),
            false => sheet.note(NoteKind::Unused, seed.from, "no token is sampled"),
        }
    }
    if let Some(dtype) = stored(flags)? {
        line += &format!(" --dtype {dtype}");
    }
    Ok(vec![format!("cat {} > test.jsonl", files.join(" ")), line])
}

fn export(flags: &Flags) -> Result<Vec<String>> {
    let (load, save) = (required(flags, "--load-path")?, required(flags, "--save-path")?);
    let dtype = stored(flags)?.unwrap_or("f32");
    let mut lines = vec![format!("ckpt export {} {} --dtype {dtype}", word(load), word(save))];
    lines.push("# A run ends with such a directory, `model`, by itself. A checkpoint that DeepSpeed wrote:".to_owned());
    lines.push(format!("# convert {} {} --config MODEL", word(load), word(save)));
    Ok(lines)
}
