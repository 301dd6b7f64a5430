//! Conversations and interactive input of the generate program.

use super::{generated, tokenizer, with_chat};
use crate::fixture::Fixture;
use model_center::tokenizer::Tokenizer;
use serde_json::{Value, json};

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
