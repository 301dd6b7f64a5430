//! MPNet's configuration: defaults of transformers, what transformers has whatever a file states, and what is refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, MpnetConfig};
use model_center::layer::PositionsConfig;
use model_center::model::architecture::ModelFamily;
use serde_json::{Map, Value, json};

/// The file of the published sentence encoder, with a rate of its own for attention.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "_name_or_path": "microsoft/mpnet-base", "architectures": ["MPNetModel"], "attention_probs_dropout_prob": 0.2,
        "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
        "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-5, "max_position_embeddings": 514,
        "model_type": "mpnet", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
        "relative_attention_num_buckets": 32, "vocab_size": 30527
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(MpnetConfig);

#[test]
fn a_file_is_read_and_written_back_with_unknown_keys() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (768, 12, 64, 3072));
    assert_eq!((text.num_layers, text.position_size, text.vocab_size, config.buckets), (12, 514, 30527, 32));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.1, 0.1, 0.2));
    assert_eq!((text.norm_eps, text.pad_token_id, text.tied), (1e-5, Some(1), true));
    let header = configs::header("MPNetModel", DType::F32);
    let written = config.to_hf_json(&header).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    assert!(!written.contains_key("type_vocab_size") && !written.contains_key("classifier_dropout"));
    configs::check_written(&config, &header);
    let defaults = MpnetConfig::default();
    assert_eq!(MpnetConfig::from_json(&defaults.to_json_string(), "x").unwrap(), defaults);
}

#[test]
fn a_silent_file_means_what_transformers_takes() {
    let silent = ["relative_attention_num_buckets", "pad_token_id", "layer_norm_eps", "hidden_dropout_prob"];
    let absent: Vec<(&str, Value)> = silent.into_iter().map(|name| (name, json!("absent"))).collect();
    let config = with(&absent).unwrap();
    assert_eq!((config.buckets, config.text.pad_token_id), (32, Some(1)));
    assert_eq!((config.text.norm_eps, config.text.dropout_p), (1e-12, 0.1));
}

#[test]
fn positions_are_added_and_relative_and_the_head_for_masked_tokens_has_its_own_function() {
    let spec = with(&[("hidden_act", json!("relu"))]).unwrap().spec();
    let stack = &spec.stacks[0];
    assert!(matches!(&stack.positions, PositionsConfig::Relative(relative)
        if (relative.buckets, relative.max_distance, relative.heads, relative.bidirectional) == (32, 128, 12, true)));
    // Rows 0 and 1 are no token's.
    assert_eq!((stack.position_rows, stack.position_padding, spec.max_length), (514, Some(1), 512));
    assert_eq!((stack.type_size, spec.head.base_pooler), (None, true));
    assert_eq!(spec.head.transform.unwrap().1, Activation::Gelu);
}

#[test]
fn what_it_is_not_is_refused() {
    for (name, value, want) in [
        ("model_type", json!("roberta"), "\"roberta\", not of mpnet"),
        ("is_decoder", json!(true), "MPNet as a decoder"),
        // transformers ignores both, so that the model would be another one than the file states.
        ("pad_token_id", json!(0), "padding token is 1"),
        ("pad_token_id", Value::Null, "padding token is 1"),
        ("relative_attention_num_buckets", json!(64), "32 ranges of distances, and not 64"),
        ("max_position_embeddings", json!(2), "has none for a token"),
        ("intermediate_size", json!("absent"), "no safe default"),
        ("post_layer_norm", json!(false), "post_layer_norm = true only"),
    ] {
        let error = with(&[(name, value.clone())]).unwrap_err();
        assert!(error.contains(want) && error.contains("fix: "), "{name} = {value}: {error}");
    }
}
