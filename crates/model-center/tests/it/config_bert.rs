//! BERT's configuration: ModelCenter's defaults, both dialects, and every contradiction an error that names its field.

use crate::configs;

use std::fs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{BertConfig, Config, ProblemType, TextConfig};
use model_center::model::Registry;
use serde_json::{Map, Value, json};

fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.2, "gradient_checkpointing": false,
        "hidden_act": "gelu_new", "hidden_dropout_prob": 0.1, "hidden_size": 384, "initializer_range": 0.03,
        "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
        "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0, "position_embedding_type": "absolute",
        "transformers_version": "4.8.2", "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(BertConfig);

#[test]
fn defaults_are_those_of_model_center() {
    let dict = BertConfig::default().to_dict();
    let expected = json!({
        "vocab_size": 119547, "type_size": 2, "dim_model": 768, "num_heads": 12, "dim_head": 64, "dim_ff": 3072,
        "num_layers": 12, "dropout_p": 0.0, "emb_init_mean": 0.0, "emb_init_std": 0.02, "pos_bias_type": "none",
        "position_size": 512, "norm_init_var": 1.0, "norm_bias": true, "norm_eps": 1e-12, "att_init_mean": 0.0,
        "att_init_std": 0.02, "att_bias": true, "att_mask_value": -10000.0, "ffn_init_mean": 0.0, "ffn_init_std": 0.02,
        "ffn_bias": true, "ffn_activate_fn": "gelu", "proj_init_mean": 0.0, "proj_init_std": 0.02, "proj_bias": true,
        "length_scale": false, "attn_scale": true, "half": true, "int8": false, "tied": true, "cls_head": null,
        "post_layer_norm": true
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    assert_eq!(BertConfig::from_json(&BertConfig::default().to_json_string(), "x").unwrap(), BertConfig::default());
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_no_one_knows() {
    let config = read(&hugging_face()).unwrap();
    assert_eq!(
        (config.text.dim_model, config.text.num_heads, config.text.dim_head, config.text.dim_ff),
        (384, 12, 32, 1536)
    );
    assert_eq!(
        (config.text.num_layers, config.text.position_size, config.type_size, config.text.vocab_size),
        (6, 512, 2, 30522)
    );
    assert_eq!((config.text.dropout_p, config.text.attention_dropout_p, config.classifier_dropout_p), (0.1, 0.2, 0.1));
    assert_eq!(
        (config.text.init_std, config.text.ffn_activate_fn, config.text.pad_token_id),
        (0.03, Activation::GeluTanh, Some(0))
    );
    assert_eq!((config.half, config.text.tied, config.text.cls_head), (false, true, None));
    let header = configs::header("BertModel", DType::F32);
    let written = config.to_hf_json(&header).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    assert_eq!(read(&written).unwrap(), config);
    assert_eq!(BertConfig::from_json(&config.to_json_string(), "x").unwrap(), config);
}

#[test]
fn a_model_center_file_fills_in_its_class_defaults() {
    let config = BertConfig::from_json(
        r#"{"dim_model": 1024, "num_heads": 16, "num_layers": 24, "att_mask_value": "-inf"}"#,
        "x",
    )
    .unwrap();
    assert_eq!(
        (config.text.dim_model, config.text.dim_head, config.text.dim_ff, config.text.vocab_size),
        (1024, 64, 3072, 119547)
    );
    assert_eq!((config.att_mask_value, config.text.pad_token_id, config.half), (f32::NEG_INFINITY, None, true));
    let dropout = BertConfig::from_json(r#"{"dim_model": 64, "dropout_p": 0.3}"#, "x").unwrap();
    assert_eq!((dropout.text.attention_dropout_p, dropout.classifier_dropout_p), (0.3, 0.3));
    assert_eq!(BertConfig::from_json(&config.to_json_string(), "x").unwrap(), config);
}

#[test]
fn classes_come_from_the_architecture_and_the_labels() {
    let classifier = json!(["BertForSequenceClassification"]);
    let labels = json!({"1": "yes", "0": "no", "2": "maybe"});
    let config = with(&[
        ("architectures", classifier.clone()),
        ("id2label", labels.clone()),
        ("problem_type", json!("regression")),
    ])
    .unwrap();
    assert_eq!((config.text.cls_head, config.text.problem_type), (Some(3), Some(ProblemType::Regression)));
    assert_eq!(config.text.labels, ["no", "yes", "maybe"]);
    assert_eq!(with(&[("architectures", classifier.clone())]).unwrap().text.cls_head, Some(2));
    assert_eq!(with(&[("architectures", classifier), ("num_labels", json!(5))]).unwrap().text.cls_head, Some(5));
    assert_eq!(with(&[("id2label", labels)]).unwrap().text.cls_head, None);
    let header = configs::header("BertForSequenceClassification", DType::F32);
    let unnamed =
        BertConfig { text: TextConfig { cls_head: Some(2), ..BertConfig::default().text }, ..BertConfig::default() };
    assert_eq!(unnamed.to_hf_json(&header).unwrap()["id2label"]["1"], "LABEL_1");
}

#[test]
fn both_dialects_at_once_must_agree() {
    assert!(with(&[("dim_model", json!(384)), ("num_layers", json!(6)), ("dim_head", json!(32))]).is_ok());
    for (name, value, want) in [
        ("dim_model", json!(768), "hidden_size = 384 and dim_model = 768"),
        ("dim_head", json!(64), "dim_head"),
        ("dropout_p", json!(0.0), "hidden_dropout_prob"),
        ("emb_init_std", json!(0.02), "initializer_range = 0.03"),
        ("ffn_activate_fn", json!("gelu"), "ffn_activate_fn"),
    ] {
        let error = with(&[(name, value)]).unwrap_err();
        assert!(error.contains(want) && error.contains("config.json, field"), "{error}");
    }
}

#[test]
fn what_a_hugging_face_file_must_say_is_named_when_it_does_not() {
    for name in [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "type_vocab_size",
        "vocab_size",
    ] {
        let mut map = hugging_face();
        map.remove(name);
        let error = read(&map).unwrap_err();
        assert!(error.contains(&format!("field {name}")) && error.contains("no safe default"), "{error}");
        map.insert(name.into(), Value::Null);
        assert!(read(&map).is_err(), "{name}");
    }
    assert!(BertConfig::from_json("{}", "x").unwrap_err().to_string().contains("no size of the model"));
}

#[test]
fn labels_that_make_no_sense_are_refused_of_a_classifier_and_left_out_of_other_models() {
    let classifier = ("architectures", json!(["BertForSequenceClassification"]));
    let labels = ("id2label", json!({"0": "a", "1": "b"}));
    let cases: [(&[(&str, Value)], &str); 7] = [
        (&[("num_labels", json!(0))], "0 is not a size"),
        (&[("problem_type", json!("guessing"))], "guessing"),
        (&[("id2label", json!({"0": "a", "2": "b"}))], "not a number below 2"),
        (&[("id2label", json!({"0": "a", "1": "a"}))], "two classes are named"),
        (&[("id2label", json!(["a", "b"]))], "not an object"),
        (&[labels.clone(), ("label2id", json!({"a": 1, "b": 0}))], "not the inverse"),
        (&[labels, ("num_labels", json!(3))], "num_labels is 3"),
    ];
    let header = configs::header("BertModel", DType::F32);
    for (fields, want) in cases {
        let error = with(&[fields, std::slice::from_ref(&classifier)].concat()).unwrap_err();
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
        for class in ["BertModel", "BertForMaskedLM"] {
            let read = with(&[fields, &[("architectures", json!([class]))]].concat()).unwrap();
            assert_eq!(
                (read.text.cls_head, read.text.labels.len(), read.text.problem_type),
                (None, 0, None),
                "{fields:?}"
            );
            let written = read.to_hf_json(&header).unwrap();
            assert!(fields.iter().all(|(name, _)| !written.contains_key(*name)), "{fields:?}");
        }
    }
}

#[test]
fn values_that_make_no_model_are_refused() {
    for (name, value, want) in [
        ("hidden_size", json!(385), "not divisible"),
        ("hidden_size", json!(384.0), "whole number"),
        ("hidden_size", json!("384"), "whole number"),
        ("hidden_size", json!(0), "0 is not a size"),
        ("hidden_size", json!(-1), "whole number"),
        ("vocab_size", json!(1u64 << 40), "whole number from 0 to"),
        ("num_hidden_layers", json!(1_000_000), "out of range"),
        ("hidden_dropout_prob", json!(1.0), "not a dropout probability"),
        ("hidden_dropout_prob", json!(-0.1), "not a dropout probability"),
        ("hidden_dropout_prob", json!(true), "a number"),
        ("layer_norm_eps", json!(0.0), "not an epsilon"),
        ("layer_norm_eps", json!(1e300), "a number"),
        ("initializer_range", json!(-1.0), "standard deviation"),
        ("pad_token_id", json!(30522), "not a token of a vocabulary of 30522"),
        ("hidden_act", json!("gated_gelu"), "no gates"),
        ("hidden_act", json!("mish"), "known are: gelu, gelu_new, relu, silu, tanh, quick_gelu"),
        ("hidden_act", json!({"a": 1}), "text"),
        ("position_embedding_type", json!("relative_key"), "not supported"),
        ("is_decoder", json!(true), "decoder"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
        ("auto_map", json!({"AutoModel": "x.Y"}), "Python code"),
        ("model_type", json!("roberta"), "\"roberta\", not of bert"),
        ("pos_bias_type", json!("relative"), "pos_bias_type = none only"),
        ("length_scale", json!(true), "length_scale = false only"),
        ("post_layer_norm", json!(false), "post_layer_norm = true only"),
        ("half", json!("yes"), "true or false"),
    ] {
        let error = with(&[(name, value.clone())]).unwrap_err();
        assert!(error.contains(want), "{name} = {value}: {error}");
        assert!(error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
    assert!(with(&[("torch_dtype", json!("float32")), ("half", json!(true))]).unwrap_err().contains("contradict"));
    assert!(
        BertConfig::from_json("{\"dim_model\": 1, \"dim_model\": 2}", "c.json")
            .unwrap_err()
            .to_string()
            .contains("c.json:1:")
    );
}

#[test]
fn the_family_of_a_directory_is_known_or_the_error_lists_what_is() {
    let dir = tempfile::tempdir().unwrap();
    let family = || Registry::default().find(dir.path()).map(|entry| entry.model_type).map_err(|e| e.to_string());
    assert!(family().unwrap_err().contains("config.json"));
    let path = dir.path().join("config.json");
    fs::write(&path, r#"{"model_type": "bert"}"#).unwrap();
    assert_eq!(family().unwrap(), "bert");
    for (text, want) in [
        (r#"{"model_type": "mamba"}"#, "unknown model family \"mamba\""),
        ("{}", "does not state the family"),
        (r#"{"model_type": 1}"#, "text"),
        ("[1]", "not a JSON object"),
        ("{", "1:1"),
    ] {
        fs::write(&path, text).unwrap();
        let error = family().unwrap_err();
        assert!(error.contains(want), "{error}");
        assert!(!text.starts_with("{\"m") || text.contains(": 1") || error.contains("supported are: bert"), "{error}");
    }
}
