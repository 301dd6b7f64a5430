//! Models of ModelCenter's server: into its cache, each file checked by the CRC-64 that the server gives.

use crate::server::{Client, Server};
use bmtrain_programs::fetch::{Request, ServerLayout, fetch_from_model_center};
use model_center::formats::pretrained::RepoId;
use std::fs;
use std::io::Write;

/// The check value of CRC-64 for these bytes.
const BYTES: &[u8] = b"123456789";
const CRC: u64 = 0x995d_c9bb_df19_39fa;

/// A server that has these files, and gives this checksum for each.
fn server(files: &'static [&'static str], crc: Option<u64>, cut: usize) -> Server {
    Server::scripted(move |asked, stream| {
        let name = asked.path.strip_prefix("/model_center/cpm1-large/")?;
        if !files.contains(&name) {
            return Some(write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
        }
        let crc = crc.map_or_else(String::new, |crc| format!("x-oss-hash-crc64ecma: {crc}\r\n"));
        let body = &BYTES[asked.start..];
        let status = if asked.start > 0 { "206 Partial Content" } else { "200 OK" };
        let range = match asked.start {
            0 => String::new(),
            start => format!("Content-Range: bytes {start}-{}/{}\r\n", BYTES.len() - 1, BYTES.len()),
        };
        let head = format!("{crc}{range}ETag: \"5B3C1A2E-7\"\r\nContent-Length: {}\r\nConnection: close", body.len());
        let written = write!(stream, "HTTP/1.1 {status}\r\n{head}\r\n\r\n");
        if asked.method == "HEAD" {
            return Some(written);
        }
        let end = if asked.start == 0 { body.len() - cut } else { body.len() };
        Some(written.and_then(|()| stream.write_all(&body[..end])))
    })
}

fn request(client: &Client, server: &Server) -> Request {
    let id = RepoId::parse("cpm1-large").unwrap();
    Request { id, layout: ServerLayout::ModelCenter, ..client.request(server) }
}

const ALL: &[&str] = &["config.json", "vocab.txt", "pytorch_model.pt"];

#[test]
fn a_model_of_its_server_arrives_whole_and_once() {
    let (client, server) = (Client::new(), server(ALL, Some(CRC), 0));
    let directory = fetch_from_model_center(&request(&client, &server)).unwrap();
    assert!(directory.ends_with("cpm1-large"));
    for name in ALL {
        assert_eq!(fs::read(directory.join(name)).unwrap(), BYTES, "{name}");
    }
    let before = server.requests("GET").len();
    fetch_from_model_center(&request(&client, &server)).unwrap();
    assert_eq!((before, server.requests("GET").len()), (3, 3));
}

#[test]
fn a_file_that_breaks_off_is_continued_and_still_checked() {
    let (client, server) = (Client::new(), server(ALL, Some(CRC), 4));
    let directory = fetch_from_model_center(&request(&client, &server)).unwrap();
    assert_eq!(fs::read(directory.join("pytorch_model.pt")).unwrap(), BYTES);
    assert!(!directory.join("pytorch_model.pt.incomplete").exists());
}

#[test]
fn wrong_missing_and_absent_checksums_leave_no_model() {
    for (files, crc, reason) in [
        (ALL, Some(CRC + 1), "CRC-64"),
        (ALL, None, "gives no checksum of config.json"),
        (&["config.json", "pytorch_model.pt"][..], Some(CRC), "no vocabulary of cpm1-large"),
        (&["config.json", "vocab.txt"][..], Some(CRC), "pytorch_model.pt"),
    ] {
        let (client, server) = (Client::new(), server(files, crc, 0));
        let error = fetch_from_model_center(&request(&client, &server)).unwrap_err().to_string();
        assert!(error.contains(reason), "{reason}: {error}");
        assert!(!client.cache().join("cpm1-large/pytorch_model.pt").exists());
    }
}
