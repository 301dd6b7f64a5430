//! Hashes of recipes, which change with what is computed, and changes since a run was begun.

use crate::recipes::{LEAST, load};
use model_center::recipe::Recipe;

#[test]
fn the_hash_changes_with_what_is_computed_and_with_nothing_else() {
    let hash = |sets: &[&str]| load(LEAST, sets).recipe_hash();
    assert_eq!(hash(&[]).len(), 64);
    for same in [
        "output.dir=elsewhere",
        "log.every=1",
        "log.quiet=true",
        "device.threads=3",
        "device.pin_threads=none",
        "train.offload=true",
        "train.seed=1234",
        "train.batch_size=0x20",
        "train.lr=0.00005",
        "checkpoint.optimizer_state=false",
        "data.shuffle=true",
        "data.last_batch=drop",
    ] {
        assert_eq!(hash(&[same]), hash(&[]), "{same}");
    }
    let pretraining = "[model]\ninit = \"random\"\nfamily = \"gpt2\"\ntokenizer = \"t\"\n[data]\ntask = \"pretrain\"\n\
                       corpora = [\"books\"]\nsequence_length = 16\n[train]\nsteps = 6\n[output]\ndir = \"run\"\n";
    let threads = |count: &str| load(pretraining, &[&format!("data.loading_threads={count}")]);
    let [one, three] = ["1", "3"].map(threads);
    assert_eq!([one.recipe_hash(), one.hash_without_schedule()], [three.recipe_hash(), three.hash_without_schedule()]);
    assert!(one.changes(&three.to_toml()).unwrap().is_empty());
    // As earlier versions hashed the default.
    assert!(three.hashed_toml().contains("loading_threads = 1\n") && three.to_toml().contains("loading_threads = 3\n"));
    for other in [
        "train.seed=1",
        "train.lr=1e-5",
        "data.max_length=64",
        "data.shuffle=false",
        "data.last_batch=keep",
        "model.path=n",
        "eval.every=end",
        "save.dtype=bf16",
    ] {
        assert_ne!(hash(&[other]), hash(&[]), "{other}");
    }
}

#[test]
fn parameters_in_f32_are_a_set_that_decides_what_is_computed() {
    let of = |value: &str| load(LEAST, &["model.dtype=f16", &format!("model.f32_parameters={value}")]);
    let two = of("[\"embeddings\", \"norms\"]");
    assert!(two.to_toml().contains("f32_parameters = [\"embeddings\", \"norms\"]\n"), "{}", two.to_toml());
    let kinds = two.model.f32_parameters;
    assert_eq!((kinds.embeddings, kinds.norms, kinds.token_types), (true, true, false));
    assert_eq!(of("[\"norms\", \"embeddings\"]").recipe_hash(), two.recipe_hash());
    assert_ne!(of("[\"norms\"]").recipe_hash(), two.recipe_hash());
    let none = load(LEAST, &["model.dtype=f16"]);
    assert_ne!(none.recipe_hash(), two.recipe_hash());
    assert!(!none.to_toml().contains("f32_parameters"), "{}", none.to_toml());
    let changes = two.changes(&none.to_toml()).unwrap();
    assert_eq!(changes, ["model.f32_parameters: not set -> [\"embeddings\", \"norms\"]"]);
}

#[test]
fn recipes_that_differ_in_schedule_and_length_alone_share_a_hash() {
    let hash = |sets: &[&str]| load(LEAST, sets).hash_without_schedule();
    let schedule = ["train.schedule=exponential", "train.gamma=0.9", "train.warmup=0.1", "train.final_lr_ratio=0.1"];
    for same in [&schedule[..], &["train.lr=1", "train.decay_steps=9"], &["train.steps=7", "train.minutes=3"]] {
        assert_eq!(hash(same), hash(&[]), "{same:?}");
    }
    for other in ["train.seed=1", "train.batch_size=8", "train.weight_decay=0", "data.max_length=64"] {
        assert_ne!(hash(&[other]), hash(&[]), "{other}");
    }
}

#[test]
fn changes_since_a_run_was_begun_are_listed_with_both_values() {
    let begun = load(LEAST, &[]).to_toml();
    assert_eq!(
        load(LEAST, &["log.every=5", "checkpoint.keep=7", "parallel.zero=1", "train.offload=true"])
            .changes(&begun)
            .unwrap(),
        [""; 0]
    );
    let changes = load(LEAST, &["train.lr=0.25", "train.early_stop.patience=2"]).changes(&begun).unwrap();
    assert!(changes.iter().any(|line| line.starts_with("train.lr: ") && line.ends_with(" -> 0.25")), "{changes:?}");
    assert!(changes.iter().any(|line| line == "train.early_stop.patience: not set -> 2"), "{changes:?}");
}

#[test]
fn tensors_that_are_left_out_change_no_result_and_no_hash() {
    let sets = |leave: &[&str]| {
        let base = ["model.path=m", "data.task=RTE", "data.path=sg", "train.steps=1", "output.dir=o"];
        base.iter().chain(leave).map(|set| (*set).to_owned()).collect::<Vec<_>>()
    };
    let plain = Recipe::read(None, &sets(&[])).unwrap();
    assert!(plain.model.leave.is_empty() && !plain.to_toml().contains("leave"));
    let left = Recipe::read(None, &sets(&["model.leave=[\"ner.*\", \"topic.*\"]"])).unwrap();
    assert_eq!(left.model.leave, ["ner.*", "topic.*"]);
    assert!(left.to_toml().contains("leave = [\"ner.*\", \"topic.*\"]"));
    assert_eq!(left.recipe_hash(), plain.recipe_hash());
    let mistakes = Recipe::read(None, &sets(&["model.leave=ner"])).unwrap_err();
    assert!(mistakes[0].reason.contains("a list of strings"), "{}", mistakes[0].reason);
}
