//! ModernBERT's configuration: files of transformers 4 and 5, layers with and without a window, heads, and what is
//! refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, HfHeader, LayerRotary, ModernBertConfig, TextHead, TokenPooling};
use model_center::layer::Placement;
use model_center::layer::position::RotaryScaling;
use model_center::model::Head;
use model_center::model::architecture::{BlockPlace, ModelFamily};
use serde_json::{Map, Value, json};

/// The file of the base model, as transformers 4 wrote it, but for rates of dropout.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["ModernBertForMaskedLM"], "attention_bias": false, "attention_dropout": 0.1,
        "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": false, "classifier_dropout": 0.2,
        "classifier_pooling": "mean", "cls_token_id": 50281, "decoder_bias": true, "deterministic_flash_attn": false,
        "embedding_dropout": 0.3, "eos_token_id": 50282, "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0, "gradient_checkpointing": false, "hidden_activation": "gelu",
        "hidden_size": 768, "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "intermediate_size": 1152,
        "layer_norm_eps": 1e-5, "local_attention": 128, "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192, "mlp_bias": false, "mlp_dropout": 0.4, "model_type": "modernbert",
        "norm_bias": false, "norm_eps": 1e-5, "num_attention_heads": 12, "num_hidden_layers": 22,
        "pad_token_id": 50283, "position_embedding_type": "absolute", "sep_token_id": 50282,
        "tie_word_embeddings": true, "torch_dtype": "float32", "transformers_version": "4.47.0.dev0",
        "vocab_size": 50368
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(ModernBertConfig);

fn header() -> HfHeader {
    configs::header("ModernBertForMaskedLM", DType::F32)
}

/// Window and number of the rotary table of a layer.
fn of_layer(config: &ModernBertConfig, layer: usize) -> (Option<usize>, usize) {
    let attention = config.block(BlockPlace { layer, ..BlockPlace::FIRST }).attention;
    (attention.window, attention.rotary.unwrap().table)
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (768, 12, 64, 1152));
    assert_eq!((text.num_layers, text.position_size, text.pad_token_id), (22, 8192, Some(50283)));
    assert_eq!((text.ffn_activate_fn, text.ffn_gated, text.tied), (Activation::Gelu, true, true));
    assert_eq!((text.attention_dropout_p, text.embedding_dropout_p, text.dropout_p), (0.1, 0.3, 0.4));
    assert_eq!((config.classifier_dropout_p, config.classifier_pooling), (0.2, TokenPooling::Mean));
    assert_eq!(config.rotary, LayerRotary::of_bases(160_000.0, 10_000.0));
    // A token and 64 to either side of it.
    let window = (Some(65), 1);
    assert_eq!(
        [0, 1, 2, 3, 20, 21].map(|layer| of_layer(&config, layer)),
        [(None, 0), window, window, (None, 0), window, (None, 0)]
    );
    let written = config.to_hf_json(&header()).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    assert!(!written.contains_key("rope_scaling"));
    configs::check_written(&config, &header());
    configs::check_written(&ModernBertConfig::default(), &header());
}

#[test]
fn blocks_drop_inside_the_feed_forward_and_what_attention_adds() {
    let config = read(&hugging_face()).unwrap();
    let block = config.block(BlockPlace::FIRST);
    assert_eq!((block.attention.dropout, block.dropout, block.ffn.dropout, block.ffn_dropout), (0.1, 0.1, 0.4, 0.0));
    assert_eq!((block.placement, block.attention.causal, block.ffn.gated), (Placement::Pre, false, true));
    let norms = [0, 1, 21].map(|layer| config.block(BlockPlace { layer, ..BlockPlace::FIRST }).norms_attention);
    assert_eq!(norms, [false, true, true]);
    let mut config = config;
    config.set_hidden_dropout(0.5);
    let rates = (config.text.dropout_p, config.text.embedding_dropout_p, config.classifier_dropout_p);
    assert_eq!((rates, config.text.attention_dropout_p), ((0.5, 0.5, 0.5), 0.1));
}

#[test]
fn a_silent_file_means_what_transformers_takes() {
    let silent = [
        "local_attention",
        "global_attn_every_n_layers",
        "global_rope_theta",
        "local_rope_theta",
        "tie_word_embeddings",
        "pad_token_id",
        "norm_eps",
        "classifier_pooling",
        "mlp_dropout",
    ];
    let config = with(&silent.map(|name| (name, json!("absent")))).unwrap();
    assert_eq!([0, 1, 3].map(|layer| of_layer(&config, layer)), [(None, 0), (Some(65), 1), (None, 0)]);
    assert_eq!(config.rotary, LayerRotary::of_bases(160_000.0, 10_000.0));
    assert_eq!((config.text.tied, config.text.pad_token_id, config.text.norm_eps), (true, Some(50283), 1e-5));
    assert_eq!((config.classifier_pooling, config.text.dropout_p), (TokenPooling::First, 0.0));
}

#[test]
fn layers_and_positions_of_transformers_5_are_those_of_transformers_4() {
    let of_kinds = json!({
        "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}
    });
    let kinds: Vec<&str> =
        (0..22).map(|layer| if layer % 3 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let absent = json!("absent");
    let new = with(&[
        ("global_attn_every_n_layers", absent.clone()),
        ("global_rope_theta", absent.clone()),
        ("local_rope_theta", absent),
        ("layer_types", json!(kinds)),
        ("rope_parameters", of_kinds.clone()),
    ]);
    assert_eq!(new.as_ref(), Ok(&read(&hugging_face()).unwrap()));
    let written = new.unwrap().to_hf_json(&header()).unwrap();
    assert_eq!((&written["layer_types"], &written["rope_parameters"]), (&json!(kinds), &of_kinds));
    // Any list, and positions of one kind alone that are stretched.
    let mut listed = kinds;
    listed.swap(0, 1);
    let mut stretched = of_kinds;
    stretched["full_attention"] = json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 160000.0});
    let config = with(&[("layer_types", json!(listed)), ("rope_parameters", stretched)]).unwrap();
    assert_eq!([0, 1, 2].map(|layer| of_layer(&config, layer)), [(Some(65), 1), (None, 0), (Some(65), 1)]);
    assert_eq!(config.rotary.full.scaling, RotaryScaling::Linear { factor: 4.0 });
    assert_eq!(config.rotary.sliding.scaling, RotaryScaling::None);
    configs::check_written(&config, &header());
    assert!(!config.to_hf_json(&header()).unwrap().contains_key("global_attn_every_n_layers"));
}

#[test]
fn one_base_for_all_layers_and_odd_windows_are_as_in_transformers_4() {
    let config = with(&[("local_rope_theta", Value::Null)]).unwrap();
    assert_eq!(config.rotary, LayerRotary::of_bases(160_000.0, 160_000.0));
    let silent = with(&[("local_rope_theta", Value::Null), ("global_rope_theta", json!("absent"))]).unwrap();
    assert_eq!(silent.rotary, config.rotary);
    for (size, window) in [(1, 1), (2, 2), (3, 2), (9, 5)] {
        let config = with(&[("local_attention", json!(size))]).unwrap();
        assert_eq!(of_layer(&config, 1).0, Some(window), "{size}");
        assert_eq!(config.to_hf_json(&header()).unwrap()["local_attention"], json!(size));
    }
    assert!(with(&[("sliding_window", json!(64))]).is_ok());
}

#[test]
fn all_heads_have_the_transform_and_there_is_no_pooler() {
    let biased = with(&[("classifier_bias", json!(true)), ("decoder_bias", json!(false))]).unwrap();
    let (plain, biased) = (read(&hugging_face()).unwrap().spec().head, biased.spec().head);
    assert_eq!(
        ([plain.dense_bias, plain.tied_bias], [biased.dense_bias, biased.tied_bias]),
        ([false, true], [true, false])
    );
    assert!(plain.transforms_all && !plain.base_pooler);
    let (norm, activation) = plain.transform.unwrap();
    assert_eq!((norm.size, norm.bias, norm.epsilon, activation), (768, false, 1e-5, Activation::Gelu));
    assert_eq!((plain.dropout.tokens, plain.dropout.span, plain.dropout.classifier), (0.2, 0.2, 0.2));
    let classes = read(&hugging_face()).unwrap().classes();
    assert_eq!(classes.of(Head::MaskedLm), "ModernBertForMaskedLM");
    assert_eq!(classes.head_of("ModernBertForQuestionAnswering"), Some(TextHead::QuestionAnswering));
    assert_eq!(classes.head_of("ModernBertForMultipleChoice"), None);
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    for (name, value, want) in [
        ("model_type", json!("bert"), "not of modernbert"),
        ("classifier_pooling", json!("max"), "is not a pooling of tokens"),
        ("classifier_activation", json!("gated_gelu"), "a function with a gate has two inputs"),
        ("classifier_activation", json!("mish"), "unknown activation"),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 2.0}), "versions of transformers differ"),
        ("rope_parameters", json!({"rope_type": "default"}), "parameters of full_attention and of sliding_attention"),
        ("sliding_window", json!(128), "half of local_attention"),
        ("layer_types", json!(["full_attention"]), "not a list of 22"),
        ("local_rope_theta", json!("x"), "is not a number above 0"),
        ("num_attention_heads", json!(7), "not divisible"),
        ("pad_token_id", json!(50368), "not a token of a vocabulary"),
        ("hidden_size", json!("absent"), "no safe default"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains(name) && error.contains("fix: "), "{name}: {error}");
    }
}
