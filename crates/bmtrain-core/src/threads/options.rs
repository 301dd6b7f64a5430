//! Options of a CPU backend.

use super::placement::Placement;
use crate::error::{Error, Result};
use crate::simd::InstructionSet;
use crate::suggest::closest;
use std::borrow::Cow;
use std::ffi::OsString;

/// Settings of a CPU backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads of the backend's pool, at least one.
    pub threads: usize,
    /// The instruction set of its kernels.
    pub instruction_set: InstructionSet,
    /// Placement of the threads.
    pub placement: Placement,
    /// Round the f32 factors of matrix products to bf16 where the instruction set multiplies bf16, which is two to six
    /// times as fast; sums and results stay f32. Where it does not, products are as without.
    pub bf16_products: bool,
}

impl CpuOptions {
    /// The environment variable that [`CpuOptions::of_environment`] reads.
    pub const VARIABLE: &'static str = "BMTRAIN_CPU";

    /// This many threads anywhere and the fastest instruction set of the processor.
    pub fn new(threads: usize) -> Self {
        CpuOptions {
            threads,
            instruction_set: InstructionSet::best(),
            placement: Placement::ANYWHERE,
            bf16_products: false,
        }
    }

    /// As [`CpuOptions::new`], with the instruction set that `BMTRAIN_CPU` names if the environment has it. A library
    /// never asks the environment by itself: programs do, and pass what `std::env::var_os` answers.
    ///
    /// # Errors
    /// [`Error::NoDevice`] for an unknown set and for one that the processor does not have.
    pub fn of_environment(threads: usize, lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let mut options = CpuOptions::new(threads);
        if let Some(text) = lookup(Self::VARIABLE).filter(|text| !text.is_empty()) {
            let text = text.to_string_lossy();
            let refused = |error| match error {
                Error::Argument { reason, .. } => {
                    let asked = format!("cpu with {}={text}", Self::VARIABLE);
                    Error::NoDevice { asked, reason, fix: fix_of(&text) }
                }
                other => other,
            };
            options.instruction_set = text.parse().map_err(refused)?;
            options.instruction_set.check().map_err(refused)?;
        }
        Ok(options)
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.threads == 0 {
            return Err(Error::argument("threads", "at least one thread is needed"));
        }
        self.placement.check()?;
        self.instruction_set.check()
    }
}

/// Fix for a text that names no instruction set of this processor: the set that is meant, if the processor has it.
fn fix_of(text: &str) -> Cow<'static, str> {
    let meant = closest(text.trim(), InstructionSet::ALL.map(InstructionSet::name));
    let has: Vec<&str> = InstructionSet::available().map(InstructionSet::name).collect();
    match meant.filter(|name| has.contains(name)) {
        Some(name) => format!("did you mean {}={name}?", CpuOptions::VARIABLE).into(),
        None => format!("set {} to one of {}, or unset it", CpuOptions::VARIABLE, has.join(", ")).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_an_instruction_set_of_this_processor() {
        let of = |text: &'static str| CpuOptions::of_environment(3, &move |_| Some(text.into()));
        assert_eq!(of("").unwrap(), CpuOptions::new(3));
        assert_eq!(of("portable").unwrap().instruction_set, InstructionSet::Portable);
        let error = of("sse9").unwrap_err().to_string();
        assert!(
            error.contains("BMTRAIN_CPU")
                && error.contains("portable, neon, neon_bf16, avx2, avx512, avx512_bf16, amx"),
            "{error}"
        );
        for set in InstructionSet::ALL.into_iter().filter(|set| !set.is_available()) {
            let error = of(set.name()).unwrap_err().to_string();
            assert!(error.contains("this processor does not have"), "{error}");
            // Not another set that is written nearly so, such as avx2 for avx512.
            assert!(error.contains("set BMTRAIN_CPU to one of portable, "), "{error}");
        }
    }

    #[test]
    fn a_name_that_is_nearly_right_is_answered_with_the_right_one() {
        let of =
            |text: &'static str| CpuOptions::of_environment(3, &move |_| Some(text.into())).unwrap_err().to_string();
        for near in ["PORTABLE", "Portable ", "portabel", "protable"] {
            assert!(of(near).ends_with("did you mean BMTRAIN_CPU=portable?"), "{}", of(near));
        }
        assert!(of("fastest").contains("; set BMTRAIN_CPU to one of portable"), "{}", of("fastest"));
    }
}
