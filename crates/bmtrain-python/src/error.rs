//! Exceptions: the library's errors with their one-line messages, which have place, reason and fix.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(bmtrain, Error, PyException, "What went wrong, in one line: where, why, and what to do about it.");
create_exception!(bmtrain, ArgumentError, Error, "An argument or a setting is wrong.");
create_exception!(bmtrain, DataError, Error, "A record, a batch or a label is wrong.");
create_exception!(bmtrain, ModelError, Error, "A model directory, or what it is asked for, is wrong.");
create_exception!(bmtrain, OutputError, Error, "A file or a directory cannot be written or read.");
create_exception!(bmtrain, DivergedError, Error, "Training ended in numbers that are not finite.");

/// The exception of an error.
pub(crate) fn raise(error: model_center::Error) -> PyErr {
    use model_center::Error as Library;
    let text = error.to_string();
    // What is an option of the command line there is an entry of a dictionary here.
    let text = text.strip_prefix("--set ").unwrap_or(&text).replace("\n  ", "; ");
    match error {
        Library::Recipe { .. } | Library::Argument { .. } => ArgumentError::new_err(text),
        Library::Data { .. } => DataError::new_err(text),
        Library::Model { .. } => ModelError::new_err(text),
        Library::Output { .. } | Library::File { .. } => OutputError::new_err(text),
        Library::Diverged { .. } => DivergedError::new_err(text),
        _ => Error::new_err(text),
    }
}

/// The name of a value's type, for messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().qualname().map_or_else(|_| "another type".to_owned(), |name| name.to_string())
}

/// An argument of a Python call that is wrong.
pub(crate) fn argument(place: &str, reason: impl Into<String>, fix: &str) -> PyErr {
    raise(model_center::Error::argument(place, reason, fix))
}
