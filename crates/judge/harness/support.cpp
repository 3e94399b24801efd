// The native half of the worker, and of the trusted process on a CPU, built once per PyTorch and kept in the cache.
//
// 1. Traps: a guard stands before every backend kernel outside a short allow-list, below Python and below any thread-local
//    mode, so that threads and C++ callers meet it too. Guards are registered before the fork, so whoever asks the
//    dispatcher for a kernel gets a guarded one; they throw once a byte is set in a page that the supervisor writes and a
//    worker can only read. There is no function here that takes a guard back.
// 2. Arena: a CPU allocator over memory shared with the judge, so outputs are read where they lie; in the trusted process over
//    memory of its own, which is kept.
// 3. warpsmith_gemm: the one numeric routine that CPU candidates may call.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <torch/library.h>

#include "cpu_arena.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

// ---- traps -----------------------------------------------------------------------------------------------------------

char first_trapped[160] = {0};
std::atomic<bool> trapped{false};
const volatile uint8_t* watched = nullptr;

// What the supervisor wrote: nothing yet, that PyTorch may not compute, or that what it computes is counted.
constexpr uint8_t counting = 2;

bool armed() { return watched != nullptr && *watched != 0 && *watched != counting; }

bool counts() { return watched != nullptr && *watched == counting; }

// Calls of one operator, and the time they took; for the list in a verdict, not for its decision alone.
struct Counter {
    std::string name;
    std::atomic<int64_t> calls{0}, nanoseconds{0};
};

std::map<std::string, Counter>& counters() {
    static auto* all = new std::map<std::string, Counter>();
    return *all;
}

Counter& counter_of(const std::string& name) {
    auto& found = counters()[name];
    found.name = name;
    return found;
}

thread_local int depth = 0;

// One call of an operator. Those that it makes itself are part of it.
class Counted {
   public:
    explicit Counted(Counter& counter) : counter_(counter), outermost_(counts() && depth == 0), begun_(Clock::now()) { ++depth; }
    Counted(const Counted&) = delete;
    ~Counted() {
        --depth;
        if (!outermost_) return;
        counter_.calls += 1;
        counter_.nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun_).count();
    }

   private:
    using Clock = std::chrono::steady_clock;
    Counter& counter_;
    bool outermost_;
    Clock::time_point begun_;
};

void remember(const char* name) {
    if (!trapped.exchange(true)) std::strncpy(first_trapped, name, sizeof(first_trapped) - 1);
}

// Stands before one kernel of one operator.
class Guard final : public c10::OperatorKernel {
   public:
    Guard(c10::SafeKernelFunction guarded, Counter& counter) : guarded_(std::move(guarded)), counter_(counter) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
        if (armed()) {
            remember(op.schema().name().c_str());
            TORCH_CHECK(false, "warpsmith: ", op.schema().name(), " computes and is not allowed in forward; write it as a kernel");
        }
        const Counted counted(counter_);
        guarded_.callBoxed(op, keys, stack);
    }

   private:
    c10::SafeKernelFunction guarded_;
    Counter& counter_;
};

// Copies are data movement, except that a copy between dtypes is arithmetic, and one that makes up a pending negation.
bool converts(const at::Tensor& self, const at::Tensor& src) {
    return self.scalar_type() != src.scalar_type() || self.is_neg() != src.is_neg() || self.is_conj() != src.is_conj();
}

at::Tensor& copy_checked(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
    if (armed() && converts(self, src)) {
        remember("aten::copy_ (between dtypes)");
        TORCH_CHECK(false, "warpsmith: a copy between dtypes, or of a negated view, computes and is not allowed in forward; write it as a kernel");
    }
    static Counter& conversions = counter_of("aten::copy_ (between dtypes)");
    if (!converts(self, src)) return at::native::copy_(self, src, non_blocking);
    const Counted counted(conversions);
    return at::native::copy_(self, src, non_blocking);
}

const std::unordered_set<std::string>& allowed() {
    static const std::unordered_set<std::string> names = {
        // creation
        "aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided",
        "aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::ones", "aten::ones_like", "aten::new_ones",
        "aten::full", "aten::full_like", "aten::arange", "aten::eye", "aten::new_full", "aten::scalar_tensor", "aten::_efficientzerotensor",
        // fill
        "aten::fill_", "aten::zero_", "aten::fill", "aten::zero",
        // views
        "aten::view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::reshape", "aten::view_as", "aten::reshape_as",
        "aten::as_strided", "aten::expand", "aten::expand_as", "aten::permute", "aten::transpose", "aten::t", "aten::numpy_T",
        "aten::mT", "aten::movedim", "aten::moveaxis", "aten::swapaxes", "aten::swapdims", "aten::squeeze", "aten::unsqueeze",
        "aten::slice", "aten::select", "aten::narrow", "aten::split", "aten::split_with_sizes", "aten::chunk", "aten::unbind",
        "aten::unfold", "aten::diagonal", "aten::flatten", "aten::unflatten", "aten::alias", "aten::detach", "aten::detach_",
        "aten::view_as_real", "aten::view_as_complex", "aten::squeeze_", "aten::unsqueeze_", "aten::t_", "aten::transpose_",
        "aten::as_strided_", "aten::lift", "aten::lift_fresh", "aten::resolve_conj", "aten::resolve_neg", "aten::tensor_split",
        // same-dtype copies (copy_ itself is wrapped)
        "aten::clone", "aten::contiguous", "aten::to", "aten::_to_copy", "aten::cpu", "aten::cuda", "aten::pin_memory",
        // questions about a tensor; these read at most one number
        "aten::size", "aten::stride", "aten::numel", "aten::is_contiguous", "aten::dim", "aten::item", "aten::_local_scalar_dense",
        "aten::is_nonzero", "aten::is_floating_point", "aten::is_complex", "aten::is_same_size", "aten::sym_size", "aten::sym_stride",
        "aten::sym_numel", "aten::sym_storage_offset", "aten::storage_offset", "aten::data", "aten::is_pinned", "aten::record_stream",
        "aten::requires_grad_", "aten::set_", "aten::resize_", "aten::_has_compatible_shallow_copy_type", "aten::is_leaf",
        "aten::output_nr", "aten::_version", "aten::set_data", "aten::result_type", "aten::can_cast", "aten::retain_grad",
    };
    return names;
}

std::vector<c10::RegistrationHandleRAII>& registrations() {
    static auto* kept = new std::vector<c10::RegistrationHandleRAII>();  // never destroyed: a guard outlives everything
    return *kept;
}

}  // namespace

extern "C" {

void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*, const float*,
            const int*, const float*, float*, const int*);

// Puts guards before every kernel that computes; returns how many. Called once, in the zygote.
int64_t warpsmith_guard(int cuda) {
    auto& dispatcher = c10::Dispatcher::singleton();
    std::vector<c10::DispatchKey> keys = {
        c10::DispatchKey::CPU, c10::DispatchKey::MkldnnCPU, c10::DispatchKey::QuantizedCPU, c10::DispatchKey::SparseCPU,
        c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::NestedTensorCPU,
    };
    if (cuda) {
        keys.insert(keys.end(), {c10::DispatchKey::CUDA, c10::DispatchKey::QuantizedCUDA, c10::DispatchKey::SparseCUDA,
                                 c10::DispatchKey::SparseCsrCUDA, c10::DispatchKey::NestedTensorCUDA});
    }
    int64_t count = 0;
    for (const auto& name : dispatcher.getAllOpNames()) {
        const bool is_copy = name.name == "aten::copy_" && name.overload_name.empty();
        if (!is_copy && allowed().count(name.name)) continue;
        const auto op = dispatcher.findOp(name);
        if (!op || !op->hasSchema()) continue;
        for (auto key : keys) {
            const bool plain = key == c10::DispatchKey::CPU || key == c10::DispatchKey::CUDA;
            // Composite operators need no guard: they end in operators that have one.
            if (is_copy ? !plain : !op->hasKernelForDispatchKey(key)) continue;
            auto kernel = is_copy ? c10::KernelFunction::makeFromUnboxedRuntimeFunction(&copy_checked)
                                  : c10::KernelFunction::makeFromBoxedFunctor(
                                        std::make_unique<Guard>(op->getComputedKernelForDispatchKey(key), counter_of(name.name)));
            registrations().push_back(
                dispatcher.registerImpl(name, key, std::move(kernel), std::nullopt, nullptr, "warpsmith guard"));
            ++count;
        }
    }
    return count;
}

// The page whose first byte arms the guards; only the first call counts.
int warpsmith_watch(const void* page) {
    if (watched) return 0;
    watched = static_cast<const volatile uint8_t*>(page);
    return 1;
}

// The first operator that met a trap, or an empty string.
const char* warpsmith_trapped() { return trapped.load() ? first_trapped : ""; }

// A line for each operator that was counted since the last time: its name, calls and nanoseconds. Returns how long the text is.
int64_t warpsmith_operators(char* text, int64_t room) {
    std::string lines;
    for (auto& [name, counter] : counters()) {
        const int64_t calls = counter.calls.exchange(0), nanoseconds = counter.nanoseconds.exchange(0);
        if (calls) lines += name + "\t" + std::to_string(calls) + "\t" + std::to_string(nanoseconds) + "\n";
    }
    std::strncpy(text, lines.c_str(), room);
    return int64_t(lines.size());
}

// Row-major C = alpha op(A) op(B) + beta C in float32, by the BLAS that PyTorch itself brings.
void warpsmith_gemm(int transa, int transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                    const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
    // Row-major C is column-major C^T = op(B)^T op(A)^T.
    const char first = transb ? 'T' : 'N', second = transa ? 'T' : 'N';
    const int rows = int(n), columns = int(m), depth = int(k), stride_b = int(ldb), stride_a = int(lda), stride_c = int(ldc);
    sgemm_(&first, &second, &rows, &columns, &depth, &alpha, b, &stride_b, a, &stride_a, &beta, c, &stride_c);
}

}  // extern "C"
