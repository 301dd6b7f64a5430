//! Ministral's configuration: windows of all layers or of listed ones, and what is refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use model_center::config::{Config, MinistralConfig};
use serde_json::{Map, Value, json};

/// The fields of a model of 8 billion parameters.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["MinistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 12288, "max_position_embeddings": 32768, "model_type": "ministral",
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_theta": 100000000.0, "sliding_window": 32768, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "use_cache": true, "vocab_size": 131072
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(MinistralConfig);

fn check_written(config: &MinistralConfig) {
    configs::check_written(config, &configs::header("MinistralForCausalLM", DType::BF16));
}

#[test]
fn windows_are_in_all_layers_or_in_listed_ones() {
    let config = read(&hugging_face()).unwrap();
    assert_eq!([0, 35].map(|layer| config.windows.of(layer)), [Some(32768); 2]);
    check_written(&config);
    check_written(&MinistralConfig::default());
    let silent = with(&[("sliding_window", json!("absent"))]).unwrap();
    assert_eq!(silent.windows.of(35), Some(4096));
    let without = with(&[("sliding_window", Value::Null)]).unwrap();
    assert_eq!([0, 35].map(|layer| without.windows.of(layer)), [None; 2]);
    check_written(&without);
    let mut kinds = vec!["sliding_attention"; 36];
    kinds[3] = "full_attention";
    // A field of other families, which transformers does not know here.
    let config = with(&[("layer_types", json!(kinds)), ("max_window_layers", json!(28))]).unwrap();
    assert_eq!([2, 3, 4].map(|layer| config.windows.of(layer)), [Some(32768), None, Some(32768)]);
    check_written(&config);
    let written = config.to_hf_json(&configs::header("MinistralForCausalLM", DType::BF16)).unwrap();
    assert_eq!((&written["model_type"], &written["layer_types"]), (&json!("ministral"), &json!(kinds)));
    let config = with(&[("max_window_layers", json!(28))]).unwrap();
    assert_eq!(config.windows.of(0), Some(32768));
}

#[test]
fn what_is_not_supported_names_the_field() {
    for (name, value, want) in [
        ("use_sliding_window", json!(false), "use_sliding_window = true only"),
        ("layer_types", json!(["full_attention"]), "not a list of 36 kinds"),
        ("num_key_value_heads", json!("absent"), "no safe default"),
        ("attention_bias", json!(true), "attention_bias = false only"),
        ("mlp_bias", json!(true), "mlp_bias = false only"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json") && error.contains("fix: "), "{error}");
    }
}
