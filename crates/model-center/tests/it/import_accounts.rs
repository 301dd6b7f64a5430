//! Flags beside others, and beside a configuration of DeepSpeed: each is in the recipe, or noted with the reason.

use crate::import::{expect, file, notes};
use model_center::import::{self, ImportOptions, NoteKind, Sheet};
use model_center::recipe::Recipe;

const SIZES: &str = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --train-iters 10";

fn megatron(command: &str) -> Sheet {
    import::megatron(command, &ImportOptions::default()).unwrap_or_else(|error| panic!("{command}: {error}"))
}

fn refused(command: &str) -> String {
    import::megatron(command, &ImportOptions::default()).unwrap_err().to_string()
}

fn why<'s>(sheet: &'s Sheet, what: &str) -> (NoteKind, &'s str) {
    let note = sheet.notes().iter().find(|note| note.what.starts_with(what));
    note.map(|note| (note.kind, note.why.as_str())).unwrap_or_else(|| panic!("{what} is not noted in\n{sheet}"))
}

/// The configuration of DeepSpeed's pipelines in CPM-Pretrain, with samples of a step.
fn beside(json: &str, command: &str, ranks: Option<u64>) -> Sheet {
    let options = ImportOptions { ranks, ..ImportOptions::default() };
    import::deepspeed(json, "d.json", Some(command), &options).unwrap_or_else(|error| panic!("{command}: {error}"))
}

#[test]
fn an_accumulation_beside_a_configuration_is_compared_with_it() {
    let json = "{\"train_batch_size\": 128, \"train_micro_batch_size_per_gpu\": 4}";
    let script = file("cpm_t5.sh");
    // 8 ranks, two stages: 128 / (4 x 4) is 8, the number of the script.
    let same = beside(json, &script, None);
    let (kind, reason) = why(&same, "--gas 8");
    assert_eq!((kind, reason), (NoteKind::Unused, "train_batch_size 128 / (4 x 4 data ranks) is the same"));
    expect(&same, &[("train.batch_size", "128"), ("train.micro_batch_size", "4")]);
    let other = beside(json, &script.replace("GAS=8", "GAS=16"), None);
    let (kind, reason) = why(&other, "--gas 16");
    assert_eq!(kind, NoteKind::Differs);
    assert!(reason.contains("DeepSpeed takes 8, by its file: train_batch_size 128 / (4 x 4 data ranks)"), "{reason}");
    // Without ranks the number is not known.
    let unknown = beside(json, &format!("pretrain_gpt2.py {SIZES} --batch-size 4 --gas 16"), None);
    assert!(why(&unknown, "--gas 16").1.contains("--ranks N checks it"), "{unknown}");
    let stated = "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2}";
    let stated = beside(stated, &format!("pretrain_gpt2.py {SIZES} --batch-size 4 --gas 16"), None);
    expect(&stated, &[("train.accumulation", "2")]);
    assert!(why(&stated, "--gas 16").1.contains("takes 2, by its file: gradient_accumulation_steps 2"), "{stated}");
}

#[test]
fn a_configuration_that_is_read_is_not_missed_and_every_flag_is_named() {
    let sheet = beside(&file("ds_yuan.json"), &file("yuan.sh"), None);
    let (kind, reason) = why(&sheet, "--deepspeed, --deepspeed-config");
    assert_eq!((kind, reason.contains("not read here")), (NoteKind::Unused, false), "{reason}");
    let alone = megatron(&file("yuan.sh"));
    assert!(why(&alone, "--deepspeed, --deepspeed-config").1.contains("not read here"), "{alone}");
    // The schedule of the file takes the place of these.
    assert_eq!(why(&sheet, "--warmup 0.01"), (NoteKind::Unused, "the file of DeepSpeed decides it"));
    assert_eq!(why(&sheet, "--lr 5e-5"), (NoteKind::Unused, "the file of DeepSpeed decides it"));
    let text = sheet.to_toml();
    for flag in file("yuan.sh").split_whitespace().filter(|word| word.starts_with("--") && *word != "--num_gpus") {
        assert!(text.contains(&flag.replace('_', "-")), "{flag} is not in\n{text}");
    }
}

#[test]
fn the_order_of_samples_is_that_of_the_version_beside_a_configuration_too() {
    let order = |sheet: &Sheet| sheet.get("data.sample_order").unwrap().to_owned();
    let script = file("cpm_t5.sh");
    let cpm = import::cpm(&script, &ImportOptions::default()).unwrap();
    let both = beside("{}", &script, None);
    assert_eq!((order(&cpm), order(&both)), ("\"megatron-v1\"".to_owned(), "\"megatron-v1\"".to_owned()));
    assert!(both.source.contains("CPM-Pretrain") && both.get("model.family") == cpm.get("model.family"), "{both}");
    for (flag, expected) in [
        ("--batch-size 4", "\"megatron-v1\""),
        ("--model-parallel-size 2", "\"megatron-v1\""),
        ("--micro-batch-size 4", "\"megatron\""),
        ("--tensor-model-parallel-size 2 --lr-warmup-fraction 0.1", "\"megatron\""),
    ] {
        let sheet = megatron(&format!("pretrain_gpt2.py {SIZES} --data-path data/x {flag}"));
        assert_eq!(order(&sheet), expected, "{flag}");
        let text = sheet.to_toml();
        Recipe::read_text(flag, &text, &[]).unwrap_or_else(|mistakes| panic!("{mistakes:?}\n{text}"));
    }
}

#[test]
fn data_of_two_kinds_is_the_kind_that_the_loader_reads() {
    let common = format!("pretrain_gpt2.py {SIZES} --train-data w.json --train-data-path x --val-data-path y");
    let texts = megatron(&common);
    expect(&texts, &[("data.corpora", "[\"w\"]")]);
    assert_eq!(why(&texts, "--train-data-path x"), (NoteKind::Unused, "--train-data names the data that is read"));
    let arrays = megatron(&format!("{common} --valid-data v.json --use-npy-data-loader"));
    expect(&arrays, &[("data.corpora", "[\"x\"]"), ("data.valid", "[\"y\"]")]);
    assert_eq!(why(&arrays, "--train-data w.json").1, "--train-data-path names the data that is read");
    assert_eq!(why(&arrays, "--valid-data v.json").1, "--val-data-path names the data that is read");
}

#[test]
fn two_names_of_a_setting_have_one_value() {
    for (flags, words) in [
        ("--micro-batch-size 4 --batch-size 8", "--batch-size 8: --micro-batch-size 4 sets the same to another value"),
        ("--tensor-model-parallel-size 2 --model-parallel-size 4", "--model-parallel-size 4: "),
        ("--lr-warmup-fraction 0.1 --warmup 0.2", "give one of the two"),
        ("--ffn-hidden-size 64 --intermediate-size 128", "--intermediate-size 128: "),
    ] {
        let error = refused(&format!("pretrain_gpt2.py {SIZES} {flags}"));
        assert!(error.contains(words), "{flags}: {error}");
    }
    let same = megatron(&format!("pretrain_gpt2.py {SIZES} --micro-batch-size 4 --batch-size 4"));
    assert_eq!(why(&same, "--batch-size 4"), (NoteKind::Unused, "the other flags leave it no effect"));
    // A length that another flag takes the place of.
    let both = megatron(&format!("pretrain_gpt2.py {SIZES} --seq-length 32 --encoder-seq-length 16"));
    expect(&both, &[("data.sequence_length", "32")]);
    assert_eq!(why(&both, "--encoder-seq-length 16").0, NoteKind::Unused);
}

#[test]
fn a_size_of_the_vocabulary_is_the_models() {
    let common = format!("pretrain_gpt.py {SIZES} --micro-batch-size 4 --data-path x --tokenizer-model t.model");
    let sized = megatron(&format!("{common} --tokenizer-type SentencePieceTokenizer --vocab-size 8000"));
    expect(&sized, &[("model.vocabulary", "8000")]);
    assert!(!notes(&sized, NoteKind::Differs).contains(&"model.vocabulary"), "{sized}");
    assert!(notes(&megatron(&common), NoteKind::Differs).contains(&"model.vocabulary"));
    // The tokenizers of 2019 that are not trained have a size of their own.
    let old = "--train-data w.json --vocab-size 8000 --tokenizer-type BertWordPieceTokenizer";
    let old = megatron(&format!("pretrain_bert.py {SIZES} {old}"));
    assert_eq!(old.get("model.vocabulary"), None);
    assert_eq!(why(&old, "--vocab-size 8000"), (NoteKind::Unused, "BertWordPieceTokenizer has its own size"));
}

#[test]
fn a_t5_has_the_size_of_its_heads() {
    let common = format!("pretrain_t5.py {SIZES} --data-path x --vocab-file v/vocab.txt");
    for (flags, size) in [("", "16"), ("--kv-channels 16", "16"), ("--kv-channels 32", "32")] {
        let sheet = megatron(&format!("{common} {flags}"));
        expect(&sheet, &[("model.family", "\"t5\""), ("model.head_size", size)]);
    }
}

#[test]
fn numbers_of_predictions_and_inspections_tell_what_their_programs_do() {
    let bert = megatron(&format!("pretrain_bert.py {SIZES} --train-data w.json --max-preds-per-seq 20"));
    assert!(why(&bert, "--max-preds-per-seq 20").1.contains("does not hand it to its data of texts"), "{bert}");
    let gpt = megatron(&format!("pretrain_gpt2.py {SIZES} --train-data w.json --max-preds-per-seq 20"));
    assert_eq!(why(&gpt, "--max-preds-per-seq 20").1, "it is for masked tokens");
    let none = ImportOptions::default();
    let sheet = import::model_center(&file("modelcenter_boolq.sh"), &none).unwrap();
    let (kind, reason) = why(&sheet, "--inspect-iters 100");
    assert!(kind == NoteKind::Unused && reason.contains("train.inspect_every = 100"), "{reason}");
    let records = refused(&format!("pretrain_bert.py {SIZES} --train-data w.tfrecord --use-tfrecords"));
    assert!(records.contains("--use-tfrecords: records have pairs and masks"), "{records}");
}

#[test]
fn no_fix_proposes_another_function() {
    let post = refused(&format!("pretrain_gpt2.py {SIZES} --apply-residual-connection-post-layernorm"));
    assert!(post.contains("a model with them after is not available"), "{post}");
    assert!(!post.contains("remove it"), "{post}");
    let some = refused(&format!("pretrain_gpt2.py {SIZES} --swiglu"));
    assert!(some.contains("is not available") && some.contains("the model is another one"), "{some}");
}
