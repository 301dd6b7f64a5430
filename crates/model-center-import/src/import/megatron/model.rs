//! `[model]` of a command of Megatron-LM.

use super::{Program, Translation};
use crate::import::flags::Sourced;
use crate::import::sheet::{NoteKind, Sheet};
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_recipe::key;

/// Residuals after norms: BERT's own order, which Megatron-LM's BERT has had with this flag alone since version 1.
const POST_NORM: &str = "--apply-residual-connection-post-layernorm";

/// The flags for parameters in f32, and the kinds of parameters that they are for.
const F32_FLAGS: [(&str, &str); 3] =
    [("--fp32-embedding", "embeddings"), ("--fp32-layernorm", "norms"), ("--fp32-tokentypes", "token-types")];

impl Translation<'_> {
    pub(super) fn model(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let family = self.family()?;
        if flags.is_given("--pretrained-bert") {
            sheet.text(key!(model.path), "bert-large-uncased", "--pretrained-bert");
            sheet.note(NoteKind::Unused, "sizes of the model", "--pretrained-bert has the sizes of bert-large-uncased");
            self.dropout(sheet)?;
            return self.dtype(sheet);
        }
        sheet.text(key!(model.init), "random", "Megatron-LM initializes the model randomly");
        sheet.text(key!(model.family), family, self.family_from());
        self.tokenizer(sheet)?;
        let layers = flags.whole("--num-layers", 24)?;
        let hidden = flags.whole("--hidden-size", 1024)?;
        let heads = flags.whole("--num-attention-heads", 16)?;
        let default = if self.is_2019 { 512 } else { flags.whole("--seq-length", 1024)?.value };
        let positions = flags.whole("--max-position-embeddings", default)?;
        let head_size = self.head_size(sheet)?;
        if head_size.is_none() && (heads.value == 0 || !hidden.value.is_multiple_of(heads.value)) {
            let reason = format!("{} does not divide {} ({})", heads.from, hidden.value, hidden.from);
            return Err(Error::argument("--num-attention-heads", reason, "choose a divisor of --hidden-size"));
        }
        for (key, found) in [(key!(model.layers), layers), (key!(model.hidden), hidden), (key!(model.heads), heads)] {
            sheet.whole(key, found.value, found.from);
        }
        let is_relative = family == "t5";
        match is_relative {
            true => sheet.note(NoteKind::Differs, positions.from, "t5 has relative positions, without a limit"),
            false => sheet.whole(key!(model.positions), positions.value, positions.from),
        }
        let width = sheet.count(key!(model.hidden));
        match head_size {
            // A configuration of T5 states it.
            Some(found) if is_relative => sheet.whole(key!(model.head_size), found.value, found.from),
            None if is_relative => {
                if let (Some(hidden), Some(heads)) = (width, sheet.count(key!(model.heads)).filter(|heads| *heads > 0))
                {
                    let from = "no --kv-channels: --hidden-size / --num-attention-heads";
                    sheet.whole(key!(model.head_size), hidden / heads, from);
                }
            }
            Some(found) if sheet.count(key!(model.heads)).and_then(|heads| heads.checked_mul(found.value)) == width => {
                sheet.note(NoteKind::Unused, found.from, "it is the hidden size divided by the heads");
            }
            Some(found) => sheet.whole(key!(model.head_size), found.value, found.from),
            None => {}
        }
        self.sharing(sheet)?;
        self.feed_forward(sheet)?;
        self.kv_heads(sheet)?;
        let std = flags.number("--init-method-std", 0.02)?;
        match is_relative {
            true => sheet.note(NoteKind::Differs, std.from, "t5 initializes each layer by its sizes"),
            false => sheet.number(key!(model.init_std), std.value, std.from),
        }
        match family {
            "cpm_t5" => self.cpm_t5(sheet),
            "t5" => {}
            _ => self.scaled_init(sheet),
        }
        self.dropout(sheet)?;
        if is_relative {
            let why =
                "t5 has RMSNorm and no absolute positions, and Megatron-LM's T5 has LayerNorm and both embeddings";
            sheet.note(NoteKind::Differs, "pretrain_t5.py", why);
        } else {
            self.architecture(family, sheet)?;
        }
        self.dtype(sheet)
    }

    /// Whether initial output projections are scaled by depth.
    fn scaled_init(&self, sheet: &mut Sheet) {
        let flags = self.flags;
        let scales = self.program != Program::Bert || flags.is_given("--deep-init") || !self.is_2019;
        let from = match (self.program, flags.is_given("--deep-init")) {
            (_, true) => "--deep-init",
            (Program::Bert, false) if !scales => "no --deep-init",
            _ => "Megatron-LM divides the initial output projections of a block by the root of 2 x layers",
        };
        sheet.flag(key!(model.scale_init_by_depth), scales, from);
    }

    /// The family that has these layers.
    fn family(&self) -> Result<&'static str> {
        let flags = self.flags;
        let rotary = flags.is_given("--use-rotary-position-embeddings")
            || flags.text("--position-embedding-type")? == Some("rope");
        let rms = flags.text("--normalization")? == Some("RMSNorm");
        let gated = flags.is_given("--swiglu");
        match (self.program, rotary, rms, gated) {
            (Program::Gpt, true, true, true) => Ok("llama"),
            (Program::Gpt, false, false, false) => Ok("gpt2"),
            // The list of 2019 has BERT's order of norms alone.
            (Program::Bert, false, false, false) if self.is_2019 || flags.is_given(POST_NORM) => Ok("bert"),
            (Program::Bert, false, false, false) => Ok("megatron-bert"),
            (Program::T5, false, false, false) if self.is_cpm_t5() => Ok("cpm_t5"),
            (Program::T5, false, false, false) => Ok("t5"),
            _ => {
                let reason = "rotary embeddings, RMSNorm and SwiGLU are Llama's together, and a model that has some of \
                              them, or another program's, is not available";
                let fix = "choose an available family: with all three flags, or with none, the model is another one";
                Err(Error::argument("--position-embedding-type", reason, fix))
            }
        }
    }

    fn family_from(&self) -> String {
        match self.program {
            Program::Gpt => "pretraining of a decoder".to_owned(),
            Program::Bert if self.flags.is_given(POST_NORM) => POST_NORM.to_owned(),
            Program::Bert if self.is_2019 => "pretraining of BERT, with the norms of 2019".to_owned(),
            Program::Bert => format!("pretraining of BERT, no {POST_NORM}"),
            Program::T5 if self.is_cpm_t5() => "pretraining of CPM-Pretrain's T5".to_owned(),
            Program::T5 => "pretraining of T5".to_owned(),
        }
    }

    /// Settings that CPM-Pretrain's T5 leaves open, and the difference of its norms.
    fn cpm_t5(&self, sheet: &mut Sheet) {
        let has_biases = self.flags.is_given("--hidden-bias");
        let from = if has_biases { "--hidden-bias, of feed-forward layers too" } else { "no --hidden-bias" };
        sheet.flag(key!(model.hidden_bias), has_biases, from);
        let why = "CPM-Pretrain's T5 has no norm after its encoder, and one for two layers of a decoder block; \
                   cpm_pretrain_norms in a config.json that model.path names sets this";
        sheet.note(NoteKind::Differs, "norms of pretrain_t5.py", why);
    }

    fn head_size(&self, sheet: &mut Sheet) -> Result<Option<Sourced<u64>>> {
        let Some(name) = self.first(&["--kv-channels", "--kv-hidden-size"]) else { return Ok(None) };
        let found = self.flags.maybe_whole(name)?;
        if name == "--kv-hidden-size" && self.program == Program::Gpt {
            sheet.note(NoteKind::Unused, self.flags.shown(name), "CPM-Pretrain's GPT-2 does not read it");
            return Ok(None);
        }
        Ok(found)
    }

    fn feed_forward(&self, sheet: &mut Sheet) -> Result<()> {
        let names = ["--ffn-hidden-size", "--ff-hidden-size", "--intermediate-size"];
        let Some(name) = self.first(&names) else { return Ok(()) };
        if name == "--ff-hidden-size" && self.program == Program::Gpt {
            sheet.note(NoteKind::Unused, self.flags.shown(name), "CPM-Pretrain's GPT-2 does not read it");
            return Ok(());
        }
        let found = self.flags.whole(name, 4096)?;
        sheet.whole(key!(model.feed_forward), found.value, found.from);
        Ok(())
    }

    /// Layers that share their parameters.
    fn sharing(&self, sheet: &mut Sheet) -> Result<()> {
        let (name, style) = ("--num-unique-layers", self.flags.text("--param-sharing-style")?);
        let layers = sheet.count(key!(model.layers)).unwrap_or(0);
        let unique = self.flags.maybe_whole(name)?;
        match unique {
            Some(found) if found.value == 0 || !layers.is_multiple_of(found.value) => {
                let reason = format!("{} does not divide {layers} layers", found.from);
                return Err(Error::argument(name, reason, "choose a divisor of --num-layers"));
            }
            Some(found) if found.value < layers => {
                sheet.whole(key!(model.unique_layers), found.value, found.from);
                let style = style.unwrap_or("grouped");
                if !["grouped", "spaced"].contains(&style) {
                    let reason = format!("the order {} is not known", printable(style, 40));
                    return Err(Error::argument("--param-sharing-style", reason, "grouped or spaced"));
                }
                let from = match self.flags.is_given("--param-sharing-style") {
                    true => self.flags.shown("--param-sharing-style"),
                    false => "--param-sharing-style, default grouped".to_owned(),
                };
                sheet.text(key!(model.sharing_style), style, from);
            }
            found => {
                if let Some(found) = found {
                    sheet.note(NoteKind::Unused, found.from, "each layer has its own parameters");
                }
                if style.is_some() {
                    let what = self.flags.shown("--param-sharing-style");
                    sheet.note(NoteKind::Unused, what, "no layers share their parameters");
                }
            }
        }
        Ok(())
    }

    fn kv_heads(&self, sheet: &mut Sheet) -> Result<()> {
        let is_grouped = self.flags.is_given("--group-query-attention");
        match self.flags.maybe_whole("--num-query-groups")? {
            Some(found) if is_grouped => {
                sheet.whole(key!(model.kv_heads), found.value, format!("--group-query-attention, {}", found.from));
            }
            Some(found) => sheet.note(NoteKind::Unused, found.from, "it is for --group-query-attention"),
            None if is_grouped => {
                sheet.note(NoteKind::Unused, "--group-query-attention", "there is no --num-query-groups");
            }
            None => {}
        }
        Ok(())
    }

    fn dropout(&self, sheet: &mut Sheet) -> Result<()> {
        for (key, name) in
            [(key!(model.hidden_dropout), "--hidden-dropout"), (key!(model.attention_dropout), "--attention-dropout")]
        {
            let found = self.flags.number(name, 0.1)?;
            if sheet.get(key!(model.family)) == Some("\"llama\"") {
                let kind = if found.value == 0.0 { NoteKind::Unused } else { NoteKind::Differs };
                sheet.note(kind, found.from, "llama has no dropout");
                continue;
            }
            sheet.number(key, found.value, found.from);
        }
        Ok(())
    }

    /// Settings of a block without a key: they are the family's, or training differs.
    fn architecture(&self, family: &str, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let own = match family {
            "bert" | "megatron-bert" => 1e-12,
            "llama" => 1e-6,
            _ => 1e-5,
        };
        let eps = match self.first(&["--norm-epsilon", "--layernorm-epsilon"]) {
            Some(name) => flags.number(name, 1e-5)?,
            None => flags.number("--layernorm-epsilon", 1e-5)?,
        };
        match eps.value == own {
            true => sheet.note(NoteKind::Unused, eps.from, format!("{family} has this epsilon")),
            false => {
                let why = format!("{family} has {own:e}; a config.json that model.path names sets another");
                sheet.note(NoteKind::Differs, eps.from, why);
            }
        }
        if self.program != Program::Bert && flags.is_given(POST_NORM) {
            let reason = format!("{family} has its norms before layers, and a model with them after is not available");
            return Err(Error::argument(
                POST_NORM,
                reason,
                "choose an available family: without the flag the model is another one",
            ));
        }
        let is_tanh = self.program == Program::Gpt;
        if flags.is_given("--openai-gelu") {
            let kind = if is_tanh { NoteKind::Unused } else { NoteKind::Differs };
            let form = if is_tanh { "this form of GELU" } else { "the exact GELU" };
            sheet.note(kind, "--openai-gelu", format!("{family} has {form}"));
        }
        for (name, of_llama) in [
            ("--swiglu", true),
            ("--disable-bias-linear", true),
            ("--untie-embeddings-and-output-weights", true),
            ("--use-rotary-position-embeddings", true),
            ("--normalization", true),
            ("--position-embedding-type", true),
            ("--hidden-bias", false),
        ] {
            if !flags.is_given(name) {
                continue;
            }
            match (of_llama, family) {
                (true, "llama") => sheet.note(NoteKind::Unused, flags.shown(name), "llama is so"),
                (true, _) if ["--normalization", "--position-embedding-type"].contains(&name) => {
                    sheet.note(NoteKind::Unused, flags.shown(name), format!("{family} is so"));
                }
                // It has a key.
                (false, "cpm_t5") => {}
                (false, "gpt2" | "bert" | "megatron-bert") => {
                    sheet.note(NoteKind::Unused, name, format!("{family} has biases"))
                }
                _ => {
                    let why = format!("{family} is not so; a config.json that model.path names may set it");
                    sheet.note(NoteKind::Differs, flags.shown(name), why);
                }
            }
        }
        if let Some(base) = flags.maybe_number("--rotary-base")? {
            let is_same = family != "llama" || base.value == 10_000.0;
            let kind = if is_same { NoteKind::Unused } else { NoteKind::Differs };
            sheet.note(kind, base.from, "llama has 10000; a config.json that model.path names sets another");
        }
        Ok(())
    }

    fn dtype(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let (half, wide) = (flags.is_given("--fp16"), flags.is_given("--bf16"));
        match (half, wide) {
            (true, true) => {
                return Err(Error::argument("--bf16", "--fp16 is given too", "choose one"));
            }
            (true, false) => sheet.text(key!(model.dtype), "f16", "--fp16"),
            (false, true) => sheet.text(key!(model.dtype), "bf16", "--bf16"),
            (false, false) => sheet.text(key!(model.dtype), "f32", "neither --fp16 nor --bf16"),
        }
        self.f32_parameters(half, sheet);
        Ok(())
    }

    /// Parameters in f32 where `--fp16` stores the others in f16.
    fn f32_parameters(&self, half: bool, sheet: &mut Sheet) {
        let (mut kinds, mut given) = (Vec::new(), Vec::new());
        for (name, kind) in F32_FLAGS.into_iter().filter(|(name, _)| self.flags.is_given(name)) {
            if !half {
                sheet.note(NoteKind::Unused, name, "Megatron-LM ignores it without --fp16");
            } else if kind == "token-types" && self.program != Program::Bert {
                sheet.note(NoteKind::Unused, name, "the family has no token types");
            } else {
                kinds.push(kind.to_owned());
                given.push(name);
            }
        }
        if !kinds.is_empty() {
            sheet.list(key!(model.f32_parameters), &kinds, given.join(", "));
        }
    }
}
