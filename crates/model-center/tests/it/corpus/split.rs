//! Fixed splits: every line in one part, with its origin.

use std::fs;

use model_center::corpus::{SplitShares, split_lines};
use tempfile::tempdir;

#[test]
fn every_line_is_in_one_part_and_its_origin_is_recorded() {
    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("a.jsonl"), (0..90).map(|n| format!("{{\"text\": \"a{n}\"}}\n")).collect::<String>()).unwrap();
    fs::write(path("b.jsonl"), (0..10).map(|n| format!("{{\"text\": \"b{n}\"}}\n\n")).collect::<String>()).unwrap();
    let files = [path("a.jsonl"), path("b.jsonl")];
    let shares = SplitShares::parse("8,1,1").unwrap();
    let split = |out: &str, seed| {
        fs::create_dir(path(out)).unwrap();
        split_lines(&files, &path(out), shares, seed, 1000).unwrap().lines
    };
    assert_eq!(split("out", 5), [80, 10, 10]);
    let sources = files.each_ref().map(|file| fs::read_to_string(file).unwrap());
    let mut all = Vec::new();
    for part in ["train", "valid", "test"] {
        let lines = fs::read_to_string(path("out").join(format!("{part}.jsonl"))).unwrap();
        let map = fs::read_to_string(path("out").join(format!("{part}.map"))).unwrap();
        assert_eq!(lines.lines().count(), map.lines().count());
        for (line, origin) in lines.lines().zip(map.lines()) {
            let (file, number) = origin.split_once('\t').unwrap();
            let source = &sources[files.iter().position(|known| known.to_str() == Some(file)).unwrap()];
            assert_eq!(source.lines().nth(number.parse::<usize>().unwrap() - 1), Some(line));
            all.push(line.to_owned());
        }
    }
    let mut expected: Vec<&str> = sources.iter().flat_map(|s| s.lines()).filter(|line| !line.is_empty()).collect();
    expected.sort_unstable();
    all.sort_unstable();
    assert_eq!(all, expected);
    assert_eq!(split("again", 5), [80, 10, 10]);
    assert_eq!(split("other", 6), [80, 10, 10]);
    let test = |out: &str| fs::read_to_string(path(out).join("test.jsonl")).unwrap();
    assert_eq!(test("out"), test("again"));
    assert_ne!(test("out"), test("other"));
}

#[test]
fn parts_without_lines_are_not_written_and_nothing_is_replaced() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("a.txt.gz");
    fs::write(&path, "x\ny\n").unwrap();
    let files = [path];
    let split = || split_lines(&files, directory.path(), SplitShares::parse("1,0,0").unwrap(), 1, 100);
    assert_eq!(split().unwrap().lines, [2, 0, 0]);
    assert_eq!(fs::read_to_string(directory.path().join("train.txt")).unwrap(), "x\ny\n");
    assert!(!directory.path().join("valid.txt").exists());
    let error = split().unwrap_err().to_string();
    assert!(error.contains("train.txt is there already"), "{error}");
}
