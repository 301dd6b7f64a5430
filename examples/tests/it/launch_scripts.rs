//! The scripts of `examples/launch/`, with launchers that only note how they are called: the command of each, and what
//! a job does after each exit status.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("launch").join(name)
}

/// A directory with programs of these names that note their arguments and end with the status in `ENDS`.
fn launchers(names: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in names {
        let path = directory.path().join(name);
        let text =
            "#!/bin/sh\necho \"$(basename \"$0\") $*\"\n[ \"$(basename \"$0\")\" = scontrol ] || exit \"$ENDS\"\n";
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    directory
}

/// Run a script where only these launchers and the system's programs are found.
fn run(name: &str, launchers: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new("bash");
    command.arg(script(name)).args(arguments).env_clear().envs(variables.iter().copied());
    command.env("PATH", format!("{}:/usr/bin:/bin", launchers.display())).output().unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn torchrun_starts_a_rank_for_each_gpu_of_each_host() {
    let launchers = launchers(&["torchrun"]);
    let variables = [("NODES", "2"), ("NODE_RANK", "1"), ("MASTER_ADDR", "node1"), ("ENDS", "0")];
    let output = run("torchrun.sh", launchers.path(), &["recipe.toml", "train.lr=1e-4"], &variables);
    assert!(output.status.success());
    assert_eq!(
        printed(&output),
        "torchrun --nnodes 2 --node-rank 1 --nproc-per-node gpu --master-addr node1 --master-port 29500 --no-python \
         finetune --recipe recipe.toml train.lr=1e-4\n"
    );
    for missing in 0..3 {
        let mut variables = variables.to_vec();
        let (name, _) = variables.remove(missing);
        let output = run("torchrun.sh", launchers.path(), &["recipe.toml"], &variables);
        assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains(name));
    }
}

#[test]
fn a_slurm_job_goes_back_into_the_queue_where_a_restart_can_help() {
    let launchers = launchers(&["srun", "scontrol"]);
    for (status, restarts, is_requeued) in [
        ("0", "0", false),
        ("2", "0", false),
        ("6", "0", true),
        ("75", "3", true),
        ("137", "19", true),
        ("75", "20", false),
    ] {
        let variables =
            [("SLURM_JOB_ID", "12"), ("SLURM_CPUS_PER_TASK", "8"), ("SLURM_RESTART_COUNT", restarts), ("ENDS", status)];
        let output = run("slurm.sbatch", launchers.path(), &["recipe.toml"], &variables);
        assert_eq!(output.status.code(), Some(status.parse().unwrap()));
        let (printed, requeue) = (printed(&output), "scontrol requeue 12\n");
        let command = "srun --kill-on-bad-exit=0 --cpus-per-task=8 finetune --recipe recipe.toml\n";
        assert_eq!(printed, format!("{command}{}", if is_requeued { requeue } else { "" }), "status {status}");
    }
}

#[test]
fn an_lsf_job_starts_a_task_on_each_slot_and_repeats_the_same_statuses() {
    let launchers = launchers(&["blaunch"]);
    let output = run("lsf.sh", launchers.path(), &[], &[("RECIPE", "recipe.toml"), ("ENDS", "75")]);
    assert_eq!(
        (output.status.code(), printed(&output).as_str()),
        (Some(75), "blaunch finetune --recipe recipe.toml\n")
    );
    assert!(std::fs::read_to_string(script("lsf.sh")).unwrap().contains("#BSUB -Q \"6 75\"\n"));
    assert!(!run("lsf.sh", launchers.path(), &[], &[("ENDS", "0")]).status.success());
}
