//! What configurations have that no recipe can have.

use super::differs;
use model_center::import::{self, ImportOptions};

#[test]
fn what_cannot_be_kept_is_refused_with_its_line_and_a_way_out() {
    let none = ImportOptions::default();
    let base = "base_model: m\ndatasets:\n  - path: a.jsonl\n    type: alpaca\nlearning_rate: 1e-4\n";
    for (more, words) in [
        ("adapter: qlora\n", vec!["c.yml:6, adapter", "a model in 4 bits", "write load_in_4bit: true"]),
        ("load_in_4bit: true\n", vec!["c.yml:6, load_in_4bit", "updates alone", "write adapter: qlora"]),
        ("adapter: loha\n", vec!["the adapter loha is not translated"]),
        ("rl: grpo\n", vec!["rl grpo", "DPO, IPO, SimPO, ORPO and reward models alone"]),
        ("rl: kto\n", vec!["c.yml:6, rl", "KTO judges one by one", "preference.loss = \"kto\""]),
        ("rl: orpo\n", vec!["the type alpaca of ORPO's pairs is not available", "chat_template.argilla"]),
        ("rl: dpo\nreward_model: true\n", vec!["reward_model trains on rewards alone"]),
        ("rl: dpo\n", vec!["the type alpaca of pairs is not available", "chatml.TYPE"]),
        ("load_in_8bit: true\ntrl: { beta: 1 }\n", vec!["load_in_8bit", "also refused: trl", "--leave load_in_8bit"]),
        ("unfrozen_parameters: [lm_head]\n", vec!["c.yml:6, unfrozen_parameters", "--set 'train.only="]),
        ("optimizer: came_pytorch\n", vec!["the optimizer came_pytorch is not available", "adafactor"]),
        ("num_epochs: 0\n", vec!["c.yml, num_epochs: 0", "`train.epochs`"]),
        ("max_steps: 5\nwarmup_steps: 9\n", vec!["c.yml, warmup_steps: 9", "lasts as long as the run"]),
        ("adapter: lora\n", vec!["no layers are named", "lora_target_linear: true"]),
        (
            "adapter: lora\nlora_target_modules: '.*\\.(q|v)_proj'\n",
            vec!["c.yml:7, lora_target_modules", "is a regular expression", "write lora_target_modules: [q_proj"],
        ),
        ("adapter: lora\nlora_target_modules: ['layers.*.q_proj']\n", vec!["\"layers.*.q_proj\" is a regular"]),
        (
            "adapter: lora\nlora_target_linear: true\nlora_modules_to_save: ['lm_.*']\n",
            vec!["lora_modules_to_save", "\"lm_.*\" is a regular expression"],
        ),
        ("lr_scheduler: cosine_with_min_lr\n", vec!["lr_scheduler_kwargs", "at min_lr or at min_lr_rate"]),
        ("lr_scheduler: cosine\nlr_scheduler_kwargs: { num_cycles: 2 }\n", vec!["num_cycles: numbers of schedules"]),
        ("learning_rat: 1\n", vec!["c.yml:6, learning_rat", "did you mean learning_rate?"]),
        ("lr_scheduler: rex\n", vec!["the schedule rex is not available"]),
        ("bf16: true\nfp16: true\n", vec!["bf16 and fp16 are both set"]),
        ("micro_batch_size: two\n", vec!["\"two\" is not a number"]),
        ("micro_batch_size: 0\n", vec!["the batch equation"]),
        ("trust_remote_code: true\n", vec!["no code of a model is run"]),
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
        ("stage: ppo\n", "stage ppo"),
        ("stage: kto\n", "KTO judges one by one"),
        ("stage: dpo\npref_loss: hinge\n", "the loss hinge"),
        ("stage: dpo\npref_ftx: 0.5\n", "the plain loss of chosen completions is not added"),
        ("stage: dpo\nref_model: other\n", "the reference is the model that training begins with"),
        ("finetuning_type: freeze\n", "--set 'train.only="),
        ("finetuning_type: freeze\nfreeze_trainable_layers: -2\nfreeze_extra_modules: norm\n", "--set 'train.only="),
        ("finetuning_type: oft\n", "finetuning_type oft is not translated"),
        ("quantization_bit: 8\n", "4 bits of nf4 alone"),
        ("quantization_bit: 4\nquantization_type: fp4\n", "4 bits of nf4 alone"),
        ("quantization_bit: 4\nfinetuning_type: full\n", "updates alone"),
        ("lora_target: '.*_proj'\n", "\".*_proj\" is a regular expression"),
        ("lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: 5\n", "a mapping"),
        ("lr_scheduler_type: one_cycle\n", "one cycle rises over its warm-up"),
        ("train_on_prompt: true\nmask_history: true\n", "learns what it masks"),
        ("interleave_probs: 0.5\nmix_strategy: x\n", "numbers with commas"),
        ("kto_chosen_weight: 0.1\n", "KTO judges one by one"),
        ("reward_model: m\n", "DPO, IPO, SimPO, ORPO and reward models alone"),
    ] {
        let error = import::llama_factory(&format!("{base}{more}"), "c.yml", &none).unwrap_err().to_string();
        assert!(error.contains(words), "{more}: {error}");
    }
    // What is passed over is in the recipe as a difference.
    let leave = ImportOptions { leave: vec!["pissa_init".into()], ..ImportOptions::default() };
    let sheet = import::llama_factory(&format!("{base}pissa_init: true\n"), "c.yml", &leave).unwrap();
    assert!(differs(&sheet).contains("pissa_init: true: left out as asked"), "{sheet}");
}
