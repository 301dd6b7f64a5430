//! Infilling: documents of a row attend to themselves, and the hidden part is predicted from what surrounds it.

use model_center::data::IGNORED;
use model_center::pretraining::{Infilling, InfillingOptions, PretrainingSamples};
use tempfile::tempdir;

use super::{EOD, check_purity, lengths, numbered, part, predicted, rows};

#[test]
fn the_middle_of_a_document_is_predicted_from_both_sides() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let vocabulary = numbered(&prefix, &lengths(200, 1, 120, 14), true);
    let rows = rows(directory.path(), 200, 60, vocabulary);
    let objective = Infilling::open(&[part(&prefix, false)], &rows, InfillingOptions::default()).unwrap();
    let eod = i64::from(EOD);
    let (mut long, mut begins, mut ends) = (0, [usize::MAX, 0], [usize::MAX, 0]);
    for sample in 0..60 {
        let batch = objective.batch(&[sample]).unwrap();
        let labels = predicted(&batch);
        let (ids, context, span) = (&batch.input_ids, batch.context.as_ref().unwrap(), batch.span.as_ref().unwrap());
        let mut start = 0;
        for (number, document) in ids.split_inclusive(|id| *id == eod).enumerate() {
            let end = start + document.len();
            assert!(span[start..end].iter().all(|span| *span == number as i64));
            assert_eq!(labels[end - 1], IGNORED, "the last token of a document predicts another document");
            for at in start..end - 1 {
                let is_predicted = labels[at] != IGNORED;
                assert!(!is_predicted || labels[at] == ids[at + 1]);
                // What is predicted is not in the context.
                assert_eq!(is_predicted, context[at + 1] == 0, "{at} of {start}..{end}");
            }
            if document.len() >= 32 {
                long += 1;
                let hidden: Vec<usize> = (start..end).filter(|at| context[*at] == 0).map(|at| at - start).collect();
                let (first, last) = (hidden[0], hidden[hidden.len() - 1] + 1);
                assert_eq!(hidden.len(), last - first, "the hidden part is one");
                assert!(first >= document.len() / 8 && first <= document.len() / 4, "{first} of {}", document.len());
                assert!(last >= document.len() * 3 / 4 && last <= document.len());
                let share = |at: usize| 1000 * at / document.len();
                begins = [begins[0].min(share(first)), begins[1].max(share(first))];
                ends = [ends[0].min(share(last)), ends[1].max(share(last))];
            } else {
                assert!(context[start..end].iter().all(|is| *is == 0));
            }
            start = end;
        }
    }
    assert!(long > 60 && begins[0] < 140 && begins[1] > 235 && ends[0] < 770 && ends[1] == 1000, "{begins:?} {ends:?}");
    check_purity(&objective);
}
