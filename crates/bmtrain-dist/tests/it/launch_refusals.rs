//! Variables of launchers that are incomplete or contradict each other.

use crate::launch::{MPICH, OPEN_MPI, SRUN, TORCHRUN, detect, detect_with, numbers, refusal};
use bmtrain_dist::launch::Launch;
use std::collections::BTreeMap;

#[test]
fn half_set_variables_are_refused_by_name() {
    for (text, missing) in [
        ("RANK=0", "WORLD_SIZE"),
        ("WORLD_SIZE=2", "RANK"),
        ("LOCAL_RANK=0", "RANK"),
        ("RANK=2 WORLD_SIZE=4 LOCAL_RANK=0", "LOCAL_WORLD_SIZE"),
        ("RANK=2 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2", "LOCAL_RANK"),
        ("TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK"),
        ("PMI_RANK=0 PMI_SIZE=2", "MPI_LOCALRANKID"),
        ("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID"),
        ("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0", "SLURM_NTASKS"),
    ] {
        let message = refusal(None, text);
        assert!(message.contains(&format!("launch: {missing} is missing")), "{text}: {message}");
    }
    assert!(refusal(None, "RANK= WORLD_SIZE=2").contains("RANK is missing"));
}

#[test]
fn numbers_that_contradict_each_other_are_refused_by_name() {
    for (text, place) in [
        ("RANK=4 WORLD_SIZE=4", "RANK=4"),
        ("RANK=0 WORLD_SIZE=0", "WORLD_SIZE=0"),
        ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=4"),
        ("RANK=0 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_WORLD_SIZE=2", "LOCAL_RANK=3"),
        ("RANK=-1 WORLD_SIZE=4", "RANK=-1"),
        ("RANK=0x1 WORLD_SIZE=4", "RANK=0x1"),
        ("RANK=1.0 WORLD_SIZE=4", "RANK=1.0"),
        ("RANK=0 WORLD_SIZE=99999999999999999999999", "WORLD_SIZE=9"),
        ("RANK=0 WORLD_SIZE=1000000", "WORLD_SIZE=1000000"),
        ("RANK=0 WORLD_SIZE=2 MASTER_PORT=0", "MASTER_PORT=0"),
        ("RANK=0 WORLD_SIZE=2 MASTER_PORT=70000", "MASTER_PORT=70000"),
        ("BMTRAIN_STORE_PORT=http", "BMTRAIN_STORE_PORT=http"),
        ("BMTRAIN_STORE_BIND=here", "BMTRAIN_STORE_BIND=here"),
    ] {
        let message = refusal(None, text);
        assert!(message.contains(place), "{text}: {message}");
    }
    for (from, to, place) in [
        ("SLURM_PROCID=3", "SLURM_PROCID=4", "SLURM_PROCID=4"),
        ("SLURM_LOCALID=3", "SLURM_LOCALID=7", "SLURM_LOCALID=7"),
        ("STEP_TASKS_PER_NODE=4", "STEP_TASKS_PER_NODE=3", "SLURM_STEP_TASKS_PER_NODE=3"),
        ("STEP_TASKS_PER_NODE=4", "STEP_TASKS_PER_NODE=4(x", "SLURM_STEP_TASKS_PER_NODE=4(x"),
        ("SLURM_NODEID=0", "SLURM_NODEID=1", "SLURM_NODEID=1"),
        ("STEP_NODELIST=slurmbox", "STEP_NODELIST=n[2-1]", "SLURM_STEP_NODELIST=n[2-1]"),
    ] {
        let message = refusal(None, &SRUN.replace(from, to));
        assert!(message.contains(place), "{message}");
    }
}

#[test]
fn refusals_read_as_the_documents_show_them() {
    assert_eq!(
        refusal(None, "RANK=4 WORLD_SIZE=4"),
        "launch: RANK=4: with WORLD_SIZE=4 the numbers go from 0 to 3; correct RANK or unset it, \
         and look at who sets it"
    );
    let two_hosts = detect(&format!("{TORCHRUN} GROUP_WORLD_SIZE=2 WORLD_SIZE=4"));
    let build = if cfg!(feature = "mpi") { "" } else { " and a build with `--features mpi`" };
    assert_eq!(
        two_hosts.require_one_host().unwrap_err().to_string(),
        format!(
            "launch: several hosts: torchrun started 4 ranks on 2 hosts; with CUDA devices leave the choice of how \
             they communicate to the program; on processors they need mpirun{build}; or start all ranks on one host"
        )
    );
}

#[test]
fn numbers_beside_a_launchers_own_have_to_agree() {
    detect(&format!("{OPEN_MPI} RANK=1 WORLD_SIZE=2 LOCAL_RANK=1"));
    let message = refusal(None, &format!("{OPEN_MPI} RANK=0 WORLD_SIZE=2"));
    assert!(message.contains("RANK=0") && message.contains("mpirun specifies 1"), "{message}");
    assert!(refusal(None, &format!("{SRUN} WORLD_SIZE=8")).contains("WORLD_SIZE=8"));
}

#[test]
fn threads_inside_several_processes_are_refused() {
    for launcher in [TORCHRUN, OPEN_MPI, MPICH, SRUN, "RANK=0 WORLD_SIZE=2"] {
        let message = refusal(Some(4), launcher);
        assert!(message.contains("--ranks 4") && message.contains("drop --ranks"), "{message}");
    }
    // A launcher that started one process is only in the way of nothing.
    let one = SRUN.replace("=4", "=1").replace("ID=3", "ID=0");
    assert_eq!(numbers(&detect_with(Some(4), &one).unwrap()), [0, 4, 0, 4, 1]);
    assert!(refusal(Some(0), "").contains("--ranks 0"));
    assert!(refusal(Some(2), "RANK=1").contains("WORLD_SIZE is missing"));
}

#[test]
fn values_in_messages_cannot_break_the_line() {
    let variables = BTreeMap::from([("RANK", "1\n\u{1b}[31mred"), ("WORLD_SIZE", "2")]);
    let error = Launch::detect(None, &|name| variables.get(name).map(|text| (*text).to_owned())).unwrap_err();
    let message = error.to_string();
    assert!(!message.contains('\n') && !message.contains('\u{1b}'), "{message:?}");
}
