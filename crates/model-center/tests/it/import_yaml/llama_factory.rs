//! Values of configurations of LLaMA-Factory.

use super::{check_recipe, differs, expect, of};
use model_center::import::{self, ImportOptions};

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
fn defaults_that_differ_from_ours_are_written_out() {
    let text = "model_name_or_path: m\ndataset: a\neval_dataset: b\n";
    let sheet = import::llama_factory(text, "c.yml", &ImportOptions::default()).unwrap();
    check_recipe(text, &sheet);
    expect(
        &sheet,
        &[
            ("adapter.method", "\"lora\""),
            ("adapter.rank", "8"),
            ("adapter.alpha", "16.0"),
            ("adapter.targets", "[\"all-linear\"]"),
            ("data.max_length", "2048"),
            ("data.last_batch", "\"keep\""),
            ("train.epochs", "3.0"),
            ("train.micro_batch_size", "8"),
            ("train.accumulation", "1"),
            ("train.lr", "5e-5"),
            ("train.schedule", "\"linear\""),
            ("train.weight_decay", "0.0"),
            ("train.clip_norm", "1.0"),
            ("train.seed", "42"),
            ("train.recompute", "\"blocks\""),
            ("checkpoint.every", "\"500 steps\""),
            // Of the Trainer's two choices the last weights are the default.
            ("save.which", "\"last\""),
        ],
    );
    assert!(differs(&sheet).contains("no template"), "{sheet}");
    let texts = import::llama_factory(&format!("{text}stage: pt\n"), "c.yml", &ImportOptions::default()).unwrap();
    expect(&texts, &[("data.packing", "true"), ("data.records", "\"text\"")]);
    let best =
        import::llama_factory(&format!("{text}load_best_model_at_end: true\n"), "c.yml", &ImportOptions::default());
    expect(&best.unwrap(), &[("save.which", "\"best\"")]);
    // An interval without a number is the Trainer's.
    for (more, key, value) in [
        ("save_strategy: steps\n", "checkpoint.every", Some("\"500 steps\"")),
        ("save_strategy: \"no\"\n", "checkpoint.every", None),
        ("eval_strategy: steps\nlogging_steps: 20\n", "eval.every", Some("\"20 steps\"")),
        ("eval_strategy: \"no\"\n", "eval.every", Some("\"end\"")),
    ] {
        let sheet = import::llama_factory(&format!("{text}{more}"), "c.yml", &ImportOptions::default()).unwrap();
        assert_eq!(sheet.get(key), value, "{more}: {sheet}");
        check_recipe(more, &sheet);
    }
}
