//! What a CUDA kernel takes of a multiprocessor, and how many of its warps fit.

/// One kernel, as `ptxas -v` describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelResources {
    /// The name the linker sees.
    pub mangled: String,
    pub registers: u32,
    /// Static only.
    pub shared_bytes: u32,
    pub stack_bytes: u32,
    pub spill_store_bytes: u32,
    pub spill_load_bytes: u32,
}

/// Reads the kernels out of a build log. Lines of other programs are passed over.
pub fn parse_ptxas(log: &str) -> Vec<KernelResources> {
    let mut found: Vec<KernelResources> = Vec::new();
    // `Function properties` also describes device functions that are not kernels: those must not count.
    let mut described = None;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let mangled = rest.split('\'').next().unwrap_or_default().to_owned();
            described = Some(mangled.clone());
            found.push(KernelResources {
                mangled,
                ..KernelResources::default()
            });
            continue;
        }
        if let Some((_, rest)) = line.split_once("Function properties for ") {
            described = Some(rest.trim().trim_matches('\'').to_owned());
            continue;
        }
        let Some(kernel) = found.last_mut() else {
            continue;
        };
        if line.contains("bytes stack frame")
            && described.as_deref() == Some(kernel.mangled.as_str())
        {
            kernel.stack_bytes = before(line, "bytes stack frame").unwrap_or(0);
            kernel.spill_store_bytes = before(line, "bytes spill stores").unwrap_or(0);
            kernel.spill_load_bytes = before(line, "bytes spill loads").unwrap_or(0);
        } else if line.contains("Used ") && line.contains(" registers") {
            kernel.registers = before(line, "registers").unwrap_or(0);
            kernel.shared_bytes = before(line, "bytes smem").unwrap_or(0);
        }
    }
    found
}

/// The number that stands before `words`.
fn before(line: &str, words: &str) -> Option<u32> {
    let (head, _) = line.split_once(words)?;
    // Older versions write static and system shared memory as a sum: `4096+0 bytes smem`.
    let number = head.split_whitespace().last()?;
    number
        .split('+')
        .try_fold(0, |sum, part| Some(sum + part.parse::<u32>().ok()?))
}

/// The entry of a build log that belongs to a kernel's demangled name. Among instances of one template the hungriest.
pub(crate) fn resources_of<'a>(
    demangled: &str,
    known: &'a [KernelResources],
) -> Option<&'a KernelResources> {
    let wanted = base_name(demangled);
    known
        .iter()
        .filter(|kernel| {
            kernel.mangled == demangled || mangled_base(&kernel.mangled) == Some(wanted)
        })
        .max_by_key(|kernel| (kernel.spill_store_bytes, kernel.registers))
}

/// `void space::tile<float, 4>(float*)` is `tile`.
fn base_name(demangled: &str) -> &str {
    let anonymous = demangled.replace("(anonymous namespace)", "{anonymous-namespace}");
    let end = anonymous.find(['<', '(']).unwrap_or(anonymous.len());
    // The replacement has the same length, so places in one are places in the other.
    let head = demangled.get(..end).unwrap_or(demangled);
    let head = head.rsplit(' ').next().unwrap_or(head);
    head.rsplit("::").next().unwrap_or(head)
}

/// The last name of an Itanium-mangled function, without template arguments: `_ZN5space4tileIfEEvPf` is `tile`.
fn mangled_base(mangled: &str) -> Option<&str> {
    let Some(rest) = mangled.strip_prefix("_Z") else {
        return Some(mangled);
    };
    let nested = rest.strip_prefix('N');
    let mut rest = nested.unwrap_or(rest).trim_start_matches(['K', 'V', 'L']);
    let mut last = None;
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return last;
        }
        let length: usize = rest[..digits].parse().ok()?;
        last = Some(rest.get(digits..digits + length)?);
        rest = &rest[digits + length..];
        if nested.is_none() {
            return last;
        }
    }
}

/// What one multiprocessor holds.
struct Multiprocessor {
    warps: u32,
    blocks: u32,
    shared_bytes: u32,
    /// Shared memory is handed out in pieces of this many bytes.
    shared_unit: u32,
    /// Taken from each block's share by the system.
    shared_reserved: u32,
}

const REGISTERS: u32 = 65_536;
const REGISTERS_OF_THREAD: u32 = 255;
const REGISTER_UNIT: u32 = 256;
const PARTITIONS: u32 = 4;
const WARP: u32 = 32;
const LARGEST_BLOCK: u32 = 1024;

/// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; units and reserved bytes from the
/// toolkit's `cuda_occupancy.h`.
fn multiprocessor((major, minor): (u32, u32)) -> Option<Multiprocessor> {
    let (warps, blocks, shared_kib) = match (major, minor) {
        (7, 0 | 2) => (64, 32, 96),
        (7, 5) => (32, 16, 64),
        (8, 0) => (64, 32, 164),
        (8, 6) => (48, 16, 100),
        (8, 7) => (48, 16, 164),
        (8, 9) | (12, _) => (48, 24, 100),
        (9 | 10, _) => (64, 32, 228),
        (11, _) => (48, 24, 228),
        _ => return None,
    };
    let (shared_unit, shared_reserved) = if major < 8 { (256, 0) } else { (128, 1024) };
    Some(Multiprocessor {
        warps,
        blocks,
        shared_bytes: shared_kib << 10,
        shared_unit,
        shared_reserved,
    })
}

/// Share of a multiprocessor's warps that can be resident at once, by the rules of the toolkit's `cuda_occupancy.h`;
/// `shared_bytes` is static and dynamic together. `None` for an unknown device or a block that cannot be launched.
pub fn occupancy(
    capability: (u32, u32),
    threads: u32,
    registers: u32,
    shared_bytes: u32,
) -> Option<f64> {
    let limits = multiprocessor(capability)?;
    if !(1..=LARGEST_BLOCK).contains(&threads) || registers > REGISTERS_OF_THREAD {
        return None;
    }
    let warps = threads.div_ceil(WARP);
    let by_warps = limits.warps / warps;
    // Warps are dealt out to four partitions, each with its quarter of the registers.
    let of_warp = (registers * WARP).next_multiple_of(REGISTER_UNIT);
    let by_registers = (REGISTERS / PARTITIONS)
        .checked_div(of_warp)
        .map_or(limits.blocks, |in_partition| {
            in_partition * PARTITIONS / warps
        });
    let share = shared_bytes
        .checked_add(limits.shared_reserved)?
        .checked_next_multiple_of(limits.shared_unit)?;
    let by_shared = limits
        .shared_bytes
        .checked_div(share)
        .unwrap_or(limits.blocks);
    let blocks = limits.blocks.min(by_warps).min(by_registers).min(by_shared);
    (blocks > 0).then(|| f64::from(blocks * warps) / f64::from(limits.warps))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "== kernels/a.cu
ptxas info    : 12 bytes gmem, 24 bytes cmem[3]
ptxas info    : Compiling entry function '_ZN5space4tileILi4EEEvPfPKfi' for 'sm_90a'
ptxas info    : Function properties for _ZN5space4tileILi4EEEvPfPKfi
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 4096 bytes smem, 380 bytes cmem[0]
ptxas info    : Compile time = 12.345 ms
ptxas info    : Compiling entry function '_ZN5space4tileILi8EEEvPfPKfi' for 'sm_90a'
ptxas info    : Function properties for _ZN5space4tileILi8EEEvPfPKfi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers
ptxas info    : Function properties for helper
    512 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
== kernels/b.cu
kernels/b.cu(3): warning #177-D: variable \"x\" was declared but never referenced
ptxas info    : Compiling entry function 'plain' for 'sm_70'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 2048+16 bytes smem, 360 bytes cmem[0]
";

    #[test]
    fn ptxas_output_is_read() {
        let found = parse_ptxas(LOG);
        assert_eq!(
            found[0],
            KernelResources {
                mangled: "_ZN5space4tileILi4EEEvPfPKfi".to_owned(),
                registers: 255,
                shared_bytes: 4096,
                stack_bytes: 16,
                spill_store_bytes: 8,
                spill_load_bytes: 12,
            }
        );
        assert_eq!(
            (
                found[1].registers,
                found[1].stack_bytes,
                found[1].shared_bytes
            ),
            (64, 0, 0),
            "not the helper's frame"
        );
        assert_eq!((found[2].registers, found[2].shared_bytes), (8, 2064));
        assert_eq!(found.len(), 3);
        assert!(parse_ptxas("g++ said nothing\nUsed 3 registers\n").is_empty());
    }

    #[test]
    fn kernels_are_found_by_their_demangled_name() {
        let known = parse_ptxas(LOG);
        let registers = |name: &str| resources_of(name, &known).map(|kernel| kernel.registers);
        assert_eq!(
            registers("void space::tile<4>(float*, float const*, int)"),
            Some(255)
        );
        assert_eq!(registers("plain"), Some(8), "extern \"C\"");
        assert_eq!(
            registers("void at::native::elementwise_kernel<128, 4>(int)"),
            None
        );
        assert_eq!(
            base_name("void (anonymous namespace)::rows<float>(float*)"),
            "rows"
        );
        assert_eq!(mangled_base("_Z7softmaxPfPKfll"), Some("softmax"));
        assert_eq!(mangled_base("_ZN12_GLOBAL__N_14rowsIfEEvPf"), Some("rows"));
        assert_eq!(mangled_base("_Z99short"), None);
    }

    #[test]
    fn occupancy_follows_the_toolkits_rules() {
        let percent = |capability, threads, registers, shared| {
            occupancy(capability, threads, registers, shared)
                .map(|share| (share * 1000.0).round() / 10.0)
        };
        // 64 registers x 32 threads = 2048 a warp; a partition's 16384 hold 8 warps, the four 32: 8 blocks of 4 warps.
        assert_eq!(percent((9, 0), 128, 64, 0), Some(50.0));
        assert_eq!(percent((9, 0), 128, 32, 0), Some(100.0));
        // 33 registers are rounded up to 40 (256 a warp): 12 warps in a partition, 48 in all, 1.5 blocks of 1024 threads.
        assert_eq!(percent((9, 0), 1024, 33, 0), Some(50.0));
        assert_eq!(percent((8, 0), 256, 33, 0), Some(75.0));
        // 100 KiB and the reserved 1 KiB fit twice into 228 KiB: 2 blocks of 8 warps.
        assert_eq!(percent((9, 0), 256, 32, 100 << 10), Some(25.0));
        // 48 warps: 1024-thread blocks of 32 warps fit once.
        assert_eq!(percent((8, 6), 1024, 32, 0), Some(66.7));
        assert_eq!(percent((7, 5), 1024, 64, 0), Some(100.0));
        // At most 32 blocks of a single warp, 16 on Turing.
        assert_eq!(percent((8, 0), 32, 16, 0), Some(50.0));
        assert_eq!(percent((7, 5), 32, 16, 0), Some(50.0));
        // 48 KiB without a reserve: 2 blocks in Volta's 96 KiB.
        assert_eq!(percent((7, 0), 512, 32, 48 << 10), Some(50.0));
        assert_eq!(percent((10, 0), 128, 255, 0), Some(12.5));
        assert_eq!(
            percent((9, 0), 1024, 128, 0),
            None,
            "too many registers to launch"
        );
        assert_eq!(percent((9, 0), 2048, 32, 0), None);
        assert_eq!(percent((5, 2), 128, 32, 0), None);
    }
}
