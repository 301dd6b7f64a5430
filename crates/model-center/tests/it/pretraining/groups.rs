//! Sentence groups: every sentence once in an epoch, and the map in its file.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use model_center::corpus::{DocumentSet, GroupOptions, SentenceGroup, SentenceGroups, TokenFile, TokenType};
use tempfile::tempdir;

use super::{bound, groups, lengths, numbered};
use crate::corpus::write;

fn options(cache: &Path, target_tokens: u64, fewest: u64) -> GroupOptions {
    GroupOptions { target_tokens, fewest, ..groups(cache) }
}

fn open(prefix: &Path, options: &GroupOptions) -> model_center::Result<SentenceGroups> {
    let file = Arc::new(TokenFile::open(prefix)?);
    let documents = DocumentSet::range(0..file.documents());
    SentenceGroups::open(file, &documents, options)
}

fn epoch(groups: &SentenceGroups, epoch: u64) -> Vec<SentenceGroup> {
    let count = groups.groups_per_epoch();
    let mut all: Vec<SentenceGroup> = (epoch * count..(epoch + 1) * count).map(|at| groups.at(at).unwrap()).collect();
    all.sort_by_key(|group| group.sentences.start);
    all
}

#[test]
fn every_sentence_of_a_used_document_is_in_one_group_of_each_epoch() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let sizes = lengths(400, 30, 60, 5);
    numbered(&prefix, &sizes, false);
    let file = TokenFile::open(&prefix).unwrap();
    for (target, fewest) in [(120, 2), (64, 1), (2, 2), (100_000, 2)] {
        let groups = open(&prefix, &options(directory.path(), target, fewest)).unwrap();
        let all = epoch(&groups, 0);
        assert_eq!(all, epoch(&groups, 3), "other epochs have other groups");
        for document in 0..file.documents() {
            let sentences = file.document(document).unwrap();
            let own: Vec<&SentenceGroup> = all.iter().filter(|group| group.document == document).collect();
            if sentences.end - sentences.start < fewest {
                assert!(own.is_empty());
                continue;
            }
            // One after the other, from the first sentence to the last.
            let mut next = sentences.start;
            for group in &own {
                assert_eq!(group.sentences.start, next);
                next = group.sentences.end;
                assert!(group.sentences.end - group.sentences.start >= fewest && group.target_tokens <= target);
                let tokens = |range: std::ops::Range<u64>| -> u64 {
                    range.map(|at| file.sequence(at).unwrap()).map(|range| range.end - range.start).sum()
                };
                let is_last = group.sentences.end == sentences.end;
                assert!(is_last || tokens(group.sentences.clone()) >= group.target_tokens);
                // It was not full before its last sentence, unless too few sentences are left or were there.
                let before = group.sentences.start..group.sentences.end - 1;
                let may_be_longer = before.end - before.start < fewest || is_last;
                assert!(may_be_longer || tokens(before) < group.target_tokens);
            }
            assert_eq!(next, sentences.end);
        }
        if target == 120 {
            let orders: Vec<u64> = (0..3).map(|epoch| groups.at(epoch * all.len() as u64).unwrap().document).collect();
            assert!(orders.windows(2).any(|pair| pair[0] != pair[1]), "epochs have one order");
            let short = all.iter().filter(|group| group.target_tokens < 120).count() as f64;
            // One of 119 random targets is the whole one.
            let (share, count) = (0.1 * 118.0 / 119.0, all.len() as f64);
            assert!((short - share * count).abs() < bound(count, share), "{short} of {count}");
        }
    }
}

#[test]
fn long_and_empty_sentences_and_single_ones_are_left_out() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let sentence = |length: u32| (0..length).collect::<Vec<u32>>();
    write(
        &prefix,
        TokenType::I32,
        &[
            vec![sentence(4), vec![], sentence(5), sentence(0)],
            vec![sentence(600), sentence(3)],
            vec![sentence(9)],
            vec![],
            vec![vec![], vec![]],
            vec![sentence(512), sentence(1)],
        ],
    );
    let groups = open(&prefix, &options(directory.path(), 2, 2)).unwrap();
    let documents: Vec<(u64, u64, u64)> =
        epoch(&groups, 0).iter().map(|g| (g.document, g.sentences.start, g.sentences.end)).collect();
    assert_eq!(documents, [(0, 0, 3), (5, 9, 11)]);
    let one = epoch(&open(&prefix, &options(directory.path(), 2, 1)).unwrap(), 0);
    assert_eq!(one.iter().map(|group| group.document).collect::<Vec<_>>(), [0, 0, 2, 5, 5]);
}

#[test]
fn the_map_does_not_depend_on_threads_and_is_kept_and_checked() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    numbered(&prefix, &lengths(9000, 5, 9, 6), false);
    let map = |threads: usize| {
        let cache = tempdir().unwrap();
        let groups = open(&prefix, &GroupOptions { threads, ..options(cache.path(), 12, 2) }).unwrap();
        let name = "c_train_sentencemap_12tokens_2sentences_3s.npy";
        (fs::read(cache.path().join(name)).unwrap(), groups.groups_per_epoch())
    };
    let one = map(1);
    assert!(one == map(2) && one == map(5));
    let groups = open(&prefix, &options(directory.path(), 12, 2)).unwrap();
    let expected = epoch(&groups, 0);
    let path = directory.path().join("c_train_sentencemap_12tokens_2sentences_3s.npy");
    let record = path.with_extension("json");
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    assert_eq!(epoch(&open(&prefix, &options(directory.path(), 12, 2)).unwrap(), 0), expected);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written, "a whole map is computed again");
    let whole = fs::read(&path).unwrap();
    for damaged in [whole[..whole.len() - 8].to_vec(), Vec::new(), [&whole[..], &[0]].concat()] {
        fs::write(&path, damaged).unwrap();
        assert_eq!(epoch(&open(&prefix, &options(directory.path(), 12, 2)).unwrap(), 0), expected);
        assert!(fs::read(&path).unwrap() == whole);
    }
    for text in ["", "{}", "[1]"] {
        fs::write(&record, text).unwrap();
        assert_eq!(epoch(&open(&prefix, &options(directory.path(), 12, 2)).unwrap(), 0), expected);
    }
    let short = GroupOptions { short: 0.5, ..options(directory.path(), 12, 2) };
    assert_ne!(epoch(&open(&prefix, &short).unwrap(), 0), expected, "a map of other settings is used");
}
