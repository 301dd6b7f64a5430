//! `[train]` and the files of a run of a command of Megatron-LM.

use super::{Program, Translation};
use crate::import::checkpoint::begin_with;
use crate::import::flags::Sourced;
use crate::import::sheet::{NoteKind, Sheet};
use crate::{Error, Result};
use model_center_recipe::key;

impl Translation<'_> {
    pub(super) fn train(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let steps = self.steps(sheet)?;
        sheet.whole(key!(train.steps), steps.value, steps.from.clone());
        self.schedule(&steps, sheet)?;
        if let Some("sgd") = flags.text("--optimizer")? {
            return Err(Error::argument(
                "--optimizer",
                "import reads the settings of Adam alone",
                "write the keys of its [train] by hand (docs/optimizers.md); --optimizer adam trains otherwise",
            ));
        }
        if flags.is_given("--optimizer") {
            sheet.note(NoteKind::Unused, flags.shown("--optimizer"), "recipes train with Adam by default");
        }
        let decay = flags.number("--weight-decay", 0.01)?;
        sheet.number(key!(train.weight_decay), decay.value, decay.from);
        sheet.flag(key!(train.decay_norms_and_biases), false, "Megatron-LM does not decay norms and biases");
        sheet.flag(key!(train.decoupled), true, "its Adam decays apart from the gradient");
        let (first, second) = (flags.number("--adam-beta1", 0.9)?, flags.number("--adam-beta2", 0.999)?);
        sheet.betas(first, second);
        let eps = flags.number("--adam-eps", 1e-8)?;
        sheet.number(key!(train.eps), eps.value, eps.from);
        let clip = flags.number("--clip-grad", 1.0)?;
        sheet.clip(clip.value, clip.from);
        let seed = flags.whole("--seed", 1234)?;
        sheet.whole(key!(train.seed), seed.value, seed.from);
        if flags.is_given("--cpu-optimizer") {
            sheet.flag(key!(train.offload), true, "--cpu-optimizer");
        }
        self.gradients(sheet)?;
        self.loss_scale(sheet)?;
        self.recompute(sheet)
    }

    /// Their dtype: with `--bf16` it is f32 unless a flag narrows it.
    fn gradients(&self, sheet: &mut Sheet) -> Result<()> {
        const NARROW: &str = "--grad-reduce-in-bf16";
        let wide = self.first(&["--fp32-allreduce", "--accumulate-allreduce-grads-in-fp32"]);
        let is_narrow = self.flags.is_given(NARROW);
        match (wide, sheet.get(key!(model.dtype))) {
            // Newer versions take the second one as decisive.
            (Some(wide), Some("\"bf16\"")) if is_narrow => {
                sheet.note(NoteKind::Unused, wide, format!("{NARROW} decides"));
                sheet.text(key!(train.gradient_dtype), "model", NARROW);
            }
            (Some(wide), _) if is_narrow => {
                let reason = format!("gradients are in f32 by {wide}, and in bf16 by it");
                return Err(Error::argument(NARROW, reason, "give one of the two"));
            }
            (Some(name), _) => sheet.text(key!(train.gradient_dtype), "f32", name),
            (None, Some("\"f32\"")) if is_narrow => sheet.note(NoteKind::Unused, NARROW, "parameters are f32"),
            (None, Some("\"f32\"")) => {}
            (None, Some("\"bf16\"")) if !is_narrow => {
                let from = format!("--bf16, without {NARROW}: Megatron-LM accumulates and reduces in f32");
                sheet.text(key!(train.gradient_dtype), "f32", from);
            }
            (None, _) => {
                let from = if is_narrow { NARROW } else { "no --fp32-allreduce" };
                sheet.text(key!(train.gradient_dtype), "model", from);
            }
        }
        Ok(())
    }

    fn steps(&self, sheet: &Sheet) -> Result<Sourced<u64>> {
        let flags = self.flags;
        let Some(samples) = flags.maybe_whole("--train-samples")? else {
            return flags.whole("--train-iters", 1_000_000);
        };
        Ok(Sourced { value: self.to_steps(samples.value, &samples.from, sheet)?, ..samples })
    }

    /// The steps that have this number of samples.
    fn to_steps(&self, samples: u64, from: &str, sheet: &Sheet) -> Result<u64> {
        let product = || {
            let ranks = sheet.ranks? / sheet.model_ranks();
            sheet
                .count(key!(train.micro_batch_size))?
                .checked_mul(sheet.count(key!(train.accumulation))?)?
                .checked_mul(ranks)
        };
        let batch =
            sheet.count(key!(train.batch_size)).or_else(product).filter(|batch| *batch > 0).ok_or_else(|| {
                let reason = format!("{from} are a number of steps only with the samples of a step");
                Error::argument("--train-samples", reason, "give --global-batch-size, or --ranks to `import`")
            })?;
        Ok(samples.div_ceil(batch))
    }

    fn schedule(&self, steps: &Sourced<u64>, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let lr = flags.number("--lr", 1e-4)?;
        sheet.number(key!(train.lr), lr.value, lr.from.clone());
        let end = match (flags.maybe_whole("--lr-decay-iters")?, flags.maybe_whole("--lr-decay-samples")?) {
            (Some(found), _) => found,
            (None, Some(found)) => {
                let value = self.to_steps(found.value, &found.from, sheet)?;
                Sourced { value, from: found.from, is_given: true }
            }
            (None, None) => Sourced { value: steps.value, from: steps.from.clone(), is_given: false },
        };
        if end.value != steps.value {
            sheet.whole(key!(train.decay_steps), end.value.max(1), end.from.clone());
        } else if end.is_given {
            sheet.note(NoteKind::Unused, end.from.clone(), "the schedule ends with the run");
        }
        let warmup = self.warmup(&end, sheet)?;
        sheet.whole(key!(train.warmup), warmup.value, warmup.from);
        let given = flags.text_or("--lr-decay-style", "linear")?;
        let (style, from) = (given.value, given.from);
        let least = flags.number("--min-lr", 0.0)?;
        // Version 2 mended the formulas, and has flags of its own for the warm-up.
        let is_mended = flags.has("--micro-batch-size") || flags.has("--lr-warmup-samples");
        match style {
            // From there on the smallest rate is where the decay ends; before, it is a floor.
            "linear" | "cosine" if is_mended && least.value > 0.0 => {
                sheet.text(key!(train.schedule), &format!("{style}-with-min-lr"), format!("{from}, {}", least.from));
            }
            "linear" | "cosine" | "constant" => sheet.text(key!(train.schedule), style, from),
            // In 2019 its formula was not written yet.
            "exponential" if self.is_2019 => {
                sheet.text(key!(train.schedule), "constant", format!("{from}, constant in 2019"))
            }
            "exponential" => {
                sheet.text(key!(train.schedule), "exponential", from);
                let gamma = (-0.693 / end.value.max(1) as f64).exp();
                sheet.number(key!(train.gamma), gamma, "exp(-0.693 / decay steps), as Megatron-LM's formula");
            }
            other => {
                let reason = format!("the schedule {other} has no counterpart");
                let fix = "linear, cosine, constant or exponential";
                return Err(Error::argument("--lr-decay-style", reason, fix));
            }
        }
        if least.value > lr.value {
            let reason = format!("{} is above {}", least.from, lr.from);
            return Err(Error::argument("--min-lr", reason, "give at most --lr"));
        }
        if sheet.get(key!(train.schedule)) == Some("\"constant\"") {
            if least.is_given {
                sheet.note(NoteKind::Unused, least.from, "the learning rate does not fall");
            }
        } else if lr.value > 0.0 {
            sheet.number(key!(train.final_lr_ratio), least.value / lr.value, format!("{} / {}", least.from, lr.from));
        }
        if matches!(style, "linear" | "cosine") && !is_mended {
            let from = "Megatron-LM's formulas before version 2 end one warm-up later";
            sheet.text(key!(train.decay_endpoint), "megatron-2019", from);
        }
        Ok(())
    }

    /// Steps of the warm-up; a fraction is one of the steps of decay.
    fn warmup(&self, end: &Sourced<u64>, sheet: &Sheet) -> Result<Sourced<u64>> {
        let flags = self.flags;
        if let Some(found) = flags.maybe_whole("--lr-warmup-iters")? {
            return Ok(found);
        }
        if let Some(found) = flags.maybe_whole("--lr-warmup-samples")? {
            return Ok(Sourced { value: self.to_steps(found.value, &found.from, sheet)?, ..found });
        }
        let found = match self.first(&["--lr-warmup-fraction", "--warmup"]) {
            Some(name) => flags.number(name, 0.01)?,
            None => flags.number("--warmup", 0.01)?,
        };
        if !(0.0..1.0).contains(&found.value) {
            let reason = format!("{} is not a fraction below 1", found.from);
            return Err(Error::argument("--warmup", reason, "give a fraction of the steps, such as 0.01"));
        }
        let value = (found.value * end.value as f64).round() as u64;
        Ok(Sourced { value, from: format!("{} of {} steps", found.from, end.value), is_given: found.is_given })
    }

    fn loss_scale(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let fixed = flags.maybe_number("--loss-scale")?;
        let start = flags.maybe_number("--initial-loss-scale")?;
        let window = flags.maybe_whole("--loss-scale-window")?;
        let hysteresis = flags.maybe_whole("--hysteresis")?;
        let floor = match self.first(&["--min-loss-scale", "--min-scale"]) {
            Some(name) => flags.maybe_number(name)?,
            None => None,
        };
        let is_half = sheet.get(key!(model.dtype)) == Some("\"f16\"");
        let numbers =
            ["--loss-scale-window", "--hysteresis", "--min-scale", "--min-loss-scale", "--initial-loss-scale"];
        for name in ["--loss-scale"].into_iter().chain(numbers) {
            let has_effect = is_half && (name == "--loss-scale" || fixed.is_none());
            if flags.is_given(name) && !has_effect {
                let why = if is_half { "the scale is static" } else { "losses are scaled with --fp16 alone" };
                sheet.note(NoteKind::Unused, flags.shown(name), why);
            }
        }
        if !is_half {
            return Ok(());
        }
        if let Some(fixed) = fixed {
            return sheet.static_loss_scale(fixed.value, "--loss-scale", fixed.from);
        }
        sheet.text(key!(train.loss_scale), "megatron", "no --loss-scale: dynamic");
        if let Some(found) = start {
            sheet.power(key!(train.loss_scale_start), found.value, "--initial-loss-scale", found.from)?;
        }
        if let Some(found) = window {
            sheet.whole(key!(train.loss_scale_window), found.value, found.from);
        }
        if let Some(found) = hysteresis {
            sheet.whole(key!(train.loss_scale_hysteresis), found.value, found.from);
        }
        if let Some(found) = floor {
            sheet.power(key!(train.loss_scale_floor), found.value, "--min-scale", found.from)?;
        }
        Ok(())
    }

    fn recompute(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let switches = ["--checkpoint-activations", "--deepspeed-activation-checkpointing"];
        let whole = self.first(&switches);
        let granularity = flags.text("--recompute-granularity")?;
        let every = flags.maybe_whole("--checkpoint-num-layers")?;
        let later = flags.maybe_whole("--recompute-num-layers")?;
        let method = flags.text("--recompute-method")?;
        let is_selective = flags.is_given("--recompute-activations") || granularity == Some("selective");
        if is_selective {
            let name = self.first(&["--recompute-activations", "--recompute-granularity"]).unwrap_or_default();
            sheet.text(key!(train.recompute), "attention", flags.shown(name));
        } else if let Some(from) = whole.or(granularity.map(|_| "--recompute-granularity full")) {
            let every = match method {
                Some("block") => {
                    let why = "the first blocks are recomputed as memory requires: train.recompute = \"auto\"";
                    sheet.note(NoteKind::Differs, flags.shown("--recompute-method"), why);
                    None
                }
                Some(_) => {
                    sheet.note(NoteKind::Unused, flags.shown("--recompute-method"), "blocks are alike");
                    every.or(later)
                }
                None => every.or(later),
            };
            match every {
                Some(found) if found.value > 1 => {
                    sheet.whole(key!(train.recompute), found.value, format!("{from}, {}", found.from));
                }
                Some(found) => sheet.text(key!(train.recompute), "blocks", format!("{from}, {}", found.from)),
                None => sheet.text(key!(train.recompute), "blocks", from),
            }
        }
        if sheet.get(key!(train.recompute)).is_none_or(|value| value == "\"attention\"") {
            for name in ["--checkpoint-num-layers", "--recompute-num-layers", "--recompute-method"] {
                if flags.is_given(name) {
                    sheet.note(NoteKind::Unused, flags.shown(name), "no block is recomputed as a whole");
                }
            }
        }
        let recomputes_blocks = sheet.get(key!(train.recompute)).is_some_and(|value| value != "\"attention\"");
        let sharded = self.first(&[
            "--distribute-checkpointed-activations",
            "--distribute-saved-activations",
            "--partition-activations",
        ]);
        let host = self.first(&["--checkpoint-in-cpu"]);
        // Sequences that are sharded already have sharded inputs.
        let has_ranks = sheet.has_several(key!(parallel.tensor)) && sheet.get(key!(parallel.sequence)).is_none();
        match (host, sharded) {
            (Some(from), _) if recomputes_blocks => sheet.text(key!(train.recompute_inputs), "host", from),
            (None, Some(from)) if recomputes_blocks && has_ranks => {
                sheet.text(key!(train.recompute_inputs), "sharded", from)
            }
            (None, None) => {}
            (host, sharded) => {
                let what = host.or(sharded).unwrap_or_default();
                let why = "no block is recomputed, there is one tensor-parallel rank, or sequences are sharded already";
                sheet.note(NoteKind::Unused, what, why);
            }
        }
        Ok(())
    }

    /// Output, checkpoints and logs.
    pub(super) fn files(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        match flags.text("--save")? {
            Some(path) => sheet.text(key!(output.dir), path, flags.shown("--save")),
            None => sheet.text(key!(output.dir), "runs/imported", "no --save"),
        }
        let every = flags.maybe_whole("--save-interval")?;
        match (flags.is_given("--save"), every) {
            (true, every) => {
                let (steps, from) = every.map_or((5000, "--save-interval, default 5000".to_owned()), |found| {
                    (found.value.max(1), found.from)
                });
                sheet.text(key!(checkpoint.every), &format!("{steps} steps"), from);
                sheet.number(key!(checkpoint.minutes), 0.0, "--save-interval counts steps alone");
                if flags.is_given("--no-save-optim") {
                    sheet.flag(key!(checkpoint.optimizer_state), false, "--no-save-optim");
                }
            }
            (false, Some(every)) => sheet.note(NoteKind::Unused, every.from, "it is for --save"),
            (false, None) => {}
        }
        if flags.is_given("--no-save-optim") && !flags.is_given("--save") {
            sheet.note(NoteKind::Unused, "--no-save-optim", "it is for --save");
        }
        let log = flags.whole("--log-interval", 100)?;
        sheet.whole(key!(log.every), log.value.max(1), log.from);
        let (load, save) = (flags.text("--load")?, flags.text("--save")?);
        let weights_only = flags.is_given("--finetune");
        match load {
            Some(load) if Some(load) == save && !weights_only => {
                sheet.note(NoteKind::Unused, flags.shown("--load"), "the same command resumes the run in output.dir");
            }
            // The checkpoints of T5 are not read.
            Some(_) if self.program == Program::T5 => {
                let why = "no checkpoint of a T5 of Megatron-LM is read: training begins with random weights";
                sheet.note(NoteKind::Differs, flags.shown("--load"), why);
            }
            Some(load) => {
                begin_with(load, flags.shown("--load"), None, sheet)?;
                sheet.drop_initialization("the checkpoint's model has it");
            }
            None => {}
        }
        if weights_only {
            let why = if load.is_none() { "it is for --load" } else { "a model has no optimizer state and no step" };
            sheet.note(NoteKind::Unused, "--finetune", why);
        }
        if flags.is_given("--deepspeed") || flags.is_given("--deepspeed-config") {
            let given = ["--deepspeed", "--deepspeed-config"].into_iter().filter(|name| flags.is_given(name));
            let what = given.map(|name| flags.shown(name)).collect::<Vec<_>>().join(", ");
            match self.has_configuration {
                true => sheet.note(NoteKind::Unused, what, "the recipe has the settings of the file that is read"),
                false => {
                    let why = "its file is not read here: `bmtrain import deepspeed FILE --flags \"…\"` reads both";
                    sheet.note(NoteKind::Differs, what, why);
                }
            }
        }
        Ok(())
    }
}
