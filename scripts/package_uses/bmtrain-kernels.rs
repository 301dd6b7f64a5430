//! Depends on the kernel sources alone: every unit is whole CUDA C++ text.

fn main() {
    for unit in bmtrain_kernels::UNITS {
        assert!(unit.text().contains("BMTRAIN_KERNEL("), "{} has no kernel", unit.name);
    }
}
