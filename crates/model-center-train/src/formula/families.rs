//! The sizes of a model from its `config.json` alone, for the families of one stack.

use super::sizes::TransformerSizes;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::config::{ConfigOverrides, ConfigSource};
use model_center_models::architecture::{Added, Architecture, Projection};
use model_center_models::{Description, MODELS, ModelEntry};
use std::path::Path;

/// The sizes that a directory's `config.json` states. No weights are needed.
///
/// # Errors
/// A malformed configuration; one that names no family, or an encoder-decoder.
pub fn sizes_of(directory: &Path) -> Result<TransformerSizes> {
    sizes_of_config(&ConfigSource::open(directory, ConfigOverrides::default())?)
}

/// The sizes of a model that begins without weights.
///
/// # Errors
/// As [`sizes_of`].
pub fn sizes_of_config(config: &ConfigSource) -> Result<TransformerSizes> {
    let (fields, place) = (config.fields(), config.place().to_owned());
    let name = fields.peek_text("model_type")?.unwrap_or_default().to_owned();
    let Some(entry) = families().find(|entry| entry.model_type == name) else {
        let known = families().map(|entry| entry.model_type).collect::<Vec<_>>().join(", ");
        let reason = format!("sizing by formula does not know the family \"{}\"", printable(&name, 80));
        return Err(Error::model(place, reason, format!("use a model of one of {known}")));
    };
    let sizes = sizes(&(entry.facts.describe)(config)?);
    sizes.validate(&place)?;
    Ok(sizes)
}

/// The families of one stack.
fn families() -> impl Iterator<Item = &'static ModelEntry> {
    MODELS.iter().filter(|entry| entry.facts.architecture != Architecture::EncoderDecoder)
}

fn sizes(Description { text, spec, block }: &Description) -> TransformerSizes {
    let has_positions = spec.stacks.iter().any(|stack| stack.added != Added::None);
    TransformerSizes {
        layers: text.num_layers,
        unique_layers: spec.sharing.map_or(text.num_layers, |sharing| sharing.unique),
        width: text.dim_model,
        heads: block.attention.num_heads,
        kv_heads: block.attention.num_heads_kv,
        head_size: block.attention.dim_head,
        feed_forward: block.ffn.dim_ff,
        gated: block.ffn.gated,
        vocabulary: text.vocab_size,
        embedding: spec.embedding_size,
        projects_sum: spec.projection == Projection::Sum,
        positions: if has_positions { text.position_size } else { 0 },
        tied: text.tied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(family: &str, overrides: ConfigOverrides) -> Result<TransformerSizes> {
        sizes_of_config(&ConfigSource::of_family(family, overrides))
    }

    #[test]
    fn blocks_that_share_parameters_count_once_and_compute_at_every_place() {
        let shape = ConfigOverrides {
            layers: Some(12),
            hidden: Some(768),
            heads: Some(12),
            feed_forward: Some(3072),
            positions: Some(512),
            vocabulary: Some(30000),
            ..ConfigOverrides::default()
        };
        let sizes = base("albert", shape.clone()).unwrap();
        assert_eq!((sizes.layers, sizes.unique_layers, sizes.embedding), (12, 1, 128));
        // One block, tables of 128 columns, what projects them, and a norm: ALBERT-base but for pooler and types.
        let block = (12 * 768 * 768 + 13 * 768) as f64;
        let embeddings = ((30000 + 512) * 128 + 128 * 768 + 768) as f64;
        assert_eq!(sizes.parameters(), block + embeddings + 2.0 * 768.0);
        let bert = base("bert", shape).unwrap();
        assert_eq!(bert.unique_layers, 12);
        assert_eq!(sizes.matrix_flops(), bert.matrix_flops());
        let heads = 3.0 * 2.0 * 30000.0 * (768.0 - 128.0);
        assert_eq!(bert.training_flops(128) - sizes.training_flops(128), heads);
    }

    #[test]
    fn encoder_decoders_are_refused_by_name() {
        for entry in MODELS.iter().filter(|entry| families().all(|known| known.model_type != entry.model_type)) {
            let message = base(entry.model_type, ConfigOverrides::default()).unwrap_err().to_string();
            assert!(message.contains(&format!("\"{}\"", entry.model_type)), "{message}");
        }
        assert!(families().count() > 30);
    }
}
