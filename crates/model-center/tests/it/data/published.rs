//! MNLI, QQP and RACE in the files that they are published in.

use super::words::{Words, options, rows};
use model_center::data::{Label, LabelSpace, OnBadRecord, PublishedTask, ReadOptions, Split, Task, TaskModel};
use serde_json::json;
use std::path::Path;

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn pairs_of_glue_are_read_by_their_columns_with_quotes_as_text() {
    let (directory, words) = (tempfile::tempdir().unwrap(), Words::new());
    let header = "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label\n";
    write(directory.path(), "MNLI/dev_matched.tsv", &format!("{header}0\t1\t\"a b\tc\tneutral\tentailment\n"));
    write(directory.path(), "MNLI/dev_mismatched.tsv", &format!("{header}0\t1\td\te\tneutral\tneutral\n"));
    let quora = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n7\t1\t2\tf g\th\t1\n8\t1\t2\tf\n";
    write(directory.path(), "QQP/train.tsv", quora);
    let read =
        |task: PublishedTask, split| task.read_below(directory.path(), split, TaskModel::default(), &options(&words));
    let matched = read(PublishedTask::MnliMatched, Split::Validation).unwrap();
    assert_eq!(rows(&words, &matched)[0].0, "[CLS] \"a b [SEP] c [SEP]");
    assert_eq!(matched.label(0), Some(Label::Class(1)));
    let mismatched = read(PublishedTask::MnliMismatched, Split::Validation).unwrap();
    assert_eq!(mismatched.label(0), Some(Label::Class(2)));
    assert!(read(PublishedTask::Qqp, Split::Train).unwrap_err().to_string().contains("train.tsv:3"));
    let lenient = ReadOptions { on_bad_record: OnBadRecord::Skip { max_share: 0.5 }, ..options(&words) };
    let questions =
        PublishedTask::Qqp.read_below(directory.path(), Split::Train, TaskModel::default(), &lenient).unwrap();
    assert_eq!((questions.len(), questions.label(0)), (1, Some(Label::Class(1))));
    assert_eq!(*questions.labels(), LabelSpace::Classes(vec!["0".into(), "1".into()]));
}

#[test]
fn options_of_race_fill_the_gap_of_their_question() {
    let (directory, words) = (tempfile::tempdir().unwrap(), Words::new());
    let passage = json!({
        "article": "p q", "id": "high1.txt", "questions": ["x _ y", "who ?"], "answers": ["C", "A"],
        "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]],
    });
    write(directory.path(), "RACE/dev/high/1.txt", &passage.to_string());
    let wrong = json!({"article": "p", "questions": ["r"], "answers": ["E"], "options": [["a", "b", "c", "d"]]});
    write(directory.path(), "RACE/dev/middle/2.txt", &wrong.to_string());
    let read = |options: &ReadOptions<'_>| {
        PublishedTask::Race.read_below(directory.path(), Split::Validation, TaskModel::default(), options)
    };
    let error = read(&options(&words)).unwrap_err().to_string();
    assert!(error.contains("2.txt, question 1: 4 options and answer \"E\""), "{error}");
    let data = read(&ReadOptions { on_bad_record: OnBadRecord::Skip { max_share: 0.5 }, ..options(&words) }).unwrap();
    assert_eq!((data.len(), data.label(0), data.label(1)), (2, Some(Label::Class(2)), Some(Label::Class(0))));
    let rows = rows(&words, &data);
    assert_eq!(rows[1].0, "[CLS] x b y [SEP] p q [SEP]");
    assert_eq!(rows[4].0, "[CLS] who ? e [SEP] p q [SEP]");
}
