//! Every flag of Megatron-LM and ModelCenter, and every schedule, in recipes that their reader accepts.

use crate::import::{expect, notes};
use model_center::import::{self, ImportOptions, NoteKind, Role};
use model_center::recipe::Recipe;

/// A value that a flag of this name accepts.
fn sample(flag: &str) -> &'static str {
    match flag {
        "--lr-decay-style" => "cosine",
        "--num-unique-layers" => "12",
        "--param-sharing-style" => "spaced",
        "--optimizer" => "adam",
        "--normalization" => "LayerNorm",
        "--position-embedding-type" => "learned_absolute",
        "--recompute-granularity" => "full",
        "--recompute-method" => "uniform",
        "--warmup" | "--lr-warmup-fraction" | "--adam-beta1" | "--adam-beta2" | "--hidden-dropout" => "0.02",
        "--loss-scale" | "--initial-loss-scale" | "--min-scale" | "--min-loss-scale" => "64",
        "--split" => "8,1,1",
        "--num-attention-heads" | "--seq-length" | "--enc-seq-length" | "--encoder-seq-length" => "8",
        "--attention-dropout" | "--min-lr" => "0",
        "--rampup-batch-size" => "4 4 16",
        "--tokenizer-type" => "GPT2BPETokenizer",
        "--lr" => "1",
        "--max-position-embeddings" => "2048",
        "--data-path" => "data/x",
        "--global-batch-size" => "4",
        _ => "64",
    }
}

#[test]
fn every_flag_of_the_list_alone_is_accounted_for() {
    let none = ImportOptions::default();
    let mut mistakes = Vec::new();
    for flag in import::megatron_flags() {
        let data = if flag.name.contains("data") { "" } else { "--data-path data/x" };
        let mut command = format!("--hidden-size 64 --num-attention-heads 8 --train-iters 100 {data} {} ", flag.name);
        if flag.takes != import::Takes::Nothing {
            command += sample(flag.name);
        }
        if flag.name.contains("samples") || flag.name == "--rampup-batch-size" {
            command += " --global-batch-size 8";
        }
        let read = import::megatron(&command, &none);
        // Refused with a reason, or those that need others.
        let needs = ["--swiglu", "--use-rotary-position-embeddings", "--apply-residual-connection-post-layernorm"];
        if matches!(flag.role, Role::Refused(_)) || needs.contains(&flag.name) {
            assert!(read.is_err(), "{command}");
            continue;
        }
        let text = read.unwrap_or_else(|error| panic!("{command}: {error}")).to_toml();
        assert!(text.contains(flag.name), "{} is not in\n{text}", flag.name);
        mistakes.extend(refused(&command, &text));
    }
    let program = "finetune_bert.py --model-config bert-base-cased --dataset RTE";
    for flag in import::model_center_flags() {
        let value = match flag.name {
            "--model-config" => "bert-large-cased",
            "--dataset-name" => "BoolQ",
            other => sample(other),
        };
        let text = import::model_center(&format!("{program} {} {value}", flag.name), &none)
            .unwrap_or_else(|error| panic!("{}: {error}", flag.name))
            .to_toml();
        assert!(text.contains(flag.name), "{} is not in\n{text}", flag.name);
        mistakes.extend(refused(flag.name, &text));
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

/// What the reader of recipes refuses, but for data that a flag alone cannot give.
fn refused(command: &str, text: &str) -> Vec<String> {
    let mistakes = Recipe::read_text("recipe", text, &[]).err().unwrap_or_default();
    let is_missing = |reason: &str| reason.contains("`data.corpora` is missing");
    let mistakes = mistakes.into_iter().filter(|mistake| !is_missing(&mistake.reason));
    mistakes.map(|mistake| format!("{command}: {}", mistake.reason)).collect()
}

#[test]
fn every_schedule_and_program_gives_a_recipe_that_can_be_read() {
    let none = ImportOptions::default();
    let mut mistakes = Vec::new();
    for style in ["linear", "cosine", "constant", "exponential"] {
        for more in
            ["", "--min-lr 1e-5", "--lr-decay-iters 50", "--fp16", "--weight-decay 0", "--save s", "--split 1,0,0"]
        {
            for program in ["pretrain_gpt2.py", "pretrain_bert.py", "pretrain_t5.py"] {
                let command = format!(
                    "{program} --hidden-size 64 --num-attention-heads 8 --train-iters 100 --data-path data/x \
                     --vocab-file v/vocab.txt --lr 1e-3 --lr-decay-style {style} {more}"
                );
                let sheet = import::megatron(&command, &none).unwrap_or_else(|error| panic!("{command}: {error}"));
                mistakes.extend(refused(&command, &sheet.to_toml()));
            }
        }
    }
    for style in ["linear", "cosine", "constant", "exponential", "noam"] {
        for more in ["", "--warmup-iters 10", "--weight-decay 0", "--clip-grad 0"] {
            let command = format!("finetune_bert.py --model-config m --dataset RTE --lr-decay-style {style} {more}");
            let sheet = import::model_center(&command, &none).unwrap_or_else(|error| panic!("{command}: {error}"));
            mistakes.extend(refused(&command, &sheet.to_toml()));
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    // Without a warm-up the formula begins with the learning rate itself.
    let noam = import::model_center("finetune_bert.py --model-config m --dataset RTE", &none).unwrap();
    expect(&noam, &[("train.schedule", "\"noam\""), ("train.warmup", "1")]);
}

#[test]
fn samples_of_megatron_have_the_shares_and_masks_of_its_flags() {
    let common = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --train-iters 10 --data-path data/x \
                  --vocab-file v/vocab.txt";
    let read = |command: &str| {
        let sheet = import::megatron(&format!("{command} {common}"), &ImportOptions::default()).unwrap();
        assert_eq!(refused(command, &sheet.to_toml()), Vec::<String>::new());
        sheet
    };
    let both = read("pretrain_gpt2.py --reset-position-ids --reset-attention-mask --eod-mask-loss");
    expect(&both, &[("data.document_mask", "true"), ("data.eod_mask_loss", "true")]);
    let one = read("pretrain_gpt2.py --reset-position-ids");
    assert!(one.get("data.document_mask").is_none(), "{one}");
    assert!(notes(&one, NoteKind::Differs).contains(&"--reset-position-ids"), "{one}");
    let bert = read("pretrain_bert.py --mask-prob 0.2 --short-seq-prob 0.3");
    expect(&bert, &[("data.masking.share", "0.2"), ("data.masking.short", "0.3")]);
    expect(&read("pretrain_t5.py --mask-prob 0.2"), &[("data.spans.share", "0.2")]);
}

#[test]
fn layouts_of_one_rank_have_no_settings_of_several() {
    let none = ImportOptions::default();
    let common = "pretrain_gpt2.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --train-iters 10 \
                  --data-path data/x --vocab-file v/vocab.txt --checkpoint-activations \
                  --distribute-saved-activations";
    for (more, sequence, inputs) in [
        ("--sequence-parallel", None, None),
        ("--tensor-model-parallel-size 2", None, Some("\"sharded\"")),
        ("--tensor-model-parallel-size 2 --sequence-parallel", Some("true"), None),
    ] {
        let sheet = import::megatron(&format!("{common} {more}"), &none).unwrap();
        assert_eq!(
            [sheet.get("parallel.sequence"), sheet.get("train.recompute_inputs")],
            [sequence, inputs],
            "{sheet}"
        );
        assert_eq!(refused(more, &sheet.to_toml()), Vec::<String>::new());
    }
    let sets = ["model.path=m", "data.task=RTE", "data.path=d", "train.epochs=3", "output.dir=o"];
    let options = ImportOptions { sets: sets.map(str::to_owned).to_vec(), ..ImportOptions::default() };
    for (json, key, value) in [
        // Parameters in host memory are updated there.
        (
            "{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}}",
            "train.offload",
            Some("true"),
        ),
        ("{\"pipeline\": {\"partition\": \"uniform\"}}", "parallel.partition", None),
        ("{\"pipeline\": {\"partition\": \"uniform\", \"stages\": 2}}", "parallel.partition", Some("\"blocks\"")),
    ] {
        let sheet = import::deepspeed(json, "c.json", None, &options).unwrap();
        assert_eq!(sheet.get(key), value, "{json}: {sheet}");
        assert_eq!(refused(json, &sheet.to_toml()), Vec::<String>::new());
    }
}
