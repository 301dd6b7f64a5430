//! Mistakes in the inputs of the forward program.

use super::fixture::{Fixture, Input, POSITIONS, write_inputs, write_with_numbers};
use super::{DATA, REFUSED, USAGE, check, classifier};

/// Runs forward on `model` and inputs of the fixture, which must write no output.
fn forward_refused(fixture: &Fixture, arguments: &[&str], code: i32, place: &str, texts: &[&str]) {
    let before = fixture.snapshot();
    let all = [&["--model", "model", "--inputs", "in.safetensors", "--out", "out.safetensors"], arguments].concat();
    check(&fixture.forward(&all), code, place, texts);
    assert_eq!(fixture.snapshot(), before, "files were changed");
}

#[test]
fn inputs_out_of_range_or_of_the_wrong_shape_are_named() {
    let fixture = classifier();
    let ids: Input<'_> = ("input_ids", &[2, 3], &[2, 7, 3, 2, 8, 3]);
    let cases: [(&[Input<'_>], &[&str]); 9] = [
        (&[("input_ids", &[2, 3], &[2, 7, 3, 2, 101, 3])], &["input_ids[1, 1]", "101", "0 to 100"]),
        (&[("input_ids", &[2, 3], &[2, -7, 3, 2, 8, 3])], &["input_ids[0, 1]", "-7"]),
        (&[("input_ids", &[6], &[2, 7, 3, 2, 8, 3])], &["input_ids has shape [6]"]),
        (&[("input_ids", &[0, 3], &[])], &["input_ids"]),
        (&[("tokens", &[2, 3], &[2, 7, 3, 2, 8, 3])], &["input_ids"]),
        (&[ids, ("token_type_ids", &[2, 3], &[0, 0, 0, 0, 2, 0])], &["token_type_ids[1, 1]", "0 to 1"]),
        (&[ids, ("attention_mask", &[2, 3], &[1, 1, 1, 1, 2, 0])], &["attention_mask"]),
        (&[ids, ("attention_mask", &[1, 3], &[1, 1, 1])], &["attention_mask"]),
        (&[ids, ("labels", &[3], &[0, 1, 1])], &["labels", "3", "2"]),
    ];
    for (inputs, texts) in cases {
        write_inputs(&fixture.path("in.safetensors"), inputs);
        forward_refused(&fixture, &[], DATA, "in.safetensors", texts);
    }
    write_inputs(&fixture.path("in.safetensors"), &[ids]);
    forward_refused(&fixture, &["--grads"], DATA, "in.safetensors", &["labels"]);
    forward_refused(&fixture, &["--head", "lm"], USAGE, "--head", &["decoder"]);
    forward_refused(&fixture, &["--threads", "0"], USAGE, "--threads", &["1"]);
}

#[test]
fn unknown_inputs_and_other_shapes_of_equal_size_are_named() {
    let fixture = classifier();
    let ids: Input<'_> = ("input_ids", &[2, 3], &[2, 7, 3, 2, 8, 3]);
    let six = [1, 1, 1, 1, 1, 0];
    let cases: [(&[Input<'_>], &[&str]); 6] = [
        (&[ids, ("atention_mask", &[2, 3], &six)], &["atention_mask", "known are input_ids, attention_mask"]),
        (&[ids, ("decoder_input_ids", &[2, 3], &six)], &["decoder_input_ids", "one stack"]),
        (&[ids, ("attention_mask", &[3, 2], &six)], &["attention_mask has shape [3, 2]", "[2, 3]"]),
        (&[ids, ("token_type_ids", &[6], &six)], &["token_type_ids has shape [6]", "[2, 3]"]),
        (&[ids, ("labels", &[1, 2], &[0, 1])], &["labels has shape [1, 2]", "[2] or [2, 3]"]),
        (&[ids, ("next_sentence_label", &[2], &[0, 1])], &["next_sentence_label", "for pretraining"]),
    ];
    for (inputs, texts) in cases {
        write_inputs(&fixture.path("in.safetensors"), inputs);
        forward_refused(&fixture, &[], DATA, "in.safetensors", texts);
    }
}

#[test]
fn labels_that_do_not_fit_the_problem_type_are_named() {
    let numbers = [0.5, -1.0];
    let ids: Input<'_> = ("input_ids", &[2, 3], &[2, 7, 3, 2, 8, 3]);
    let with_type = |name: &str| {
        let fixture = classifier();
        fixture.replace(
            "model/config.json",
            "\"model_type\"",
            &format!("\"problem_type\": \"{name}\", \"model_type\""),
        );
        fixture
    };
    let (regression, several) = (with_type("regression"), with_type("multi_label_classification"));
    for (fixture, texts) in [
        (&regression, &["predicts numbers", "f32"][..]),
        (&several, &["multi_label_classification", "1 for each label"]),
    ] {
        write_inputs(&fixture.path("in.safetensors"), &[ids, ("labels", &[2], &[0, 1])]);
        forward_refused(fixture, &[], DATA, "in.safetensors, labels", texts);
    }
    let single = classifier();
    write_with_numbers(&single.path("in.safetensors"), &[ids], "labels", &[2], &numbers);
    forward_refused(&single, &[], DATA, "in.safetensors, labels", &["tells classes apart", "i64"]);
}

#[test]
fn files_of_the_forward_program_that_cannot_be_used_are_named() {
    let fixture = classifier();
    forward_refused(&fixture, &[], DATA, "in.safetensors", &["no such file"]);
    fixture.write("in.safetensors", "nothing of the kind");
    forward_refused(&fixture, &[], DATA, "in.safetensors", &["download or copy it again"]);
    write_inputs(&fixture.path("in.safetensors"), &[("input_ids", &[1, 3], &[2, 7, 3])]);
    let before = fixture.snapshot();
    let outcome =
        fixture.forward(&["--model", "model", "--inputs", "in.safetensors", "--out", "nowhere/out.safetensors"]);
    check(&outcome, REFUSED, "nowhere/out.safetensors", &["No such file"]);
    let outcome = fixture.forward(&["--model", "nowhere", "--inputs", "in.safetensors", "--out", "out.safetensors"]);
    check(&outcome, DATA, "nowhere", &["no directory", "bmtrain fetch nowhere"]);
    assert_eq!(fixture.snapshot(), before);
}

#[test]
fn inputs_that_a_decoder_lacks_are_named() {
    let fixture = Fixture::decoder();
    let ids: Input<'_> = ("input_ids", &[2, 3], &[2, 7, 3, 2, 8, 3]);
    write_inputs(&fixture.path("in.safetensors"), &[ids]);
    for head in ["mlm", "nsp"] {
        forward_refused(&fixture, &["--head", head], USAGE, "--head", &["GPT-2 is a decoder"]);
    }
    write_inputs(&fixture.path("in.safetensors"), &[ids, ("token_type_ids", &[2, 3], &[0; 6])]);
    forward_refused(&fixture, &[], DATA, "in.safetensors, token_type_ids", &["no token types"]);
}

#[test]
fn a_row_longer_than_the_positions_is_named() {
    let fixture = classifier();
    let ids = vec![7; POSITIONS + 1];
    write_inputs(&fixture.path("in.safetensors"), &[("input_ids", &[1, POSITIONS + 1], &ids)]);
    forward_refused(&fixture, &[], DATA, "in.safetensors", &["25 tokens", "24 positions"]);
}

#[test]
fn a_label_out_of_range_is_named() {
    let fixture = classifier();
    for wrong in [2, -1, i64::MAX] {
        let inputs: [Input<'_>; 2] = [("input_ids", &[2, 3], &[2, 7, 3, 2, 8, 3]), ("labels", &[2], &[1, wrong])];
        write_inputs(&fixture.path("in.safetensors"), &inputs);
        forward_refused(&fixture, &[], DATA, "in.safetensors", &["labels[1]", &wrong.to_string(), "0 to 1"]);
    }
}
