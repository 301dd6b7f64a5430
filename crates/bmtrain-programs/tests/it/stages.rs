//! The programs `forward` and `generate` over pipeline stages: the outputs and texts of one rank, to the last bit.

use crate::fixture::program;
use crate::fixture::{Fixture, golden};
use model_center::formats::{SafetensorsFile, TensorSource};

/// Tensors of outputs with their bytes.
fn outputs(fixture: &Fixture, name: &str) -> Vec<(String, Vec<u8>)> {
    let file = SafetensorsFile::open(&fixture.path(name)).unwrap();
    let bytes = |name: &str| {
        let mut values = vec![0.0; file.entry(name).unwrap().elements().unwrap()];
        file.read_f32(name, &mut values).unwrap();
        values.into_iter().flat_map(f32::to_le_bytes).collect()
    };
    file.tensors().iter().map(|entry| (entry.name.clone(), bytes(&entry.name))).collect()
}

/// The same tensors up to rounding.
fn assert_close(ours: &[(String, Vec<u8>)], expected: &[(String, Vec<u8>)]) {
    assert_eq!(ours.len(), expected.len());
    let values = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    for ((name, ours), (expected_name, expected)) in ours.iter().zip(expected) {
        let (ours, expected): (Vec<f32>, Vec<f32>) = (values(ours), values(expected));
        assert_eq!((name, ours.len()), (expected_name, expected.len()));
        for (a, b) in ours.iter().zip(&expected) {
            assert!((a - b).abs() <= 2e-6, "{name}: {a} for {b}");
        }
    }
}

#[test]
fn a_forward_pass_over_stages_is_that_of_one_rank() {
    let fixture = Fixture::new();
    for (model, head) in [("gpt2_a", "lm"), ("bert_a", "cls"), ("t5_a", "lm")] {
        let (directory, inputs) = (golden(model, head), golden(model, head).join("inputs.safetensors"));
        let [directory, inputs] = [&directory, &inputs].map(|path| path.to_str().unwrap());
        let forward = |out: &str, more: &[&str]| {
            let arguments = ["--model", directory, "--inputs", inputs, "--out", out, "--threads", "1"];
            fixture.forward(&[&arguments[..], more].concat()).succeeded();
            outputs(&fixture, out)
        };
        let mut alone = forward("alone", &[]);
        alone.retain(|(name, _)| !name.starts_with("hidden."));
        assert!(alone.len() >= 2, "{alone:?}");
        let two = forward("two", &["--pipeline", "2"]);
        if model == "bert_a" {
            // On one rank the program writes the hidden states of every token. A classifier that reads the first one
            // has its last block computed for that alone over stages, with sums in another order.
            assert_close(&two, &alone);
        } else {
            assert_eq!(two, alone, "{model}");
        }
        assert_eq!(forward("four", &["--pipeline", "2", "--ranks", "4"]), two, "{model}");
        if model == "t5_a" {
            // Two tensor-parallel ranks do not divide its feed-forward layers.
            continue;
        }
        let names = |all: &[(String, Vec<u8>)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&forward("both", &["--pipeline", "2", "--tensor", "2"])), names(&alone), "{model}");
    }
}

#[test]
fn texts_over_stages_are_those_of_one_rank() {
    let fixture = Fixture::new();
    let rows = ["[5, 6, 7]", "[20, 8]", "[11, 12, 13, 14]", "[3]", "[9, 2, 31]"];
    fixture.write("rows.jsonl", &rows.map(|ids| format!("{{\"input_ids\": {ids}}}\n")).concat());
    for (model, head) in [("gpt2_a", "lm"), ("t5_a", "lm")] {
        let directory = golden(model, head);
        for method in [&[][..], &["--sample", "--seed", "5", "--texts", "2"], &["--beams", "3", "--best", "2"]] {
            let generate = |out: &str, more: &[&str]| {
                let fixed = ["--input", "rows.jsonl", "--max-new-tokens", "6", "--batch", "2", "--threads", "1"];
                let model = [directory.to_str().unwrap()];
                let arguments = [&model[..], &fixed, &["--output", out, "--overwrite"], method, more].concat();
                fixture.run(program("generate"), &arguments).succeeded();
                fixture.read(out)
            };
            let alone = generate("alone.jsonl", &[]);
            assert_eq!(alone.lines().count(), rows.len());
            for layout in [&["--pipeline", "2"][..], &["--pipeline", "2", "--ranks", "4"]] {
                assert_eq!(generate("staged.jsonl", layout), alone, "{model} {method:?} {layout:?}");
            }
        }
    }
}

#[test]
fn a_text_of_several_stages_is_streamed_once() {
    let fixture = Fixture::decoder();
    let prompt = ["--prompt", "the film was", "--max-new-tokens", "8"];
    let alone = fixture.generate(&prompt).succeeded();
    let staged = fixture.generate(&[&prompt[..], &["--pipeline", "2"]].concat()).succeeded();
    assert_eq!(staged.stdout, alone.stdout);
}

#[test]
fn stages_that_do_not_divide_the_model_or_the_ranks_are_refused() {
    let fixture = Fixture::new();
    let (directory, inputs) = (golden("llama_a", "lm"), golden("llama_a", "lm").join("inputs.safetensors"));
    let [model, inputs] = [&directory, &inputs].map(|path| path.to_str().unwrap());
    let arguments = ["--model", model, "--inputs", inputs, "--out", "out", "--threads", "1"];
    for (more, expected) in [
        (&["--pipeline", "3"][..], "2 blocks cannot be divided over 3 pipeline stages"),
        (&["--pipeline", "2", "--ranks", "3"], "use a multiple of 2 as --ranks"),
        (&["--pipeline", "0"], "0 pipeline stages"),
        (&["--pipeline", "2", "--grads"], "cannot be used with"),
    ] {
        let error = fixture.forward(&[&arguments[..], more].concat()).refused();
        assert!(error.contains(expected), "{error}");
    }
    let error = Fixture::decoder().generate(&["--chat", "--pipeline", "2"]).refused();
    assert!(error.contains("--pipeline"), "{error}");
}
