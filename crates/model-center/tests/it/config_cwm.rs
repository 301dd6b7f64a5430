//! Code World Model's configuration: windows of three of four layers, stretched angles, and what is refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use model_center::config::CwmConfig;
use model_center::layer::position::RotaryScaling;
use serde_json::{Map, Value, json};

/// The fields of a model of 32 billion parameters.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["CwmForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009], "head_dim": 128, "hidden_act": "silu", "hidden_size": 6144,
        "initializer_range": 0.02, "intermediate_size": 21504, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "cwm", "num_attention_heads": 48, "num_hidden_layers": 64, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": 8192, "tie_word_embeddings": false,
        "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(CwmConfig);

fn check_written(config: &CwmConfig) {
    configs::check_written(config, &configs::header("CwmForCausalLM", DType::BF16));
}

#[test]
fn windows_are_in_all_layers_but_the_first_of_four_or_as_listed() {
    let config = read(&hugging_face()).unwrap();
    assert_eq!(
        [0, 1, 3, 4, 63].map(|layer| config.windows.of(layer)),
        [None, Some(8192), Some(8192), None, Some(8192)]
    );
    check_written(&config);
    check_written(&CwmConfig::default());
    let mut kinds = vec!["full_attention"; 64];
    kinds[4] = "sliding_attention";
    let config = with(&[("layer_types", json!(kinds)), ("sliding_window", json!(7))]).unwrap();
    assert_eq!([1, 4].map(|layer| config.windows.of(layer)), [None, Some(7)]);
    check_written(&config);
    let config = with(&[("sliding_window", Value::Null)]).unwrap();
    assert_eq!(config.windows.of(1), None);
    check_written(&config);
}

#[test]
fn angles_are_stretched_where_a_file_is_silent() {
    let config = read(&hugging_face()).unwrap();
    assert_eq!(config.rotary, CwmConfig::default().rotary);
    assert!(matches!(config.rotary.scaling, RotaryScaling::Llama3 { factor: 16.0, trained: 8192, .. }));
    let silent = with(&[("rope_scaling", Value::Null)]).unwrap();
    assert_eq!(silent.rotary, config.rotary);
    let silent = with(&["rope_theta", "rope_scaling"].map(|name| (name, json!("absent")))).unwrap();
    assert_eq!(silent.rotary, config.rotary);
    let plain = json!({"rope_type": "default", "rope_theta": 5000.0});
    let absent = ["rope_theta", "rope_scaling"].map(|name| (name, json!("absent")));
    let config = with(&[absent.to_vec(), vec![("rope_parameters", plain)]].concat()).unwrap();
    assert_eq!((config.rotary.base, &config.rotary.scaling), (5000.0, &RotaryScaling::None));
    check_written(&config);
}

#[test]
fn what_is_not_supported_names_the_field() {
    for (changes, want) in [
        (vec![("use_sliding_window", json!(false))], "use_sliding_window = true only"),
        (vec![("layer_types", json!(["full_attention"]))], "not a list of 64 kinds"),
        (vec![("num_key_value_heads", json!("absent"))], "no safe default"),
        (vec![("attention_bias", json!(true))], "attention_bias = false only"),
        (vec![("rope_theta", json!(5000.0)), ("rope_scaling", Value::Null)], "stretched angles all the same"),
    ] {
        let error = with(&changes).expect_err(want);
        assert!(error.contains(want) && error.contains("config.json") && error.contains("fix: "), "{error}");
    }
}
