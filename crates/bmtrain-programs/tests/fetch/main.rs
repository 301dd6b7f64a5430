//! The fetch program against a small server of its own: what arrives in the cache, what is continued, what is refused.
//!
//! `server` has the server; `hostile` has hostile servers, `cache` has caches left by other programs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cache;
mod hostile;
mod predecessor;
mod server;

use bmtrain_programs::fetch::{Request, fetch};
use model_center::formats::pretrained::Revision;
use model_center::run::layout_error;
use server::{COMMIT, Client, Habits, Server, WEIGHTS, etag_of, server, weights};
use std::fs;
use std::path::PathBuf;
use std::thread;

#[test]
fn a_model_arrives_in_the_layout_that_is_read() {
    let (client, server) = (Client::new(), server(Habits::default()));
    assert!(client.found(None).is_err());
    assert_eq!(client.fetch(&server).unwrap(), COMMIT);
    let directory = client.found(None).unwrap();
    assert_eq!(directory, client.path(&format!("snapshots/{COMMIT}")));
    assert_eq!(client.found(Some(COMMIT)).unwrap(), directory);
    let mut names: Vec<_> =
        fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["config.json", WEIGHTS, "vocab.txt"]);
    let link = fs::read_link(directory.join(WEIGHTS)).unwrap();
    assert!(link.starts_with("../../blobs") && link.file_name().unwrap().len() == 64, "{link:?}");
    assert_eq!(fs::read(directory.join(WEIGHTS)).unwrap(), weights(300_000));
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
fn a_download_that_was_broken_off_continues_where_it_was() {
    let (client, server) = (Client::new(), server(Habits { cut: Some(100_000), ..Habits::default() }));
    client.fetch(&server).unwrap();
    let gets = server.requests(&format!("GET /org/name/resolve/{COMMIT}/{WEIGHTS}"));
    assert_eq!(gets.len(), 2);
    assert!(gets[1].to_lowercase().contains("range: bytes=100000-\r\n"), "{}", gets[1]);
    assert_eq!(fs::read(client.found(None).unwrap().join(WEIGHTS)).unwrap(), weights(300_000));
}

#[test]
fn another_process_continues_with_what_is_there() {
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
    // Nor is a cookie kept, of either.
    assert!(!of_hub.iter().chain(&of_store).any(|request| request.to_lowercase().contains("cookie")));
    // The hash is the hub's, whatever the store calls the contents.
    assert!(client.path("blobs").join(etag_of(WEIGHTS, &weights(300_000))).exists());
}

#[test]
fn a_busy_server_is_asked_again() {
    let (client, server) = (Client::new(), server(Habits { busy: 3, ..Habits::default() }));
    client.fetch(&server).unwrap();
    server.change(|state| state.habits.busy = 100);
    assert!(client.refused(&server).contains("status 503, after 5 attempts"));
}

#[test]
fn refusals_have_a_fix() {
    let (client, server) = (Client::new(), server(Habits::default()));
    let refused = |status, code, token: Option<&str>| {
        server.change(|state| state.habits.refuse = Some((status, code)));
        let request = Request { token: token.map(str::to_owned), ..client.request(&server) };
        let text = layout_error(&fetch(&request).unwrap_err());
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
    assert!(of("<html>").contains("not a list of files"));
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
    let directory = client.found(None).unwrap();
    assert_eq!(fs::read(directory.join(files[2].0)).unwrap(), b"first");
    assert_eq!(fs::read(directory.join(files[3].0)).unwrap(), b"");
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
fn the_program_prints_the_directory_and_reports_wrong_arguments() {
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
    assert!(refused(&["kv-plm", "--endpoint", address], &[]).contains("the hub has no such model"));
    assert!(refused(&["org/name", "--endpoint", "file:///x"], &[]).contains("address"));
    let text = refused(&["org/name"], &[("HF_ENDPOINT", "http://example.invalid"), ("HF_TOKEN", "hf_secret")]);
    assert!(text.contains("unencrypted") && !text.contains("hf_secret"), "{text}");
    let text = refused(&["org/name", "--endpoint", address], &[("HF_TOKEN", "hf_se\ncret")]);
    assert!(text.contains("characters that no token has") && !text.contains("cret\n"), "{text}");
    assert_eq!(hub.requests("").len(), before);
}
