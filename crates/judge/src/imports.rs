//! What a built library may import. This is checked from outside, on the frozen bytes, before anything runs.
//!
//! The list is an allow-list for PyTorch's operators and for C symbols; the C++ runtime is taken whole. It is one layer: a
//! library can reach code it did not import by other means, which the dispatcher traps and the empty sandbox answer.

use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Object, ObjectSymbol};

/// Libraries that may be named as needed.
const ALLOWED_LIBRARIES: [&str; 22] = [
    "libc.so",
    "libm.so",
    "libmvec.so",
    "libstdc++.so",
    "libgcc_s.so",
    "libgomp.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "ld-linux",
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libtorch_python.so",
    "libc10.so",
    "libc10_cuda.so",
    "libcudart.so",
    "libcublas.so",
    "libcublasLt.so",
    "libcudnn",
    "libpython",
    "libomp.so",
];

/// Operators of `at::_ops` that create, fill, view or copy.
const ALLOWED_OPERATORS: [&str; 58] = [
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "zeros",
    "zeros_like",
    "new_zeros",
    "ones",
    "ones_like",
    "new_ones",
    "full",
    "full_like",
    "new_full",
    "scalar_tensor",
    "fill_",
    "zero_",
    "view",
    "_unsafe_view",
    "reshape",
    "_reshape_alias",
    "view_as",
    "reshape_as",
    "as_strided",
    "expand",
    "expand_as",
    "permute",
    "transpose",
    "t",
    "movedim",
    "squeeze",
    "unsqueeze",
    "slice",
    "select",
    "narrow",
    "split",
    "split_with_sizes",
    "chunk",
    "unbind",
    "flatten",
    "unflatten",
    "alias",
    "detach",
    "contiguous",
    "clone",
    "copy_",
    "to_dtype_layout",
    "to_device",
    "to_dtype",
    "to_other",
    "_to_copy",
    "item",
    "_local_scalar_dense",
    "is_nonzero",
    "arange",
    "numpy_T",
    "mT",
    "record_stream",
    "is_pinned",
];

/// Parts of `at::` other than operators that glue code needs.
const ALLOWED_AT: [&str; 22] = [
    "10TensorBase",
    "6Tensor",
    "6detail",
    "11TensorMaker",
    "8internal",
    "7Context",
    "13globalContext",
    "15get_num_threads",
    "16init_num_threads",
    "18in_parallel_region",
    "14get_thread_num",
    "8TensorArg",
    "8toString",
    "9from_blob",
    "4impl",
    "4cuda24getCurrentCUDABlasHandle",
    "4cuda26getCurrentCUDABlasLtHandle",
    "4cuda26getCurrentDeviceProperties",
    "4cuda19getDeviceProperties",
    "4cuda9warp_size",
    "4cuda20getCurrentCUDAStream",
    "23GeneratorForPrivateuseo",
];

/// Namespaces of the libraries above that glue code needs something of, other than `at`. Whatever else they bring (oneDNN, FBGEMM, Gloo,
/// flash attention) computes.
const ALLOWED_NAMESPACES: [&str; 7] = [
    "3c10",
    "5torch",
    "6caffe28TypeMeta",
    "6caffe26detail",
    "8pybind11",
    "9__gnu_cxx",
    "10__cxxabiv1",
];

/// Parts of `c10::` and `torch::` that reach kernels or change what is registered.
const FORBIDDEN_CXX: [&str; 10] = [
    "3c1010Dispatcher",
    "3c1014OperatorHandle",
    "3c1013OperatorEntry",
    "3c1012RegisterOperators",
    "3c104impl13OperatorEntry",
    "5torch7Library",
    "5torch11CppFunction",
    "5torch3jit",
    "5torch2nn",
    "3c1015SetCPUAllocator",
];

/// C symbols by prefix.
const C_PREFIXES: [&str; 20] = [
    "Py",
    "_Py",
    "THP",
    "GOMP_",
    "omp_",
    "_ZGV",
    "__cxa_",
    "_Unwind_",
    "_ITM_",
    "__cuda",
    "pthread_",
    "sem_",
    "mem",
    "str",
    "wmem",
    "wcs",
    "is",
    "to",
    "__atomic_",
    "__sync_",
];

/// Of those: a solver of the BLAS, and PyTorch's own.
const FORBIDDEN_C: [&str; 4] = ["strsm", "torch_", "pthreadpool_", "memfd_"];

/// CUDA runtime calls that reach outside the process or load code.
const FORBIDDEN_CUDA: [&str; 9] = [
    "cudaIpc",
    "cudaGetDriverEntryPoint",
    "cudaLibrary",
    "cudaImport",
    "cudaMemPoolImport",
    "cudaMemPoolExport",
    "cudaDeviceReset",
    "cudaProfiler",
    "cudaSetDeviceFlags",
];

/// C symbols by name: the mathematics and the harmless parts of the C library.
const C_NAMES: &str = "
abort abs aligned_alloc atexit atof atoi atol bsearch calloc clock clock_gettime clock_nanosleep difftime div environ errno
exit fflush fprintf fputc fputs free fwrite getenv gettimeofday labs ldiv llabs lldiv malloc malloc_usable_size memalign
mmap munmap madvise nanosleep perror posix_memalign printf putc putchar puts qsort rand rand_r random realloc
reallocarray sched_getaffinity sched_getcpu sched_yield secure_getenv snprintf sprintf srand sscanf stderr stdout sysconf
time usleep vfprintf vprintf vsnprintf vsprintf get_nprocs get_nprocs_conf setjmp _setjmp longjmp sigsetjmp
__assert_fail __ctype_b_loc __ctype_tolower_loc __ctype_toupper_loc __errno_location __fprintf_chk __printf_chk __snprintf_chk
__sprintf_chk __vsnprintf_chk __vfprintf_chk __memcpy_chk __memmove_chk __memset_chk __strcpy_chk __strcat_chk __strncpy_chk
__gmon_start__ __gxx_personality_v0 __libc_single_threaded __libc_start_main __longjmp_chk __stack_chk_fail __tls_get_addr
__dynamic_cast __isoc99_sscanf __isoc23_strtol __isoc23_strtoul __isoc23_strtoll __isoc23_strtoull __isoc23_sscanf __fdelt_chk
__popcountdi2 __udivti3 __umodti3 __divti3 __modti3 __cpu_model __cpu_indicator_init __register_atfork __pthread_key_create
__sched_cpucount __sched_cpualloc __sched_cpufree __signbitf __signbit __signbitl __fpclassify __fpclassifyf __isinf __isnan
__isinff __isnanf __finite __finitef __extendhfsf2 __truncsfhf2 __truncdfhf2 __extendbfsf2 __truncsfbf2 __truncdfbf2 __gnu_f2h_ieee
__gnu_h2f_ieee __powidf2 __powisf2 __addtf3 __subtf3 __multf3 __divtf3 __extenddftf2 __trunctfdf2 __muldc3 __mulsc3 __divdc3 __divsc3
warpsmith_gemm";

/// Functions of the mathematics library, in double; `f` and `l` forms and `__X_finite` are taken with them.
const MATH: &str = "
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin
fmod frexp hypot ilogb ldexp lgamma lgamma_r llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter
nexttoward pow remainder remquo rint round roundeven scalbln scalbn sin sincos sinh sqrt tan tanh tgamma trunc j0 j1 jn y0 y1 yn
cexp clog cabs carg cpow csqrt";

/// The first thing the library imports that it may not, in words; `Err` when it is not a library at all.
pub(crate) fn first_forbidden_import(bytes: &[u8]) -> Result<Option<String>, String> {
    let file = ElfFile64::<object::Endianness>::parse(bytes)
        .map_err(|error| format!("not an ELF library: {error}"))?;
    for name in needed(&file)? {
        if !ALLOWED_LIBRARIES
            .iter()
            .any(|allowed| name.starts_with(allowed))
        {
            return Ok(Some(format!("it needs the library `{name}`")));
        }
    }
    for symbol in file.dynamic_symbols() {
        if !symbol.is_undefined() {
            continue;
        }
        let name = symbol.name().map_err(|error| error.to_string())?;
        if let Some(reason) = forbidden_symbol(name) {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

fn needed(file: &ElfFile64<'_, object::Endianness>) -> Result<Vec<String>, String> {
    let endian = file.endian();
    let table = file.elf_section_table();
    let header = file.elf_header();
    let dynamic = table
        .dynamic(endian, file.data())
        .map_err(|error| error.to_string())?;
    let Some((entries, link)) = dynamic else {
        return Err(format!(
            "no dynamic section (type {})",
            header.e_type(endian)
        ));
    };
    let strings = table
        .strings(endian, file.data(), link)
        .map_err(|error| error.to_string())?;
    Ok(entries
        .iter()
        .filter(|entry| entry.tag(endian) == object::elf::DT_NEEDED)
        .filter_map(|entry| entry.string(endian, strings).ok())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect())
}

/// Why one imported symbol is not allowed.
fn forbidden_symbol(name: &str) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    let nested = [
        "_ZN", "_ZNK", "_ZTV", "_ZTI", "_ZTS", "_ZTVN", "_ZTIN", "_ZTSN",
    ]
    .iter()
    .filter_map(|prefix| name.strip_prefix(prefix))
    // Of a method: what it may be called on.
    .map(|rest| rest.trim_start_matches(['r', 'V', 'K', 'R', 'O']))
    .find(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    if let Some(rest) = nested {
        if let Some(operator) = rest.strip_prefix("2at4_ops") {
            let operator = first_name(operator)?;
            return (!operator_allowed(operator))
                .then(|| format!("it calls the PyTorch operator `at::{operator}`"));
        }
        if let Some(rest) = rest.strip_prefix("2at") {
            let allowed = ALLOWED_AT.iter().any(|part| rest.starts_with(part));
            return (!allowed).then(|| format!("it imports `{name}` from PyTorch"));
        }
        let starts = |part: &&str| rest.starts_with(*part);
        let forbidden = FORBIDDEN_CXX.iter().any(starts) || !ALLOWED_NAMESPACES.iter().any(starts);
        return forbidden.then(|| format!("it imports `{name}` from PyTorch"));
    }
    if let Some(rest) = name.strip_prefix("_Z") {
        // The C++ runtime and templates over its types. What lies in no namespace is not its: of PyTorch there are such kernels.
        let global = rest.starts_with(|first: char| first.is_ascii_digit());
        let known = |function: &str| function.starts_with("THP");
        let forbidden = global && !first_name(rest).is_some_and(known);
        return forbidden.then(|| format!("it imports `{name}`"));
    }
    (!c_allowed(name)).then(|| format!("it imports the C function `{name}`"))
}

/// The first `<length><name>` of a mangled nested name.
fn first_name(mangled: &str) -> Option<&str> {
    let digits = mangled.find(|c: char| !c.is_ascii_digit())?;
    let length: usize = mangled[..digits].parse().ok()?;
    mangled.get(digits..digits + length)
}

fn operator_allowed(operator: &str) -> bool {
    ALLOWED_OPERATORS.iter().any(|allowed| {
        operator == *allowed
            || operator.strip_prefix(allowed).is_some_and(|overload| {
                overload.strip_prefix('_').is_some_and(|overload| {
                    matches!(
                        overload,
                        "memory_format"
                            | "Scalar"
                            | "Tensor"
                            | "int"
                            | "names"
                            | "dtype"
                            | "sizes"
                            | "dim"
                            | "dims"
                            | "DimnameList"
                            | "using_ints"
                            | "SymInt"
                            | "Dimname"
                            | "start"
                            | "start_step"
                            | "sections"
                            | "indices"
                            | "intlist"
                    )
                })
            })
    })
}

fn c_allowed(name: &str) -> bool {
    if name.starts_with("cublas") || name.starts_with("cudnn") {
        return library_call_allowed(name);
    }
    if let Some(rest) = name.strip_prefix("cuda") {
        return !rest.is_empty()
            && !FORBIDDEN_CUDA
                .iter()
                .any(|forbidden| name.starts_with(forbidden));
    }
    let like_others = FORBIDDEN_C
        .iter()
        .any(|forbidden| name.starts_with(forbidden));
    (!like_others && C_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        || C_NAMES.split_whitespace().any(|allowed| allowed == name)
        || math_allowed(name)
}

/// cuBLAS multiplies matrices and cuDNN convolves; what else they can do is a kernel's work.
fn library_call_allowed(name: &str) -> bool {
    const SETTING_UP: [&str; 5] = ["Create", "Destroy", "Set", "Get", "Init"];
    let rest = ["cublasLt", "cublas", "cudnn"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    SETTING_UP.iter().any(|verb| rest.starts_with(verb))
        || rest.to_ascii_lowercase().contains("gemm")
        || rest.starts_with("Matmul")
        || rest.starts_with("MatrixLayout")
        || rest.starts_with("Convolution")
        || rest == "AddTensor"
        || rest == "ActivationForward"
}

fn math_allowed(name: &str) -> bool {
    let name = name.strip_prefix("__").unwrap_or(name);
    let name = name.strip_suffix("_finite").unwrap_or(name);
    MATH.split_whitespace().any(|function| {
        name == function
            || name
                .strip_prefix(function)
                .is_some_and(|suffix| matches!(suffix, "f" | "l" | "f_r" | "_r"))
    })
}

#[cfg(test)]
mod tests {
    use super::forbidden_symbol;

    #[test]
    fn glue_and_mathematics_are_allowed() {
        for name in [
            "_ZN2at4_ops10empty_like4callERKNS_6TensorE",
            "_ZN2at4_ops19empty_memory_format4callEv",
            "_ZNK2at10TensorBase8data_ptrIfEEPT_v",
            "_ZN3c106detail14torchCheckFailEPKcS2_jS2_",
            "_ZNSt6thread15_M_start_threadEv",
            "expf",
            "__expf_finite",
            "_ZGVeN16v_expf",
            "GOMP_parallel",
            "cudaLaunchKernel",
            "cublasSgemm_v2",
            "cublasLtMatmul",
            "cublasLtMatmulPreferenceCreate",
            "cublasSetStream_v2",
            "cudnnConvolutionBiasActivationForward",
            "cudnnSetTensor4dDescriptor",
            "warpsmith_gemm",
            "PyErr_Format",
            "_Znwm",
            "_ZNSt6vectorIiSaIiEE9push_backEOi",
            "_ZN6caffe28TypeMeta21_typeMetaDataInstanceIfEEPKNS_6detail12TypeMetaDataEv",
            "_ZTVN10__cxxabiv117__class_type_infoE",
            "_ZNR3c106IValue8toTensorEv",
            "_Z16THPVariable_WrapRKN2at10TensorBaseE",
            "_ZGVZN3c1010TensorImpl3getEvE1s",
            "memcpy",
            "strlen",
            "pthread_create",
        ] {
            assert_eq!(forbidden_symbol(name), None, "{name}");
        }
    }

    #[test]
    fn compute_and_escape_routes_are_not() {
        for name in [
            "_ZN2at4_ops6linear4callERKNS_6TensorES4_RKSt8optionalIS2_E",
            "_ZN2at4_ops4relu4callERKNS_6TensorE",
            "_ZN2at4_ops5addmm4callEv",
            "_ZN2at6native6linearERKNS_6TensorE",
            "_ZN2at3cpu2mmERKNS_6TensorES3_",
            "_ZN2at4cuda2mmERKNS_6TensorES3_",
            "_ZN3c1010Dispatcher13realSingletonEv",
            "_ZN5torch7LibraryC1Ev",
            "_ZN5torch3jit6scriptEv",
            "dlopen",
            "dlsym",
            "dl_iterate_phdr",
            "system",
            "fork",
            "execve",
            "syscall",
            "ptrace",
            "mprotect",
            "sgemm_",
            "cblas_sgemm",
            "cudaIpcOpenMemHandle",
            "cudaGetDriverEntryPoint",
            "cuModuleLoadData",
            "nvrtcCompileProgram",
            "socket",
            "open",
            "fopen",
            "process_vm_readv",
            "warpsmith_guard",
            "warpsmith_watch",
            "cudnnSoftmaxForward",
            "cudnnReduceTensor",
            "cudnnPoolingForward",
            "cudnnBackendExecute",
            "cublasSscal_v2",
            "cublasSgeam",
            "cublasLtMatrixTransform",
            "warpsmith_use_arena",
            "strsm_",
            "strsm_64_",
            "torch_call_dispatcher",
            "pthreadpool_parallelize_1d",
            "_ZN6fbgemm20FloatToBfloat16_simdEPKfPtm",
            "_ZN4dnnl4impl3cpu14gemm_driverEv",
            "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE",
            "_ZN13pytorch_flash7mha_fwdERKN2at6TensorE",
            "_Z24dispatch_softmax_forwardIN3c104HalfES1_fLb0ELb0EEvPT0_PKT_iiiPKbib",
            "_ZNR5torch7Library5_implEPKcONS_11CppFunctionENS_17_RegisterOrVerifyE",
            "_ZNKR2at6native6linearEv",
        ] {
            assert!(forbidden_symbol(name).is_some(), "{name}");
        }
    }
}
