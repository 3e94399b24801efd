// Training attention forward and backward, with the kernels running on the CPU:
//   attention HEADS KV_HEADS ROWS BLOCKS FAST_WARPGROUP <input
// Reads sequence blocks, QKV and the gradient of the outputs; writes outputs, lse and the gradient of QKV.
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
void write(const std::vector<T>& all) {
    fwrite(all.data(), sizeof(T), all.size(), stdout);
}

int main(int, char** arguments) {
    const int heads = atoi(arguments[1]), kv_heads = atoi(arguments[2]), rows = atoi(arguments[3]), count = atoi(arguments[4]);
    const size_t out_stride = static_cast<size_t>(heads) * HEAD_DIM, qkv_stride = out_stride + 2ull * kv_heads * HEAD_DIM;
    const auto blocks = read<SequenceBlock>(count);
    const auto qkv = read<bf16>(rows * qkv_stride), d_out = read<bf16>(rows * out_stride);
    // NaN marks what is not written.
    std::vector<bf16> out(rows * out_stride, bf16{0x7fc0}), d_qkv(rows * qkv_stride, bf16{0x7fc0});
    std::vector<float> lse(static_cast<size_t>(rows) * heads, NAN), delta = lse;
    const float scale = 1.0f / sqrtf(HEAD_DIM);
    const FwdParams fwd{out.data(), lse.data(), qkv.data(), blocks.data(), heads, kv_heads, rows, scale};
    const BwdParams bwd{d_qkv.data(),  delta.data(), d_out.data(), out.data(), lse.data(), qkv.data(),
                        blocks.data(), heads,        kv_heads,     rows,       scale};
    const auto launch = [&](int blocks, const std::function<void()>& kernel) {
        fast_warpgroup = atoi(arguments[5]);
        for (int y = 0; y < count; ++y)
            for (int x = 0; x < blocks; ++x) {
                blockIdx = {static_cast<unsigned>(x), static_cast<unsigned>(y), 0};
                memset(smem_raw, 0xff, sizeof smem_raw);
                if (!run_block(threads, kernel)) exit(3);
            }
    };
    launch(heads, [&] { FWD(fwd); });
    launch(heads, [&] { BWD_DQ(bwd); });
    launch(kv_heads, [&] { BWD_DKV(bwd); });
    write(out);
    write(lse);
    write(d_qkv);
}
