//! BART's configuration: defaults of transformers, encoder and decoder of their own sizes, and every contradiction an
//! error that names its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{BartConfig, Config, HfHeader};
use model_center::model::architecture::{BlockPlace, ModelFamily};
use serde_json::{Map, Value, json};

/// A file of a BART as they are on the hub, with sizes that tell the stacks apart.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "activation_dropout": 0.3, "activation_function": "gelu", "add_bias_logits": false,
        "add_final_layer_norm": false,
        "architectures": ["BartForConditionalGeneration"], "attention_dropout": 0.2, "bos_token_id": 0,
        "classif_dropout": 0.1, "classifier_dropout": 0.0, "d_model": 768, "decoder_attention_heads": 8,
        "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0, "decoder_layers": 3, "decoder_start_token_id": 2,
        "dropout": 0.1,
        "encoder_attention_heads": 12, "encoder_ffn_dim": 3072, "encoder_layerdrop": 0.0, "encoder_layers": 6,
        "eos_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "init_std": 0.03, "is_encoder_decoder": true,
        "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}, "max_position_embeddings": 512, "model_type": "bart",
        "normalize_before": false, "normalize_embedding": true, "num_beams": 4, "pad_token_id": 1,
        "scale_embedding": true,
        "use_cache": true, "vocab_size": 50265
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(BartConfig);

fn header() -> HfHeader {
    configs::header("BartForConditionalGeneration", DType::F32)
}

#[test]
fn defaults_are_those_of_transformers() {
    let map = BartConfig::default().to_hf_json(&header()).unwrap();
    let expected = json!({
        "vocab_size": 50265, "max_position_embeddings": 1024, "encoder_layers": 12, "encoder_ffn_dim": 4096,
        "encoder_attention_heads": 16, "decoder_layers": 12, "decoder_ffn_dim": 4096, "decoder_attention_heads": 16,
        "activation_function": "gelu", "d_model": 1024, "dropout": 0.1, "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "init_std": 0.02, "scale_embedding": false, "pad_token_id": 1, "decoder_start_token_id": 2,
        "is_encoder_decoder": true, "tie_word_embeddings": true
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(map.get(name), Some(value), "{name}");
    }
    configs::check_written(&BartConfig::default(), &header());
}

#[test]
fn a_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let (stacks, text) = (&config.stacks, &config.stacks.text);
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff, text.num_layers), (768, 12, 64, 3072, 6));
    assert_eq!((stacks.num_decoder_heads, stacks.dim_decoder_head(), stacks.dim_decoder_ff), (8, 96, 2048));
    assert_eq!((stacks.num_decoder_layers, text.position_size, text.init_std), (3, 512, 0.03));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.1, 0.1, 0.2));
    assert_eq!((stacks.ffn_dropout_p, stacks.scale_embedding, text.norm_eps), (0.3, true, 1e-5));
    assert_eq!((text.ffn_activate_fn, text.tied, text.pad_token_id), (Activation::Gelu, true, Some(1)));
    assert_eq!(stacks.decoder_start_token_id, Some(2));
    let map = config.to_hf_json(&header()).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(map.get(&name), Some(&value), "{name}");
    }
    configs::check_written(&config, &header());
}

#[test]
fn a_classifier_that_does_not_count_its_classes_has_three() {
    let outputs = |changes: &[(&str, Value)]| {
        let silent = [
            ("architectures", json!(["BartForSequenceClassification"])),
            ("id2label", json!("absent")),
            ("label2id", json!("absent")),
        ];
        with(&[&silent, changes].concat()).unwrap().stacks.text.cls_head
    };
    assert_eq!(outputs(&[]), Some(3));
    assert_eq!(outputs(&[("num_labels", json!(2))]), Some(2));
    assert_eq!(outputs(&[("id2label", json!({"0": "no", "1": "yes"}))]), Some(2));
    assert_eq!(outputs(&[("architectures", json!(["BartModel"]))]), None);
}

#[test]
fn the_blocks_are_those_of_their_stack() {
    let config = read(&hugging_face()).unwrap();
    let [encoder, decoder] = [0, 1].map(|stack| config.block(BlockPlace { stack, layer: 0 }));
    assert_eq!((encoder.attention.num_heads, encoder.ffn.dim_ff, encoder.attention.causal), (12, 3072, false));
    assert_eq!((decoder.attention.num_heads, decoder.ffn.dim_ff, decoder.attention.causal), (8, 2048, true));
    assert!(encoder.cross.is_none());
    let cross = decoder.cross.unwrap();
    assert_eq!((cross.num_heads, cross.dim_head, cross.causal, cross.dropout), (8, 96, false, 0.2));
    for block in [encoder, decoder] {
        assert_eq!((block.dropout, block.attention.dropout, block.ffn.dropout), (0.1, 0.2, 0.3));
    }
}

#[test]
fn dropout_that_is_asked_for_takes_the_place_of_all_that_there_is() {
    let dropped = |own: f32, rate: f32| {
        let mut config = with(&[("activation_dropout", json!(own)), ("classifier_dropout", json!(own))]).unwrap();
        config.set_hidden_dropout(rate);
        let text = &config.stacks.text;
        let places = [config.stacks.ffn_dropout_p, config.stacks.classifier_dropout_p];
        ([text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p], places)
    };
    assert_eq!(dropped(0.25, 0.5), ([0.5, 0.5, 0.2], [0.5, 0.5]));
    assert_eq!(dropped(0.0, 0.5), ([0.5, 0.5, 0.2], [0.0, 0.0]));
    assert_eq!(dropped(0.25, 0.0), ([0.0, 0.0, 0.2], [0.0, 0.0]));
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    assert!(
        with(&[("hidden_size", json!(768)), ("num_hidden_layers", json!(6)), ("is_decoder", json!(false))]).is_ok()
    );
    assert!(with(&[("decoder_start_token_id", Value::Null)]).unwrap().stacks.decoder_start_token_id.is_none());
    for (name, value, want) in [
        ("hidden_size", json!(512), "d_model = 768 and hidden_size = 512"),
        ("num_hidden_layers", json!(12), "encoder_layers = 6 and num_hidden_layers = 12"),
        ("d_model", Value::Null, "no safe default"),
        ("decoder_layers", Value::Null, "add decoder_layers"),
        ("decoder_ffn_dim", Value::Null, "add decoder_ffn_dim"),
        ("decoder_layers", json!(0), "field decoder_layers"),
        ("decoder_layers", json!(70_000), "1 to 4096"),
        ("encoder_attention_heads", json!(7), "not divisible"),
        ("decoder_attention_heads", json!(7), "768 is not divisible by 7 heads"),
        ("decoder_attention_heads", json!("8"), "field decoder_attention_heads"),
        ("activation_dropout", json!(1.0), "not a dropout probability"),
        ("classifier_dropout", json!(-0.1), "not a dropout probability"),
        ("activation_function", json!("tango"), "known are: gelu"),
        ("activation_function", json!("gated_gelu"), "without a gate"),
        ("encoder_layerdrop", json!(0.1), "encoder_layerdrop = 0 only"),
        ("decoder_layerdrop", json!(0.1), "decoder_layerdrop = 0 only"),
        ("decoder_start_token_id", json!(50265), "not a token of a vocabulary of 50265"),
        ("pad_token_id", json!(50265), "not a token of a vocabulary of 50265"),
        ("tie_word_embeddings", json!(false), "tie_word_embeddings = true only"),
        ("is_encoder_decoder", json!(false), "is_encoder_decoder = true only"),
        ("is_decoder", json!(true), "is_decoder = false only"),
        ("normalize_before", json!(true), "normalize_before = false only"),
        ("normalize_embedding", json!(false), "normalize_embedding = true only"),
        ("add_final_layer_norm", json!(true), "add_final_layer_norm = false only"),
        ("static_position_embeddings", json!(true), "static_position_embeddings = false only"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
        ("model_type", json!("mbart"), "not of bart"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
    let mut config = BartConfig::default();
    config.stacks.text.norm_eps = 1e-6;
    assert!(config.to_hf_json(&header()).unwrap_err().to_string().contains("norm_eps"));
    assert!(BartConfig::from_json("{}", "x").unwrap_err().to_string().contains("no size of the model"));
}
