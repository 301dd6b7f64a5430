//! Micro-batches, recomputation and optimizers.

use crate::recipes::{LEAST, load, mistakes};
use bmtrain_core::kernel::UpdateRule;
use bmtrain_dist::optim::{AdafactorOptions, Adam8bitOptions, AdamOptions, DecayForm, MuonOptions, MuonScale};
use model_center::recipe::{OptimizerSettings, Products, Resolved};

#[test]
fn the_default_micro_batch_is_the_share_of_a_rank_and_stays_that_of_the_run() {
    let on = |sets: &[&str], ranks: usize, begun: Option<&str>| load(LEAST, sets).on_ranks(ranks, begun);
    let size = |resolved: &Resolved| resolved.train.micro_batch_size;
    // One rank computes what it always has, under the same hash.
    assert_eq!(on(&[], 1, None), load(LEAST, &[]));
    let two = on(&[], 2, None);
    assert_eq!((size(&two), two.eval.batch_size, two.micro_batch_on(2)), (16, 16, 16));
    let line = "micro_batch_size = 16           # default: train.batch_size / 2 ranks";
    assert!(two.print_config().contains(line), "{}", two.print_config());
    assert_eq!(load(&two.to_toml(), &[]).recipe_hash(), two.recipe_hash());
    // What is written stays, whatever the ranks; what cannot be shared is left to be refused.
    assert_eq!(on(&["train.micro_batch_size=32"], 2, None), load(LEAST, &["train.micro_batch_size=32"]));
    assert_eq!(on(&["eval.batch_size=5"], 2, None).eval.batch_size, 5);
    assert_eq!(on(&[], 3, None), load(LEAST, &[]));

    // A run keeps the micro-batches it was begun with, and its hash, on other numbers of ranks.
    let begun_on_two = two.to_toml();
    for ranks in [1, 2, 4] {
        let again = on(&[], ranks, Some(&begun_on_two));
        assert_eq!((size(&again), again.recipe_hash()), (16, two.recipe_hash()), "{ranks} ranks");
    }
    assert_eq!(on(&[], 4, Some(&begun_on_two)).micro_batch_on(4), 8);
    let begun_on_one = load(LEAST, &[]).to_toml();
    let fast = on(&[], 2, Some(&begun_on_one));
    assert_eq!((fast.recipe_hash(), fast.micro_batch_on(2)), (load(LEAST, &[]).recipe_hash(), 16));
    // Where bits would change that are promised to stay, or samples, micro-batches stay what they are.
    for bound in ["train.gradient_sum=elastic", "data.length_grouped=true"] {
        let begun = load(LEAST, &[bound]).to_toml();
        assert_eq!(on(&[bound], 2, Some(&begun)).micro_batch_on(2), 32, "{bound}");
    }
    // A recipe of another batch, or no recipe, decides nothing.
    for other in [&*load(LEAST, &["train.batch_size=64"]).to_toml(), "x", "[train]\nbatch_size = 32"] {
        assert_eq!(size(&on(&[], 2, Some(other))), 16, "{other}");
    }
}

#[test]
fn products_in_bf16_are_for_models_in_f32() {
    let set = "train.products=bf16";
    let resolved = load(LEAST, &[set]);
    assert_eq!(resolved.train.products, Products::Bf16);
    assert_ne!(resolved.recipe_hash(), load(LEAST, &[]).recipe_hash());
    assert!(resolved.print_config().contains("products = \"bf16\""));
    let found = mistakes(LEAST, &[set, "model.dtype=bf16"]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string().contains("set model.dtype = \"f32\""), "{}", found[0]);
    let found = mistakes(LEAST, &[set, "device.name=cuda:1"]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string().contains("`device.name` is a CUDA device"), "{}", found[0]);
}

#[test]
fn recomputation_is_a_word_a_flag_or_a_number_of_blocks() {
    use bmtrain_dist::block::Recompute;
    for (set, expected, printed) in [
        ("false", Recompute::Keep, "\"none\""),
        ("none", Recompute::Keep, "\"none\""),
        ("true", Recompute::Checkpoint, "\"blocks\""),
        ("blocks", Recompute::Checkpoint, "\"blocks\""),
        ("1", Recompute::Checkpoint, "\"blocks\""),
        ("4", Recompute::Every(4), "4"),
        ("attention", Recompute::Attention, "\"attention\""),
        ("auto", Recompute::Auto, "\"auto\""),
    ] {
        let resolved = load(LEAST, &[&format!("train.recompute={set}")]);
        assert_eq!(resolved.train.recompute, expected, "{set}");
        assert!(resolved.to_toml().contains(&format!("recompute = {printed}\n")), "{set}");
    }
}

#[test]
fn an_optimizer_has_the_numbers_of_its_keys_and_the_defaults_of_its_library() {
    let of = |sets: &[&str]| load(LEAST, sets).train.optimizer;
    let rule = |sets: &[&str]| match of(sets) {
        OptimizerSettings::Elementwise(options) => (options.rule, options.decay_form),
        other => panic!("{other:?}"),
    };
    let (coupled, decoupled) = (DecayForm::Coupled, DecayForm::Decoupled);
    assert_eq!(of(&[]), OptimizerSettings::Adam(AdamOptions::default()));
    let adam = AdamOptions { decay_form: coupled, ..AdamOptions::default() };
    assert_eq!(of(&["train.optimizer=adam"]), OptimizerSettings::Adam(adam));
    assert_eq!(of(&["train.decoupled=false"]), OptimizerSettings::Adam(adam));
    let sgd = UpdateRule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: true };
    let sets = ["train.optimizer=sgd", "train.momentum=0.9", "train.nesterov=true"];
    assert_eq!(rule(&sets), (sgd, coupled));
    let lion = UpdateRule::Lion { beta1: 0.9, beta2: 0.99 };
    assert_eq!(rule(&["train.optimizer=lion"]), (lion, decoupled));
    let adadelta = UpdateRule::Adadelta { rho: 0.9, epsilon: 1e-6 };
    assert_eq!(rule(&["train.optimizer=adadelta", "train.decoupled=true"]), (adadelta, decoupled));
    let muon = MuonOptions { scale: MuonScale::MatchAdamW, ..MuonOptions::default() };
    assert_eq!(of(&["train.optimizer=muon"]), OptimizerSettings::Muon(muon, AdamOptions::default()));
    // Every name makes an optimizer, and the recipe that it is written out as is the same.
    let factors = AdafactorOptions { scale_parameter: true, ..AdafactorOptions::default() };
    let sets = ["train.optimizer=adafactor", "train.scale_parameter=true"];
    assert_eq!(of(&sets), OptimizerSettings::Adafactor(factors));
    assert_eq!(of(&["train.optimizer=adamw-8bit"]), OptimizerSettings::Adam8bit(Adam8bitOptions::default()));
    for name in ["adagrad", "rmsprop", "adamax", "nadam", "radam", "adafactor", "adamw-8bit"] {
        let loaded = load(LEAST, &[&format!("train.optimizer={name}")]);
        assert_eq!(loaded.train.optimizer.make(Vec::new(), false).unwrap().len(), 1);
        assert_eq!(load(&loaded.to_toml(), &[]).train.optimizer, loaded.train.optimizer);
    }
}
