//! The configuration of a model that begins without weights: the fields of a file, or of none, and sizes that replace
//! them.
//!
//! Defines [`ConfigSource`], which options of opening a model have, and [`ConfigOverrides`]. The names that a size
//! has in the files of a family come from its [`Dialect`](super::Dialect).

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::rows::{Row, RowConfig};
use super::{Config, Fields, LayerSharing, MAX_CONFIG_BYTES, TextConfig, directory_fields, model_center};
use crate::{Error, Result};
use model_center_base::file::read_text;

/// Default size of the feed-forward layer, as a multiple of D.
const FEED_FORWARD: usize = 4;
/// Key with the number of key and value heads, where a family has fewer of them than heads.
const KV_HEADS: &str = "num_key_value_heads";
/// Rows of an encoder's table of token types, and what transformers takes where a file is silent.
const TOKEN_TYPES: (&str, usize) = ("type_vocab_size", 2);
/// Blocks of the decoder, in files whose other size of that kind is the encoder's alone.
const DECODER_LAYERS: &str = "num_decoder_layers";
/// Whether linear layers have biases, in families that leave it open.
const HIDDEN_BIAS: &str = "hidden_bias";

/// Sizes and initialization that replace what a configuration file states; `None` keeps the file's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigOverrides {
    /// Blocks; of an encoder-decoder, of each stack.
    pub layers: Option<usize>,
    /// D.
    pub hidden: Option<usize>,
    /// N.
    pub heads: Option<usize>,
    /// K.
    pub kv_heads: Option<usize>,
    /// H.
    pub head_size: Option<usize>,
    /// F.
    pub feed_forward: Option<usize>,
    /// The longest sequence, in tokens.
    pub positions: Option<usize>,
    /// V.
    pub vocabulary: Option<usize>,
    /// Whether the linear layers have biases.
    pub hidden_bias: Option<bool>,
    /// Standard deviation of initial values.
    pub init_std: Option<f32>,
    /// Whether the initial values of the projections that end attention and feed-forward are divided by the root of
    /// twice the number of blocks.
    pub scale_init_by_depth: Option<bool>,
    /// Blocks that share their parameters.
    pub sharing: Option<LayerSharing>,
    /// Ids of special tokens by their names in files, such as `eos_token_id`.
    pub special_tokens: Vec<(String, u32)>,
}

/// The configuration of a model without weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigSource {
    place: String,
    fields: Map<String, Value>,
    /// Values that replace fields.
    pub overrides: ConfigOverrides,
}

impl ConfigSource {
    /// The configuration of a file, or of `config.json` in a directory.
    ///
    /// # Errors
    /// [`Error::Model`] for no JSON object; [`Error::File`] if reading fails.
    pub fn open(path: &Path, overrides: ConfigOverrides) -> Result<Self> {
        let fields = match path.is_dir() {
            true => directory_fields(path)?,
            false => Fields::parse(&read_text(path, MAX_CONFIG_BYTES)?, &path.display().to_string())?,
        };
        let place = fields.place().to_owned();
        Ok(ConfigSource { place, fields: fields.into_rest(), overrides })
    }

    /// A family alone, whose sizes are all in `overrides`; the rest is what transformers takes where a file is silent.
    pub fn of_family(family: &str, overrides: ConfigOverrides) -> Self {
        let fields = Map::from_iter([("model_type".to_owned(), json!(family))]);
        ConfigSource { place: format!("model.family = \"{family}\""), fields, overrides }
    }

    /// The fields, before anything replaces them.
    pub fn fields(&self) -> Fields {
        Fields::of_map(self.fields.clone(), &self.place)
    }

    /// Source of the overrides, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The configuration of a family; `family` is its name where the file states none.
    ///
    /// # Errors
    /// [`Error::Model`] naming place and field.
    pub fn read<C: Config>(&self, family: Option<&str>) -> Result<C> {
        let mut fields = self.fields().of_family(family);
        self.overrides.apply::<C>(&mut fields)?;
        let mut config = C::from_fields(fields)?;
        let text = config.text_mut();
        (text.scale_init_by_depth, text.sharing) = (self.overrides.scale_init_by_depth, self.overrides.sharing);
        Ok(config)
    }
}

impl ConfigOverrides {
    /// Replaces fields by the sizes that are given.
    fn apply<C: RowConfig>(&self, fields: &mut Fields) -> Result<()> {
        let dialect = &C::DIALECT;
        let own_names = dialect.dim_model.is_empty() || model_center::is_model_center(fields);
        let [hidden, layers, heads, positions, vocabulary, feed_forward] = dialect.sizes();
        let [head_size, _, _, _, _, init_std, _] = dialect.derived();
        for (size, row, key) in [
            (self.hidden, &hidden, "model.hidden"),
            (self.layers, &layers, "model.layers"),
            (self.heads, &heads, "model.heads"),
            (self.positions, &positions, "model.positions"),
            (self.vocabulary, &vocabulary, "model.vocabulary"),
            (self.feed_forward, &feed_forward, "model.feed_forward"),
            (self.head_size, &head_size, "model.head_size"),
        ] {
            if let Some(size) = size {
                replace(fields, (row, own_names), &json!(size), key)?;
            }
        }
        if let Some(std) = self.init_std {
            // As it was written: an f32 as f64 has digits that it was not written with.
            let std: f64 = std.to_string().parse().unwrap_or(f64::from(std));
            replace(fields, (&init_std, own_names), &json!(std), "model.init_std")?;
        }
        if let (Some(layers), true) = (self.layers, fields.has(DECODER_LAYERS)) {
            fields.set(DECODER_LAYERS, json!(layers));
        }
        self.set_biases::<C>(fields)?;
        self.complete::<C>(fields, (&feed_forward, own_names))?;
        for (name, id) in &self.special_tokens {
            fields.set(name, json!(id));
        }
        Ok(())
    }

    /// Biases of linear layers, in a family that leaves them open.
    fn set_biases<C: RowConfig>(&self, fields: &mut Fields) -> Result<()> {
        let Some(has_biases) = self.hidden_bias else { return Ok(()) };
        let Some(row) = C::ROWS.iter().find(|row| row.hugging_face.contains(&HIDDEN_BIAS)) else {
            let reason = "`model.hidden_bias`: whether models of this family have biases is not open";
            return Err(Error::model(fields.place(), reason, "remove it"));
        };
        let stated: Vec<&str> = row.model_center.iter().copied().filter(|name| fields.has(name)).collect();
        for name in if stated.is_empty() { vec![HIDDEN_BIAS] } else { stated } {
            fields.set(name, json!(has_biases));
        }
        Ok(())
    }

    /// Key and value heads, token types and the feed-forward size that a family needs and nothing states.
    fn complete<C: RowConfig>(
        &self,
        fields: &mut Fields,
        (feed_forward, own_names): (&Row<TextConfig>, bool),
    ) -> Result<()> {
        let has_kv_heads = C::ROWS.iter().any(|row| row.hugging_face.contains(&KV_HEADS));
        match (self.kv_heads, has_kv_heads) {
            (Some(kv_heads), true) => fields.set(KV_HEADS, json!(kv_heads)),
            (Some(_), false) => return Err(no_such(fields, "model.kv_heads")),
            (None, true) if !own_names && !fields.has(KV_HEADS) => {
                if let Some(heads) = self.heads {
                    fields.set(KV_HEADS, json!(heads));
                }
            }
            (None, _) => {}
        }
        let (types, count) = TOKEN_TYPES;
        let has_types = C::ROWS.iter().any(|row| row.hugging_face.contains(&types));
        if has_types && !own_names && !fields.has(types) && !fields.has("type_size") {
            fields.set(types, json!(count));
        }
        let is_stated = feed_forward.hugging_face.iter().chain(feed_forward.model_center).any(|name| fields.has(name));
        let head_size = C::DIALECT.dim_head;
        if C::DIALECT.head_required
            && !own_names
            && self.hidden.is_some()
            && !head_size.iter().chain(&["dim_head"]).any(|name| fields.has(name))
        {
            let reason = "`model.head_size` is missing: files of this family state it, and it has no safe default";
            let fix = "set model.head_size, commonly model.hidden / model.heads";
            return Err(Error::model(fields.place(), reason, fix));
        }
        if let (Some(hidden), true, false) = (self.hidden, feed_forward.required, is_stated) {
            let size = json!(FEED_FORWARD.saturating_mul(hidden));
            replace(fields, (feed_forward, own_names), &size, "model.feed_forward")?;
        }
        Ok(())
    }
}

/// Sets the field of a size under the names that the file has, or else under the first one of the program whose names
/// the file has. Where that is the encoder's, the decoder is of the same size.
fn replace(fields: &mut Fields, (row, own_names): (&Row<TextConfig>, bool), value: &Value, key: &str) -> Result<()> {
    let all = row.hugging_face.iter().chain(row.model_center).copied();
    let mut names: Vec<&str> = all.filter(|name| fields.has(name)).collect();
    if names.is_empty() {
        names = match own_names {
            true => row.model_center.to_vec(),
            false => row.hugging_face.iter().take(1).copied().collect(),
        };
    }
    if names.is_empty() {
        return Err(no_such(fields, key));
    }
    for name in names {
        if let Some(of) = name.strip_prefix("encoder_") {
            fields.set(&format!("decoder_{of}"), value.clone());
        }
        fields.set(name, value.clone());
    }
    Ok(())
}

fn no_such(fields: &Fields, key: &str) -> Error {
    let reason = format!("`{key}`: models of this family have no such size of their own");
    Error::model(fields.place(), reason, "remove it")
}
