//! Zstandard, by its C library with the feature `zstd`; without it an error that names the feature.

use std::io::{self, BufRead, Read};

/// The decompressed bytes of `packed`.
///
/// # Errors
/// The library's; [`io::ErrorKind::Unsupported`] in a build without the feature.
#[cfg(feature = "zstd")]
pub(super) fn decoder<R: BufRead>(packed: R) -> io::Result<impl Read> {
    zstd::Decoder::with_buffer(packed)
}

#[cfg(not(feature = "zstd"))]
pub(super) fn decoder<R: BufRead>(_: R) -> io::Result<impl Read> {
    Err::<io::Empty, _>(io::Error::new(
        io::ErrorKind::Unsupported,
        "this program was built without the feature zstd: build it with the feature, a default of the programs",
    ))
}
