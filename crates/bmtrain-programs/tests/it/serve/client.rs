//! A server of the fixture's model, and a client.

use crate::fixture::Fixture;
use crate::fixture::program;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long something may take that is a matter of milliseconds.
pub const SOON: Duration = Duration::from_secs(60);

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// The serve program on a free port, which ends with the test.
pub struct Server {
    process: Child,
    pub port: u16,
}

impl Server {
    pub fn of(fixture: &Fixture, arguments: &[&str]) -> Server {
        let mut process = Command::new(program("serve"))
            .current_dir(fixture.path("."))
            .args(["model", "--port", "0", "--threads", "1", "--device", "cpu", "--quiet"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).unwrap_or_else(|| panic!("no address: {line:?}"));
        let port = address.split('/').next().unwrap().rsplit(':').next().unwrap().parse().unwrap();
        Server { process, port }
    }

    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).unwrap()
    }

    /// Sends a request, and leaves the response to the caller.
    pub fn send(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> TcpStream {
        send(self.port, method, path, headers, body)
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
        read(self.send(method, path, headers, body))
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        let answer = self.ask("GET", path, &[], b"");
        (answer.status, answer.body)
    }

    /// The object of a request that goes well.
    pub fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.ask("POST", path, &[], body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// Sends a request whose response is a stream.
    pub fn start_stream(&self, path: &str, body: &Value) -> Events {
        let mut body = body.clone();
        body["stream"] = true.into();
        let mut reader = BufReader::new(self.send("POST", path, &[], body.to_string().as_bytes()));
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200 "), "{body}: {line}");
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        Events(reader)
    }

    /// All events of a stream.
    pub fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        self.start_stream(path, body).collect()
    }

    /// A sample of the metrics.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").1;
        sample(&text, name).unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// Waits until a sample has a value. A refusal is waited out: the server may still count connections
    /// that were closed a moment ago.
    pub fn wait_for(&self, name: &str, value: f64) {
        let began = Instant::now();
        loop {
            let (status, text) = self.get("/metrics");
            if status == 200 && sample(&text, name) == Some(value) {
                break;
            }
            assert!(began.elapsed() < SOON, "{name} is not {value}: {text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the end; the exit code.
    pub fn ended(&mut self) -> i32 {
        let began = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(began.elapsed() < SOON, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The value of a sample in the text of the metrics.
fn sample(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(line.parse().unwrap())
}

/// Sends a request to a port of this machine.
pub fn send(port: u16, method: &str, path: &str, headers: &[&str], body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let lines: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{lines}\r\n");
    // A server that refuses early may have closed the connection.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    stream
}

/// Reads a response to the end of the connection.
pub fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // What came before a reset counts.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// The events of a response up to `[DONE]`, which has to be there unless an error ends them.
pub struct Events(BufReader<TcpStream>);

impl Iterator for Events {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream is cut off");
            match line.trim_end().strip_prefix("data: ") {
                Some("[DONE]") => return None,
                Some(data) => return Some(serde_json::from_str(data).unwrap()),
                None => assert_eq!(line, "\n"),
            }
        }
    }
}
