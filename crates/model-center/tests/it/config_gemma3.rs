//! Gemma 3's configuration: files of transformers 4 and 5, layers with and without a window, and what is refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, Gemma3Config, HfHeader, LayerRotary};
use model_center::layer::position::RotaryScaling;
use model_center::model::architecture::{BlockPlace, ModelFamily};
use serde_json::{Map, Value, json};

/// The file of a model with 270 million parameters, as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attn_logit_softcapping": null, "bos_token_id": 2, "eos_token_id": 1, "final_logit_softcapping": null,
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "initializer_range": 0.02,
        "intermediate_size": 2048, "layer_types": layers(18), "max_position_embeddings": 32768,
        "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 18, "num_key_value_heads": 1,
        "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000.0,
        "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": 512, "torch_dtype": "bfloat16",
        "transformers_version": "4.55.0", "use_cache": true, "vocab_size": 262144
    });
    config.as_object().unwrap().clone()
}

/// Every sixth layer without a window.
fn layers(count: usize) -> Vec<&'static str> {
    (1..=count).map(|layer| if layer % 6 == 0 { "full_attention" } else { "sliding_attention" }).collect()
}

configs::configuration!(Gemma3Config);

fn header() -> HfHeader {
    configs::header("Gemma3ForCausalLM", DType::BF16)
}

/// Window and number of the rotary table of a layer.
fn of_layer(config: &Gemma3Config, layer: usize) -> (Option<usize>, usize) {
    let attention = config.block(BlockPlace { layer, ..BlockPlace::FIRST }).attention;
    (attention.window, attention.rotary.unwrap().table)
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (640, 4, 256, 2048));
    assert_eq!((text.ffn_activate_fn, text.ffn_gated, text.tied), (Activation::GeluTanh, true, true));
    assert_eq!((config.num_heads_kv, config.query_pre_attn_scalar), (1, 256));
    assert_eq!(config.rotary, LayerRotary::of_bases(1_000_000.0, 10_000.0));
    assert_eq!(
        [0, 4, 5, 6, 17].map(|layer| of_layer(&config, layer)),
        [(Some(512), 1), (Some(512), 1), (None, 0), (Some(512), 1), (None, 0)]
    );
    let written = config.to_hf_json(&header()).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    configs::check_written(&config, &header());
    configs::check_written(&Gemma3Config::default(), &header());
}

#[test]
fn silence_means_what_it_means_in_transformers() {
    let silent = ["layer_types", "sliding_window", "rope_theta", "rope_local_base_freq", "tie_word_embeddings"];
    let config = with(&silent.map(|name| (name, json!("absent")))).unwrap();
    assert_eq!([0, 5, 6].map(|layer| of_layer(&config, layer)), [(Some(4096), 1), (None, 0), (Some(4096), 1)]);
    assert_eq!(config.rotary, LayerRotary::of_bases(1_000_000.0, 10_000.0));
    assert!(config.text.tied);
    let config = with(&[("layer_types", json!("absent")), ("sliding_window_pattern", json!(3))]).unwrap();
    assert_eq!([1, 2, 5].map(|layer| of_layer(&config, layer).1), [1, 0, 0]);
    configs::check_written(&config, &header());
}

#[test]
fn positions_by_the_kind_of_a_layer_are_read_in_both_forms() {
    let scaling = json!({"rope_type": "linear", "factor": 8.0});
    let old = with(&[("rope_scaling", scaling)]).unwrap();
    let new = with(&[
        ("rope_theta", json!("absent")),
        ("rope_local_base_freq", json!("absent")),
        (
            "rope_parameters",
            json!({
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}
            }),
        ),
    ])
    .unwrap();
    assert_eq!(old, new);
    assert_eq!(new.rotary.full.scaling, RotaryScaling::Linear { factor: 8.0 });
    assert_eq!(new.rotary.sliding.scaling, RotaryScaling::None);
    configs::check_written(&new, &header());
}

#[test]
fn a_window_of_attention_to_both_sides_has_half_of_its_keys_on_each() {
    let config = with(&[("use_bidirectional_attention", json!(true))]).unwrap();
    // 256 tokens before and after its own.
    assert_eq!(of_layer(&config, 0), (Some(257), 1));
    assert!(!config.block(BlockPlace::FIRST).attention.causal);
    // As the file states it.
    assert_eq!(config.to_hf_json(&header()).unwrap()["sliding_window"], json!(512));
    configs::check_written(&config, &header());
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    for (name, value, want) in [
        ("head_dim", json!("absent"), "no safe default"),
        ("attn_logit_softcapping", json!(50.0), "computes without it"),
        ("final_logit_softcapping", json!(0.0), "leaves nothing of scores"),
        ("sliding_window", Value::Null, "gives no size"),
        ("layer_types", json!(["full_attention"]), "not a list of 18"),
        ("rope_parameters", json!({"rope_type": "default"}), "parameters of full_attention and of sliding_attention"),
        ("num_key_value_heads", json!(3), "3 key heads do not divide 4"),
        ("model_type", json!("gemma3"), "not of gemma3_text"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json") && error.contains("fix: "), "{error}");
    }
}
