//! The import program: commands and configurations in, recipes out that the other programs take; checkpoints of ranks
//! become models.

use crate::fixture::{Fixture, Outcome, golden};

fn import(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(env!("CARGO_BIN_EXE_import"), arguments)
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
    let finetune = env!("CARGO_BIN_EXE_finetune");
    fixture.run(finetune, &["--recipe", "recipe2.toml", "--ranks", "2", "--dry-run"]).succeeded();
    fixture.run(finetune, &["--recipe", "recipe2.toml", "--ranks", "2"]).succeeded();
    assert!(fixture.path("imported/model/config.json").exists());
    // Nothing is overwritten.
    assert!(import(&fixture, &[&ask[..], &RUN].concat()).refused().contains("recipe2.toml exists"));
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
    fixture.run(env!("CARGO_BIN_EXE_corpus"), &build).succeeded();
    let flags = "pretrain_gpt2.py --num-layers 2 --hidden-size 20 --num-attention-heads 4 --seq-length 8 \
        --max-position-embeddings 19 --batch-size 2 --train-iters 4 --data-path c --split 80,20,0 --fp16 \
        --vocab-file model/vocab.txt --save out --eval-interval 2 --eval-iters 1 --num-workers 1";
    let sets = ["--set", "model.vocabulary=97", "--out", "p.toml"];
    import(&fixture, &[&["megatron", flags][..], &sets].concat()).succeeded();
    let recipe = fixture.read("p.toml");
    assert!(recipe.contains("tokenizer = \"model\" # --vocab-file model/vocab.txt"), "{recipe}");
    fixture.run(env!("CARGO_BIN_EXE_pretrain"), &["--recipe", "p.toml", "--dry-run"]).succeeded();
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
    let recipes = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
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
