//! PTX of the kernels in `cuda/`, which the driver compiles for the device at hand.
//!
//! `scripts/kernels-ptx` compiles the sources into one archive an architecture. Hopper has its own because programmatic dependent launch
//! cannot be expressed for devices before it. An archive has all PTX files one after the other, each after a line with its name.

use std::io::Read;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaModule};
use cudarc::nvrtc::Ptx;
use flate2::read::GzDecoder;

use crate::GpuError;

/// The lowest compute capability that an archive is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PtxArch {
    Sm80,
    Sm90,
}

/// What a line with a module's name begins with.
const MODULE: &str = "//// ";

impl PtxArch {
    pub(crate) fn for_capability((major, _): (i32, i32)) -> Self {
        if major >= 9 { Self::Sm90 } else { Self::Sm80 }
    }

    /// The archive, unpacked at the first call. Empty where it cannot be.
    fn archive(self) -> &'static str {
        static UNPACKED: [OnceLock<String>; 2] = [OnceLock::new(), OnceLock::new()];
        let (packed, unpacked): (&[u8], _) = match self {
            Self::Sm80 => (include_bytes!("../ptx/sm80.ptx.gz"), &UNPACKED[0]),
            Self::Sm90 => (include_bytes!("../ptx/sm90.ptx.gz"), &UNPACKED[1]),
        };
        unpacked.get_or_init(|| {
            let mut text = String::new();
            match GzDecoder::new(packed).read_to_string(&mut text) {
                Ok(_) => text,
                Err(_) => String::new(),
            }
        })
    }

    /// Names and PTX of all modules.
    fn modules(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let modules = self.archive().split(MODULE).skip(1);
        modules.filter_map(|module| module.split_once('\n'))
    }

    /// The PTX of `cuda/NAME.cu`.
    fn read(self, name: &'static str) -> Result<&'static str, GpuError> {
        let found = self.modules().find(|(other, _)| *other == name);
        found
            .map(|(_, ptx)| ptx)
            .ok_or(GpuError::MissingPtx { module: name })
    }

    pub(crate) fn load(
        self,
        context: &Arc<CudaContext>,
        name: &'static str,
    ) -> Result<Arc<CudaModule>, GpuError> {
        Ok(context.load_module(Ptx::from_src(self.read(name)?))?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use sha2::{Digest, Sha256};

    use super::*;

    /// Sources that use instructions of Hopper alone.
    const SM90_ONLY: [&str; 2] = ["skinny_gemm", "flash_attn_varlen_sm90"];

    #[test]
    fn ptx_was_made_from_these_sources() {
        let cuda = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
        let mut expected = [BTreeSet::new(), BTreeSet::new()];
        for entry in fs::read_dir(&cuda).unwrap() {
            let source = entry.unwrap().path();
            if source.extension().is_none_or(|kind| kind != "cu") {
                continue;
            }
            let text = fs::read_to_string(&source).unwrap();
            let mut digest = Sha256::new();
            // The headers it includes, in their order, then itself.
            let headers = text
                .lines()
                .filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
            for header in headers {
                digest.update(fs::read(cuda.join(header)).unwrap());
            }
            let digest = digest.chain_update(&text).finalize();
            let name: &'static str = source
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
                .leak();
            for (arch, expected) in [PtxArch::Sm80, PtxArch::Sm90]
                .into_iter()
                .zip(&mut expected)
            {
                if arch == PtxArch::Sm80 && SM90_ONLY.contains(&name) {
                    continue;
                }
                let ptx = arch.read(name).unwrap();
                let first = format!("// made by scripts/kernels-ptx from {digest:x}");
                assert_eq!(
                    ptx.lines().next(),
                    Some(first.as_str()),
                    "{name}: run scripts/kernels-ptx"
                );
                expected.insert(name);
            }
        }
        for (arch, expected) in [PtxArch::Sm80, PtxArch::Sm90].into_iter().zip(expected) {
            let found: BTreeSet<&str> = arch.modules().map(|(name, _)| name).collect();
            assert_eq!(found, expected);
        }
    }
}
