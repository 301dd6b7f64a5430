//! Tensors of Megatron-LM under Hugging Face's names, and the configuration that its arguments make.
//!
//! Defines [`Model`]; called by [`crate::directory::ranked`]. The names of a BERT are in `bert.rs`.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::safetensors::TensorEntry;
use super::joined::{Join, JoinedTensor, Order};
use super::pieces::Pieces;
use crate::formats::ranked::RankedOptions;
use crate::{Error, Result};

/// A checkpoint's model: its tensors as Hugging Face has them, and its configuration.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) family: &'static str,
    pub(crate) tensors: Vec<JoinedTensor>,
    pub(crate) config: Map<String, Value>,
    pub(crate) order: Order,
    /// Tensors of the checkpoint that are not written.
    pub(crate) left: Vec<String>,
    /// Rows of padding of the vocabulary that are left out.
    pub(crate) padding: usize,
    /// Whether the padded size was kept, as nothing tells the vocabulary's.
    pub(crate) is_padded: bool,
}

pub(super) struct Sizes {
    pub(super) layers: usize,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) positions: usize,
    pub(super) vocabulary: usize,
    pub(super) feed_forward: usize,
}

impl Model {
    pub(crate) fn of(pieces: &Pieces, place: &Path, options: &RankedOptions) -> Result<Model> {
        let mut maker = Maker { pieces, place, tensors: Vec::new(), used: BTreeSet::new() };
        let (sizes, padded) = maker.sizes(options)?;
        let version = match pieces.float("checkpoint_version") {
            None => 0,
            Some(version) if [0.0, 1.0].contains(&version) => version as u8,
            // Version 3 has the order of version 2.
            Some(version) if version == 2.0 || version == 3.0 => 2,
            Some(version) => {
                return Err(maker.bad(format!("checkpoint_version {version} is none of 0 to 3")));
            }
        };
        let order = Order { version, heads: sizes.heads };
        let is_bert = maker.has("lm_head.dense.weight") || maker.has("tokentype_embeddings.weight");
        let (family, config) = if is_bert { maker.bert(&sizes)? } else { ("gpt2", maker.gpt2(&sizes)?) };
        let left: Vec<String> =
            pieces.ranks[0].pieces.keys().filter(|name| !maker.used.contains(*name)).cloned().collect();
        Ok(Model {
            family,
            tensors: maker.tensors,
            config,
            order,
            left,
            padding: padded - sizes.vocabulary,
            is_padded: vocabulary(pieces, options).is_none(),
        })
    }
}

/// Tokens of the vocabulary without padding, if they are known.
fn vocabulary(pieces: &Pieces, options: &RankedOptions) -> Option<usize> {
    options.vocabulary.or(match pieces.text("args.tokenizer_type") {
        Some("GPT2BPETokenizer") if pieces.text("args.merge_file").is_some() => Some(50257),
        Some("BertWordPieceLowerCase") if pieces.whole("args.padded_vocab_size").is_none_or(|n| n >= 30522) => {
            Some(30522)
        }
        Some("BertWordPieceCase") => Some(28996),
        _ => None,
    })
}

pub(super) struct Maker<'a> {
    pub(super) pieces: &'a Pieces,
    place: &'a Path,
    tensors: Vec<JoinedTensor>,
    used: BTreeSet<String>,
}

impl Maker<'_> {
    fn bad(&self, reason: String) -> Error {
        let fix = "check that all files are of one checkpoint of a GPT-2 or BERT";
        Error::model(self.place.display().to_string(), reason, fix)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.pieces.ranks[0].pieces.contains_key(name)
    }

    fn shape(&self, name: &str) -> Result<&[usize]> {
        let first = self.pieces.ranks[0].pieces.get(name);
        let first = first.ok_or_else(|| self.bad(format!("there is no tensor {name}")))?;
        for (rank, other) in self.pieces.ranks.iter().enumerate() {
            if other.pieces.get(name).map(|piece| &piece.shape) != Some(&first.shape) {
                let reason = format!("{name} has shape {:?} on rank 0, and rank {rank} differs", first.shape);
                return Err(self.bad(reason));
            }
        }
        Ok(&first.shape)
    }

    pub(super) fn rows_columns(&self, name: &str) -> Result<(usize, usize)> {
        match self.shape(name)? {
            [rows, columns] if *rows > 0 && *columns > 0 => Ok((*rows, *columns)),
            shape => Err(self.bad(format!("{name} of shape {shape:?} is not a matrix"))),
        }
    }

    /// The sizes, and the rows of the embedding with padding.
    fn sizes(&self, options: &RankedOptions) -> Result<(Sizes, usize)> {
        let ranks = self.pieces.ranks.len();
        let (rows, hidden) = self.rows_columns("word_embeddings.weight")?;
        let padded = rows * ranks;
        let known = vocabulary(self.pieces, options);
        let vocabulary = known.unwrap_or(padded);
        if vocabulary == 0 || vocabulary > padded {
            let reason = format!("the embedding has {padded} rows, fewer than a vocabulary of {vocabulary} tokens");
            return Err(self.bad(reason));
        }
        let (positions, _) = self.rows_columns("position_embeddings.weight")?;
        let numbers = self.pieces.ranks[0].pieces.keys().filter_map(|name| {
            let number = name.strip_prefix("layers.")?.split_once('.')?.0;
            number.parse::<usize>().ok()
        });
        let layers = numbers.max().map_or(0, |last| last + 1);
        let (feed_forward, _) = self.rows_columns("layers.0.mlp.dense_h_to_4h.weight")?;
        let heads = match options.heads.or(self.pieces.whole("args.num_attention_heads")) {
            Some(heads) => heads,
            None => {
                let place = self.place.display().to_string();
                let reason = "its files do not tell the number of attention heads";
                return Err(Error::model(place, reason, "give it with --heads"));
            }
        };
        let (qkv, _) = self.rows_columns("layers.0.attention.query_key_value.weight")?;
        if heads == 0 || !heads.is_multiple_of(ranks) || qkv * ranks != 3 * hidden || !hidden.is_multiple_of(heads) {
            let reason = format!(
                "{qkv} rows of queries, keys and values on each of {ranks} ranks do not belong to {heads} heads of a \
                 hidden size of {hidden}"
            );
            return Err(self.bad(reason));
        }
        let feed_forward = feed_forward * ranks;
        Ok((Sizes { layers, hidden, heads, positions, vocabulary, feed_forward }, padded))
    }

    /// Adds a tensor and checks that the ranks' pieces make its shape.
    pub(super) fn add(
        &mut self,
        theirs: &str,
        name: String,
        shape: &[usize],
        join: Join,
        is_transposed: bool,
    ) -> Result<()> {
        let ranks = self.pieces.ranks.len();
        let piece = self.shape(theirs)?.to_vec();
        if piece.len() != shape.len() {
            return Err(self.bad(format!("{theirs} of shape {piece:?} does not make {shape:?}")));
        }
        let mut whole = piece.clone();
        match join {
            Join::Replicated => {}
            Join::Rows | Join::Thirds => whole[0] = whole[0].saturating_mul(ranks),
            Join::Columns => whole[1] = whole[1].saturating_mul(ranks),
            Join::Third(_) => whole[0] = whole[0].saturating_mul(ranks) / 3,
        }
        if is_transposed {
            whole.reverse();
        }
        let is_vocabulary = theirs.starts_with("word_embeddings") || theirs == "lm_head.bias";
        let fits = if is_vocabulary { whole[0] >= shape[0] && whole[1..] == shape[1..] } else { whole == shape };
        if !fits {
            let reason = format!("{theirs} of shape {piece:?} on each of {ranks} ranks does not make {shape:?}");
            return Err(self.bad(reason));
        }
        let stored = self.pieces.ranks[0].pieces[theirs].dtype;
        self.used.insert(theirs.to_owned());
        let entry = TensorEntry::new(name, stored, shape);
        self.tensors.push(JoinedTensor { entry, theirs: theirs.to_owned(), stored, piece, join, is_transposed });
        Ok(())
    }

    pub(super) fn norm(&mut self, theirs: &str, name: &str, hidden: usize) -> Result<()> {
        for kind in ["weight", "bias"] {
            self.add(&format!("{theirs}.{kind}"), format!("{name}.{kind}"), &[hidden], Join::Replicated, false)?;
        }
        Ok(())
    }

    fn gpt2(&mut self, sizes: &Sizes) -> Result<Map<String, Value>> {
        let Sizes { layers, hidden, heads, positions, vocabulary, feed_forward } = *sizes;
        let base = "transformer";
        self.add("word_embeddings.weight", format!("{base}.wte.weight"), &[vocabulary, hidden], Join::Rows, false)?;
        let wpe = format!("{base}.wpe.weight");
        self.add("position_embeddings.weight", wpe, &[positions, hidden], Join::Replicated, false)?;
        for layer in 0..layers {
            let (from, to) = (format!("layers.{layer}"), format!("{base}.h.{layer}"));
            self.norm(&format!("{from}.input_layernorm"), &format!("{to}.ln_1"), hidden)?;
            self.norm(&format!("{from}.post_attention_layernorm"), &format!("{to}.ln_2"), hidden)?;
            // Conv1D has its inputs in rows.
            for (theirs, ours, [rows, columns], join) in [
                ("attention.query_key_value", "attn.c_attn", [hidden, 3 * hidden], Join::Thirds),
                ("attention.dense", "attn.c_proj", [hidden, hidden], Join::Columns),
                ("mlp.dense_h_to_4h", "mlp.c_fc", [hidden, feed_forward], Join::Rows),
                ("mlp.dense_4h_to_h", "mlp.c_proj", [feed_forward, hidden], Join::Columns),
            ] {
                let name = format!("{from}.{theirs}.weight");
                self.add(&name, format!("{to}.{ours}.weight"), &[rows, columns], join, true)?;
                let join = if join == Join::Columns { Join::Replicated } else { join };
                self.add(&format!("{from}.{theirs}.bias"), format!("{to}.{ours}.bias"), &[columns], join, false)?;
            }
        }
        self.norm("final_layernorm", &format!("{base}.ln_f"), hidden)?;
        let mut config = json!({
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": self.gelu(true),
            "vocab_size": vocabulary, "n_positions": positions, "n_embd": hidden, "n_layer": layers, "n_head": heads,
            "n_inner": feed_forward, "layer_norm_epsilon": self.epsilon(), "initializer_range": 0.02,
            "tie_word_embeddings": true, "resid_pdrop": self.dropout("hidden_dropout"),
            "embd_pdrop": self.dropout("hidden_dropout"), "attn_pdrop": self.dropout("attention_dropout"),
        });
        // The last token of GPT-2's vocabulary ends documents; of another vocabulary the tokenizer's files tell it.
        let end = (vocabulary == 50257).then_some(50256);
        config["bos_token_id"] = json!(end);
        config["eos_token_id"] = json!(end);
        Ok(config.as_object().cloned().unwrap_or_default())
    }

    /// The form of GELU by the run's arguments. GPT-2's of 2019, which has none, is the one by tanh.
    pub(super) fn gelu(&self, is_gpt: bool) -> &'static str {
        let is_known = self.pieces.settings.contains_key("args.openai_gelu");
        let by_tanh = self.pieces.is_set("args.openai_gelu") || self.pieces.is_set("args.bias_gelu_fusion");
        if by_tanh || (is_gpt && !is_known) { "gelu_new" } else { "gelu" }
    }

    pub(super) fn epsilon(&self) -> f64 {
        self.pieces.float("args.layernorm_epsilon").unwrap_or(1e-5)
    }

    pub(super) fn dropout(&self, name: &str) -> f64 {
        self.pieces.float(&format!("args.{name}")).filter(|rate| (0.0..1.0).contains(rate)).unwrap_or(0.1)
    }
}
