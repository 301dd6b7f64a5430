//! Marian's configuration where it is not BART's: its defaults, its fields, and one table of token embeddings.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, HfHeader, MarianConfig};
use serde_json::{Map, Value, json};

/// A file of an OPUS-MT model as they are on the hub.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "activation_dropout": 0.0, "activation_function": "swish", "add_bias_logits": false,
        "add_final_layer_norm": false,
        "architectures": ["MarianMTModel"], "attention_dropout": 0.0, "bad_words_ids": [[58100]], "bos_token_id": 0,
        "classif_dropout": 0.0, "classifier_dropout": 0.0, "d_model": 512, "decoder_attention_heads": 8,
        "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0, "decoder_layers": 6, "decoder_start_token_id": 58100,
        "decoder_vocab_size": 58101, "dropout": 0.1, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048,
        "encoder_layerdrop": 0.0, "encoder_layers": 6, "eos_token_id": 0, "forced_eos_token_id": 0, "init_std": 0.02,
        "is_encoder_decoder": true, "max_length": 512, "max_position_embeddings": 512, "model_type": "marian",
        "normalize_before": false, "normalize_embedding": false, "num_beams": 6, "num_hidden_layers": 6,
        "pad_token_id": 58100, "scale_embedding": true, "share_encoder_decoder_embeddings": true,
        "static_position_embeddings": true, "use_cache": true, "vocab_size": 58101
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(MarianConfig);

fn header() -> HfHeader {
    configs::header("MarianMTModel", DType::F32)
}

#[test]
fn defaults_are_those_of_transformers() {
    let map = MarianConfig::default().to_hf_json(&header()).unwrap();
    let expected = json!({
        "vocab_size": 58101, "max_position_embeddings": 1024, "encoder_layers": 12, "decoder_layers": 12,
        "d_model": 1024,
        "activation_function": "gelu", "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0,
        "scale_embedding": false, "pad_token_id": 58100, "decoder_start_token_id": 58100, "model_type": "marian"
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(map.get(name), Some(value), "{name}");
    }
    assert_eq!(
        MarianConfig::from_json(&MarianConfig::default().to_json_string(), "x").unwrap(),
        MarianConfig::default()
    );
}

#[test]
fn a_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = with(&[]).unwrap();
    let (stacks, text) = (&config.stacks, &config.stacks.text);
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.num_layers), (512, 8, 64, 6));
    assert_eq!((text.ffn_activate_fn, stacks.scale_embedding), (Activation::Silu, true));
    assert_eq!((text.pad_token_id, stacks.decoder_start_token_id), (Some(58100), Some(58100)));
    let map = config.to_hf_json(&header()).unwrap();
    // Two names of one function, and one of another's size.
    let renamed = ["activation_function", "num_hidden_layers"];
    for (name, value) in hugging_face().into_iter().filter(|(name, _)| !renamed.contains(&name.as_str())) {
        assert_eq!(map.get(&name), Some(&value), "{name}");
    }
    assert_eq!(map["activation_function"], "silu");
    assert_eq!(read(&map).unwrap(), config);
    configs::check_written(&config, &header());
}

#[test]
fn what_is_not_supported_names_the_field() {
    assert!(with(&[("decoder_vocab_size", Value::Null)]).is_ok());
    for (name, value, want) in [
        ("share_encoder_decoder_embeddings", json!(false), "share_encoder_decoder_embeddings = true only"),
        ("decoder_vocab_size", json!(100), "decoder_vocab_size = vocab_size only"),
        ("static_position_embeddings", json!(false), "static_position_embeddings = true only"),
        ("normalize_embedding", json!(true), "normalize_embedding = false only"),
        ("vocab_size", json!(58100), "decoder_vocab_size"),
        ("model_type", json!("bart"), "not of marian"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
}
