//! The import program: commands and configurations in, recipes out that the other programs take; checkpoints of ranks
//! become models.

use crate::fixture::program;
use crate::fixture::{Fixture, Outcome, golden};

fn import(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(program("import"), arguments)
}

/// The sets that make a configuration of DeepSpeed a run on the fixture's files.
const RUN: [&str; 12] = [
    "--set",
    "model.path=model",
    "--set",
    "data.task=classification",
    "--set",
    "data.train=train.jsonl",
    "--set",
    "data.eval=eval.jsonl",
    "--set",
    "data.max_length=24",
    "--set",
    "output.dir=imported",
];

const ZERO: &str = r#"{
    "train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0,
    "zero_optimization": { "stage": 2, "offload_optimizer": { "device": "cpu" }, "overlap_comm": true },
    "optimizer": { "type": "AdamW", "params": { "lr": 1e-3 } },
    "scheduler": { "type": "WarmupDecayLR", "params": { "total_num_steps": 2, "warmup_num_steps": 1 } }
}"#;

#[test]
fn a_configuration_of_deepspeed_trains() {
    let fixture = Fixture::new();
    fixture.write("ds.json", ZERO);
    let ask = ["deepspeed", "ds.json", "--ranks", "2", "--out", "recipe2.toml"];
    let outcome = import(&fixture, &[&ask[..], &RUN].concat()).succeeded();
    assert!(outcome.stdout.starts_with("recipe2.toml: "), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("warning: warmup_type log: the warm-up is linear"), "{}", outcome.stderr);
    let recipe = fixture.read("recipe2.toml");
    assert!(recipe.contains("lr = 0.001 # optimizer.params.lr 0.001"), "{recipe}");
    assert!(recipe.contains("#   zero_optimization.overlap_comm true: "), "{recipe}");
    let finetune = program("finetune");
    fixture.run(finetune, &["--recipe", "recipe2.toml", "--ranks", "2", "--dry-run"]).succeeded();
    fixture.run(finetune, &["--recipe", "recipe2.toml", "--ranks", "2"]).succeeded();
    assert!(fixture.path("imported/model/config.json").exists());
    // Nothing is overwritten.
    assert!(import(&fixture, &[&ask[..], &RUN].concat()).refused().contains("recipe2.toml exists"));
}

#[cfg(unix)]
#[test]
fn with_few_open_files_the_recipe_is_there_as_a_whole_or_not_at_all() {
    let fixture = Fixture::new();
    fixture.write("ds.json", ZERO);
    let ask = ["deepspeed", "ds.json", "--ranks", "2", "--out"];
    import(&fixture, &[&ask[..], &["whole.toml"], &RUN].concat()).succeeded();
    let mut codes = std::collections::BTreeSet::new();
    for limit in 3..10 {
        let script = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
        let limited = ["-c", &script, program("import")];
        let outcome = fixture.run("sh", &[&limited[..], &ask, &["limited.toml"], &RUN].concat());
        assert_eq!(outcome.code == 0, fixture.path("limited.toml").exists(), "{limit}: {outcome:?}");
        if outcome.code == 0 {
            assert_eq!(fixture.read("limited.toml"), fixture.read("whole.toml"));
            std::fs::remove_file(fixture.path("limited.toml")).unwrap();
        }
        let left = fixture.snapshot().into_keys().find(|path| path.to_string_lossy().contains("limited"));
        assert_eq!(left, None, "{limit}");
        codes.insert(outcome.code);
    }
    assert!(codes.contains(&0) && codes.contains(&5), "{codes:?}");
}

#[test]
fn a_command_is_a_script_a_text_words_or_standard_input() {
    let fixture = Fixture::new();
    let flags = ["--num-layers", "2", "--hidden-size", "20", "--num-attention-heads", "4", "--train-iters", "5"];
    fixture.write("run.sh", &format!("N=2\npython pretrain_gpt2.py {}\n", flags.join(" ").replace(" 2 ", " $N ")));
    let script = import(&fixture, &["megatron", "run.sh"]).succeeded().stdout;
    let text = import(&fixture, &["megatron", &flags.join(" ")]).succeeded().stdout;
    let words = import(&fixture, &[&["megatron", "--"][..], &flags].concat()).succeeded().stdout;
    assert_eq!((&script, &text), (&text, &words));
    assert!(text.contains("\nlayers = 2 # --num-layers 2\n"), "{text}");
    let refused = import(&fixture, &["megatron", "--", "--no-such-flag"]).refused();
    assert!(refused.contains("unknown flag") && refused.contains("fix: "), "{refused}");
    let refused = import(&fixture, &["deepspeed", "none.json"]);
    assert_ne!(refused.code, 0);
}

#[test]
fn a_command_of_megatron_is_a_run_on_token_files() {
    let fixture = Fixture::decoder();
    let build = ["build", "train.jsonl", "--tokenizer", "model", "--out", "c", "--eod-token", "[SEP]"];
    fixture.run(program("corpus"), &build).succeeded();
    let flags = "pretrain_gpt2.py --num-layers 2 --hidden-size 20 --num-attention-heads 4 --seq-length 8 \
        --max-position-embeddings 19 --batch-size 2 --train-iters 4 --data-path c --split 80,20,0 --fp16 \
        --vocab-file model/vocab.txt --save out --eval-interval 2 --eval-iters 1 --num-workers 1";
    let sets = ["--set", "model.vocabulary=97", "--out", "p.toml"];
    import(&fixture, &[&["megatron", flags][..], &sets].concat()).succeeded();
    let recipe = fixture.read("p.toml");
    assert!(recipe.contains("tokenizer = \"model\" # --vocab-file model/vocab.txt"), "{recipe}");
    fixture.run(program("pretrain"), &["--recipe", "p.toml", "--dry-run"]).succeeded();
}

const AXOLOTL: &str = "base_model: model
datasets:
  - path: train.jsonl
    type:
      field_instruction: question
      field_output: answer
sequence_len: 19
adapter: lora
lora_r: 4
lora_target_linear: true
micro_batch_size: 2
gradient_accumulation_steps: 2
num_epochs: 1
learning_rate: 2e-4
wandb_project: none
output_dir: out
";

#[test]
fn configurations_in_yaml_train() {
    let fixture = Fixture::decoder();
    fixture.write("train.jsonl", &"{\"question\": \"is it good ?\", \"answer\": \"yes\"}\n".repeat(8));
    fixture.write("lora.yml", AXOLOTL);
    let outcome = import(&fixture, &["axolotl", "lora.yml", "--out", "a.toml"]).succeeded();
    assert!(outcome.stdout.starts_with("a.toml: "), "{}", outcome.stdout);
    assert!(
        fixture.read("a.toml").contains("#   wandb_project: \"none\": runs are read"),
        "{}",
        fixture.read("a.toml")
    );
    let finetune = program("finetune");
    fixture.run(finetune, &["--recipe", "a.toml", "--dry-run"]).succeeded();
    fixture.run(finetune, &["--recipe", "a.toml"]).succeeded();
    assert!(fixture.path("out/model/adapter_config.json").exists());
    fixture.write("data/pairs.json", "[{\"prompt\": \"is it good ?\", \"completion\": \"yes\"}]");
    fixture.write("sft.yaml", "model_name_or_path: model\nfinetuning_type: full\ndataset: pairs\ncutoff_len: 19\n");
    let sets = ["--set", "train.micro_batch_size=1", "--set", "output.dir=full", "--out", "l.toml"];
    let outcome = import(&fixture, &[&["llama-factory", "sft.yaml"][..], &sets].concat()).succeeded();
    assert!(outcome.stderr.contains("warning: dataset: \"pairs\""), "{}", outcome.stderr);
    fixture.run(finetune, &["--recipe", "l.toml", "--dry-run"]).succeeded();
    let refused = import(&fixture, &["axolotl", "recipe.toml"]).refused();
    assert!(refused.contains("recipe.toml"), "{refused}");
}

#[test]
fn preferences_and_frozen_blocks_of_configurations_train() {
    let fixture = Fixture::decoder();
    let pair = |at: usize| {
        format!("{{\"instruction\": \"is film {at} ?\", \"chosen\": \"good it is\", \"rejected\": \"bad he was\"}}\n")
    };
    fixture.write("data/pairs.json", &(0..8).map(pair).collect::<String>());
    fixture.write("dpo.yaml", "model_name_or_path: model\nstage: dpo\ndataset: pairs\ncutoff_len: 19\nlora_rank: 2\n");
    fixture.write(
        "freeze.yaml",
        "model_name_or_path: model\nstage: rm\nfinetuning_type: freeze\nfreeze_trainable_layers: -1\n\
         dataset: pairs\ncutoff_len: 19\noptim: adafactor\n",
    );
    let finetune = program("finetune");
    for (name, has_frozen) in [("dpo", false), ("freeze", true)] {
        let (yaml, toml, dir) = (format!("{name}.yaml"), format!("{name}.toml"), format!("output.dir={name}"));
        let sets = ["--set", "train.micro_batch_size=2", "--set", "train.epochs=1", "--set", &dir, "--out", &toml];
        import(&fixture, &[&["llama-factory", &yaml][..], &sets].concat()).succeeded();
        assert_eq!(fixture.read(&toml).contains("only = [\"*.layers.0.*\"]"), has_frozen);
        fixture.run(finetune, &["--recipe", &toml]).succeeded();
        assert!(fixture.path(&format!("{name}/model")).exists());
    }
}

#[test]
fn commands_of_distributed_finetuning_train_and_generate() {
    let fixture = Fixture::decoder();
    for (file, count) in [("data/train/a.jsonl", 8), ("data/val/b.jsonl", 2)] {
        fixture.write(file, &"{\"input\": \"is it good ?\", \"output\": \"yes\"}\n".repeat(count));
    }
    let command = "python -m src.train --model_name model --model_class AutoModelForCausalLM --data_path data \
        --max_input_tokens 10 --max_output_tokens 4 --num_training_steps 4 --gradient_accumulation_steps 2 \
        --eval_and_save_interval 2 --batch_size_per_gpu 2 --lr_schedule linear --warmup_steps 1 --stage 0 \
        --save_path out";
    import(&fixture, &["distributed-finetuning", command, "--out", "f.toml"]).succeeded();
    let finetune = program("finetune");
    fixture.run(finetune, &["--recipe", "f.toml", "--dry-run"]).succeeded();
    fixture.run(finetune, &["--recipe", "f.toml"]).succeeded();
    let command = "src.generate --model_name model --load_path out --data_path data --batch_size 2 --output_file \
                   o.jsonl --max_new_tokens 3";
    let script = import(&fixture, &["distributed-finetuning", &format!("python -m {command}")]).succeeded().stdout;
    let line = script.lines().find_map(|line| line.strip_prefix("bmtrain generate "));
    let line = line.unwrap_or_else(|| panic!("{script}"));
    assert!(line.starts_with("out/model --data data --split test --output o.jsonl --batch 2 "), "{script}");
    fixture.write("data/test/a.jsonl", "{\"input\": \"is it good ?\"}\n{\"input\": \"was it ?\"}\n");
    fixture.run(program("generate"), &line.split_whitespace().collect::<Vec<_>>()).succeeded();
    assert_eq!(fixture.read("o.jsonl").lines().count(), 2);
}

#[test]
fn checkpoints_of_ranks_are_converted_with_a_report() {
    let fixture = Fixture::new();
    let ranked = golden("ranked", "gpt2_v1").display().to_string();
    let ask = [ranked.as_str(), "own", "--vocab-size", "97", "--report", "report.jsonl"];
    let outcome = fixture.convert(&ask).succeeded();
    assert!(outcome.stdout.contains("rows of padding left out of the vocabulary: 15"), "{}", outcome.stdout);
    let report = fixture.read("report.jsonl");
    let has = |action: &str| report.contains(&format!("\"action\":\"{action}\""));
    assert!(has("reordered") && has("merged") && has("copied"), "{report}");
    let refused = fixture.convert(&[ranked.as_str(), "other", "--family", "gpt2"]).refused();
    assert!(refused.contains("--family"), "{refused}");
    let model = golden("gpt2_a", "lm").display().to_string();
    assert!(fixture.convert(&[model.as_str(), "other", "--heads", "4"]).refused().contains("--heads"));
}

/// ModelCenter's commands, in the flags that differ from its defaults, and the recipes that have their values.
const PREDECESSORS: [(&str, &str); 8] = [
    (
        "boolq_bert.toml",
        "finetune_bert.py --model-config bert-large-cased --dataset BoolQ --batch-size 64 --train-iters 1400 --lr 1e-5 \
         --lr-decay-style constant --warmup-iters 0 --weight-decay 1e-2 --clip-grad 10 --loss-scale 128",
    ),
    (
        "boolq_gpt2.toml",
        "finetune_gpt2.py --model-config gpt2-base --dataset BoolQ --batch-size 64 --train-iters 1400 --lr 5e-5 \
         --lr-decay-style constant --warmup-iters 100 --clip-grad 10",
    ),
    (
        "rte_gptj.toml",
        "finetune_gptj.py --model-config gptj-6b --dataset RTE --batch-size 16 --lr 1e-5 --warmup-iters 40 \
         --clip-grad 10",
    ),
    (
        "rte_t5.toml",
        "finetune_t5.py --model-config t5-11b --dataset RTE --batch-size 16 --lr 1e-5 --lr-decay-style constant \
         --warmup-iters 100 --clip-grad 10 --max-decoder-length 2",
    ),
    (
        "squad_t5.toml",
        "finetune_t5_squad.py --model-config t5-3b --batch-size 16 --lr 1e-5 --lr-decay-style constant \
         --warmup-iters 0 --max-decoder-length 32",
    ),
    (
        "rte_llama.toml",
        "finetune_llama.py --model-config llama-7b --dataset RTE --batch-size 16 --lr 1e-5 --lr-decay-style constant \
         --warmup-iters 140 --loss-scale 1048576",
    ),
    (
        "lcqmc_cpm1.toml",
        "finetune_cpm1.py --model-config cpm1-large --dataset LCQMC --batch-size 64 --lr .02 --warmup-iters 200 \
         --loss-scale 1048576",
    ),
    (
        "lcqmc_cpm2.toml",
        "finetune_cpm2.py --model-config cpm2-large --dataset LCQMC --batch-size 64 --lr .002 --warmup-iters 200 \
         --loss-scale 1048576",
    ),
];

#[test]
fn recipes_have_the_values_of_model_centers_commands() {
    use model_center::import::{ImportOptions, model_center};
    use model_center::recipe::Recipe;
    let recipes = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/recipes");
    for (name, command) in PREDECESSORS {
        let resolved = Recipe::load(Some(&recipes.join(name)), &[]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let config = resolved.print_config();
        let sheet = model_center(command, &ImportOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Where a program runs and what fits into memory is another matter.
        let keys = ["task", "max_length", "target_length", "epochs", "batch_size", "lr", "schedule", "warmup"];
        let more = ["weight_decay", "decay_norms_and_biases", "offload", "clip_norm", "seed"];
        for line in sheet.lines() {
            let (table, key) = line.key.rsplit_once('.').unwrap();
            if !(keys.contains(&key) || more.contains(&key)) || !["data", "train"].contains(&table) {
                continue;
            }
            let settings = config.lines().filter_map(|line| line.split('#').next()?.trim().split_once(" = "));
            let mut own = settings.filter(|(name, _)| *name == key).map(|(_, value)| value);
            // 12 epochs are 12.0.
            let number = |text: &str| text.parse::<f64>().ok();
            let is_same = |own: &str| own == line.value || number(own).is_some() && number(own) == number(&line.value);
            assert!(own.any(is_same), "{name}: {key} = {}, {} is not in\n{config}", line.value, line.from);
        }
    }
}
