//! DistilBERT's configuration: its own names of fields, the defaults of transformers, what is dropped where, and what
//! is refused.

use crate::configs;

use bmtrain_core::Device;
use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use bmtrain_dist::Module;
use bmtrain_dist::param::{BuilderOptions, widen};
use model_center::config::{Config, DistilBertConfig};
use model_center::model::Head;
use model_center::model::architecture::{BlockPlace, ModelFamily};
use model_center::model::distilbert::DistilBert;
use serde_json::{Map, Value, json};

/// The file of the published model, with a rate of its own for each dropout.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.25, "dim": 768,
        "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512,
        "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.3,
        "seq_classif_dropout": 0.4, "sinusoidal_pos_embds": false, "tie_weights_": true, "vocab_size": 30522
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(DistilBertConfig);

#[test]
fn a_file_is_read_and_written_back_with_unknown_keys() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (768, 12, 64, 3072));
    assert_eq!((text.num_layers, text.position_size, text.vocab_size), (6, 512, 30522));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.1, 0.1, 0.25));
    assert_eq!((config.span_dropout_p, config.classifier_dropout_p), (0.3, 0.4));
    let header = configs::header("DistilBertForMaskedLM", DType::F32);
    let written = config.to_hf_json(&header).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    assert!(!written.contains_key("layer_norm_eps") && !written.contains_key("type_vocab_size"));
    configs::check_written(&config, &header);
    let defaults = DistilBertConfig::default();
    assert_eq!(DistilBertConfig::from_json(&defaults.to_json_string(), "x").unwrap(), defaults);
}

#[test]
fn a_silent_file_means_what_transformers_takes_and_sizes_have_a_second_name() {
    let silent = ["activation", "pad_token_id", "initializer_range", "dropout", "attention_dropout", "qa_dropout"];
    let mut absent: Vec<(&str, Value)> = silent.into_iter().map(|name| (name, json!("absent"))).collect();
    absent.push(("seq_classif_dropout", json!("absent")));
    let config = with(&absent).unwrap();
    let text = &config.text;
    assert_eq!((text.norm_eps, text.ffn_activate_fn, text.pad_token_id), (1e-12, Activation::Gelu, Some(0)));
    assert_eq!((text.dropout_p, text.attention_dropout_p, text.init_std, text.tied), (0.1, 0.1, 0.02, true));
    assert_eq!((config.span_dropout_p, config.classifier_dropout_p, config.sinusoidal), (0.1, 0.2, false));
    // transformers maps these names to its own.
    let names = [("dim", "hidden_size"), ("n_heads", "num_attention_heads"), ("n_layers", "num_hidden_layers")];
    let mut map = hugging_face();
    for (own, second) in names {
        let value = map.remove(own).unwrap();
        map.insert(second.to_owned(), value);
    }
    let renamed = read(&map).unwrap();
    assert_eq!(renamed, read(&hugging_face()).unwrap());
}

#[test]
fn each_dropout_is_where_transformers_has_it() {
    let mut config = read(&hugging_face()).unwrap();
    let block = config.block(BlockPlace::FIRST);
    assert_eq!((block.dropout, block.ffn_dropout, block.attention.dropout), (0.0, 0.1, 0.25));
    let dropout = config.spec().head.dropout;
    assert_eq!((dropout.dense, dropout.classifier, dropout.tokens, dropout.span), (0.0, 0.4, 0.1, 0.3));
    config.set_hidden_dropout(0.5);
    let (dropout, block) = (config.spec().head.dropout, config.block(BlockPlace::FIRST));
    assert_eq!((dropout.dense, dropout.classifier, dropout.tokens, dropout.span), (0.0, 0.5, 0.5, 0.5));
    assert_eq!((block.dropout, block.ffn_dropout, config.spec().stacks[0].embedding_dropout), (0.0, 0.5, 0.5));
}

#[test]
fn what_it_is_not_is_refused() {
    for (name, value, want) in [
        ("model_type", json!("bert"), "\"bert\", not of distilbert"),
        ("is_decoder", json!(true), "DistilBERT as a decoder"),
        ("position_embedding_type", json!("relative_key"), "not supported"),
        ("post_layer_norm", json!(false), "post_layer_norm = true only"),
        ("hidden_size", json!(512), "dim = 768 and hidden_size = 512"),
        ("hidden_dim", json!("absent"), "no safe default"),
        ("dim", json!(769), "not divisible by n_heads 12"),
        ("qa_dropout", json!(1.0), "not a dropout probability"),
        ("activation", json!("gated_gelu"), "no gates"),
        ("sinusoidal_pos_embds", json!(1), "sinusoidal_pos_embds"),
    ] {
        let error = with(&[(name, value)]).unwrap_err();
        assert!(error.contains(want) && error.contains("fix: "), "{name}: {error}");
    }
    let mut config = read(&hugging_face()).unwrap();
    config.text.norm_eps = 1e-5;
    let error = config.to_hf_json(&configs::header("DistilBertModel", DType::F32)).unwrap_err().to_string();
    assert!(error.contains("field norm_eps") && error.contains("epsilon of 0.000000000001"), "{error}");
}

#[test]
fn sines_and_cosines_are_initial_values_of_the_positions_that_are_trained() {
    let device = Device::cpu(1).unwrap();
    let sizes = [("dim", 15), ("n_heads", 3), ("hidden_dim", 8), ("n_layers", 1), ("vocab_size", 11)];
    let mut fields = sizes.map(|(name, size)| (name, json!(size))).to_vec();
    fields.extend([("max_position_embeddings", json!(9)), ("sinusoidal_pos_embds", json!(true))]);
    let blocks = bmtrain_dist::block::Recompute::Keep;
    let config = with(&fields).unwrap();
    let model = DistilBert::new(&device, config, Head::None, blocks, BuilderOptions::default()).unwrap();
    let table = model.parameters().get("position_embedding.weight").unwrap();
    assert!(table.is_trainable());
    for (at, value) in widen(&table.value().unwrap()).unwrap().into_iter().enumerate() {
        let (position, column) = ((at / 15) as f64, at % 15);
        let angle = position / 10_000f64.powf(2.0 * (column / 2) as f64 / 15.0);
        let expected = if column % 2 == 0 { angle.sin() } else { angle.cos() };
        assert!((f64::from(value) - expected).abs() <= 1e-7, "position {position}, column {column}");
    }
    assert!(model.parameters().iter().all(|param| !param.name().contains("pooler")));
}
