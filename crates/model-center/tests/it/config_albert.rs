//! ALBERT's configuration: blocks that share their parameters, the dimension of its embeddings, what is dropped where,
//! and what is refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use bmtrain_core::{Device, wrap::Counting};
use bmtrain_dist::Module;
use bmtrain_dist::param::{BuilderOptions, InitMode};
use model_center::config::{AlbertConfig, Config, ConfigOverrides, ConfigSource, LayerSharing, SharingStyle};
use model_center::model::albert::Albert;
use model_center::model::architecture::{BlockPlace, ModelFamily, Projection};
use model_center::model::{Head, HeadInit, OpenOptions, Registry, TextHead};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The file of the published base model, with a rate of its own for each dropout.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0.2, "bos_token_id": 2,
        "classifier_dropout_prob": 0.3, "down_scale_factor": 1, "embedding_size": 128, "eos_token_id": 3, "gap_size": 0,
        "hidden_act": "gelu_new", "hidden_dropout_prob": 0.4, "hidden_size": 768, "initializer_range": 0.02,
        "inner_group_num": 1, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "model_type": "albert", "net_structure_type": 0, "num_attention_heads": 12, "num_hidden_groups": 1,
        "num_hidden_layers": 12, "num_memory_blocks": 0, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30000
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(AlbertConfig);

#[test]
fn a_file_is_read_and_written_back_with_unknown_keys() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((config.embedding_size, text.dim_model, text.num_heads, text.dim_ff), (128, 768, 12, 3072));
    assert_eq!((text.num_layers, config.groups, config.type_size), (12, 1, 2));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.4, 0.4, 0.2));
    assert_eq!((config.classifier_dropout_p, text.ffn_activate_fn), (0.3, Activation::GeluTanh));
    let header = configs::header("AlbertForMaskedLM", DType::F32);
    let written = config.to_hf_json(&header).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    configs::check_written(&config, &header);
    let defaults = AlbertConfig::default();
    assert_eq!(AlbertConfig::from_json(&defaults.to_json_string(), "x").unwrap(), defaults);
}

#[test]
fn a_silent_file_means_what_transformers_takes() {
    let silent = [
        "attention_probs_dropout_prob",
        "classifier_dropout_prob",
        "embedding_size",
        "hidden_act",
        "hidden_dropout_prob",
        "inner_group_num",
        "layer_norm_eps",
        "num_hidden_groups",
        "pad_token_id",
    ];
    let absent: Vec<(&str, Value)> = silent.into_iter().map(|name| (name, json!("absent"))).collect();
    let config = with(&absent).unwrap();
    let text = &config.text;
    assert_eq!((text.dropout_p, text.attention_dropout_p, config.classifier_dropout_p), (0.0, 0.0, 0.1));
    assert_eq!((config.embedding_size, config.groups, text.norm_eps), (128, 1, 1e-12));
    assert_eq!((text.ffn_activate_fn, text.pad_token_id), (Activation::GeluTanh, Some(0)));
}

#[test]
fn each_dropout_is_where_transformers_has_it() {
    let config = read(&hugging_face()).unwrap();
    let block = config.block(BlockPlace::FIRST);
    assert_eq!((block.dropout, block.ffn_dropout, block.attention.dropout), (0.4, 0.0, 0.2));
    let dropout = config.spec().head.dropout;
    assert_eq!((dropout.classifier, dropout.tokens, dropout.sentences, dropout.span), (0.3, 0.3, 0.3, 0.0));
}

#[test]
fn groups_are_blocks_at_several_places_in_a_row() {
    let config = with(&[("num_hidden_groups", json!(3))]).unwrap();
    let spec = config.spec();
    assert_eq!(spec.sharing, Some(LayerSharing { unique: 3, style: SharingStyle::Spaced }));
    assert_eq!((spec.embedding_size, spec.projection), (128, Projection::Sum));
    // Where all dimensions are one there is a projection all the same.
    assert_eq!(with(&[("embedding_size", json!(768))]).unwrap().spec().projection, Projection::Sum);
}

#[test]
fn parameters_are_those_of_the_published_model() {
    let device = Device::new(Arc::new(Counting::new(0)));
    let options = BuilderOptions { init: InitMode::Uninitialized, ..BuilderOptions::default() };
    let blocks = bmtrain_dist::block::Recompute::Keep;
    let model = Albert::new(&device, read(&hugging_face()).unwrap(), Head::None, blocks, options).unwrap();
    // One block, tables and their norm, projection, pooler.
    let (dim, size) = (768, 128);
    let body = 12 * dim * dim + 13 * dim + (30000 + 512 + 2) * size + 2 * size + size * dim + dim;
    assert_eq!(model.parameters().count(), body + dim * dim + dim);
    assert_eq!(model.parameters().count(), 11_683_584);
}

#[test]
fn what_it_is_not_is_refused() {
    for (name, value, want) in [
        ("model_type", json!("bert"), "\"bert\", not of albert"),
        ("is_decoder", json!(true), "ALBERT as a decoder"),
        ("inner_group_num", json!(2), "inner_group_num = 1 only"),
        ("num_hidden_groups", json!(5), "5 groups do not divide 12 layers"),
        ("num_hidden_groups", json!(0), "num_hidden_groups"),
        ("embedding_size", json!(0), "embedding_size"),
        ("classifier_dropout_prob", json!(1.0), "not a dropout probability"),
        ("type_vocab_size", json!("absent"), "no safe default"),
    ] {
        let error = with(&[(name, value)]).unwrap_err();
        assert!(error.contains(want) && error.contains("fix: "), "{name}: {error}");
    }
}

#[test]
fn a_recipe_shares_no_other_layers_and_the_order_of_sentences_has_no_head_alone() {
    let device = Device::cpu(1).unwrap();
    let directory = crate::goldens::directory("albert_a", "pretraining");
    let sharing = Some(LayerSharing { unique: 3, style: SharingStyle::Grouped });
    let overrides = ConfigOverrides { sharing, ..ConfigOverrides::default() };
    let config = Some(Arc::new(ConfigSource::open(&directory, overrides).unwrap()));
    let options = OpenOptions { config, head_values: HeadInit::Random, ..OpenOptions::new(&device) };
    let error = Registry::default().open(&directory, &options).err().unwrap().to_string();
    assert!(error.contains("model.unique_layers") && error.contains("config.json"), "{error}");
    let options = OpenOptions { head: Some(TextHead::NextSentence), ..OpenOptions::new(&device) };
    let error = Registry::default().open(&directory, &options).err().unwrap().to_string();
    assert!(error.contains("beside the one for masked tokens alone"), "{error}");
}
