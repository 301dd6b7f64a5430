//! Values of configurations of axolotl.

use super::{check_recipe, differs, expect, of};
use model_center::import::{self, ImportOptions, Sheet};

#[test]
fn special_tokens_of_the_vocabulary_are_taken_and_others_refused() {
    let model = tempfile::tempdir().unwrap();
    let tokens = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n";
    std::fs::write(model.path().join("vocab.txt"), tokens).unwrap();
    std::fs::write(model.path().join("config.json"), r#"{"model_type": "bert"}"#).unwrap();
    std::fs::write(model.path().join("tokenizer_config.json"), r#"{"eos_token": "[SEP]"}"#).unwrap();
    let read = |base: &str, tokens: &str| {
        let data = "datasets:\n  - path: a.jsonl\n    type: alpaca\nlearning_rate: 1e-4\n";
        let text = format!("base_model: {base}\n{data}special_tokens:\n{tokens}");
        import::axolotl(&text, "c.yml", &ImportOptions::default())
    };
    let here = model.path().display().to_string();
    for tokens in ["  pad_token: \"[SEP]\"\n", "  pad_token: \"[PAD]\"\n  eos_token: \"[SEP]\"\n"] {
        let sheet = read(&here, tokens).unwrap();
        let notes: Vec<_> = sheet.notes().iter().filter(|note| note.what.starts_with("special_tokens")).collect();
        assert!(notes.len() == 1 && notes[0].why.contains("the vocabulary has them"), "{tokens}: {notes:?}");
    }
    for (tokens, words) in [
        ("  pad_token: \"<pad>\"\n", "pad_token: <pad>: the vocabulary does not have it"),
        ("  eos_token: hello\n", "eos_token: hello: the tokenizer has another one"),
        ("  - x\n", "is not names with their tokens"),
    ] {
        let error = read(&here, tokens).unwrap_err().to_string();
        assert!(error.contains("c.yml:6, special_tokens") && error.contains(words), "{tokens}: {error}");
    }
    let elsewhere = read("org/not-here", "  pad_token: \"<pad>\"\n").unwrap();
    assert!(differs(&elsewhere).contains("the model is not on this machine"), "{}", differs(&elsewhere));
}

#[test]
fn values_of_axolotl_are_those_of_its_configuration() {
    let lora = of("axolotl_lora.yml");
    expect(
        &lora,
        &[
            ("model.path", "\"HuggingFaceTB/SmolLM2-135M-Instruct\""),
            ("model.dtype", "\"bf16\""),
            ("adapter.method", "\"lora\""),
            ("adapter.rank", "32"),
            ("adapter.alpha", "64.0"),
            ("adapter.dropout", "0.05"),
            ("adapter.rank_stabilized", "true"),
            ("adapter.targets", "[\"all-linear\"]"),
            ("data.task", "\"sft\""),
            (
                "data.sets",
                "[{ path = \"data/support.jsonl\", eval = \"data/support_dev.jsonl\", records = \"messages\" }, \
                 { path = \"data/general.jsonl\", records = \"alpaca\" }]",
            ),
            ("data.columns.messages", "\"turns\""),
            ("data.max_length", "2048"),
            ("data.packing", "true"),
            ("train.epochs", "3.0"),
            ("train.micro_batch_size", "2"),
            ("train.accumulation", "4"),
            ("train.lr", "0.0002"),
            ("train.schedule", "\"cosine-with-min-lr\""),
            ("train.final_lr_ratio", "0.1"),
            ("train.warmup", "0.03"),
            ("train.weight_decay", "0.01"),
            ("train.clip_norm", "0.5"),
            ("train.optimizer", "\"adamw-8bit\""),
            ("data.last_batch", "\"keep\""),
            ("train.recompute", "\"blocks\""),
            ("train.seed", "42"),
            ("train.early_stop.patience", "3"),
            ("eval.every", "\"0.25 epochs\""),
            ("checkpoint.every", "\"1 epoch\""),
            ("checkpoint.keep", "2"),
            ("output.dir", "\"runs/support\""),
        ],
    );
    let notes = differs(&lora);
    assert!(notes.contains("sample_packing") && !notes.contains("adamw_bnb_8bit"), "{notes}");
    let full = of("axolotl_full.yml");
    expect(
        &full,
        &[
            ("data.train", "\"data/faq.jsonl\""),
            ("data.records", "\"prompt-completion\""),
            ("data.columns.prompt", "\"question\""),
            ("data.columns.completion", "\"answer\""),
            ("data.loss_on", "\"all\""),
            ("train.steps", "1500"),
            ("train.betas", "[0.9, 0.95]"),
            ("train.eps", "1e-5"),
            ("train.warmup", "50"),
            ("train.weight_decay", "0.0"),
            ("train.seed", "7"),
            ("parallel.zero", "3"),
            ("checkpoint.every", "\"200 steps\""),
        ],
    );
    assert_eq!((full.get("train.epochs"), full.get("eval.every"), full.get("adapter.method")), (None, None, None));
    assert!(differs(&full).contains("val_set_size: 0.02"), "{full}");
    let texts = of("axolotl_completion.yml");
    expect(
        &texts,
        &[
            ("model.dtype", "\"f16\""),
            ("data.records", "\"text\""),
            ("data.columns.text", "\"body\""),
            ("train.optimizer", "\"lion\""),
            // The Trainer gives it Adam's default.
            ("train.betas", "[0.9, 0.999]"),
            ("train.schedule", "\"constant\""),
            ("train.warmup", "20"),
            ("train.divergence.patience", "3"),
            ("parallel.zero", "3"),
        ],
    );
}

const SETS: &str = "base_model: m\nlearning_rate: 1e-4\ndatasets:\n";

fn with(sets: &str) -> Sheet {
    let text = format!("{SETS}{sets}");
    let sheet = import::axolotl(&text, "c.yml", &ImportOptions::default());
    let sheet = sheet.unwrap_or_else(|error| panic!("{text}: {error}"));
    check_recipe(&text, &sheet);
    sheet
}

#[test]
fn fields_of_messages_and_types_with_columns_of_their_own_are_kept() {
    let sheet = with(
        "  - path: a.jsonl\n    type: chat_template\n    message_property_mappings:\n      role: from\n      \
         content: value\n    roles:\n      user: [human]\n      assistant: [gpt]\n",
    );
    expect(&sheet, &[("data.records", "\"sharegpt\""), ("data.columns.messages", "\"messages\"")]);
    let sheet = with("  - path: a.jsonl\n    type: chat_template\n    message_field_role: role\n");
    assert_eq!((sheet.get("data.records"), sheet.get("data.columns.messages")), (Some("\"messages\""), None));
    let sheet = with("  - path: a.jsonl\n    type: alpaca_w_system.load_open_orca\n");
    expect(
        &sheet,
        &[
            ("data.columns.prompt", "\"question\""),
            ("data.columns.completion", "\"response\""),
            ("data.columns.system", "\"system_prompt\""),
            ("data.as_chat", "true"),
        ],
    );
    let sheet = with("  - path: a.jsonl\n    type: gpteacher\n");
    expect(&sheet, &[("data.records", "\"alpaca\""), ("data.columns.completion", "\"response\"")]);
    assert_eq!(sheet.get("data.columns.prompt"), None);
    let sheet = with("  - path: a.jsonl\n    type: alpaca:chatml\n");
    expect(&sheet, &[("data.records", "\"alpaca\""), ("data.as_chat", "true")]);
    assert!(differs(&sheet).contains("datasets, type alpaca:chatml"), "{sheet}");
    // Marks of turns that records have here by the same names.
    for name in ["train", "weight"] {
        let sets = format!("  - path: a.jsonl\n    type: chat_template\n    message_field_training: {name}\n");
        assert_eq!(with(&sets).get("data.records"), Some("\"messages\""));
    }
    let sheet = with("  - path: a.jsonl\n    type: alpaca\n    chat_template: llama3\n");
    assert!(differs(&sheet).contains("datasets, chat_template llama3"), "{sheet}");
}

#[test]
fn columns_of_one_data_set_are_not_given_to_another() {
    for (sets, words) in [
        (
            "  - path: a\n    type: chat_template\n    field_messages: turns\n  - path: b\n    type: chat_template\n",
            "different columns for data.columns.messages: turns and messages",
        ),
        (
            "  - path: a\n    type: { field_instruction: q, field_output: a }\n  - path: b\n    type: alpaca\n",
            "different columns for data.columns.prompt: q and instruction",
        ),
        ("  - path: a\n    type: alpaca\n  - path: b\n    type: alpaca_chat\n", "formatted by the chat template"),
        ("  - path: a\n    type: explainchoice\n", "the type explainchoice is not available"),
        (
            "  - path: a\n    type: chat_template\n    message_property_mappings: { role: who, content: what }\n",
            "messages with who and what are of no form here",
        ),
        (
            "  - path: a\n    type: chat_template\n    message_property_mappings: { role: role, name: n }\n",
            "name of a message has no counterpart",
        ),
        ("  - path: a\n    type: chat_template\n    message_field_training: learn\n", "not marked by learn here"),
        (
            "  - path: a\n    type: chat_template\n    message_field_training_detail: train_detail\n",
            "train_detail marks parts of a turn",
        ),
        (
            "  - path: a\n    type: chat_template\n    roles: { user: [customer] }\n",
            "the role user is not called customer here",
        ),
        (
            "  - path: a\n    type: alpaca\ntest_datasets:\n  - path: b\n    type: chat_template\n",
            "evaluation data have another form",
        ),
    ] {
        let text = format!("{SETS}{sets}");
        let error = import::axolotl(&text, "c.yml", &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    // The usual columns of two forms are no contradiction.
    let sheet =
        with("  - path: a\n    type: chat_template\n  - path: b\n    type: sharegpt\n  - path: c\n    type: alpaca\n");
    assert_eq!(sheet.get("data.columns.messages"), None, "{sheet}");
}
