//! Directories: shards and their index, what is refused by name, and a whole model directory written and read.

use std::borrow::Cow;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use bmtrain_core::dtype::DType;
use model_center::config::{BertConfig, Config, HfHeader, ProblemType, TextConfig};
use model_center::directory::hub_name;
use model_center::formats::{
    Allow, LoadPlan, ModelDirectory, NameTable, ParamShape, Rule, ShardedWriter, StoredDtype, TensorEntry,
    TensorSource, Weights,
};
use model_center::model::{OpenMode, OpenOptions, Registry};
use model_center::tokenizer::ChatTemplate;

static TABLE: NameTable = NameTable {
    base_prefix: "bert.",
    rules: Cow::Borrowed(&[Rule::new("w.{i}", "bert.layer.{i}.weight"), Rule::new("head", "classifier.weight")]),
    aliases: Cow::Borrowed(&[]),
    ignored: Cow::Borrowed(&[]),
    old_names: Cow::Borrowed(&[]),
};

fn shards(directory: &Path, count: usize, shard_bytes: u64) {
    let entries: Vec<TensorEntry> =
        (0..count).map(|i| TensorEntry::new(format!("t{i}"), StoredDtype::F32, [4])).collect();
    let mut writer = ShardedWriter::create(directory, &entries, shard_bytes).unwrap();
    for i in (0..count).rev() {
        writer.write_f32(&format!("t{i}"), &[i as f32; 4]).unwrap();
    }
    writer.finish().unwrap();
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn refusal(directory: &Path) -> String {
    Weights::open(directory).unwrap_err().to_string()
}

#[test]
fn shards_are_filled_to_their_size_and_listed_with_their_total() {
    let dir = tempfile::tempdir().unwrap();
    shards(dir.path(), 5, 32);
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!((weights.shards(), weights.bytes()), (3, 80));
    let index: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(dir.path().join("model.safetensors.index.json")).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], 80);
    assert_eq!(index["weight_map"]["t3"], "model-00002-of-00003.safetensors");
    for i in 0..5 {
        let mut got = [0.0; 4];
        weights.read_f32(&format!("t{i}"), &mut got).unwrap();
        assert_eq!(got, [i as f32; 4]);
    }
    assert!(weights.read_f32("t5", &mut [0.0; 4]).unwrap_err().to_string().contains("no tensor of this name"));
}

#[test]
fn new_weights_replace_old_ones_of_any_sharding() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model-of-mine.safetensors"), "kept").unwrap();
    for (count, bytes, files) in [(5, 32, 3), (2, 1000, 1), (4, 16, 4), (3, 16, 3), (1, 16, 1)] {
        shards(dir.path(), count, bytes);
        let weights = Weights::open(dir.path()).unwrap();
        assert_eq!((weights.shards(), weights.entries().len()), (files, count));
        let extra = if files > 1 { 2 } else { 1 };
        assert_eq!(names(dir.path()).len(), files + extra, "{:?}", names(dir.path()));
    }
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    shards(dir.path(), 3, 16);
    let path = dir.path().join("model.safetensors.index.json");
    let good = fs::read_to_string(&path).unwrap();
    for (from, to, want) in [
        ("\"t1\": \"model-00002", "\"t1\": \"model-00001", "the index puts it in model-00001-of-00003.safetensors"),
        ("\"t1\"", "\"t9\"", "the index does not list it there"),
        ("\"t1\":", "\"t9\": \"model-00001-of-00003.safetensors\",\n\"t1\":", "which does not hold it"),
        ("\"t1\"", "\"t0\"", "appears twice"),
        ("weight_map", "weight_mop", "no weight_map"),
        ("model-00002-of-00003.safetensors", "../model.safetensors", "leads out of the directory"),
        ("model-00002-of-00003.safetensors", "/etc/passwd", "leads out of the directory"),
        ("model-00002-of-00003.safetensors", "a\\u0000b", "control characters"),
        ("model-00002-of-00003.safetensors", "pytorch_model.bin", "another kind"),
        ("model-00002-of-00003.safetensors", "gone.safetensors", "no such file"),
        ("model-00002-of-00003.safetensors", "fifo.safetensors", "FIFO"),
        ("model-00002-of-00003.safetensors", "link.safetensors", "symbolic link"),
    ] {
        assert!(good.contains(from));
        fs::write(&path, good.replace(from, to)).unwrap();
        if to.contains("fifo") {
            let fifo = dir.path().join("fifo.safetensors");
            rustix::fs::mkfifoat(rustix::fs::CWD, fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        }
        if to.contains("link") {
            symlink("/etc/hostname", dir.path().join("link.safetensors")).unwrap();
        }
        let got = refusal(dir.path());
        assert!(got.contains(want), "{to}: {got}");
    }
}

#[test]
fn other_formats_are_refused_by_name_with_a_way_out() {
    for (name, fix) in
        [("tf_model.h5", "save_pretrained"), ("a.gguf", "convert FILE.gguf"), ("model.pkl", "save_pretrained")]
    {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(name), "x").unwrap();
        let got = refusal(dir.path());
        assert!(got.contains(name) && got.contains(fix), "{got}");
        // A GGUF file itself is read, and this is none.
        let (got, fix) = (refusal(&dir.path().join(name)), if name == "a.gguf" { "the file ends" } else { fix });
        assert!(got.contains(name) && got.contains(fix), "{got}");
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(refusal(dir.path()).contains("none of model.safetensors, "));
    assert!(refusal(&dir.path().join("gone")).contains("no such file"));
    fs::write(dir.path().join("adapter_model.safetensors"), "x").unwrap();
    fs::write(dir.path().join("epoch.ckpt"), "x").unwrap();
    assert!(refusal(dir.path()).contains("it has adapter_model.safetensors, epoch.ckpt"));
}

#[test]
fn one_file_counts_before_shards_as_in_transformers() {
    let dir = tempfile::tempdir().unwrap();
    shards(dir.path(), 2, 16);
    let index = dir.path().join("model.safetensors.index.json");
    let list = fs::read(&index).unwrap();
    shards(dir.path(), 1, 16);
    fs::write(index, list).unwrap();
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!((weights.shards(), weights.entries().len()), (1, 1));
    // A link that leads nowhere is not passed over.
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    symlink("gone", dir.path().join("model.safetensors")).unwrap();
    assert!(refusal(dir.path()).contains("a link to a file that is not there"), "{}", refusal(dir.path()));
}

#[test]
fn a_written_model_directory_is_complete_and_reads_back() {
    let (from, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = concat!(
        r#"{"architectures":["BertModel"],"model_type":"bert","hidden_size":8,"num_hidden_layers":1,"#,
        r#""num_attention_heads":2,"#,
        r#""intermediate_size":16,"max_position_embeddings":10,"type_vocab_size":2,"vocab_size":20,"#,
        r#""my_field":{"a":[1]}}"#
    );
    fs::write(from.path().join("config.json"), source).unwrap();
    let templates = "additional_chat_templates";
    fs::create_dir(from.path().join(templates)).unwrap();
    for name in [
        "tokenizer.json",
        "vocab.txt",
        "README.md",
        &format!("{templates}/tool_use.jinja"),
        &format!("{templates}/x.md"),
    ] {
        fs::write(from.path().join(name), name).unwrap();
    }
    let mut config = BertConfig::from_pretrained(from.path()).unwrap();
    config.text.cls_head = Some(3);
    config.text.labels = ["no", "maybe", "yes"].map(String::from).to_vec();
    config.text.problem_type = Some(ProblemType::SingleLabel);
    let params = [ParamShape::new("w.0", [2, 3]), ParamShape::new("head", [3, 2])];
    let target = dir.path().join("new/directory");
    let mut directory = ModelDirectory::new(&config, &TABLE, "BertForSequenceClassification");
    directory.header.dtype = DType::BF16;
    directory.companions = Some(from.path());
    let fill = |name: &str, out: &mut Vec<f32>| {
        out.extend((0..6).map(|i| i as f32 + if name == "head" { 10.0 } else { 0.0 }));
        Ok(())
    };
    directory.write(&target, &params, fill).unwrap();
    assert_eq!(names(&target), [templates, "config.json", "model.safetensors", "tokenizer.json", "vocab.txt"]);
    assert_eq!(names(&target.join(templates)), ["tool_use.jinja"]);
    let chat = ChatTemplate::from_directory(&target).unwrap().unwrap();
    assert_eq!(chat.names().collect::<Vec<_>>(), ["tool_use"]);
    assert_eq!(Registry::default().find(&target).unwrap().model_type, "bert");
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(target.join("config.json")).unwrap()).unwrap();
    assert_eq!(json["architectures"][0], "BertForSequenceClassification");
    assert_eq!((&json["torch_dtype"], &json["dtype"]), (&"bfloat16".into(), &"bfloat16".into()));
    assert_eq!((&json["id2label"]["2"], &json["label2id"]["maybe"]), (&"yes".into(), &1.into()));
    assert_eq!(json["my_field"]["a"][0], 1);
    assert_eq!(json["problem_type"], "single_label_classification");
    assert_eq!(BertConfig::from_pretrained(&target).unwrap(), config);
    let weights = Weights::open(&target).unwrap();
    let plan = LoadPlan::build(&TABLE, &params, &weights, &Allow::default()).unwrap();
    let mut sum = 0.0;
    plan.load(&weights, |_, values| {
        sum += values.iter().sum::<f32>();
        Ok(())
    })
    .unwrap();
    assert_eq!(sum, 90.0);

    // Once more onto itself: what is there is replaced, the tokenizer stays.
    directory.companions = Some(&target);
    directory.write(&target, &params, fill).unwrap();
    assert_eq!(fs::read_to_string(target.join("vocab.txt")).unwrap(), "vocab.txt");

    // A tokenizer file that is a link to somewhere else is not copied into a directory that people publish.
    fs::remove_file(from.path().join("vocab.txt")).unwrap();
    symlink("/etc/hostname", from.path().join("vocab.txt")).unwrap();
    directory.companions = Some(from.path());
    assert!(directory.write(&target, &params, fill).unwrap_err().to_string().contains("symbolic link"));
}

#[test]
fn a_hub_cache_knows_the_hubs_name_and_no_other_path_does() {
    let dir = tempfile::tempdir().unwrap();
    for (path, name) in [
        ("models--org--name-v2/snapshots/abc", Some("org/name-v2")),
        ("models--bert-base-uncased/snapshots/abc", Some("bert-base-uncased")),
        ("org/name", None),
        ("models--org--name/other/abc", None),
        ("models--/snapshots/abc", None),
        ("models--a b--c/snapshots/abc", None),
    ] {
        let directory = dir.path().join(path);
        fs::create_dir_all(&directory).unwrap();
        assert_eq!(hub_name(&directory).as_deref(), name, "{path}");
    }
    assert_eq!(hub_name(&dir.path().join("gone")), None);
}

#[test]
fn a_check_refuses_what_writing_would_refuse() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("vocab.txt"), "x").unwrap();
    let config = BertConfig::default();
    let params = [ParamShape::new("w.0", [2, 3])];
    let mut directory = ModelDirectory::new(&config, &TABLE, "BertForSequenceClassification");
    directory.companions = Some(from.path());
    directory.check(&params).unwrap();
    assert!(directory.check(&[ParamShape::new("nameless", [2])]).is_err());
    let without = BertConfig { attn_scale: false, ..BertConfig::default() };
    let error = ModelDirectory { config: &without, ..ModelDirectory::new(&config, &TABLE, "BertModel") }.check(&[]);
    assert!(error.unwrap_err().to_string().contains("attn_scale"));
    let companion = from.path().join("chat_template.jinja");
    let refused = || directory.check(&params).unwrap_err().to_string();
    symlink("/etc/hostname", &companion).unwrap();
    assert!(refused().contains("symbolic link"));
    fs::remove_file(&companion).unwrap();
    fs::File::create(&companion).unwrap().set_len(257 << 20).unwrap();
    assert!(refused().contains("more than any tokenizer"));
    fs::remove_file(&companion).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &companion, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert!(refused().contains("FIFO"));
    fs::remove_file(&companion).unwrap();
    // The templates beside it are held to the same, and so is their directory.
    let templates = from.path().join("additional_chat_templates");
    fs::create_dir(&templates).unwrap();
    symlink("/etc/hostname", templates.join("a.jinja")).unwrap();
    assert!(refused().contains("symbolic link"));
    fs::remove_file(templates.join("a.jinja")).unwrap();
    fs::create_dir(templates.join("a.jinja")).unwrap();
    assert!(refused().contains("a.jinja"));
    fs::remove_dir(templates.join("a.jinja")).unwrap();
    for number in 0..33 {
        fs::write(templates.join(format!("{number}.jinja")), "").unwrap();
    }
    assert!(refused().contains("more than 32 chat templates"));
    fs::remove_dir_all(&templates).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), &templates).unwrap();
    assert!(refused().contains("symbolic link"));
    fs::remove_file(&templates).unwrap();
    directory.check(&params).unwrap();
}

#[test]
fn a_configuration_without_a_hugging_face_form_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        BertConfig { text: TextConfig { dim_head: 65, ..BertConfig::default().text }, ..BertConfig::default() };
    let directory = ModelDirectory::new(&config, &TABLE, "BertModel");
    let error = directory.write(&dir.path().join("x"), &[], |_, _| Ok(())).unwrap_err().to_string();
    assert!(error.contains("dim_head") && names(dir.path()).is_empty(), "{error}");
    let header = HfHeader { architecture: "BertModel".into(), dtype: DType::I64 };
    assert!(BertConfig::default().to_hf_json(&header).is_err());
}

/// A golden directory whose configuration lacks the family, with one of its texts replaced.
fn nameless(model: &str, head: &str, family: &str, (from, to): (&str, &str)) -> tempfile::TempDir {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(model).join(head);
    let dir = tempfile::tempdir().unwrap();
    fs::copy(golden.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let text = fs::read_to_string(golden.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text.replace(from, to)).unwrap();
    assert_eq!(config.as_object_mut().unwrap().remove("model_type").unwrap(), family, "{model}");
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    dir
}

#[test]
fn a_family_that_is_not_named_is_told_by_the_names_of_tensors() {
    let device = bmtrain_core::Device::cpu(1).unwrap();
    for (model, head, family) in [
        ("bert_a", "mlm", "bert"),
        ("roberta_a", "mlm", "roberta"),
        ("megatron_bert_a", "mlm", "megatron-bert"),
        ("distilbert_a", "mlm", "distilbert"),
        ("electra_a", "mlm", "electra"),
        ("mpnet_a", "mlm", "mpnet"),
        ("albert_a", "mlm", "albert"),
        ("modernbert_a", "mlm", "modernbert"),
        ("gpt2_a", "lm", "gpt2"),
        ("gptj_a", "lm", "gptj"),
        ("opt_a", "lm", "opt"),
        ("bloom_a", "lm", "bloom"),
        ("llama_a", "lm", "llama"),
        ("mistral_a", "lm", "mistral"),
        ("qwen2_a", "lm", "qwen2"),
        ("qwen3_a", "lm", "qwen3"),
        ("t5_a", "lm", "t5"),
        ("bart_a", "lm", "bart"),
        ("marian_a", "lm", "marian"),
        ("cpm_t5_a", "lm", "cpm_t5"),
    ] {
        let dir = nameless(model, head, family, ("", ""));
        let options = OpenOptions { mode: OpenMode::Check, ..OpenOptions::new(&device) };
        let opened = Registry::default().open(dir.path(), &options).unwrap();
        assert!(opened.notes[0].contains(&format!("of family {family}")), "{:?}", opened.notes);
        // A directory that names its family needs no note.
        let named = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(model).join(head);
        assert!(Registry::default().open(&named, &options).unwrap().notes.is_empty());
    }
}

#[test]
fn tensors_that_several_families_have_tell_none_of_them() {
    // The class tells the two apart, where there is one.
    for (model, class, want) in [
        ("llama_a", "LlamaForCausalLM", "it can be llama, mistral"),
        ("roberta_a", "RobertaForMaskedLM", "it can be roberta, xlm-roberta, camembert"),
    ] {
        let head = if model == "llama_a" { "lm" } else { "mlm" };
        let family = model.strip_suffix("_a").unwrap();
        let dir = nameless(model, head, family, (class, "SomethingElse"));
        let error = Registry::default().find(dir.path()).unwrap_err().to_string();
        assert!(error.contains(want) && error.contains("--family") && error.contains("model.family"), "{error}");
        let found = Registry::default().find_as(dir.path(), Some(family)).unwrap();
        assert_eq!(found.model_type, family);
    }
    // A class of a family that is not known may compute otherwise, whether its tensors have the names of one or of
    // several.
    for (model, class, other, reason) in [
        (
            "llama_a",
            "LlamaForCausalLM",
            "GemmaForCausalLM",
            "unknown class \"GemmaForCausalLM\"; its tensors have the names of llama, mistral",
        ),
        (
            "gpt2_a",
            "GPT2LMHeadModel",
            "OtherLMHeadModel",
            "unknown class \"OtherLMHeadModel\"; its tensors have the names of gpt2",
        ),
        ("gpt2_a", "GPT2LMHeadModel", "OtherModel", "unknown class \"OtherModel\""),
        ("gpt2_a", "GPT2LMHeadModel", "BloomForCausalLM", "a class of another family, \"BloomForCausalLM\""),
    ] {
        let family = model.strip_suffix("_a").unwrap();
        let dir = nameless(model, "lm", family, (class, other));
        let error = Registry::default().find(dir.path()).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("--family or model.family if"), "{error}");
        assert_eq!(Registry::default().find_as(dir.path(), Some(family)).unwrap().model_type, family);
    }
    let dir = nameless("gpt2_a", "lm", "gpt2", ("", ""));
    shards(dir.path(), 2, u64::MAX);
    let error = Registry::default().find(dir.path()).unwrap_err().to_string();
    assert!(error.contains("the names of none: t0, t1") && error.contains("one of bert, gpt2"), "{error}");
}
