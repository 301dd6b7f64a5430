//! Commands of Megatron-LM and CPM-Pretrain as recipes.
//!
//! - `flags`: the argument list; `model`, `data`, `train`: the translation, one table of a recipe each.
//!
//! Defines [`megatron`] and [`cpm`], and [`beside_configuration`] for a command with a file of DeepSpeed.

mod data;
mod flags;
mod model;
mod tokenizer;
mod train;

pub(super) use flags::MEGATRON;

use super::ImportOptions;
use super::batch::BatchParts;
use super::flags::{Flags, WITHOUT_EFFECT, parse};
use super::ranks::ranks_of;
use super::sheet::{NoteKind, Sheet};
use super::shell::Command;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_recipe::key;

/// Model that a program pretrains, by the name of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Gpt,
    Bert,
    T5,
}

/// State that the parts of the translation share.
struct Translation<'a> {
    flags: &'a Flags,
    program: Program,
    /// Whether the command has flags of the list of 2019, whose defaults and data differ.
    is_2019: bool,
    is_cpm: bool,
    /// Whether the file of DeepSpeed is read too.
    has_configuration: bool,
}

/// A recipe from a command of Megatron-LM: flags, a command line, or a script.
///
/// # Errors
/// [`Error::Argument`] for a text without a command, an unknown or refused flag, and values that contradict each other.
pub fn megatron(text: &str, options: &ImportOptions) -> Result<Sheet> {
    translate(&Command::parse(text)?, options, (false, false)).map(|(sheet, _)| sheet)
}

/// A recipe from a command of CPM-Pretrain. Its shell variables count where the flags that they are for are not given.
///
/// # Errors
/// See [`megatron`].
pub fn cpm(text: &str, options: &ImportOptions) -> Result<Sheet> {
    translate(&Command::parse(text)?, options, (true, false)).map(|(sheet, _)| sheet)
}

/// A recipe from the command of one of both that a configuration of DeepSpeed belongs to, and the flags: CPM-Pretrain's
/// is told by the variables of its scripts and by the flags of its T5.
///
/// # Errors
/// See [`megatron`].
pub(super) fn beside_configuration(text: &str, options: &ImportOptions) -> Result<(Sheet, Flags)> {
    let command = Command::parse(text)?;
    let has_variables = ["pp_size", "mp_size"].iter().all(|name| command.variables.contains_key(*name));
    let is_of_cpm = |word: &String| {
        let name = word.split('=').next().unwrap_or(word).replace('_', "-");
        OF_CPM_T5.contains(&name.as_str())
    };
    let is_cpm = has_variables || command.arguments.iter().any(is_of_cpm);
    translate(&command, options, (is_cpm, true))
}

/// CPM-Pretrain's shell variables, and their flags.
const VARIABLES: [(&str, &str); 6] = [
    ("pp_size", "--pipe-parallel-size"),
    ("mp_size", "--model-parallel-size"),
    ("NLAYERS", "--num-layers"),
    ("NHIDDEN", "--hidden-size"),
    ("BATCHSIZE", "--batch-size"),
    ("GAS", "--gas"),
];

fn translate(
    command: &Command,
    options: &ImportOptions,
    (is_cpm, has_configuration): (bool, bool),
) -> Result<(Sheet, Flags)> {
    let mut command = command.clone();
    if is_cpm {
        for (variable, flag) in VARIABLES {
            let is_given = command.arguments.iter().any(|word| word.split('=').next() == Some(flag));
            if let Some(value) = command.variables.get(variable).filter(|_| !is_given) {
                command.arguments.extend([flag.to_owned(), value.clone()]);
            }
        }
    }
    if command.arguments.is_empty() {
        let fix = "give the command line of pretrain_gpt2.py or its like, or the flags alone";
        return Err(Error::argument("the command", "there is no flag in it", fix));
    }
    let flags = Flags::parse(&command.arguments, MEGATRON, &options.leave)?;
    check_same(&flags)?;
    let system = if is_cpm { "CPM-Pretrain" } else { "Megatron-LM" };
    let program = command.program.as_deref().unwrap_or("pretrain_gpt2.py");
    let mut sheet = Sheet::new(format!("{system}, {program}"));
    let of_2019 = ["--train-data", "--train-data-path", "--use-npy-data-loader", "--pretrained-bert", "--deep-init"];
    let is_2019 = !is_cpm
        && (of_2019.iter().any(|flag| flags.has(flag))
            || flags.has("--intermediate-size")
            || flags.has("--tokenizer-model-type"));
    let program = match program {
        name if name.contains("bert") => Program::Bert,
        name if name.contains("t5") => Program::T5,
        _ => Program::Gpt,
    };
    let translation = Translation { flags: &flags, program, is_2019, is_cpm, has_configuration };
    translation.model(&mut sheet)?;
    translation.data(&mut sheet)?;
    translation.layout(&mut sheet)?;
    translation.batch(&command, options, &mut sheet)?;
    translation.train(&mut sheet)?;
    translation.files(&mut sheet)?;
    launcher(&command, &mut sheet);
    flags.account(MEGATRON, &options.leave, &mut sheet)?;
    flags.note_unnamed(WITHOUT_EFFECT, &mut sheet);
    sheet.apply(&options.sets)?;
    Ok((sheet, flags))
}

/// Flags of several versions that set the same.
const SAME: [&[&str]; 12] = [
    &["--tensor-model-parallel-size", "--model-parallel-size"],
    &["--pipeline-model-parallel-size", "--pipe-parallel-size"],
    &["--micro-batch-size", "--batch-size"],
    &["--lr-warmup-fraction", "--warmup"],
    &["--min-loss-scale", "--min-scale"],
    &["--kv-channels", "--kv-hidden-size"],
    &["--ffn-hidden-size", "--ff-hidden-size", "--intermediate-size"],
    &["--norm-epsilon", "--layernorm-epsilon"],
    &["--vocab-file", "--vocab-path"],
    &["--tokenizer-model", "--tokenizer-path"],
    &["--encoder-seq-length", "--enc-seq-length"],
    &["--decoder-seq-length", "--dec-seq-length"],
];

/// Refuses two names of one setting with two values: no version reads both.
fn check_same(flags: &Flags) -> Result<()> {
    for names in SAME {
        let mut given = names.iter().filter_map(|name| Some((*name, flags.peek(name)?)));
        let Some((first, value)) = given.next() else { continue };
        if let Some((other, _)) = given.find(|(_, own)| *own != value) {
            let reason = format!("{} sets the same to another value", flags.shown(first));
            return Err(Error::argument(flags.shown(other), reason, "give one of the two"));
        }
    }
    Ok(())
}

/// Flags that CPM-Pretrain's T5 has and Megatron-LM's does not.
const OF_CPM_T5: [&str; 5] =
    ["--kv-hidden-size", "--ff-hidden-size", "--hidden-bias", "--enc-seq-length", "--dec-seq-length"];

impl Translation<'_> {
    /// Whether it is CPM-Pretrain's T5.
    fn is_cpm_t5(&self) -> bool {
        self.program == Program::T5 && (self.is_cpm || OF_CPM_T5.iter().any(|flag| self.flags.has(flag)))
    }

    /// Whether the command is one of version 1: the second version refuses each of these flags, as do later ones.
    fn is_version_1(&self) -> bool {
        ["--batch-size", "--model-parallel-size", "--warmup"].iter().any(|flag| self.flags.has(flag))
    }

    /// The first of several names of a flag that is given; others are noted as without effect.
    fn first(&self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|name| self.flags.has(name) && self.flags.is_given(name))
    }

    fn layout(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let tensor = self.first(&["--tensor-model-parallel-size", "--model-parallel-size"]);
        if let Some(name) = tensor {
            let found = flags.whole(name, 1)?;
            sheet.whole(key!(parallel.tensor), found.value.max(1), found.from);
        }
        if flags.is_given("--sequence-parallel") {
            match sheet.has_several(key!(parallel.tensor)) {
                true => sheet.flag(key!(parallel.sequence), true, "--sequence-parallel"),
                false => sheet.note(NoteKind::Unused, "--sequence-parallel", "there is one tensor-parallel rank"),
            }
        }
        if let Some(name) = self.first(&["--pipeline-model-parallel-size", "--pipe-parallel-size"]) {
            let found = flags.whole(name, 0)?;
            // CPM-Pretrain writes 0 for none.
            let stages = found.value.max(1);
            sheet.whole(key!(parallel.pipeline), stages, found.from);
            let chunk = flags.maybe_whole("--num-layers-per-virtual-pipeline-stage")?;
            if let Some(found) = &chunk
                && (stages == 1 || found.value == 0)
            {
                sheet.note(NoteKind::Unused, found.from.clone(), "there is one stage");
            } else if let Some(found) = chunk {
                let layers = flags.whole("--num-layers", 24)?.value;
                let chunks = layers / stages / found.value;
                sheet.whole(key!(parallel.virtual_stages), chunks.max(1), found.from.clone());
                sheet.text(key!(parallel.schedule), "interleaved", found.from);
            }
        }
        let sharded = flags.is_given("--use-distributed-optimizer");
        let from = if sharded { "--use-distributed-optimizer" } else { "optimizer state of Megatron-LM is replicated" };
        sheet.whole(key!(parallel.zero), u64::from(sharded), from);
        if let Some(stage) = flags.maybe_number("--zero-stage")? {
            let why = "DeepSpeed's file decides it, and Megatron-LM passes it on unread: set parallel.zero";
            sheet.note(NoteKind::Unused, stage.from, why);
        }
        let always = [
            ("--ddp-impl", "gradients are reduced while others are computed"),
            ("--overlap-grad-reduce", "gradients are always reduced while others are computed"),
            ("--overlap-param-gather", "parameters are always gathered while others compute"),
        ];
        for (name, why) in always {
            if flags.is_given(name) {
                sheet.note(NoteKind::Unused, flags.shown(name), why);
            }
        }
        Ok(())
    }

    fn batch(&self, command: &Command, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let micro = match self.first(&["--micro-batch-size", "--batch-size"]) {
            Some(name) => flags.whole(name, 4)?,
            None => flags.whole("--batch-size", 4)?,
        };
        let batch = flags.maybe_whole("--global-batch-size")?;
        let gas = flags.maybe_whole("--gas")?;
        let parts = BatchParts {
            accumulation: match (&gas, &batch) {
                (Some(gas), _) => Some((gas.value, gas.from.clone())),
                (None, Some(_)) => None,
                (None, None) => Some((1, "Megatron-LM accumulates nothing without --global-batch-size".to_owned())),
            },
            micro: Some((micro.value, micro.from)),
            batch: batch.map(|found| (found.value, found.from)),
            ranks: options.ranks.or_else(|| ranks_of(command)),
            model_ranks: sheet.model_ranks(),
        };
        parts.write(sheet)?;
        self.batch_ramp(sheet)
    }
}

impl Translation<'_> {
    /// Batches that grow, `START INCREMENT SAMPLES`.
    fn batch_ramp(&self, sheet: &mut Sheet) -> Result<()> {
        let name = "--rampup-batch-size";
        let Some(values) = self.flags.values(name) else { return Ok(()) };
        let shown = self.flags.shown(name);
        let numbers = values.iter().map(|value| parse(name, value)).collect::<Result<Vec<f64>>>()?;
        let [start, increment, samples] = numbers.as_slice() else {
            return Err(Error::argument(name, "it has three values", format!("write {name} START INCREMENT SAMPLES")));
        };
        if sheet.has_several(key!(parallel.pipeline)) {
            let why = "batches have their full size from the first step on, as a pipeline needs batches of one size";
            sheet.note(NoteKind::Differs, shown, why);
            return Ok(());
        }
        for (key, value) in [
            (key!(train.batch_ramp.start), start),
            (key!(train.batch_ramp.increment), increment),
            (key!(train.batch_ramp.samples), samples),
        ] {
            sheet.whole(key, value.max(1.0) as u64, shown.clone());
        }
        Ok(())
    }
}

fn launcher(command: &Command, sheet: &mut Sheet) {
    let interpreters = ["python", "python3", "eval", "exec", "nohup"];
    if command.launcher.iter().any(|word| !interpreters.contains(&word.as_str())) {
        let words = printable(&command.launcher.join(" "), 160);
        let why = "`bmtrain finetune --ranks N` starts the ranks of a host; docs/launch.md has launchers of several \
                   hosts";
        sheet.note(NoteKind::Unused, words, why);
    }
}
