//! CPM-T5's configuration: CPM-Pretrain's names and defaults, there and back, what a silent file means, and every
//! contradiction an error that names its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, ConfigOverrides, ConfigSource, CpmT5Config, HfHeader};
use serde_json::{Map, Value, json};

/// CPM-Pretrain's example, of 12 blocks in each stack.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "model_type": "cpm_t5", "architectures": ["CpmT5ForConditionalGeneration"], "vocab_size": 26240,
        "hidden_size": 128, "num_layers": 12, "num_decoder_layers": 12, "num_attention_heads": 8,
        "kv_hidden_size": 16, "ff_hidden_size": 256, "max_position_embeddings": 1024, "hidden_dropout": 0.1,
        "embedding_dropout": 0.1, "attention_dropout": 0.1, "init_method_std": 0.02, "layernorm_epsilon": 1e-5,
        "hidden_act": "gelu", "hidden_bias": false, "cpm_pretrain_norms": false, "tie_word_embeddings": true,
        "is_encoder_decoder": true, "pad_token_id": 0, "decoder_start_token_id": null
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(CpmT5Config);

fn header() -> HfHeader {
    configs::header("CpmT5ForConditionalGeneration", DType::F32)
}

#[test]
fn defaults_are_those_of_cpm_pretrain() {
    let map = CpmT5Config::default().to_hf_json(&header()).unwrap();
    let expected = json!({
        "model_type": "cpm_t5", "vocab_size": 26240, "max_position_embeddings": 1024, "num_layers": 12,
        "num_decoder_layers": 12, "hidden_dropout": 0.1, "embedding_dropout": 0.1, "attention_dropout": 0.1,
        "init_method_std": 0.02, "layernorm_epsilon": 1e-5, "hidden_act": "gelu", "hidden_bias": false,
        "cpm_pretrain_norms": false, "tie_word_embeddings": true, "decoder_start_token_id": null
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(map.get(name), Some(value), "{name}");
    }
    assert_eq!(CpmT5Config::from_json(&CpmT5Config::default().to_json_string(), "x").unwrap(), CpmT5Config::default());
}

#[test]
fn a_file_is_read_and_written_back() {
    let config = with(&[]).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (128, 8, 16, 256));
    assert_eq!((text.num_layers, config.num_decoder_layers, text.position_size), (12, 12, 1024));
    assert_eq!((text.ffn_activate_fn, text.ffn_gated, config.hidden_bias), (Activation::Gelu, false, false));
    let map = config.to_hf_json(&header()).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(map.get(&name), Some(&value), "{name}");
    }
    assert_eq!(read(&map).unwrap(), config);
    configs::check_written(&config, &header());
    // Heads whose sizes do not add up to the hidden size, stacks of two depths, biases, CPM-Pretrain's norms.
    let other = with(&[
        ("kv_hidden_size", json!(5)),
        ("num_decoder_layers", json!(3)),
        ("hidden_bias", json!(true)),
        ("cpm_pretrain_norms", json!(true)),
        ("embedding_dropout", json!(0.0)),
        ("decoder_start_token_id", json!(7)),
    ]);
    let other = other.unwrap();
    assert_eq!((other.text.dim_head, other.text.num_layers, other.num_decoder_layers), (5, 12, 3));
    assert!(other.hidden_bias && other.cpm_pretrain_norms && other.text.embedding_dropout_p == 0.0);
    configs::check_written(&other, &header());
    assert_eq!((&other.to_dict()["att_bias"], &other.to_dict()["ffn_bias"]), (&json!(true), &json!(true)));
}

#[test]
fn what_a_file_does_not_state_follows_from_what_it_states() {
    let absent = json!("absent");
    let config = with(&[
        ("num_layers", json!(5)),
        ("num_decoder_layers", absent.clone()),
        ("embedding_dropout", absent.clone()),
        ("hidden_dropout", json!(0.25)),
        ("kv_hidden_size", absent.clone()),
        ("hidden_bias", absent),
    ]);
    let config = config.unwrap();
    assert_eq!((config.text.num_layers, config.num_decoder_layers), (5, 5));
    assert_eq!((config.text.dropout_p, config.text.embedding_dropout_p, config.text.dim_head), (0.25, 0.25, 16));
    assert!(!config.hidden_bias);
    let renamed = with(&[("num_layers", json!("absent")), ("num_encoder_layers", json!(4))]).unwrap();
    assert_eq!((renamed.text.num_layers, renamed.num_decoder_layers), (4, 12));
}

#[test]
fn a_model_without_weights_has_the_sizes_it_is_given() {
    let overrides = ConfigOverrides {
        layers: Some(3),
        hidden: Some(24),
        heads: Some(2),
        head_size: Some(5),
        positions: Some(40),
        vocabulary: Some(50),
        hidden_bias: Some(true),
        init_std: Some(0.01),
        ..ConfigOverrides::default()
    };
    let device = bmtrain_core::Device::cpu(1).unwrap();
    let opened = |source: ConfigSource| {
        let options = model_center::model::OpenOptions {
            from_config: true,
            config: Some(source.into()),
            ..model_center::model::OpenOptions::new(&device)
        };
        let nowhere = tempfile::tempdir().unwrap();
        model_center::model::Registry::default().open(nowhere.path(), &options).map_err(|error| error.to_string())
    };
    let model = opened(ConfigSource::of_family("cpm_t5", overrides.clone())).unwrap().model;
    let names: Vec<&str> = model.parameters().declared().iter().map(|param| param.name()).collect();
    assert!(names.contains(&"decoder.layers.2.ffn.w_out.bias") && !names.contains(&"decoder.layers.3.ffn.w_out.bias"));
    assert_eq!(names.iter().filter(|name| name.contains("position_embedding")).count(), 1);
    // Attention 4 x 24 x 10, feed-forward 2 x 24 x 96, their biases, norms; a decoder block attends twice; two norms
    // after the stacks, and the two tables.
    let (attention, ffn, norm) = (4 * 24 * 10 + 3 * 10 + 24, 2 * 24 * 96 + 96 + 24, 2 * 24);
    let encoder = attention + ffn + 2 * norm;
    let decoder = 2 * attention + ffn + 3 * norm;
    assert_eq!(model.parameters().count(), 3 * (encoder + decoder) + 2 * norm + (40 + 50) * 24);
    let other = ConfigOverrides { positions: None, init_std: None, ..overrides.clone() };
    let error = opened(ConfigSource::of_family("t5", other)).err().unwrap();
    assert!(error.contains("model.hidden_bias") && error.contains("is not open"), "{error}");
    // T5's files state the size of a head, whose key in a recipe is named instead of the field.
    let silent = ConfigOverrides { positions: None, init_std: None, hidden_bias: None, head_size: None, ..overrides };
    let error = opened(ConfigSource::of_family("t5", silent)).err().unwrap();
    assert!(error.contains("set model.head_size, commonly model.hidden / model.heads"), "{error}");
    assert!(!error.contains("d_kv"), "{error}");
}

#[test]
fn what_would_be_another_model_is_refused_by_name() {
    for (name, value, want) in [
        ("model_type", json!("t5"), "not of cpm_t5"),
        ("tie_word_embeddings", json!(false), "tie_word_embeddings = true only"),
        ("is_encoder_decoder", json!(false), "is_encoder_decoder = true only"),
        ("is_decoder", json!(true), "is_decoder = false only"),
        ("hidden_act", json!("gated_gelu"), "no gates"),
        ("num_encoder_layers", json!(3), "num_encoder_layers"),
        ("num_decoder_layers", json!(100_000), "out of range"),
        ("decoder_start_token_id", json!(26240), "not a token of a vocabulary"),
        ("hidden_size", json!("absent"), "hidden_size"),
        ("max_position_embeddings", json!("absent"), "max_position_embeddings"),
        ("hidden_bias", json!(1), "hidden_bias"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json") && error.contains("fix: "), "{name}: {error}");
    }
    let error = with(&[]).unwrap().to_model_center(&header()).unwrap_err().to_string();
    assert!(error.contains("a CPM-T5 like this is not written in ModelCenter's layout"), "{error}");
}
