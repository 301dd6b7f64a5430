//! Prompts: templates, columns, special tokens, cut sides, splits of a dataset.

use super::{generated, lines, prompts, rows, tokenizer};
use crate::fixture::Fixture;
use model_center::tokenizer::{TextSpecials, Tokenizer};
use serde_json::{Value, json};

#[test]
fn a_prompt_is_read_without_the_end_of_its_template() {
    let fixture = Fixture::bloom();
    let tokenizer = tokenizer(&fixture);
    let text = "the film was good";
    let mut ids = tokenizer.encode(text, None, None).unwrap().input_ids;
    assert_eq!(ids.pop(), tokenizer.special_ids().sep);
    let max = ["--max-new-tokens", "8"];
    let by_text = generated(&fixture, &[json!({"prompt": text}), json!({"input": text})], &max);
    let by_ids = generated(&fixture, &[json!({"input_ids": ids})], &max);
    assert_eq!(by_text[0]["generated_text"], by_ids[0]["generated_text"]);
    assert_eq!(by_text[0]["generated_text"], by_text[1]["generated_text"]);
    let words: Vec<u32> = serde_json::from_value(by_ids[0]["generated_ids"].clone()).unwrap();
    assert_eq!(by_ids[0]["generated_text"], tokenizer.decode(&words, true).unwrap().as_str());
    // What an encoder reads keeps it.
    let fixture = Fixture::seq2seq();
    let whole = tokenizer.encode(text, None, None).unwrap().input_ids;
    let by_text = generated(&fixture, &[json!({"prompt": text})], &max);
    let by_ids = generated(&fixture, &[json!({"input_ids": whole})], &max);
    assert_eq!(by_text[0]["generated_text"], by_ids[0]["generated_text"]);
}

#[test]
fn prompts_are_printed_with_their_texts_as_the_file_has_them() {
    let fixture = Fixture::bloom();
    let max = ["--max-new-tokens", "6"];
    let texts: Vec<String> = generated(&fixture, &prompts()[..2], &max)
        .iter()
        .map(|row| row["generated_text"].as_str().unwrap().to_owned())
        .collect();
    let two = ["--prompt", "the film was", "--prompt", "it is a very good plot and the cast"];
    let print = |arguments: &[&str]| fixture.generate(&[&two[..], &max, arguments].concat()).succeeded().stdout;
    assert_eq!(print(&[]), format!("{}\n{}\n", texts[0], texts[1]));
    assert_eq!(print(&["--batch", "2"]), print(&[]), "whether they are shown as they come or not");
    let echoed = format!("the film was {}\nit is a very good plot and the cast {}\n", texts[0], texts[1]);
    assert_eq!((print(&["--echo"]), print(&["--echo", "--batch", "2"])), (echoed.clone(), echoed));
    let printed = rows(&print(&["--json"]));
    assert_eq!(printed[1], json!({"prompt": "it is a very good plot and the cast", "generated_text": texts[1]}));
    // Without a file the rows are printed.
    fixture.write("in.jsonl", &lines(&prompts()[..2]));
    let outcome = fixture.generate(&[&["--input", "in.jsonl"][..], &max].concat()).succeeded();
    assert_eq!(rows(&outcome.stdout)[1]["generated_text"], texts[1].as_str());
    assert!(outcome.stderr.contains("tokens of 2 texts") && outcome.stderr.contains("tokens/s"), "{}", outcome.stderr);
    let quiet = fixture.generate(&["--prompt", "it", "--quiet"]).succeeded();
    assert_eq!(quiet.stderr, "");
}

#[test]
fn templates_columns_and_special_tokens_determine_the_input() {
    let fixture = Fixture::bloom();
    let max = ["--max-new-tokens", "6"];
    let texts = |input: Value, arguments: &[&str]| {
        generated(&fixture, &[input], &[&max[..], arguments].concat())[0]["generated_text"].clone()
    };
    let plain = texts(json!({"prompt": "question : the film ? end {prompt}"}), &[]);
    let filled = ["--template", "question : {prompt} ? end {prompt}", "--column", "asked"];
    assert_eq!(texts(json!({"asked": "the film", "prompt": "another"}), &filled), plain);
    let tokenizer = tokenizer(&fixture);
    let [cls, mask] = ["[CLS]", "[MASK]"].map(|token| tokenizer.id(token).unwrap());
    let as_tokens = tokenizer.with_text_specials(TextSpecials::AsTokens).tokenize(&["it [MASK]"]).unwrap().concat();
    assert_eq!(as_tokens.last(), Some(&mask));
    let ids = [&[cls], &as_tokens[..]].concat();
    let by_ids = texts(json!({"input_ids": ids}), &[]);
    assert_eq!(texts(json!({"prompt": "it [MASK]"}), &["--special-tokens"]), by_ids);
}

#[test]
fn a_split_of_a_data_set_is_generated_for_and_its_rows_keep_their_keys() {
    let fixture = Fixture::bloom();
    let texts = ["it is bad", "the film was good", "the plot is a film"];
    let row = |at: usize| json!({"id": format!("row-{at}"), "input": texts[at], "output": "x", "note": at});
    fixture.write("data/test/b.jsonl", &lines(&[row(2)]));
    fixture.write("data/test/a.jsonl", &lines(&[row(0), row(1)]));
    fixture.write("data/test/notes.txt", "no rows");
    fixture.write("data/val.jsonl", &lines(&[row(1)]));
    let new = ["--max-new-tokens", "3"];
    let run = |arguments: &[&str]| {
        let data = ["--data", "data", "--output", "out.jsonl"];
        fixture.generate(&[&data[..], &new, arguments].concat())
    };
    run(&[]).succeeded();
    let all = rows(&fixture.read("out.jsonl"));
    for (at, (row_of, got)) in (0..3).map(row).zip(&all).enumerate() {
        let mut kept = got.clone();
        let text = kept.as_object_mut().unwrap().remove("generated_text").unwrap();
        assert_eq!(kept, row_of, "the files come in the order of their names");
        let alone = fixture.generate(&[&["--prompt", texts[at]], &new[..]].concat()).succeeded().stdout;
        assert_eq!(text.as_str().unwrap().trim_end(), alone.trim_end());
    }
    let written = fixture.read("out.jsonl");
    run(&["--overwrite", "--ranks", "2", "--batch", "1"]).succeeded();
    assert_eq!(fixture.read("out.jsonl"), written, "two ranks share the rows");
    fixture.write("out.jsonl", &written.lines().take(1).map(|line| format!("{line}\n")).collect::<String>());
    run(&["--append"]).succeeded();
    assert_eq!(fixture.read("out.jsonl"), written, "an output that was cut off is continued");
    run(&["--overwrite", "--split", "val"]).succeeded();
    assert_eq!(rows(&fixture.read("out.jsonl"))[0], all[1]);
    for (arguments, part) in [
        (&["--overwrite", "--split", "train"][..], "neither a directory"),
        (&["--overwrite", "--split", "../data"], "is not a name"),
        (&["--overwrite", "--input", "data/val.jsonl"], "cannot be used with"),
    ] {
        let error = run(arguments).refused();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn long_prompts_are_cut_at_the_chosen_side_alone() {
    let fixture = Fixture::bloom();
    let ids: Vec<u32> = (5..15).collect();
    let prompt = |ids: &[u32]| json!({"input_ids": ids});
    let texts = |input: &[Value], arguments: &[&str]| -> Vec<Value> {
        let rows = generated(&fixture, input, &[&["--max-new-tokens", "3"], arguments].concat());
        rows.iter().map(|row| row["generated_ids"].clone()).collect()
    };
    let parts = texts(&[prompt(&ids[6..]), prompt(&ids[..4]), prompt(&ids)], &[]);
    assert!(parts[0] != parts[1], "{parts:?}");
    let limit = ["--max-prompt-tokens", "4"];
    assert_eq!(texts(&[prompt(&ids)], &[&limit[..], &["--cut", "start"]].concat())[0], parts[0]);
    assert_eq!(texts(&[prompt(&ids)], &[&limit[..], &["--cut", "end"]].concat())[0], parts[1]);
    assert_eq!(texts(&[prompt(&ids)], &["--cut", "end"])[0], parts[2], "it fits");
    let arguments = ["--input", "in.jsonl", "--max-new-tokens", "3", "--max-prompt-tokens", "4"];
    let error = fixture.generate(&arguments).refused();
    assert!(error.contains("10 tokens, and --max-prompt-tokens is 4") && error.contains("--cut"), "{error}");
    // The special token of the template stays, and the end of the text.
    let echo = |text: &str, arguments: &[&str]| {
        let all = [&["--prompt", text, "--max-new-tokens", "2"], arguments].concat();
        fixture.generate(&all).succeeded().stdout
    };
    assert_eq!(echo("it is bad a film", &["--max-prompt-tokens", "3", "--cut", "start"]), echo("a film", &[]));
}
