//! Settings that contradict each other or have no effect.

use super::*;

#[test]
fn contradictions_name_both_sides_and_a_way_out() {
    let cases: &[(&str, &str, &str, &str)] = &[
        (
            "batch_size = 32\nmicro_batch_size = 12",
            "`train.micro_batch_size` = 12 does not divide `train.batch_size` = 32",
            "r.toml:10:20",
            "set train.micro_batch_size = 8",
        ),
        (
            "steps = 100\nwarmup = 100",
            "`train.warmup` = 100 lasts as long as the run of `train.steps` = 100 or longer",
            "r.toml:10:10",
            "shorten the warm-up",
        ),
        (
            "schedule = \"noam\"",
            "the \"noam\" schedule is defined by its warm-up, which is 0",
            "r.toml:9:12",
            "set train.warmup, e.g. 100",
        ),
        (
            "schedule = \"one-cycle\"",
            "one cycle rises over its warm-up, which is 0",
            "r.toml:9:12",
            "set train.warmup, e.g. 0.3",
        ),
        (
            "optimizer = \"muon\"\noffload = true",
            "the host updates each element by itself, and `train.optimizer` is one that does not",
            "r.toml:10:11",
            "set train.optimizer = \"adamw\"",
        ),
        (
            "ema = 0.99\naverage_from = 3",
            "one average is kept: an exponential one, or one of the last steps",
            "r.toml:10:16",
            "remove one of the two",
        ),
        (
            "optimizer = \"muon\"\ndecoupled = false",
            "this optimizer decays apart from the gradient",
            "r.toml:10:13",
            "remove train.decoupled",
        ),
        (
            "optimizer = \"sgd\"\nmomentum = 0.9\nnesterov = true\ndampening = 0.1",
            "Nesterov's momentum has no dampening",
            "r.toml:12:13",
            "remove one of the two",
        ),
        (
            "[train.early_stop]\npatience = 1\n[eval]\nevery = \"end\"",
            "stopping early needs evaluations on the way, and eval.every = \"end\"",
            "r.toml:12:9",
            "set eval.every, e.g. \"1 epoch\"",
        ),
        (
            "[eval]\nmetric = \"pearson\"",
            "`eval.metric` = \"pearson\" judges numbers, and task \"classification\" has classes for labels",
            "r.toml:10:10",
            "use \"accuracy\" or \"loss\"",
        ),
        (
            "[data.columns]\ntext_pair = \"text\"",
            "`data.columns.text` and `data.columns.text_pair` both name the column \"text\"",
            "r.toml:10:13",
            "name two columns",
        ),
        (
            "[log]\nmetrics = \"../m.jsonl\"",
            "`log.metrics` must be a plain file name of at most 199 bytes in the output directory, without a leading \
                dot",
            "r.toml:10:11",
            "write e.g. metrics = \"metrics.jsonl\"",
        ),
    ];
    for (lines, reason, place, fix) in cases {
        let expected = format!("error[recipe]: {reason}\n  --> {place}\n  fix: {fix}");
        assert_eq!(only_mistake(&with_train(lines), &[]), expected, "{lines}");
    }
    for (sets, reason) in [
        (&["output.dir=./x/../m"][..], "`output.dir` is the directory of `model.path`, which would be overwritten"),
        (&["data.labels=[\"a\"]"], "`data.labels` names 1 label, and a classification needs two"),
        (&["data.labels=[\"a\", \"a\"]"], "`data.labels` names \"a\" twice"),
        (&["data.train=t.bin"], "the name of `data.train` does not determine the file's format"),
    ] {
        assert!(only_mistake(LEAST, sets).contains(reason), "{sets:?}: {}", only_mistake(LEAST, sets));
    }
}

#[test]
fn settings_without_effect_are_refused_where_written_and_noted_where_default() {
    let cases: &[(&[&str], &str)] = &[
        (&["data.path=x"], "`data.path` has no effect: it is for tasks that know their files"),
        (&["train.gamma=0.9"], "`train.gamma` has no effect: it belongs to train.schedule = \"exponential\""),
        (&["train.power=2"], "`train.power` has no effect: it belongs to train.schedule = \"polynomial\""),
        (
            &["train.optimizer=sgd", "train.betas=[0.9, 0.9]"],
            "`train.betas` has no effect: it belongs to train.optimizer = \"adamw\", \"adam\", \"adamax\", \"nadam\", \
             \"radam\", \"lion\", \"muon\", \"adamw-8bit\"",
        ),
        (&["train.optimizer=sgd", "train.dampening=0.1"], "`train.dampening` has no effect: train.momentum is 0"),
        (
            &["train.schedule=constant", "train.final_lr_ratio=0.1"],
            "`train.final_lr_ratio` has no effect: train.schedule = \"constant\" does not fall",
        ),
        (
            &["train.clip_kind=none", "train.clip_norm=1"],
            "`train.clip_norm` has no effect: train.clip_kind = \"none\" does not clip",
        ),
        (
            &["train.weight_decay=0", "train.decoupled=false"],
            "`train.decoupled` has no effect: train.weight_decay is 0",
        ),
        (
            &["data.bad_record_limit=0.1"],
            "`data.bad_record_limit` has no effect: data.on_bad_record = \"error\" accepts none",
        ),
        (
            &["train.early_stop.metric=loss"],
            "`train.early_stop.metric` has no effect: train.early_stop.patience is not set",
        ),
        (
            &["data.task=regression", "train.label_smoothing=0.1"],
            "`train.label_smoothing` has no effect: a regression has no classes",
        ),
        (&["model.f32_parameters=[\"norms\"]"], "`model.f32_parameters` has no effect: all parameters are f32"),
        (
            &["data.task=regression", "data.labels=[\"a\"]"],
            "`data.labels` has no effect: the labels of a regression are numbers",
        ),
    ];
    for (sets, reason) in cases {
        let text = only_mistake(LEAST, sets);
        assert!(text.starts_with(&format!("error[recipe]: {reason}\n  --> --set ")), "{text}");
    }
    let r = load(LEAST, &[]);
    assert!(!r.to_toml().contains("gamma"), "{}", r.to_toml());
}

#[test]
fn without_evaluation_data_nothing_may_depend_on_it() {
    let blind = LEAST.replace("eval = \"e.jsonl\"\n", "");
    assert_eq!(load(&blind, &[]).save.which, SaveWhich::Last);
    assert!(only_mistake(&blind, &["save.which=best"]).contains("without data.eval no weights are known to be best"));
    assert!(only_mistake(&blind, &["train.early_stop.patience=1"]).contains("there is no data.eval"));
    assert!(only_mistake(&blind, &["eval.every=end"]).contains("`eval.every` has no effect: there is no data.eval"));
}

#[test]
fn mistakes_about_prompts_name_what_is_missing_or_has_no_effect() {
    let own = [
        "data.objective=verbalizer",
        "data.template=\"{text}?\"",
        "data.labels=[\"a\", \"b\"]",
        "data.words=[\" a\", \" b\"]",
    ];
    let with_own = |change: &dyn Fn(&str) -> Option<String>| -> String {
        let sets: Vec<String> = own.iter().filter_map(|set| change(set)).collect();
        only_mistake(LEAST, &sets.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for key in ["data.template", "data.labels", "data.words"] {
        let error = with_own(&|set| (!set.starts_with(key)).then(|| set.to_owned()));
        assert!(
            error.contains(&format!("`{key}` is missing")) && error.contains(&format!("fix: set {key} = ")),
            "{error}"
        );
    }
    let replaced = |from: &str, to: &str| with_own(&|set| Some(set.replace(from, to)));
    let error = replaced("\" b\"]", "\" b\", \" c\"]");
    assert!(error.contains("`data.words` has 3 label words for 2 labels"), "{error}");
    let error = replaced("{text}", "{label}");
    assert!(error.contains("`data.template` shows the column \"label\", which is the label"), "{error}");
    let error = replaced("{text}", "{text");
    assert!(error.contains("`data.template` must be a text with names of columns in braces"), "{error}");
    for (sets, reason) in [
        (vec!["data.template=\"{text}?\""], "`data.template` has no effect: it is for data.objective"),
        (vec!["train.prompt_loss=1"], "`train.prompt_loss` has no effect: there is no prompt"),
        (
            vec!["data.task=language", "data.objective=verbalizer"],
            "`data.objective` has no effect: it is for tasks with classes",
        ),
        (vec!["eval.metric=exact_match"], "judges questions, and task \"classification\" has classes"),
    ] {
        let error = only_mistake(LEAST, &sets);
        assert!(error.contains(reason), "{error}");
    }
    let known = LEAST.replace("train = \"t.jsonl\"\neval = \"e.jsonl\"\n", "path = \"sg\"\n");
    for (sets, reason) in [
        (
            vec!["data.task=MultiRC", "data.objective=classifier"],
            "task MultiRC has prompts, and no form for classifiers",
        ),
        (
            vec!["data.task=RTE", "data.template=\"{text}?\""],
            "`data.template` has no effect: task RTE has its own prompt and label words",
        ),
        (vec!["data.task=ReCoRD", "model.head=new"], "`model.head` has no effect: answers are read from"),
        (vec!["data.task=SQuAD", "data.objective=verbalizer"], "`data.objective` has no effect"),
    ] {
        let error = only_mistake(&known, &sets);
        assert!(error.contains(reason), "{error}");
    }
    let error = only_mistake(&known.replace("path = \"sg\"\n", ""), &["data.task=LCQMC"]);
    assert!(error.contains("the directory that holds LCQMC/train.tsv and LCQMC/dev.tsv"), "{error}");
}

#[test]
fn a_model_in_blocks_is_neither_merged_nor_random_nor_on_cuda() {
    let lora = ["data.task=language", "adapter.method=lora", "adapter.quantize=nf4"];
    for (further, reason) in [
        (&["save.merged=true"][..], "a merged model has the model's own weights"),
        (&["model.init=random"], "`adapter.quantize` reads weights"),
        (&["device.name=cuda"], "products with quantised blocks are computed on the CPU alone"),
        (&["adapter.quantize=int8"], "must be one of \"none\", \"nf4\", \"as-stored\""),
    ] {
        let error = only_mistake(LEAST, &[&lora[..], further].concat());
        assert!(error.contains(reason), "{further:?}: {error}");
    }
    let error = only_mistake(LEAST, &["adapter.quantize=nf4"]);
    assert!(error.contains("`adapter.quantize` has no effect: adapter.method = \"none\""), "{error}");
    // A directory with updates and a quantised model go together.
    let sets = ["data.task=language", "adapter.method=lora", "adapter.path=tuned", "adapter.quantize=as-stored"];
    assert!(mistakes(LEAST, &sets).is_empty());
}

#[test]
fn a_floor_of_the_loss_scale_is_compared_with_the_first_scale_that_the_rule_has() {
    for (sets, first) in [
        (&["train.loss_scale=bmtrain", "train.loss_scale_floor=131072"][..], Some(16)),
        (&["train.loss_scale=deepspeed", "train.loss_scale_floor=131072"], Some(16)),
        (&["model.dtype=f16", "train.loss_scale_floor=131072"], Some(16)),
        (&["train.loss_scale=megatron", "train.loss_scale_floor=131072"], None),
        (&["train.loss_scale=megatron", "train.loss_scale_floor=8589934592"], Some(32)),
        (&["train.loss_scale=bmtrain", "train.loss_scale_start=64", "train.loss_scale_floor=128"], Some(6)),
        (&["train.loss_scale=bmtrain", "train.loss_scale_floor=65536"], None),
    ] {
        let Some(first) = first else {
            load(LEAST, sets);
            continue;
        };
        let expected = format!("`train.loss_scale_floor` is above the first scale, 2^{first}");
        let found = only_mistake(LEAST, sets);
        assert!(found.contains(&expected), "{sets:?}: {found}");
    }
}
