//! Depends on the kernel sources alone: every one is whole CUDA C++ text.

fn main() {
    for source in bmtrain_kernels::SOURCES {
        assert!(source.text().contains("BMTRAIN_KERNEL("), "{} has no kernel", source.file);
    }
}
