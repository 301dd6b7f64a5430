//! ModelCenter's directories: what is written are fields that its classes take, and a family that no file names is told
//! or asked for.

use crate::goldens;

use bmtrain_core::{DType, Device};
use goldens::directories::{logits, open, opened};
use goldens::{directory as golden, inputs};
use half::f16;
use model_center::config::{
    BertConfig, ClassFields, Config, Cpm1Config, Cpm2Config, Gpt2Config, GptjConfig, HeadScale, HfHeader, LlamaConfig,
    OptConfig, RobertaConfig, T5Config,
};
use model_center::formats::{DirectoryLayout, PickleFile, StoredDtype, TensorEntry, TensorSource, write_pickle};
use model_center::model::architecture::ModelFamily;
use model_center::model::{Batch, Head, HeadInit, OpenOptions, Registry, SaveOptions, TextHead};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

fn header(architecture: &str, dtype: DType) -> HfHeader {
    HfHeader { architecture: architecture.into(), dtype }
}

/// What a field has to be.
#[derive(Clone, Copy)]
enum Kind {
    Size,
    Number,
    /// A number or the text of one, such as `-inf`.
    Mask,
    Flag,
    Text,
    /// A size or nothing.
    Outputs,
    /// `true` or nothing.
    Scale,
}

use Kind::{Flag, Mask, Number, Outputs, Scale, Size, Text};

/// The parameters of all constructors of configurations of text. Source: ModelCenter 1.0.3,
/// `model_center/model/config`.
const ALL: &[(&str, Kind)] = &[
    ("vocab_size", Size),
    ("dim_model", Size),
    ("num_heads", Size),
    ("dim_head", Size),
    ("dim_ff", Size),
    ("dropout_p", Number),
    ("emb_init_mean", Number),
    ("emb_init_std", Number),
    ("pos_bias_type", Text),
    ("norm_init_var", Number),
    ("norm_bias", Flag),
    ("norm_eps", Number),
    ("att_init_mean", Number),
    ("att_init_std", Number),
    ("att_bias", Flag),
    ("att_mask_value", Mask),
    ("ffn_init_mean", Number),
    ("ffn_init_std", Number),
    ("ffn_bias", Flag),
    ("ffn_activate_fn", Text),
    ("length_scale", Flag),
    ("attn_scale", Flag),
    ("half", Flag),
    ("int8", Flag),
    ("tied", Flag),
    ("cls_head", Outputs),
    ("post_layer_norm", Flag),
];

const PROJECTION: &[(&str, Kind)] = &[("proj_init_mean", Number), ("proj_init_std", Number), ("proj_bias", Flag)];
const PLACES: &[(&str, Kind)] = &[("num_layers", Size), ("position_size", Size)];
const TYPES: &[(&str, Kind)] = &[("type_size", Size)];
const PADDING: &[(&str, Kind)] = &[("pad_token_id", Size)];
const ROTARY: &[(&str, Kind)] = &[("num_layers", Size), ("pos_rotary_dim", Size)];
const GROUPED: &[(&str, Kind)] = &[("num_layers", Size), ("num_heads_kv", Size)];
const BOTH_STACKS: &[(&str, Kind)] = &[
    ("num_encoder_layers", Size),
    ("num_decoder_layers", Size),
    ("position_bias_num_buckets", Size),
    ("position_bias_max_distance", Size),
    ("pos_init_mean", Number),
    ("pos_init_std", Number),
    ("scale", Scale),
];

fn is_of(kind: Kind, value: &Value) -> bool {
    match kind {
        Size => value.is_u64(),
        Number => value.is_number(),
        Mask => value.as_str().is_some_and(|text| text.parse::<f32>().is_ok()) || value.is_number(),
        Flag => value.is_boolean(),
        Text => value.is_string(),
        Outputs => value.is_null() || value.is_u64(),
        Scale => value.is_null() || *value == json!(true),
    }
}

fn takes(signature: &[&[(&str, Kind)]], written: &ClassFields, title: &str) {
    assert!(written.map.len() > 20, "{title}");
    for (name, value) in &written.map {
        let kind = signature.iter().flat_map(|part| part.iter()).find(|(known, _)| known == name);
        let (_, kind) = kind.unwrap_or_else(|| panic!("{title}: its class has no {name}"));
        assert!(is_of(*kind, value), "{title}: {name} = {value}");
    }
}

/// The configuration of a golden directory with fields that have no place in ModelCenter.
fn read<C: Config>(model: &str, head: &str) -> C {
    let text = std::fs::read_to_string(golden(model, head).join("config.json")).unwrap();
    let mut map: Map<String, Value> = serde_json::from_str(&text).unwrap();
    map.insert("prefix".into(), json!("translate: "));
    map.insert("bos_token_id".into(), json!(2));
    C::from_json(&serde_json::to_string(&map).unwrap(), "config.json").unwrap()
}

#[test]
fn fields_that_are_written_are_those_of_the_class_with_values_of_their_types() {
    let f32 = header("Model", DType::F32);
    let bert: BertConfig = read("bert_a", "mlm");
    takes(&[ALL, PROJECTION, PLACES, TYPES], &bert.to_model_center(&f32).unwrap(), "BERT");
    let roberta: RobertaConfig = read("roberta_a", "mlm");
    takes(&[ALL, PROJECTION, PLACES, TYPES, PADDING], &roberta.to_model_center(&f32).unwrap(), "RoBERTa");
    let gpt2: Gpt2Config = read("gpt2_a", "lm");
    takes(&[ALL, PROJECTION, PLACES], &gpt2.to_model_center(&f32).unwrap(), "GPT-2");
    let gptj: GptjConfig = read("gptj_a", "lm");
    takes(&[ALL, PROJECTION, ROTARY], &gptj.to_model_center(&f32).unwrap(), "GPT-J");
    let llama: LlamaConfig = read("llama_b", "lm");
    takes(&[ALL, PROJECTION, GROUPED], &llama.to_model_center(&f32).unwrap(), "Llama");
    let opt: OptConfig = read("opt_a", "lm");
    takes(&[ALL, PLACES, PADDING], &opt.to_model_center(&f32).unwrap(), "OPT");
    for model in ["t5_a", "t5_b", "t5_mt5"] {
        let t5: T5Config = read(model, "lm");
        takes(&[ALL, PROJECTION, BOTH_STACKS], &t5.to_model_center(&f32).unwrap(), model);
    }
}

#[test]
fn half_states_the_dtype_of_the_weights_and_cls_head_the_head() {
    let config: Gpt2Config = read("gpt2_a", "cls");
    let fields = |class: &str, dtype| config.to_model_center(&header(class, dtype)).map_err(|error| error.to_string());
    let words = fields("GPT2LMHeadModel", DType::F16).unwrap();
    assert_eq!((&words.map["half"], &words.map["cls_head"]), (&json!(true), &Value::Null));
    let classes = fields("GPT2ForSequenceClassification", DType::F32).unwrap();
    assert_eq!(
        (&classes.map["half"], &classes.map["cls_head"]),
        (&json!(false), &json!(config.text.cls_head.unwrap()))
    );
    assert!(words.left_out.contains(&"bos_token_id".to_string()) && !words.left_out.contains(&"model_type".into()));
    let brain = fields("GPT2LMHeadModel", DType::BF16).unwrap_err();
    assert!(brain.contains("f32 or f16"), "{brain}");
    // Its heads have one field for biases between them.
    let gptj: GptjConfig = read("gptj_a", "cls");
    for (class, bias) in [("GPTJForCausalLM", true), ("GPTJForSequenceClassification", false)] {
        let written = gptj.to_model_center(&header(class, DType::F32)).unwrap();
        assert_eq!(written.map["proj_bias"], json!(bias));
        let text = serde_json::to_string(&written.map).unwrap();
        assert_eq!(GptjConfig::from_json(&text, "x").unwrap().text.cls_head.is_some(), !bias);
    }
}

#[test]
fn what_its_classes_cannot_express_is_refused() {
    let refused = |written: model_center::Result<ClassFields>, want: &str| {
        let error = written.unwrap_err().to_string();
        assert!(error.contains("ModelCenter") && error.contains(want) && error.contains("fix: "), "{error}");
    };
    let opt: OptConfig = read("opt_a", "cls");
    refused(opt.to_model_center(&header("OPTForSequenceClassification", DType::F32)), "no head for classes");
    let untied: OptConfig = read("opt_a", "untied");
    refused(untied.to_model_center(&header("OPTForCausalLM", DType::F32)), "shares the token embedding");
    let t5: T5Config = read("t5_a", "lm");
    refused(t5.to_model_center(&header("T5Model", DType::F16)), "f16");
    let mut bert: BertConfig = read("bert_a", "mlm");
    bert.text.ffn_activate_fn = bmtrain_core::kernel::Activation::Tanh;
    refused(bert.to_model_center(&header("BertModel", DType::F32)), "have no tanh");
}

/// Fields with implied values are not reported as lost, all others are.
#[test]
fn fields_that_are_left_out_are_those_that_are_lost() {
    fn left<C: Config>(config: &C) -> Vec<String> {
        config.to_model_center(&header("Model", DType::F32)).unwrap().left_out
    }
    let none: [&str; 0] = [];
    assert_eq!(left(&BertConfig::default()), none);
    assert_eq!(left(&RobertaConfig::default()), none);
    assert_eq!(left(&LlamaConfig::default()), none);
    assert_eq!(left(&T5Config::default()), none);
    let mut gpt2 = Gpt2Config::default();
    assert_eq!(left(&gpt2), none);
    gpt2.scale_by_layer = true;
    assert_eq!(left(&gpt2), ["scale_attn_by_inverse_layer_idx"]);
    let mut cpm = Cpm1Config::default();
    (cpm.text.dropout_p, cpm.text.attention_dropout_p) = (0.1, 0.1);
    assert_eq!(left(&cpm), none);
    let mut cpm = Cpm2Config::default();
    (cpm.text.dropout_p, cpm.text.attention_dropout_p) = (0.1, 0.1);
    assert_eq!(left(&cpm), none);
    let mut opt = OptConfig::default();
    (opt.text.dim_model, opt.dim_word) = (1024, 1024);
    assert_eq!(left(&opt), none);
    // Its file has one dropout probability for all three places.
    let mut gptj = GptjConfig::default();
    gptj.text.dropout_p = 0.1;
    assert_eq!(left(&gptj), ["embedding_dropout_p", "attention_dropout_p"]);
}

/// A directory of this name whose `config.json` is this.
fn directory(dir: &Path, name: &str, config: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("config.json"), config).unwrap();
    path
}

fn found(path: &Path, family: Option<&str>) -> Result<&'static str, String> {
    Registry::default().find_as(path, family).map(|entry| entry.model_type).map_err(|error| error.to_string())
}

#[test]
fn the_family_of_a_file_is_told_by_its_identifier_else_by_fields_that_only_one_has() {
    let dir = tempfile::tempdir().unwrap();
    let tell = |name: &str, config: &str| found(&directory(dir.path(), name, config), None);
    // As it is published: the defaults of the class but for these.
    let short = r#"{"dim_head": 64, "vocab_size": 28996}"#;
    assert_eq!(tell("bert-base-cased", short), Ok("bert"));
    assert_eq!(tell("gpt2-large", short), Ok("gpt2"));
    assert_eq!(tell("mt5-small", r#"{"dim_head": 64, "num_encoder_layers": 8}"#), Ok("mt5"));
    let error = tell("mine", short).unwrap_err();
    assert!(error.contains("bert, roberta, longformer, gpt2") && error.contains("--family"), "{error}");
    for (config, family) in [
        (r#"{"dim_model": 8, "pos_rotary_dim": 4}"#, "gptj"),
        (r#"{"dim_model": 8, "pos_bias_type": "rotary", "norm_bias": false}"#, "llama"),
        (r#"{"dim_model": 8, "num_heads_kv": -1}"#, "llama"),
        (r#"{"dim_model": 8, "pad_token_id": 1, "post_layer_norm": false}"#, "opt"),
        (r#"{"dim_model": 8, "num_encoder_layers": 2, "scale": null}"#, "t5"),
    ] {
        assert_eq!(tell("mine", config), Ok(family), "{config}");
    }
    // An identifier of a family that the file cannot belong to is ignored.
    assert_eq!(tell("t5-base", r#"{"dim_model": 8, "pos_rotary_dim": 4}"#), Ok("gptj"));
}

#[test]
fn a_family_that_nothing_tells_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, config: &str| directory(dir.path(), name, config);
    let both = path("both", r#"{"dim_model": 8, "pad_token_id": 1, "post_layer_norm": true}"#);
    let error = found(&both, None).unwrap_err();
    assert!(error.contains("this can be roberta, longformer") && error.contains("model.family"), "{error}");
    assert_eq!(found(&both, Some("xlm-roberta")), Ok("xlm-roberta"));
    assert!(found(&both, Some("longformer")).unwrap_err().contains("unknown model family \"longformer\""));
    let none = path("none", r#"{"dim_model": 8, "pos_rotary_dim": 4, "num_heads_kv": 2}"#);
    assert!(found(&none, None).unwrap_err().contains("no class of ModelCenter has all of these fields"));
    let foreign = path("foreign", r#"{"hidden_size": 8}"#);
    let error = found(&foreign, None).unwrap_err();
    assert!(error.contains("model_type") && error.contains("--family"), "{error}");
    let stated = path("stated", r#"{"model_type": "gpt2", "dim_model": 8}"#);
    assert_eq!(found(&stated, Some("gpt2")), Ok("gpt2"));
    let error = found(&stated, Some("bert")).unwrap_err();
    assert!(error.contains("the family asked for is bert"), "{error}");
}

#[test]
fn published_files_are_read_and_embeddings_and_heads_keep_their_own_distribution() {
    let text = r#"{"vocab_size": 50258, "dim_model": 768, "num_heads": 12, "emb_init_std": 1.0, "att_init_std": 0.02,
        "ffn_init_std": 0.02, "proj_init_std": 1.0, "att_mask_value": "-1e5", "proj_bias": false}"#;
    let read = |text: &str| Gpt2Config::from_json(text, "x").map_err(|error| error.to_string());
    let config = read(text).unwrap();
    assert_eq!((config.text.init_std, config.text.outer_std()), (0.02, 1.0));
    assert_eq!(read(&config.to_json_string()).unwrap(), config);
    let written = config.to_model_center(&header("GPT2Model", DType::F32)).unwrap().map;
    assert_eq!((&written["emb_init_std"], &written["att_init_std"]), (&json!(1.0), &json!(0.02)));
    for (from, to, want) in [
        ("\"ffn_init_std\": 0.02", "\"ffn_init_std\": 0.03", "att_init_std = 0.02 and ffn_init_std = 0.03"),
        ("\"proj_init_std\": 1.0", "\"proj_init_std\": 2.0", "emb_init_std = 1.0 and proj_init_std = 2.0"),
        ("\"-1e5\"", "-3", "leaves something of masked positions"),
        ("\"-1e5\"", "\"nan\"", "is not a number"),
        ("\"-1e5\"", "[1]", "is not a number"),
    ] {
        let error = read(&text.replace(from, to)).unwrap_err();
        assert!(error.contains(want) && error.contains("fix: "), "{error}");
    }
}

#[test]
fn embeddings_keep_the_class_distribution_when_a_file_states_only_the_blocks() {
    let stds = |fields: &str| {
        let text = Gpt2Config::from_json(&format!(r#"{{"dim_model": 768{fields}}}"#), "x").unwrap().text;
        (text.init_std, text.outer_std())
    };
    assert_eq!(stds(""), (0.02, 0.02));
    assert_eq!(stds(r#", "att_init_std": 1.0"#), (1.0, 0.02));
    assert_eq!(stds(r#", "emb_init_std": 1.0"#), (0.02, 1.0));
    // This is one of transformers, for all values.
    assert_eq!(stds(r#", "initializer_range": 0.5"#), (0.5, 0.5));
}

#[test]
fn the_row_that_its_converter_of_gpt2_adds_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::cpu(1).unwrap();
    let opened = Registry::default().open(&golden("gpt2_a", "lm"), &OpenOptions::new(&device)).unwrap();
    let layout = DirectoryLayout::ModelCenter;
    opened.model.save(dir.path(), &SaveOptions { dtype: DType::F32, companions: None, layout }).unwrap();
    let rows = PickleFile::open(&dir.path().join("pytorch_model.pt")).unwrap();
    assert!(rows.entries().iter().any(|entry| entry.name == "input_embedding.weight" && entry.shape[0] == 97));
    let path = dir.path().join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, config.replace("\"vocab_size\": 97", "\"vocab_size\": 96")).unwrap();
    let options = OpenOptions { family: Some("gpt2".into()), ..OpenOptions::new(&device) };
    let error = Registry::default().open(dir.path(), &options).err().unwrap().to_string();
    assert!(error.contains("a row of zeros") && error.contains("set vocab_size to 97"), "{error}");
    // Of a family that ModelCenter does not have nothing is read under its names.
    std::fs::write(&path, std::fs::read(golden("qwen2_a", "lm").join("config.json")).unwrap()).unwrap();
    let error = Registry::default().open(dir.path(), &OpenOptions::new(&device)).err().unwrap().to_string();
    assert!(error.contains("the weights have ModelCenter's names"), "{error}");
}

/// Logits of a directory of ModelCenter's and of the Hugging Face directory that it was made from.
fn both_logits(own: &str, family: &str, (model, head): (&str, &str)) -> [Vec<f32>; 2] {
    let device = Device::cpu(1).unwrap();
    let given = inputs(model, head);
    let is_t5 = family == "t5";
    let decoder_input_ids = is_t5.then(|| given.decoder_input_ids.clone().unwrap_or_else(|| given.input_ids.clone()));
    let batch = Batch { decoder_input_ids, decoder_attention_mask: None, labels: None, ..given };
    let options = OpenOptions { family: Some(family.into()), ..OpenOptions::new(&device) };
    let theirs = open(&golden("model_center", own), &options).unwrap();
    assert!(theirs.initialized.is_empty(), "{:?}", theirs.initialized);
    // Its class has all heads at once; a model here has one.
    let unused: &[&str] = if is_t5 { &[] } else { &["pooler.dense.bias", "pooler.dense.weight"] };
    let mut left = theirs.unused.clone();
    left.sort();
    assert_eq!(left, unused);
    let ours = opened(&device, &golden(model, head));
    [theirs.model, ours].map(|model| logits(&device, &*model, &batch))
}

#[test]
fn a_file_of_torch_under_its_names_is_the_model_that_it_was_made_from() {
    let [theirs, ours] = both_logits("bert", "bert", ("bert_a", "mlm"));
    assert_eq!(theirs, ours);
}

/// Its class has the masked-language-modelling head and the pooler; the next-sentence head is new.
#[test]
fn a_bert_of_its_own_begins_both_heads_of_pretraining() {
    let device = Device::cpu(1).unwrap();
    let (head, head_values) = (Some(TextHead::Pretraining), HeadInit::DirectoryOrRandom);
    let options = OpenOptions { family: Some("bert".into()), head, head_values, ..OpenOptions::new(&device) };
    let opened = open(&golden("model_center", "bert"), &options).unwrap();
    assert_eq!(opened.initialized, ["nsp_projection.weight", "nsp_projection.bias"]);
    assert!(opened.unused.is_empty(), "{:?}", opened.unused);
}

/// Its class has a classifier beside the language-modelling head, which no T5 here has.
#[test]
fn a_classifier_is_not_converted_where_a_family_has_none() {
    let (dir, from) = (tempfile::tempdir().unwrap(), golden("model_center", "t5"));
    let old = PickleFile::open(&from.join("pytorch_model.pt")).unwrap();
    let mut entries: Vec<TensorEntry> = old.entries().into_iter().cloned().collect();
    let dim = entries.iter().find(|entry| entry.name == "input_embedding.weight").unwrap().shape[1];
    entries.push(TensorEntry::new("cls_projection.weight", StoredDtype::F32, vec![3, dim]));
    write_pickle(&dir.path().join("pytorch_model.pt"), &entries, |name, out| {
        out.resize(entries.iter().find(|entry| entry.name == name).unwrap().shape.iter().product(), 0.5);
        if name == "cls_projection.weight" { Ok(()) } else { old.read_f32(name, out) }
    })
    .unwrap();
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
    config.insert("cls_head".into(), json!(3));
    std::fs::write(dir.path().join("config.json"), serde_json::to_string(&config).unwrap()).unwrap();
    let device = Device::cpu(1).unwrap();
    for head in [None, Some(TextHead::CausalLm), Some(TextHead::None)] {
        let options = OpenOptions { family: Some("t5".into()), head, ..OpenOptions::new(&device) };
        let opened = open(dir.path(), &options).unwrap();
        assert!(opened.unused.contains(&"cls_projection.weight".to_string()), "{:?}", opened.unused);
    }
}

/// A rule for each block would be tried for each parameter of every other one.
#[test]
fn the_names_of_many_blocks_are_told_by_few_rules() {
    let rules = |layers: usize| {
        let mut config: BertConfig = read("bert_a", "mlm");
        config.text.num_layers = layers;
        let table = config.names_of_model_center(Head::MaskedLm).unwrap();
        let name = format!("encoder.layers.{}.ffn_norm.weight", layers - 1);
        let last = table.pieces(&name, &[8], true).unwrap().remove(0).name;
        (table.rules.len(), last)
    };
    let (few, last) = rules(2);
    assert_eq!(last, "encoder.output_layernorm.weight");
    assert_eq!(rules(4096), (few, last));
}

/// States a hundredth of what they were, and logits a hundred times: other roundings of the same function.
#[test]
fn a_scaled_t5_computes_what_the_unscaled_one_does() {
    let [theirs, ours] = both_logits("t5", "t5", ("t5_a", "lm"));
    let largest = ours.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    for (theirs, ours) in theirs.iter().zip(&ours) {
        assert!((theirs - ours).abs() <= 1e-5 * largest, "{theirs} {ours}");
    }
}

/// What was published is f16: of that the way to Hugging Face and back loses nothing.
#[test]
fn a_norm_of_16_bits_comes_back_from_its_factor_of_a_hundred() {
    let of = |scale| T5Config { scale, ..T5Config::default() };
    let times = of(HeadScale::HundredRoot).rescaled_norm(DirectoryLayout::HuggingFace).unwrap();
    let over = of(HeadScale::Root).rescaled_norm(DirectoryLayout::ModelCenter).unwrap();
    for value in (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).filter(|value| value.is_finite()) {
        assert_eq!(over(times(value)), value);
    }
    for (scale, layout) in [
        (HeadScale::Root, DirectoryLayout::HuggingFace),
        (HeadScale::HundredRoot, DirectoryLayout::ModelCenter),
        (HeadScale::One, DirectoryLayout::ModelCenter),
    ] {
        assert!(of(scale).rescaled_norm(layout).is_none());
    }
}
