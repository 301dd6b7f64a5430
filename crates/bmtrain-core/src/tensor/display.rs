//! Printing of tensors, for examples and debugging: nested brackets, long axes abbreviated.

use super::Tensor;
use crate::dtype::{DType, Element};
use crate::error::Result;
use half::{bf16, f16};
use std::fmt;

/// Axes longer than this are abbreviated to their first and last [`EDGE`] items.
const MAX_ITEMS: usize = 10;
/// Items at each end of an abbreviated axis.
const EDGE: usize = 3;

/// Prints the values, which waits for the compute lane, then dtype and shape: `[[1, 2], [3, 4]] f32[2, 2]`. A tensor
/// whose values cannot be read, because a kernel failed, prints the error instead.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match texts(self) {
            Ok(texts) => axis(f, &texts, self.shape().dims())?,
            Err(error) => write!(f, "<{error}>")?,
        }
        write!(f, " {}{:?}", self.dtype(), self.shape().dims())
    }
}

fn texts(tensor: &Tensor) -> Result<Vec<String>> {
    fn of<T: Element>(tensor: &Tensor, text: impl Fn(T) -> String) -> Result<Vec<String>> {
        Ok(tensor.to_vec::<T>()?.into_iter().map(text).collect())
    }
    match tensor.dtype() {
        DType::F32 => of(tensor, |value: f32| value.to_string()),
        DType::F16 => of(tensor, |value: f16| value.to_string()),
        DType::BF16 => of(tensor, |value: bf16| value.to_string()),
        DType::I64 => of(tensor, |value: i64| value.to_string()),
        DType::I32 => of(tensor, |value: i32| value.to_string()),
        DType::U8 => of(tensor, |value: u8| value.to_string()),
        // Bytes of blocks mean nothing to a reader: type and shape follow.
        DType::Blocks(_) => Ok(vec!["..".to_owned(); tensor.elements()]),
    }
}

fn axis(f: &mut fmt::Formatter<'_>, texts: &[String], dims: &[usize]) -> fmt::Result {
    let Some((&items, inner)) = dims.split_first() else {
        return f.write_str(texts.first().map_or("", String::as_str));
    };
    let stride: usize = inner.iter().product();
    f.write_str("[")?;
    for item in 0..items {
        if items > MAX_ITEMS && (EDGE..items - EDGE).contains(&item) {
            if item == EDGE {
                f.write_str(", ...")?;
            }
            continue;
        }
        if item > 0 {
            f.write_str(", ")?;
        }
        axis(f, &texts[item * stride..(item + 1) * stride], inner)?;
    }
    f.write_str("]")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn values_dtype_and_shape_are_printed() {
        let device = Device::cpu(1).unwrap();
        let matrix = Tensor::from_slice(&device, [2, 2], &[1.0f32, -2.5, 3.0, 4.0]).unwrap();
        assert_eq!(matrix.to_string(), "[[1, -2.5], [3, 4]] f32[2, 2]");
        assert_eq!(Tensor::full(&device, [], DType::BF16, 0.5).unwrap().to_string(), "0.5 bf16[]");
        assert_eq!(Tensor::zeros(&device, [2, 0], DType::U8).unwrap().to_string(), "[[], []] u8[2, 0]");
    }

    #[test]
    fn long_axes_are_abbreviated() {
        let device = Device::cpu(1).unwrap();
        let long = Tensor::arange(&device, 0..100).unwrap();
        assert_eq!(long.to_string(), "[0, 1, 2, ..., 97, 98, 99] i64[100]");
        assert_eq!(Tensor::arange(&device, -1..9).unwrap().to_string(), "[-1, 0, 1, 2, 3, 4, 5, 6, 7, 8] i64[10]");
    }
}
