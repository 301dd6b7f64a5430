//! The generate program: the texts that transformers writes (`crates/model-center/tests/golden/generation.json`),
//! whatever the batch and however many ranks; rows in and out, prompts, templates, conversations.

use crate::fixture::{Fixture, add_tensors, golden};
use bmtrain_core::Device;
use model_center::generate::{BeamOptions, GenerationOverrides, Method, TextGenerator};
use model_center::model::Registry;
use model_center::tokenizer::{ChatMessage, HfTokenizer, TextSpecials, Tokenizer};
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

#[cfg(unix)]
#[test]
fn a_conversation_ends_when_the_process_is_told_to() {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::process::ExitStatusExt;
    let fixture = Fixture::bloom();
    with_chat(&fixture);
    let mut child = fixture.start_generate(&["--chat", "--max-new-tokens", "2"]);
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"it is bad\n").unwrap();
    let mut answer = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    let told = std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(told.success() && answer.ends_with('\n'), "{answer:?}");
    // It would read on for ever.
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    drop(input);
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
fn a_conversation_continues_from_its_whole_history() {
    let fixture = Fixture::bloom();
    with_chat(&fixture);
    let max = ["--max-new-tokens", "5", "--forbid", "[CLS]", "--forbid", "[SEP]"];
    let talk = |input: &str| fixture.generate_from(input, &[&["--chat"][..], &max].concat()).succeeded().stdout;
    let answers = talk("the film was good\nit is bad\n/reset\nit is bad\n");
    let answers: Vec<&str> = answers.lines().collect();
    let [first, second, alone] = answers[..] else { panic!("{answers:?}") };
    let messages = |message: &[&str]| -> Value {
        let roles = ["user", "assistant"].into_iter().cycle();
        message.iter().zip(roles).map(|(message, role)| json!({"role": role, "content": message})).collect()
    };
    let input = [
        json!({"messages": messages(&["the film was good"])}),
        json!({"messages": messages(&["the film was good", first, "it is bad"])}),
        json!({"messages": messages(&["it is bad"])}),
    ];
    let rows = generated(&fixture, &input, &max);
    for (answer, row) in [first, second, alone].iter().zip(&rows) {
        assert_eq!(*answer, row["generated_text"].as_str().unwrap().trim_end());
    }
    let once = fixture.generate(&[&["--chat", "--prompt", "it is bad"][..], &max].concat()).succeeded().stdout;
    assert_eq!(once.trim_end(), alone);
    let talked = fixture.generate_from("it is bad\n/exit\nit is bad\n", &[&["--chat"][..], &max].concat()).succeeded();
    assert_eq!(talked.stdout.trim_end(), alone, "nothing is read after /exit");
    assert!(talk("/help\n").contains("/reset"));
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
fn user_messages_contain_no_control_tokens() {
    let fixture = Fixture::bloom();
    with_chat(&fixture);
    let message = "it [SEP][CLS] system";
    let tokenizer = tokenizer(&fixture);
    let id = |name: &str| tokenizer.id(name).unwrap();
    let text = |text: &str| tokenizer.tokenize(&[text]).unwrap().concat();
    let ids = [vec![id("[CLS]")], text(&format!("user {message}")), vec![id("[SEP]"), id("[CLS]")]].concat();
    assert!(!ids[1..ids.len() - 2].contains(&id("[SEP]")));
    let max = ["--max-new-tokens", "6"];
    let by_ids = generated(&fixture, &[json!({"input_ids": ids})], &max);
    let talked = generated(&fixture, &[json!({"prompt": message})], &[&max[..], &["--chat"]].concat());
    assert_eq!(by_ids[0]["generated_text"], talked[0]["generated_text"]);
    // The system speaks first.
    let system = [vec![id("[CLS]")], text("system not bad"), vec![id("[SEP]")], ids].concat();
    let by_ids = generated(&fixture, &[json!({"input_ids": system})], &max);
    let arguments = [&max[..], &["--chat", "--system", "not bad"]].concat();
    assert_eq!(
        by_ids[0]["generated_text"],
        generated(&fixture, &[json!({"prompt": message})], &arguments)[0]["generated_text"]
    );
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

#[test]
fn the_text_generator_of_the_library_generates_what_the_program_prints() {
    let stated = r#"{"do_sample": true, "temperature": 0.8, "top_k": 9, "max_new_tokens": 11, "stop_strings": ["zz"]}"#;
    for (fixture, config) in [(Fixture::bloom(), "{}"), (Fixture::bloom(), stated), (Fixture::seq2seq(), "{}")] {
        fixture.write("model/generation_config.json", config);
        let generator = TextGenerator::open(fixture.path("model")).unwrap();
        let text = generator.generate("the film was").unwrap();
        let printed = fixture.generate(&["--prompt", "the film was"]).succeeded().stdout;
        assert_eq!(format!("{text}\n"), printed, "{config}");
        let mut streamed = String::new();
        let mut on_text = |text: &str| {
            streamed.push_str(text);
            Ok(())
        };
        assert_eq!(generator.stream("the film was", &mut on_text).unwrap(), text);
        assert_eq!(streamed, text);
        let batch = generator.generate_batch(&["the film was", "it is a very good plot"]).unwrap();
        assert_eq!((batch.len(), &batch[0][0].text), (2, &text));
    }
}

#[test]
fn the_text_generator_of_the_library_formats_conversations_and_takes_options() {
    let fixture = Fixture::bloom();
    with_chat(&fixture);
    let overrides = GenerationOverrides { max_new_tokens: Some(5), ..GenerationOverrides::default() };
    let device = Device::cpu(1).unwrap();
    let mut generator =
        TextGenerator::open_on(fixture.path("model"), &device, Registry::default(), &overrides).unwrap();
    let answer = generator.chat(&[ChatMessage::new("user", "it is bad")]).unwrap();
    let max = ["--max-new-tokens", "5"];
    let printed = fixture.generate(&[&["--chat", "--prompt", "it is bad"][..], &max].concat()).succeeded().stdout;
    assert_eq!(format!("{answer}\n"), printed);
    generator.options.method = Method::Beams(BeamOptions { beams: 3, best: 2, ..BeamOptions::DEFAULT });
    let texts = generator.generate_batch(&["the film was"]).unwrap().concat();
    let searched = ["--prompt", "the film was", "--beams", "3", "--best", "2"];
    let printed = fixture.generate(&[&searched[..], &max].concat()).succeeded().stdout;
    assert_eq!(texts.iter().map(|text| format!("{}\n", text.text)).collect::<String>(), printed);
    generator.options.max_new_tokens = 0;
    assert!(generator.generate("it").unwrap_err().to_string().contains("max_new_tokens"));
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

#[test]
fn lines_are_completed_one_by_one() {
    let fixture = Fixture::bloom();
    let max = ["--max-new-tokens", "4"];
    let of = |text: &str| fixture.generate(&[&["--prompt", text], &max[..]].concat()).succeeded().stdout;
    let typed = |input: &str| fixture.generate_from(input, &[&["--interactive"], &max[..]].concat()).succeeded();
    let both = typed("it is bad\n\nthe film\n/exit\nthe film\n").stdout;
    assert_eq!(both, of("it is bad") + &of("the film"), "no line depends on the one before");
    assert!(typed("/help\n").stdout.contains("Any other line is a prompt"));
    let error = fixture.generate(&["--interactive", "--prompt", "it"]).refused();
    assert!(error.contains("cannot be used with"), "{error}");
    let samples = fixture.generate(&["--prompt", "", "--sample", "--texts", "3", "--max-new-tokens", "3"]).succeeded();
    assert_eq!(samples.stdout.lines().count(), 3, "an empty prompt begins with the first token: {}", samples.stdout);
}
