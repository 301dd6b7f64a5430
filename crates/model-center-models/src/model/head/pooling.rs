//! From hidden states to an embedding, as the directory of a sentence encoder states it.
//!
//! Defines [`PoolingMode`], and [`Pooling`], which training uses for its loss and model directories record.
//! [`SentenceEncoder`] is everything that a directory states.

use super::sentence_encoder::{DenseSettings, PROMPTS_FILE, SentenceEncoder, kept_prompts};
use crate::{Error, Result};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var, ops};
use model_center_base::batch::Batch;
use model_center_base::file::write_atomic;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;

/// The list of the steps of sentence-transformers.
pub(in crate::model) const MODULES_FILE: &str = "modules.json";
/// The directory of the pooling's own file.
const POOLING_DIRECTORY: &str = "1_Pooling";
/// The settings of the transformer before it.
pub(in crate::model) const TRANSFORMER_FILE: &str = "sentence_bert_config.json";

/// Pooling of the hidden states of a text to an embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolingMode {
    /// The mean over all tokens.
    Mean,
    /// The state of the first token.
    First,
    /// The largest of all tokens, element by element.
    Max,
    /// The sum over the root of the number of tokens.
    MeanRoot,
    /// The mean, in which each token has the weight of its place, from 1.
    WeightedMean,
    /// The state of the last token.
    Last,
}

impl PoolingMode {
    /// Every mode with sentence-transformers' flag for it, in the order in which it joins several.
    pub(in crate::model) const ALL: [(PoolingMode, &str); 6] = [
        (PoolingMode::First, "pooling_mode_cls_token"),
        (PoolingMode::Max, "pooling_mode_max_tokens"),
        (PoolingMode::Mean, "pooling_mode_mean_tokens"),
        (PoolingMode::MeanRoot, "pooling_mode_mean_sqrt_len_tokens"),
        (PoolingMode::WeightedMean, "pooling_mode_weightedmean_tokens"),
        (PoolingMode::Last, "pooling_mode_lasttoken"),
    ];

    /// Its name in newer files.
    pub(in crate::model) fn name(self) -> &'static str {
        match self {
            PoolingMode::First => "cls",
            PoolingMode::Max => "max",
            PoolingMode::Mean => "mean",
            PoolingMode::MeanRoot => "mean_sqrt_len_tokens",
            PoolingMode::WeightedMean => "weightedmean",
            PoolingMode::Last => "lasttoken",
        }
    }

    /// Embedding of hidden states, rows of `width` elements.
    ///
    /// Numerics: sums in `f64`.
    pub(in crate::model) fn pool(self, hidden: &[f32], width: usize) -> Vec<f64> {
        let rows = hidden.chunks_exact(width.max(1));
        let count = rows.len().max(1) as f64;
        let wide = |row: &[f32]| row.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let sum = |weight: &dyn Fn(usize) -> f64| {
            let mut sums = vec![0.0; width];
            for (at, row) in rows.clone().enumerate() {
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight(at) * f64::from(*x));
            }
            sums
        };
        match self {
            PoolingMode::First => rows.clone().next().map_or_else(Vec::new, wide),
            PoolingMode::Last => rows.clone().next_back().map_or_else(Vec::new, wide),
            PoolingMode::Mean => sum(&|_| 1.0 / count),
            PoolingMode::MeanRoot => sum(&|_| 1.0 / count.sqrt()),
            PoolingMode::WeightedMean => sum(&|at| (at + 1) as f64 / (count * (count + 1.0) / 2.0)),
            PoolingMode::Max => {
                let mut most = vec![f64::NEG_INFINITY; width];
                rows.clone()
                    .for_each(|row| most.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(f64::from(*x))));
                most
            }
        }
    }

    /// Weight of each token in the embedding of its sequence, f32 `[R, 1, L]`; 0 for padding.
    ///
    /// # Errors
    /// A mode that is not trained; out of memory.
    pub(crate) fn weights(self, batch: &Batch, device: &Device) -> Result<Tensor> {
        let all = vec![1; batch.input_ids.len()];
        let mask = batch.attention_mask.as_deref().unwrap_or(&all);
        let of_row = |row: &[u8]| -> Option<Vec<f32>> {
            let count = row.iter().filter(|token| **token == 1).count().max(1) as f32;
            let first = row.iter().position(|token| *token == 1).unwrap_or(0);
            match self {
                PoolingMode::Mean => Some(row.iter().map(|token| f32::from(*token) / count).collect()),
                PoolingMode::First => Some((0..row.len()).map(|at| f32::from(u8::from(at == first))).collect()),
                PoolingMode::Max | PoolingMode::MeanRoot | PoolingMode::WeightedMean | PoolingMode::Last => None,
            }
        };
        let weights: Option<Vec<Vec<f32>>> = mask.chunks(batch.length.max(1)).map(of_row).collect();
        let weights = weights.ok_or_else(|| {
            let reason = format!("the pooling {:?} of hidden states has no gradient here", self.name());
            Error::argument("pooling", reason, "pool the mean or the first token")
        })?;
        let shape = [batch.rows, 1, batch.length];
        Ok(Tensor::from_slice_in(device, shape, &weights.concat(), Segment::Data)?)
    }
}

/// The sum of the hidden states `[R, L, D]` of each sequence by the weights of its tokens, f32 `[R, 1, L]`:
/// f32 `[R, D]`.
///
/// # Errors
/// Shapes that do not fit.
pub(crate) fn weighted_sum(hidden: &Var, weights: Tensor, cx: &Ctx) -> bmtrain_core::Result<Var> {
    let [rows, _, dim] = hidden.dims("pooling")?;
    let states = ops::cast(cx, hidden, DType::F32)?; // [R, L, D]
    ops::matmul(cx, &Var::constant(weights), &states, false, false)?.reshape([rows, dim]) // [R, D]
}

/// From hidden states to an embedding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pooling {
    /// Mode of pooling.
    pub mode: PoolingMode,
    /// Whether it is scaled to length one.
    pub normalizes: bool,
    /// Elements of an embedding, where the directory states it.
    pub size: Option<usize>,
    /// Tokens beyond which texts are truncated, where the directory states it.
    #[serde(default)]
    pub max_length: Option<usize>,
    /// Modules `Dense` after it, whose parameters are the model's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dense: Vec<DenseSettings>,
    /// `prompts`, `default_prompt_name` and `similarity_fn_name` of `config_sentence_transformers.json`, which training
    /// does not use; `None` where the directory does not have this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Value>,
}

impl Pooling {
    /// The mean, not scaled.
    pub const MEAN: Pooling = Pooling {
        mode: PoolingMode::Mean,
        normalizes: false,
        size: None,
        max_length: None,
        dense: Vec::new(),
        prompts: None,
    };

    /// The pooling of a directory whose embeddings are to be trained; without `modules.json` the mean, scaled to length
    /// one. Prompts are not part of training, as in sentence-transformers' trainer: they are written into the texts.
    ///
    /// # Errors
    /// As [`SentenceEncoder::from_directory`]; an encoder of more than a mean or a first token, modules `Dense` after
    /// it and its length at the end.
    pub fn to_train(directory: &Path) -> Result<Self> {
        let encoder = SentenceEncoder::from_directory(directory)?;
        let place = || directory.join(MODULES_FILE).display().to_string();
        if encoder.is_lower_case() {
            let reason = "its texts are lower-cased (do_lower_case), which training does not do";
            return Err(Error::model(place(), reason, "lower-case the texts, and remove do_lower_case"));
        }
        if encoder.keeps_end() {
            let reason = "longer texts lose their beginning (truncation_side), and training keeps it";
            let fix = "train a model that keeps it: with another setting longer texts have other embeddings";
            return Err(Error::model(place(), reason, fix));
        }
        if encoder.drops() {
            let reason = "it drops elements of embeddings in training (Dropout), which is not supported";
            return Err(Error::model(place(), reason, "remove the step Dropout: embeddings are the same without it"));
        }
        match encoder.plain() {
            Some((mode @ (PoolingMode::Mean | PoolingMode::First), normalizes)) => {
                let dense = encoder.dense_files().map(|file| file.settings).collect();
                let prompts = match directory.join(MODULES_FILE).exists() {
                    true => kept_prompts(directory)?,
                    false => None,
                };
                Ok(Pooling { mode, normalizes, size: encoder.size, max_length: encoder.max_length, dense, prompts })
            }
            other => {
                let what = other
                    .map_or("more than one pooling, modules Dense and a normalization at the end", |(mode, _)| {
                        mode.name()
                    });
                let reason = format!("it asks for {what}, which is not trained");
                Err(Error::model(place(), reason, "use a model that pools the mean or the first token"))
            }
        }
    }

    /// Writes the modules `Dense` of the directory `base`, from which they were opened, into the directory of an
    /// adapter, in this dtype: they are frozen then, and no part of the adapter's own files.
    ///
    /// # Errors
    /// Files of `base` that are not as they were; what the disk refuses.
    pub fn write_frozen_dense(&self, base: &Path, to: &Path, dtype: DType) -> Result<()> {
        if self.dense.is_empty() {
            return Ok(());
        }
        let encoder = SentenceEncoder::from_directory(base)?;
        let files: Vec<_> = encoder.dense_files().collect();
        if files.iter().map(|file| file.settings).ne(self.dense.iter().copied()) {
            let reason = "its modules Dense are not those that the run began with";
            let place = base.join(MODULES_FILE).display().to_string();
            return Err(Error::model(place, reason, "bring the files back as they were"));
        }
        for (number, file) in files.into_iter().enumerate() {
            let (weights, plan) = file.plan(base)?;
            let mut fill = |name: &str, values: &mut Vec<f32>| plan.read(&weights, name, values).map(drop);
            file.settings.written(number).write(to, dtype, &mut fill)?;
        }
        Ok(())
    }

    /// Writes the pooling into a model directory, as sentence-transformers reads it; `size` is the number of elements
    /// of a hidden state. The files of modules `Dense` are written with the model's parameters.
    ///
    /// # Errors
    /// What the disk refuses.
    pub fn write(&self, directory: &Path, size: usize) -> Result<()> {
        let own = directory.join(POOLING_DIRECTORY);
        let fix = "choose a directory that you may write";
        std::fs::create_dir_all(&own).map_err(|error| Error::file("create", &own, error, fix))?;
        let is = |mode: PoolingMode| self.mode == mode;
        let config = json!({
            "word_embedding_dimension": size,
            "pooling_mode_cls_token": is(PoolingMode::First),
            "pooling_mode_mean_tokens": is(PoolingMode::Mean),
            "pooling_mode_max_tokens": is(PoolingMode::Max),
            "pooling_mode_mean_sqrt_len_tokens": false,
        });
        let mut steps = vec![(String::new(), "Transformer"), (POOLING_DIRECTORY.to_owned(), "Pooling")];
        let dense = self.dense.iter().enumerate();
        steps.extend(dense.map(|(number, settings)| (settings.written(number).path().to_owned(), "Dense")));
        if self.normalizes {
            steps.push((format!("{}_Normalize", steps.len()), "Normalize"));
        }
        let module = |(number, (path, name)): (usize, &(String, &str))| {
            let class = format!("sentence_transformers.models.{name}");
            json!({"idx": number, "name": number.to_string(), "path": path, "type": class})
        };
        let modules: Vec<Value> = steps.iter().enumerate().map(module).collect();
        write_atomic(&own.join("config.json"), format!("{config:#}\n").as_bytes())?;
        if let Some(length) = self.max_length {
            let settings = json!({"max_seq_length": length, "do_lower_case": false});
            write_atomic(&directory.join(TRANSFORMER_FILE), format!("{settings:#}\n").as_bytes())?;
        }
        if let Some(prompts) = &self.prompts {
            let mut settings = prompts.clone();
            settings["model_type"] = "SentenceTransformer".into();
            write_atomic(&directory.join(PROMPTS_FILE), format!("{settings:#}\n").as_bytes())?;
        }
        write_atomic(&directory.join(MODULES_FILE), format!("{:#}\n", Value::from(modules)).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::{Pooling, PoolingMode};

    #[test]
    fn hidden_states_are_pooled_by_each_mode() {
        let hidden = [1.0, 4.0, 5.0, 2.0];
        let of = |mode: PoolingMode| mode.pool(&hidden, 2);
        assert_eq!(of(PoolingMode::Mean), [3.0, 3.0]);
        assert_eq!(of(PoolingMode::First), [1.0, 4.0]);
        assert_eq!(of(PoolingMode::Last), [5.0, 2.0]);
        assert_eq!(of(PoolingMode::Max), [5.0, 4.0]);
        let close = |ours: Vec<f64>, theirs: [f64; 2]| {
            assert!(ours.iter().zip(theirs).all(|(ours, theirs)| (ours - theirs).abs() < 1e-12), "{ours:?}");
        };
        close(of(PoolingMode::MeanRoot), [6.0 / 2f64.sqrt(), 6.0 / 2f64.sqrt()]);
        close(of(PoolingMode::WeightedMean), [11.0 / 3.0, 8.0 / 3.0]);
    }

    #[test]
    fn a_written_pooling_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        for mode in [PoolingMode::Mean, PoolingMode::First, PoolingMode::Max] {
            for normalizes in [true, false] {
                let prompts = Some(serde_json::json!({"prompts": {"query": "q: "}}));
                let pooling =
                    Pooling { mode, normalizes, size: Some(12), max_length: Some(7), prompts, ..Pooling::MEAN };
                pooling.write(directory.path(), 12).unwrap();
                match Pooling::to_train(directory.path()) {
                    Ok(read) => assert_eq!(read, pooling),
                    Err(error) => assert!(mode == PoolingMode::Max && error.to_string().contains("it asks for max")),
                }
            }
        }
    }
}
