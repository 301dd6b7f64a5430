//! The verbalizer's tokens in each kind of vocabulary.

use super::*;

/// A BPE tokenizer with a normalizer and pre-tokenizer.
fn merging(words: &[&str], merges: &[&str], front: serde_json::Value) -> HfTokenizer {
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        words.iter().zip(0..).map(|(word, id)| ((*word).to_owned(), id.into())).collect();
    let mut document = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    });
    for (key, value) in front.as_object().unwrap() {
        document[key] = value.clone();
    }
    let (directory, _) = file("tokenizer.json", document.to_string());
    HfTokenizer::from_directory(directory.path()).unwrap()
}

#[test]
fn label_words_continue_a_text_in_each_kind_of_vocabulary() {
    // As in GPT-2: the space is part of the token.
    let gpt2 = merging(
        &["?", "Ġ", "N", "o", "No", "ĠNo", "Y", "e", "s", "Ye", "Yes", "ĠYes", "1", "2", "Ġ1", "Ġ2"],
        &["N o", "Ġ No", "Y e", "Ye s", "Ġ Yes", "Ġ 1", "Ġ 2"],
        serde_json::json!({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}}),
    );
    // As in the first Llamas: a leading space marker in every text, and digits on their own.
    let spaced = serde_json::json!([
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]);
    let llama = merging(
        &["▁", "?", "▁?", "N", "o", "No", "▁No", "Y", "e", "s", "Ye", "Yes", "▁Yes", "1", "2"],
        &["▁ ?", "N o", "▁ No", "Y e", "Ye s", "▁ Yes"],
        serde_json::json!({"normalizer": {"type": "Sequence", "normalizers": spaced}}),
    );
    let answers = |tokenizer: &HfTokenizer, at: usize| {
        let (task, record, ..) = PREDECESSORS[at];
        let (directory, _) = file(&format!("{task}/val.jsonl"), record);
        let dataset = entry(task).read_below(
            directory.path(),
            Split::Validation,
            super::answering(VerbalizerPosition::Next),
            &ReadOptions::new(tokenizer, 64),
        );
        let dataset = dataset.unwrap();
        let LabelSpace::Verbalizer(answers) = dataset.labels() else { panic!() };
        let words: Vec<String> = answers.tokens.iter().map(|id| tokenizer.token(*id).unwrap()).collect();
        let last = dataset.rows(0).unwrap().next().unwrap().input_ids.last().copied().unwrap();
        (words, tokenizer.token(last).unwrap())
    };
    let (rte, copa) = (3, 2);
    assert_eq!(answers(&gpt2, rte).0, ["ĠNo", "ĠYes"]);
    assert_eq!(answers(&gpt2, copa).0, ["Ġ1", "Ġ2"]);
    assert_eq!(answers(&llama, rte).0, ["▁No", "▁Yes"]);
    // Both digits begin with the mark, which the prompt then ends with.
    assert_eq!(answers(&llama, copa), (vec!["1".into(), "2".into()], "▁".into()));
}
