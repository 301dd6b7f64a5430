//! A random model of the family in a directory.

use bmtrain_core::{DType, Device};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::param::BuilderOptions;
use model_center::config::TextConfig;
use model_center::formats::DirectoryLayout;
use model_center::model::{Head, SaveModel, SaveOptions};
use own_model::{Toy, ToyConfig};
use std::path::Path;

pub const F32: SaveOptions<'static> =
    SaveOptions { dtype: DType::F32, companions: None, layout: DirectoryLayout::HuggingFace };

/// Eleven tokens, six positions, two blocks.
pub fn write(directory: &Path, head: Head) {
    let text = TextConfig {
        vocab_size: 11,
        position_size: 6,
        dim_model: 8,
        num_heads: 2,
        dim_head: 4,
        dim_ff: 32,
        num_layers: 2,
        attention_dropout_p: 0.1,
        init_std: 0.1,
        outer_std: Some(0.5),
        cls_head: if let Head::Classifier { outputs } = head { Some(outputs) } else { None },
        ..TextConfig::default()
    };
    let config = ToyConfig { text, factor: 0.5 };
    let device = Device::cpu(1).unwrap();
    let model = Toy::new(&device, config, head, BlockOptions::default(), BuilderOptions::default()).unwrap();
    model.save(directory, &F32).unwrap();
}
