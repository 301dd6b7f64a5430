//! CPM-1's configuration: ModelCenter's defaults and its published model, there and back, and every contradiction an
//! error that names its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, Cpm1Config};
use serde_json::{Map, Value, json};

/// What sets ModelCenter's `cpm1-large` apart from its class.
fn large() -> Map<String, Value> {
    let config = json!({
        "vocab_size": 30968, "dim_model": 2560, "num_heads": 32, "dim_head": 80, "dim_ff": 6400, "num_layers": 32,
        "dropout_p": 0.0, "emb_init_mean": 0.0, "emb_init_std": 1.0, "pos_bias_type": "relative",
        "position_bias_num_buckets": 64, "position_bias_max_distance": 256, "pos_init_mean": 0.0, "pos_init_std": 1.0,
        "norm_init_var": 1.0, "norm_bias": false, "norm_eps": 1e-6, "att_init_mean": 0.0, "att_init_std": 1.0,
        "att_bias": false, "att_mask_value": "-inf", "ffn_init_mean": 0.0, "ffn_init_std": 1.0, "ffn_bias": false,
        "ffn_activate_fn": "gated_gelu", "proj_init_mean": 0.0, "proj_init_std": 1.0, "proj_bias": false,
        "length_scale": true, "attn_scale": true, "half": true, "int8": false, "tied": true, "cls_head": null,
        "post_layer_norm": false
    });
    config.as_object().unwrap().clone()
}

fn with(changes: &[(&str, Value)]) -> Result<Cpm1Config, String> {
    configs::read_with(large(), changes)
}

#[test]
fn defaults_are_those_of_model_center() {
    let dict = Cpm1Config::default().to_dict();
    let expected = json!({
        "vocab_size": 30968, "dim_model": 768, "num_heads": 12, "dim_head": 64, "dim_ff": 1920, "num_layers": 12,
        "dropout_p": 0.0, "emb_init_std": 0.02, "pos_init_std": 1.0, "norm_eps": 1e-6, "att_init_std": 0.02,
        "ffn_init_std": 0.02, "ffn_activate_fn": "gated_gelu", "proj_init_std": 0.02, "tied": false, "cls_head": null,
        "position_bias_num_buckets": 32, "position_bias_max_distance": 128, "length_scale": false, "attn_scale": false
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    assert!(!dict.contains_key("position_size"));
    assert_eq!(Cpm1Config::from_json(&Cpm1Config::default().to_json_string(), "x").unwrap(), Cpm1Config::default());
    assert_eq!(Cpm1Config::from_json(r#"{"dim_model": 768}"#, "x").unwrap(), Cpm1Config::default());
}

#[test]
fn the_published_model_is_read_and_written_back() {
    let config = with(&[]).unwrap();
    let (cpm, text) = (&config, &config.text);
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff, text.num_layers), (2560, 32, 80, 6400, 32));
    assert_eq!((text.ffn_activate_fn, text.ffn_gated, text.tied, text.init_std), (Activation::Gelu, true, true, 1.0));
    assert_eq!((cpm.length_scale, cpm.attn_scale), (true, true));
    assert_eq!((cpm.position_bias_num_buckets, cpm.position_bias_max_distance, cpm.pos_init_std), (64, 256, 1.0));
    let header = configs::header("CPM1ForCausalLM", DType::F16);
    configs::check_written(&config, &header);
    for map in [config.to_dict(), config.to_hf_json(&header).unwrap()] {
        for name in ["dim_model", "length_scale", "attn_scale", "tied", "position_bias_num_buckets", "ffn_activate_fn"]
        {
            assert_eq!(map[name], large()[name], "{name}");
        }
    }
    let map = config.to_hf_json(&header).unwrap();
    assert_eq!((&map["model_type"], &map["torch_dtype"]), (&json!("cpm1"), &json!("float16")));
    // A rate of all, where the file does not speak of attention's own; nothing of the embeddings is dropped.
    let text = with(&[("dropout_p", json!(0.1))]).unwrap().text;
    assert_eq!((text.dropout_p, text.attention_dropout_p, text.embedding_dropout_p), (0.1, 0.1, 0.0));
}

#[test]
fn what_would_be_another_model_is_refused_by_name() {
    for (name, value, texts) in [
        ("model_type", json!("cpm2"), ["model_type", "not of cpm1"]),
        ("att_bias", json!(true), ["att_bias", "CPM-1 is supported with att_bias = false only"]),
        ("norm_bias", json!(true), ["norm_bias", "false only"]),
        ("proj_bias", json!(true), ["proj_bias", "false only"]),
        ("post_layer_norm", json!(true), ["post_layer_norm", "false only"]),
        ("pos_bias_type", json!("rotary"), ["pos_bias_type", "relative only"]),
        ("embedding_dropout_p", json!(0.1), ["embedding_dropout_p", "= 0 only"]),
        ("att_init_std", json!(0.5), ["att_init_std", "two names of one thing"]),
        ("emb_init_mean", json!(0.5), ["emb_init_mean", "= 0 only"]),
        ("ffn_activate_fn", json!("gated_mish"), ["ffn_activate_fn", "unknown activation \"gated_mish\""]),
        ("position_bias_num_buckets", json!(3), ["position_bias_num_buckets", "too few for two directions"]),
        ("position_bias_max_distance", json!(32), ["position_bias_max_distance", "half of position_bias_num_buckets"]),
        ("pos_init_std", json!(-1.0), ["pos_init_std", "not a standard deviation"]),
        ("length_scale", json!(1), ["length_scale", "true or false"]),
        ("num_layers", json!(0), ["num_layers", "not a size"]),
        ("cls_head", json!(0), ["cls_head", "not a size"]),
    ] {
        let error = with(&[(name, value)]).unwrap_err();
        assert!(texts.iter().all(|text| error.contains(text)), "{name}: {error}");
    }
    let error = Cpm1Config::from_json(r#"{"hidden_size": 12}"#, "x").unwrap_err().to_string();
    assert!(error.contains("dim_model") && error.contains("CPM-1"), "{error}");
}
