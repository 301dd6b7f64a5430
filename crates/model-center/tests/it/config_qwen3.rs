//! Qwen 3's configuration: defaults, both dialects, and every contradiction an error that names its field. Windows and
//! rotary positions are read as for Qwen 2 and Mistral.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, HfHeader, Qwen3Config, WindowFields};
use model_center::layer::position::RotaryScaling;
use serde_json::{Map, Value, json};

/// A file as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.1,
        "bos_token_id": 151643,
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.03,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
        "vocab_size": 151936
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(Qwen3Config);

fn header() -> HfHeader {
    configs::header("Qwen3ForCausalLM", DType::BF16)
}

fn check_written(config: &Qwen3Config) {
    configs::check_written(config, &header());
}

#[test]
fn defaults_are_those_of_transformers_under_the_names_of_model_center() {
    let dict = Qwen3Config::default().to_dict();
    let expected = json!({
        "vocab_size": 151936, "dim_model": 4096, "num_heads": 32, "num_heads_kv": 32, "dim_head": 128, "dim_ff": 22016,
        "num_layers": 32, "position_size": 32768, "norm_eps": 1e-6, "ffn_activate_fn": "gated_silu", "tied": false,
        "att_bias": false, "use_sliding_window": false, "sliding_window": 4096, "rope_theta": 10000.0
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    check_written(&Qwen3Config::default());
    let text = r#"{"dim_model": 64, "num_heads": 32, "att_bias": true, "ffn_bias": false}"#;
    let config = Qwen3Config::from_json(text, "x").unwrap();
    assert_eq!((config.num_heads_kv, config.text.dim_head, config.att_bias), (32, 128, true));
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (1024, 16, 128, 3072));
    assert_eq!((text.num_layers, text.position_size, text.vocab_size), (28, 40960, 151936));
    assert_eq!((text.norm_eps, text.init_std, text.tied), (1e-5, 0.03, true));
    assert_eq!((text.ffn_activate_fn, text.ffn_gated, text.attention_dropout_p), (Activation::Silu, true, 0.1));
    assert_eq!((config.num_heads_kv, config.rotary.base, config.att_bias), (8, 1_000_000.0, false));
    assert_eq!(config.windows, WindowFields { size: None, ..WindowFields::default() });
    let written = config.to_hf_json(&header()).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    check_written(&config);
}

#[test]
fn what_a_file_leaves_out_is_as_transformers_has_it() {
    let silent = ["rms_norm_eps", "rope_theta", "tie_word_embeddings", "attention_bias", "sliding_window"];
    let config = with(&silent.map(|name| (name, json!("absent")))).unwrap();
    assert_eq!((config.text.norm_eps, config.text.tied, config.rotary.base), (1e-6, false, 10_000.0));
    assert_eq!((config.att_bias, &config.windows), (false, &WindowFields::default()));
    assert_eq!(with(&[("num_key_value_heads", Value::Null)]).unwrap().num_heads_kv, 16);
}

#[test]
fn options_are_read_and_written_back() {
    let mut kinds = vec!["full_attention"; 28];
    kinds[3] = "sliding_attention";
    let config = with(&[
        ("attention_bias", json!(true)),
        ("use_sliding_window", json!(true)),
        ("sliding_window", json!(9)),
        ("layer_types", json!(kinds)),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})),
    ])
    .unwrap();
    assert!(config.att_bias);
    assert_eq!((config.windows.of(3), config.windows.of(4), config.windows.of(28)), (Some(9), None, None));
    assert_eq!((config.rotary.scaling.trained(), config.rotary.scaling.reach(40960)), (Some(32768), 131_072));
    assert!(matches!(config.rotary.scaling, RotaryScaling::Yarn { .. }));
    check_written(&config);
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    for (name, value, want) in [
        ("head_dim", json!("absent"), "no safe default"),
        ("head_dim", json!(65), "cannot be rotated by pairs"),
        ("dim_head", json!(64), "head_dim = 128 and dim_head = 64"),
        ("att_bias", json!(true), "attention_bias = false and att_bias = true"),
        ("mlp_bias", json!(true), "mlp_bias = false only"),
        ("ffn_bias", json!(true), "ffn_bias = false only"),
        ("num_key_value_heads", json!(5), "5 key heads do not divide 16"),
        ("num_key_value_heads", json!("absent"), "no safe default"),
        ("layer_types", json!(vec!["sliding_attention"; 28]), "turns windows off"),
        ("partial_rotary_factor", json!(0.5), "rotary embeddings of parts of heads"),
        ("model_type", json!("qwen3_moe"), "not of qwen3"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
}
