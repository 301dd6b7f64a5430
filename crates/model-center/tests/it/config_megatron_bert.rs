//! Megatron-BERT's configuration: the defaults of transformers, both dialects, what a silent file means, and what is
//! refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, MegatronBertConfig};
use model_center::model::megatron_bert::MegatronBert;
use serde_json::{Map, Value, json};

/// The file of NVIDIA's model of 345 million parameters, with a rate of its own for each dropout.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["MegatronBertForPreTraining"], "attention_probs_dropout_prob": 0.2, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 4096,
        "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "megatron-bert",
        "num_attention_heads": 16, "num_hidden_layers": 24, "pad_token_id": 0, "position_embedding_type": "absolute",
        "type_vocab_size": 2, "use_cache": true, "vocab_size": 29056
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(MegatronBertConfig);

#[test]
fn a_file_is_read_and_written_back_with_unknown_keys() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (1024, 16, 64, 4096));
    assert_eq!((text.num_layers, text.position_size, text.vocab_size, config.type_size), (24, 512, 29056, 2));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.1, 0.1, 0.2));
    assert_eq!((text.norm_eps, text.ffn_activate_fn, text.pad_token_id), (1e-12, Activation::Gelu, Some(0)));
    let header = configs::header("MegatronBertForPreTraining", DType::F32);
    let written = config.to_hf_json(&header).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    // transformers has no such field in this family.
    assert!(!written.contains_key("classifier_dropout"));
    configs::check_written(&config, &header);
    let defaults = MegatronBertConfig::default();
    assert_eq!(MegatronBertConfig::from_json(&defaults.to_json_string(), "x").unwrap(), defaults);
}

#[test]
fn a_silent_file_means_what_transformers_takes() {
    let silent = ["hidden_act", "layer_norm_eps", "pad_token_id", "initializer_range", "use_cache"];
    let absent: Vec<(&str, Value)> = silent.into_iter().map(|name| (name, json!("absent"))).collect();
    let config = with(&absent).unwrap();
    assert_eq!((config.text.norm_eps, config.text.ffn_activate_fn), (1e-12, Activation::Gelu));
    assert_eq!((config.text.pad_token_id, config.text.init_std, config.text.tied), (Some(0), 0.02, true));
    let rates = ["hidden_dropout_prob", "attention_probs_dropout_prob"].map(|name| (name, json!("absent")));
    let config = with(&rates).unwrap();
    assert_eq!((config.text.dropout_p, config.text.attention_dropout_p), (0.1, 0.1));
}

#[test]
fn what_it_is_not_is_refused() {
    for (name, value, want) in [
        ("model_type", json!("bert"), "\"bert\", not of megatron-bert"),
        ("is_decoder", json!(true), "Megatron-BERT as a decoder"),
        ("position_embedding_type", json!("relative_key"), "not supported"),
        ("post_layer_norm", json!(true), "post_layer_norm = false only"),
        ("norm_bias", json!(false), "norm_bias = true only"),
        ("type_vocab_size", json!("absent"), "no safe default"),
        ("hidden_size", json!(1025), "not divisible"),
    ] {
        let error = with(&[(name, value)]).unwrap_err();
        assert!(error.contains(want) && error.contains("fix: "), "{name}: {error}");
    }
}

#[test]
fn the_initial_values_of_the_outputs_of_a_block_are_divided_by_depth_where_it_is_asked_for() {
    use model_center::model::architecture::{BlockPlace, ModelFamily};
    let mut config = read(&hugging_face()).unwrap();
    let whole = config.block(BlockPlace::FIRST);
    assert_eq!(whole.attention.out_init, whole.attention.init);
    config.text.scale_init_by_depth = Some(true);
    let scaled = config.block(BlockPlace::FIRST);
    assert_ne!(scaled.attention.out_init, scaled.attention.init);
    assert_eq!(scaled.attention.out_init, scaled.ffn.out_init);
}

#[test]
fn parameters_are_those_of_the_published_model() {
    use bmtrain_core::{Device, wrap::Counting};
    use bmtrain_dist::Module;
    use bmtrain_dist::param::{BuilderOptions, InitMode};
    use model_center::model::Head;
    use std::sync::Arc;
    let device = Device::new(Arc::new(Counting::new(0)));
    let options = BuilderOptions { init: InitMode::Uninitialized, ..BuilderOptions::default() };
    let blocks = bmtrain_dist::block::Recompute::Keep;
    let config = read(&hugging_face()).unwrap();
    let model = MegatronBert::new(&device, config, Head::Pretraining, blocks, options).unwrap();
    // L (12 D^2 + 13 D), tables, the last norm; pooler, transform with its norm, bias over V, two sentences.
    let (layers, dim, words) = (24, 1024, 29056);
    let body = layers * (12 * dim * dim + 13 * dim) + (words + 512 + 2) * dim + 2 * dim;
    let heads = 2 * (dim * dim + dim) + 2 * dim + words + 2 * dim + 2;
    assert_eq!(model.parameters().count(), body + heads);
}
