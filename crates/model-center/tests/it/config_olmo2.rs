//! OLMo 2's configuration: its defaults and what is refused. The rest is read as for Llama.

use crate::configs;

use bmtrain_core::dtype::DType;
use model_center::config::Olmo2Config;
use serde_json::{Map, Value, json};

/// A file as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
        "intermediate_size": 13824, "max_position_embeddings": 4096, "model_type": "olmo2",
        "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 40, "pad_token_id": 100277,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000, "tie_word_embeddings": false,
        "torch_dtype": "float32", "transformers_version": "4.47.0", "use_cache": false, "vocab_size": 100352
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(Olmo2Config);

fn check_written(config: &Olmo2Config) {
    configs::check_written(config, &configs::header("Olmo2ForCausalLM", DType::BF16));
}

#[test]
fn a_file_is_read_and_what_it_leaves_out_is_as_transformers_has_it() {
    let config = read(&hugging_face()).unwrap();
    assert_eq!((config.rotary.base, config.num_heads_kv, config.text.pad_token_id), (500_000.0, 40, Some(100_277)));
    check_written(&config);
    check_written(&Olmo2Config::default());
    let silent = ["rms_norm_eps", "rope_theta", "pad_token_id", "num_key_value_heads", "attention_bias"];
    let config = with(&silent.map(|name| (name, json!("absent")))).unwrap();
    assert_eq!((config.text.norm_eps, config.rotary.base), (1e-5, 10_000.0));
    assert_eq!((config.text.pad_token_id, config.num_heads_kv, config.att_bias), (Some(1), 40, false));
}

#[test]
fn what_is_not_supported_names_the_field() {
    for (name, value, want) in [
        ("mlp_bias", json!(true), "mlp_bias = false only"),
        ("num_key_value_heads", json!(7), "7 key heads do not divide 40"),
        ("partial_rotary_factor", json!(0.5), "rotary embeddings of parts of heads"),
        ("post_layer_norm", json!(true), "post_layer_norm = false only"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
}
