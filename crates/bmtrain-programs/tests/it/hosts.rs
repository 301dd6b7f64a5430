//! The finetune program on several hosts: namespaces of this machine, each with a network, shared memory and a name of
//! its own, and emulated devices with an emulated NCCL between them. Everything here is emulated but TCP.

mod failures;

use crate::fixture::{Fixture, Outcome, into_outcome, program};
use cuda_emulator::{Driver, directory_of, skipped};
use model_center::run::deterministic_part;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Hosts have addresses of their own network, so that tests do not meet; but each is eight processes on two cores.
static ALONE: Mutex<()> = Mutex::new(());
/// No start takes so long on a busy machine unless it hangs.
const MAX_TIME: Duration = Duration::from_secs(120);
/// Addresses of the two hosts.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// A process in namespaces of its own, which it keeps until it is dropped.
struct Host(Child);

impl Host {
    /// None where namespaces are not permitted.
    fn start(name: &str) -> Option<Self> {
        let script =
            "hostname \"$0\" && mount -t tmpfs none /dev/shm && ip link set lo up && echo ready && exec sleep 600";
        let child = Command::new("unshare")
            .args(["--net", "--mount", "--uts", "sh", "-c", script, name])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut host = Host(child.ok()?);
        let mut line = String::new();
        BufReader::new(host.0.stdout.take()?).read_line(&mut line).ok()?;
        (line.trim() == "ready").then_some(host)
    }

    /// A command that runs inside.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.0.id().to_string(), "--net", "--mount", "--uts", program]);
        command
    }

    fn is_able_to(&self, words: &[&str]) -> bool {
        self.command(words[0]).args(&words[1..]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two hosts with a cable between them; none, and a report, where this machine does not permit that.
fn two_hosts(test: &str) -> Option<[Host; 2]> {
    let hosts = || {
        let hosts = [Host::start("node-a")?, Host::start("node-b")?];
        let [one, other] = hosts.each_ref().map(|host| host.0.id().to_string());
        let cable = ["link", "add", "eth0", "netns", &one, "type", "veth", "peer", "name", "eth0", "netns", &other];
        let is_there = Command::new("ip").args(cable).stderr(Stdio::null()).status().ok()?.success();
        let is_up = |(host, address): (&Host, &str)| {
            host.is_able_to(&["ip", "address", "add", &format!("{address}/24"), "dev", "eth0"])
                && host.is_able_to(&["ip", "link", "set", "eth0", "up"])
        };
        (is_there && hosts.iter().zip(ADDRESSES).all(is_up)).then_some(hosts)
    };
    let hosts = hosts();
    if hosts.is_none() {
        skipped(test, "hosts need namespaces, which root may make here, and unshare, nsenter and ip (iproute2)");
    }
    hosts
}

/// Where the emulated libraries are; none, and a report, without g++.
fn libraries(test: &str) -> Option<&'static Path> {
    let directory = directory_of(Driver::Emulated);
    if directory.is_none() {
        skipped(test, "there is no g++ to build the CUDA emulator with");
    }
    directory.map(|directory| directory.as_path())
}

/// A rank of four that runs finetune; see [`start_program`].
fn start(fixture: &Fixture, libraries: &Path, hosts: &[Host], rank: usize, arguments: &[&str]) -> Child {
    let command = [&[program("finetune"), "--recipe", "recipe.toml"], arguments].concat();
    start_program(fixture, libraries, hosts, rank, &command)
}

/// A rank of four on emulated devices, with the variables of torchrun on `hosts.len()` hosts, or on this one.
fn start_program(fixture: &Fixture, libraries: &Path, hosts: &[Host], rank: usize, program: &[&str]) -> Child {
    let nodes = hosts.len().max(1);
    let local_size = 4 / nodes;
    let (node, local_rank) = (rank / local_size, rank % local_size);
    let mut command = match hosts.get(node) {
        Some(host) => host.command("sh"),
        None => Command::new("sh"),
    };
    // Entering a mount namespace changes the directory.
    let script = "cd \"$0\" && exec \"$@\"";
    command.args(["-c", script]).arg(fixture.path("")).args(program);
    let numbers = [
        ("RANK", rank),
        ("WORLD_SIZE", 4),
        ("LOCAL_RANK", local_rank),
        ("LOCAL_WORLD_SIZE", local_size),
        ("GROUP_RANK", node),
        ("GROUP_WORLD_SIZE", nodes),
        ("MASTER_PORT", 29_400),
        ("TORCHELASTIC_RESTART_COUNT", 0),
        // Devices of two hosts are not the same ones.
        ("EMULATED_CUDA_DEVICES", local_size),
        ("EMULATED_CUDA_FIRST", node * local_size),
        ("EMULATED_CUDA_SEED", rank + 1),
    ];
    command.envs(numbers.map(|(name, number)| (name, number.to_string())));
    command.env("MASTER_ADDR", if hosts.is_empty() { "127.0.0.1" } else { ADDRESSES[0] });
    command.env("TORCHELASTIC_RUN_ID", format!("hosts-{}", std::process::id()));
    command.env("TORCHELASTIC_USE_AGENT_STORE", "True");
    command.env("LD_LIBRARY_PATH", libraries).env("BMTRAIN_CUDA_KERNELS", libraries);
    std::fs::create_dir_all(fixture.path("nccl")).unwrap();
    command.env("EMULATED_NCCL_DIRECTORY", fixture.path("nccl"));
    command.env_remove("RUST_LOG").env("RUST_BACKTRACE", "1").env("HF_HOME", fixture.path("hf"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// How processes end; those that hang are killed.
fn ends(mut children: Vec<Child>) -> Vec<Outcome> {
    let begin = Instant::now();
    for child in &mut children {
        while child.try_wait().unwrap().is_none() {
            if begin.elapsed() > MAX_TIME {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    children.into_iter().map(|child| into_outcome(child.wait_with_output().unwrap())).collect()
}

/// Weights and all of the log that does not depend on clock and machine.
fn result(fixture: &Fixture, dir: &str) -> (Vec<u8>, String) {
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let log: String = log.lines().map(|line| deterministic_part(line) + "\n").collect();
    (fixture.bytes(&format!("{dir}/model/model.safetensors")), log)
}

const SETS: [&str; 6] =
    ["--device", "cuda", "train.steps=2", "train.micro_batch_size=1", "parallel.zero=3", "eval.batch_size=2"];

#[test]
fn two_hosts_give_the_bytes_of_one() {
    let test = "two_hosts_give_the_bytes_of_one";
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (Some(libraries), Some(hosts)) = (libraries(test), two_hosts(test)) else { return };
    let fixture = Fixture::new();
    let run = |hosts: &[Host], dir: &str, more: &[&str]| {
        let dir = format!("output.dir={dir}");
        let arguments = [&SETS[..], &[dir.as_str()], more].concat();
        let outcomes = ends((0..4).map(|rank| start(&fixture, libraries, hosts, rank, &arguments)).collect());
        assert!(outcomes.iter().all(|outcome| outcome.code == 0), "{outcomes:?}");
        outcomes
    };
    // Tensor-parallel ranks inside each host, ZeRO-3 between the hosts.
    let tensor = ["parallel.tensor=2", "parallel.sequence=true"];
    run(&[], "one-tensor", &tensor);
    run(&hosts, "two-tensor", &tensor);
    assert!(result(&fixture, "one-tensor") == result(&fixture, "two-tensor"), "two hosts differ from one");
    run(&[], "one", &[]);
    let outcomes = run(&hosts, "two", &[]);
    assert!(result(&fixture, "one") == result(&fixture, "two"), "two hosts differ from one");
    assert!(result(&fixture, "one") != result(&fixture, "one-tensor"), "nothing was tensor-parallel");
    // Rank 0 reports where each rank is.
    for (rank, place) in
        ["node-a, local rank 0", "node-a, local rank 1", "node-b, local rank 0", "node-b, local rank 1"]
            .into_iter()
            .enumerate()
    {
        let line = format!("rank {rank} of 4: {place} of 2, cuda:{} (emulated device), processors", rank % 2);
        assert!(outcomes[0].stderr.contains(&line), "{line}: {}", outcomes[0].stderr);
    }
    // No shared memory is left.
    for (host, address) in hosts.iter().zip(ADDRESSES) {
        assert!(!host.is_able_to(&["sh", "-c", "ls /dev/shm | grep -q ."]), "{address} has shared memory left");
    }
    assert_eq!(std::fs::read_dir(fixture.path("nccl")).unwrap().count(), 0, "files of the emulated NCCL are left");
}

#[test]
fn collectives_between_devices_of_two_hosts_are_measured() {
    let test = "collectives_between_devices_of_two_hosts_are_measured";
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (Some(libraries), Some(hosts)) = (libraries(test), two_hosts(test)) else { return };
    let fixture = Fixture::new();
    let run = |arguments: &[&str]| {
        let bench = [program("bench"), "collectives", "--size", "4KiB", "--repeat", "2"];
        let program = [&bench[..], arguments].concat();
        ends((0..4).map(|rank| start_program(&fixture, libraries, &hosts, rank, &program)).collect())
    };
    // Neighbours, and ranks of two stages on two hosts.
    for group in [&["--group", "2"][..], &["--group", "pipeline", "--pipeline", "2", "--tensor", "2"]] {
        let measured = run(&[&["--device", "cuda"], group].concat());
        assert!(measured.iter().all(|outcome| outcome.code == 0), "{measured:?}");
        let lines: Vec<&str> = measured[0].stdout.lines().collect();
        assert!(lines[0].starts_with("4 ranks, the first on cuda:0 (emulated device), f32"), "{}", lines[0]);
        assert_eq!(lines.len(), 2 + 6, "six operations: {lines:?}");
        assert!(measured[1..].iter().all(|outcome| outcome.stdout.is_empty()), "one rank speaks");
    }
    for outcome in run(&["--device", "cpu"]) {
        assert_eq!(outcome.code, 2, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("the ranks compute on processors"), "{}", outcome.stderr);
    }
}
