//! GPT-J's configuration: both dialects, what silence means, and every contradiction an error that names its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, GptjConfig, HfHeader, TextConfig};
use serde_json::{Map, Value, json};

/// The file of the model with 6 billion parameters, as it is on the hub.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.2, "eos_token_id": 50256, "gradient_checkpointing": false,
        "initializer_range": 0.03, "layer_norm_epsilon": 1e-05, "model_type": "gptj", "n_embd": 4096, "n_head": 16,
        "n_inner": null, "n_layer": 28, "n_positions": 2048, "resid_pdrop": 0.3, "rotary": true, "rotary_dim": 32,
        "scale_attn_weights": true, "summary_activation": null, "summary_type": "cls_index",
        "task_specific_params": {"text-generation": {"do_sample": true}}, "tie_word_embeddings": false,
        "tokenizer_class": "GPT2Tokenizer", "use_cache": true, "vocab_size": 50400
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(GptjConfig);

fn header() -> HfHeader {
    configs::header("GPTJForCausalLM", DType::BF16)
}

#[test]
fn defaults_are_those_of_model_center() {
    let dict = GptjConfig::default().to_dict();
    let expected = json!({
        "vocab_size": 50400, "dim_model": 4096, "num_heads": 16, "dim_head": 256, "dim_ff": 16384, "num_layers": 28,
        "dropout_p": 0.0, "emb_init_std": 1.0, "norm_eps": 1e-5, "att_init_std": 0.1, "ffn_init_std": 0.1,
        "proj_init_std": 1.0, "ffn_activate_fn": "gelu", "tied": false, "pos_rotary_dim": 64, "cls_head": null
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    assert_eq!(GptjConfig::from_json(&GptjConfig::default().to_json_string(), "x").unwrap(), GptjConfig::default());
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    let text = &config.text;
    assert_eq!((text.dim_model, text.num_heads, text.dim_head, text.dim_ff), (4096, 16, 256, 16384));
    assert_eq!((text.num_layers, text.position_size, text.vocab_size), (28, 2048, 50400));
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.3, 0.2, 0.1));
    assert_eq!((text.init_std, text.outer_std(), text.ffn_activate_fn), (0.03, 0.03, Activation::GeluTanh));
    assert_eq!((config.rotary_dim, text.tied, text.pad_token_id, text.cls_head), (32, false, None, None));
    let written = config.to_hf_json(&header()).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    assert_eq!(read(&written).unwrap(), config);
    assert_eq!(GptjConfig::from_json(&config.to_json_string(), "x").unwrap(), config);
}

#[test]
fn what_a_file_leaves_out_is_as_transformers_has_it() {
    let sizes = r#"{"n_embd": 192, "n_layer": 2, "n_head": 3, "n_positions": 8, "vocab_size": 9}"#;
    let config = GptjConfig::from_json(sizes, "x").unwrap();
    let text = &config.text;
    assert_eq!((text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p), (0.0, 0.0, 0.0));
    assert_eq!((text.ffn_activate_fn, text.dim_ff, text.norm_eps), (Activation::GeluTanh, 768, 1e-5));
    assert_eq!((text.init_std, text.outer_std(), config.rotary_dim, text.tied), (0.02, 0.02, 64, false));
    let common = r#"{"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3,
        "max_position_embeddings": 8, "vocab_size": 9}"#;
    assert_eq!(GptjConfig::from_json(common, "x").unwrap(), config);
}

#[test]
fn a_model_center_file_fills_in_its_class_defaults_and_keeps_its_deviations() {
    let text = r#"{"dim_model": 512, "num_heads": 2, "num_layers": 12, "dropout_p": 0.2, "emb_init_std": 1,
        "att_init_std": 0.1, "ffn_init_std": 0.1, "proj_init_std": 1, "att_mask_value": "-inf", "proj_bias": true,
        "pos_bias_type": "rotary", "pos_rotary_dim": 8, "half": true, "int8": false, "post_layer_norm": false}"#;
    let config = GptjConfig::from_json(text, "x").unwrap();
    assert_eq!((config.text.vocab_size, config.text.dim_head, config.rotary_dim), (50400, 256, 8));
    assert_eq!((config.text.embedding_dropout_p, config.text.attention_dropout_p), (0.2, 0.2));
    assert_eq!((config.text.init_std, config.text.outer_std()), (0.1, 1.0));
    let written = config.to_hf_json(&header()).unwrap();
    assert_eq!((&written["initializer_range"], &written["rotary_dim"]), (&json!(0.1), &json!(8)));
    assert_eq!(read(&written).unwrap(), GptjConfig { text: TextConfig { ..config.text.clone() }, ..config });
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    for (name, value, want) in [
        ("hidden_size", json!(512), "n_embd = 4096 and hidden_size = 512"),
        ("n_head", json!(7), "not divisible by n_head 7"),
        ("n_positions", Value::Null, "no safe default"),
        ("n_inner", json!(0), "field n_inner"),
        ("dropout_p", json!(0.0), "resid_pdrop"),
        ("attn_pdrop", json!(1.0), "not a dropout probability"),
        ("emb_init_std", json!(-0.5), "not a standard deviation"),
        ("proj_init_std", json!(2), "emb_init_std = 1.0 and proj_init_std = 2.0"),
        ("att_init_std", json!(0.5), "initializer_range = 0.03"),
        ("activation_function", json!("gelu_newer"), "known are: gelu, gelu_new"),
        ("rotary_dim", json!(0), "field rotary_dim"),
        ("rotary_dim", json!(7), "not a number of pairs"),
        ("rotary_dim", json!(258), "not a number of pairs of a head of 256"),
        ("rotary_dim", Value::Null, "field rotary_dim"),
        ("pos_rotary_dim", json!(64), "rotary_dim = 32 and pos_rotary_dim = 64"),
        ("tie_word_embeddings", json!(true), "tie_word_embeddings = false only"),
        ("scale_attn_weights", json!(false), "scale_attn_weights = true only"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
        ("auto_map", json!({"AutoModelForCausalLM": "x.Y"}), "not a plain GPT-J"),
        ("model_type", json!("gpt2"), "not of gptj"),
        ("post_layer_norm", json!(true), "post_layer_norm = false only"),
        ("att_bias", json!(true), "att_bias = false only"),
        ("ffn_bias", json!(false), "ffn_bias = true only"),
        ("proj_bias", json!(false), "proj_bias = true only"),
        ("pos_bias_type", json!("none"), "pos_bias_type = rotary only"),
    ] {
        // Two of the names of one thing have to differ for a contradiction.
        let changes = match name {
            "proj_init_std" => vec![(name, value), ("emb_init_std", json!(1))],
            _ => vec![(name, value)],
        };
        let error = with(&changes).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
    let text = TextConfig { dim_head: 66, ..GptjConfig::default().text };
    let odd = GptjConfig { text, ..GptjConfig::default() };
    assert!(odd.to_hf_json(&header()).unwrap_err().to_string().contains("dim_head"));
}
