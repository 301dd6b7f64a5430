//! Prompts answered with label tokens: registered and user-defined ones, the position of each kind of model, lengths,
//! batches.

mod vocabularies;

use std::sync::Arc;

use model_center::data::{
    Batch, Dataset, Label, LabelSpace, Labels, Loader, LoaderOptions, Order, PROMPTS, Position, PromptEntry,
    ReadOptions, Split, Task, TaskModel, Template, TemplateTask, TooLong, VerbalizerBatch, VerbalizerPosition,
};
use model_center::tokenizer::{CpmKind, CpmTokenizer, HfTokenizer, Tokenizer};

use crate::data::words::{Words, file, options, rows};

const T5: VerbalizerPosition = VerbalizerPosition::Sentinel { start: Some(0) };

fn answering(place: VerbalizerPosition) -> TaskModel<'static> {
    TaskModel { place: Some(place), ..TaskModel::default() }
}

fn entry(task: &str) -> &'static PromptEntry {
    PROMPTS.iter().find(|entry| entry.name == task).unwrap()
}

/// A tokenizer that knows T5's sentinels.
fn with_sentinels() -> Words {
    let words = Words::new();
    words.tokenize(&["<extra_id_0> <extra_id_1>"]).unwrap();
    words
}

fn read(words: &Words, task: &str, split: Split, place: VerbalizerPosition, content: &str) -> Result<Dataset, String> {
    let (directory, _) = file(&format!("{task}/{}", entry(task).files.name(split)), content);
    let dataset = entry(task).read_below(directory.path(), split, answering(place), &options(words));
    dataset.map_err(|error| error.to_string().replace(&format!("{}/", directory.path().display()), ""))
}

fn texts(words: &Words, dataset: &Dataset) -> Vec<String> {
    rows(words, dataset).into_iter().map(|(text, _)| text).collect()
}

fn classes(dataset: &Dataset) -> Vec<usize> {
    let class = |sample| if let Some(Label::Class(class)) = dataset.label(sample) { class } else { usize::MAX };
    (0..dataset.len()).map(class).collect()
}

/// The label tokens of classes.
fn verbalizer(words: &Words, dataset: &Dataset) -> Vec<String> {
    let LabelSpace::Verbalizer(answers) = dataset.labels() else { panic!("{:?}", dataset.labels()) };
    answers.tokens.iter().map(|id| words.token(*id).unwrap()).collect()
}

fn batch(dataset: Dataset) -> Batch {
    let options = LoaderOptions { order: Order::Sequential, ..LoaderOptions::evaluation(dataset.len()) };
    Loader::new(Arc::new(dataset), options).unwrap().batch(Position::default()).unwrap()
}

const RTE: &str = concat!(
    r#"{"premise": "a b", "hypothesis": "c", "label": "not_entailment", "idx": 0}"#,
    "\n",
    r#"{"premise": "d", "hypothesis": "e", "label": "entailment", "idx": 1}"#,
    "\n"
);

/// One record of each task of SuperGLUE whose records are prompts, the prompt without its answer, the class, and the
/// label words.
const PREDECESSORS: [(&str, &str, &str, usize, &[&str]); 6] = [
    (
        "BoolQ",
        r#"{"passage": "It is red", "question": "is it", "label": true}"#,
        "It is red. is it?",
        1,
        &["No", "Yes"],
    ),
    (
        "CB",
        r#"{"premise": "p", "hypothesis": "h", "label": "neutral"}"#,
        "Sentence 1: p Sentence 2: h Does sentence 1 entails sentence 2?",
        2,
        &["No", "Yes", "Maybe"],
    ),
    (
        "COPA",
        r#"{"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "question": "effect", "label": 1}"#,
        "Choice 1: Wet. Choice 2: Dry. The effect of \"It rained.\" was choice",
        1,
        &["1", "2"],
    ),
    (
        "RTE",
        r#"{"premise": "p", "hypothesis": "h", "label": "entailment"}"#,
        "Sentence 1: p Sentence 2: h Does sentence 1 entails sentence 2?",
        1,
        &["No", "Yes"],
    ),
    (
        "WiC",
        r#"{"word": "bank", "sentence1": "s", "sentence2": "t", "label": false}"#,
        concat!(
            "Sentence 1: s Sentence 2: t ",
            "Does the word bank in sentence 1 express the same meaning as in sentence 2?"
        ),
        0,
        &["No", "Yes"],
    ),
    (
        "WSC",
        r#"{"target": {"span1_text": "Ann", "span2_text": "she"}, "text": "Ann ran.", "label": true}"#,
        "Ann ran. Does she refers to Ann?",
        1,
        &["No", "Yes"],
    ),
];

#[test]
fn decoders_read_the_prompt_and_predict_the_next_token() {
    for (task, record, prompt, class, answers) in PREDECESSORS {
        let words = Words::new();
        let dataset = read(&words, task, Split::Validation, VerbalizerPosition::Next, record).unwrap();
        assert_eq!(texts(&words, &dataset), [format!("[CLS] {prompt}")], "{task}");
        assert_eq!(classes(&dataset), [class], "{task}");
        assert_eq!(verbalizer(&words, &dataset), answers, "{task}");
        assert_eq!(dataset.place(0), Some(dataset.length(0) - 1), "{task}");
    }
}

#[test]
fn encoders_read_it_with_a_sentinel_and_their_decoders_predict_the_label_there() {
    for (task, record, prompt, class, answers) in PREDECESSORS {
        let words = with_sentinels();
        let dataset = read(&words, task, Split::Validation, T5, record).unwrap();
        assert_eq!(texts(&words, &dataset), [format!("[CLS] {prompt} <extra_id_0> . [SEP]")], "{task}");
        assert_eq!((classes(&dataset), dataset.place(0)), (vec![class], Some(1)), "{task}");
        assert_eq!(verbalizer(&words, &dataset), answers, "{task}");
        let sentinel = words.tokenize_one("<extra_id_0>");
        let LabelSpace::Verbalizer(labels) = dataset.labels() else { panic!() };
        assert_eq!(labels.decoder, [0, sentinel], "{task}");
    }
}

#[test]
fn copa_trains_on_both_orders_of_its_choices() {
    let words = Words::new();
    let (_, record, prompt, ..) = PREDECESSORS[2];
    let dataset = read(&words, "COPA", Split::Train, VerbalizerPosition::Next, record).unwrap();
    let mirrored = prompt.replace("Choice 1: Wet. Choice 2: Dry.", "Choice 1: Dry. Choice 2: Wet.");
    assert_eq!(texts(&words, &dataset), [format!("[CLS] {prompt}"), format!("[CLS] {mirrored}")]);
    assert_eq!(classes(&dataset), [1, 0]);
}

const LCQMC: &str = "text_a\ttext_b\tlabel\n你好\t你好吗\t1\n天气\t吃饭\t0\n";

#[test]
fn lcqmc_has_the_prompts_of_both_cpms() {
    let words = Words::new();
    words.tokenize(&["<s_0> <s_1>"]).unwrap();
    let dataset = read(&words, "LCQMC", Split::Train, VerbalizerPosition::Blank, LCQMC).unwrap();
    assert_eq!(texts(&words, &dataset)[0], "[CLS] \"你好\"与\"你好吗\"的关系是: [PAD] 。 [SEP]");
    assert_eq!((classes(&dataset), verbalizer(&words, &dataset)), (vec![1, 0], vec!["无关".into(), "有关".into()]));
    // The blank is masked, and the token before it predicts it.
    let batch = batch(dataset);
    let Batch { verbalizer: Some(verbalizer), context: Some(context), decoder_input_ids: None, .. } = batch else {
        panic!("{batch:?}")
    };
    assert_eq!((batch.length, verbalizer.positions), (5, vec![1, 6]));
    assert_eq!(context, [1, 1, 0, 1, 1, 1, 1, 0, 1, 1]);

    let place = VerbalizerPosition::Sentinel { start: None };
    let dataset = read(&words, "LCQMC", Split::Train, place, LCQMC).unwrap();
    assert_eq!(texts(&words, &dataset)[0], "[CLS] “你好”与“你好吗”是否有关？ <s_0> [SEP]");
    let LabelSpace::Verbalizer(labels) = dataset.labels() else { panic!() };
    assert_eq!(labels.decoder, [words.tokenize_one("<s_0>")]);
}

/// CPM-1 was trained with `<s>` before every text, which no template of its tokenizer adds.
#[test]
fn lcqmc_begins_with_cpm1s_bos_token_and_uses_its_vocabulary() {
    let vocabulary = "<unk> <s> </s> <pad> <eod> </_> </n> 你好 吗 与 的 关系 是 有 无 关 \" : 。";
    let (directory, _) = file("vocab.txt", vocabulary.replace(' ', "\n"));
    let cpm1 = CpmTokenizer::from_directory(directory.path()).unwrap();
    assert_eq!((cpm1.kind(), cpm1.special_ids().bos), (CpmKind::Cpm1, Some(1)));
    let (directory, _) = file("LCQMC/train.tsv", LCQMC);
    let options = ReadOptions::new(&cpm1, 64);
    let dataset = entry("LCQMC")
        .read_below(directory.path(), Split::Train, answering(VerbalizerPosition::Blank), &options)
        .unwrap();
    let row = dataset.rows(0).unwrap().next().unwrap();
    let spelled: Vec<String> = row.input_ids.iter().map(|id| cpm1.token(*id).unwrap()).collect();
    assert_eq!(spelled.join(" "), "<s> \" 你好 \" 与 \" 你好 吗 \" 的 关系 是 : <pad> 。");
    assert_eq!(dataset.place(0), Some(12));
    let LabelSpace::Verbalizer(answers) = dataset.labels() else { panic!("{:?}", dataset.labels()) };
    let words: Vec<String> = answers.tokens.iter().map(|id| cpm1.token(*id).unwrap()).collect();
    assert_eq!(words, ["无", "有"]);
}

const MULTIRC: &str = r#"{"idx": 0, "passage": {"text": "T.", "questions": [
    {"question": "Q1?", "answers": [{"text": "a", "label": 1}, {"text": "b", "label": 0}], "idx": 0},
    {"question": "Q2?", "answers": [{"text": "c", "label": 0}], "idx": 1}]}}"#;

fn one_line(record: &str) -> String {
    record.replace("\n   ", "") + "\n"
}

#[test]
fn multirc_asks_about_each_answer_and_knows_which_question_it_is_for() {
    let words = Words::new();
    let content = one_line(MULTIRC).repeat(2);
    let dataset = read(&words, "MultiRC", Split::Validation, VerbalizerPosition::Next, &content).unwrap();
    assert_eq!(texts(&words, &dataset)[1], "[CLS] T. Is answer \"b\" the answer to the question \"Q1?\"?");
    assert_eq!(classes(&dataset), [1, 0, 0, 1, 0, 0]);
    let questions: Vec<u32> = (0..6).map(|sample| dataset.member(sample).unwrap().question).collect();
    assert_eq!(questions, [0, 0, 1, 2, 2, 3]);
    let limit = ReadOptions { limit: Some(1), ..options(&words) };
    let (directory, _) = file("MultiRC/val.jsonl", content);
    let first = entry("MultiRC")
        .read_below(directory.path(), Split::Validation, answering(VerbalizerPosition::Next), &limit)
        .unwrap();
    assert_eq!((first.len(), first.report().records), (3, 1), "a limit is one of records");
}

const RECORD: &str = r#"{"idx": 0, "passage": {"text": "Ann met É. B.\n@highlight\nAnn won", "entities": [
    {"start": 0, "end": 2}, {"start": 8, "end": 12}, {"start": 25, "end": 27}]},
    "qas": [{"query": "@placeholder won, said @placeholder", 
    "answers": [{"text": "ann"}, {"text": "the Ann"}], "idx": 0}]}"#;

#[test]
fn record_asks_about_each_entity_once_and_rates_it_against_the_answers() {
    let words = Words::new();
    let dataset = read(&words, "ReCoRD", Split::Validation, VerbalizerPosition::Next, &one_line(RECORD)).unwrap();
    let text = |entity: &str| {
        format!(
            "[CLS] Ann met É. B. - Ann won Question: {entity} won, said {entity} Entities: Ann, É. B. Can \
             \"{entity}\" be filled in the placeholder?"
        )
    };
    assert_eq!(texts(&words, &dataset), [text("Ann"), text("É. B.")]);
    assert_eq!(classes(&dataset), [1, 0]);
    let credits = [0, 1].map(|sample| dataset.member(sample).unwrap().credit);
    assert_eq!(credits, [Some([1.0, 1.0]), Some([0.0, 0.0])]);
}

#[test]
fn flaws_of_nested_records_point_to_the_list_that_has_them() {
    let words = Words::new();
    for (task, record, place, reason) in [
        ("MultiRC", MULTIRC.replace("\"label\": 1", "\"label\": 2"), ":1:51", "\"label\" is \"2\""),
        ("MultiRC", MULTIRC.replace(", \"label\": 1", ""), ":1:51", "the record has no label"),
        ("MultiRC", MULTIRC.replace("\"questions\": [", "\"questions\": [3, "), ":1:51", "holds more than objects"),
        ("MultiRC", r#"{"passage": {"text": "T", "questions": []}}"#.into(), ":1:40", "asks nothing"),
        (
            "MultiRC",
            MULTIRC.replace("\"questions\": [", "\"questions\": [{\"question\": \"Q\", \"answers\": []}, "),
            ":1:51",
            "the question has no answer",
        ),
        ("MultiRC", r#"{"passage": {"text": "T", "questions": {}}}"#.into(), ":1:40", "is not a list"),
        ("ReCoRD", RECORD.replace("\"end\": 27", "\"end\": 90"), ":1:82", "from 25 to 90 is not in a passage of 32"),
        ("ReCoRD", RECORD.replace("\"end\": 2}", "\"end\": -1}"), ":1:82", "\"end\" is \"-1\""),
        ("ReCoRD", RECORD.replace("@placeholder", "x"), ":1:", "a query has no @placeholder"),
        ("ReCoRD", RECORD.replace("\"answers\"", "\"other\""), ":1:", "the record has no answers"),
        ("RTE", r#"{"premise": "p", "hypothesis": "h", "idx": 0}"#.into(), ":1:1", "a test split has none"),
        ("LCQMC", "text_a\ttext_b\tlabel\na\tb\t7\n".into(), ":2:5", "unknown label \"7\""),
    ] {
        let error = read(&words, task, Split::Train, VerbalizerPosition::Next, &one_line(&record)).unwrap_err();
        let file = format!("{task}/{}", entry(task).files.name(Split::Train));
        assert!(error.contains(&format!("{file}{place}")) && error.contains(reason), "{task}: {error}");
    }
}

#[test]
fn a_long_prompt_keeps_its_end_and_what_every_row_has() {
    let words = with_sentinels();
    let (directory, _) = file("RTE/train.jsonl", RTE);
    let within = |max_length, place| {
        let options = ReadOptions { max_length, ..options(&words) };
        entry("RTE").read_below(directory.path(), Split::Train, answering(place), &options)
    };
    let dataset = within(6, VerbalizerPosition::Next).unwrap();
    assert_eq!(texts(&words, &dataset)[0], "[CLS] Does sentence 1 entails sentence 2?".replace("Does ", ""));
    assert_eq!([dataset.length(0), dataset.place(0).unwrap()], [6, 5]);
    assert_eq!((dataset.report().removed_tokens, dataset.report().longest), (8 + 7, 6));
    let dataset = within(6, T5).unwrap();
    assert_eq!(texts(&words, &dataset)[0], "[CLS] sentence 2? <extra_id_0> . [SEP]");
    let error = within(3, T5).unwrap_err().to_string();
    assert!(error.contains("no room beside the 3") && error.contains("data.max_length"), "{error}");
    let strict = ReadOptions { max_length: 6, too_long: TooLong::Error, ..options(&words) };
    let error =
        entry("RTE").read_below(directory.path(), Split::Train, answering(T5), &strict).unwrap_err().to_string();
    assert!(error.contains("train.jsonl:1:1") && error.contains("17 tokens, more than data.max_length = 6"), "{error}");
}

#[test]
fn a_batch_has_the_positions_of_its_labels() {
    let words = with_sentinels();
    let batch_at = |place| batch(read(&words, "RTE", Split::Train, place, RTE).unwrap());
    let next = batch_at(VerbalizerPosition::Next);
    let (no, yes) = (words.tokenize_one("No"), words.tokenize_one("Yes"));
    let ids = |list: [u32; 2]| list.map(i64::from).to_vec();
    // Rows of 14 and 13 tokens.
    let expected = VerbalizerBatch { label_words: ids([no, yes]), positions: vec![13, 26] };
    assert_eq!((next.length, next.verbalizer), (14, Some(expected)));
    assert_eq!((next.decoder_input_ids, next.context), (None, None));
    assert_eq!(next.labels, Some(Labels::Classes(vec![0, 1])));
    let batch = batch_at(T5);
    let sentinel = batch.verbalizer.unwrap();
    let decoder = [0, i64::from(words.tokenize_one("<extra_id_0>"))].repeat(2);
    assert_eq!((sentinel.positions, batch.decoder_input_ids), (vec![1, 3], Some(decoder)));
    // Another place of the answer is another dataset.
    let of = |place| read(&words, "RTE", Split::Train, place, RTE).unwrap().fingerprint().to_owned();
    assert_ne!(of(VerbalizerPosition::Next), of(T5));
    assert_ne!(of(T5), of(VerbalizerPosition::Sentinel { start: None }));
}

fn template(written: &str, answers: [&str; 2]) -> TemplateTask {
    TemplateTask {
        template: Template::parse(written).unwrap(),
        label: "label".into(),
        labels: ["bad", "good"].map(String::from).to_vec(),
        words: answers.map(String::from).to_vec(),
        format: None,
    }
}

#[test]
fn a_prompt_of_ones_own_shows_any_columns_and_the_answer_anywhere() {
    let words = with_sentinels();
    let (_directory, path) = file("a.csv", "title,text,label\nFilm,It ran,good\nBook,It sat,0\n");
    let task = template("{title}: {text} Was it good? {answer} , really", [" No", " Yes"]);
    let at = |place| task.read(&path, place, &options(&words)).unwrap();
    let decoder = at(VerbalizerPosition::Next);
    assert_eq!(texts(&words, &decoder), ["[CLS] Film: It ran Was it good?", "[CLS] Book: It sat Was it good?"]);
    assert_eq!(classes(&decoder), [1, 0]);
    let encoder = at(T5);
    assert_eq!(texts(&words, &encoder)[0], "[CLS] Film: It ran Was it good? <extra_id_0> , really [SEP]");
    let behind = template("It is {answer} : {title} {text}", [" No", " Yes"]);
    let error = behind.read(&path, VerbalizerPosition::Next, &options(&words)).unwrap_err().to_string();
    assert!(error.contains("data.template") && error.contains("no column before the answer"), "{error}");
    // Half of the room, which is eight tokens less two and the blank, is for the text before the answer.
    let short = ReadOptions { max_length: 8, ..options(&words) };
    let rows = texts(
        &words,
        &template("{title} {title} {title} {answer} {text} {text}", [" No", " Yes"]).read(&path, T5, &short).unwrap(),
    );
    assert_eq!(rows[0], "[CLS] Film Film <extra_id_0> It ran It [SEP]");
}

#[test]
fn a_vocabulary_may_spell_its_sentinels_with_a_space_in_front() {
    // As in mT5, whose sentinels are the model's last pieces.
    let vocabulary = ["<unk>", "▁No", "▁Yes", "▁a", "▁?", "▁<extra_id_1>", "▁<extra_id_0>"];
    let vocabulary: Vec<(&str, f64)> = vocabulary.iter().map(|word| (*word, -1.0)).collect();
    let document = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary},
    });
    let (directory, _) = file("tokenizer.json", document.to_string());
    let tokenizer = HfTokenizer::from_directory(directory.path()).unwrap();
    let (_directory, path) = file("a.csv", "text,label\na,good\n");
    let task = template("{text} {answer}", [" No", " Yes"]);
    let dataset = task.read(&path, T5, &ReadOptions::new(&tokenizer, 16)).unwrap();
    let LabelSpace::Verbalizer(answers) = dataset.labels() else { panic!("{:?}", dataset.labels()) };
    assert_eq!((&answers.tokens[..], &answers.decoder[..]), (&[1, 2][..], &[0, 6][..]));
    assert_eq!(dataset.rows(0).unwrap().next().unwrap().input_ids, [3, 6]);
}

#[test]
fn label_words_are_distinguished_by_their_first_differing_token() {
    let words = with_sentinels();
    let (_directory, path) = file("a.csv", "text,label\nIt ran,good\nIt sat,bad\n");
    let read = |answers, place| template("{text} .", answers).read(&path, place, &options(&words));
    // Their common beginning is part of the prompt.
    let dataset = read([" very bad", " very good"], VerbalizerPosition::Next).unwrap();
    assert_eq!(texts(&words, &dataset)[0], "[CLS] It ran . very");
    assert_eq!(verbalizer(&words, &dataset), ["bad", "good"]);
    assert_eq!(dataset.place(0), Some(4));
    let dataset = read([" very bad", " very good"], T5).unwrap();
    let LabelSpace::Verbalizer(labels) = dataset.labels() else { panic!() };
    assert_eq!(labels.decoder, [0, words.tokenize_one("<extra_id_0>"), words.tokenize_one("very")]);
    assert_eq!(texts(&words, &dataset)[0], "[CLS] It ran . <extra_id_0> [SEP]");
    for (answers, reason) in [
        ([" same", " same"], "\" same\" and \" same\" are the same token"),
        ([" very", " very good"], "are the same token"),
        ([" mute", " good"], "\" mute\" is not in the vocabulary"),
    ] {
        for place in [VerbalizerPosition::Next, T5] {
            let error = read(answers, place).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("data.words"), "{error}");
        }
    }
    let plain = Words::new();
    let error = template("{text}", [" No", " Yes"]).read(&path, T5, &options(&plain)).unwrap_err().to_string();
    assert!(error.contains("no sentinel for an answer") && error.contains("<extra_id_0>"), "{error}");
}

#[test]
fn a_prompt_with_nothing_in_front_of_its_answer_is_no_sample() {
    let words = Words::new();
    let (_directory, path) = file("a.csv", "text,label\nIt ran,good\n");
    let task = template("{text}", [" No", " Yes"]);
    // The stub's BOS precedes the answer.
    assert!(task.read(&path, VerbalizerPosition::Next, &options(&words)).is_ok());
    let error =
        task.read(&path, VerbalizerPosition::Next, &ReadOptions { max_length: 1, ..options(&words) }).unwrap_err();
    assert!(error.to_string().contains("no room"), "{error}");
}

#[test]
fn a_record_that_asks_for_a_lot_of_memory_is_refused() {
    let words = Words::new();
    let many = |item: &str, count: usize| vec![item; count].join(", ");
    let text = "w ".repeat(200_000);
    let answers = many("{\"text\": \"a\", \"label\": 0}", 400);
    let multirc = format!(
        "{{\"passage\": {{\"text\": \"{text}\", \"questions\": [{{\"question\": \"q\", \"answers\": [{answers}]}}]}}}}"
    );
    let error = read(&words, "MultiRC", Split::Train, VerbalizerPosition::Next, &multirc).unwrap_err();
    assert!(error.contains("repeats the passage") && error.contains("MultiRC/train.jsonl:1:"), "{error}");
    let entities = many("{\"start\": 0, \"end\": 0}", 1001);
    let record = format!("{{\"passage\": {{\"text\": \"a\", \"entities\": [{entities}]}}, \"qas\": []}}");
    let error = read(&words, "ReCoRD", Split::Train, VerbalizerPosition::Next, &record).unwrap_err();
    assert!(error.contains("1001 of them, more than the accepted 1000"), "{error}");
}

/// Damage of every kind at every place: the reader answers, and what it accepts is well formed.
#[test]
fn damaged_records_never_panic() {
    let words = with_sentinels();
    let (mut refused, mut accepted) = (0, 0);
    for (task, good) in [("MultiRC", one_line(MULTIRC)), ("ReCoRD", one_line(RECORD)), ("LCQMC", LCQMC.to_owned())] {
        for at in 0..good.len() {
            for damage in [None, Some(b'"'), Some(b'\n'), Some(0xFF), Some(b'9'), Some(b'['), Some(b'}'), Some(0)] {
                let mut bytes = good.clone().into_bytes();
                match damage {
                    Some(byte) => bytes[at] = byte,
                    None => bytes.truncate(at),
                }
                let (directory, _) = file(&format!("{task}/{}", entry(task).files.name(Split::Train)), bytes);
                match entry(task).read_below(directory.path(), Split::Train, answering(T5), &options(&words)) {
                    Ok(dataset) => {
                        accepted += 1;
                        let texts = texts(&words, &dataset);
                        assert!(texts.iter().all(|text| text.contains("<extra_id_0>")), "{texts:?}");
                        assert_eq!(texts.len(), dataset.len());
                        assert!(task == "LCQMC" || (0..dataset.len()).all(|at| dataset.member(at).is_some()));
                    }
                    Err(error) => {
                        refused += 1;
                        assert!(error.to_string().contains("fix:"), "{error}");
                    }
                }
            }
        }
    }
    assert!(refused > 1000 && accepted > 300, "{refused} {accepted}");
}
