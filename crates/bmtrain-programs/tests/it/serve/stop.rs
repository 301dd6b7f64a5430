//! The end of a server: running requests have a time, new ones are refused.

use super::bloom;
use super::client::{SOON, Server, read, send};
use bmtrain_core::Device;
use bmtrain_programs::serve::{ModelServer, ServedDecoder, ServedKind, ServedModel, ServerOptions};
use model_center::generate::{GenerationConfig, GenerationSetup};
use model_center::model::Registry;
use model_center::run::StopFlag;
use serde_json::json;
use std::io::Write;
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";

#[test]
fn running_requests_end_and_new_ones_are_refused() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::of(&bloom(), &[]);
        let body = json!({"prompt": "the film was", "max_tokens": 3000, "temperature": 0});
        let mut events = server.start_stream(COMPLETIONS, &body);
        events.next().unwrap();
        let whole = server.send("POST", COMPLETIONS, &[], body.to_string().as_bytes());
        server.wait_for("serve_running_sequences", 2.0);
        server.signal(signal);
        let began = Instant::now();
        loop {
            let answer = server.ask("POST", COMPLETIONS, &[], br#"{"prompt": "good", "max_tokens": 1}"#);
            if answer.status == 503 {
                assert!(answer.body.contains("\"code\":\"stopping\""), "{}", answer.body);
                break;
            }
            assert!(answer.status == 200 && began.elapsed() < SOON);
        }
        assert_eq!(server.get("/health").0, 503);
        let last = events.last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "length");
        let whole = read(whole);
        assert!(whole.status == 200 && whole.body.contains("\"completion_tokens\":3000"), "{}", whole.body);
        assert_eq!(server.ended(), 0);
    }
}

#[test]
fn what_runs_after_the_grace_is_told_so() {
    let mut server = Server::of(&bloom(), &["--grace", "0", "--max-sequences", "1"]);
    let body = json!({"prompt": "the film was", "max_tokens": 4000, "temperature": 0});
    let mut events = server.start_stream(COMPLETIONS, &body);
    events.next().unwrap();
    let waits = server.send("POST", COMPLETIONS, &[], body.to_string().as_bytes());
    server.wait_for("serve_queue_length", 1.0);
    server.signal("TERM");
    let error = events.find(|event| !event["error"].is_null()).unwrap();
    assert_eq!(error["error"]["code"], "stopping");
    let refused = read(waits);
    assert!(refused.status == 503 && refused.head.contains("Retry-After"), "{}", refused.head);
    assert_eq!(server.ended(), 0);
}

#[test]
fn an_idle_server_ends_at_once() {
    let mut server = Server::of(&bloom(), &[]);
    assert_eq!(server.get("/health").0, 200);
    // Connections without a request, and with half of one, are not waited for.
    let _idle = server.connect();
    let mut half = server.connect();
    half.write_all(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\n\r\n").unwrap();
    server.wait_for("serve_connections", 3.0);
    let began = Instant::now();
    server.signal("TERM");
    assert_eq!(server.ended(), 0);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn another_program_serves_with_the_library() {
    let fixture = bloom();
    let (directory, stop) = (fixture.path("model"), StopFlag::default());
    let server = ModelServer::bind(ServerOptions { port: 0, ..ServerOptions::default() }).unwrap();
    let port = server.address().port();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let device = Device::cpu(1).unwrap();
            let open = GenerationSetup::open_options(&device);
            let model = GenerationSetup::open_model(&directory, Registry::default(), &open).unwrap().model;
            let mut setup = GenerationSetup::new(&directory, model.info());
            setup.open_tokenizer(true).unwrap();
            let config = GenerationConfig::from_directory(&directory, model.info().vocab_size).unwrap();
            let kind = ServedKind::Decoder(Box::new(ServedDecoder { setup, config, tool_form: None }));
            let served = ServedModel { name: "own".into(), created: 1, kind };
            let mut tokens = 0;
            let mut ready = |cached: usize| {
                tokens = cached;
                Ok(())
            };
            server.run(served, (&*model, &device), &stop, &mut ready).unwrap();
            tokens
        });
        let body = json!({"model": "own", "prompt": "good film", "max_tokens": 3}).to_string();
        let answer = read(send(port, "POST", COMPLETIONS, &[], body.as_bytes()));
        assert!(answer.status == 200 && answer.body.contains("\"completion_tokens\":3"), "{}", answer.body);
        stop.request();
        assert!(running.join().unwrap() > 1000);
    });
}
