// Shared by the harnesses of the build tests; its contents are part of the cache key.
#pragma once
#include <cstdint>
#define EXPORT extern "C" __attribute__((visibility("default")))
