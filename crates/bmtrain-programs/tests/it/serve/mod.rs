//! The serve program: OpenAI's API over tiny models, what requests have of each other, limits, and how it ends.

mod client;
mod embeddings;
mod limits;
mod predictions;
mod results;
mod stop;
mod structured;
mod tool_calls;
mod vocabulary;

use crate::fixture::Fixture;
use client::Server;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// A tiny BLOOM that writes long texts: no token ends them.
fn bloom() -> Fixture {
    let fixture = Fixture::bloom();
    fixture.replace("model/config.json", "\"eos_token_id\": 2", "\"eos_token_id\": null");
    fixture
}

/// Gives the fixture's model a chat template.
fn with_chat(fixture: &Fixture) {
    let template = "{% for message in messages %}{{ '[CLS]' + message['role'] + ' ' + message['content'] + '[SEP]' }}\
                    {% endfor %}{% if add_generation_prompt %}{{ '[CLS]' }}{% endif %}";
    fixture.write("model/chat_template.jinja", template);
}

#[test]
fn every_address_answers() {
    let fixture = bloom();
    with_chat(&fixture);
    let server = Server::of(&fixture, &[]);
    assert_eq!(server.get("/health"), (200, r#"{"status":"ok"}"#.to_owned()));
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("model")));
    let one: Value = serde_json::from_str(&server.get("/v1/models/model").1).unwrap();
    assert_eq!(one, models["data"][0]);
    // The time of the directory, which is not older than a day.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!((now - 86_400..=now).contains(&one["created"].as_u64().unwrap()), "{one}");
    let other = server.ask("GET", "/v1/models/a%2Fb", &[], b"");
    assert!(
        other.status == 404 && other.body.contains("a/b") && other.body.contains("model_not_found"),
        "{}",
        other.body
    );
    for path in ["/health", "/v1/models", "/v1/models/model"] {
        let (whole, head) = (server.ask("GET", path, &[], b""), server.ask("HEAD", path, &[], b""));
        assert_eq!((head.head, head.body.as_str()), (whole.head, ""), "{path}");
    }
    let page = server.ask("GET", "/", &[], b"");
    assert!(page.head.contains("Content-Security-Policy: default-src 'none'; script-src 'nonce-"), "{}", page.head);
    assert!(!page.body.contains("http") && page.body.contains("textContent"), "nothing is asked of other hosts");

    let completion = server.post("/v1/completions", &json!({"model": "model", "prompt": "the plot", "max_tokens": 5}));
    assert_eq!((&completion["object"], &completion["model"]), (&json!("text_completion"), &json!("model")));
    assert_eq!(completion["usage"]["completion_tokens"], 5);
    assert_eq!(completion["choices"][0]["finish_reason"], "length");
    assert!(completion["choices"][0]["logprobs"].is_null());
    let messages = json!([{"role": "user", "content": "good film"}]);
    let chat = server.post("/v1/chat/completions", &json!({"messages": messages, "max_completion_tokens": 4}));
    assert_eq!(
        (&chat["object"], &chat["choices"][0]["message"]["role"]),
        (&json!("chat.completion"), &json!("assistant"))
    );
    assert_eq!(chat["usage"]["completion_tokens"], 4);

    server.wait_for("serve_request_seconds_count", 2.0);
    server.wait_for("serve_running_sequences", 0.0);
    let metrics = server.get("/metrics").1;
    for line in [
        "serve_requests_total{endpoint=\"/v1/completions\",outcome=\"200\"} 1",
        "serve_requests_total{endpoint=\"/v1/chat/completions\",outcome=\"200\"} 1",
        "serve_generated_tokens_total 9",
        "serve_request_seconds_count 2",
        "serve_running_sequences 0",
        "serve_cached_tokens 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    for (method, path, status, text) in [
        ("GET", "/v1", 404, "nothing at this address"),
        ("GET", "/v1/completions", 405, "only POST"),
        ("DELETE", "/health", 405, "only GET, HEAD"),
        ("GET", "/v1/modelsx", 404, "nothing at this address"),
        ("POST", "/v1/embeddings", 404, "embeds none"),
    ] {
        let answer = server.ask(method, path, &[], b"{\"input\": \"a\"}");
        assert_eq!(answer.status, status, "{method} {path}");
        let error: Value = serde_json::from_str(&answer.body).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains(text), "{error}");
    }
}

#[test]
fn fields_that_are_wrong_or_unsupported_are_refused_by_name() {
    let fixture = bloom();
    let server = Server::of(&fixture, &["--max-tokens", "50"]);
    let refused = |path: &str, body: Value, status: u16, param: &str| {
        let answer = server.ask("POST", path, &[], body.to_string().as_bytes());
        let error: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, error["error"]["param"].as_str()), (status, Some(param)), "{body}: {error}");
        assert!(error["error"]["type"].is_string() && error["error"]["message"].is_string(), "{error}");
    };
    let prompt = |field: &str, value: Value| {
        let mut body = json!({"prompt": "good film"});
        body[field] = value;
        body
    };
    let path = "/v1/completions";
    for (field, value) in [
        ("logit_bias", json!({"5": 101})),
        ("logit_bias", json!({"9999": 1})),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!([1])),
        ("presence_penalty", json!(2.5)),
        ("frequency_penalty", json!(-3)),
        ("frequency_penalty", json!("x")),
        ("min_tokens", json!(51)),
        ("ignore_eos", json!(1)),
        ("top_k", json!(-2)),
        ("stream_options", json!({"include_usage": true})),
        ("stop_token_ids", json!([3])),
        ("suffix", json!("end")),
        ("best_of", json!(3)),
        ("guided_grammar", json!("a")),
        ("guided_json", json!(3)),
        ("max_tokens", json!(51)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(0)),
        ("temperature", json!("hot")),
        ("temperature", json!(-1)),
        ("top_p", json!(2)),
        ("n", json!(0)),
        ("n", json!(1000)),
        ("seed", json!("x")),
        ("stop", json!([""])),
        ("stop", json!(3)),
        ("logprobs", json!(21)),
        ("logprobs", json!(true)),
        ("echo", json!(1)),
        ("stream", json!("yes")),
        ("prompt", json!(null)),
        ("prompt", json!([])),
        ("prompt", json!([5, 100_000])),
        ("prompt", json!({"text": "a"})),
    ] {
        refused(path, prompt(field, value), 400, field);
    }
    refused(path, prompt("model", json!("other")), 404, "model");
    // Without an effect they are ignored.
    let harmless = json!({
        "prompt": "good film", "user": "me", "metadata": {"a": "b"}, "presence_penalty": 0, "frequency_penalty": 0.0,
        "logit_bias": {}, "min_tokens": 0, "ignore_eos": false, "top_k": -1, "response_format": {"type": "text"},
        "suffix": null, "best_of": 1, "store": false, "max_tokens": 1, "unknown": null,
    });
    assert_eq!(server.post(path, &harmless)["usage"]["total_tokens"], 4);

    let chat = "/v1/chat/completions";
    let user = json!([{"role": "user", "content": "good"}]);
    // The model has no chat template.
    refused(chat, json!({"messages": user}), 400, "messages");
    with_chat(&fixture);
    let server = Server::of(&fixture, &[]);
    let refused = |body: Value, param: &str| {
        let answer = server.ask("POST", chat, &[], body.to_string().as_bytes());
        let error: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, error["error"]["param"].as_str()), (400, Some(param)), "{body}: {error}");
    };
    refused(json!({"messages": user, "tool_choice": "required"}), "tool_choice");
    refused(json!({"messages": user, "functions": [{"name": "a"}]}), "functions");
    refused(
        json!({"messages": user, "stream": true, "stream_options": {"continuous_usage_stats": true}}),
        "stream_options.continuous_usage_stats",
    );
    refused(json!({"messages": user, "top_logprobs": 3}), "top_logprobs");
    for wrong in [
        json!([]),
        json!("hi"),
        json!([3]),
        json!([{"role": "user"}]),
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
    ] {
        refused(json!({"messages": wrong}), "messages");
    }
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "go"}, {"type": "text", "text": "od"}]}]);
    let body = |messages: &Value| json!({"messages": messages, "max_tokens": 6, "temperature": 0, "tools": []});
    let texts = [&user, &parts].map(|messages| server.post(chat, &body(messages))["choices"][0]["message"].clone());
    assert_eq!(texts[0], texts[1]);
}
