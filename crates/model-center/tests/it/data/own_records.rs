//! What a task of a program's own gives of a record: labels of the space that it reads with.

use super::words::Words;
use model_center::Result;
use model_center::data::{Dataset, Example, Label, LabelSpace, OnBadRecord, ReadOptions, Split, SplitSource};

/// Reads a file of one record, from which the task makes an example for each label.
fn read(space: LabelSpace, labels: &[Label]) -> Result<Dataset> {
    let (words, directory) = (Words::new(), tempfile::tempdir().unwrap());
    let path = directory.path().join("train.jsonl");
    std::fs::write(&path, "{\"text\": \"some words\"}\n").unwrap();
    // A fault of the task is not a record to skip.
    let skipping = OnBadRecord::Skip { max_share: 1.0 };
    let options = ReadOptions { on_bad_record: skipping, ..ReadOptions::new(&words, 8) };
    SplitSource::new(&path, Split::Train, &options).read_records(space, &mut |record, examples| {
        let first = record.text("text")?.to_owned();
        examples.extend(labels.iter().map(|label| Example { first: first.clone(), second: None, label: *label }));
        Ok(())
    })
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn labels_of_the_space_are_read() {
    let classes = LabelSpace::Classes(names(&["no", "yes"]));
    for (space, labels) in [
        (classes, vec![Label::Class(1)]),
        (LabelSpace::Choices(2), vec![Label::Class(1); 2]),
        (LabelSpace::Value, vec![Label::Value(-0.5)]),
        (LabelSpace::NextTokens, vec![Label::TokensFrom(0)]),
        (LabelSpace::Target, vec![Label::TokensFrom(0); 2]),
    ] {
        assert_eq!(read(space, &labels).unwrap().len(), 1, "{labels:?}");
    }
}

#[test]
fn labels_of_another_space_are_refused_with_their_record() {
    let classes = || LabelSpace::Classes(names(&["no", "yes"]));
    for (space, label, expected) in [
        (classes(), Label::Class(2), "label Class(2) of this record, and it is to be the index of one of 2 classes"),
        (classes(), Label::Value(1.0), "label Value(1.0) of this record"),
        (LabelSpace::Value, Label::Class(0), "it is to be a finite number"),
        (LabelSpace::Value, Label::Value(f32::NAN), "it is to be a finite number"),
        (LabelSpace::NextTokens, Label::Class(0), "it is to be tokens from a position on"),
    ] {
        let error = read(space, &[label]).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("train.jsonl:1:1"), "{error}");
    }
    let error = read(LabelSpace::Choices(2), &[Label::Class(0), Label::Class(2)]).unwrap_err().to_string();
    assert!(error.contains("the index of one of 2 choices"), "{error}");
}

#[test]
fn spaces_that_examples_have_no_labels_of_are_refused() {
    for (space, expected) in [
        (LabelSpace::Span, "no labels of the kind \"questions\""),
        (LabelSpace::TokenClasses(names(&["a", "b"])), "no labels of the kind \"tags of words\""),
        (LabelSpace::LabelSets(names(&["a", "b"])), "no labels of the kind \"any number of labels\""),
        (LabelSpace::Pairs, "no labels of the kind \"pairs of completions\""),
        (LabelSpace::Texts(2), "no labels of the kind"),
        (LabelSpace::Classes(names(&["one"])), "two classes at least, and 1 are named"),
        (LabelSpace::Choices(0), "0 choices leave nothing to choose"),
    ] {
        let error = read(space, &[Label::Class(0)]).unwrap_err().to_string();
        assert!(error.contains("SplitSource::read_records") && error.contains(expected), "{error}");
    }
}
