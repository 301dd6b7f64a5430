//! Hostile servers: where they redirect to, what they announce, what they send, and how slowly.

use crate::server::{COMMIT, Client, Habits, Server, WEIGHTS, etag_of, hex, server, weights};
use bmtrain_programs::fetch::{Request, fetch};
use sha1::{Digest, Sha1};
use std::fs;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;
use ureq::Proxy;

const OK: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n";

/// Send the same bytes until the client closes the connection.
fn forever(stream: &mut TcpStream, bytes: &[u8], every: Duration) -> io::Result<()> {
    loop {
        stream.write_all(bytes)?;
        sleep(every);
    }
}

/// The requests for the weights' bytes.
fn downloads(server: &Server) -> usize {
    server.requests(&format!("GET /org/name/resolve/{COMMIT}/{WEIGHTS}")).len()
}

/// The error for a server that answers the request for a file's metadata with these headers.
fn described(file: &'static str, headers: &str) -> model_center::Error {
    let headers = headers.to_owned();
    let server =
        Server::scripted(move |asked, stream| asked.is("HEAD", file).then(|| write!(stream, "{OK}{headers}\r\n")));
    let client = Client::new();
    let error = client.fetch(&server).unwrap_err();
    assert_eq!(downloads(&server), 0);
    assert!(
        !client.path("refs").exists() && client.partial().iter().all(|path| fs::metadata(path).unwrap().len() == 0)
    );
    error
}

#[test]
fn redirects_lead_to_servers_of_the_web_alone() {
    for to in [
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "//127.0.0.1/x",
        "elsewhere",
        "",
        "http://me:secret@127.0.0.1/x",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/x",
        "http://2130706433/x",
        "http://127.0.0.1/\u{202e}x",
    ] {
        for wanted in [("GET", "main"), ("HEAD", "config.json"), ("GET", WEIGHTS)] {
            let server = Server::scripted(move |asked, stream| {
                let head =
                    format!("HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: {to}\r\n\r\n");
                asked.is(wanted.0, wanted.1).then(|| stream.write_all(head.as_bytes()))
            });
            let text = Client::new().refused(&server);
            assert!(text.contains("redirects to") && text.contains("not followed"), "{to}: {text}");
            assert!(!text.contains("secret"), "{to}: {text}");
        }
    }
}

#[test]
fn redirects_end_and_their_bodies_are_not_waited_for() {
    let circle = Server::scripted(|asked, stream| {
        let head = "HTTP/1.1 307 Again\r\nConnection: close\r\nContent-Length: 0\r\n";
        Some(write!(stream, "{head}Location: {}\r\n\r\n", asked.path))
    });
    assert!(Client::new().refused(&circle).contains("redirects more than 10 times"));
    assert_eq!(circle.requests("").len(), 10);
    let endless = Server::scripted(|asked, stream| {
        (asked.before == 0).then(|| {
            write!(stream, "HTTP/1.1 302 Found\r\nLocation: {}\r\n\r\n", asked.path)?;
            forever(stream, &[b'x'; 65_536], Duration::ZERO)
        })
    });
    Client::new().fetch(&endless).unwrap();
}

#[test]
fn what_is_announced_is_a_name_and_a_size_that_can_be() {
    let etag = format!("ETag: \"{}\"\r\n", etag_of(WEIGHTS, &weights(300_000)));
    let message = |headers: &str| described(WEIGHTS, headers).to_string();
    let text = message(&etag);
    assert!(text.contains("does not announce the size"), "{text}");
    for size in ["-1", "1e3", "0x10", "99999999999999999999", "many"] {
        let text = message(&format!("{etag}X-Linked-Size: {size}\r\n"));
        assert!(text.contains(&format!("announces \"{size}\" bytes")), "{text}");
    }
    for name in ["", "..", "../../x", "a/b", "a b", "a.incomplete", &"x".repeat(129)] {
        let text = message(&format!("ETag: \"{name}\"\r\nContent-Length: 5\r\n"));
        assert!(text.contains("which is not a name") && text.len() < 1000, "{text}");
    }
    // More than the disk has room for is refused before any of it arrives.
    let error = described(WEIGHTS, &format!("{etag}X-Linked-Size: {}\r\n", u64::MAX));
    assert!(error.exit_code() == 5 && error.to_string().contains("GB are free"), "{error}");
    // A configuration has no such length, whatever the disk has room for.
    let error = described("config.json", &format!("{etag}X-Linked-Size: {}\r\n", 1_u64 << 40));
    assert!(error.exit_code() == 3 && error.to_string().contains("of any such file"), "{error}");
}

#[test]
fn bodies_without_an_end_are_cut_off_at_the_announced_size() {
    for framing in
        ["Transfer-Encoding: chunked\r\n\r\n10000\r\n", "\r\n", "Content-Length: 18446744073709551615\r\n\r\n"]
    {
        let server = Server::scripted(move |asked, stream| {
            let end: &[u8] = if framing.contains("chunked") { b"\r\n10000\r\n" } else { b"" };
            let part = [&[b'x'; 65_536][..], end].concat();
            asked.is("GET", WEIGHTS).then(|| {
                write!(stream, "{OK}{framing}")?;
                forever(stream, &part, Duration::ZERO)
            })
        });
        let client = Client::new();
        assert!(client.refused(&server).contains("more than the 300000 bytes it announced"), "{framing}");
        assert!(client.partial().iter().all(|path| fs::metadata(path).unwrap().len() == 0));
    }
    let listing = Server::scripted(|asked, stream| {
        asked.is_listing().then(|| {
            write!(stream, "{OK}\r\n")?;
            forever(stream, &[b' '; 1 << 20], Duration::ZERO)
        })
    });
    assert!(Client::new().refused(&listing).contains("longer than any model's"));
}

#[test]
fn servers_that_never_come_to_an_end_are_left_after_a_while() {
    type Case = (&'static str, &'static str, &'static [u8], &'static [u8]);
    let cases: [Case; 8] = [
        ("GET", WEIGHTS, b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        ("GET", WEIGHTS, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        ("GET", WEIGHTS, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"X-A: b\r\n"),
        ("GET", WEIGHTS, b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n", b""),
        ("GET", "main", b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n", b" "),
        ("GET", "main", b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
        ("HEAD", "config.json", b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        ("HEAD", "config.json", b"HTTP/1.1 200 OK\r\nETag: \"", b"a"),
    ];
    thread::scope(|scope| {
        for (method, name, first, again) in cases {
            scope.spawn(move || {
                let server = Server::scripted(move |asked, stream| {
                    asked.is(method, name).then(|| {
                        stream.write_all(first)?;
                        forever(stream, again, Duration::from_millis(10))
                    })
                });
                let client = Client::impatient();
                let text = client.refused(&server);
                assert!(text.contains("after 5 attempts"), "{method} {name}: {text}");
                let asked = server.requests(method).iter().filter(|request| request.contains(name)).count();
                assert!(asked <= 5 && !client.path("refs").exists(), "{method} {name}: {asked}");
            });
        }
    });
}

#[test]
fn a_slow_server_that_keeps_sending_is_waited_for() {
    // 2 s in all, in parts every 0.4 s: longer than the patience, which is for a part alone.
    let server = Server::scripted(|asked, stream| {
        let rest = weights(300_000).split_off(asked.start);
        (asked.is("GET", WEIGHTS) && asked.start == 0).then(|| {
            write!(stream, "{OK}Content-Length: 300000\r\n\r\n")?;
            rest.chunks(70_000).try_for_each(|part| {
                sleep(Duration::from_millis(400));
                stream.write_all(part)
            })
        })
    });
    let client = Client { patience: Duration::from_secs(1), ..Client::new() };
    client.fetch(&server).unwrap();
    assert_eq!(fs::read(client.found(None).unwrap().join(WEIGHTS)).unwrap(), weights(300_000));
}

#[test]
fn a_server_that_sends_a_byte_in_each_answer_is_left() {
    let server = Server::scripted(|asked, stream| {
        let (start, bytes) = (asked.start, weights(300_000));
        asked.is("GET", WEIGHTS).then(|| {
            let range = format!("Content-Range: bytes {start}-{start}/300000\r\n");
            let status = "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: 1\r\n";
            write!(stream, "{status}{range}\r\n")?;
            stream.write_all(&bytes[start..=start])
        })
    });
    assert!(Client::new().refused(&server).contains("the answer ends after 5 of 300000 bytes, after 5 attempts"));
    assert_eq!(downloads(&server), 5);
    // One that breaks off now and then is not.
    let habits = Habits { always_cut: Some(70_000), ..Habits::default() };
    let (client, server) = (Client::new(), crate::server::server(habits));
    client.fetch(&server).unwrap();
    assert_eq!(downloads(&server), 5);
}

#[test]
fn a_server_that_begins_anew_each_time_is_left() {
    let bytes = weights(1_000_000);
    let files: [(&str, &[u8]); 2] = [("config.json", b"{}"), (WEIGHTS, &bytes)];
    let server = Server::new(&files, Habits::default());
    let served = AtomicUsize::new(0);
    server.change(|state| {
        state.script = Some(std::sync::Arc::new(move |asked, stream| {
            // Each time a little more than before, and never all.
            asked.is("GET", WEIGHTS).then(|| {
                let more = 70_000 * (served.fetch_add(1, Ordering::Relaxed) + 1);
                write!(stream, "{OK}Content-Length: 1000000\r\n\r\n")?;
                stream.write_all(&weights(more))
            })
        }));
    });
    assert!(Client::new().refused(&server).contains("begins anew each time"));
    assert_eq!(downloads(&server), 6);
}

#[test]
fn headers_without_measure_are_refused() {
    let long = format!("X-A: {}\r\n", "b".repeat(1 << 20));
    let many = "X-A: b\r\n".repeat(10_000);
    for headers in [long, many] {
        let server = Server::scripted(move |_, stream| Some(write!(stream, "{OK}{headers}Content-Length: 0\r\n\r\n")));
        Client::new().refused(&server);
        assert_eq!(server.requests("").len(), 1);
    }
    let endless = Server::scripted(|_, stream| {
        write!(stream, "{OK}").ok();
        Some(forever(stream, b"X-A: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n", Duration::ZERO))
    });
    Client::new().refused(&endless);
}

#[test]
fn lists_of_files_that_are_made_to_break_a_reader_are_refused() {
    let of = |text: String| {
        let server = server(Habits { listing: Some(text), ..Habits::default() });
        Client::new().refused(&server)
    };
    assert!(of("[".repeat(1 << 20)).contains("not a list of files"));
    assert!(of(format!("{{\"a\": {}", "[".repeat(1 << 20))).contains("not a list of files"));
    let twice = format!(r#"{{"sha": "{COMMIT}", "sha": "{}", "siblings": []}}"#, COMMIT.replace('0', "1"));
    assert!(of(twice).contains("duplicate field"));
    for sha in [format!("{COMMIT}/.."), COMMIT.to_uppercase(), "\\u001b[31m".to_owned(), "x".repeat(1 << 20)] {
        assert!(of(format!(r#"{{"sha": "{sha}", "siblings": []}}"#)).contains("names the commit"));
    }
}

#[test]
fn contents_in_a_coding_that_was_not_asked_for_are_refused() {
    for wanted in [("GET", "main"), ("HEAD", "config.json"), ("GET", WEIGHTS)] {
        let server = Server::scripted(move |asked, stream| {
            let head = format!("{OK}ETag: \"a\"\r\nContent-Length: 2\r\nContent-Encoding: gzip\r\n\r\n");
            asked.is(wanted.0, wanted.1).then(|| stream.write_all(head.as_bytes()))
        });
        let text = Client::new().refused(&server);
        assert!(text.contains("encoded as \"gzip\", which was not asked for"), "{text}");
        assert!(server.requests("")[0].to_lowercase().contains("accept-encoding: identity\r\n"));
    }
}

#[test]
fn the_rest_of_another_file_is_not_appended() {
    let server = server(Habits { always_cut: Some(0), ..Habits::default() });
    let client = Client::new();
    client.refused(&server);
    let [partial] = client.partial().try_into().unwrap();
    fs::write(&partial, &weights(300_000)[..100_000]).unwrap();
    for range in
        ["bytes 0-299999/300000", "bytes 100000-299999/300001", "bytes */300000", "bytes 100000", "", "\u{202e}"]
    {
        server.change(|state| {
            state.habits = Habits::default();
            state.script = Some(std::sync::Arc::new(move |asked, stream| {
                let status = "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: 200000\r\n";
                asked.is("GET", WEIGHTS).then(|| {
                    write!(stream, "{status}Content-Range: {range}\r\n\r\n")?;
                    stream.write_all(&[b'x'; 200_000])
                })
            }));
        });
        assert!(client.refused(&server).contains("where bytes from 100000 on of 300000"), "{range}");
        assert_eq!(fs::metadata(&partial).unwrap().len(), 100_000);
    }
    server.change(|state| state.script = None);
    client.fetch(&server).unwrap();
    assert_eq!(fs::read(client.found(None).unwrap().join(WEIGHTS)).unwrap(), weights(300_000));

    // Names that are no hashes are compared with each other.
    let changed = Server::scripted(|asked, stream| {
        let etag = if asked.method == "HEAD" { "first" } else { "second" };
        let of_config = asked.path.ends_with("/config.json");
        of_config.then(|| write!(stream, "{OK}ETag: \"{etag}\"\r\nContent-Length: 2\r\n\r\n{{}}"))
    });
    assert!(Client::new().refused(&changed).contains("announced contents first and sends second"));
}

#[test]
fn small_files_have_the_hash_that_they_are_named_by() {
    let damaged = Server::scripted(|asked, stream| {
        asked.is("GET", "config.json").then(|| write!(stream, "{OK}Content-Length: 2\r\n\r\n[]"))
    });
    let client = Client::new();
    let text = client.refused(&damaged);
    assert!(text.contains("SHA-1") && text.contains(&etag_of("config.json", b"{}")), "{text}");
    assert!(client.partial().is_empty() && !client.path(&format!("snapshots/{COMMIT}/config.json")).exists());
    // Some servers take the hash of the bytes alone.
    let plain = Server::scripted(|asked, stream| {
        let etag = hex(&Sha1::digest(b"{}"));
        asked.is("HEAD", "config.json").then(|| write!(stream, "{OK}ETag: \"{etag}\"\r\nContent-Length: 2\r\n\r\n"))
    });
    Client::new().fetch(&plain).unwrap();
    // What is damaged in the cache is fetched again.
    let (client, server) = (Client::new(), server(Habits::default()));
    client.fetch(&server).unwrap();
    let blob = client.path("blobs").join(etag_of("config.json", b"{}"));
    fs::write(&blob, "[]").unwrap();
    client.fetch(&server).unwrap();
    assert_eq!(fs::read_to_string(&blob).unwrap(), "{}");
}

#[test]
fn shards_stay_in_the_snapshot_under_names_of_their_own() {
    for shard in ["a//b.safetensors", ".config.json.tmp-1", "Config.json", "config.json/a", "a\\\\b"] {
        let index = format!(r#"{{"weight_map": {{"a": "{shard}", "b": "b.safetensors"}}}}"#);
        let name = shard.replace("\\\\", "\\");
        let files: [(&str, &[u8]); 4] = [
            ("config.json", b"{}"),
            ("b.safetensors", b"b"),
            ("model.safetensors.index.json", index.as_bytes()),
            (&name, b"shard"),
        ];
        let client = Client::new();
        let text = client.refused(&Server::new(&files, Habits::default()));
        assert!(text.contains("the index lists"), "{text}");
        assert_eq!(fs::read_dir(client.path("blobs")).unwrap().count(), 2, "{shard}");
    }
}

#[test]
fn server_messages_reach_no_terminal_unescaped() {
    for answer in [
        "HTTP/1.1 404 \u{1b}[31mNo\r\nX-Error-Code: \u{202e}RevisionNotFound\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 404 No\r\nX-Error-Code: \u{1b}[31m\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 302 Found\r\nLocation: file:///\u{1b}]0;x\u{7}\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 302 Found\r\nLocation: file:///\u{202e}x\r\nContent-Length: 0\r\n\r\n",
        "\u{1b}]0;x\u{7}HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n{\"sha\": \"\\u001b[31m\\u202e\", \"siblings\": []}",
        "HTTP/1.1 200 OK\r\n\r\n\u{1b}[31m",
    ] {
        let server = Server::scripted(move |_, stream| Some(stream.write_all(answer.as_bytes())));
        let text = Client::new().refused(&server);
        assert!(!text.contains('\u{202e}'), "{text:?}");
    }
}

#[test]
fn secrets_stay_with_the_server_that_was_named() {
    // The same machine on another port is another server, for the list of files as well.
    let other = server(Habits::default());
    let address = other.address.clone();
    let hub = Server::scripted(move |asked, stream| {
        let head = "HTTP/1.1 308 Moved\r\nConnection: close\r\nSet-Cookie: a=hf_secret\r\nContent-Length: 0\r\n";
        Some(write!(stream, "{head}Location: {address}{}\r\n\r\n", asked.path))
    });
    fetch(&Request { token: Some("hf_token".to_owned()), ..Client::new().request(&hub) }).unwrap();
    assert!(hub.requests("").iter().all(|request| request.contains("Bearer hf_token")));
    assert!(!other.requests("").is_empty() && other.requests("").iter().all(|request| !request.contains("hf_")));

    // A server of TLS that is none, so that no certificate is needed here.
    let plain = server(Habits::default());
    let endpoint = plain.address.replace("http://", "https://me:hf_secret@");
    let request = Request { endpoint, token: Some("hf_token".to_owned()), ..Client::new().request(&plain) };
    let text = fetch(&request).unwrap_err().to_string();
    assert!(text.contains("does not speak TLS") && !text.contains("hf_"), "{text}");
    assert!(plain.requests("").iter().all(|request| !request.contains("hf_")));

    let proxy = server(Habits::default());
    let through = Request {
        token: Some("hf_token".to_owned()),
        proxy: Some(Proxy::new(&proxy.address).unwrap()),
        ..Client::new().request(&plain)
    };
    let text = fetch(&through).unwrap_err().to_string();
    assert!(text.contains("to a proxy unencrypted") && text.contains("NO_PROXY"), "{text}");
    assert!(proxy.requests("").is_empty());
}
