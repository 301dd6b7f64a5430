//! What others left in the cache, on purpose or not: links, pipes, directories, halves; and a command that is ended
//! half way.

use crate::server::{COMMIT, Client, Habits, Server, WEIGHTS, etag_of, server, weights};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn blob(client: &Client) -> PathBuf {
    client.path("blobs").join(etag_of(WEIGHTS, &weights(300_000)))
}

fn partial(client: &Client) -> PathBuf {
    blob(client).with_extension("incomplete")
}

fn pipe(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
}

/// A cache in which something was put before, beside a file that must stay as it is.
struct Prepared {
    client: Client,
    server: Server,
    victim: PathBuf,
}

impl Prepared {
    fn new() -> Self {
        let client = Client::new();
        let victim = client.directory.path().join("victim");
        // As long as the weights, as a link to it would pretend.
        fs::write(&victim, vec![b'v'; 300_000]).unwrap();
        for name in ["blobs", "refs", &format!("snapshots/{COMMIT}")] {
            fs::create_dir_all(client.path(name)).unwrap();
        }
        fs::create_dir_all(client.cache().join(".locks/models--org--name")).unwrap();
        Prepared { client, server: server(Habits::default()), victim }
    }

    fn is_fetched(&self) {
        self.client.fetch(&self.server).unwrap();
        let directory = self.client.found(None).unwrap();
        assert_eq!(fs::read(directory.join(WEIGHTS)).unwrap(), weights(300_000));
        self.is_unharmed();
    }

    fn is_refused(&self, why: &str) {
        let text = self.client.refused(&self.server);
        assert!(text.contains(why) && text.contains("remove it"), "{text}");
        self.is_unharmed();
    }

    fn is_unharmed(&self) {
        assert!(fs::symlink_metadata(&self.victim).unwrap().is_file());
        assert_eq!(fs::read(&self.victim).unwrap(), vec![b'v'; 300_000]);
    }
}

#[test]
fn a_partial_file_that_is_a_link_or_a_pipe_is_not_written_through() {
    for plant in [
        |victim: &Path, partial: &Path| symlink(victim, partial).unwrap(),
        |_: &Path, partial: &Path| symlink("../../../nowhere", partial).unwrap(),
        |victim: &Path, partial: &Path| fs::hard_link(victim, partial).unwrap(),
        |_: &Path, partial: &Path| pipe(partial),
        |_: &Path, partial: &Path| fs::write(partial, vec![7; 300_001]).unwrap(),
    ] {
        let prepared = Prepared::new();
        plant(&prepared.victim, &partial(&prepared.client));
        prepared.is_fetched();
        assert!(!prepared.client.directory.path().join("nowhere").exists());
    }
    let prepared = Prepared::new();
    fs::create_dir(partial(&prepared.client)).unwrap();
    prepared.is_refused("a directory where the cache has a file");
}

#[test]
fn contents_that_are_a_link_are_replaced_and_not_followed() {
    let prepared = Prepared::new();
    symlink(&prepared.victim, blob(&prepared.client)).unwrap();
    prepared.is_fetched();
    assert!(fs::symlink_metadata(blob(&prepared.client)).unwrap().is_file());
    let prepared = Prepared::new();
    pipe(&blob(&prepared.client));
    prepared.is_fetched();
    let prepared = Prepared::new();
    fs::create_dir(blob(&prepared.client)).unwrap();
    prepared.is_refused("a directory where the cache has a file");
}

#[test]
fn directories_of_a_model_are_no_links() {
    let snapshot = format!("models--org--name/snapshots/{COMMIT}");
    for name in [
        "models--org--name/blobs",
        "models--org--name/snapshots",
        &snapshot,
        "models--org--name/refs",
        ".locks",
        ".locks/models--org--name",
    ] {
        let prepared = Prepared::new();
        let (elsewhere, place) =
            (prepared.client.directory.path().join("elsewhere"), prepared.client.cache().join(name));
        fs::create_dir(&elsewhere).unwrap();
        fs::remove_dir_all(&place).unwrap();
        symlink(&elsewhere, &place).unwrap();
        prepared.is_refused("a link or a file where the cache has a directory");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "{name}");
    }
    // The model as a whole may be moved to another disk.
    let prepared = Prepared::new();
    let (elsewhere, place) = (prepared.client.directory.path().join("elsewhere"), prepared.client.path(""));
    fs::rename(&place, &elsewhere).unwrap();
    symlink(&elsewhere, prepared.client.cache().join("models--org--name")).unwrap();
    prepared.is_fetched();
}

#[test]
fn references_and_entries_of_a_snapshot_are_replaced_and_not_followed() {
    let prepared = Prepared::new();
    symlink(&prepared.victim, prepared.client.path("refs/main")).unwrap();
    let entry = prepared.client.path(&format!("snapshots/{COMMIT}/config.json"));
    symlink(&prepared.victim, &entry).unwrap();
    fs::write(prepared.client.path(&format!("snapshots/{COMMIT}/vocab.txt")), "another").unwrap();
    prepared.is_fetched();
    assert!(fs::symlink_metadata(prepared.client.path("refs/main")).unwrap().is_file());
    assert_eq!(fs::read_to_string(entry).unwrap(), "{}");
    assert_eq!(fs::read_to_string(prepared.client.path(&format!("snapshots/{COMMIT}/vocab.txt"))).unwrap(), "[PAD]\n");
    let prepared = Prepared::new();
    fs::create_dir(prepared.client.path(&format!("snapshots/{COMMIT}/config.json"))).unwrap();
    prepared.is_refused("a directory where the cache has a link");
    let prepared = Prepared::new();
    fs::create_dir(prepared.client.path("refs/main")).unwrap();
    prepared.is_refused("a directory where the cache has the commit of a revision");
}

#[test]
fn a_lock_is_a_file() {
    for plant in [
        |_: &Path, lock: &Path| pipe(lock),
        |victim: &Path, lock: &Path| symlink(victim, lock).unwrap(),
        |_: &Path, lock: &Path| fs::create_dir(lock).unwrap(),
    ] {
        let prepared = Prepared::new();
        let locks = prepared.client.cache().join(".locks/models--org--name");
        plant(&prepared.victim, &locks.join(format!("{}.lock", etag_of("config.json", b"{}"))));
        prepared.is_refused("where the cache has a lock");
    }
}

#[test]
fn a_command_that_is_killed_leaves_nothing_that_passes_for_a_model() {
    let client = Client::new();
    // Half of the weights, and then nothing until the connection is closed.
    let server = Server::scripted(|asked, stream| {
        asked.is("GET", WEIGHTS).then(|| {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n")?;
            stream.write_all(&weights(150_000))?;
            stream.read(&mut [0; 1]).map(drop)
        })
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_bmtrain"));
    command.arg("fetch").env_clear().env("HF_HUB_CACHE", client.cache()).args([
        "org/name",
        "--endpoint",
        &server.address,
    ]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while fs::metadata(partial(&client)).map_or(0, |found| found.len()) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!blob(&client).exists() && !client.path("refs").exists() && client.found(None).is_err());
    server.change(|state| state.script = None);
    client.fetch(&server).unwrap();
    assert_eq!(fs::read(client.found(None).unwrap().join(WEIGHTS)).unwrap(), weights(300_000));
}

#[test]
fn a_disk_that_is_full_is_the_disks_fault_and_the_download_is_kept() {
    let (client, server) = (Client::new(), server(Habits::default()));
    // A limit of the length of files stands for it: in blocks of 512 bytes or of 1024, by the shell.
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "ulimit -f 200; exec \"$0\" fetch \"$@\"", env!("CARGO_BIN_EXE_bmtrain")]);
    shell.args(["org/name", "--endpoint", &server.address]).env_clear().env("HF_HUB_CACHE", client.cache());
    let output = shell.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("what has arrived is kept") && stderr.lines().count() < 10, "{stderr}");
    let kept = fs::metadata(partial(&client)).unwrap().len();
    assert!((1..300_000).contains(&kept), "{kept}");
    assert!(!client.path("refs").exists() && client.found(None).is_err());
    let output = client.program(&["org/name", "--endpoint", &server.address], &[]);
    assert!(output.status.success());
    let range = format!("range: bytes={kept}-\r\n");
    assert!(server.requests("GET").iter().any(|request| request.to_lowercase().contains(&range)));
    // Contents that are not what was announced are the server's fault.
    let harmful = crate::server::server(Habits { wrong_hash: true, ..Habits::default() });
    let output = Client::new().program(&["org/name", "--endpoint", &harmful.address], &[]);
    assert_eq!(output.status.code(), Some(3));
}
