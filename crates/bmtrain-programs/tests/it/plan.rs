//! The plan program predicts the pool memory of a rank, for models of any size.

use crate::fixture::Fixture;
use serde_json::Value;

/// In f32 beside 16-bit parameters.
const MIXED: &str = "model.f32_parameters=[\"embeddings\", \"norms\", \"token-types\"]";

/// Ranks and settings.
const CASES: [(&str, &[&str]); 15] = [
    ("2", &[]),
    ("2", &["train.offload=true", "train.micro_batch_size=2", "model.dtype=bf16"]),
    ("1", &[]),
    ("1", &["train.recompute=blocks", "train.micro_batch_size=2"]),
    ("1", &["train.recompute=attention", "train.micro_batch_size=2"]),
    ("2", &["train.recompute=2", "train.micro_batch_size=2", "parallel.zero=3"]),
    (
        "2",
        &["train.recompute=true", "train.recompute_inputs=host", "train.offload=true", "train.offload_parameters=true"],
    ),
    ("1", &["train.gradient_sum=elastic", "train.micro_batch_size=1", "model.dtype=bf16"]),
    ("2", &["parallel.zero=0", "train.micro_batch_size=2", "checkpoint.every=1 steps"]),
    ("2", &["parallel.zero=1", "train.micro_batch_size=1", "model.dtype=bf16"]),
    ("2", &["parallel.zero=3", "train.micro_batch_size=1", "train.gradient_sum=elastic", "train.recompute=blocks"]),
    ("4", &["parallel.zero=2", "train.micro_batch_size=1", "eval.batch_size=8"]),
    ("4", &["parallel.zero=3", "train.micro_batch_size=1", "model.dtype=f16", "parallel.prefetch=false"]),
    ("1", &["train.micro_batch_size=2", "model.dtype=bf16", MIXED]),
    ("2", &["parallel.zero=3", "train.micro_batch_size=1", "model.dtype=bf16", MIXED, "checkpoint.every=1 steps"]),
];

/// A fixture whose sentences all have the same length, so that every batch is the largest.
fn equally_long() -> Fixture {
    let fixture = Fixture::new();
    let line = |i: usize| {
        let (adjective, label) = [("good", "positive"), ("bad", "negative")][i % 2];
        format!("{{\"text\": \"the plot of the film was very {adjective} .\", \"label\": \"{label}\"}}\n")
    };
    for (file, count) in [("train.jsonl", 16), ("eval.jsonl", 9)] {
        fixture.write(file, &(0..count).map(line).collect::<String>());
    }
    fixture
}

fn with_sets<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    sets.iter().flat_map(|set| ["--set", *set]).collect()
}

fn planned(fixture: &Fixture, arguments: &[&str]) -> Value {
    let outcome = fixture.plan(&[&["--json"], arguments].concat()).succeeded();
    serde_json::from_str(&outcome.stdout).unwrap()
}

fn last_record(fixture: &Fixture, directory: &str) -> Value {
    let text = fixture.read(&format!("{directory}/metrics.jsonl"));
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn a_plan_is_what_the_fullest_pool_then_held() {
    let fixture = equally_long();
    for (number, (ranks, sets)) in CASES.into_iter().enumerate() {
        let directory = format!("output.dir=run-{number}");
        let arguments = [&["--ranks", ranks, &directory], &with_sets(sets)[..]].concat();
        let plan = planned(&fixture, &arguments);
        fixture.finetune(&arguments).succeeded();
        let time = &last_record(&fixture, &format!("run-{number}"))["time"];
        let measured = |name: &str| time[format!("pool_{name}_bytes")].as_u64().unwrap();
        let classes = plan["pool"]["at_peak"].as_object().unwrap();
        for (name, bytes) in classes {
            assert_eq!(bytes.as_u64().unwrap(), measured(name), "{name} with {ranks} {sets:?}: {plan} {time}");
        }
        assert_eq!(plan["pool"]["peak_bytes"].as_u64().unwrap(), measured("peak"), "{ranks} {sets:?}");
        assert_eq!(plan["pool"]["touched_bytes"].as_u64().unwrap(), measured("touched"), "{ranks} {sets:?}");
        let of_device = classes.iter().filter(|(name, _)| *name != "offload").map(|(_, bytes)| bytes.as_u64().unwrap());
        assert_eq!(of_device.sum::<u64>(), measured("peak"));
    }
}

/// Which tokens are a rank's is known to the run alone: the look-up of the embedding is planned as if all were its own.
#[test]
fn a_plan_of_tensor_parallel_ranks_is_close_to_the_fullest_pool() {
    let fixture = equally_long();
    fixture.hollow_model(64, 3, 256);
    let unsaved = ["save.which=none", "checkpoint.minutes=0", "parallel.tensor=2"];
    let mut peaks = Vec::new();
    for (number, (ranks, sets)) in [
        ("2", &["train.micro_batch_size=4"][..]),
        ("4", &["train.micro_batch_size=2", "parallel.zero=0"]),
        ("4", &["train.micro_batch_size=1", "parallel.zero=3", "train.recompute=blocks", "model.dtype=bf16"]),
    ]
    .into_iter()
    .enumerate()
    {
        let directory = format!("output.dir=tensor-{number}");
        let arguments = [&["--ranks", ranks, &directory], &with_sets(&[&unsaved, sets].concat())[..]].concat();
        let plan = planned(&fixture, &arguments);
        fixture.finetune(&arguments).succeeded();
        let measured = last_record(&fixture, &format!("tensor-{number}"))["time"]["pool_peak_bytes"].as_u64().unwrap();
        let peak = plan["pool"]["peak_bytes"].as_u64().unwrap();
        let share = peak as f64 / measured as f64 - 1.0;
        assert!((-0.02..=0.05).contains(&share), "{peak} planned, {measured} measured: {plan}");
        assert_eq!((&plan["tensor"], &plan["data_ranks"]), (&2.into(), &(ranks.parse::<u64>().unwrap() / 2).into()));
        peaks.push(peak);
    }
    let whole = planned(&fixture, &["--set", "train.micro_batch_size=4"])["pool"]["peak_bytes"].as_u64().unwrap();
    assert!(10 * peaks[0] < 7 * whole, "{peaks:?} of {whole}");
}

#[test]
fn batches_shorter_than_the_longest_need_no_more_than_planned() {
    let fixture = Fixture::new();
    let plan = planned(&fixture, &["--set", "train.micro_batch_size=2"]);
    fixture.finetune(&["--set", "train.micro_batch_size=2"]).succeeded();
    let measured = last_record(&fixture, "run")["time"]["pool_peak_bytes"].as_u64().unwrap();
    assert!(measured <= plan["pool"]["peak_bytes"].as_u64().unwrap(), "{measured} {plan}");
}

/// Whether a planned peak of a process is within +10 % or -5 % of the measured one, or within 32 MiB of it.
fn is_close(planned: u64, measured: u64) -> bool {
    let share = planned as f64 / measured as f64 - 1.0;
    planned.abs_diff(measured) <= 32 << 20 || (-0.05..=0.1).contains(&share)
}

#[test]
fn the_peak_of_a_process_is_planned_with_its_checkpoints_and_what_it_reads_at_its_end() {
    let fixture = equally_long();
    // 10 million values in two matrices: copies of moments or of a checkpoint that the plan lacks are far above the
    // tolerance.
    fixture.hollow_model(64, 1, 80_000);
    let never = ["checkpoint.every=never", "checkpoint.minutes=0"];
    let mut peaks = Vec::new();
    for (number, sets) in [&["checkpoint.every=1 steps"][..], &never].into_iter().enumerate() {
        let directory = format!("output.dir=peak-{number}");
        let arguments = [&[&directory[..]], &with_sets(&[sets, &["train.steps=2"]].concat())[..]].concat();
        let plan = planned(&fixture, &arguments);
        fixture.finetune(&arguments).succeeded();
        let time = &last_record(&fixture, &format!("peak-{number}"))["time"];
        let measured = time["peak_anonymous_bytes"].as_u64().unwrap();
        let planned = plan["process"]["peak_anonymous_bytes"].as_u64().unwrap();
        assert!(is_close(planned, measured), "{planned} {measured} {plan}");
        peaks.push(measured);
    }
    // A checkpoint is a copy of values and moments, 12 bytes of each value.
    assert!(peaks[0] > peaks[1] + (80 << 20), "{peaks:?}");
}

#[test]
fn gaps_between_tensors_are_counted_on_the_lengths_of_the_data() {
    let fixture = Fixture::new();
    let line = |i: usize| {
        let (words, label) = (" good".repeat(1 + i % 13), ["positive", "negative"][i % 2]);
        format!("{{\"text\": \"{}\", \"label\": \"{label}\"}}\n", words.trim())
    };
    fixture.write("train.jsonl", &(0..24).map(line).collect::<String>());
    let sets = with_sets(&["train.micro_batch_size=2"]);
    let plan = planned(&fixture, &sets);
    fixture.finetune(&sets).succeeded();
    let measured = last_record(&fixture, "run")["time"]["pool_touched_bytes"].as_u64().unwrap();
    let touched = plan["pool"]["touched_bytes"].as_u64().unwrap();
    assert!(measured <= touched && touched <= measured + measured / 10, "{measured} {plan}");
}

#[test]
fn sequences_of_a_length_are_planned_and_the_most_that_the_recipe_allows_is_shown() {
    let fixture = equally_long();
    let plan = planned(&fixture, &[]);
    let (length, limit) = (plan["length"].as_u64().unwrap(), 16);
    assert!(length < limit, "{plan}");
    let at_limit = &plan["at_max_length"];
    let asked = planned(&fixture, &["--length", "16"]);
    assert_eq!((&asked["length"], &at_limit["length"]), (&limit.into(), &limit.into()));
    assert_eq!(asked["pool"], at_limit["pool"]);
    assert_eq!(asked["at_max_length"], Value::Null);
    let peak = |plan: &Value| plan["pool"]["peak_bytes"].as_u64().unwrap();
    assert!(peak(&asked) > peak(&plan), "{asked} {plan}");
    let same = planned(&fixture, &["--length", &length.to_string()]);
    assert_eq!(same["pool"], plan["pool"]);
    let text = fixture.plan(&[]).succeeded().stdout;
    assert!(text.contains("--length 16"), "{text}");
    // A BART reads its class at the last EOS, which shorter sequences keep.
    let shorter = planned(&Fixture::bart(), &["--length", "4"]);
    assert_eq!(shorter["length"], 4, "{shorter}");
    // Data with sequences as long as the recipe allows leave nothing to add.
    let exact = format!("data.max_length={length}");
    assert_eq!(planned(&fixture, &["--set", &exact])["at_max_length"], Value::Null);
}

#[test]
fn offloaded_parameters_and_inputs_are_counted_on_the_host_beside_a_device() {
    let fixture = equally_long();
    fixture.hollow_model(256, 12, 1024);
    let on = |sets: &[&str]| {
        let cuda = ["device.name=cuda", "train.offload=true", "parallel.zero=3", "train.recompute=blocks"];
        let sets = with_sets(&[&cuda[..], sets].concat());
        planned(&fixture, &[&["--ranks", "2", "--device-memory", "8", "--memory", "1000"], &sets[..]].concat())
    };
    let of = |plan: &Value, class: &str| plan["pool"]["own_peaks"][class].as_u64().unwrap();
    let usual = on(&[]);
    let apart = on(&["train.offload_parameters=true", "train.recompute_inputs=host"]);
    assert_eq!(of(&apart, "parameters"), 0, "{apart}");
    let (values, on_host) = (of(&usual, "parameters"), of(&apart, "offload") - of(&usual, "offload"));
    assert!(on_host >= values && of(&apart, "activations") < of(&usual, "activations"), "{apart} {usual}");
    // The shard of a block arrives beside what is gathered from it.
    assert!(of(&apart, "gathered") < 2 * of(&usual, "gathered"), "{apart} {usual}");
    let pool = |plan: &Value| plan["pool"]["peak_bytes"].as_u64().unwrap();
    assert!(pool(&apart) < pool(&usual), "{apart} {usual}");
}

#[test]
fn cuda_devices_are_compared_with_their_own_memory_and_the_host_with_its_own() {
    let fixture = equally_long();
    fixture.hollow_model(512, 24, 2048);
    let eight = ["--ranks", "8", "--set", "train.batch_size=8", "--set", "train.micro_batch_size=1"];
    let on = |device: &str, more: &[&str]| {
        let name = format!("device.name={device}");
        planned(&fixture, &[&eight[..], &["--set", &name, "--memory", "1000"], more].concat())
    };
    let (cpu, cuda) = (on("cpu", &[]), on("cuda", &["--device-memory", "8"]));
    let needed = |plan: &Value| plan["verdict"]["needed_bytes"].as_u64().unwrap();
    let device = &cuda["verdict"]["device"];
    let of_device = device["needed_bytes"].as_u64().unwrap();
    assert_eq!(device["available_bytes"].as_u64(), Some(8 << 30));
    assert!(of_device > cuda["pool"]["peak_bytes"].as_u64().unwrap(), "{cuda}");
    // The pools are no part of the host's memory, where the driver of each device takes some.
    let pools = 8 * cpu["pool"]["touched_bytes"].as_u64().unwrap();
    assert!(needed(&cpu) > needed(&cuda) + pools - (8 * (256 << 20)) - (64 << 20), "{cpu} {cuda}");
    assert_eq!(cpu["verdict"]["device"], Value::Null);
    assert_eq!(cuda["verdict"]["fits"], Value::Bool(true), "{cuda}");
    let small = on("cuda", &["--device-memory", "1"]);
    assert_eq!(small["verdict"]["fits"], Value::Bool(false), "{small}");
    assert!(!small["verdict"]["changes"].as_array().unwrap().is_empty(), "{small}");
    // An optimizer whose state stays on the device has changes without offload.
    let muon = on("cuda", &["--device-memory", "1", "--set", "train.optimizer=muon"]);
    let changes = muon["verdict"]["changes"].to_string();
    assert!(changes.len() > 2 && !changes.contains("offload"), "{muon}");
    // More ranks than any host has devices: without a statement nothing is known of theirs.
    let many = ["--ranks", "64", "--set", "train.batch_size=64", "--set", "train.micro_batch_size=1"];
    fixture.write("train.jsonl", &fixture.read("train.jsonl").repeat(4));
    let unknown = [&many[..], &["--set", "device.name=cuda", "--memory", "100000"]].concat();
    assert_eq!(planned(&fixture, &unknown)["verdict"]["fits"], Value::Null);
    let text = fixture.plan(&unknown).succeeded().stdout;
    assert!(text.contains("unknown: give --device-memory"), "{text}");
}

#[test]
fn processes_each_read_the_data() {
    let fixture = equally_long();
    let two = ["--ranks", "2", "--set", "train.micro_batch_size=2"];
    let (threads, processes) = (planned(&fixture, &two), planned(&fixture, &[&two[..], &["--processes"]].concat()));
    let peak = |plan: &Value| plan["process"]["peak_anonymous_bytes"].as_u64().unwrap();
    let machine = |plan: &Value| plan["machine_bytes"].as_u64().unwrap();
    assert_eq!((&threads["process"]["ranks"], &processes["process"]["ranks"]), (&2.into(), &1.into()));
    assert!(peak(&processes) < peak(&threads) && machine(&processes) > machine(&threads), "{threads} {processes}");
}

#[test]
fn a_model_of_seven_billion_is_planned_in_little_memory() {
    let fixture = equally_long();
    fixture.hollow_model(4096, 34, 16384);
    let sets = with_sets(&["train.micro_batch_size=1", "model.dtype=bf16", "parallel.zero=3"]);
    // Two gibibytes of addresses, the code and the stacks of threads among them, for 14 GB of values.
    let outcome = fixture.plan_within(2 << 20, &[&["--json", "--ranks", "4"], &sets[..]].concat()).succeeded();
    let plan: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let values = plan["parameters"].as_u64().unwrap();
    assert!(values > 6_800_000_000, "{values}");
    let at_peak = |class: &str| plan["pool"]["at_peak"][class].as_u64().unwrap() as f64;
    let shard = values as f64 / 4.0;
    for (class, bytes_per_value) in [("parameters", 2.0), ("optimizer", 12.0)] {
        let share = at_peak(class) / (shard * bytes_per_value);
        assert!((1.0..1.001).contains(&share), "{class}: {share} of its shard");
    }
    assert_eq!(plan["verdict"]["fits"], Value::Bool(false), "{plan}");
}

#[test]
fn a_run_that_does_not_fit_is_told_what_would_help() {
    let fixture = equally_long();
    let needed = |plan: &Value| plan["verdict"]["needed_bytes"].as_u64().unwrap();
    let gib = |bytes: u64| format!("--memory={}", bytes as f64 / (1u64 << 30) as f64);
    // Enough blocks that their activations outweigh random differences between processes.
    fixture.hollow_model(64, 32, 256);
    let whole = planned(&fixture, &["--memory=1000"]);
    assert_eq!(whole["verdict"]["fits"], Value::Bool(true));
    assert!(whole["verdict"]["changes"].as_array().unwrap().is_empty());
    let recomputed = planned(&fixture, &["--memory=1000", "--set", "train.recompute=blocks"]);
    let between = (needed(&whole) + needed(&recomputed)) / 2;
    let short = planned(&fixture, &[&gib(between)]);
    assert_eq!(short["verdict"]["fits"], Value::Bool(false), "{short}");
    let first = &short["verdict"]["changes"][0];
    assert!(first["needed_bytes"].as_u64().unwrap() <= between, "{short}");
    // The process that reads the data is not of the same size every time.
    let text = fixture.plan(&[&gib(between), "--set", "train.micro_batch_size=4"]).succeeded().stdout;
    assert!(text.contains("does not fit") && text.contains("fits with: --set "), "{text}");
    let hopeless = fixture.plan(&["--memory=0.000001"]).succeeded().stdout;
    assert!(hopeless.contains("most helpful, and not enough"), "{hopeless}");
}

#[test]
fn all_levels_are_compared() {
    let fixture = equally_long();
    fixture.hollow_model(64, 6, 128);
    let two_of_each = ["--set", "train.batch_size=8", "--set", "train.micro_batch_size=1"];
    let arguments = [&["--ranks", "4", "--all-levels"], &two_of_each[..]].concat();
    let plan = planned(&fixture, &arguments);
    let levels = plan["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 12);
    let at = |level: usize, class: &str| levels[3 * level]["pool"]["own_peaks"][class].as_u64().unwrap();
    assert!(at(1, "optimizer") < at(0, "optimizer") && at(1, "parameters") == at(0, "parameters"));
    assert!(at(2, "gradients") < at(1, "gradients") && at(2, "parameters") < at(1, "parameters"));
    assert!(at(3, "gathered") < at(2, "gathered"));
    let text = fixture.plan(&arguments).succeeded().stdout;
    let is_level = |line: &&str| [" blocks ", " none ", " auto "].iter().any(|kind| line.contains(kind));
    assert_eq!(text.lines().filter(is_level).count(), 12, "{text}");
}

#[test]
fn a_plan_writes_nothing() {
    let fixture = Fixture::new();
    let before = fixture.snapshot();
    fixture.plan(&[]).succeeded();
    fixture.plan(&["--json", "--all-levels"]).succeeded();
    assert_eq!(fixture.snapshot(), before);
}

#[test]
fn layouts_in_three_dimensions_are_planned_without_data_and_weights() {
    let fixture = Fixture::new();
    for file in ["model/model.safetensors", "model/vocab.txt", "train.jsonl", "eval.jsonl"] {
        std::fs::remove_file(fixture.path(file)).unwrap();
    }
    let plan = planned(&fixture, &["--layout", "2x1x1"]);
    assert_eq!((&plan["layout"]["tensor"], &plan["layout"]["data"]), (&2.into(), &1.into()));
    let sent = &plan["ranks"][0]["sent_bytes"];
    assert!(sent["tensor"].as_u64().unwrap() > 0 && sent["data"] == 0 && sent["pipeline"] == 0, "{plan}");
    let text = fixture.plan(&["--layout", "1x1x2"]).succeeded().stdout;
    assert!(text.contains("1 tensor x 1 pipeline x 2 data, ZeRO-"), "{text}");
    // The recipe's own, on the given ranks.
    let own = ["--layout", "--ranks", "2", "--set", "parallel.tensor=2"];
    assert_eq!(planned(&fixture, &own)["ranks"][0]["peak_bytes"], plan["ranks"][0]["peak_bytes"]);
    let staged = planned(&fixture, &["--layout", "1x2x1", "--schedule", "gpipe", "--set", "train.micro_batch_size=1"]);
    let ranks = staged["ranks"].as_array().unwrap();
    assert!(ranks.len() == 2 && ranks.iter().all(|rank| rank["sent_bytes"]["pipeline"].as_u64() > Some(0)), "{staged}");
    assert!(ranks[0]["own_peaks"]["parameters"] != ranks[1]["own_peaks"]["parameters"], "{staged}");
    assert!(staged["bubble"].as_f64().unwrap() > 0.0, "{staged}");
    let fit = planned(&fixture, &["--fit", "2x1GB"]);
    let first = &fit["fitting"][0];
    assert!(first["memory"]["total"].as_f64().unwrap() < 0.9e9, "{fit}");
    let text = fixture.plan(&["--fit", "2x10GiB"]).succeeded().stdout;
    assert!(text.contains("2 ranks of 10.0 GiB") && text.contains("layouts were sized by formula"), "{text}");
    for (arguments, place) in [
        (&["--layout", "2x1"][..], "--layout"),
        (&["--layout", "0x1x1"], "--layout"),
        (&["--layout", "1x9x1"], "parallel.pipeline"),
        (&["--layout", "65536x2x1"], "--layout"),
        (&["--fit", "2x-1GB"], "--fit"),
        (&["--fit", "2 ranks"], "--fit"),
        (&["--layout", "1x1x1", "--ranks", "2"], "--ranks"),
    ] {
        let outcome = fixture.plan(arguments);
        assert!(outcome.code == 2 && outcome.stderr.contains(place), "{arguments:?}: {}", outcome.stderr);
    }
}
