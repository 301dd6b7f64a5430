// Switching stacks; see fiber.h.
#include "fiber.h"

#include <cstdint>

namespace emulator {

#if defined(__x86_64__)

// Saves what a called function must preserve, stores the stack pointer, and goes on where the other stack left off. The
// floating-point control registers are the same on all stacks.
extern "C" void emulator_change_stack(void** save, void* load);
asm(R"(
    .text
    .type emulator_change_stack, @function
emulator_change_stack:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size emulator_change_stack, . - emulator_change_stack
)");

void Fiber::prepare(void* stack, std::size_t bytes, void (*entry)()) {
    constexpr std::size_t saved_registers = 6;
    auto top = reinterpret_cast<std::uintptr_t>(stack) + bytes;
    // At the first instruction of a function the stack pointer is 8 past a multiple of 16, as after a call.
    auto** slot = reinterpret_cast<void**>(top / 16 * 16);
    *--slot = nullptr;
    *--slot = reinterpret_cast<void*>(entry);
    for (std::size_t i = 0; i < saved_registers; ++i) {
        *--slot = nullptr;
    }
    stack_pointer = slot;
}

void Fiber::change(Fiber& from, Fiber& to) {
    emulator_change_stack(&from.stack_pointer, to.stack_pointer);
}

#else

void Fiber::prepare(void* stack, std::size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}

void Fiber::change(Fiber& from, Fiber& to) {
    swapcontext(&from.context, &to.context);
}

#endif

}  // namespace emulator
