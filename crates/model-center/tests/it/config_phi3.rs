//! Phi-3's configuration: LongRoPE, parts of heads, and what is refused. The rest is read as for Mistral.

use crate::configs;

use bmtrain_core::dtype::DType;
use model_center::config::{Phi3Config, RotaryFields};
use model_center::layer::position::RotaryScaling;
use serde_json::{Map, Value, json};

/// A file as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["Phi3ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "embd_pdrop": 0.0,
        "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "model_type": "phi3",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.1, "rms_norm_eps": 1e-05,
        "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.43.3", "use_cache": true, "vocab_size": 32064
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(Phi3Config);

fn check_written(config: &Phi3Config) {
    configs::check_written(config, &configs::header("Phi3ForCausalLM", DType::BF16));
}

/// LongRoPE with divisors for this number of angles.
fn long(angles: usize) -> Value {
    let divisors = |first: f64| (0..angles).map(|i| first + i as f64).collect::<Vec<_>>();
    json!({"type": "longrope", "short_factor": divisors(1.0), "long_factor": divisors(1.5)})
}

#[test]
fn long_rope_is_read_in_every_form_and_written_back() {
    assert_eq!(read(&hugging_face()).unwrap().rotary, RotaryFields::PLAIN);
    let config = with(&[("rope_scaling", long(48))]).unwrap();
    let RotaryScaling::Long { short, long: divisors, magnitude, trained } = &config.rotary.scaling else { panic!() };
    assert_eq!((short[47], divisors[0], *trained), (48.0, 1.5, 4096));
    // The root of 1 + ln(32) / ln(4096): there are 32 times the positions of the first training.
    assert!((magnitude - (1.0f64 + 5.0 / 12.0).sqrt()).abs() < 1e-12, "{magnitude}");
    assert_eq!((config.sliding_window, config.text.dropout_p, config.num_heads_kv), (Some(262_144), 0.1, 32));
    check_written(&config);
    // Transformers 5 has one object for all.
    let mut new = long(48);
    new["rope_theta"] = json!(10000.0);
    new["original_max_position_embeddings"] = json!(4096);
    new["partial_rotary_factor"] = json!(1.0);
    let again = with(&[("rope_parameters", new), ("rope_theta", json!("absent"))]).unwrap();
    assert_eq!(again.rotary, config.rotary);
    // The kind's first name.
    let mut old = long(48);
    old["type"] = json!("su");
    assert_eq!(with(&[("rope_scaling", old)]).unwrap().rotary, config.rotary);
    // A factor, and a factor of angles, in place of lengths.
    for (name, value, want) in [("factor", 1.0, 1.0), ("attention_factor", 1.25, 1.25)] {
        let mut stated = long(48);
        stated[name] = json!(value);
        let config = with(&[("rope_scaling", stated)]).unwrap();
        assert!(matches!(config.rotary.scaling, RotaryScaling::Long { magnitude, .. } if magnitude == want), "{name}");
        check_written(&config);
    }
}

#[test]
fn the_length_of_the_first_training_is_4096_where_a_file_is_silent_whatever_the_parameters_state() {
    let silent = ("original_max_position_embeddings", json!("absent"));
    let config = with(&[("rope_scaling", long(48)), silent.clone()]).unwrap();
    assert_eq!(config.rotary.scaling.trained(), Some(4096));
    let mut inside = long(48);
    inside["original_max_position_embeddings"] = json!(8192);
    let error = with(&[("rope_scaling", inside), silent]).unwrap_err();
    assert!(error.contains("field original_max_position_embeddings"), "{error}");
}

#[test]
fn parts_of_heads_are_rotated() {
    // Phi-4-mini: 0.75 of heads of 128.
    let sizes = [("num_attention_heads", json!(24)), ("num_key_value_heads", json!(8))];
    let part = vec![("partial_rotary_factor", json!(0.75)), ("rope_scaling", long(48))];
    let config = with(&[sizes.to_vec(), part].concat()).unwrap();
    assert_eq!((config.rotary.dims(128), config.rotary.of_heads(128).dims), (96, 96));
    check_written(&config);
    // Rounded down.
    assert_eq!(with(&[("partial_rotary_factor", json!(0.19))]).unwrap().rotary.dims(96), 18);
    assert_eq!(with(&[("num_key_value_heads", Value::Null)]).unwrap().num_heads_kv, 32);
}

#[test]
fn what_is_not_supported_names_the_field() {
    for (name, value, want) in [
        ("attention_bias", json!(true), "attention_bias = false only"),
        ("rope_scaling", json!({"type": "linear", "factor": 2.0}), "no rotary positions of this kind"),
        ("rope_scaling", json!({"type": "longrope", "long_factor": [1.0]}), "short_factor is not a list of 48 numbers"),
        ("rope_scaling", json!({"type": "yarn", "short_factor": [1.0]}), "lacks factor"),
        ("partial_rotary_factor", json!(0.005), "are not pairs to rotate"),
        ("partial_rotary_factor", json!(0.054), "0.054 of 96 elements"),
        ("partial_rotary_factor", json!(1.5), "are not pairs to rotate"),
        ("resid_pdrop", json!(1.0), "dropout_p"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
}
