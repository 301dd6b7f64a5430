//! Catalogue of the libraries, their names, and how a user gets them.

#[derive(Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Wanted {
    pub(in crate::cuda) name: &'static str,
    /// Description, and the features that need it.
    pub(super) what: &'static str,
    /// Heading of errors.
    pub(in crate::cuda) call: &'static str,
    /// File names, each with the major version of CUDA that it belongs to, the newest first. Where none is known it
    /// fits all.
    files: &'static [(Option<u32>, &'static str)],
    /// The Python packages of CUDA 13 and CUDA 12.
    packages: [&'static str; 2],
    /// Debian's and Red Hat's package from NVIDIA's own repository.
    system: &'static str,
}

pub(in crate::cuda) const NVRTC: Wanted = Wanted {
    name: "NVRTC",
    what: "NVIDIA's run-time compiler (NVRTC), which kernels are compiled with",
    call: "open NVRTC",
    files: &[(Some(13), "libnvrtc.so.13"), (Some(12), "libnvrtc.so.12")],
    packages: ["'nvidia-cuda-nvrtc==13.*'", "nvidia-cuda-nvrtc-cu12"],
    system: "cuda-nvrtc-13-0",
};

pub(in crate::cuda) const CUBLASLT: Wanted = Wanted {
    name: "cuBLASLt",
    what: "NVIDIA's matrix products (cuBLASLt)",
    call: "open cuBLASLt",
    files: &[(Some(13), "libcublasLt.so.13"), (Some(12), "libcublasLt.so.12")],
    packages: ["'nvidia-cublas==13.*'", "nvidia-cublas-cu12"],
    system: "libcublas-13-0",
};

pub(in crate::cuda) const NCCL: Wanted = Wanted {
    name: "NCCL",
    what: "NVIDIA's communication between devices (NCCL), which runs on several devices need",
    call: "open NCCL",
    // Packages for running programs have the first one only.
    files: &[(None, "libnccl.so.2"), (None, "libnccl.so")],
    packages: ["nvidia-nccl-cu13", "nvidia-nccl-cu12"],
    system: "libnccl2",
};

pub(in crate::cuda) const ALL: [&Wanted; 3] = [&NVRTC, &CUBLASLT, &NCCL];

impl Wanted {
    /// File names in the order in which they are tried: those that fit the driver, then the others, because libraries
    /// of a later major version than the driver's do not work with it.
    pub(super) fn files_for(&self, driver_major: Option<u32>) -> [Vec<&'static str>; 2] {
        let fits = |major: &Option<u32>| match (major, driver_major) {
            (Some(major), Some(driver)) => *major <= driver,
            _ => true,
        };
        let (fitting, others): (Vec<_>, Vec<_>) = self.files.iter().copied().partition(|(major, _)| fits(major));
        [fitting, others].map(|files| files.into_iter().map(|(_, file)| file).collect())
    }

    pub(super) fn fix(&self) -> String {
        let [cuda13, cuda12] = self.packages;
        let Wanted { system, .. } = self;
        format!(
            "get it with `pip install {cuda13}` (for a driver of CUDA 12: {cuda12}) or as the package {system} of \
             NVIDIA's repository, or name its directory (BMTRAIN_CUDA_LIB_DIR)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_the_drivers_version_are_tried_first() {
        assert_eq!(NVRTC.files_for(Some(12)), [["libnvrtc.so.12"], ["libnvrtc.so.13"]]);
        for driver in [None, Some(13), Some(14)] {
            assert_eq!(NVRTC.files_for(driver), [vec!["libnvrtc.so.13", "libnvrtc.so.12"], vec![]]);
        }
        assert_eq!(NCCL.files_for(Some(12)), [vec!["libnccl.so.2", "libnccl.so"], vec![]]);
    }
}
