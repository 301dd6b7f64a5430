//! T5's configuration: ModelCenter's defaults, both dialects, both kinds, and every contradiction an error that names
//! its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, HeadScale, T5Config, T5Kind, TextConfig};
use serde_json::{Map, Value, json};

/// A file of T5 1.1 as it is on the hub.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["T5ForConditionalGeneration"], "d_ff": 1024, "d_kv": 64, "d_model": 512,
        "decoder_start_token_id": 0, "dropout_rate": 0.2, "eos_token_id": 1, "feed_forward_proj": "gated-gelu",
        "initializer_factor": 1.0, "is_encoder_decoder": true, "layer_norm_epsilon": 1e-06, "model_type": "t5",
        "num_decoder_layers": 7, "num_heads": 6, "num_layers": 8, "output_past": true, "pad_token_id": 0,
        "relative_attention_num_buckets": 32, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 32128
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(T5Config);

fn written(config: &T5Config) -> Map<String, Value> {
    config.to_hf_json(&configs::header("T5Model", DType::F32)).unwrap()
}

fn function(config: &T5Config) -> (Activation, bool) {
    (config.text.ffn_activate_fn, config.text.ffn_gated)
}

#[test]
fn defaults_are_those_of_model_center() {
    let dict = T5Config::default().to_dict();
    let expected = json!({
        "vocab_size": 32128, "dim_model": 768, "num_heads": 12, "dim_head": 64, "dim_ff": 3072,
        "num_encoder_layers": 12,
        "num_decoder_layers": 12, "dropout_p": 0.0, "emb_init_std": 0.02, "pos_init_std": 1.0, "norm_eps": 1e-6,
        "att_init_std": 0.02, "ffn_init_std": 0.02, "ffn_activate_fn": "relu", "proj_init_std": 0.02, "tied": true,
        "position_bias_num_buckets": 32, "position_bias_max_distance": 128, "scale": null, "cls_head": null
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    assert!(!dict.contains_key("num_layers"));
    assert_eq!(T5Config::from_json(&T5Config::default().to_json_string(), "x").unwrap(), T5Config::default());
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (512, 6, 64, 1024));
    assert_eq!((text.num_layers, config.num_decoder_layers, text.vocab_size), (8, 7, 32128));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.2, 0.2, 0.2));
    assert_eq!((function(&config), text.tied, config.scale), ((Activation::GeluTanh, true), false, HeadScale::One));
    assert_eq!((config.position_bias_num_buckets, config.position_bias_max_distance), (32, 128));
    assert_eq!((text.pad_token_id, config.decoder_start_token_id), (Some(0), Some(0)));
    let header = configs::header("T5ForConditionalGeneration", DType::BF16);
    let map = config.to_hf_json(&header).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(map.get(&name), Some(&value), "{name}");
    }
    assert_eq!((&map["dense_act_fn"], &map["is_gated_act"]), (&json!("gelu_new"), &json!(true)));
    assert_eq!((&map["scale_decoder_outputs"], &map["torch_dtype"]), (&json!(false), &json!("bfloat16")));
    assert_eq!(read(&map).unwrap(), config);
    assert_eq!(T5Config::from_json(&config.to_json_string(), "x").unwrap(), config);
}

#[test]
fn what_a_file_leaves_out_is_as_transformers_has_it() {
    let sizes = |model_type: &str| {
        let text =
            r#"{"d_model": 12, "d_kv": 5, "d_ff": 9, "num_layers": 2, "num_heads": 3, "vocab_size": 9, "model_type": "#;
        T5Config::from_json(&format!("{text}\"{model_type}\"}}"), "x").unwrap()
    };
    let config = sizes("t5");
    assert_eq!((config.text.dropout_p, config.text.attention_dropout_p, config.text.norm_eps), (0.1, 0.1, 1e-6));
    assert_eq!((config.kind, function(&config), config.num_decoder_layers), (T5Kind::T5, (Activation::Relu, false), 2));
    assert_eq!((config.text.tied, config.scale, config.text.pad_token_id), (true, HeadScale::Root, Some(0)));
    assert_eq!(config.decoder_start_token_id, None);
    let many = sizes("mt5");
    assert_eq!((many.kind, function(&many), many.scale), (T5Kind::MT5, (Activation::GeluTanh, true), HeadScale::One));
    assert_eq!((many.text.tied, many.decoder_start_token_id), (true, Some(0)));
    let map = written(&many);
    assert_eq!((&map["model_type"], map.get("scale_decoder_outputs")), (&json!("mt5"), None));
    assert_eq!(read(&map).unwrap(), many);
    assert_eq!(T5Config::from_json(&many.to_json_string(), "x").unwrap(), many);
}

#[test]
fn a_model_center_file_fills_in_its_class_defaults() {
    let text = r#"{"dim_model": 1024, "num_heads": 16, "dim_ff": 2816, "num_encoder_layers": 24,
        "num_decoder_layers": 20,
        "ffn_activate_fn": "gated_gelu_new", "tied": false, "half": true, "dropout_p": 0.3, "att_mask_value": "-inf"}"#;
    let config = T5Config::from_json(text, "x").unwrap();
    assert_eq!((config.text.num_layers, config.num_decoder_layers, config.text.dim_head), (24, 20, 64));
    assert_eq!(
        (function(&config), config.text.tied, config.scale),
        ((Activation::GeluTanh, true), false, HeadScale::One)
    );
    assert_eq!(
        (config.text.dropout_p, config.text.embedding_dropout_p, config.text.attention_dropout_p),
        (0.3, 0.3, 0.3)
    );
    let scaled = T5Config::from_json(r#"{"dim_model": 512, "num_heads": 8, "scale": true}"#, "x").unwrap();
    assert_eq!(
        (scaled.scale, scaled.decoder_start_token_id, scaled.num_decoder_layers),
        (HeadScale::HundredRoot, Some(0), 12)
    );
}

#[test]
fn the_function_is_read_as_transformers_reads_it() {
    for (projection, dense, want) in [
        ("relu", None, (Activation::Relu, false)),
        ("gelu", None, (Activation::Gelu, false)),
        ("gelu_new", None, (Activation::GeluTanh, false)),
        ("gated-gelu", None, (Activation::GeluTanh, true)),
        ("gated-gelu", Some("gelu_new"), (Activation::GeluTanh, true)),
        ("gated-gelu", Some("gelu"), (Activation::Gelu, true)),
        ("gated-silu", Some("silu"), (Activation::Silu, true)),
    ] {
        let mut changes = vec![("feed_forward_proj", json!(projection))];
        changes.extend(dense.map(|name| ("dense_act_fn", json!(name))));
        let config = with(&changes).unwrap();
        assert_eq!(function(&config), want, "{projection} {dense:?}");
        assert_eq!(read(&written(&config)).unwrap(), config, "{projection} {dense:?}");
    }
}

#[test]
fn a_tied_head_is_scaled_unless_the_file_says_otherwise() {
    let scale = |changes: &[(&str, Value)]| with(changes).map(|config| (config.text.tied, config.scale)).unwrap();
    assert_eq!(scale(&[("tie_word_embeddings", json!(true))]), (true, HeadScale::Root));
    assert_eq!(scale(&[("tie_word_embeddings", Value::Null)]), (true, HeadScale::Root));
    assert_eq!(
        scale(&[("tie_word_embeddings", json!(true)), ("scale_decoder_outputs", json!(false))]),
        (true, HeadScale::One)
    );
    assert_eq!(scale(&[("scale_decoder_outputs", json!(true))]), (false, HeadScale::Root));
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    assert!(with(&[("dim_model", json!(512)), ("hidden_size", json!(512)), ("num_encoder_layers", json!(8))]).is_ok());
    assert!(with(&[("is_decoder", json!(false)), ("n_positions", json!(512))]).is_ok());
    for (name, value, want) in [
        ("hidden_size", json!(256), "d_model = 512 and hidden_size = 256"),
        ("num_encoder_layers", json!(6), "num_layers = 8 and num_encoder_layers = 6"),
        ("num_hidden_layers", json!(6), "num_layers = 8 and num_hidden_layers = 6"),
        ("dim_head", json!(32), "d_kv = 64 and dim_head = 32"),
        ("d_kv", Value::Null, "no safe default"),
        ("d_ff", Value::Null, "no safe default"),
        ("num_decoder_layers", json!(0), "field num_decoder_layers"),
        ("num_decoder_layers", json!(5000), "1 to 4096"),
        ("num_heads", json!("6"), "field num_heads"),
        ("relative_attention_num_buckets", json!(3), "at least 4"),
        ("relative_attention_max_distance", json!(16), "half of 32"),
        ("position_bias_num_buckets", json!(16), "position_bias_num_buckets = 16"),
        ("dropout_rate", json!(1.0), "not a dropout probability"),
        ("dropout_p", json!(0.0), "dropout_rate"),
        ("layer_norm_epsilon", json!(0.0), "not an epsilon"),
        ("pos_init_std", json!(-1.0), "not a standard deviation"),
        ("decoder_start_token_id", json!(32128), "not a token of a vocabulary of 32128"),
        ("pad_token_id", json!(32128), "not a token of a vocabulary of 32128"),
        ("feed_forward_proj", json!("gated-tango"), "known are: gelu, gelu_new"),
        ("feed_forward_proj", json!("gated_gelu"), "hyphen"),
        ("dense_act_fn", json!("relu"), "another function"),
        ("is_gated_act", json!(false), "contradicts feed_forward_proj"),
        ("ffn_activate_fn", json!("relu"), "contradicts feed_forward_proj"),
        ("scale", json!(true), "scale"),
        ("tied", json!(true), "tied"),
        ("is_encoder_decoder", json!(false), "is_encoder_decoder = true only"),
        ("is_decoder", json!(true), "is_decoder = false only"),
        ("tie_encoder_decoder", json!(true), "tie_encoder_decoder = false only"),
        ("length_scale", json!(true), "length_scale = false only"),
        ("attn_scale", json!(true), "attn_scale = false only"),
        ("pos_bias_type", json!("none"), "pos_bias_type = relative only"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
        ("model_type", json!("umt5"), "not of t5"),
    ] {
        // Two of the names of one thing have to differ for a contradiction.
        let changes = match name {
            "scale" => vec![(name, value), ("scale_decoder_outputs", json!(false))],
            _ => vec![(name, value)],
        };
        let error = with(&changes).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
    let scaled = with(&[("model_type", json!("mt5")), ("scale", json!(true))]).unwrap_err();
    assert!(scaled.contains("mT5 is supported with scale = false only"), "{scaled}");
    let header = configs::header("MT5Model", DType::F32);
    let odd = T5Config { kind: T5Kind::MT5, scale: HeadScale::Root, ..T5Config::default() };
    assert!(odd.to_hf_json(&header).unwrap_err().to_string().contains("scale"));
    assert!(T5Config::from_json("{}", "x").unwrap_err().to_string().contains("no size of the model"));
    let huge = TextConfig { num_layers: 70_000, ..T5Config::default().text };
    assert!(huge.validate("x").is_err());
}
