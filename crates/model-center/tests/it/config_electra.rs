//! ELECTRA's configuration: the dimension of its embeddings, what a silent file means, its heads, and what is refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, ElectraConfig, TextHead};
use model_center::model::architecture::{ModelFamily, Projection};
use serde_json::{Map, Value, json};

/// The file of the small discriminator, with a rate of its own for each dropout.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["ElectraForPreTraining"], "attention_probs_dropout_prob": 0.2, "classifier_dropout": 0.3,
        "embedding_size": 128, "hidden_act": "relu", "hidden_dropout_prob": 0.1, "hidden_size": 256,
        "initializer_range": 0.02, "intermediate_size": 1024, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "model_type": "electra", "num_attention_heads": 4, "num_hidden_layers": 12, "pad_token_id": 0,
        "position_embedding_type": "absolute", "summary_activation": "gelu", "summary_last_dropout": 0.1,
        "summary_type": "first", "summary_use_proj": true, "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(ElectraConfig);

#[test]
fn a_file_is_read_and_written_back_with_unknown_keys() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((config.embedding_size, text.dim_model, text.num_heads, text.dim_head), (128, 256, 4, 64));
    assert_eq!((text.dim_ff, text.num_layers, text.position_size, config.type_size), (1024, 12, 512, 2));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.1, 0.1, 0.2));
    assert_eq!((config.classifier_dropout_p, text.norm_eps, text.pad_token_id), (0.3, 1e-12, Some(0)));
    let header = configs::header("ElectraForPreTraining", DType::F32);
    let written = config.to_hf_json(&header).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    configs::check_written(&config, &header);
    let defaults = ElectraConfig::default();
    assert_eq!(ElectraConfig::from_json(&defaults.to_json_string(), "x").unwrap(), defaults);
}

#[test]
fn a_silent_file_means_what_transformers_takes() {
    let silent = ["embedding_size", "classifier_dropout", "hidden_act", "hidden_dropout_prob", "layer_norm_eps"];
    let absent: Vec<(&str, Value)> = silent.into_iter().map(|name| (name, json!("absent"))).collect();
    let config = with(&absent).unwrap();
    assert_eq!((config.embedding_size, config.classifier_dropout_p, config.text.dropout_p), (128, 0.1, 0.1));
    assert_eq!((config.text.ffn_activate_fn, config.text.norm_eps), (Activation::Gelu, 1e-12));
    let written = config.to_hf_json(&configs::header("ElectraModel", DType::F32)).unwrap();
    assert_eq!(written["classifier_dropout"], Value::Null);
}

#[test]
fn only_embeddings_of_another_dimension_are_projected() {
    let config = read(&hugging_face()).unwrap();
    let spec = config.spec();
    assert_eq!((spec.embedding_size, spec.projection, spec.head.size), (128, Projection::Sum, 256));
    assert_eq!(spec.stacks[0].embedding_norm.unwrap().size, 128);
    // Whatever the blocks have.
    let (norm, activation) = spec.head.transform.unwrap();
    assert_eq!((norm.size, activation, spec.head.dense_activation), (128, Activation::Gelu, Activation::Gelu));
    let even = with(&[("embedding_size", json!(256))]).unwrap().spec();
    assert_eq!((even.embedding_size, even.projection), (256, Projection::Tokens));
}

#[test]
fn a_discriminator_is_the_encoder_alone_and_is_written_as_one() {
    use model_center::model::Head;
    let classes = read(&hugging_face()).unwrap().classes();
    assert_eq!(classes.head_of("ElectraForPreTraining"), Some(TextHead::None));
    assert_eq!(classes.head_of("ElectraForMaskedLM"), Some(TextHead::MaskedLm));
    assert_eq!(classes.of(Head::None), "ElectraModel");
    assert_eq!(classes.head_of("ElectraForCausalLM"), None);
}

#[test]
fn what_it_is_not_is_refused() {
    for (name, value, want) in [
        ("model_type", json!("bert"), "\"bert\", not of electra"),
        ("is_decoder", json!(true), "ELECTRA as a decoder"),
        ("position_embedding_type", json!("relative_key"), "not supported"),
        ("embedding_size", json!(0), "embedding_size"),
        ("type_vocab_size", json!("absent"), "no safe default"),
        ("post_layer_norm", json!(false), "post_layer_norm = true only"),
    ] {
        let error = with(&[(name, value)]).unwrap_err();
        assert!(error.contains(want) && error.contains("fix: "), "{name}: {error}");
    }
}
