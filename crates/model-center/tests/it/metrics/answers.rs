//! Answers to questions: how texts are compared, and decisions that are judged together.

use model_center::data::Member;
use model_center::metrics::{AnswerScores, Questions, answer_words, exact_match, token_f1};

#[test]
fn answers_are_compared_without_case_punctuation_and_articles() {
    assert_eq!(answer_words(" The  \"Big\" one, a-b—the end! "), ["big", "one", "ab—", "end"]);
    assert_eq!(answer_words("theatre an Anna"), ["theatre", "anna"]);
    assert_eq!(exact_match("the Cat.", &["dog", "cat"]), 1.0);
    assert_eq!(exact_match("cats", &["dog", "cat"]), 0.0);
    assert_eq!(exact_match("cat", &[] as &[&str]), 0.0);
}

#[test]
fn f1_counts_each_shared_word_as_often_as_both_have_it_and_takes_the_best_answer() {
    assert_eq!(token_f1("red red blue", &["red green"]), 0.4);
    assert_eq!(token_f1("red red blue", &["red green", "blue red red"]), 1.0);
    assert_eq!(token_f1("x", &["y"]), 0.0);
    assert_eq!([token_f1("the", &["a"]), token_f1("the", &["b"]), token_f1("b", &["the"])], [1.0, 0.0, 0.0]);
    assert_eq!(token_f1("x", &[] as &[&str]), 0.0);
}

#[test]
fn scores_are_means_over_samples_of_any_collector() {
    let samples = [("red", "red"), ("red blue", "red"), ("green", "red")];
    let mut all = AnswerScores::default();
    let mut parts = [AnswerScores::default(), AnswerScores::default()];
    for (sample, (text, answer)) in samples.iter().enumerate() {
        all.add(sample as u32, text, &[answer]);
        parts[sample % 2].add(sample as u32, text, &[answer]);
    }
    assert_eq!(all.exact_match(), 1.0 / 3.0);
    assert_eq!(all.token_f1(), (1.0 + 2.0 / 3.0 + 0.0) / 3.0);
    let [mut merged, first] = [parts[1].clone(), parts[0].clone()];
    merged.merge(&first);
    assert_eq!([merged.exact_match(), merged.token_f1()], [all.exact_match(), all.token_f1()]);
    assert_eq!(merged.count(), 3);
    assert_eq!(AnswerScores::default().token_f1(), 0.0);
}

#[test]
fn a_question_is_answered_when_all_of_its_answers_are() {
    let mut questions = Questions::new(2);
    // Of three questions one is right in both answers, one in one of them, one in its only one.
    for (sample, question, label, predicted) in [(0, 0, 1, 1), (1, 1, 0, 0), (2, 0, 0, 0), (3, 1, 1, 0), (4, 2, 1, 1)] {
        questions.add(sample, Member { question, credit: None }, (label, predicted), &[0.0, 0.0]);
    }
    assert_eq!(questions.exact_match(), 2.0 / 3.0);
    assert_eq!(questions.counts().accuracy(), 0.8);
    assert_eq!(questions.token_f1(), None);
    assert_eq!(Questions::new(2).exact_match(), 0.0);
}

#[test]
fn of_candidates_the_preferred_one_counts_and_of_equals_the_first() {
    let candidates = [
        (0, 0, [0.0, 0.5], [0.0, 0.25]),
        (1, 0, [9.0, 9.75], [1.0, 1.0]),
        (2, 1, [0.0, 1.0], [0.0, 0.5]),
        (3, 1, [0.0, 1.0], [1.0, 1.0]),
    ];
    let fill = |order: &[usize]| {
        let mut questions = Questions::new(2);
        for at in order {
            let (sample, question, outputs, credit) = candidates[*at];
            questions.add(sample, Member { question, credit: Some(credit) }, (1, 1), &outputs);
        }
        [questions.exact_match(), questions.token_f1().unwrap()]
    };
    assert_eq!(fill(&[0, 1, 2, 3]), [0.5, 0.75]);
    assert_eq!(fill(&[3, 0, 2, 1]), [0.5, 0.75]);
}
