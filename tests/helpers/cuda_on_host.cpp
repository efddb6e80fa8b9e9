// Blocks of threads of a kernel for a processor, compiled once for all kernels; see cuda_on_host.h.
#include "cuda_on_host.h"

Place threadIdx, blockIdx, gridDim;

static ucontext_t ends;
static jmp_buf turns;
Thread* running;
static const void* given;
static void (*chosen)(const void*);

uint64_t passed_on[64][32];

// Jumps instead of swapcontext, which asks the kernel for the signals' mask each time. A context lasts for all blocks.
void wait_for(int whom) {
    running->state = whom;
    if (!_setjmp(running->place)) _longjmp(turns, 1);
}
static void go_on(Thread& one) {
    if (_setjmp(turns)) return;
    if (one.has_begun) _longjmp(one.place, 1);
    one.has_begun = true;
    setcontext(&one.context);
}
static void start() { for (;;) chosen(given), wait_for(DONE); }

// Lets go on who waits for nobody any more: `count` threads, a warp or a block.
static void release(Thread* threads, int count, int waits) {
    for (int i = 0; i < count; ++i) if (threads[i].state < waits) return;
    for (int i = 0; i < count; ++i) if (threads[i].state == waits) threads[i].state = RUNS;
}

void run(void (*kernel)(const void*), const void* argument, const int* grid, const int* block) {
    static std::vector<Thread> threads;
    chosen = kernel, given = argument;
    const int count = block[0] * block[1];
    gridDim = {grid[0], grid[1], grid[2]};
    threads.resize(count);
    for (int z = 0; z < grid[2]; ++z) for (int y = 0; y < grid[1]; ++y) for (int x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        for (int i = 0; i < count; ++i) {
            Thread& one = threads[i];
            one.at = {i % block[0], i / block[0], 0}, one.number = i, one.state = RUNS;
            if (one.has_begun) continue;
            one.stack.resize(1 << 15);
            getcontext(&one.context);
            one.context.uc_stack.ss_sp = one.stack.data(), one.context.uc_stack.ss_size = one.stack.size();
            one.context.uc_link = &ends;  // never reached
            makecontext(&one.context, start, 0);
        }
        for (bool is_left = true; is_left;) {
            is_left = false;
            for (Thread& one : threads) {
                if (one.state != RUNS) continue;
                running = &one, threadIdx = one.at, is_left = true;
                go_on(one);
            }
            for (int i = 0; i < count; i += 32) release(&threads[i], std::min(32, count - i), WAITS_FOR_WARP);
            release(threads.data(), count, WAITS_FOR_BLOCK);
        }
    }
}
