//! The fetch program against a small server of its own: what arrives in the cache, what is gone on with, what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bmtrain_examples::fetch::{Request, fetch};
use model_center::hf::pretrained::{Places, Pretrained, RepoId, Revision};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use ureq::tls::RootCerts;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const WEIGHTS: &str = "model.safetensors";

/// What the server does besides answering.
#[derive(Debug, Clone, Default)]
struct Habits {
    /// Answer the list of files with this status, and this X-Error-Code.
    refuse: Option<(u16, &'static str)>,
    /// Break the first answer off after so many bytes.
    cut: Option<usize>,
    /// Break every answer off after so many bytes.
    always_cut: Option<usize>,
    /// Send all bytes whatever was asked for.
    ignores_ranges: bool,
    /// Announce another hash than that of the bytes.
    wrong_hash: bool,
    /// Announce a size that is off by so much.
    wrong_size: i64,
    /// Answer so many requests with 503 first.
    busy: usize,
    /// Answer the list of files with this text.
    listing: Option<String>,
    /// Send large files from this address, as the hub does.
    store: Option<String>,
    /// Send slowly.
    slow: bool,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    habits: Habits,
    /// The request line and headers of every request.
    requests: Vec<String>,
}

/// A hub on this machine, for one model called org/name.
struct Server {
    address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    fn new(files: &[(&str, &[u8])], habits: Habits) -> Self {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let state = Arc::new(Mutex::new(State { files, habits, requests: Vec::new() }));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::clone(&state);
        // Ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // A client that breaks off is part of the tests.
                thread::spawn(move || answer(stream, &state).ok());
            }
        });
        Server { address, state }
    }

    fn requests(&self, wanted: &str) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.requests.iter().filter(|request| request.starts_with(wanted)).cloned().collect()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        if reader.read_line(&mut request)? == 0 {
            return Ok(());
        }
    }
    let (files, habits) = {
        let mut state = state.lock().unwrap();
        state.requests.push(request.clone());
        let habits = state.habits.clone();
        state.habits.busy = state.habits.busy.saturating_sub(1);
        (state.files.clone(), habits)
    };
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let mut head = |status: &str, headers: &str, length: usize| {
        write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n")
    };
    if habits.busy > 0 {
        return head("503 Busy", "", 0);
    }
    if path.starts_with("/api/models/org/name/revision/") {
        if let Some((status, code)) = habits.refuse {
            return head(&format!("{status} No"), &format!("X-Error-Code: {code}\r\n"), 0);
        }
        let names: Vec<_> = files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
        let text = serde_json::json!({ "sha": COMMIT, "siblings": names }).to_string();
        let text = habits.listing.unwrap_or(text);
        head("200 OK", "", text.len())?;
        return stream.write_all(text.as_bytes());
    }
    let name = path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/")).or(path.strip_prefix("/store/"));
    let Some((name, bytes)) = name.and_then(|name| files.get_key_value(name)) else {
        return head("404 Not Found", "", 0);
    };
    let is_large = name.ends_with(".safetensors");
    let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let etag = match (is_large, habits.wrong_hash) {
        (true, true) => "0".repeat(64),
        (true, false) => hash,
        // Git's name for them; any 40 digits do.
        (false, _) => hash[..40].to_owned(),
    };
    let size = (bytes.len() as i64 + habits.wrong_size) as usize;
    if let Some(store) = habits.store.filter(|_| is_large && !path.starts_with("/store/")) {
        let about = format!("X-Linked-Etag: \"{etag}\"\r\nX-Linked-Size: {size}\r\nETag: \"other\"\r\n");
        return head("302 Found", &format!("{about}Location: {store}/store/{name}?key=secret\r\n"), 0);
    }
    let range = request.lines().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
    let start: usize =
        range.filter(|_| !habits.ignores_ranges).map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
    let headers = format!("ETag: W/\"{etag}\"\r\nX-Repo-Commit: {COMMIT}\r\n");
    if method == "HEAD" {
        return head("200 OK", &headers, size);
    }
    let body = &bytes[start..];
    match start {
        0 => head("200 OK", &headers, body.len())?,
        _ => {
            let range = format!("Content-Range: bytes {start}-{}/{}\r\n", bytes.len() - 1, bytes.len());
            head("206 Partial Content", &format!("{headers}{range}"), body.len())?;
        }
    }
    let cut = if is_large { habits.cut.or(habits.always_cut) } else { None };
    if is_large && habits.cut.is_some() {
        state.lock().unwrap().habits.cut = None;
    }
    if habits.slow && is_large {
        for part in body.chunks(body.len().div_ceil(10).max(1)) {
            stream.write_all(part)?;
            thread::sleep(Duration::from_millis(50));
        }
        return Ok(());
    }
    stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())])
}

/// A cache, and what is asked of a server.
struct Client {
    folder: TempDir,
}

impl Client {
    fn new() -> Self {
        Client { folder: tempfile::tempdir().unwrap() }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("hub")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.cache().join("models--org--name").join(name)
    }

    fn request(&self, server: &Server) -> Request {
        Request {
            id: RepoId::parse("org/name").unwrap(),
            revision: Revision::default(),
            cache: self.cache(),
            endpoint: server.address.clone(),
            token: None,
            proxy: None,
            roots: RootCerts::WebPki,
            pause: Duration::from_millis(1),
        }
    }

    fn fetch(&self, server: &Server) -> model_center::Result<String> {
        fetch(&self.request(server))
    }

    fn refused(&self, server: &Server) -> String {
        let text = self.fetch(server).unwrap_err().to_string();
        assert!(text.lines().count() == 3 && text.contains("  fix: "), "{text}");
        text
    }

    fn found(&self, revision: Option<&str>) -> model_center::Result<PathBuf> {
        Pretrained::resolve("org/name", revision, &Places { hub: Some(self.cache()), ..Places::default() })
    }

    /// The program itself, in an environment of its own.
    fn program(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fetch"));
        command.env_clear().env("HF_HUB_CACHE", self.cache()).envs(variables.iter().copied());
        command.args(arguments).output().unwrap()
    }

    /// Names below the blobs that are none of whole contents.
    fn partial(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("blobs")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some()).collect()
    }
}

/// Bytes without a pattern that a shift would keep.
fn weights(length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u8).collect()
}

fn server(habits: Habits) -> Server {
    let bytes = weights(300_000);
    let files: [(&str, &[u8]); 5] = [
        ("config.json", b"{}"),
        ("vocab.txt", b"[PAD]\n"),
        ("README.md", b"x"),
        ("pytorch_model.bin", b"pickle"),
        (WEIGHTS, &bytes),
    ];
    Server::new(&files, habits)
}

#[test]
fn a_model_arrives_in_the_layout_that_is_read() {
    let (client, server) = (Client::new(), server(Habits::default()));
    assert!(client.found(None).is_err());
    assert_eq!(client.fetch(&server).unwrap(), COMMIT);
    let folder = client.found(None).unwrap();
    assert_eq!(folder, client.path(&format!("snapshots/{COMMIT}")));
    assert_eq!(client.found(Some(COMMIT)).unwrap(), folder);
    let mut names: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["config.json", WEIGHTS, "vocab.txt"]);
    let link = fs::read_link(folder.join(WEIGHTS)).unwrap();
    assert!(link.starts_with("../../blobs") && link.file_name().unwrap().len() == 64, "{link:?}");
    assert_eq!(fs::read(folder.join(WEIGHTS)).unwrap(), weights(300_000));
    assert_eq!(fs::read_to_string(client.path("refs/main")).unwrap(), COMMIT);
    assert_eq!(client.partial(), Vec::<PathBuf>::new());
    // Once more: nothing is sent again.
    let before = server.requests("GET /org").len();
    client.fetch(&server).unwrap();
    assert_eq!(server.requests("GET /org").len(), before);
}

#[test]
fn tags_and_commits_are_fetched_and_only_names_become_references() {
    let (client, server) = (Client::new(), server(Habits::default()));
    let of = |text: &str| Request { revision: Revision::parse(text).unwrap(), ..client.request(&server) };
    fetch(&of(COMMIT)).unwrap();
    assert!(!client.path("refs").exists());
    fetch(&of("refs/pr/1")).unwrap();
    assert_eq!(server.requests("GET /api/models/org/name/revision/refs%2Fpr%2F1 ").len(), 1);
    client.found(Some("refs/pr/1")).unwrap();
    // The server may not pass one commit off as another.
    let other = COMMIT.replace('0', "1");
    assert!(fetch(&of(&other)).unwrap_err().to_string().contains("names the commit"));
}

#[test]
fn a_download_that_was_broken_off_goes_on_where_it_was() {
    let (client, server) = (Client::new(), server(Habits { cut: Some(100_000), ..Habits::default() }));
    client.fetch(&server).unwrap();
    let gets = server.requests(&format!("GET /org/name/resolve/{COMMIT}/{WEIGHTS}"));
    assert_eq!(gets.len(), 2);
    assert!(gets[1].to_lowercase().contains("range: bytes=100000-\r\n"), "{}", gets[1]);
    assert_eq!(fs::read(client.found(None).unwrap().join(WEIGHTS)).unwrap(), weights(300_000));
}

#[test]
fn another_process_goes_on_with_what_is_there() {
    let (client, server) = (Client::new(), server(Habits { always_cut: Some(0), ..Habits::default() }));
    assert!(client.refused(&server).contains("after 5 attempts"));
    assert!(client.found(None).is_err() && !client.path("refs").exists());
    let [partial] = client.partial().try_into().unwrap();
    fs::write(&partial, &weights(300_000)[..123_456]).unwrap();
    server.change(|state| state.habits = Habits::default());
    client.fetch(&server).unwrap();
    let gets = server.requests(&format!("GET /org/name/resolve/{COMMIT}/{WEIGHTS}"));
    assert!(gets.last().unwrap().to_lowercase().contains("range: bytes=123456-\r\n"));
    assert_eq!(fs::read(client.found(None).unwrap().join(WEIGHTS)).unwrap(), weights(300_000));
}

#[test]
fn a_server_that_knows_no_ranges_sends_all_again() {
    let habits = Habits { cut: Some(100_000), ignores_ranges: true, ..Habits::default() };
    let (client, server) = (Client::new(), server(habits));
    client.fetch(&server).unwrap();
    assert_eq!(fs::read(client.found(None).unwrap().join(WEIGHTS)).unwrap(), weights(300_000));
}

#[test]
fn damaged_contents_are_removed_and_never_get_a_name() {
    let (client, server) = (Client::new(), server(Habits { wrong_hash: true, ..Habits::default() }));
    let text = client.refused(&server);
    assert!(text.contains("SHA-256") && text.contains(&"0".repeat(64)), "{text}");
    assert_eq!(client.partial(), Vec::<PathBuf>::new());
    assert!(!client.path(&format!("snapshots/{COMMIT}/{WEIGHTS}")).exists() && !client.path("refs").exists());
    // What an earlier process left half and spoilt is found out too.
    server.change(|state| state.habits = Habits { always_cut: Some(0), ..Habits::default() });
    client.refused(&server);
    fs::write(&client.partial()[0], vec![7; 1000]).unwrap();
    server.change(|state| state.habits = Habits::default());
    assert!(client.refused(&server).contains("SHA-256"));
    client.fetch(&server).unwrap();
}

#[test]
fn sizes_that_are_not_as_announced_are_refused() {
    let (client, longer) = (Client::new(), server(Habits { wrong_size: -1, ..Habits::default() }));
    assert!(client.refused(&longer).contains("more than the 1 bytes it announced"));
    let (client, shorter) = (Client::new(), server(Habits { wrong_size: 1, ..Habits::default() }));
    assert!(client.refused(&shorter).contains("after 5 attempts"));
    assert!(!client.path("refs").exists());
}

#[test]
fn large_files_come_from_another_host_that_never_sees_the_token() {
    let store = server(Habits::default());
    let hub = server(Habits { store: Some(store.address.clone()), ..Habits::default() });
    let client = Client::new();
    let request = Request { token: Some("hf_secret".to_owned()), ..client.request(&hub) };
    fetch(&request).unwrap();
    assert_eq!(fs::read(client.found(None).unwrap().join(WEIGHTS)).unwrap(), weights(300_000));
    let has_token = |request: &String| request.to_lowercase().contains("authorization: bearer hf_secret\r\n");
    let (of_hub, of_store) = (hub.requests(""), store.requests(""));
    assert!(of_hub.iter().all(has_token));
    assert!(!of_store.is_empty() && !of_store.iter().any(|r| r.contains("hf_secret")), "{of_store:?}");
    // The hash is the hub's, whatever the store calls the contents.
    assert!(
        client
            .path("blobs")
            .join(Sha256::digest(weights(300_000)).iter().map(|b| format!("{b:02x}")).collect::<String>())
            .exists()
    );
}

#[test]
fn a_busy_server_is_asked_again() {
    let (client, server) = (Client::new(), server(Habits { busy: 3, ..Habits::default() }));
    client.fetch(&server).unwrap();
    server.change(|state| state.habits.busy = 100);
    assert!(client.refused(&server).contains("status 503, after 5 attempts"));
}

#[test]
fn refusals_say_what_to_do() {
    let (client, server) = (Client::new(), server(Habits::default()));
    let refused = |status, code, token: Option<&str>| {
        server.change(|state| state.habits.refuse = Some((status, code)));
        let request = Request { token: token.map(str::to_owned), ..client.request(&server) };
        let text = fetch(&request).unwrap_err().to_string();
        assert!(!text.contains("hf_secret") && text.lines().count() == 3, "{text}");
        text
    };
    assert!(refused(404, "RevisionNotFound", None).contains("org/name has no revision main"));
    assert!(refused(404, "", None).contains("check name, revision and --endpoint"));
    let text = refused(401, "RepoNotFound", None);
    assert!(text.contains("no public model org/name") && text.contains("set HF_TOKEN"), "{text}");
    assert!(refused(401, "", Some("hf_secret")).contains("not this HF_TOKEN"));
    let text = refused(403, "GatedRepo", Some("hf_secret"));
    assert!(text.contains("accepted its terms") && text.contains("/org/name, and set HF_TOKEN"), "{text}");
    assert!(refused(403, "", None).contains("without HF_TOKEN"));
    assert!(refused(418, "", None).contains("status 418"));
    assert!(!client.path("refs").exists());
}

#[test]
fn answers_that_are_no_hubs_are_refused() {
    let client = Client::new();
    let of = |listing: &str| client.refused(&server(Habits { listing: Some(listing.to_owned()), ..Habits::default() }));
    assert!(of("<html>").contains("no list of files"));
    for sha in ["../../..", "main", ""] {
        assert!(of(&format!(r#"{{"sha": "{sha}", "siblings": []}}"#)).contains("names the commit"));
    }
    let names = r#""siblings": [{"rfilename": "../config.json"}, {"rfilename": "/etc/config.json"}]"#;
    assert!(of(&format!(r#"{{"sha": "{COMMIT}", {names}}}"#)).contains("has no config.json"));
    let names = r#""siblings": [{"rfilename": "config.json"}]"#;
    assert!(of(&format!(r#"{{"sha": "{COMMIT}", {names}}}"#)).contains("has no weights"));
    assert!(!client.cache().exists());
}

#[test]
fn shards_of_an_index_are_fetched_and_names_out_of_the_model_are_not() {
    let index =
        r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "part/model-00002-of-00002.safetensors"}}"#;
    let files: [(&str, &[u8]); 4] = [
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index.as_bytes()),
        ("model-00001-of-00002.safetensors", b"first"),
        ("part/model-00002-of-00002.safetensors", b""),
    ];
    let (client, hub) = (Client::new(), Server::new(&files, Habits::default()));
    client.fetch(&hub).unwrap();
    let folder = client.found(None).unwrap();
    assert_eq!(fs::read(folder.join(files[2].0)).unwrap(), b"first");
    assert_eq!(fs::read(folder.join(files[3].0)).unwrap(), b"");
    for shard in ["../../secret", "/etc/passwd", "not-there.safetensors"] {
        let index = format!(r#"{{"weight_map": {{"a": "{shard}"}}}}"#);
        let files: [(&str, &[u8]); 2] = [files[0], ("model.safetensors.index.json", index.as_bytes())];
        assert!(Client::new().fetch(&Server::new(&files, Habits::default())).is_err(), "{shard}");
    }
}

#[test]
fn two_at_once_fetch_each_file_once() {
    let (client, hub) = (Client::new(), server(Habits { slow: true, ..Habits::default() }));
    thread::scope(|scope| {
        let both = [(), ()].map(|()| scope.spawn(|| client.fetch(&hub).unwrap()));
        for one in both {
            one.join().unwrap();
        }
    });
    assert_eq!(hub.requests(&format!("GET /org/name/resolve/{COMMIT}/{WEIGHTS}")).len(), 1);
    assert_eq!(fs::read(client.found(None).unwrap().join(WEIGHTS)).unwrap(), weights(300_000));
}

#[test]
fn the_program_prints_the_folder_and_says_what_is_wrong_with_its_arguments() {
    let (client, hub) = (Client::new(), server(Habits::default()));
    let endpoint = ["--endpoint", &hub.address];
    let output = client.program(&[&["org/name"], &endpoint[..]].concat(), &[]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), client.found(None).unwrap().to_str().unwrap());
    let refused = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = client.program(arguments, variables);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let before = hub.requests("").len();
    let address = hub.address.as_str();
    assert!(refused(&["../x", "--endpoint", address], &[]).contains("begins or ends with"));
    assert!(refused(&["org/name", "--revision", "../x", "--endpoint", address], &[]).contains("the revision has `..`"));
    assert!(refused(&["org/name", "--endpoint", address], &[("HF_HUB_OFFLINE", "1")]).contains("forbids to use"));
    assert!(refused(&["cpm1-large", "--endpoint", address], &[]).contains("the hub has no such model"));
    assert!(refused(&["org/name", "--endpoint", "file:///x"], &[]).contains("address"));
    let text = refused(&["org/name"], &[("HF_ENDPOINT", "http://example.invalid"), ("HF_TOKEN", "hf_secret")]);
    assert!(text.contains("unencrypted") && !text.contains("hf_secret"), "{text}");
    let text = refused(&["org/name", "--endpoint", address], &[("HF_TOKEN", "hf_se\ncret")]);
    assert!(text.contains("characters that no token has") && !text.contains("cret\n"), "{text}");
    assert_eq!(hub.requests("").len(), before);
}
