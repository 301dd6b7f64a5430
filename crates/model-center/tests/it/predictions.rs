//! Predictions of fine-tuned models: what the pipelines of transformers predict, by
//! `scripts/golden/make_predictions.py`, whatever shares a pass.

use bmtrain_core::Device;
use model_center::model::{OpenOptions, Registry, TextModel};
use model_center::predict::{
    InputRecords, PredictColumns, PredictInput, PredictOptions, PredictedValue, Prediction, PredictionKind, Predictor,
    RecordFields,
};
use model_center::tokenizer::{AutoTokenizer, KeepSide};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Outputs are computed in f32 by both; scores differ by the order of sums.
const TOLERANCE: f64 = 1e-5;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/predictions").join(name)
}

fn expected(name: &str) -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(golden(name).join("expected.json")).unwrap()).unwrap()
}

struct Opened {
    device: Device,
    model: Box<dyn TextModel>,
    predictor: Predictor,
}

fn open(name: &str, options: PredictOptions) -> Opened {
    let (device, directory) = (Device::cpu(1).unwrap(), golden(name));
    let model = Registry::default().open(&directory, &OpenOptions::new(&device)).unwrap().model;
    let kind = PredictionKind::of(model.info(), &directory).unwrap();
    let predictor = Predictor::new((kind, model.info()), AutoTokenizer::open(&directory).unwrap(), options).unwrap();
    Opened { device, model, predictor }
}

impl Opened {
    fn predict(&self, inputs: &[PredictInput]) -> Vec<Prediction> {
        self.predictor.predict((&*self.model, &self.device), inputs).unwrap()
    }

    /// The inputs of the golden data as records.
    fn inputs(&self, cases: &[Value]) -> Vec<PredictInput> {
        cases.iter().map(|case| self.read(case["input"].as_object().unwrap()).unwrap()).collect()
    }

    fn read(&self, record: &Map<String, Value>) -> model_center::Result<PredictInput> {
        let text_pair = record.contains_key("text_pair").then(|| "text_pair".to_owned());
        let columns = PredictColumns { text_pair, ..PredictColumns::default() };
        let mut records = InputRecords::given("inputs", vec![record.clone()]);
        let record = records.next().unwrap().unwrap().unwrap();
        RecordFields::new(self.predictor.kind(), &columns)?.read(&record).map(|(input, _)| input)
    }
}

/// The predictions of a directory's model, as a program has them.
fn predicted(directory: &Path, inputs: &[PredictInput]) -> model_center::Result<Vec<Prediction>> {
    let device = Device::cpu(1)?;
    let model = Registry::default().open(directory, &OpenOptions::new(&device))?.model;
    let kind = PredictionKind::of(model.info(), directory)?;
    let tokenizer = AutoTokenizer::open(directory)?;
    let predictor = Predictor::new((kind, model.info()), tokenizer, PredictOptions::default())?;
    predictor.predict((&*model, &device), inputs)
}

fn assert_close(ours: f64, theirs: f64, what: &str) {
    assert!((ours - theirs).abs() <= TOLERANCE, "{what}: {ours} and {theirs}");
}

#[test]
fn classes_labels_and_numbers_are_those_of_the_pipeline() {
    for name in ["classes", "labels", "number"] {
        let (opened, cases) = (open(name, PredictOptions::default()), expected(name));
        let predictions = predicted(&golden(name), &opened.inputs(&cases)).unwrap();
        for (case, prediction) in cases.iter().zip(&predictions) {
            let scores = case["scores"].as_object().unwrap();
            let names = opened.predictor.kind().names();
            let score = |name: &String| scores[name].as_f64().unwrap();
            for (class, probability) in names.iter().zip(&prediction.probabilities) {
                assert_close(f64::from(*probability), score(class), &format!("{name}, {case}, {class}"));
            }
            match &prediction.value {
                PredictedValue::Class(class) => {
                    assert!(names.iter().all(|other| score(other) <= score(class)), "{case}: {class}");
                    assert_eq!(prediction.probabilities.len(), 3);
                }
                PredictedValue::Labels(labels) => {
                    let wanted: Vec<&String> = names.iter().filter(|name| score(name) > 0.5).collect();
                    assert_eq!(labels.iter().collect::<Vec<_>>(), wanted, "{case}");
                }
                PredictedValue::Numbers(numbers) => {
                    assert_close(f64::from(numbers[0]), scores["LABEL_0"].as_f64().unwrap(), &case.to_string());
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn entities_are_those_of_the_pipeline() {
    for name in ["words", "words_bytes"] {
        let (opened, cases) = (open(name, PredictOptions::default()), expected(name));
        let predictions = opened.predict(&opened.inputs(&cases));
        for (case, prediction) in cases.iter().zip(&predictions) {
            let PredictedValue::Entities { entities, tags: None } = &prediction.value else { panic!("{prediction:?}") };
            let theirs = case["entities"].as_array().unwrap();
            let text = case["input"]["text"].as_str().unwrap();
            let found: Vec<_> = entities.iter().map(|one| (one.kind.clone(), one.place.clone())).collect();
            let wanted: Vec<_> = theirs
                .iter()
                .map(|one| {
                    let at = |key: &str| one[key].as_u64().unwrap() as usize;
                    (one["entity_group"].as_str().unwrap().to_owned(), at("start")..at("end"))
                })
                .collect();
            assert_eq!(found, wanted, "{name}: {text}");
            for (ours, theirs) in entities.iter().zip(theirs) {
                assert_close(f64::from(ours.score), theirs["score"].as_f64().unwrap(), text);
                assert_eq!(ours.text.as_deref(), text.get(ours.place.clone()), "the texts are ASCII");
            }
        }
    }
}

#[test]
fn answers_are_the_best_spans_of_all_windows() {
    let options = PredictOptions { max_length: Some(32), stride: 8, ..PredictOptions::default() };
    let (opened, cases) = (open("answers", options), expected("answers"));
    let inputs = opened.inputs(&cases);
    assert!(opened.predictor.prepare(&inputs[1]).unwrap().rows().len() > 1, "the passage has several windows");
    for (case, prediction) in cases.iter().zip(opened.predict(&inputs)) {
        let PredictedValue::Answer(Some(answer)) = &prediction.value else { panic!("{prediction:?}") };
        assert_eq!(answer.text, case["answer"].as_str().unwrap());
        let place = [&case["start"], &case["end"]].map(|at| at.as_u64().unwrap() as usize);
        assert_eq!([answer.place.start, answer.place.end], place, "{case}");
        assert_close(f64::from(prediction.score.unwrap()), case["score"].as_f64().unwrap(), &case.to_string());
    }
    let options = PredictOptions { max_length: Some(32), stride: 8, may_be_none: true, ..PredictOptions::default() };
    let opened = open("answers", options);
    let are_none: Vec<bool> =
        opened.predict(&inputs).iter().map(|prediction| prediction.value == PredictedValue::Answer(None)).collect();
    let likelier: Vec<bool> = cases.iter().map(|case| case["is_none_likelier"].as_bool().unwrap()).collect();
    assert_eq!(are_none, likelier);
}

#[test]
fn conversations_are_rated_by_the_chat_template_and_long_inputs_lose_the_end_that_is_not_kept() {
    let words = "the film was good and the plot fine";
    let read = |row: Value| open("number", PredictOptions::default()).read(row.as_object().unwrap()).unwrap();
    let messages = read(json!({"messages": [{"role": "user", "content": "the film was good"},
        {"role": "assistant", "content": "and the plot fine"}]}));
    let opened = open("number", PredictOptions::default());
    assert!(opened.predictor.prepare(&messages).unwrap_err().to_string().contains("no chat template"));
    let directory = tempfile::tempdir().unwrap();
    let template = "{% for message in messages %}{{ message.content }} {% endfor %}";
    std::fs::write(directory.path().join("chat_template.jinja"), template).unwrap();
    let rating = opened.predictor.with_chat_template(directory.path()).unwrap();
    let tokenizer = AutoTokenizer::open(golden("number")).unwrap();
    let ids = tokenizer.tokenize(&[words]).unwrap().concat();
    // What the template writes, and nothing else.
    assert_eq!(rating.prepare(&messages).unwrap().rows()[0].input_ids, ids);

    let text = PredictInput::Text { text: words.to_owned(), pair: None };
    let cut = |keep| {
        let opened = open("number", PredictOptions { max_length: Some(6), keep, ..PredictOptions::default() });
        let prepared = opened.predictor.prepare(&text).unwrap();
        assert_eq!(prepared.removed(), ids.len() - 4, "two tokens are special");
        let ids = &prepared.rows()[0].input_ids;
        ids[1..ids.len() - 1].to_vec()
    };
    assert_eq!(cut(KeepSide::Start), ids[..4]);
    assert_eq!(cut(KeepSide::End), ids[ids.len() - 4..]);
}

#[test]
fn predictions_depend_on_what_shares_their_pass_by_rounding_alone() {
    for name in ["classes", "words", "words_bytes"] {
        let cases = expected(name);
        let [alone, together] = [1, 32].map(|batch| {
            let opened = open(name, PredictOptions { batch, ..PredictOptions::default() });
            opened.predict(&opened.inputs(&cases))
        });
        for (alone, together) in alone.iter().zip(&together) {
            for (one, other) in alone.probabilities.iter().zip(&together.probabilities) {
                assert_close(f64::from(*one), f64::from(*other), name);
            }
            let kinds = |prediction: &Prediction| match &prediction.value {
                PredictedValue::Entities { entities, .. } => {
                    entities.iter().map(|one| format!("{} {:?}", one.kind, one.place)).collect()
                }
                other => vec![other.json().to_string()],
            };
            assert_eq!(kinds(alone), kinds(together), "{name}");
        }
    }
}

#[test]
fn words_of_a_long_sentence_have_the_window_in_which_they_are_furthest_from_its_ends() {
    let opened = open("words", PredictOptions { max_length: Some(12), stride: 4, ..PredictOptions::default() });
    let words: Vec<String> =
        ["ann", "lee", "went", "to", "paris", "and", "smith", "to", "london", ".", "the", "film", "was", "fine"]
            .map(str::to_owned)
            .to_vec();
    let long = PredictInput::Words(words.clone());
    assert_eq!(opened.predictor.prepare(&long).unwrap().rows().len(), 2);
    let tags =
        |opened: &Opened, words: &[String]| match &opened.predict(&[PredictInput::Words(words.to_vec())])[0].value {
            PredictedValue::Entities { tags: Some(tags), .. } => tags.clone(),
            other => panic!("{other:?}"),
        };
    // Ten tokens a window, four of them shared: words 6 to 9 are in both. Of equal distances the first window counts.
    let all = tags(&opened, &words);
    let [first, second] = [&words[..10], &words[6..]].map(|window| tags(&opened, window));
    assert_eq!(all.len(), words.len());
    assert_eq!(all[..8], first[..8]);
    assert_eq!(all[8..], second[2..]);
}

#[test]
fn inputs_of_another_kind_and_options_out_of_range_are_refused() {
    let opened = open("answers", PredictOptions::default());
    let text = PredictInput::Text { text: "who ?".to_owned(), pair: None };
    let error = opened.predictor.prepare(&text).unwrap_err().to_string();
    assert!(error.contains("the model predicts questions about passages"), "{error}");
    let error = opened.read(json!({"question": "who ?"}).as_object().unwrap()).unwrap_err().to_string();
    assert!(error.contains("no column \"context\"") && error.contains("`text_pair`"), "{error}");
    let (device, directory) = (Device::cpu(1).unwrap(), golden("classes"));
    let model = Registry::default().open(&directory, &OpenOptions::new(&device)).unwrap().model;
    let with = |options: PredictOptions| {
        let kind = PredictionKind::of(model.info(), &directory).unwrap();
        Predictor::new((kind, model.info()), AutoTokenizer::open(&directory).unwrap(), options).unwrap_err().to_string()
    };
    for (options, place) in [
        (PredictOptions { max_length: Some(65), ..PredictOptions::default() }, "max_length"),
        (PredictOptions { max_length: Some(3), ..PredictOptions::default() }, "max_length"),
        (PredictOptions { threshold: 1.0, ..PredictOptions::default() }, "threshold"),
        (PredictOptions { batch: 0, ..PredictOptions::default() }, "batch"),
    ] {
        let error = with(options.clone());
        assert!(error.contains(place), "{options:?}: {error}");
    }
}
