//! Configurations of axolotl and LLaMA-Factory, and commands of "Distributed finetuning", as recipes: values,
//! accounting for every key, and mistakes.

use model_center::import::{self, ImportOptions, NoteKind, Role, Sheet, Translated};
use model_center::recipe::{Recipe, list};
use std::path::Path;

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/imports").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(name: &str, text: &str, options: &ImportOptions) -> model_center::Result<Sheet> {
    match name.starts_with("axolotl") {
        true => import::axolotl(text, name, options),
        false => import::llama_factory(text, name, options),
    }
}

const FILES: [&str; 6] = [
    "axolotl_lora.yml",
    "axolotl_full.yml",
    "axolotl_completion.yml",
    "llama_factory_lora.yaml",
    "llama_factory_full.yaml",
    "llama_factory_pt.yaml",
];

fn of(name: &str) -> Sheet {
    yaml(name, &file(name), &ImportOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn finetuning(text: &str, options: &ImportOptions) -> Sheet {
    match import::distributed_finetuning(text, options).unwrap_or_else(|error| panic!("{text}: {error}")) {
        Translated::Recipe(sheet) => sheet,
        Translated::Commands(commands) => panic!("{commands}"),
    }
}

#[track_caller]
fn expect(sheet: &Sheet, values: &[(&str, &str)]) {
    for (key, value) in values {
        assert_eq!(sheet.get(key), Some(*value), "{key} in\n{sheet}");
    }
}

fn differs(sheet: &Sheet) -> String {
    let notes = sheet.notes().iter().filter(|note| note.kind == NoteKind::Differs);
    notes.map(|note| format!("{}: {}\n", note.what, note.why)).collect()
}

#[track_caller]
fn check_recipe(name: &str, sheet: &Sheet) {
    let text = sheet.to_toml();
    let is_setting = |line: &&str| line.contains(" = ") && !line.starts_with('#');
    assert!(text.lines().filter(is_setting).all(|line| line.contains(" # ")), "{text}");
    if let Err(mistakes) = Recipe::read_text(name, &text, &[]) {
        panic!("{}\n{text}", list(&mistakes));
    }
}

#[test]
fn every_configuration_is_a_recipe_that_has_every_key() {
    for name in FILES {
        let (sheet, text) = (of(name), file(name));
        check_recipe(name, &sheet);
        let recipe = sheet.to_toml();
        let keys = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
        for key in keys.map(|line| line.split(':').next().unwrap()) {
            assert!(recipe.contains(key), "{name}: {key} is not in\n{recipe}");
        }
    }
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
            ("train.schedule", "\"cosine\""),
            ("train.final_lr_ratio", "0.1"),
            ("train.warmup", "0.03"),
            ("train.weight_decay", "0.01"),
            ("train.clip_norm", "0.5"),
            ("train.optimizer", "\"adamw\""),
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
    assert!(notes.contains("sample_packing") && notes.contains("adamw_bnb_8bit"), "{notes}");
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
            ("train.schedule", "\"constant\""),
            ("train.warmup", "20"),
            ("train.divergence.patience", "3"),
            ("parallel.zero", "3"),
        ],
    );
}

#[test]
fn values_of_llama_factory_are_those_of_its_configuration() {
    let lora = of("llama_factory_lora.yaml");
    expect(
        &lora,
        &[
            ("adapter.method", "\"lora\""),
            ("adapter.rank", "16"),
            ("adapter.alpha", "32.0"),
            ("adapter.targets", "[\"q_proj\", \"v_proj\"]"),
            ("adapter.trained", "[\"lm_head\"]"),
            (
                "data.sets",
                "[{ path = \"data/identity.json\", eval = \"data/identity_dev.json\" }, \
                 { path = \"data/alpaca_en_demo.json\" }]",
            ),
            ("data.as_chat", "true"),
            ("data.packing", "true"),
            ("train.epochs", "3.0"),
            ("train.lr", "0.0001"),
            ("train.warmup", "0.1"),
            ("train.recompute", "\"blocks\""),
            ("eval.every", "\"500 steps\""),
            ("eval.batch_size", "1"),
            ("checkpoint.every", "\"500 steps\""),
        ],
    );
    let notes = differs(&lora);
    assert!(notes.contains("dataset_info.json") && notes.contains("max_samples"), "{notes}");
    let full = of("llama_factory_full.yaml");
    expect(
        &full,
        &[
            ("data.train", "\"data/own/instructions.json\""),
            ("data.loss_on", "\"last\""),
            ("train.steps", "800"),
            ("train.schedule", "\"polynomial\""),
            ("train.weight_decay", "0.1"),
            ("parallel.zero", "2"),
        ],
    );
    assert_eq!(
        (full.get("train.recompute"), full.get("adapter.method"), full.get("checkpoint.every")),
        (None, None, None)
    );
    let texts = of("llama_factory_pt.yaml");
    expect(
        &texts,
        &[
            (
                "data.sets",
                "[{ path = \"data/wiki_demo.json\", proportion = 0.3, records = \"text\" }, \
                 { path = \"data/c4_demo.json\", proportion = 0.7, records = \"text\" }]",
            ),
            ("train.micro_batch_size", "8"),
            ("train.lr", "5e-5"),
            ("train.schedule", "\"linear\""),
        ],
    );
}

#[test]
fn what_cannot_be_kept_is_refused_with_its_line_and_a_way_out() {
    let none = ImportOptions::default();
    let base = "base_model: m\ndatasets:\n  - path: a.jsonl\n    type: alpaca\nlearning_rate: 1e-4\n";
    for (more, words) in [
        ("adapter: qlora\nload_in_4bit: true\n", vec!["c.yml:6, adapter", "8 or 4 bits", "write adapter: lora"]),
        ("load_in_4bit: true\nrl: dpo\n", vec!["load_in_4bit", "also refused: rl", "--leave load_in_4bit"]),
        ("adapter: lora\n", vec!["no layers are named", "lora_target_linear: true"]),
        ("learning_rat: 1\n", vec!["c.yml:6, learning_rat", "did you mean learning_rate?"]),
        ("optimizer: adafactor\n", vec!["the optimizer adafactor is not available", "adamw_torch"]),
        ("lr_scheduler: rex\n", vec!["the schedule rex is not available"]),
        ("bf16: true\nfp16: true\n", vec!["bf16 and fp16 are both set"]),
        ("micro_batch_size: two\n", vec!["\"two\" is not a number"]),
        ("micro_batch_size: 0\n", vec!["the batch equation"]),
        ("trust_remote_code: true\n", vec!["no code of a model is run"]),
        ("lr_scheduler: one_cycle\n", vec!["one cycle rises over its warm-up"]),
    ] {
        let error = import::axolotl(&format!("{base}{more}"), "c.yml", &none).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{more}: {word} is not in {error}");
        }
    }
    for (text, words) in [
        ("base_model: m\n", "there is no data set"),
        ("datasets: []\n", "there is no model"),
        ("base_model: m\ndatasets:\n  - path: a\n    type: input_output\n", "the type input_output is not available"),
        ("base_model: m\ndatasets:\n  - path: a\n    shards: 4\n", "shards of a data set has no counterpart"),
        ("base_model: m\ndatasets:\n  - path: a\n    train_on_eos: all\n", "train_on_eos has no counterpart"),
    ] {
        let error = import::axolotl(text, "c.yml", &none).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    let base = "model_name_or_path: m\ndataset: a\n";
    for (more, words) in [
        ("stage: dpo\n", "stage dpo"),
        ("finetuning_type: freeze\n", "finetuning_type freeze is not available"),
        ("quantization_bit: 4\n", "8 or 4 bits"),
        ("train_on_prompt: true\nmask_history: true\n", "learns what it masks"),
        ("interleave_probs: 0.5\nmix_strategy: x\n", "numbers with commas"),
        ("pref_beta: 0.1\n", "supervised fine-tuning"),
    ] {
        let error = import::llama_factory(&format!("{base}{more}"), "c.yml", &none).unwrap_err().to_string();
        assert!(error.contains(words), "{more}: {error}");
    }
    // What is passed over is in the recipe as a difference.
    let leave = ImportOptions { leave: vec!["quantization_bit".into()], ..ImportOptions::default() };
    let sheet = import::llama_factory(&format!("{base}quantization_bit: 4\n"), "c.yml", &leave).unwrap();
    assert!(differs(&sheet).contains("quantization_bit: 4: left out as asked"), "{sheet}");
}

/// A value that a key of either table accepts, where most take a number.
fn sample(key: &str) -> Option<&'static str> {
    Some(match key {
        "bf16"
        | "bfloat16"
        | "fp16"
        | "float16"
        | "pure_bf16"
        | "sample_packing"
        | "train_on_inputs"
        | "packing"
        | "group_by_length"
        | "peft_use_rslora"
        | "lora_target_linear"
        | "merge_lora"
        | "gradient_checkpointing"
        | "neat_packing"
        | "train_on_prompt"
        | "mask_history"
        | "use_rslora"
        | "use_muon"
        | "shuffle_merged_datasets"
        | "disable_gradient_checkpointing" => "true",
        "optimizer" | "optim" => "adamw_torch",
        "lr_scheduler" | "lr_scheduler_type" => "cosine",
        "eval_strategy" | "evaluation_strategy" | "save_strategy" => "epoch",
        "warmup_ratio"
        | "val_set_size"
        | "val_size"
        | "lora_dropout"
        | "label_smoothing_factor"
        | "cosine_min_lr_ratio"
        | "adam_beta1"
        | "adam_beta2"
        | "weight_decay" => "0.1",
        "stage" => "sft",
        "finetuning_type" | "adapter" => "lora",
        "fsdp" => "[full_shard]",
        "fsdp_config" => "{ a: b }",
        "datasets" | "test_datasets" | "pretraining_dataset" => "[{ path: b.jsonl }]",
        "base_model"
        | "model_name_or_path"
        | "dataset"
        | "eval_dataset"
        | "dataset_dir"
        | "template"
        | "output_dir"
        | "run_name"
        | "tokenizer_config"
        | "revision_of_model"
        | "model_revision"
        | "chat_template"
        | "deepspeed"
        | "chat_template_jinja"
        | "lora_model_dir"
        | "adapter_name_or_path"
        | "lora_target_modules"
        | "lora_target"
        | "lora_modules_to_save"
        | "additional_target"
        | "mix_strategy" => "name",
        "interleave_probs" => return None,
        _ => "8",
    })
}

#[test]
fn every_key_of_the_tables_alone_is_accounted_for() {
    let none = ImportOptions::default();
    let tables = [
        (
            "axolotl",
            import::axolotl_keys(),
            "base_model: m\ndatasets: [{ path: a.jsonl }]\nlearning_rate: 1.0\nlora_target_linear: true\n",
        ),
        ("llama_factory", import::llama_factory_keys(), "model_name_or_path: m\ndataset: a\n"),
    ];
    for (name, table, base) in tables {
        assert!(table.len() > 100);
        for key in table {
            let Some(value) = sample(key.name) else { continue };
            let kept: String = base
                .lines()
                .filter(|line| !line.starts_with(&format!("{}:", key.name)))
                .map(|l| format!("{l}\n"))
                .collect();
            let text = format!("{kept}{}: {value}\n", key.name);
            let read = yaml(name, &text, &none);
            match key.role {
                Role::Refused(why) => {
                    let error = read.err().unwrap_or_else(|| panic!("{text} is accepted")).to_string();
                    assert!(error.contains(key.name) && error.contains(why), "{text}: {error}");
                }
                _ => {
                    let recipe = read.unwrap_or_else(|error| panic!("{text}: {error}")).to_toml();
                    assert!(recipe.contains(key.name), "{} is not in\n{recipe}", key.name);
                }
            }
        }
        let mut names: Vec<&str> = table.iter().map(|key| key.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{name} lists a key twice");
    }
}

#[test]
fn a_command_of_distributed_finetuning_is_a_recipe_with_its_values() {
    let none = ImportOptions::default();
    let train = finetuning(&file("finetuning_train.sh"), &none);
    // What is evaluated is looked for in the directories.
    let directory = tempfile::tempdir().unwrap();
    for set in ["reviews", "facts"] {
        std::fs::create_dir_all(directory.path().join("data").join(set).join("val")).unwrap();
    }
    let data = format!("\"{}/data/", directory.path().display());
    let text = train.to_toml().replace("\"data/", &data);
    if let Err(mistakes) = Recipe::read_text("finetuning_train.sh", &text, &[]) {
        panic!("{}\n{text}", list(&mistakes));
    }
    expect(
        &train,
        &[
            ("model.path", "\"models/bloom\""),
            ("model.dtype", "\"bf16\""),
            ("data.task", "\"sft\""),
            (
                "data.sets",
                "[{ path = \"data/reviews\", records = \"input-output\", proportion = 3, \
                 input_format = \"Review: __input__\", output_format = \" Class: __output__\", max_input_tokens = 200, \
                 max_output_tokens = 10 }, { path = \"data/facts\", records = \"input-output\", proportion = 1, \
                 input_format = \"Question: __input__\", output_format = \" Answer: __output__\", \
                 max_input_tokens = 300, max_output_tokens = 60 }]",
            ),
            ("data.max_length", "361"),
            // Micro-batches there.
            ("train.steps", "1000"),
            ("train.decay_steps", "2000"),
            ("train.accumulation", "2"),
            ("train.micro_batch_size", "4"),
            ("train.lr", "2e-5"),
            ("train.weight_decay", "0.05"),
            ("train.decay_norms_and_biases", "true"),
            ("train.betas", "[0.9, 0.95]"),
            ("train.warmup", "100"),
            ("train.schedule", "\"cosine\""),
            ("train.clip_kind", "\"none\""),
            ("train.offload", "true"),
            ("train.offload_parameters", "true"),
            ("train.seed", "42"),
            ("eval.every", "\"250 steps\""),
            ("checkpoint.every", "\"250 steps\""),
            ("run.name", "\"reviews\""),
            ("output.dir", "\"checkpoints/reviews\""),
            ("parallel.zero", "3"),
        ],
    );
    assert_eq!(train.ranks, Some(4));
    let prompt = finetuning(&file("finetuning_prompt.sh"), &none);
    check_recipe("finetuning_prompt.sh", &prompt);
    assert!(prompt.get("eval.every").is_none() && differs(&prompt).contains("--no-eval"), "{prompt}");
    expect(
        &prompt,
        &[
            ("adapter.method", "\"prompt\""),
            ("adapter.virtual_tokens", "20"),
            ("adapter.prompt_text", "\"Classify the sentence:\""),
            ("adapter.prompt_stacks", "\"both\""),
            (
                "data.sets",
                "[{ path = \"data/sst2\", class = \"sst2\", max_input_tokens = 128, max_output_tokens = 8 }]",
            ),
            ("data.max_length", "128"),
            ("data.target_length", "8"),
            ("train.steps", "1000"),
            ("parallel.zero", "0"),
        ],
    );
    for (name, sheet) in [("finetuning_train.sh", train), ("finetuning_prompt.sh", prompt)] {
        let (script, text) = (file(name), sheet.to_toml());
        let launcher = ["--nproc", "--nnodes", "--node_rank", "--rdzv"];
        let flags = script.split_whitespace().filter(|word| word.starts_with("--"));
        for flag in flags.filter(|flag| !launcher.iter().any(|own| flag.starts_with(own))) {
            assert!(text.contains(&flag.replace('_', "-")), "{name}: {flag} is not in\n{text}");
        }
    }
}

#[test]
fn generation_and_export_of_distributed_finetuning_are_commands() {
    let none = ImportOptions::default();
    let commands = |text: &str| match import::distributed_finetuning(text, &none) {
        Ok(Translated::Commands(commands)) => commands.to_string(),
        other => panic!("{text}: {other:?}"),
    };
    let text = commands(
        "python -m src.generate --model_name models/bloom --model_class AutoModelForCausalLM --dtype bfloat16 \
         --load_path checkpoints/reviews --data_path data/reviews --data_class JSONLinesDataset \
         --input_format x__input__ --batch_size 16 --do_sample --top_p 0.9 --temperature 0.7 --max_new_tokens 40 \
         --seed 5 \
         --output_file out/texts.jsonl --training_inference_type full_finetuning",
    );
    let line = "generate checkpoints/reviews/model --input test.jsonl --output out/texts.jsonl --batch 16 \
                --max-new-tokens 40 --sample --temperature 0.7 --top-p 0.9 --seed 5 --dtype bf16\n";
    assert!(text.contains("cat data/reviews/test/*.jsonl > test.jsonl\n") && text.contains(line), "{text}");
    for flag in ["--model-name", "--model-class", "--input-format", "--data-class", "--training-inference-type"] {
        assert!(text.contains(flag), "{flag} is not in\n{text}");
    }
    let text = commands("--batch_size 2 --model_name m --data_path d --output_file o --top_k 5");
    assert!(text.contains("generate m --input") && text.contains("--top-k 5: without --do_sample"), "{text}");
    let text = commands("python -m src.ds_to_hf --load_path runs/x --save_path hf --dtype float16 --model_name m");
    assert!(text.contains("ckpt export runs/x hf --dtype f16\n"), "{text}");
}

#[test]
fn what_distributed_finetuning_refuses_is_refused_here_too() {
    let base = "src.train --model_name m --num_training_steps 10 --eval_and_save_interval 5 --batch_size_per_gpu 1 \
                --lr_schedule linear --save_path s --data_path d";
    for (more, words) in [
        ("--num_virtual_tokens 5", "it is for prompt tuning"),
        ("--training_inference_type prompt_tuning --num_virtual_tokens 5 --prompt_tuning_init TEXT", "it is missing"),
        (
            "--training_inference_type prompt_tuning --num_virtual_tokens 5 --prompt_tuning_init RANDOM \
             --prompt_tuning_init_text x",
            "RANDOM takes no text",
        ),
        ("--training_inference_type lora", "none of full_finetuning, prompt_tuning"),
        ("--max_input_tokens 5 6", "2 values for 1 data sets"),
        ("--data_class YatinAnswerabilityDataset", "the class YatinAnswerabilityDataset is not available"),
        ("--data_config '{\"files\": 1}'", "--leave data-config"),
        ("--stage 4", "stage 4 is none of 0 to 3"),
        ("--dtype int8", "none of float32"),
        ("--learning_rat 1 --lr_schedul x --no", "unknown flag"),
    ] {
        let text = format!("python -m {base} {more}");
        let error = import::distributed_finetuning(&text, &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains(words), "{more}: {error}");
    }
    for (text, words) in [
        ("python -m src.train --model_name m", "--training"),
        ("python -m src.train --save_path s --stage 1", "--model-name"),
        ("python -m src.train", "there is no flag in it"),
    ] {
        assert!(import::distributed_finetuning(text, &ImportOptions::default()).is_err(), "{text}: {words}");
    }
}

/// The page has one row for each flag of the list, and no other.
#[test]
fn the_page_has_every_flag_of_distributed_finetuning_with_ours() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/from-distributed-finetuning.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows: Vec<(String, &str)> = page
        .lines()
        .filter(|line| line.starts_with("| `--"))
        .map(|line| {
            let mut cells = line.trim_matches('|').split(" | ");
            let flag = cells.next().unwrap().trim().trim_matches('`').replace('_', "-");
            (flag, cells.next().unwrap_or_default().trim())
        })
        .collect();
    let known = import::distributed_finetuning_flags();
    for flag in known {
        let rows: Vec<_> = rows.iter().filter(|(name, _)| name == flag.name).collect();
        assert_eq!(rows.len(), 1, "{} has {} rows", flag.name, rows.len());
        let is_unused = matches!(flag.role, Role::Unused(_));
        assert_eq!(rows[0].1 == "none", is_unused, "{}: {}", flag.name, rows[0].1);
    }
    for (name, _) in &rows {
        assert!(known.iter().any(|flag| flag.name == name), "{name} is not a flag of the list");
    }
    // Keys that the page names are keys of recipes.
    let settings = model_center::recipe::settings_page(model_center::recipe::OwnData::default());
    let keys = page.split('`').skip(1).step_by(2).filter(|span| {
        let tables =
            ["model.", "adapter.", "data.", "train.", "eval.", "checkpoint.", "log.", "run.", "output.", "parallel."];
        tables.iter().any(|table| span.starts_with(table)) && !span.contains([' ', '*'])
    });
    let mut seen = 0;
    for key in keys {
        seen += 1;
        assert!(settings.contains(&format!("| `{key}` |")), "{key} is not a key");
    }
    assert!(seen > 20, "only {seen} keys were found");
}
