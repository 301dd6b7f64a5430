//! Predictions of fine-tuned models: what the program `predict` computes, in the forms of `/v1/predict` and
//! `/classify`, and documents in the order of their scores.

use super::client::Server;
use crate::fixture::Fixture;
use crate::fixture::program;
use crate::tensor::{SHORT, train};
use serde_json::{Value, json};

/// A fixture whose `model` is what a run of a task has left.
fn trained(sets: &[&str], rows: Option<&str>) -> Fixture {
    let fixture = Fixture::new();
    if let Some(rows) = rows {
        fixture.write("train.jsonl", rows);
        fixture.write("eval.jsonl", rows);
    }
    train(&fixture, "run", 1, &[&SHORT[..], sets].concat()).succeeded();
    std::fs::rename(fixture.path("model"), fixture.path("base")).unwrap();
    std::fs::rename(fixture.path("run/model"), fixture.path("model")).unwrap();
    fixture
}

fn predicted(fixture: &Fixture, file: &str) -> Vec<Value> {
    let arguments = ["model", file, "--threads", "1", "--only-predictions", "--quiet"];
    let printed = fixture.run(program("predict"), &arguments).succeeded().stdout;
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The data of a response without its indices, which count from 0.
fn data(response: &Value) -> Vec<Value> {
    let data = response["data"].as_array().unwrap().clone();
    let without = |(at, mut one): (usize, Value)| {
        assert_eq!(one.as_object_mut().unwrap().shift_remove("index"), Some(json!(at)));
        one
    };
    data.into_iter().enumerate().map(without).collect()
}

fn assert_close(ours: &Value, theirs: &Value) {
    match (ours, theirs) {
        // Sums of passes of other sizes are in another order.
        (Value::Number(a), Value::Number(b)) => {
            assert!((a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-5, "{a} and {b}");
        }
        (Value::Object(a), Value::Object(b)) => {
            assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
            a.iter().for_each(|(name, value)| assert_close(value, &b[name]));
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len());
            a.iter().zip(b).for_each(|(a, b)| assert_close(a, b));
        }
        (a, b) => assert_eq!(a, b),
    }
}

#[test]
fn a_classifier_answers_predict_and_classify_and_embeds_on_request() {
    let fixture = trained(&[], None);
    let texts = ["good film", "the plot was not very fine", "bad"];
    fixture.write("in.txt", &texts.map(|text| format!("{text}\n")).concat());
    let wanted = predicted(&fixture, "in.txt");
    let server = Server::of(&fixture, &[]);
    let response = server.post("/v1/predict", &json!({"model": "model", "inputs": texts}));
    assert_close(&Value::Array(data(&response)), &Value::Array(wanted.clone()));
    assert_eq!(response["usage"]["prompt_tokens"], 4 + 8 + 3);
    let one = server.post("/v1/predict", &json!({"inputs": {"text": texts[0]}}));
    assert_close(&data(&one)[0], &wanted[0]);
    let pair = server.post("/v1/predict", &json!({"inputs": {"text": "good", "text_pair": "film"}}));
    assert_eq!(pair["usage"]["prompt_tokens"], 5);

    let classes = server.post("/classify", &json!({"input": texts, "user": "me"}));
    for (at, wanted) in wanted.iter().enumerate() {
        let found = &classes["data"][at];
        assert_eq!((&found["index"], &found["num_classes"]), (&json!(at), &json!(2)));
        assert_eq!(found["label"], wanted["prediction"]);
        let probabilities: Vec<&Value> = wanted["probabilities"].as_object().unwrap().values().collect();
        found["probs"]
            .as_array()
            .unwrap()
            .iter()
            .zip(probabilities)
            .for_each(|(ours, theirs)| assert_close(ours, theirs));
    }
    for (path, body, reason) in [
        ("/v1/predict", json!({"inputs": []}), "0 inputs"),
        ("/v1/predict", json!({"inputs": [{"text": "a", "label": "b"}]}), "inputs[0]"),
        ("/v1/predict", json!({"inputs": ["good", " "]}), "is empty"),
        ("/v1/predict", json!({"inputs": [3]}), "neither a text nor an object"),
        ("/classify", json!({"input": "good", "activation": false}), "activation"),
        ("/v1/embeddings", json!({"input": "good"}), "/v1/predict"),
        ("/v1/completions", json!({"prompt": "good"}), "/v1/"),
    ] {
        let answer = server.ask("POST", path, &[], body.to_string().as_bytes());
        assert!((400..500).contains(&answer.status) && answer.body.contains(reason), "{path} {body}: {}", answer.body);
    }
    assert_eq!(server.ask("GET", "/classify", &[], b"").status, 405);
    let embedding = Server::of(&fixture, &["--embeddings"]).post("/v1/embeddings", &json!({"input": "good"}));
    assert_eq!(embedding["data"][0]["embedding"].as_array().unwrap().len(), 32);
}

#[test]
fn a_reranker_orders_documents_by_the_scores_of_its_directory() {
    let rows: String = (0..8)
        .map(|at| (["good", "bad"][at % 2], (at + 1) % 2))
        .map(|(pair, label)| json!({"text": "the film was", "text_pair": pair, "label": label}))
        .map(|record| format!("{record}\n"))
        .collect();
    let sets = ["data.task=rerank", "data.columns.text_pair=text_pair", "train.steps=30", "train.lr=3e-3"];
    let fixture = trained(&sets, Some(&rows));
    let documents = ["bad", "good", "the plot was fine"];
    let pairs: String = documents
        .iter()
        .map(|document| format!("{}\n", json!({"text": "the film was", "text_pair": document})))
        .collect();
    fixture.write("pairs.jsonl", &pairs);
    let logits = predicted(&fixture, "pairs.jsonl");
    let logits: Vec<f64> = logits.iter().map(|one| one["prediction"].as_f64().unwrap()).collect();
    let request = |more: Value| {
        let mut body = json!({"model": "model", "query": "the film was", "documents": documents});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let check = |server: &Server, activation: &dyn Fn(f64) -> f64| {
        let response = server.post("/v1/rerank", &request(json!({})));
        let results = response["results"].as_array().unwrap();
        assert_eq!(results.len(), 3);
        let scores: Vec<f64> = results.iter().map(|one| one["relevance_score"].as_f64().unwrap()).collect();
        assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
        for (result, score) in results.iter().zip(&scores) {
            let index = result["index"].as_u64().unwrap() as usize;
            assert_eq!(result["document"], json!({"text": documents[index]}));
            assert!((score - activation(logits[index])).abs() < 1e-5, "{score} of {}", logits[index]);
        }
        results[0]["index"].clone()
    };
    let server = Server::of(&fixture, &[]);
    let first = check(&server, &|logit| 1.0 / (1.0 + (-logit).exp()));
    let best = server.post("/v1/rerank", &request(json!({"top_n": 1, "return_documents": false})));
    assert_eq!(best["results"].as_array().unwrap().len(), 1);
    assert_eq!((&best["results"][0]["index"], &best["results"][0]["document"]), (&first, &Value::Null));
    for (body, param) in [
        (request(json!({"documents": []})), "documents"),
        (request(json!({"documents": [{"title": "a"}]})), "documents"),
        (request(json!({"query": 3})), "query"),
        (request(json!({"top_n": 0})), "top_n"),
        (request(json!({"max_tokens_per_doc": 3})), "max_tokens_per_doc"),
    ] {
        let answer = server.ask("POST", "/v1/rerank", &[], body.to_string().as_bytes());
        let error: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, error["error"]["param"].as_str()), (400, Some(param)), "{body}: {error}");
    }
    drop(server);
    // Without a function, as many published models state it.
    let stated = json!({"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"});
    fixture.write("model/config_sentence_transformers.json", &stated.to_string());
    check(&Server::of(&fixture, &[]), &|logit| logit);
    // A function that is not there is named, and other predictions are served.
    fixture.write("model/config_sentence_transformers.json", &json!({"activation_fn": "custom.Softer"}).to_string());
    let server = Server::of(&fixture, &[]);
    let answer = server.ask("POST", "/v1/rerank", &[], request(json!({})).to_string().as_bytes());
    assert!(answer.status == 404 && answer.body.contains("custom.Softer"), "{}", answer.body);
    server.post("/v1/predict", &json!({"inputs": {"text": "the film was", "text_pair": "good"}}));
}

#[test]
fn classes_of_words_are_served_and_have_no_classify() {
    let row = json!({"tokens": ["she", "likes", "river", "bank"], "ner_tags": ["O", "O", "B-LOC", "I-LOC"]});
    let fixture = trained(&["data.task=token-classification"], Some(&format!("{row}\n").repeat(16)));
    fixture.write("in.jsonl", &format!("{}\n", json!({"tokens": row["tokens"]})));
    let server = Server::of(&fixture, &[]);
    let response = server.post("/v1/predict", &json!({"inputs": [{"tokens": row["tokens"]}, "she likes river bank"]}));
    assert_close(&data(&response)[0], &predicted(&fixture, "in.jsonl")[0]);
    assert_eq!(data(&response)[0]["tags_predicted"].as_array().unwrap().len(), 4);
    let answer = server.ask("POST", "/classify", &[], json!({"input": "bank"}).to_string().as_bytes());
    assert_eq!((answer.status, answer.body.contains("/v1/predict")), (404, true), "{}", answer.body);
}
