//! CPM-2's configuration: ModelCenter's defaults and its published model, there and back, and every contradiction an
//! error that names its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use model_center::config::{Config, Cpm2Config};
use serde_json::{Map, Value, json};

/// What sets ModelCenter's `cpm2-large` apart from its class.
fn large() -> Map<String, Value> {
    let config = json!({
        "vocab_size": 26240, "dim_model": 4096, "num_heads": 64, "dim_head": 64, "dim_ff": 10240,
        "num_encoder_layers": 24,
        "num_decoder_layers": 24, "emb_init_std": 1.0, "att_init_std": 1.0, "ffn_init_std": 1.0, "proj_init_std": 1.0,
        "length_scale": true, "attn_scale": true, "ffn_activate_fn": "gated_gelu", "pos_bias_type": "relative",
        "position_bias_num_buckets": 32, "position_bias_max_distance": 128, "tied": false, "half": true,
        "cls_head": null
    });
    config.as_object().unwrap().clone()
}

fn with(changes: &[(&str, Value)]) -> Result<Cpm2Config, String> {
    configs::read_with(large(), changes)
}

#[test]
fn defaults_are_those_of_model_center() {
    let dict = Cpm2Config::default().to_dict();
    let expected = json!({
        "vocab_size": 26240, "dim_model": 768, "num_heads": 12, "dim_head": 64, "dim_ff": 1920,
        "num_encoder_layers": 12,
        "num_decoder_layers": 12, "dropout_p": 0.0, "emb_init_std": 0.02, "pos_init_std": 1.0, "norm_eps": 1e-6,
        "ffn_activate_fn": "gated_gelu", "tied": false, "position_bias_num_buckets": 32, "length_scale": false,
        "position_bias_max_distance": 128, "attn_scale": false, "decoder_start_token_id": null
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    assert!(!dict.contains_key("num_layers") && !dict.contains_key("position_size"));
    assert_eq!(Cpm2Config::from_json(&Cpm2Config::default().to_json_string(), "x").unwrap(), Cpm2Config::default());
    assert_eq!(Cpm2Config::from_json(r#"{"dim_model": 768}"#, "x").unwrap(), Cpm2Config::default());
}

#[test]
fn the_published_model_is_read_and_written_back() {
    let config = with(&[]).unwrap();
    let text = &config.text;
    assert_eq!(
        (text.vocab_size, text.dim_model, text.num_heads, text.dim_head, text.dim_ff),
        (26240, 4096, 64, 64, 10240)
    );
    assert_eq!((text.num_layers, config.num_decoder_layers, text.tied, text.init_std), (24, 24, false, 1.0));
    assert_eq!((config.length_scale, config.attn_scale, config.decoder_start_token_id), (true, true, None));
    let header = configs::header("CPM2ForConditionalGeneration", DType::F32);
    configs::check_written(&config, &header);
    assert_eq!(config.to_hf_json(&header).unwrap()["model_type"], json!("cpm2"));
    let uneven = with(&[("num_decoder_layers", json!(3)), ("decoder_start_token_id", json!(5))]).unwrap();
    assert_eq!((uneven.text.num_layers, uneven.num_decoder_layers, uneven.decoder_start_token_id), (24, 3, Some(5)));
    configs::check_written(&uneven, &header);
}

#[test]
fn what_would_be_another_model_is_refused_by_name() {
    for (name, value, texts) in [
        ("model_type", json!("t5"), ["model_type", "not of cpm2"]),
        ("tied", json!(true), ["tied", "CPM-2 is supported with tied = false only"]),
        ("cls_head", json!(2), ["cls_head", "null only"]),
        ("ffn_bias", json!(true), ["ffn_bias", "false only"]),
        ("num_layers", json!(3), ["num_encoder_layers", "num_layers = 3"]),
        ("num_decoder_layers", json!(100_000), ["num_decoder_layers", "out of range"]),
        ("decoder_start_token_id", json!(26240), ["decoder_start_token_id", "not a token of a vocabulary"]),
        ("position_bias_max_distance", json!(16), ["position_bias_max_distance", "half of"]),
    ] {
        let error = with(&[(name, value)]).unwrap_err();
        assert!(texts.iter().all(|text| error.contains(text)), "{name}: {error}");
    }
}
