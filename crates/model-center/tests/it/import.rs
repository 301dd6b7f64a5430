//! Recipes from other systems' commands and configurations: each of `imports/` becomes a recipe that can be read, with
//! every flag and key accounted for.

use model_center::Error;
use model_center::import::{self, ImportOptions, NoteKind, Sheet};
use model_center::recipe::Recipe;
use std::path::Path;

pub fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/imports").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn on(ranks: u64) -> ImportOptions {
    ImportOptions { ranks: Some(ranks), ..ImportOptions::default() }
}

fn megatron(name: &str) -> Sheet {
    import::megatron(&file(name), &ImportOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn deepspeed(name: &str, flags: Option<&str>, options: &ImportOptions) -> Sheet {
    let flags = flags.map(file);
    import::deepspeed(&file(name), name, flags.as_deref(), options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn with_model(options: &ImportOptions) -> ImportOptions {
    let sets =
        ["model.path=models/bert", "data.task=RTE", "data.path=data/superglue", "train.epochs=3", "output.dir=runs/x"];
    ImportOptions { sets: sets.map(str::to_owned).to_vec(), ..options.clone() }
}

/// All of them, by the file's name.
fn all() -> Vec<(&'static str, Sheet)> {
    let none = ImportOptions::default();
    let cpm = import::cpm(&file("cpm_gpt2.sh"), &none).unwrap();
    let t5 = import::cpm(&file("cpm_t5.sh"), &none).unwrap();
    let boolq = import::model_center(&file("modelcenter_boolq.sh"), &none).unwrap();
    vec![
        ("bert_345m.sh", megatron("bert_345m.sh")),
        ("gpt2_345m.sh", megatron("gpt2_345m.sh")),
        ("gpt_13b.sh", megatron("gpt_13b.sh")),
        ("llama_2b.sh", megatron("llama_2b.sh")),
        ("cpm_gpt2.sh", cpm),
        ("cpm_t5.sh", t5),
        ("modelcenter_boolq.sh", boolq),
        ("ds_cpm_gpt2.json", deepspeed("ds_cpm_gpt2.json", Some("cpm_gpt2.sh"), &none)),
        ("ds_yuan.json", deepspeed("ds_yuan.json", Some("yuan.sh"), &none)),
        ("ds_zero3_trainer.json", deepspeed("ds_zero3_trainer.json", None, &with_model(&none))),
        ("ds_zero1_bf16.json", deepspeed("ds_zero1_bf16.json", None, &with_model(&on(8)))),
        ("ds_zero2_decay.json", deepspeed("ds_zero2_decay.json", None, &with_model(&on(4)))),
    ]
}

#[track_caller]
pub fn expect(sheet: &Sheet, values: &[(&str, &str)]) {
    for (key, value) in values {
        assert_eq!(sheet.get(key), Some(*value), "{key} in\n{sheet}");
    }
}

pub fn notes(sheet: &Sheet, kind: NoteKind) -> Vec<&str> {
    sheet.notes().iter().filter(|note| note.kind == kind).map(|note| note.what.as_str()).collect()
}

#[test]
fn every_import_is_a_recipe_that_can_be_read() {
    let sheets = all();
    assert!(sheets.len() >= 10);
    for (name, sheet) in sheets {
        let text = sheet.to_toml();
        let table: toml::Table = toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        assert!(table.len() >= 4, "{name}\n{text}");
        // Each line tells where it comes from.
        let is_setting = |line: &&str| line.contains(" = ") && !line.starts_with('#');
        assert!(text.lines().filter(is_setting).all(|line| line.contains(" # ")), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 900), "{text}");
        if let Err(mistakes) = Recipe::read_text(name, &text, &[]) {
            panic!("{}\n{text}", model_center::recipe::list(&mistakes));
        }
    }
}

#[test]
fn every_flag_and_key_that_is_given_is_in_the_recipe() {
    for (name, sheet) in all() {
        let text = sheet.to_toml();
        if name.ends_with(".json") {
            let config: serde_json::Value = serde_json::from_str(&file(name)).unwrap();
            for key in config.as_object().unwrap().keys() {
                assert!(text.contains(key.as_str()), "{name}: {key} is not in\n{text}");
            }
            continue;
        }
        let script = file(name);
        let words = script.split(|c: char| c.is_whitespace() || c == '"');
        // The launcher's are named as one.
        let launcher = ["--nproc", "--nnodes", "--node_rank", "--master", "--num_gpus"];
        for flag in words.filter(|word| word.starts_with("--") && !launcher.iter().any(|own| word.starts_with(own))) {
            let flag = flag.split('=').next().unwrap().replace('_', "-");
            assert!(text.contains(&flag), "{name}: {flag} is not in\n{text}");
        }
    }
}

#[test]
fn training_begins_with_the_model_of_a_checkpoint_of_another_run() {
    let base = "pretrain_gpt2.py --num-layers 2 --hidden-size 20 --num-attention-heads 4 --train-iters 5 --data-path c";
    let of = |more: &str| import::megatron(&format!("{base} {more}"), &ImportOptions::default()).unwrap();
    for more in ["--load old/gpt2 --save new", "--load old/gpt2", "--load old/gpt2 --save old/gpt2 --finetune"] {
        let sheet = of(more);
        expect(&sheet, &[("model.path", "\"old/gpt2-model\"")]);
        let text = sheet.to_toml();
        assert!(text.contains("first run `bmtrain convert old/gpt2 old/gpt2-model`: training"), "{text}");
        assert!(text.contains("--num-layers 2: the checkpoint's model has it"), "{text}");
        let sizes = ["model.init", "model.family", "model.layers", "model.hidden", "model.heads", "model.init_std"];
        assert!(sizes.iter().all(|key| sheet.get(key).is_none()), "{text}");
    }
    // The same directory is the run itself.
    expect(&of("--load old --save old"), &[("model.init", "\"random\""), ("model.layers", "2")]);
}

#[test]
fn the_values_are_those_of_the_source() {
    expect(
        &megatron("bert_345m.sh"),
        &[
            ("model.family", "\"bert\""),
            ("model.layers", "24"),
            ("model.scale_init_by_depth", "false"),
            ("model.dtype", "\"f16\""),
            ("model.f32_parameters", "[\"embeddings\", \"norms\"]"),
            ("data.objective", "\"masked\""),
            ("data.corpora", "[\"wikipedia\"]"),
            ("data.split", "\"949,50,1\""),
            ("data.permute_documents", "true"),
            ("train.steps", "1000000"),
            ("train.decay_steps", "990000"),
            ("train.decay_endpoint", "\"megatron-2019\""),
            ("train.warmup", "9900"),
            ("train.lr", "0.0001"),
            ("train.micro_batch_size", "4"),
            ("train.accumulation", "1"),
            ("train.loss_scale", "\"megatron\""),
            ("checkpoint.every", "\"5000 steps\""),
            ("output.dir", "\"checkpoints/bert_345m\""),
        ],
    );
    let gpt2 = megatron("gpt2_345m.sh");
    expect(
        &gpt2,
        &[
            ("data.corpora", "[\"data/webtext\"]"),
            ("train.recompute", "2"),
            ("train.loss_scale_window", "500"),
            ("train.loss_scale_hysteresis", "1"),
            ("train.seed", "42"),
            ("parallel.tensor", "2"),
            ("eval.every", "\"500 steps\""),
            ("output.dir", "\"checkpoints/gpt2 345m\""),
        ],
    );
    assert_eq!((gpt2.get("data.valid"), gpt2.get("data.test"), gpt2.ranks), (None, None, None));
    let large = megatron("gpt_13b.sh");
    expect(
        &large,
        &[
            ("model.hidden", "5120"),
            ("model.init_std", "0.002"),
            ("model.hidden_dropout", "0.0"),
            (
                "data.corpora",
                "[{ path = \"data/books_text_document\", weight = 0.6 }, \
                 { path = \"data/news_text_document\", weight = 0.4 }]",
            ),
            ("train.batch_size", "2688"),
            ("train.micro_batch_size", "4"),
            ("train.steps", "54496"),
            ("train.warmup", "182"),
            ("train.schedule", "\"cosine-with-min-lr\""),
            ("train.final_lr_ratio", "0.1"),
            ("train.betas", "[0.9, 0.95]"),
            ("train.loss_scale_start", "65536"),
            ("train.recompute", "\"blocks\""),
            ("parallel.pipeline", "2"),
        ],
    );
    assert_eq!(large.ranks, Some(1792));
    assert!(notes(&large, NoteKind::Differs).iter().any(|what| what.starts_with("--rampup-batch-size")));
    expect(
        &megatron("llama_2b.sh"),
        &[
            ("model.family", "\"llama\""),
            ("model.kv_heads", "4"),
            ("model.feed_forward", "5632"),
            ("model.tokenizer", "\"models/tokenizer.model\""),
            ("parallel.sequence", "true"),
            ("parallel.zero", "1"),
            ("train.gradient_dtype", "\"f32\""),
            ("train.recompute", "\"attention\""),
        ],
    );
}

#[test]
fn a_configuration_of_deepspeed_decides_over_its_command() {
    let cpm = deepspeed("ds_cpm_gpt2.json", Some("cpm_gpt2.sh"), &ImportOptions::default());
    expect(
        &cpm,
        &[
            ("train.batch_size", "128"),
            ("train.micro_batch_size", "4"),
            ("train.loss_scale", "\"deepspeed\""),
            ("train.loss_scale_start", "65536"),
            ("log.every", "10"),
            ("parallel.zero", "0"),
        ],
    );
    let yuan = deepspeed("ds_yuan.json", Some("yuan.sh"), &ImportOptions::default());
    expect(
        &yuan,
        &[
            ("train.micro_batch_size", "1"),
            ("train.accumulation", "16"),
            ("train.loss_scale", "\"static\""),
            ("train.loss_scale_start", "4096"),
            ("train.offload", "true"),
            ("train.recompute", "40"),
            ("train.recompute_inputs", "\"host\""),
            ("train.schedule", "\"range-test\""),
            ("parallel.zero", "2"),
            ("parallel.tensor", "8"),
        ],
    );
    let decay = deepspeed("ds_zero2_decay.json", None, &with_model(&on(4)));
    expect(
        &decay,
        &[
            ("train.batch_size", "256"),
            ("train.weight_decay", "0.0"),
            ("train.schedule", "\"linear\""),
            ("train.warmup", "1000"),
            ("train.steps", "20000"),
            ("train.clip_norm", "0.5"),
            ("train.recompute_inputs", "\"host\""),
        ],
    );
    assert!(notes(&decay, NoteKind::Differs).contains(&"warmup_type log"));
}

#[test]
fn a_smallest_rate_ends_the_decay_from_version_2_on() {
    let read = |more: &str| {
        let command = format!(
            "pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --train-iters 800 --lr 1.5e-4 \
             --min-lr 1e-5 --data-path data/x --vocab-file v/vocab.txt {more}"
        );
        import::megatron(&command, &ImportOptions::default()).unwrap()
    };
    for style in ["linear", "cosine"] {
        let later = read(&format!("--micro-batch-size 8 --lr-warmup-iters 8 --lr-decay-style {style}"));
        expect(&later, &[("train.schedule", &format!("\"{style}-with-min-lr\"")), ("train.warmup", "8")]);
        assert_eq!(later.get("train.decay_endpoint"), None, "{later}");
        let first = read(&format!("--batch-size 8 --warmup 0.01 --lr-decay-style {style}"));
        expect(&first, &[("train.schedule", &format!("\"{style}\"")), ("train.decay_endpoint", "\"megatron-2019\"")]);
    }
    let none = read("--micro-batch-size 8 --lr-decay-style cosine --min-lr 0");
    assert_eq!(none.get("train.schedule"), Some("\"cosine\""), "{none}");
    let cosine = deepspeed("ds_zero1_bf16.json", None, &with_model(&on(8)));
    expect(&cosine, &[("train.schedule", "\"cosine-with-min-lr\""), ("train.final_lr_ratio", "0.1")]);
    assert!(notes(&cosine, NoteKind::Differs).contains(&"WarmupCosineLR"), "{cosine}");
}

#[test]
fn gradients_of_bf16_are_f32_unless_a_flag_narrows_them() {
    let read = |more: &str| {
        let command = format!(
            "pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --train-iters 8 \
             --micro-batch-size 8 --data-path data/x --vocab-file v/vocab.txt {more}"
        );
        import::megatron(&command, &ImportOptions::default())
    };
    for (more, dtype) in [
        ("--bf16", Some("\"f32\"")),
        ("--bf16 --grad-reduce-in-bf16", Some("\"model\"")),
        ("--bf16 --accumulate-allreduce-grads-in-fp32", Some("\"f32\"")),
        ("--fp16", Some("\"model\"")),
        ("", None),
    ] {
        assert_eq!(read(more).unwrap().get("train.gradient_dtype"), dtype, "{more}");
    }
    let both = read("--bf16 --grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32").unwrap();
    assert_eq!(both.get("train.gradient_dtype"), Some("\"model\""));
    let both = read("--fp16 --grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32").unwrap_err().to_string();
    assert!(both.contains("--grad-reduce-in-bf16") && both.contains("give one of the two"), "{both}");
}

#[test]
fn model_centers_quick_start_has_all_its_settings() {
    let sheet = import::model_center(&file("modelcenter_boolq.sh"), &ImportOptions::default()).unwrap();
    expect(
        &sheet,
        &[
            ("model.path", "\"bert-large-cased\""),
            ("model.dtype", "\"f16\""),
            ("data.task", "\"BoolQ\""),
            ("data.max_length", "512"),
            ("train.epochs", "12"),
            ("train.batch_size", "64"),
            ("train.lr", "1e-5"),
            ("train.schedule", "\"constant\""),
            ("train.clip_norm", "10.0"),
            ("train.weight_decay", "0.01"),
            ("train.loss_scale_start", "128"),
            ("output.dir", "\"results/finetune-bert-ckpt\""),
        ],
    );
    assert_eq!(sheet.ranks, Some(1));
}

#[test]
fn the_order_of_norms_of_a_bert_is_its_family() {
    let common = "pretrain_bert.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --train-iters 10 \
                  --data-path data/x --vocab-file models/bert/vocab.txt --layernorm-epsilon 1e-12";
    let flag = "--apply-residual-connection-post-layernorm";
    let imported = |command: &str| import::megatron(command, &ImportOptions::default()).unwrap();
    for (command, family) in [(common.to_owned(), "megatron-bert"), (format!("{common} {flag}"), "bert")] {
        let sheet = imported(&command);
        expect(&sheet, &[("model.family", &format!("{family:?}")), ("model.scale_init_by_depth", "true")]);
        let told = sheet.notes().iter().any(|note| note.what.contains("post-layernorm"));
        assert!(!told && sheet.to_toml().contains(flag), "{}", sheet.to_toml());
    }
    let error = import::megatron(&format!("pretrain_gpt2.py --num-layers 2 {flag}"), &ImportOptions::default());
    assert!(error.unwrap_err().to_string().contains("gpt2 has its norms before layers"));
}

#[test]
fn parameters_in_f32_are_those_of_the_flags_beside_fp16() {
    let flags = "--num-layers 2 --train-iters 5 --fp32-tokentypes --fp32-embedding";
    let imported = |program: &str, precision: &str| {
        let command = format!("{program} {flags} {precision} --data-path data/x --vocab-file models/bert/vocab.txt");
        import::megatron(&command, &ImportOptions::default()).unwrap()
    };
    let unused = |sheet: &Sheet| notes(sheet, NoteKind::Unused).iter().filter(|what| what.contains("fp32")).count();
    let both = imported("pretrain_bert.py", "--fp16");
    expect(&both, &[("model.f32_parameters", "[\"embeddings\", \"token-types\"]")]);
    assert_eq!(unused(&both), 0);
    // A decoder has no token types.
    let decoder = imported("pretrain_gpt2.py", "--fp16");
    expect(&decoder, &[("model.f32_parameters", "[\"embeddings\"]")]);
    assert_eq!(unused(&decoder), 1);
    let wide = imported("pretrain_bert.py", "");
    assert_eq!((wide.get("model.f32_parameters"), unused(&wide)), (None, 2));
}

#[test]
fn the_t5_of_cpm_pretrain_is_a_family_of_its_own() {
    let sheet = import::cpm(&file("cpm_t5.sh"), &ImportOptions::default()).unwrap();
    expect(
        &sheet,
        &[
            ("model.family", "\"cpm_t5\""),
            ("model.tokenizer", "\"tokenizer\""),
            ("model.layers", "12"),
            ("model.hidden", "128"),
            ("model.heads", "8"),
            ("model.head_size", "32"),
            ("model.feed_forward", "256"),
            ("model.positions", "1024"),
            ("model.hidden_bias", "true"),
            ("model.init_std", "0.02"),
            ("model.hidden_dropout", "0.1"),
            ("data.objective", "\"span-corruption\""),
            ("data.sequence_length", "1024"),
            ("data.spans.preset", "\"cpm2\""),
            ("train.accumulation", "8"),
            ("train.decay_endpoint", "\"megatron-2019\""),
            ("train.warmup", "3200"),
            ("parallel.pipeline", "2"),
        ],
    );
    assert_eq!(sheet.get("model.scale_init_by_depth"), None);
    let differs = notes(&sheet, NoteKind::Differs);
    assert!(differs.contains(&"norms of pretrain_t5.py") && differs.contains(&"--dec-seq-length 384"), "{differs:?}");
    assert!(!differs.iter().any(|what| what.contains("hidden-bias") || what.contains("positions")), "{differs:?}");
    // A flag of its own tells it from Megatron-LM's, whose relative T5 here is another model.
    let common = "pretrain_t5.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --train-iters 10 \
                  --data-path data/x --vocab-file models/cpm/vocab.txt --max-position-embeddings 512";
    for (flags, family, preset) in [
        ("--kv-hidden-size 16 --ff-hidden-size 128 --seq-length 512", "cpm_t5", "cpm2"),
        ("--enc-seq-length 512 --dec-seq-length 128", "cpm_t5", "cpm2"),
        ("--encoder-seq-length 512 --decoder-seq-length 128", "t5", "megatron"),
    ] {
        let sheet = import::megatron(&format!("{common} {flags}"), &ImportOptions::default()).unwrap();
        expect(&sheet, &[("model.family", &format!("{family:?}")), ("data.spans.preset", &format!("{preset:?}"))]);
        assert_eq!(sheet.get("model.hidden_bias"), (family == "cpm_t5").then_some("false"), "{sheet}");
        let text = sheet.to_toml();
        Recipe::read_text("t5", &text, &[]).unwrap_or_else(|mistakes| panic!("{mistakes:?}\n{text}"));
    }
}

#[test]
fn layers_that_share_their_parameters_keep_their_order() {
    let imported = |flags: &str| {
        import::megatron(
            &format!("pretrain_gpt2.py --num-layers 12 --train-iters 5 {flags}"),
            &ImportOptions::default(),
        )
    };
    let sheet = imported("--num-unique-layers 4").unwrap();
    expect(&sheet, &[("model.unique_layers", "4"), ("model.sharing_style", "\"grouped\"")]);
    let sheet = imported("--num-unique-layers 4 --param-sharing-style spaced").unwrap();
    expect(&sheet, &[("model.unique_layers", "4"), ("model.sharing_style", "\"spaced\"")]);
    let sheet = imported("--num-unique-layers 12 --param-sharing-style spaced").unwrap();
    assert_eq!((sheet.get("model.unique_layers"), sheet.get("model.sharing_style")), (None, None));
    assert!(notes(&sheet, NoteKind::Unused).iter().any(|what| what.contains("--param-sharing-style")), "{sheet}");
    for (flags, words) in [
        ("--num-unique-layers 5", "does not divide 12 layers"),
        ("--num-unique-layers 0", "does not divide 12 layers"),
        ("--num-unique-layers 4 --param-sharing-style mixed", "the order mixed is not known"),
    ] {
        let error = imported(flags).unwrap_err().to_string();
        assert!(error.contains(words), "{flags}: {error}");
    }
}

#[test]
fn the_batch_equation_is_checked() {
    let refused = |ranks: u64| {
        import::deepspeed(&file("ds_zero1_bf16.json"), "c.json", None, &with_model(&on(ranks))).unwrap_err().to_string()
    };
    assert!(refused(4).contains("train_batch_size 512 is not 2 x 32 x 4 data ranks"), "{}", refused(4));
    let flags = "--tensor-model-parallel-size 8 --micro-batch-size 3 --global-batch-size 64 --train-iters 5";
    let error = import::megatron(flags, &on(8)).unwrap_err().to_string();
    assert!(error.contains("--global-batch-size 64 is not a multiple of 3 x 1 data ranks"), "{error}");
    let error = import::megatron("--model-parallel-size 3 --train-iters 5", &on(8)).unwrap_err().to_string();
    assert!(error.contains("8 ranks are no multiple of 3"), "{error}");
}

#[test]
fn what_cannot_be_kept_is_refused_with_a_reason_and_left_out_on_request() {
    let command = "pretrain_gpt2.py --num-layers 2 --num-experts 8 --use-tfrecords";
    let error = import::megatron(command, &ImportOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }));
    let text = error.to_string();
    assert!(text.contains("--num-experts: mixtures of experts are not available"), "{text}");
    assert!(text.contains("also refused: --use-tfrecords") && text.contains("--leave num-experts"), "{text}");
    let leave = ["num-experts", "use-tfrecords"].map(str::to_owned).to_vec();
    let sheet = import::megatron(command, &ImportOptions { leave, ..ImportOptions::default() }).unwrap();
    assert!(notes(&sheet, NoteKind::Differs).contains(&"--num-experts 8"));
    let unknown = ImportOptions { leave: vec!["own-flag".into()], ..ImportOptions::default() };
    let sheet = import::megatron("--num-layers 2 --own_flag 3", &unknown).unwrap();
    assert!(notes(&sheet, NoteKind::Differs).contains(&"--own_flag"), "{sheet}");
    for (command, words) in [
        ("--seq-lenght 5", "did you mean --seq-length?"),
        ("--lr fast", "fast is not a number"),
        ("--seq-length $LENGTH", "the variable LENGTH has no value"),
        ("--lr", "its value is missing"),
        ("python pretrain_bert.py", "there is no flag in it"),
        ("--hidden-size 100 --num-attention-heads 3", "does not divide"),
        (
            "--tensor-model-parallel-size 9e15 --pipeline-model-parallel-size 9e15 --train-samples 8 --lr 1",
            "a number of steps only with the samples of a step",
        ),
        ("--fp16 --loss-scale 1000", "1000 is not a power of two"),
        ("--recompute-gran full --lr 1 --l 5", "unknown flag"),
    ] {
        let error = import::megatron(command, &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains(words), "{command}: {error}");
    }
    for (json, words) in [
        ("{\"zero_optimization\": {\"stage\": 4}}", "stage 4 is none of 0 to 3"),
        ("{\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\"}}}", "there is no offload to nvme"),
        ("{\"optimizer\": {\"type\": \"Lamb\"}}", "import reads the settings of Adam alone"),
        ("{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", "both enabled"),
        ("{\"sparse_attention\": {\"mode\": \"fixed\"}}", "block-sparse attention is not available"),
        ("{\"gradient_cliping\": 1}", "did you mean gradient_clipping?"),
        ("{\"train_batch_size\": 1, \"train_batch_size\": 2}", "train_batch_size"),
        ("[1]", "not a JSON object"),
    ] {
        let error = import::deepspeed(json, "c.json", None, &with_model(&on(1))).unwrap_err().to_string();
        assert!(error.contains(words), "{json}: {error}");
    }
}

#[test]
fn settings_of_the_command_line_come_last() {
    let sets = ["train.lr=1e-3", "output.dir=runs/it", "data.corpora=[\"a\"]"].map(str::to_owned).to_vec();
    let options = ImportOptions { sets, ..ImportOptions::default() };
    let sheet = import::megatron("--lr 1 --train-iters 5", &options).unwrap();
    let values = [("train.lr", "1e-3"), ("output.dir", "\"runs/it\""), ("data.corpora", "[\"a\"]")];
    expect(&sheet, &values);
    let wrong = ImportOptions { sets: vec!["lr".into()], ..ImportOptions::default() };
    assert!(import::megatron("--lr 1", &wrong).is_err());
}
