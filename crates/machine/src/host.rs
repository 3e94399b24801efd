//! The processor, the memory and the disk of this machine.

use std::io;
use std::path::Path;
use std::thread;

use serde::Serialize;

/// The processor, as far as it decides how code is compiled and which times are comparable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CpuInfo {
    pub name: String,
    /// The cores this process may use; a container or an affinity mask can lower the number.
    pub cores: usize,
    /// The widest vectors: `avx512`, `avx2`, `sse2`, `neon` or `none`.
    pub vector: &'static str,
}

pub fn cpu() -> CpuInfo {
    CpuInfo {
        name: fs_err::read_to_string("/proc/cpuinfo")
            .ok()
            .and_then(|text| processor_name(&text))
            .unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH)),
        cores: thread::available_parallelism().map_or(1, usize::from),
        vector: vector(),
    }
}

fn processor_name(cpuinfo: &str) -> Option<String> {
    let value = |key: &str| {
        cpuinfo.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            (found.trim() == key && !value.trim().is_empty()).then(|| value.trim().to_owned())
        })
    };
    // Arm kernels give numbers instead of a name.
    value("model name").or_else(|| {
        Some(format!(
            "arm implementer {} part {}",
            value("CPU implementer")?,
            value("CPU part")?
        ))
    })
}

#[cfg(target_arch = "x86_64")]
fn vector() -> &'static str {
    // The features torch requires for its AVX-512 kernels.
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if avx512 {
        "avx512"
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        "avx2"
    } else {
        "sse2"
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vector() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "neon"
    } else {
        "none"
    }
}

/// The memory this process may use: the machine's, or less where a control group says so.
pub fn memory_bytes() -> u64 {
    let machine = fs_err::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| total_memory(&text))
        .unwrap_or(0);
    [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    .iter()
    .filter_map(|path| {
        fs_err::read_to_string(path)
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    })
    .fold(machine, u64::min)
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let rest = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = rest.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib << 10)
}

/// Bytes an unprivileged user can still write at that path or, where it does not exist yet, at its nearest parent.
pub fn free_disk(path: &Path) -> io::Result<u64> {
    let absolute = std::path::absolute(path)?;
    let existing = absolute
        .ancestors()
        .find(|folder| folder.exists())
        .unwrap_or(Path::new("/"));
    let found = rustix::fs::statvfs(existing)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_named() {
        assert_eq!(
            processor_name("processor: 0\nmodel name\t: AMD EPYC 9B14\n").unwrap(),
            "AMD EPYC 9B14"
        );
        assert_eq!(
            processor_name("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n").unwrap(),
            "arm implementer 0x41 part 0xd4f"
        );
        assert_eq!(processor_name(""), None);
    }

    #[test]
    fn this_machine_has_cores_memory_and_disk() {
        assert!(cpu().cores >= 1);
        assert!(memory_bytes() > 64 << 20);
        let folder = tempfile::tempdir().unwrap();
        let here = free_disk(folder.path()).unwrap();
        assert!(here > 0);
        assert!(free_disk(&folder.path().join("not/yet/there")).unwrap() > 0);
    }
}
