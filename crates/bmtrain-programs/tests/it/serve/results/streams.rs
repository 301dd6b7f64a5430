//! Streams of results.

use super::super::client::Server;
use super::super::{bloom, with_chat};
use super::{CHAT, COMPLETIONS};
use serde_json::{Value, json};

/// The parts of each choice's text, joined.
pub fn joined(events: &[Value], choices: usize, part: impl Fn(&Value) -> Option<&str>) -> Vec<String> {
    let mut texts = vec![String::new(); choices];
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        texts[choice["index"].as_u64().unwrap() as usize].push_str(part(choice).unwrap_or_default());
    }
    texts
}

#[test]
fn streams_are_the_whole_in_pieces() {
    let fixture = bloom();
    with_chat(&fixture);
    let server = Server::of(&fixture, &[]);
    let texts = |whole: &Value| -> Vec<String> {
        whole["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let body = json!({
        "prompt": ["the film was", "good and not very fine"], "max_tokens": 20, "seed": 3, "temperature": 1.3, "n": 2,
        "echo": true, "stream_options": {"include_usage": true},
    });
    let mut with_scores = body.clone();
    with_scores["logprobs"] = json!(1);
    for body in [&body, &with_scores] {
        let mut plain = body.clone();
        plain.as_object_mut().unwrap().remove("stream_options");
        let whole = server.post(COMPLETIONS, &plain);
        let mut events = server.stream(COMPLETIONS, body);
        let usage = events.pop().unwrap();
        assert_eq!((&usage["usage"], &usage["choices"]), (&whole["usage"], &json!([])));
        assert_eq!(joined(&events, 4, |choice| choice["text"].as_str()), texts(&whole));
        assert!(texts(&whole)[2].starts_with("good and not very fine"));
        assert!(events.len() > 20, "{}", events.len());
        for index in 0..4 {
            let of = |event: &&Value| event["choices"][0]["index"] == index;
            let own: Vec<&Value> = events.iter().filter(of).map(|event| &event["choices"][0]).collect();
            let reasons = own.iter().filter(|choice| !choice["finish_reason"].is_null()).count();
            assert_eq!((reasons, &own.last().unwrap()["finish_reason"]), (1, &json!("length")));
            if body["logprobs"].is_null() {
                continue;
            }
            for name in ["tokens", "token_logprobs", "text_offset"] {
                let parts = own.iter().flat_map(|choice| choice["logprobs"][name].as_array().unwrap().clone());
                let whole = whole["choices"][index]["logprobs"][name].as_array().unwrap();
                let close = |(a, b): (Value, &Value)| match (a.as_f64(), b.as_f64()) {
                    (Some(a), Some(b)) => (a - b).abs() < 1e-5,
                    _ => a == *b,
                };
                let parts: Vec<Value> = parts.collect();
                assert_eq!(parts.len(), whole.len());
                assert!(parts.into_iter().zip(whole).all(close), "{name}");
            }
        }
        assert!(events.iter().all(|event| event["id"] == events[0]["id"] && event["object"] == "text_completion"));
    }

    let chat = json!({
        "messages": [{"role": "user", "content": "was the film good ?"}], "max_tokens": 15, "temperature": 0,
        "logprobs": true, "top_logprobs": 2,
    });
    let whole = server.post(CHAT, &chat);
    let events = server.stream(CHAT, &chat);
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    let text = joined(&events, 1, |choice| choice["delta"]["content"].as_str()).remove(0);
    assert_eq!(text, whole["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    let scores = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(scores.len(), 15);
    for score in scores {
        assert_eq!(
            (score["top_logprobs"].as_array().unwrap().len(), &score["top_logprobs"][0]["token"]),
            (2, &score["token"])
        );
        // Of a part of a character there are none.
        let (token, bytes) = (score["token"].as_str().unwrap(), &score["bytes"]);
        assert!(bytes.is_null() && !text.contains(token) || *bytes == json!(token.as_bytes()), "{score}");
    }
    let usage = server.stream(CHAT, &json!({
        "messages": [{"role": "user", "content": "good ?"}], "max_tokens": 2, "stream_options": {"include_usage": true},
    }));
    assert_eq!(usage.last().unwrap()["usage"]["completion_tokens"], 2);
}
