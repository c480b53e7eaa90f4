// Runs the register of `Edges` for some cycles and writes a waveform.
#include "Vtop.h"
#include "harness.h"
#include "verilated.h"
#include "verilated_vcd_c.h"

EXPORT int trace_run(const char* file, int cycles) {
    VerilatedContext context;
    context.traceEverOn(true);
    Vtop top{&context};
    VerilatedVcdC vcd;
    top.trace(&vcd, 99);
    vcd.open(file);
    top.rst = 0;
    for (int half = 0; half < 2 * cycles; ++half) {
        top.clk = half & 1;
        if (!top.clk) top.d = half / 2;
        top.eval();
        vcd.dump(5 * half);
    }
    top.final();
    vcd.close();
    return top.q;
}
