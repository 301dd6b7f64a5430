//! Quantities as text.

/// A number of bytes in the unit that fits.
pub fn size(bytes: u64) -> String {
    let mib = bytes as f64 / (1u64 << 20) as f64;
    match mib {
        0.0 => "0".to_owned(),
        mib if mib < 1.0 => format!("{:.1} KiB", mib * 1024.0),
        mib if mib < 10_000.0 => format!("{mib:.1} MiB"),
        mib => format!("{:.1} GiB", mib / 1024.0),
    }
}
