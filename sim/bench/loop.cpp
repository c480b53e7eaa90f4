// Runs a top with a `word` port flat out: no trace, no Python in the loop.
#include <cstdint>

#include "Vtop.h"
#include "verilated.h"

namespace {

uint64_t state = 88172645463325252ull;

uint64_t random_bits() {  // xorshift: cheap beside one cycle of the design
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

Vtop *top;  // never freed: the library's end is the process's

void cycle() {
    auto *words = reinterpret_cast<uint32_t *>(&top->word);
    for (int i = 0; i < BUS_BYTES / 4; ++i) words[i] = static_cast<uint32_t>(random_bits() >> 16);
    top->clk = 0;
    top->eval();
    top->clk = 1;
    top->eval();
}

}  // namespace

extern "C" void start(int load_cycles) {
    state = 88172645463325252ull;
    top = new Vtop(new VerilatedContext);
#ifdef HAS_ENGINE
    top->rst = 1;
    cycle();
    top->rst = 0;
#endif
    top->load = 1;
    for (int i = 0; i < load_cycles; ++i) {
#ifdef HAS_ENGINE
        top->addr = i;
#endif
        cycle();
    }
    top->load = 0;
}

// Returns a hash of what came out, so that nothing can be optimised away.
extern "C" uint64_t run(long cycles) {
    uint64_t hash = 0;
    for (long i = 0; i < cycles; ++i) {
        cycle();
        hash = hash * 31 + top->check;
    }
    return hash;
}
