//! The number of ranks that a command starts, by its launcher and the variables of its script.

use super::shell::Command;

/// Options of all ranks: of `mpirun`, `srun` and `accelerate launch`.
const OF_ALL: [&str; 4] = ["np", "n", "ntasks", "num-processes"];
/// Options of the ranks of a host: of torchrun and DeepSpeed's launcher.
const OF_HOST: [&str; 2] = ["nproc-per-node", "num-gpus"];
/// Options of the hosts.
const OF_HOSTS: [&str; 3] = ["nnodes", "num-nodes", "nodes"];

/// Ranks of a command; `None` where the launcher does not tell, or by a variable that is not set.
pub(super) fn ranks_of(command: &Command) -> Option<u64> {
    let option = |names: &[&str]| {
        let mut words = command.launcher.iter();
        while let Some(word) = words.next() {
            let Some(bare) = word.strip_prefix('-') else { continue };
            let bare = bare.trim_start_matches('-').replace('_', "-");
            let (name, joined) =
                bare.split_once('=').map_or((bare.as_str(), None), |(name, value)| (name, Some(value)));
            if names.contains(&name) {
                return joined.map(str::to_owned).or_else(|| words.next().cloned());
            }
        }
        None
    };
    let variable = |name: &str| command.variables.get(name).cloned();
    let number = |text: String| text.parse::<u64>().ok().filter(|count| *count >= 1);
    let on_host = option(&OF_HOST).or_else(|| variable("GPUS_PER_NODE")).or_else(|| variable("NUM_GPUS_PER_WORKER"));
    let hosts = option(&OF_HOSTS).or_else(|| variable("NNODES")).or_else(|| variable("NUM_WORKERS"));
    match (on_host.and_then(number), hosts.map(number)) {
        (Some(on_host), None) => Some(on_host),
        (Some(on_host), Some(Some(hosts))) => on_host.checked_mul(hosts),
        // A number that is not known, such as $NNODES.
        (Some(_), Some(None)) => None,
        (None, _) => option(&OF_ALL).and_then(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_all_hosts_whatever_the_launcher() {
        for (command, ranks) in [
            ("torchrun --nproc_per_node=4 train.py --x 1", Some(4)),
            ("torchrun --nnodes 2 --nproc-per-node 4 train.py --x 1", Some(8)),
            ("torchrun --nnodes=$N --nproc_per_node=4 train.py --x 1", None),
            ("deepspeed --num_gpus 4 --num_nodes 3 train.py --x 1", Some(12)),
            ("deepspeed train.py --x 1", None),
            ("mpirun -np 6 python train.py --x 1", Some(6)),
            ("accelerate launch --num_processes 16 --num_machines 2 train.py --x 1", Some(16)),
            ("GPUS_PER_NODE=8\nNNODES=2\npython train.py --x 1", Some(16)),
            ("python train.py --nnodes 7", None),
        ] {
            assert_eq!(ranks_of(&Command::parse(command).unwrap()), ranks, "{command}");
        }
    }
}
