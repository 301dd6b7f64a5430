//! GLM-4's configuration: the rotated part of heads and what is refused. The rest is read as for Llama.

use crate::configs;

use bmtrain_core::dtype::DType;
use model_center::config::Glm4Config;
use serde_json::{Map, Value, json};

/// A file as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["Glm4ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
        "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 13696, "max_position_embeddings": 32768,
        "model_type": "glm4", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
        "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 151552
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(Glm4Config);

fn check_written(config: &Glm4Config) {
    configs::check_written(config, &configs::header("Glm4ForCausalLM", DType::BF16));
}

#[test]
fn half_of_each_head_is_rotated_where_a_file_is_silent() {
    let config = read(&hugging_face()).unwrap();
    assert_eq!((config.rotary.dims(128), config.att_bias, config.num_heads_kv), (64, true, 2));
    check_written(&config);
    check_written(&Glm4Config::default());
    let silent = ["partial_rotary_factor", "rms_norm_eps", "attention_bias"].map(|name| (name, json!("absent")));
    let config = with(&silent).unwrap();
    assert_eq!((config.rotary.dims(128), config.text.norm_eps, config.att_bias), (64, 1.5625e-7, true));
    let inside = [("partial_rotary_factor", json!("absent")), ("rope_theta", json!("absent"))];
    let parameters = json!({"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0});
    let config = with(&[inside.to_vec(), vec![("rope_parameters", parameters)]].concat()).unwrap();
    assert_eq!((config.rotary.dims(128), config.rotary.base), (128, 500.0));
    check_written(&config);
}

#[test]
fn what_is_not_supported_names_the_field() {
    for (name, value, want) in [
        ("head_dim", json!("absent"), "no safe default"),
        ("mlp_bias", json!(true), "mlp_bias = false only"),
        ("partial_rotary_factor", json!(0.12), "0.12 of 128 elements"),
        ("rope_parameters", json!({"partial_rotary_factor": 0.25}), "the file states 0.5, and 0.25"),
        ("num_key_value_heads", json!("absent"), "no safe default"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
}
