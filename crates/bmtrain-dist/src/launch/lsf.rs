//! Tasks of LSF's `blaunch`: the number of a task, and the hosts of the job with their slots.
//!
//! `blaunch` without hosts starts a task on each slot of the job, in the order of `LSB_MCPU_HOSTS`, and numbers them
//! from 1 in `LSF_PM_TASKID`. Asked by `launchers`.

use super::slurm::{MAX_RANKS, port_of_step};
use super::variables::{Variables, wrong};
use super::{Launch, Launcher};
use crate::error::{Error, Result};

const TASK: &str = "LSF_PM_TASKID";
const SLOTS: &str = "LSB_MCPU_HOSTS";

/// A task of `blaunch`; the script of `bsub` alone is none.
pub(super) fn task(variables: &Variables<'_>) -> Result<Option<Launch>> {
    if !variables.has(TASK) || !variables.has("LSB_JOBID") {
        return Ok(None);
    }
    let number = variables.need(TASK, "LSB_JOBID", "blaunch")?;
    let Some(text) = variables.text(SLOTS) else {
        let fix = format!("start the program with blaunch inside bsub, or unset {TASK}");
        return Err(Error::launch(format!("{SLOTS} is missing"), format!("LSF sets it together with {TASK}"), fix));
    };
    let hosts = slots(&text).map_err(|reason| wrong(SLOTS, &text, reason))?;
    let world: usize = hosts.iter().map(|(_, slots)| slots).sum();
    let Some(rank) = number.checked_sub(1).filter(|rank| *rank < world) else {
        let reason = format!("{SLOTS} has {world} slots, and their tasks go from 1 to {world}");
        return Err(wrong(TASK, &number.to_string(), reason));
    };
    let mut local_rank = rank;
    let mut local_size = world;
    for (_, slots) in &hosts {
        local_size = *slots;
        if local_rank < *slots {
            break;
        }
        local_rank -= slots;
    }
    let first = hosts.first().map(|(host, _)| host.clone());
    let id = |name: &str| variables.text(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let (job, index) = (id("LSB_JOBID"), id("LSB_JOBINDEX"));
    let restart = variables.text("LSB_RESTART").unwrap_or_default();
    Ok(Some(Launch {
        launcher: Launcher::Lsf,
        rank,
        world,
        local_rank,
        local_size,
        nodes: hosts.len(),
        address: variables.text("MASTER_ADDR").or(first),
        port: variables.port("MASTER_PORT")?.or(Some(port_of_step(job, index))),
        job: Launcher::Lsf.job([job.to_string(), index.to_string(), restart]),
        ..Launch::alone()
    }))
}

/// `a 2 b 4` is host a with 2 slots and host b with 4. Slots of a host that is named again are its own too.
fn slots(text: &str) -> Result<Vec<(String, usize)>, String> {
    let mut hosts: Vec<(String, usize)> = Vec::new();
    let (mut words, mut total) = (text.split_whitespace(), 0_usize);
    while let Some(host) = words.next() {
        let count = words.next().ok_or_else(|| format!("host {host} has no number of slots after it"))?;
        let count = count.parse::<usize>().ok().filter(|count| (1..=MAX_RANKS).contains(count));
        let count = count.ok_or_else(|| format!("the slots of {host} are not a number from 1"))?;
        total += count;
        if total > MAX_RANKS {
            return Err(format!("more than {MAX_RANKS} slots"));
        }
        match hosts.iter().position(|(known, _)| known == host) {
            None => hosts.push((host.to_owned(), count)),
            Some(place) if place + 1 == hosts.len() => hosts[place].1 += count,
            Some(_) => return Err(format!("host {host} appears in two places, so that its local ranks are not known")),
        }
    }
    if hosts.is_empty() { Err("there is no host".to_owned()) } else { Ok(hosts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_their_slots() {
        let of = |text: &str| slots(text).map(|hosts| hosts.into_iter().map(|(_, slots)| slots).collect::<Vec<_>>());
        assert_eq!(of("a 2 b 4"), Ok(vec![2, 4]));
        assert_eq!(of("a 1 a 3  b 1"), Ok(vec![4, 1]));
        for text in ["", "a", "a 0", "a x", "a 2 b", "a 2 b 2 a 2", "a 70000", "a -1"] {
            assert!(of(text).is_err(), "{text}");
        }
        assert!(of(&"h 60000 ".repeat(3)).is_err());
    }
}
