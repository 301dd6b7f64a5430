//! NumPy arrays from and to the library's vectors. Arrays that come in may have any integer or float type; those that
//! go out take over the memory of the vector.

use crate::error::argument;
use crate::session::HostTensor;
use numpy::{PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Numbers of an array with its shape.
pub(crate) struct Shaped<T> {
    pub(crate) values: Vec<T>,
    pub(crate) shape: Vec<usize>,
}

/// Numbers of an array.
pub(crate) enum Numbers {
    Whole(Shaped<i64>),
    Real(Shaped<f32>),
}

/// The numbers of anything that NumPy takes for an array.
pub(crate) fn numbers(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Numbers> {
    let numpy = object.py().import("numpy")?;
    let array = numpy.call_method1("asarray", (object,)).map_err(|error| {
        argument(
            name,
            format!("NumPy makes no array of it: {error}"),
            "give an array, or a list of rows of equal length",
        )
    })?;
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    match kind.as_str() {
        "i" | "u" | "b" => shaped(&array).map(Numbers::Whole),
        "f" => shaped(&array).map(Numbers::Real),
        other => Err(argument(name, format!("its elements are of NumPy's kind {other:?}"), "give an array of numbers")),
    }
}

/// The elements of an array as another type. NumPy copies them where theirs is not this one.
fn shaped<T: numpy::Element>(array: &Bound<'_, PyAny>) -> PyResult<Shaped<T>> {
    let options = PyDict::new(array.py());
    options.set_item("dtype", numpy::dtype::<T>(array.py()))?;
    let array = array.py().import("numpy")?.call_method("ascontiguousarray", (array,), Some(&options))?;
    let array: PyReadonlyArrayDyn<'_, T> = array.extract()?;
    Ok(Shaped { values: array.to_vec()?, shape: array.shape().to_vec() })
}

/// Whole numbers, such as token ids.
pub(crate) fn whole(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Shaped<i64>> {
    match numbers(name, object)? {
        Numbers::Whole(shaped) => Ok(shaped),
        Numbers::Real(_) => Err(argument(name, "its elements are floats", "give integers")),
    }
}

/// Whole numbers of these dimensions.
pub(crate) fn whole_of(name: &str, object: &Bound<'_, PyAny>, shape: &[usize]) -> PyResult<Vec<i64>> {
    let found = whole(name, object)?;
    if found.shape != shape {
        let reason = format!("its shape is {:?}, and input_ids have {shape:?}", found.shape);
        return Err(argument(name, reason, "give one for each token"));
    }
    Ok(found.values)
}

/// Token ids of one text.
pub(crate) fn ids(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let Shaped { values, shape } = whole(name, object)?;
    if shape.len() != 1 {
        return Err(argument(name, format!("it has {} dimensions", shape.len()), "give the ids of one text"));
    }
    let id = |value: i64| {
        u32::try_from(value).map_err(|_| argument(name, format!("{value} is not a token id"), "give ids from 0 on"))
    };
    values.into_iter().map(id).collect()
}

/// An array that takes over a vector.
pub(crate) fn array<'py, T: numpy::Element>(
    py: Python<'py>,
    values: Vec<T>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    PyArray1::from_vec(py, values).reshape(shape.to_vec())
}

/// The array of a tensor.
pub(crate) fn of_tensor(py: Python<'_>, tensor: HostTensor) -> PyResult<Bound<'_, PyArrayDyn<f32>>> {
    array(py, tensor.values, &tensor.shape)
}

/// Rows and length of two-dimensional ids.
pub(crate) fn rows_and_length(name: &str, shape: &[usize]) -> PyResult<[usize; 2]> {
    match shape {
        [rows, length] if *rows > 0 && *length > 0 => Ok([*rows, *length]),
        _ => {
            let fix = "give rows of equal length, padded and with an attention_mask where texts are shorter";
            Err(argument(name, format!("its shape is {shape:?}"), fix))
        }
    }
}
