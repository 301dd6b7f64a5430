//! Gemma 2's configuration: files of transformers 4 and 5, soft caps, layers with and without a window, and what is
//! refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, Gemma2Config, HfHeader};
use model_center::layer::position::RotaryScaling;
use model_center::model::architecture::{BlockPlace, ModelFamily};
use serde_json::{Map, Value, json};

/// The file of the model with 2 billion parameters, as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
        "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
        "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "bfloat16",
        "transformers_version": "4.42.4", "use_cache": true, "vocab_size": 256000
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(Gemma2Config);

fn header() -> HfHeader {
    configs::header("Gemma2ForCausalLM", DType::BF16)
}

/// Window and soft cap of a layer.
fn of_layer(config: &Gemma2Config, layer: usize) -> (Option<usize>, Option<f32>) {
    let attention = config.block(BlockPlace { layer, ..BlockPlace::FIRST }).attention;
    (attention.window, attention.soft_cap)
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (2304, 8, 256, 9216));
    assert_eq!((text.ffn_activate_fn, text.ffn_gated, text.tied), (Activation::GeluTanh, true, true));
    assert_eq!((config.num_heads_kv, config.query_pre_attn_scalar), (4, 256));
    assert_eq!((config.rotary.base, &config.rotary.scaling), (10_000.0, &RotaryScaling::None));
    assert_eq!([0, 1, 24].map(|layer| of_layer(&config, layer).0), [Some(4096), None, Some(4096)]);
    assert_eq!((of_layer(&config, 1).1, config.spec().head.soft_cap), (Some(50.0), Some(30.0)));
    let written = config.to_hf_json(&header()).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    configs::check_written(&config, &header());
    configs::check_written(&Gemma2Config::default(), &header());
}

#[test]
fn silence_and_null_mean_what_they_mean_in_transformers() {
    let caps = ["attn_logit_softcapping", "final_logit_softcapping"];
    let silent = with(&caps.map(|name| (name, json!("absent")))).unwrap();
    assert_eq!((of_layer(&silent, 0).1, silent.spec().head.soft_cap), (Some(50.0), Some(30.0)));
    let none = with(&caps.map(|name| (name, Value::Null))).unwrap();
    assert_eq!((of_layer(&none, 0).1, none.spec().head.soft_cap), (None, None));
    assert_eq!(none.to_hf_json(&header()).unwrap()["final_logit_softcapping"], Value::Null);
    configs::check_written(&none, &header());
    let kinds: Vec<&str> = (0..26).map(|layer| ["full_attention", "sliding_attention"][layer % 2]).collect();
    let listed = with(&[("layer_types", json!(kinds))]).unwrap();
    assert_eq!([0, 1].map(|layer| of_layer(&listed, layer).0), [None, Some(4096)]);
    configs::check_written(&listed, &header());
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    for (name, value, want) in [
        ("head_dim", json!("absent"), "no safe default"),
        ("attn_logit_softcapping", json!(0.0), "leaves nothing of scores"),
        ("final_logit_softcapping", json!(-30.0), "leaves nothing of scores"),
        ("use_bidirectional_attention", json!(true), "use_bidirectional_attention"),
        ("sliding_window", Value::Null, "gives no size"),
        ("layer_types", json!(["full_attention"]), "not a list of 26"),
        ("num_key_value_heads", json!(3), "3 key heads do not divide 8"),
        ("model_type", json!("gemma"), "not of gemma2"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json") && error.contains("fix: "), "{error}");
    }
}
