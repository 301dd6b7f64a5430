//! BLOOM's configuration: both dialects, what silence means, and every contradiction an error that names its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{BloomConfig, Config, HfHeader, TextConfig};
use serde_json::{Map, Value, json};

/// The file of the model with 560 million parameters, as it is on the hub.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "apply_residual_connection_post_layernorm": false, "attention_dropout": 0.1, "attention_softmax_in_fp32": true,
        "architectures": ["BloomForCausalLM"], "bias_dropout_fusion": true, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 3, "unk_token_id": 0, "hidden_dropout": 0.2, "initializer_range": 0.03,
        "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": true, "model_type": "bloom", "n_embed": 1024,
        "n_inner": null, "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100, "pretraining_tp": 1,
        "seq_length": 4096, "skip_bias_add": true, "skip_bias_add_qkv": false, "slow_but_exact": true,
        "use_cache": true, "vocab_size": 250_880
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(BloomConfig);

fn header() -> HfHeader {
    configs::header("BloomForCausalLM", DType::BF16)
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (1024, 16, 64, 4096));
    assert_eq!((text.num_layers, text.position_size, text.vocab_size), (24, 4096, 250_880));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.2, 0.0, 0.1));
    assert_eq!((text.init_std, text.norm_eps, text.ffn_activate_fn), (0.03, 1e-5, Activation::GeluTanh));
    assert_eq!((text.tied, text.pad_token_id, text.cls_head), (true, Some(3), None));
    let written = config.to_hf_json(&header()).unwrap();
    // Of two names of one thing that is written which transformers writes.
    let names = |name: &str| match name {
        "n_embed" => "hidden_size".to_owned(),
        "num_attention_heads" => "n_head".to_owned(),
        other => other.to_owned(),
    };
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&names(&name)), Some(&value), "{name}");
    }
    assert_eq!(read(&written).unwrap(), config);
    assert_eq!(BloomConfig::from_json(&config.to_json_string(), "x").unwrap(), config);
}

#[test]
fn what_a_file_leaves_out_is_as_transformers_has_it() {
    let sizes = r#"{"hidden_size": 12, "n_layer": 2, "n_head": 3, "vocab_size": 9}"#;
    let config = BloomConfig::from_json(sizes, "x").unwrap();
    let text = &config.text;
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.0, 0.0, 0.0));
    assert_eq!((text.ffn_activate_fn, text.dim_ff, text.norm_eps), (Activation::GeluTanh, 48, 1e-5));
    assert_eq!((text.init_std, text.tied, text.pad_token_id, text.position_size), (0.02, true, None, 2048));
    let common = r#"{"n_embed": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "vocab_size": 9}"#;
    assert_eq!(BloomConfig::from_json(common, "x").unwrap(), config);
    assert!(!with(&[("tie_word_embeddings", json!(false))]).unwrap().text.tied);
}

#[test]
fn names_of_model_center_are_read_and_written() {
    assert_eq!(BloomConfig::from_json(&BloomConfig::default().to_json_string(), "x").unwrap(), BloomConfig::default());
    let text = r#"{"dim_model": 512, "num_heads": 8, "dim_ff": 2048, "num_layers": 3, "position_size": 100}"#;
    let config = BloomConfig::from_json(text, "x").unwrap();
    assert_eq!((config.text.position_size, config.text.num_layers, config.text.vocab_size), (100, 3, 250_880));
    let written = config.to_hf_json(&header()).unwrap();
    assert_eq!(written["seq_length"], 100);
    assert_eq!(read(&written).unwrap(), config);
}

#[test]
fn sums_in_parts_are_refused_only_where_there_are_parts() {
    // One part is the whole; several are an option of transformers that is off.
    assert!(with(&[("slow_but_exact", json!(true)), ("pretraining_tp", json!(1))]).is_ok());
    assert!(with(&[("slow_but_exact", json!(false)), ("pretraining_tp", json!(4))]).is_ok());
    let error = with(&[("slow_but_exact", json!(true)), ("pretraining_tp", json!(4))]).unwrap_err();
    assert!(error.contains("slow_but_exact = false only"), "{error}");
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    assert!(with(&[("n_inner", json!(4096)), ("dim_ff", json!(4096)), ("dim_head", json!(64))]).is_ok());
    for (name, value, want) in [
        ("hidden_size", json!(512), "hidden_size = 512 and n_embed = 1024"),
        ("n_head", json!(7), "n_head = 7 and num_attention_heads = 16"),
        ("num_attention_heads", json!(7), "not divisible by n_head 7"),
        ("vocab_size", Value::Null, "no safe default"),
        ("n_inner", json!(4097), "n_inner = 4096 only"),
        ("dim_ff", json!(100), "dim_ff = 4096 only"),
        ("position_size", json!(9), "seq_length = 4096 and position_size = 9"),
        ("ffn_activate_fn", json!("gelu"), "ffn_activate_fn = gelu_new only"),
        ("hidden_dropout", json!(1.0), "not a dropout probability"),
        ("embedding_dropout_p", json!(0.1), "embedding_dropout_p = 0 only"),
        ("layer_norm_epsilon", json!(0.0), "not an epsilon"),
        ("apply_residual_connection_post_layernorm", json!(true), "post_layernorm = false only"),
        ("slow_but_exact", json!("no"), "field slow_but_exact"),
        ("pretraining_tp", json!(0), "field pretraining_tp"),
        ("pad_token_id", json!(250_880), "not a token of a vocabulary of 250880"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
        ("model_type", json!("gpt2"), "not of bloom"),
        ("post_layer_norm", json!(true), "post_layer_norm = false only"),
        ("att_bias", json!(false), "att_bias = true only"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
        // Another value would make another function of the same weights.
        let is_proposed = error.contains(&format!("set {name} to"));
        assert!(!want.ends_with(" only") || !is_proposed && error.contains("not available here"), "{error}");
    }
    let text = TextConfig { dim_head: 65, ..BloomConfig::default().text };
    assert!(BloomConfig { text }.to_hf_json(&header()).unwrap_err().to_string().contains("dim_head"));
}
