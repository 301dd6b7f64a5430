//! Compilation target of a device's kernels.

use super::super::driver::failure;
use super::nvrtc::Image;
use crate::error::Result;

/// The oldest compute capability that the kernels are written for: they use its asynchronous copies and its bf16.
const OLDEST: u32 = 80;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cuda) struct Target {
    /// As the compiler calls it: `sm_90a`, or `compute_90` for the driver to go on with.
    pub(in crate::cuda) architecture: String,
    pub(in crate::cuda) image: Image,
}

impl Target {
    /// Whether the kernels are written for devices of compute capability `major.minor`.
    pub(in crate::cuda) fn check_age((major, minor): (u32, u32)) -> Result<()> {
        if major * 10 + minor >= OLDEST {
            return Ok(());
        }
        let reason = format!(
            "the device has compute capability {major}.{minor}, and the kernels need 8.0 or later (A100, RTX 30 and \
             newer); run on the CPU"
        );
        Err(failure("compile kernels", reason))
    }

    /// The target for a device of compute capability `major.minor`, with a compiler that knows the capabilities
    /// `known`, in rising order: the device's own instructions where the compiler knows them, otherwise the newest it
    /// knows below, which the driver translates.
    ///
    /// # Errors
    /// A device that is too old for the kernels, or a compiler that knows none as old as the device.
    pub(in crate::cuda) fn of((major, minor): (u32, u32), known: &[u32]) -> Result<Self> {
        Self::check_age((major, minor))?;
        let device = major * 10 + minor;
        if known.contains(&device) {
            // The one architecture whose own instructions (asynchronous products) have another name than its common
            // ones.
            let own = if device == 90 { "a" } else { "" };
            return Ok(Target { architecture: format!("sm_{device}{own}"), image: Image::Cubin });
        }
        let below = known.iter().rev().find(|known| (OLDEST..device).contains(*known));
        match below {
            Some(newest) => Ok(Target { architecture: format!("compute_{newest}"), image: Image::Ptx }),
            None => {
                let reason =
                    format!("NVRTC knows nothing as old as compute capability {major}.{minor}; install an older one");
                Err(failure("compile kernels", reason))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [u32; 6] = [75, 80, 86, 89, 90, 100];

    #[test]
    fn a_known_device_gets_its_own_machine_code() {
        for (capability, expected) in [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100")] {
            let target = Target::of(capability, &KNOWN).unwrap();
            assert_eq!(target, Target { architecture: expected.into(), image: Image::Cubin });
        }
    }

    #[test]
    fn a_newer_device_gets_the_newest_the_compiler_knows_for_the_driver_to_translate() {
        let target = |known: &[u32], capability| Target::of(capability, known).unwrap();
        let ptx = |architecture: &str| Target { architecture: architecture.into(), image: Image::Ptx };
        assert_eq!(target(&KNOWN, (12, 0)), ptx("compute_100"));
        assert_eq!(target(&KNOWN, (8, 7)), ptx("compute_86"));
        assert_eq!(target(&[75, 80], (9, 0)), ptx("compute_80"));
    }

    #[test]
    fn a_device_that_is_too_old_for_the_kernels_or_the_compiler_is_refused() {
        let error = Target::of((7, 5), &KNOWN).unwrap_err().to_string();
        assert!(error.contains("compute capability 7.5") && error.contains("8.0"), "{error}");
        let error = Target::of((8, 0), &[90, 100]).unwrap_err().to_string();
        assert!(error.contains("as old as compute capability 8.0"), "{error}");
        assert!(Target::of((8, 0), &[75]).is_err(), "what is below the oldest does not serve");
    }
}
