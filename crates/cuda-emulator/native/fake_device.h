// The device of the emulated driver: memory, streams that run late, events. The interface is in fake_driver.cpp.
//
// It is as late and as strict as a real one may be:
//   - Work given to a stream waits in a queue. It runs when the host waits for some stream, streams taking turns in a
//     random order that respects only the events they were told to wait for, also between the blocks of a kernel. Code
//     that forgets a wait sees other numbers in some run.
//   - Page-locked host memory and the host's side of a download are read and written when the copy runs.
//   - Ranges are checked when work is given and again when it runs, so that memory freed under queued work is an error;
//     a real driver would wait instead.
//   - A kernel whose arguments hold the address of memory that was returned is an error, when it is launched and when
//     it runs.
//   - Work that fails leaves the device unusable: every later call reports it.
//   - A graph runs with the addresses and arguments that it was captured with, whatever has become of the memory, until
//     other arguments are set; a stream that is captured can be given work, and nothing else.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace fake {

// ---- names and numbers of the driver's interface

using Status = int;
using Address = unsigned long long;

inline constexpr Status success = 0;
// Of a task alone: it cannot run yet, because it waits for another thread or process.
inline constexpr Status pending = -1;
inline constexpr Status invalid_value = 1;
inline constexpr Status out_of_memory = 2;
inline constexpr Status no_device = 100;
inline constexpr Status invalid_device = 101;
inline constexpr Status invalid_context = 201;
inline constexpr Status invalid_handle = 400;
inline constexpr Status not_found = 500;
inline constexpr Status not_ready = 600;
inline constexpr Status illegal_address = 700;
inline constexpr Status launch_failed = 719;
inline constexpr Status capture_unsupported = 900;
inline constexpr Status capture_invalidated = 901;

struct StatusText {
    Status status;
    const char* name;
    const char* text;
};

inline constexpr StatusText status_texts[] = {
    {success, "CUDA_SUCCESS", "no error"},
    {invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "no context is current on this thread"},
    {invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {not_found, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
    {illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {launch_failed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
};

// ---- the device

// A point in a stream's work.
struct Occurrence {
    bool reached = false;
    // The host's time when it was, in milliseconds: what an event that keeps time tells.
    double at = 0;
};

struct Event {
    // The latest time it was recorded; none for an event that never was, which counts as reached.
    std::shared_ptr<Occurrence> recorded;
    bool keeps_time = true;
};

// A launch, as tests are told of it.
struct Launch {
    std::string kernel;
    unsigned long long blocks;
    unsigned threads;
};

// Work of a graph: what a capturing stream was given.
struct Node {
    std::function<Status()> work;
    std::optional<Launch> launch;
    // The function, where it is a kernel.
    const void* function = nullptr;
};

using Nodes = std::vector<std::shared_ptr<Node>>;

struct Task {
    std::function<Status()> work;
    // Runs only when this is reached, if there is one.
    std::shared_ptr<Occurrence> after;
};

struct Stream {
    std::deque<Task> tasks;
    // Its first task is running.
    bool busy = false;
    // What it was given since its capture began; none where it is not captured.
    std::unique_ptr<Nodes> captured;
};

// Of a device that works: more than a test should need; requests beyond it show what running out looks like.
inline constexpr std::size_t working_bytes = std::size_t{1} << 30;
inline constexpr std::size_t alignment = 512;

struct Device {
    // Taken again by work that asks for ranges while it runs.
    std::recursive_mutex mutex;
    std::map<Address, std::size_t> memory;
    std::size_t memory_in_use = 0;
    // What was returned and not taken again.
    std::map<Address, std::size_t> freed;
    std::vector<std::unique_ptr<Stream>> streams;
    // Retained and not released.
    int contexts = 0;
    Status failure = success;
    std::mt19937_64 random;
};

// There is one; several numbers of devices mean the same. Every function below expects its mutex to be held.
Device& device();

using Lock = std::lock_guard<std::recursive_mutex>;

// The context that was made current on this thread.
extern thread_local void* current_context;

// Allocates memory of the device, filled with NaN; 0 where the process has no more.
Address allocate(std::size_t bytes);

// Returns memory; not if there is none of that address.
bool release(Address start);

// Whether an address is in memory that was freed and not allocated again.
bool is_freed(Address address);

// A range is memory again, of whatever kind.
void forget_freed(Address start, std::size_t bytes);

// Whether the range is in memory that was allocated and not freed.
bool allocated(Address start, std::size_t bytes);

// A number that a test has set; `otherwise` where it has not.
unsigned long long from_environment(const char* name, unsigned long long otherwise);

// GiB of a device that only keeps account: its memory is addresses, nothing runs on it, and what is read from it is
// zeros. 0 for a device that works.
std::size_t account_gib();

// The first range that is not allocated becomes a message and the error.
Status check_ranges(std::initializer_list<Address> starts, std::size_t bytes, Status error);

// Puts work at the end of a stream, or of what is captured; it runs only when `after` is reached, if there is one.
Status give(void* stream, std::function<Status()> work, std::shared_ptr<Occurrence> after = nullptr,
            std::optional<Launch> launch = std::nullopt);

// The stream of a handle; null for none.
Stream* find_stream(void* handle);

// The work of a launch, or why it is refused.
struct Prepared {
    Status status;
    std::function<Status()> work;
    Launch launch;
};
struct Shape {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
};
Prepared prepare(void* function, const Shape& shape, void** arguments);

// Runs the streams in random order until one has nothing left. The mutex is given up in between, when work waits for
// others.
Status run_stream(void* stream);

// Runs the streams in random order until nothing can run now.
void run_ready();

// What calls do that make a real driver wait for the device, where the environment asks for it: runs all work. An error
// where some of it waits for another rank, whose calls a real driver may hold up for as long as it waits.
Status drain(const char* call);

// Between two blocks of a kernel: runs a task of another stream, now and then.
void run_between_blocks();

// Runs the streams in random order until a point in one of them.
Status run_to(const std::shared_ptr<Occurrence>& occurrence);

// Forgets a stream and what it was given.
Status remove_stream(void* stream);

// ---- what was launched

// Keeps a launch for tests that ask, if they asked for it before: see fake_hooks.cpp.
void record(const Launch& launch);

}  // namespace fake
