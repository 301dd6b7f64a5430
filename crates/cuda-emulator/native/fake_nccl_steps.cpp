// How calls of the emulated NCCL move on; see fake_nccl.h.
#include "cuda_emulator.h"
#include "fake_nccl.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace fake_nccl {

namespace {

constexpr std::size_t board_bytes = (sizeof(Board) + 4095) / 4096 * 4096;
constexpr std::size_t slots_bytes = 2 * most_ranks * slot_bytes;
constexpr std::size_t file_bytes = board_bytes + slots_bytes + most_ranks * most_ranks * mail_bytes;

const char* const operations[] = {"nothing", "all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast",
    "message"};

std::string in_words(int rank, const Call& call) {
    char text[160];
    std::snprintf(text, sizeof text, "rank %d called %s of %llu, type %d, reduction %d, root %d (%d of %d at once)",
                  rank,
                  operations[static_cast<int>(call.operation)], static_cast<unsigned long long>(call.count), call.type,
                  call.reduction, call.root, call.place + 1, call.together);
    return text;
}

// All ranks find out, the first report counts. NCCL itself reports nothing.
void report(Comm& comm, const std::string& words) {
    std::uint32_t no_rank = 0;
    if (std::getenv("EMULATED_NCCL_SILENT") == nullptr && comm.board->mismatched.compare_exchange_strong(no_rank, 1)) {
        std::snprintf(comm.board->mismatch, sizeof comm.board->mismatch, "%s", words.c_str());
        comm.board->mismatched = 2;
    }
}

template <class Value>
Value reduced(int reduction, Value a, Value b) {
    switch (reduction) {
        case 1: return static_cast<Value>(a * b);
        case 2: return std::max(a, b);
        case 3: return std::min(a, b);
        default: return static_cast<Value>(a + b);
    }
}

// The reduction of element `index` of what every rank wrote, in numbers of type Value that `widen` reads and `narrow`
// writes.
template <class Stored, class Value, class Widen, class Narrow>
void reduce_as(const std::vector<const char*>& sources, const Call& call, char* to, Widen widen, Narrow narrow) {
    for (std::size_t index = 0; index < call.count; index += 1) {
        const auto value_of = [&](const char* source) {
            Stored stored;
            std::memcpy(&stored, source + index * sizeof(Stored), sizeof(Stored));
            return static_cast<Value>(widen(stored));
        };
        Value value = value_of(sources[0]);
        for (std::size_t rank = 1; rank < sources.size(); rank += 1) {
            value = reduced<Value>(call.reduction, value, value_of(sources[rank]));
        }
        if (call.reduction == 4) {
            value = static_cast<Value>(value / static_cast<Value>(sources.size()));
        }
        const Stored stored = narrow(value);
        std::memcpy(to + index * sizeof(Stored), &stored, sizeof(Stored));
    }
}

void reduce(const std::vector<const char*>& sources, const Call& call, char* to) {
    const auto same = [](auto value) { return value; };
    switch (call.type) {
        case 1: return reduce_as<std::uint8_t, std::uint8_t>(sources, call, to, same, same);
        // Sums that do not fit wrap around, for which the numbers must have no sign.
        case 2:
            if (call.reduction >= 2) {
                return reduce_as<std::int32_t, std::int32_t>(sources, call, to, same, same);
            }
            return reduce_as<std::uint32_t, std::uint32_t>(sources, call, to, same, same);
        case 4:
            if (call.reduction >= 2) {
                return reduce_as<std::int64_t, std::int64_t>(sources, call, to, same, same);
            }
            return reduce_as<std::uint64_t, std::uint64_t>(sources, call, to, same, same);
        case 6: return reduce_as<std::uint16_t,
            float>(sources, call, to, emulator::f32_from_f16, emulator::f16_from_f32);
        case 7: return reduce_as<float, float>(sources, call, to, same, same);
        default: {
            const auto widen = [](std::uint16_t bits) { return emulator::bits_as<float>(std::uint32_t{bits} << 16); };
            return reduce_as<std::uint16_t, float>(sources, call, to, widen, emulator::bf16_from_f32);
        }
    }
}

// How much a rank gives.
std::size_t given_bytes(const Comm& comm, const Call& call) {
    const std::size_t parts = call.operation == Operation::reduce_scatter ? static_cast<std::size_t>(comm.size) : 1;
    return call.count * parts * size_of(call.type);
}

bool advance_message(Comm& comm, Step& step) {
    const int from = step.sends ? comm.rank : step.peer;
    const int to = step.sends ? step.peer : comm.rank;
    Board::Mail& mail = comm.board->mail[from][to];
    const std::size_t bytes = step.call.count * size_of(step.call.type);
    if (step.sends) {
        if (!step.is_published && mail.read == step.number) {
            mail.call = step.call;
            std::memcpy(comm.mail(from, to), step.from, bytes);
            mail.written = step.number + 1;
            step.is_published = true;
        }
        return step.is_published && mail.read > step.number;
    }
    if (mail.written <= step.number) {
        return false;
    }
    if (!(mail.call == step.call)) {
        report(comm, "a message: " + in_words(from, mail.call) + "; " + in_words(to, step.call));
        return false;
    }
    std::memcpy(step.to, comm.mail(from, to), bytes);
    mail.read = step.number + 1;
    return true;
}

void finish_collective(Comm& comm, const Step& step) {
    const Call& call = step.call;
    const std::size_t bytes = call.count * size_of(call.type);
    const auto slot = [&](int rank) { return comm.slot(step.number, rank); };
    std::vector<const char*> sources;
    const std::size_t part = call.operation == Operation::reduce_scatter ?
        static_cast<std::size_t>(comm.rank) * bytes : 0;
    for (int rank = 0; rank < comm.size; rank += 1) {
        sources.push_back(slot(rank) + part);
    }
    switch (call.operation) {
        case Operation::all_gather:
            for (int rank = 0; rank < comm.size; rank += 1) {
                std::memcpy(step.to + static_cast<std::size_t>(rank) * bytes, slot(rank), bytes);
            }
            return;
        case Operation::broadcast: std::memcpy(step.to, slot(call.root), bytes); return;
        case Operation::reduce:
            if (comm.rank == call.root) {
                reduce(sources, call, step.to);
            }
            return;
        default: reduce(sources, call, step.to); return;
    }
}

bool advance_collective(Comm& comm, Step& step) {
    Board& board = *comm.board;
    const auto all = [&](auto condition) { return std::all_of(board.ranks, board.ranks + comm.size, condition); };
    Board::Rank& own = board.ranks[comm.rank];
    if (!step.is_published) {
        // The slot was last used two calls ago.
        if (!all([&](const Board::Rank& rank) { return rank.done + 1 >= step.number; })) {
            return false;
        }
        own.calls[step.number % 2] = step.call;
        std::memcpy(comm.slot(step.number, comm.rank), step.from, given_bytes(comm, step.call));
        own.arrived = step.number + 1;
        step.is_published = true;
    }
    if (!all([&](const Board::Rank& rank) { return rank.arrived > step.number; })) {
        return false;
    }
    for (int rank = 0; rank < comm.size; rank += 1) {
        const Call& other = board.ranks[rank].calls[step.number % 2];
        if (!(other == step.call)) {
            report(comm, in_words(comm.rank, step.call) + "; " + in_words(rank, other));
            return false;
        }
    }
    finish_collective(comm, step);
    own.done = step.number + 1;
    return true;
}

// Where emulated hosts have memory of their own, a directory that all of them see takes its place.
const char* shared_directory() {
    return std::getenv("EMULATED_NCCL_DIRECTORY");
}

int open_board(const std::string& name) {
    const char* const directory = shared_directory();
    return directory == nullptr ? shm_open(name.c_str(), O_CREAT | O_RDWR, 0600)
                                : open((directory + name).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
}

}  // namespace

void remove_board(const std::string& name) {
    const char* const directory = shared_directory();
    directory == nullptr ? shm_unlink(name.c_str()) : unlink((directory + name).c_str());
}

Comm::Comm(const std::string& name, int rank, int size) : name(name), rank(rank), size(size) {
    const int file = open_board(name);
    if (file < 0) {
        return;
    }
    if (ftruncate(file, static_cast<off_t>(file_bytes)) == 0) {
        void* memory = mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
        board = memory == MAP_FAILED ? nullptr : static_cast<Board*>(memory);
    }
    close(file);
}

Comm::~Comm() {
    if (board != nullptr) {
        munmap(board, file_bytes);
    }
}

char* Comm::slot(std::uint64_t number, int of) const {
    const std::size_t place = (number % 2) * most_ranks + static_cast<std::size_t>(of);
    return reinterpret_cast<char*>(board) + board_bytes + place * slot_bytes;
}

char* Comm::mail(int from, int to) const {
    const std::size_t place = static_cast<std::size_t>(from * most_ranks + to);
    return reinterpret_cast<char*>(board) + board_bytes + slots_bytes + place * mail_bytes;
}

std::size_t size_of(int type) {
    switch (type) {
        case 1: return 1;
        case 2: case 7: return 4;
        case 4: return 8;
        case 6: case 9: return 2;
        default: return 0;
    }
}

bool advance(Batch& batch) {
    Comm& comm = *batch.comm;
    bool is_done = true;
    for (Step& step : batch.steps) {
        if (!step.is_done) {
            const bool is_message = step.call.operation == Operation::message;
            step.is_done = is_message ? advance_message(comm, step) : advance_collective(comm, step);
        }
        is_done = is_done && step.is_done;
    }
    return is_done;
}

}  // namespace fake_nccl
