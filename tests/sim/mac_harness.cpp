// Feeds an array of multipliers from two buffers, one word a cycle: the smallest useful harness.
#include "Vtop.h"
#include "harness.h"
#include "verilated.h"

#include <cstring>
#include <memory>

#ifndef LANES
#error "LANES must be defined"
#endif

namespace {
struct Card {
    VerilatedContext context;
    std::unique_ptr<Vtop> top;
};

void edge(Vtop& top) {
    top.clk = 1;
    top.eval();
    top.clk = 0;
    top.eval();
}
}  // namespace

EXPORT Card* card_open() {
    auto* card = new Card;
    card->context.fatalOnError(false);
    card->top = std::make_unique<Vtop>(&card->context);
    // The first clock edge is only seen after an evaluation with the clock low.
    card->top->clk = 0;
    card->top->rst = 0;
    card->top->eval();
    return card;
}

EXPORT void card_close(Card* card) {
    card->top->final();
    delete card;
}

// Runs one cycle for each pair of words of LANES bytes.
EXPORT void card_run(Card* card, const int8_t* weights, const int8_t* activations, uint64_t cycles) {
    Vtop& top = *card->top;
    static_assert(sizeof(top.w) == LANES && sizeof(top.a) == LANES, "one byte per lane");
    for (uint64_t cycle = 0; cycle < cycles; ++cycle) {
        std::memcpy(&top.w, weights + cycle * LANES, LANES);
        std::memcpy(&top.a, activations + cycle * LANES, LANES);
        edge(top);
    }
}

EXPORT void card_read(const Card* card, int32_t* sums) {
    std::memcpy(sums, &card->top->acc, sizeof(card->top->acc));
}
