//! The scripts of `examples/launch/`, with launchers that only note how they are called: the command of each, and what
//! a job does after each exit status; ranks on the slots of a hostfile.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/launch").join(name)
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
         bmtrain finetune --recipe recipe.toml train.lr=1e-4\n"
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
        let command = "srun --kill-on-bad-exit=0 --cpus-per-task=8 bmtrain finetune --recipe recipe.toml\n";
        assert_eq!(printed, format!("{command}{}", if is_requeued { requeue } else { "" }), "status {status}");
    }
}

#[test]
fn an_lsf_job_starts_a_task_on_each_slot_and_repeats_the_same_statuses() {
    let launchers = launchers(&["blaunch"]);
    let output = run("lsf.sh", launchers.path(), &[], &[("RECIPE", "recipe.toml"), ("ENDS", "75")]);
    assert_eq!(
        (output.status.code(), printed(&output).as_str()),
        (Some(75), "blaunch bmtrain finetune --recipe recipe.toml\n")
    );
    assert!(std::fs::read_to_string(script("lsf.sh")).unwrap().contains("#BSUB -Q \"6 75\"\n"));
    assert!(!run("lsf.sh", launchers.path(), &[], &[("ENDS", "0")]).status.success());
}

/// A hostfile, a program that runs what ssh would run on another host, and a rank that prints its variables.
fn with_hosts(hostfile: &str) -> tempfile::TempDir {
    let directory = launchers(&[]);
    let ssh = "#!/bin/sh\nshift $(($# - 2))\necho \"ssh $1\"\nexec sh -c \"$2\"\n";
    let rank = "#!/bin/sh\necho \"$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT \
                $CUDA_VISIBLE_DEVICES $NCCL_DEBUG [$1][$2]\"\n[ \"$RANK\" = \"$BMTRAIN_FAILS\" ] && exit 3\nexit \
                \"${HF_OTHERS:-0}\"\n";
    for (name, text) in [("ssh", ssh), ("rank", rank)] {
        std::fs::write(directory.path().join(name), text).unwrap();
        std::fs::set_permissions(directory.path().join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::write(directory.path().join("hosts"), hostfile).unwrap();
    directory
}

const HOSTS: &str = "# two hosts\nlocalhost slots=2\n\nnode2 slots=4 # GPUs\n";

fn start_on_hosts(
    directory: &Path,
    options: &[&str],
    variables: &[(&str, &str)],
) -> (Option<i32>, Vec<String>, String) {
    let hosts = directory.join("hosts");
    let arguments = [&["-f", hosts.to_str().unwrap()], options, &["rank", "a", "b 'c"]].concat();
    let output = run("hostfile.sh", directory, &arguments, variables);
    let mut lines: Vec<String> = printed(&output).lines().map(str::to_owned).collect();
    lines.sort();
    (output.status.code(), lines, String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_hostfile_starts_a_rank_on_every_slot_that_is_included() {
    let directory = with_hosts(HOSTS);
    let (status, lines, _) = start_on_hosts(directory.path(), &[], &[("NCCL_DEBUG", "x y")]);
    let of_rank = |rank: usize, [local, size]: [usize; 2], devices: &str| {
        format!("{rank}/6 {local}/{size} localhost:29500 {devices} x y [a][b 'c]")
    };
    let of_first = (0..2).map(|rank| of_rank(rank, [rank, 2], "0,1"));
    let of_second = (2..6).map(|rank| of_rank(rank, [rank - 2, 4], "0,1,2,3"));
    assert_eq!((status, lines), (Some(0), of_first.chain(of_second).chain(["ssh node2".to_owned()]).collect()));
    let address = [("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "1234")];
    let (_, lines, _) = start_on_hosts(directory.path(), &["-i", "node2:0,3"], &address);
    let expected = ["0/2 0/2 10.0.0.1:1234 0,3  [a][b 'c]", "1/2 1/2 10.0.0.1:1234 0,3  [a][b 'c]", "ssh node2"];
    assert_eq!(lines, expected);
    let (_, lines, _) = start_on_hosts(directory.path(), &["-e", "localhost@node2:1,2"], &[]);
    assert_eq!(lines, ["0/2 0/2 node2:29500 0,3  [a][b 'c]", "1/2 1/2 node2:29500 0,3  [a][b 'c]", "ssh node2"]);
}

#[test]
fn the_status_of_a_hostfile_is_that_of_the_rank_that_failed() {
    let directory = with_hosts(HOSTS);
    for failed in ["0", "1", "5"] {
        // The others end with the status of a lost rank.
        let variables = [("BMTRAIN_FAILS", failed), ("HF_OTHERS", "6")];
        assert_eq!(start_on_hosts(directory.path(), &[], &variables).0, Some(3), "rank {failed}");
    }
    assert_eq!(start_on_hosts(directory.path(), &[], &[("HF_OTHERS", "75")]).0, Some(75));
}

#[test]
fn mistakes_in_a_hostfile_and_its_options_are_named() {
    let refused = |hostfile: &str, options: &[&str], part: &str| {
        let directory = with_hosts(hostfile);
        let (status, lines, message) = start_on_hosts(directory.path(), options, &[]);
        assert!(status == Some(2) && lines.is_empty() && message.contains(part), "{status:?} {lines:?} {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    };
    refused(HOSTS, &["-i", "node3"], "host 'node3' is not in");
    refused(HOSTS, &["-i", "node2:0,4"], "node2 has no slot 4; its slots are 0 1 2 3");
    refused(HOSTS, &["-e", "localhost@node2"], "no slot is left");
    refused(HOSTS, &["-i", "node2", "-e", "node2"], "-i is given too");
    refused(HOSTS, &["-x"], "-x: no such option");
    refused("node1 slots=0\n", &[], "'node1 slots=0' has no number of slots; write 'node1 slots=8'");
    refused("node1\n", &[], "has no number of slots");
    refused("node1 slots=2\nnode1 slots=2\n", &[], "node1 comes twice");
    refused("-oProxyCommand=x slots=2\n", &[], "cannot be the name of a host");
    refused("", &[], "no slot is left");
}
