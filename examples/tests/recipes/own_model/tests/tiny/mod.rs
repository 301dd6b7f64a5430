//! A random model of the family in a directory.

use bmtrain_core::{DType, Device};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::param::BuilderOptions;
use model_center::formats::DirectoryLayout;
use model_center::model::{SaveOptions, TextModel};
use own_model::{Toy, ToyConfig};
use std::path::Path;

pub const F32: SaveOptions<'static> =
    SaveOptions { dtype: DType::F32, companions: None, layout: DirectoryLayout::HuggingFace };

/// Eleven tokens, six positions, two blocks.
pub fn write(directory: &Path, outputs: usize) {
    let config = ToyConfig {
        vocab_size: 11,
        positions: 6,
        dim_model: 8,
        num_heads: 2,
        num_layers: 2,
        outputs,
        extra: serde_json::Map::new(),
    };
    let device = Device::cpu(1).unwrap();
    let model = Toy::new(&device, config, BlockOptions::default(), BuilderOptions::default()).unwrap();
    model.save(directory, &F32).unwrap();
}
