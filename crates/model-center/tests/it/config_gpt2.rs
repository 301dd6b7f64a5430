//! GPT-2's configuration: ModelCenter's defaults, both dialects, and every contradiction an error that names its field.

use crate::configs;

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use model_center::config::{Config, Gpt2Config, ProblemType, TextConfig};
use serde_json::{Map, Value, json};

/// The file of the smallest GPT-2 on the hub, as it has been there since 2019.
fn hugging_face() -> Map<String, Value> {
    let config = json!({
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.2, "eos_token_id": 50256, "initializer_range": 0.03,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.3, "summary_activation": null, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
        "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257
    });
    config.as_object().unwrap().clone()
}

configs::configuration!(Gpt2Config);

#[test]
fn defaults_are_those_of_model_center() {
    let dict = Gpt2Config::default().to_dict();
    let expected = json!({
        "vocab_size": 50258, "dim_model": 1024, "num_heads": 16, "dim_head": 64, "dim_ff": 4096, "num_layers": 24,
        "dropout_p": 0.0, "emb_init_std": 0.02, "position_size": 1024, "norm_eps": 1e-5, "att_init_std": 0.02,
        "ffn_init_std": 0.02, "ffn_activate_fn": "gelu", "proj_init_std": 0.02, "attn_scale": true, "tied": true,
        "cls_head": null
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(dict.get(name), Some(value), "{name}");
    }
    assert_eq!(Gpt2Config::from_json(&Gpt2Config::default().to_json_string(), "x").unwrap(), Gpt2Config::default());
}

#[test]
fn a_hugging_face_file_is_read_and_written_back_with_what_changes_nothing() {
    let config = read(&hugging_face()).unwrap();
    assert_eq!(
        (config.text.dim_model, config.text.num_heads, config.text.dim_head, config.text.dim_ff),
        (768, 12, 64, 3072)
    );
    assert_eq!((config.text.num_layers, config.text.position_size, config.text.vocab_size), (12, 1024, 50257));
    assert_eq!(
        (config.text.dropout_p, config.text.embedding_dropout_p, config.text.attention_dropout_p),
        (0.3, 0.2, 0.1)
    );
    assert_eq!((config.text.init_std, config.text.ffn_activate_fn), (0.03, Activation::GeluTanh));
    assert_eq!((config.attn_scale, config.scale_by_layer, config.text.tied), (true, false, true));
    assert_eq!((config.text.pad_token_id, config.text.cls_head), (None, None));
    let header = configs::header("GPT2LMHeadModel", DType::BF16);
    let written = config.to_hf_json(&header).unwrap();
    for (name, value) in hugging_face() {
        assert_eq!(written.get(&name), Some(&value), "{name}");
    }
    assert_eq!((&written["n_inner"], &written["torch_dtype"]), (&Value::Null, &json!("bfloat16")));
    assert_eq!(read(&written).unwrap(), config);
    assert_eq!(Gpt2Config::from_json(&config.to_json_string(), "x").unwrap(), config);
}

#[test]
fn what_a_file_leaves_out_is_as_transformers_has_it() {
    let sizes = r#"{"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 8, "vocab_size": 9}"#;
    let config = Gpt2Config::from_json(sizes, "x").unwrap();
    assert_eq!(
        (config.text.dropout_p, config.text.embedding_dropout_p, config.text.attention_dropout_p),
        (0.1, 0.1, 0.1)
    );
    assert_eq!(
        (config.text.ffn_activate_fn, config.text.dim_ff, config.text.norm_eps),
        (Activation::GeluTanh, 48, 1e-5)
    );
    let common = r#"{"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
        "max_position_embeddings": 8, "vocab_size": 9}"#;
    assert_eq!(Gpt2Config::from_json(common, "x").unwrap(), config);
    assert_eq!(with(&[("n_inner", json!(100))]).unwrap().text.dim_ff, 100);
    let header = configs::header("GPT2Model", DType::F32);
    assert_eq!(with(&[("n_inner", json!(100))]).unwrap().to_hf_json(&header).unwrap()["n_inner"], 100);
}

#[test]
fn a_model_center_file_fills_in_its_class_defaults() {
    let text = r#"{"dim_model": 768, "num_heads": 12, "dim_ff": 3072, "num_layers": 12, "dropout_p": 0.2,
        "att_mask_value": -10000.0, "half": true, "int8": false, "post_layer_norm": false}"#;
    let config = Gpt2Config::from_json(text, "x").unwrap();
    assert_eq!(
        (config.text.vocab_size, config.text.dim_head, config.text.ffn_activate_fn),
        (50258, 64, Activation::Gelu)
    );
    assert_eq!((config.text.embedding_dropout_p, config.text.attention_dropout_p), (0.2, 0.2));
}

#[test]
fn scores_and_residual_projections_shrink_with_depth() {
    let config = with(&[("scale_attn_by_inverse_layer_idx", json!(true))]).unwrap();
    assert_eq!((config.score_factor(0), config.score_factor(3)), (1.0 / 8.0, 1.0 / 32.0));
    let config = Gpt2Config { attn_scale: false, ..config };
    assert_eq!((config.score_factor(0), config.score_factor(3)), (1.0, 0.25));
    assert_eq!(with(&[]).unwrap().score_factor(3), 1.0 / 8.0);
    let std = Gpt2Config { text: TextConfig { num_layers: 8, init_std: 0.02, ..config.text }, ..config }.residual_std();
    assert!((std - 0.005).abs() < 1e-9, "{std}");
}

#[test]
fn classes_come_from_the_architecture_and_the_labels() {
    let classifier = json!(["GPT2ForSequenceClassification"]);
    let labels = json!({"1": "yes", "0": "no", "2": "maybe"});
    let config =
        with(&[("architectures", classifier), ("id2label", labels), ("problem_type", json!("regression"))]).unwrap();
    assert_eq!((config.text.cls_head, config.text.problem_type), (Some(3), Some(ProblemType::Regression)));
    assert_eq!(config.text.labels, ["no", "yes", "maybe"]);
}

#[test]
fn contradictions_and_what_is_not_supported_name_the_field() {
    assert!(with(&[("dim_model", json!(768)), ("hidden_size", json!(768)), ("dim_head", json!(64))]).is_ok());
    assert!(with(&[("reorder_and_upcast_attn", json!(true))]).is_ok(), "scores are in 32-bit floats always");
    for (name, value, want) in [
        ("hidden_size", json!(512), "n_embd = 768 and hidden_size = 512"),
        ("num_layers", json!(6), "n_layer = 12 and num_layers = 6"),
        ("dim_head", json!(32), "field dim_head"),
        ("n_head", json!(7), "not divisible by n_head 7"),
        ("n_head", json!(0), "field n_head"),
        ("n_embd", json!("768"), "field n_embd"),
        ("n_positions", Value::Null, "no safe default"),
        ("n_inner", json!(0), "field n_inner"),
        ("dropout_p", json!(0.0), "resid_pdrop"),
        ("attn_pdrop", json!(1.0), "not a dropout probability"),
        ("emb_init_std", json!(0.02), "initializer_range = 0.03"),
        ("layer_norm_epsilon", json!(0.0), "not an epsilon"),
        ("activation_function", json!("gelu_newer"), "known are: gelu, gelu_new"),
        ("ffn_activate_fn", json!("gelu"), "ffn_activate_fn"),
        ("scale_attn_weights", json!("yes"), "field scale_attn_weights"),
        ("reorder_and_upcast_attn", json!(1), "field reorder_and_upcast_attn"),
        ("tied", json!(false), "tied"),
        ("pad_token_id", json!(50257), "not a token of a vocabulary of 50257"),
        ("add_cross_attention", json!(true), "cross-attention"),
        ("quantization_config", json!({"bits": 4}), "quantised"),
        ("pruned_heads", json!({"0": [1]}), "pruned"),
        ("auto_map", json!({"AutoModelForCausalLM": "x.Y"}), "not a plain GPT-2"),
        ("model_type", json!("bert"), "not of gpt2"),
        ("post_layer_norm", json!(true), "post_layer_norm = false only"),
        ("att_bias", json!(false), "att_bias = true only"),
        ("pos_bias_type", json!("rotary"), "pos_bias_type = none only"),
        ("emb_init_mean", json!(0.5), "emb_init_mean = 0 only"),
    ] {
        // Two of the names of one thing have to differ for a contradiction.
        let changes = match name {
            "tied" => vec![(name, value), ("tie_word_embeddings", json!(true))],
            _ => vec![(name, value)],
        };
        let error = with(&changes).expect_err(name);
        assert!(error.contains(want) && error.contains("config.json, field") && error.contains("fix: "), "{error}");
    }
    assert!(Gpt2Config::from_json("{}", "x").unwrap_err().to_string().contains("no size of the model"));
    let header = configs::header("GPT2Model", DType::F32);
    let text = TextConfig { dim_head: 65, ..Gpt2Config::default().text };
    let odd = Gpt2Config { text, ..Gpt2Config::default() };
    assert!(odd.to_hf_json(&header).unwrap_err().to_string().contains("dim_head"));
}
