//! Seed-OSS' configuration: biases, dropout where a file is silent, and what is refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use model_center::config::{Config, SeedOssConfig};
use serde_json::{Map, Value, json};

/// The fields of a model of 36 billion parameters.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["SeedOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.1,
        "attention_out_bias": false, "bos_token_id": 0, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 27648,
        "max_position_embeddings": 524288, "mlp_bias": false, "model_type": "seed_oss", "num_attention_heads": 80,
        "num_hidden_layers": 64, "num_key_value_heads": 8, "pad_token_id": 1, "residual_dropout": 0.1,
        "rms_norm_eps": 1e-06, "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 155136
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(SeedOssConfig);

fn check_written(config: &SeedOssConfig) {
    configs::check_written(config, &configs::header("SeedOssForCausalLM", DType::BF16));
}

#[test]
fn each_part_has_biases_of_its_own() {
    let config = read(&hugging_face()).unwrap();
    assert_eq!((config.att_bias, config.attention_out_bias, config.ffn_bias), (true, false, false));
    assert_eq!((config.rotary.base, config.text.dim_head), (1e7, 128));
    check_written(&config);
    check_written(&SeedOssConfig::default());
    let names = ["attention_bias", "attention_out_bias", "mlp_bias"];
    let silent = with(&names.map(|name| (name, json!("absent")))).unwrap();
    assert_eq!(silent, config);
    let config =
        with(&[("attention_bias", json!(false)), ("attention_out_bias", json!(true)), ("mlp_bias", json!(true))]);
    let config = config.unwrap();
    assert_eq!((config.att_bias, config.attention_out_bias, config.ffn_bias), (false, true, true));
    check_written(&config);
    let written = config.to_hf_json(&configs::header("SeedOssForCausalLM", DType::BF16)).unwrap();
    assert_eq!((&written["model_type"], &written["attention_out_bias"]), (&json!("seed_oss"), &json!(true)));
}

#[test]
fn dropout_is_a_tenth_where_a_file_is_silent() {
    let silent = with(&["attention_dropout", "residual_dropout"].map(|name| (name, json!("absent")))).unwrap();
    assert_eq!((silent.text.dropout_p, silent.text.attention_dropout_p), (0.1, 0.1));
    let none = with(&[("residual_dropout", json!(0.0)), ("attention_dropout", json!(0.0))]).unwrap();
    assert_eq!((none.text.dropout_p, none.text.attention_dropout_p), (0.0, 0.0));
    check_written(&none);
}

#[test]
fn what_is_not_supported_names_the_field() {
    for (name, value, want) in [
        ("num_key_value_heads", json!("absent"), "no safe default"),
        ("head_dim", json!("absent"), "no safe default"),
        ("partial_rotary_factor", json!(0.5), "rotary embeddings of parts of heads"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json") && error.contains("fix: "), "{error}");
    }
}
