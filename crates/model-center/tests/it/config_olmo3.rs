//! OLMo 3's configuration: windows and rotary positions by kinds of layers, and what is refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use model_center::config::{Config, Olmo3Config};
use model_center::layer::position::RotaryScaling;
use serde_json::{Map, Value, json};

/// A file as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 11008, "max_position_embeddings": 65536, "model_type": "olmo3",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277,
        "rms_norm_eps": 1e-06, "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "use_cache": false, "vocab_size": 100278,
        "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
            "original_max_position_embeddings": 8192, "rope_type": "yarn"}
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(Olmo3Config);

fn check_written(config: &Olmo3Config) {
    configs::check_written(config, &configs::header("Olmo3ForCausalLM", DType::BF16));
}

#[test]
fn windows_are_in_three_of_four_layers_or_as_listed() {
    let config = read(&hugging_face()).unwrap();
    assert_eq!([0, 2, 3, 31].map(|layer| config.windows.of(layer)), [Some(4096), Some(4096), None, None]);
    check_written(&config);
    check_written(&Olmo3Config::default());
    let mut kinds = vec!["full_attention"; 32];
    kinds[3] = "sliding_attention";
    let config = with(&[("layer_types", json!(kinds)), ("sliding_window", json!(7))]).unwrap();
    assert_eq!([2, 3].map(|layer| config.windows.of(layer)), [None, Some(7)]);
    check_written(&config);
    let full = [("layer_types", json!(vec!["full_attention"; 32])), ("sliding_window", Value::Null)];
    check_written(&with(&full).unwrap());
}

#[test]
fn layers_with_a_window_have_rotary_positions_of_their_own() {
    // As transformers 4 wrote them, the parameters belong to layers without a window.
    let config = read(&hugging_face()).unwrap();
    assert!(matches!(config.rotary.full.scaling, RotaryScaling::Yarn { factor: 8.0, trained: 8192, .. }));
    assert_eq!((config.rotary.sliding.base, &config.rotary.sliding.scaling), (500_000.0, &RotaryScaling::None));
    let both = json!({
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}
    });
    let absent = ["rope_theta", "rope_scaling"].map(|name| (name, json!("absent")));
    let config = with(&[absent.to_vec(), vec![("rope_parameters", both.clone())]].concat()).unwrap();
    assert_eq!((config.rotary.full.base, config.rotary.sliding.base), (1000.0, 50.0));
    check_written(&config);
    let written = config.to_hf_json(&configs::header("Olmo3ForCausalLM", DType::BF16)).unwrap();
    assert_eq!((&written["rope_parameters"], written.get("rope_theta")), (&both, None));
    let silent = with(&absent).unwrap();
    assert_eq!(silent.rotary, Olmo3Config::default().rotary);
}

#[test]
fn what_is_not_supported_names_the_field() {
    for (name, value, want) in [
        ("use_sliding_window", json!(false), "use_sliding_window = true only"),
        ("sliding_window", Value::Null, "gives them no size"),
        ("layer_types", json!(["full_attention"]), "not a list of 32 kinds"),
        ("rope_theta", json!(10000.0), "layers with a window have it in some versions"),
        ("rope_parameters", json!({"rope_type": "yarn", "factor": 2.0}), "its parameter rope_type is for no kind"),
        ("rope_parameters", json!({"full_attention": {"rope_theta": 7.0}}), "the file states 500000, and 7"),
        ("mlp_bias", json!(true), "mlp_bias = false only"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
}
