//! OPT's configuration: both dialects, what silence means, and every contradiction an error that names its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, HfHeader, OptConfig, TextConfig};
use serde_json::{Map, Value, json};

/// The file of the model with 125 million parameters, as it is on the hub.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "activation_dropout": 0.0, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
        "attention_dropout": 0.05, "bos_token_id": 2, "do_layer_norm_before": true, "dropout": 0.2, "eos_token_id": 2,
        "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.03, "layerdrop": 0.0, "max_position_embeddings": 2048,
        "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 1, "prefix": "</s>",
        "torch_dtype": "float16", "use_cache": true, "vocab_size": 50272, "word_embed_proj_dim": 768
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(OptConfig);

fn header() -> HfHeader {
    configs::header("OPTForCausalLM", DType::F16)
}

#[test]
fn defaults_are_those_of_model_center() {
    let dict = OptConfig::default().to_dict();
    let expected = json!({
        "vocab_size": 50272, "dim_model": 768, "num_heads": 12, "dim_head": 64, "dim_ff": 3072, "num_layers": 12,
        "dropout_p": 0.1, "emb_init_std": 0.02, "position_size": 2048, "norm_eps": 1e-5, "att_init_std": 0.02,
        "att_bias": true, "ffn_init_std": 0.02, "ffn_bias": true, "ffn_activate_fn": "relu", "tied": true,
        "pad_token_id": 1, "cls_head": null
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    assert_eq!(OptConfig::from_json(&OptConfig::default().to_json_string(), "x").unwrap(), OptConfig::default());
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (768, 12, 64, 3072));
    assert_eq!((text.num_layers, text.position_size, text.vocab_size), (6, 2048, 50272));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.2, 0.0, 0.05));
    assert_eq!((text.init_std, text.norm_eps, text.ffn_activate_fn), (0.03, 1e-5, Activation::Relu));
    assert_eq!((text.tied, text.pad_token_id, text.cls_head), (true, Some(1), None));
    assert_eq!((config.norm_before, config.no_final_norm, config.bias, config.dim_word), (true, false, true, 768));
    let written = config.to_hf_json(&header()).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    assert_eq!(read(&written).unwrap(), config);
    assert_eq!(OptConfig::from_json(&config.to_json_string(), "x").unwrap(), config);
}

#[test]
fn what_a_file_leaves_out_is_as_transformers_has_it() {
    let sizes = r#"{"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "ffn_dim": 7,
        "max_position_embeddings": 8, "vocab_size": 9}"#;
    let config = OptConfig::from_json(sizes, "x").unwrap();
    let text = &config.text;
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.1, 0.0, 0.0));
    assert_eq!((text.ffn_activate_fn, text.pad_token_id, text.tied), (Activation::Relu, Some(1), true));
    assert_eq!((config.norm_before, config.no_final_norm, config.bias, config.dim_word), (true, false, true, 12));
    // Absent means token 1, null none; both are written as they were meant.
    let none = with(&[("pad_token_id", Value::Null)]).unwrap();
    assert_eq!(none.text.pad_token_id, None);
    assert_eq!(read(&none.to_hf_json(&header()).unwrap()).unwrap(), none);
    assert_eq!(OptConfig::from_json(&none.to_json_string(), "x").unwrap(), none);
}

#[test]
fn the_model_of_350_million_parameters_is_written_as_it_was_read() {
    let config = with(&[("do_layer_norm_before", json!(false)), ("word_embed_proj_dim", json!(512))]).unwrap();
    assert_eq!((config.norm_before, config.dim_word, config.has_final_norm()), (false, 512, false));
    let bare = with(&[("_remove_final_layer_norm", json!(true)), ("enable_bias", json!(false))]).unwrap();
    assert_eq!((bare.norm_before, bare.bias, bare.has_final_norm()), (true, false, false));
    assert!(with(&[]).unwrap().has_final_norm());
    for config in [config, bare] {
        assert_eq!(read(&config.to_hf_json(&header()).unwrap()).unwrap(), config);
        assert_eq!(OptConfig::from_json(&config.to_json_string(), "x").unwrap(), config);
    }
}

#[test]
fn a_model_center_file_fills_in_its_class_defaults() {
    let text = r#"{"dim_model": 1024, "num_heads": 16, "dim_ff": 4096, "num_layers": 24, "dropout_p": 0.2,
        "att_mask_value": -65504.0, "half": true, "int8": false, "post_layer_norm": false}"#;
    let config = OptConfig::from_json(text, "x").unwrap();
    assert_eq!((config.text.vocab_size, config.text.dim_head, config.dim_word), (50272, 64, 1024));
    assert_eq!(
        (config.text.dropout_p, config.text.embedding_dropout_p, config.text.attention_dropout_p),
        (0.2, 0.0, 0.2)
    );
    assert!(!OptConfig::from_json(r#"{"dim_model": 768, "att_bias": false, "ffn_bias": false}"#, "x").unwrap().bias);
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    for (name, value, want) in [
        ("dim_model", json!(512), "hidden_size = 768 and dim_model = 512"),
        ("num_attention_heads", json!(7), "not divisible by num_attention_heads 7"),
        ("max_position_embeddings", Value::Null, "no safe default"),
        ("ffn_dim", Value::Null, "no safe default"),
        ("word_embed_proj_dim", json!(0), "field word_embed_proj_dim"),
        ("do_layer_norm_before", json!("yes"), "field do_layer_norm_before"),
        ("_remove_final_layer_norm", json!(1), "field _remove_final_layer_norm"),
        ("enable_bias", json!(0), "field enable_bias"),
        ("ffn_bias", json!(false), "enable_bias = true and ffn_bias = false"),
        ("layer_norm_elementwise_affine", json!(false), "layer_norm_elementwise_affine = true only"),
        ("layerdrop", json!(0.1), "layerdrop = 0 only"),
        ("embedding_dropout_p", json!(0.1), "embedding_dropout_p = 0 only"),
        ("dropout_p", json!(0.0), "dropout"),
        ("attention_dropout", json!(1.0), "not a dropout probability"),
        ("activation_function", json!("gelu_newer"), "known are: gelu, gelu_new"),
        ("pad_token_id", json!(50272), "not a token of a vocabulary of 50272"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
        ("model_type", json!("gpt2"), "not of opt"),
        ("post_layer_norm", json!(true), "post_layer_norm = false only"),
        ("attn_scale", json!(false), "attn_scale = true only"),
        ("pos_bias_type", json!("rotary"), "pos_bias_type = none only"),
    ] {
        // Two of the names of one thing have to differ for a contradiction.
        let changes = match name {
            "ffn_bias" => vec![(name, value), ("enable_bias", json!(true))],
            _ => vec![(name, value)],
        };
        let error = with(&changes).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
    let text = TextConfig { norm_eps: 1e-6, ..OptConfig::default().text };
    let odd = OptConfig { text, ..OptConfig::default() };
    assert!(odd.to_hf_json(&header()).unwrap_err().to_string().contains("norm_eps"));
    let text = TextConfig { dim_head: 65, ..OptConfig::default().text };
    let odd = OptConfig { text, ..OptConfig::default() };
    assert!(odd.to_hf_json(&header()).unwrap_err().to_string().contains("dim_head"));
}
