//! Updates of models in 4 bits, preferences, rewards, frozen parameters and optimizers of both trainers.

use super::{check_recipe, differs, expect, yaml};
use model_center::import::{ImportOptions, Sheet};

const AXOLOTL: &str = "base_model: m\nlearning_rate: 1e-4\n";
const FACTORY: &str = "model_name_or_path: m\ndataset: a\n";

/// The recipe of a configuration, which its reader accepts.
#[track_caller]
fn read(name: &str, more: &str, sets: &[&str]) -> Sheet {
    let base = if name == "axolotl" { AXOLOTL } else { FACTORY };
    let data = if name == "axolotl" && !more.contains("datasets") { "datasets: [{ path: a.jsonl }]\n" } else { "" };
    let options =
        ImportOptions { sets: sets.iter().map(|set| (*set).to_owned()).collect(), ..ImportOptions::default() };
    let text = format!("{base}{data}{more}");
    let sheet = yaml(name, &text, &options).unwrap_or_else(|error| panic!("{text}: {error}"));
    check_recipe(&text, &sheet);
    sheet
}

#[test]
fn updates_beside_a_model_in_4_bits_are_quantised_to_nf4() {
    let axolotl = "adapter: qlora\nload_in_4bit: true\nlora_target_linear: true\nlora_r: 32\n";
    let of_lora = axolotl.replace("qlora", "lora");
    for (name, more) in [
        ("axolotl", axolotl),
        ("axolotl", of_lora.as_str()),
        ("llama_factory", "quantization_bit: 4\nquantization_method: bnb\nlora_rank: 32\n"),
    ] {
        let sheet = read(name, more, &[]);
        expect(
            &sheet,
            &[
                ("adapter.method", "\"lora\""),
                ("adapter.quantize", "\"nf4\""),
                ("adapter.rank", "32"),
                ("adapter.targets", "[\"all-linear\"]"),
            ],
        );
        assert!(differs(&sheet).contains("on the CPU alone"), "{sheet}");
    }
    // A merged model has its own weights.
    let merged = read("axolotl", &format!("{axolotl}merge_lora: true\n"), &[]);
    assert!(merged.get("save.merged").is_none() && differs(&merged).contains("merge_lora"), "{merged}");
    let single = read("llama_factory", "quantization_bit: 4\ndouble_quantization: false\n", &[]);
    assert!(differs(&single).contains("double_quantization: false"), "{single}");
    let kwargs = "bnb_config_kwargs: { bnb_4bit_quant_type: nf4, bnb_4bit_use_double_quant: false }\n";
    assert!(differs(&read("axolotl", &format!("{axolotl}{kwargs}"), &[])).contains("bnb_config_kwargs"));
}

#[test]
fn a_checkpoint_to_continue_from_is_the_model_or_the_adapter_that_training_begins_with() {
    let run = tempfile::tempdir().unwrap();
    let (plain, parts) = (run.path().join("plain"), run.path().join("parts"));
    std::fs::create_dir_all(parts.join("pytorch_model_fsdp_0")).unwrap();
    std::fs::create_dir(&plain).unwrap();
    ["config.json", "model.safetensors"].iter().for_each(|name| std::fs::write(plain.join(name), "").unwrap());
    let (plain, parts) = (plain.display().to_string(), parts.display().to_string());
    for (name, full) in [("axolotl", ""), ("llama_factory", "finetuning_type: full\n")] {
        let resumed = |path: &str| read(name, &format!("{full}resume_from_checkpoint: {path}\n"), &[]);
        // Without the files: the command for any of them.
        let elsewhere = resumed("\"old run/checkpoint-5/\"");
        expect(&elsewhere, &[("model.path", "\"old run/checkpoint-5-model\"")]);
        let command = "`bmtrain convert 'old run/checkpoint-5' 'old run/checkpoint-5-model' --config m`";
        assert!(differs(&elsewhere).contains(command), "{elsewhere}");
        let of_fsdp = resumed(&parts);
        expect(&of_fsdp, &[("model.path", &format!("\"{parts}-model\""))]);
        let command = format!("`bmtrain convert {parts}/pytorch_model_fsdp_0 {parts}-model --config m`");
        assert!(differs(&of_fsdp).contains(&command), "{of_fsdp}");
        let whole = resumed(&plain);
        expect(&whole, &[("model.path", &format!("\"{plain}\""))]);
        assert!(!differs(&whole).contains("convert"), "{whole}");
        expect(&resumed("true"), &[("model.path", "\"m\"")]);
    }
    for (name, more) in
        [("axolotl", "adapter: lora\nlora_r: 4\nlora_target_linear: true\n"), ("llama_factory", "lora_rank: 4\n")]
    {
        let sheet = read(name, &format!("{more}resume_from_checkpoint: old/checkpoint-5\n"), &[]);
        expect(&sheet, &[("model.path", "\"m\""), ("adapter.path", "\"old/checkpoint-5\"")]);
        assert!(sheet.get("adapter.rank").is_none(), "{sheet}");
    }
    let orbax = run.path().join("orbax");
    std::fs::create_dir(&orbax).unwrap();
    std::fs::write(orbax.join("_CHECKPOINT_METADATA"), "").unwrap();
    let text = format!("{AXOLOTL}datasets: [{{ path: a.jsonl }}]\nresume_from_checkpoint: {}\n", orbax.display());
    let error = yaml("axolotl", &text, &ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("a checkpoint of Orbax") && error.contains("safetensors.flax"), "{error}");
}

#[test]
fn preferences_have_their_loss_their_numbers_and_their_columns() {
    let sets = "datasets:\n  - path: a.jsonl\n    type: chatml.intel\n";
    let dpo = read("axolotl", &format!("{sets}rl: dpo\ndpo_beta: 0.3\ndpo_label_smoothing: 0.1\n"), &[]);
    expect(
        &dpo,
        &[
            ("data.task", "\"preference\""),
            ("data.columns.prompt", "\"question\""),
            ("data.as_chat", "true"),
            ("preference.loss", "\"dpo\""),
            ("preference.beta", "0.3"),
            ("preference.label_smoothing", "0.1"),
        ],
    );
    assert_eq!((dpo.get("data.columns.chosen"), dpo.get("data.records")), (None, None));
    let ipo = read("axolotl", &format!("{sets}rl: ipo\nsample_packing: true\ntrain_on_inputs: true\n"), &[]);
    expect(&ipo, &[("preference.loss", "\"ipo\""), ("preference.beta", "0.1")]);
    let simpo = read("axolotl", &format!("{sets}rl: simpo\nsimpo_gamma: 0.7\n"), &[]);
    // Our default of beta is another one.
    expect(&simpo, &[("preference.beta", "0.1"), ("preference.gamma", "0.7")]);
    assert!(differs(&simpo).contains("cpo_alpha, default 1"), "{simpo}");
    let argilla = "datasets:\n  - path: a.jsonl\n    type: chat_template.argilla\n";
    for (more, beta) in [("orpo_alpha: 0.2\nrl_beta: 0.3\n", "0.2"), ("rl_beta: 0.3\n", "0.3"), ("", "0.1")] {
        let orpo = read("axolotl", &format!("{argilla}rl: orpo\n{more}"), &[]);
        expect(&orpo, &[("preference.loss", "\"orpo\""), ("preference.beta", beta)]);
        assert!(differs(&orpo).contains("rl: \"orpo\""), "{orpo}");
        // Conversations have the prompt.
        assert_eq!((orpo.get("data.columns.prompt"), orpo.get("data.as_chat")), (None, None), "{orpo}");
    }
    let own = "datasets:\n  - path: a.jsonl\n    type:\n      field_prompt: q\n      field_chosen: good\n      \
               field_rejected: bad\n      prompt_format: \"{prompt}\"\nrl: dpo\n";
    expect(
        &read("axolotl", own, &[]),
        &[("data.columns.prompt", "\"q\""), ("data.columns.chosen", "\"good\""), ("data.columns.rejected", "\"bad\"")],
    );
    let chat = "datasets:\n  - path: a.jsonl\n    type: chat_template.default\n    field_chosen: good\nrl: dpo\n";
    let chat = read("axolotl", chat, &[]);
    expect(&chat, &[("data.columns.prompt", "\"messages\""), ("data.columns.chosen", "\"good\"")]);
    assert_eq!(chat.get("data.as_chat"), None);
    let factory = read("llama_factory", "stage: dpo\ntemplate: qwen\npacking: true\nmask_history: true\n", &[]);
    expect(
        &factory,
        &[
            ("data.task", "\"preference\""),
            ("data.columns.prompt", "\"instruction\""),
            ("data.as_chat", "true"),
            ("preference.loss", "\"dpo\""),
            ("preference.beta", "0.1"),
        ],
    );
    let factory = read("llama_factory", "stage: dpo\npref_loss: simpo\npref_beta: 2.5\n", &[]);
    expect(&factory, &[("preference.loss", "\"simpo\""), ("preference.beta", "2.5"), ("preference.gamma", "0.5")]);
    let factory = read("llama_factory", "stage: dpo\npref_loss: orpo\n", &[]);
    expect(&factory, &[("preference.loss", "\"orpo\""), ("preference.beta", "0.1")]);
}

#[test]
fn reward_models_have_a_task_of_their_own() {
    let sets = "datasets:\n  - path: a.jsonl\n    type: bradley_terry.chat_template\n";
    let sheet = read("axolotl", &format!("{sets}reward_model: true\nlabel_smoothing_factor: 0.1\n"), &[]);
    expect(&sheet, &[("data.task", "\"reward\""), ("data.columns.prompt", "\"input\""), ("data.as_chat", "true")]);
    assert_eq!((sheet.get("preference.loss"), sheet.get("train.label_smoothing")), (None, None));
    let sheet = read("llama_factory", "stage: rm\nfinetuning_type: full\neval_dataset: b\n", &[]);
    expect(&sheet, &[("data.task", "\"reward\""), ("data.eval", "\"data/b.json\"")]);
}

#[test]
fn parts_of_models_are_trained_by_patterns_of_names() {
    let sheet = read("llama_factory", "finetuning_type: freeze\nfreeze_trainable_layers: -2\n", &[]);
    expect(&sheet, &[("train.only", "[\"*.layers.0.*\", \"*.layers.1.*\"]")]);
    assert_eq!(sheet.get("adapter.method"), None);
    let only = "train.only=[\"*.layers.31.*\"]";
    let sheet = read("llama_factory", "finetuning_type: freeze\nfreeze_trainable_layers: 1\n", &[only]);
    expect(&sheet, &[("train.only", "[\"*.layers.31.*\"]")]);
    assert!(differs(&sheet).contains("freeze_trainable_layers: 1"), "{sheet}");
    let sheet = read("axolotl", "unfrozen_parameters:\n  - model.layers.31\n", &[only]);
    expect(&sheet, &[("train.only", "[\"*.layers.31.*\"]")]);
    assert!(differs(&sheet).contains("unfrozen_parameters"), "{sheet}");
}

#[test]
fn optimizers_have_the_numbers_that_they_are_given_there() {
    let numbers = "adam_beta1: 0.8\nadam_beta2: 0.95\nadam_epsilon: 1e-6\n";
    let (both, betas) = ([Some("[0.8, 0.95]"), Some("1e-6")], [Some("[0.8, 0.95]"), None]);
    for (theirs, ours, expected) in [
        ("adamw_torch_fused", "adamw", both),
        ("adamw_bnb_8bit", "adamw-8bit", both),
        ("paged_adamw_8bit", "adamw-8bit", both),
        ("adafactor", "adafactor", [None, None]),
        ("sgd", "sgd", [None, None]),
        ("rmsprop", "rmsprop", [None, None]),
        ("lion_8bit", "lion", betas),
        ("muon", "muon", both),
    ] {
        for (name, key) in [("axolotl", "optimizer"), ("llama_factory", "optim")] {
            let sheet = read(name, &format!("{numbers}{key}: {theirs}\n"), &[]);
            assert_eq!(sheet.get("train.optimizer"), Some(format!("{ours:?}").as_str()), "{sheet}");
            assert_eq!([sheet.get("train.betas"), sheet.get("train.eps")], expected, "{theirs}: {sheet}");
        }
    }
}

#[test]
fn the_courses_of_the_learning_rate_are_those_of_the_trainers() {
    for (schedule, more, warmup, end) in [
        // There are at most 100 steps of warm-up by default.
        ("cosine", "", Some("0.03"), None),
        ("cosine", "warmup_steps: 20\ncosine_min_lr_ratio: 0.1\n", Some("20"), Some("0.1")),
        ("constant", "warmup_steps: 20\n", None, None),
        ("constant_with_warmup", "warmup_steps: 20\ncosine_min_lr_ratio: 0.1\n", Some("20"), None),
        ("polynomial", "", Some("0.03"), Some("0.001")),
        ("one_cycle", "", Some("0.03"), None),
    ] {
        let sheet = read("axolotl", &format!("lr_scheduler: {schedule}\n{more}"), &[]);
        assert_eq!([sheet.get("train.warmup"), sheet.get("train.final_lr_ratio")], [warmup, end], "{sheet}");
    }
    for (kwargs, end) in [("{ min_lr: 0.0001 }", "0.1"), ("'{\"min_lr_rate\": 0.25}'", "0.25")] {
        let text =
            format!("learning_rate: 0.001\nlr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {kwargs}\n");
        let sheet = read("llama_factory", &text, &[]);
        assert_eq!(sheet.get("train.schedule"), Some("\"cosine-with-min-lr\""), "{sheet}");
        assert_eq!(sheet.get("train.final_lr_ratio"), Some(end), "{sheet}");
    }
}

#[test]
fn a_share_of_the_steps_as_warm_up_is_rounded_as_there() {
    // The Trainer rounds up, and so does a recipe: 0.1 of 11 steps are 2.
    let trainer = read("llama_factory", "max_steps: 11\nwarmup_ratio: 0.1\n", &[]);
    assert_eq!(trainer.get("train.warmup"), Some("0.1"), "{trainer}");
    // axolotl rounds down, and makes one step two.
    for (steps, more, warmup) in [(11, "warmup_ratio: 0.1\n", "2"), (49, "warmup_ratio: 0.1\n", "4"), (9000, "", "100")]
    {
        let sheet = read("axolotl", &format!("max_steps: {steps}\n{more}"), &[]);
        assert_eq!(sheet.get("train.warmup"), Some(warmup), "{sheet}");
    }
    let unknown = read("axolotl", "warmup_ratio: 0.1\n", &[]);
    assert_eq!(unknown.get("train.warmup"), Some("0.1"), "{unknown}");
    assert!(differs(&unknown).contains("warmup_ratio: 0.1: rounded up, where axolotl rounds down"), "{unknown}");
}
