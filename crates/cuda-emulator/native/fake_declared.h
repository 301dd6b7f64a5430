// The memory that a launch may touch, as declared by its caller. A test declares the views of a kernel before the
// launch and ends the declaration after it; everything that this thread queues in between carries it.
//
// When such work runs, memory that is declared as read only is compared before and after. In a library that is built
// with the address checker, allocations that hold a declared range are forbidden except for the declared ranges;
// others, such as scratch memory, stay open.
#pragma once

#include "fake_device.h"

namespace fake {

struct DeclaredRange {
    Address start;
    std::size_t bytes;
    bool written;
};

// What this thread has declared; none outside of a declaration.
std::shared_ptr<const std::vector<DeclaredRange>> declared_now();

// Whether work with declared ranges is running.
bool runs_declared();

// Runs work that may touch these ranges.
Status run_declared(const std::vector<DeclaredRange>& ranges, const std::function<Status()>& work);

}  // namespace fake
