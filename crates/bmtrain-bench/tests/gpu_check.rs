//! The gpu-check program on an emulated driver, and without any. What is proved here is the program, not a device.
#![allow(missing_docs, clippy::unwrap_used)]

use cuda_emulator::{Driver, with_driver};
use serde_json::Value;
use std::process::{Command, Output};

fn gpu_check(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-check"));
    command.args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Run it on the emulated driver: what it printed, and its JSON.
fn emulated(arguments: &[&str]) -> (Output, Value) {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("found.json");
    let mut command = gpu_check(arguments);
    command.arg("--json").arg(&json).env("BMTRAIN_CUDA_KERNELS", cuda_emulator::compiled_kernels());
    let output = command.output().unwrap();
    let found = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{output:?}"));
    (output, serde_json::from_str(&found).unwrap())
}

fn assert_every_line_is_marked_emulated(output: &Output) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!out.is_empty());
    // Warnings of the log have a form of their own.
    let told = err.lines().filter(|line| !line.contains("WARN"));
    for line in out.lines().chain(told) {
        assert!(line.starts_with("emulated: "), "{line}");
    }
}

#[test]
fn rows_are_compared_and_everything_marks_the_device_as_emulated() {
    let test = "rows_are_compared_and_everything_marks_the_device_as_emulated";
    with_driver(test, Driver::Emulated, &[], || {
        let (output, found) = emulated(&["--only", "environment,intrinsics,conformance,kernels", "--rows", "softmax/"]);
        assert!(output.status.success(), "{output:?}");
        assert_every_line_is_marked_emulated(&output);
        let table = text(&output.stdout);
        assert!(table.contains(" 0 failed, 0 unsupported") && table.ends_with("emulated: ok\n"), "{table}");
        assert!(table.contains("not measured") && !table.contains("GB/s"), "{table}");
        assert_eq!(found["emulated"], true);
        assert_eq!(found["passed"], true);
        let conformance = &found["parts"]["conformance"];
        assert_eq!(conformance["emulated"], true);
        assert!(conformance["passed"].as_u64().unwrap() > 0, "{conformance}");
        assert_eq!(conformance["failed"], 0);
        assert_eq!(found["parts"].get("kernels"), None, "nothing is measured");
        assert!(found["running"].is_null(), "{found}");
        let probed = found["parts"]["intrinsics"]["instructions"].as_array().unwrap();
        assert!(probed.len() == 14 && probed.iter().all(|one| one["wrong"].is_null()), "{probed:?}");
        assert!(found["parts"]["environment"]["device"]["name"].as_str().unwrap().contains("emulated"));
    });
}

#[test]
fn attention_on_warpgroup_products_is_compared_and_timed_beside_the_others() {
    let test = "attention_on_warpgroup_products_is_compared_and_timed_beside_the_others";
    with_driver(test, Driver::Emulated, &[], || {
        let chosen = ["--only", "warpgroups", "--rows", "63 queries, 17 keys", "--measure", "--seconds", "0.01"];
        let (output, found) = emulated(&chosen);
        assert!(output.status.success(), "{output:?}");
        assert_every_line_is_marked_emulated(&output);
        let part = &found["parts"]["warpgroups"];
        let checks = part["checks"].as_array().unwrap();
        // Two of the table, and six that are long.
        assert!(checks.len() == 8 && checks.iter().all(|check| check["passed"] == true), "{part}");
        let times = part["times"].as_array().unwrap();
        assert!(times.len() == 2 && times.iter().all(|time| time["flops_per_s"].as_f64() > Some(0.0)), "{part}");
        assert!(text(&output.stdout).contains("times the others"), "{output:?}");
    });
}

#[test]
fn variants_have_the_bits_of_the_ordinary_kernels_and_are_timed_beside_them() {
    let test = "variants_have_the_bits_of_the_ordinary_kernels_and_are_timed_beside_them";
    with_driver(test, Driver::Emulated, &[("EMULATED_BLAS_ALGORITHMS", "3")], || {
        let (output, found) = emulated(&["--only", "variants", "--measure", "--seconds", "0.001"]);
        assert!(output.status.success(), "{output:?}");
        assert_every_line_is_marked_emulated(&output);
        let variants = found["parts"]["variants"]["variants"].as_array().unwrap();
        let of = |name: &str| variants.iter().filter(|one| one["variant"] == name).collect::<Vec<_>>();
        for wide in of("wide attention") {
            for seconds in ["seconds", "wide_queries_seconds", "wide_keys_seconds", "wide_both_seconds"] {
                assert!(wide[seconds].as_f64() > Some(0.0), "{wide}");
            }
        }
        for name in ["wide attention", "epilogues by kernels", "algorithms by time"] {
            assert_eq!(of(name).len(), 1, "{name}: {variants:?}");
        }
        assert!(of("choices")[0]["timed"].as_u64() > Some(4), "{variants:?}");
        assert_eq!(of("chunks")[0]["times"].as_array().unwrap().len(), 4);
        // Without times the bits are compared all the same.
        let (output, found) = emulated(&["--only", "variants"]);
        assert!(
            output.status.success() && found["parts"]["variants"]["variants"].as_array().unwrap().is_empty(),
            "{output:?}"
        );
    });
}

#[test]
fn tiny_models_train_offloaded_resumed_and_on_two_ranks_that_share_the_device() {
    let test = "tiny_models_train_offloaded_resumed_and_on_two_ranks_that_share_the_device";
    with_driver(test, Driver::Emulated, &[], || {
        let (output, found) = emulated(&["--only", "modes"]);
        assert!(output.status.success(), "{output:?}");
        let ways = found["parts"]["modes"]["ways"].as_array().unwrap();
        assert!(ways.len() == 6 && ways.iter().all(|way| way["passed"] == true), "{ways:?}");
        assert!(text(&output.stdout).contains("ZeRO-3 on 2 ranks"), "{output:?}");
    });
}

#[test]
fn a_device_that_is_lost_ends_the_part_of_modes() {
    let failing = [("EMULATED_CUDA_FAILING_KERNEL", "adam_f32")];
    with_driver("a_device_that_is_lost_ends_the_part_of_modes", Driver::Emulated, &failing, || {
        let (output, found) = emulated(&["--only", "modes"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(found["device_lost"].as_str().unwrap().contains("after checkpoint"), "{found}");
        assert_eq!(found["parts"]["modes"]["ways"].as_array().unwrap().len(), 1, "{found}");
    });
}

#[test]
fn models_are_timed_as_the_command_line_asks() {
    with_driver("models_are_timed_as_the_command_line_asks", Driver::Emulated, &[], || {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("found.json");
        let mut command = gpu_check(&["--only", "models", "--measure", "--steps", "1", "--seconds", "0.001"]);
        command.args(["--model", "tiny GPT-2", "--dropout", "0", "--length", "6", "--plain-vocabulary"]);
        command.args(["--with", "timed-products,graphs", "--json"]).arg(&json);
        command.env("BMTRAIN_CUDA_KERNELS", cuda_emulator::compiled_kernels());
        command.env("BMTRAIN_CACHE", directory.path()).env("EMULATED_BLAS_ALGORITHMS", "2");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let found: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let part = &found["parts"]["models"];
        let models = part["models"].as_array().unwrap();
        assert_eq!(models.len(), 1, "{part}");
        let model = &models[0];
        assert_eq!(
            (&model["model"], &model["dropout"], &model["length"]),
            (&"tiny GPT-2".into(), &0.0.into(), &6.into())
        );
        assert_eq!(
            (&model["pads_vocabulary"], &model["with"]),
            (&false.into(), &serde_json::json!(["timed-products", "graphs"]))
        );
        assert!(model["graphs"].is_object(), "{model}");
        assert!(part["chosen"]["timed"].as_u64() > Some(8), "{part}");
        assert!(text(&output.stdout).contains("products chosen by time"), "{output:?}");
        assert!(directory.path().join("kernels/algorithms.txt").exists());
    });
}

#[test]
fn warpgroups_are_left_out_on_other_devices() {
    let test = "warpgroups_are_left_out_on_other_devices";
    let older = [("EMULATED_CUDA_CAPABILITY", "80")];
    with_driver(test, Driver::Emulated, &older, || {
        let (output, found) = emulated(&["--only", "warpgroups"]);
        assert!(output.status.success() && found["parts"].get("warpgroups").is_none(), "{output:?}");
        assert!(text(&output.stdout).contains("for compute capability 9.0 alone"), "{output:?}");
    });
}

#[test]
fn after_a_kernel_that_kills_the_device_nothing_more_is_run() {
    let test = "after_a_kernel_that_kills_the_device_nothing_more_is_run";
    let settings = [("EMULATED_CUDA_FAILING_KERNEL", "softmax_bf16")];
    with_driver(test, Driver::Emulated, &settings, || {
        let (output, found) = emulated(&["--only", "conformance,training", "--rows", "softmax/"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let lost = found["device_lost"].as_str().unwrap();
        assert!(lost.contains("the device is lost after the row softmax/") && lost.contains("LAUNCH_FAILED"), "{lost}");
        let conformance = &found["parts"]["conformance"];
        // The row that did it is the one that failed.
        assert_eq!(conformance["failed"], 1, "{conformance}");
        assert!(conformance["rows_run"].as_u64() < conformance["rows"].as_u64(), "{conformance}");
        assert_eq!(found["failures"].as_array().unwrap().len(), 2, "{found}");
        assert_eq!(found["parts"].get("training"), None);
        assert!(text(&output.stdout).contains("not run: the device is lost"), "{output:?}");
    });
}

#[test]
fn with_a_process_for_each_stem_a_kernel_that_kills_the_device_costs_its_own_stem() {
    let test = "with_a_process_for_each_stem_a_kernel_that_kills_the_device_costs_its_own_stem";
    let settings = [("EMULATED_CUDA_FAILING_KERNEL", "scale_by_bf16")];
    with_driver(test, Driver::Emulated, &settings, || {
        let (output, found) = emulated(&["--only", "conformance", "--rows", "scale_", "--isolate"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(found["device_lost"].is_null(), "{found}");
        let conformance = &found["parts"]["conformance"];
        assert_eq!(conformance["failed"], 1, "{conformance}");
        assert!(text(&output.stdout).contains(" in 2 processes"), "{output:?}");
        let checks = conformance["checks"].as_array().unwrap();
        assert!(checks.iter().any(|check| check["dtype"] == "bf16" && check["passed"] == true), "{conformance}");
        let failures: Vec<_> = found["failures"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(failures.iter().any(|one| one.contains("the device is lost after the row scale_by/")), "{failures:?}");
    });
}

#[test]
fn a_row_that_fails_alone_stops_nothing() {
    let test = "a_row_that_fails_alone_stops_nothing";
    with_driver(test, Driver::Emulated, &[("EMULATED_CUDA_REFUSED_KERNEL", "softmax_bf16")], || {
        let (output, found) = emulated(&["--only", "conformance", "--rows", "softmax/"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(found["device_lost"].is_null(), "{found}");
        let conformance = &found["parts"]["conformance"];
        assert_eq!(conformance["rows_run"], conformance["rows"]);
        assert!(conformance["failed"].as_u64() > Some(1) && conformance["passed"].as_u64() > Some(0), "{conformance}");
    });
}

#[test]
fn a_part_beyond_its_limit_ends_the_program_and_the_parts_before_it_are_kept() {
    let test = "a_part_beyond_its_limit_ends_the_program_and_the_parts_before_it_are_kept";
    // Every launch takes a second.
    with_driver(test, Driver::Emulated, &[("EMULATED_CUDA_DAWDLE", "1000000")], || {
        let (output, found) =
            emulated(&["--only", "environment,conformance", "--rows", "softmax/", "--part-limit", "1"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("conformance took longer than 1 s"), "{output:?}");
        assert_eq!((&found["running"], &found["passed"]), (&"conformance".into(), &false.into()));
        assert!(found["parts"]["environment"].is_object() && found["parts"].get("conformance").is_none(), "{found}");
    });
}

#[test]
fn a_run_continues_after_one_that_ended_in_a_part() {
    let test = "a_run_continues_after_one_that_ended_in_a_part";
    with_driver(test, Driver::Emulated, &[], || {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("found.json");
        let start = |arguments: &[&str]| {
            let mut command = gpu_check(arguments);
            command.arg("--json").arg(&json).env("BMTRAIN_CUDA_KERNELS", cuda_emulator::compiled_kernels());
            command.output().unwrap()
        };
        let run = |arguments: &[&str]| {
            let output = start(arguments);
            (output, serde_json::from_str::<Value>(&std::fs::read_to_string(&json).unwrap()).unwrap())
        };
        // Without a file a run begins anew.
        let (output, mut found) = run(&["--resume", "--only", "environment,intrinsics"]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(found["done"], serde_json::json!(["environment", "intrinsics"]));
        // As if it had ended in the conformance table.
        found["running"] = "conformance".into();
        std::fs::write(&json, found.to_string()).unwrap();
        let (output, found) = run(&["--resume", "--only", "environment,intrinsics,overlap"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let progress = text(&output.stderr);
        assert!(progress.contains("environment: not run again"), "{progress}");
        assert!(progress.contains("overlap: not measured"), "{progress}");
        assert!(found["failures"][0].as_str().unwrap().contains("--only conformance"), "{found}");
        assert!(found["parts"].get("conformance").is_none() && found["running"].is_null(), "{found}");
        // The table has the lines of both runs.
        assert!(text(&output.stdout).contains("as the host computes them"), "{output:?}");

        let mut again = found;
        (again["running"], again["failures"]) = ("conformance".into(), Value::Array(Vec::new()));
        again["done"] = serde_json::json!(["environment", "intrinsics"]);
        std::fs::write(&json, again.to_string()).unwrap();
        let (output, found) = run(&["--resume", "--only", "conformance", "--rows", "softmax/"]);
        assert!(output.status.success(), "{output:?}");
        assert!(found["parts"]["conformance"].is_object() && found["parts"]["intrinsics"].is_object(), "{found}");

        std::fs::write(&json, found.to_string().replace("\"emulated\":true", "\"emulated\":false")).unwrap();
        let output = start(&["--resume"]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(text(&output.stderr).contains("on a real device"), "{output:?}");
        std::fs::write(&json, "[]").unwrap();
        let output = start(&["--resume"]);
        assert!(text(&output.stderr).contains("not a report of gpu-check"), "{output:?}");
    });
}

#[test]
fn rows_of_no_name_are_a_failure() {
    let test = "rows_of_no_name_are_a_failure";
    with_driver(test, Driver::Emulated, &[], || {
        let (output, found) = emulated(&["--only", "conformance", "--rows", "nothing is called so"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(found["passed"], false);
        assert!(text(&output.stdout).contains("FAILED"), "{output:?}");
    });
}

#[test]
fn without_a_complete_driver_one_line_reports_what_is_missing() {
    let test = "without_a_complete_driver_one_line_reports_what_is_missing";
    with_driver(test, Driver::Incomplete, &[], || {
        let output = gpu_check(&[]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let message = text(&output.stderr);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains("has no function"), "{message}");
    });
}

#[test]
fn the_parts_are_listed_and_others_refused() {
    let output = gpu_check(&["--list"]).output().unwrap();
    assert!(output.status.success() && text(&output.stdout).lines().count() == 10, "{output:?}");
    let output = gpu_check(&["--only", "speed"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("conformance"), "{output:?}");
}

#[test]
fn tiny_models_have_the_same_bits_twice() {
    let test = "tiny_models_have_the_same_bits_twice";
    with_driver(test, Driver::Emulated, &[], || {
        let (output, found) = emulated(&["--only", "training"]);
        assert!(output.status.success(), "{output:?}");
        let runs = found["parts"]["training"]["runs"].as_array().unwrap();
        assert!(runs.len() == 4 && runs.iter().all(|run| run["same_bits"] == true), "{runs:?}");
        assert!(runs.iter().all(|run| run["same_bits_with_graphs"] == true), "{runs:?}");
        assert_eq!(text(&output.stdout).matches("the same bits again").count(), 4, "{output:?}");
    });
}

#[test]
fn a_step_of_a_model_is_told_by_kernel_and_by_product() {
    let test = "a_step_of_a_model_is_told_by_kernel_and_by_product";
    with_driver(test, Driver::Emulated, &[], || {
        let (output, found) = emulated(&["--only", "models", "--measure", "--steps", "1", "--most-rows", "8"]);
        assert!(output.status.success(), "{output:?}");
        assert_every_line_is_marked_emulated(&output);
        let table = text(&output.stdout);
        assert!(table.contains("a step by kernel") && table.contains("launches, "), "{table}");
        assert!(table.contains("product ") && table.contains("TFLOP/s"), "{table}");
        let models = found["parts"]["models"]["models"].as_array().unwrap();
        let rows: Vec<_> = models.iter().map(|model| model["rows"].as_u64().unwrap()).collect();
        assert_eq!(rows, [8, 4, 4, 8, 8], "the second and third have rows of their own");
        assert!(models[2]["graphs"]["replayed"].as_u64() > Some(0) && models[1]["graphs"].is_null(), "{models:?}");
        assert!(table.contains("  graphs"), "{table}");
        for model in models {
            assert_kernels_are_those_of_a_step(&model["kernels"]);
        }
    });
}

/// Launches and seconds add up, whatever their values; what a step of any model has is there.
fn assert_kernels_are_those_of_a_step(step: &Value) {
    let kernels = step["kernels"].as_array().unwrap();
    let compute = || kernels.iter().filter(|kernel| kernel["lane"] == "Compute");
    let sum = |key: &str| compute().map(|kernel| kernel[key].as_f64().unwrap()).sum::<f64>();
    assert_eq!(sum("launches"), step["launches"].as_f64().unwrap());
    let near = |a: f64, b: &Value| (a - b.as_f64().unwrap()).abs() <= 1e-9 * a.abs();
    assert!(near(sum("seconds"), &step["kernels_s"]) && near(sum("gaps_before_s"), &step["gaps_s"]), "{step}");
    let inside = step["kernels_s"].as_f64().unwrap() + step["gaps_s"].as_f64().unwrap();
    assert!(inside > 0.0 && step["traced_step_s"].as_f64() > Some(0.0), "{step}");
    let of = |name: &str| compute().find(|kernel| kernel["kernel"] == name).unwrap();
    for name in ["norm", "attention", "adam", "gemm"] {
        assert!(compute().any(|kernel| kernel["kernel"].as_str().unwrap().starts_with(name)), "{name}: {step}");
    }
    let products = step["products"].as_array().unwrap();
    let launches: u64 = products.iter().map(|product| product["launches"].as_u64().unwrap()).sum();
    assert_eq!(launches, of("gemm")["launches"].as_u64().unwrap(), "{step}");
    let seconds: f64 = products.iter().map(|product| product["seconds"].as_f64().unwrap()).sum();
    assert!(near(seconds, &of("gemm")["seconds"]), "{step}");
    assert!(products.iter().all(|product| product["way"] != "not at all"), "{step}");
    assert!(products.iter().any(|product| product["dtype"] == "bf16" && product["to"] == "bf16"), "{step}");
}

/// The files of a comparison: gpu-check's on a device with one model, and PyTorch's after `change`.
fn compared(change: impl FnOnce(&mut Value)) -> Output {
    let model = |tokens_per_s: f64| {
        serde_json::json!({
            "model": "GPT-2 124M", "dtype": "bf16", "dropout": 0.1, "length": 1024, "rows": 64, "recompute": false,
            "tokens_per_s": tokens_per_s, "flops_per_token": 7.98e8, "share": 0.4, "peak_bytes": 1_u64 << 33,
        })
    };
    let device = serde_json::json!({ "name": "NVIDIA H100" });
    let parts = serde_json::json!({
        "environment": { "device": device }, "models": { "models": [model(3e5)] },
    });
    let mut theirs = serde_json::json!({
        "device": device, "versions": { "torch": "2.9" }, "compile": "default", "models": [model(2e5)],
    });
    change(&mut theirs);
    let directory = tempfile::tempdir().unwrap();
    let [report, torch] = ["report.json", "torch.json"].map(|name| directory.path().join(name));
    std::fs::write(&report, serde_json::json!({ "emulated": false, "parts": parts }).to_string()).unwrap();
    std::fs::write(&torch, theirs.to_string()).unwrap();
    gpu_check(&[]).arg("--json").arg(&report).arg("--compare").arg(&torch).output().unwrap()
}

#[test]
fn the_models_speed_is_printed_beside_pytorchs() {
    let output = compared(|torch| {
        let mut alone = torch["models"][0].clone();
        alone["model"] = "Llama 1B".into();
        torch["models"].as_array_mut().unwrap().push(alone);
    });
    assert!(output.status.success(), "{output:?}");
    let table = text(&output.stdout);
    let line: Vec<&str> = table.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(line, ["GPT-2", "124M", "64", "x", "1024", "300.0", "200.0", "1.50", "40.0", "40.0", "8.00", "8.00"]);
    assert!(table.starts_with("NVIDIA H100; PyTorch 2.9") && table.contains("Llama 1B: only in"), "{table}");
}

#[test]
fn files_of_other_devices_or_shapes_are_refused_in_one_line() {
    let refused = |change: &dyn Fn(&mut Value), reason: &str| {
        let output = compared(change);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
        let message = text(&output.stderr);
        assert!(message.lines().count() == 1 && message.contains(reason), "{message}");
    };
    refused(&|torch| torch["device"]["name"] = "NVIDIA A100".into(), "different devices: NVIDIA H100");
    refused(&|torch| torch["models"][0]["rows"] = 32.into(), "64 x 1024 in bf16");
    refused(&|torch| torch["models"][0]["dropout"] = 0.0.into(), "different shapes of GPT-2 124M");
    refused(&|torch| torch["models"][0]["flops_per_token"] = 8e8.into(), "operations a token");
    refused(&|torch| torch["models"] = Value::Array(Vec::new()), "no model is both");
    refused(&|torch| torch["models"] = Value::Null, "not a file of torch_gpu_step.py");
}
