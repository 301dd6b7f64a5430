//! Limits of requests, connections and memory; malformed requests; clients that go away; who may ask.

use super::bloom;
use super::client::{Server, read};
use crate::fixture::Fixture;
use crate::fixture::program;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";

/// A request that takes seconds.
fn long() -> Value {
    json!({"prompt": "the film was", "max_tokens": 4000, "temperature": 0})
}

#[test]
fn what_is_no_request_is_refused_and_the_server_continues() {
    let server = Server::of(&bloom(), &["--max-body", "1000", "--read-timeout", "1"]);
    let raw = |bytes: &[u8], closes: bool| {
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        if closes {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        read(stream)
    };
    let post = |headers: &str, body: &str| {
        format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n{body}")
    };
    for (bytes, status) in [
        ("hello\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nHost: local".to_owned(), 400),
        ("GET /health HTTP/1.1\r\n\r\n".to_owned(), 403),
        ("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(), 403),
        ("GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n".to_owned(), 403),
        (format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "A: b\r\n".repeat(100)), 400),
        (format!("GET /health HTTP/1.1\r\nHost: localhost\r\nA: {}\r\n\r\n", "b".repeat(40_000)), 431),
        (post("Content-Length: 2000", ""), 413),
        (post("Content-Length: 99999999999999999999", ""), 413),
        (post("Content-Length: x", ""), 400),
        (post("Content-Length: 100", "{}"), 400),
        (post("Transfer-Encoding: chunked", "2\r\n{}\r\n0\r\n\r\n"), 400),
        (post("Transfer-Encoding: chunked", &format!("400\r\n{}\r\n0\r\n\r\n", " ".repeat(1024))), 413),
        (post("Transfer-Encoding: gzip", ""), 501),
        ("GET /health HTTP/1.1\r\nHost: [::1]evil.example\r\n\r\n".to_owned(), 403),
        ("GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: https://localhost\r\n\r\n".to_owned(), 200),
        (post("Content-Length: 0", ""), 400),
        (post("Content-Length: 2", "[]"), 400),
        (post("Content-Length: 4", "\u{7f}\u{7f}{}"), 400),
        (post("Content-Length: 900", &"[".repeat(900)), 400),
    ] {
        let answer = raw(bytes.as_bytes(), true);
        assert_eq!(answer.status, status, "{bytes:.80}");
        let error: Value = serde_json::from_str(&answer.body).unwrap();
        assert!(status == 200 || error["error"]["message"].is_string(), "{error}");
    }
    let body = "f\r\n{\"prompt\": \"goo\r\n14\r\nd\", \"max_tokens\": 2}\r\n0\r\n\r\n";
    let answer = raw(post("Transfer-Encoding: chunked", body).as_bytes(), true);
    assert!(answer.status == 200 && answer.body.contains("\"completion_tokens\":2"), "{}", answer.body);
    // Bytes that are no UTF-8, and none at all.
    assert_eq!(raw(b"\xff\xfe\x00\x01\r\n\r\n", true).status, 400);
    drop(server.connect());
    // A client that sends nothing more is not waited for.
    let began = Instant::now();
    assert_eq!(raw(b"GET /health HTTP/1.1\r\n", false).status, 408);
    assert!(began.elapsed() >= Duration::from_millis(900));
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.post(COMPLETIONS, &json!({"prompt": "good", "max_tokens": 2}))["usage"]["completion_tokens"], 2);
}

#[test]
fn clients_that_go_away_leave_no_sequence_behind() {
    let server = Server::of(&bloom(), &["--max-sequences", "4"]);
    let body = |stream: bool| {
        let mut body = long();
        body["stream"] = stream.into();
        body.to_string()
    };
    let send = |stream: bool| server.send("POST", COMPLETIONS, &[], body(stream).as_bytes());
    let mut streams: Vec<_> = [true, false, true, false].map(send).into();
    streams[0].read_exact(&mut [0; 600]).unwrap();
    // Four run, and two wait.
    server.wait_for("serve_running_sequences", 4.0);
    streams.push(send(true));
    streams.push(send(false));
    server.wait_for("serve_queue_length", 2.0);
    let cached = server.metric("serve_cached_tokens");
    assert!((4.0 * 4000.0..=4.0 * 4010.0).contains(&cached), "{cached}");
    drop(streams);
    server.wait_for("serve_running_sequences", 0.0);
    server.wait_for("serve_queue_length", 0.0);
    server.wait_for("serve_requests_total{endpoint=\"/v1/completions\",outcome=\"cancelled\"}", 6.0);
    assert_eq!(server.metric("serve_cached_tokens"), 0.0);
    assert!(server.metric("serve_generated_tokens_total") < 6.0 * 4000.0);
    assert_eq!(server.post(COMPLETIONS, &json!({"prompt": "good", "max_tokens": 2}))["usage"]["completion_tokens"], 2);
}

#[test]
fn queue_connections_tokens_and_time_are_limited() {
    let limits = [
        "--max-sequences",
        "2",
        "--max-queue",
        "1",
        "--max-connections",
        "6",
        "--max-cached-tokens",
        "9000",
        "--max-tokens",
        "5000",
    ];
    let server = Server::of(&bloom(), &limits);
    let refused = |body: Value| {
        let answer = server.ask("POST", COMPLETIONS, &[], body.to_string().as_bytes());
        (answer.status, answer.head, serde_json::from_str::<Value>(&answer.body).unwrap()["error"].clone())
    };
    let (status, _, error) = refused(json!({"prompt": "good", "max_tokens": 4999, "n": 2}));
    assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
    let held: Vec<_> = (0..2).map(|_| server.start_stream(COMPLETIONS, &long())).collect();
    server.wait_for("serve_running_sequences", 2.0);
    let waits = server.send("POST", COMPLETIONS, &[], long().to_string().as_bytes());
    server.wait_for("serve_queue_length", 1.0);
    let (status, head, error) = refused(json!({"prompt": "good"}));
    assert_eq!((status, &error["code"]), (429, &json!("queue_is_full")), "{error}");
    assert!(head.contains("\r\nRetry-After: 1"), "{head}");
    // Three connections are open; three more may be.
    let idle: Vec<_> = (0..3).map(|_| server.connect()).collect();
    let began = Instant::now();
    loop {
        let mut bytes = Vec::new();
        let mut stream = server.connect();
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let _ = stream.read_to_end(&mut bytes);
        if String::from_utf8_lossy(&bytes).starts_with("HTTP/1.1 503 ") {
            break;
        }
        assert!(began.elapsed() < super::client::SOON);
    }
    drop((idle, held, waits));
    server.wait_for("serve_running_sequences", 0.0);
    drop(server);

    let server = Server::of(&bloom(), &["--timeout", "1"]);
    let answer = server.ask("POST", COMPLETIONS, &[], long().to_string().as_bytes());
    let error: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((answer.status, &error["error"]["code"]), (504, &json!("timeout")), "{error}");
    server.wait_for("serve_cached_tokens", 0.0);
    // A stream has begun by then, and ends with an event.
    let events: Vec<Value> =
        server.start_stream(COMPLETIONS, &long()).take_while(|event| event["error"].is_null()).collect();
    assert!(!events.is_empty());
}

#[test]
fn prompts_have_room_in_the_model() {
    let fixture = Fixture::decoder();
    let server = Server::of(&fixture, &[]);
    // The model has 19 positions.
    let ids = |count: usize| vec![7; count];
    let ask = |body: Value| {
        let answer = server.ask("POST", COMPLETIONS, &[], body.to_string().as_bytes());
        (answer.status, serde_json::from_str::<Value>(&answer.body).unwrap())
    };
    let (status, whole) = ask(json!({"prompt": ids(10), "temperature": 0}));
    assert_eq!((status, &whole["usage"]["prompt_tokens"]), (200, &json!(10)));
    assert!(whole["usage"]["completion_tokens"].as_u64().unwrap() <= 9);
    let (status, error) = ask(json!({"prompt": ids(10), "max_tokens": 10}));
    assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")));
    let (status, error) = ask(json!({"prompt": ids(20)}));
    assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")));
    // A text of a million tokens is refused by its first ones.
    let (status, error) = ask(json!({"prompt": "good film ".repeat(300_000)}));
    assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")));
    // Log probabilities of a prompt alone need no room for new tokens.
    assert_eq!(ask(json!({"prompt": ids(19), "echo": true, "logprobs": 0, "max_tokens": 0})).0, 200);
    assert_eq!(ask(json!({"prompt": ids(9), "max_tokens": 10})).0, 200);
}

#[test]
fn a_response_has_a_bounded_number_of_log_probabilities() {
    let server = Server::of(&bloom(), &["--max-sequences", "16", "--max-cached-tokens", "70000"]);
    let ask = |top: usize| {
        let body = json!({"prompt": "good", "max_tokens": 4000, "n": 16, "logprobs": top, "stop": "o"});
        let answer = server.ask("POST", COMPLETIONS, &[], body.to_string().as_bytes());
        (answer.status, serde_json::from_str::<Value>(&answer.body).unwrap())
    };
    // 16 times 4000 tokens with 21 each, and with one.
    let (status, error) = ask(20);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("logprobs")), "{error}");
    assert!(error["error"]["message"].as_str().unwrap().contains("log probabilities"), "{error}");
    let (status, whole) = ask(0);
    assert_eq!((status, whole["choices"].as_array().map(Vec::len)), (200, Some(16)), "{whole}");
}

#[test]
fn a_token_is_asked_for_where_others_can_reach_the_server() {
    let fixture = bloom();
    let run = |arguments: &[&str]| fixture.run(program("serve"), arguments);
    let refused = run(&["model", "--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("--host") && refused.stderr.contains("token"), "{}", refused.stderr);
    fixture.write("token", " a secret \n");
    let server = Server::of(&fixture, &["--host", "0.0.0.0", "--token-file", "token"]);
    let with = |header: &str| {
        let headers: Vec<&str> = if header.is_empty() { Vec::new() } else { vec![header] };
        server.ask("POST", COMPLETIONS, &headers, br#"{"prompt": "good", "max_tokens": 1}"#)
    };
    assert_eq!(with("Authorization: Bearer a secret").status, 200);
    assert_eq!(with("authorization: bearer a secret").status, 200);
    for wrong in ["", "Authorization: Bearer a", "Authorization: a secret", "Authorization: Basic a secret"] {
        let answer = with(wrong);
        assert_eq!(answer.status, 401, "{wrong}");
        assert!(answer.head.contains("\r\nWWW-Authenticate: Bearer"), "{}", answer.head);
    }
    assert_eq!((server.get("/health").0, server.get("/").0, server.get("/metrics").0), (200, 200, 401));
    // The port of a running server is taken.
    let port = server.port.to_string();
    let taken = run(&["model", "--port", &port]);
    assert_eq!(taken.code, 2, "{taken:?}");
    assert!(taken.stderr.contains("--port"), "{}", taken.stderr);
    for (arguments, text) in [
        (&["--max-sequences", "0"][..], "--max-sequences"),
        (&["--step-tokens", "3"], "--step-tokens"),
        (&["--timeout", "0"], "--timeout"),
    ] {
        let refused = run(&[&["model", "--port", "0"], arguments].concat());
        assert!(refused.code == 2 && refused.stderr.contains(text), "{arguments:?}: {refused:?}");
    }
    let t5 = Fixture::seq2seq().run(program("serve"), &["model", "--port", "0"]);
    assert_eq!(t5.code, 3, "{t5:?}");
    assert!(t5.stderr.contains("encoder"), "{}", t5.stderr);
}
