//! RoBERTa's configuration: ModelCenter's defaults, both dialects, its three names, and every contradiction an error
//! that names its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, ProblemType, RobertaConfig, RobertaName, TextConfig};
use serde_json::{Map, Value, json};

/// The file of the smallest RoBERTa on the hub, with a rate of its own for each dropout.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.2, "bos_token_id": 0,
        "classifier_dropout": 0.3, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.03, "intermediate_size": 3072, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 514, "model_type": "roberta", "num_attention_heads": 12, "num_hidden_layers": 6,
        "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 50265
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(RobertaConfig);

#[test]
fn defaults_are_those_of_model_center() {
    let dict = RobertaConfig::default().to_dict();
    let expected = json!({
        "vocab_size": 50265, "type_size": 1, "dim_model": 1024, "num_heads": 16, "dim_head": 64, "dim_ff": 4096,
        "num_layers": 24, "dropout_p": 0.0, "emb_init_std": 0.02, "position_size": 514, "norm_eps": 1e-5,
        "att_init_std": 0.02, "ffn_init_std": 0.02, "ffn_activate_fn": "gelu", "proj_init_std": 0.02, "tied": true,
        "cls_head": null, "pad_token_id": 1
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    let default = RobertaConfig::default();
    assert_eq!(RobertaConfig::from_json(&default.to_json_string(), "x").unwrap(), default);
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (768, 12, 64, 3072));
    assert_eq!((text.num_layers, text.position_size, text.vocab_size, config.type_size), (6, 514, 50265, 1));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.1, 0.1, 0.2));
    assert_eq!((config.classifier_dropout_p, text.init_std, text.norm_eps), (0.3, 0.03, 1e-5));
    assert_eq!((text.pad_token_id, config.first_position(), text.tied), (Some(1), 2, true));
    let header = configs::header("RobertaForMaskedLM", DType::F16);
    let written = config.to_hf_json(&header).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    assert_eq!(written["torch_dtype"], "float16");
    assert_eq!(read(&written).unwrap(), config);
    assert_eq!(RobertaConfig::from_json(&config.to_json_string(), "x").unwrap(), config);
}

#[test]
fn what_a_file_leaves_out_is_as_transformers_has_it() {
    let sizes = r#"{"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
        "max_position_embeddings": 8, "type_vocab_size": 2, "vocab_size": 9}"#;
    let config = RobertaConfig::from_json(sizes, "x").unwrap();
    let text = &config.text;
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.1, 0.1, 0.1));
    assert_eq!((config.classifier_dropout_p, text.init_std, text.norm_eps), (0.1, 0.02, 1e-12));
    assert_eq!((text.ffn_activate_fn, text.pad_token_id, text.tied), (Activation::Gelu, Some(1), true));
    assert_eq!(config.name, RobertaName::Roberta);
    let header = configs::header("RobertaModel", DType::F32);
    assert_eq!(config.to_hf_json(&header).unwrap()["classifier_dropout"], Value::Null);
}

#[test]
fn a_model_center_file_fills_in_its_class_defaults() {
    let text = r#"{"dim_model": 768, "num_heads": 12, "dim_ff": 3072, "num_layers": 12, "dropout_p": 0.2,
        "att_mask_value": -10000.0, "half": true, "int8": false, "post_layer_norm": true, "attn_scale": true}"#;
    let config = RobertaConfig::from_json(text, "x").unwrap();
    let text = &config.text;
    assert_eq!((text.vocab_size, text.position_size, text.pad_token_id, config.type_size), (50265, 514, Some(1), 1));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.2, 0.2, 0.2));
    assert_eq!((config.classifier_dropout_p, text.norm_eps), (0.2, 1e-5));
    let own = r#"{"dim_model": 64, "num_heads": 1, "dropout_p": 0.2, "attention_dropout_p": 0.0}"#;
    assert_eq!(RobertaConfig::from_json(own, "x").unwrap().text.attention_dropout_p, 0.0);
}

#[test]
fn the_three_names_are_kept() {
    for (name, class) in [
        (RobertaName::Roberta, "RobertaForSequenceClassification"),
        (RobertaName::XlmRoberta, "XLMRobertaForSequenceClassification"),
        (RobertaName::Camembert, "CamembertForSequenceClassification"),
    ] {
        assert!(class.starts_with(name.class_prefix()));
        let labels = json!({"1": "yes", "0": "no", "2": "maybe"});
        let config = with(&[
            ("model_type", json!(name.model_type())),
            ("architectures", json!([class])),
            ("id2label", labels),
            ("problem_type", json!("regression")),
        ])
        .unwrap();
        assert_eq!((config.name, config.text.cls_head), (name, Some(3)));
        assert_eq!(config.text.problem_type, Some(ProblemType::Regression));
        assert_eq!(config.text.labels, ["no", "yes", "maybe"]);
        let header = configs::header(class, DType::F32);
        let written = config.to_hf_json(&header).unwrap();
        assert_eq!((&written["model_type"], read(&written).unwrap()), (&json!(name.model_type()), config.clone()));
        assert_eq!(RobertaConfig::from_json(&config.to_json_string(), "x").unwrap(), config);
    }
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    assert!(with(&[("dim_model", json!(768)), ("type_size", json!(1)), ("dim_head", json!(64))]).is_ok());
    for (name, value, want) in [
        ("dim_model", json!(512), "hidden_size = 768 and dim_model = 512"),
        ("num_layers", json!(12), "num_hidden_layers = 6 and num_layers = 12"),
        ("type_size", json!(2), "type_vocab_size = 1 and type_size = 2"),
        ("type_vocab_size", json!(0), "field type_vocab_size"),
        ("type_vocab_size", Value::Null, "no safe default"),
        ("intermediate_size", Value::Null, "no safe default"),
        ("dim_head", json!(32), "field dim_head"),
        ("num_attention_heads", json!(7), "not divisible by num_attention_heads 7"),
        ("dropout_p", json!(0.0), "hidden_dropout_prob"),
        ("embedding_dropout_p", json!(0.0), "field embedding_dropout_p"),
        ("attention_dropout_p", json!(0.0), "attention_probs_dropout_prob"),
        ("classifier_dropout_p", json!(0.0), "classifier_dropout"),
        ("classifier_dropout", json!(1.0), "not a dropout probability"),
        ("hidden_dropout_prob", json!(-0.5), "not a dropout probability"),
        ("layer_norm_eps", json!(0.0), "not an epsilon"),
        ("hidden_act", json!("gated_gelu"), "field ffn_activate_fn"),
        ("hidden_act", json!("mish"), "known are: gelu, gelu_new"),
        ("pad_token_id", Value::Null, "from after the padding token, and there is none"),
        ("pad_token_id", json!(50265), "not a token of a vocabulary of 50265"),
        ("pad_token_id", json!(513), "row 514 of a table of 514 positions"),
        ("position_embedding_type", json!("relative_key"), "not supported"),
        ("is_decoder", json!(true), "RoBERTa as a decoder"),
        ("add_cross_attention", json!(true), "RoBERTa as a decoder"),
        ("attn_scale", json!(false), "attn_scale = true only"),
        ("post_layer_norm", json!(false), "post_layer_norm = true only"),
        ("length_scale", json!(true), "length_scale = false only"),
        ("pos_bias_type", json!("relative"), "pos_bias_type = none only"),
        ("model_type", json!("bert"), "\"bert\", not of roberta"),
        ("model_type", json!("roberta-prelayernorm"), "not of roberta"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
    ] {
        let error = with(&[(name, value.clone())]).unwrap_err();
        assert!(error.contains(want) && error.contains("fix: "), "{name} = {value}: {error}");
    }
    let both = [("tie_word_embeddings", json!(true)), ("tied", json!(false))];
    assert!(with(&both).unwrap_err().contains("tie_word_embeddings = true and tied = false"));
    let error = RobertaConfig::from_json("{}", "x").unwrap_err().to_string();
    assert!(error.contains("no size of the model"), "{error}");
}

#[test]
fn a_configuration_without_a_hugging_face_form_says_so() {
    let text = TextConfig { dim_head: 65, ..RobertaConfig::default().text };
    let header = configs::header("RobertaModel", DType::F32);
    let error = RobertaConfig { text, ..RobertaConfig::default() }.to_hf_json(&header).unwrap_err().to_string();
    assert!(error.contains("RoBERTa configuration, field dim_head"), "{error}");
}
