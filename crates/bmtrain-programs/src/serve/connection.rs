//! A connection: its request, who may ask, and which address gives what.
//!
//! | address | response |
//! |---|---|
//! | `/` | a page to chat with the model |
//! | `GET /health` | whether requests are answered |
//! | `GET /v1/models`, `/v1/models/NAME` | the model's name |
//! | `GET /metrics` | counters |
//! | `HEAD` of these | the head of the response |
//! | `POST /v1/completions`, `/v1/chat/completions`, `/v1/embeddings` | the model |
//! | `POST /v1/predict`, `/v1/rerank`, `/classify` | the model |

use super::Shared;
use super::api::{ApiError, Ended, Reply, chat, classify, completions, embeddings, predict, rerank};
use crate::http::{Request, RequestLimits, Response, TimedStream, finish, foreign, is_same_secret, random_token};
use serde_json::json;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const PAGE: &str = include_str!("page.html");

/// The list of models; below it each has its own address.
const MODELS: &str = "/v1/models";

/// Counts a connection while it is open, or while it has a request.
struct Counted<'m>(&'m AtomicUsize);

impl<'m> Counted<'m> {
    fn new(connections: &'m AtomicUsize) -> Self {
        connections.fetch_add(1, Ordering::AcqRel);
        Counted(connections)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Refuses a connection beyond the most.
pub(super) fn refuse(mut stream: TcpStream) {
    let response = ApiError::too_many_connections().response();
    // What does not fit into the buffer of a new connection is left out: nothing waits here.
    let _ = stream.set_nonblocking(true).and_then(|()| stream.write_all(&response.to_bytes()));
}

/// Reads a request, writes its response, and closes the connection.
pub(super) fn answer(shared: &Shared, mut stream: TcpStream) {
    let _open = Counted::new(&shared.metrics.connections);
    // Events are small, and each is to arrive at once.
    let _ = stream.set_nodelay(true);
    let options = &shared.options;
    let limits = RequestLimits { body: options.body_bytes, ..RequestLimits::default() };
    let arrived = Instant::now();
    let mut reading = TimedStream::new(&stream, arrived + options.read_timeout).unless(&shared.ended);
    let request = Request::read(&mut reading, limits);
    // The client opened a connection in advance and closed it, or the server has ended.
    if matches!(request, Ok(None)) {
        return;
    }
    let _answering = Counted::new(&shared.metrics.answering);
    let method =
        request.as_ref().ok().and_then(Option::as_ref).map_or_else(String::new, |request| request.method.clone());
    let mut reply = Reply::new(&stream, arrived + options.timeout, &method);
    let (endpoint, answered) = match request {
        Ok(None) => return,
        Err((status, reason)) => ("unreadable", Err(ApiError::unreadable(status, reason).into())),
        Ok(Some(request)) => route(shared, &request, &mut reply),
    };
    let outcome = match answered {
        Ok(status) => status.to_string(),
        Err(Ended::Gone) => "cancelled".to_owned(),
        Err(Ended::Failed(error)) => {
            let sent = match reply.is_streaming {
                true => reply.event(&error.json()),
                false => reply.send(&error.response()),
            };
            sent.map_or_else(|_| "cancelled".to_owned(), |()| error.status.to_string())
        }
    };
    drop(reply);
    let takes_time = endpoint == "/classify" || (endpoint.starts_with("/v1/") && !endpoint.starts_with(MODELS));
    shared.metrics.ended(endpoint, outcome, takes_time.then(|| arrived.elapsed()));
    finish(&mut stream);
}

/// The endpoint of a request by name, and the status of its response.
fn route(shared: &Shared, request: &Request, reply: &mut Reply<'_>) -> (&'static str, Result<u16, Ended>) {
    const GET: &[&str] = &["GET", "HEAD"];
    const POST: &[&str] = &["POST"];
    let known: [(&str, &[&str]); 10] = [
        ("/", GET),
        ("/health", GET),
        ("/metrics", GET),
        (MODELS, GET),
        ("/v1/completions", POST),
        ("/v1/chat/completions", POST),
        ("/v1/embeddings", POST),
        ("/v1/predict", POST),
        ("/v1/rerank", POST),
        ("/classify", POST),
    ];
    let is_model = request.path.strip_prefix(MODELS).is_some_and(|rest| rest.starts_with('/'));
    let path = if is_model { MODELS } else { request.path.as_str() };
    let Some((endpoint, methods)) = known.into_iter().find(|(known, _)| *known == path) else {
        return ("unknown", Err(ApiError::not_found("there is nothing at this address").into()));
    };
    if let Err(error) = is_allowed(shared, request, endpoint) {
        return (endpoint, Err(error.into()));
    }
    if !methods.contains(&request.method.as_str()) {
        let methods = methods.join(", ");
        let error = ApiError::unreadable(405, &format!("only {methods} is answered here"));
        return (endpoint, reply.send(&error.response().with("Allow", methods)).map(|()| error.status));
    }
    let body = &request.body;
    let answered = match endpoint {
        "/v1/completions" => completions(shared, body, reply).map(|()| 200),
        "/v1/chat/completions" => chat(shared, body, reply).map(|()| 200),
        "/v1/embeddings" => embeddings(shared, body, reply).map(|()| 200),
        "/v1/predict" => predict(shared, body, reply).map(|()| 200),
        "/v1/rerank" => rerank(shared, body, reply).map(|()| 200),
        "/classify" => classify(shared, body, reply).map(|()| 200),
        _ => page(shared, endpoint, request).map_err(Ended::from).and_then(|response| {
            reply.send(&response)?;
            Ok(response.code())
        }),
    };
    (endpoint, answered)
}

/// Access to an endpoint: with a token those who show it; the page, which asks for it, and the health are open. Without
/// one, pages of this server and programs.
fn is_allowed(shared: &Shared, request: &Request, endpoint: &str) -> Result<(), ApiError> {
    let Some(token) = &shared.options.token else {
        return foreign(request, &shared.options.names).map_or(Ok(()), |reason| Err(ApiError::forbidden(reason)));
    };
    let shown = request.header("authorization").and_then(|header| header.split_once(' '));
    let is_shown =
        shown.is_some_and(|(kind, shown)| kind.eq_ignore_ascii_case("bearer") && is_same_secret(shown.trim(), token));
    match is_shown || ["/", "/health"].contains(&endpoint) {
        true => Ok(()),
        false => Err(ApiError::unauthorized()),
    }
}

/// Everything but the model.
fn page(shared: &Shared, endpoint: &str, request: &Request) -> Result<Response, ApiError> {
    let model =
        || json!({"id": shared.model.name, "object": "model", "created": shared.model.created, "owned_by": "local"});
    let object = |value: serde_json::Value| Response::new("application/json", value.to_string());
    Ok(match endpoint {
        "/health" if shared.is_stopping() => return Err(ApiError::stopping()),
        "/health" => object(json!({"status": "ok"})),
        MODELS => match request.path_after("/v1/models/") {
            None => object(json!({"object": "list", "data": [model()]})),
            Some(name) if name == shared.model.name => object(model()),
            Some(name) => return Err(ApiError::unknown_model(&name, &shared.model.name)),
        },
        "/metrics" => Response::new(
            "text/plain; version=0.0.4; charset=utf-8",
            shared.metrics.text(shared.queue.length(), shared.cached_tokens),
        ),
        _ => {
            // The script and the style of this response alone are run; nothing is asked of any other host.
            let nonce = random_token().map_err(|error| ApiError::internal(error.to_string()))?;
            let policy = format!(
                "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            );
            let response = Response::new("text/html; charset=utf-8", PAGE.replace("{nonce}", &nonce));
            response.with("Content-Security-Policy", policy).with("X-Frame-Options", "DENY")
        }
    })
}
