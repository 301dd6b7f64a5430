//! Granite's configuration: its factors, their defaults and what is refused. The rest is read as for Llama.

use crate::configs;

use bmtrain_core::dtype::DType;
use model_center::config::{Config, GraniteConfig};
use serde_json::{Map, Value, json};

/// A file as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_dropout": 0.1,
        "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "logits_scaling": 8.0, "max_position_embeddings": 4096, "mlp_bias": false, "model_type": "granite",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": true,
        "vocab_size": 49155
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(GraniteConfig);

#[test]
fn factors_are_read_and_written_back_and_are_one_where_a_file_is_silent() {
    let config = read(&hugging_face()).unwrap();
    let factors = |config: &GraniteConfig| {
        let GraniteConfig { embedding_multiplier, attention_multiplier, residual_multiplier, logits_scaling, .. } =
            *config;
        [embedding_multiplier, attention_multiplier, residual_multiplier, logits_scaling]
    };
    assert_eq!(factors(&config), [12.0, 0.015_625, 0.22, 8.0]);
    assert_eq!((config.num_heads_kv, config.text.dim_head, config.text.tied), (8, 64, true));
    let header = configs::header("GraniteForCausalLM", DType::BF16);
    let written = config.to_hf_json(&header).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    configs::check_written(&config, &header);
    let names = ["embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"];
    let silent = with(&names.map(|name| (name, json!("absent")))).unwrap();
    // The factor of the scores too, where other families divide by the root of the head's length.
    assert_eq!(factors(&silent), [1.0; 4]);
    assert_eq!(with(&[("num_key_value_heads", json!("absent"))]).unwrap().num_heads_kv, 32);
}

#[test]
fn what_is_not_supported_names_the_field() {
    for (name, value, want) in [
        ("logits_scaling", json!(0), "cannot be divided by 0"),
        ("residual_multiplier", json!("none"), "is not a number"),
        ("num_key_value_heads", json!(5), "5 key heads do not divide 32"),
        ("partial_rotary_factor", json!(0.5), "rotary embeddings of parts of heads"),
        ("model_type", json!("granitemoe"), "not of granite"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
}
