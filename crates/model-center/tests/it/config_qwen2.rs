//! Qwen 2's configuration: defaults, both dialects, windows by layer, and every contradiction an error that names its
//! field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, HfHeader, Qwen2Config, WindowFields};
use model_center::layer::position::RotaryScaling;
use serde_json::{Map, Value, json};

/// A file as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.1, "bos_token_id": 151643, "eos_token_id": 151645,
        "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.03, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
        "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(Qwen2Config);

fn header() -> HfHeader {
    configs::header("Qwen2ForCausalLM", DType::BF16)
}

fn check_written(config: &Qwen2Config) {
    configs::check_written(config, &header());
}

/// The window of each layer.
fn windows(config: &Qwen2Config) -> Vec<Option<usize>> {
    (0..config.text.num_layers).map(|layer| config.windows.of(layer)).collect()
}

#[test]
fn defaults_are_those_of_transformers_under_the_names_of_model_center() {
    let dict = Qwen2Config::default().to_dict();
    let expected = json!({
        "vocab_size": 151936, "dim_model": 4096, "num_heads": 32, "num_heads_kv": 32, "dim_head": 128, "dim_ff": 22016,
        "num_layers": 32, "position_size": 32768, "norm_eps": 1e-6, "ffn_activate_fn": "gated_silu", "tied": false,
        "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28, "rope_theta": 10000.0
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    check_written(&Qwen2Config::default());
    let silent = Qwen2Config::from_json(r#"{"dim_model": 64, "num_heads": 64}"#, "x").unwrap();
    assert_eq!((silent.num_heads_kv, silent.text.dim_head, &silent.windows), (32, 128, &WindowFields::default()));
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (896, 14, 64, 4864));
    assert_eq!((text.num_layers, text.position_size, text.vocab_size), (24, 32768, 151936));
    assert_eq!((text.norm_eps, text.init_std, text.tied), (1e-5, 0.03, true));
    assert_eq!((text.ffn_activate_fn, text.ffn_gated, text.attention_dropout_p), (Activation::Silu, true, 0.1));
    assert_eq!((config.num_heads_kv, config.rotary.base), (2, 1_000_000.0));
    assert_eq!(windows(&config), [None; 24]);
    let written = config.to_hf_json(&header()).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    assert_eq!(written["layer_types"], json!(vec!["full_attention"; 24]));
    check_written(&config);
}

#[test]
fn windows_begin_at_a_layer_or_are_listed() {
    let four = [("num_hidden_layers", json!(4)), ("use_sliding_window", json!(true)), ("sliding_window", json!(7))];
    let with_four = |further: &[(&str, Value)]| with(&[&four[..], further].concat());
    let first_full = with_four(&[("max_window_layers", json!(1))]).unwrap();
    assert_eq!(windows(&first_full), [None, Some(7), Some(7), Some(7)]);
    assert_eq!(windows(&with_four(&[("max_window_layers", json!(0))]).unwrap()), [Some(7); 4]);
    // 28 where the file does not state it.
    assert_eq!(windows(&with_four(&[("max_window_layers", json!("absent"))]).unwrap()), [None; 4]);
    assert_eq!(
        windows(&with_four(&[("sliding_window", Value::Null), ("max_window_layers", json!(0))]).unwrap()),
        [None; 4]
    );
    let silent = with_four(&[("sliding_window", json!("absent")), ("max_window_layers", json!(3))]).unwrap();
    assert_eq!(windows(&silent), [None, None, None, Some(4096)]);
    // A list counts, whatever the number of layers without one is.
    let kinds = json!(["sliding_attention", "full_attention", "full_attention", "sliding_attention"]);
    let listed = with_four(&[("layer_types", kinds.clone())]).unwrap();
    assert_eq!(windows(&listed), [Some(7), None, None, Some(7)]);
    assert_eq!(listed.to_hf_json(&header()).unwrap()["layer_types"], kinds);
    for config in [first_full, listed, silent] {
        check_written(&config);
    }
}

#[test]
fn dynamic_positions_reach_beyond_the_trained_length() {
    let config = with(&[("rope_scaling", json!({"type": "dynamic", "factor": 4.0}))]).unwrap();
    assert_eq!(config.rotary.scaling, RotaryScaling::Dynamic { factor: 4.0, trained: 32768 });
    check_written(&config);
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    let kinds = |word: &str, layers: usize| json!(vec![word; layers]);
    for (name, value, want) in [
        ("layer_types", kinds("full_attention", 23), "not a list of 24 kinds"),
        ("layer_types", json!("full_attention"), "not a list of 24 kinds"),
        ("layer_types", kinds("linear_attention", 24), "unknown kind of layer \"linear_attention\""),
        ("layer_types", json!(vec![1; 24]), "unknown kind of layer 1"),
        ("layer_types", kinds("sliding_attention", 24), "turns windows off"),
        ("use_sliding_window", json!(1), "field use_sliding_window"),
        ("sliding_window", json!(0), "field sliding_window"),
        ("max_window_layers", json!(-1), "field max_window_layers"),
        ("num_hidden_layers", json!(1 << 28), "out of range"),
        ("num_key_value_heads", json!(4), "4 key heads do not divide 14"),
        ("num_key_value_heads", json!("absent"), "no safe default"),
        ("mlp_bias", json!(true), "mlp_bias = false only"),
        ("use_mrope", json!(true), "use_mrope = false only"),
        ("att_bias", json!(false), "att_bias = true only"),
        ("ffn_bias", json!(true), "ffn_bias = false only"),
        ("partial_rotary_factor", json!(0.5), "rotary embeddings of parts of heads"),
        ("hidden_size", json!(900), "not divisible"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
        ("model_type", json!("qwen3"), "not of qwen2"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
    assert!(with(&[("use_mrope", json!(false))]).is_ok());
    // Transformers passes over this one too: queries, keys and values have their biases.
    let without = with(&[("attention_bias", json!(false))]).unwrap();
    assert_eq!(without.to_hf_json(&header()).unwrap()["attention_bias"], false);
    let error = with(&[
        ("use_sliding_window", json!(true)),
        ("sliding_window", Value::Null),
        ("layer_types", kinds("sliding_attention", 24)),
    ]);
    assert!(error.unwrap_err().contains("gives no size"));
    // A size that no model has must not cost memory or time where every layer would have a window.
    let huge =
        [("num_hidden_layers", json!(1 << 28)), ("use_sliding_window", json!(true)), ("max_window_layers", json!(0))];
    assert!(with(&huge).unwrap_err().contains("out of range"));
}
