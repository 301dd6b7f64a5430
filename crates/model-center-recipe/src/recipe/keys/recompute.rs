//! Activations kept by blocks, and contents of host memory: the values of `train.recompute`, and the rules of these
//! keys.

use super::Settings;
use super::optimizer::NOT_ON_HOST;
use super::parallel::MAX_BLOCKS;
use super::train::Products;
use crate::recipe::engine::kinds::{as_integer, quote};
use crate::recipe::engine::layers::Value;
use crate::recipe::engine::reader::{Otherwise, Reader, Spec};
use crate::recipe::engine::schema::Shape;
use bmtrain_core::DType;
use bmtrain_dist::block::{InputStore, Recompute};
use bmtrain_dist::shard::ZeroLevel;

impl Reader {
    pub(super) fn recompute(&mut self, key: &'static str) -> Recompute {
        const NAMED: [(&str, Recompute); 4] = [
            ("none", Recompute::Keep),
            ("blocks", Recompute::Checkpoint),
            ("attention", Recompute::Attention),
            ("auto", Recompute::Auto),
        ];
        let names = NAMED.iter().map(|(name, _)| (*name).to_owned()).collect();
        let blocks = Shape::Integer(1, Some(MAX_BLOCKS as u64));
        self.shape(key, Shape::Either(vec![Shape::Choice(names), Shape::Flag, blocks]));
        self.read(Spec {
            key,
            textual: false,
            wanted:
                "\"none\" or false, \"blocks\" or true, \"attention\", \"auto\", or a whole number of blocks from 1 to \
                     65536"
                    .into(),
            example: quote("blocks"),
            otherwise: Otherwise::Default(Recompute::Keep),
            read: &|value| match value {
                Value::Text(text) => NAMED.iter().find(|(name, _)| text == name).map(|(_, recompute)| *recompute),
                Value::Bool(true) => Some(Recompute::Checkpoint),
                Value::Bool(false) => Some(Recompute::Keep),
                value => match as_integer(value)? {
                    1 => Some(Recompute::Checkpoint),
                    blocks => {
                        usize::try_from(blocks).ok().filter(|n| (2..=MAX_BLOCKS).contains(n)).map(Recompute::Every)
                    }
                },
            },
            render: &|recompute| match recompute {
                Recompute::Every(blocks) => blocks.to_string(),
                named => quote(NAMED.iter().find(|(_, other)| other == named).map_or("none", |(name, _)| name)),
            },
        })
        .unwrap_or(Recompute::Keep)
    }
}

/// Adds what contradicts itself or has no effect.
pub(crate) fn check(r: &mut Reader, s: &Settings) {
    let (inputs, key) = (s.train.recompute_inputs, "train.recompute_inputs");
    if matches!(s.train.recompute, Recompute::Keep | Recompute::Attention) {
        let reason = "blocks are not recomputed and keep more than their inputs";
        r.without_effect(key, "train.recompute", reason, "remove it, or set train.recompute = \"blocks\"");
    } else if inputs == InputStore::Sharded {
        if s.parallel.tensor == 1 {
            r.without_effect(key, "parallel.tensor", "parallel.tensor is 1", "set parallel.tensor, or remove it");
        } else if s.parallel.sequence {
            let reason = "parallel.sequence has sharded the inputs already";
            r.without_effect(key, "parallel.sequence", reason, "remove it");
        } else if s.train.recompute == Recompute::Auto {
            let reason = "with `train.recompute` = \"auto\" each rank decides by itself what it keeps, and ranks that \
                          gather inputs have to agree";
            r.contradiction(&[key, "train.recompute"], reason, "set train.recompute = \"blocks\"");
        }
    }
    if s.train.products == Products::Bf16 && s.model.dtype != DType::F32 {
        let dtype = s.model.dtype;
        let reason = format!(
            "it rounds f32 factors, and a model in {dtype} has none: `model.dtype` = \"bf16\" multiplies bf16 by itself"
        );
        let fix = "remove train.products, or set model.dtype = \"f32\"";
        r.contradiction(&["train.products", "model.dtype"], reason, fix);
    }
    if s.train.products == Products::Bf16 && s.device.name.is_cuda() {
        let reason = "f32 factors are rounded to bf16 on a CPU alone, and `device.name` is a CUDA device";
        let fix = "remove train.products, or set device.name = \"cpu\"";
        r.contradiction(&["train.products", "device.name"], reason, fix);
    }
    if s.train.offload && !s.train.optimizer.can_be_offloaded() {
        r.contradiction(&["train.offload", "train.optimizer"], NOT_ON_HOST, "set train.optimizer = \"adamw\"");
    }
    if let Some(reason) = s.train.optimizer.needs_whole_parameters().filter(|_| s.parallel.tensor > 1) {
        let reason = format!("{reason}, and tensor-parallel ranks hold parts of them");
        r.contradiction(&["train.optimizer", "parallel.tensor"], reason, "set parallel.tensor = 1");
    }
    if s.train.offload_parameters && !s.train.offload {
        let reason = "parameters in host memory are updated there, and `train.offload` = false keeps the optimizer on \
                      the device";
        r.contradiction(&["train.offload_parameters", "train.offload"], reason, "set train.offload = true");
    }
    if s.train.offload_parameters && s.parallel.zero != ZeroLevel::Three {
        let level = s.parallel.zero.number();
        let reason =
            format!("parameters come to the device block by block under ZeRO-3, and `parallel.zero` = {level}");
        r.contradiction(&["train.offload_parameters", "parallel.zero"], reason, "set parallel.zero = 3");
    }
}
