//! The CUDA C++ sources of BMTrain, carried as strings so that every crate can be packaged alone.
//!
//! Nothing is compiled here: `bmtrain-core` hands a source to the run-time compiler of the device it runs on, and its
//! tests compile the same text for the processor. Each source is one `.cu` file beside this crate's manifest, named
//! after the stem of its kernels in `bmtrain-core`.
#![forbid(unsafe_code)]

/// What stands in front of every source: vocabulary and sums over a block. Includes no header.
pub const PRELUDE: &str = include_str!("../prelude.cuh");

/// Layer norm with a residual in front. Defines the kernel `norm_forward_f32`.
pub const NORM_FORWARD: Source = Source { file: "norm_forward.cu", code: include_str!("../norm_forward.cu") };

/// Every source, in the order of their names.
pub const SOURCES: &[Source] = &[NORM_FORWARD];

/// One file of CUDA C++.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Name of the file, the one that compilers report.
    pub file: &'static str,
    /// What stands in it.
    pub code: &'static str,
}

impl Source {
    /// The whole text for a compiler: the prelude, then the code, with lines counted as in their files.
    pub fn text(&self) -> String {
        format!("#line 1 \"prelude.cuh\"\n{PRELUDE}\n#line 1 \"{}\"\n{}", self.file, self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_source_includes_a_header() {
        // The run-time compiler is given no folder to look in.
        for source in SOURCES {
            assert!(!source.text().contains("#include"), "{}", source.file);
        }
    }

    #[test]
    fn every_source_makes_its_kernels_known_to_the_emulator() {
        for source in SOURCES {
            assert!(source.code.contains("BMTRAIN_KERNEL("), "{}", source.file);
        }
    }

    #[test]
    fn the_text_keeps_the_lines_of_the_file() {
        let text = NORM_FORWARD.text();
        let (_, code) = text.split_once("#line 1 \"norm_forward.cu\"\n").unwrap();
        assert_eq!(code, NORM_FORWARD.code);
    }
}
