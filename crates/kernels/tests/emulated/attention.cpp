// Packed attention there and back, with kernels that run on a processor:
//   attention HEADS KV_HEADS ROWS STRETCHES HASTY <numbers
// Reads stretches, queries, keys and values, and slopes of the outputs; writes outputs, logarithms of totals, and slopes.
#include KERNELS

#include <cstdio>
#include <cstdlib>

template <typename T>
std::vector<T> read(size_t count) {
    std::vector<T> all(count);
    if (fread(all.data(), sizeof(T), count, stdin) != count) exit(2);
    return all;
}
template <typename T>
void show(const std::vector<T>& all) {
    fwrite(all.data(), sizeof(T), all.size(), stdout);
}

int main(int, char** arguments) {
    const int heads = atoi(arguments[1]), kv_heads = atoi(arguments[2]), rows = atoi(arguments[3]), count = atoi(arguments[4]);
    const size_t wide = static_cast<size_t>(heads) * HEAD_DIM, width = wide + 2ull * kv_heads * HEAD_DIM;
    const auto stretches = read<Stretch>(count);
    const auto qkv = read<bf16>(rows * width), out_slopes = read<bf16>(rows * wide);
    // What is not written must not be mistaken for a number.
    std::vector<bf16> out(rows * wide, bf16{0x7fc0}), slopes(rows * width, bf16{0x7fc0});
    std::vector<float> log_totals(static_cast<size_t>(rows) * heads, NAN), agreements = log_totals;
    const float scale = 1.0f / sqrtf(HEAD_DIM);
    const Forward there{out.data(), log_totals.data(), qkv.data(), stretches.data(), heads, kv_heads, rows, scale};
    const Backward back{slopes.data(), agreements.data(), out_slopes.data(), out.data(), log_totals.data(),
                        qkv.data(),    stretches.data(),  heads,             kv_heads,   rows,
                        scale};
    const auto launch = [&](int blocks, const std::function<void()>& what) {
        hasty = atoi(arguments[5]);
        for (int y = 0; y < count; ++y)
            for (int x = 0; x < blocks; ++x) {
                blockIdx = {static_cast<unsigned>(x), static_cast<unsigned>(y), 0};
                memset(room, 0xff, sizeof room);
                if (!run_block(threads, what)) exit(3);
            }
    };
    launch(heads, [&] { FORWARD(there); });
    launch(heads, [&] { BACK_TO_QUERIES(back); });
    launch(kv_heads, [&] { BACK_TO_KEYS(back); });
    show(out);
    show(log_totals);
    show(slopes);
}
