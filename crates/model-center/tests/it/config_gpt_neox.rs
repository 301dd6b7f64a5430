//! GPT-NeoX's configuration: its own names of rotary positions, defaults, and what is refused.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, GptNeoxConfig};
use serde_json::{Map, Value, json};

/// A file as transformers 4 wrote it.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
        "hidden_size": 512, "initializer_range": 0.02, "intermediate_size": 2048, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 8, "num_hidden_layers": 6,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false, "torch_dtype": "float16",
        "transformers_version": "4.24.0", "use_cache": true, "use_parallel_residual": true, "vocab_size": 50304
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(GptNeoxConfig);

fn check_written(config: &GptNeoxConfig) {
    configs::check_written(config, &configs::header("GPTNeoXForCausalLM", DType::BF16));
}

#[test]
fn a_file_is_read_and_what_it_leaves_out_is_as_transformers_has_it() {
    let config = read(&hugging_face()).unwrap();
    assert_eq!((config.rotary.dims(64), config.rotary.base, config.use_parallel_residual), (16, 10_000.0, true));
    assert_eq!((config.att_bias, config.text.ffn_activate_fn, config.text.tied), (true, Activation::Gelu, false));
    check_written(&config);
    check_written(&GptNeoxConfig::default());
    let silent = ["rotary_pct", "rotary_emb_base", "use_parallel_residual", "layer_norm_eps"];
    assert_eq!(with(&silent.map(|name| (name, json!("absent")))).unwrap().rotary, config.rotary);
    // One rate for the embeddings and for what layers add.
    let config = with(&[("hidden_dropout", json!(0.1)), ("attention_dropout", json!(0.2))]).unwrap();
    let text = &config.text;
    assert_eq!((text.embedding_dropout_p, text.dropout_p, text.attention_dropout_p), (0.1, 0.1, 0.2));
    check_written(&config);
}

#[test]
fn rotary_positions_are_in_the_parameters_of_transformers_5_too() {
    let parameters = json!({"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5});
    let old = ["rotary_pct", "rotary_emb_base"].map(|name| (name, json!("absent")));
    let config = with(&[old.to_vec(), vec![("rope_parameters", parameters)]].concat()).unwrap();
    assert_eq!((config.rotary.dims(64), config.rotary.base), (32, 500.0));
    let written = config.to_hf_json(&configs::header("GPTNeoXForCausalLM", DType::BF16)).unwrap();
    assert_eq!((&written["rotary_pct"], &written["rotary_emb_base"]), (&json!(0.5), &json!(500.0)));
    check_written(&config);
}

#[test]
fn what_is_not_supported_names_the_field() {
    for (name, value, want) in [
        ("rotary_pct", json!(0.11), "0.11 of 64 elements"),
        ("partial_rotary_factor", json!(0.5), "field rotary_pct"),
        ("rope_theta", json!(500.0), "field rotary_emb_base"),
        ("rotary_emb_base", json!("wide"), "not a number above 0"),
        ("hidden_dropout", json!(1.5), "dropout_p"),
        ("num_attention_heads", json!(7), "not divisible by num_attention_heads 7"),
        ("use_parallel_residual", json!(2), "is not true or false"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
}
