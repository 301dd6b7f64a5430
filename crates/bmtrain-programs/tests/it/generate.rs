//! The generate program: the texts that transformers writes (`crates/model-center/tests/golden/generation.json`),
//! whatever the batch and however many ranks; rows in and out, prompts, templates, conversations.

mod conversations;
mod library;
mod prompts;

use crate::fixture::{Fixture, add_tensors, golden};
use model_center::tokenizer::{HfTokenizer, Tokenizer};
use serde_json::{Value, json};

/// Rows of a file of JSON lines.
fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| row.to_string() + "\n").collect()
}

/// Writes rows, generates their completions, and returns the rows of the output file.
fn generated(fixture: &Fixture, input: &[Value], arguments: &[&str]) -> Vec<Value> {
    fixture.write("in.jsonl", &lines(input));
    let files = ["--input", "in.jsonl", "--output", "out.jsonl", "--overwrite"];
    let outcome = fixture.generate(&[&files[..], arguments].concat()).succeeded();
    assert_eq!(outcome.stdout, "");
    rows(&fixture.read("out.jsonl"))
}

fn tokenizer(fixture: &Fixture) -> HfTokenizer {
    HfTokenizer::from_directory(fixture.path("model")).unwrap()
}

/// Gives the fixture's model this chat template.
fn with_chat(fixture: &Fixture) {
    let template = "{% for message in messages %}{{ '[CLS]' + message['role'] + ' ' + message['content'] + '[SEP]' }}\
                    {% endfor %}{% if add_generation_prompt %}{{ '[CLS]' }}{% endif %}";
    fixture.write("model/chat_template.jinja", template);
}

#[test]
fn a_generation_config_is_followed_as_transformers_follows_it() {
    let data: Value =
        serde_json::from_str(&std::fs::read_to_string(golden("", "").join("generation.json")).unwrap()).unwrap();
    let mut texts = 0;
    for model in data["models"].as_array().unwrap() {
        let name = model["folder"].as_str().unwrap();
        let fixture = Fixture::new();
        for file in ["config.json", "model.safetensors"] {
            fixture
                .write_bytes(&format!("model/{file}"), &std::fs::read(golden("", "").join(name).join(file)).unwrap());
        }
        std::fs::remove_file(fixture.path("model/vocab.txt")).unwrap();
        for (setting, values) in data["settings"].as_object().unwrap() {
            let mut config = values.clone();
            config["max_new_tokens"] = data["new_tokens"].clone();
            config["eos_token_id"] = model["ends"].clone();
            let best = values["num_return_sequences"].as_u64().unwrap_or(1).to_string();
            let best: &[&str] = if values["num_beams"].is_null() { &[] } else { &["--best", &best] };
            fixture.write("model/generation_config.json", &config.to_string());
            let input: Vec<Value> =
                model["prompts"].as_array().unwrap().iter().map(|ids| json!({"input_ids": ids, "of": name})).collect();
            let ours = generated(&fixture, &input, best);
            for ((ours, theirs), input) in ours.iter().zip(model["texts"][setting].as_array().unwrap()).zip(&input) {
                assert_eq!(ours["generated_ids"], theirs[0]["words"], "{name} {setting}");
                assert_eq!((&ours["input_ids"], &ours["of"]), (&input["input_ids"], &input["of"]), "rows are kept");
                for (number, theirs) in theirs.as_array().unwrap().iter().enumerate().filter(|_| best.len() == 2) {
                    texts += 1;
                    let Some(ours) = ours.get("generated").map(|all| &all[number]) else { continue };
                    assert_eq!(ours["ids"], theirs["words"], "{name} {setting} {number}");
                    let (ours, theirs) = (ours["score"].as_f64().unwrap(), theirs["score"].as_f64().unwrap());
                    // Sums of some ten logarithms in 32-bit floats.
                    assert!((ours - theirs).abs() <= 1e-5 * theirs.abs().max(1.0), "{ours} for {theirs}");
                }
            }
        }
    }
    assert!(texts > 100, "{texts}");
}

/// Prompts of different lengths.
fn prompts() -> Vec<Value> {
    let texts =
        ["the film was", "it is a very good plot and the cast", "not", "the end of the film", "bad bad", "a man"];
    texts.iter().enumerate().map(|(number, text)| json!({"id": number, "prompt": text})).collect()
}

#[test]
fn batches_and_ranks_change_no_text() {
    let sampled = ["--sample", "--texts", "2", "--seed", "5", "--max-new-tokens", "7"];
    let searched = ["--beams", "3", "--best", "2", "--max-new-tokens", "6"];
    for fixture in [Fixture::bloom(), Fixture::seq2seq()] {
        for method in [&["--max-new-tokens", "9"][..], &sampled, &searched] {
            let one = generated(&fixture, &prompts(), &[method, &["--batch", "1"]].concat());
            assert_eq!(one.len(), prompts().len());
            assert!(one.iter().enumerate().all(|(number, row)| row["id"] == json!(number)), "the order is kept");
            for others in [&["--batch", "4"][..], &["--ranks", "2", "--batch", "2"], &["--ranks", "2", "--batch", "1"]]
            {
                let other = generated(&fixture, &prompts(), &[method, others].concat());
                for (one, other) in one.iter().zip(&other) {
                    assert_eq!(one["generated_text"], other["generated_text"], "{method:?} {others:?}");
                    let texts = |row: &Value| -> Vec<Value> {
                        row["generated"].as_array().into_iter().flatten().map(|text| text["ids"].clone()).collect()
                    };
                    assert_eq!(texts(one), texts(other), "{method:?} {others:?}");
                }
            }
        }
        // With equal batches on each rank every byte of the file is the same: a rank under ZeRO-3 computes what one
        // alone does.
        let write = |ranks: &[&str]| {
            generated(&fixture, &prompts(), &[&["--batch", "1"], &searched[..], ranks].concat());
            fixture.bytes("out.jsonl")
        };
        assert!(write(&[]) == write(&["--ranks", "2"]), "two ranks write another file");
    }
}

#[test]
fn mistakes_are_named_with_their_source() {
    let fixture = Fixture::bloom();
    fixture.write("model/generation_config.json", r#"{"suppress_tokens": [5], "num_beams": 2000}"#);
    let refused = |arguments: &[&str]| fixture.generate(&[&["--prompt", "it"], arguments].concat()).refused();
    let text = refused(&["--greedy", "--forbid", "id:999999"]);
    assert!(text.contains("--forbid") && !text.contains("generation_config.json"), "{text}");
    let text = refused(&[]);
    assert!(text.contains("generation_config.json, field num_beams") && text.contains("--beams counts more"), "{text}");
    std::fs::remove_file(fixture.path("model/generation_config.json")).unwrap();
    let of_rows = |row: Value, arguments: &[&str]| {
        fixture.write("in.jsonl", &lines(&[json!({"prompt": "it", "asked": "it"}), row]));
        let files = ["--input", "in.jsonl", "--output", "out.jsonl", "--max-new-tokens", "2"];
        fixture.generate(&[&files[..], arguments].concat())
    };
    let both = json!({"asked": "it", "input_ids": [5]});
    assert_eq!(of_rows(both.clone(), &["--column", "asked"]).succeeded().stdout, "");
    std::fs::remove_file(fixture.path("out.jsonl")).unwrap();
    let text = of_rows(both, &["--column", "aksed"]).refused();
    assert!(text.contains("in.jsonl:1") && text.contains("no \"aksed\", which --column names"), "{text}");
    with_chat(&fixture);
    fixture.write("in.jsonl", &lines(&[json!({"input_ids": [5]})]));
    let text = fixture.generate(&["--input", "in.jsonl", "--chat"]).refused();
    assert!(text.contains("--chat") && text.contains("no effect"), "{text}");
    // No token is possible; the second row is the third line.
    fixture.write("in.jsonl", "\n{\"prompt\": \"it\"}\n");
    let all: Vec<String> = (0..tokenizer(&fixture).vocab_size()).map(|id| format!("--forbid=id:{id}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let text = fixture.generate(&[&["--input", "in.jsonl"][..], &all].concat()).refused();
    assert!(text.contains("in.jsonl:2, token 0") && text.contains("no token is possible"), "{text}");
    let fixture = Fixture::seq2seq();
    fixture.write("model/generation_config.json", r#"{"max_length": 3}"#);
    let text = fixture.generate(&["--prompt", "it", "--prefix", "the film"]).refused();
    assert!(text.contains("--prefix") && text.contains("max_length = 3"), "{text}");
}

#[test]
fn settings_show_where_they_come_from() {
    let fixture = Fixture::bloom();
    let stated = r#"{"do_sample": true, "temperature": 0.5, "top_k": 7, "eos_token_id": [3],
        "max_length": 40, "typical_p": 0.3}"#;
    fixture.write("model/generation_config.json", stated);
    let shown = fixture.generate(&["--print-config", "--top-k", "4", "--forbid", "film"]).succeeded().stdout;
    let line = |name: &str| {
        let line =
            shown.lines().find(|line| line.starts_with(&format!("{name} = "))).unwrap_or_else(|| panic!("{shown}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("top_k"), "top_k = 4 # the command line");
    assert_eq!(line("temperature"), "temperature = 0.5 # generation_config.json");
    assert_eq!(line("end_token"), "end_token = [3 \"[SEP]\"] # generation_config.json");
    assert_eq!(line("max_length"), "max_length = 40 # generation_config.json");
    assert!(!shown.contains("max_new_tokens"), "{shown}");
    assert!(line("forbid").contains("\"film\""), "{shown}");
    assert!(shown.contains("# not followed: typical_p"), "{shown}");
    let run = fixture.generate(&["--prompt", "it", "--max-new-tokens", "2"]).succeeded();
    assert!(run.stderr.contains("not followed: typical_p"), "{}", run.stderr);
}

#[test]
fn lengths_of_a_decoders_directory_count_the_prompt_unless_new_tokens_are_asked_for() {
    let fixture = Fixture::bloom();
    let ids = |arguments: &[&str]| {
        let input = [json!({"input_ids": [5, 6, 7, 8]})];
        let row = generated(&fixture, &input, &[&["--greedy"], arguments].concat()).remove(0);
        row["generated_ids"].as_array().unwrap().clone()
    };
    fixture.write("model/generation_config.json", r#"{"max_length": 9, "eos_token_id": 58}"#);
    assert_eq!(ids(&[]).len(), 5);
    assert_eq!(ids(&["--max-new-tokens", "2"]).len(), 2);
    let refused = fixture.generate(&["--prompt", &"film ".repeat(9)]).refused();
    assert!(refused.contains("max_length = 9") && refused.contains("max_new_tokens"), "{refused}");
    // The first token ends a text, but not before the eighth with the prompt.
    let first = &ids(&["--max-new-tokens", "1"])[0];
    let with = |fields: Value| {
        fixture.write("model/generation_config.json", &fields.to_string());
        ids(&["--max-new-tokens", "8"])
    };
    assert_eq!(with(json!({"eos_token_id": first})).len(), 1);
    let late = with(json!({"min_length": 8, "eos_token_id": first}));
    assert!(late.len() > 4 && late[..4].iter().all(|token| token != first), "{late:?}");
}

#[test]
fn forced_tokens_begin_and_end_texts_and_forbidden_ones_do_not_appear() {
    let fixture = Fixture::seq2seq();
    let stated = r#"{"forced_bos_token_id": 9, "forced_eos_token_id": 11, "eos_token_id": 46, "max_length": 7}"#;
    fixture.write("model/generation_config.json", stated);
    let ids = |arguments: &[&str]| -> Vec<u32> {
        let input = json!({"input_ids": [5, 6, 7, 1]});
        serde_json::from_value(generated(&fixture, &[input], arguments)[0]["generated_ids"].clone()).unwrap()
    };
    let forced = ids(&[]);
    // The decoder start token is the seventh.
    assert_eq!((forced.len(), forced.first(), forced.last()), (6, Some(&9), Some(&11)), "{forced:?}");
    let token = tokenizer(&fixture).token(forced[2]).unwrap();
    let without = ids(&["--forbid", &token]);
    assert!(!without.contains(&forced[2]), "{without:?} has {token}");
    let prefix = ids(&["--prefix", "[MASK]", "--max-new-tokens", "6"]);
    assert_ne!(prefix.first(), Some(&9), "a prefix is what the text begins with");
    let unlike = ids(&["--no-repeat", "1", "--min-new-tokens", "20", "--max-new-tokens", "20"]);
    let mut seen = unlike[..19].to_vec();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 19, "{unlike:?} repeats a token");
}

#[test]
fn a_stop_ends_a_text_in_front_of_itself() {
    let fixture = Fixture::bloom();
    let print = |arguments: &[&str]| {
        let all = [&["--prompt", "the film was", "--max-new-tokens", "12", "--end-token", "id:4"], arguments].concat();
        fixture.generate(&all).succeeded().stdout
    };
    let text = print(&[]);
    let words: Vec<&str> = text.split_whitespace().collect();
    let stop = words[2];
    let cut = print(&["--stop", stop]);
    assert_eq!(cut.trim_end(), text.split(stop).next().unwrap().trim_end(), "{text}");
}

#[test]
fn no_text_is_written_to_a_closed_pipe() {
    let fixture = Fixture::bloom();
    fixture.write("in.jsonl", &lines(&prompts()).repeat(20));
    for arguments in
        [&["--input", "in.jsonl", "--batch", "1"][..], &["--input", "in.jsonl", "--batch", "1", "--ranks", "2"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let outcome = fixture.generate_into(writer.into(), arguments).succeeded();
        // No figures, because the work was not done.
        assert_eq!(outcome.stderr, "", "{arguments:?}");
    }
}

#[test]
fn a_model_stored_in_f16_is_opened_in_a_dtype_that_its_family_computes_in() {
    let fixture = Fixture::seq2seq();
    fixture.convert(&["model", "half", "--dtype", "f16"]).succeeded();
    std::fs::rename(fixture.path("model"), fixture.path("wide")).unwrap();
    std::fs::rename(fixture.path("half"), fixture.path("model")).unwrap();
    let prompt = ["--prompt", "the film", "--max-new-tokens", "4"];
    let text = |further: &[&str]| fixture.generate(&[&prompt[..], further].concat()).succeeded().stdout;
    // The states of a T5 leave the range of f16.
    let error = fixture.generate(&[&prompt[..], &["--dtype", "f16"]].concat()).refused();
    assert!(error.contains("leave the range of f16"), "{error}");
    assert_eq!(text(&[]), text(&["--dtype", "f32"]));
}

#[test]
fn other_heads_are_named_unless_quiet_and_further_tensors_are_left_out_on_demand() {
    let fixture = Fixture::decoder();
    let prompt = ["--prompt", "the film", "--max-new-tokens", "4"];
    let plain = fixture.generate(&prompt).succeeded().stdout;
    let further: [(&str, &[usize]); 2] = [("score.weight", &[2, 20]), ("reward.weight", &[1, 20])];
    add_tensors(&fixture.path("model/model.safetensors"), &further);
    let error = fixture.generate(&prompt).refused();
    assert!(error.contains("--leave 'reward.*'") && !error.contains("score"), "{error}");
    let leave = [&prompt[..], &["--leave", "reward.*"]].concat();
    let outcome = fixture.generate(&leave).succeeded();
    assert_eq!(outcome.stdout, plain);
    assert!(
        outcome.stderr.starts_with("warning: tensors of other heads are not used: score.weight\n"),
        "{}",
        outcome.stderr
    );
    assert_eq!(fixture.generate(&[&leave[..], &["--quiet"]].concat()).succeeded().stderr, "");
}
