//! Stages that are interrupted, run by any number of threads, or whose files are damaged.

use super::{Fixture, all_stages, crawl, files, lines};
use model_center::corpus::clean::{CleanStage, clean};
use model_center::run::StopFlag;
use std::fs;

#[test]
fn any_number_of_threads_and_of_interruptions_gives_the_same_bytes() {
    let fixture = Fixture::new(&crawl());
    let report = fixture.clean(&all_stages(fixture.options("one", 1))).unwrap();
    assert!(!report.stopped && report.resumed == 0);
    let kept = report.count("kept");
    assert_eq!(report.documents.iter().map(|(_, count)| count).sum::<u64>(), 1000);
    assert_eq!(report.count("duplicate_url"), 90);
    assert!((80..=100).contains(&report.count("near_duplicate")), "{report:?}");
    let whole = files(&fixture.path("one"));
    assert_eq!(
        whole.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["documents.jsonl", "groups.jsonl", "pairs.jsonl", "report.json"]
    );
    fixture.clean(&all_stages(fixture.options("many", 5))).unwrap();
    assert!(files(&fixture.path("many")) == whole);
    // Stopped again and again, and started again until it is done.
    let options = all_stages(fixture.options("parts", 2));
    let mut stages: Vec<CleanStage> = Vec::new();
    for call in 0.. {
        assert!(call < 100);
        let stop = StopFlag::default();
        let report = clean(&fixture.source(), None, &options, &stop, &mut |now| {
            // Once in each stage, at the first sign of it.
            if !stages.contains(&now.stage) {
                stages.push(now.stage);
                stop.request();
            }
        });
        if !report.unwrap().stopped {
            break;
        }
        assert!(!fixture.path("parts/documents.jsonl").exists());
    }
    assert_eq!(stages, [CleanStage::Screen, CleanStage::Urls, CleanStage::Near, CleanStage::Write]);
    assert!(files(&fixture.path("parts")) == whole);
    let documents = lines(&fixture.path("one/documents.jsonl"));
    assert_eq!(documents.len() as u64, kept);
    let ids: Vec<u64> = documents.iter().map(|record| record["id"].as_u64().unwrap()).collect();
    assert!(!ids.is_sorted(), "the order is a random one");
}

/// Files of the stages that were cut off or replaced under the state: the work begins anew.
#[test]
fn damaged_files_of_the_stages_are_made_again() {
    let fixture = Fixture::new(&crawl());
    fixture.clean(&all_stages(fixture.options("whole", 1))).unwrap();
    let options = all_stages(fixture.options("out", 1));
    let stop = StopFlag::default();
    let report = clean(&fixture.source(), None, &options, &stop, &mut |now| {
        if now.stage == CleanStage::Near {
            stop.request();
        }
    });
    assert!(report.unwrap().stopped);
    let store = fixture.path("out/.clean/store.jsonl");
    let length = fs::metadata(&store).unwrap().len();
    fs::OpenOptions::new().write(true).open(&store).unwrap().set_len(length / 2).unwrap();
    let report = fixture.clean(&options).unwrap();
    assert_eq!(report.resumed, 0);
    assert!(files(&fixture.path("out")) == files(&fixture.path("whole")));
}
