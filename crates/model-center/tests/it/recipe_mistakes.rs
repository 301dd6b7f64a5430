//! Every kind of mistake in a recipe, with its full text: place, reason and fix.

mod contradictions;

use crate::recipes;

use bmtrain_dist::optim::AdamOptions;
use model_center::recipe::{Mistake, OptimizerSettings, Recipe, SaveWhich, as_error_with, list};
use recipes::{LEAST, load, mistakes, with, with_train};

/// The full text of the only mistake of a recipe that is otherwise complete.
fn only_mistake(text: &str, sets: &[&str]) -> String {
    let found = mistakes(text, sets);
    assert_eq!(found.len(), 1, "{}", list(&found));
    found[0].to_string()
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_the_likeliest_one() {
    let text = with_train("learning_rate = 3e-4");
    let expected = "error[recipe]: unknown key `train.learning_rate`\n  --> r.toml:9:1\n  fix: this is \
        transformers' name; here it is train.lr; keys of \
        [train]: epochs, steps, minutes, batch_size, micro_batch_size, accumulation, lr, schedule, gamma, \
         range_test_lr, cycles, power, decay_share, decay_shape, start_lr_ratio, warmup, decay_steps, \
         decay_endpoint, final_lr_ratio, weight_decay, \
        decay_norms_and_biases, groups, layer_decay, frozen, only, optimizer, decoupled, betas, eps, momentum, \
         dampening, nesterov, rho, centered, \
         adagrad_decay, adagrad_start, momentum_decay, muon_scale, scale_parameter, clip_threshold, decay_rate, \
         ema, average_from, clip_norm, clip_kind, \
         batch_ramp.start, batch_ramp.increment, batch_ramp.samples, label_smoothing, prompt_loss, seed, \
        recompute, recompute_inputs, products, \
        gradient_sum, gradient_dtype, loss_scale, loss_scale_start, loss_scale_window, loss_scale_hysteresis, \
        loss_scale_floor, offload, offload_parameters, \
        inspect_every, early_stop.patience, early_stop.metric, divergence.patience, divergence.spike";
    assert_eq!(only_mistake(&text, &[]), expected);
    let error = Recipe::load_text("r.toml", &text, &[]).unwrap_err();
    assert_eq!(model_center::run::layout_error(&error), expected);
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn unknown_keys_elsewhere_are_found_too() {
    let text = "error[recipe]: unknown key `log.evry`\n  --> --set log.evry=5\n  fix: did you mean `log.every`? \
        keys of [log]: every, metrics, quiet, peak_tflops, tensorboard, \
         samples, sample_tokens";
    assert_eq!(only_mistake(LEAST, &["log.evry=5"]), text);
    let text = "error[recipe]: unknown table [trian]\n  --> r.toml:12:2\n  fix: did you mean [train]? tables: \
        model, adapter, data, \
        data.columns, data.masking, data.spans, preference, embedding, distill, train, train.batch_ramp, eval, \
        train.early_stop, \
        train.divergence, save, checkpoint, log, \
        run, output, device, parallel";
    assert_eq!(only_mistake(&with("\n[trian]\nlr = 1\nseed = 2"), &[]), text);
    let text = "error[recipe]: unknown key `lr`\n  --> r.toml:1:1\n  fix: did you mean `train.lr`? every setting \
        belongs to a table: model, adapter, data, data.columns, data.masking, data.spans, preference, \
        embedding, distill, train, train.batch_ramp, eval, train.early_stop, \
        train.divergence, save, checkpoint, log, \
        run, output, device, parallel";
    assert_eq!(only_mistake(&format!("lr = 1\n{LEAST}"), &[]), text);
    let text = "error[recipe]: unknown key `train.lr.peak`\n  --> r.toml:9:1\n  fix: x";
    let found = mistakes(&with_train("lr.peak = 1"), &[]);
    assert_eq!(found.len(), 1, "{text}\n{}", list(&found));
    assert_eq!(found[0].reason, "`train.lr` must be a number above 0, got a table");
}

#[test]
fn a_wrong_type_or_range_names_expected_and_got() {
    let cases = [
        (
            "lr = \"fast\"",
            "`train.lr` must be a number above 0, got the string \"fast\"",
            "9:6",
            "write e.g. lr = 5e-5",
        ),
        ("lr = -1", "`train.lr` must be a number above 0, got the integer -1", "9:6", "write e.g. lr = 5e-5"),
        ("lr = nan", "`train.lr` must be a number above 0, got the float NaN", "9:6", "write e.g. lr = 5e-5"),
        ("lr = inf", "`train.lr` must be a number above 0, got the float inf", "9:6", "write e.g. lr = 5e-5"),
        (
            "batch_size = 0",
            "`train.batch_size` must be a whole number from 1 to 1048576, got the integer 0",
            "9:14",
            "write e.g. batch_size = 32",
        ),
        (
            "batch_size = 1.5",
            "`train.batch_size` must be a whole number from 1 to 1048576, got the float 1.5",
            "9:14",
            "write e.g. batch_size = 32",
        ),
        (
            "seed = -5",
            "`train.seed` must be a whole number of at least 0, got the integer -5",
            "9:8",
            "write e.g. seed = 1234",
        ),
        (
            "seed = 99999999999999999999",
            "`train.seed` must be a whole number of at least 0, got an integer beyond 64 bits",
            "9:8",
            "write e.g. seed = 1234",
        ),
        (
            "decoupled = 1",
            "`train.decoupled` must be true or false, got the integer 1",
            "9:13",
            "write e.g. decoupled = true",
        ),
        (
            "schedule = \"lineer\"",
            "`train.schedule` must be one of \"linear\", \"cosine\", \"linear-with-min-lr\", \
                \"cosine-with-min-lr\", \"noam\", \"exponential\", \"constant\", \"range-test\", \
                \"cosine-restarts\", \"polynomial\", \"wsd\", \"one-cycle\", \"relative-step\", \
                got the string \"lineer\"",
            "9:12",
            "did you mean \"linear\"?",
        ),
        (
            "warmup = 1.0",
            "`train.warmup` must be a whole number of steps, or a fraction of all steps from 0.0 to below 1.0, got \
                the float 1.0",
            "9:10",
            "write e.g. warmup = 0.06",
        ),
        (
            "betas = [0.9]",
            "`train.betas` must be a list of two, each a number from 0 to below 1 in single precision, got an array \
                of 1",
            "9:9",
            "write e.g. betas = [0.9, 0.999]",
        ),
        (
            "clip_kind = 2",
            "`train.clip_kind` must be one of \"2\", \"inf\", \"none\", got the integer 2",
            "9:13",
            "write e.g. clip_kind = \"2\"",
        ),
        ("lr = 2024-01-01", "`train.lr` must be a number above 0, got a date", "9:6", "write e.g. lr = 5e-5"),
        ("lr = {x = 1}", "`train.lr` must be a number above 0, got a table", "9:1", "write e.g. lr = 5e-5"),
    ];
    for (line, reason, place, fix) in cases {
        let expected = format!("error[recipe]: {reason}\n  --> r.toml:{place}\n  fix: {fix}");
        assert_eq!(only_mistake(&with_train(line), &[]), expected, "{line}");
    }
    let interval =
        "`eval.every` must be a string such as \"200 steps\", \"0.5 epochs\" or \"end\", got the integer 200";
    assert_eq!(
        only_mistake(&with("[eval]\nevery = 200"), &[]),
        format!("error[recipe]: {interval}\n  --> r.toml:12:9\n  fix: write e.g. every = \"200 steps\"")
    );
    let set = "error[recipe]: `train.lr` must be a number above 0, got the string \"3e-4x\"\n  --> --set \
        train.lr=3e-4x\n  fix: write e.g. lr = 5e-5";
    assert_eq!(only_mistake(LEAST, &["train.lr=3e-4x"]), set);
    let table = "error[recipe]: `log` must be a table of settings, got \"5\"\n  --> --set log=5\n  fix: write [log] \
        and its settings below it";
    assert_eq!(only_mistake(LEAST, &["log=5"]), table);
    assert!(
        only_mistake(&format!("log = [1]\n{LEAST}"), &[])
            .contains("`log` must be a table of settings, got an array of 1")
    );
    assert!(
        only_mistake(&with("[[eval]]\nevery = \"end\""), &[])
            .contains("`eval` must be a table of settings, got an array of 1")
    );
}

#[test]
fn a_task_in_the_wrong_case_is_recognised() {
    let text = LEAST.replace("\"classification\"\ntrain = \"t.jsonl\"\neval = \"e.jsonl\"", "\"boolq\"\npath = \"sg\"");
    let expected = "error[recipe]: `data.task` must be one of \"BoolQ\", \"CB\", \"COPA\", \"RTE\", \"WiC\", \
        \"WSC\", \"MultiRC\", \"ReCoRD\", \"LCQMC\", \"MNLI\", \"MNLI-mm\", \"QQP\", \"RACE\", \"SQuAD\", \
        \"classification\", \"regression\", \"rerank\", \"language\", \"seq2seq\", \
        \"question-answering\", \"token-classification\", \"embedding\", \"multi-label-classification\", \
        \"sft\", \"preference\", \"reward\", \"pretrain\", \
        got the string \"boolq\"\n  --> r.toml:4:8\n  \
        fix: did you mean \"BoolQ\"?";
    assert_eq!(only_mistake(&text, &[]), expected);
}

#[test]
fn a_key_twice_in_a_file_is_refused_and_of_two_arguments_the_last_wins() {
    let expected = "error[recipe]: `lr` is set twice\n  --> r.toml:10:1\n  fix: keep one of the two";
    assert_eq!(only_mistake(&with_train("lr = 1e-5\nlr = 2e-5"), &[]), expected);
    let of_three = load(LEAST, &["train.lr=1", "train.early_stop={patience=2}", "train.lr=2"]);
    assert_eq!(of_three.train.lr, 2.0);
    assert_eq!(of_three.place("train.lr"), "--set train.lr=2");
    let of_a_table = load(LEAST, &["train.early_stop={patience=2, metric=\"f1\"}", "train.early_stop.patience=3"]);
    let early_stop = of_a_table.train.early_stop.unwrap();
    assert_eq!((early_stop.patience, early_stop.metric.name()), (3, "f1"));
    // One that is overruled is not read, as little as a key of the file that is.
    assert_eq!(load(LEAST, &["train.lr=fast", "train.lr=2"]).train.lr, 2.0);
}

#[test]
fn arguments_that_are_no_settings_are_refused() {
    let fix = "write --set table.key=value, e.g. train.lr=3e-4";
    for (argument, reason) in [
        ("train.lr", "there is no `=`"),
        ("train.lr=", "there is no value after `=`"),
        ("=3", "the text before `=` is not a path of keys"),
        ("train..lr=3", "the text before `=` is not a path of keys"),
        ("a.b.c.d.e.f.g.h.i=3", "the text before `=` is not a path of keys"),
    ] {
        let expected = format!("error[recipe]: {reason}\n  --> --set {argument}\n  fix: {fix}");
        assert_eq!(only_mistake(LEAST, &[argument]), expected);
    }
    let long = only_mistake(LEAST, &[&format!("model.path={}", "x".repeat(1 << 20))]);
    assert!(long.starts_with("error[recipe]: the argument is too long\n") && long.len() < 300, "{long}");
    assert!(only_mistake(LEAST, &["data.labels=[\"a\", \"b\""]).contains("`data.labels` is not valid TOML: "));
}

#[test]
fn a_number_must_be_in_its_range_after_rounding_to_single_precision_too() {
    for (key, value, wanted) in [
        ("model.hidden_dropout", "0.99999999", "from 0 to below 1"),
        ("model.attention_dropout", "0.99999999", "from 0 to below 1"),
        ("train.label_smoothing", "0.99999999", "from 0 to below 1"),
        ("train.weight_decay", "1e39", "of at least 0"),
        ("train.eps", "1e-50", "above 0"),
        ("train.clip_norm", "1e-50", "above 0"),
        ("train.clip_norm", "1e300", "above 0"),
    ] {
        let text = only_mistake(LEAST, &[&format!("{key}={value}")]);
        let expected = format!("`{key}` must be a number {wanted} in single precision, got the float {value}");
        assert!(text.contains(&expected), "{text}");
    }
    for betas in ["[0.99999999, 0.999]", "[0.9, 0.99999999]"] {
        let text = only_mistake(LEAST, &[&format!("train.betas={betas}")]);
        assert!(text.contains("each a number from 0 to below 1 in single precision"), "{text}");
    }
    let r = load(LEAST, &["train.weight_decay=0.1", "train.betas=[0.8, 0.99]"]);
    let adam = AdamOptions { beta1: 0.8, beta2: 0.99, ..AdamOptions::default() };
    assert_eq!((r.train.weight_decay, r.train.optimizer), (0.1, OptimizerSettings::Adam(adam)));
    assert!(r.to_toml().contains("weight_decay = 0.1\n"), "{}", r.to_toml());
}

#[test]
fn the_metrics_file_takes_no_name_that_the_run_writes_to() {
    for name in ["model", "model-last", "recipe.toml", "run.json"] {
        let text = only_mistake(LEAST, &[&format!("log.metrics={name}")]);
        assert!(
            text.contains(&format!("`log.metrics` = \"{name}\" is a name that the run writes to besides")),
            "{text}"
        );
    }
    for name in [".lock", "..", "a/b", "a\\nb", &"m".repeat(200)] {
        let text = only_mistake(LEAST, &[&format!("log.metrics=\"{name}\"")]);
        assert!(text.contains("`log.metrics` must be a plain file name of at most 199 bytes"), "{text}");
    }
    load(LEAST, &[&format!("log.metrics={}", "m".repeat(199))]);
}

#[test]
fn settings_of_other_programs_or_versions_are_unknown() {
    assert!(only_mistake(LEAST, &["device.kind=cpu"]).contains("unknown key `device.kind`"));
    assert!(only_mistake(LEAST, &["model.head=cls"]).contains("must be one of \"auto\", \"new\""));
}

#[test]
fn a_run_must_have_an_end_and_a_schedule_must_know_it() {
    let endless = LEAST.replace("epochs = 3\n", "");
    let expected = "error[recipe]: there is no limit to the length of training\n  --> r.toml:7:2\n  fix: set \
        train.epochs, train.steps or train.minutes";
    assert_eq!(only_mistake(&endless, &[]), expected);
    let reason = "this schedule needs the number of steps, which train.minutes does not determine";
    assert!(only_mistake(&endless, &["train.minutes=5"]).contains(reason));
    let reason = "a fraction of an unknown number of steps: train.minutes does not determine the number";
    let sets = ["train.minutes=5", "train.schedule=constant", "train.warmup=0.1"];
    assert!(only_mistake(&endless, &sets).contains(reason));
    load(&endless, &["train.minutes=5", "train.schedule=constant", "train.warmup=10"]);
    load(&endless, &["train.minutes=5", "train.epochs=1"]);
}

#[test]
fn a_superglue_task_needs_its_directory_and_no_files() {
    let text = LEAST.replace("\"classification\"", "\"BoolQ\"");
    let found = mistakes(&text, &["data.columns.text=passage"]);
    let reasons: Vec<&str> = found.iter().map(|m| m.reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            "`data.path` is missing: the directory that holds BoolQ/train.jsonl and BoolQ/val.jsonl",
            "`data.train` has no effect: task BoolQ knows its files and labels",
            "`data.eval` has no effect: task BoolQ knows its files and labels",
            "`data.columns.text` has no effect: task BoolQ knows its columns",
        ]
    );
}

#[test]
fn all_mistakes_are_found_at_once_in_the_order_of_the_file() {
    let text = "[model]\npth = \"m\"\ndtype = \"f8\"\n[data]\ntask = \"classification\"\ntrain = \
        \"t.jsonl\"\n[train]\nlr = \"x\"\nstep = 5\nbatch_size = -1\n[output]\ndir = \"o\"\n";
    let found = mistakes(text, &["train.seed=x"]);
    let places: Vec<&str> = found.iter().map(|m| m.place.as_str()).collect();
    assert_eq!(
        places,
        [
            "r.toml:1:2",
            "r.toml:2:1",
            "r.toml:3:9",
            "r.toml:7:2",
            "r.toml:8:6",
            "r.toml:9:1",
            "r.toml:10:14",
            "--set train.seed=x"
        ],
        "{}",
        list(&found)
    );
    assert!(list(&found).ends_with("\n\n8 mistakes"), "{}", list(&found));
    // A program may have no option that lists them: none is recommended, but by programs that have one.
    let first = Recipe::load_text("r.toml", text, &["train.seed=x".into()]).unwrap_err();
    let first = model_center::run::layout_error(&first);
    assert!(first.ends_with("\n  and 7 more mistakes"), "{first}");
    let first = model_center::run::layout_error(&as_error_with(found, "--check lists all"));
    assert!(first.ends_with("\n  and 7 more mistakes: --check lists all"), "{first}");
    assert_eq!(list::<Mistake>(&[]), "no mistakes found");
}

#[test]
fn words_that_switch_evaluation_off_are_answered_by_what_does() {
    let cases = [
        ("every = \"never\"", "never"),
        ("every = \"None\"", "None"),
        ("every = \"off\"", "off"),
        ("every = \"no\"", "no"),
        ("every = \"0 steps\"", "0 steps"),
        ("every = 0", "0"),
        ("every = false", "false"),
    ];
    let fix = "fix: remove data.eval (data.valid of task pretrain) and the keys of [eval] to train without evaluation; \
               every = \"end\" evaluates before the first step and after the last one alone";
    for (line, word) in cases {
        let text = only_mistake(&format!("{LEAST}[eval]\n{line}\n"), &[]);
        let reason = format!("`eval.every` is an interval, and \"{word}\" does not switch evaluation off\n");
        assert!(text.contains(&reason) && text.ends_with(fix), "{line}: {text}");
    }
    let text = only_mistake(LEAST, &["eval.every=never"]);
    assert!(text.contains("--> --set eval.every=never") && text.ends_with(fix), "{text}");
    let text = only_mistake(LEAST, &["eval.every=1 week"]);
    assert!(text.contains("must be a string such as \"200 steps\"") && !text.contains("data.eval"), "{text}");
    // Checkpoints have a word for it.
    let text = only_mistake(LEAST, &["checkpoint.every=off"]);
    assert!(text.ends_with("fix: did you mean \"never\"?"), "{text}");
}

#[test]
fn lists_of_choices_have_each_once() {
    let wanted = "`model.f32_parameters` must be a list of some of \"embeddings\", \"norms\", \"token-types\", got";
    for (value, fix) in [
        ("[\"norm\"]", "did you mean \"norms\"?"),
        ("[\"embeddings\", \"tokentypes\"]", "did you mean \"token-types\"?"),
        ("\"norms\"", "write e.g. f32_parameters = [\"embeddings\"]"),
        ("[]", "write e.g. f32_parameters = [\"embeddings\"]"),
        ("[\"norms\", \"norms\"]", "write e.g. f32_parameters = [\"embeddings\"]"),
        ("[1]", "write e.g. f32_parameters = [\"embeddings\"]"),
        ("true", "write e.g. f32_parameters = [\"embeddings\"]"),
    ] {
        let text = only_mistake(LEAST, &["model.dtype=bf16", &format!("model.f32_parameters={value}")]);
        assert!(text.contains(wanted) && text.ends_with(fix), "{value}: {text}");
    }
}

#[test]
fn one_mistake_does_not_cause_others() {
    let text = with_train("schedule = \"exponentail\"\ngamma = 0.9");
    assert!(only_mistake(&text, &[]).contains("did you mean \"exponential\"?"));
    assert!(only_mistake(LEAST, &["data.task=clasification"]).contains("did you mean \"classification\"?"));
    assert!(only_mistake(LEAST, &["train.epochs=many"]).contains("`train.epochs` must be a number above 0"));
    assert!(only_mistake(LEAST, &["train.weight_decay=-1", "train.decoupled=false"]).contains("train.weight_decay"));
}

#[test]
fn broken_toml_has_a_place_and_no_invented_mistakes() {
    let text = only_mistake("[model\npath = \"m\"\n", &[]);
    assert!(text.starts_with("error[recipe]: not valid TOML: ") && text.contains("\n  --> r.toml:1:"), "{text}");
    let text = only_mistake(&with_train("lr = = 3"), &[]);
    assert!(text.contains("\n  --> r.toml:9:"), "{text}");
}

#[test]
fn names_of_other_trainers_are_answered_by_the_name_here_or_by_what_is_available() {
    for (set, fix) in [
        (
            "train.per_device_train_batch_size=8",
            "this is transformers' name; here it is train.micro_batch_size; keys of [train]",
        ),
        ("training.num_train_epochs=3", "tables: model"),
        ("train.fp16=true", "here it is model.dtype = \"f16\""),
        ("train.fp32_embedding=true", "here it is model.f32_parameters = [\"embeddings\"]"),
        ("train.gradient-checkpointing=true", "here it is train.recompute = \"blocks\""),
        ("data.messages=true", "here it is data.columns.messages"),
        ("train.assistant_only_loss=true", "here it is data.loss_on = \"assistant\""),
        ("train.overwrite_output_dir=true", "here it is the option --overwrite"),
        ("train.clip_grad=1", "this is another trainer's name; here it is train.clip_norm"),
        ("deepspeed={stage=3}", "this is transformers' name; here it is parallel.zero; tables"),
        ("train.lora=true", "this is another trainer's name; here it is adapter.method = \"lora\""),
        ("train.lora_r=8", "this is another trainer's name; here it is adapter.rank"),
        ("train.use_dora=true", "here it is adapter.dora"),
        ("lora={r=8}", "here it is adapter.method = \"lora\"; tables"),
        ("qlora={r=8}", "here it is adapter.quantize = \"nf4\"; tables"),
        ("model.load_in_4bit=true", "this is another trainer's name; here it is adapter.quantize = \"nf4\""),
        ("adapter.bnb_4bit_quant_type=nf4", "this is another trainer's name; here it is adapter.quantize"),
    ] {
        let text = only_mistake(LEAST, &[set]);
        assert!(text.contains(fix), "{set}: {text}");
    }
    for (set, reason, fix) in [
        (
            "model.load_in_8bit=true",
            "`model.load_in_8bit`: quantisation to 8 bits is not",
            "adapter.quantize = \"nf4\"",
        ),
        ("train.ppo=true", "`train.ppo`: reinforcement learning (PPO, GRPO) is not", "data.task = \"preference\""),
        ("train.report_to=wandb", "`train.report_to`: reporting to a tracker is not available", "log.metrics"),
    ] {
        let text = only_mistake(LEAST, &[set]);
        assert!(text.contains(reason) && text.contains(fix) && !text.contains("did you mean"), "{set}: {text}");
    }
    for (task, parts) in [
        ("ner", ["has another name here", "write data.task = \"token-classification\""]),
        ("extractive-qa", ["has another name here", "write data.task = \"question-answering\""]),
        ("dpo", ["has another name here", "write data.task = \"preference\""]),
        ("kto", ["has another name here", "write data.task = \"preference\""]),
        ("grpo", ["reinforcement learning (PPO, GRPO) is not available", "data.task = \"preference\""]),
        ("multi-label", ["has another name here", "write data.task = \"multi-label-classification\""]),
        ("conversational", ["has another name here", "write data.task = \"sft\""]),
        ("text-classification", ["has another name here", "write data.task = \"classification\""]),
        ("Summarization", ["has another name here", "write data.task = \"seq2seq\""]),
    ] {
        let text = only_mistake(LEAST, &[&format!("data.task={task}")]);
        assert!(text.contains(&format!("`data.task` = \"{task}\"")), "{task}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{task}: {text}");
    }
}

#[test]
fn weights_of_classes_are_above_0_and_for_classes_of_a_head() {
    for wrong in [
        "{}",
        "{yes = 0}",
        "{yes = -1}",
        "{yes = \"2\"}",
        "{yes = inf}",
        "{yes = 1.1e6}",
        "{yes = 1e-50}",
        "{a = {b = 1}}",
        "2",
        "equal",
        "[1, 2]",
    ] {
        let text = only_mistake(LEAST, &[&format!("data.class_weights={wrong}")]);
        let expected = "`data.class_weights` must be \"balanced\", or a table with a number above 0 and at most 1e6 \
            for \
                        each class, got ";
        assert!(text.contains(expected), "{wrong}: {text}");
    }
    let words = ["data.template=Good? {text}", "data.words=[\" no\", \" yes\"]", "data.labels=[\"no\", \"yes\"]"];
    let verbalizer = [&words[..], &["data.objective=verbalizer", "data.class_weights=balanced"]].concat();
    let tasks = ["data.task=regression", "data.task=language", "data.task=seq2seq"];
    for (sets, why) in tasks
        .map(|task| (vec![task, "data.class_weights=balanced"], "it is for tasks with classes"))
        .into_iter()
        .chain([(verbalizer, "it is for data.objective = \"classifier\"")])
    {
        let text = only_mistake(LEAST, &sets);
        assert!(text.contains(&format!("`data.class_weights` has no effect: {why}")), "{sets:?}: {text}");
    }
}

#[test]
fn what_saves_memory_needs_what_it_is_part_of() {
    for (sets, reason) in [
        (
            &["train.recompute=0"][..],
            "must be \"none\" or false, \"blocks\" or true, \"attention\", \"auto\", or a whole number",
        ),
        (&["train.recompute_inputs=host"], "blocks are not recomputed and keep more than their inputs"),
        (&["train.recompute=attention", "train.recompute_inputs=host"], "blocks are not recomputed"),
        (&["train.recompute=true", "train.recompute_inputs=sharded"], "parallel.tensor is 1"),
        (
            &["train.recompute=true", "train.recompute_inputs=sharded", "parallel.tensor=2", "parallel.sequence=true"],
            "parallel.sequence has sharded the inputs already",
        ),
        (
            &["train.recompute=auto", "train.recompute_inputs=sharded", "parallel.tensor=2"],
            "each rank decides by itself what it keeps",
        ),
        (&["train.offload_parameters=true"], "`train.offload` = false keeps the optimizer on the device"),
        (
            &["train.offload_parameters=true", "train.offload=true", "parallel.zero=1"],
            "under ZeRO-3, and `parallel.zero` = 1",
        ),
    ] {
        let mistake = only_mistake(LEAST, sets);
        assert!(mistake.contains(reason), "{sets:?}: {mistake}");
    }
}
