// What the emulated NCCL's processes share, and what one of them does: calls as steps that never wait.
//
// Ranks are processes of one machine that share a file, named by the id they begin with. Values are reduced in the
// order of the ranks, 16-bit floats in f32 with one rounding: real NCCL promises neither. It is stricter than NCCL in
// two ways: a message ends only when it is received, however short, and calls that do not fit together are reported on
// all ranks, which then wait until they are broken off, where NCCL does what it likes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fake_nccl {

using Result = int;

inline constexpr Result success = 0;
inline constexpr Result system_error = 2;
inline constexpr Result invalid_argument = 4;
inline constexpr Result invalid_usage = 5;
inline constexpr Result remote_error = 6;
inline constexpr Result in_progress = 7;

enum class Operation : std::int32_t { none, all_reduce, reduce, reduce_scatter, all_gather, broadcast, message };

// What all ranks of a call must agree on.
struct Call {
    Operation operation = Operation::none;
    std::int32_t type = 0;
    std::int32_t reduction = 0;
    std::int32_t root = 0;
    std::uint64_t count = 0;
    // Its place among the collectives that were given as one, and how many these are.
    std::int32_t place = 0;
    std::int32_t together = 1;

    bool operator==(const Call& other) const {
        return operation == other.operation && type == other.type && reduction == other.reduction &&
            root == other.root &&
               count == other.count && place == other.place && together == other.together;
    }
};

inline constexpr int most_ranks = 8;
// More than a test should need.
inline constexpr std::size_t slot_bytes = std::size_t{8} << 20;
inline constexpr std::size_t mail_bytes = std::size_t{4} << 20;

// The beginning of the file. Its bytes are zero when it is made, which is the right beginning for all of them.
struct Board {
    std::atomic<std::uint32_t> joined, finalized, aborted, mismatched;
    char mismatch[512];
    struct Rank {
        // Collectives it has come to, and those it is through with.
        std::atomic<std::uint64_t> arrived, done;
        Call calls[2];
    } ranks[most_ranks];
    struct Mail {
        std::atomic<std::uint64_t> written, read;
        Call call;
    } mail[most_ranks][most_ranks];
};

// One end of a communicator.
struct Comm {
    Board* board = nullptr;
    std::string name;
    int rank = 0;
    int size = 0;
    bool blocks = true;
    std::atomic<bool> is_aborted{false};
    std::atomic<bool> is_finalized{false};
    std::atomic<Result> failure{success};
    // How often it still answers that the latest call is under way.
    std::atomic<int> busy{0};
    // Batches given to streams, and those that have ended: the device runs them one after the other, whatever their
    // streams.
    std::atomic<std::uint64_t> launched{0}, finished{0};
    std::uint64_t collectives = 0;
    std::uint64_t sent[most_ranks] = {}, received[most_ranks] = {};

    Comm(const std::string& name, int rank, int size);
    ~Comm();
    Comm(const Comm&) = delete;
    Comm& operator=(const Comm&) = delete;

    char* slot(std::uint64_t number, int of) const;
    char* mail(int from, int to) const;
};

// One call of one rank, on its way.
struct Step {
    Call call;
    const char* from = nullptr;
    char* to = nullptr;
    // The other rank of a message, and whether this one sends it.
    int peer = -1;
    bool sends = false;
    std::uint64_t number = 0;
    bool is_published = false;
    bool is_done = false;
};

// Calls that were given as one.
struct Batch {
    std::shared_ptr<Comm> comm;
    std::vector<Step> steps;
    std::uint64_t number = 0;
    void* stream = nullptr;
};

// Removes the name of what the ranks share; all have come, or the rest will not.
void remove_board(const std::string& name);

std::size_t size_of(int type);

// Does what can be done now. Whether the whole batch has ended.
bool advance(Batch& batch);

}  // namespace fake_nccl
