//! From hidden states to an embedding, as the directory of a sentence encoder states it.
//!
//! Defines [`Pooling`], which serving applies, training uses for its loss, and model directories record.

use crate::config::fields_of;
use crate::data::Batch;
use crate::file::{is_inside, read_text, write_atomic};
use crate::{Error, Result};
use bmtrain_core::{Ctx, Segment, Tensor, Var};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;

/// The list of the steps of sentence-transformers.
const MODULES_FILE: &str = "modules.json";
/// The directory of the pooling's own file.
const POOLING_DIRECTORY: &str = "1_Pooling";
const MOST_BYTES: u64 = 1 << 20;
/// The files that state a pooling.
pub(crate) const POOLING_FILES: [&str; 2] = [MODULES_FILE, "1_Pooling/config.json"];

/// What an embedding is of the hidden states of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolingMode {
    /// The mean over all tokens.
    Mean,
    /// The state of the first token.
    First,
    /// The largest of all tokens, element by element.
    Max,
}

impl PoolingMode {
    /// What each token weighs in the embedding of its sequence, f32 `[R, 1, L]`; 0 for padding.
    ///
    /// # Errors
    /// The largest values, which are no weighted sum; out of memory.
    pub(super) fn weights(self, batch: &Batch, cx: &Ctx) -> Result<Var> {
        let all = vec![1; batch.input_ids.len()];
        let mask = batch.attention_mask.as_deref().unwrap_or(&all);
        let of_row = |row: &[u8]| -> Option<Vec<f32>> {
            let count = row.iter().filter(|token| **token == 1).count().max(1) as f32;
            let first = row.iter().position(|token| *token == 1).unwrap_or(0);
            match self {
                PoolingMode::Mean => Some(row.iter().map(|token| f32::from(*token) / count).collect()),
                PoolingMode::First => Some((0..row.len()).map(|at| f32::from(u8::from(at == first))).collect()),
                PoolingMode::Max => None,
            }
        };
        let weights: Option<Vec<Vec<f32>>> = mask.chunks(batch.length.max(1)).map(of_row).collect();
        let weights = weights.ok_or_else(|| {
            let reason = "the largest values of hidden states have no gradient here";
            Error::argument("pooling", reason, "pool the mean or the first token")
        })?;
        let shape = [batch.rows, 1, batch.length];
        Ok(Var::constant(Tensor::from_slice_in(cx.device(), shape, &weights.concat(), Segment::Data)?))
    }
}

/// From hidden states to an embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pooling {
    /// What it is.
    pub mode: PoolingMode,
    /// Whether it is scaled to length one.
    pub normalizes: bool,
    /// Elements of an embedding, where the directory states it.
    pub size: Option<usize>,
}

impl Pooling {
    /// The mean, not scaled.
    pub const MEAN: Pooling = Pooling { mode: PoolingMode::Mean, normalizes: false, size: None };

    /// The pooling of a directory of sentence-transformers; without `modules.json` the mean, scaled to length one.
    ///
    /// # Errors
    /// [`Error::Model`] for files that cannot be read, or a step that is not supported.
    pub fn from_directory(directory: &Path) -> Result<Self> {
        if !is_inside(directory, MODULES_FILE)? {
            return Ok(Pooling { normalizes: true, ..Pooling::MEAN });
        }
        let path = directory.join(MODULES_FILE);
        let place = || path.display().to_string();
        let wrong = |reason: String| {
            Error::model(place(), reason, "use a model of a transformer, a pooling and perhaps a normalization")
        };
        let text = read_text(&path, MOST_BYTES)?;
        let modules: Value = serde_json::from_str(&text).map_err(|error| wrong(format!("it is not JSON: {error}")))?;
        let modules = modules.as_array().ok_or_else(|| wrong("it is not a list".to_owned()))?;
        let mut pooling = Pooling::MEAN;
        for module in modules {
            let of = |name: &str| module.get(name).and_then(Value::as_str).unwrap_or_default();
            match of("type").rsplit('.').next().unwrap_or_default() {
                "Transformer" => {}
                "Pooling" => {
                    pooling = Pooling { normalizes: pooling.normalizes, ..Self::of_config(directory, of("path"))? }
                }
                "Normalize" => pooling.normalizes = true,
                other => return Err(wrong(format!("the step {other:?} is not supported"))),
            }
        }
        Ok(pooling)
    }

    /// The pooling of a directory whose embeddings are to be trained.
    ///
    /// # Errors
    /// As [`Pooling::from_directory`]; the largest values, whose gradient is not computed.
    pub fn to_train(directory: &Path) -> Result<Self> {
        let pooling = Self::from_directory(directory)?;
        match pooling.mode {
            PoolingMode::Mean | PoolingMode::First => Ok(pooling),
            PoolingMode::Max => {
                let place = directory.join(MODULES_FILE).display().to_string();
                let reason = "it asks for the largest values (pooling_mode_max_tokens), which are not trained";
                Err(Error::model(place, reason, "use a model that pools the mean or the first token"))
            }
        }
    }

    /// Writes the pooling into a model directory, as sentence-transformers reads it; `size` is the number of elements
    /// of an embedding.
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
        let steps = [("", "Transformer"), (POOLING_DIRECTORY, "Pooling"), ("2_Normalize", "Normalize")];
        let count = if self.normalizes { 3 } else { 2 };
        let module = |(number, (path, name)): (usize, &(&str, &str))| {
            let class = format!("sentence_transformers.models.{name}");
            json!({"idx": number, "name": number.to_string(), "path": path, "type": class})
        };
        let modules: Vec<Value> = steps.iter().take(count).enumerate().map(module).collect();
        write_atomic(&own.join("config.json"), format!("{config:#}\n").as_bytes())?;
        write_atomic(&directory.join(MODULES_FILE), format!("{:#}\n", Value::from(modules)).as_bytes())
    }

    /// The pooling of a `config.json` in a directory of its own.
    fn of_config(directory: &Path, path: &str) -> Result<Self> {
        let name = format!("{path}/config.json");
        if !is_inside(directory, &name)? {
            let place = directory.join(MODULES_FILE).display().to_string();
            return Err(Error::model(place, format!("there is no {name:?}"), "copy the whole model directory"));
        }
        let fields = fields_of(directory, &name)?;
        let is_set = |name: &str| Ok::<_, Error>(fields.peek_flag(name)?.unwrap_or(false));
        let modes = [
            ("pooling_mode_mean_tokens", Some(PoolingMode::Mean)),
            ("pooling_mode_cls_token", Some(PoolingMode::First)),
            ("pooling_mode_max_tokens", Some(PoolingMode::Max)),
            ("pooling_mode_mean_sqrt_len_tokens", None),
            ("pooling_mode_weightedmean_tokens", None),
            ("pooling_mode_lasttoken", None),
        ];
        let mut chosen = Vec::new();
        for (name, mode) in modes {
            if is_set(name)? {
                chosen.push((name, mode));
            }
        }
        let size = fields.peek_size("word_embedding_dimension")?;
        match chosen[..] {
            [(_, Some(mode))] => Ok(Pooling { mode, normalizes: false, size }),
            _ => {
                let names: Vec<&str> = chosen.iter().map(|(name, _)| *name).collect();
                let reason =
                    format!("it asks for {}", if names.is_empty() { "no pooling".into() } else { names.join(", ") });
                let place = directory.join(&name).display().to_string();
                Err(Error::model(place, reason, "use one of mean, cls and max tokens"))
            }
        }
    }

    /// The embedding of hidden states, rows of `width` elements.
    ///
    /// Numerics: sums in `f64`.
    pub fn embed(&self, hidden: &[f32], width: usize) -> Vec<f32> {
        let rows = hidden.chunks_exact(width.max(1));
        let count = rows.len().max(1) as f64;
        let mut pooled: Vec<f64> = match self.mode {
            PoolingMode::First => rows.take(1).flatten().map(|x| f64::from(*x)).collect(),
            PoolingMode::Mean => {
                let mut sums = vec![0.0; width];
                rows.for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x)));
                sums.into_iter().map(|sum| sum / count).collect()
            }
            PoolingMode::Max => {
                let mut most = vec![f64::NEG_INFINITY; width];
                rows.for_each(|row| most.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(f64::from(*x))));
                most
            }
        };
        if self.normalizes {
            // The smallest length of PyTorch's normalization.
            let length = pooled.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
            pooled.iter_mut().for_each(|x| *x /= length);
        }
        pooled.into_iter().map(|x| x as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Pooling, PoolingMode};

    #[test]
    fn embeddings_are_mean_first_or_largest_and_scaled() {
        let hidden = [1.0, 4.0, 5.0, 2.0];
        let of = |mode, normalizes| Pooling { mode, normalizes, size: None }.embed(&hidden, 2);
        assert_eq!(of(PoolingMode::Mean, false), [3.0, 3.0]);
        assert_eq!(of(PoolingMode::First, false), [1.0, 4.0]);
        assert_eq!(of(PoolingMode::Max, false), [5.0, 4.0]);
        let half = 0.5_f32.sqrt();
        assert!(of(PoolingMode::Mean, true).iter().all(|x| (x - half).abs() < 1e-6));
    }

    #[test]
    fn a_written_pooling_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        for mode in [PoolingMode::Mean, PoolingMode::First, PoolingMode::Max] {
            for normalizes in [true, false] {
                let pooling = Pooling { mode, normalizes, size: Some(12) };
                pooling.write(directory.path(), 12).unwrap();
                assert_eq!(Pooling::from_directory(directory.path()).unwrap(), pooling);
                assert_eq!(Pooling::to_train(directory.path()).is_ok(), mode != PoolingMode::Max);
            }
        }
        let error = Pooling::to_train(directory.path()).unwrap_err().to_string();
        assert!(error.contains("modules.json") && error.contains("pooling_mode_max_tokens"), "{error}");
    }

    #[test]
    fn the_directory_states_the_pooling() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        let read = || Pooling::from_directory(directory.path());
        assert_eq!(read().unwrap(), Pooling { normalizes: true, ..Pooling::MEAN });
        let modules = |last: &str| {
            format!(
                r#"[{{"path": "", "type": "sentence_transformers.models.Transformer"}},
                {{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}}{last}]"#
            )
        };
        write("modules.json", &modules(""));
        assert!(read().unwrap_err().to_string().contains("1_Pooling/config.json"));
        std::fs::create_dir(directory.path().join("1_Pooling")).unwrap();
        write("1_Pooling/config.json", r#"{"word_embedding_dimension": 4, "pooling_mode_cls_token": true}"#);
        assert_eq!(read().unwrap(), Pooling { mode: PoolingMode::First, normalizes: false, size: Some(4) });
        write(
            "modules.json",
            &modules(r#", {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}"#),
        );
        assert!(read().unwrap().normalizes);
        write("1_Pooling/config.json", r#"{"pooling_mode_lasttoken": true}"#);
        assert!(read().unwrap_err().to_string().contains("pooling_mode_lasttoken"));
        write("modules.json", &modules(r#", {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}"#));
        write("1_Pooling/config.json", r#"{"pooling_mode_mean_tokens": true}"#);
        assert!(read().unwrap_err().to_string().contains("Dense"));
    }
}
