//! Llama's configuration: ModelCenter's defaults, both dialects, rotary positions in both forms of transformers, and
//! every contradiction an error that names its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, LlamaConfig};
use model_center::layer::position::RotaryScaling;
use serde_json::{Map, Value, json};

/// A file as Llama 3.1 has it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": true,
        "vocab_size": 128256
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(LlamaConfig);

#[test]
fn defaults_are_those_of_model_center() {
    let dict = LlamaConfig::default().to_dict();
    let expected = json!({
        "vocab_size": 32000, "dim_model": 4096, "num_heads": 32, "dim_head": 128, "dim_ff": 11008, "num_layers": 32,
        "dropout_p": 0.0, "emb_init_std": 0.02, "norm_eps": 1e-6, "att_init_std": 0.02, "att_bias": false,
        "ffn_init_std": 0.02, "ffn_bias": false, "ffn_activate_fn": "gated_silu", "tied": false, "cls_head": null
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    assert_eq!(LlamaConfig::from_json(&LlamaConfig::default().to_json_string(), "x").unwrap(), LlamaConfig::default());
}

#[test]
fn a_hugging_face_file_is_read_and_written_back() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, config.num_heads_kv), (4096, 32, 128, 8));
    assert_eq!((text.dim_ff, text.num_layers, text.position_size, text.vocab_size), (14336, 32, 131_072, 128_256));
    assert_eq!((text.norm_eps, text.ffn_activate_fn, text.ffn_gated, text.tied), (1e-5, Activation::Silu, true, false));
    let scaling = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, trained: 8192 };
    assert_eq!((config.rotary.base, &config.rotary.scaling), (500_000.0, &scaling));
    let header = configs::header("LlamaForCausalLM", DType::BF16);
    let written = config.to_hf_json(&header).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    assert_eq!(read(&written).unwrap(), config);
    assert_eq!(LlamaConfig::from_json(&config.to_json_string(), "x").unwrap(), config);
}

#[test]
fn both_forms_of_rotary_positions_say_the_same() {
    let new = |parameters: Value| {
        with(&[("rope_theta", Value::Null), ("rope_scaling", Value::Null), ("rope_parameters", parameters)])
    };
    let plain = new(json!({"rope_type": "default", "rope_theta": 10000.0})).unwrap().rotary;
    assert_eq!((plain.base, plain.scaling), (10_000.0, RotaryScaling::None));
    let linear = new(json!({"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0})).unwrap().rotary;
    assert_eq!((linear.base, linear.scaling), (500.0, RotaryScaling::Linear { factor: 2.5 }));
    let dynamic = with(&[("rope_scaling", json!({"type": "dynamic", "factor": 2.0}))]).unwrap().rotary.scaling;
    assert_eq!(dynamic, RotaryScaling::Dynamic { factor: 2.0, trained: 131_072 });
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let magnitude = 0.1 * 4f64.ln() + 1.0;
    let expected = RotaryScaling::Yarn { factor: 4.0, fast: 32.0, slow: 1.0, magnitude, trained: 32768 };
    assert_eq!(with(&[("rope_scaling", yarn)]).unwrap().rotary.scaling, expected);
    assert_eq!(with(&[("rope_scaling", Value::Null)]).unwrap().rotary.scaling, RotaryScaling::None);
    let silent = with(&[("rope_scaling", Value::Null), ("rope_theta", Value::Null)]).unwrap().rotary;
    assert_eq!((silent.base, silent.scaling), (10_000.0, RotaryScaling::None));
}

#[test]
fn a_model_center_file_fills_in_its_class_defaults() {
    let text = r#"{"dim_model": 512, "num_heads": 8, "dim_head": 64, "num_layers": 4, "num_heads_kv": -1,
        "ffn_activate_fn": "gated_silu", "att_mask_value": "-inf", "half": true, "pos_bias_type": "rotary"}"#;
    let config = LlamaConfig::from_json(text, "x").unwrap();
    assert_eq!((config.text.vocab_size, config.text.dim_ff, config.num_heads_kv), (32_000, 11_008, 8));
}

#[test]
fn heads_may_be_of_any_size() {
    let config = with(&[("head_dim", json!(64))]).unwrap();
    assert_eq!(config.text.dim_head, 64);
    let header = configs::header("LlamaModel", DType::F32);
    assert_eq!(config.to_hf_json(&header).unwrap()["head_dim"], 64);
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    for (name, value, want) in [
        ("dim_model", json!(512), "hidden_size = 4096 and dim_model = 512"),
        ("num_key_value_heads", json!(5), "do not divide 32"),
        ("num_attention_heads", json!(7), "not divisible by num_attention_heads 7"),
        ("intermediate_size", Value::Null, "no safe default"),
        ("hidden_act", json!("mish"), "known are: gelu"),
        ("rope_theta", json!(-1.0), "field rope_theta"),
        ("rope_theta", json!("fast"), "field rope_theta"),
        ("rope_theta", json!(1.0), "1 is not a base of angles"),
        ("rope_scaling", json!(4.0), "not an object"),
        ("rope_scaling", json!({"rope_type": "proportional", "factor": 2.0}), "supported are: default, linear"),
        ("rope_scaling", json!({"rope_type": "linear"}), "lacks factor"),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 0.0}), "not a number above 0"),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 2.0, "faktor": 2.0}), "faktor"),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 500000.0}), "contradict each other"),
        ("rope_parameters", json!({"rope_theta": 1.0}), "500000"),
        ("rms_norm_eps", json!(0.0), "not an epsilon"),
        ("pos_bias_type", json!("relative"), "pos_bias_type = rotary only"),
        ("norm_bias", json!(true), "norm_bias = false only"),
        ("length_scale", json!(true), "length_scale = false only"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
        ("model_type", json!("mistral"), "not of llama"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
    let low = json!({"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0});
    assert!(with(&[("rope_scaling", low)]).expect_err("bands").contains("not above low_freq_factor"));
}
