// The simulated card: the Verilated design, its device memory, and a host on the other side of the
// link. The design reaches host memory through its own AXI manager only; the host reaches the
// design through the register and mailbox ports only. Plain C functions, many cycles a call.
#include <memory>

#include "Vtop.h"
#include "axi_memory.h"
#include "verilated.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif

double sc_time_stamp() { return 0; }

namespace card {

// Verilator writes "__" in a name as "___05F".
#define SIG(bus, name) (top->bus##___05F##name)
#define BYTE(bus, name) (reinterpret_cast<uint8_t*>(&SIG(bus, name)))
#define AXI_PORTS(bus)                                                                           \
    {BYTE(bus, arvalid), BYTE(bus, arready), BYTE(bus, arid),    BYTE(bus, arlen),               \
     BYTE(bus, arsize),  BYTE(bus, arburst), &SIG(bus, araddr),  BYTE(bus, rvalid),              \
     BYTE(bus, rready),  BYTE(bus, rid),     BYTE(bus, rresp),   BYTE(bus, rlast),               \
     BYTE(bus, rdata),   BYTE(bus, awvalid), BYTE(bus, awready), BYTE(bus, awid),                \
     BYTE(bus, awlen),   BYTE(bus, awsize),  BYTE(bus, awburst), &SIG(bus, awaddr),              \
     BYTE(bus, wvalid),  BYTE(bus, wready),  BYTE(bus, wlast),   BYTE(bus, wdata),               \
     &SIG(bus, wstrb),   BYTE(bus, bvalid),  BYTE(bus, bready),  BYTE(bus, bid),                 \
     BYTE(bus, bresp)}

constexpr uint64_t kPatience = 10000;  // cycles that a register or mailbox access may take

using Strobe = std::remove_reference_t<decltype(Vtop::memory___05Fwstrb)>;
using MemoryPorts = AxiPorts<std::remove_reference_t<decltype(Vtop::memory___05Faraddr)>, Strobe>;
using HostPorts = AxiPorts<std::remove_reference_t<decltype(Vtop::host___05Faraddr)>, Strobe>;

struct Options {
    uint64_t memory_bytes, host_bytes, host_base, seed;
    Timing memory, host;
    uint32_t poison;
};

class Card {
  public:
    explicit Card(const Options& o)
        : context(std::make_unique<VerilatedContext>()), top(make_top(o)),
          memory_store(0, o.memory_bytes), host_store(o.host_base, o.host_bytes),
          memory("device memory", MemoryPorts AXI_PORTS(memory), BUS_BYTES, memory_store, o.memory,
                 o.seed + 1, violations),
          host("host memory", HostPorts AXI_PORTS(host), BUS_BYTES, host_store, o.host, o.seed + 2,
               violations) {
        memory_store.poison(o.seed + 3);
        reset();
    }

    ~Card() { trace_close(); }

    void reset() {
        top->rst = 1;
        quiet_ports();
        for (int i = 0; i < 4; ++i) {
            memory.clear();
            host.clear();
            step_clock();
        }
        top->rst = 0;
        memory.drive(now);
        host.drive(now);
    }

    // Runs until a line has been written to host memory (if asked for) or `cycles` are over.
    uint64_t run(uint64_t cycles, bool stop) {
        const uint64_t start = now, before = host.bursts_answered;
        while (now - start < cycles && !(stop && host.bursts_answered != before)) {
            begin();
            end();
        }
        return now - start;
    }

    // Returns 0 if the design does not answer, as a dead link would.
    bool read_register(uint32_t address, uint32_t* value) {
        SIG(registers, araddr) = address;
        SIG(registers, arvalid) = 1;
        SIG(registers, rready) = 1;
        bool done = false;
        for (uint64_t i = 0; i < kPatience && !done; ++i) {
            begin();
            const bool taken = SIG(registers, arvalid) && SIG(registers, arready);
            if (SIG(registers, rvalid)) {
                *value = SIG(registers, rdata);
                done = true;
            }
            end();
            if (taken) SIG(registers, arvalid) = 0;
        }
        SIG(registers, rready) = 0;
        return done;
    }

    bool write_register(uint32_t address, uint32_t value) {
        SIG(registers, awaddr) = address;
        SIG(registers, awvalid) = SIG(registers, wvalid) = SIG(registers, bready) = 1;
        SIG(registers, wdata) = value;
        SIG(registers, wstrb) = 0xF;
        bool done = false;
        for (uint64_t i = 0; i < kPatience && !done; ++i) {
            begin();
            const bool aw = SIG(registers, awvalid) && SIG(registers, awready);
            const bool w = SIG(registers, wvalid) && SIG(registers, wready);
            done = SIG(registers, bvalid);
            end();
            if (aw) SIG(registers, awvalid) = 0;
            if (w) SIG(registers, wvalid) = 0;
        }
        SIG(registers, bready) = 0;
        return done;
    }

    // One INCR burst of beats of `beat` bytes; 0 without an answer, else 1 + the response.
    int write_mailbox(uint32_t address, const uint8_t* data, uint32_t size, uint32_t beat) {
        const uint32_t beats = size / beat;
        SIG(mailbox, awaddr) = address;
        SIG(mailbox, awlen) = beats - 1;
        SIG(mailbox, awsize) = __builtin_ctz(beat);
        SIG(mailbox, awburst) = 1;
        SIG(mailbox, awvalid) = SIG(mailbox, bready) = 1;
        uint32_t sent = 0;
        int answer = 0;
        for (uint64_t i = 0; i < kPatience && !answer; ++i) {
            if (sent < beats) put_beat(address + sent * beat, data + sent * beat, beat);
            SIG(mailbox, wvalid) = sent < beats;
            SIG(mailbox, wlast) = sent + 1 == beats;
            begin();
            const bool aw = SIG(mailbox, awvalid) && SIG(mailbox, awready);
            const bool w = SIG(mailbox, wvalid) && SIG(mailbox, wready);
            if (SIG(mailbox, bvalid)) answer = 1 + SIG(mailbox, bresp);
            end();
            if (aw) SIG(mailbox, awvalid) = 0;
            sent += w;
        }
        SIG(mailbox, bready) = 0;
        return answer;
    }

    bool trace_open(const char* path) {
#if VM_TRACE
        trace_close();
        tracer = std::make_unique<VerilatedVcdC>();
        top->trace(tracer.get(), 99);
        tracer->open(path);
        return tracer->isOpen();
#else
        (void)path;
        return false;
#endif
    }

    void trace_close() {
#if VM_TRACE
        if (tracer) tracer->close();
        tracer.reset();
#endif
    }

    std::unique_ptr<VerilatedContext> context;
    std::unique_ptr<Vtop> top;
    Violations violations;
    Storage memory_store, host_store;
    AxiMemory<MemoryPorts> memory;
    AxiMemory<HostPorts> host;
    uint64_t now = 0;

  private:
    std::unique_ptr<Vtop> make_top(const Options& o) {
        context->randReset(o.poison ? 2 : 0);
        context->randSeed(int(o.seed & 0x7FFFFFFF) | 1);
#if VM_TRACE
        context->traceEverOn(true);
#endif
        return std::make_unique<Vtop>(context.get());
    }

    void quiet_ports() {
        SIG(registers, arvalid) = SIG(registers, awvalid) = SIG(registers, wvalid) = 0;
        SIG(registers, rready) = SIG(registers, bready) = 0;
        SIG(mailbox, awvalid) = SIG(mailbox, wvalid) = SIG(mailbox, bready) = 0;
    }

    void put_beat(uint32_t address, const uint8_t* data, uint32_t beat) {
        uint8_t* bus = BYTE(mailbox, wdata);
        const uint32_t lane = address % BUS_BYTES;
        std::memset(bus, 0xA5, BUS_BYTES);
        std::memcpy(bus + lane, data, beat);
        const uint64_t ones = beat == 64 ? ~0ull : (1ull << beat) - 1;
        SIG(mailbox, wstrb) = Strobe(ones << lane);
    }

    // First half of a cycle: what inputs lead to; second half: the edge.
    void begin() {
        top->clk = 0;
        top->eval();
        dump(0);
    }

    void end() {
        memory.sample(now);
        host.sample(now);
        top->clk = 1;
        top->eval();
        dump(1);
        ++now;
        memory.drive(now);
        host.drive(now);
    }

    void step_clock() {
        begin();
        top->clk = 1;
        top->eval();
        dump(1);
        ++now;
    }

    void dump(int half) {
#if VM_TRACE
        if (tracer) tracer->dump(2 * now + half);
#else
        (void)half;
#endif
    }

#if VM_TRACE
    std::unique_ptr<VerilatedVcdC> tracer;
#endif
};

}  // namespace card

using card::Card;

extern "C" {

Card* card_new(const card::Options* options) { return new Card(*options); }
void card_delete(Card* c) { delete c; }
void card_reset(Card* c) { c->reset(); }
uint64_t card_run(Card* c, uint64_t cycles, int stop) { return c->run(cycles, stop); }
uint64_t card_now(Card* c) { return c->now; }
int card_read(Card* c, uint32_t address, uint32_t* value) {
    return c->read_register(address, value);
}
int card_write(Card* c, uint32_t address, uint32_t value) {
    return c->write_register(address, value);
}
int card_mail(Card* c, uint32_t address, const uint8_t* data, uint32_t size, uint32_t beat) {
    return c->write_mailbox(address, data, size, beat);
}
uint8_t* card_bytes(Card* c, int host) {
    return host ? c->host_store.data() : c->memory_store.data();
}
uint64_t card_words(Card* c, int host, int written) {
    if (host) return written ? c->host.words_written : c->host.words_read;
    return written ? c->memory.words_written : c->memory.words_read;
}
uint64_t card_violations(Card* c) { return c->violations.count; }
const char* card_violation(Card* c) { return c->violations.first.c_str(); }
void card_stall(Card* c, int host, uint64_t cycles) {
    host ? c->host.stall(c->now + cycles) : c->memory.stall(c->now + cycles);
}
void card_kill(Card* c, int host, int dead) {
    (host ? c->host.dead : c->memory.dead) = dead;
}
void card_fail(Card* c, int host, int write, uint64_t after) {
    if (host) {
        write ? c->host.fail_write(after) : c->host.fail_read(after);
    } else {
        write ? c->memory.fail_write(after) : c->memory.fail_read(after);
    }
}
int card_trace(Card* c, const char* path) {
    if (path) return c->trace_open(path);
    c->trace_close();
    return 1;
}
}
