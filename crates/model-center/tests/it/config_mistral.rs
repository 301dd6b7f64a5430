//! Mistral's configuration: defaults, both dialects, windows, and every contradiction an error that names its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, HfHeader, MistralConfig, RotaryFields, TextConfig};
use model_center::layer::position::RotaryScaling;
use serde_json::{Map, Value, json};

/// A file as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.03, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 20000.0, "sliding_window": 2048, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.34.0", "use_cache": true, "vocab_size": 32001
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(MistralConfig);

fn header() -> HfHeader {
    configs::header("MistralForCausalLM", DType::BF16)
}

fn check_written(config: &MistralConfig) {
    configs::check_written(config, &header());
}

#[test]
fn defaults_are_those_of_transformers_under_the_names_of_model_center() {
    let dict = MistralConfig::default().to_dict();
    let expected = json!({
        "vocab_size": 32000, "dim_model": 4096, "num_heads": 32, "num_heads_kv": 8, "dim_head": 128, "dim_ff": 14336,
        "num_layers": 32, "position_size": 131072, "norm_eps": 1e-6, "ffn_activate_fn": "gated_silu", "tied": false,
        "sliding_window": 4096, "rope_theta": 10000.0, "pad_token_id": null, "cls_head": null
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    check_written(&MistralConfig::default());
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (4096, 32, 128, 14336));
    assert_eq!((text.num_layers, text.position_size, text.vocab_size), (32, 32768, 32001));
    assert_eq!((text.norm_eps, text.init_std, text.tied), (1e-5, 0.03, false));
    assert_eq!((text.ffn_activate_fn, text.ffn_gated), (Activation::Silu, true));
    assert_eq!((config.num_heads_kv, config.sliding_window), (8, Some(2048)));
    assert_eq!(config.rotary, RotaryFields { base: 20_000.0, ..RotaryFields::PLAIN });
    let written = config.to_hf_json(&header()).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    check_written(&config);
}

#[test]
fn a_silent_file_has_a_window_and_one_with_null_has_none() {
    assert_eq!(with(&[("sliding_window", json!("absent"))]).unwrap().sliding_window, Some(4096));
    let none = with(&[("sliding_window", Value::Null)]).unwrap();
    assert_eq!(none.sliding_window, None);
    assert_eq!(none.to_hf_json(&header()).unwrap().get("sliding_window"), Some(&Value::Null));
    check_written(&none);
}

#[test]
fn what_a_file_leaves_out_is_as_transformers_has_it() {
    let silent = ["rms_norm_eps", "rope_theta", "initializer_range", "tie_word_embeddings", "hidden_act"];
    let config = with(&silent.map(|name| (name, json!("absent")))).unwrap();
    let text = &config.text;
    assert_eq!((text.norm_eps, text.init_std, text.tied, config.rotary.base), (1e-6, 0.02, false, 10_000.0));
    assert_eq!((text.ffn_activate_fn, text.attention_dropout_p), (Activation::Silu, 0.0));
    // Heads: D / N where the file does not state it; the same number of key heads where it is null.
    assert_eq!(with(&[("hidden_size", json!(2048))]).unwrap().text.dim_head, 64);
    assert_eq!(with(&[("num_key_value_heads", Value::Null)]).unwrap().num_heads_kv, 32);
    assert_eq!(with(&[("head_dim", json!(96))]).unwrap().text.dim_head, 96);
}

#[test]
fn names_of_model_center_mean_what_they_do_for_a_llama() {
    let text = r#"{"dim_model": 64, "num_heads": 8, "dim_head": 8, "dim_ff": 96, "num_layers": 2, "num_heads_kv": -1,
        "sliding_window": null, "dropout_p": 0.2, "half": true, "pos_bias_type": "rotary"}"#;
    let config = MistralConfig::from_json(text, "x").unwrap();
    assert_eq!((config.num_heads_kv, config.sliding_window, config.text.vocab_size), (8, None, 32000));
    assert_eq!((config.text.dropout_p, config.text.attention_dropout_p), (0.2, 0.2));
    let silent = MistralConfig::from_json(r#"{"dim_model": 64}"#, "x").unwrap();
    assert_eq!((silent.num_heads_kv, silent.sliding_window), (8, Some(4096)));
}

#[test]
fn stretched_positions_are_read_in_both_forms_and_written_back() {
    let scaling = |value: Value| with(&[("rope_scaling", value)]).map(|config| config.rotary.scaling);
    let linear = json!({"type": "linear", "factor": 2.5});
    assert_eq!(scaling(linear.clone()), Ok(RotaryScaling::Linear { factor: 2.5 }));
    assert_eq!(
        scaling(json!({"rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": 32768})),
        Ok(RotaryScaling::Dynamic { factor: 2.0, trained: 32768 })
    );
    let magnitude = 0.1 * 4f64.ln() + 1.0;
    let yarn = RotaryScaling::Yarn { factor: 4.0, fast: 32.0, slow: 1.0, magnitude, trained: 4096 };
    assert_eq!(scaling(json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096})), Ok(yarn));
    let stated =
        json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5});
    let all = RotaryScaling::Yarn { factor: 4.0, fast: 16.0, slow: 2.0, magnitude: 1.5, trained: 32768 };
    assert_eq!(scaling(stated.clone()), Ok(all));
    for parameters in
        [linear, stated, json!({"type": "dynamic", "factor": 2.0}), json!({"type": "yarn", "factor": 4.0})]
    {
        check_written(&with(&[("rope_scaling", parameters)]).unwrap());
    }
    // Transformers 5 has the base among the parameters.
    let new = json!({"rope_type": "linear", "factor": 2.5, "rope_theta": 20000.0});
    let config = with(&[("rope_parameters", new.clone()), ("rope_theta", json!("absent"))]).unwrap();
    assert_eq!(
        config.rotary,
        RotaryFields { base: 20_000.0, scaling: RotaryScaling::Linear { factor: 2.5 }, ..RotaryFields::PLAIN }
    );
    assert_eq!(config.to_hf_json(&header()).unwrap()["rope_parameters"], new);
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    for (name, value, want) in [
        ("num_key_value_heads", json!(5), "5 key heads do not divide 32"),
        ("num_key_value_heads", json!("absent"), "no safe default"),
        ("num_heads_kv", json!(4), "num_key_value_heads = 8 and num_heads_kv = 4"),
        ("sliding_window", json!(0), "field sliding_window"),
        ("sliding_window", json!("wide"), "field sliding_window"),
        ("layer_types", json!(["sliding_attention"]), "one window for all"),
        ("attention_bias", json!(true), "attention_bias = false only"),
        ("mlp_bias", json!(true), "mlp_bias = false only"),
        ("att_bias", json!(true), "att_bias = false only"),
        ("post_layer_norm", json!(true), "post_layer_norm = false only"),
        ("pos_bias_type", json!("none"), "pos_bias_type = rotary only"),
        ("partial_rotary_factor", json!(0.5), "rotary embeddings of parts of heads"),
        ("head_dim", json!(97), "cannot be rotated by pairs"),
        ("num_attention_heads", json!(24), "not divisible by num_attention_heads 24"),
        ("hidden_size", json!("absent"), "no safe default"),
        ("dim_model", json!(512), "hidden_size = 4096 and dim_model = 512"),
        ("hidden_act", json!("silo"), "known are"),
        ("rope_theta", json!(-1), "not a number above 0"),
        ("rope_scaling", json!("yarn"), "not an object"),
        ("rope_scaling", json!({"type": "yarn"}), "lacks factor"),
        ("rope_scaling", json!({"type": 3}), "type is not a string"),
        (
            "rope_scaling",
            json!({"type": "linear", "rope_type": "yarn", "factor": 2.0}),
            "rope_type and type contradict",
        ),
        ("rope_scaling", json!({"type": "yarn", "factor": 2.0, "mscale": 0.7}), "mscale is not known for yarn"),
        ("rope_scaling", json!({"type": "proportional", "factor": 2.0}), "\"proportional\" are not supported"),
        ("rope_scaling", json!({"type": "longrope", "factor": 2.0}), "short_factor is not a list of 64 numbers"),
        ("rope_scaling", json!({"type": "linear", "factor": 0}), "not a number above 0"),
        (
            "rope_scaling",
            json!({"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}),
            "one number for dynamic",
        ),
        ("rope_parameters", json!({"rope_theta": 500.0}), "the file states 20000, and 500"),
        ("rope_parameters", json!({"full_attention": {"rope_theta": 500.0}}), "by kinds of layers"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
        ("model_type", json!("llama"), "not of mistral"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
    let yarn = json!({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096});
    let outside = ("original_max_position_embeddings", json!(8192));
    let error = with(&[("rope_scaling", yarn.clone()), outside]).unwrap_err();
    assert!(error.contains("field original_max_position_embeddings"), "{error}");
    assert!(with(&[("rope_scaling", yarn), ("original_max_position_embeddings", json!(4096))]).is_ok());
    // As transformers has it: a length outside the parameters is theirs where they have none.
    let outside = ("original_max_position_embeddings", json!(8192));
    let config = with(&[("rope_scaling", json!({"type": "yarn", "factor": 2.0})), outside]).unwrap();
    assert_eq!(config.rotary.scaling.trained(), Some(8192));
    assert!(with(&[("attention_bias", json!(false)), ("mlp_bias", json!(false))]).is_ok());
    assert!(MistralConfig::from_json("{}", "x").unwrap_err().to_string().contains("no size of the model"));
    let text = TextConfig { num_heads: 0, ..MistralConfig::default().text };
    assert!(text.validate("x").unwrap_err().to_string().contains("num_heads"));
}
