//! Launchers: variables as the real ones set them, half-set and contradicting ones, hosts, names, ports.

use bmtrain_dist::launch::{Launch, Launcher, threads_per_rank};
use std::collections::BTreeMap;

/// Variables from strings `NAME=value`; of two with one name the later counts.
fn variables(text: &str) -> BTreeMap<String, String> {
    text.split_whitespace()
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

pub fn detect_with(ranks: Option<usize>, text: &str) -> bmtrain_dist::Result<Launch> {
    let variables = variables(text);
    Launch::detect(ranks, &|name| variables.get(name).cloned())
}

pub fn detect(text: &str) -> Launch {
    detect_with(None, text).unwrap()
}

/// The message of a refusal: one line.
pub fn refusal(ranks: Option<usize>, text: &str) -> String {
    let message = detect_with(ranks, text).unwrap_err().to_string();
    assert!(message.starts_with("launch: ") && !message.contains('\n'), "{message}");
    message
}

/// Rank, world, local rank, local size, hosts.
pub fn numbers(launch: &Launch) -> [usize; 5] {
    [launch.rank, launch.world, launch.local_rank, launch.local_size, launch.nodes]
}

/// Rank 1 of `torchrun --no-python --nproc_per_node 2`.
pub const TORCHRUN: &str = "GROUP_RANK=0 GROUP_WORLD_SIZE=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost
    MASTER_PORT=46053 OMP_NUM_THREADS=1 RANK=1 ROLE_NAME=default ROLE_RANK=1 ROLE_WORLD_SIZE=2 WORLD_SIZE=2
    TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=True
    TORCHELASTIC_RUN_ID=4d314429-a3d8-420f-8c14-6eb9d6221367";

/// Rank 1 of OpenMPI 4's `mpirun -n 2`.
pub const OPEN_MPI: &str = "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1
    OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_MCA_ess_base_jobid=1828192257 OMPI_UNIVERSE_SIZE=2
    PMIX_NAMESPACE=1828192257 PMIX_RANK=1";

/// Rank 1 of MPICH 4's `mpiexec -n 2`.
pub const MPICH: &str = "HYDI_CONTROL_FD=7 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_FD=8 PMI_RANK=1 PMI_SIZE=2";

/// Task 3 of `srun -n 4` on one node.
pub const SRUN: &str = "SLURM_JOBID=1 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=slurmbox SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
    SLURM_LOCALID=3 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_NPROCS=4 SLURM_NTASKS=4 SLURM_PROCID=3 SLURM_STEP_ID=0
    SLURM_STEP_NODELIST=slurmbox SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=4
    SLURM_TASKS_PER_NODE=4";

/// The script of `sbatch -n 4`, before any `srun`.
const SBATCH: &str = "SLURM_JOB_ID=3 SLURM_JOB_NODELIST=slurmbox SLURM_LOCALID=0 SLURM_NNODES=1 SLURM_NODEID=0
    SLURM_NPROCS=4 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_TASKS_PER_NODE=4";

#[test]
fn without_variables_there_is_one_rank() {
    let launch = detect("PATH=/usr/bin");
    assert_eq!((launch.launcher, numbers(&launch)), (Launcher::Alone, [0, 1, 0, 1, 1]));
    assert_eq!(launch.ranks_in_process(), 1);
    launch.require_one_host().unwrap();
}

#[test]
fn ranks_are_threads_of_this_process() {
    let launch = detect_with(Some(4), "").unwrap();
    assert_eq!((launch.launcher, numbers(&launch)), (Launcher::Threads, [0, 4, 0, 4, 1]));
    assert_eq!(launch.ranks_in_process(), 4);
    assert_eq!(numbers(&launch.of_thread(2)), [2, 4, 2, 4, 1]);
}

#[test]
fn torchrun_is_understood_and_its_agents_port_is_left_alone() {
    let launch = detect(TORCHRUN);
    assert_eq!((launch.launcher, numbers(&launch)), (Launcher::Torchrun, [1, 2, 1, 2, 1]));
    assert_eq!((launch.address.as_deref(), launch.port), (Some("localhost"), Some(46054)));
    assert_eq!(detect(&TORCHRUN.replace("STORE=True", "STORE=False")).port, Some(46053));
    assert_eq!(detect(&format!("{TORCHRUN} BMTRAIN_STORE_PORT=5000")).port, Some(5000));
    let message = refusal(None, &TORCHRUN.replace("46053", "65535"));
    assert!(message.contains("MASTER_PORT=65535"), "{message}");
}

#[test]
fn torchrun_on_two_hosts_counts_its_groups() {
    let launch = detect(&format!("{TORCHRUN} GROUP_WORLD_SIZE=2 WORLD_SIZE=4"));
    assert_eq!(numbers(&launch), [1, 4, 1, 2, 2]);
    let message = launch.require_one_host().unwrap_err().to_string();
    assert!(message.contains("torchrun started 4 ranks on 2 hosts") && message.contains("mpirun"), "{message}");
    assert!(!message.contains('\n'));
}

#[test]
fn restarts_and_runs_without_an_id_are_jobs_of_their_own() {
    let named = |text: &str| detect(text).job().unwrap().to_owned();
    let plain = TORCHRUN.replace("4d314429-a3d8-420f-8c14-6eb9d6221367", "none");
    let names = [
        named(TORCHRUN),
        named(&plain),
        named(&plain.replace("46053", "46055")),
        named(&plain.replace("RESTART_COUNT=0", "RESTART_COUNT=1")),
    ];
    for (index, name) in names.iter().enumerate() {
        assert!(!names[..index].contains(name), "{names:?}");
    }
    let other_rank = TORCHRUN.replace("LOCAL_RANK=1", "LOCAL_RANK=0").replace(" RANK=1", " RANK=0");
    assert_eq!(named(&other_rank), names[0]);
}

#[test]
fn open_mpi_is_understood() {
    let launch = detect(OPEN_MPI);
    assert_eq!((launch.launcher, numbers(&launch)), (Launcher::OpenMpi, [1, 2, 1, 2, 1]));
    assert_eq!(launch.job().unwrap(), "mpirun-1828192257");
    let two_hosts = detect(&OPEN_MPI.replace("_SIZE=2", "_SIZE=3").replace("LOCAL_SIZE=3", "LOCAL_SIZE=2"));
    assert_eq!(numbers(&two_hosts), [1, 3, 1, 2, 2]);
    assert!(two_hosts.store([0; 32]).unwrap_err().to_string().contains("MASTER_ADDR is missing"));
}

#[test]
fn mpich_is_understood_and_needs_a_name_for_its_job() {
    let launch = detect(MPICH);
    assert_eq!((launch.launcher, numbers(&launch)), (Launcher::Mpich, [1, 2, 1, 2, 1]));
    assert!(launch.job().unwrap_err().to_string().contains("set MASTER_PORT"));
    assert_eq!(detect(&format!("{MPICH} MASTER_PORT=7000")).job().unwrap(), "mpich-7000");
    let pals = "PMI_RANK=5 PMI_SIZE=8 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=4";
    assert_eq!(numbers(&detect(pals)), [5, 8, 1, 4, 2]);
}

#[test]
fn srun_is_understood() {
    let launch = detect(SRUN);
    assert_eq!((launch.launcher, numbers(&launch)), (Launcher::Slurm, [3, 4, 3, 4, 1]));
    assert_eq!((launch.address.as_deref(), launch.port), (Some("slurmbox"), Some(20_031)));
    assert_eq!(launch.job().unwrap(), "slurm-1-0");
}

#[test]
fn srun_on_many_hosts_takes_its_share_and_the_first_host_from_the_compressed_lists() {
    let text = "SLURM_JOB_ID=70000 SLURM_STEP_ID=2 SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_NTASKS=11
        SLURM_STEP_NUM_TASKS=11 SLURM_STEP_TASKS_PER_NODE=4(x2),3 SLURM_STEP_NODELIST=n[07-08],m1
        SLURM_JOB_NODELIST=n[01-09],m1";
    let launch = detect(text);
    assert_eq!(numbers(&launch), [9, 11, 1, 3, 3]);
    // (70000 * 31 + 2) mod 20000 = 10002
    assert_eq!((launch.address.as_deref(), launch.port), (Some("n07"), Some(30_002)));
    let message = launch.require_one_host().unwrap_err().to_string();
    assert!(message.contains("srun started 11 ranks on 3 hosts"), "{message}");
    let named = detect(&format!("{text} MASTER_ADDR=10.0.0.7 MASTER_PORT=29500"));
    assert_eq!((named.address.as_deref(), named.port), (Some("10.0.0.7"), Some(29500)));
}

#[test]
fn the_shell_of_an_allocation_is_no_task() {
    assert_eq!(detect(SBATCH).launcher, Launcher::Alone);
    assert_eq!(detect_with(Some(4), SBATCH).unwrap().launcher, Launcher::Threads);
    // The step of an interactive shell has a reserved number.
    assert_eq!(detect(&format!("{SBATCH} SLURM_STEP_ID=4294967290")).launcher, Launcher::Alone);
}

#[test]
fn mpirun_inside_a_slurm_job_is_mpirun() {
    // In the batch script, and below a daemon that srun started on each node.
    assert_eq!(numbers(&detect(&format!("{OPEN_MPI} {SBATCH}"))), [1, 2, 1, 2, 1]);
    let daemon = "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_NUM_TASKS=1
        SLURM_STEP_TASKS_PER_NODE=1";
    for (inner, launcher) in [(OPEN_MPI, Launcher::OpenMpi), (MPICH, Launcher::Mpich), (TORCHRUN, Launcher::Torchrun)] {
        let launch = detect(&format!("{inner} {daemon}"));
        assert_eq!((launch.launcher, numbers(&launch)), (launcher, [1, 2, 1, 2, 1]));
    }
    // With PMI-2, srun sets the process manager's variables itself.
    assert_eq!(detect(&format!("{SRUN} PMI_RANK=3 PMI_SIZE=4")).launcher, Launcher::Slurm);
}

#[test]
fn a_pod_of_kubeflow_is_a_host_of_its_own() {
    let worker = "RANK=1 WORLD_SIZE=3 MASTER_ADDR=job-master-0 MASTER_PORT=23456";
    let launch = detect(worker);
    assert_eq!((launch.launcher, numbers(&launch)), (Launcher::Kubeflow, [1, 3, 0, 1, 3]));
    assert!(launch.require_one_host().unwrap_err().to_string().contains("LOCAL_WORLD_SIZE"));
    // The master's pod may call itself localhost; the others must come to the same job all the same.
    let master = detect("RANK=0 WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=23456 KUBERNETES_SERVICE_HOST=10.0.0.1");
    assert_eq!(numbers(&master), [0, 3, 0, 1, 3]);
    assert_eq!(master.job().unwrap(), launch.job().unwrap());
}

#[test]
fn a_pod_with_the_names_for_torchrun_only_is_understood_too() {
    let pod = "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=a PET_MASTER_PORT=29500";
    let launch = detect(pod);
    assert_eq!((launch.launcher, numbers(&launch)), (Launcher::Kubeflow, [1, 2, 0, 1, 2]));
    assert_eq!((launch.address.as_deref(), launch.port), (Some("a"), Some(29500)));
    let message = refusal(None, &pod.replace("auto", "4"));
    assert!(message.contains("PET_NPROC_PER_NODE=4") && message.contains("torchrun"), "{message}");
    assert!(refusal(None, "PET_NNODES=2").contains("PET_NODE_RANK"));
    assert_eq!(detect(&format!("{pod} {TORCHRUN}")).launcher, Launcher::Torchrun);
}

#[test]
fn ranks_set_by_hand_are_on_this_host_unless_they_say_otherwise() {
    let by_hand = |more: &str| numbers(&detect(&format!("RANK=2 WORLD_SIZE=4 MASTER_PORT=29500 {more}")));
    assert_eq!(by_hand(""), [2, 4, 2, 4, 1]);
    assert_eq!(by_hand("MASTER_ADDR=127.0.0.1"), [2, 4, 2, 4, 1]);
    assert_eq!(by_hand("LOCAL_RANK=2"), [2, 4, 2, 4, 1]);
    assert_eq!(by_hand("LOCAL_WORLD_SIZE=4"), [2, 4, 2, 4, 1]);
    assert_eq!(by_hand("LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a"), [2, 4, 0, 2, 2]);
    assert_eq!(detect("RANK=0 WORLD_SIZE=1").launcher, Launcher::Plain);
}

#[test]
fn names_of_jobs_are_harmless_and_differ_where_their_parts_do() {
    let named = |name: &str| {
        let lookup = |wanted: &str| (wanted == "BMTRAIN_JOB").then(|| name.to_owned());
        Launch::detect(None, &lookup).unwrap().job().unwrap().to_owned()
    };
    assert_eq!(named("run-7.b"), "run-7.b");
    let hostile = ["../../etc/x", "a b", "a/b", "a_b", &"x".repeat(500), &"x".repeat(501)];
    let names: Vec<String> = hostile.iter().map(|name| named(name)).collect();
    for (index, name) in names.iter().enumerate() {
        assert!(name.len() <= 80 && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)), "{name}");
        assert!(!name.contains('/') && !names[..index].contains(name), "{names:?}");
    }
}

#[test]
fn spaces_around_values_do_not_count() {
    let spaced = [("RANK", " 1"), ("WORLD_SIZE", "2 "), ("MASTER_PORT", " 29500\t"), ("BMTRAIN_JOB", " first run ")];
    let lookup = |wanted: &str| spaced.iter().find(|(name, _)| *name == wanted).map(|(_, text)| (*text).to_owned());
    let launch = Launch::detect(None, &lookup).unwrap();
    assert_eq!((numbers(&launch), launch.port), ([1, 2, 1, 2, 1], Some(29500)));
    let plain = Launch::detect(None, &|name| (name == "BMTRAIN_JOB").then(|| "first run".to_owned())).unwrap();
    assert_eq!(launch.job().unwrap(), plain.job().unwrap());
}

/// Task 4 of `blaunch` in a job of LSF with two slots on each of two hosts.
const BLAUNCH: &str = "LSB_JOBID=812 LSB_JOBINDEX=0 LSF_PM_TASKID=4 LSB_DJOB_NUMPROC=4";

/// [`BLAUNCH`] with hosts, whose names and slots are separated by spaces.
fn blaunch(task: &str, hosts: &str) -> bmtrain_dist::Result<Launch> {
    let mut variables = variables(&BLAUNCH.replace("TASKID=4", &format!("TASKID={task}")));
    variables.insert("LSB_MCPU_HOSTS".into(), hosts.into());
    Launch::detect(None, &|name| variables.get(name).cloned())
}

#[test]
fn tasks_of_blaunch_are_numbered_from_one_in_the_order_of_the_hosts_slots() {
    let launch = blaunch("4", "n1 2 n2 2").unwrap();
    assert_eq!((launch.launcher, numbers(&launch)), (Launcher::Lsf, [3, 4, 1, 2, 2]));
    // (812 * 31) mod 20000 = 5172
    assert_eq!((launch.address.as_deref(), launch.port), (Some("n1"), Some(25_172)));
    assert_eq!(launch.job().unwrap(), "lsf-812-0");
    assert_eq!(numbers(&blaunch("1", "n1 3 n2 1").unwrap()), [0, 4, 0, 3, 2]);
    assert_eq!(numbers(&blaunch("4", "n1 3 n2 1").unwrap()), [3, 4, 0, 1, 2]);
    assert_eq!(numbers(&blaunch("2", "n1 2").unwrap()), [1, 2, 1, 2, 1]);
    for (task, hosts, place) in
        [("5", "n1 2 n2 2", "LSF_PM_TASKID=5"), ("0", "n1 2", "LSF_PM_TASKID=0"), ("1", "n1", "LSB_MCPU_HOSTS=n1")]
    {
        let message = blaunch(task, hosts).unwrap_err().to_string();
        assert!(message.contains(place), "{message}");
    }
    assert!(refusal(None, BLAUNCH).contains("LSB_MCPU_HOSTS is missing"));
    // The script of bsub, and mpirun, which starts its daemons with blaunch.
    assert_eq!(detect("LSB_JOBID=812").launcher, Launcher::Alone);
    assert_eq!(detect(&format!("{OPEN_MPI} {BLAUNCH}")).launcher, Launcher::OpenMpi);
}

#[test]
fn a_pod_of_an_indexed_job_is_a_rank_on_a_host_of_its_own() {
    let pod = "JOB_COMPLETION_INDEX=1 WORLD_SIZE=2 MASTER_ADDR=train-0.train MASTER_PORT=29500
        KUBERNETES_SERVICE_HOST=10.0.0.1";
    let launch = detect(pod);
    assert_eq!((launch.launcher, numbers(&launch)), (Launcher::Kubernetes, [1, 2, 0, 1, 2]));
    assert_eq!(launch.job().unwrap(), "kubernetes-train-0.train-29500");
    let options = launch.store([0; 32]).unwrap();
    assert_eq!((options.host.as_str(), options.port, options.bind), ("train-0.train", 29500, None));
    let message = refusal(None, &pod.replace("INDEX=1", "INDEX=2"));
    assert!(message.contains("JOB_COMPLETION_INDEX=2"), "{message}");
    // Pods that do not work together, and a pod whose torchrun has started the ranks.
    assert_eq!(detect("JOB_COMPLETION_INDEX=1").launcher, Launcher::Alone);
    assert_eq!(detect(&format!("{TORCHRUN} JOB_COMPLETION_INDEX=1")).launcher, Launcher::Torchrun);
}

#[test]
fn cores_are_divided_evenly_and_every_rank_gets_one() {
    let cases = [(16, 4, 4), (16, 5, 3), (2, 2, 1), (2, 8, 1), (0, 1, 1), (8, 0, 8)];
    for (cores, ranks, expected) in cases {
        assert_eq!(threads_per_rank(cores, ranks), expected, "{cores} cores, {ranks} ranks");
    }
}
