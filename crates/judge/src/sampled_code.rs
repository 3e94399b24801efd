//! What a worker was seen at, from outside.
//!
//! Guards in a worker stop whoever calls PyTorch's operators by name. Native code has the same memory as they and can step
//! around them: it finds a kernel by its address, or takes the guards down. But whoever computes is somewhere. The kernel
//! notes where the worker's threads are, and a candidate that computes with what is not its own is found there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSegment, ObjectSymbol, ReadCache};
use warpsmith_sandbox::PcSampler;
use warpsmith_schema::{Rule, Rules, Status};

use crate::candidate_failure::CandidateFailure;

/// A few looks may fall on moments that mean nothing.
const MIN_SAMPLES: usize = 4;
/// Of what was seen of computing, so much that is not its own is too much. An honest candidate has none.
const FOREIGN_SHARE: f64 = 0.05;
/// So many would have met a candidate's own kernel, unless it takes a hundredth of the time.
const MIN_TORCH_SAMPLES: usize = 100;
/// Of the looks that Python should have had; a constant from a busy hour is several times what Python computes.
const PYTHON_SHARE: f64 = 0.04;
/// The library with all that PyTorch computes on a CPU.
const TORCH_CPU_LIBRARY: &str = "libtorch_cpu.so";

/// Functions of a library that compute, by their addresses in it.
#[derive(Debug)]
struct SymbolTable {
    path: PathBuf,
    segments: Vec<Segment>,
    functions: Vec<Function>,
}

#[derive(Debug)]
struct Segment {
    offset: u64,
    bytes: u64,
    address: u64,
}

#[derive(Debug)]
struct Function {
    address: u64,
    bytes: u64,
    name: String,
}

/// A part of a process's memory that holds code.
#[derive(Debug, PartialEq)]
struct CodeMapping {
    start: u64,
    end: u64,
    offset: u64,
    inode: u64,
    path: String,
}

/// Tells where a worker was. What it reads of PyTorch's library it keeps.
#[derive(Debug, Default)]
pub(crate) struct CodeClassifier {
    functions: Option<SymbolTable>,
}

impl CodeClassifier {
    /// What the `addresses` at which a process was seen are. `own` are inodes of the candidate's libraries.
    ///
    /// A candidate may map other pages where its libraries lay, and back. What was mapped before its code ran counts first, then
    /// what its libraries were when they had been loaded, then what is there now.
    pub(crate) fn classify(
        &mut self,
        pid: u32,
        known: &CodeSnapshots,
        addresses: &[u64],
        own: &[u64],
    ) -> io::Result<SampledCode> {
        let now = code_mappings_of(pid)?;
        let mut seen = SampledCode {
            samples: addresses.len(),
            replaced: first_replaced(&known.before, &now),
            ..SampledCode::default()
        };
        for &address in addresses {
            let mut regions = known.before.iter().chain(&known.loaded).chain(&now);
            let Some(region) = regions.find(|region| (region.start..region.end).contains(&address))
            else {
                seen.unknown += 1;
                continue;
            };
            if region.path.ends_with(TORCH_CPU_LIBRARY) {
                let offset = address - region.start + region.offset;
                if let Some(name) = self.function(pid, Path::new(&region.path), offset)? {
                    *seen.torch_kernels.entry(name).or_default() += 1;
                }
            } else if own.contains(&region.inode) {
                seen.own += 1;
            } else if region.is_python() {
                seen.python += 1;
            } else if !region.is_known() {
                seen.unknown += 1;
            }
        }
        Ok(seen)
    }

    fn function(&mut self, pid: u32, path: &Path, offset: u64) -> io::Result<Option<String>> {
        if self.functions.as_ref().is_none_or(|read| read.path != path) {
            self.functions = Some(SymbolTable::read(pid, path)?);
        }
        let found = (self.functions.as_ref()).and_then(|functions| functions.at(offset));
        Ok(found.map(|function| readable(&function.name)))
    }
}

/// Where code lay in a worker before a candidate's ran, and when its libraries had been loaded.
#[derive(Debug, Default)]
pub(crate) struct CodeSnapshots {
    before: Vec<CodeMapping>,
    loaded: Vec<CodeMapping>,
}

impl CodeSnapshots {
    pub(crate) fn before(pid: u32) -> io::Result<Self> {
        Ok(Self {
            before: code_mappings_of(pid)?,
            loaded: Vec::new(),
        })
    }

    pub(crate) fn loaded(&mut self, pid: u32) -> io::Result<()> {
        self.loaded = code_mappings_of(pid)?;
        Ok(())
    }
}

fn code_mappings_of(pid: u32) -> io::Result<Vec<CodeMapping>> {
    // A candidate names its files as it likes, also by what is no text.
    let maps = fs_err::read(format!("/proc/{pid}/maps"))?;
    Ok(code_mappings(&String::from_utf8_lossy(&maps)))
}

/// The library whose code does not lie any more where it lay, if there is one.
fn first_replaced(before: &[CodeMapping], now: &[CodeMapping]) -> Option<String> {
    let covered = |old: &CodeMapping| {
        let mut from = old.start;
        for new in now {
            let same = new.inode == old.inode && new.path == old.path;
            // A part of it may have been given other rights; places in the file tell whether it is still the same code.
            if same
                && (new.start..new.end).contains(&from)
                && new.start.wrapping_sub(new.offset) == old.start.wrapping_sub(old.offset)
            {
                from = new.end;
            }
        }
        from >= old.end
    };
    let lost = before.iter().find(|old| !covered(old))?;
    Some(lost.path.clone())
}

/// What a process was seen at. The rest is allocation or waiting.
#[derive(Debug, Default)]
pub(crate) struct SampledCode {
    pub(crate) samples: usize,
    /// The interpreter and its modules.
    python: usize,
    /// The libraries built for it.
    own: usize,
    /// Functions of PyTorch that compute.
    torch_kernels: BTreeMap<String, usize>,
    /// Code that nobody vouches for.
    unknown: usize,
    /// A library of before that was mapped over.
    replaced: Option<String>,
}

impl SampledCode {
    /// Whether calls that cost `constant_us` of Python each were answered without it.
    pub(crate) fn without_python(&self, calls: u32, constant_us: f64) -> bool {
        let expected = f64::from(calls) * constant_us / PcSampler::PERIOD.as_secs_f64() / 1e6;
        expected >= 20.0 && (self.python as f64) < PYTHON_SHARE * expected
    }

    /// Whether much was seen of PyTorch's kernels, and nothing of the candidate's.
    pub(crate) fn only_torch(&self) -> bool {
        self.own == 0 && self.torch_kernels.values().sum::<usize>() >= MIN_TORCH_SAMPLES
    }

    /// By mixed rules PyTorch's own code may compute.
    pub(crate) fn violation(&self, rules: Rules) -> Option<CandidateFailure> {
        if let Some(library) = &self.replaced {
            return Some(CandidateFailure::new(
                Status::Cheating,
                Some(Rule::ForbiddenImport),
                format!("the code of `{library}` was replaced in the process's memory"),
            ));
        }
        let borrowed: usize = self.torch_kernels.values().sum();
        let computing = self.own + borrowed + self.unknown;
        let many =
            |count: usize| count >= MIN_SAMPLES && count as f64 >= FOREIGN_SHARE * computing as f64;
        if rules == Rules::Own && many(borrowed) {
            let most = self.torch_kernels.iter().max_by_key(|(_, count)| **count);
            let name = most.map_or("", |(name, _)| name.as_str());
            let reason = format!(
                "the process was seen computing in PyTorch's own code, `{name}` above all: in {borrowed} of {computing} looks"
            );
            return Some(CandidateFailure::new(
                Status::Cheating,
                Some(Rule::ForbiddenOperator),
                reason,
            ));
        }
        many(self.unknown).then(|| {
            let unknown = self.unknown;
            let reason = format!(
                "the process was seen running code that is in no library it was given: in {unknown} of {computing} looks"
            );
            CandidateFailure::new(Status::Cheating, Some(Rule::ForbiddenImport), reason)
        })
    }
}

impl CodeMapping {
    fn is_python(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        ["libpython", "python3", "libtorch_python"]
            .iter()
            .any(|start| name.starts_with(start))
            || name.contains(".cpython-")
    }

    /// Whether it lies in a file. The only folder that a worker can write to lets nothing be executed.
    fn is_known(&self) -> bool {
        let in_memory = ["/memfd:", "/dev/", "/SYSV"];
        !self.path.is_empty() && !in_memory.iter().any(|kind| self.path.starts_with(kind))
    }
}

/// Those of `/proc/PID/maps` that may be executed.
fn code_mappings(maps: &str) -> Vec<CodeMapping> {
    let read = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let offset = words.next()?;
        let inode = words.nth(1)?;
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        rights.contains('x').then_some(())?;
        Some(CodeMapping {
            start: hexadecimal(start)?,
            end: hexadecimal(end)?,
            offset: hexadecimal(offset)?,
            inode: inode.parse().ok()?,
            path: words.next().unwrap_or_default().trim_start().to_owned(),
        })
    };
    maps.lines().filter_map(read).collect()
}

impl SymbolTable {
    fn read(pid: u32, path: &Path) -> io::Result<Self> {
        // As it is called in the worker's tree, which may be another than ours.
        let inside = Path::new("/proc").join(pid.to_string()).join("root");
        let inside = inside.join(path.strip_prefix("/").unwrap_or(path));
        let file = File::open(path).or_else(|_| File::open(inside))?;
        let cache = ReadCache::new(file);
        let broken = |error: object::Error| io::Error::new(io::ErrorKind::InvalidData, error);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).map_err(broken)?;
        let segments = elf.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            Segment {
                offset,
                bytes,
                address: segment.address(),
            }
        });
        let mut sorted: Vec<Function> = elf
            .symbols()
            .filter(|symbol| symbol.size() > 0)
            .filter_map(|symbol| {
                let name = symbol.name().ok().filter(|name| computes(name))?;
                Some(Function {
                    address: symbol.address(),
                    bytes: symbol.size(),
                    name: name.to_owned(),
                })
            })
            .collect();
        sorted.sort_by_key(|function| function.address);
        Ok(Self {
            path: path.to_owned(),
            segments: segments.collect(),
            functions: sorted,
        })
    }

    /// The one that holds what is at this place of the file.
    fn at(&self, offset: u64) -> Option<&Function> {
        let segment = self
            .segments
            .iter()
            .find(|one| (one.offset..one.offset + one.bytes).contains(&offset))?;
        let address = offset - segment.offset + segment.address;
        let after = self.functions.partition_point(|one| one.address <= address);
        let found = self.functions.get(after.checked_sub(1)?)?;
        (address < found.address + found.bytes).then_some(found)
    }
}

/// Whether a function of PyTorch's library, by its mangled name, does work that a candidate should do itself. Copying and
/// filling may stay, and `warpsmith_gemm` is the library's.
fn computes(name: &str) -> bool {
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    // Kernels have no name outside their file, or are there once for each kind of processor.
    if has(&["6native"]) && has(&["12_GLOBAL__N_1", "7DEFAULT", "4AVX2", "6AVX512"]) {
        return !has(&["copy", "fill", "empty", "resize", "view", "strided"]);
    }
    ["Sleef_", "mkl_vml_", "mkl_dft_", "mkl_lapack_", "xnn_"]
        .iter()
        .any(|library| name.starts_with(library))
        || has(&["4dnnl4impl", "6fbgemm"])
}

/// The first of a mangled name's words that says something.
fn readable(name: &str) -> String {
    // Who calls a kernel, and how.
    let plain = [
        "at",
        "native",
        "internal",
        "vec",
        "DEFAULT",
        "AVX2",
        "AVX512",
        "_GLOBAL__N_1",
        "invoke_parallel",
        "parallel_for",
        "function_ref",
        "callback_fn",
        "std",
        "c10",
    ];
    let mut rest = name;
    while let Some(digit) = rest.find(|letter: char| letter.is_ascii_digit()) {
        rest = &rest[digit..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let word = rest[..digits].parse::<usize>().ok().and_then(|length| {
            let end = digits.checked_add(length)?;
            rest.get(digits..end)
        });
        match word {
            Some(word) if word.len() > 1 && !plain.contains(&word) => return word.to_owned(),
            Some(word) => rest = &rest[digits + word.len()..],
            None => break,
        }
    }
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFTMAX: &str =
        "_ZN2at6native7DEFAULT12_GLOBAL__N_124vec_softmax_lastdim_implIfEEvRKNS_6TensorES5_";

    #[test]
    fn kernels_are_told_from_copies() {
        for name in [SOFTMAX, "Sleef_expf8_u10", "_ZN4dnnl4impl3cpu4x64"] {
            assert!(computes(name), "{name}");
        }
        let copy = "_ZN2at6native4AVX217direct_copy_kernelERNS_18TensorIteratorBaseE";
        for name in [copy, "mkl_blas_avx2_sgemm_kernel_0", "_ZN2at6native5emptyE"] {
            assert!(!computes(name), "{name}");
        }
        assert_eq!(readable(SOFTMAX), "vec_softmax_lastdim_impl");
        assert_eq!(readable("Sleef_expf8_u10"), "Sleef_expf8_u10");
        let inner = "_ZN2at8internal15invoke_parallelIZNS_12parallel_forIZNS_6native12_GLOBAL__N_1L24vec_host_softmax_lastdimE";
        assert!(computes(inner));
        assert_eq!(readable(inner), "vec_host_softmax_lastdim");
    }

    #[test]
    fn code_is_known_by_where_it_comes_from() {
        let maps = "7f00-7f10 r-xp 00001000 08:01 42   /usr/lib/libm.so.6\n\
            7f10-7f20 rw-p 00000000 00:00 0\n\
            7f20-7f30 r-xp 00000000 00:01 7    /memfd:kernels (deleted)\n\
            7f40-7f50 rwxp 00000000 00:00 0 \n\
            7f50-7f60 r-xp 00000000 00:00 0    [vdso]\n\
            7f60-7f70 r-xp 00000000 00:05 9    /srv/a b.so\n\
            7f70-7f80 r-xp 00000000 00:05 9    /dev/zero\n";
        let known: Vec<bool> = code_mappings(maps)
            .iter()
            .map(CodeMapping::is_known)
            .collect();
        assert_eq!(known, [true, false, false, true, true, false]);
        let first = &code_mappings(maps)[0];
        assert_eq!(
            (first.start, first.offset, first.inode),
            (0x7f00, 0x1000, 42)
        );
        assert_eq!(code_mappings(maps)[4].path, "/srv/a b.so");
    }

    #[test]
    fn a_library_that_was_mapped_over_is_noticed() {
        let before = code_mappings("7000-9000 r-xp 00001000 08:01 42   /lib/libtorch_cpu.so\n");
        let still = [
            "7000-9000 r-xp 00001000 08:01 42   /lib/libtorch_cpu.so\n",
            "7000-8000 r-xp 00001000 08:01 42   /lib/libtorch_cpu.so\n8000-9000 rwxp 00002000 08:01 42   /lib/libtorch_cpu.so\n",
        ];
        for maps in still {
            assert_eq!(
                first_replaced(&before, &code_mappings(maps)),
                None,
                "{maps}"
            );
        }
        let other = [
            "7000-9000 r-xp 00001000 00:01 7    /memfd:kernels (deleted)\n",
            "7000-9000 r-xp 00003000 08:01 42   /lib/libtorch_cpu.so\n",
            "7000-8000 r-xp 00001000 08:01 42   /lib/libtorch_cpu.so\n",
            "7000-8000 r-xp 00001000 08:01 42   /lib/libtorch_cpu.so\n8000-9000 r-xp 00001000 08:01 42   /lib/libtorch_cpu.so\n",
        ];
        for maps in other {
            assert!(
                first_replaced(&before, &code_mappings(maps)).is_some(),
                "{maps}"
            );
        }
    }

    #[test]
    fn a_few_looks_mean_nothing_and_many_do() {
        let seen = |own, borrowed, unknown| SampledCode {
            own,
            torch_kernels: BTreeMap::from([("softmax".to_owned(), borrowed)]),
            unknown,
            ..SampledCode::default()
        };
        assert_eq!(seen(0, 3, 3).violation(Rules::Own), None);
        assert_eq!(seen(1000, 40, 40).violation(Rules::Own), None);
        let fault = seen(10, 4, 0).violation(Rules::Own).unwrap();
        assert_eq!(fault.rule, Some(Rule::ForbiddenOperator));
        assert!(fault.reason.contains("`softmax`"), "{}", fault.reason);
        let fault = seen(10, 0, 4).violation(Rules::Own).unwrap();
        assert_eq!(fault.rule, Some(Rule::ForbiddenImport));
    }

    #[test]
    fn a_call_without_python_is_noticed_if_there_should_have_been_enough() {
        let seen = |python| SampledCode {
            python,
            ..SampledCode::default()
        };
        // 200 calls of 20 us are 85 looks.
        assert!(seen(3).without_python(200, 20.0));
        assert!(!seen(4).without_python(200, 20.0));
        assert!(!seen(0).without_python(10, 20.0));
    }
}
