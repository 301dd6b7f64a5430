//! Embeddings of an encoder: the mean of its hidden states, or what its directory states.

use super::client::Server;
use crate::fixture::Fixture;
use crate::fixture::program;
use bmtrain_core::{Ctx, Device, Tensor};
use model_center::model::{Batch, OpenOptions, Registry, TextHead};
use model_center::tokenizer::AutoTokenizer;
use serde_json::{Value, json};

const EMBEDDINGS: &str = "/v1/embeddings";

fn values(embedding: &Value) -> Vec<f32> {
    embedding.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// The mean of the last hidden states of a text.
fn mean(fixture: &Fixture, text: &str) -> Vec<f32> {
    let device = Device::cpu(1).unwrap();
    let open = OpenOptions { head: Some(TextHead::None), ..OpenOptions::new(&device) };
    let model = Registry::default().open(&fixture.path("model"), &open).unwrap().model;
    let ids = AutoTokenizer::open(fixture.path("model")).unwrap().encode(text, None, None).unwrap().input_ids;
    let batch = Batch::new(ids.len(), ids.iter().map(|id| i64::from(*id)).collect());
    let mut states: Vec<f32> = Vec::new();
    let mut observe = |_: usize, value: &Tensor| {
        states = value.to_vec()?;
        Ok::<(), bmtrain_dist::Error>(())
    };
    model.forward(&batch, Some(&mut observe), &mut Ctx::inference(&device)).unwrap();
    let width = states.len() / ids.len();
    (0..width).map(|at| states.iter().skip(at).step_by(width).sum::<f32>() / ids.len() as f32).collect()
}

fn scaled(mut x: Vec<f32>) -> Vec<f32> {
    let length = x.iter().map(|x| x * x).sum::<f32>().sqrt();
    x.iter_mut().for_each(|x| *x /= length);
    x
}

fn is_close(ours: &[f32], theirs: &[f32]) -> bool {
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| (ours - theirs).abs() < 1e-5)
}

#[test]
fn embeddings_are_pooled_hidden_states_whatever_the_batch_and_the_encoding() {
    let fixture = Fixture::new();
    let server = Server::of(&fixture, &[]);
    let texts = ["good film", "the plot was not very fine", "bad"];
    let result = server.post(EMBEDDINGS, &json!({"model": "model", "input": texts, "user": "me"}));
    assert_eq!((&result["object"], result["data"].as_array().unwrap().len()), (&json!("list"), 3));
    assert_eq!(result["usage"]["prompt_tokens"], 4 + 8 + 3);
    for (index, text) in texts.iter().enumerate() {
        let ours = values(&result["data"][index]["embedding"]);
        assert!(is_close(&ours, &scaled(mean(&fixture, text))), "{text}");
        let alone = server.post(EMBEDDINGS, &json!({"input": text, "encoding_format": "float"}));
        assert!(is_close(&values(&alone["data"][0]["embedding"]), &ours), "{text}");
    }
    let ids = AutoTokenizer::open(fixture.path("model")).unwrap().encode("bad", None, None).unwrap().input_ids;
    let of_ids = server.post(EMBEDDINGS, &json!({"input": [ids]}));
    assert!(is_close(&values(&of_ids["data"][0]["embedding"]), &values(&result["data"][2]["embedding"])));
    let coded = server.post(EMBEDDINGS, &json!({"input": "bad", "encoding_format": "base64"}));
    let coded = coded["data"][0]["embedding"].as_str().unwrap();
    let size = values(&result["data"][2]["embedding"]).len();
    assert_eq!(coded.len(), (4 * size).div_ceil(3) * 4);

    for (body, param) in [
        (json!({"input": []}), "input"),
        (json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        (json!({"input": "a", "dimensions": 3}), "dimensions"),
        (json!({"input": [[5, 9999]]}), "input"),
        (json!({"input": vec!["good"; 40].join(" ")}), "input"),
        (json!({"input": "a", "truncate": true}), "truncate"),
    ] {
        let answer = server.ask("POST", EMBEDDINGS, &[], body.to_string().as_bytes());
        let error: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, error["error"]["param"].as_str()), (400, Some(param)), "{body}: {error}");
    }
    let answer = server.ask("POST", "/v1/completions", &[], br#"{"prompt": "a"}"#);
    assert!(answer.status == 404 && answer.body.contains("/v1/embeddings"), "{}", answer.body);
    server.wait_for("serve_queue_length", 0.0);
}

#[test]
fn the_directory_states_the_pooling() {
    let fixture = Fixture::new();
    let modules = json!([
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]);
    fixture.write("model/modules.json", &modules.to_string());
    fixture
        .write("model/1_Pooling/config.json", r#"{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}"#);
    let server = Server::of(&fixture, &[]);
    let result = server.post(EMBEDDINGS, &json!({"input": "good film"}));
    assert!(is_close(&values(&result["data"][0]["embedding"]), &mean(&fixture, "good film")));
    // Texts have the prompt that the directory or the request names before them, and are truncated at its length.
    fixture.write("model/sentence_bert_config.json", r#"{"max_seq_length": 6}"#);
    let prompts = json!({"prompts": {"query": "the film ", "none": ""}, "default_prompt_name": "query"});
    fixture.write("model/config_sentence_transformers.json", &prompts.to_string());
    let server = Server::of(&fixture, &[]);
    let ask = |more: Value| {
        let mut body = json!({"input": "good film"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        values(&server.post(EMBEDDINGS, &body)["data"][0]["embedding"])
    };
    assert!(is_close(&ask(json!({})), &mean(&fixture, "the film good film")));
    assert!(is_close(&ask(json!({"prompt_name": "none"})), &mean(&fixture, "good film")));
    let long = json!({"input": vec!["good"; 40].join(" "), "prompt_name": "none"});
    assert!(is_close(&ask(long), &mean(&fixture, "good good good good")));
    for body in [json!({"input": "a", "prompt_name": "title"}), json!({"input": [[5]], "prompt_name": "query"})] {
        let answer = server.ask("POST", EMBEDDINGS, &[], body.to_string().as_bytes());
        let error: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, error["error"]["param"].as_str()), (400, Some("prompt_name")), "{error}");
    }
    fixture.write("model/modules.json", r#"[{"path": "", "type": "sentence_transformers.models.CNN"}]"#);
    let refused = fixture.run(program("serve"), &["model", "--port", "0"]);
    assert!(refused.code == 3 && refused.stderr.contains("the step \"CNN\" is not supported"), "{refused:?}");
}
