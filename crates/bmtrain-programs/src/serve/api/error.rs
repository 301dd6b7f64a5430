//! Errors in the form of OpenAI's API.

use crate::Error;
use crate::http::Response;
use serde_json::json;

/// Seconds after which a refused request may be sent again.
const RETRY_AFTER: &str = "1";

/// Why a request has no result.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::serve) struct ApiError {
    pub(in crate::serve) status: u16,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, kind, message: message.into(), param: None, code: None }
    }

    /// A field that is wrong.
    pub(in crate::serve) fn field(name: &str, message: impl Into<String>) -> Self {
        ApiError { param: Some(name.to_owned()), ..ApiError::invalid(message) }
    }

    /// A request that is wrong.
    pub(in crate::serve) fn invalid(message: impl Into<String>) -> Self {
        ApiError::new(400, "invalid_request_error", message)
    }

    /// A request that cannot be read.
    pub(in crate::serve) fn unreadable(status: u16, message: &str) -> Self {
        ApiError::new(status, "invalid_request_error", message)
    }

    /// A field with an effect that is not supported.
    pub(in crate::serve) fn unsupported(name: &str) -> Self {
        let message = format!("the field {name:?} would change the result and is not supported: leave it out");
        ApiError::field(name, message).code("unsupported_parameter")
    }

    /// Too many tokens for the model's longest sequence.
    pub(in crate::serve) fn too_long(name: &str, message: impl Into<String>) -> Self {
        ApiError::field(name, message).code("context_length_exceeded")
    }

    /// An input with more tokens than the model takes.
    pub(in crate::serve) fn beyond(name: &str, longest: usize) -> Self {
        ApiError::too_long(name, format!("it has more than the {longest} tokens that the model takes"))
    }

    pub(in crate::serve) fn not_found(message: impl Into<String>) -> Self {
        ApiError::new(404, "invalid_request_error", message).code("not_found")
    }

    pub(in crate::serve) fn unknown_model(name: &str, own: &str) -> Self {
        let error = ApiError::not_found(format!("the model {name:?} is not served here, {own:?} is"));
        ApiError { param: Some("model".to_owned()), ..error }.code("model_not_found")
    }

    pub(in crate::serve) fn unauthorized() -> Self {
        let message = "the token is missing or wrong: send the header Authorization: Bearer TOKEN";
        ApiError::new(401, "invalid_request_error", message).code("invalid_api_key")
    }

    pub(in crate::serve) fn forbidden(message: &str) -> Self {
        ApiError::new(403, "invalid_request_error", message)
    }

    /// More requests wait than may.
    pub(in crate::serve) fn queue_is_full(most: usize) -> Self {
        let message = format!("{most} requests wait already: send it again later");
        ApiError::new(429, "rate_limit_error", message).code("queue_is_full")
    }

    pub(in crate::serve) fn too_many_connections() -> Self {
        ApiError::new(503, "server_error", "too many connections are open").code("too_many_connections")
    }

    pub(in crate::serve) fn stopping() -> Self {
        ApiError::new(503, "server_error", "the server is stopping").code("stopping")
    }

    pub(in crate::serve) fn timed_out() -> Self {
        ApiError::new(504, "server_error", "the request took longer than --timeout").code("timeout")
    }

    pub(in crate::serve) fn internal(message: impl Into<String>) -> Self {
        ApiError::new(500, "server_error", message)
    }

    pub(in crate::serve) fn code(self, code: &'static str) -> Self {
        ApiError { code: Some(code), ..self }
    }

    /// The error of an input that the library refused; `param` is the field it came from.
    pub(in crate::serve) fn of_input(error: &Error, param: &str) -> Self {
        match error {
            Error::Data { reason, fix, .. } => ApiError::field(param, format!("{reason} ({fix})")),
            Error::Argument { place, reason, fix } => ApiError::field(place, format!("{reason} ({fix})")),
            Error::Model { .. } => ApiError::field(param, error.to_string()),
            _ => ApiError::internal(error.to_string()),
        }
    }

    /// The object of a response or of an event.
    pub(in crate::serve) fn json(&self) -> String {
        let ApiError { kind, message, param, code, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}}).to_string()
    }

    pub(in crate::serve) fn response(&self) -> Response {
        let response = Response::new("application/json", self.json()).status(self.status);
        match self.status {
            401 => response.with("WWW-Authenticate", "Bearer"),
            429 | 503 => response.with("Retry-After", RETRY_AFTER),
            _ => response,
        }
    }
}
