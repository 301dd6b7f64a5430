//! What requests have as a result: the texts of the generate program, also of many at the same time; log
//! probabilities of the evaluation; streams that are the whole.

mod streams;

use super::bloom;
use super::client::Server;
use bmtrain_core::Device;
use bmtrain_dist::Mesh;
use model_center::evaluate::{ScoredSequence, ScoredTarget, Scorer};
use model_center::generate::{GenerationOverrides, TextGenerator};
use model_center::model::{OpenOptions, Registry, TextHead};
use serde_json::{Value, json};
use std::sync::Barrier;
use streams::joined;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Prompts of different lengths.
fn prompts() -> Vec<String> {
    const WORDS: [&str; 9] = ["the", "film", "was", "good", "and", "not", "very", "fine", "plot"];
    (0..16)
        .map(|i| (0..1 + i * 5 % 37).map(|j| WORDS[(i * 7 + j * (i + 2)) % 9]).collect::<Vec<_>>().join(" "))
        .collect()
}

/// Asks for all bodies at once, each on a connection of its own.
fn at_once(server: &Server, path: &str, bodies: &[Value]) -> Vec<Value> {
    let barrier = Barrier::new(bodies.len());
    std::thread::scope(|scope| {
        let ask = |body: &Value| {
            barrier.wait();
            server.post(path, body)
        };
        let asking: Vec<_> = bodies.iter().map(|body| scope.spawn(move || ask(body))).collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn texts_are_generates_also_of_many_requests_at_a_time() {
    let fixture = bloom();
    let device = Device::cpu(1).unwrap();
    let directory = fixture.path("model");
    let texts = |prompt: &str, overrides: GenerationOverrides| -> Vec<String> {
        let registry = Registry::default();
        let overrides = GenerationOverrides { max_new_tokens: Some(24), ..overrides };
        let generator = TextGenerator::open_on(&directory, &device, registry, &overrides).unwrap();
        generator.generate_batch(&[prompt]).unwrap().remove(0).into_iter().map(|text| text.text).collect()
    };
    // Small passes, so that prompts are read in pieces beside running sequences.
    let server = Server::of(&fixture, &["--step-tokens", "16", "--max-sequences", "12"]);
    let prompts = prompts();
    let body = |(index, prompt): (usize, &String)| match index % 2 {
        0 => json!({"prompt": prompt, "max_tokens": 24, "temperature": 0}),
        _ => json!({"prompt": prompt, "max_tokens": 24, "temperature": 1.5, "top_k": 20, "seed": index, "n": 3}),
    };
    let bodies: Vec<Value> = prompts.iter().enumerate().map(body).collect();
    let together = at_once(&server, COMPLETIONS, &bodies);
    for (index, (prompt, result)) in prompts.iter().zip(&together).enumerate() {
        let ours: Vec<&str> =
            result["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect();
        let overrides = match index % 2 {
            0 => GenerationOverrides { greedy: true, ..GenerationOverrides::default() },
            _ => GenerationOverrides {
                temperature: Some(1.5),
                top_k: Some(20),
                seed: Some(index as u64),
                texts: Some(3),
                ..GenerationOverrides::default()
            },
        };
        assert_eq!(ours, texts(prompt, overrides), "{prompt}");
        assert_eq!(result["usage"]["completion_tokens"], 24 * ours.len());
    }
    // Several prompts of one request are several requests.
    let even: Vec<&String> = prompts.iter().step_by(2).collect();
    let listed = server.post(COMPLETIONS, &json!({"prompt": even, "max_tokens": 24, "temperature": 0}));
    for (number, choice) in listed["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&choice["index"], &choice["text"]), (&json!(number), &together[2 * number]["choices"][0]["text"]));
    }
    // Other seeds, and requests without one, give other texts.
    let sampled = || {
        let body = json!({"prompt": prompts[1], "max_tokens": 24, "temperature": 1.5});
        server.post(COMPLETIONS, &body)["choices"][0]["text"].clone()
    };
    assert_ne!(sampled(), sampled());
    server.wait_for("serve_running_sequences", 0.0);
    server.wait_for("serve_cached_tokens", 0.0);
}

#[test]
fn log_probabilities_of_prompts_are_those_of_the_evaluation() {
    let fixture = bloom();
    let device = Device::cpu(1).unwrap();
    let open = OpenOptions { head: Some(TextHead::CausalLm), ..OpenOptions::new(&device) };
    let model = Registry::default().open(&fixture.path("model"), &open).unwrap().model;
    let scorer = Scorer::new((&*model, &device), (None, Mesh::SOLO), 1).unwrap();
    let rows: Vec<Vec<u32>> = (1..6).map(|row| (0..row * 9).map(|at| 5 + (at * row + row) % 50).collect()).collect();
    let server = Server::of(&fixture, &["--step-tokens", "8", "--max-sequences", "8"]);
    let body = json!({"prompt": rows, "max_tokens": 1, "echo": true, "logprobs": 2, "temperature": 0});
    let result = server.post(COMPLETIONS, &body);
    for (number, row) in rows.iter().enumerate() {
        let target = |position: usize| ScoredTarget { position, token: row[position + 1] };
        let targets = (0..row.len() - 1).map(target).collect();
        let sequence = ScoredSequence { input: row[..row.len() - 1].to_vec(), targets };
        let mut theirs = Vec::new();
        scorer
            .tokens(1, &|_| Ok(sequence.clone()), &mut |_, scores| {
                theirs = scores;
                Ok(())
            })
            .unwrap();
        let scores = &result["choices"][number]["logprobs"];
        let list = |name: &str| scores[name].as_array().unwrap().clone();
        let [tokens, ours, top, offsets] = ["tokens", "token_logprobs", "top_logprobs", "text_offset"].map(list);
        assert_eq!([tokens.len(), ours.len(), top.len(), offsets.len()], [row.len() + 1; 4]);
        assert!(ours[0].is_null() && top[0].is_null() && offsets[0] == 0);
        for (at, theirs) in theirs.iter().enumerate() {
            let own = ours[at + 1].as_f64().unwrap();
            assert!((own - theirs.log_prob).abs() < 1e-5, "{number} {at}: {own} for {}", theirs.log_prob);
            let best = top[at + 1].as_object().unwrap();
            let most = best.iter().max_by(|a, b| a.1.as_f64().unwrap().total_cmp(&b.1.as_f64().unwrap())).unwrap();
            assert_eq!(tokens[at + 1] == most.0.as_str(), theirs.is_greedy, "{number} {at}: {best:?}");
            assert!((2..=3).contains(&best.len()) && best.contains_key(tokens[at + 1].as_str().unwrap()), "{best:?}");
        }
        // The new token is the most probable one, and its probability the model's.
        assert_eq!(top[row.len()][tokens[row.len()].as_str().unwrap()], ours[row.len()]);
    }
    // Without new tokens the scores of the prompt are the same.
    let alone = json!({"prompt": rows[2], "max_tokens": 0, "echo": true, "logprobs": 0});
    let alone = server.post(COMPLETIONS, &alone);
    let scores = &alone["choices"][0]["logprobs"];
    assert_eq!(scores["token_logprobs"].as_array().unwrap().len(), rows[2].len());
    assert!(scores["top_logprobs"].is_null());
    assert_eq!(
        (&alone["usage"]["completion_tokens"], &alone["choices"][0]["finish_reason"]),
        (&json!(0), &json!("length"))
    );
    let all = result["choices"][2]["logprobs"]["token_logprobs"].as_array().unwrap();
    for (one, other) in scores["token_logprobs"].as_array().unwrap().iter().zip(all).skip(1) {
        assert!((one.as_f64().unwrap() - other.as_f64().unwrap()).abs() < 1e-5);
    }
}

#[test]
fn texts_end_at_stop_strings_and_end_tokens() {
    let fixture = bloom();
    let server = Server::of(&fixture, &[]);
    let body = json!({"prompt": "the film was", "max_tokens": 30, "temperature": 2, "seed": 5});
    let with = |stop: Value, echo: bool| {
        let mut body = body.clone();
        (body["stop"], body["echo"]) = (stop, echo.into());
        let whole = server.post(COMPLETIONS, &body);
        let streamed = joined(&server.stream(COMPLETIONS, &body), 1, |choice| choice["text"].as_str()).remove(0);
        let choice = &whole["choices"][0];
        assert_eq!(streamed, choice["text"].as_str().unwrap());
        (streamed, choice["finish_reason"].as_str().unwrap().to_owned())
    };
    let (whole, reason) = with(json!(null), false);
    assert_eq!(reason, "length");
    // A stop string with a space, and one of a single character.
    let words: Vec<&str> = whole.split(' ').collect();
    assert!(words.len() > 9, "{whole}");
    let stop = format!("{} {}", words[6], words[7]);
    let (text, reason) = with(json!(["never", stop]), false);
    assert_eq!((text.as_str(), reason.as_str()), (whole.split(&stop).next().unwrap(), "stop"));
    let part = &words[8][..1];
    assert_eq!(with(json!(part), false).0, whole.split(part).next().unwrap());
    assert!(with(json!(part), true).0.starts_with("the film was"));
    // The same text ends with the token that is an end token now.
    let mut body = body.clone();
    body["logprobs"] = json!(0);
    let token = server.post(COMPLETIONS, &body)["choices"][0]["logprobs"]["tokens"][6].as_str().unwrap().to_owned();
    let id = model_center::tokenizer::AutoTokenizer::open(fixture.path("model")).unwrap().id(token.trim());
    fixture.write("model/generation_config.json", &json!({"eos_token_id": id.unwrap()}).to_string());
    let server = Server::of(&fixture, &[]);
    let ended = server.post(COMPLETIONS, &body);
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
    assert!(ended["usage"]["completion_tokens"].as_u64().unwrap() <= 7);
    assert!(whole.starts_with(ended["choices"][0]["text"].as_str().unwrap().trim_end()));
}

#[test]
fn penalties_biases_and_least_lengths_are_those_of_the_apis() {
    let fixture = bloom();
    fixture.write("model/generation_config.json", &json!({"eos_token_id": 2}).to_string());
    let server = Server::of(&fixture, &[]);
    let ids = |more: Value| -> Vec<String> {
        let mut body = json!({"prompt": "the film was", "max_tokens": 24, "temperature": 0, "logprobs": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let result = server.post(COMPLETIONS, &body);
        let tokens = result["choices"][0]["logprobs"]["tokens"].as_array().unwrap();
        tokens.iter().map(|token| token.as_str().unwrap().to_owned()).collect()
    };
    let repeated = |tokens: &[String]| {
        let mut seen: Vec<&String> = tokens.iter().collect();
        seen.sort_unstable();
        seen.dedup();
        tokens.len() - seen.len()
    };
    let endless = |mut more: Value| {
        more["ignore_eos"] = true.into();
        ids(more)
    };
    let plain = endless(json!({}));
    let (present, frequent) = (endless(json!({"presence_penalty": 2})), endless(json!({"frequency_penalty": 2})));
    assert!(repeated(&frequent) <= repeated(&plain) && present != plain, "{plain:?} {present:?} {frequent:?}");
    let mut with_zero = endless(json!({"presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {"7": 0}}));
    assert_eq!(with_zero, plain);
    // A token with the largest bias is chosen, and the others' order is the same.
    with_zero = ids(json!({"logit_bias": {"9": 100}, "max_tokens": 4}));
    assert_eq!(repeated(&with_zero), 3, "{with_zero:?}");
    // With the end token as the most probable one texts have the least length, or the most.
    let ends = json!({"logit_bias": {"2": 100}});
    let with = |name: &str, value: Value| {
        let mut more = ends.clone();
        more[name] = value;
        ids(more).len()
    };
    assert_eq!((with("n", json!(1)), with("min_tokens", json!(6)), with("ignore_eos", json!(true))), (1, 7, 24));
    // As clients send what has no effect, or decodes greedily.
    let greedy = endless(json!({"temperature": 1, "top_p": 0}));
    assert_eq!((&greedy, endless(json!({"top_k": -1}))), (&plain, plain.clone()));
    let all = json!({"prompt": "good", "max_tokens": 9, "seed": 1, "temperature": 1, "top_k": -1});
    let mut none = all.clone();
    none.as_object_mut().unwrap().remove("top_k");
    assert_eq!(server.post(COMPLETIONS, &all)["choices"], server.post(COMPLETIONS, &none)["choices"]);
}
