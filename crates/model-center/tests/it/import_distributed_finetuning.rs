//! Commands of "Distributed finetuning" as recipes and commands: values, accounting for every flag, and mistakes.

use crate::import::{expect, file};
use crate::import_yaml::{check_recipe, differs};
use model_center::import::{self, ImportOptions, Role, Sheet, Translated};
use model_center::recipe::{Recipe, list};
use std::path::Path;

fn finetuning(text: &str, options: &ImportOptions) -> Sheet {
    match import::distributed_finetuning(text, options).unwrap_or_else(|error| panic!("{text}: {error}")) {
        Translated::Recipe(sheet) => sheet,
        Translated::Commands(commands) => panic!("{commands}"),
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
    // Ranks of a node, of a number of nodes that is not known.
    assert_eq!(train.ranks, None);
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
fn a_warm_up_that_is_longer_than_the_run_ends_before_it() {
    let base = "src.train --model_name m --num_training_steps 100 --eval_and_save_interval 5 --batch_size_per_gpu 1 \
                --lr_schedule linear --save_path s --data_path d --no_eval";
    for (more, warmup) in [("", "99"), ("--gradient_accumulation_steps 2", "99"), ("--warmup_steps 7", "7")] {
        let sheet = finetuning(&format!("python -m {base} {more}"), &ImportOptions::default());
        expect(&sheet, &[("train.warmup", warmup)]);
        check_recipe(more, &sheet);
        assert_eq!(differs(&sheet).contains("the warm-up ends before the run"), warmup == "99", "{sheet}");
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
    let line = "bmtrain generate checkpoints/reviews/model --data data/reviews --split test --output out/texts.jsonl \
                --batch 16 --max-new-tokens 40 --sample --temperature 0.7 --top-p 0.9 --seed 5 --dtype bf16\n";
    assert!(text.contains(line), "{text}");
    for flag in ["--model-name", "--model-class", "--input-format", "--data-class", "--training-inference-type"] {
        assert!(text.contains(flag), "{flag} is not in\n{text}");
    }
    let text = commands("--batch_size 2 --model_name m --data_path d --output_file o --top_k 5");
    assert!(text.contains("bmtrain generate m --data d --split test --output o "), "{text}");
    assert!(text.contains("--top-k 5: without --do_sample"), "{text}");
    let text = commands("--batch_size 2 --model_name m --data_path 'a b' d/ --output_file o");
    assert!(text.contains("bmtrain generate m --data 'a b' --split test --output o.0 "), "{text}");
    assert!(text.contains("bmtrain generate m --data d --split test --output o.1 "), "{text}");
    assert!(text.contains("cat o.0 o.1 > o\n"), "{text}");
    let text = commands("python -m src.ds_to_hf --load_path runs/x --save_path hf --dtype float16 --model_name m");
    assert!(text.contains("bmtrain ckpt export runs/x hf --dtype f16\n"), "{text}");
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
        ("python -m src.train --model_name m", "--data-path"),
        ("python -m src.train --save_path s --stage 1", "--model-name"),
        ("python -m src.train", "there is no flag in it"),
    ] {
        let error = import::distributed_finetuning(text, &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
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
