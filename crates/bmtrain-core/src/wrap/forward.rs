//! Methods that a wrapping backend passes on unchanged, in one line.

/// The methods of [`Backend`](crate::Backend) that a wrapper leaves to the backend in its field `inner`, by their
/// names. Of those that the trait provides, a wrapper that forgets one would hide what the inner backend can do:
/// `provided` stands for all of them but `on_host`, which brings `fill_on_host`, and a new one is added there.
///
/// ```
/// # use bmtrain_core::backend::{Backend, Kernels, Lane};
/// # use bmtrain_core::kernel::Kernel;
/// # use std::sync::Arc;
/// #[derive(Debug)]
/// struct Quiet {
///     inner: Arc<dyn Backend>,
/// }
/// # impl Kernels for Quiet {
/// #     fn launch(&self, kernel: Kernel<'_>, on: Lane) -> bmtrain_core::Result<()> {
/// #         self.inner.launch(kernel, on)
/// #     }
/// # }
///
/// impl Backend for Quiet {
///     bmtrain_core::forward_to_inner!(id memory upload download copy on_host mark wait sync provided);
///
///     fn name(&self) -> String {
///         "quiet".into()
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_to_inner {
    ($($method:ident)+) => {
        $($crate::forward_to_inner!(@$method);)+
    };
    (@name) => {
        fn name(&self) -> String {
            self.inner.name()
        }
    };
    (@id) => {
        fn id(&self) -> $crate::backend::DeviceId {
            self.inner.id()
        }
    };
    (@memory) => {
        $crate::forward_to_inner!(@allocate);

        fn slab_bytes(&self) -> usize {
            self.inner.slab_bytes()
        }
    };
    // Without the length of slabs.
    (@allocate) => {
        fn allocate(&self, bytes: usize) -> $crate::Result<$crate::backend::Memory> {
            self.inner.allocate(bytes)
        }

        fn release(&self, memory: $crate::backend::Memory) {
            self.inner.release(memory);
        }
    };
    (@upload) => {
        fn upload(&self, host: &[u8], to: $crate::buffer::ViewMut<'_>, on: $crate::Lane) -> $crate::Result<()> {
            self.inner.upload(host, to, on)
        }
    };
    (@download) => {
        fn download(&self, from: $crate::buffer::View<'_>, host: &mut [u8], on: $crate::Lane) -> $crate::Result<()> {
            self.inner.download(from, host, on)
        }
    };
    (@copy) => {
        fn copy(
            &self,
            from: $crate::buffer::View<'_>,
            to: $crate::buffer::ViewMut<'_>,
            on: $crate::Lane,
        ) -> $crate::Result<()> {
            self.inner.copy(from, to, on)
        }
    };
    (@on_host) => {
        fn on_host(
            &self,
            read: Option<$crate::buffer::View<'_>>,
            write: Option<$crate::buffer::ViewMut<'_>>,
            work: $crate::backend::HostWork,
            on: $crate::Lane,
        ) -> $crate::Result<()> {
            self.inner.on_host(read, write, work, on)
        }

        fn fill_on_host(
            &self,
            read: Option<$crate::buffer::View<'_>>,
            write: $crate::buffer::ViewMut<'_>,
            work: $crate::backend::HostWork,
            on: $crate::Lane,
        ) -> $crate::Result<()> {
            self.inner.fill_on_host(read, write, work, on)
        }
    };
    (@mark) => {
        fn mark(&self, on: $crate::Lane) -> $crate::Result<$crate::backend::Mark> {
            self.inner.mark(on)
        }
    };
    (@wait) => {
        fn wait(&self, on: $crate::Lane, mark: $crate::backend::Mark) -> $crate::Result<()> {
            self.inner.wait(on, mark)
        }
    };
    (@sync) => {
        fn sync(&self, on: $crate::Lane) -> $crate::Result<()> {
            self.inner.sync(on)
        }
    };
    (@provided) => {
        fn has_reached(&self, mark: $crate::backend::Mark) -> Option<bool> {
            self.inner.has_reached(mark)
        }

        $crate::forward_to_inner!(@abilities);
    };
    // Without marks, which a wrapper may make itself.

    (@abilities) => {
        fn host_threads(&self) -> Option<std::sync::Arc<$crate::threads::Threads>> {
            self.inner.host_threads()
        }

        fn fuses_gradients(&self) -> bool {
            self.inner.fuses_gradients()
        }

        fn aligns_products(&self) -> bool {
            self.inner.aligns_products()
        }

        fn multiplies_fp8(&self) -> bool {
            self.inner.multiplies_fp8()
        }

        fn fuses_derivative(&self, activation: $crate::kernel::Activation, dtype: $crate::DType) -> bool {
            self.inner.fuses_derivative(activation, dtype)
        }

        fn release_waits(&self) -> bool {
            self.inner.release_waits()
        }

        fn memory_is_host(&self) -> bool {
            self.inner.memory_is_host()
        }

        fn scratch(&self) -> Vec<(&'static str, usize)> {
            self.inner.scratch()
        }
    };
}
