//! Units compiled for a device by NVIDIA's run-time compiler, and kept on disk.

mod cache;
mod nvrtc;
mod target;

pub(super) use nvrtc::{Image, Nvrtc};
pub(super) use target::Target;

use super::CudaOptions;
use super::driver::Properties;
use crate::error::Result;
use bmtrain_kernels::Unit;
pub(super) use cache::make_private;
use cache::{Cache, Key};
use std::sync::{Once, OnceLock};

#[derive(Debug)]
pub(super) struct Compiler {
    options: CudaOptions,
    cache: Option<Cache>,
    /// Opened with the first unit: a program that launches nothing needs no compiler.
    nvrtc: OnceLock<Result<Nvrtc>>,
    warned: Once,
}

impl Compiler {
    /// With a compiler that was found and a cache where the options declare it.
    pub(super) fn new(options: &CudaOptions) -> Self {
        let cache = options.cache.clone().map(Cache::new);
        Compiler { options: options.clone(), cache, nvrtc: OnceLock::new(), warned: Once::new() }
    }

    /// Whether a unit can be compiled for a device: units for one architecture alone need a compiler that knows it.
    pub(super) fn serves(&self, unit: &Unit, properties: Properties) -> bool {
        let Some(only) = unit.only else { return true };
        let Ok(nvrtc) = self.nvrtc() else { return false };
        Target::of(properties.capability, nvrtc.known()).is_ok_and(|target| target.architecture == only)
    }

    fn nvrtc(&self) -> Result<&Nvrtc> {
        self.nvrtc.get_or_init(|| Nvrtc::open(&self.options)).as_ref().map_err(Clone::clone)
    }

    /// The kernels of a unit for a device, from the cache if they are there.
    pub(super) fn image(&self, unit: &Unit, properties: Properties) -> Result<Vec<u8>> {
        let nvrtc = self.nvrtc()?;
        let target = Target::of(properties.capability, nvrtc.known())?;
        if target.image == Image::Ptx {
            self.warned.call_once(|| warn_of_translation(nvrtc, properties.capability, &target));
        }
        let (text, options) = (unit.text(), options(&target));
        let key = Key::of(unit.name, &text, &options, nvrtc.version());
        if let Some(image) = self.cache.as_ref().and_then(|cache| cache.read(&key)) {
            return Ok(image);
        }
        tracing::debug!(unit = unit.name, architecture = target.architecture, "compiling kernels");
        let compiled = nvrtc.compile(unit.source.file, &text, &options, target.image)?;
        if !compiled.log.is_empty() {
            tracing::warn!(unit = unit.name, log = compiled.log, "the kernel compiler printed warnings");
        }
        if let Some(cache) = &self.cache {
            cache.keep(&key, &compiled.image);
        }
        Ok(compiled.image)
    }
}

fn warn_of_translation(nvrtc: &Nvrtc, (major, minor): (u32, u32), target: &Target) {
    let ((compiler, release), architecture) = (nvrtc.version(), &target.architecture);
    tracing::warn!(
        "NVRTC {compiler}.{release} does not know compute capability {major}.{minor}: kernels are compiled for \
         {architecture} and \
         translated by the driver, which may be slower; a newer NVRTC does better"
    );
}

/// Compiler options of every unit. Nothing that changes arithmetic: divisions and square roots are rounded right.
fn options(target: &Target) -> Vec<String> {
    vec![format!("--gpu-architecture={}", target.architecture), "-std=c++17".into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::libraries_for_tests;

    const PROPERTIES: Properties = Properties { capability: (9, 0), multiprocessors: 132, shared_bytes: 227 << 10 };

    /// Name of the unit that compiles fastest.
    const UNIT: &str = "probe";

    fn is_elf(image: &[u8]) -> bool {
        image.starts_with(b"\x7fELF")
    }

    /// With the real compiler, which needs no driver. One unit: `scripts/claims.sh kernels-compile` goes through all of
    /// them.
    #[test]
    fn a_unit_compiles_for_ampere_and_hopper_and_is_taken_from_the_cache_again() {
        let Some(options) = libraries_for_tests("a_unit_compiles_for_ampere_and_hopper") else { return };
        let directory = tempfile::tempdir().unwrap();
        let options = CudaOptions { cache: Some(directory.path().into()), ..options };
        let unit = Unit::named(UNIT).unwrap();
        for capability in [(8, 0), (9, 0)] {
            let properties = Properties { capability, ..PROPERTIES };
            let image = Compiler::new(&options).image(unit, properties).unwrap();
            assert!(is_elf(&image), "{capability:?}");
            assert_eq!(Compiler::new(&options).image(unit, properties).unwrap(), image);
        }
        let files: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 2);
        // A damaged file is made again, the same as before.
        let whole = std::fs::read(&files[0]).unwrap();
        std::fs::write(&files[0], &whole[..whole.len() / 2]).unwrap();
        for capability in [(8, 0), (9, 0)] {
            Compiler::new(&options).image(unit, Properties { capability, ..PROPERTIES }).unwrap();
        }
        assert_eq!(std::fs::read(&files[0]).unwrap(), whole);
    }

    #[test]
    fn a_device_that_the_compiler_does_not_know_gets_a_text_for_the_driver() {
        let Some(options) = libraries_for_tests("a_device_that_the_compiler_does_not_know") else { return };
        let properties = Properties { capability: (99, 0), ..PROPERTIES };
        let image = Compiler::new(&options).image(Unit::named(UNIT).unwrap(), properties).unwrap();
        let text = String::from_utf8(image).unwrap();
        assert!(text.contains(".version") && text.contains(".target sm_"), "{text:.200}");
    }

    #[test]
    fn a_mistake_in_a_source_is_reported_with_its_line_in_the_compilers_words() {
        let Some(options) = libraries_for_tests("a_mistake_in_a_source") else { return };
        let nvrtc = Nvrtc::open(&options).unwrap();
        let compile = |text: &str, option: &str| {
            nvrtc.compile("wrong.cu", text, &[option.to_owned()], Image::Cubin).unwrap_err().to_string()
        };
        let error = compile("#line 7 \"wrong.cu\"\nextern \"C\" __global__ void f() { x = 1; }\n", "-std=c++17");
        assert!(error.contains("wrong.cu(7)") && error.contains("\"x\" is undefined"), "{error}");
        let error = compile("", "--gpu-architecture=sm_1");
        assert!(error.contains("invalid value for --gpu-architecture"), "{error}");
    }

    #[test]
    fn a_missing_compiler_is_an_error() {
        let nowhere = CudaOptions { libraries: vec!["/nowhere".into()], ..CudaOptions::default() };
        match Compiler::new(&nowhere).image(Unit::named(UNIT).unwrap(), PROPERTIES) {
            // The system has one.
            Ok(image) => assert!(is_elf(&image)),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("NVRTC") && error.contains("/nowhere") && error.contains("pip"), "{error}");
            }
        }
    }
}
