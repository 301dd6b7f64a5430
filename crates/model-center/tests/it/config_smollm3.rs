//! SmolLM3's configuration: layers without positions, their windows, and what is refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use model_center::config::SmolLm3Config;
use serde_json::{Map, Value, json};

/// A file as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": null, "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 65536,
        "max_window_layers": 28, "mlp_bias": false, "model_type": "smollm3", "no_rope_layer_interval": 4,
        "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 5000000.0, "sliding_window": null,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 128256
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(SmolLm3Config);

fn check_written(config: &SmolLm3Config) {
    configs::check_written(config, &configs::header("SmolLM3ForCausalLM", DType::BF16));
}

#[test]
fn layers_without_positions_are_listed_or_every_so_often() {
    let config = read(&hugging_face()).unwrap();
    let without: Vec<usize> = config.without_positions.iter().copied().collect();
    assert_eq!(without, [3, 7, 11, 15, 19, 23, 27, 31, 35]);
    assert_eq!((config.rotary.base, config.windows.of(3)), (5_000_000.0, None));
    check_written(&config);
    check_written(&SmolLm3Config::default());
    assert_eq!(with(&[("rope_theta", json!("absent"))]).unwrap().rotary.base, 2_000_000.0);
    // A 1 is a layer with positions. A longer list is one of a longer model.
    let flags: Vec<u8> = (0..40).map(|layer| u8::from(layer != 5)).collect();
    let config = with(&[("no_rope_layers", json!(flags))]).unwrap();
    assert_eq!(config.without_positions.iter().copied().collect::<Vec<_>>(), [5]);
    check_written(&config);
}

#[test]
fn windows_are_listed_or_of_the_layers_without_positions() {
    let sliding = [("use_sliding_window", json!(true)), ("sliding_window", json!(9))];
    let config = with(&sliding).unwrap();
    assert_eq!([2, 3, 4, 35].map(|layer| config.windows.of(layer)), [None, Some(9), None, Some(9)]);
    check_written(&config);
    let mut kinds = vec!["full_attention"; 36];
    kinds[0] = "sliding_attention";
    let config = with(&[sliding.to_vec(), vec![("layer_types", json!(kinds))]].concat()).unwrap();
    assert_eq!([0, 3].map(|layer| config.windows.of(layer)), [Some(9), None]);
    // Without a size there are none, by default.
    let config = with(&[("use_sliding_window", json!(true)), ("sliding_window", json!("absent"))]).unwrap();
    assert_eq!(config.windows.of(3), None);
}

#[test]
fn what_is_not_supported_names_the_field() {
    for (name, value, want) in [
        ("no_rope_layers", json!([1, 0]), "not a list of 36 numbers"),
        ("no_rope_layers", json!(vec![2; 36]), "each 0 or 1"),
        ("no_rope_layer_interval", json!(0), "0 is not a size"),
        ("layer_types", json!(["full_attention"]), "not a list of 36 kinds"),
        ("layer_types", json!(vec!["sliding_attention"; 36]), "turns windows off"),
        ("num_key_value_heads", json!("absent"), "no safe default"),
        ("partial_rotary_factor", json!(0.5), "rotary embeddings of parts of heads"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
}
