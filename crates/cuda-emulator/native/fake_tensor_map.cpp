// Descriptions of tensors that the copy engine reads, checked as the driver checks them. Of the kinds that there are,
// only the one that the kernels use: four dimensions of 16-bit floats, boxes with rows of 128 bytes whose places are
// changed by their row.
#include "cuda_emulator.h"
#include "fake_device.h"
#include "tensor_core.h"

#include <cstring>

extern "C" fake::Status cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address,
                                               const unsigned long long* sizes, const unsigned long long* strides,
                                               const unsigned* box, const unsigned* steps, int interleave, int swizzle,
                                               int promotion, int fill) {
    constexpr int f16 = 6, bf16 = 9, swizzle_of_128_bytes = 3;
    constexpr unsigned most_of_box = 256, row_bytes = 128;
    const bool known = (type == f16 || type == bf16) && rank == 4 && interleave == 0 &&
        swizzle == swizzle_of_128_bytes && promotion >= 0 && promotion <= 3 && fill == 0;
    const auto remainder = [](void* place, std::uintptr_t of) { return reinterpret_cast<std::uintptr_t>(place) % of; };
    if (!known || remainder(map, 64) != 0 || remainder(address, 16) != 0) {
        return fake::invalid_value;
    }
    if (fake::current_context == nullptr) {
        return fake::invalid_context;
    }
    emulator::TensorDescription description = {};
    description.magic = emulator::tensor_magic;
    description.address = reinterpret_cast<std::uintptr_t>(address);
    for (unsigned i = 0; i < rank; ++i) {
        if (sizes[i] == 0 || sizes[i] > 1ull << 32 || box[i] == 0 || box[i] > most_of_box || steps[i] != 1) {
            return fake::invalid_value;
        }
        if (i + 1 < rank && (strides[i] % 16 != 0 || strides[i] == 0 || strides[i] >= 1ull << 40)) {
            return fake::invalid_value;
        }
        description.size[i] = static_cast<unsigned>(sizes[i]);
        description.box[i] = box[i];
        if (i + 1 < rank) {
            description.stride[i] = strides[i];
        }
    }
    if (box[0] * 2 != row_bytes || box[1] != 1 || box[3] != 1) {
        return fake::invalid_value;
    }
    std::memset(map, 0, 128);
    std::memcpy(map, &description, sizeof description);
    return fake::success;
}
