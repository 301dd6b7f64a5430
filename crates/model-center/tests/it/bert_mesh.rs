//! BERT cut over two tensor-parallel ranks: local shapes and initial values, without communication.

use bmtrain_core::comm::CountingRank;
use bmtrain_core::{Device, Shape};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::param::{BuilderOptions, TensorGroup};
use bmtrain_dist::{Mesh, Module};
use model_center::config::{BertConfig, TextConfig};
use model_center::model::Head;
use model_center::model::bert::Bert;
use std::sync::Arc;

fn config() -> BertConfig {
    let text = TextConfig {
        vocab_size: 50,
        dim_model: 24,
        num_heads: 4,
        dim_head: 6,
        dim_ff: 40,
        num_layers: 2,
        position_size: 16,
        ..BertConfig::default().text
    };
    BertConfig { text, ..BertConfig::default() }
}

/// Options of a rank whose group is not there.
fn options(mesh: Mesh) -> BuilderOptions {
    let ranks = Arc::new(CountingRank::new(mesh.tensor_rank(), mesh.tensor_size()).unwrap());
    let tensor = TensorGroup { ranks, ..TensorGroup::default() };
    BuilderOptions { mesh, tensor, seed: 11, ..BuilderOptions::default() }
}

fn build(device: &Device, mesh: Mesh) -> Bert {
    let options = options(mesh);
    Bert::new(device, config(), Head::Classifier { outputs: 3 }, BlockOptions::default(), options).unwrap()
}

#[test]
fn each_rank_holds_matching_heads_and_its_part_of_the_whole_models_values() {
    let device = Device::cpu(1).unwrap();
    let whole = build(&device, Mesh::SOLO);
    for rank in 0..2 {
        let part = build(&device, Mesh::new(rank, 2, 1, 2).unwrap());
        for (whole, local) in whole.parameters().iter().zip(part.parameters()) {
            assert_eq!(whole.name(), local.name());
            let (all, held) = (whole.read().unwrap(), local.read().unwrap());
            let mut covered = 0;
            for (global, start, len) in local.local_part().runs(local.spec().shape) {
                assert_eq!(all[global..global + len], held[start..start + len], "{} on rank {rank}", local.name());
                covered += len;
            }
            // The vocabulary of 50 tokens has room for 128 on each rank: all are on the first.
            let padding = if local.name() == "input_embedding.weight" { (128 - [50, 0][rank]) * 24 } else { 0 };
            assert_eq!(covered + padding, held.len(), "{}", local.name());
        }
    }
}

#[test]
fn local_shapes_are_those_of_column_and_row_cuts() {
    let device = Device::cpu(1).unwrap();
    let part = build(&device, Mesh::new(1, 2, 1, 2).unwrap());
    let shape = |name: &str| part.parameters().get(name).unwrap().local_shape();
    let block = |name: &str| shape(&format!("encoder.layers.0.{name}"));
    // Two of four heads in each of the three fused parts.
    assert_eq!(block("attention.project_qkv.weight"), Shape::from([36, 24]));
    assert_eq!(block("attention.project_qkv.bias"), Shape::from([36]));
    assert_eq!(block("attention.attention_out.weight"), Shape::from([24, 12]));
    assert_eq!(block("attention.attention_out.bias"), Shape::from([24]));
    assert_eq!(block("ffn.w_in.weight"), Shape::from([20, 24]));
    assert_eq!(block("ffn.w_in.bias"), Shape::from([20]));
    assert_eq!(block("ffn.w_out.weight"), Shape::from([24, 20]));
    assert_eq!(block("attention_norm.weight"), Shape::from([24]));
    assert_eq!(shape("input_embedding.weight"), Shape::from([128, 24]));
    let qkv = part.parameters().get("encoder.layers.0.attention.project_qkv.weight").unwrap();
    assert_eq!(qkv.local_part().ranges, [12..24, 36..48, 60..72]);
}

#[test]
fn heads_that_cannot_be_cut_are_refused_with_the_parameters_name() {
    let device = Device::cpu(1).unwrap();
    let options = options(Mesh::new(0, 8, 1, 8).unwrap());
    let config = BertConfig { text: TextConfig { num_heads: 6, dim_head: 4, ..config().text }, ..config() };
    let error = Bert::new(&device, config, Head::None, BlockOptions::default(), options);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("project_qkv.weight") && error.contains('8'), "{error}");
}
