//! Rank processes killed at every named place of a save and at random moments: the same command goes on, unattended, to
//! the same bits. Seeds are printed; the claims `kills` and `resume` run these tests.

use crate::fixture::{Fixture, Outcome, into_outcome};
use bmtrain_dist::checkpoint::FailPoint;
use model_center::run::{deterministic_part, without_overtaken};
use std::process::Child;
use std::time::{Duration, Instant};

/// Kills at random moments; the claims state this number.
const KILLS: usize = 20;
/// Seed of the moments.
const SEED: u64 = 20;

/// A small generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Some moment of a time.
    fn moment(&mut self, whole: Duration) -> Duration {
        whole.mul_f64(self.below(1000) as f64 / 1000.0)
    }
}

/// Four micro-batches of a step; epochs of four steps; evaluations that are not where checkpoints are.
fn arguments(dir: &str, further: &[&str], sets: &[&str]) -> Vec<String> {
    let dir = format!("output.dir={dir}");
    let always = [
        "train.gradient_sum=elastic",
        "train.micro_batch_size=1",
        "eval.every=5 steps",
        "checkpoint.every=3 steps",
        "save.dtype=f32",
    ];
    let sets = always.iter().chain(sets).copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
    further.iter().copied().chain(sets).map(str::to_owned).collect()
}

/// Weights, and the log without clock, machine and interruptions. Whatever was done again was done with the same bits.
fn result(fixture: &Fixture, dir: &str) -> (Vec<u8>, Vec<String>) {
    let text = fixture.read(&format!("{dir}/metrics.jsonl"));
    let log: Vec<String> = without_overtaken(&text).into_iter().map(deterministic_part).collect();
    assert!(log.last().unwrap().contains("\"optimizer\":"), "{log:?}");
    for line in text.lines().filter(|line| line.contains("\"kind\":\"step\"")).map(deterministic_part) {
        assert!(log.contains(&line), "{dir}: a repeated step differs: {line}");
    }
    (fixture.bytes(&format!("{dir}/model/model.safetensors")), log)
}

fn wait(children: Vec<Child>) -> Vec<Outcome> {
    children.into_iter().map(|child| into_outcome(child.wait_with_output().unwrap())).collect()
}

fn port(number: usize) -> String {
    (20_000 + (std::process::id() as usize * 7 + number) % 20_000).to_string()
}

/// Whether all are done; every rank that was not killed reports the lost one, or that it is done.
fn is_done(outcomes: &[Outcome], how: &str) -> bool {
    let killed: Vec<usize> = (0..outcomes.len()).filter(|&rank| outcomes[rank].code == -1).collect();
    for (rank, outcome) in outcomes.iter().enumerate() {
        match outcome.code {
            0 | -1 => {}
            6 => assert!(
                killed.is_empty() || outcome.stderr.contains(&format!("rank {}", killed[0])),
                "{how}: rank {rank}: {}",
                outcome.stderr
            ),
            code => panic!("{how}: rank {rank}: exit {code}: {}", outcome.stderr),
        }
    }
    outcomes.iter().all(|outcome| outcome.code == 0)
}

#[test]
fn a_rank_killed_at_any_named_place_or_moment_costs_nothing() {
    println!("seed {SEED}");
    let (fixture, mut random) = (Fixture::new(), Random(SEED));
    let sets = ["train.steps=12"];
    let begin = Instant::now();
    let whole = fixture.finetune_processes(2, &port(0), &arguments("whole", &[], &sets));
    assert!(is_done(&whole, "whole"), "{}", whole[0].stderr);
    let duration = begin.elapsed();
    let whole = result(&fixture, "whole");
    let mut starts = 1;
    let mut hit = 0;
    for point in FailPoint::ALL {
        // The first rank alone commits and prunes.
        let is_of_all =
            point.name().contains("shard") || ["save.before_directory", "save.before_fsync"].contains(&point.name());
        let victim = if is_of_all { random.below(2) as usize } else { 0 };
        let spec = format!("{}=kill@{}", point.name(), 1 + random.below(2));
        let dir = point.name().replace('.', "-");
        let armed = ["--fail-points", spec.as_str()];
        let of_rank = |rank: usize| arguments(&dir, if rank == victim { &armed } else { &[] }, &sets);
        starts += 1;
        let outcomes = wait(fixture.start_processes(2, &port(starts), &of_rank));
        assert_eq!(outcomes[victim].code, -1, "{spec} was not met: {}", outcomes[victim].stderr);
        hit += 1;
        is_done(&outcomes, &spec);
        starts += 1;
        let outcomes = fixture.finetune_processes(2, &port(starts), &arguments(&dir, &[], &sets));
        assert!(is_done(&outcomes, &spec), "{spec}: {}", outcomes[0].stderr);
        assert!(result(&fixture, &dir) == whole, "{spec}: other bits");
    }
    let mut kills = 0;
    let mut course = 0;
    while kills < KILLS {
        course += 1;
        let dir = format!("random{course}");
        loop {
            starts += 1;
            let mut children = fixture.start_processes(2, &port(starts), &|_| arguments(&dir, &[], &sets));
            let how = format!("course {course}, kill {kills}");
            if kills < KILLS {
                std::thread::sleep(random.moment(duration));
                children[random.below(2) as usize].kill().unwrap();
                kills += 1;
            }
            if is_done(&wait(children), &how) {
                break;
            }
        }
        assert!(result(&fixture, &dir) == whole, "course {course}: other bits");
    }
    println!("figure: {hit} places and {kills} moments in {course} courses");
}

#[test]
fn a_run_killed_at_twenty_moments_repeats_its_bits_in_every_number_type_with_both_optimizers() {
    println!("seed {SEED}");
    let mut random = Random(SEED);
    // Megatron's first scales overflow in f16, so that kills also follow skipped steps.
    let cases =
        [("f32", "none", "false"), ("bf16", "none", "true"), ("f16", "megatron", "false"), ("f32", "none", "true")];
    for (dtype, scale, offload) in cases {
        let fixture = Fixture::new();
        let (dtype, scale) = (format!("model.dtype={dtype}"), format!("train.loss_scale={scale}"));
        let offload = format!("train.offload={offload}");
        let sets = [dtype.as_str(), scale.as_str(), offload.as_str(), "train.steps=40"];
        let run = |dir: &str| {
            let arguments = arguments(dir, &[], &sets);
            fixture.start_finetune(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let begin = Instant::now();
        into_outcome(run("whole").wait_with_output().unwrap()).succeeded();
        let duration = begin.elapsed();
        let whole = result(&fixture, "whole");
        let skips = whole.1.iter().any(|line| line.contains("\"skipped\":true"));
        assert_eq!(skips, dtype.ends_with("=f16"), "{dtype}");
        let (mut kills, mut course) = (0, 0);
        while kills < KILLS {
            course += 1;
            let dir = format!("run{course}");
            loop {
                let mut child = run(&dir);
                if kills < KILLS {
                    std::thread::sleep(random.moment(duration));
                    child.kill().unwrap();
                    kills += 1;
                }
                let outcome = into_outcome(child.wait_with_output().unwrap());
                match outcome.code {
                    0 => break,
                    -1 => {}
                    code => panic!("{dtype}: exit {code}: {}", outcome.stderr),
                }
            }
            assert!(result(&fixture, &dir) == whole, "{dtype}, course {course}: other bits");
        }
        println!("{dtype}, {offload}: {kills} kills in {course} courses");
    }
}
