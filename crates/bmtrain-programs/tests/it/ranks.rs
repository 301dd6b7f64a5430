//! The finetune program on several ranks: threads and processes, and what becomes of the bits.

use crate::fixture::{Fixture, Outcome, into_outcome, sentences};
use bmtrain_core::cpu::InstructionSet;
use model_center::run::deterministic_part;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Eight samples for evaluation are three batches: one rank of two has none in the last round.
const ELASTIC: [&str; 4] =
    ["train.gradient_sum=elastic", "train.micro_batch_size=1", "train.steps=4", "eval.batch_size=3"];

/// Runs into `dir` with further arguments, which may be settings.
fn train(fixture: &Fixture, dir: &str, arguments: &[&str], sets: &[&str]) -> Outcome {
    let dir = format!("output.dir={dir}");
    let sets = sets.iter().copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
    fixture.finetune(&arguments.iter().copied().chain(sets).collect::<Vec<_>>())
}

/// Weights and all of the log that does not depend on clock and machine; its last record has the optimizer's hash.
fn result(fixture: &Fixture, dir: &str) -> (Vec<u8>, String) {
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let log: String = log.lines().map(|line| deterministic_part(line) + "\n").collect();
    assert!(log.contains("\"optimizer\":"), "{log}");
    (fixture.bytes(&format!("{dir}/model/model.safetensors")), log)
}

#[test]
fn elastic_sums_give_the_bytes_of_one_rank_on_any_number_at_any_level() {
    let fixture = Fixture::new();
    train(&fixture, "alone", &[], &ELASTIC).succeeded();
    let alone = result(&fixture, "alone");
    for (ranks, zero) in [(2, 0), (2, 1), (2, 2), (2, 3), (4, 3)] {
        let (dir, ranks, zero) = (format!("r{ranks}z{zero}"), ranks.to_string(), format!("parallel.zero={zero}"));
        let outcome =
            train(&fixture, &dir, &["--ranks", &ranks], &[&ELASTIC[..], &[zero.as_str()]].concat()).succeeded();
        assert!(result(&fixture, &dir) == alone, "{dir} differs from one rank");
        assert_eq!(outcome.stdout.matches("trained 4 steps").count(), 1, "one rank speaks: {}", outcome.stdout);
    }
    train(&fixture, "pinned", &["--ranks", "2"], &[&ELASTIC[..], &["device.pin_threads=cores"]].concat()).succeeded();
    assert!(result(&fixture, "pinned") == alone, "pinned ranks differ from one rank");
}

#[test]
fn a_trace_has_the_spans_of_each_rank_and_lane() {
    let fixture = Fixture::new();
    let sets = [&ELASTIC[..], &["parallel.zero=3"]].concat();
    train(&fixture, "traced", &["--ranks", "2", "--trace", "trace.json"], &sets).succeeded();
    let events: Vec<serde_json::Value> = serde_json::from_str(&fixture.read("trace.json")).unwrap();
    let names = |rank: u64, lane: u64| -> Vec<&str> {
        let of_track = |event: &&serde_json::Value| event["ph"] == "X" && event["pid"] == rank && event["tid"] == lane;
        events.iter().filter(of_track).map(|event| event["name"].as_str().unwrap()).collect()
    };
    for rank in 0..2 {
        let compute = names(rank, 0);
        for name in ["micro_batch", "forward", "backward", "gather", "reduce", "optimizer", "evaluation", "save"] {
            assert!(compute.contains(&name), "rank {rank} has no {name}: {compute:?}");
        }
        assert_eq!(compute.iter().filter(|name| **name == "step").count(), 4);
        assert!(names(rank, 1).contains(&"work"), "rank {rank} has no work of the lane Zero");
    }
}

#[test]
fn every_sample_is_judged_once_whatever_their_number_and_that_of_the_ranks() {
    let fixture = Fixture::new();
    let sets = ["train.gradient_sum=elastic", "train.batch_size=6", "train.micro_batch_size=1", "train.steps=1"];
    for samples in [1, 3, 4, 7] {
        fixture.write("eval.jsonl", &sentences(samples));
        let evaluated = |ranks: usize| {
            let dir = format!("{samples}on{ranks}");
            let sets = [&sets[..], &["eval.batch_size=2", "eval.metric=loss"]].concat();
            train(&fixture, &dir, &["--ranks", &ranks.to_string()], &sets).succeeded();
            let log = fixture.read(&format!("{dir}/metrics.jsonl"));
            log.lines().filter(|line| line.contains("\"kind\":\"eval\"")).map(deterministic_part).collect::<Vec<_>>()
        };
        let alone = evaluated(1);
        assert_eq!(alone.len(), 2);
        assert!(alone.iter().all(|eval| eval.contains(&format!("\"samples\":{samples},"))), "{alone:?}");
        assert_eq!([evaluated(2), evaluated(3)], [alone.clone(), alone], "{samples} samples");
    }
}

#[test]
fn optimizer_state_on_the_host_leaves_the_bytes_of_the_run_alone() {
    let fixture = Fixture::new();
    train(&fixture, "device", &[], &ELASTIC).succeeded();
    let host = [&ELASTIC[..], &["train.offload=true", "parallel.zero=3"]].concat();
    train(&fixture, "host", &["--ranks", "2"], &host).succeeded();
    assert!(result(&fixture, "host") == result(&fixture, "device"));
}

#[test]
fn gradients_in_the_type_of_the_model_give_the_bytes_of_one_rank_too() {
    let fixture = Fixture::new();
    for dtype in ["model.dtype=bf16", "model.dtype=f16"] {
        let sets = [&ELASTIC[..], &[dtype, "train.gradient_dtype=model", "parallel.zero=2", "save.dtype=f32"]].concat();
        let (alone, shared) = (format!("{dtype}1"), format!("{dtype}2"));
        train(&fixture, &alone, &[], &sets).succeeded();
        train(&fixture, &shared, &["--ranks", "2"], &sets).succeeded();
        let alone = result(&fixture, &alone);
        assert!(result(&fixture, &shared) == alone, "{dtype}");
        let sets: Vec<&str> =
            sets.iter().map(|set| if set.ends_with("=model") { "train.gradient_dtype=f32" } else { set }).collect();
        let whole = format!("{dtype}3");
        train(&fixture, &whole, &[], &sets).succeeded();
        assert!(result(&fixture, &whole) != alone, "{dtype}: the setting changes nothing");
    }
}

#[test]
fn fast_sums_train_on_two_ranks() {
    let fixture = Fixture::new();
    let sets = ["train.micro_batch_size=2", "train.steps=60", "train.lr=3e-3", "train.warmup=6"];
    train(&fixture, "run", &["--ranks", "2"], &sets).succeeded();
    let (_, log) = result(&fixture, "run");
    assert!(log.lines().last().unwrap().contains("\"metric\":\"accuracy\",\"value\":1.0"), "{log}");
}

#[test]
fn processes_with_the_variables_of_a_launcher_give_the_bytes_of_one_rank() {
    let fixture = Fixture::new();
    train(&fixture, "alone", &[], &ELASTIC).succeeded();
    let sets: Vec<String> = ELASTIC.iter().map(|set| (*set).to_owned()).chain(["output.dir=shared".into()]).collect();
    let port = (20_000 + std::process::id() % 20_000).to_string();
    let outcomes = fixture.finetune_processes(2, &port, &sets);
    for outcome in &outcomes {
        assert_eq!(outcome.code, 0, "{}{}", outcome.stdout, outcome.stderr);
    }
    assert!(result(&fixture, "shared") == result(&fixture, "alone"));
    assert!(outcomes[1].stdout.is_empty(), "the second rank is silent: {}", outcomes[1].stdout);
}

#[test]
fn micro_batches_that_cannot_be_shared_are_named_with_the_fix() {
    let fixture = Fixture::new();
    let refused = |ranks: &str, sets: &[&str], parts: &[&str]| {
        let outcome = train(&fixture, "run", &["--ranks", ranks], sets);
        assert_eq!(outcome.code, 2, "{}", outcome.stderr);
        for part in parts {
            assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
        }
        assert!(!fixture.path("run").exists());
    };
    let written = ["error[recipe]: 1 micro-batch of 4", "2 ranks", "set train.micro_batch_size = 2"];
    refused("2", &["train.micro_batch_size=4"], &written);
    refused("3", &[], &["error[recipe]: 1 micro-batch of 4", "a multiple of 3"]);
}

#[test]
fn a_recipe_without_a_micro_batch_trains_on_several_ranks_and_keeps_its_micro_batches_on_others() {
    let fixture = Fixture::new();
    let elastic = ["train.gradient_sum=elastic", "train.steps=4", "checkpoint.every=2 steps"];
    train(&fixture, "two", &["--ranks", "2"], &elastic).succeeded();
    assert!(
        fixture.read("two/recipe.toml").contains("\nmicro_batch_size = 2\n"),
        "{}",
        fixture.read("two/recipe.toml")
    );
    // Begun on two ranks and resumed on one: the same bytes, by the same command but for the ranks.
    let point = "save.after_commit=kill@1";
    assert_eq!(train(&fixture, "cut", &["--ranks", "2", "--fail-points", point], &elastic).code, -1);
    let resumed = train(&fixture, "cut", &[], &elastic).succeeded();
    assert!(resumed.stderr.contains("going on after step 2"), "{}", resumed.stderr);
    let model = |dir: &str| fixture.bytes(&format!("{dir}/model/model.safetensors"));
    assert!(model("cut") == model("two"));
    // From its checkpoint into a directory of its own.
    train(&fixture, "other", &["--resume", "two@2"], &elastic).succeeded();
    assert!(model("other") == model("two"));

    // Begun on one rank: its one micro-batch cannot be shared. Elastic sums keep their bits, so it is refused with the
    // ways out; fast sums promise none across ranks, so the run continues, and its log names them.
    let cut = |dir: &str, sets: &[&str]| {
        assert_eq!(train(&fixture, dir, &["--fail-points", point], sets).code, -1);
        train(&fixture, dir, &["--ranks", "2"], sets)
    };
    let refused = cut("one", &elastic);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    for part in ["1 micro-batch of 4", "the run was begun with", "train.micro_batch_size = 2", "--accept-change"] {
        assert!(refused.stderr.contains(part), "no {part:?} in {}", refused.stderr);
    }
    let fast = cut("fast", &elastic[1..]).succeeded();
    assert!(fast.stderr.contains("2 ranks share the batch in ones of 2"), "{}", fast.stderr);
    let log = fixture.read("fast/metrics.jsonl");
    assert!(log.contains("train.micro_batch_size: 4 -> 2 on 2 ranks"), "{log}");
    assert!(fixture.read("fast/recipe.toml").contains("\nmicro_batch_size = 4\n"));
}

/// A row of the embedding that no text uses, so that nothing but reading it tells.
fn with_damaged_weights() -> Fixture {
    let fixture = Fixture::new();
    fixture.set_value("model/model.safetensors", "bert.embeddings.word_embeddings.weight", 90 * 32, f32::NAN);
    fixture
}

const DAMAGED: [&str; 4] = [
    "error[model]: the weights of the model are damaged: 1 of ",
    "values is not finite: NaN at [90, 0]",
    "model/model.safetensors, tensor bert.embeddings.word_embeddings.weight",
    "fix: get the file again",
];

#[test]
fn weights_that_are_not_finite_are_refused_when_they_are_read() {
    let fixture = with_damaged_weights();
    let outcome = fixture.finetune(&[]);
    assert_eq!(outcome.code, 3, "{}", outcome.stderr);
    assert!(DAMAGED.iter().all(|part| outcome.stderr.contains(part)), "{}", outcome.stderr);
}

#[test]
fn ranks_that_read_other_parts_of_damaged_weights_end_with_the_same_code() {
    let fixture = with_damaged_weights();
    let sets = ["train.micro_batch_size=2", "parallel.zero=3"];
    let outcome = train(&fixture, "run", &["--ranks", "2"], &sets);
    assert_eq!(outcome.code, 3, "{}", outcome.stderr);
    assert_eq!(outcome.stderr.matches("error[").count(), 1, "{}", outcome.stderr);
    // Not the port of the other test with processes.
    let port = (40_000 + std::process::id() % 20_000).to_string();
    for outcome in fixture.finetune_processes(2, &port, &sets.map(str::to_owned)) {
        assert_eq!(outcome.code, 3, "{}", outcome.stderr);
        assert!(DAMAGED.iter().all(|part| outcome.stderr.contains(part)), "{}", outcome.stderr);
    }
}

#[test]
fn a_mistake_that_one_rank_finds_ends_all_with_one_message() {
    let fixture = Fixture::new();
    // The weights turn out to be damaged when every rank reads them.
    let mut bytes = fixture.bytes("model/model.safetensors");
    bytes.truncate(bytes.len() - 1000);
    fixture.write_bytes("model/model.safetensors", &bytes);
    let outcome = train(&fixture, "run", &["--ranks", "2"], &["train.micro_batch_size=2"]);
    assert_eq!(outcome.code, 3, "{}", outcome.stderr);
    assert_eq!(outcome.stderr.matches("error[").count(), 1, "{}", outcome.stderr);
}

/// How long ranks wait for silent ones.
const DEADLINE: Duration = Duration::from_secs(30);

/// A number for the name of a job that no other test has.
fn number() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    20_000 + (std::process::id() * 16 + COUNT.fetch_add(1, Ordering::Relaxed)) % 20_000
}

/// Files that ranks keep in shared memory under a name of a job.
fn shared_files(job: &str) -> Vec<PathBuf> {
    let of_job = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains(job));
    std::fs::read_dir("/dev/shm").into_iter().flatten().map(|file| file.unwrap().path()).filter(of_job).collect()
}

fn ends(children: Vec<Child>) -> Vec<Outcome> {
    children.into_iter().map(|child| into_outcome(child.wait_with_output().unwrap())).collect()
}

/// Wait until a process holds its rank at a place.
fn wait_for(place: &Path, children: &mut [Child]) {
    let begin = Instant::now();
    while !place.exists() {
        assert!(begin.elapsed() < DEADLINE, "no {}", place.display());
        for child in children.iter_mut() {
            assert!(child.try_wait().unwrap().is_none(), "a rank has ended");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Start processes by the variables of a launch by hand, each with settings of its own; their ends, before the
/// deadline.
fn launch_by_hand(fixture: &Fixture, ranks: &[(&str, &str)], expected: &[&str]) -> Vec<i32> {
    let (port, begin) = (number().to_string(), Instant::now());
    let start = |(variables, set): &(&str, &str)| {
        let variables = format!("{variables} MASTER_PORT={port}");
        fixture.start_launched(&variables, &["train.micro_batch_size=1", set])
    };
    let outcomes = ends(ranks.iter().map(start).collect());
    // What waits for a rank that never comes.
    shared_files(&format!("plain-{port}")).iter().for_each(|file| std::fs::remove_file(file).unwrap());
    assert!(begin.elapsed() < DEADLINE / 2, "{:?}: {outcomes:?}", begin.elapsed());
    for outcome in &outcomes {
        assert!(expected.iter().any(|text| outcome.stderr.contains(text)), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("defect"), "{}", outcome.stderr);
    }
    outcomes.iter().map(|outcome| outcome.code).collect()
}

#[test]
fn a_start_that_cannot_succeed_ends_on_all_ranks_at_once_with_the_code_of_the_mistake() {
    let fixture = Fixture::new();
    let set = "train.steps=4";
    let twice = [("RANK=0 WORLD_SIZE=2", set), ("RANK=0 WORLD_SIZE=2", set)];
    assert_eq!(launch_by_hand(&fixture, &twice, &["are both rank 0"]), [2, 2]);
    let sizes = [("RANK=0 WORLD_SIZE=2", set), ("RANK=1 WORLD_SIZE=4", set)];
    assert_eq!(launch_by_hand(&fixture, &sizes, &["error[launch]: rank "]), [2, 2]);
    // A mistake that one rank alone makes, before it joins.
    let settings = [("RANK=0 WORLD_SIZE=2", set), ("RANK=1 WORLD_SIZE=2", "train.lr=fast")];
    assert_eq!(launch_by_hand(&fixture, &settings, &["error[recipe]: "]), [2, 2]);
    let option = [("RANK=0 WORLD_SIZE=2", set), ("RANK=1 WORLD_SIZE=2", "--no-such-option")];
    assert_eq!(launch_by_hand(&fixture, &option, &["unexpected argument '--no-such-option'"]), [2, 2]);
    fixture.write("broken.jsonl", "{");
    let data = [("RANK=0 WORLD_SIZE=2", "data.train=broken.jsonl"), ("RANK=1 WORLD_SIZE=2", set)];
    assert_eq!(launch_by_hand(&fixture, &data, &["error[data]: "]), [3, 3]);
    // One that all make.
    let data = [("RANK=0 WORLD_SIZE=2", "data.train=broken.jsonl"), ("RANK=1 WORLD_SIZE=2", "data.train=broken.jsonl")];
    assert_eq!(launch_by_hand(&fixture, &data, &["error[data]: "]), [3, 3]);
    assert!(!fixture.path("run").exists());
}

#[test]
fn a_second_process_of_a_rank_ends_at_once_and_the_job_trains() {
    let fixture = Fixture::new();
    let number = number();
    let start = |rank: usize| {
        let variables = format!("RANK={rank} WORLD_SIZE=2 MASTER_PORT={number}");
        fixture.start_launched(&variables, &["train.micro_batch_size=2", "train.steps=100000"])
    };
    let mut job = vec![start(0), start(1)];
    let log = fixture.path("run/metrics.jsonl");
    wait_for(&log, &mut job);
    let begin = Instant::now();
    let third = ends(vec![start(1)]).remove(0);
    assert!(begin.elapsed() < DEADLINE / 2, "{:?}", begin.elapsed());
    assert_eq!(third.code, 2, "{}", third.stderr);
    assert!(third.stderr.contains("error[launch]: this job is running with 2 ranks"), "{}", third.stderr);
    // A file asks for an end.
    fixture.write("run/stop", "");
    let ended = ends(job);
    assert!(ended.iter().all(|outcome| outcome.code == 75), "{ended:?}");
    assert_eq!(shared_files(&number.to_string()), Vec::<PathBuf>::new());
}

#[test]
fn a_start_after_killed_ranks_trains_under_the_same_name() {
    let fixture = Fixture::new();
    let number = number();
    let by_hand = |rank: usize| format!("RANK={rank} WORLD_SIZE=2 MASTER_PORT={number}");
    let slurm = |rank: usize| {
        format!(
            "SLURM_JOB_ID={number} SLURM_STEP_ID=0 SLURM_PROCID={rank} SLURM_LOCALID={rank} SLURM_STEP_NUM_TASKS=2 \
             SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0"
        )
    };
    let names = [format!("bmtrain-plain-{number}"), format!("bmtrain-slurm-{number}-0")];
    for (case, name) in names.iter().enumerate() {
        let start = |rank: usize| {
            let variables = if case == 0 { by_hand(rank) } else { slurm(rank) };
            fixture.start_launched(&variables, &["train.micro_batch_size=2", "train.steps=4", "--overwrite"])
        };
        // A lone rank that waits; the other one.
        for rank in [0, 1] {
            let mut lone = vec![start(rank)];
            wait_for(&Path::new("/dev/shm").join(format!("{name}@memory")), &mut lone);
            lone[0].kill().unwrap();
            lone[0].wait().unwrap();
            let trained = ends(vec![start(0), start(1)]);
            assert!(trained.iter().all(|outcome| outcome.code == 0), "{trained:?}");
            assert_eq!(shared_files(name), Vec::<PathBuf>::new());
        }
        // One of two that prepare: the other one ends by itself.
        let mut both = vec![start(0), start(1)];
        for rank in [0, 1] {
            wait_for(&Path::new("/dev/shm").join(format!("{name}@{rank}")), &mut both);
        }
        let begin = Instant::now();
        both[1].kill().unwrap();
        let codes: Vec<i32> = ends(both).iter().map(|outcome| outcome.code).collect();
        assert!(codes == [6, -1] && begin.elapsed() < DEADLINE / 2, "{codes:?} {:?}", begin.elapsed());
        let trained = ends(vec![start(0), start(1)]);
        assert!(trained.iter().all(|outcome| outcome.code == 0), "{trained:?}");
        assert_eq!(shared_files(name), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_rank_that_fails_in_training_passes_its_exit_code_on() {
    let fixture = Fixture::new();
    let number = number();
    // The weights of the second rank are damaged, which it finds when it has joined.
    let bytes = fixture.bytes("model/model.safetensors");
    for file in ["config.json", "vocab.txt"] {
        fixture.write_bytes(&format!("damaged/{file}"), &fixture.bytes(&format!("model/{file}")));
    }
    fixture.write_bytes("damaged/model.safetensors", &bytes[..bytes.len() - 1000]);
    let start = |(rank, model): (usize, &str)| {
        let variables = format!("RANK={rank} WORLD_SIZE=2 MASTER_PORT={number}");
        fixture.start_launched(&variables, &["train.micro_batch_size=2", model])
    };
    let outcomes = ends([(0, "model.path=model"), (1, "model.path=damaged")].map(start).into());
    let codes: Vec<i32> = outcomes.iter().map(|outcome| outcome.code).collect();
    assert_eq!(codes, [3, 3], "{outcomes:?}");
}

#[test]
fn ranks_with_several_instruction_sets_are_refused() {
    // The run multiplies f32, which all sets of this processor that multiply bf16 do alike.
    let best = InstructionSet::best().of_products(false).name();
    if best == "portable" {
        return;
    }
    let fixture = Fixture::new();
    let start = |rank: usize, set: &str| {
        let job = "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29693";
        let variables = format!("{job} RANK={rank} LOCAL_RANK={rank} BMTRAIN_CPU={set}");
        fixture.start_launched(&variables, &["--set", "output.dir=run", "--set", "parallel.tensor=2"])
    };
    let children = [start(0, best), start(1, "portable")];
    for outcome in children.map(|child| into_outcome(child.wait_with_output().unwrap())) {
        assert_eq!(outcome.code, 2, "{}", outcome.stderr);
        let reason = format!("it computes with portable and rank 0 with {best}");
        assert!(outcome.stderr.contains(&reason), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("set BMTRAIN_CPU=portable for all ranks"), "{}", outcome.stderr);
    }
}
