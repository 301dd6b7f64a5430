//! Lines of JSON as inputs: texts, targets, and lines that are refused.

use super::*;
use crate::fixture::Outcome;

/// Runs lines of the fixture's model into a file of this name.
fn forward_lines(fixture: &Fixture, lines: &[Value], out: &str) -> Outcome {
    fixture.write("in.jsonl", &lines.iter().map(|line| line.to_string() + "\n").collect::<String>());
    fixture.forward(&arguments(&fixture.path("model"), &fixture.path("in.jsonl"), out))
}

#[test]
fn texts_go_through_the_tokenizer_of_the_directory() {
    let fixture = Fixture::new();
    let tokenizer = HfTokenizer::from_directory(fixture.path("model")).unwrap();
    let texts = [("the film was good", Some("it is a film")), ("it was", Some("bad"))];
    let ids = |text: &str, pair: Option<&str>| {
        let row = tokenizer.encode(text, pair, None).unwrap();
        json!({"input_ids": row.input_ids, "token_type_ids": row.token_type_ids, "labels": 0})
    };
    let by_hand: Vec<Value> = texts.iter().map(|(text, pair)| ids(text, *pair)).collect();
    let as_text = texts.map(|(text, pair)| json!({"text": text, "text_pair": pair, "labels": 0}));
    forward_lines(&fixture, &by_hand, "ids").succeeded();
    forward_lines(&fixture, &as_text, "texts").succeeded();
    let [by_ids, by_texts] = ["ids", "texts"].map(|out| SafetensorsFile::open(&fixture.path(out)).unwrap());
    for entry in by_ids.tensors() {
        assert_eq!(by_ids.read_raw(&entry.name).unwrap(), by_texts.read_raw(&entry.name).unwrap(), "{}", entry.name);
    }
    // What the tokenizer made of the texts is shown beside.
    assert!(by_ids.entry("input_ids").is_none() && by_texts.entry("input_ids").is_some());
    // The shorter row computes what it does alone: padding is hidden.
    forward_lines(&fixture, &as_text[1..], "alone").succeeded();
    let [both, alone] = ["texts", "alone"].map(|out| SafetensorsFile::open(&fixture.path(out)).unwrap());
    let (both, alone) = (values(&both, "logits"), values(&alone, "logits"));
    // f32, summed over other lengths.
    assert!(distance(&both[2..], &alone) <= 1e-5 * norm(&alone), "{both:?} {alone:?}");
}

#[test]
fn a_target_is_the_text_that_an_encoder_decoder_learns_to_generate() {
    let fixture = Fixture::seq2seq();
    let tokenizer = HfTokenizer::from_directory(fixture.path("model")).unwrap();
    let pairs = [("the film was good", "good"), ("it is", "a film and the cast")];
    let target = |text: &str| tokenizer.encode(text, None, None).unwrap().input_ids;
    let by_hand = pairs.map(|(text, to)| json!({"text": text, "labels": target(to)}));
    forward_lines(&fixture, &by_hand, "labels").succeeded();
    forward_lines(&fixture, &pairs.map(|(text, to)| json!({"text": text, "target": to})), "target").succeeded();
    assert_eq!(fixture.bytes("labels"), fixture.bytes("target"));
    let out = SafetensorsFile::open(&fixture.path("target")).unwrap();
    assert_eq!(out.entry("logits").unwrap().shape, [2, target(pairs[1].1).len(), 47]);
    assert!(values(&out, "loss")[0].is_finite());
}

#[test]
fn lines_that_are_no_rows_are_refused_with_their_place() {
    let fixture = Fixture::new();
    for (at, line, reason) in [
        (3, r#"{"txt": "the film"}"#, "unknown field `txt`"),
        (3, "the film", "expected ident"),
        (3, r#"{"input_ids": []}"#, "without a token"),
        (3, r#"{"attention_mask": [1]}"#, "input_ids is not given here"),
        (3, r#"{"text": "the film", "input_ids": [2]}"#, "text and input_ids"),
        (3, r#"{"text": "the film", "attention_mask": [1]}"#, "a mask or types"),
        (3, r#"{"text_pair": "the film"}"#, "text_pair without text"),
        (1, r#"{"input_ids": [2], "attention_mask": [1]}"#, "attention_mask is not given here"),
        (3, r#"{"text": "the film", "labels": [1], "target": "it"}"#, "target and labels"),
        (1, r#"{"text": "the film", "labels": 1}"#, "is not given here"),
    ] {
        fixture.write("in.jsonl", &format!("{{\"input_ids\": [2, 7]}}\n\n{line}\n"));
        let message = fixture.forward(&arguments(&fixture.path("model"), &fixture.path("in.jsonl"), "out")).refused();
        assert!(message.contains(reason) && message.contains(&format!("in.jsonl:{at}")), "{line}: {message}");
        assert!(!fixture.path("out").exists());
    }
    let labelled = |labels: Value| json!({"input_ids": [2, 3], "labels": labels});
    for (first, second, reason) in [
        (labelled(json!(1)), labelled(json!([1, 2])), "labels are of another kind here"),
        (labelled(json!(0.5)), labelled(json!([0.5, 1.5])), "or of another number"),
        (labelled(json!([2, 3])), labelled(json!([2])), "labels has 1 values, input_ids has 2"),
    ] {
        let message = forward_lines(&fixture, &[first, second], "out").refused();
        assert!(message.contains(reason) && message.contains("in.jsonl:2"), "{message}");
    }
    let masked = json!({"input_ids": [2, 3], "decoder_attention_mask": [1]});
    assert!(forward_lines(&fixture, &[masked], "out").refused().contains("nothing to mask"));
    let message = forward_lines(&fixture, &[json!({"input_ids": [2, 3], "attention_mask": [1]})], "out").refused();
    assert!(message.contains("attention_mask has 1 values, input_ids has 2"), "{message}");
    let long = json!({"input_ids": vec![2; 70_000]});
    let lines = [vec![long], vec![json!({"input_ids": [2]}); 1_000]].concat();
    let message = forward_lines(&fixture, &lines, "out").refused();
    assert!(message.contains("in.jsonl:1") && message.contains("1001 rows would be padded"), "{message}");
    fixture.write("in.jsonl", "{\"text\": \"the film\"}\n");
    std::fs::remove_file(fixture.path("model/vocab.txt")).unwrap();
    let message = fixture.forward(&arguments(&fixture.path("model"), &fixture.path("in.jsonl"), "out")).refused();
    assert!(message.contains("the directory has no tokenizer: neither of tokenizer.json"), "{message}");
}
