#pragma once

namespace b200 {

// A line on stderr, and the end of the process with status 2.
[[noreturn, gnu::format(printf, 1, 2)]] void give_up(const char* format, ...);

}  // namespace b200
