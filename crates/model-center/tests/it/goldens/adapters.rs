//! Golden adapters: tiny models with the logits, losses and gradients of PEFT.

use crate::goldens::{self, directory, inputs};
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::widen;
use model_center::adapter::Adapter;
use model_center::data::Batch;
use model_center::model::{OpenOptions, OpenedModel, Registry, TextHead};
use std::path::PathBuf;

/// A golden adapter: its directory, the model and the head it is of, and which tokens have defined states.
pub struct Golden {
    pub name: &'static str,
    pub model: (&'static str, &'static str),
    pub head: TextHead,
    defined: fn(&Batch) -> Vec<bool>,
}

const fn golden(name: &'static str, model: (&'static str, &'static str), head: TextHead) -> Golden {
    let defined = match head {
        TextHead::CausalLm => goldens::from_the_first_token,
        _ => goldens::everywhere,
    };
    Golden { name, model, head, defined }
}

pub static GOLDENS: [Golden; 27] = [
    golden("llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    golden("bloom", ("bloom_a", "lm"), TextHead::CausalLm),
    golden("bert", ("bert_a", "cls"), TextHead::Classification { outputs: 2 }),
    of_t5("t5"),
    golden("prompt_llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("prompt_gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    of_t5("prompt_t5"),
    of_t5("prompt_t5_both"),
    golden("dora_llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("dora_gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    golden("dora_bloom", ("bloom_a", "lm"), TextHead::CausalLm),
    golden("dora_bert", ("bert_a", "cls"), TextHead::Classification { outputs: 2 }),
    golden("ia3_llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("ia3_gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    golden("ia3_bloom", ("bloom_a", "lm"), TextHead::CausalLm),
    golden("ia3_bert", ("bert_a", "cls"), TextHead::Classification { outputs: 2 }),
    of_t5("ia3_t5"),
    golden("prefix_llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("prefix_gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    golden("prefix_bloom", ("bloom_a", "lm"), TextHead::CausalLm),
    golden("prefix_qwen3", ("qwen3_b", "lm"), TextHead::CausalLm),
    golden("prefix_opt", ("opt_a", "lm"), TextHead::CausalLm),
    golden("bottleneck_llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("bottleneck_gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    golden("bottleneck_bert", ("bert_a", "cls"), TextHead::Classification { outputs: 2 }),
    of_t5("bottleneck_t5"),
];

const fn of_t5(name: &'static str) -> Golden {
    let defined = goldens::from_the_first_decoder_token;
    Golden { name, model: ("t5_b", "lm"), head: TextHead::CausalLm, defined }
}

/// The goldens of methods that can be merged.
pub fn of_layers() -> impl Iterator<Item = &'static Golden> {
    GOLDENS.iter().filter(|golden| !golden.has_virtual_tokens() && !golden.name.starts_with("bottleneck"))
}

impl Golden {
    pub fn has_virtual_tokens(&self) -> bool {
        ["prompt", "prefix"].iter().any(|method| self.name.starts_with(method))
    }

    pub fn directory(&self) -> PathBuf {
        directory("adapters", self.name)
    }

    pub fn open(&self, device: &Device, adapter: Adapter, recompute: Recompute) -> OpenedModel {
        let options =
            OpenOptions { adapter: Some(adapter), head: Some(self.head), recompute, ..OpenOptions::new(device) };
        Registry::default().open(&directory(self.model.0, self.model.1), &options).unwrap()
    }

    pub fn open_saved(&self, device: &Device) -> OpenedModel {
        self.open(device, Adapter::Saved(self.directory()), Recompute::Keep)
    }

    pub fn logits(&self, opened: &OpenedModel, device: &Device) -> Vec<f32> {
        let batch = inputs(self.model.0, self.model.1);
        let output = opened.model.forward(&batch, None, &mut Ctx::inference(device)).unwrap();
        widen(output.logits.unwrap().value()).unwrap()
    }

    /// Of the defined tokens.
    pub fn defined_at(&self, values: &[f64]) -> Vec<f64> {
        let defined = (self.defined)(&inputs(self.model.0, self.model.1));
        let columns = values.len() / defined.len();
        if matches!(self.head, TextHead::Classification { .. }) {
            return values.to_vec();
        }
        let rows = values.chunks(columns).zip(defined);
        rows.filter(|(_, defined)| *defined).flat_map(|(row, _)| row.to_vec()).collect()
    }
}
