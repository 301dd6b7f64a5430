// What sanitizers must be told about an emulated device; nothing where the library is built without one.
//
// The race checker sees every CUDA thread as a thread of its own that is ordered with others only by what the device
// promises. The emulator itself, whose threads take turns, is compiled without instrumentation, or it would be
// reported.
#pragma once

#include <cstddef>

#if defined(EMULATOR_THREADS_CHECKED)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#elif defined(EMULATOR_ADDRESSES_CHECKED)
#include <sanitizer/asan_interface.h>
#endif

namespace sanitizer {

#if defined(EMULATOR_THREADS_CHECKED)

inline constexpr bool checks_threads = true;

// A thread of the emulated device, which lives on, or the one that runs.
inline void* make_thread() { return __tsan_create_fiber(0); }
inline void* this_thread() { return __tsan_get_current_fiber(); }
// The caller continues as `thread`; that alone does not order it after the thread.
inline void become(void* thread) { __tsan_switch_to_fiber(thread, 1); }

// What was done before `release` is ordered before what is done after an `acquire` of the same place that follows it.
inline void release(void* place) { __tsan_release(place); }
inline void acquire(void* place) { __tsan_acquire(place); }

// Nothing is looked at as long as one lives; memory that is taken meanwhile has no past.
struct Unseen {
    Unseen() {
        AnnotateIgnoreReadsBegin("", 0);
        AnnotateIgnoreWritesBegin("", 0);
    }
    ~Unseen() {
        AnnotateIgnoreWritesEnd("", 0);
        AnnotateIgnoreReadsEnd("", 0);
    }
    Unseen(const Unseen&) = delete;
    Unseen& operator=(const Unseen&) = delete;
};

#else

inline constexpr bool checks_threads = false;
inline void* make_thread() { return nullptr; }
inline void* this_thread() { return nullptr; }
inline void become(void*) {}
inline void release(void*) {}
inline void acquire(void*) {}
struct Unseen {
    ~Unseen() {}
};

#endif

// Makes memory an error to touch, and allows it again. The checker works in steps of 8 bytes: what is allowed ends
// exactly, and begins at the multiple of 8 before.
#if defined(EMULATOR_ADDRESSES_CHECKED)
inline void forbid(const void* start, std::size_t bytes) { __asan_poison_memory_region(start, bytes); }
inline void allow(const void* start, std::size_t bytes) { __asan_unpoison_memory_region(start, bytes); }
#else
inline void forbid(const void*, std::size_t) {}
inline void allow(const void*, std::size_t) {}
#endif

}  // namespace sanitizer
