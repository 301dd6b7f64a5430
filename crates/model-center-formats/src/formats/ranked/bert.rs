//! The BERTs of Megatron-LM under Hugging Face's names: with the norms before the layers, or, with
//! `--apply-residual-connection-post-layernorm`, in the order of BERT.

use serde_json::{Map, Value, json};

use super::joined::Join;
use super::names::{Maker, Sizes};
use crate::Result;

impl Maker<'_> {
    /// Adds the tensors of a BERT: its family and its configuration.
    pub(super) fn bert(&mut self, sizes: &Sizes) -> Result<(&'static str, Map<String, Value>)> {
        let Sizes { layers, hidden, heads, positions, vocabulary, feed_forward } = *sizes;
        let is_post = self.pieces.is_set("args.apply_residual_connection_post_layernorm");
        let base = "bert.embeddings";
        let word = format!("{base}.word_embeddings.weight");
        self.add("word_embeddings.weight", word, &[vocabulary, hidden], Join::Rows, false)?;
        let position = format!("{base}.position_embeddings.weight");
        self.add("position_embeddings.weight", position, &[positions, hidden], Join::Replicated, false)?;
        let (types, _) = self.rows_columns("tokentype_embeddings.weight")?;
        let kinds = format!("{base}.token_type_embeddings.weight");
        self.add("tokentype_embeddings.weight", kinds, &[types, hidden], Join::Replicated, false)?;
        match is_post {
            true => self.post_norms(sizes)?,
            false => self.pre_norms(sizes)?,
        }
        for layer in 0..layers {
            let (from, to) = (format!("layers.{layer}"), format!("bert.encoder.layer.{layer}"));
            for (third, part) in ["query", "key", "value"].into_iter().enumerate() {
                let (theirs, ours) =
                    (format!("{from}.attention.query_key_value"), format!("{to}.attention.self.{part}"));
                let join = Join::Third(third);
                self.add(&format!("{theirs}.weight"), format!("{ours}.weight"), &[hidden, hidden], join, false)?;
                self.add(&format!("{theirs}.bias"), format!("{ours}.bias"), &[hidden], join, false)?;
            }
            for (theirs, ours, [rows, columns], join) in [
                ("attention.dense", "attention.output.dense", [hidden, hidden], Join::Columns),
                ("mlp.dense_h_to_4h", "intermediate.dense", [feed_forward, hidden], Join::Rows),
                ("mlp.dense_4h_to_h", "output.dense", [hidden, feed_forward], Join::Columns),
            ] {
                let name = format!("{from}.{theirs}.weight");
                self.add(&name, format!("{to}.{ours}.weight"), &[rows, columns], join, false)?;
                let join = if join == Join::Columns { Join::Replicated } else { join };
                self.add(&format!("{from}.{theirs}.bias"), format!("{to}.{ours}.bias"), &[rows], join, false)?;
            }
        }
        self.bert_heads(sizes)?;
        let (family, class) = match is_post {
            true => ("bert", "BertForPreTraining"),
            false => ("megatron-bert", "MegatronBertForPreTraining"),
        };
        let config = json!({
            "architectures": [class], "model_type": family, "hidden_act": self.gelu(false),
            "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "intermediate_size": feed_forward, "max_position_embeddings": positions,
            "type_vocab_size": types, "layer_norm_eps": self.epsilon(), "pad_token_id": 0,
            "hidden_dropout_prob": self.dropout("hidden_dropout"), "initializer_range": 0.02,
            "attention_probs_dropout_prob": self.dropout("attention_dropout"),
        });
        Ok((family, config.as_object().cloned().unwrap_or_default()))
    }

    /// The norms before the layers, and after the last block.
    fn pre_norms(&mut self, sizes: &Sizes) -> Result<()> {
        for layer in 0..sizes.layers {
            let (from, to) = (format!("layers.{layer}"), format!("bert.encoder.layer.{layer}"));
            self.norm(&format!("{from}.input_layernorm"), &format!("{to}.attention.ln"), sizes.hidden)?;
            self.norm(&format!("{from}.post_attention_layernorm"), &format!("{to}.ln"), sizes.hidden)?;
        }
        self.norm("final_layernorm", "bert.encoder.ln", sizes.hidden)
    }

    /// The norm before a layer, whose output also goes on, is the one after the sum before it.
    fn post_norms(&mut self, sizes: &Sizes) -> Result<()> {
        let Sizes { layers, hidden, .. } = *sizes;
        self.norm("layers.0.input_layernorm", "bert.embeddings.LayerNorm", hidden)?;
        for layer in 0..layers {
            let to = format!("bert.encoder.layer.{layer}");
            let after = format!("{to}.attention.output.LayerNorm");
            self.norm(&format!("layers.{layer}.post_attention_layernorm"), &after, hidden)?;
            let next = match layer + 1 == layers {
                true => "final_layernorm".to_owned(),
                false => format!("layers.{}.input_layernorm", layer + 1),
            };
            self.norm(&next, &format!("{to}.output.LayerNorm"), hidden)?;
        }
        Ok(())
    }

    fn bert_heads(&mut self, sizes: &Sizes) -> Result<()> {
        let (hidden, square) = (sizes.hidden, [sizes.hidden, sizes.hidden]);
        let dense = [
            ("pooler.dense", "bert.pooler.dense", square),
            ("lm_head.dense", "cls.predictions.transform.dense", square),
            ("binary_head", "cls.seq_relationship", [2, hidden]),
        ];
        for (theirs, ours, shape) in dense {
            if self.has(&format!("{theirs}.weight")) {
                let weight = format!("{ours}.weight");
                self.add(&format!("{theirs}.weight"), weight, &shape, Join::Replicated, false)?;
                let bias = format!("{ours}.bias");
                self.add(&format!("{theirs}.bias"), bias, &shape[..1], Join::Replicated, false)?;
            }
        }
        self.norm("lm_head.layernorm", "cls.predictions.transform.LayerNorm", hidden)?;
        let bias = "cls.predictions.bias".to_owned();
        self.add("lm_head.bias", bias, &[sizes.vocabulary], Join::Rows, false)
    }
}
