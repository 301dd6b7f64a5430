//! A hub on this machine, as it should be and as it should not be, and a client with a cache of its own.

use bmtrain_programs::fetch::{Request, ServerLayout, fetch};
use model_center::formats::pretrained::{ModelCaches, Pretrained, RepoId, Revision};
use model_center::run::layout_error;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, thread};
use tempfile::TempDir;
use ureq::tls::RootCerts;

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const WEIGHTS: &str = "model.safetensors";

/// What the server does besides answering.
#[derive(Debug, Clone, Default)]
pub(crate) struct Habits {
    /// Answer the list of files with this status, and this X-Error-Code.
    pub(crate) refuse: Option<(u16, &'static str)>,
    /// Break the first answer off after this number of bytes.
    pub(crate) cut: Option<usize>,
    /// Break every answer off after this number of bytes.
    pub(crate) always_cut: Option<usize>,
    /// Send all bytes whatever was asked for.
    pub(crate) ignores_ranges: bool,
    /// Announce a hash that differs from the content's.
    pub(crate) wrong_hash: bool,
    /// Announce a size that is off by so much.
    pub(crate) wrong_size: i64,
    /// Answer this number of requests with 503 first.
    pub(crate) busy: usize,
    /// Answer the list of files with this text.
    pub(crate) listing: Option<String>,
    /// Send large files from this address, as the hub does.
    pub(crate) store: Option<String>,
    /// Send slowly.
    pub(crate) slow: bool,
}

/// What is asked of a server.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    /// The first byte that is asked for.
    pub(crate) start: usize,
    /// How many requests came before.
    pub(crate) before: usize,
}

impl Asked {
    /// Whether the list of files is asked for.
    pub(crate) fn is_listing(&self) -> bool {
        self.path.starts_with("/api/")
    }

    /// Whether this file is asked for, by this method.
    pub(crate) fn is(&self, method: &str, name: &str) -> bool {
        self.method == method && self.path.ends_with(&format!("/{name}"))
    }
}

/// Answers a request in its own way, or leaves it to the others.
pub(crate) type Script = dyn Fn(&Asked, &mut TcpStream) -> Option<std::io::Result<()>> + Send + Sync;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) habits: Habits,
    pub(crate) script: Option<Arc<Script>>,
    /// The request line and headers of every request.
    pub(crate) requests: Vec<String>,
}

/// A hub on this machine, for one model called org/name.
pub(crate) struct Server {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(crate) fn new(files: &[(&str, &[u8])], habits: Habits) -> Self {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let state = Arc::new(Mutex::new(State { files, habits, ..State::default() }));
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

    /// A server of the usual files that answers some requests by `script`.
    pub(crate) fn scripted(
        script: impl Fn(&Asked, &mut TcpStream) -> Option<std::io::Result<()>> + Send + Sync + 'static,
    ) -> Self {
        let server = server(Habits::default());
        server.change(|state| state.script = Some(Arc::new(script)));
        server
    }

    pub(crate) fn requests(&self, wanted: &str) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.requests.iter().filter(|request| request.starts_with(wanted)).cloned().collect()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    if reader.fill_buf()?.first() == Some(&0x16) {
        // The first byte of TLS, which is not spoken here.
        return write!(stream, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    }
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        if reader.read_line(&mut request)? == 0 {
            return Ok(());
        }
    }
    let range = request.lines().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
    let start: usize = range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let (script, before) = {
        let mut state = state.lock().unwrap();
        state.requests.push(request.clone());
        (state.script.clone(), state.requests.len() - 1)
    };
    let asked = Asked { method: method.to_owned(), path: path.to_owned(), start, before };
    match script.and_then(|script| script(&asked, &mut stream)) {
        Some(done) => done,
        None => answer_well(&asked, &mut stream, state),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hub's name for contents: git's for small files.
pub(crate) fn etag_of(name: &str, bytes: &[u8]) -> String {
    match name.ends_with(".safetensors") {
        true => hex(&Sha256::digest(bytes)),
        false => hex(&Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize()),
    }
}

fn answer_well(asked: &Asked, stream: &mut TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let (files, habits) = {
        let mut state = state.lock().unwrap();
        let habits = state.habits.clone();
        state.habits.busy = state.habits.busy.saturating_sub(1);
        (state.files.clone(), habits)
    };
    let path = asked.path.as_str();
    let mut head = |status: &str, headers: &str, length: usize| {
        write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n")
    };
    if habits.busy > 0 {
        return head("503 Busy", "Retry-After: 1000000000\r\n", 0);
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
    let etag = if is_large && habits.wrong_hash { "0".repeat(64) } else { etag_of(name, bytes) };
    let size = (bytes.len() as i64 + habits.wrong_size) as usize;
    if let Some(store) = habits.store.filter(|_| is_large && !path.starts_with("/store/")) {
        let about = format!("X-Linked-Etag: \"{etag}\"\r\nX-Linked-Size: {size}\r\nETag: \"other\"\r\n");
        return head("302 Found", &format!("{about}Location: {store}/store/{name}?key=secret\r\n"), 0);
    }
    let start = if habits.ignores_ranges { 0 } else { asked.start };
    let headers = format!("ETag: W/\"{etag}\"\r\nX-Repo-Commit: {COMMIT}\r\nSet-Cookie: a=secret\r\n");
    if asked.method == "HEAD" {
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
pub(crate) struct Client {
    pub(crate) directory: TempDir,
    pub(crate) patience: Duration,
}

impl Client {
    pub(crate) fn new() -> Self {
        Client { directory: tempfile::tempdir().unwrap(), patience: Duration::from_secs(60) }
    }

    /// A client with short timeouts for silent servers.
    pub(crate) fn impatient() -> Self {
        Client { patience: Duration::from_millis(300), ..Client::new() }
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.directory.path().join("hub")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.cache().join("models--org--name").join(name)
    }

    pub(crate) fn request(&self, server: &Server) -> Request {
        Request {
            id: RepoId::parse("org/name").unwrap(),
            revision: Revision::default(),
            cache: self.cache(),
            endpoint: server.address.clone(),
            token: None,
            proxy: None,
            roots: RootCerts::WebPki,
            pause: Duration::from_millis(1),
            layout: ServerLayout::Hub,
            patience: self.patience,
        }
    }

    pub(crate) fn fetch(&self, server: &Server) -> model_center::Result<String> {
        fetch(&self.request(server))
    }

    pub(crate) fn refused(&self, server: &Server) -> String {
        let text = layout_error(&self.fetch(server).unwrap_err());
        assert!(text.lines().count() == 3 && text.contains("  fix: ") && text.len() < 2000, "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        text
    }

    pub(crate) fn found(&self, revision: Option<&str>) -> model_center::Result<PathBuf> {
        Pretrained::resolve("org/name", revision, &ModelCaches { hub: Some(self.cache()), ..ModelCaches::default() })
    }

    /// The program itself, in an environment of its own.
    pub(crate) fn program(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bmtrain"));
        command.arg("fetch").env_clear().env("HF_HUB_CACHE", self.cache()).envs(variables.iter().copied());
        command.args(arguments).output().unwrap()
    }

    /// Names below the blobs that are none of whole contents.
    pub(crate) fn partial(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("blobs")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some()).collect()
    }
}

/// Bytes without a pattern that a shift would keep.
pub(crate) fn weights(length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u8).collect()
}

pub(crate) fn server(habits: Habits) -> Server {
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
